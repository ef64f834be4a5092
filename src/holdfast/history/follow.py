"""A version that follows another one than the head.

Whoever goes on from an older version, because others went on meanwhile or because it wants to try again, is not mixed
with them: its version stands on the timeline of the one that it follows, if that is the last there, and else begins
a timeline.

Invariant: a version and the timeline that it begins are there together, or neither is.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import InvalidCall, NotFound
from holdfast.history.advance import Line
from holdfast.history.commit import Facts, event
from holdfast.history.context import Context
from holdfast.history.reader import Head
from holdfast.model.records import EventRecord, RunRecord, TimelineRecord
from holdfast.tree import path as paths
from holdfast.tree.frozen import DICTS, LISTS


def follow(context: Context, line: Line, at: Head, state: Any, facts: Facts, *, move: bool) -> Head:
    """Make a state, that was made from the version `at`, the version that follows it, with the comparison of `append`.
    The head of the run moves there, or stays where it is."""
    run, target = at.run, at.version
    if run.workflow is not None:
        raise InvalidCall(
            f"run {run.id!r} belongs to a workflow, whose state comes from its steps: fork it with edit=…",
            run=run.id,
        )
    newest = context.store.versions(run.key, timeline=target.timeline, limit=1)
    timeline: TimelineRecord | None = None
    events: list[EventRecord] = []
    # As after a rollback, the status is that of the version that is followed.
    after, number = msgspec.structs.replace(run, status=target.status), target.timeline
    if not newest or newest[0].number != target.number:
        now = context.clock()
        number = run.timeline + 1
        timeline = TimelineRecord(
            number=number, parent=target.number, at=now, reason=facts.note, actor=facts.actor
        )
        events.append(
            event(
                "timeline.begun",
                now,
                at=target.number,
                timeline=number,
                reason=facts.note,
                actor=facts.actor,
            )
        )
        after = msgspec.structs.replace(after, timeline=number)
    drawn = line.draw(state, at, at, facts, run=after, events=events, timeline=number)
    change = msgspec.structs.replace(drawn.change, timeline=timeline)
    if not move:
        change = msgspec.structs.replace(change, run=_unmoved(change.run, run))
    return line.settle(drawn, context.store.append(change))


def _unmoved(after: RunRecord, run: RunRecord) -> RunRecord:
    return msgspec.structs.replace(after, head=run.head, status=run.status, step=run.step)


def patched(root: Any, changes: list[tuple[list[Any], Any]]) -> Any:
    """A state with the parts at some paths replaced; all the others are the very parts of the frozen tree `root`."""
    for segments, value in changes:
        root = _put(root, segments, value, 0)
    return root


def _put(part: Any, segments: list[Any], value: Any, depth: int) -> Any:
    if depth == len(segments):
        return value
    key = segments[depth]
    if type(part) is dict or type(part) in DICTS:
        if key not in part and depth + 1 < len(segments):
            raise _no_place(segments, depth)
        return {**part, key: _put(part.get(key), segments, value, depth + 1)}
    if type(part) is list or type(part) in LISTS:
        last = depth + 1 == len(segments)
        if type(key) is not int or not 0 <= key < len(part) + last:
            raise _no_place(segments, depth)
        items = list(part)
        items[key : key + 1] = [_put(items[key] if key < len(items) else None, segments, value, depth + 1)]
        return items
    raise _no_place(segments, depth)


def _no_place(segments: list[Any], depth: int) -> NotFound:
    where = paths.show(segments[: depth + 1])
    return NotFound(f"the state has no place {where} for a value", path=where)
