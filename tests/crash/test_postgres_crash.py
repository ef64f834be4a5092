"""Connections fail and servers crash while processes commit: no acknowledged commit is lost or written twice."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from postgres_server import Proxy, Server, address

import holdfast
from patience import until

pytest_plugins = ["postgres_fixtures"]

_COMMITTER = Path(__file__).with_name("postgres_committer.py")
#: How often; `make crash` asks for more.
_KILLS = int(os.environ.get("HOLDFAST_KILLS", "100"))
_RESTARTS, _CUTS = (20, 80) if "HOLDFAST_KILLS" in os.environ else (4, 8)


@contextmanager
def _committers(url: str, names: str, threads: int) -> Iterator[Callable[[], list[str]]]:
    """Start processes that commit; yield a function that ends them and returns the acknowledged commits."""
    with holdfast.open(url) as hf:
        hf.history("shared").commit({"tokens": []})
    running = [
        subprocess.Popen(
            [sys.executable, str(_COMMITTER), url, name, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]

    def end() -> list[str]:
        outcomes = [process.communicate(timeout=90) for process in running]
        assert [process.returncode for process in running] == [0] * len(running), [
            e[-3000:] for _, e in outcomes
        ]
        return [token for output, _ in outcomes for token in output.split()]

    try:
        with holdfast.open(url) as hf:
            while len(hf.runs(limit=1000)) <= threads * len(names):
                assert all(process.poll() is None for process in running)
                time.sleep(0.02)
        yield end
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _wait_for_commits(hf: holdfast.Holdfast, count: int) -> None:
    """Wait until the processes have made this many commits, so that a fault hits running work."""
    shared = hf.history("shared")
    wanted = shared.head.number + count
    until(lambda: shared.head.number >= wanted, "commits")


def _check(url: str, acknowledged: list[str]) -> None:
    """Check that exactly the acknowledged commits are stored."""
    assert len(acknowledged) == len(set(acknowledged))
    with holdfast.open(url) as hf:
        shared = hf.history("shared")
        tokens = Counter(shared.head.state["tokens"])
        assert tokens == Counter(acknowledged)
        by_thread = Counter(token.rpartition("-")[0] for token in acknowledged)
        for name, count in by_thread.items():
            assert hf.history(name).head.state == {"count": count}
            assert hf.history(name).head.number == count
        assert shared.head.number == len(acknowledged) + 1
        assert hf.verify().problems == ()


@pytest.mark.slow
def test_commits_survive_terminated_connections(server: str, schema: str) -> None:
    url = address(server, schema, application_name=schema)
    rng = random.Random(schema)
    killed = 0
    with _committers(url, "ab", 3) as end, psycopg.connect(server, autocommit=True) as admin:
        end_at = time.monotonic() + 60 + _KILLS / 5
        while killed < _KILLS and time.monotonic() < end_at:
            found = admin.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name = %s ORDER BY state, pid", (schema,)
            ).fetchall()
            if found:
                (pid,) = rng.choice(found)
                row = admin.execute("SELECT pg_terminate_backend(%s)", (pid,)).fetchone()
                killed += row == (True,)
            time.sleep(rng.random() * 0.02)
        acknowledged = end()
    assert killed >= _KILLS
    _check(url, acknowledged)
    assert len(acknowledged) > 20


@pytest.mark.slow
def test_commits_survive_server_crashes(own_server: Server) -> None:
    url = address(own_server.url, "crash")
    with _committers(url, "ab", 2) as end:
        for _ in range(_RESTARTS):
            time.sleep(0.5)
            own_server.crash()
        time.sleep(0.5)
        acknowledged = end()
    _check(url, acknowledged)
    assert len(acknowledged) > 2 * _RESTARTS


@pytest.mark.slow
def test_commits_survive_a_network_that_fails_and_stalls(server: str, schema: str) -> None:
    with Proxy(server) as proxy:
        url = address(proxy.url, schema)
        with _committers(url, "ab", 2) as end, holdfast.open(address(server, schema)) as hf:
            for turn in range(_CUTS):
                _wait_for_commits(hf, 2)
                if turn % 8 == 3:
                    proxy.stall()
                else:
                    proxy.cut()
            _wait_for_commits(hf, 2)
            acknowledged = end()
    _check(address(server, schema), acknowledged)
    assert len(acknowledged) > 10
