"""PostgreSQL stores use the server's clock, regardless of the clocks of the machines."""

from __future__ import annotations

import subprocess
import sys
import time

import psycopg
import pytest

import holdfast
from holdfast import Holdfast, workflow
from holdfast.execution.lease import is_alive
from holdfast.model.records import RunRecord
from holdfast.store.postgres.store import PostgresStore
from holdfast.workflow.definition import workflows

pytest_plugins = ["postgres_fixtures"]

HOUR = 3_600_000_000
#: Microseconds that a slow machine may take for two questions.
CLOSE = 30_000_000

AHEAD = """
import sys, time
real = time.time, time.time_ns
time.time = lambda: real[0]() + 3600
time.time_ns = lambda: real[1]() + 3_600_000_000_000
import holdfast
from holdfast import workflow

@workflow(name="pt_held")
def held():
    return "taken"

with holdfast.open(sys.argv[1]) as hf:
    worker = hf.worker(monitor=False)
    print(worker._claim())
"""


@workflow(name="pt_held")
def held() -> str:
    return "taken"


def server_time(server: str) -> int:
    with psycopg.connect(server, autocommit=True) as connection:
        row = connection.execute("SELECT extract(epoch FROM clock_timestamp()) * 1000000").fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("wrong", [-HOUR, HOUR])
def test_clock_of_this_machine_has_no_effect(
    url: str, server: str, wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, nanoseconds = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: own() + wrong / 1_000_000)
    monkeypatch.setattr(time, "time_ns", lambda: nanoseconds() + wrong * 1000)
    with holdfast.open(url) as hf:
        assert abs(hf._context.clock() - server_time(server)) < CLOSE
        run = hf.run(held)
        assert abs(run.history().head.at.timestamp() * 1_000_000 - server_time(server)) < CLOSE


def test_drift_is_measured_at_each_renewal(url: str, server: str) -> None:
    store = PostgresStore(url)
    for wrong in (HOUR, -HOUR):
        store._pool.time._ahead = (store._pool.time._ahead or 0) + wrong
        store.renew([], "me", 0)
        assert abs(store.now() - server_time(server)) < CLOSE
    store.close()


def test_machine_with_a_fast_clock_takes_no_run(url: str) -> None:
    with holdfast.open(url) as hf:
        hf.enqueue(held, run_id="run")
        (run,) = _claimed(hf)
        assert is_alive(run, hf._context.clock())
        done = subprocess.run(
            [sys.executable, "-c", AHEAD, url], capture_output=True, text=True, timeout=60, check=True
        )
        assert done.stdout.strip() == "0"


def _claimed(hf: Holdfast) -> list[RunRecord]:
    worker = hf.worker(monitor=False)
    return hf._store.claim(worker._wanted(["default"], workflows(), 1, None))
