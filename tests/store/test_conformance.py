"""Every store of ours against the one suite of contracts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.base import Store
from holdfast.store.memory import MemoryStore
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing.conformance import StoreConformance


class TestMemoryStore(StoreConformance):
    @pytest.fixture
    def store(self) -> Iterator[Store]:
        store = MemoryStore()
        yield store
        store.close()


class TestSQLiteStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = SQLiteStore(tmp_path / "runs.db")
        yield store
        store.close()


class TestFastSQLiteStore(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = SQLiteStore(tmp_path / "runs.db", durability="fast")
        yield store
        store.close()


class TestSQLiteStoreWithArtifactFolder(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = SQLiteStore(tmp_path / "runs.db", durability="memory", artifacts=tmp_path / "artifacts")
        yield store
        store.close()
