"""Waiting for what other processes write to a SQLite file.

Every commit, of whichever process, writes to the WAL, and to look at that file costs microseconds.

Invariant: a commit that comes after a wait has begun ends it, at the latest with the next look.
"""

from __future__ import annotations

import os
import threading
import time

#: Seconds between two looks for what others have written.
_LOOK = 0.01
#: Nanoseconds between the moment in which a file was written and that in which everybody sees the commit, at most as a
#: rule: the clock of the file may be behind, and an fsync lies between them.
_COARSE = 250_000_000


class News:
    """What each thread has seen of a file's WAL."""

    def __init__(self, path: str) -> None:
        self._path = f"{path}-wal"
        self._seen = threading.local()

    def wait(self, timeout: float) -> bool:
        """Wait until something may have been written since this thread waited last; False if nothing was."""
        until = time.monotonic() + timeout
        known = getattr(self._seen, "sign", None)
        if known is None:
            time.sleep(min(timeout, _LOOK))
        while (sign := self._sign()) == known and known is not None:
            left = until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(left, _LOOK))
        self._seen.sign = sign
        return True

    def _sign(self) -> tuple[int, ...] | None:
        """Another one after every commit; None while something may be about to come."""
        try:
            found = os.stat(self._path)
        except OSError:
            return None
        if abs(time.time_ns() - found.st_mtime_ns) < _COARSE:
            return None
        return (found.st_mtime_ns, found.st_size, found.st_ino)
