"""Stores for the tests of histories: in a file and in memory, with a clock that tests advance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_clock import Clock

import holdfast
from holdfast import History, Holdfast


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
