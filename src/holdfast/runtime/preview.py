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
from holdfast.runtime.rewinding import affected, undo_address
from holdfast.runtime.services import Services
from holdfast.runtime.undo import in_order, undoable
from holdfast.runtime.waits import facts_of
from holdfast.store.base import every_run


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
    #: Steps that would be undone by their compensations, in this order; those of children with their run, as in
    #: `book of trip.hotel`.
    undo: tuple[str, ...]
    #: Children that would be cancelled.
    cancelled: tuple[str, ...]
    #: What it waits for: addresses of prompts, events, times.
    waits: tuple[str, ...]
    #: Does this process know the workflow's code?
    known: bool
    #: Has that code changed since, and does the workflow refuse to go on with it?
    changed: bool = False
    #: Children that had started before the version, and would be rewound to what they were then.
    rewound: tuple[str, ...] = ()


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
    parts = list(affected(services, run, history.at(target)._record.seq)) if moves else []
    rewound = [part.run.id for part in parts if part.target]
    undone = {part.run.id for part in parts if part.entries}
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
        undo=tuple(
            entry.address if each == run.id else f"{entry.address} of {each}"
            for each, entry in in_order(run, undoable(services, run, target), parts)
        )
        if moves
        else (),
        cancelled=tuple(
            part.id
            for part in every_run(services.store, parent=run.key)
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
    """The steps that are recorded up to a version, without what undid some; none where not all of the record is
    there."""
    with suppress(NotFound):
        steps = Record(reader).load(head).steps
        undone = {undo_address(entry) for entry in steps.values()}
        return {address: entry for address, entry in steps.items() if address not in undone}
    return {}
