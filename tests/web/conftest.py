"""Stores with runs of every kind, served."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from filled_store import STORE, fill
from page_browser import Tab, chromium, tab
from playwright.sync_api import Browser
from web_server import Served, serving

import holdfast
from holdfast import Holdfast


@pytest.fixture(scope="session")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("filled")
    with holdfast.open(folder / STORE, durability="fast") as hf:
        fill(hf)
    return folder


@pytest.fixture(scope="module")
def served(filled: Path) -> Iterator[Served]:
    """A store to look at, which the tests of a module share."""
    where = str(filled / STORE)
    with holdfast.open(where, durability="fast") as hf, serving(hf, where=where) as found:
        yield found


@pytest.fixture
def own(filled: Path, tmp_path: Path) -> Iterator[Holdfast]:
    """A copy of it, to change."""
    shutil.copytree(filled, tmp_path / "own")
    with holdfast.open(tmp_path / "own" / STORE, durability="fast") as hf:
        yield hf


@pytest.fixture
def mine(own: Holdfast) -> Iterator[Served]:
    """The copy, served."""
    assert own.where is not None
    with serving(own, where=own.where) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(tmp_path / "runs.db", durability="fast") as hf:
        yield hf


@pytest.fixture
def looking(browser: Browser, store: Holdfast) -> Iterator[Tab]:
    """A tab on a store of its own, which does nothing that a page must not do."""
    assert store.where is not None
    with serving(store, where=store.where) as served, tab(browser, served) as found:
        yield found
        found.check()
