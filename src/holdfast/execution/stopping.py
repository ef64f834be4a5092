"""Stop runs: cancel or pause them, now or at the next boundary between steps.

Invariant: a request that was accepted is in the store; a process that advances the run obeys it at the next boundary.
"""

from __future__ import annotations

from typing import Any

import msgspec

from holdfast.errors import StaleVersion
from holdfast.execution import inbox
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.lease import is_alive
from holdfast.execution.questions import settled
from holdfast.history.builder import VersionMetadata
from holdfast.history.committer import Committer
from holdfast.model.checks import check_text
from holdfast.model.names import MAX_NOTE, MAX_STEP
from holdfast.model.records import ENDED, RunRecord
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
    while True:
        run = engine.record(run_id)
        if run.status in ENDED:
            return
        if is_alive(run, engine.context.clock()):
            inbox.wish(engine.context, run_id, what, reason, actor)
            execution = engine.executions.get(run_id)
            if execution is not None:
                execution.detail.wish, execution.detail.reason, execution.detail.actor = what, reason, actor
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
    line = Committer(engine.context, run.id)
    head = line.fresh_head()
    assert head is not None
    if head.run.revision != run.revision:
        raise StaleVersion(f"run {run.id!r} has changed since it was read: read it again")
    facts = detail_of(head.run)
    facts.waits, facts.wish = [], ""
    entries = settled(engine.store, head.run, facts, engine.context.clock(), choice="cancel", actor=actor)
    ending = VersionMetadata(kind="final", status="cancelled", note=reason, actor=actor)
    left = msgspec.structs.replace(head.run, owner=None, until=0, due=None, detail=encode_detail(facts))
    drawn = line.build(head.root, head, head, ending, run=left, events=entries)
    line.note_committed(drawn, engine.store.append(drawn.change))


def check_reason(reason: Any, actor: Any) -> None:
    """Check the texts that say why, and by whom, a run is changed."""
    check_text("reason", reason, MAX_NOTE)
    check_text("actor", actor, MAX_STEP)
