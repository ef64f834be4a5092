"""The step machine: a call of a step in a run, from replay to commit.

It does no I/O: it yields effects that a driver carries out (see `effects`). Circuit breakers are in `breakers`.

Invariant: a step that is recorded is not run; a step that returned is recorded, with all that it changed in the
state, in one commit; an attempt that failed has changed nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from inspect import iscoroutinefunction
from types import CoroutineType
from typing import Any

from holdfast.errors import (
    BreakerOpen,
    CommitUnknown,
    HoldfastError,
    InvalidCall,
    LeaseLost,
    LimitExceeded,
    ReplayDiverged,
    StoreBusy,
    StoreUnavailable,
)
from holdfast.event_loop import running_task
from holdfast.execution import breakers
from holdfast.execution.call_arguments import CapturedCall, changed_arguments, digest_and_size
from holdfast.execution.calls import Call, refuse_behind_wait
from holdfast.execution.effects import (
    CallFunction,
    Flow,
    Pause,
    RunBlocking,
    is_cancellation,
    is_interrupt,
    raise_unchanged,
    unwrap_error,
    wrap_error,
)
from holdfast.execution.execution import Execution
from holdfast.execution.failures import Failure, error_text
from holdfast.execution.frame import Frame, add_spending
from holdfast.execution.limits import Budget, amounts, count_replayed, innermost_budget, is_run_limit
from holdfast.execution.replay_log import RecordedStep
from holdfast.execution.replay_order import AwaitReplay, ResultTurn
from holdfast.execution.state_view import BranchView, is_same
from holdfast.execution.stop_control import StopExecution
from holdfast.history.builder import VersionMetadata
from holdfast.history.reader import Head
from holdfast.tree.draft import DraftDict, DraftList
from holdfast.tree.frozen import FrozenDict, FrozenList, thaw
from holdfast.tree.values import NATIVE
from holdfast.workflow.definition import Step, Workflow

#: Seconds that code has to cancel a call that it abandoned before, beyond twice the time that it took then.
_CANCELLING = 10.0
#: Seconds after which a step checks again whether the circuit breaker has let another step of its run pass.
_PROBE_PAUSE = 0.05
#: Seconds after which a branch checks again whether another has recorded a failure.
_MOMENT = 0.002
#: Prefix of the recorded values that hold how long a call took which code has abandoned.
_ABANDONED = "abandoned:"
#: Containers that are frozen, or drafts.
_OURS = (DraftDict, DraftList, FrozenDict, FrozenList)


def call_step_in_task(call: Call[Step]) -> Flow[Any]:
    """Call a step in a frame of a task. It starts from the state that its caller saw when it called, whatever the task
    that waits for it has recorded since."""
    driver = call.frame.driver()
    view = driver.view
    assert call.start is not None
    if is_same(call.start, view.now()):
        return (yield from call_step(call, view))
    # The caller, or the task that waits for the step, has recorded other changes since.
    view = view.branch(call.start)
    try:
        return (yield from call_step(call, view))
    finally:
        newer = view.join()
        if newer is not None and driver.owner is not None:
            driver.owner.newer = newer


def call_step(call: Call[Step], view: BranchView) -> Flow[Any]:
    """Call a step, which starts from the state that its caller saw when it called. `view` is that of its branch."""
    frame, definition, address = call.frame, call.definition, call.address
    execution = frame.execution
    stop = execution.stop
    if stop.ending or execution.detail.stop_request:
        stop.check(frame)
    context = execution.engine.context
    redact = context.redaction.redactor
    call.digest, size = digest_and_size(call.args, call.kwargs, redact)
    entry = execution.replay_log.steps.get(address)
    if entry is not None:
        return (yield from replay(frame, entry, call, view))
    if execution.unawaited_waits:
        refuse_behind_wait(execution.unawaited_waits, frame, definition.name)
    if execution.replay.frames or execution.order is not None:
        # Otherwise nothing is recorded: there is nothing to wait for, or to contradict.
        yield from before_live(execution, frame, address)
    budget = innermost_budget(execution) if execution.has_limit_blocks else execution.budget
    if budget is not None and execution.replay_check is None:
        admit(call, budget)
    execution.start_step(address, frame)
    head = None
    try:
        if execution.replay.frames:
            # After the limits: a call that a limit refused is not recorded, and the limit refuses it again.
            execution.replay.refuse_beyond(frame, address)
        failures = execution.failures
        if (
            failures.pending
            or failures.handled
            or execution.cancelled_calls
            or execution.replay_check is not None
        ):
            yield from go_live(execution, address)
        # Before it runs: a step may change its arguments. A compensation needs all of them.
        strict = definition.compensate is not None
        given = execution.capture(call, redact, size, strict=strict)
        attempt, value = yield from _attempts(call, given, view)
        if isinstance(value, CoroutineType):
            value.close()
            raise InvalidCall(
                f"step {definition.name!r} returned a coroutine: it called something asynchronous without await"
            )
        more = _version_detail(call, attempt, context.clock())
        ran = execution.implementation_of(definition)
        if ran is not None:
            more["ran"] = ran
        metadata = VersionMetadata(definition.name, value, annotations=attempt.notes, kind="step", more=more)
        if address in execution.detail.retried:
            execution.detail.retried = {
                name: number for name, number in execution.detail.retried.items() if name != address
            }
            execution.writer.mark_changed()
        try:
            if attempt.over or attempt.caller is not None:
                attempt.refuse_if_over()
            if attempt.newer is not None and attempt.held is not None and not view.follows:
                attempt.rebase()
            turn = None
            if execution.order is None:
                head = yield from execution.writer.commit(metadata, frame=attempt, view=view, input=given)
            else:
                head, turn = yield from commit(execution, metadata, frame=attempt, view=view, input=given)
        except CommitUnknown:
            # It may be recorded: this execution, which does not know, must not contradict that.
            execution.over = True
            raise
        except (LeaseLost, StoreBusy, StoreUnavailable):
            raise
        except Exception as error:
            execution.lose_attempt(attempt)
            add_failure(call, error, attempt.attempt, given, attempt.spent)
            raise
        finally:
            attempt.over = True
        if budget is not None:
            budget.spend(*amounts(attempt.notes))
    finally:
        execution.end_step(address)
        if budget is not None and head is None:
            budget.give_back()
    execution.note_recorded(frame, view, head, more)
    if turn is not None:
        yield from in_order(turn)
    return value if type(value) in NATIVE else plain(value)


def go_live(execution: Execution, address: str) -> Flow[None]:
    """Record the failures that code has handled before it makes a call that is not recorded: they are results."""
    stop, check = execution.stop, execution.replay_check
    frame = address.rpartition("/")[0]
    if check is not None:
        if execution.order is not None and execution.order.is_replaying:
            yield AwaitReplay(execution.order)
        check.beyond(execution, address)
        if check.strict:
            # Only its own frame ends here: others may have more to replay.
            stop.stop_frame(frame)
        stop.stop("rehearsed")
    _note_abandoned(execution, frame)
    failures = execution.failures
    failures.note_progress(frame)
    while True:
        failure = failures.take_handled(frame)
        if failure is not None:
            yield from _record_failure(execution, failure)
        elif failures.is_awaited(frame):
            # Another branch is recording it.
            yield Pause(_MOMENT, stop.event, execution.writer.refuse_if_ended)
            if address:
                stop.refuse_if_closed()
        else:
            return


def _note_abandoned(execution: Execution, frame: str) -> None:
    """Record the calls that the code of a frame has abandoned: it makes another call after they were cancelled, and is
    not being cancelled itself."""
    task = running_task() if execution.cancelled_calls else None
    if task is None or task.cancelling():
        return
    within = f"{frame}/" if frame else ""
    for address in [each for each in execution.cancelled_calls if each.startswith(within)]:
        took = execution.cancelled_calls.pop(address)
        execution.value(_ABANDONED + address, partial(int, took))


def _record_failure(execution: Execution, failure: Failure) -> Flow[None]:
    more = {"args": failure.args, "failed": True, **execution.replay.described(failure.address)}
    if failure.after is not None:
        more["after"] = list(failure.after)
    if failure.spent:
        more["spent"] = failure.spent
    if failure.address != failure.name:
        more["address"] = failure.address
    if failure.ran is not None:
        more["ran"] = failure.ran
    metadata = VersionMetadata(failure.name, error=failure.described, kind="step", done=False, more=more)
    number = 0
    try:
        head = yield from execution.writer.commit(metadata, input=failure.given)
        number = head.version.number
    finally:
        execution.failures.written(failure, number)
    execution.replay_log.enter(head.version, more)
    execution.replay.paths.pop(failure.address, None)


def before_live(execution: Execution, frame: Frame, address: str) -> Flow[None]:
    """Wait for recorded results before a call that is not recorded starts. A call that the code had abandoned is not
    started again: the code cancels it again."""
    name = _ABANDONED + address
    seconds = execution.value(name, int) / 1e6 if execution.has_value(name) else None
    after = None if seconds is None else execution.replay.recorded_after(frame)
    if seconds is not None and after is not None:
        if frame.home is not None:
            yield Pause(2 * seconds + _CANCELLING, execution.stop.event, execution.writer.read_requests)
            execution.stop.check(frame)
        execution.replay.refuse_abandoned(frame, address, seconds, after)
    if execution.order is not None and execution.order.is_replaying:
        yield AwaitReplay(execution.order)
        execution.stop.check(frame)


def replay(
    frame: Frame,
    entry: RecordedStep,
    call: Call[Step] | Call[Workflow] | None = None,
    view: BranchView | None = None,
) -> Flow[Any]:
    """Return the recorded result of a call, or raise its failure, without running it. `call` is None for a wait."""
    execution = frame.execution
    view = frame.driver().view if view is None else view
    if execution.replay_check is not None and not execution.replay_check.strict:
        yield from execution.replay_check.run_again(execution, entry, call, view)
    elif call is not None and call.digest != entry.args:
        refused: ReplayDiverged | None = yield RunBlocking(partial(changed_arguments, call, entry))
        if refused is not None:
            if frame.owner is not None and frame.owner.attempt > 1:
                # Another attempt recorded it: this one fails.
                raise refused
            execution.replay.refuse(refused, frame)
    turn = None
    if execution.order is None:
        execution.returned.append(entry.address)
    else:
        turn = execution.order.turn_at(entry)
    try:
        if turn is not None:
            yield turn
            if execution.detail.stop_request or execution.stop.status:
                execution.stop.check(frame)
        if not execution.replay_log.is_cached(entry):
            yield RunBlocking(partial(execution.replay_log.fetch, entry))
        definition = None if call is None else call.definition
        resolve = definition.on_conflict if isinstance(definition, Step) else None
        execution.note_replayed(frame, view, entry, resolve)
        count_replayed(execution, entry)
        if entry.failed:
            error = execution.replay_log.error(entry)
            failure = Failure(entry.version.step or "", entry.address, entry.args, error, 1, entry.number)
            execution.failures.note_recorded(failure)
            raise_unchanged(wrap_error(error))
        value, frozen = execution.replay_log.result(entry)
        execution.stored.note_result(value, frozen)
        return value
    finally:
        if turn is not None:
            turn.end()


def commit(execution: Execution, facts: VersionMetadata, **how: Any) -> Flow[tuple[Head, ResultTurn | None]]:
    """Record a result; return its version, and the turn to return it to code (see `replay_order`), if it needs one."""
    order = execution.order
    turn = None if order is None else order.reserve()
    if turn is not None:
        facts.more["after"] = list(turn.place)
    try:
        head = yield from execution.writer.commit(facts, **how)
    except BaseException:
        if turn is not None:
            turn.cancel()
        raise
    if turn is None and order is not None:
        turn = order.turn_after(head.version.number)
    return head, turn


def in_order(turn: ResultTurn | None) -> Flow[tuple[int, int] | None]:
    """Wait for the turn to return a result to code, or to raise a failure; return its place in the order."""
    if turn is None:
        return None
    try:
        yield turn
    except BaseException:
        turn.cancel()
        raise
    turn.end()
    return turn.place


def _attempts(call: Call[Step], given: CapturedCall, view: BranchView) -> Flow[tuple[Frame, Any]]:
    """Try until an attempt succeeds or no further one is made; return the successful attempt and its result."""
    frame, definition, address, start = call.frame, call.definition, call.address, call.start
    assert start is not None
    execution = frame.execution
    engine = execution.engine
    clock = engine.context.clock
    function = _implementation(execution, definition) if execution.overrides else definition.function
    caller = frame if frame.attempt else frame.outer
    path = execution.replay.paths.get(address)
    frames = execution.replay.frames
    began = clock()
    number = 0
    # The calls that earlier executions made, before the circuit breaker refused one.
    waited = execution.refused_calls.pop(address, None) if execution.refused_calls else None
    first, made, refused = (began, 0, 0) if waited is None else (waited.opened, waited.number, 0)
    #: Spent by failed attempts. Steps that they called are replayed, and count again then.
    lost: dict[str, Any] = {}
    while True:
        number += 1
        started = began if number == 1 else clock()
        if number > 1 and view.follows and execution.has_only_been_edited(address, start):
            # An operator may have corrected the state meanwhile.
            start = view.now()
        attempt = Frame(
            execution, address, view, frames.get(address) if frames and number == 1 else None, definition.asynchronous,
            number, None, caller, path, started, started, definition.heartbeat_timeout, definition.timeout,
            execution.state.start_of_step(address, view, start),
        )  # fmt: skip
        attempt.resolve = definition.on_conflict
        attempt.spent = lost or None
        if caller is not None:
            caller.report_alive(started)
        execution.beat = started
        execution.active[address] = attempt
        if engine.publisher.subscriptions:
            engine.publisher.publish(
                execution.id, "step.started", definition.name, address=address, attempt=number
            )
        timeout = definition.timeout
        if execution.deadline is not None:
            timeout = execution.time_left(timeout)
        admission: breakers.Admission | None = None
        try:
            if definition.breaker is not None:
                admission = yield from _admit_by_breaker(execution, definition, attempt)
            value = yield CallFunction(function, call.args, call.kwargs, attempt, timeout)
            if execution.stop.ending:
                execution.stop.check_caught(attempt)
            if execution.unawaited:
                execution.refuse_unawaited(attempt)
            if attempt.expected is not None:
                attempt.finish()
            if execution.exceeded is not None:
                execution.check_limits_within(attempt)
        except (StopExecution, GeneratorExit):
            # A GeneratorExit of user code is wrapped: this one closes the flow.
            execution.lose_attempt(attempt)
            raise
        except BaseException as raised:
            lost = add_spending(lost, execution.lose_attempt(attempt))
            error = unwrap_error(raised)
            if isinstance(error, LeaseLost) or is_interrupt(error):
                if is_cancellation(error):
                    execution.cancelled_calls[address] = clock() - began
                raise
            if admission is not None:
                yield from _note_outcome(execution, definition, admission, error)
            elif isinstance(error, BreakerOpen):
                refused += 1
            execution.attempt_failed(address)
            execution.stop.check(attempt)
            delay = None
            if definition.retry is not None:
                spent = (clock() - first) / 1e6
                delay = definition.retry.next_delay(error, made + number, spent, engine.chance)
            deadline = execution.deadline
            if delay is not None and deadline is not None and clock() + delay * 1e6 > deadline:
                delay = None
            if delay is None:
                if admission is None and isinstance(error, BreakerOpen):
                    breakers.note_wait(definition, error, made + number - refused, first, address)
                after = None
                if execution.order is not None:
                    after = yield from in_order(execution.order.turn_of_failure())
                add_failure(call, error, number, given, attempt.spent, after)
                raise
            budget = innermost_budget(execution)
            if budget is not None:
                admit(call, budget, number, error)
            execution.drop_failures(error)
            execution.writer.add_event(
                "step.retried", step=definition.name, address=address, attempt=number,
                error=error_text(error), delay=delay,
            )  # fmt: skip
            # Written at once: the pause may be long, and monitors should know of it.
            yield from execution.writer.save()
            yield Pause(delay, execution.stop.event, execution.writer.read_requests)
            execution.stop.check(attempt)
        else:
            if admission is not None:
                yield from _note_outcome(execution, definition, admission, None)
            return attempt, value


def _admit_by_breaker(execution: Execution, definition: Step, attempt: Frame) -> Flow[breakers.Admission]:
    """Admit an attempt by the circuit breaker of its step; `BreakerOpen` if it refuses."""
    # A step within the call that was let through cannot wait for that.
    waits = attempt.caller is None
    admit_call = partial(breakers.admit, execution.engine, definition, execution.id, waits=waits)
    while True:
        admission: breakers.Admission | None = yield RunBlocking(admit_call)
        if admission is not None:
            break
        yield Pause(_PROBE_PAUSE, execution.stop.event, execution.writer.refuse_if_ended)
        execution.stop.check(attempt)
    if admission.event is not None:
        execution.writer.append_event(admission.event)
    return admission


def _note_outcome(
    execution: Execution, definition: Step, admission: breakers.Admission, error: BaseException | None
) -> Flow[None]:
    """Note the outcome of an attempt for the circuit breaker of its step. If the store refuses that, the outcome stays
    what it is, and the breaker as it was."""
    note = partial(breakers.note_outcome, execution.engine, definition, admission, error, execution.id)
    event = None
    with suppress(HoldfastError):
        event = yield RunBlocking(note)
    if event is not None:
        execution.writer.append_event(event)


def add_failure(
    call: Call[Step] | Call[Workflow],
    error: BaseException,
    attempts: int,
    given: CapturedCall,
    spent: dict[str, Any] | None,
    after: tuple[int, int] | None = None,
) -> None:
    """Add a call that failed for good to the failures of its execution."""
    execution = call.frame.execution
    ran = execution.implementation_of(call.definition)
    execution.failures.add(
        Failure(
            call.definition.name, call.address, call.digest, error, attempts,
            given=given, ran=ran, spent=spent, after=after,
        )
    )  # fmt: skip


def admit(
    call: Call[Step] | Call[Workflow],
    budget: Budget,
    attempts: int = 0,
    cause: BaseException | None = None,
) -> None:
    """Admit a step or child, or its next attempt; `LimitExceeded` if a limit is used up. The limit of a block fails
    like a step: the failure is recorded if the code around the block handles it."""
    execution = call.frame.execution
    try:
        budget.admit(execution, call.address, 0 if attempts else 1)
    except LimitExceeded as error:
        if not is_run_limit(execution, error):
            execution.failures.add(Failure(call.definition.name, call.address, call.digest, error, attempts))
        raise error from cause


def plain(value: Any) -> Any:
    """Return a step's result for its caller, without frozen containers and ended drafts."""
    return thaw(value) if _holds_ours(value) else value


def _implementation(execution: Execution, definition: Step) -> Callable[..., Any]:
    """Return the step's function, or its override in this run."""
    function = execution.overrides.get(definition.name)
    if function is None:
        return definition.function
    if iscoroutinefunction(function) and not definition.asynchronous:
        raise InvalidCall(
            f"the override of step {definition.name!r} is asynchronous and the step is not: make it a plain def"
        )
    return function


def _holds_ours(value: Any) -> bool:
    kind = type(value)
    if kind is dict or kind is list or kind is tuple:
        items = value.values() if kind is dict else value
        return not NATIVE.issuperset(map(type, items)) and any(map(_holds_ours, items))
    return isinstance(value, _OURS)


def _version_detail(call: Call[Step], attempt: Frame, now: int) -> dict[str, Any]:
    definition = call.definition
    more: dict[str, Any] = {"args": call.digest, "took": now - attempt.began}
    path = attempt.path
    if path is not None:
        more["call"] = path[0] if len(path) == 1 else list(path)
    if attempt.address != definition.name:
        more["address"] = attempt.address
    if attempt.attempt > 1:
        more["attempt"] = attempt.attempt
    if definition.compensate is not None:
        more["undo"] = True
    if attempt.notes or attempt.spent:
        cost, tokens = amounts(attempt.notes)
        attempt.count({"cost": cost, "tokens": tokens})
        more |= spent_in(attempt.spent)
    return more


def spent_in(spent: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the spending of a step as its version stores it; empty if there was none."""
    found = {name: value for name, value in (spent or {}).items() if value}
    return {"spent": found} if found else {}
