"""Waiting, in tests, for what threads and processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

#: Generous: only a test that fails waits for so long.
PATIENCE = 60.0

T = TypeVar("T")


def until(condition: Callable[[], T], what: str = "it") -> T:
    """Wait for something to become true; gives what made it so."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, f"{what} did not happen within {PATIENCE:g} s"
        time.sleep(0.002)
    return found
