"""The right to write for a run: a lock for which threads and asyncio tasks wait.

A task waits without blocking its event loop. The turn is handed on by the one who ends a write, in whatever thread,
since a task may be cancelled meanwhile. Threads come first, and what is offered to a task is the task's only when it
takes it: one of the threads may be that of the tasks' event loop, in which a plain function waits, and no task would
ever take anything.

A signal handler may interrupt the holder at any moment (see `store.interrupts`). So the turn records who holds it: a
task, or the frame of the function that drives the writing flow. Once that has ended, or asks for the turn again, it
holds the turn no more.

Invariant: one has the turn at a time; while a thread or task waits, it is taken, or offered to a task.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from holdfast.event_loop import running_loop, running_task
from holdfast.store.interrupts import LONGEST_LOOK, LOOK, is_gone

if TYPE_CHECKING:
    import asyncio

#: Held for moments, by all turns.
_guard = threading.RLock()
#: Holds a turn while a write is under way in a thread that no signal interrupts.
_COMMITTER: Final = object()

_GENERATOR = 0x20
_COROUTINE = 0x80 | 0x100 | 0x200
#: A context manager that is a generator is driven by the function that has the `with`.
_CONTEXTLIB = vars(contextlib)


def current_holder(depth: int = 1) -> Any:
    """Return what holds a turn that the caller takes now: the function that drives it, if it is a generator, or the
    task of a coroutine. `depth` is 2 for the caller's caller."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None and (frame.f_code.co_flags & _GENERATOR or frame.f_globals is _CONTEXTLIB):
        frame = frame.f_back
    if frame is not None and not frame.f_code.co_flags & _COROUTINE:
        return frame
    task = running_task()
    return object() if task is None else task


class Turn:
    """The right to write for one run."""

    __slots__ = ("_given", "_holder", "_tasks", "_threads", "_wake", "_watched")

    def __init__(self, wake: Callable[[], None]) -> None:
        #: Starts the writes that a blocked event loop has not started yet.
        self._wake = wake
        self._holder: Any = None
        #: The future that offers the turn to a task, until that task runs.
        self._given: asyncio.Future[None] | None = None
        self._threads: deque[_Bell] | None = None
        self._tasks: deque[_Offer] | None = None
        self._watched = False

    def take_now(self, holder: Any) -> bool:
        """Take the turn if nobody has it."""
        with _guard:
            if not self._is_free(holder):
                return False
            self._holder = holder
            return True

    def take(self, holder: Any) -> None:
        """Wait for the turn in this thread."""
        bell = _Bell(holder)
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
            self._threads.append(bell)
        self._wake()
        pause = LOOK
        while not bell.lock.acquire(timeout=pause):
            with _guard:
                # The holder may have been interrupted, also while it handed the turn to this thread.
                if self._is_free(holder):
                    with contextlib.suppress(ValueError):
                        self._threads.remove(bell)
                    self._holder = holder
                    return
            pause = min(2 * pause, LONGEST_LOOK)

    def ask(self, holder: Any, *, again: bool = False) -> asyncio.Future[None]:
        """Return a future that is done when the turn is this task's; `again` if it was, and was taken away."""
        offer = _Offer(self, holder)
        offer.told = again
        offer.consider()
        return offer.future

    def accept(self, asked: asyncio.Future[None]) -> bool:
        """Return whether a task that was offered the turn, and now runs, still has it."""
        with _guard:
            is_ours = self._given is asked
            if is_ours:
                self._given = None
        return is_ours

    def entrust(self) -> None:
        """Leave the turn to the thread that carries out the write of a task, and releases it."""
        self._holder = _COMMITTER

    def release(self) -> None:
        """Hand the turn to a thread that waits, or offer it to a task."""
        while True:
            with _guard:
                self._given = None
                while self._threads:
                    bell = self._threads.popleft()
                    if not is_lost(bell.holder):
                        self._holder = bell.holder
                        bell.lock.release()
                        return
                self._holder = None
                offer = self._tasks.popleft() if self._tasks else None
            if offer is None or offer.tell():
                return
            # Nobody waits there any more: another may.
            if not self.take_now(self):
                return

    def __enter__(self) -> None:
        self.take(sys._getframe(1))

    def __exit__(self, *_: object) -> None:
        self.release()

    def take_or_wait(self, offer: _Offer) -> bool:
        """Take the turn for a task, or queue it to be informed when it is free."""
        with _guard:
            if self._is_free(offer.holder):
                self._holder = offer.holder
                self._given = offer.future
                return True
            if self._tasks is None:
                self._tasks = deque()
            # One that was informed and came too late has waited longest.
            (self._tasks.appendleft if offer.told else self._tasks.append)(offer)
            if not self._watched:
                self._watched = True
                offer.loop.call_later(LONGEST_LOOK, self._watch, offer.loop)
        return False

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """In the loop of a task that waits: see whether the holder was interrupted."""
        with _guard:
            self._watched = bool(self._tasks)
            if self._watched:
                loop.call_later(LONGEST_LOOK, self._watch, loop)
                if self._holder is not None and is_lost(self._holder):
                    self.release()

    def _is_free(self, holder: Any) -> bool:
        # A holder that asks again was interrupted and continues.
        return self._holder is None or self._holder is holder or is_lost(self._holder)


def is_lost(holder: Any) -> bool:
    """Has a holder ended without releasing the turn?"""
    if isinstance(holder, FrameType):
        return is_gone(holder)
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and isinstance(holder, asyncio.Future):
        return bool(holder.done() or holder.get_loop().is_closed())
    return False


class _Bell:
    """A thread that waits."""

    __slots__ = ("holder", "lock")

    def __init__(self, holder: Any) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.holder = holder


class _Offer:
    """A task that waits."""

    __slots__ = ("_turn", "future", "holder", "loop", "told")

    def __init__(self, turn: Turn, holder: Any) -> None:
        import asyncio

        self._turn = turn
        self.holder = holder
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self.loop.create_future()
        self.told = False

    def tell(self) -> bool:
        """The turn is free; returns whether the task can still hear it."""
        self.told = True
        try:
            self.loop.call_soon_threadsafe(self.consider)
        except RuntimeError:
            return False
        return True

    def consider(self) -> None:
        """In the loop: take the turn, if the task still wants it and nobody was quicker."""
        if not self.future.done():
            if self._turn.take_or_wait(self):
                self.future.set_result(None)
        elif self._turn.take_now(self):
            self._turn.release()
