"""An engine on each kind of store, and the kinds of a run's events.

A module that needs the fixture binds it: `hf = run_fixtures.hf`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast, Run


@pytest.fixture(params=["sqlite", "memory"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    where = tmp_path / "runs.db" if request.param == "sqlite" else ":memory:"
    with holdfast.open(where, durability="fast" if request.param == "sqlite" else "memory") as opened:
        yield opened


def kinds(run: Run, after: int = 0) -> list[str]:
    return [event.kind for event in run.events(after=after)]
