"""pytest plugin: LangGraph's suites with HoldfastSaver and HoldfastStore in place of the official classes.

The classes are replaced where they are defined, before a test module imports them. The substitutes take the same
arguments: what was in memory is a store in memory, a SQLite file is a SQLite file, a PostgreSQL database is one.

Invariant: the substitutes add only constructors and context managers. Everything else is the integration as users
have it.
"""

from __future__ import annotations

import asyncio
import copy
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import langgraph.checkpoint.memory
import langgraph.checkpoint.postgres
import langgraph.checkpoint.postgres.aio
import langgraph.checkpoint.sqlite
import langgraph.checkpoint.sqlite.aio
import langgraph.store.memory
import langgraph.store.postgres
import langgraph.store.sqlite
import langgraph.store.sqlite.aio

from holdfast.integrations.langgraph import HoldfastSaver, HoldfastStore


class CopyingSerializer:
    """Serializer that keeps a deep copy. The suite compares such copies with later reads; its own serializer makes
    tuples into lists, which HoldfastSaver does not."""

    def dumps_typed(self, value: Any) -> tuple[str, Any]:
        return "copy", copy.deepcopy(value)

    def loads_typed(self, data: tuple[str, Any]) -> Any:
        return data[1]


class InMemorySaver(HoldfastSaver):
    """HoldfastSaver with the constructor of LangGraph's InMemorySaver."""

    serde = CopyingSerializer()

    def __init__(self, *, serde: Any = None, factory: Any = None) -> None:
        super().__init__(":memory:", serde=serde)
        self.stack = ExitStack()

    async def __aenter__(self) -> InMemorySaver:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


@contextmanager
def _location(conn_string: str) -> Iterator[str]:
    """Yield where to open a store; a new file instead of `:memory:`, so that SQLite is tested."""
    with tempfile.TemporaryDirectory() as folder:
        yield str(Path(folder, "runs.db")) if conn_string == ":memory:" else conn_string


class DatabaseSaver(HoldfastSaver):
    """HoldfastSaver with the constructor of LangGraph's SqliteSaver and PostgresSaver."""

    @classmethod
    @contextmanager
    def from_conn_string(cls, conn_string: str) -> Iterator[HoldfastSaver]:  # type: ignore[override]
        with _location(conn_string) as where, cls(where) as saver:
            yield saver


class AsyncDatabaseSaver(DatabaseSaver):
    """HoldfastSaver with the constructor of LangGraph's AsyncSqliteSaver and AsyncPostgresSaver."""

    @classmethod
    @asynccontextmanager
    async def from_conn_string(cls, conn_string: str) -> AsyncIterator[HoldfastSaver]:  # type: ignore[override]
        with _location(conn_string) as where, cls(where) as saver:
            yield saver


class InMemoryStore(HoldfastStore):
    """HoldfastStore with the constructor of LangGraph's InMemoryStore."""

    def __init__(self, *, index: Any = None) -> None:
        super().__init__(":memory:", index=index)


class DatabaseStore(HoldfastStore):
    """HoldfastStore with the constructor of LangGraph's SqliteStore and PostgresStore."""

    @classmethod
    @contextmanager
    def from_conn_string(cls, conn_string: str, *, index: Any = None, ttl: Any = None) -> Iterator[Any]:
        with _location(conn_string) as where, cls(where, index=index, ttl=ttl) as store:
            yield store


class AsyncDatabaseStore(HoldfastStore):
    """HoldfastStore with the constructor of LangGraph's AsyncSqliteStore and AsyncPostgresStore, whose methods
    for time to live are coroutines."""

    @classmethod
    @asynccontextmanager
    async def from_conn_string(
        cls, conn_string: str, *, index: Any = None, ttl: Any = None
    ) -> AsyncIterator[Any]:
        with _location(conn_string) as where, cls(where, index=index, ttl=ttl) as store:
            yield store

    async def sweep_ttl(self) -> int:  # type: ignore[override]
        return await asyncio.to_thread(super().sweep_ttl)

    async def start_ttl_sweeper(self, sweep_interval_minutes: float | None = None) -> Any:  # type: ignore[override]
        return super().start_ttl_sweeper(sweep_interval_minutes)

    async def stop_ttl_sweeper(self, timeout: float | None = None) -> bool:  # type: ignore[override]
        return await asyncio.to_thread(super().stop_ttl_sweeper, timeout)


def _replace(substitute: type, name: str, *modules: ModuleType) -> None:
    for module in modules:
        assert hasattr(module, name), f"{module.__name__} has no {name} to replace"
        vars(module)[name] = substitute


_replace(InMemorySaver, "InMemorySaver", langgraph.checkpoint.memory)
_replace(InMemorySaver, "MemorySaver", langgraph.checkpoint.memory)
_replace(DatabaseSaver, "SqliteSaver", langgraph.checkpoint.sqlite)
_replace(DatabaseSaver, "PostgresSaver", langgraph.checkpoint.postgres)
_replace(AsyncDatabaseSaver, "AsyncSqliteSaver", langgraph.checkpoint.sqlite.aio)
_replace(AsyncDatabaseSaver, "AsyncPostgresSaver", langgraph.checkpoint.postgres.aio)
_replace(InMemoryStore, "InMemoryStore", langgraph.store.memory)
_replace(DatabaseStore, "SqliteStore", langgraph.store.sqlite)
_replace(DatabaseStore, "PostgresStore", langgraph.store.postgres)
_replace(AsyncDatabaseStore, "AsyncSqliteStore", langgraph.store.sqlite, langgraph.store.sqlite.aio)
_replace(AsyncDatabaseStore, "AsyncPostgresStore", langgraph.store.postgres)
