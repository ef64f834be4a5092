"""From a call of `run` or `resume` to the end of an execution: begin or take over a run, run its workflow, write how it
ended.

Invariant: when an execution has ended in any way that this process lives to see, the run's status says how, and nobody
owns it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from inspect import iscoroutine
from typing import Any
from uuid import uuid4

import msgspec

from holdfast.errors import (
    AlreadyExists,
    AlreadyRunning,
    InvalidCall,
    LeaseLost,
    NotFound,
    ReplayDiverged,
    StaleVersion,
)
from holdfast.history.advance import Drawn, Line
from holdfast.history.commit import RESULT, event
from holdfast.history.commit import Facts as VersionFacts
from holdfast.history.reader import Head
from holdfast.model.records import ENDED, EventRecord, RunRecord
from holdfast.runtime import code
from holdfast.runtime.definition import Workflow, without_secrets
from holdfast.runtime.drive import Call, Do, Flow, Write
from holdfast.runtime.failure import pack
from holdfast.runtime.lease import is_alive
from holdfast.runtime.record import Record
from holdfast.runtime.scope import Frame
from holdfast.runtime.services import Services
from holdfast.runtime.session import Halt, Session
from holdfast.runtime.waits import Facts, encoded, facts_of
from holdfast.store.base import Append
from holdfast.tree.frozen import thaw

_NO_NAME = re.compile(r"[^A-Za-z0-9_]+")

Overrides = Mapping[str, Callable[..., Any]]


def new_id(workflow: Workflow) -> str:
    """An id for a run that was given none."""
    return f"{_NO_NAME.sub('-', workflow.name).strip('-')[:60] or 'run'}-{uuid4().hex[:10]}"


def start(
    services: Services,
    workflow: Workflow,
    run_id: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    state: Any = None,
    tags: Iterable[str] = (),
    note: str | None = None,
    actor: str | None = None,
    parent: int | None = None,
    overrides: Overrides | None = None,
) -> Flow[BaseException | None]:
    """Make a run and execute it."""
    services.claim(run_id)
    try:
        context = services.context
        line = Line(context, run_id)
        now = context.clock()
        record = RunRecord(id=run_id, workflow=workflow.name, created=now, updated=now, parent=parent)
        facts = VersionFacts(tags=tags, note=note, actor=actor, kind="initial", status="running")
        facts.more = {"code": workflow.code}
        facts.check()
        given = without_secrets(workflow.signature, args, kwargs, context.redact)
        drawn = line.draw(
            {} if state is None else state, None, None, facts, start=record, input=given, owner=services.owner,
            until=now + services.lease,
        )  # fmt: skip
        try:
            head = yield Write(services.committer, drawn.change, lambda run: _first_head(line, drawn, run))
        except StaleVersion:
            raise AlreadyExists(
                f"run {run_id!r} exists: resume it, or start another under another id", run=run_id
            ) from None
        services.publisher.wake()
        reader = context.reader(head.run)
        session = Session(services, workflow, line, head, Record(reader), overrides=overrides)
        return (yield from execute(session, args, kwargs))
    finally:
        services.release(run_id)


def _first_head(line: Line, drawn: Drawn, run: RunRecord | BaseException) -> Head | None:
    return None if isinstance(run, BaseException) else line.settle(drawn, run)


def resume(
    services: Services,
    workflow: Workflow,
    run_id: str,
    *,
    answers: Mapping[str, Any] | None = None,
    overrides: Overrides | None = None,
    republish: bool = False,
    changed: str | None = None,
) -> Flow[BaseException | None]:
    """Take a run over and go on from its head."""
    services.claim(run_id)
    try:
        session: Session | None = yield Do(lambda: _take_over(services, workflow, run_id, changed, overrides))
        if session is None:
            return None
        session.answers = answers or {}
        session.republish = republish
        args, kwargs = session.record.given()
        return (yield from execute(session, tuple(args), kwargs))
    finally:
        services.release(run_id)


def _take_over(
    services: Services, workflow: Workflow, run_id: str, changed: str | None, overrides: Overrides | None
) -> Session | None:
    """Become the owner of a run that nobody advances, once it is known that it can be replayed; None if another was
    quicker and it has ended."""
    clock = services.context.clock
    line = Line(services.context, run_id)
    while True:
        # All that may turn out to be damaged or gone is read first: who cannot go on does not take over.
        head = line.fresh_head()
        if head is None:
            raise NotFound(f"there is no run {run_id!r}", run=run_id)
        run = head.run
        refuse_if_elsewhere(services, run)
        if run.status in ENDED:
            return None
        facts = facts_of(run)
        reader = services.context.reader(run)
        code.compare(run, workflow, reader, facts, changed or workflow.changed)
        record = Record(reader).load(run.head, facts.failed)
        record.given()
        if facts.wish != "cancel":
            facts.wish = ""
        facts.error = b""
        facts.code = workflow.code
        entry = event("run.resumed", clock(), version=run.head, code=workflow.code)
        try:
            head = own(services, line, head, facts, entry)
        except StaleVersion:
            continue
        return Session(services, workflow, line, head, record, overrides=overrides)


def own(services: Services, line: Line, head: Head, facts: Facts, entry: EventRecord) -> Head:
    """Write that this engine advances a run; `StaleVersion` if it has changed since it was read."""
    now = services.context.clock()
    after = msgspec.structs.replace(
        head.run,
        status="running",
        owner=services.owner,
        until=now + services.lease,
        updated=now,
        due=None,
        revision=head.run.revision + 1,
        detail=encoded(facts),
    )
    return line.changed(head, services.store.append(Append(expect=head.run, run=after, events=[entry])))


def refuse_if_running(services: Services, run: RunRecord) -> None:
    """`AlreadyRunning` if somebody advances a run."""
    if services.claimed(run.id):
        raise _running(run, "by this process")
    refuse_if_elsewhere(services, run)


def refuse_if_elsewhere(services: Services, run: RunRecord) -> None:
    """`AlreadyRunning` if another engine advances a run."""
    if run.owner != services.owner and is_alive(run, services.context.clock()):
        raise _running(run, "elsewhere")


def _running(run: RunRecord, where: str) -> AlreadyRunning:
    return AlreadyRunning(
        f"run {run.id!r} is being advanced {where}: wait for it, or cancel it", run=run.id, owner=run.owner
    )


def execute(session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Flow[BaseException | None]:
    """Run the workflow's function and write how it ended; gives the error that it ended with, if any."""
    services, workflow = session.services, session.workflow
    services.sessions[session.id] = session
    services.keeper.hold(session.head.run)
    frame = Frame(session, asynchronous=workflow.asynchronous)
    try:
        value, error = None, None
        try:
            value = yield Call(workflow.function, args, kwargs, frame)
        except LeaseLost:
            raise
        except (Halt, Exception) as ending:
            error = ending
        # What ended it counts, even if user code has caught it.
        halted = session.halted
        session.close()
        yield Drain(session)
        if halted:
            yield from _halted(session, halted)
            return None
        if error is None:
            try:
                yield from _completed(session, value)
                return None
            except LeaseLost:
                raise
            except Exception as refused:
                error = refused
        yield from _failed(session, error)
        return error
    except LeaseLost:
        raise
    except BaseException:
        session.close()
        yield from session.save(owner=None, until=0)
        raise
    finally:
        session.end_rests()
        services.sessions.pop(session.id, None)
        services.keeper.let_go(session.head.run)


def rehearse(session: Session, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Flow[None]:
    """Run the workflow's function beside the record, up to where the record ends. Nothing is written."""
    assert session.rehearsal is not None
    frame = Frame(session, asynchronous=session.workflow.asynchronous)
    try:
        value = yield Call(session.workflow.function, args, kwargs, frame)
    except Halt:
        return
    except Exception as error:
        session.rehearsal.ended(session, None, error)
    else:
        session.rehearsal.ended(session, value, None)
    finally:
        session.close()


class Drain:
    """Waits until the steps that are under way have ended, as they do in what was left running beside."""

    __slots__ = ("session",)
    whole = False

    def __init__(self, session: Session) -> None:
        self.session = session

    def block(self) -> None:
        while self.session.active:
            time.sleep(0.002)

    async def wait(self) -> None:
        import asyncio

        while self.session.active:
            await asyncio.sleep(0.002)


def _completed(session: Session, value: Any) -> Flow[None]:
    yield from session.go_live("")
    if iscoroutine(value):
        value.close()
        raise InvalidCall(
            f"workflow {session.workflow.name!r} gave a coroutine: a step in it is async def, so the workflow must "
            "be, too, and await it"
        )
    facts = VersionFacts(result=value, kind="final", status="completed")
    session.facts.waits = []
    session.keep_if(bool(session.head.run.detail))
    yield from session.commit(facts, owner=None, until=0, due=None)


def _failed(session: Session, error: BaseException) -> Flow[None]:
    facts = session.facts
    facts.error = pack(error, session.services.context.redact)
    session.keep()
    failures = list(session.failures.pending)
    session.let_go(error)
    for failure in failures:
        session.note(
            "step.failed", step=failure.name, address=failure.address, attempt=failure.attempts,
            error=f"{type(failure.error).__name__}: {failure.error}"[:1000],
        )  # fmt: skip
    diverged = error.details.get("address") if isinstance(error, ReplayDiverged) else None
    session.note("run.failed", error=f"{type(error).__name__}: {error}"[:1000], address=diverged)
    yield from session.save(status="failed", owner=None, until=0, due=None)


def _halted(session: Session, status: str) -> Flow[None]:
    facts = session.facts
    if status == "cancelled":
        facts.wish, facts.waits = "", []
        session.keep()
        ending = VersionFacts(kind="final", status="cancelled", note=facts.reason, actor=facts.actor)
        yield from session.commit(ending, owner=None, until=0, due=None)
        return
    if status == "paused":
        facts.wish = ""
        session.keep()
        session.note("run.paused", reason=facts.reason, actor=facts.actor)
    else:
        session.note("run.suspended", waits=[wait.address for wait in facts.waits])
    yield from session.save(status=status, owner=None, until=0, due=facts.due())
    if status == "suspended" and session.head.run.parent is None:
        session.services.suspended.add(session.id)
    if status == "suspended" and facts.wish:
        # Word came in the moment of suspending; nobody else owns the run yet, or the next write is refused.
        session.over = False
        yield from _halted(session, "cancelled" if facts.wish == "cancel" else "paused")


def result_of(services: Services, run: RunRecord) -> Any:
    """What a completed run returned. Somebody may have changed its state by hand since."""
    final = services.store.versions(run.key, kind="final", before=run.head + 1, limit=1)
    number = final[0].number if final else run.head
    return thaw(services.context.reader(run).part(number, RESULT))
