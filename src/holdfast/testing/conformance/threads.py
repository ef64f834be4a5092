"""Functions for contracts that several threads use a store at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def together(count: int, work: Callable[[int], T]) -> list[T | BaseException]:
    """Run a function in threads that start at the same time; return the result or the exception of each."""
    barrier = threading.Barrier(count)

    def start(index: int) -> T:
        barrier.wait()
        return work(index)

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(start, index) for index in range(count)]
    return [future.exception() or future.result() for future in futures]


def until_done(writer: Future[None], look: Callable[[], None]) -> None:
    """Call `look` repeatedly while a writer runs, and once after."""
    while not writer.done():
        look()
    look()
    writer.result()
