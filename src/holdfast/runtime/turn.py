"""Whose turn it is to write for a run: a lock for which threads and asyncio tasks wait.

A task waits without blocking its event loop. The turn is handed on by whoever ends a write, in whatever thread, since a
task may be cancelled meanwhile. Threads come first, and what is offered to a task is the task's only when it takes it:
one of the threads may be that of the tasks' event loop, in which a plain function waits, and no task would ever take
anything.

Invariant: one has the turn at a time; while somebody waits, it is taken, or offered to a task that was told so.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

#: Held for moments, by all turns.
_guard = threading.Lock()


class Turn:
    """The right to write for one run."""

    __slots__ = ("_taken", "_tasks", "_threads", "_wake")

    def __init__(self, wake: Callable[[], None]) -> None:
        #: Sees to it that writes go on which a blocked event loop has not begun yet.
        self._wake = wake
        self._taken = False
        self._threads: deque[_Bell] | None = None
        self._tasks: deque[_Offer] | None = None

    def take_now(self) -> bool:
        """Take the turn if nobody has it."""
        with _guard:
            free = not self._taken
            self._taken = True
        return free

    def take(self) -> None:
        """Wait for the turn in this thread."""
        bell = _Bell()
        with _guard:
            if not self._taken:
                self._taken = True
                return
            if self._threads is None:
                self._threads = deque()
            self._threads.append(bell)
        self._wake()
        try:
            bell.lock.acquire()
        except BaseException:
            with _guard:
                bell.gone = True
            if bell.rung:
                self.release()
            raise

    def ask(self) -> asyncio.Future[None]:
        """A future that is done when the turn is this task's."""
        offer = _Offer(self)
        offer.consider()
        return offer.future

    def release(self) -> None:
        """Hand the turn to a thread that waits, or offer it to a task."""
        while True:
            with _guard:
                while self._threads:
                    bell = self._threads.popleft()
                    if not bell.gone:
                        bell.rung = True
                        bell.lock.release()
                        return
                self._taken = False
                offer = self._tasks.popleft() if self._tasks else None
            if offer is None or offer.tell():
                return
            # Nobody waits there any more: another may.
            if not self.take_now():
                return

    def __enter__(self) -> None:
        if not self.take_now():
            self.take()

    def __exit__(self, *_: object) -> None:
        self.release()

    def take_or_wait(self, offer: _Offer) -> bool:
        """Take the turn for a task, or let it be told when it is free."""
        with _guard:
            if not self._taken:
                self._taken = True
                return True
            if self._tasks is None:
                self._tasks = deque()
            # Who was told and came too late has waited longest.
            (self._tasks.appendleft if offer.told else self._tasks.append)(offer)
        return False


class _Bell:
    """A thread that waits."""

    __slots__ = ("gone", "lock", "rung")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.gone = False
        self.rung = False


class _Offer:
    """A task that waits."""

    __slots__ = ("_loop", "_turn", "future", "told")

    def __init__(self, turn: Turn) -> None:
        import asyncio

        self._turn = turn
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[None] = self._loop.create_future()
        self.told = False

    def tell(self) -> bool:
        """The turn is free; tells whether the task can still hear it."""
        self.told = True
        try:
            self._loop.call_soon_threadsafe(self.consider)
        except RuntimeError:
            return False
        return True

    def consider(self) -> None:
        """In the loop: take the turn, if the task still wants it and nobody was quicker."""
        if not self.future.done():
            if self._turn.take_or_wait(self):
                self.future.set_result(None)
        elif self._turn.take_now():
            self._turn.release()
