"""The write lock of a run, for which threads and asyncio tasks wait.

A task waits without blocking its event loop. The end of a write passes the lock on, in whichever thread, since a task
may be cancelled meanwhile. Threads come first, and a lock that is offered to a task is the task's only when the task
accepts it: one of the threads may be that of the tasks' event loop, blocked by a plain function, and no task could run.

A signal handler may interrupt the holder at any moment (see `store.interrupts`). So the lock records its holder: a
task, or the frame of the function that drives the writing flow. A holder that has ended, or asks for the lock again,
holds it no more.

Invariant: the lock has one holder at a time; while a thread or task waits, it is held, or offered to a task.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable
from sys import _getframe
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from holdfast.event_loop import running_loop, running_task
from holdfast.store.interrupts import MAX_POLL_INTERVAL, POLL_INTERVAL, has_returned

if TYPE_CHECKING:
    import asyncio

#: Held for moments, by all write locks.
_guard = threading.RLock()
#: Holds a lock during a write in a thread that no signal interrupts.
_COMMITTER: Final = object()

_GENERATOR = 0x20
_COROUTINE = 0x80 | 0x100 | 0x200
#: A context manager that is a generator is driven by the function that has the `with`.
_CONTEXTLIB = vars(contextlib)


def current_holder(depth: int = 1) -> Any:
    """Return the holder of a lock that the caller takes now: the function that drives it, if it is a generator, or the
    task of a coroutine. `depth` is 2 for the caller of the caller."""
    frame: FrameType | None = _getframe(depth)
    while frame is not None and (frame.f_code.co_flags & _GENERATOR or frame.f_globals is _CONTEXTLIB):
        frame = frame.f_back
    if frame is not None and not frame.f_code.co_flags & _COROUTINE:
        return frame
    task = running_task()
    return object() if task is None else task


class WriteLock:
    """The write lock of one run."""

    __slots__ = ("_given", "_holder", "_tasks", "_threads", "_wake", "_watched")

    def __init__(self, wake: Callable[[], None]) -> None:
        #: Starts the writes that a blocked event loop has not started yet.
        self._wake = wake
        self._holder: Any = None
        #: The future that offers the lock to a task, until that task runs.
        self._given: asyncio.Future[None] | None = None
        self._threads: deque[_WaitingThread] | None = None
        self._tasks: deque[_WaitingTask] | None = None
        self._watched = False

    def take_now(self, holder: Any) -> bool:
        """Take the lock if it is free; return whether it was."""
        with _guard:
            if self._holder is not None and not self._is_free(holder):
                return False
            self._holder = holder
            return True

    def take(self, holder: Any) -> None:
        """Wait for the lock in this thread."""
        waiting = _WaitingThread(holder)
        with _guard:
            if self._is_free(holder):
                self._holder = holder
                return
            if self._given is not None and self._given.get_loop() is running_loop():
                # The task cannot run while this thread, that of its event loop, waits: it asks again.
                self._given = None
                self._holder = holder
                return
            if self._threads is None:
                self._threads = deque()
            self._threads.append(waiting)
        self._wake()
        pause = POLL_INTERVAL
        while not waiting.lock.acquire(timeout=pause):
            with _guard:
                # The holder may have been interrupted, even while it passed the lock to this thread.
                if self._is_free(holder):
                    with contextlib.suppress(ValueError):
                        self._threads.remove(waiting)
                    self._holder = holder
                    return
            pause = min(2 * pause, MAX_POLL_INTERVAL)

    def ask(self, holder: Any, *, again: bool = False) -> asyncio.Future[None]:
        """Return a future that is done when the lock is this task's; `again` if it was, and was taken away."""
        waiting_task = _WaitingTask(self, holder)
        waiting_task.was_offered = again
        waiting_task.consider()
        return waiting_task.future

    def accept(self, asked: asyncio.Future[None]) -> bool:
        """Return whether a task that was offered the lock, and now runs, still has it."""
        with _guard:
            is_ours = self._given is asked
            if is_ours:
                self._given = None
        return is_ours

    def entrust(self) -> None:
        """Leave the lock to the thread that carries out the write of a task, and releases it."""
        self._holder = _COMMITTER

    def release(self) -> None:
        """Pass the lock to a thread that waits, or offer it to a task."""
        while True:
            with _guard:
                self._given = None
                while self._threads:
                    waiting = self._threads.popleft()
                    if not has_holder_ended(waiting.holder):
                        self._holder = waiting.holder
                        waiting.lock.release()
                        return
                self._holder = None
                waiting_task = self._tasks.popleft() if self._tasks else None
            if waiting_task is None or waiting_task.offer():
                return
            # That task waits no more: another may.
            if not self.take_now(self):
                return

    def __enter__(self) -> None:
        self.take(_getframe(1))

    def __exit__(self, *_: object) -> None:
        self.release()

    def take_or_wait(self, waiting_task: _WaitingTask) -> bool:
        """Take the lock for a task, or queue the task until the lock is free."""
        with _guard:
            if self._is_free(waiting_task.holder):
                self._holder = waiting_task.holder
                self._given = waiting_task.future
                return True
            if self._tasks is None:
                self._tasks = deque()
            # A task that was offered the lock and came too late has waited longest.
            (self._tasks.appendleft if waiting_task.was_offered else self._tasks.append)(waiting_task)
            if not self._watched:
                self._watched = True
                waiting_task.loop.call_later(MAX_POLL_INTERVAL, self._watchdog, waiting_task.loop)
        return False

    def _watchdog(self, loop: asyncio.AbstractEventLoop) -> None:
        """Check, in the loop of a task that waits, whether the holder was interrupted."""
        with _guard:
            self._watched = bool(self._tasks)
            if self._watched:
                loop.call_later(MAX_POLL_INTERVAL, self._watchdog, loop)
                if self._holder is not None and has_holder_ended(self._holder):
                    self.release()

    def _is_free(self, holder: Any) -> bool:
        # A holder that asks again was interrupted and continues.
        return self._holder is None or self._holder is holder or has_holder_ended(self._holder)


def has_holder_ended(holder: Any) -> bool:
    """Return whether a holder has ended without releasing the lock."""
    if isinstance(holder, FrameType):
        return has_returned(holder)
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and isinstance(holder, asyncio.Future):
        return bool(holder.done() or holder.get_loop().is_closed())
    return False


class _WaitingThread:
    """A thread that waits."""

    __slots__ = ("holder", "lock")

    def __init__(self, holder: Any) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.holder = holder


class _WaitingTask:
    """A task that waits."""

    __slots__ = ("_write_lock", "future", "holder", "loop", "was_offered")

    def __init__(self, write_lock: WriteLock, holder: Any) -> None:
        import asyncio

        self._write_lock = write_lock
        self.holder = holder
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.was_offered = False

    def offer(self) -> bool:
        """Offer the lock; return whether the task can still take it."""
        self.was_offered = True
        try:
            self.loop.call_soon_threadsafe(self.consider)
        except RuntimeError:
            return False
        return True

    def consider(self) -> None:
        """Take the lock, in the loop, if the task still wants it and it is still free."""
        if not self.future.done():
            if self._write_lock.take_or_wait(self):
                self.future.set_result(None)
        elif self._write_lock.take_now(self):
            self._write_lock.release()
