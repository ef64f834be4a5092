"""Survive exceptions that a signal handler raises between any two bytecodes.

A handler runs in the main thread and may raise (Ctrl-C, a timeout based on `signal.alarm`), also in the middle of the
cleanup after another interrupt. So `finally` alone protects nothing. These rules do:

- A lock is one of C (`threading.Lock`, `threading.RLock`) and is held only for the length of a `with`: CPython looks
  for signals neither between acquiring it and the start of the block, nor between the end of the block and releasing
  it. `threading.Condition`, `Event` and `Semaphore` are written in Python and can be left locked: use `Flag`.
- What is held for longer than one such block (leadership, a connection, the right to write) is recorded together with
  the frame of the function that holds it. A holder that was interrupted has left that frame: `is_gone`.
- Who waits looks again from time to time: the wake-up may have been lost together with the thread that owed it.

Invariant: a thread that was interrupted, any number of times, leaves nothing locked that others need.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from types import FrameType

#: Seconds after which one who waits looks whether what it waits for is still held; longer each time, up to the second.
LOOK = 0.05
LONGEST_LOOK = 0.5


def is_gone(holder: FrameType) -> bool:
    """Has the function to which a frame belongs ended? If so, its local variables are dropped.

    Not for the frame of a generator or coroutine that is suspended."""
    try:
        holder.clear()
    except RuntimeError:
        return False
    return True


class Flag:
    """An event that an interrupted thread cannot leave locked; replaces `threading.Event`."""

    __slots__ = ("_set", "_waiting")

    def __init__(self) -> None:
        self._set = False
        self._waiting: deque[threading.Lock] = deque()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        """Wake all who wait, and let no one wait until `clear`."""
        self._set = True
        # Each of these operations is atomic: no lock is needed.
        while self._waiting:
            try:
                bell = self._waiting.popleft()
            except IndexError:
                return
            bell.release()

    def clear(self) -> None:
        """Let `wait` block again."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Block until the flag is set, for at most so many seconds; returns whether it is."""
        if self._set:
            return True
        until = None if timeout is None else time.monotonic() + timeout
        bell = threading.Lock()
        bell.acquire()
        self._waiting.append(bell)
        try:
            while not self._set:
                left = LONGEST_LOOK if until is None else min(LONGEST_LOOK, until - time.monotonic())
                if left <= 0 or bell.acquire(timeout=left):
                    break
        finally:
            # It is there no more if it was rung.
            with contextlib.suppress(ValueError):
                self._waiting.remove(bell)
        return self._set
