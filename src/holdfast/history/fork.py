"""Starting another run from a version.

Invariant: a fork is there whole or not at all, and the version it came from cannot be pruned once it is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import msgspec

from holdfast.errors import AlreadyExists, CorruptVersion, NotFound, StaleVersion
from holdfast.history.commit import Facts, Parts, draw_up, event
from holdfast.history.context import Context
from holdfast.history.reader import Reader
from holdfast.history.version import Version, edited
from holdfast.model.names import check_run_id
from holdfast.model.records import RunRecord
from holdfast.store.base import Append
from holdfast.tree.fold import Folder


def fork(
    context: Context,
    source: Version,
    run_id: str | None,
    *,
    edit: Callable[[Any], Any] | Mapping[str, Any] | None,
    state: Any,
    note: str | None,
    actor: str | None,
    detail: bytes = b"",
) -> RunRecord:
    """A new run that begins with the state of a version, or with what is made of it. `detail` is that of its record."""
    store = context.store
    run_id = check_run_id(f"{source.run[:180]}-fork-{uuid4().hex[:6]}" if run_id is None else run_id)
    if store.run(run_id) is not None:
        raise _exists(run_id)
    origin = store.run(source.run)
    if origin is None:
        raise _deleted(source)
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
        # Perhaps it was pruned between two reads.
        source._history.at(source.number)
        raise
    folder = Folder(reader.space, context.redact)
    if state is not None:
        root = folder.fold(state, root)
    if edit is not None:
        root = folder.fold(edited(root, edit), root)
    more = {"origin": f"{source.run}@{source.number}"}
    facts = Facts(kind="fork", note=note, actor=actor, status=run.status, more=more)
    facts.check()
    change, _ = draw_up(reader.space, None, run, Parts(root, arrivals=folder.arrivals), facts, now=now)
    try:
        made = store.append(change)
    except StaleVersion:
        raise _exists(run_id) from None
    _announce(context, source, made, now)
    return made


def _announce(context: Context, source: Version, fork: RunRecord, now: int) -> None:
    """Tell the origin, so that a pruning that did not see the fork is refused; undo the fork if it came too late."""
    store = context.store
    while True:
        origin = store.run(source.run)
        try:
            if origin is None:
                raise _deleted(source)
            context.reader(origin).record(source.number)
        except NotFound:
            store.delete_run(fork)
            raise
        after = msgspec.structs.replace(origin, revision=origin.revision + 1)
        entry = event("run.forked", now, version=source.number, fork=fork.id)
        try:
            store.append(Append(expect=origin, run=after, events=[entry]))
        except StaleVersion:
            continue
        return


def _exists(run_id: str) -> AlreadyExists:
    return AlreadyExists(f"run {run_id!r} exists: fork into another id", run=run_id)


def _deleted(source: Version) -> NotFound:
    return NotFound(f"run {source.run!r} was deleted meanwhile", run=source.run)
