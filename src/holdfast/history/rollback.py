"""Moving the head of a run back, on a new timeline, which may begin with a state of its own.

Invariant: nothing is deleted, and nobody who advanced the run before can go on: its revision is another. A state that
the new timeline begins with is there with it, or neither is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.history.advance import Line
from holdfast.history.commit import Facts, event
from holdfast.history.context import Context
from holdfast.history.reader import Head
from holdfast.model.records import EventRecord, RunRecord, TimelineRecord, VersionRecord
from holdfast.store.base import Append


def move_head(
    context: Context,
    run: RunRecord,
    target: VersionRecord,
    *,
    reason: str | None = None,
    actor: str | None = None,
    status: str | None = None,
    due: int | None = None,
    events: Sequence[EventRecord] = (),
) -> RunRecord:
    """Make a version the head, with the comparison of `append`. `status` and `due` are the run's then, if it is not to
    wait for somebody to resume it; `events` are entries for the journal that belong to it."""
    after, timeline, entry = _moved(context, run, target, reason, actor)
    after = msgspec.structs.replace(after, revision=run.revision + 1, status=status or after.status, due=due)
    return context.store.append(Append(expect=run, run=after, timeline=timeline, events=[entry, *events]))


def begin_anew(
    context: Context,
    line: Line,
    at: Head,
    state: Any,
    facts: Facts,
    *,
    due: int | None = None,
    events: Sequence[EventRecord] = (),
) -> Head:
    """Make a state the first version of a new timeline that leaves the others `at` a version, with the comparison of
    `append`. The note and the actor of the facts are the reason and the actor of the timeline."""
    after, timeline, entry = _moved(context, at.run, at.version, facts.note, facts.actor)
    after = msgspec.structs.replace(after, due=due)
    drawn = line.draw(state, at, at, facts, run=after, events=[entry, *events], timeline=after.timeline)
    change = msgspec.structs.replace(drawn.change, timeline=timeline)
    return line.settle(drawn, context.store.append(change))


def _moved(
    context: Context, run: RunRecord, target: VersionRecord, reason: str | None, actor: str | None
) -> tuple[RunRecord, TimelineRecord, EventRecord]:
    """The run with its head at a version, but for its revision; its new timeline; the journal's entry."""
    now = context.clock()
    timeline = TimelineRecord(
        number=run.timeline + 1, parent=target.number, at=now, reason=reason, actor=actor
    )
    after = msgspec.structs.replace(
        run,
        # The run of a workflow goes on when it is resumed.
        status=target.status if run.workflow is None else "paused",
        step=target.step,
        updated=now,
        head=target.number,
        timeline=timeline.number,
        owner=None,
        until=0,
        due=None,
        detail=context.carry(run, target.number),
    )
    entry = event(
        "run.rolled_back",
        now,
        since=run.head,
        to=target.number,
        timeline=timeline.number,
        reason=reason,
        actor=actor,
    )
    return after, timeline, entry
