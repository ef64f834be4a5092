"""Preview: what resuming or rolling back a run would do.

Invariant: nothing is written, and no code of the user's is run or needed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from holdfast.errors import CodeChanged, NotFound
from holdfast.execution.children import affected_children, compensation_address
from holdfast.execution.compensation import compensable_steps, compensation_order
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.preflight import check_code
from holdfast.execution.replay_log import ReplayLog
from holdfast.history.history import History
from holdfast.history.version import Version
from holdfast.model.records import LIVE, RunRecord
from holdfast.model.run_detail import detail_of
from holdfast.store.protocol import iter_runs
from holdfast.workflow.definition import workflow_of


class Preview(msgspec.Struct, frozen=True):
    """The effect that a resume or a rollback would have."""

    run: str
    status: str
    workflow: str | None
    #: The version from which the run would continue.
    version: int
    #: The versions that would not be among the head's ancestors any more, oldest first.
    left: tuple[int, ...]
    #: Recorded steps that would be replayed.
    replayed: tuple[str, ...]
    #: Steps that would be run again, as far as the workflow calls them again.
    again: tuple[str, ...]
    #: Steps that would be undone by their compensations, in this order; those of children with their run, as in
    #: `book of trip.hotel`.
    undo: tuple[str, ...]
    #: Children that would be cancelled.
    cancelled: tuple[str, ...]
    #: The addresses of the waits for answers, signals and times that it has.
    waits: tuple[str, ...]
    #: Does this process know the workflow's code?
    known: bool
    #: Whether that code has changed and the workflow refuses to continue with it.
    changed: bool = False
    #: Children that had started before the version, and would be rewound to what they were then.
    rewound: tuple[str, ...] = ()


def preview(
    engine: EngineContext,
    history: History,
    run: RunRecord,
    to: int | str | Version | None,
    from_address: str | None,
) -> Preview:
    """Return what resuming from a version, from before a step, or from the head would do."""
    reader = engine.context.reader(run)
    facts = detail_of(run)
    recorded = _steps(reader, run.head)
    if to is None and facts.rollback is not None:
        # A rollback that was stopped half-way is finished first.
        to = facts.rollback.to
    elif from_address is not None:
        to = ReplayLog(reader).load(run.head).before(from_address)
    target = run.head if to is None else history.at(to).number
    kept = {version.number for version in history.ancestors(target)}
    left = [version.number for version in history.ancestors(run.head) if version.number not in kept]
    moves = to is not None
    replayed = recorded if not left else _steps(reader, target)
    parts = list(affected_children(engine, run, history.at(target).record.seq)) if moves else []
    rewound = [part.run.id for part in parts if part.target]
    undone = {part.run.id for part in parts if part.entries}
    known = changed = False
    if run.workflow is not None:
        with suppress(NotFound):
            workflow = workflow_of(run.workflow)
            known = True
            try:
                check_code(engine, run, workflow, facts)
            except CodeChanged:
                changed = True
    return Preview(
        run=run.id,
        status=run.status,
        workflow=run.workflow,
        version=target,
        left=tuple(left[::-1]),
        replayed=tuple(replayed),
        again=tuple(address for address in recorded if address not in replayed),
        undo=tuple(
            entry.address if each == run.id else f"{entry.address} of {each}"
            for each, entry in compensation_order(run, compensable_steps(engine, run, target), parts)
        )
        if moves
        else (),
        cancelled=tuple(
            part.id
            for part in iter_runs(engine.store, parent=run.key)
            if part.id not in rewound and (part.status in LIVE or part.id in undone)
        )
        if moves
        else (),
        rewound=tuple(rewound),
        waits=() if moves else tuple(wait.address for wait in facts.waits if not wait.filled),
        known=known,
        changed=changed,
    )


def _steps(reader: Any, head: int) -> dict[str, Any]:
    """Return the steps that are recorded up to a version, without compensations; none if a part of the record is
    missing."""
    with suppress(NotFound):
        steps = ReplayLog(reader).load(head).steps
        undone = {compensation_address(entry) for entry in steps.values()}
        return {address: entry for address, entry in steps.items() if address not in undone}
    return {}
