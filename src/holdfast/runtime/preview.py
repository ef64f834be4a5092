"""What resuming or rolling back a run would do, told before it is done.

Invariant: nothing is written, and no code of the user's is run or needed.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from holdfast.errors import CodeChanged, NotFound
from holdfast.history.history import History
from holdfast.history.version import Version
from holdfast.model.records import LIVE, RunRecord
from holdfast.runtime import code
from holdfast.runtime.definition import workflow_of
from holdfast.runtime.record import Record
from holdfast.runtime.services import Services
from holdfast.runtime.undo import undo_address, undoable
from holdfast.runtime.waits import facts_of


class Preview(msgspec.Struct, frozen=True):
    """What would be done."""

    run: str
    status: str
    workflow: str | None
    #: The version from which the run would go on.
    version: int
    #: The versions that would not be among the head's ancestors any more, oldest first.
    left: tuple[int, ...]
    #: Recorded steps that would be passed without being run.
    passed: tuple[str, ...]
    #: Steps that would be run again, as far as the workflow calls them again.
    again: tuple[str, ...]
    #: Steps that would be undone by their compensations, in this order.
    undo: tuple[str, ...]
    #: Runs that are parts of it and would be cancelled.
    cancelled: tuple[str, ...]
    #: What it waits for: addresses of prompts, events, times.
    waits: tuple[str, ...]
    #: Does this process know the workflow's code?
    known: bool
    #: Has that code changed since, and does the workflow refuse to go on with it?
    changed: bool = False


def preview(
    services: Services,
    history: History,
    run: RunRecord,
    to: int | str | Version | None,
    from_address: str | None,
) -> Preview:
    """What would be done to go on from a version, or from before a step; else from the head."""
    reader = services.context.reader(run)
    facts = facts_of(run)
    recorded = _steps(reader, run.head)
    if to is None and facts.undoing is not None:
        # A rollback that was stopped half-way is finished first.
        to = facts.undoing.get("to", run.head)
    elif from_address is not None:
        to = Record(reader).load(run.head).before(from_address)
    target = run.head if to is None else history.at(to).number
    kept = {version.number for version in history.ancestors(target)}
    left = [version.number for version in history.ancestors(run.head) if version.number not in kept]
    moves = to is not None
    passed = recorded if not left else _steps(reader, target)
    known = changed = False
    if run.workflow is not None:
        with suppress(NotFound):
            workflow = workflow_of(run.workflow)
            known = True
            try:
                code.compare(run, workflow, reader, facts, workflow.changed, warns=False)
            except CodeChanged:
                changed = True
    return Preview(
        run=run.id,
        status=run.status,
        workflow=run.workflow,
        version=target,
        left=tuple(left[::-1]),
        passed=tuple(passed),
        again=tuple(address for address in recorded if address not in passed),
        undo=tuple(entry.address for entry in undoable(services, run, target)) if moves else (),
        cancelled=tuple(
            part.id for part in services.store.runs(parent=run.key, statuses=LIVE, limit=1_000_000)
        )
        if moves
        else (),
        waits=() if moves else tuple(wait.address for wait in facts.waits if not wait.filled),
        known=known,
        changed=changed,
    )


def _steps(reader: Any, head: int) -> dict[str, Any]:
    """The steps that are recorded up to a version, without what undid some; none where not all of the record is
    there."""
    with suppress(NotFound):
        steps = Record(reader).load(head).steps
        undone = {undo_address(entry) for entry in steps.values()}
        return {address: entry for address, entry in steps.items() if address not in undone}
    return {}
