"""Waiting for commits to a SQLite file, of this process and of others."""

from __future__ import annotations

import os
import threading
from contextlib import closing
from pathlib import Path

from holdfast.store.sqlite.store import SQLiteStore
from holdfast.testing.samples import commit, history


def test_wait_for_change_reports_every_commit_once(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store, closing(SQLiteStore(path)) as other:
        run = history(store, 2)
        for one in (store, other):
            assert one.wait_for_change(0)
            assert not one.wait_for_change(0)
        for _ in range(3):
            run = commit(store, run)
            for one in (store, other):
                assert one.wait_for_change(0)
                assert not one.wait_for_change(0)


def test_wait_for_change_is_independent_of_file_times(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store, closing(SQLiteStore(path)) as other:
        run = history(store, 2)
        os.utime(f"{path}-wal", (0, 0))
        other.wait_for_change(0)
        commit(store, run)
        os.utime(f"{path}-wal", (0, 0))
        assert other.wait_for_change(0)


def test_wait_for_change_allows_a_fork(tmp_path: Path) -> None:
    with closing(SQLiteStore(tmp_path / "runs.db", timeout=600.0)) as store:
        run = history(store, 2)
        looking, ended = threading.Event(), threading.Event()

        def look() -> None:
            while not ended.is_set():
                store.wait_for_change(0.01)
                looking.set()

        thread = threading.Thread(target=look)
        thread.start()
        try:
            assert looking.wait(60)
            for _ in range(5):
                pid = os.fork()
                if pid == 0:
                    store.wait_for_change(0)
                    commit(store, run)
                    os._exit(0 if store.wait_for_change(0) else 1)
                assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
                last = store.run("run")
                assert last is not None
                run = last
        finally:
            ended.set()
            thread.join()
        assert run.last == 7


def test_wait_for_change_of_a_closed_store_returns(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "runs.db")
    history(store, 1)
    assert store.wait_for_change(0)
    store.close()
    assert store.wait_for_change(0)
    assert os.listdir(tmp_path) == ["runs.db"]
