"""Stores for the tests of a history: both kinds, with a clock that stands still until it is moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import History, Holdfast


class Clock:
    """Time as a test says. 2023-11-14 22:13:20 UTC, a Tuesday, at first."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def forward(self, *, seconds: float = 0, hours: float = 0, days: float = 0) -> None:
        self.now += seconds + 3600 * hours + 86_400 * days


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture(params=["sqlite", "memory"])
def hf(request: pytest.FixtureRequest, file: Path, clock: Clock) -> Iterator[Holdfast]:
    where = file if request.param == "sqlite" else ":memory:"
    with holdfast.open(where, durability="fast", clock=clock) as opened:
        yield opened


@pytest.fixture
def log(hf: Holdfast) -> History:
    return hf.history("run-1")
