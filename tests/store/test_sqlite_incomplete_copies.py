"""Copies of a SQLite file without its WAL."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import HoldfastWarning
from holdfast.store.sqlite.connection import SQLiteConnection

_KILLED = """
import os, signal, sys
import holdfast
hf = holdfast.open(sys.argv[1])
hf.history("run").commit({"n": 1})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Yield a new store whose only process was killed."""
    path = tmp_path / "runs.db"
    subprocess.run([sys.executable, "-c", _KILLED, str(path)], check=False)
    assert os.path.getsize(f"{path}-wal") > 0
    return path


def test_copy_of_a_new_store_without_its_wal_warns(killed: Path) -> None:
    copy = killed.with_name("copy.db")
    shutil.copy(killed, copy)
    with pytest.warns(HoldfastWarning, match=r"copy\.db-wal is missing.*holdfast backup") as noticed:
        holdfast.open(copy).close()
    assert [warning.filename for warning in noticed] == [__file__]


def test_complete_stores_do_not_warn(killed: Path, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        shutil.copy(killed, tmp_path / "both.db")
        shutil.copy(f"{killed}-wal", tmp_path / "both.db-wal")
        for name in ("both.db", "runs.db"):
            with holdfast.open(tmp_path / name) as hf:
                assert sorted(run.id for run in hf.iter_runs()) == ["run"]
        # Closed in order: the file alone holds everything.
        shutil.copy(killed, tmp_path / "alone.db")
        with holdfast.open(tmp_path / "alone.db") as hf:
            assert sorted(run.id for run in hf.iter_runs()) == ["run"]
            hf.backup(tmp_path / "backup.db")
        holdfast.open(tmp_path / "backup.db").close()
        holdfast.open(tmp_path / "new.db").close()
        (tmp_path / "empty.db").touch()
        holdfast.open(tmp_path / "empty.db").close()


def test_store_whose_first_process_died_before_its_first_commit_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    connection = SQLiteConnection(str(path), 1.0)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()
    assert not os.path.exists(f"{path}-wal")
    with pytest.warns(HoldfastWarning, match="if this is a copy"), holdfast.open(path) as hf:
        hf.history("run").commit({"n": 1})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with holdfast.open(path) as hf:
            assert sorted(run.id for run in hf.iter_runs()) == ["run"]
