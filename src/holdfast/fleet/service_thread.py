"""The thread of a worker or monitor, and its end by a signal: the first SIGTERM or SIGINT asks for an orderly end, the
second ends the process at once.

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

#: Seconds of one wait for a thread in the main thread: a signal does not interrupt a wait without a timeout.
_WAIT = 1.0


class ServiceThread:
    """The thread of a worker or a monitor."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None

    def start(self, work: Callable[[], None]) -> None:
        """Start it; raise `InvalidCall` if it was started before."""
        if self._thread is not None:
            raise InvalidCall(f"a {self._name} can be started once: create another")
        thread = threading.Thread(target=work, name=f"holdfast {self._name}", daemon=True)
        thread.start()
        self._thread = thread

    def join(self, timeout: float | None = None) -> bool:
        """Wait until it has ended; return whether it has, or was never started."""
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def serve(
        self,
        work: Callable[[], None],
        stop: Callable[[], None],
        on_signal: Callable[[int], None] | None,
        ready: Callable[[], None] | None,
    ) -> None:
        """Start it, and wait in the main thread until a signal has stopped it. `ready` is called once signals are
        handled."""
        with _stopped_by_signals(stop, on_signal):
            if ready is not None:
                ready()
            self.start(work)
            while not self.join(_WAIT):
                continue


@contextmanager
def _stopped_by_signals(stop: Callable[[], None], on_signal: Callable[[int], None] | None) -> Iterator[None]:
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
