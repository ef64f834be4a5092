"""Workflows within workflows: child runs, each linked to the run that called it.

The id of a child follows from its parent's id, its address and the timeline, so that a resumed parent finds the child
that it had started, and a rollback starts a new one. The journal of the store orders the versions of all runs, so the
moment of a version in a parent is a moment in each of its children: a rollback rewinds a child that was running then to
the version that it had; one that was called later belongs to the abandoned timeline.

Invariant: a child's result is recorded in its parent once, like that of a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, NamedTuple

from holdfast.errors import (
    AlreadyExists,
    AlreadyRunning,
    Cancelled,
    InvalidReference,
    LimitExceeded,
    ReplayDiverged,
)
from holdfast.execution import lifecycle, step_machine
from holdfast.execution.call_arguments import digest_and_size
from holdfast.execution.calls import Call, refuse_behind_wait
from holdfast.execution.effects import Flow, RunBlocking, is_cancellation, is_interrupt, wrap_error
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.exception_codec import revive, unpack
from holdfast.execution.execution import Execution
from holdfast.execution.limits import count_child, innermost_budget, is_run_limit, spent_by
from holdfast.execution.options import ResumeOptions, RunOptions, WorkflowCall
from holdfast.execution.replay_log import RecordedStep, ReplayLog, lineage
from holdfast.execution.run_endings import ready
from holdfast.history.builder import INPUT, VersionMetadata
from holdfast.history.compare import call_differences, describe_differences
from holdfast.model.names import MAX_ID, check_run_id
from holdfast.model.records import CLOSED, LIVE, RunRecord, VersionRecord
from holdfast.model.run_detail import Wait, detail_of
from holdfast.store.protocol import iter_runs
from holdfast.tree.codec import decode
from holdfast.workflow.definition import Workflow


class AffectedChild(NamedTuple):
    """A child, or a descendant, that did something after a moment."""

    run: RunRecord
    #: The child of the run that is rolled back that it is, or is a part of.
    top: str
    #: The version that it had at that moment; 0 if it had not started.
    target: int
    #: Its steps that are to be compensated.
    entries: Sequence[RecordedStep]


def compensation_address(entry: RecordedStep) -> str:
    """Return the address at which the compensation of a step is recorded. No step has such a name."""
    return f"[undo]/{entry.address}"


def affected_children(
    engine: EngineContext, run: RunRecord, moment: int, top: str = ""
) -> Iterator[AffectedChild]:
    """Yield the descendants on a run's timeline that did something after a moment: each before its children."""
    if run.workflow is None:
        # A manual run has no children, and may lack versions that a replay would need.
        return
    line = [version for _, version in lineage(engine.context.reader(run), run.head)]
    for child in iter_runs(engine.store, parent=run.key):
        newest = engine.store.versions(child.key, before=child.head + 1, limit=1)
        if child.status in CLOSED and newest and newest[0].seq <= moment:
            continue
        reader = engine.context.reader(child)
        its = [version for _, version in lineage(reader, child.head)]
        if not its or not is_on_line(run, line, child, its[0]):
            continue
        name = top or child.id
        if its[-1].seq > moment or detail_of(child).rollback is not None:
            record = ReplayLog(reader).load(child.head)
            entries = [
                entry
                for entry in record.steps.values()
                if "undo" in entry.detail
                and entry.version.seq > moment
                and compensation_address(entry) not in record.steps
            ]
            target = max((version.number for version in its if version.seq <= moment), default=0)
            yield AffectedChild(child, name, target, entries)
        yield from affected_children(engine, child, moment, name)


def carried_over(engine: EngineContext, run: RunRecord) -> dict[str, str]:
    """Return, by address, the children that a run called before it was rolled back, and that it continues with."""
    if run.timeline == 1 or run.workflow is None:
        return {}
    line = [version for _, version in lineage(engine.context.reader(run), run.head)]
    found: dict[str, str] = {}
    for child in iter_runs(engine.store, parent=run.key):
        first = engine.store.versions(child.key, after=0, before=2, limit=1)
        if child.status != "cancelled" and first and is_on_line(run, line, child, first[0]):
            address, _ = called_at(first[0])
            found.setdefault(address, child.id)
    return found


def is_on_line(run: RunRecord, line: Sequence[VersionRecord], child: RunRecord, first: VersionRecord) -> bool:
    """Return whether a child was called on the line of versions that its parent's head follows."""
    _, timeline = called_at(first)
    if not timeline:
        # Older versions of Holdfast did not record it; their live children are of the newest timeline.
        return child.status in LIVE or run.timeline == 1
    if timeline == run.timeline:
        return True
    return any(version.timeline <= timeline and version.seq > first.seq for version in line)


def called_at(first: VersionRecord) -> tuple[str, int]:
    """Return the address and the timeline at which the parent called the child whose first version this is."""
    address, timeline = (decode(first.detail) if first.detail else {}).get("part") or ("", 0)
    return address, timeline


def child(call: Call[Workflow]) -> Flow[Any]:
    """Call a workflow inside a run."""
    frame, workflow, address = call.frame, call.definition, call.address
    execution = frame.execution
    execution.stop.check(frame)
    redact = execution.engine.context.redact
    call.digest, size = digest_and_size(call.args, call.kwargs, redact)
    entry = execution.replay_log.steps.get(address)
    if entry is not None:
        return (yield from step_machine.replay(frame, entry, call))
    if execution.unawaited_waits:
        refuse_behind_wait(execution.unawaited_waits, frame, workflow.name)
    yield from step_machine.before_live(execution, frame, address)
    engine = execution.engine
    run_id, there = yield RunBlocking(partial(_run_at, execution, workflow, address))
    if there is not None:
        refused = yield RunBlocking(partial(_other_call, call, there))
        if refused is not None:
            execution.replay.refuse(refused, frame)
    budget = innermost_budget(execution)
    if budget is not None and execution.replay_check is None:
        step_machine.admit(call, budget)
    execution.start_step(address, frame)
    began = engine.context.clock()
    head = None
    try:
        execution.replay.refuse_beyond(frame, address)
        yield from step_machine.go_live(execution, address)
        given = execution.capture(call, redact, size)
        try:
            error = yield from _advance(call, run_id, there)
        except BaseException as raised:
            if is_cancellation(raised) and is_interrupt(raised):
                execution.cancelled_calls[address] = engine.context.clock() - began
            raise
        if isinstance(error, ReplayDiverged) and error.details.get("run") == run_id:
            execution.replay.refuse_child(error, frame)
        run = yield RunBlocking(lambda: engine.store.run(run_id))
        if run.status == "completed":
            value = yield RunBlocking(lambda: lifecycle.result_of(engine, run))
            facts = VersionMetadata(workflow.name, value, kind="step")
            facts.more = {"args": call.digest, "took": engine.context.clock() - began, "child": run_id}
            facts.more.update(execution.replay.described(address))
            facts.more |= yield RunBlocking(lambda: _spent(execution, run))
            ran = execution.implementation_of(workflow)
            if ran is not None:
                facts.more["ran"] = ran
            if address != workflow.name:
                facts.more["address"] = address
            execution.detail.drop(address)
            if execution.head.run.detail:
                execution.writer.mark_changed()
            view = frame.driver().view
            head, turn = yield from step_machine.commit(execution, facts, view=view, input=given)
            execution.note_recorded(frame, view, head, facts.more)
            yield from step_machine.in_order(turn)
            return value
        if run.status in ("failed", "cancelled"):
            # Perhaps both were stopped.
            yield RunBlocking(execution.writer.read_requests)
            execution.stop.check(frame)
            execution.detail.drop(address)
            if execution.head.run.detail:
                execution.writer.mark_changed()
            error = error or _why(run)
            if isinstance(error, LimitExceeded) and is_run_limit(execution, error):
                execution.exceed(error, address)
            else:
                spent = yield RunBlocking(lambda: _spent(execution, run))
                after = None
                if execution.order is not None:
                    after = yield from step_machine.in_order(execution.order.turn_of_failure())
                step_machine.add_failure(call, error, 1, given, spent.get("spent"), after)
            raise wrap_error(error)
        if run.status == "queued":
            # It was handed back, and so is this run: the worker that resumes this one resumes both.
            execution.stop.stop("queued", frame)
        # If it is being advanced by another, that one may die: look again when its lease has run out.
        due = run.until if run.status == "running" else detail_of(run).due()
        wait = Wait(address=address, kind="run", name=run_id, due=due, opened=began)
        execution.detail.put(execution.replay.placed(wait))
        execution.writer.mark_changed()
        execution.stop.stop("paused" if run.status == "paused" else "suspended", frame)
    finally:
        execution.end_step(address)
        if budget is not None and head is None:
            budget.give_back()


def _spent(execution: Execution, run: RunRecord) -> dict[str, Any]:
    """Return the spending of a child, as the version of its call stores it."""
    spent = spent_by(execution.engine.store, run)
    return step_machine.spent_in({"cost": spent.cost, "tokens": spent.tokens, "steps": spent.steps})


def _advance(call: Call[Workflow], run_id: str, there: RunRecord | None) -> Flow[BaseException | None]:
    """Start the child, or resume it if it can continue; return the error that it ended with, if any."""
    execution, workflow = call.frame.execution, call.definition
    engine, parent, budget = execution.engine, execution.head.run.key, innermost_budget(execution)
    if there is None:
        options = RunOptions(overrides=execution.overrides)
        return (
            yield from lifecycle.start(
                engine, WorkflowCall(workflow, run_id, call.args, call.kwargs, options),
                parent=parent, address=call.address, around=budget,
            )
        )  # fmt: skip
    if there.parent != parent:
        raise AlreadyExists(
            f"run {run_id!r} exists and is not a child of run {execution.id!r}, which needs this id for one: start "
            f"{execution.id!r} under another id",
            run=run_id,
        )
    yield RunBlocking(lambda: count_child(execution, there))
    if there.status in (*CLOSED, "stalled"):
        return None
    # By their addresses, answers are for questions of this run: a child may ask at the same one.
    answers = {
        name: value
        for name, value in execution.answers.items()
        if name.startswith((f"{run_id}#", f"{run_id}."))
    }
    if there.status == "suspended" and not answers:
        goes_on = yield RunBlocking(lambda: ready(engine.store, there, engine.context.clock()))
        if not goes_on:
            return None
    resuming = ResumeOptions(answers=answers, overrides=execution.overrides)
    try:
        return (
            yield from lifecycle.resume(
                engine, workflow, run_id, resuming, exact=True, around=budget, alone=False
            )
        )
    except AlreadyRunning:
        # Another caller has resumed it separately: this run waits for it.
        return None


def _run_at(execution: Execution, workflow: Workflow, address: str) -> tuple[str, RunRecord | None]:
    """Return the id of the child at an address, and the child if it exists. One that was started under an older name of
    its workflow is the same child."""
    parent, engine = execution.head.run, execution.engine
    run_id = child_id(parent, address)
    there = engine.store.run(run_id)
    if there is None and parent.timeline > 1:
        # A rollback went back to when the child was under way: it has been rewound, and continues.
        if execution.carried is None:
            execution.carried = carried_over(engine, parent)
        if address in execution.carried:
            run_id = execution.carried[address]
            return run_id, engine.store.run(run_id)
    if there is None and workflow.aliases:
        frame, _, local = address.rpartition("/")
        for alias in workflow.aliases:
            old = f"{frame}/" if frame else ""
            old = child_id(parent, f"{old}{alias}{local[len(workflow.name) :]}")
            found = engine.store.run(old)
            if found is not None:
                return old, found
    return run_id, there


def _other_call(call: Call[Workflow], child: RunRecord) -> ReplayDiverged | None:
    """Return the refusal of a call whose child was started with other arguments; None if they are the same."""
    execution = call.frame.execution
    context = execution.engine.context
    started_with = context.reader(child).root(1, INPUT)
    if child.parent != execution.head.run.key or started_with is None:
        return None
    found = call_differences(started_with, execution.capture(call, context.redact).call)
    if not found or any(
        not call_differences(started_with, execution.capture(call, redact).call)
        for redact in context.redaction.earlier
    ):
        return None
    return ReplayDiverged(
        f"child run {child.id!r} was started with other arguments ({describe_differences(found)}): the code of the "
        f"workflow that calls it, or what that depends on, has changed. Bring the old code back, or resume with "
        "changed='accept', which cancels that child and starts another",
        address=call.address,
        child=child.id,
        recorded={where: was for where, was, _ in found},
        now={where: now for where, _, now in found},
    )


def child_id(parent: RunRecord, address: str) -> str:
    """Return the id of the child run for a workflow that is called at an address."""
    line = "" if parent.timeline == 1 else f".{parent.timeline}"
    run_id = f"{parent.id}.{address}{line}"
    try:
        return check_run_id(run_id)
    except InvalidReference:
        plain = "".join(sign if sign.isalnum() or sign in "-_.[]/#:" else "-" for sign in run_id)
        short = plain[: MAX_ID - 20].rstrip("./")
        return f"{short}.{sha256(run_id.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def _why(run: RunRecord) -> BaseException:
    if run.status == "cancelled":
        return Cancelled(f"run {run.id!r}, which is part of this one, was cancelled", run=run.id)
    return revive(unpack(detail_of(run).error))
