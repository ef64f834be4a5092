"""Fixtures: a store with runs of every kind, shared or copied, and folders without one."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from filled_store import STORE, SampleStore, fill

import holdfast


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    with holdfast.open(folder / STORE, durability="fast") as hf:
        fill(hf)
    return folder


@pytest.fixture(scope="session")
def sample(filled: Path) -> SampleStore:
    """A store that all tests share and none changes."""
    return SampleStore(filled)


@pytest.fixture
def own(filled: Path, tmp_path: Path) -> SampleStore:
    """A copy of the store, to change."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    return SampleStore(tmp_path)


@pytest.fixture
def bare(tmp_path: Path) -> SampleStore:
    """A folder without a store."""
    return SampleStore(tmp_path)


@pytest.fixture
def empty(tmp_path: Path) -> SampleStore:
    """A store without runs."""
    holdfast.open(tmp_path / STORE).close()
    return SampleStore(tmp_path)
