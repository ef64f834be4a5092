"""How things are measured: rows of the report, the raw limit, the clock, the size of a file."""

from __future__ import annotations

import os
import random
import sqlite3
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import NamedTuple

#: Commits in a turn: the raw limit and what is measured beside it alternate.
TURN = 50
_ROW = random.Random(3).randbytes(500)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report."""

    work: str
    measure: str
    value: float
    unit: str
    #: Absolute numbers behind the value.
    detail: str
    at_least: float | None = None
    at_most: float | None = None

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f"≥ {self.at_least:g} {self.unit}"
        return "" if self.at_most is None else f"≤ {self.at_most:g} {self.unit}"

    @property
    def measured(self) -> str:
        return f"{self.value:.3g} {self.unit}" if self.value < 100 else f"{self.value:,.0f} {self.unit}"

    @property
    def met(self) -> bool:
        return (self.at_least is None or self.value >= self.at_least) and (
            self.at_most is None or self.value <= self.at_most
        )

    @property
    def verdict(self) -> str:
        bound = self.at_most if self.at_least is None else self.at_least
        if bound is None:
            return ""
        return "met" if self.met else f"missed by {abs(self.value / bound - 1):.0%}"


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the files go and how often everything is done."""

    folder: Path
    repetitions: int = 5

    @contextmanager
    def place(self) -> Iterator[Path]:
        """A new folder, removed afterwards."""
        with TemporaryDirectory(dir=self.folder) as found:
            yield Path(found)

    def seldom(self) -> Bench:
        """For the peers, which take long: half as often."""
        return replace(self, repetitions=max(self.repetitions // 2, 1))

    def repeat(self, once: Callable[[Path], tuple[float, ...]]) -> tuple[float, ...]:
        """The median of each number that a measurement gives, each time in a new folder."""
        found = []
        for _ in range(self.repetitions):
            with self.place() as folder:
                found.append(once(folder))
        return medians(found)


def medians(found: Iterable[tuple[float, ...]]) -> tuple[float, ...]:
    """The median of each column."""
    return tuple(statistics.median(column) for column in zip(*found, strict=True))


class Rates(NamedTuple):
    """How fast a workload went beside the raw limit."""

    #: Commits per second.
    raw: float
    ours: float
    #: Seconds of the processor for a commit: what is left of the cost if the disk is infinitely fast.
    work: float
    #: The same of the raw limit.
    raw_work: float

    @property
    def ratio(self) -> float:
        return self.ours / self.raw

    def __str__(self) -> str:
        cpu = f"{self.work * 1e6:,.0f} µs of CPU each, raw {self.raw_work * 1e6:,.0f}"
        return f"{self.ours:,.0f}/s, raw {self.raw:,.0f}/s; {cpu}"


class Raw:
    """The limit: one writer who commits one 500-byte row at a time, to a file of its own.

    It takes turns with what is measured, a few commits each, so that both have the same moments of the disk.
    """

    def __init__(self, folder: Path) -> None:
        # Some engines run a workflow, and so its turns, in a thread of their own.
        self._connection = sqlite3.connect(folder / "raw.db", isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        self._connection.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, data BLOB)")

    def commit(self, count: int) -> float:
        """So many commits; the seconds they took."""
        insert = self._connection.execute
        start = perf_counter()
        for _ in range(count):
            insert("INSERT INTO log (data) VALUES (?)", (_ROW,))
        return perf_counter() - start

    def close(self) -> None:
        self._connection.close()


class Turns:
    """Two stopwatches: for the raw limit and for what is measured beside it."""

    def __init__(self, raw: Raw) -> None:
        self._raw = raw
        #: Of each turn: the seconds it took, and its commits.
        self.limit: list[tuple[float, int]] = []
        self.ours: list[tuple[float, int]] = []
        #: Seconds of the processor that the turns of each took.
        self.raw_work = 0.0
        self.work = 0.0
        #: When our turn began, by the clock and by the processor's.
        self._begun = (0.0, 0.0)

    def take(self, work: Callable[[], object], commits: int, *, raw: int = TURN) -> None:
        """A turn of the raw writer, then one of ours."""
        self.begin(raw=raw)
        work()
        self.end(commits)

    def begin(self, *, raw: int = TURN) -> None:
        """A turn of the raw writer, and the beginning of one of ours."""
        before = process_time()
        self.limit.append((self._raw.commit(raw), raw))
        self.raw_work += process_time() - before
        self._begun = perf_counter(), process_time()

    def end(self, commits: int) -> None:
        """The end of our turn."""
        spent, worked = perf_counter() - self._begun[0], process_time() - self._begun[1]
        self.ours.append((spent, commits))
        self.work += worked

    def result(self) -> Rates:
        done, limit = (sum(count for _, count in turns) for turns in (self.ours, self.limit))
        return Rates(rate(self.limit), rate(self.ours), self.work / done, self.raw_work / limit)


def rate(turns: Iterable[tuple[float, int]]) -> float:
    """Commits per second over some turns."""
    spent, commits = map(sum, zip(*turns, strict=True))
    return commits / spent


def seconds(action: Callable[[], object]) -> float:
    """How long something takes."""
    start = perf_counter()
    action()
    return perf_counter() - start


def median_seconds(action: Callable[[], object], times: int) -> float:
    """The median of how long something takes."""
    return statistics.median(seconds(action) for _ in range(times))


def file_size(path: Path) -> int:
    """Bytes of a database on the disk, with whatever lies beside it."""
    return sum(os.path.getsize(file) for file in path.parent.glob(path.name + "*"))


def megabytes(size: float) -> str:
    """A number of bytes, to be read by people."""
    return f"{size / 1e6:,.2f} MB" if size < 1e7 else f"{size / 1e6:,.0f} MB"


def note(text: str) -> None:
    """Tell the person who waits what is going on."""
    print(f"  {text} …", file=sys.stderr, flush=True)
