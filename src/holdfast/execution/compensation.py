"""Rollback of a run whose steps had effects outside: compensations run first, newest first, then the head moves back.

Each compensation is recorded like a step, and the run's record holds the rollback that is under way, so that a rollback
that was killed half-way continues where it stopped.

Invariant: the head moves back only when every step after the target that has a compensation was compensated, once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import (
    Cancelled,
    CommitUnknown,
    CompensationFailed,
    InvalidCall,
    LeaseLost,
    StaleVersion,
    StoreBusy,
    StoreUnavailable,
)
from holdfast.event_loop import in_event_loop
from holdfast.execution import inbox
from holdfast.execution.calls import Call
from holdfast.execution.children import AffectedChild, affected_children, compensation_address
from holdfast.execution.effects import drive
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.exception_codec import pack
from holdfast.execution.execution import Execution
from holdfast.execution.frame import Frame
from holdfast.execution.lease import is_alive
from holdfast.execution.lifecycle import own
from holdfast.execution.questions import FIRST, restarted_state, settled
from holdfast.execution.replay_log import RecordedStep, ReplayLog, lineage
from holdfast.execution.step_machine import call_step
from holdfast.execution.stop_control import StopExecution
from holdfast.execution.write_lock import current_holder
from holdfast.history.branching import move_head, start_timeline
from holdfast.history.builder import VersionMetadata, build_event
from holdfast.history.committer import Committer
from holdfast.history.history import History
from holdfast.history.reader import Head
from holdfast.model.records import RunRecord, VersionRecord
from holdfast.model.run_detail import PendingRollback, detail_of
from holdfast.workflow.definition import Step, Workflow, step_named, unknown_here


def rollback(engine: EngineContext, history: History, to: Any, reason: str | None, actor: str | None) -> None:
    """Compensate the steps after a version, then make it the head."""
    with _claimed(engine, history.id):
        pending = PendingRollback(to=history.at(to).number, reason=reason, actor=actor)
        _rollback(engine, history, pending)


def finish_rollback(engine: EngineContext, history: History, run: RunRecord, then: str | None = None) -> None:
    """Finish the unfinished rollback of a run, if it has one. The run has the status `then` afterwards, unless the
    rollback has set another."""
    pending = detail_of(run).rollback
    if pending is None:
        # Another process has finished it since the run was last read.
        return
    if pending.then is None:
        pending = msgspec.structs.replace(pending, then=then)
    with _claimed(engine, history.id):
        _rollback(engine, history, pending, started=run)


@contextmanager
def _claimed(engine: EngineContext, run_id: str) -> Iterator[None]:
    claim = engine.claim(run_id)
    try:
        yield
    finally:
        engine.release(run_id, claim)


def _rollback(
    engine: EngineContext, history: History, pending: PendingRollback, started: RunRecord | None = None
) -> None:
    """`started` is the run in which this rollback was under way: if it was finished since, nothing is done."""
    while True:
        run = engine.record(history.id)
        target = history.at(pending.to).record
        if started is not None and not _same(run, started):
            return
        engine.refuse_if_elsewhere(run)
        _refuse_undone(engine, run, target.number)
        parts = list(affected_children(engine, run, target.seq))
        if pending.then is None:
            # A monitor takes over a stalled run; its children, stalled with it, are cancelled.
            for part in parts:
                engine.refuse_if_running(part.run)
        parts = [part for part in parts if not is_alive(part.run, engine.context.clock())]
        entries = steps_to_compensate(engine, run, target.number, parts)
        try:
            if entries or any(part.target for part in parts):
                _undo(engine, run, entries, parts, pending)
                run = engine.record(history.id)
            _move(engine, run, target, pending)
        except StaleVersion:
            continue
        engine.publisher.wake()
        return


def _move(engine: EngineContext, run: RunRecord, target: VersionRecord, pending: PendingRollback) -> None:
    context = engine.context
    now = context.clock()
    reason, actor, then, due = pending.reason, pending.actor, pending.then, pending.due
    events = settled(
        context.store, run, detail_of(run), now, choice="rollback", actor=actor, version=target.number
    )
    if pending.symptom is not None:
        events.append(
            build_event(
                "run.recovered", now, to=target.number, timeline=run.timeline + 1, symptom=pending.symptom,
                restores=pending.restores,
            )
        )  # fmt: skip
    if pending.keep is None:
        move_head(context, run, target, reason=reason, actor=actor, status=then, due=due, events=events)
        return
    assert pending.of is not None
    state = restarted_state(context, run, pending.of, pending.keep)
    at = Head(run, target, context.reader(run).state(target.number))
    facts = VersionMetadata(kind="manual", status=then or "paused", note=reason, actor=actor)
    start_timeline(context, Committer(context, run.id), at, state, facts, due=due, events=events)


def _same(run: RunRecord, started: RunRecord) -> bool:
    """Return whether the unfinished rollback of a run is still the same. The end of a rollback starts a
    timeline."""
    one, other = detail_of(run).rollback, detail_of(started).rollback
    return run.timeline == started.timeline and (one and one.to) == (other and other.to)


class Compensation(NamedTuple):
    """A step that is to be compensated."""

    run: str
    entry: RecordedStep
    definition: Step


def steps_to_compensate(
    engine: EngineContext, run: RunRecord, target: int, parts: Sequence[AffectedChild]
) -> list[Compensation]:
    """Return the steps of a run and of its children that a rollback must compensate, newest first, with their
    definitions."""
    found = []
    for run_id, entry in compensation_order(run, compensable_steps(engine, run, target), parts):
        definition = step_named(entry.version.step or "")
        if definition is None or definition.compensate is None:
            raise unknown_here(
                f"step {entry.address!r} of run {run_id!r} has to be undone, but its compensation is not known in this "
                "process: import the module that defines the step",
                run=run_id,
                address=entry.address,
            )
        found.append(Compensation(run_id, entry, definition))
    return found


def compensation_order(
    run: RunRecord, entries: Sequence[RecordedStep], parts: Sequence[AffectedChild]
) -> list[tuple[str, RecordedStep]]:
    """Return the steps of a run and of its children in the order of their compensation: newest first."""
    found = [(run.id, entry) for entry in entries]
    found += [(part.run.id, entry) for part in parts for entry in part.entries]
    return sorted(found, key=lambda each: -each[1].version.seq)


def compensable_steps(engine: EngineContext, run: RunRecord, target: int) -> list[RecordedStep]:
    """Return the steps after a version that have a compensation and were not compensated yet, newest first."""
    if run.workflow is None:
        return []
    reader = engine.context.reader(run)
    kept = {entry.number for entry in ReplayLog(reader).load(target).steps.values()}
    record = ReplayLog(reader).load(run.head)
    found = []
    for entry in sorted(record.steps.values(), key=lambda entry: -entry.number):
        if "undo" not in entry.detail:
            continue
        if compensation_address(entry) in record.steps:
            if entry.number in kept and target < record.steps[compensation_address(entry)].number:
                raise InvalidCall(
                    f"step {entry.address!r} of run {run.id!r} was undone by a rollback that is under way: version "
                    f"{target} cannot be the head again; roll back to a version before {entry.number}",
                    run=run.id,
                    address=entry.address,
                )
            continue
        if entry.number not in kept:
            found.append(entry)
    return found


def refuse_target(engine: EngineContext, run: RunRecord, target: int) -> None:
    """Refuse a version that a run cannot be rolled back to, because of what was undone since."""
    _refuse_undone(engine, run, target)
    compensable_steps(engine, run, target)


def _refuse_undone(engine: EngineContext, run: RunRecord, target: int) -> None:
    """Refuse to go back to a version that knows of effects which were undone since."""
    facts = detail_of(run)
    undone = set(facts.compensated)
    if undone:
        held = sorted(undone & {number for number, _ in lineage(engine.context.reader(run), target)})
        if held and facts.rollback is None:
            raise InvalidCall(
                f"version {target} of run {run.id!r} follows version {held[0]}, whose step was undone since: go back "
                f"to a version before {held[0]}",
                run=run.id,
                undone=held,
            )


class WorkflowRollbacks:
    """The rules for moving the head of a workflow's run back by hand."""

    def __init__(self, engine: Callable[[], EngineContext]) -> None:
        self._engine = engine

    def check(self, run: RunRecord, to: int) -> None:
        """Raise `InvalidCall` if a rollback to a version must do more than move the head."""
        if run.workflow is not None:
            _refuse_manual_rollback(self._engine(), run, to)

    def carry_over(self, run: RunRecord, to: int) -> bytes:
        """Return the part of the run's detail that stays when the head moves back to a version."""
        return inbox.carried(self._engine().context, run, to)


def _refuse_manual_rollback(engine: EngineContext, run: RunRecord, target: int) -> None:
    engine.refuse_if_running(run)
    moment = engine.context.reader(run).record(target).seq
    if compensable_steps(engine, run, target) or any(
        part.entries or part.target for part in affected_children(engine, run, moment)
    ):
        raise InvalidCall(
            f"run {run.id!r} has steps or children that a rollback must undo: use hf.rollback, which runs their "
            "compensations",
            run=run.id,
        )


def _undo(
    engine: EngineContext,
    run: RunRecord,
    entries: list[Compensation],
    parts: Sequence[AffectedChild],
    pending: PendingRollback,
) -> None:
    with _compensating(engine, run, pending) as execution:
        writer, steps = execution.writer, execution.replay_log.steps
        try:
            with ExitStack() as stack:
                executions = {run.id: execution}
                for each in entries:
                    if each.run not in executions:
                        part = next(part for part in parts if part.run.id == each.run)
                        executions[each.run] = stack.enter_context(_compensating_child(engine, part, pending))
                    _undo_one(executions[each.run], each.entry, each.definition)
            for part in reversed(parts):
                _rewind(engine, part, pending)
            tops = {part.top for part in parts if part.entries or detail_of(part.run).compensated}
            done = {
                entry.number
                for entry in steps.values()
                if compensation_address(entry) in steps or entry.detail.get("child") in tops
            }
            mine = {each.entry.number for each in entries if each.run == run.id}
            execution.detail.compensated = sorted({*execution.detail.compensated, *done, *mine})
            writer.mark_changed()
            writer.add_event("run.compensated", steps=len(entries))
            if pending.then is not None:
                # The run will be resumed: it stays ours until the head has moved, so that a death of this process
                # shows.
                drive(writer.save())
            else:
                drive(writer.save(owner=None, until=0, status="paused"))
        except StopExecution as halt:
            execution.detail.stop_request = ""
            writer.mark_changed()
            writer.add_event(
                f"run.{halt.status}", reason=execution.detail.reason, actor=execution.detail.actor
            )
            drive(writer.save(owner=None, until=0, status=halt.status))
            raise Cancelled(
                f"the rollback of run {run.id!r} was stopped half-way (the run is {halt.status}): resume the run, "
                "which finishes the rollback and runs the workflow again from there, or roll it back again with "
                "resume=False, which only finishes the rollback",
                run=run.id,
            ) from None
        except (StoreBusy, StoreUnavailable, CommitUnknown):
            # Not a failure of the rollback: it continues when the store is available.
            raise
        except Exception as error:
            execution.detail.error = pack(error, engine.context.redact)
            writer.mark_changed()
            writer.add_event("run.failed", error=f"{type(error).__name__}: {error}"[:1000])
            drive(writer.save(owner=None, until=0, status="failed"))
            raise
        except BaseException:
            drive(writer.save(owner=None, until=0))
            raise


@contextmanager
def _compensating(engine: EngineContext, run: RunRecord, pending: PendingRollback) -> Iterator[Execution]:
    """Execute a run to compensate its steps. Its record holds the rollback."""
    line = Committer(engine.context, run.id)
    head = line.fresh_head()
    if head is None or head.run.revision != run.revision:
        raise StaleVersion(f"run {run.id!r} has changed meanwhile: look at it again")
    record = ReplayLog(engine.context.reader(run)).load(run.head)
    facts = detail_of(run)
    facts.rollback, facts.error, facts.failed_step, facts.stop_request = pending, b"", "", ""
    entry = build_event("run.rolling_back", engine.context.clock(), **msgspec.structs.asdict(pending))
    head = own(engine, line, head, facts, entry)
    execution = Execution(engine, Workflow(run.workflow or "", _undo, False), line, head, record)
    engine.executions[run.id] = execution
    execution.lease_handle = engine.keeper.hold(head.run, holder=current_holder())
    try:
        yield execution
    finally:
        engine.keeper.release(execution.lease_handle)
        if engine.executions.get(run.id) is execution:
            del engine.executions[run.id]


@contextmanager
def _compensating_child(
    engine: EngineContext, part: AffectedChild, pending: PendingRollback
) -> Iterator[Execution]:
    """Execute a child to compensate its steps. Its record holds the version to which it is rewound."""
    its = PendingRollback(to=part.target or FIRST, reason=pending.reason, actor=pending.actor)
    with _claimed(engine, part.run.id), _compensating(engine, part.run, its) as execution:
        try:
            yield execution
        finally:
            steps = ReplayLog(engine.context.reader(execution.head.run)).load(execution.head.run.head).steps
            done = {entry.number for entry in steps.values() if compensation_address(entry) in steps}
            execution.detail.compensated = sorted({*execution.detail.compensated, *done})
            execution.writer.mark_changed()
            execution.writer.add_event("run.compensated", steps=len(part.entries))
            drive(execution.writer.save(owner=None, until=0, status="paused"))


def _rewind(engine: EngineContext, part: AffectedChild, pending: PendingRollback) -> None:
    """Move the head of a child back to the version that it had, or, if its steps were compensated, to its first."""
    while True:
        run = engine.record(part.run.id)
        if detail_of(run).rollback is None and part.target in (0, run.head):
            return
        target = engine.context.reader(run).record(part.target or FIRST)
        its = PendingRollback(to=target.number, reason=pending.reason, actor=pending.actor)
        try:
            _move(engine, run, target, its)
        except StaleVersion:
            continue
        return


def _undo_one(execution: Execution, entry: RecordedStep, definition: Step) -> None:
    function = definition.compensate
    assert function is not None
    result, _ = execution.replay_log.result(entry)
    args, kwargs = execution.replay_log.input(entry.number)
    given, named = _fitting(definition, result, args, kwargs)
    undo = Step(
        f"undo {definition.name}"[:100], _blocking(function), False, definition.retry, definition.timeout
    )
    address = compensation_address(entry)
    try:
        call = Call(Frame.enter(execution), undo, address, given, named, execution.head)
        drive(call_step(call, execution.state.main))
    except (LeaseLost, StoreBusy, StoreUnavailable, CommitUnknown):
        raise
    except Exception as error:
        raise CompensationFailed(
            f"undoing step {entry.address!r} of run {execution.id!r} failed with {type(error).__name__}: {error}; the "
            "rollback waits: mend the cause, then resume the run, which finishes the rollback and runs the workflow "
            "again from there, or roll it back again with resume=False, which only finishes the rollback",
            run=execution.id,
            address=entry.address,
        ) from error


def _fitting(
    definition: Step, result: Any, args: list[Any], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the result, then the step's arguments with defaults, as far as the compensation takes them."""
    with suppress(TypeError, ValueError):
        bound = inspect.signature(definition.function).bind(*args, **kwargs)
        bound.apply_defaults()
        args, kwargs = list(bound.args), bound.kwargs
    try:
        parameters = list(inspect.signature(definition.compensate or (lambda: None)).parameters.values())
    except (TypeError, ValueError):
        return (result,), {}
    places = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    most = None if any(each.kind is each.VAR_POSITIONAL for each in parameters) else len(places)
    given = (result, *args)[:most]
    names = {each.name for each in parameters if each.kind is each.KEYWORD_ONLY}
    names |= {each.name for each in places[len(given) :] if each.kind is each.POSITIONAL_OR_KEYWORD}
    anything = any(each.kind is each.VAR_KEYWORD for each in parameters)
    return given, {name: value for name, value in kwargs.items() if anything or name in names}


def _blocking(function: Any) -> Any:
    function = getattr(getattr(function, "holdfast", None), "function", function)
    if not inspect.iscoroutinefunction(function):
        return function

    def call(*args: Any, **kwargs: Any) -> Any:
        if in_event_loop():
            raise InvalidCall(
                "this compensation is asynchronous: call rollback outside the event loop, in a thread"
            )
        import asyncio

        return asyncio.run(function(*args, **kwargs))

    return call
