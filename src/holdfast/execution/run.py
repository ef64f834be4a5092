"""A run as a caller holds it, its summary, and lists of runs.

Invariant: every attribute of a `Run` is read from the store when it is asked for. A page of a list reads no more runs
than it needs, unless a filter can only be decided by looking at each run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.errors import (
    AlreadyRunning,
    Cancelled,
    CorruptStore,
    InvalidCall,
    InvalidReference,
    NotFinished,
    NotFound,
    StepTimeout,
    Suspended,
)
from holdfast.event_loop import in_event_loop
from holdfast.execution import inbox
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.exception_codec import revive, unpack
from holdfast.execution.failures import add_run_note, without_engine_frames
from holdfast.execution.lease import is_alive
from holdfast.execution.lifecycle import result_of
from holdfast.execution.limits import Limits, Spent, limits_of, spent_by, totals_of
from holdfast.execution.loops import PREFIX, is_bookkeeping
from holdfast.execution.options import DEFAULTS
from holdfast.execution.replay_validation import Difference
from holdfast.execution.run_endings import can_go_on
from holdfast.execution.run_meta import change_meta
from holdfast.execution.stopping import check_reason
from holdfast.history.context import StoreContext
from holdfast.history.history import History
from holdfast.history.redaction import redact_meta
from holdfast.history.version import Version
from holdfast.model.checks import check_seconds, check_text
from holdfast.model.meta import MetaValue, check_meta, check_meta_name, meta_rows
from holdfast.model.names import MAX_ID, MAX_STEP, check_run_id, check_tags, printable, short
from holdfast.model.public import Event, Question, RunSummary, when
from holdfast.model.records import ENDED, PIN, STATUS_FILTERS, STATUSES, RunRecord, display_status
from holdfast.model.run_detail import detail_of, indexed_meta
from holdfast.store.process_fork import ProcessBound
from holdfast.store.protocol import RunFilters, iter_runs
from holdfast.tree.frozen import thaw

if TYPE_CHECKING:
    import asyncio

    from holdfast.execution.runner import Runner


#: Seconds between reads of a run in a thread that waits for it.
_POLL = 0.05
#: Tags by which runs are listed, at most.
_TAGS = 50
#: Runs that are read at once.
_RUNS_PER_PAGE = 500


class Run:
    """A run of a workflow, or a manual run. Its attributes are read from the store each time."""

    def __init__(
        self,
        runner: Runner,
        run_id: str,
        error: BaseException | None = None,
        differences: tuple[Difference, ...] = (),
    ) -> None:
        self.id = run_id
        #: The differences that `resume(mode="validate")` found.
        self.differences = differences
        self._runner = runner
        self._engine = runner.engine
        #: The error with which the execution behind this object ended, and the run's detail at that time.
        self._error = error
        self._error_detail = None if error is None else self._record().detail

    def __reduce__(self) -> NoReturn:
        raise InvalidCall(
            f"run {self.id!r} cannot be pickled or copied, because it belongs to an open store: pass its id, and call "
            "hf.get(id) in the other process"
        )

    @property
    def summary(self) -> RunSummary:
        """Its entry in `hf.runs()`."""
        return summary_of(self._engine.context, self._record())

    @property
    def status(self) -> str:
        """queued, running, suspended, paused, completed, failed, cancelled or stalled."""
        return self._record().status

    @property
    def workflow(self) -> str | None:
        """The name of its workflow."""
        return self._record().workflow

    @property
    def alive(self) -> bool:
        """Whether a process advances it now. A run that is running and not alive was interrupted."""
        return is_alive(self._record(), self._clock())

    @property
    def result(self) -> Any:
        """The value that the workflow returned. Raises the error it failed with, or why there is no result (yet)."""
        run = self._record()
        if run.status == "completed":
            return result_of(self._engine, run)
        if run.status == "failed":
            error = self.error
            assert error is not None
            add_run_note(error, self.id, detail_of(run).failed_step)
            raise error
        if run.status == "cancelled":
            raise Cancelled(f"run {self.id!r} was cancelled", run=self.id)
        if run.status == "suspended":
            waits = [wait.name or wait.address for wait in detail_of(run).waits]
            raise Suspended(
                f"run {self.id!r} waits for {', '.join(waits)}",
                run=self.id,
                waits=waits,
                until=None if run.due is None else when(run.due),
            )
        if run.status == "running" and not is_alive(run, self._clock()):
            raise NotFinished(
                f"run {self.id!r} was interrupted and has no result yet: resume it", run=self.id
            )
        how = f"; hf.resume({self.id!r}) resumes it" if run.status == "paused" else ""
        raise NotFinished(f"run {self.id!r} is {run.status}: it has no result yet{how}", run=self.id)

    @property
    def error(self) -> BaseException | None:
        """The error it failed with, also in a process that lacks the exception's class; None if it did not fail."""
        run = self._record()
        if run.status != "failed":
            return None
        if self._error is None or self._error_detail != run.detail:
            self._error, self._error_detail = revive(unpack(detail_of(run).error)), run.detail
        return self._error

    @property
    def failure(self) -> dict[str, Any] | None:
        """The error as data: type, message, traceback, …"""
        packed = detail_of(self._record()).error
        return thaw(unpack(packed)) if packed else None

    @property
    def state(self) -> Any:
        """The state at its head, frozen."""
        return self.head.state

    @property
    def head(self) -> Version:
        """The newest version of its current timeline."""
        return self.history().head

    @property
    def totals(self) -> dict[str, Any]:
        """The sums of tokens and costs that its steps and its children's steps annotated, failed steps included."""
        return totals_of(self._engine.store, self._record())

    @property
    def limits(self) -> Limits | None:
        """Its limits; None if nothing is limited."""
        return limits_of(detail_of(self._record()).limits)

    @property
    def spent(self) -> Spent:
        """Cost, tokens and steps, its children included, and the seconds of its own executions that have ended, without
        those of less than 10 ms."""
        return spent_by(self._engine.store, self._record())

    @property
    def meta(self) -> dict[str, MetaValue]:
        """Its metadata: the names and values of the application by which it is found."""
        return detail_of(self._record()).meta

    def set_meta(
        self, changes: Mapping[str, MetaValue] | None = None, *, remove: Iterable[str] = (), actor: str | None = None,
    ) -> dict[str, MetaValue]:  # fmt: skip
        """Change its metadata: add or replace the names of `changes`, and remove those of `remove`; return all. The
        journal gets an event, unless nothing changes. It makes no version, and a rollback does not undo it."""
        if isinstance(remove, str) or not isinstance(remove, Iterable):
            raise InvalidCall(f"remove is a list of names, such as ['customer'], not {short(remove)}")
        gone = [check_meta_name(name, "remove") for name in remove]
        if changes is None and not gone:
            raise InvalidCall(
                "set_meta takes what to change: a dict such as {'customer': 7}, or remove=['customer']"
            )
        checked = check_meta({} if changes is None else changes, "changes")
        given = redact_meta(checked, self._engine.context.redact)
        if both := sorted(given.keys() & set(gone)):
            raise InvalidCall(f"{both[0]!r} is both in changes and in remove: name it in one of them")
        check_reason(None, actor)
        return change_meta(self._engine.context, self.id, given, gone, actor)

    @property
    def resumed_from(self) -> int | None:
        """The version from which it was last resumed, also by a worker: its head then. None if it never was."""
        return detail_of(self._record()).resumed_from or None

    @property
    def rolled_back_from(self) -> int | None:
        """The version from which it was last rolled back: its head then. None if it never was. The version that it was
        rolled back to is the parent of its newest timeline."""
        return detail_of(self._record()).rolled_back_from or None

    @property
    def parent(self) -> str | None:
        """The id of the run whose child it is."""
        key = self._record().parent
        found = None if key is None else self._engine.store.run_by_key(key)
        return None if found is None else found.id

    @property
    def children(self) -> list[str]:
        """The ids of its child runs, oldest first."""
        found = [run.id for run in iter_runs(self._engine.store, parent=self._record().key)]
        return found[::-1]

    def questions(self) -> list[Question]:
        """Its open questions."""
        return inbox.open_questions(self._engine.context, self._record())

    def history(self) -> History:
        """Its versions."""
        return self._engine.history(self.id)

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Its events after a cursor, oldest first."""
        return self.history().events(after=after, limit=limit)

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until it has ended, and return it; resume it when a time that it waits for has come. Raise `StepTimeout`
        after `timeout` seconds. In an event loop, await it: `await run.wait()`.

        `await run` waits, too, and returns the result, or raises the error that the run failed with."""
        if timeout is not None:
            check_seconds("timeout", timeout)
        if in_event_loop():
            return self._await_end(timeout)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            run = self._record()
            now = self._clock()
            if run.status in ENDED:
                return self
            if can_go_on(self._engine.store, run, now):
                # Another thread or process may resume it first.
                with suppress(AlreadyRunning):
                    self._runner.resume(self.id, DEFAULTS)
                    continue
            if until is not None and time.monotonic() >= until:
                raise self._late(run, timeout)
            time.sleep(_POLL if run.due is None else min(_POLL, max(0.001, (run.due - now) / 1e6)))

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._await_result().__await__()

    async def _await_result(self) -> Any:
        import asyncio

        while True:
            await self._await_end(None)
            value, error = await asyncio.to_thread(self._outcome)
            if error is None:
                return value
            if not isinstance(error, NotFinished):
                raise error
            # It was resumed or rolled back in the same moment.

    async def _await_end(self, timeout: float | None) -> Run:
        import asyncio

        loop = asyncio.get_running_loop()
        until = None if timeout is None else loop.time() + timeout
        runner, woken = self._runner, asyncio.Event()
        wake = partial(_call_in_loop, loop, woken.set)
        self._engine.endings.add(self.id, wake)
        try:
            while True:
                woken.clear()
                run, goes_on, rest = await asyncio.to_thread(self._look)
                if run.status in ENDED:
                    return self
                if goes_on:
                    try:
                        await runner.aresume(self.id, DEFAULTS)
                        continue
                    except AlreadyRunning:
                        # Another thread or process has resumed it.
                        rest = _POLL
                left = None if until is None else until - loop.time()
                if left is not None and left <= 0:
                    raise self._late(run, timeout)
                with suppress(TimeoutError):
                    await asyncio.wait_for(
                        woken.wait(), min((each for each in (left, rest) if each is not None), default=None)
                    )
        finally:
            self._engine.endings.remove(self.id, wake)

    def _look(self) -> tuple[RunRecord, bool, float | None]:
        """Return the record, whether it can be resumed here, and the seconds until a time that it waits for."""
        run = self._record()
        now = self._clock()
        due = None if run.due is None else max(0.001, (run.due - now) / 1e6)
        return run, can_go_on(self._engine.store, run, now), due

    def _outcome(self) -> tuple[Any, BaseException | None]:
        """Return the result, and the error that reading it raises. A future cannot carry every exception."""
        try:
            return self.result, None
        except BaseException as error:
            return None, error

    def _late(self, run: RunRecord, timeout: float | None) -> StepTimeout:
        return StepTimeout(f"run {self.id!r} is still {run.status} after {timeout:g} s", run=self.id)

    def _clock(self) -> int:
        return self._engine.context.clock()

    def _record(self) -> RunRecord:
        run = self._engine.store.run(self.id)
        if run is None:
            raise NotFound(f"run {self.id!r} was deleted", run=self.id)
        return run

    def raise_failure(self) -> Run:
        """Raise the error with which the execution that made this object failed, if it did; else return the run."""
        error = self._error
        if error is None:
            return self
        add_run_note(error, self.id, detail_of(self._record()).failed_step)
        raise error.with_traceback(without_engine_frames(error.__traceback__))

    def __repr__(self) -> str:
        return printable(f"<Run {self.id} {self.status}>")


def summary_of(context: StoreContext, record: RunRecord) -> RunSummary:
    """Return the summary of a run."""
    tags = sorted({mark.name for mark in context.store.marks(record.key) if mark.name != PIN})
    origin = None
    if record.origin is not None:
        source = context.store.run_by_key(record.origin[0])
        origin = None if source is None else f"{source.id}@{record.origin[1]}"
    return RunSummary.of(record, tuple(tags), origin, is_alive(record, context.clock()))


#: Runs that are read to find the one that a prefix names.
_NEAR = 6


def find_run(engine: EngineContext, text: str) -> str | None:
    """Return the id of the run that an id, or a unique prefix of one, names; None if there is none."""
    if not text:
        return None
    if engine.store.run(text) is not None:
        return text
    found = engine.store.run_ids(text, _NEAR)
    if len(found) < _NEAR:
        # The prefix of a loop's run is also that of the runs with its control record and heartbeats.
        found = [each for each in found if not is_bookkeeping(each)] or found
    if len(found) > 1:
        raise InvalidReference(
            f"{text!r} could be any of {', '.join(found[:5])}: write more of it", runs=found
        )
    return found[0] if found else None


def get_run(engine: EngineContext, text: str) -> str:
    """Return the id of the run that an id, or a unique prefix of one, names; raise `NotFound`."""
    found = find_run(engine, text) if isinstance(text, str) else check_run_id(text)
    if found is None:
        raise engine.no_run(text)
    return found


class RunQuery:
    """Checked filters for a list of runs."""

    def __init__(
        self,
        status: str | Sequence[str] | None,
        tags: Sequence[str],
        workflow: str | None,
        since: datetime | None,
        prefix: str,
        meta: Mapping[str, MetaValue] | None = None,
    ) -> None:
        wanted = [status] if isinstance(status, str) else status
        if not isinstance(wanted, Sequence | None) or not all(
            name in STATUS_FILTERS for name in wanted or ()
        ):
            raise InvalidCall(f"status is one of {', '.join(STATUS_FILTERS)}, not {short(status)}")
        names = list(dict.fromkeys(check_tags(tags)))
        if len(names) > _TAGS:
            raise InvalidCall(f"runs are listed by at most {_TAGS} tags, not {len(names)}: name fewer")
        #: The statuses that the store cannot filter by; None if it can filter by all.
        self._wanted = None if wanted is None or set(wanted) <= set(STATUSES) else set(wanted)
        statuses = None if wanted is None else [each if each in STATUSES else "running" for each in wanted]
        self._filters = RunFilters(
            statuses=None if statuses is None else list(dict.fromkeys(statuses)),
            workflow=check_text("workflow", workflow, MAX_STEP),
            tags=names,
            since=None if since is None else _microseconds("since", since),
            prefix=check_text("prefix", prefix, MAX_ID) or "",
            meta=() if meta is None else meta_rows(check_meta(meta)),
        )
        #: Runs with the control records and heartbeats of loops are listed if their prefix is asked for.
        self._lists_loops = self._filters["prefix"].startswith(PREFIX)
        #: A run that the index lists has these metadata, unless the index is damaged.
        self._meta = self._filters["meta"]

    def page(self, engine: EngineContext, before: int | None, limit: int) -> list[RunSummary]:
        """Return at most `limit` runs, newest first, with keys below `before`."""
        page = limit if self._wanted is None else max(limit, _RUNS_PER_PAGE)
        return list(islice(self.iterate(engine, before, page), limit))

    def iterate(
        self, engine: EngineContext, before: int | None = None, page: int = _RUNS_PER_PAGE
    ) -> Iterator[RunSummary]:
        """Return an iterator over all runs, newest first."""
        return _RunIterator(self._read(engine, before, page))

    def _read(self, engine: EngineContext, before: int | None, page: int) -> Iterator[RunSummary]:
        while found := engine.store.runs(before=before, limit=page, **self._filters):
            for run in found:
                if self._meta and not set(self._meta).issubset(indexed_meta(run)):
                    raise CorruptStore(
                        f"the index of metadata lists run {run.id!r}, which has others: verify the store"
                    )
                if is_bookkeeping(run.id) and not self._lists_loops:
                    continue
                if self._wanted is None or self._matches(run, engine.context.clock()):
                    yield summary_of(engine.context, run)
            if len(found) < page:
                return
            before = found[-1].key

    def _matches(self, run: RunRecord, now: int) -> bool:
        assert self._wanted is not None
        return (
            run.status in self._wanted
            or display_status(run.status, run.workflow, is_alive(run, now)) in self._wanted
        )


class _RunIterator(ProcessBound):
    """An iterator over runs that says why it cannot be pickled."""

    def __init__(self, runs: Iterator[RunSummary]) -> None:
        self._runs = runs

    def __iter__(self) -> Iterator[RunSummary]:
        return self

    def __next__(self) -> RunSummary:
        return next(self._runs)


def _microseconds(name: str, at: Any) -> int:
    """Return a datetime in the unit of the stores; raise `InvalidCall`."""
    if not isinstance(at, datetime):
        raise InvalidCall(f"{name} is a datetime, not {short(at)}")
    try:
        return int(at.timestamp() * 1_000_000)
    except (ValueError, OverflowError, OSError):
        raise InvalidCall(f"{name} is a time that no clock can show: {short(at)}") from None


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    # Nothing waits in a loop that was closed.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
