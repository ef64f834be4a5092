"""Concurrent snapshots: threads, processes, and killed processes, on SQLite and PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
import snapshot_fixtures
from postgres_server import Server, address
from snapshot_fixtures import RunStore, numbers, taken

import autosave_timers
import holdfast
from holdfast.snapshots import SnapshotManager

pytest_plugins = ["postgres_fixtures"]
file, manager, no_timer_is_left = (
    snapshot_fixtures.file,
    snapshot_fixtures.manager,
    autosave_timers.no_timer_is_left,
)

WORKER = Path(__file__).with_name("snapshot_worker.py")


def whole(manager: SnapshotManager) -> None:
    """Check that no snapshot mixes the states of two writers."""
    for snapshot in manager.get_all_snapshots("run-1"):
        assert list(snapshot.twice) == [snapshot.by, snapshot.n]


def start(where: str, name: str, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, str(WORKER), where, name, str(count)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def all_at_once(where: str, count: int) -> list[int]:
    workers = [start(where, name, count) for name in ("a", "b", "c")]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    outputs = [worker.communicate()[0] for worker in workers]
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    return sorted(int(line) for text in outputs for line in text.split())


def test_threads_on_one_run_get_different_numbers(manager: SnapshotManager) -> None:
    made: list[int] = []
    ready = threading.Barrier(4)

    def work(name: str) -> None:
        ready.wait()
        for index in range(15):
            made.append(taken(manager, {"by": name, "n": index, "twice": [name, index]}).number)
            manager.get_all_snapshots("run-1")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == list(range(1, 61))
    assert numbers(manager) == [56, 57, 58, 59, 60]
    whole(manager)


@pytest.mark.slow
def test_processes_on_one_run_keep_the_latest_snapshots(file: Path) -> None:
    assert all_at_once(str(file), 15) == list(range(1, 46))
    with SnapshotManager(4, file) as manager:
        assert numbers(manager) == [42, 43, 44, 45]
        whole(manager)
    with holdfast.open(file) as hf:
        assert hf.verify().ok


def test_killed_process_leaves_complete_snapshots(file: Path) -> None:
    worker = start(str(file), "a", 100_000)
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()
    seen = 0
    for line in worker.stdout:
        if line != "ready\n" and (seen := int(line)) >= 10:
            break
    worker.kill()
    worker.communicate()
    with SnapshotManager(4, file) as manager:
        found = numbers(manager)
        assert found[-1] >= seen
        assert len(found) in (4, 5)
        whole(manager)
        taken(manager, {"by": "b", "n": 0, "twice": ["b", 0]})
        assert numbers(manager) == [*found[-3:], found[-1] + 1]
    with holdfast.open(file) as hf:
        assert hf.verify().ok


def test_manager_works_on_postgres(url: str) -> None:
    assert all_at_once(url, 5) == list(range(1, 16))
    with SnapshotManager(4, url) as manager:
        assert numbers(manager) == [12, 13, 14, 15]
        whole(manager)
        store = RunStore("run-2")
        made = taken(manager, store, "run-2", tags=["good"])
        store.status = "failed"
        manager.restore_from_snapshot("run-2", store, made)
        assert store.status == "pending"
        assert manager.get_run_ids() == ["run-1", "run-2"]
        manager.clear_all_snapshots()
        assert manager.get_run_ids() == []
        assert "@" not in repr(manager) or "password" not in repr(manager)


@pytest.mark.parametrize("shape", ["one large value", "many small values"])
def test_disk_of_a_server_is_bounded_without_autovacuum(own_server: Server, shape: str) -> None:
    def state(number: int) -> dict[str, Any]:
        if shape == "one large value":
            return {"n": number, "page": os.urandom(1_000_000)}
        return {"n": number, "rows": [os.urandom(125) for _ in range(8_000)]}

    schema = shape.replace(" ", "_")
    with (
        SnapshotManager(2, address(own_server.url, schema), strict=True) as manager,
        psycopg.connect(own_server.url, autocommit=True) as connection,
    ):
        connection.execute(f"SET search_path TO {schema}")
        for table in ("artifact_piece", "journal", "block"):
            connection.execute(
                f"ALTER TABLE {table} SET (autovacuum_enabled = false, toast.autovacuum_enabled = false)"
            )
        for number in range(60):
            manager.create_snapshot("run-1", state(number))
        row = connection.execute(
            "SELECT sum(pg_table_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace "
            "WHERE relkind = 'r' AND nspname = current_schema()"
        ).fetchone()
        assert row is not None
        assert row[0] < 6_000_000
        assert numbers(manager) == [59, 60]


def test_large_values_are_never_deleted_under_another_writer(file: Path) -> None:
    """Several managers replace, keep and prune large values of one run at once."""
    errors: list[BaseException] = []
    ready = threading.Barrier(4)

    def work(name: str) -> None:
        try:
            with SnapshotManager(1, file, strict=True) as manager:
                ready.wait()
                for index in range(12):
                    page = (name if index % 3 else "shared") * 40_000
                    taken(
                        manager,
                        {"by": name, "n": index, "twice": [name, index], "page": page, "same": "x" * 90_000},
                    )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(name * 3,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with SnapshotManager(1, file) as manager:
        whole(manager)
        assert len(numbers(manager)) == 1
    with holdfast.open(file) as hf:
        assert hf.verify().ok
        assert hf.stats().artifacts <= 2
