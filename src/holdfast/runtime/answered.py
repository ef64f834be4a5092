"""The questions that have been answered, as the journal tells: who did, when, and what they said.

Invariant: the journal is read from its end, and only as far back as is needed for those that are asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from holdfast.model.public import Prompt, when
from holdfast.model.records import EventRecord, RunRecord
from holdfast.runtime.waits import Facts, Wait
from holdfast.store.base import Store
from holdfast.tree.codec import decode, encode

_PAGE = 1000
#: Bytes of an answer that its entry in the journal has room for; the version of its step has any.
_SHORT = 512


def asked(prompt: Wait | Facts) -> dict[str, Any]:
    """What the entry of an answer says of its question: that of a wait, with the answer if it is short, or that of a
    run that is frozen."""
    if isinstance(prompt, Wait):
        told = {"question": prompt.question, "address": prompt.address, "opened": prompt.opened}
        is_short = prompt.filled and len(encode(prompt.value)) <= _SHORT
        return {**told, "answer": prompt.value} if is_short else told
    kept = prompt.prompt
    return {"question": kept["why"], "address": kept.get("address"), "opened": kept["opened"]}


def answered(store: Store, run: RunRecord | None, after: str | None, limit: int) -> list[Prompt]:
    """Questions that have been answered, of one run or of all, the newest answer first; those after a prompt in this
    order, if one is given."""
    found: list[Prompt] = []
    names: dict[int, str] = {}
    for entry in _of_run(store, run) if run is not None else _backwards(store):
        if entry.kind != "prompt.answered":
            continue
        data = decode(entry.data)
        if after is not None:
            after = None if data.get("prompt") == after else after
            continue
        if entry.run not in names:
            record = store.run_by_key(entry.run)
            names[entry.run] = "" if record is None else record.id
        found.append(_prompt(store, entry, data, names[entry.run]))
        if len(found) >= limit:
            break
    return found


def _prompt(store: Store, entry: EventRecord, data: dict[str, Any], run_id: str) -> Prompt:
    if "opened" not in data:
        # Written when an answer did not say yet what was asked.
        data = {**_opening(store, entry, data.get("prompt")), **data}
    return Prompt(
        data.get("prompt", ""),
        run_id,
        data.get("address") or "",
        data.get("question", ""),
        when(data.get("opened", entry.at)),
        details={name: data[name] for name in ("choice", "version", "keep") if name in data},
        answered=when(entry.at),
        actor=data.get("actor"),
        answer=data.get("answer"),
    )


def _opening(store: Store, answer: EventRecord, prompt: Any) -> dict[str, Any]:
    for entry in _events(store, run=answer.run, after=0, until=answer.seq):
        if entry.kind == "prompt.opened":
            data = decode(entry.data)
            if data.get("prompt") == prompt:
                return {**data, "opened": entry.at}
    return {}


def _of_run(store: Store, run: RunRecord) -> Iterable[EventRecord]:
    return reversed(list(_events(store, run=run.key, after=0, until=None)))


def _backwards(store: Store) -> Iterator[EventRecord]:
    """The events of all runs, newest first."""
    end = store.journal_end()
    while end > 0:
        start = max(0, end - _PAGE)
        yield from reversed(list(_events(store, run=None, after=start, until=end)))
        end = start


def _events(store: Store, *, run: int | None, after: int, until: int | None) -> Iterator[EventRecord]:
    """Events after a position, oldest first."""
    while page := store.journal(run=run, after=after, limit=_PAGE):
        for entry in page:
            after = entry.seq if isinstance(entry, EventRecord) else entry[1].seq
            if until is not None and after > until:
                return
            if isinstance(entry, EventRecord):
                yield entry
        if after == until:
            return
