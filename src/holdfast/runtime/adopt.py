"""Going on with runs that were claimed from a queue: what is needed is read, the heads of many at once; an execution
waits until the one before it, in this process, is over.

Invariant: of two executions of a run in one engine, the second begins when the first has ended or was given up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import AlreadyRunning, HoldfastError, LeaseLost
from holdfast.event_loop import running_loop
from holdfast.history.advance import Line
from holdfast.model.records import RunRecord, VersionRecord
from holdfast.runtime import code
from holdfast.runtime.definition import Workflow
from holdfast.runtime.drive import Do, Flow
from holdfast.runtime.ending import failed
from holdfast.runtime.execute import execute
from holdfast.runtime.limits import follow_limits
from holdfast.runtime.overrides import Overrides, settled
from holdfast.runtime.record import Record
from holdfast.runtime.services import Services
from holdfast.runtime.session import Session
from holdfast.runtime.waits import facts_of
from holdfast.runtime.watch import follow_workflow
from holdfast.store.interrupts import Flag
from holdfast.tree.codec import decode

if TYPE_CHECKING:
    import asyncio


class Adopted(NamedTuple):
    """The execution of a run that was claimed from a queue."""

    session: Session
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: Why the workflow cannot be called.
    refused: HoldfastError | None


def heads_of(services: Services, runs: Sequence[RunRecord]) -> dict[int, VersionRecord]:
    """The heads of runs, by their keys, in one read. What is missing is read by whoever needs it, who learns why."""
    try:
        found = services.store.packs_of([(run.key, run.head) for run in runs])
    except HoldfastError:
        return {}
    return {key: version for (key, _), version in found.items()}


def claimed(
    services: Services,
    run: RunRecord,
    is_newest: Callable[[], bool],
    ready: Adopted | Callable[[], Adopted],
) -> Flow[BaseException | None]:
    """Go on with a run that this engine has claimed from a queue, and that is ready for it or is made so. What keeps it
    from being executed is written, too.

    `is_newest` tells whether this is how the run was claimed last: if it is not, it was another's between."""
    claim = yield from turn(services, run, is_newest)
    adopted: Adopted | None = None
    try:
        adopted = ready if isinstance(ready, Adopted) else (yield Do(ready))
        assert adopted is not None
        session = adopted.session
        services.sessions[session.id] = session
        if not is_newest():
            raise _too_late(run)
        if adopted.refused is not None:
            yield from failed(session, adopted.refused)
            return adopted.refused
        return (yield from execute(session, adopted.args, adopted.kwargs))
    finally:
        if adopted is not None and services.sessions.get(run.id) is adopted.session:
            del services.sessions[run.id]
        services.release(run.id, claim)


def turn(services: Services, run: RunRecord, is_newest: Callable[[], bool]) -> Flow[object]:
    """Wait until nobody in this engine advances a run, then do so; gives what releases it."""
    while True:
        if not is_newest():
            raise _too_late(run)
        try:
            return services.claim(run.id)
        except AlreadyRunning:
            yield Freed(services, run.id)


def adopt(
    services: Services, workflow: Workflow, run: RunRecord, version: VersionRecord | None = None
) -> Adopted:
    """What is needed to execute a run that is ours, as its record was when it was claimed: if it was changed since, the
    next write is refused, and the session looks again. `version` is its head, if it was read already. `HoldfastError`
    if it cannot be read at all."""
    line = Line(services.context, run.id)
    head = line.head_of(run, version)
    facts = facts_of(run)
    reader = services.context.reader(run)
    record = Record(reader)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    refused: HoldfastError | None = None
    functions: Overrides = {}
    try:
        code.compare(run, workflow, reader, facts, workflow.changed, head=head.version)
        functions = settled(run.id, facts.overrides, None, services.overrides.get(run.id, {}))
        if head.version.kind == "initial" and run.origin is None:
            record.enter(head.version, decode(head.version.detail) if head.version.detail else {})
        else:
            record.load(run.head, facts.failed, facts.retried)
        args, kwargs = record.given()
    except HoldfastError as error:
        record, refused = Record(reader), error
    session = Session(services, workflow, line, head, record, overrides=functions)
    session.contained, session.before = True, run
    facts = session.facts
    before = (facts.error, facts.code, facts.called, facts.wish, facts.watch, facts.limits)
    facts.watch = follow_workflow(facts.watch, workflow.watch)
    facts.limits = follow_limits(facts.limits, workflow.limits)
    facts.error, facts.failed_step, facts.called = b"", "", False
    if facts.wish == "hand back":
        facts.wish = ""
    if facts.code or record.code != workflow.code:
        facts.code = workflow.code
    session.keep_if((facts.error, facts.code, facts.called, facts.wish, facts.watch, facts.limits) != before)
    return Adopted(session, tuple(args), kwargs, refused)


class Freed:
    """Waits until nobody in this engine advances a run; somebody else may be quicker."""

    __slots__ = ("_run", "_services")
    whole = False

    def __init__(self, services: Services, run_id: str) -> None:
        self._services = services
        self._run = run_id

    def block(self) -> None:
        free = Flag()
        self._services.when_free(self._run, free.set)
        free.wait()

    def wait(self) -> asyncio.Future[None]:
        loop = running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._services.when_free(self._run, partial(_tell, loop, future))
        return future


def _tell(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    # The loop may have been closed: nobody waits any more.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_answer, future)


def _answer(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _too_late(run: RunRecord) -> LeaseLost:
    return LeaseLost(f"run {run.id!r} was taken over by another before it was begun", run=run.id)
