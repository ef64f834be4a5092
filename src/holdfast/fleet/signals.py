"""Stopping by a signal: the first SIGTERM or SIGINT asks to end well, the second ends the process at once.

Invariant: what a handler calls waits for nothing that the main thread may hold, as it interrupts that at any moment; so
the work, and what the main thread waits for, is in other threads.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from holdfast.errors import InvalidCall
from holdfast.operating_system import stop_signals


@contextmanager
def stopped_by_signals(stop: Callable[[], None], told: Callable[[int], None] | None = None) -> Iterator[None]:
    """Within this, in the main thread, a signal calls `stop`, and another ends the process. `told` hears of each: 1 for
    the first, 2 for the second."""
    if threading.current_thread() is not threading.main_thread():
        raise InvalidCall(
            "signals come to the main thread of a process: start this there, or use start and stop"
        )
    count = 0

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count == 1:
            stop()
        if told is not None:
            told(count)
        if count > 1:
            os._exit(128 + number)

    before = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
