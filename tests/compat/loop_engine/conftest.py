"""Fixtures: an engine on SQLite and on memory, with a clock that only the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loop_fixtures import Clock

import holdfast
from holdfast import Holdfast
from holdfast.history.version import Version
from holdfast.loops import LoopEngine


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture(params=["sqlite", "memory"])
def hf(request: pytest.FixtureRequest, file: Path, clock: Clock) -> Iterator[Holdfast]:
    where = file if request.param == "sqlite" else ":memory:"
    with holdfast.open(where, durability="fast", clock=clock, redact=["*secret*", "*token*"]) as opened:
        yield opened


@pytest.fixture
def engine(hf: Holdfast) -> LoopEngine:
    return LoopEngine(hf, check_every=None)


@pytest.fixture
def states_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the runs whose states are read, in order; a test clears the list before what it looks at."""
    found: list[str] = []
    read_state = Version.read_state

    def noted(version: Version) -> Any:
        found.append(version.run)
        return read_state(version)

    monkeypatch.setattr(Version, "read_state", noted)
    return found
