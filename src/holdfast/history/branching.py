"""Leaving the line of versions: roll back, start a timeline, fork a run, follow a version other than the head.

Invariant: nothing is deleted. A version and the timeline that it starts are committed together. A rollback changes
the run's revision, so a process that advanced the run before cannot continue. A fork is created as a whole, and the
version that it came from cannot be pruned while it exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import msgspec

from holdfast.errors import (
    AlreadyExists,
    CorruptVersion,
    InvalidCall,
    InvalidReference,
    NotFound,
    StaleVersion,
)
from holdfast.history.attachments import key_after_rollback
from holdfast.history.builder import VersionMetadata, VersionTrees, build_event, build_version, with_questions
from holdfast.history.committer import Committer, check_status, is_another, open_timeline, started_timelines
from holdfast.history.context import StoreContext
from holdfast.history.hashes import check_attachment, seal_attachment
from holdfast.history.reader import Head, Reader
from holdfast.history.version import Version, segments_of
from holdfast.model.names import check_run_id
from holdfast.model.records import EventRecord, RunRecord, TimelineRecord, VersionRecord
from holdfast.store.protocol import Append, Store
from holdfast.tree import path as paths
from holdfast.tree.draft import draft
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import DICTS, LISTS


def move_head(
    context: StoreContext,
    run: RunRecord,
    target: VersionRecord,
    *,
    reason: str | None = None,
    actor: str | None = None,
    status: str | None = None,
    due: int | None = None,
    events: Sequence[EventRecord] = (),
) -> RunRecord:
    """Make a version the head, on a new timeline; `StaleVersion` if the run has changed.

    `status` and `due` are those of the run afterwards, if it is not to wait for `resume`; `events` are journal entries
    of the same commit."""
    after, timeline, entry = _moved(context, run, target, reason, actor)
    after = msgspec.structs.replace(after, revision=run.revision + 1, status=status or after.status, due=due)
    change = Append(expect=run, run=after, timeline=timeline, events=[entry, *events])
    return context.store.append(with_questions(change))


def start_timeline(
    context: StoreContext,
    committer: Committer,
    at: Head,
    state: Any,
    metadata: VersionMetadata,
    *,
    due: int | None = None,
    events: Sequence[EventRecord] = (),
) -> Head:
    """Commit a state as the first version of a new timeline that starts `at` a version; `StaleVersion` if the run has
    changed. The note and the actor of the metadata are the reason and the actor of the timeline."""
    after, timeline, entry = _moved(context, at.run, at.version, metadata.note, metadata.actor)
    after = msgspec.structs.replace(after, due=due)
    drafted = committer.build(
        state, at, at, metadata, run=after, events=[entry, *events], timeline=after.timeline
    )
    change = with_questions(msgspec.structs.replace(drafted.change, timeline=timeline))
    return committer.note_committed(drafted, context.store.append(change))


def _moved(
    context: StoreContext, run: RunRecord, target: VersionRecord, reason: str | None, actor: str | None
) -> tuple[RunRecord, TimelineRecord, EventRecord]:
    """Return the run with its head at a version (the revision is unchanged), its new timeline, the journal entry."""
    now = context.clock()
    timeline = TimelineRecord(
        number=run.timeline + 1, parent=target.number, at=now, reason=reason, actor=actor
    )
    after = msgspec.structs.replace(
        run,
        # The run of a workflow continues when it is resumed.
        status=target.status if run.workflow is None else "paused",
        step=target.step,
        updated=now,
        head=target.number,
        timeline=timeline.number,
        owner=None,
        until=0,
        due=None,
        detail=context.rollbacks.carry_over(run, target.number),
    )
    entry = build_event(
        "run.rolled_back",
        now,
        since=run.head,
        to=target.number,
        timeline=timeline.number,
        reason=reason,
        actor=actor,
    )
    return after, timeline, entry


def fork(
    context: StoreContext,
    source: Version,
    run_id: str | None,
    *,
    edit: Callable[[Any], Any] | Mapping[str, Any] | None,
    state: Any,
    note: str | None,
    actor: str | None,
    detail: bytes = b"",
) -> RunRecord:
    """Create a run whose first version has the key of a version, and its state, `state` instead, or the result of
    `edit`. It also has the attachments of the version, unless a version follows it: they led to that one."""
    store = context.store
    run_id = check_run_id(f"{source.run[:180]}-fork-{uuid4().hex[:6]}" if run_id is None else run_id)
    if store.run(run_id) is not None:
        raise _exists(run_id)
    origin = _origin(store, source)
    now = context.clock()
    run = RunRecord(
        id=run_id,
        workflow=origin.workflow,
        status=source.status if origin.workflow is None else "paused",
        created=now,
        updated=now,
        origin=(origin.key, source.number),
        detail=detail,
    )
    reader = Reader(store, run)
    try:
        root = reader.state(0)
    except CorruptVersion:
        # It may have been pruned between two reads.
        source.history.at(source.number)
        raise
    folder = Folder(reader.space, context.redact)
    if state is not None:
        root = folder.fold(state, root)
    if edit is not None:
        root = folder.fold(apply_edit(root, edit), root)
    more = {"origin": f"{source.run}@{source.number}"}
    key = source.record.key
    metadata = VersionMetadata(
        kind="fork", note=note, actor=actor, status=run.status, more=more, key=key
    ).check()
    change, _ = build_version(
        reader.space, None, run, VersionTrees(root, arrivals=folder.arrivals), metadata, now=now
    )
    found = _attachment_key(store, origin, source)
    attached = [] if found is None else store.attachments_of(origin.key, [found])
    copies = [
        seal_attachment(run_id, msgspec.structs.replace(check_attachment(origin.id, each), key=key))
        for each in attached
    ]
    try:
        made = store.append(msgspec.structs.replace(change, attachments=copies))
    except StaleVersion:
        raise _exists(run_id) from None
    _record_in_origin(context, source, made, now)
    return made


def _attachment_key(store: Store, run: RunRecord, source: Version) -> str | None:
    """Return the key of the values that belong to a version; None if it was continued: they led to the next one."""
    key = source.key
    if key is None:
        return None
    lines = started_timelines(store, run, source.number)
    if run.head == source.number:
        opened = open_timeline(store, run, lines)
        if opened is not None:
            return key_after_rollback(key, opened)
    elif lines:
        return None
    return None if _is_followed(store, run, source.record) else key


def _is_followed(store: Store, run: RunRecord, version: VersionRecord) -> bool:
    """Return whether a version follows another on its timeline."""
    if run.last == version.number:
        return False
    return bool(
        store.versions(run.key, timeline=version.timeline, after=version.number, limit=1, pruned=True)
    )


def _origin(store: Store, source: Version) -> RunRecord:
    """Return the run of a version; `NotFound` if it was deleted, and perhaps created again under its id."""
    origin = store.run(source.run)
    if origin is None or origin.key != source.reader.run.key:
        raise _deleted(source)
    return origin


def _record_in_origin(context: StoreContext, source: Version, fork: RunRecord, now: int) -> None:
    """Record the fork in its origin, so that a concurrent prune fails; delete the fork if the version is pruned."""

    def read() -> RunRecord:
        try:
            origin = _origin(context.store, source)
            context.reader(origin).record(source.number)
        except NotFound:
            context.store.delete_run(fork)
            raise
        return origin

    context.touch(read, [build_event("run.forked", now, version=source.number, fork=fork.id)])


def _exists(run_id: str) -> AlreadyExists:
    return AlreadyExists(f"run {run_id!r} exists: fork into another id", run=run_id)


def _deleted(source: Version) -> NotFound:
    return NotFound(f"run {source.run!r} was deleted meanwhile", run=source.run)


def append_after(
    context: StoreContext,
    committer: Committer,
    number: int,
    expected: int | None,
    change: Callable[[Any], Any],
    metadata: VersionMetadata,
    *,
    move: bool,
    followed: VersionRecord | None = None,
    expected_head: VersionRecord | None = None,
) -> Head:
    """Commit the changed state of version `number` as the version that follows it, and return that version.

    With `followed` and `expected_head`, these must be the versions of those numbers: the run may have been deleted and
    created again since the caller read them.

    It is on the timeline of the version that it follows if that is the last one there, otherwise on a new timeline.
    With `move`, the head of the run moves to it; without, a version that follows the head starts a timeline.
    """
    head = committer.known_head()
    is_fresh = False
    while True:
        if head is None:
            raise NotFound(f"there is no run {committer.id!r}: commit to it first", run=committer.id)
        if expected is not None:
            if head.number != expected or is_another(head, expected_head):
                head = committer.fresh_head()
            committer.expect_head(head, expected, expected_head)
            assert head is not None
        check_status(head, metadata)
        if number != head.number and head.run.workflow is not None and not is_fresh:
            # Another process may have rolled the run back since this head was read.
            is_fresh, head = True, committer.fresh_head()
            continue
        if number > head.run.last and not is_fresh:
            # Another process has committed it since this head was read.
            is_fresh, head = True, committer.fresh_head()
            continue
        at = head
        if number != head.number:
            reader = context.reader(head.run)
            try:
                at = Head(head.run, reader.record(number), reader.state(number))
            except NotFound:
                known, head = head, committer.fresh_head()
                if head is None or (head.run.key, head.run.epoch) == (known.run.key, known.run.epoch):
                    raise
                # This process knew a run that was deleted and created again, or pruned.
                continue
        committer.expect_same(at.version, followed)
        try:
            if at is head and move:
                drafted = committer.build(change(head.root), head, head, metadata)
                made = committer.note_committed(drafted, context.store.append(drafted.change))
            else:
                made = _append_elsewhere(context, committer, at, change(at.root), metadata, move)
        except StaleVersion:
            head = committer.fresh_head()
            committer.refuse_known_key(head, metadata)
            continue
        if made.run.head == made.number:
            committer.note_moved(made.run, made.number)
        return made


def _append_elsewhere(
    context: StoreContext, committer: Committer, at: Head, state: Any, metadata: VersionMetadata, move: bool
) -> Head:
    """Commit a state that was made from the version `at` as the version that follows it. Without `move`, the head stays
    where it is, and if that is `at`, the version starts a timeline."""
    run, target = at.run, at.version
    refuse_workflow(run)
    newest = context.store.versions(run.key, timeline=target.timeline, limit=1)
    timeline: TimelineRecord | None = None
    events: list[EventRecord] = []
    # As after a rollback, the status is that of the version that is followed.
    after, number = msgspec.structs.replace(run, status=target.status), target.timeline
    if not newest or newest[0].number != target.number or run.head == target.number:
        now = context.clock()
        number = run.timeline + 1
        reason = {"reason": metadata.note, "actor": metadata.actor}
        timeline = TimelineRecord(number=number, parent=target.number, at=now, **reason)
        events.append(build_event("timeline.started", now, at=target.number, timeline=number, **reason))
        after = msgspec.structs.replace(after, timeline=number)
    drafted = committer.build(state, at, at, metadata, run=after, events=events, timeline=number)
    change = msgspec.structs.replace(drafted.change, timeline=timeline)
    if not move:
        unmoved = msgspec.structs.replace(change.run, head=run.head, status=run.status, step=run.step)
        change = msgspec.structs.replace(change, run=unmoved)
    return committer.note_committed(drafted, context.store.append(change))


def refuse_workflow(run: RunRecord) -> None:
    """Raise `InvalidCall` if the run belongs to a workflow: only its steps change its state."""
    if run.workflow is not None:
        raise InvalidCall(
            f"run {run.id!r} belongs to a workflow, whose state comes from its steps: fork it with edit=…",
            run=run.id,
        )


def apply_edit(root: Any, edit: Callable[[Any], Any] | Mapping[str, Any]) -> Any:
    """Return a draft of a state, changed by a function, or by values for paths."""
    state = draft(root)
    if callable(edit):
        edit(state)
        return state
    if not isinstance(edit, Mapping):
        raise InvalidCall("edit is a function that changes a draft, or a dict of paths and values")
    for path, value in edit.items():
        *way, last = segments_of(path) or [None]
        if last is None:
            raise InvalidReference("an edit needs a path: give state= to replace the whole state")
        place = state
        try:
            for segment in way:
                place = place[segment]
            place[last] = value
        except (LookupError, TypeError):
            raise NotFound(f"the state has no place {path!r} to be edited", path=path) from None
    return state


def apply_patch(root: Any, changes: list[tuple[list[Any], Any]]) -> Any:
    """Return a state with the values at some paths replaced; all other parts are shared with the frozen tree `root`."""
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
