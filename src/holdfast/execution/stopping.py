"""Stop runs: cancel or pause them, now or at the next boundary between steps. Delete runs.

Invariant: a request that was accepted is in the store; a process that advances the run obeys it at the next boundary.
A run that a process advances is not deleted; a fork of a deleted run stays readable.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import InvalidCall, StaleVersion
from holdfast.execution import inbox
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.lease import is_alive
from holdfast.execution.loops import is_bookkeeping
from holdfast.execution.questions import settled
from holdfast.history.builder import VersionMetadata, with_questions
from holdfast.history.committer import Committer
from holdfast.model.checks import check_text
from holdfast.model.names import MAX_NOTE, MAX_STEP
from holdfast.model.records import CLOSED, ENDED, RunRecord
from holdfast.model.run_detail import detail_of, encode_detail
from holdfast.store.protocol import iter_runs


def cancel(engine: EngineContext, run_id: str, reason: str | None, actor: str | None) -> None:
    """Cancel a run and its children."""
    run = engine.record(run_id)
    stop(engine, run_id, "cancel", reason, actor)
    for child in iter_runs(engine.store, parent=run.key):
        cancel(engine, child.id, reason, actor)


def stop(engine: EngineContext, run_id: str, what: str, reason: str | None, actor: str | None) -> None:
    """Cancel or pause a run; if a process advances it, request that."""
    if is_bookkeeping(run_id):
        raise InvalidCall(
            f"{run_id!r} has the configuration, questions and agents of a loop, which no {what} ends: reset its "
            "agents, or answer its question with cancel",
            run=run_id,
        )
    while True:
        run = engine.record(run_id)
        if run.status in ENDED:
            return
        if is_alive(run, engine.context.clock()):
            inbox.request_stop(engine.context, run_id, what, reason, actor)
            execution = engine.executions.get(run_id)
            if execution is not None:
                execution.detail.stop_request, execution.detail.reason, execution.detail.actor = (
                    what,
                    reason,
                    actor,
                )
                execution.stop.end_pauses()
            return
        try:
            stop_idle(engine, run, what, reason, actor)
        except StaleVersion:
            continue
        engine.publisher.wake()
        return


def stop_idle(
    engine: EngineContext, run: RunRecord, what: str, reason: str | None, actor: str | None
) -> None:
    """Cancel or pause a run that no process advances; raise `StaleVersion` if it has changed since it was read."""
    if what == "pause":
        if run.status not in ("paused", "stalled"):
            inbox.pause(engine.context, run, reason, actor)
        return
    committer = Committer(engine.context, run.id)
    head = committer.fresh_head()
    assert head is not None
    if head.run.revision != run.revision:
        raise StaleVersion(f"run {run.id!r} has changed since it was read: read it again")
    detail = detail_of(head.run)
    detail.waits, detail.stop_request = [], ""
    entries = settled(engine.store, head.run, detail, engine.context.clock(), choice="cancel", actor=actor)
    ending = VersionMetadata(kind="final", status="cancelled", note=reason, actor=actor)
    left = msgspec.structs.replace(head.run, owner=None, until=0, due=None, detail=encode_detail(detail))
    draft = committer.build(head.root, head, head, ending, run=left, events=entries)
    committer.note_committed(draft, engine.store.append(with_questions(draft.change)))


def delete(engine: EngineContext, run_id: str) -> None:
    """Delete a run, its children, and their history. Raise `AlreadyRunning`, and delete nothing, if a process advances
    one of them."""
    from holdfast.history import prune

    store, context = engine.store, engine.context
    _refuse_live(engine, engine.record(run_id))
    while True:
        run = engine.record(run_id)
        forks = store.forks_of(run.key)
        for fork in forks:
            if fork.workflow is not None and fork.status not in CLOSED:
                raise InvalidCall(
                    f"run {fork.id!r} was forked from {run_id!r} and will replay its steps: let it end, or delete "
                    "it first",
                    run=run_id,
                    fork=fork.id,
                )
        for child in iter_runs(store, parent=run.key):
            delete(engine, child.id)
        try:
            for fork in forks:
                prune.detach(store, fork, now=context.clock())
                context.drop_reader(fork.id)
            store.delete_run(run)
        except StaleVersion:
            _refuse_live(engine, engine.record(run_id))
            continue
        context.drop_reader(run_id)
        engine.overrides.pop(run_id, None)
        return


def _refuse_live(engine: EngineContext, run: RunRecord) -> None:
    """Raise `AlreadyRunning` if a process advances a run or a child of it, and was not asked to cancel it."""
    if run.status not in CLOSED and detail_of(run).stop_request != "cancel":
        engine.refuse_if_running(run)
    for child in iter_runs(engine.store, parent=run.key):
        _refuse_live(engine, child)


def check_reason(reason: Any, actor: Any) -> None:
    """Check the texts that say why, and by whom, a run is changed."""
    check_text("reason", reason, MAX_NOTE)
    check_text("actor", actor, MAX_STEP)
