"""A page of open questions costs the same at 100 and at 100,000, with any filters: counted in SQLite's own steps, and
in the entries of the index that a store in memory reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.model.records import QuestionRecord
from holdfast.store.memory.store import MemoryStore
from holdfast.store.protocol import Append, QuestionPlace, Store
from holdfast.store.sqlite.connection import SQLiteConnection
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.testing.samples import new_run

_FEW, _MANY = 100, 100_000
_NOW = 1 << 50
_RUNS = 50
#: Questions have even priorities from -8 to 8. No question of `plan` is assigned to bo, though thousands have either.
_QUERIES: list[dict[str, Any]] = [
    {},
    {"assignee": "ana"},
    {"workflow": "plan", "assignee": "ana"},
    {"workflow": "plan", "assignee": "bo"},
    {"assignee": "zoe"},
    {"kind": "stalled"},
    {"opened_before": 2},
    {"opened_before": 10_000_000, "assignee": "ana", "kind": "question"},
    {"opened_before": 0, "workflow": "review"},
    {"after": QuestionPlace(0, 10, 1, 1)},
    {"after": QuestionPlace(-8, 10_000_000, 1, 1)},
]


def _fill(store: Store, count: int) -> None:
    share = count // _RUNS
    for number in range(_RUNS):
        asked = [
            QuestionRecord(
                number=n,
                opened=10 + number + n * _RUNS,
                workflow="plan" if n % 2 else "review",
                assignee="ana" if n % 2 else "bo",
                priority=2 * ((n + number) % 9 - 4),
                wake=1_000 + n,
            )
            for n in range(1, share + 1)
        ]
        store.append(Append(expect=None, run=new_run(f"run-{number}"), questions=asked))


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[SQLiteStore]]:
    folder = tmp_path_factory.mktemp("questions")
    found = [SQLiteStore(folder / f"{count}.db", durability="memory") for count in (_FEW, _MANY)]
    for store, count in zip(found, (_FEW, _MANY), strict=True):
        _fill(store, count)
    yield found
    for store in found:
        store.close()


class _Steps:
    """Counts the steps of SQLite's virtual machine on all connections of a store."""

    def __init__(self, store: SQLiteStore) -> None:
        self.count = 0
        self._connections: list[SQLiteConnection] = list(store._database._open)

    def __enter__(self) -> _Steps:
        for connection in self._connections:
            connection.set_progress_handler(self._add, 1)
        return self

    def _add(self) -> bool:
        self.count += 1
        return False

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.set_progress_handler(None)


def _steps(store: SQLiteStore, query: dict[str, Any]) -> tuple[int, int]:
    """Return the number of questions on a page, and the steps that reading it takes."""
    store.open_questions(now=_NOW, limit=1)
    with _Steps(store) as steps:
        found = store.open_questions(now=_NOW, limit=2, **query)
    return len(found), steps.count


@pytest.mark.parametrize("query", _QUERIES, ids=str)
def test_page_costs_the_same_at_any_number_of_questions(
    stores: list[SQLiteStore], query: dict[str, Any]
) -> None:
    few, many = stores
    (_, cost), (_, cost_of_many) = _steps(few, query), _steps(many, query)
    assert cost_of_many <= 1.5 * cost + 200, (cost, cost_of_many)


def test_reminders_cost_the_same_at_any_number_of_questions(stores: list[SQLiteStore]) -> None:
    costs = []
    for store in stores:
        for now in (0, 1_001):
            with _Steps(store) as steps:
                store.waking_questions(now, 3)
            costs.append(steps.count)
    assert costs[2] <= 1.5 * costs[0] + 100
    assert costs[3] <= 1.5 * costs[1] + 100


class _Places(list[Any]):
    """Counts the entries that are read."""

    reads = 0

    def __getitem__(self, at: Any) -> Any:
        _Places.reads += 1
        return super().__getitem__(at)

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            _Places.reads += 1
            yield each


def test_page_in_memory_costs_the_same_at_any_number_of_questions() -> None:
    costs: list[list[int]] = []
    for count in (_FEW, _MANY):
        store = MemoryStore()
        _fill(store, count)
        places = store._questions._places
        store._questions._places = {name: _Places(found) for name, found in places.items()}
        costs.append([])
        for query in _QUERIES:
            _Places.reads = 0
            store.open_questions(now=_NOW, limit=2, **query)
            costs[-1].append(_Places.reads)
        store.close()
    for query, few, many in zip(_QUERIES, *costs, strict=True):
        # A binary search of 100,000 entries reads ten more than one of 100, for each priority.
        assert many <= few + 300, (query, few, many)
