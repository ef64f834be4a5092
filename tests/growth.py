"""Measure how the cost of a function grows with its input."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.web.errors import RequestRefused


def growth(function: Callable[[Any], Any], make: Callable[[int], Any], size: int, factor: int = 8) -> float:
    """Return how many times more CPU an input of `factor` times the size costs: `factor` if the cost is linear.

    CPU of this thread, the least of several tries: other load on the machine does not count.
    """
    return _cost(function, make(size * factor)) / max(_cost(function, make(size)), 1e-5)


def _cost(function: Callable[[Any], Any], given: Any) -> float:
    tries = []
    for _ in range(7):
        began = time.thread_time()
        with suppress(HoldfastError, RequestRefused):
            function(given)
        tries.append(time.thread_time() - began)
    return min(tries)
