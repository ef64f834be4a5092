"""Fixtures for tests of the steps in `step_flows`, and its workflow of both kinds as parameters.

A module that needs the fixtures binds them: `fresh, hf = step_fixtures.fresh, step_fixtures.hf`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import step_flows as f
from step_flows import control

import holdfast
from holdfast import Holdfast

BOOKS = [pytest.param(f.book, id="def"), pytest.param(f.abook, id="async")]
#: What a run of either does, from beginning to end.
ALL = ["plan", "write-a", "write-b", "finish"]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    control.reset()
    yield
    control.reset()


@pytest.fixture(params=["file", "memory"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(":memory:" if request.param == "memory" else tmp_path / "runs.db") as engine:
        yield engine


@pytest.fixture
def engine() -> Iterator[Holdfast]:
    """An engine with a completed run, `done`."""
    with holdfast.open(":memory:") as found:
        found.run(f.book, "kelp", run_id="done")
        yield found
