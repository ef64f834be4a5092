"""From a call of `run` or `resume` to the end of an execution: begin or take over a run, run its workflow, write how it
ended.

Invariant: when an execution has ended in any way that this process lives to see, the run's status says how, and nobody
owns it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec

from holdfast.errors import (
    AlreadyExists,
    AlreadyRunning,
    CommitUnknown,
    LeaseLost,
    NotFound,
    StaleVersion,
    StoreBusy,
    StoreUnavailable,
)
from holdfast.history.advance import Drawn, Line
from holdfast.history.commit import Facts as VersionFacts
from holdfast.history.commit import event
from holdfast.history.reader import Head
from holdfast.model.records import ENDED, EventRecord, RunRecord
from holdfast.runtime import code
from holdfast.runtime.boundary import Halt
from holdfast.runtime.definition import Workflow, without_secrets
from holdfast.runtime.drive import Call, Do, Flow, Write
from holdfast.runtime.ending import completed, failed, halted, handed_back
from holdfast.runtime.lease import is_alive
from holdfast.runtime.record import Record
from holdfast.runtime.restoring import settled
from holdfast.runtime.scope import Frame
from holdfast.runtime.services import Services
from holdfast.runtime.session import Session
from holdfast.runtime.waits import Facts, encoded, facts_of
from holdfast.runtime.watch import Watch, follow_workflow, kept_watch
from holdfast.store.base import Append

_NO_NAME = re.compile(r"[^A-Za-z0-9_]+")
#: Errors that say nothing about a run, and after which it is tried again.
AWAY = (StoreBusy, StoreUnavailable, CommitUnknown)

Overrides = Mapping[str, Callable[..., Any]]


def new_id(workflow: Workflow) -> str:
    """An id for a run that was given none."""
    return f"{plain_name(workflow.name)}-{uuid4().hex[:10]}"


def plain_name(name: str) -> str:
    """The name of a workflow as the beginning of an id."""
    return _NO_NAME.sub("-", name).strip("-")[:60] or "run"


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
    watch: Watch | None = None,
) -> Flow[BaseException | None]:
    """Make a run and execute it."""
    claim = services.claim(run_id)
    try:
        line = Line(services.context, run_id)
        facts = VersionFacts(tags=tags, note=note, actor=actor, kind="initial", status="running")
        facts.more = {"code": workflow.code}
        facts.check()
        given = without_secrets(workflow.signature, args, kwargs, services.context.redact)
        head = yield from _make(
            services, workflow, line, facts, {} if state is None else state, given, parent, watch
        )
        services.publisher.wake()
        reader = services.context.reader(head.run)
        session = Session(services, workflow, line, head, Record(reader), overrides=overrides)
        return (yield from execute(session, args, kwargs))
    finally:
        services.release(run_id, claim)


def _make(
    services: Services,
    workflow: Workflow,
    line: Line,
    facts: VersionFacts,
    state: Any,
    given: list[Any],
    parent: int | None,
    watch: Watch | None,
) -> Flow[Head]:
    """Write a run's first version."""
    now = services.context.clock()
    run = RunRecord(
        id=line.id,
        workflow=workflow.name,
        created=now,
        updated=now,
        parent=parent,
        owner=services.owner,
        until=now + services.lease,
        detail=encoded(Facts(watch=kept_watch(watch, workflow.watch))),
    )
    drawn = line.draw(state, None, None, facts, run=run, input=given)
    try:
        head: Head = yield Write(services.committer, drawn.change, partial(_first_head, line, drawn))
    except StaleVersion:
        raise AlreadyExists(
            f"run {line.id!r} exists: resume it, or start another under another id", run=line.id
        ) from None
    return head


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
    claim = services.claim(run_id)
    try:
        session: Session | None = yield Do(lambda: _take_over(services, workflow, run_id, changed, overrides))
        if session is None:
            return None
        session.answers = answers or {}
        session.republish = republish
        args, kwargs = session.record.given()
        return (yield from execute(session, tuple(args), kwargs))
    finally:
        services.release(run_id, claim)


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
        facts.error, facts.called = b"", False
        facts.code = workflow.code
        facts.watch = follow_workflow(facts.watch, workflow.watch)
        entries = [
            *settled(run, facts, clock(), steps=head.version.steps),
            event("run.resumed", clock(), version=run.head, code=workflow.code),
        ]
        try:
            head = own(services, line, head, facts, *entries)
        except StaleVersion:
            continue
        return Session(services, workflow, line, head, record, overrides=overrides)


def own(services: Services, line: Line, head: Head, facts: Facts, *entries: EventRecord) -> Head:
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
    return line.changed(head, services.store.append(Append(expect=head.run, run=after, events=entries)))


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
    session.hold = services.keeper.hold(session.head.run, hurry=bool(session.facts.watch))
    session.root = frame = Frame(session, asynchronous=workflow.asynchronous)
    try:
        value: Any = None
        error: BaseException | None = None
        try:
            value = yield Call(workflow.function, args, kwargs, frame)
        except LeaseLost:
            raise
        except (Halt, Exception) as ending:
            error = ending
        except GeneratorExit:
            raise
        except BaseException as ending:
            if not session.contained:
                raise
            error = ending
        if isinstance(error, CommitUnknown):
            raise error
        # What ended it counts, even if user code has caught it.
        status = session.halted
        session.close()
        yield Drain(session)
        session.count_time()
        if status:
            yield from halted(session, status)
            return None
        if error is None:
            try:
                yield from completed(session, value)
                return None
            except LeaseLost:
                raise
            except Exception as refused:
                error = refused
        if session.contained and isinstance(error, AWAY):
            yield from handed_back(session, error)
        else:
            yield from failed(session, error)
        return error
    except (LeaseLost, CommitUnknown):
        raise
    except BaseException:
        session.close()
        yield from session.save(owner=None, until=0)
        raise
    finally:
        session.end_rests()
        session.root = None
        services.keeper.let_go(session.hold)
        if services.sessions.get(session.id) is session:
            del services.sessions[session.id]


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
