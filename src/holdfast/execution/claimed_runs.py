"""Execution of runs that a worker claimed: read the heads of many runs at once, and wait until an earlier execution of
the same run in this process has ended.

Invariant: of two executions of a run in one engine, the second starts when the first has ended or was abandoned.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from holdfast.errors import AlreadyRunning, HoldfastError, LeaseLost
from holdfast.event_loop import running_loop
from holdfast.execution.effects import Flow, RunBlocking
from holdfast.execution.engine_context import EngineContext, Overrides
from holdfast.execution.execution import Execution
from holdfast.execution.lifecycle import execute, failed
from holdfast.execution.limits import updated_limits
from holdfast.execution.preflight import check_resume
from holdfast.execution.replay_log import ReplayLog
from holdfast.history.committer import Committer
from holdfast.model.records import RunRecord, VersionRecord
from holdfast.model.run_detail import RunDetail
from holdfast.model.watchdog import follow_workflow
from holdfast.store.interrupts import InterruptSafeEvent
from holdfast.tree.codec import decode
from holdfast.workflow.definition import Workflow

if TYPE_CHECKING:
    import asyncio


class Adopted(NamedTuple):
    """The execution of a run that was claimed from a queue."""

    execution: Execution
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: Why the workflow cannot be called.
    refused: HoldfastError | None


def heads_of(engine: EngineContext, runs: Sequence[RunRecord]) -> dict[int, VersionRecord]:
    """Return the heads of runs, by their keys, in one read. A missing head is read again, with its error, on use."""
    try:
        found = engine.store.packs_of([(run.key, run.head) for run in runs])
    except HoldfastError:
        return {}
    return {key: version for (key, _), version in found.items()}


def claimed(
    engine: EngineContext,
    run: RunRecord,
    is_newest: Callable[[], bool],
    ready: Adopted | Callable[[], Adopted],
) -> Flow[BaseException | None]:
    """Execute a run that this engine has claimed from a queue. An error that prevents the execution is recorded, too.

    `is_newest` returns whether this claim is the last one: if not, another process owned the run in between."""
    claim = yield from wait_for_execution(engine, run, is_newest)
    adopted: Adopted | None = None
    try:
        adopted = ready if isinstance(ready, Adopted) else (yield RunBlocking(ready))
        assert adopted is not None
        execution = adopted.execution
        engine.executions[execution.id] = execution
        if not is_newest():
            raise _too_late(run)
        if adopted.refused is not None:
            yield from failed(execution, adopted.refused)
            return adopted.refused
        return (yield from execute(execution, adopted.args, adopted.kwargs))
    finally:
        if adopted is not None and engine.executions.get(run.id) is adopted.execution:
            del engine.executions[run.id]
        engine.release(run.id, claim)


def wait_for_execution(engine: EngineContext, run: RunRecord, is_newest: Callable[[], bool]) -> Flow[object]:
    """Wait until no execution in this engine advances a run, then claim it; return the claim."""
    while True:
        if not is_newest():
            raise _too_late(run)
        try:
            return engine.claim(run.id)
        except AlreadyRunning:
            yield Freed(engine, run.id)


def adopt(
    engine: EngineContext, workflow: Workflow, run: RunRecord, version: VersionRecord | None = None
) -> Adopted:
    """Read everything that the execution of a run of ours needs, as of the record that was claimed.

    If the run was changed since, the next write is refused, and the execution reads it again. `version` is its head, if
    it was read already. Raises `HoldfastError` if it cannot be read at all.
    """
    line = Committer(engine.context, run.id, workflow.reducers)
    head = line.head_of(run, version)
    reader = engine.context.reader(run)
    record = ReplayLog(reader)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    refused: HoldfastError | None = None
    functions: Overrides = {}
    try:
        ready = check_resume(engine, run, workflow, head=head.version)
        ready.warn_if_changed()
        facts, functions = ready.detail, ready.overrides
        if head.version.kind == "initial" and run.origin is None:
            record.enter(head.version, decode(head.version.detail) if head.version.detail else {})
        else:
            record.load(run.head, facts.failed, facts.retried)
        args, kwargs = record.given()
    except HoldfastError as error:
        record, refused = ReplayLog(reader), error
    execution = Execution(engine, workflow, line, head, record, overrides=functions)
    execution.contained, execution.before = True, run
    facts = execution.detail
    before = _written(facts)
    if (head.version.kind, head.version.status) != ("initial", "queued"):
        # Otherwise it starts.
        facts.resumed_from = run.head
    facts.watchdog = follow_workflow(facts.watchdog, workflow.watchdog)
    facts.limits = updated_limits(facts.limits, workflow.limits)
    facts.error, facts.failed_step, facts.called = b"", "", False
    if facts.stop_request == "hand back":
        facts.stop_request = ""
    if facts.code or record.code != workflow.code:
        facts.code = workflow.code
    if _written(facts) != before:
        execution.writer.mark_changed()
    return Adopted(execution, tuple(args), kwargs, refused)


def _written(facts: RunDetail) -> tuple[Any, ...]:
    """Return what a claim may change in the detail of a run."""
    return (
        facts.error, facts.code, facts.called, facts.stop_request, facts.watchdog, facts.limits, facts.resumed_from,
    )  # fmt: skip


class Freed:
    """Waits until no execution in this engine advances a run; another waiter may be faster."""

    __slots__ = ("_engine", "_run")
    must_finish: ClassVar[bool] = False

    def __init__(self, engine: EngineContext, run_id: str) -> None:
        self._engine = engine
        self._run = run_id

    def block(self) -> None:
        free = InterruptSafeEvent()
        self._engine.when_free(self._run, free.set)
        free.wait()

    def wait(self) -> asyncio.Future[None]:
        loop = running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._engine.when_free(self._run, partial(_wake, loop, future))
        return future


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    # The loop may have been closed: no task waits any more.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(_answer, future)


def _answer(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _too_late(run: RunRecord) -> LeaseLost:
    return LeaseLost(f"run {run.id!r} was claimed by another process before it was started", run=run.id)
