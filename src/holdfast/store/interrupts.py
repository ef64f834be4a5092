"""Survive exceptions that a signal handler raises between any two bytecodes.

A handler runs in the main thread and may raise (Ctrl-C, a timeout based on `signal.alarm`), also during the cleanup
after another interrupt. So `finally` alone protects nothing. These rules do:

- A lock is implemented in C (`threading.Lock`, `threading.RLock`) and held only for the length of a `with`: CPython
  checks for signals neither between acquiring it and the start of the block, nor between the end of the block and the
  release. `threading.Condition`, `Event` and `Semaphore` are written in Python and can stay locked: use
  `InterruptSafeEvent`.
- Anything that is held longer (leadership, a connection, the right to write) is recorded with the frame of the function
  that holds it. An interrupted holder has left that frame: `has_returned`.
- A waiting thread polls: the thread that should wake it may have been interrupted.

Invariant: a thread that was interrupted, any number of times, leaves nothing locked that others need.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from types import FrameType

#: Seconds after which a waiting thread checks whether the holder is still there; doubled each time, up to the maximum.
POLL_INTERVAL = 0.05
MAX_POLL_INTERVAL = 0.5

#: Return the frame of the caller, or of the function so many calls above it.
current_frame = sys._getframe  # noqa: SLF001 - `inspect.currentframe` is the same, but accepts no depth


def has_returned(holder: FrameType) -> bool:
    """Return whether the function of a frame has ended; if so, clear its local variables.

    Not for the frame of a suspended generator or coroutine."""
    try:
        holder.clear()
    except RuntimeError:
        return False
    return True


class InterruptSafeEvent:
    """A `threading.Event` that an interrupted thread cannot leave locked."""

    __slots__ = ("_set", "_waiting")

    def __init__(self) -> None:
        self._set = False
        self._waiting: deque[threading.Lock] = deque()

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        """Wake all waiting threads; `wait` returns at once until `clear`."""
        self._set = True
        # Each of these operations is atomic: no lock is needed.
        while self._waiting:
            try:
                wake = self._waiting.popleft()
            except IndexError:
                return
            wake.release()

    def clear(self) -> None:
        """Let `wait` block again."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the event is set, at most `timeout` seconds; return whether it is."""
        if self._set:
            return True
        until = None if timeout is None else time.monotonic() + timeout
        wake = threading.Lock()
        wake.acquire()
        self._waiting.append(wake)
        try:
            while not self._set:
                left = (
                    MAX_POLL_INTERVAL if until is None else min(MAX_POLL_INTERVAL, until - time.monotonic())
                )
                if left <= 0 or wake.acquire(timeout=left):
                    break
        finally:
            # `set` has removed it if it was released.
            with contextlib.suppress(ValueError):
                self._waiting.remove(wake)
        return self._set
