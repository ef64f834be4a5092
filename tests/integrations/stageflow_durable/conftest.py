"""Stores for durable pipelines: a file, and a schema of a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from stageflow_stages import Log

import holdfast
from holdfast import Holdfast


@pytest.fixture(params=["sqlite", "postgres"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("url"))
    return str(tmp_path / "runs.db")


@pytest.fixture
def hf(where: str) -> Iterator[Holdfast]:
    with holdfast.open(where) as opened:
        yield opened


@pytest.fixture
def log() -> Log:
    return Log()
