"""One execution of a run: its position, the calls that it has made and recorded, and its parts.

Invariant: one execution at a time advances a run: it owns the run's lease, and the revision that its writes expect
fences it off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from threading import get_ident
from typing import TYPE_CHECKING, Any

from holdfast.errors import LimitExceeded, MergeConflict, StepTimeout
from holdfast.event_loop import running_task
from holdfast.execution.call_arguments import LARGE, SMALL, CapturedCall, StoredValues, capture_small
from holdfast.execution.calls import AwaitableCall, Call, first_unawaited
from holdfast.execution.failures import Failures
from holdfast.execution.frame import has_ended
from holdfast.execution.limits import Budget, amounts, innermost_budget
from holdfast.execution.replay_cursor import ReplayCursor
from holdfast.execution.replay_order import ResultOrder, TaskOrder, ThreadOrder
from holdfast.execution.run_writer import RunWriter
from holdfast.execution.state_view import BranchView, StateView, ViewedState
from holdfast.execution.stop_control import StopControl, brief_lock
from holdfast.history.blame import explain_conflict
from holdfast.history.builder import VersionMetadata
from holdfast.history.committer import Committer
from holdfast.history.reader import Head
from holdfast.history.version import LOOK_BACK
from holdfast.model.records import RunRecord
from holdfast.model.run_detail import BREAKER, RunDetail, detail_of
from holdfast.model.watchdog import Watchdog
from holdfast.tree.fold import Folder, Redactor
from holdfast.workflow.definition import Step, implementation

if TYPE_CHECKING:
    from holdfast.execution.engine_context import EngineContext
    from holdfast.execution.frame import Frame
    from holdfast.execution.lease import LeaseHandle
    from holdfast.execution.replay_log import RecordedStep, ReplayLog
    from holdfast.execution.replay_validation import ReplayCheck
    from holdfast.history.committer import Resolver
    from holdfast.workflow.definition import Workflow

#: Microseconds of execution that are worth a write of their own to the run's record.
_WORTH_WRITING = 10_000


class Execution:
    """One execution of a run."""

    def __init__(
        self,
        engine: EngineContext,
        workflow: Workflow,
        committer: Committer,
        head: Head,
        replay_log: ReplayLog,
        *,
        overrides: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.engine = engine
        self.workflow = workflow
        self.head = head
        self.id = head.run.id
        self.replay_log = replay_log
        #: The detail of the run's record; call `mark_changed` after a change.
        self.detail = detail = detail_of(head.run)
        #: The waits for circuit breakers with which the last execution ended, by the address of the step.
        self.refused_calls = {wait.address: wait for wait in detail.waits if wait.kind == BREAKER}
        if self.refused_calls:
            detail.waits = [wait for wait in detail.waits if wait.kind != BREAKER]
        self.overrides = overrides or {}
        self.stop = StopControl(detail, self.release_results)
        self.state = StateView(self, engine.context, replay_log, workflow.reducers)
        #: The order in which code gets results; None until something runs in parallel.
        self.order: ResultOrder | None = None
        #: The start of the execution, and the last boundary between steps, in microseconds.
        self.began = self.beat = engine.context.clock()
        #: The frame of the workflow's own function.
        self.root: Frame | None = None
        #: Answers that came with the call, by question id or address.
        self.answers: Mapping[str, Any] = {}
        #: Has it ended, so that nothing is written any more?
        self.over = False
        #: Is its last write, which releases the run's lease, running or done?
        self.leaving = False
        #: Was the run taken over by another execution?
        self.lost = False
        self.lease_handle: LeaseHandle | None = None
        #: Does no caller hear of what user code raises? A store that is unavailable is then not a failure of the run.
        self.contained = False
        #: Steps that run now, by address: the attempt, or the frame that waits for it if there is none.
        self.active: dict[str, Frame] = {}
        #: The task, or the thread, in which each of them runs.
        self._runners: dict[str, Any] = {}
        #: Numbers of the signals that waits of this execution took.
        self.taken: set[int] = set()
        self.failures = Failures()
        #: Calls that nothing has awaited yet, in the order in which they were made.
        self.unawaited: dict[AwaitableCall, None] = {}
        #: The `ask`, `sleep` and `wait_for` among them that no task will await.
        self.unawaited_waits: dict[AwaitableCall, None] = {}
        #: Calls of steps and children that were cancelled, and the microseconds that they had taken: code that makes
        #: its next call without them has abandoned them.
        self.cancelled_calls: dict[str, int] = {}
        #: Addresses of the recorded results that were returned before anything ran in parallel.
        self.returned: list[str] = []
        #: The run as it was before this execution took it over; None if this execution created it.
        self.before: RunRecord | None = None
        #: Values that versions of this execution store, so that arguments refer to them.
        self.stored = StoredValues()
        #: Budgets: its own, where something is limited, and that of the run around it; is it executed without that run?
        self.budget: Budget | None = None
        self.outer_budget: Budget | None = None
        self.alone = True
        #: Has its code entered a `with Limits(…)` block? Then `innermost_budget` finds the budget of a call.
        self.has_limit_blocks = False
        #: Children that were called on an earlier timeline, by address, once that was looked up.
        self.carried: dict[str, str] | None = None
        #: The limit of the run, or of one around it, that is used up, and the addresses of the refused steps.
        self.exceeded: LimitExceeded | None = None
        self.refused: list[str] = []
        #: The error that a signal handler raised during a write, which may have been carried out.
        self.interrupted: BaseException | None = None
        #: Runs recorded steps again for comparison, where that was requested.
        self.replay_check: ReplayCheck | None = None
        timeout = workflow.timeout
        #: When this execution must have ended.
        self.deadline = None if timeout is None else self.began + int(timeout * 1e6)
        #: Recorded values (times, random numbers, …) that no version holds yet.
        self.new_values: dict[str, Any] = dict(detail.values)
        self.replay = ReplayCursor(self, replay_log, detail.values)
        self._implementations: dict[str, list[Any]] = {}
        self.writer = RunWriter(self, committer)
        if self.refused_calls:
            self.writer.mark_changed()

    # Ownership

    @property
    def watchdog(self) -> Watchdog | None:
        """The policy by which a monitor calls it stalled."""
        return self.detail.watchdog_policy

    def is_fenced(self, run: RunRecord, detail: RunDetail) -> bool:
        """Return whether the run was taken away from this execution."""
        return detail.fence != self.detail.fence or run.timeline != self.head.run.timeline

    def lose(self) -> None:
        """Write nothing any more: another execution owns the run."""
        self.over = self.lost = True
        self.release_results()

    def count_time(self, *, at_end: bool = False) -> None:
        """Add the time of this execution to that of the run if it is watched or limited, and at its end unless it was
        too short to matter."""
        now = self.engine.context.clock()
        watchdog, limits = self.watchdog, self.detail.limits
        if (
            (limits is not None and limits.seconds is not None)
            or (watchdog is not None and watchdog.max_seconds is not None)
            or (at_end and now - self.began >= _WORTH_WRITING)
        ):
            self.detail.worked += now - self.began
            self.began = now
            self.writer.mark_changed()

    # Spending

    def lose_attempt(self, attempt: Frame) -> dict[str, Any]:
        """End an attempt without a result. Return its spending by its annotations, which
        counts all the same."""
        attempt.over = True
        attempt.leave()
        notes, attempt.notes = attempt.notes, None
        if not notes:
            return {}
        self.writer.count_later(notes)
        cost, tokens = amounts(notes)
        budget = innermost_budget(self)
        if budget is not None:
            budget.spend(cost, tokens)
        spent = {"cost": cost, "tokens": tokens}
        attempt.count(spent)
        return spent

    def exceed(self, error: LimitExceeded, address: str) -> None:
        """Note that a limit of the run, or of one around it, is used up: this execution cannot complete the run."""
        self.exceeded = self.exceeded or error
        self.refused.append(address)

    def check_limits_within(self, attempt: Frame) -> None:
        """Raise `LimitExceeded` again if the code of an attempt has caught it."""
        if self.exceeded is not None and any(each.startswith(f"{attempt.address}/") for each in self.refused):
            raise self.exceeded

    def time_left(self, seconds: float | None) -> float | None:
        """Return how long a step may take: its own timeout, or the rest of the run's."""
        if self.deadline is None:
            return seconds
        left = (self.deadline - self.engine.context.clock()) / 1e6
        if left <= 0:
            raise StepTimeout(
                f"run {self.id!r} took longer than the {self.workflow.timeout:g} s that its workflow allows",
                run=self.id,
            )
        return left if seconds is None else min(seconds, left)

    # Recorded values and calls

    def value(self, address: str, make: Callable[[], Any]) -> Any:
        """Return the value recorded at an address, or make one: the same when this code runs again."""
        for known in (self.new_values, self.replay_log.values):
            if address in known:
                return known[address]
        value = self.new_values[address] = make()
        return value

    def has_value(self, address: str) -> bool:
        """Return whether a value is recorded at an address."""
        return address in self.new_values or address in self.replay_log.values

    def note_recorded(self, frame: Frame, view: BranchView, head: Head, more: dict[str, Any]) -> None:
        """Note a version that recorded a call made in a frame: a step around it sees its changes, and replays it if it
        is tried again."""
        self.replay.paths.pop(more.get("address") or head.version.step or "", None)
        owner = frame if frame.attempt else frame.outer
        if owner is not None:
            if view is owner.view:
                owner.newer = head if view.follows else view.now()
            self.replay_log.enter(head.version, more)
            owner.count(_spent(more))

    def note_replayed(
        self, frame: Frame, view: BranchView, entry: RecordedStep, resolve: Resolver | None
    ) -> None:
        """Note that a recorded call was replayed in a frame: a step around it sees the changes that it made then."""
        self.replay.paths.pop(entry.address, None)
        self.beat = self.engine.context.clock()
        if view is self.state.main:
            self.state.reach(entry.number)
        if not view.follows:
            view.note_replayed(entry, resolve)
        owner = frame.owner
        if owner is not None:
            if view is owner.view:
                owner.newer = ViewedState(None, entry.number) if view.follows else view.now()
            owner.count(_spent(entry.detail))

    def explain(self, error: MergeConflict, base: int | None, address: str) -> MergeConflict:
        """Return a conflict of a step with the head, with the versions and steps that it is about."""
        reader = self.engine.context.reader(self.head.run)
        return explain_conflict(error, reader, base, self.head, VersionMetadata(address))

    def implementation_of(self, definition: Step | Workflow) -> list[Any] | None:
        """Return the implementation of a step if its version must name it (see `history.version`); None if a recent
        version has."""
        name = definition.name
        ran = self._implementations.get(name)
        if ran is None:
            other = self.overrides.get(name) if isinstance(definition, Step) else None
            ran = [
                *(definition.implementation if other is None else implementation(other)),
                other is not None,
            ]
            self._implementations[name] = ran
        known, number = self.replay_log.ran.get(name, (None, 0))
        return None if known == ran and self.head.version.number - number < LOOK_BACK - 1 else ran

    def capture(
        self,
        call: Call[Step] | Call[Workflow],
        redact: Redactor | None,
        size: int = LARGE,
        *,
        strict: bool = False,
    ) -> CapturedCall:
        """Freeze the arguments of a call, of about `size` bytes, for the version that will record it."""
        small = capture_small(call.definition, call.args, call.kwargs, redact) if size <= SMALL else None
        if small is not None:
            return small
        folder = Folder(self.engine.context.reader(self.head.run).space, redact, consume=False)
        return self.stored.capture(call.definition, call.args, call.kwargs, folder, strict=strict)

    # Steps that run

    def has_only_been_edited(self, address: str, start: ViewedState | Head) -> bool:
        """Return whether nothing was recorded, here or by a step's earlier attempts, since its caller saw the state."""
        return self.writer.newest <= (start.number or 0) and address not in self.replay_log.before_inner

    def in_parallel(self) -> ResultOrder:
        """Return the order in which tasks or threads that are about to run in parallel get results."""
        with brief_lock:
            if self.order is None:
                kind = TaskOrder if self.workflow.asynchronous else ThreadOrder
                self.order = kind(self, self.state.newest_recorded)
        return self.order

    def release_results(self) -> None:
        """Hold no recorded result back, so that the code that waits for one reaches its next check."""
        if self.order is not None:
            self.order.open()

    def start_step(self, address: str, frame: Frame) -> None:
        """Record that a step of this task or thread starts."""
        self._runners[address] = (self.workflow.asynchronous and running_task()) or get_ident()
        self.active[address] = frame

    def end_step(self, address: str) -> None:
        """Record that a step has ended."""
        frame = self.active.pop(address, None)
        self._runners.pop(address, None)
        self.beat = now = self.engine.context.clock()
        if frame is not None:
            frame.beat = now
            if frame.caller is not None or frame.outer is not None:
                frame.report_alive(now)

    def has_steps_elsewhere(self) -> bool:
        """Return whether a step runs in another task or thread. One that is listed for this thread, or for a task that
        has ended, was interrupted."""
        own = (self.workflow.asynchronous and running_task()) or get_ident()
        return any(
            runner != own and (isinstance(runner, int) or not has_ended(runner))
            for runner in list(self._runners.values())
        )

    def refuse_unawaited(self, attempt: Frame | None) -> None:
        """Raise `NotAwaited` if an attempt, or the workflow's own code if there is none, returned without having
        awaited a call that it made."""
        call = first_unawaited(self.unawaited, attempt)
        if call is not None:
            raise call.never_awaited()

    def close_unawaited(self) -> None:
        """Close the calls that nothing will await any more, so that Python does not warn of them as well."""
        for call in list(self.unawaited):
            if not call.in_task:
                call.close()
        self.unawaited.clear()

    def attempt_failed(self, address: str) -> None:
        """Note that an attempt at a step failed: the next one need not call the steps that this one called."""
        if address in self.replay_log.before_inner:
            self.detail.retried = {**self.detail.retried, address: self.head.version.number}
            self.writer.mark_changed()

    def drop_failures(self, error: BaseException) -> None:
        """Have the steps whose failures led to this error tried again: those failures are not results."""
        for failure in self.failures.drop_causes(error):
            if failure.number not in self.detail.failed:
                self.detail.failed = [*self.detail.failed, failure.number]
                self.replay_log.drop(failure.address, failure.number)
                self.writer.mark_changed()


def _spent(detail: Mapping[str, Any]) -> dict[str, Any]:
    """Return the spending of a step that was called within another, itself included."""
    spent = detail.get("spent") or {}
    return {**spent, "steps": spent.get("steps", 0) + (0 if "failed" in detail else 1)}
