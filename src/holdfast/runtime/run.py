"""A run as a caller holds it."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.errors import (
    AlreadyRunning,
    Cancelled,
    InvalidCall,
    NotFinished,
    NotFound,
    StepTimeout,
    Suspended,
)
from holdfast.event_loop import in_event_loop
from holdfast.history.history import History
from holdfast.history.version import Version
from holdfast.model.names import printable
from holdfast.model.public import Event, Prompt, when
from holdfast.model.records import RunRecord
from holdfast.runtime import mail
from holdfast.runtime.ending import result_of
from holdfast.runtime.endings import ENDED, can_go_on
from holdfast.runtime.failure import revive, unpack
from holdfast.runtime.lease import is_alive
from holdfast.runtime.limits import Limits, Spent, limits_of, spent_by, totals_of
from holdfast.runtime.raising import add_run_note, without_engine_frames
from holdfast.runtime.rehearsal import Difference
from holdfast.runtime.waiting import check_seconds
from holdfast.runtime.waits import facts_of
from holdfast.store.base import every_run
from holdfast.tree.frozen import thaw

if TYPE_CHECKING:
    import asyncio

    from holdfast.runtime.outside import Outside

#: Seconds between looks at a run in a thread that waits for it.
_POLL = 0.05


class Run:
    """One execution of a workflow. What it tells is read from the store when asked for."""

    def __init__(
        self,
        runner: Outside,
        run_id: str,
        error: BaseException | None = None,
        differences: tuple[Difference, ...] = (),
    ) -> None:
        self.id = run_id
        #: What `resume(mode="validate")` found.
        self.differences = differences
        self._runner = runner
        #: What the execution that this came from ended with, and the record that says so.
        self._error = error
        self._told = None if error is None else self._record().detail

    def __reduce__(self) -> NoReturn:
        raise InvalidCall(
            f"run {self.id!r} cannot be pickled or copied, because it belongs to an open store: pass its id, and call "
            "hf.get(id) in the other process"
        )

    @property
    def status(self) -> str:
        """queued, running, suspended, paused, completed, failed, cancelled or frozen."""
        return self._record().status

    @property
    def workflow(self) -> str | None:
        """The name of its workflow."""
        return self._record().workflow

    @property
    def alive(self) -> bool:
        """Is a process advancing it now? A run that is running and not alive was interrupted."""
        return is_alive(self._record(), self._runner._context.clock())

    @property
    def result(self) -> Any:
        """What the workflow returned. Raises what it failed with, or says why there is no result (yet)."""
        run = self._record()
        if run.status == "completed":
            return result_of(self._runner._services, run)
        if run.status == "failed":
            error = self.error
            assert error is not None
            add_run_note(error, self.id, facts_of(run).failed_step)
            raise error
        if run.status == "cancelled":
            raise Cancelled(f"run {self.id!r} was cancelled", run=self.id)
        if run.status == "suspended":
            waits = [wait.name or wait.address for wait in facts_of(run).waits]
            raise Suspended(
                f"run {self.id!r} waits for {', '.join(waits)}",
                run=self.id,
                waits=waits,
                until=None if run.due is None else when(run.due),
            )
        if run.status == "running" and not is_alive(run, self._runner._context.clock()):
            raise NotFinished(
                f"run {self.id!r} was interrupted and has no result yet: resume it", run=self.id
            )
        how = f"; hf.resume({self.id!r}) resumes it" if run.status == "paused" else ""
        raise NotFinished(f"run {self.id!r} is {run.status}: it has no result yet{how}", run=self.id)

    @property
    def error(self) -> BaseException | None:
        """What it failed with, also in a process that lacks the exception's class; None if it did not."""
        run = self._record()
        if run.status != "failed":
            return None
        if self._error is None or self._told != run.detail:
            self._error, self._told = revive(unpack(facts_of(run).error)), run.detail
        return self._error

    @property
    def failure(self) -> dict[str, Any] | None:
        """The same as facts: type, message, traceback, …"""
        packed = facts_of(self._record()).error
        return thaw(unpack(packed)) if packed else None

    @property
    def state(self) -> Any:
        """The state at its head, frozen."""
        return self.head.state

    @property
    def head(self) -> Version:
        """The version at which it stands."""
        return self.history().head

    @property
    def totals(self) -> dict[str, Any]:
        """Tokens and costs that its steps and those of its children noted, added up: whatever became of the steps."""
        return totals_of(self._runner._store, self._record())

    @property
    def limits(self) -> Limits | None:
        """What it may spend; None if nothing is limited."""
        return limits_of(facts_of(self._record()).limits)

    @property
    def spent(self) -> Spent:
        """What it has spent, its children included: cost, tokens, steps, and the seconds of its own executions that
        have ended, without those of less than 10 ms."""
        return spent_by(self._runner._store, self._record())

    @property
    def parent(self) -> str | None:
        """The run that it is a part of."""
        key = self._record().parent
        found = None if key is None else self._runner._store.run_by_key(key)
        return None if found is None else found.id

    @property
    def children(self) -> list[str]:
        """The runs that are parts of it, oldest first."""
        found = [run.id for run in every_run(self._runner._store, parent=self._record().key)]
        return found[::-1]

    def prompts(self) -> list[Prompt]:
        """The questions that it waits to be answered."""
        return mail.prompts(self._runner._context, self._record())

    def history(self) -> History:
        """Its versions."""
        return self._runner.history(self.id)

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """What happened to it after a cursor, oldest first."""
        return self.history().events(after=after, limit=limit)

    def wait(self, timeout: float | None = None) -> Any:
        """Wait until it has ended, and return it; resumes it when a time that it waits for has come. `StepTimeout` if
        that takes longer than `timeout` seconds. In an event loop to be awaited: `await run.wait()`.

        `await run` waits, too, and gives the result, or raises what the run failed with."""
        if timeout is not None:
            check_seconds("timeout", timeout)
        if in_event_loop():
            return self._await_end(timeout)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            run = self._record()
            now = self._runner._context.clock()
            if run.status in ENDED:
                return self
            if can_go_on(self._runner._store, run, now):
                # Another thread, or process, may be quicker.
                with suppress(AlreadyRunning):
                    self._runner.resume(self.id, raises=False)
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
        runner._services.endings.add(self.id, wake)
        try:
            while True:
                woken.clear()
                run, goes_on, rest = await asyncio.to_thread(self._look)
                if run.status in ENDED:
                    return self
                if goes_on:
                    try:
                        await runner.aresume(self.id, raises=False)
                        continue
                    except AlreadyRunning:
                        # Another thread, or process, was quicker.
                        rest = _POLL
                left = None if until is None else until - loop.time()
                if left is not None and left <= 0:
                    raise self._late(run, timeout)
                with suppress(TimeoutError):
                    await asyncio.wait_for(
                        woken.wait(), min((each for each in (left, rest) if each is not None), default=None)
                    )
        finally:
            runner._services.endings.remove(self.id, wake)

    def _look(self) -> tuple[RunRecord, bool, float | None]:
        """Return the record, whether it can be resumed here, and the seconds until a time that it waits for."""
        run = self._record()
        now = self._runner._context.clock()
        due = None if run.due is None else max(0.001, (run.due - now) / 1e6)
        return run, can_go_on(self._runner._store, run, now), due

    def _outcome(self) -> tuple[Any, BaseException | None]:
        """Return the result, and the error that reading it raises. A future cannot carry every exception."""
        try:
            return self.result, None
        except BaseException as error:
            return None, error

    def _late(self, run: RunRecord, timeout: float | None) -> StepTimeout:
        return StepTimeout(f"run {self.id!r} is still {run.status} after {timeout:g} s", run=self.id)

    def _record(self) -> RunRecord:
        run = self._runner._store.run(self.id)
        if run is None:
            raise NotFound(f"run {self.id!r} was deleted", run=self.id)
        return run

    def raise_failure(self) -> Run:
        """Raise the error with which the execution that made this object failed, if it did; else return the run."""
        error = self._error
        if error is None:
            return self
        add_run_note(error, self.id, facts_of(self._record()).failed_step)
        raise error.with_traceback(without_engine_frames(error.__traceback__))

    def __repr__(self) -> str:
        return printable(f"<Run {self.id} {self.status}>")


def _call_in_loop(loop: asyncio.AbstractEventLoop, call: Callable[[], object]) -> None:
    # A loop that was closed has nothing that waits.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call)
