"""Commits from asyncio: tasks hand in their changes, one thread writes those of all of them together.

However many tasks wait, the event loop is never blocked by a disk, and one fsync serves them all: while one batch is
being written, the next one gathers.

Invariant: every change that was handed in is answered once, with the run's record or an error; a change whose task
was cancelled meanwhile has been written or refused like any other.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from holdfast.errors import StoreBusy, StoreUnavailable
from holdfast.model.records import RunRecord
from holdfast.store.base import Append, Store

if TYPE_CHECKING:
    import asyncio

#: Changes written in one transaction at most.
_BATCH = 512


class _Pending(NamedTuple):
    change: Append
    future: asyncio.Future[RunRecord]


class Committer:
    """Writes for all asyncio tasks of an engine."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        #: By event loop, those that wait to be written.
        self._pending: dict[asyncio.AbstractEventLoop, list[_Pending]] = {}
        self._ready = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def append(self, change: Append) -> asyncio.Future[RunRecord]:
        """Hand in a change; the future gives the run's record."""
        import asyncio

        loop = asyncio.get_running_loop()
        future: asyncio.Future[RunRecord] = loop.create_future()
        with self._lock:
            waiting = self._pending.get(loop)
            if waiting is None:
                waiting = self._pending[loop] = []
            waiting.append(_Pending(change, future))
            first = len(waiting) == 1
        if first:
            # Once the tasks that are ready now have had their turn.
            loop.call_soon(self._wake)
        return future

    def _wake(self) -> None:
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(target=self._work, name="holdfast committer", daemon=True)
            self._thread.start()
        self._ready.release()

    def _work(self) -> None:
        while True:
            self._ready.acquire()
            with self._lock:
                taken, self._pending = self._pending, {}
            for loop, waiting in taken.items():
                for start in range(0, len(waiting), _BATCH):
                    self._write(loop, waiting[start : start + _BATCH])

    def _write(self, loop: asyncio.AbstractEventLoop, batch: list[_Pending]) -> None:
        outcomes: Sequence[RunRecord | BaseException]
        try:
            outcomes = self.store.append_many([pending.change for pending in batch])
        except BaseException as error:
            outcomes = [self._alone(pending.change, error) for pending in batch]
        try:
            loop.call_soon_threadsafe(_answer, batch, outcomes)
        except RuntimeError:
            """The loop was closed: nobody waits any more."""

    def _alone(self, change: Append, error: BaseException) -> RunRecord | BaseException:
        """One change may have spoilt it for all: each by itself, unless the store could not be written at all."""
        if isinstance(error, StoreBusy | StoreUnavailable):
            return error
        try:
            return self.store.append(change)
        except BaseException as own:
            return own


def _answer(batch: list[_Pending], outcomes: Sequence[RunRecord | BaseException]) -> None:
    for pending, outcome in zip(batch, outcomes, strict=True):
        if pending.future.done():
            continue
        if isinstance(outcome, BaseException):
            pending.future.set_exception(outcome)
        else:
            pending.future.set_result(outcome)
