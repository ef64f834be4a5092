"""A store for each test of an integration."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def hf(path: Path) -> Iterator[Holdfast]:
    with holdfast.open(path, durability="fast") as hf:
        yield hf


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def where(request: pytest.FixtureRequest, path: Path) -> str:
    """Return the address of a new store of each kind, for modules with the plugin `postgres_fixtures`."""
    found: str = {"memory": ":memory:", "sqlite": str(path)}.get(request.param) or request.getfixturevalue(
        "url"
    )
    return found
