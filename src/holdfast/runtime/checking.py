"""Replaying runs against the code of this process without running a step: what a deploy would break.

Invariant: nothing is written, and no step is run; the workflow's own code, between recorded steps, is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import HoldfastError, ReplayDiverged
from holdfast.history.advance import Line
from holdfast.model.records import RunRecord
from holdfast.runtime.boundary import Halt
from holdfast.runtime.definition import Workflow, is_unknown_here, workflow_of
from holdfast.runtime.drive import Call, Do, Flow
from holdfast.runtime.record import Record
from holdfast.runtime.rehearsal import Rehearsal
from holdfast.runtime.scope import Frame
from holdfast.runtime.services import Services
from holdfast.runtime.session import Session
from holdfast.runtime.waits import facts_of

if TYPE_CHECKING:
    from collections.abc import Callable

#: Statuses of runs that have not ended.
UNFINISHED = ("queued", "running", "suspended", "paused", "frozen")


class Problem(msgspec.Struct, frozen=True):
    """A run that the code of this process cannot resume."""

    run: str
    workflow: str | None
    status: str
    #: diverges, missing (its workflow is not known), fails (its workflow's code raises), or unreadable.
    kind: str
    message: str
    #: The first recorded step that the code does not fit, its version, and the call that the code makes instead.
    address: str | None = None
    version: int | None = None
    called: str | None = None

    def __str__(self) -> str:
        return f"{self.run}: {self.message}"


class Check(Rehearsal):
    """Replays recorded steps, and stops where the record ends."""

    strict = True

    def beyond(self, session: Session, address: str) -> None:
        """Leave out a call that the record does not have."""


def check(services: Services, run: RunRecord, drive: Callable[[Workflow, Flow[Any]], Any]) -> Problem | None:
    """Return what keeps the code of this process from resuming a run; None if nothing does."""

    def problem(kind: str, error: BaseException) -> Problem:
        found = error.details if isinstance(error, HoldfastError) else {}
        named = "" if isinstance(error, HoldfastError) else f"{type(error).__name__}: "
        return Problem(
            run.id, run.workflow, run.status, kind, f"{named}{error}",
            found.get("address"), found.get("version"), found.get("called"),
        )  # fmt: skip

    try:
        workflow = workflow_of(run.workflow)
        return drive(workflow, _replayed(services, workflow, run)) and None
    except ReplayDiverged as error:
        return problem("diverges", error)
    except HoldfastError as error:
        return problem("missing" if is_unknown_here(error) else "unreadable", error)
    except Exception as error:
        return problem("fails", error)


def _replayed(services: Services, workflow: Workflow, run: RunRecord) -> Flow[None]:
    line = Line(services.context, run.id)
    head = yield Do(partial(line.head_of, run))
    facts = facts_of(run)
    record = Record(services.context.reader(run))
    yield Do(partial(record.load, run.head, facts.failed, facts.retried))
    session = Session(services, workflow, line, head, record)
    session.rehearsal = Check()
    args, kwargs = yield Do(record.given)
    frame = Frame(session, asynchronous=workflow.asynchronous)
    try:
        yield Call(workflow.function, tuple(args), kwargs, frame)
        frame.finish()
    except Halt:
        """The record ends, or does not fit."""
    finally:
        session.close()
    if session.replay.diverged is not None:
        raise session.replay.diverged
