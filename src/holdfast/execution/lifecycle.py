"""The life of an execution, from `run` or `resume` to its end: start or take over a run, call its workflow, record
how it ended.

Invariant: the last write of an execution releases the run, and the run's status says why it ended.
"""

from __future__ import annotations

import re
import time
from functools import partial
from inspect import iscoroutine
from typing import Any, ClassVar
from uuid import uuid4

import msgspec

from holdfast.errors import (
    AlreadyExists,
    CommitUnknown,
    HoldfastError,
    InvalidCall,
    LeaseLost,
    NotAwaited,
    NotFound,
    ReplayDiverged,
    StaleVersion,
    StoreBusy,
    StoreUnavailable,
)
from holdfast.execution import breakers, step_machine
from holdfast.execution.call_arguments import without_secrets
from holdfast.execution.calls import executing
from holdfast.execution.effects import (
    AppendChange,
    CallFunction,
    Flow,
    RunBlocking,
    is_interrupt,
    unwrap_error,
)
from holdfast.execution.engine_context import EngineContext, describe_overrides, merge_overrides
from holdfast.execution.exception_codec import pack
from holdfast.execution.execution import Execution
from holdfast.execution.failures import error_text, remove_run_note
from holdfast.execution.frame import Frame
from holdfast.execution.limits import Budget, limits_record, open_budget, updated_limits
from holdfast.execution.options import ResumeOptions, WorkflowCall
from holdfast.execution.preflight import Preflight, check_resume
from holdfast.execution.questions import settled
from holdfast.execution.replay_log import ReplayLog
from holdfast.execution.run_endings import has_come
from holdfast.execution.stop_control import StopExecution
from holdfast.execution.write_lock import current_holder
from holdfast.history.builder import RESULT, VersionMetadata, build_event, with_questions
from holdfast.history.committer import Committer, VersionDraft
from holdfast.history.reader import Head
from holdfast.history.redaction import redact_meta
from holdfast.model.records import CLOSED, EventRecord, RunRecord
from holdfast.model.run_detail import RunDetail, StalledQuestion, Wait, detail_of, encode_detail
from holdfast.model.watchdog import RunWatchdog, follow_workflow
from holdfast.store.protocol import Append
from holdfast.tree.frozen import thaw
from holdfast.workflow.definition import Workflow

#: The symptom of a run whose code does not fit its record; characters of an error that its question shows.
DIVERGED = "diverged"
_WHY = 1000
#: Microseconds until a run is resumed that was handed back because of an error.
AGAIN = 5_000_000
#: Errors of the store, after which a run is handed back and not failed.
AWAY = (StoreBusy, StoreUnavailable, CommitUnknown)
_NO_NAME = re.compile(r"[^A-Za-z0-9_]+")


def completed(execution: Execution, value: Any) -> Flow[None]:
    """Write that the workflow's function has returned."""
    yield from step_machine.go_live(execution, "")
    if iscoroutine(value):
        value.close()
        raise InvalidCall(
            f"workflow {execution.workflow.name!r} gave a coroutine: a step in it is async def, so the workflow must "
            "be, too, and await it"
        )
    facts = VersionMetadata(result=value, kind="final", status="completed")
    execution.detail.waits = []
    if execution.head.run.detail:
        execution.writer.mark_changed()
    yield from execution.writer.commit(facts, owner=None, until=0, due=None)


def failed(execution: Execution, error: BaseException) -> Flow[None]:
    """Write that a run has failed."""
    facts = execution.detail
    remove_run_note(error, execution.id)
    facts.error = pack(error, execution.engine.context.redact)
    facts.failed_step = execution.failures.step_of(error)
    execution.writer.mark_changed()
    failures = list(execution.failures.pending)
    execution.drop_failures(error)
    for failure in failures:
        execution.writer.add_event(
            "step.failed", step=failure.name, address=failure.address, attempt=failure.attempts,
            error=error_text(failure.error),
        )  # fmt: skip
    execution.writer.add_event("run.failed", error=error_text(error))
    yield from execution.writer.save(status="failed", owner=None, until=0, due=None)


def diverged(execution: Execution, before: RunRecord, error: ReplayDiverged) -> Flow[None]:
    """Write that the workflow's code does not fit the record. The run is left as it was before; if no caller hears of
    the error, it is stopped, and its question asks an operator."""
    was, facts = detail_of(before), execution.detail
    facts.error, facts.code, facts.called, facts.watchdog = was.error, was.code, was.called, was.watchdog
    facts.failed_step = was.failed_step
    facts.question, facts.restores, facts.spent_before = was.question, was.restores, was.spent_before
    facts.resumed_from = was.resumed_from
    execution.writer.mark_changed()
    execution.writer.add_event(
        "run.diverged", error=str(error)[:2000], address=error.details.get("address"),
        version=error.details.get("version"), called=error.details.get("called"), run=error.details.get("of"),
    )  # fmt: skip
    status, due = before.status, before.due
    if execution.contained:
        status, due = "stalled", None
        now = execution.engine.context.clock()
        for entry in _ask_operator(execution, before, error, now):
            execution.writer.append_event(entry)
    yield from execution.writer.save(status=status, owner=None, until=0, due=due)


def _ask_operator(execution: Execution, run: RunRecord, error: ReplayDiverged, now: int) -> list[EventRecord]:
    """Open the question of a run whose code does not fit its record; return the entries for its journal."""
    facts = execution.detail
    facts.asked += 1
    question = f"{run.id}#{facts.asked}"
    address = error.details.get("address")
    facts.question = StalledQuestion(
        id=question, opened=now, symptom=DIVERGED, why=str(error)[:_WHY], since=now, address=address,
        good=good_before(execution.replay_log, run, error), restores=facts.restores,
    )  # fmt: skip
    return [
        build_event("run.stalled", now, symptom=DIVERGED, reason=str(error)[:_WHY], version=run.head),
        build_event(
            "question.opened", now, question_id=question, question=str(error)[:_WHY], address=address
        ),
    ]


def good_before(record: ReplayLog, run: RunRecord, error: ReplayDiverged) -> int:
    """Return the last version that the code fits; the head if that is not known."""
    if "of" in error.details:
        return run.head
    try:
        return max(1, record.before(error.details["address"]))
    except HoldfastError:
        return run.head


def handed_back(execution: Execution, error: BaseException) -> Flow[None]:
    """Put a run back into its queue, for any worker, after the store was unreachable for a while."""
    execution.writer.add_event("run.handed_back", error=error_text(error))
    due = execution.engine.context.clock() + AGAIN
    yield from execution.writer.save(status="queued", owner=None, until=0, due=due)


def _waits(execution: Execution, error: BaseException, wait: Wait) -> Flow[None]:
    """Write that a run waits for a circuit breaker, which refused the call of its step."""
    engine = execution.engine
    remove_run_note(error, execution.id)
    execution.drop_failures(error)
    join = partial(breakers.join, engine, execution.head.run, wait, owned=execution.contained)
    execution.detail.put((yield RunBlocking(join)))
    execution.writer.mark_changed()
    yield from halted(execution, "suspended")
    yield RunBlocking(partial(breakers.wake_if_closed, engine, wait.name))


def halted(execution: Execution, status: str) -> Flow[None]:
    """Write that an execution was stopped at a boundary between steps. `status` is that of the run afterwards."""
    facts = execution.detail
    if status == "suspended" and facts.stop_request == "hand back":
        # One branch waits, but others have steps to run: the next execution runs them.
        status = "queued"
    if status == "cancelled":
        facts.stop_request, facts.waits = "", []
        execution.writer.mark_changed()
        ending = VersionMetadata(kind="final", status="cancelled", note=facts.reason, actor=facts.actor)
        yield from execution.writer.commit(ending, owner=None, until=0, due=None)
        return
    if status == "queued":
        facts.stop_request = ""
        execution.writer.mark_changed()
        execution.writer.add_event("run.handed_back")
    elif status == "paused":
        facts.stop_request = ""
        execution.writer.mark_changed()
        execution.writer.add_event("run.paused", reason=facts.reason, actor=facts.actor)
    else:
        yield from _set_aside(execution)
        execution.writer.add_event("run.suspended", waits=[wait.address for wait in facts.waits])
    due = facts.due() if status == "suspended" else None
    yield from execution.writer.save(status=status, owner=None, until=0, due=due)
    if status == "suspended" and execution.head.run.parent is None:
        execution.engine.suspended.add(execution.id)
    if status == "suspended" and facts.stop_request in ("cancel", "pause"):
        # The request came while the run was being suspended; if another process owns the run by now, the write is
        # refused.
        execution.over = False
        yield from halted(execution, "cancelled" if facts.stop_request == "cancel" else "paused")


def _set_aside(execution: Execution) -> Flow[None]:
    """Mark the waits that have come but that this execution could not reach: it has recorded nothing, so the next one
    would not reach them either, until something else has come."""
    left = [wait for wait in execution.detail.waits if execution.replay.is_left(wait.address)]
    if not left or execution.writer.newest:
        return
    engine = execution.engine
    run, now = execution.head.run, engine.context.clock()
    for wait in left:
        if (yield RunBlocking(partial(has_come, engine.store, run, execution.detail, wait, now))):
            execution.detail.put(msgspec.structs.replace(wait, idle=True))
            execution.writer.mark_changed()


def result_of(engine: EngineContext, run: RunRecord) -> Any:
    """Return the result of a completed run, whose state may have been edited since."""
    final = engine.store.versions(run.key, kind="final", before=run.head + 1, limit=1)
    number = final[0].number if final else run.head
    return thaw(engine.context.reader(run).part(number, RESULT))


def new_id(workflow: Workflow) -> str:
    """Return an id for a run that was given none."""
    return f"{plain_name(workflow.name)}-{uuid4().hex[:10]}"


def plain_name(name: str) -> str:
    """Return the name of a workflow as the start of a run id."""
    return _NO_NAME.sub("-", name).strip("-")[:60] or "run"


def start(
    engine: EngineContext,
    call: WorkflowCall,
    *,
    parent: int | None = None,
    address: str = "",
    around: Budget | None = None,
) -> Flow[BaseException | None]:
    """Create a run and execute it. For a child run, `parent` is the key of its parent, `address` where that calls it,
    and `around` the parent's budget."""
    workflow, run_id, args, kwargs, options = call
    overrides, _ = merge_overrides({}, options.overrides, {})
    claim = engine.claim(run_id)
    try:
        line = Committer(engine.context, run_id, workflow.reducers)
        facts = VersionMetadata(
            tags=options.tags, note=options.note, actor=options.actor, kind="initial", status="running"
        )
        facts.more = {"code": workflow.code}
        if parent is not None:
            above = yield RunBlocking(partial(engine.store.run_by_key, parent))
            facts.more["part"] = [address, 1 if above is None else above.timeline]
        facts.check()
        given = without_secrets(workflow, args, kwargs, engine.context.redact)
        kept = RunDetail(
            watchdog=RunWatchdog.of(options.watchdog, workflow.watchdog),
            limits=limits_record(options.limits, workflow.limits),
            overrides=describe_overrides(overrides),
            meta=redact_meta(options.meta, engine.context.redact),
        )
        state = {} if options.state is None else options.state
        head = yield from _make(engine, workflow, line, facts, state, given, parent, kept)
        engine.remember_overrides(run_id, overrides)
        engine.publisher.wake()
        reader = engine.context.reader(head.run)
        execution = Execution(engine, workflow, line, head, ReplayLog(reader), overrides=overrides)
        execution.outer_budget, execution.alone = around, False
        return (yield from execute(execution, args, kwargs))
    finally:
        engine.release(run_id, claim)


def _make(
    engine: EngineContext,
    workflow: Workflow,
    line: Committer,
    facts: VersionMetadata,
    state: Any,
    given: list[Any],
    parent: int | None,
    kept: RunDetail,
) -> Flow[Head]:
    """Write a run's first version."""
    now = engine.context.clock()
    run = RunRecord(
        id=line.id,
        workflow=workflow.name,
        created=now,
        updated=now,
        parent=parent,
        owner=engine.owner,
        until=engine.store.now() + engine.lease,
        detail=encode_detail(kept),
    )
    drawn = line.build(state, None, None, facts, run=run, input=given)
    try:
        head: Head = yield AppendChange(engine.committer, drawn.change, partial(_first_head, line, drawn))
    except StaleVersion:
        raise AlreadyExists(
            f"run {line.id!r} exists: say if_exists='resume' to resume it, if_exists='return' to get it as it is, or "
            "start another run under another run_id",
            run=line.id,
        ) from None
    return head


def _first_head(line: Committer, drawn: VersionDraft, run: RunRecord | BaseException) -> Head | None:
    return None if isinstance(run, BaseException) else line.note_committed(drawn, run)


def resume(
    engine: EngineContext,
    workflow: Workflow,
    run_id: str,
    options: ResumeOptions,
    *,
    ready: Preflight | None = None,
    exact: bool = False,
    around: Budget | None = None,
    alone: bool = True,
) -> Flow[BaseException | None]:
    """Take a run over and execute it from its head, with the recorded overrides and those given, or `exact`ly those.
    `ready` is the result of its check. `around` is the budget of the parent run, unless this one runs `alone`."""
    claim = engine.claim(run_id)
    try:
        execution: Execution | None = yield RunBlocking(
            lambda: _take_over(engine, workflow, run_id, options, ready, exact)
        )
        if execution is None:
            return None
        execution.outer_budget, execution.alone = around, alone
        execution.answers = options.answers or {}
        args, kwargs = execution.replay_log.given()
        return (yield from execute(execution, tuple(args), kwargs))
    finally:
        engine.release(run_id, claim)


def _take_over(
    engine: EngineContext,
    workflow: Workflow,
    run_id: str,
    options: ResumeOptions,
    ready: Preflight | None,
    exact: bool,
) -> Execution | None:
    """Become the owner of a run that no process advances, once it is known that it can be replayed; return None if it
    has ended since."""
    clock = engine.context.clock
    line = Committer(engine.context, run_id, workflow.reducers)
    while True:
        # Everything that may be damaged or gone is read first: a process that cannot execute the run does not take it.
        head = line.fresh_head()
        if head is None:
            raise NotFound(f"there is no run {run_id!r}", run=run_id)
        run = head.run
        engine.refuse_if_elsewhere(run)
        if run.status in CLOSED:
            return None
        # Not by the revision: the id may belong to another run by now.
        if ready is None or ready.run != run:
            ready = check_resume(
                engine, run, workflow, changed=options.changed, overrides=options.overrides, exact=exact
            )
        ready.warn_if_changed()
        facts, functions = ready.detail, ready.overrides
        record = ReplayLog(engine.context.reader(run)).load(run.head, facts.failed, facts.retried)
        record.given()
        if facts.stop_request != "cancel":
            facts.stop_request = ""
        facts.error, facts.failed_step, facts.called = b"", "", False
        if (head.version.kind, head.version.status) != ("initial", "queued"):
            # Otherwise a worker starts a run that was enqueued.
            facts.resumed_from = run.head
        facts.code = workflow.code
        facts.overrides = describe_overrides(functions)
        facts.watchdog = follow_workflow(facts.watchdog, workflow.watchdog)
        facts.limits = updated_limits(facts.limits, workflow.limits)
        entries = [
            *settled(engine.store, run, facts, clock()),
            build_event("run.resumed", clock(), version=run.head, code=workflow.code),
        ]
        try:
            head = own(engine, line, head, facts, *entries)
        except StaleVersion:
            ready = None
            continue
        engine.remember_overrides(run_id, functions)
        execution = Execution(engine, workflow, line, head, record, overrides=functions)
        execution.before = run
        return execution


def own(engine: EngineContext, line: Committer, head: Head, facts: RunDetail, *entries: EventRecord) -> Head:
    """Write that this engine advances a run; `StaleVersion` if it has changed since it was read."""
    now = engine.context.clock()
    after = msgspec.structs.replace(
        head.run,
        status="running",
        owner=engine.owner,
        until=engine.store.now() + engine.lease,
        updated=now,
        due=None,
        revision=head.run.revision + 1,
        detail=encode_detail(facts),
    )
    return line.note_run_changed(
        head, engine.store.append(with_questions(Append(expect=head.run, run=after, events=entries)))
    )


def execute(
    execution: Execution, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Flow[BaseException | None]:
    """Run the workflow's function and write how it ended; return the error that it ended with, if any."""
    engine, workflow = execution.engine, execution.workflow
    engine.executions[execution.id] = execution
    execution.lease_handle = engine.keeper.hold(
        execution.head.run, hurry=execution.detail.watchdog is not None, holder=current_holder()
    )
    execution.root = frame = Frame.enter(execution, asynchronous=workflow.asynchronous)
    try:
        executing.add(execution)
        if (
            execution.detail.limits
            or execution.outer_budget is not None
            or (execution.alone and execution.head.run.parent)
        ):
            execution.budget = yield RunBlocking(
                partial(open_budget, execution, execution.outer_budget, execution.alone)
            )
        for refused_call in execution.refused_calls.values():
            yield RunBlocking(partial(breakers.leave, engine, execution.id, refused_call))
        value: Any = None
        error: BaseException | None = None
        try:
            value = yield CallFunction(workflow.function, args, kwargs, frame)
            if execution.unawaited and not execution.stop.status:
                execution.refuse_unawaited(None)
            frame.finish()
        except LeaseLost:
            raise
        except GeneratorExit:
            # This flow is closed: a GeneratorExit of user code is carried.
            raise
        except BaseException as ending:
            error = unwrap_error(ending)
            if not isinstance(error, StopExecution) and is_interrupt(error) and not execution.contained:
                raise
        if isinstance(error, CommitUnknown):
            raise error
        # What ended it counts, even if user code has caught it.
        status = execution.stop.status
        execution.stop.close()
        yield Drain(execution)
        if execution.stop.cut_off is not None and error is None and not status:
            error = _cut_off(execution.stop.cut_off)
        execution.count_time(at_end=True)
        if execution.replay.diverged is not None and execution.before is not None:
            yield from diverged(execution, execution.before, execution.replay.diverged)
            return execution.replay.diverged
        if status:
            yield from halted(execution, status)
            return None
        if error is None:
            # Code that has caught it cannot complete the run all the same: a higher limit is to be decided on.
            error = execution.exceeded
        if error is None:
            try:
                yield from completed(execution, value)
                return None
            except LeaseLost:
                raise
            except Exception as refused:
                if execution.over:
                    # Interrupted after it was written.
                    raise
                if not isinstance(refused, HoldfastError):
                    # Interrupted, perhaps after it was written, but before that was known.
                    execution.interrupted = refused
                error = refused
        wait = breakers.wait_of(execution, error)
        if wait is not None:
            yield from _waits(execution, error, wait)
            return None
        if execution.contained and isinstance(error, AWAY):
            yield from handed_back(execution, error)
        else:
            yield from failed(execution, error)
        return error
    except LeaseLost:
        if execution.interrupted is not None:
            # The write that was interrupted has ended the execution: that is why the run is not ours any more.
            raise execution.interrupted from None
        raise
    except CommitUnknown:
        raise
    except GeneratorExit:
        # Nothing can be awaited any more: as if the process had died, the lease runs out, and this engine may resume.
        execution.stop.close()
        raise
    except BaseException:
        execution.stop.close()
        try:
            yield from execution.writer.save(owner=None, until=0)
        except HoldfastError as refused:
            # If it cannot be written, the lease runs out.
            if execution.lost and isinstance(refused, LeaseLost):
                raise
        raise
    finally:
        executing.discard(execution)
        execution.stop.end_pauses()
        execution.close_unawaited()
        execution.root = None
        engine.keeper.release(execution.lease_handle)
        if engine.executions.get(execution.id) is execution:
            del engine.executions[execution.id]


def rehearse(execution: Execution, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Flow[None]:
    """Run the workflow's function against the record, up to where the record ends. Nothing is written."""
    assert execution.replay_check is not None
    frame = Frame.enter(execution, asynchronous=execution.workflow.asynchronous)
    try:
        value = yield CallFunction(execution.workflow.function, args, kwargs, frame)
    except StopExecution:
        return
    except Exception as error:
        execution.replay_check.ended(execution, None, unwrap_error(error))
    else:
        execution.replay_check.ended(execution, value, None)
    finally:
        execution.stop.close()
        execution.close_unawaited()


def _cut_off(frame: Frame) -> NotAwaited:
    task = getattr(frame.home, "get_coro", None)
    name = "a thread" if task is None else f"the task of {getattr(task(), '__qualname__', 'a coroutine')}()"
    return NotAwaited(
        f"{name} (branch {frame.address or 'of the workflow'}) was about to start a step when the workflow had already "
        "returned: await each task, and join each thread, that the workflow starts",
        address=frame.address,
    )


class Drain:
    """Waits until the steps that are under way have ended, in tasks and threads that the workflow's function left
    running. Those that were started and did not run yet get their first turn."""

    __slots__ = ("execution",)
    must_finish: ClassVar[bool] = False

    def __init__(self, execution: Execution) -> None:
        self.execution = execution

    def block(self) -> None:
        while self.execution.has_steps_elsewhere():
            time.sleep(0.002)

    async def wait(self) -> None:
        import asyncio

        if self.execution.root is not None and self.execution.root.has_tasks():
            await asyncio.sleep(0)
        while self.execution.has_steps_elsewhere():
            await asyncio.sleep(0.002)
