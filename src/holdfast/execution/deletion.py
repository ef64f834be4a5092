"""Delete runs.

Invariant: a fork of a deleted run stays readable; a run that a process advances is not deleted.
"""

from __future__ import annotations

from holdfast.errors import InvalidCall, StaleVersion
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.lifecycle import refuse_if_running
from holdfast.history import prune
from holdfast.model.records import CLOSED, RunRecord
from holdfast.model.run_detail import detail_of
from holdfast.store.protocol import iter_runs


def delete(engine: EngineContext, run_id: str) -> None:
    """Delete a run, its children, and their history. Raise `AlreadyRunning`, and delete nothing, if a process advances
    one of them."""
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
    if run.status not in CLOSED and detail_of(run).wish != "cancel":
        refuse_if_running(engine, run)
    for child in iter_runs(engine.store, parent=run.key):
        _refuse_live(engine, child)
