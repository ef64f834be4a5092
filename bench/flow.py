"""A workflow of steps that each return 500 bytes: the work that every engine runs, and what is asked of an engine.

Each step calls `watch.step` first, with its number, from 1 on. Whoever measures sets that, to take turns with the raw
limit, to see when a step begins, or to end the run there with `Stop`.

Invariant: all engines store the same results, and lose none that was committed: `synchronous=FULL`, which is SQLite's
default. Peers that leave a file at SQLite's slower journal find it made with a WAL by `make_with_log`.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from bench import workload

STEPS = 1_000
SIZE = 500


class Stop(Exception):
    """Ends a run in the midst of it."""


class Engine(Protocol):
    """Runs workflows of which the steps are kept in one file."""

    #: How it is called in the report; empty for ours.
    name: str

    def __init__(self, path: Path) -> None:
        """Open a file, which is made if it is not there."""

    def run(self, run_id: str, steps: int) -> None:
        """Run a workflow to its end, or to the step that stops it."""

    async def run_many(self, runs: int, steps: int) -> None:
        """Run new workflows at once, each to its end."""

    def go_back(self, run_id: str, step: int) -> None:
        """Go on after a step that was completed before, as if those after it had not been; until a step stops it."""

    def replay(self, run_id: str, steps: int) -> float | None:
        """Seconds to go through all steps of a completed run without running one; None where that is not done."""

    def resume(self, run_id: str) -> None:
        """Go on with a run whose process is gone."""

    def close(self) -> None:
        """Let go of the file."""


@dataclass(slots=True)
class _Watch:
    step: Callable[[int], None]


#: Told of each step as it begins.
watch = _Watch(lambda number: None)


@contextmanager
def watching(step: Callable[[int], None]) -> Iterator[None]:
    """Have a function called at the beginning of each step, for the length of a `with`."""
    before, watch.step = watch.step, step
    try:
        yield
    finally:
        watch.step = before


def body(number: int) -> str:
    """What a step does."""
    watch.step(number)
    return results()[number - 1]


@cache
def results() -> list[str]:
    """What the steps return."""
    source = random.Random(7)
    return [workload.text(source, SIZE) for _ in range(STEPS)]


def make_with_log(path: Path) -> None:
    """Make a file of SQLite that is written through a log, as ours is."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
