"""What is particular to SQLite's files: opening and refusing, rights, room, locks, other writers."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from database import Database
from holdfast.errors import (
    CorruptStore,
    IncompatibleFormat,
    InvalidCall,
    StoreBusy,
    StoreUnavailable,
)
from holdfast.store import sqlite_format
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing.samples import (
    begin,
    commit,
    content,
    digest,
    everything,
    history,
    numbers,
    upload,
)

_NOBODY = 65534
_OPENS = """
import os, sys
from holdfast.errors import HoldfastError
from holdfast.store.sqlite import SQLiteStore
from holdfast.store.sqlite_format import migrations
from holdfast.testing.samples import history
if sys.argv[3:]:
    migrations()
    os.setgid(int(sys.argv[3]))
    os.setuid(int(sys.argv[3]))
try:
    store = SQLiteStore(sys.argv[1], timeout=float(sys.argv[2]))
except HoldfastError as error:
    print("open", type(error).__name__, error)
    raise SystemExit
print("run", store.run("run") is not None)
try:
    print("wrote", history(store, 1, "new").last)
except HoldfastError as error:
    print("write", type(error).__name__, error)
"""
_HOLDS_THE_LOCK = """
import sys
from holdfast.store.sqlite_connection import Connection
connection = Connection(sys.argv[1], 5.0)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
"""
_OPENS_WHEN_TOLD = """
import sys
from holdfast.store.sqlite import SQLiteStore
from holdfast.testing.samples import commit, new_run
me, *paths = sys.argv[1:]
print("ready", flush=True)
for path in paths:
    sys.stdin.readline()
    store = SQLiteStore(path)
    run = new_run("run-" + me)
    for _ in range(3):
        run = commit(store, run)
    store.close()
    print("done", flush=True)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def store(path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(path)
    yield store
    store.close()


def _python(code: str, *args: object) -> str:
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _talking(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# Opening


@pytest.mark.parametrize(
    "data",
    [b"x", b"hello\n", b"a text of some length\n" * 500, random.Random(1).randbytes(20_000), bytes(5_000)],
    ids=["byte", "word", "text", "random", "zeros"],
)
def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(IncompatibleFormat, match="not a Holdfast store"):
        SQLiteStore(path)
    assert path.read_bytes() == data
    assert list(path.parent.iterdir()) == [path]


def test_an_empty_file_is_as_good_as_none(path: Path) -> None:
    path.touch()
    with closing(SQLiteStore(path)) as store:
        history(store, 2)
    with closing(SQLiteStore(str(path))) as store:
        run = store.run("run")
        assert run is not None
        assert numbers(store.versions(run.key)) == [2, 1]


@pytest.mark.parametrize(
    "statements",
    [
        "CREATE TABLE run (key INTEGER)",
        "PRAGMA application_id=77",
        "PRAGMA application_id=77; PRAGMA user_version=1; CREATE TABLE journal (seq)",
        f"PRAGMA application_id={sqlite_format.APPLICATION_ID}; PRAGMA user_version=999",
    ],
    ids=["tables", "marked", "both", "newer"],
)
def test_a_database_of_others_is_refused_and_left_alone(path: Path, statements: str) -> None:
    with Database(path) as connection:
        connection.execute(statements)
    data = path.read_bytes()
    with pytest.raises(IncompatibleFormat):
        SQLiteStore(path)
    assert path.read_bytes() == data


def test_a_newer_format_asks_for_an_upgrade(path: Path) -> None:
    SQLiteStore(path).close()
    newer = len(sqlite_format.migrations()) + 1
    with Database(path) as connection:
        connection.execute(f"PRAGMA user_version={newer}")
    with pytest.raises(IncompatibleFormat, match="upgrade Holdfast"):
        SQLiteStore(path)


def test_a_path_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="does not exist"):
        SQLiteStore(tmp_path / "missing" / "runs.db")
    with pytest.raises(StoreUnavailable, match="is a folder"):
        SQLiteStore(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable):
        SQLiteStore(tmp_path / "file" / "runs.db")
    with pytest.raises(StoreUnavailable):
        SQLiteStore(tmp_path / "runs.db", artifacts=tmp_path / "file" / "artifacts")
    with pytest.raises(InvalidCall, match="durability"):
        SQLiteStore(tmp_path / "runs.db", durability="eternal")


@pytest.mark.parametrize(("durability", "synchronous"), [("durable", 2), ("fast", 1), ("memory", 0)])
def test_durability_reaches_every_connection(path: Path, durability: str, synchronous: int) -> None:
    with closing(SQLiteStore(path, durability=durability)) as store:
        history(store, 1)
        connections = [store._link._writing(), *store._link._idle]
        assert len(connections) == 2
        for connection in connections:
            assert connection.execute("PRAGMA synchronous").fetchone() == (synchronous,)
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_migrations_are_numbered_without_holes(path: Path) -> None:
    names = sorted(file.name for file in (Path(sqlite_format.__file__).parent / "sql").glob("*.sql"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    assert all(name[4] == "_" for name in names)
    assert len(sqlite_format.migrations()) == len(names)
    SQLiteStore(path).close()
    with Database(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(names),)
        assert connection.execute("PRAGMA application_id").fetchone() == (0x686F6C64,)


def test_processes_that_open_a_new_file_at_once_all_succeed(tmp_path: Path) -> None:
    paths = [tmp_path / f"runs-{turn}.db" for turn in range(6)]
    processes = [_talking(_OPENS_WHEN_TOLD, me, *paths) for me in range(8)]
    assert [_hear(process) for process in processes] == ["ready"] * 8
    for path in paths:
        for process in processes:
            _tell(process)
        assert [_hear(process) for process in processes] == ["done"] * 8
        with closing(SQLiteStore(path)) as store:
            assert store.run_ids("", 99) == [f"run-{me}" for me in range(8)]
            assert store.stats().versions == 24
            assert store.check() == []
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0


# Rights, room, locks


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that any user can reach, with a store in it."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-public-", dir="/tmp"))
    with closing(SQLiteStore(folder / "runs.db")) as store:
        history(store, 1)
    folder.chmod(0o777)
    (folder / "runs.db").chmod(0o666)
    yield folder
    folder.chmod(0o777)
    shutil.rmtree(folder)


def _as_another(path: Path) -> str:
    """Open a store as one whom the permission bits bind. The child becomes that user by itself: to start as it,
    it would need the right to read this Python."""
    return _python(_OPENS, path, 0.2, *([_NOBODY] if os.geteuid() == 0 else []))


def test_another_user_may_write_where_the_rights_allow_it(public: Path) -> None:
    assert _as_another(public / "runs.db").split() == ["run", "True", "wrote", "1"]


def test_a_read_only_file_can_be_read(public: Path) -> None:
    (public / "runs.db").chmod(0o444)
    told = _as_another(public / "runs.db").splitlines()
    assert told[0] == "run True"
    assert told[1].startswith("write StoreUnavailable")
    assert "read-only" in told[1]


def test_in_a_folder_without_rights_what_is_there_can_be_read(public: Path) -> None:
    public.chmod(0o555)
    told = _as_another(public / "runs.db").splitlines()
    assert told[0] == "run True"
    assert told[1].startswith("write StoreUnavailable")
    assert "make it and its folder writable" in told[1]
    assert _as_another(public / "new.db").startswith("open StoreUnavailable")


def test_a_file_without_rights_is_told(public: Path) -> None:
    (public / "runs.db").chmod(0)
    assert _as_another(public / "runs.db").startswith("open StoreUnavailable")


def test_a_full_disk_costs_only_what_did_not_fit(store: SQLiteStore) -> None:
    run = history(store, 3)
    before = everything(store)
    writer = store._link._writing()
    pages = writer.value("PRAGMA page_count")
    writer.execute(f"PRAGMA max_page_count={pages + 3}")
    large = content("large", 400_000)
    with pytest.raises(StoreUnavailable, match="no space left"):
        commit(store, run, pack=large)
    with pytest.raises(StoreUnavailable, match="no space left"):
        commit(store, run, change={"uploads": [upload(large)], "holds": [digest(large)]})
    with pytest.raises(StoreUnavailable, match="no space left"):
        store.put_artifact(upload(large), 5)
    assert everything(store) == before
    run = commit(store, run)
    writer.execute("PRAGMA max_page_count=1000000")
    run = commit(store, run, pack=large, change={"uploads": [upload(large)], "holds": [digest(large)]})
    assert run.last == 5
    assert b"".join(store.artifact_pieces(digest(large))) == large
    assert store.check() == []


def test_a_lock_of_another_process_is_waited_for_then_told(path: Path) -> None:
    with closing(SQLiteStore(path, timeout=0.2)) as store:
        run = history(store, 2)
        before = everything(store)
        holder = _talking(_HOLDS_THE_LOCK, path)
        assert _hear(holder) == "held"
        with pytest.raises(StoreBusy, match="locked"):
            commit(store, run)
        with pytest.raises(StoreBusy):
            store.delete_run(run)
        with pytest.raises(StoreBusy):
            store.compact()
        assert everything(store) == before
        assert "write StoreBusy" in _python(_OPENS, path, 0.2)
        _tell(holder)
        holder.communicate(timeout=60)
        assert commit(store, run).last == 3
        store.compact()


def test_a_lock_that_is_let_go_in_time_is_not_noticed(path: Path) -> None:
    with closing(SQLiteStore(path, timeout=60)) as store:
        run = history(store, 1)
        holder = _talking(_HOLDS_THE_LOCK, path)
        assert _hear(holder) == "held"
        waiting = _talking(_OPENS, path, 60)
        assert _hear(waiting) == "run True"
        _tell(holder)
        assert commit(store, run).last == 2
        assert _hear(waiting) == "wrote 1"
        for process in (holder, waiting):
            process.communicate(timeout=60)


# What a file may define


def test_sqlite_is_one_without_the_bug_of_several_writers() -> None:
    assert apsw.sqlite_lib_version().split(".") >= ["3", "51", "3"]


_ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x FROM n"


@pytest.mark.parametrize(
    "statement",
    [
        f"DROP TABLE run; CREATE VIEW run AS {_ENDLESS}",
        f"CREATE VIEW other AS {_ENDLESS}",
        "CREATE TRIGGER silent BEFORE INSERT ON journal BEGIN SELECT RAISE(IGNORE); END",
        "CREATE VIRTUAL TABLE text USING fts5(content)",
    ],
    ids=["view for a table", "view", "trigger", "virtual table"],
)
def test_a_file_with_more_than_tables_is_refused(path: Path, statement: str) -> None:
    with closing(SQLiteStore(path)) as store:
        history(store, 3)
    with Database(path) as connection:
        connection.execute(statement)
    with pytest.raises(CorruptStore, match="which Holdfast never makes"):
        SQLiteStore(path)


def test_a_schema_cannot_call_functions_with_side_effects(store: SQLiteStore) -> None:
    with store._link.reader() as connection:
        assert connection.value("PRAGMA trusted_schema") == 0


def test_the_log_is_cut_once_it_has_been_written_back(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        run = commit(store, begin(store), pack=content("large", 24_000_000))
        for _ in range(300):
            run = commit(store, run)
        assert Path(f"{path}-wal").stat().st_size <= 5 << 20
