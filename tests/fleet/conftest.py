"""A store, a world, and workers in processes of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import fleet_flows as flows
import pytest
from worker_processes import Crew, World

import holdfast
from holdfast import Holdfast

STORES = ("sqlite", "postgres")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(flows, "WORLD", tmp_path)
    return World(tmp_path)


@pytest.fixture(params=STORES)
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store is to be."""
    if request.param == "sqlite":
        return str(tmp_path / "runs.db")
    return str(request.getfixturevalue("url"))


@pytest.fixture
def hf(where: str, world: World) -> Iterator[Holdfast]:
    with holdfast.open(where, lease=2.0) as opened:
        yield opened


@pytest.fixture
def crew(hf: Holdfast, world: World, where: str) -> Iterator[Crew]:
    found = Crew(world, where)
    yield found
    found.close()
