"""Every store of Holdfast passes the conformance suite."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.store.memory.store import MemoryStore
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.protocol import Store
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.testing.conformance import RunContract, StoreConformance, WholeStoreContract

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


class TestFastSQLiteStoreWithArtifactFolder(StoreConformance):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = SQLiteStore(tmp_path / "runs.db", durability="fast", artifacts=tmp_path / "artifacts")
        yield store
        store.close()


class TestUnsyncedSQLiteStore(RunContract, WholeStoreContract):
    """The two durabilities above differ from this one in one setting of SQLite."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        store = SQLiteStore(tmp_path / "runs.db", durability="memory")
        yield store
        store.close()


class TestPostgresStore(StoreConformance):
    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        store = PostgresStore(url)
        yield store
        store.close()
