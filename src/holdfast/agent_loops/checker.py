"""The thread of a process that looks for stalled agents in all loops of a store.

Invariant: there is at most one such thread per open store in a process. A failure logs a warning on the logger
`holdfast`, once while it repeats, and the checks continue. The thread ends when it is stopped, when the store is
closed, or when its loops are no longer referenced.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Protocol
from weakref import ref

from holdfast.execution.loops import LoopCheck
from holdfast.log import warn
from holdfast.model.checks import check_seconds
from holdfast.store.interrupts import InterruptSafeEvent

#: Seconds after which a waiting thread looks for another interval.
_POLL_INTERVAL = 0.5


class Checked(Protocol):
    """The loops that a checker checks."""

    def check(self, every: float) -> LoopCheck:
        """Check all loops, unless another process does."""

    def release(self) -> None:
        """Let another process check them."""


class Checker:
    """Periodic check of all projects of a store. As a context manager it runs at least until the end of the
    block; after `start` it runs until `stop`."""

    def __init__(self, loops: Checked) -> None:
        self._loops = ref(loops)
        self._every = 1.0
        self._thread: threading.Thread | None = None
        self._ended = InterruptSafeEvent()
        self._lock = threading.RLock()
        self._uses, self._started = 0, False
        self._last_warning: str | None = None
        #: Number of completed checks.
        self.checks = 0

    @property
    def alive(self) -> bool:
        """Return whether the thread is running."""
        thread = self._thread
        return thread is not None and thread.is_alive() and not self._ended.is_set()

    def check_every(self, every: float) -> None:
        """Check at least every `every` seconds."""
        check_seconds("every", every, above_zero=True, most=threading.TIMEOUT_MAX)
        with self._lock:
            self._every = min(every, self._every) if self.alive else every

    def start(self) -> Checker:
        """Start checking, until `stop`. Do nothing if it is running."""
        with self._lock:
            self._started = True
            self._run()
        return self

    def stop(self) -> None:
        """Stop checking, even if blocks still use the checker; wait for a check in progress."""
        with self._lock:
            self._started = False
            thread, self._thread = self._thread, None
            self._ended.set()
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Checker:
        with self._lock:
            self._uses += 1
            self._run()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._uses = max(self._uses - 1, 0)
            wanted = self._uses or self._started
        if not wanted:
            self.stop()

    def _run(self) -> None:
        if self.alive:
            return
        self._ended = ended = InterruptSafeEvent()
        self._thread = threading.Thread(
            target=self._work, args=(ended,), name="holdfast-loop-checker", daemon=True
        )
        self._thread.start()

    def _work(self, ended: InterruptSafeEvent) -> None:
        while not self._is_ended(ended):
            loops = self._loops()
            if loops is None:
                return
            try:
                self._report(loops.check(self._every))
                self.checks += 1
            except BaseException as error:
                self._warn(f"{type(error).__name__}: {error}")
            del loops
        loops = self._loops()
        if loops is not None:
            loops.release()

    def _is_ended(self, ended: InterruptSafeEvent) -> bool:
        """Wait for the interval, which may become shorter meanwhile; return whether the thread has to end."""
        start = time.monotonic()
        while (left := start + self._every - time.monotonic()) > 0:
            if ended.wait(min(left, _POLL_INTERVAL)):
                return True
        return ended.is_set()

    def _report(self, check: LoopCheck) -> None:
        if check.errors:
            self._warn("; ".join(str(error) for _, error in check.errors[:5]))
        else:
            self._last_warning = None

    def _warn(self, what: str) -> None:
        if what != self._last_warning:
            self._last_warning = what
            with suppress(Exception):
                warn("looking for stalled agents: %s", what)
