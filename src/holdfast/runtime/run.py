"""A run as a caller holds it."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.errors import AlreadyRunning, Cancelled, NotFinished, NotFound, StepTimeout, Suspended
from holdfast.history.history import History
from holdfast.history.version import Version
from holdfast.model.public import Event, Prompt, when
from holdfast.model.records import RunRecord
from holdfast.runtime import mail
from holdfast.runtime.definition import workflows
from holdfast.runtime.ending import result_of
from holdfast.runtime.failure import revive, unpack
from holdfast.runtime.lease import is_alive
from holdfast.runtime.rehearsal import Difference
from holdfast.runtime.waiting import check_seconds
from holdfast.runtime.waits import facts_of, ready
from holdfast.tree.frozen import thaw

if TYPE_CHECKING:
    from holdfast.runtime.outside import Outside

#: Statuses that a run does not leave by itself.
ENDED = ("completed", "failed", "cancelled")
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
        raise NotFinished(f"run {self.id!r} is {run.status}: it has no result yet", run=self.id)

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
        """Tokens and costs that its steps noted, added up."""
        return dict(facts_of(self._record()).totals)

    @property
    def parent(self) -> str | None:
        """The run that it is a part of."""
        key = self._record().parent
        found = None if key is None else self._runner._store.run_by_key(key)
        return None if found is None else found.id

    @property
    def children(self) -> list[str]:
        """The runs that are parts of it, oldest first."""
        found = self._runner._store.runs(parent=self._record().key, limit=1_000_000)
        return [run.id for run in reversed(found)]

    def prompts(self) -> list[Prompt]:
        """The questions that it waits to be answered."""
        return mail.prompts(self._runner._context, self._record())

    def history(self) -> History:
        """Its versions."""
        return self._runner.history(self.id)

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """What happened to it after a cursor, oldest first."""
        return self.history().events(after=after, limit=limit)

    def wait(self, timeout: float | None = None) -> Run:
        """Wait until it has ended; resumes it when a time that it waits for has come. `StepTimeout` if that takes
        longer than `timeout` seconds."""
        until = None if timeout is None else time.monotonic() + check_seconds("timeout", timeout)
        while True:
            run = self._record()
            now = self._runner._context.clock()
            if run.status in ENDED:
                return self
            # Perhaps only workers know its code.
            waits = run.status == "suspended" and run.workflow in workflows() and not is_alive(run, now)
            if waits and ready(self._runner._store, run, now):
                # Another thread, or process, may be quicker.
                with suppress(AlreadyRunning):
                    self._runner.resume(self.id)
                    continue
            if until is not None and time.monotonic() >= until:
                raise StepTimeout(f"run {self.id!r} is still {run.status} after {timeout:g} s", run=self.id)
            time.sleep(_POLL if run.due is None else min(_POLL, max(0.001, (run.due - now) / 1e6)))

    def _record(self) -> RunRecord:
        run = self._runner._store.run(self.id)
        if run is None:
            raise NotFound(f"run {self.id!r} was deleted", run=self.id)
        return run

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.status}>"
