"""Run, resume, check and roll back the runs of workflows on an open store.

Invariant: a method that fails has left the run as it found it, or the run's status says what happened.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec

from holdfast.errors import AlreadyExists, AlreadyRunning, InvalidCall, ReplayDiverged, StaleVersion
from holdfast.execution import compensation, inbox, lifecycle, replay_validation, stopping
from holdfast.execution.call_arguments import refuse_other_call, refuse_other_workflow
from holdfast.execution.children import carried_over, compensation_address
from holdfast.execution.effects import Flow, RunBlocking, adrive, drive
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.execution import Execution
from holdfast.execution.frame import refuse_in_loop
from holdfast.execution.options import ResumeOptions, RollbackOptions, RunOptions, WorkflowCall
from holdfast.execution.preflight import Preflight, check_resume
from holdfast.execution.replay_log import ReplayLog
from holdfast.execution.replay_validation import CodeProblem, ReplayCheck
from holdfast.execution.run import Run
from holdfast.execution.run_endings import ready as is_ready
from holdfast.history.builder import build_event
from holdfast.history.committer import Committer
from holdfast.history.version import Version
from holdfast.model.names import check_run_id
from holdfast.model.records import CLOSED, LIVE, RunRecord
from holdfast.model.run_detail import detail_of
from holdfast.store.protocol import Append, iter_runs
from holdfast.workflow.definition import ACCEPT, Workflow, workflow_of

#: Arguments of `run` that a workflow of the same parameter cannot get.
_OWN = (
    "run_id", "tags", "state", "note", "actor", "overrides", "watchdog", "limits", "if_exists", "raises", "workflow",
)  # fmt: skip
#: Statuses in which `if_exists="resume"` returns a run as it is: it has ended, or a person has to decide.
_RETURNED = (*CLOSED, "paused", "stalled")
T = TypeVar("T")


class Runner:
    """Executes runs of workflows in this process."""

    def __init__(self, engine: EngineContext, begin_work: Callable[[], None]) -> None:
        self.engine = engine
        #: Called before a run is started or resumed here.
        self._begin_work = begin_work

    def get(self, run_id: str) -> Run:
        """Return a run by its id."""
        return Run(self, self.engine.record(run_id).id)

    def run(self, workflow: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: RunOptions) -> Run:
        """Start a run and execute it until it ends or waits."""
        refuse_in_loop("run")
        call = self._start(workflow, args, kwargs, options)
        return _drive(call.workflow, self._run(call))

    async def arun(
        self, workflow: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: RunOptions
    ) -> Run:
        """As `run`, in an event loop."""
        call = self._start(workflow, args, kwargs, options)
        return await _adrive(call.workflow, self._run(call))

    def resume(self, run_id: str, options: ResumeOptions) -> Run:
        """Execute a run from its head until it ends or waits."""
        refuse_in_loop("resume")
        ready = self._prepare(run_id, options)
        if ready is None:
            return Run(self, run_id)
        return _drive(ready.workflow, self._resume(ready, options))

    async def aresume(self, run_id: str, options: ResumeOptions) -> Run:
        """As `resume`, in an event loop."""
        import asyncio

        ready = await asyncio.to_thread(self._prepare, run_id, options)
        if ready is None:
            return Run(self, run_id)
        return await _adrive(ready.workflow, self._resume(ready, options))

    def check(self, run_id: str | None = None) -> list[CodeProblem]:
        """Replay a run, or all that have not ended, and return those that this process cannot resume."""
        runs = (
            iter_runs(self.engine.store, statuses=LIVE, live=True)
            if run_id is None
            else [self.engine.record(run_id)]
        )
        found = (
            replay_validation.check(self.engine, run, _drive) for run in runs if run.workflow is not None
        )
        return [problem for problem in found if problem is not None]

    def rollback(self, run_id: str, to: int | str | Version, options: RollbackOptions) -> Run:
        """Roll a run back, and resume it if the options say so."""
        if options.resume and self.engine.record(run_id).workflow is not None:
            refuse_in_loop("rollback", ", or say resume=False")
        if self._roll_back_and_check(run_id, to, options):
            return self.resume(run_id, options.resume_options)
        return Run(self, run_id)

    async def arollback(self, run_id: str, to: int | str | Version, options: RollbackOptions) -> Run:
        """As `rollback`, in an event loop. Compensations run in a thread."""
        import asyncio

        if await asyncio.to_thread(self._roll_back_and_check, run_id, to, options):
            return await self.aresume(run_id, options.resume_options)
        return Run(self, run_id)

    def finish_rollback(self, run: RunRecord, then: str | None = None) -> None:
        """Finish a rollback that was started here, or whose process has died. `then` is the run's status afterwards,
        unless the rollback says another."""
        compensation.finish_rollback(self.engine, self.engine.history(run.id), run, then)
        self._cancel_abandoned(run, None)

    def existing(self, call: WorkflowCall) -> RunRecord:
        """Return the run that exists; raise `RunMismatch` if another call started it."""
        run = self.engine.record(call.run_id)
        if call.options.if_exists == "return":
            refuse_other_workflow(run, call.workflow)
        else:
            refuse_other_call(
                self.engine.context, run, call.workflow, call.args, call.kwargs, call.options.state
            )
        return run

    def _roll_back_and_check(self, run_id: str, to: int | str | Version, options: RollbackOptions) -> bool:
        """Roll a run back, after checking that it can be resumed; return whether it is to be resumed."""
        run = self.engine.record(run_id)
        resumes = options.resume and run.workflow is not None
        if resumes:
            check_resume(
                self.engine, run, workflow_of(run.workflow), changed=options.changed, overrides=options.overrides
            )  # fmt: skip
        elif options.overrides is not None:
            raise InvalidCall("overrides are for the execution that follows: give them to resume", run=run_id)
        self._roll_back(run, to, options.reason, options.actor)
        return resumes

    def _start(
        self, workflow: Any, args: tuple[Any, ...], kwargs: dict[str, Any], options: RunOptions
    ) -> WorkflowCall:
        found = workflow_of(workflow)
        check_call(found, args, kwargs)
        self._begin_work()
        run_id = lifecycle.new_id(found) if options.run_id is None else check_run_id(options.run_id)
        return WorkflowCall(found, run_id, args, kwargs, options)

    def _run(self, call: WorkflowCall) -> Flow[Run]:
        is_new = call.options.run_id is None or call.options.if_exists == "error"
        return self._run_new(call) if is_new else self._run_once(call)

    def _run_new(self, call: WorkflowCall) -> Flow[Run]:
        error = yield from lifecycle.start(self.engine, call)
        error = yield from self._continue(call.workflow, call.run_id, error, None)
        return Run(self, call.run_id, error)

    def _run_once(self, call: WorkflowCall) -> Flow[Run]:
        """Start a run, or resume or return the run of this id."""
        run_id, options = call.run_id, call.options
        exists = yield RunBlocking(partial(self.engine.store.run, run_id))
        if exists is None:
            try:
                return (yield from self._run_new(call))
            except AlreadyExists as error:
                # Another process may have started it since.
                if error.details.get("run") != run_id:
                    raise
            except AlreadyRunning as error:
                # Another thread may be starting it; it is not in the store yet, perhaps.
                if error.details.get("run") != run_id or options.if_exists != "return":
                    raise
        run = yield RunBlocking(partial(self.existing, call))
        if options.if_exists == "return" or run.status in _RETURNED:
            return Run(self, run_id)
        again = ResumeOptions(overrides=options.overrides, limits=options.limits)
        ready = yield RunBlocking(partial(self._prepare, run_id, again))
        return Run(self, run_id) if ready is None else (yield from self._resume(ready, again))

    def _resume(self, ready: Preflight, options: ResumeOptions) -> Flow[Run]:
        run_id = ready.run.id
        if options.mode == "validate":
            return (yield from self._rehearse(ready))
        while True:
            flow = lifecycle.resume(self.engine, ready.workflow, run_id, options, ready=ready)
            try:
                error = _unless_diverged(run_id, (yield from flow))
                error = yield from self._continue(ready.workflow, run_id, error, options.changed)
                return Run(self, run_id, error)
            except ReplayDiverged as diverged:
                if not options.accepts_divergence:
                    raise
                where = diverged.details
            yield RunBlocking(partial(self._accept, where.get("of", run_id), where["address"]))

    def _continue(
        self, workflow: Workflow, run_id: str, error: BaseException | None, changed: str | None
    ) -> Flow[BaseException | None]:
        """Resume a run for as long as something has arrived by the time that it was suspended."""
        while self._more_has_come(run_id):
            flow = lifecycle.resume(self.engine, workflow, run_id, ResumeOptions(changed=changed))
            error = _unless_diverged(run_id, (yield from flow))
        return error

    def _more_has_come(self, run_id: str) -> bool:
        """Has something arrived for a run while it was being suspended?"""
        if run_id not in self.engine.suspended:
            return False
        self.engine.suspended.discard(run_id)
        run = self.engine.store.run(run_id)
        return run is not None and run.status == "suspended" and self._is_ready(run)

    def _is_ready(self, run: RunRecord) -> bool:
        return is_ready(self.engine.store, run, self.engine.context.clock())

    def _prepare(self, run_id: str, options: ResumeOptions) -> Preflight | None:
        """Check a run, and do what comes before its execution; return None if there is nothing to execute."""
        ready = self._check(run_id, options)
        if options.mode == "republish":
            self._republish(run_id)
        return ready

    def _check(self, run_id: str, options: ResumeOptions) -> Preflight | None:
        engine = self.engine
        run = engine.record(run_id)
        if run.workflow is None:
            raise InvalidCall(f"run {run_id!r} is a manual run: it has no workflow to resume", run=run_id)
        engine.refuse_if_running(run)
        found = workflow_of(options.workflow or run.workflow)
        validates = options.mode == "validate"
        changed = "allow" if validates else options.changed
        ready = check_resume(engine, run, found, changed=changed, overrides=options.overrides)
        if validates:
            return ready
        if options.answers:
            inbox.check_answers(engine.context, run, options.answers)
        if options.limits is not None and run.status not in CLOSED:
            run = inbox.limit(engine.context, run_id, options.limits, found.limits)
        if ready.detail.rollback is not None:
            self.finish_rollback(run)
        elif options.from_address is not None:
            self._back_before(run_id, options.from_address)
        elif run.status == "completed":
            return None
        elif run.status == "cancelled":
            raise InvalidCall(
                f"run {run_id!r} was cancelled: roll it back to a version, or fork it, to resume from there",
                run=run_id,
            )
        elif (
            run.status == "suspended"
            and options.changed != ACCEPT
            and not options.answers
            and not self._is_ready(run)
        ):
            return None
        self._begin_work()
        return ready

    def _rehearse(self, ready: Preflight) -> Flow[Run]:
        run, context = ready.run, self.engine.context
        line = Committer(context, run.id)
        head = yield RunBlocking(partial(line.head_of, run))
        record = ReplayLog(context.reader(run))
        yield RunBlocking(partial(record.load, run.head, ready.detail.failed))
        execution = Execution(self.engine, ready.workflow, line, head, record, overrides=ready.overrides)
        execution.replay_check = rehearsal = ReplayCheck()
        args, kwargs = record.given()
        yield from lifecycle.rehearse(execution, tuple(args), kwargs)
        return Run(self, run.id, differences=tuple(rehearsal.differences))

    def _republish(self, run_id: str) -> None:
        """Write an event `step.replayed` for each recorded step that the head follows, oldest first. The entries come
        from the record: a replay would skip completed runs, and the steps within a completed step."""
        engine = self.engine
        while True:
            run = engine.record(run_id)
            record = ReplayLog(engine.context.reader(run)).load(run.head, detail_of(run).failed)
            undone = {compensation_address(entry) for entry in record.steps.values()}
            entries = [
                build_event(
                    "step.replayed",
                    engine.context.clock(),
                    # A step from before a fork belongs to a version of another run.
                    version=entry.number if entry.number > 0 else None,
                    step=entry.version.step,
                    address=entry.address,
                    failed=entry.failed or None,
                )
                for entry in sorted(record.steps.values(), key=lambda entry: entry.number)
                if entry.address not in undone
            ]
            if not entries:
                return
            after = msgspec.structs.replace(run, revision=run.revision + 1)
            try:
                engine.store.append(Append(expect=run, run=after, events=entries))
            except StaleVersion:
                continue
            engine.publisher.wake()
            return

    def _back_before(self, run_id: str, address: str, reason: str | None = None) -> None:
        """Roll back to before a step, or drop the wait at its address."""
        run = self.engine.record(run_id)
        reason = reason or f"again from {address}"
        record = ReplayLog(self.engine.context.reader(run)).load(run.head)
        if address in record.steps or not self._drop_wait(run, address, reason):
            self._roll_back(run, record.before(address), reason, None)

    def _accept(self, run_id: str, address: str) -> None:
        """Drop the recorded steps from an address on, or the wait there, because the code no longer matches them."""
        reason = f"changed code was accepted: dropped from {address} on"
        if not self._drop_wait(self.engine.record(run_id), address, reason):
            self._back_before(run_id, address, reason)

    def _drop_wait(self, run: RunRecord, address: str, reason: str) -> bool:
        """Drop the wait at an address; return False if there is none."""
        wait = detail_of(run).wait_at(address)
        if wait is None or not inbox.drop_wait(self.engine.context, run, address):
            return False
        if wait.kind == "run":
            # Nothing waits for that child any more; on a new timeline, its call starts another.
            stopping.cancel(self.engine, wait.name, reason, None)
            self._roll_back(self.engine.record(run.id), run.head, reason, None)
        return True

    def _roll_back(
        self, run: RunRecord, to: int | str | Version, reason: str | None, actor: str | None
    ) -> None:
        compensation.rollback(self.engine, self.engine.history(run.id), to, reason, actor)
        self._cancel_abandoned(run, actor)

    def _cancel_abandoned(self, run: RunRecord, actor: str | None) -> None:
        """Cancel the children that only an abandoned timeline had started."""
        kept = set(carried_over(self.engine, self.engine.record(run.id)).values())
        for child in list(iter_runs(self.engine.store, parent=run.key, statuses=LIVE)):
            if child.id not in kept:
                stopping.cancel(self.engine, child.id, "the run that it is a part of was rolled back", actor)


def check_call(workflow: Workflow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise `InvalidCall` if a workflow cannot be called with these arguments."""
    try:
        workflow.signature.bind(*args, **kwargs)
    except TypeError as error:
        taken = [name for name in _OWN if name in workflow.signature.parameters]
        hint = f" ({', '.join(taken)}: hf.run has arguments of that name itself)" if taken else ""
        raise InvalidCall(f"workflow {workflow.name!r} cannot be called like this: {error}{hint}") from None


def _drive(workflow: Workflow, flow: Flow[T]) -> T:
    if not workflow.asynchronous:
        return drive(flow)
    import asyncio

    return asyncio.run(adrive(flow))


async def _adrive(workflow: Workflow, flow: Flow[T]) -> T:
    if workflow.asynchronous:
        return await adrive(flow)
    import asyncio

    return await asyncio.to_thread(drive, flow)


def _unless_diverged(run_id: str, error: BaseException | None) -> BaseException | None:
    """Return the error that a run ended with; raise the error if the run did not end, because it diverged."""
    if isinstance(error, ReplayDiverged) and error.details.get("run") == run_id:
        raise error
    return error
