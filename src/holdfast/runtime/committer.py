"""Commits from asyncio: tasks hand in their changes, one thread writes those of all of them together.

However many tasks wait, the event loop is never blocked by a disk, and one fsync serves them all: while one batch is
being written, the next one gathers.

Invariant: every change that was handed in is written or refused, and whoever handed it in is told so by `done` in the
thread that wrote, even if the task was cancelled meanwhile. An interrupt of the event loop's thread by a signal handler
(see `store.interrupts`) delays that at most.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from holdfast.errors import CommitUnknown, StoreBusy, StoreUnavailable
from holdfast.event_loop import running_loop
from holdfast.model.records import RunRecord
from holdfast.store.base import Append, Store

if TYPE_CHECKING:
    import asyncio

#: Told of the run's record, or of the error, before anybody else is.
Done = Callable[[RunRecord | BaseException], Any]

_PENDING: Any = object()
#: Changes written in one transaction at most.
_BATCH = 512
#: Seconds after which the thread looks for changes whose wake-up was lost.
_LOOK = 1.0


class Pending:
    """A change on its way."""

    __slots__ = ("change", "done", "future", "outcome")

    def __init__(self, change: Append, done: Done, future: asyncio.Future[Any]) -> None:
        self.change = change
        self.done = done
        self.future = future
        self.outcome: Any = _PENDING


class Committer:
    """Writes for all asyncio tasks of an engine."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        #: By event loop, those that wait to be written.
        self._pending: dict[asyncio.AbstractEventLoop, list[Pending]] = {}
        self._ready: SimpleQueue[None] = SimpleQueue()
        self._closed = False
        self._thread: threading.Thread | None = None

    def write(self, change: Append, done: Done) -> Any:
        """Write a change in this thread."""
        return _settle(done, _tried(self.store, change))

    def hand_in(self, change: Append, done: Done) -> Pending:
        """Hand in a change; the future gives what `done` makes of the outcome, in the thread that writes."""
        loop = running_loop()
        pending = Pending(change, done, loop.create_future())
        with self._lock:
            waiting = self._pending.get(loop)
            if waiting is None:
                # Once the tasks that are ready now have had their turn. Before the change is there: an interrupt in
                # between wakes in vain, not too late.
                loop.call_soon(self.wake)
                waiting = self._pending[loop] = []
            waiting.append(pending)
        return pending

    def ask_again(self, pending: Pending) -> asyncio.Future[Any]:
        """Wait for a change once more: the task that did was cancelled."""
        pending.future = pending.future.get_loop().create_future()
        if pending.outcome is not _PENDING:
            _answer([pending])
        return pending.future

    def wake(self) -> None:
        """Write what was handed in."""
        if not self._pending:
            return
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._work, name="holdfast committer", daemon=True)
            # First: one that was started and is not known would never end.
            self._thread = thread
            try:
                thread.start()
            except RuntimeError:
                # The system gives no thread: the event loop waits for the disk.
                self._thread = None
                self._write_all()
                return
        self._ready.put(None)

    def close(self) -> None:
        """Write what was handed in, then nothing more."""
        self._closed = True
        self._ready.put(None)

    def _work(self) -> None:
        own = threading.current_thread()
        while self._thread is own and (not self._closed or self._pending):
            with suppress(Empty):
                self._ready.get(timeout=_LOOK)
            self._write_all()

    def _write_all(self) -> None:
        """Write what waits. A function of its own, so that nothing of it is held while the next is waited for."""
        with self._lock:
            taken, self._pending = self._pending, {}
        for loop, waiting in taken.items():
            for start in range(0, len(waiting), _BATCH):
                self._write(loop, waiting[start : start + _BATCH])

    def _write(self, loop: asyncio.AbstractEventLoop, batch: list[Pending]) -> None:
        outcomes: Sequence[RunRecord | BaseException]
        try:
            outcomes = self.store.append_many([pending.change for pending in batch])
        except (StoreBusy, StoreUnavailable, CommitUnknown) as error:
            outcomes = [error] * len(batch)
        except BaseException:
            # One change may have spoilt it for all.
            outcomes = [_tried(self.store, pending.change) for pending in batch]
        answers = []
        for pending, outcome in zip(batch, outcomes, strict=True):
            try:
                answers.append(_settle(pending.done, outcome))
            except BaseException as error:
                answers.append(error)
        # Before the loop is notified, which may be interrupted: a second request for the outcome finds it.
        for pending, answer in zip(batch, answers, strict=True):
            pending.outcome = answer
        try:
            loop.call_soon_threadsafe(_answer, batch)
        except RuntimeError:
            """The loop was closed: nobody waits any more."""


def _tried(store: Store, change: Append) -> RunRecord | BaseException:
    try:
        return store.append(change)
    except BaseException as error:
        return error


def _settle(done: Done, outcome: RunRecord | BaseException) -> Any:
    value = done(outcome)
    if isinstance(outcome, BaseException):
        raise outcome
    return value


def _answer(batch: list[Pending]) -> None:
    for pending in batch:
        if pending.future.done():
            continue
        if isinstance(pending.outcome, BaseException):
            pending.future.set_exception(pending.outcome)
        else:
            pending.future.set_result(pending.outcome)
