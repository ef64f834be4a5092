"""A store with runs of every kind, filled once, and shelves to look at it from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from shelf import STORE, Shelf, fill

import holdfast


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    with holdfast.open(folder / STORE, durability="fast") as hf:
        fill(hf)
    return folder


@pytest.fixture(scope="session")
def shelf(filled: Path) -> Shelf:
    """A store to look at, which all tests share."""
    return Shelf(filled)


@pytest.fixture
def own(filled: Path, tmp_path: Path) -> Shelf:
    """A copy of it to change."""
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    return Shelf(tmp_path)


@pytest.fixture
def bare(tmp_path: Path) -> Shelf:
    """A folder without a store."""
    return Shelf(tmp_path)


@pytest.fixture
def empty(tmp_path: Path) -> Shelf:
    """A store without runs."""
    holdfast.open(tmp_path / STORE).close()
    return Shelf(tmp_path)
