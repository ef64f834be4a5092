"""Moving the head of a run back, on a new timeline.

Invariant: nothing is deleted, and nobody who advanced the run before can go on: its revision is another.
"""

from __future__ import annotations

import msgspec

from holdfast.history.commit import event
from holdfast.history.context import Context
from holdfast.model.records import RunRecord, TimelineRecord, VersionRecord
from holdfast.store.base import Append


def move_head(
    context: Context,
    run: RunRecord,
    target: VersionRecord,
    *,
    reason: str | None = None,
    actor: str | None = None,
) -> RunRecord:
    """Make a version the head, with the comparison of `append`."""
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
        revision=run.revision + 1,
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
    return context.store.append(Append(expect=run, run=after, timeline=timeline, events=[entry]))
