"""Wait, in tests, for what threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

#: Seconds to wait. Only a test that fails waits for so long.
PATIENCE = 60.0

T = TypeVar("T")


def until(condition: Callable[[], T], what: str = "it") -> T:
    """Wait until a condition returns a true value; return that value."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE:g} s"
        time.sleep(0.002)
    return found
