"""How databases find the runs of some metadata: a page reads a range of an index, however many runs there are."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from holdfast.model.meta import facet_of, meta_rows
from holdfast.store import sql
from holdfast.store.postgres import store as postgres
from holdfast.store.sqlite import store as sqlite

pytest_plugins = ["postgres_fixtures"]
_ROWS = meta_rows({"customer": 7, "env": "test"})


class _Statements:
    """A database that only notes the statements."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        self.found.append(statement)
        return []


def _statements(dialect: sql.SQLDialect) -> list[str]:
    database: Any = _Statements()
    runs = sql.SQLRuns(database, dialect)
    runs.runs(meta=_ROWS[:1], limit=100)
    runs.runs(meta=_ROWS, limit=100, before=5)
    runs.runs(meta=_ROWS, limit=100, statuses=["failed"])
    return list(database.found)


def test_sqlite_reads_a_range_of_the_index(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db") as hf:
        hf.history("a", meta={"customer": 7}).commit({})
    connection = sqlite3.connect(tmp_path / "runs.db")
    for statement in _statements(sqlite._DIALECT):
        values = [b"", 5, 100][: statement.count("$")]
        plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
        assert plan[0].startswith("SEARCH meta_place USING PRIMARY KEY (facet=?"), plan
        assert plan[1].startswith("SEARCH run USING INTEGER PRIMARY KEY"), plan
        assert not any("TEMP B-TREE" in line for line in plan)
    connection.close()


@pytest.mark.slow
def test_postgres_reads_a_range_of_the_index(url: str, server: str, schema: str) -> None:
    with holdfast.open(url) as hf:
        hf.history("a", meta={"customer": 7}).commit({})
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f'SET search_path TO "{schema}"')
        # Half of the runs, the oldest ones, have the value.
        connection.execute(
            "INSERT INTO run SELECT g + 100, 'r' || g, " + _OTHER + " FROM run, generate_series(1, 40000) g"
        )
        places = "INSERT INTO meta_place SELECT %s, g + 100 FROM generate_series(1, 20000) g"
        connection.execute(places, (facet_of(_ROWS),))
        # The server does so itself after many changes.
        connection.execute("ANALYZE run, meta_place")
        for statement in _statements(postgres._dialect(schema)):
            facet = f"meta_place.facet = '\\x{facet_of(_ROWS).hex()}'"
            given = re.sub(r"meta_place\.facet = \$\d", facet.replace("\\", r"\\"), statement)
            given = re.sub(r"\$\d", "5", given)
            plan = "\n".join(row[0] for row in connection.execute(f"EXPLAIN {given}"))
            assert "Index Only Scan Backward using meta_place_pkey" in plan, plan
            assert not any(word in plan for word in ("Sort", "Hash", "Merge", "Seq Scan")), plan


_OTHER = (
    "workflow, status, created, updated, head, last, timeline, revision, epoch, origin_run, origin_version, step, "
    "size, kept, parent, due, owner, detail, until, sum, attempt"
)
