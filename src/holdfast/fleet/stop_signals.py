"""Stop by a signal: the first SIGTERM or SIGINT asks for an orderly end, the second ends the process at once.

Invariant: a handler, which may interrupt the main thread anywhere, waits for nothing that the main thread may hold.
So the work runs in other threads.
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
def stopped_by_signals(
    stop: Callable[[], None], on_signal: Callable[[int], None] | None = None
) -> Iterator[None]:
    """Handle signals in the main thread: the first calls `stop`, the second ends the process. `on_signal` gets 1
    for the first, 2 for the second."""
    if threading.current_thread() is not threading.main_thread():
        raise InvalidCall("only the main thread receives signals: call this there, or use start and stop")
    count = 0

    def handle(number: int, _frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        if count == 1:
            stop()
        if on_signal is not None:
            on_signal(count)
        if count > 1:
            os._exit(128 + number)

    before = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
