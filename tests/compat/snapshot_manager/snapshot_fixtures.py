"""Fixtures of the tests of the snapshot manager: runs of many kinds, and a manager on memory and on SQLite."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

from holdfast.snapshots import Snapshot, SnapshotManager

#: Short enough that a timer fires at once; longer than any test.
SOON, NEVER = 0.005, 999.0


class RunStore:
    """The store of the system whose API the manager follows."""

    def __init__(self, run_id: str = "run-1", workflow_id: str = "research") -> None:
        self.run_id, self.workflow_id = run_id, workflow_id
        self.status = "pending"
        self.step_results: dict[str, Any] = {}
        self.execution_path: list[int] = []
        self.suspended_paths: dict[str, list[int]] = {}
        self.events: list[Any] = []
        self.execution_graph: list[Any] = []
        self.result: Any = None
        self.error: Any = None
        self.logs: list[Any] = []
        self.execution_context: dict[str, Any] = {}


class Run:
    """A run with its own store."""

    def __init__(self, run_id: str, workflow_id: str = "research") -> None:
        self.run_id, self.workflow_id = run_id, workflow_id
        self.store = RunStore(run_id, workflow_id)


@dataclasses.dataclass
class Plan:
    goal: str = "kelp"
    done: list[int] = dataclasses.field(default_factory=list)
    _client: Any = None


@dataclasses.dataclass(frozen=True)
class FrozenPlan:
    goal: str = "kelp"


class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow", validate_assignment=True)
    goal: str = "kelp"
    done: list[int] = []


class Struct(msgspec.Struct):
    goal: str = "kelp"
    done: list[int] = []


class Slots:
    __slots__ = ("__weakref__", "_client", "done", "goal")

    def __init__(self) -> None:
        self.goal, self.done, self._client = "kelp", [1], object()


class Unregistered(Exception):
    """An error whose class is not registered."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "snapshots.db"


@pytest.fixture(params=["memory", "sqlite"])
def manager(request: pytest.FixtureRequest, file: Path) -> Iterator[SnapshotManager]:
    with SnapshotManager(5, None if request.param == "memory" else file, strict=True) as made:
        yield made


def taken(manager: SnapshotManager, store: Any, run_id: str = "run-1", **options: Any) -> Snapshot:
    made = manager.create_snapshot(run_id, store, **options)
    assert made is not None
    return made


def numbers(manager: SnapshotManager, run_id: str = "run-1", **options: Any) -> list[int]:
    return [snapshot.number for snapshot in manager.get_all_snapshots(run_id, **options)]
