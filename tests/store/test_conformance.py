"""Every store of ours against the one suite of contracts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.base import Store
from holdfast.store.memory import MemoryStore
from holdfast.store.postgres import PostgresStore
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing.conformance import StoreConformance

pytest_plugins = ["postgres_fixtures"]


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


class TestPostgresStore(StoreConformance):
    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        store = PostgresStore(url)
        yield store
        store.close()
