"""Entries of an application's own in a run's journal: beside those that Holdfast writes, and told from them.

Invariant: an entry that goes with a version is there if the version is; none bears a name that Holdfast uses itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.errors import InvalidCall, NotFound, StaleVersion
from holdfast.history.context import Context
from holdfast.model.names import short
from holdfast.model.records import EventRecord
from holdfast.store.base import Append
from holdfast.tree.codec import encode
from holdfast.tree.fold import Folder, Redactor

#: What happened, and what is to be known about it.
Told = tuple[str, Mapping[str, Any]]

_KIND = re.compile(r"[A-Za-z][\w-]*(\.[\w-]+)+", re.ASCII)
#: First words of the kinds that Holdfast writes itself.
OWN_WORDS = ("run", "step", "timeline", "version", "versions", "prompt", "event")
#: Facts of an entry that are told beside its data.
_BESIDE = ("version", "step")
_LONGEST = 200
#: Bytes of an entry's data: a journal is read whole, large values belong into the state.
_LARGEST = 64 * 1024


def check_told(events: Any) -> tuple[Told, ...]:
    """Entries that may be written, or `InvalidCall`."""
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


def entry_of(
    told: Told, now: int, redact: Redactor | None, *, version: int | None, step: str | None
) -> EventRecord:
    """The journal's entry, without secrets."""
    kind, given = told
    beside = {"version": version, "step": step}
    facts = {**given, **{name: value for name, value in beside.items() if value is not None}}
    data = encode(Folder(None, redact).fold(facts, part="event"))
    if len(data) > _LARGEST:
        raise InvalidCall(
            f"the data of event {kind!r} has {len(data)} bytes; {_LARGEST} are the most: put it into the state"
        )
    return EventRecord(kind=kind, at=now, data=data)


def tell(context: Context, run_id: str, told: Told, *, version: int | None, step: str | None) -> None:
    """Write an entry that goes with no version."""
    entry = entry_of(told, context.clock(), context.redact, version=version, step=step)
    while True:
        run = context.store.run(run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id!r}: commit to it first", run=run_id)
        after = msgspec.structs.replace(run, revision=run.revision + 1)
        try:
            context.store.append(Append(expect=run, run=after, events=[entry]))
        except StaleVersion:
            continue
        return


def _check_kind(kind: Any) -> str:
    if not isinstance(kind, str) or len(kind) > _LONGEST or not _KIND.fullmatch(kind):
        raise InvalidCall(
            f"the kind of an event is words with points between them, 'agent.woke', not {short(kind)}"
        )
    if kind.split(".")[0] in OWN_WORDS:
        raise InvalidCall(f"{kind!r} reads as an event of Holdfast's own: let it begin with another word")
    return kind


def _check_data(data: Any) -> Mapping[str, Any]:
    if not isinstance(data, Mapping) or not all(isinstance(name, str) for name in data):
        raise InvalidCall(f"the data of an event is a dict whose keys are strings, not {short(data)}")
    for name in _BESIDE:
        if name in data:
            raise InvalidCall(f"{name!r} of an event stands beside its data: leave it out there")
    return data
