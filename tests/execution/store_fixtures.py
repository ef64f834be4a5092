"""Fixtures: the address of a store of each kind, and an engine on it.

A module that needs them says `pytest_plugins = ["postgres_fixtures"]` and binds them:
`hf, place = store_fixtures.hf, store_fixtures.place`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast


@pytest.fixture(params=["file", "memory", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        return str(request.getfixturevalue("url"))
    return str(tmp_path / "runs.db") if request.param == "file" else ":memory:"


@pytest.fixture
def hf(place: str) -> Iterator[Holdfast]:
    with holdfast.open(place) as engine:
        yield engine
