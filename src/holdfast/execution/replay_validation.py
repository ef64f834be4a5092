"""Replay for comparison: run recorded steps again and report differences, or check new code without running a step.

Invariant: nothing is written to the run, and the workflow continues with the recorded results, so that one difference
does not hide the next.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, ReplayDiverged
from holdfast.execution.call_arguments import changed_arguments
from holdfast.execution.calls import Call
from holdfast.execution.effects import CallFunction, Flow, RunBlocking, unwrap_error
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.exception_codec import revive, unpack
from holdfast.execution.execution import Execution
from holdfast.execution.frame import Frame
from holdfast.execution.replay_log import RecordedStep, ReplayLog
from holdfast.execution.state_view import BranchView
from holdfast.execution.stop_control import StopExecution
from holdfast.history.builder import RESULT
from holdfast.history.committer import Committer
from holdfast.history.reader import Head
from holdfast.model.records import RunRecord
from holdfast.model.run_detail import detail_of
from holdfast.tree import diff as trees
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import FrozenDict, thaw
from holdfast.tree.merge import merge
from holdfast.workflow.definition import Step, Workflow, is_unknown_here, workflow_of


class Difference(msgspec.Struct, frozen=True):
    """A difference between a step and its record."""

    #: Of the step; empty for the workflow itself.
    address: str
    #: arguments, result, state or error.
    what: str
    recorded: Any
    now: Any

    def __str__(self) -> str:
        return (
            f"{self.address or 'the workflow'}: {self.what} was {self.recorded!r:.200}, is {self.now!r:.200}"
        )


class ReplayCheck:
    """Runs recorded steps again and collects the differences."""

    #: Must the calls be those that are recorded?
    strict = False

    def __init__(self) -> None:
        self.differences: list[Difference] = []
        self.steps = 0
        self._replayed: set[str] = set()

    def run_again(
        self,
        execution: Execution,
        entry: RecordedStep,
        call: Call[Step] | Call[Workflow] | None,
        view: BranchView,
    ) -> Flow[None]:
        """Run a recorded step again; a wait or a child is taken as recorded. `view` is that of its caller."""
        if call is not None and call.digest != entry.args:
            error = yield RunBlocking(partial(changed_arguments, call, entry))
            if error is not None:
                self.note(entry.address, "arguments", error.details["recorded"], error.details["now"])
        self._replayed.add(entry.address)
        definition = None if call is None else call.definition
        if call is None or not isinstance(definition, Step):
            return
        self.steps += 1
        parent = entry.number - (entry.version.number - entry.version.parent)
        before = execution.replay_log.before_inner.get(entry.address, parent)
        reader = execution.engine.context.reader(execution.head.run)
        root = reader.state(before) if entry.version.parent else FrozenDict()
        frame = Frame.enter(execution, entry.address, asynchronous=definition.asynchronous, attempt=1)
        frame.base = (
            Head(execution.head.run, entry.version, root)
            if view.follows
            else execution.state.as_base(view.now())
        )
        function = execution.overrides.get(definition.name, definition.function)
        try:
            value = yield CallFunction(function, call.args, call.kwargs, frame, definition.timeout)
        except StopExecution:
            raise
        except Exception as error:
            recorded = _error_text(execution.replay_log.error(entry)) if entry.failed else None
            if recorded != _error_text(unwrap_error(error)):
                self.note(entry.address, "error", recorded, _error_text(unwrap_error(error)))
            return
        finally:
            frame.over = True
        if entry.failed:
            self.note(entry.address, "error", _error_text(execution.replay_log.error(entry)), None)
            return
        self._compare(entry.address, "result", execution.replay_log.result(entry)[0], value)
        after = reader.state(parent)
        if frame.held is not None:
            folder = execution.state.folder()
            after = merge(
                frame.base.root,
                folder.fold(frame.held, frame.base.root),
                after,
                resolve=definition.on_conflict,
                reducers=execution.state.reducers,
                fold=folder.fold,
            )
        self._compare(entry.address, "state", reader.show(reader.state(entry.number)), reader.show(after))

    def ended(self, execution: Execution, value: Any, error: BaseException | None) -> None:
        """Compare the end of the workflow's function with the recorded one."""
        head = execution.head
        failed = head.run.status == "failed"
        recorded = _error_text(revive(unpack(detail_of(head.run).error))) if failed else None
        now = None if error is None else _error_text(error)
        for address in execution.replay_log.steps:
            if address not in self._replayed and not any(
                address.startswith(f"{each}/") for each in self._replayed
            ):
                self.note(address, "step", "recorded", "not called")
        if recorded != now:
            self.note("", "error", recorded, now)
        elif error is None and head.version.kind == "final" and head.version.status == "completed":
            reader = execution.engine.context.reader(head.run)
            self._compare("", "result", thaw(reader.part(head.version.number, RESULT)), value)

    def beyond(self, execution: Execution, address: str) -> None:
        """Note a call that is not recorded."""
        if address and execution.head.version.kind == "final":
            self.note(address, "step", "not called", "called")

    def _compare(self, address: str, what: str, recorded: Any, now: Any) -> None:
        folder = Folder(None)
        one = folder.fold(recorded)
        other = folder.fold(now, one)
        if one is not other and trees.changes(one, other):
            self.note(address, what, recorded, now)

    def note(self, address: str, what: str, recorded: Any, now: Any) -> None:
        """Note a difference at an address."""
        self.differences.append(Difference(address, what, recorded, now))


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


class CodeProblem(msgspec.Struct, frozen=True):
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


class CodeReplay(ReplayCheck):
    """Replays recorded steps, and stops where the record ends."""

    strict = True

    def beyond(self, execution: Execution, address: str) -> None:
        """Ignore a call that is not recorded."""


def check(
    engine: EngineContext, run: RunRecord, drive: Callable[[Workflow, Flow[Any]], Any]
) -> CodeProblem | None:
    """Return the problem because of which the code of this process cannot resume a run; None if there is none."""

    def problem(kind: str, error: BaseException) -> CodeProblem:
        found = error.details if isinstance(error, HoldfastError) else {}
        named = "" if isinstance(error, HoldfastError) else f"{type(error).__name__}: "
        return CodeProblem(
            run.id, run.workflow, run.status, kind, f"{named}{error}",
            found.get("address"), found.get("version"), found.get("called"),
        )  # fmt: skip

    try:
        workflow = workflow_of(run.workflow)
        return drive(workflow, _replayed(engine, workflow, run)) and None
    except ReplayDiverged as error:
        return problem("diverges", error)
    except HoldfastError as error:
        return problem("missing" if is_unknown_here(error) else "unreadable", error)
    except Exception as error:
        return problem("fails", error)


def _replayed(engine: EngineContext, workflow: Workflow, run: RunRecord) -> Flow[None]:
    committer = Committer(engine.context, run.id)
    head = yield RunBlocking(partial(committer.head_of, run))
    detail = detail_of(run)
    replay_log = ReplayLog(engine.context.reader(run))
    yield RunBlocking(partial(replay_log.load, run.head, detail.failed, detail.retried))
    execution = Execution(engine, workflow, committer, head, replay_log)
    execution.replay_check = CodeReplay()
    args, kwargs = yield RunBlocking(replay_log.given)
    frame = Frame.enter(execution, asynchronous=workflow.asynchronous)
    try:
        yield CallFunction(workflow.function, tuple(args), kwargs, frame)
        frame.finish()
    except StopExecution:
        pass  # The log ends, or does not fit.
    finally:
        execution.stop.close()
    if execution.replay.diverged is not None:
        raise execution.replay.diverged
