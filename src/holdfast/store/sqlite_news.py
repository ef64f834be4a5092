"""Waiting for what other processes write to a SQLite file.

SQLite counts the commits that a connection sees (`PRAGMA data_version`), on every system and file system alike; to ask
for that costs microseconds.

Invariant: a commit that comes after a wait has begun ends it, at the latest with the next look.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.errors import HoldfastError

#: Seconds between two looks for what others have written.
_LOOK = 0.01


class News:
    """What each thread has seen of a file's commits."""

    def __init__(self, sign: Callable[[], tuple[int, int]]) -> None:
        #: Returns another value after every commit.
        self._sign = sign
        self._seen = threading.local()

    def wait(self, timeout: float) -> bool:
        """Wait until something may have been written since this thread waited last; False if nothing was."""
        until = time.monotonic() + timeout
        known = getattr(self._seen, "sign", None)
        try:
            while (sign := self._sign()) == known:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                time.sleep(min(left, _LOOK))
        except HoldfastError:
            # Closed, for instance: the next read or write raises the same.
            time.sleep(min(timeout, _LOOK))
            return True
        self._seen.sign = sign
        return True
