"""The journal of a run: read entries as events, append events of the application.

The row of a version is itself a journal entry: in the run of a workflow a completed step, or the start or end of the
run; otherwise a saved version.

Invariant: an event that is committed with a version exists if the version does. No event of an application has a kind
that Holdfast uses itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from holdfast.errors import CorruptVersion, InvalidCall
from holdfast.history.context import StoreContext
from holdfast.history.hashes import check_hash
from holdfast.model.names import short
from holdfast.model.public import Event, when
from holdfast.model.records import EventRecord, RunRecord, VersionRecord, current_kind
from holdfast.store.protocol import Store
from holdfast.tree.codec import decode, encode
from holdfast.tree.fold import Folder, Redactor

#: The kind of an event, and its data.
NewEvent = tuple[str, Mapping[str, Any]]

_KIND = re.compile(r"[A-Za-z][\w-]*(\.[\w-]+)+", re.ASCII)
#: First words of the kinds of Holdfast's own events.
RESERVED_PREFIXES = (
    "run",
    "step",
    "timeline",
    "version",
    "versions",
    "question",
    "prompt",
    "signal",
    "event",
    "breaker",
)
#: The word under which the journal keeps the id of a question (`question_id` in the data of these events).
STORED_QUESTION_ID = "prompt"
#: The former spelling of an answer, which journals still contain.
_FORMER_CHOICE = "reinitialise"
#: Fields of an event that are not part of its data.
_FIELDS = ("version", "step")
_MAX_KIND = 200
_PAGE = 256
#: Bytes of an event's data. Large values belong into the state.
_MAX_DATA = 64 * 1024


def check_events(events: Any) -> tuple[NewEvent, ...]:
    """Return events of an application that may be written; otherwise raise `InvalidCall`."""
    if isinstance(events, str | Mapping) or not isinstance(events, Iterable):
        raise InvalidCall(
            f"events is a list of kinds and their data: [('agent.woke', {{}})], not {short(events)}"
        )
    found = []
    for entry in events:
        if not isinstance(entry, tuple | list) or len(entry) != 2:
            raise InvalidCall(f"an event is a kind and its data: ('agent.woke', {{}}), not {short(entry)}")
        found.append((_check_kind(entry[0]), _check_data(entry[1])))
    return tuple(found)


def encode_event(
    event: NewEvent, now: int, redact: Redactor | None, *, version: int | None, step: str | None
) -> EventRecord:
    """Return the journal entry of an event, with secrets redacted."""
    kind, given = event
    fields = {"version": version, "step": step}
    facts = {**given, **{name: value for name, value in fields.items() if value is not None}}
    data = encode(Folder(None, redact).fold(facts, part="event"))
    if len(data) > _MAX_DATA:
        raise InvalidCall(
            f"the data of event {kind!r} has {len(data)} bytes; at most {_MAX_DATA} are allowed: put it into the state"
        )
    return EventRecord(kind=kind, at=now, data=data)


def append_event(
    context: StoreContext, run_id: str, event: NewEvent, *, version: int | None, step: str | None
) -> None:
    """Append an event without a version to a run's journal."""
    entry = encode_event(event, context.clock(), context.redact, version=version, step=step)
    context.touch(lambda: context.run(run_id), [entry])


def _check_kind(kind: Any) -> str:
    if not isinstance(kind, str) or len(kind) > _MAX_KIND or not _KIND.fullmatch(kind):
        raise InvalidCall(
            f"the kind of an event is words separated by points, such as 'agent.woke', not {short(kind)}"
        )
    if kind.split(".")[0] in RESERVED_PREFIXES:
        raise InvalidCall(f"{kind!r} is a kind of Holdfast's own events: start it with another word")
    return kind


def _check_data(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, Mapping) or not all(isinstance(name, str) for name in data):
        raise InvalidCall(f"the data of an event is a dict whose keys are strings, not {short(data)}")
    for name in _FIELDS:
        if name in data:
            raise InvalidCall(f"{name!r} is a field of the event, not part of its data: leave it out")
    return data


#: The event that a version of a workflow's run is, by the kind of the version.
_KINDS = {"initial": "run.started", "step": "step.completed", "final": "run.completed"}


#: Kinds of Holdfast's own events.
_EVENT_NAMES = {
    "run": "started queued claimed requeued handed_back resumed completed failed cancelled suspended paused diverged "
    "limited pause_requested cancel_requested rolling_back compensated rolled_back forked detached alert recovered "
    "stalled watchdog_set meta_changed",
    "step": "completed failed retried replayed",
    "question": "opened answered timed_out outdated reminded escalated assigned",
    "breaker": "opened half_opened closed",
    "signal": "sent",
    "timeline": "started",
    "version": "saved tagged untagged pinned unpinned damaged",
    "versions": "pruned",
}
EVENT_KINDS = tuple(f"{prefix}.{name}" for prefix, names in _EVENT_NAMES.items() for name in names.split())
#: An application may have written other kinds that start with `question.`: these were not reserved at first.
_QUESTION_KINDS = frozenset(kind for kind in EVENT_KINDS if kind.startswith("question."))


def is_own_kind(kind: str) -> bool:
    """Return whether Holdfast itself writes events of this kind, under its current or a former name."""
    return current_kind(kind) in EVENT_KINDS


def event_data(entry: EventRecord) -> dict[str, Any]:
    """Return the data of a journal entry."""
    data: dict[str, Any] = decode(entry.data) if entry.data else {}
    if STORED_QUESTION_ID in data and entry.kind in _QUESTION_KINDS:
        data = {"question_id": data.pop(STORED_QUESTION_ID), **data}
        if data.get("choice") == _FORMER_CHOICE:
            data["choice"] = "reinitialize"
    return data


def to_event(run: RunRecord, entry: EventRecord | tuple[int, VersionRecord]) -> Event:
    """Return a journal entry as an event; for a damaged version, an event that says so."""
    if isinstance(entry, EventRecord):
        data = event_data(entry)
        version, step = data.pop("version", None), data.pop("step", None)
        return Event(entry.seq, run.id, entry.kind, when(entry.at), version, step, data)
    record = entry[1]
    try:
        check_hash(run.id, record)
    except CorruptVersion:
        return Event(record.seq, run.id, "version.damaged", when(0), record.number, None, {})
    data = {
        "parent": record.parent or None,
        "timeline": record.timeline,
        "kind": record.kind,
        "status": record.status,
    }
    kind = "version.saved"
    if run.workflow is not None:
        detail = decode(record.detail) if record.detail else {}
        kind = _KINDS.get(record.kind, kind)
        if "failed" in detail:
            kind = "step.failed"
        elif record.kind == "final" and record.status != "completed":
            kind = f"run.{record.status}"
        elif record.kind == "initial" and record.status == "queued":
            kind = "run.queued"
        data.update({name: detail[name] for name in ("address", "attempt", "took") if name in detail})
    return Event(record.seq, run.id, kind, when(record.at), record.number, record.step, data, saved=True)


def iter_entries(store: Store, run: RunRecord) -> Iterator[EventRecord | tuple[int, VersionRecord]]:
    """Iterate over the journal entries of a run, oldest first."""
    after = 0
    while page := store.journal(run=run.key, after=after, limit=_PAGE):
        yield from page
        last = page[-1]
        after = last.seq if isinstance(last, EventRecord) else last[1].seq


def read_events(store: Store, *, after: int, limit: int) -> tuple[list[Event], int]:
    """Return the events of the whole store after a cursor, oldest first, and the next cursor."""
    runs: dict[int, RunRecord] = {}
    found = []
    for entry in store.journal(run=None, after=after, limit=limit):
        key = entry.run if isinstance(entry, EventRecord) else entry[0]
        after = entry.seq if isinstance(entry, EventRecord) else entry[1].seq
        run = runs.get(key) or store.run_by_key(key)
        if run is not None:
            runs[key] = run
            found.append(to_event(run, entry))
    return found, after
