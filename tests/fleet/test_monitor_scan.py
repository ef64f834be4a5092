"""What a look costs in a store that holds many runs which have ended: no statement of it reads them all."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast
from database import Database
from holdfast import Holdfast, step, workflow
from holdfast.model.records import RunRecord
from holdfast.store.protocol import Append

pytest_plugins = ["postgres_fixtures"]
ENDED = 100_000
RUNNING = 50

#: Rows as they are after a run has ended, but for the sum: whoever reads one is told that it is damaged.
_ROWS = (
    "INSERT INTO run (key, id, workflow, status, created, updated, head, last, timeline, revision, epoch, size, kept, "
    "until, sum{more}) SELECT n, 'ended-' || n, 'scan', 4, 1, 1, 1, 1, 1, 1, 0, 100, 1, 0, {sum}{value} FROM {numbers}"
)


@step(name="scan_step")
def one() -> int:
    return 1


@workflow(name="scan")
def scan() -> int:
    return one()


def filled(hf: Holdfast) -> None:
    """Some runs that others advance, some in a queue, one that has ended as runs do."""
    hf.run(scan, run_id="first")
    now = hf._context.clock()
    for number in range(RUNNING):
        run = RunRecord(
            id=f"running-{number}", workflow="scan", created=now, updated=now, owner="elsewhere|1|2|3",
            until=now + 3_600_000_000,
        )  # fmt: skip
        hf._store.append(Append(None, run))
        hf.enqueue(scan, run_id=f"queued-{number}")


def look(hf: Holdfast) -> None:
    monitor = hf.monitor()
    assert monitor.look() == []
    assert len(list(monitor._running())) == RUNNING
    assert hf.inbox() == []


def test_monitor_scan_of_sqlite_reads_no_ended_runs(tmp_path: Path) -> None:
    where = str(tmp_path / "runs.db")
    with holdfast.open(where) as hf:
        filled(hf)
        numbers = f"(WITH RECURSIVE c (n) AS (SELECT 1000 UNION ALL SELECT n + 1 FROM c LIMIT {ENDED}) SELECT n FROM c)"
        with Database(where) as connection:
            connection.execute(_ROWS.format(sum="x''", more="", value="", numbers=numbers))
        seen: dict[str, Any] = {}

        def noted(_: Any, statement: str, values: Any) -> bool:
            seen[statement] = values
            return True

        with hf._store._database.reader() as connection:  # type: ignore[attr-defined]
            connection.exec_trace = noted
        look(hf)
        connection.exec_trace = None
        asked = [each for each in seen if "FROM run" in each and each.startswith("SELECT")]
        plans = {each: str(connection.rows(f"EXPLAIN QUERY PLAN {each}", seen[each])) for each in asked}
    assert len([plan for plan in plans.values() if "USING INDEX run_live (status=?" in plan]) >= 3
    assert [each for each, plan in plans.items() if "SCAN run" in plan] == []


def test_monitor_scan_of_postgresql_reads_no_ended_runs(
    server: str, schema: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with holdfast.open(url) as hf:
        filled(hf)
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f'SET search_path TO "{schema}"')
            numbers = f"generate_series(1000, {1000 + ENDED}) AS s (n)"
            connection.execute(_ROWS.format(sum="''", more=", attempt", value=", 0", numbers=numbers))
            connection.execute("ANALYZE run")
        pool: Any = hf._store._pool  # type: ignore[attr-defined]
        rows, seen = pool.rows, {}

        def noted(statement: str, values: Sequence[Any] = ()) -> Any:
            seen[statement] = values
            return rows(statement, values)

        with monkeypatch.context() as patch:
            patch.setattr(pool, "rows", noted)
            look(hf)
        asked = {each: values for each, values in seen.items() if "FROM run" in each}
        plans = {each: str(rows(f"EXPLAIN {each}", values)) for each, values in asked.items()}
    assert len([plan for plan in plans.values() if "run_live" in plan or "run_due" in plan]) >= 3
    assert [each for each, plan in plans.items() if "Seq Scan on run" in plan or "run_pkey" in plan] == []
