"""Workflows within workflows: a run of its own, linked to the run that called it.

The id of the child follows from its parent's, its address and the timeline, so that a parent that is resumed finds the
child that it had started, and a rollback begins a new one.

Invariant: a child's result is recorded in its parent once, like that of a step.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from holdfast.errors import AlreadyExists, AlreadyRunning, Cancelled, InvalidReference
from holdfast.history.commit import Facts as VersionFacts
from holdfast.model.names import MAX_ID, check_run_id
from holdfast.model.records import RunRecord
from holdfast.runtime import ending, execute, machine
from holdfast.runtime.definition import Workflow
from holdfast.runtime.drive import Do, Flow
from holdfast.runtime.failure import revive, unpack
from holdfast.runtime.failures import Failure
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
    digest = machine.digest_of(args, kwargs, session.services.context.redact)
    entry = session.record.steps.get(address)
    if entry is not None:
        return (yield from machine.replay(session, frame, entry, None, digest, args, kwargs))
    services = session.services
    session.begin(address, frame)
    began = services.context.clock()
    try:
        yield from session.go_live(address)
        run_id = child_id(session.head.run, address)
        error = yield from _advance(session, workflow, run_id, args, kwargs)
        run = yield Do(lambda: services.store.run(run_id))
        if run.status == "completed":
            value = yield Do(lambda: ending.result_of(services, run))
            facts = VersionFacts(workflow.name, value, kind="step")
            facts.more = {"args": digest, "took": services.context.clock() - began, "child": run_id}
            if address != workflow.name:
                facts.more["address"] = address
            session.facts.drop(address)
            session.keep_if(bool(session.head.run.detail))
            head = yield from session.commit(facts)
            session.recorded(frame, head, facts)
            return value
        if run.status in ("failed", "cancelled"):
            # Perhaps both were stopped.
            yield Do(session.look)
            session.check(frame)
            session.facts.drop(address)
            session.keep_if(bool(session.head.run.detail))
            error = error or _why(run)
            session.failures.add(Failure(workflow.name, address, digest, error, 1))
            raise error
        if run.status == "queued":
            # It was handed back, and so is this run: whoever goes on with this one goes on with both.
            session.halt("queued", frame)
        # If it is being advanced by another, that one may die: look again when its lease has run out.
        due = run.until if run.status == "running" else facts_of(run).due()
        session.facts.put(Wait(address=address, kind="run", name=run_id, due=due, opened=began))
        session.keep()
        session.halt("paused" if run.status == "paused" else "suspended", frame)
    finally:
        session.end(address)


def _advance(
    session: Session, workflow: Workflow, run_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Flow[BaseException | None]:
    """Start the child, or let it go on if it can; gives the error that it ended with, if any."""
    services, parent = session.services, session.head.run.key
    there = yield Do(lambda: services.store.run(run_id))
    if there is None:
        return (
            yield from execute.start(
                services, workflow, run_id, args, kwargs, parent=parent, overrides=session.overrides
            )
        )
    if there.parent != parent:
        raise AlreadyExists(
            f"run {run_id!r}, which is to be a part of {session.id!r}, exists and is none: start this run under "
            "another id",
            run=run_id,
        )
    if there.status in ("completed", "cancelled", "frozen"):
        return None
    if there.status == "suspended" and not session.answers:
        goes_on = yield Do(lambda: ready(services.store, there, services.context.clock()))
        if not goes_on:
            return None
    try:
        return (
            yield from execute.resume(
                services, workflow, run_id, answers=session.answers, overrides=session.overrides
            )
        )
    except AlreadyRunning:
        # Somebody has resumed it by itself: this run waits for it.
        return None


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
