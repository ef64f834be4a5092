"""Journal entries as callers see them.

The row of a version is the entry of what it records: in the run of a workflow a step that was completed, or the run's
start or end; else a version that was saved.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import CorruptVersion
from holdfast.history.seal import check
from holdfast.model.public import Event, when
from holdfast.model.records import EventRecord, RunRecord, VersionRecord
from holdfast.store.base import Store
from holdfast.tree.codec import decode

#: What versions of a workflow's run stand for, by kind.
_KINDS = {"initial": "run.started", "step": "step.completed", "final": "run.completed"}


#: Kinds that Holdfast itself writes into the journal.
EVENT_KINDS = (
    *("run.started", "run.queued", "run.claimed", "run.requeued", "run.handed_back", "run.resumed"),
    *(
        "run.completed",
        "run.failed",
        "run.cancelled",
        "run.suspended",
        "run.paused",
        "run.diverged",
        "run.limited",
    ),
    *(
        "run.pause_requested",
        "run.cancel_requested",
        "run.rolling_back",
        "run.compensated",
        "run.rolled_back",
    ),
    *("run.forked", "run.detached", "run.alert", "run.restored", "run.frozen", "run.watched"),
    *("step.completed", "step.failed", "step.retried", "step.replayed"),
    *(
        "prompt.opened",
        "prompt.answered",
        "prompt.timed_out",
        "prompt.outdated",
        "event.sent",
        "timeline.begun",
    ),
    *("version.saved", "version.tagged", "version.untagged", "version.pinned", "version.unpinned"),
    *("version.damaged", "versions.pruned"),
)


def to_event(run: RunRecord, entry: EventRecord | tuple[int, VersionRecord]) -> Event:
    """A journal entry as callers see it."""
    if isinstance(entry, EventRecord):
        data = decode(entry.data) if entry.data else {}
        version, step = data.pop("version", None), data.pop("step", None)
        return Event(entry.seq, run.id, entry.kind, when(entry.at), version, step, data)
    record = check(run.id, entry[1])
    facts: dict[str, Any] = {
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
        facts.update({name: detail[name] for name in ("address", "attempt", "took") if name in detail})
    return Event(record.seq, run.id, kind, when(record.at), record.number, record.step, facts, saved=True)


def read_events(store: Store, *, after: int, limit: int) -> tuple[list[Event], int]:
    """What happened in the whole store after a cursor, oldest first, and the cursor to go on from."""
    runs: dict[int, RunRecord] = {}
    found = []
    for entry in store.journal(run=None, after=after, limit=limit):
        key = entry.run if isinstance(entry, EventRecord) else entry[0]
        after = entry.seq if isinstance(entry, EventRecord) else entry[1].seq
        run = runs.get(key) or store.run_by_key(key)
        if run is not None:
            runs[key] = run
            found.append(readable(run, entry))
    return found, after


def readable(run: RunRecord, entry: EventRecord | tuple[int, VersionRecord]) -> Event:
    """The entry, or, in place of a version that is damaged, word of that: those after it can be read."""
    try:
        return to_event(run, entry)
    except CorruptVersion:
        assert not isinstance(entry, EventRecord)
        record = entry[1]
        return Event(record.seq, run.id, "version.damaged", when(0), record.number, None, {})
