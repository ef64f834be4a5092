"""Workflows within workflows: a run of its own, linked to the run that called it.

The id of the child follows from its parent's, its address and the timeline, so that a parent that is resumed finds the
child that it had started, and a rollback begins a new one.

Invariant: a child's result is recorded in its parent once, like that of a step.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from typing import Any

from holdfast.errors import (
    AlreadyExists,
    AlreadyRunning,
    Cancelled,
    InvalidReference,
    LimitExceeded,
    ReplayDiverged,
)
from holdfast.history.arguments import described, differences
from holdfast.history.commit import INPUT
from holdfast.history.commit import Facts as VersionFacts
from holdfast.model.names import MAX_ID, check_run_id
from holdfast.model.records import RunRecord
from holdfast.runtime import ending, execute, machine
from holdfast.runtime.awaitable import refuse_behind_wait
from holdfast.runtime.definition import Workflow
from holdfast.runtime.drive import Do, Flow, carry, is_cancellation, is_interrupt
from holdfast.runtime.failure import revive, unpack
from holdfast.runtime.failures import Failure
from holdfast.runtime.limits import binds, count_child, innermost, spent_by
from holdfast.runtime.rewinding import carried_over
from holdfast.runtime.scope import Frame
from holdfast.runtime.session import Session
from holdfast.runtime.waits import Wait, facts_of, ready


def child(
    session: Session,
    frame: Frame,
    workflow: Workflow,
    address: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Flow[Any]:
    """A call of a workflow inside a run."""
    session.check(frame)
    digest, size = machine.measure(args, kwargs, session.services.context.redact)
    entry = session.record.steps.get(address)
    if entry is not None:
        return (yield from machine.replay(session, frame, entry, workflow, digest, args, kwargs))
    if session.unawaited_waits:
        refuse_behind_wait(session.unawaited_waits, frame, workflow.name)
    yield from machine.before_live(session, frame, address)
    services = session.services
    run_id, there = yield Do(partial(_run_at, session, workflow, address))
    if there is not None:
        refused = yield Do(partial(_other_call, session, workflow, there, address, args, kwargs))
        if refused is not None:
            session.replay.refuse(refused, frame)
    ledger = innermost(session)
    if ledger is not None and session.rehearsal is None:
        machine.admit(session, ledger, workflow.name, address, digest)
    session.begin(address, frame)
    began = services.context.clock()
    head = None
    try:
        yield from session.go_live(address)
        given = session.capture(workflow, args, kwargs, size)
        try:
            error = yield from _advance(session, workflow, run_id, there, address, args, kwargs)
        except BaseException as raised:
            if is_cancellation(raised) and is_interrupt(raised):
                session.cancelled[address] = services.context.clock() - began
            raise
        if isinstance(error, ReplayDiverged) and error.details.get("run") == run_id:
            session.replay.refuse_child(error, frame)
        run = yield Do(lambda: services.store.run(run_id))
        if run.status == "completed":
            value = yield Do(lambda: ending.result_of(services, run))
            facts = VersionFacts(workflow.name, value, kind="step")
            facts.more = {"args": digest, "took": services.context.clock() - began, "child": run_id}
            facts.more.update(session.replay.described(address))
            facts.more |= yield Do(lambda: _spent(session, run))
            ran = session.unnamed(workflow)
            if ran is not None:
                facts.more["ran"] = ran
            if address != workflow.name:
                facts.more["address"] = address
            session.facts.drop(address)
            session.keep_if(bool(session.head.run.detail))
            view = frame.driver().view
            head, turn = yield from machine.commit(session, facts, view=view, input=given)
            session.recorded(frame, view, head, facts)
            yield from machine.in_order(turn)
            return value
        if run.status in ("failed", "cancelled"):
            # Perhaps both were stopped.
            yield Do(session.look)
            session.check(frame)
            session.facts.drop(address)
            session.keep_if(bool(session.head.run.detail))
            error = error or _why(run)
            if isinstance(error, LimitExceeded) and binds(session, error):
                session.exceed(error, address)
            else:
                spent = yield Do(lambda: _spent(session, run))
                after = None
                if session.order is not None:
                    after = yield from machine.in_order(session.order.turn_of_failure())
                failure = Failure(
                    workflow.name,
                    address,
                    digest,
                    error,
                    1,
                    given=given,
                    spent=spent.get("spent"),
                    after=after,
                )
                session.failures.add(failure._replace(ran=session.unnamed(workflow)))
            raise carry(error)
        if run.status == "queued":
            # It was handed back, and so is this run: whoever goes on with this one goes on with both.
            session.halt("queued", frame)
        # If it is being advanced by another, that one may die: look again when its lease has run out.
        due = run.until if run.status == "running" else facts_of(run).due()
        wait = Wait(address=address, kind="run", name=run_id, due=due, opened=began)
        session.facts.put(session.replay.placed(wait))
        session.keep()
        session.halt("paused" if run.status == "paused" else "suspended", frame)
    finally:
        session.end(address)
        if ledger is not None and head is None:
            ledger.give_back()


def _spent(session: Session, run: RunRecord) -> dict[str, Any]:
    """What a child has spent, as the version of its call tells it."""
    spent = spent_by(session.services.store, run)
    return machine.spent_in({"cost": spent.cost, "tokens": spent.tokens, "steps": spent.steps})


def _advance(
    session: Session,
    workflow: Workflow,
    run_id: str,
    there: RunRecord | None,
    address: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Flow[BaseException | None]:
    """Start the child, or resume it if it can continue; gives the error that it ended with, if any."""
    services, parent = session.services, session.head.run.key
    if there is None:
        return (
            yield from execute.start(
                services,
                workflow,
                run_id,
                args,
                kwargs,
                parent=parent,
                address=address,
                overrides=session.overrides,
                around=innermost(session),
            )
        )
    if there.parent != parent:
        raise AlreadyExists(
            f"run {run_id!r}, which is to be a part of {session.id!r}, exists and is none: start this run under "
            "another id",
            run=run_id,
        )
    yield Do(lambda: count_child(session, there))
    if there.status in ("completed", "cancelled", "frozen"):
        return None
    # By their addresses, answers are for questions of this run: a child may ask at the same one.
    answers = {
        name: value
        for name, value in session.answers.items()
        if name.startswith((f"{run_id}#", f"{run_id}."))
    }
    if there.status == "suspended" and not answers:
        goes_on = yield Do(lambda: ready(services.store, there, services.context.clock()))
        if not goes_on:
            return None
    try:
        return (
            yield from execute.resume(
                services,
                workflow,
                run_id,
                answers=answers,
                overrides=session.overrides,
                exact=True,
                around=innermost(session),
                alone=False,
            )
        )
    except AlreadyRunning:
        # Somebody has resumed it by itself: this run waits for it.
        return None


def _run_at(session: Session, workflow: Workflow, address: str) -> tuple[str, RunRecord | None]:
    """Return the id of the child at an address, and the child if it exists. One that was started under an older name of
    its workflow is the same child."""
    parent, services = session.head.run, session.services
    run_id = child_id(parent, address)
    there = services.store.run(run_id)
    if there is None and parent.timeline > 1:
        # A rollback went back to when the child was under way: it has been rewound, and continues.
        if session.carried is None:
            session.carried = carried_over(services, parent)
        if address in session.carried:
            run_id = session.carried[address]
            return run_id, services.store.run(run_id)
    if there is None and workflow.aliases:
        frame, _, local = address.rpartition("/")
        for alias in workflow.aliases:
            old = f"{frame}/" if frame else ""
            old = child_id(parent, f"{old}{alias}{local[len(workflow.name) :]}")
            found = services.store.run(old)
            if found is not None:
                return old, found
    return run_id, there


def _other_call(
    session: Session,
    workflow: Workflow,
    child: RunRecord,
    address: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> ReplayDiverged | None:
    """Return the refusal of a call whose child was started with other arguments; None if they are the same."""
    started_with = session.services.context.reader(child).part(1, INPUT)
    if child.parent != session.head.run.key or started_with is None:
        return None
    found = differences(started_with, session.capture(workflow, args, kwargs).call)
    if not found:
        return None
    return ReplayDiverged(
        f"child run {child.id!r} was started with other arguments ({described(found)}): the code of the workflow that "
        f"calls it, or what that depends on, has changed. Bring the old code back, or resume with changed='accept', "
        "which cancels that child and starts another",
        address=address,
        child=child.id,
        recorded={where: was for where, was, _ in found},
        now={where: now for where, _, now in found},
    )


def child_id(parent: RunRecord, address: str) -> str:
    """The id of the run that a workflow called at an address is."""
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
    return revive(unpack(facts_of(run).error))
