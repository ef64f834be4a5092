"""Run agent-framework's own tests with HoldfastCheckpointStorage (a plugin for pytest; load it with `-p`).

Job: replace `InMemoryCheckpointStorage` and `FileCheckpointStorage` before a test module imports them. The
substitutes take the same arguments; the storage in memory is a store in memory, the one in a folder is a
SQLite file in it. An application lists its classes in `allow`; the tests have no place for that, so `save`
allows the classes of the checkpoint first.

Invariant: the substitutes add only constructors and that permission. A test that made one of them has the
property `uses` in pytest's JUnit file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import agent_framework
import agent_framework._workflows._checkpoint as original
import pytest
from pydantic import BaseModel

import holdfast
from holdfast.integrations.agent_framework import HoldfastCheckpointStorage

_tests: list[pytest.Item] = []


class _Storage(HoldfastCheckpointStorage):
    def __init__(self, where: str) -> None:
        self._store = holdfast.open(where)
        super().__init__(self._store)
        if _tests:
            _tests[-1].user_properties.append(("uses", type(self).__name__))

    async def save(self, checkpoint: Any) -> str:
        for cls in set(_classes(checkpoint, set())):
            HoldfastCheckpointStorage(self._store, allow=[cls])
        return await super().save(checkpoint)


class InMemoryCheckpointStorage(_Storage):
    def __init__(self) -> None:
        super().__init__(":memory:")


class FileCheckpointStorage(_Storage):
    def __init__(
        self, storage_path: str | Path, *, allowed_checkpoint_types: list[str] | None = None
    ) -> None:
        self.storage_path = Path(storage_path)
        self.storage_path.mkdir(parents=True, exist_ok=True)
        super().__init__(str(self.storage_path / "runs.db"))


def _classes(value: Any, seen: set[int]) -> Iterator[type]:
    """Yield the classes of the application in a value, and those that a request names as its response."""
    if isinstance(value, type):
        if not value.__module__.startswith(("agent_framework", "builtins", "datetime", "uuid", "decimal")):
            yield value
        return
    is_plain = isinstance(value, str | bytes | int | float | None) and not isinstance(value, Enum)
    if is_plain or id(value) in seen:
        return
    seen.add(id(value))
    cls = type(value)
    if (is_dataclass(cls) or isinstance(value, BaseModel | Enum)) and not cls.__module__.startswith(
        "agent_framework"
    ):
        yield cls
    if isinstance(value, dict):
        parts: Any = [*value, *value.values()]
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    elif is_dataclass(cls):
        parts = [getattr(value, field.name) for field in fields(value)]
    else:
        parts = getattr(value, "__dict__", {}).values()
    for part in list(parts):
        yield from _classes(part, seen)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _tests[:] = [item]


for _cls in (InMemoryCheckpointStorage, FileCheckpointStorage):
    for _module in (agent_framework, original):
        setattr(_module, _cls.__name__, _cls)
