"""The process that holds the write lock of a SQLite file is named."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from database import Database
from holdfast.errors import StoreBusy
from holdfast.store.sqlite.connection import find_lock_holder
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.testing.samples import commit, history

pytestmark = pytest.mark.skipif(
    not Path("/proc/locks").exists(), reason="only Linux lists the locks of files"
)

_HOLDS_THE_LOCK = """
import sys
from holdfast.store.sqlite.connection import SQLiteConnection
connection = SQLiteConnection(sys.argv[1], 5.0)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""


def test_stopped_process_that_holds_the_lock_is_named(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path, timeout=0.2)) as store:
        run = history(store, 2)
        assert find_lock_holder(str(path)) is None
        holder = subprocess.Popen(
            [sys.executable, "-c", _HOLDS_THE_LOCK, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            with pytest.raises(StoreBusy, match=f"locked by process {holder.pid} for 0.2 s: try") as busy:
                commit(store, run)
            assert busy.value.details["pid"] == holder.pid
            os.kill(holder.pid, signal.SIGSTOP)
            os.waitpid(holder.pid, os.WUNTRACED)
            with pytest.raises(StoreBusy, match=f"process {holder.pid} .*stopped.*kill -CONT {holder.pid}"):
                commit(store, run)
            assert store.run("run") == run
        finally:
            holder.kill()
            holder.communicate()
        assert commit(store, run).last == 3


def test_this_process_is_named_as_lock_holder(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path, timeout=0.2)) as store, Database(path) as other:
        run = history(store, 2)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy, match="locked by this process"):
            commit(store, run)


def test_lock_holder_of_a_missing_file_is_unknown(tmp_path: Path) -> None:
    assert find_lock_holder(str(tmp_path / "none.db")) is None
    assert find_lock_holder("a\0b") is None
