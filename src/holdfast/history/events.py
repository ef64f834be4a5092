"""Journal entries as callers see them."""

from __future__ import annotations

from holdfast.history.seal import check
from holdfast.model.public import Event, when
from holdfast.model.records import EventRecord, RunRecord, VersionRecord
from holdfast.tree.codec import decode


def to_event(run: RunRecord, entry: EventRecord | tuple[int, VersionRecord]) -> Event:
    """A journal entry as callers see it: the row of a version is the event of its being saved."""
    if isinstance(entry, EventRecord):
        data = decode(entry.data) if entry.data else {}
        return Event(entry.seq, run.id, entry.kind, when(entry.at), data.pop("version", None), None, data)
    record = check(run.id, entry[1])
    facts = {
        "parent": record.parent or None,
        "timeline": record.timeline,
        "kind": record.kind,
        "status": record.status,
    }
    return Event(record.seq, run.id, "version.saved", when(record.at), record.number, record.step, facts)
