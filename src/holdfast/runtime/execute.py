"""From a call of `run` or `resume` to the end of an execution: begin or take over a run, run its workflow, write how it
ended.

Invariant: when an execution has ended in any way that this process lives to see, the run's status says how, and nobody
owns it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any
from uuid import uuid4

import msgspec

from holdfast.errors import (
    AlreadyExists,
    AlreadyRunning,
    CommitUnknown,
    HoldfastError,
    LeaseLost,
    NotAwaited,
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
from holdfast.runtime.drive import Call, Do, Flow, Write, error_of, is_interrupt
from holdfast.runtime.ending import completed, diverged, failed, halted, handed_back
from holdfast.runtime.lease import is_alive
from holdfast.runtime.limits import Ledger, Limits, follow_limits, kept_limits, open_ledger
from holdfast.runtime.overrides import Given, Overrides, described
from holdfast.runtime.overrides import settled as settled_overrides
from holdfast.runtime.record import Record
from holdfast.runtime.restoring import settled
from holdfast.runtime.scope import Frame, executing
from holdfast.runtime.services import Services
from holdfast.runtime.session import Session
from holdfast.runtime.turn import current_holder
from holdfast.runtime.waits import Facts, encoded, facts_of
from holdfast.runtime.watch import Watch, follow_workflow, kept_watch
from holdfast.store.base import Append

_NO_NAME = re.compile(r"[^A-Za-z0-9_]+")
#: Errors that say nothing about a run, and after which it is tried again.
AWAY = (StoreBusy, StoreUnavailable, CommitUnknown)


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
    limits: Limits | None = None,
    address: str = "",
    around: Ledger | None = None,
) -> Flow[BaseException | None]:
    """Make a run and execute it. `around` is the ledger of the run that it is a child of, and
    `address` is where that run calls it."""
    claim = services.claim(run_id)
    try:
        line = Line(services.context, run_id, workflow.reducers)
        facts = VersionFacts(tags=tags, note=note, actor=actor, kind="initial", status="running")
        facts.more = {"code": workflow.code}
        if parent is not None:
            above = yield Do(partial(services.store.run_by_key, parent))
            facts.more["part"] = [address, 1 if above is None else above.timeline]
        facts.check()
        given = without_secrets(workflow, args, kwargs, services.context.redact)
        kept = Facts(
            watch=kept_watch(watch, workflow.watch),
            limits=kept_limits(limits, workflow.limits),
            overrides=described(overrides or {}),
        )
        head = yield from _make(
            services, workflow, line, facts, {} if state is None else state, given, parent, kept
        )
        remember(services, run_id, overrides or {})
        services.publisher.wake()
        reader = services.context.reader(head.run)
        session = Session(services, workflow, line, head, Record(reader), overrides=overrides)
        session.around, session.alone = around, False
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
    kept: Facts,
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
        until=services.store.now() + services.lease,
        detail=encoded(kept),
    )
    drawn = line.draw(state, None, None, facts, run=run, input=given)
    try:
        head: Head = yield Write(services.committer, drawn.change, partial(_first_head, line, drawn))
    except StaleVersion:
        raise AlreadyExists(
            f"run {line.id!r} exists: say if_exists='resume' to resume it, if_exists='return' to get it as it is, or "
            "start another run under another run_id",
            run=line.id,
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
    overrides: Given | None = None,
    exact: bool = False,
    changed: str | None = None,
    around: Ledger | None = None,
    alone: bool = True,
) -> Flow[BaseException | None]:
    """Take a run over and go on from its head, with the recorded overrides and those given, or `exact`ly those.
    `around` is the ledger of the run that it is a child of, unless it is executed without that run, `alone`."""
    claim = services.claim(run_id)
    try:
        session: Session | None = yield Do(
            lambda: _take_over(services, workflow, run_id, changed, overrides, exact)
        )
        if session is None:
            return None
        session.around, session.alone = around, alone
        session.answers = answers or {}
        args, kwargs = session.record.given()
        return (yield from execute(session, tuple(args), kwargs))
    finally:
        services.release(run_id, claim)


def _take_over(
    services: Services,
    workflow: Workflow,
    run_id: str,
    changed: str | None,
    overrides: Given | None,
    exact: bool,
) -> Session | None:
    """Become the owner of a run that nobody advances, once it is known that it can be replayed; None if another was
    quicker and it has ended."""
    clock = services.context.clock
    line = Line(services.context, run_id, workflow.reducers)
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
        functions = settled_overrides(
            run_id, {} if exact else facts.overrides, overrides, services.overrides.get(run_id, {})
        )
        record = Record(reader).load(run.head, facts.failed, facts.retried)
        record.given()
        if facts.wish != "cancel":
            facts.wish = ""
        facts.error, facts.failed_step, facts.called = b"", "", False
        facts.code = workflow.code
        facts.overrides = described(functions)
        facts.watch = follow_workflow(facts.watch, workflow.watch)
        facts.limits = follow_limits(facts.limits, workflow.limits)
        entries = [
            *settled(services.store, run, facts, clock()),
            event("run.resumed", clock(), version=run.head, code=workflow.code),
        ]
        try:
            head = own(services, line, head, facts, *entries)
        except StaleVersion:
            continue
        remember(services, run_id, functions)
        session = Session(services, workflow, line, head, record, overrides=functions)
        session.before = run
        return session


def remember(services: Services, run_id: str, functions: Overrides) -> None:
    """Keep the functions of a run's overrides: it has them when it is resumed in this process."""
    services.overrides.pop(run_id, None)
    if functions:
        services.overrides[run_id] = functions


def own(services: Services, line: Line, head: Head, facts: Facts, *entries: EventRecord) -> Head:
    """Write that this engine advances a run; `StaleVersion` if it has changed since it was read."""
    now = services.context.clock()
    after = msgspec.structs.replace(
        head.run,
        status="running",
        owner=services.owner,
        until=services.store.now() + services.lease,
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
    session.hold = services.keeper.hold(
        session.head.run, hurry=bool(session.facts.watch), holder=current_holder()
    )
    session.root = frame = Frame(session, asynchronous=workflow.asynchronous)
    try:
        executing.add(session)
        if session.facts.limits or session.around is not None or (session.alone and session.head.run.parent):
            session.ledger = yield Do(partial(open_ledger, session, session.around, session.alone))
        value: Any = None
        error: BaseException | None = None
        try:
            value = yield Call(workflow.function, args, kwargs, frame)
            if session.unawaited and not session.halted:
                session.refuse_unawaited(None)
            frame.finish()
        except LeaseLost:
            raise
        except GeneratorExit:
            # This flow is closed: a GeneratorExit of user code is carried.
            raise
        except BaseException as ending:
            error = error_of(ending)
            if not isinstance(error, Halt) and is_interrupt(error) and not session.contained:
                raise
        if isinstance(error, CommitUnknown):
            raise error
        # What ended it counts, even if user code has caught it.
        status = session.halted
        session.close()
        yield Drain(session)
        if session.cut_off is not None and error is None and not status:
            error = _cut_off(session.cut_off)
        session.count_time(at_end=True)
        if session.replay.diverged is not None and session.before is not None:
            yield from diverged(session, session.before, session.replay.diverged)
            return session.replay.diverged
        if status:
            yield from halted(session, status)
            return None
        if error is None:
            # Code that has caught it cannot complete the run all the same: a higher limit is to be decided on.
            error = session.exceeded
        if error is None:
            try:
                yield from completed(session, value)
                return None
            except LeaseLost:
                raise
            except Exception as refused:
                if session.over:
                    # Interrupted after it was written.
                    raise
                if not isinstance(refused, HoldfastError):
                    # Interrupted, perhaps after it was written, but before that was known.
                    session.interrupted = refused
                error = refused
        if session.contained and isinstance(error, AWAY):
            yield from handed_back(session, error)
        else:
            yield from failed(session, error)
        return error
    except LeaseLost:
        if session.interrupted is not None:
            # The write that was interrupted has ended the execution: that is why the run is not ours any more.
            raise session.interrupted from None
        raise
    except CommitUnknown:
        raise
    except GeneratorExit:
        # Nothing can be awaited any more: as if the process had died, the lease runs out, and this engine may resume.
        session.close()
        raise
    except BaseException:
        session.close()
        try:
            yield from session.save(owner=None, until=0)
        except HoldfastError as refused:
            # If it cannot be written, the lease runs out.
            if session.lost and isinstance(refused, LeaseLost):
                raise
        raise
    finally:
        executing.discard(session)
        session.end_rests()
        session.close_unawaited()
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
        session.rehearsal.ended(session, None, error_of(error))
    else:
        session.rehearsal.ended(session, value, None)
    finally:
        session.close()
        session.close_unawaited()


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

    __slots__ = ("session",)
    whole = False

    def __init__(self, session: Session) -> None:
        self.session = session

    def block(self) -> None:
        while self.session.has_steps_elsewhere():
            time.sleep(0.002)

    async def wait(self) -> None:
        import asyncio

        if self.session.root is not None and self.session.root.has_tasks():
            await asyncio.sleep(0)
        while self.session.has_steps_elsewhere():
            await asyncio.sleep(0.002)
