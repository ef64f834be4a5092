"""LangGraph's long-term memory: our store and its SqliteStore, in the same run."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import workload
from bench.measure import Bench, Row, file_size, megabytes, note, seconds

_ITEMS = 2_000
_READS = 500
_NAMESPACE = ("memories", "ana")


def items(bench: Bench) -> Iterator[Row]:
    """Puts, gets and searches of 2,000 memories in LangGraph's store, beside SqliteStore."""
    if importlib.util.find_spec("langgraph.store.sqlite") is None:
        note("LangGraph's SqliteStore: not installed, left out")
        return
    work = f"{_ITEMS:,} memories, LangGraph"
    note(work)
    values = [{"text": message["content"], "n": n} for n, message in enumerate(workload.messages(_ITEMS))]

    def once(folder: Path) -> tuple[float, ...]:
        return *_use(_ours, folder / "ours.db", values), *_use(_theirs, folder / "theirs.db", values)

    found = bench.seldom().repeat(once)
    ours, theirs = found[: len(found) // 2], found[len(found) // 2 :]
    for name, count, mine, its in zip(
        ("put", "put, 100 in a batch", "get", "search, the 10 newest", "search by a filter that matches one"),
        (_ITEMS, _ITEMS, _READS, _READS, _READS // 20),
        ours,
        theirs,
        strict=False,
    ):
        rates = f"{count / mine:,.0f}/s, SqliteStore {count / its:,.0f}/s"
        yield Row(work, f"{name}: rate ÷ SqliteStore's", its / mine, "×", rates)
    yield Row(
        work,
        "its file ÷ our file",
        theirs[-1] / ours[-1],
        "×",
        f"{megabytes(theirs[-1])} to {megabytes(ours[-1])}",
    )


def _use(opened: Callable[[Path], Any], file: Path, values: list[dict[str, Any]]) -> tuple[float, ...]:
    """Seconds to put one by one, in batches, to get, to search, to search by a filter; bytes of the file."""
    from langgraph.store.base import PutOp

    source = random.Random(6)
    wanted = [str(source.randrange(_ITEMS)) for _ in range(_READS)]

    def put() -> None:
        for n, value in enumerate(values):
            store.put(_NAMESPACE, str(n), value)

    def put_batches() -> None:
        for start in range(0, _ITEMS, 100):
            page = range(start, start + 100)
            store.batch([PutOp(("memories", "bo"), str(n), values[n]) for n in page])

    def get() -> None:
        for key in wanted:
            assert store.get(_NAMESPACE, key) is not None

    def search() -> None:
        for _ in wanted:
            assert len(store.search(_NAMESPACE, limit=10)) == 10

    def search_filter() -> None:
        for key in wanted[: _READS // 20]:
            assert len(store.search(_NAMESPACE, filter={"n": int(key)})) == 1

    with opened(file) as store:
        spent = [seconds(each) for each in (put, put_batches, get, search, search_filter)]
    return *spent, file_size(file)


def _ours(file: Path) -> Any:
    from holdfast.integrations.langgraph import HoldfastStore

    return HoldfastStore(file)


def _theirs(file: Path) -> Any:
    import sqlite3
    from contextlib import contextmanager

    from langgraph.store.sqlite import SqliteStore

    @contextmanager
    def opened() -> Iterator[Any]:
        connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None)
        try:
            store = SqliteStore(connection)
            store.setup()
            yield store
        finally:
            connection.close()

    return opened()
