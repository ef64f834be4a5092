"""Files of SQLite stores: opening, refusing, permissions, full disks, locks."""

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
from typing import Any

import apsw
import pytest

from database import Database
from holdfast.errors import CorruptStore, IncompatibleFormat, InvalidCall, StoreBusy, StoreUnavailable
from holdfast.store.sqlite import schema
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.testing.samples import begin, commit, content, digest, everything, history, numbers, upload

_NOBODY = 65534
_OPENS = """
import os, sys
import urllib.parse  # pathlib imports it on demand; the other user may not read Python's folder
from holdfast.errors import HoldfastError
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.store.sqlite.schema import migrations
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
from holdfast.store.sqlite.connection import SQLiteConnection
connection = SQLiteConnection(sys.argv[1], 5.0)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
connection.execute("COMMIT")
"""
_OPENS_ON_SIGNAL = """
import sys
from holdfast.store.sqlite.store import SQLiteStore
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


def _start(code: str, *args: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, args)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _signal(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


# Opening


@pytest.mark.parametrize(
    "data",
    [b"x", b"hello\n", b"a text of some length\n" * 500, random.Random(1).randbytes(20_000), bytes(5_000)],
    ids=["byte", "word", "text", "random", "zeros"],
)
def test_file_that_is_not_a_database_is_refused_and_unchanged(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(IncompatibleFormat, match="not a Holdfast store"):
        SQLiteStore(path)
    assert path.read_bytes() == data
    assert list(path.parent.iterdir()) == [path]


def test_empty_file_becomes_a_store(path: Path) -> None:
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
        f"PRAGMA application_id={schema.APPLICATION_ID}; PRAGMA user_version=999",
    ],
    ids=["tables", "marked", "both", "newer"],
)
def test_foreign_database_is_refused_and_unchanged(path: Path, statements: str) -> None:
    with Database(path) as connection:
        connection.execute(statements)
    data = path.read_bytes()
    with pytest.raises(IncompatibleFormat):
        SQLiteStore(path)
    assert path.read_bytes() == data


def test_newer_format_asks_for_an_upgrade(path: Path) -> None:
    SQLiteStore(path).close()
    newer = len(schema.migrations()) + 1
    with Database(path) as connection:
        connection.execute(f"PRAGMA user_version={newer}")
    with pytest.raises(IncompatibleFormat, match="upgrade Holdfast"):
        SQLiteStore(path)


def test_newer_format_that_appears_before_the_migration_is_left_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(Path(__file__).parents[1] / "compat" / "format-3.sqlite", path)
    newer = len(schema.migrations()) + 1
    use_wal = schema._use_wal

    def migrated_meanwhile(*args: Any) -> None:
        use_wal(*args)
        with Database(path) as connection:
            connection.execute(f"PRAGMA user_version={newer}")

    monkeypatch.setattr(schema, "_use_wal", migrated_meanwhile)
    with pytest.raises(IncompatibleFormat, match="upgrade Holdfast"):
        SQLiteStore(path)
    with Database(path) as connection:
        assert connection.value("PRAGMA user_version") == newer


def test_impossible_path_is_refused(tmp_path: Path) -> None:
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
        connections = [store._database._writing(), *store._database._idle]
        assert len(connections) == 2
        for connection in connections:
            assert connection.execute("PRAGMA synchronous").fetchone() == (synchronous,)
            assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_migrations_are_numbered_without_holes(path: Path) -> None:
    names = sorted(file.name for file in (Path(schema.__file__).parent / "sql").glob("*.sql"))
    assert [int(name[:4]) for name in names] == list(range(1, len(names) + 1))
    assert all(name[4] == "_" for name in names)
    assert len(schema.migrations()) == len(names)
    SQLiteStore(path).close()
    with Database(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(names),)
        assert connection.execute("PRAGMA application_id").fetchone() == (0x686F6C64,)


@pytest.mark.slow
def test_processes_that_open_a_new_file_at_once_all_succeed(tmp_path: Path) -> None:
    paths = [tmp_path / f"runs-{turn}.db" for turn in range(6)]
    processes = [_start(_OPENS_ON_SIGNAL, me, *paths) for me in range(8)]
    assert [_read_line(process) for process in processes] == ["ready"] * 8
    for path in paths:
        for process in processes:
            _signal(process)
        assert [_read_line(process) for process in processes] == ["done"] * 8
        with closing(SQLiteStore(path)) as store:
            assert store.run_ids("", 99) == [f"run-{me}" for me in range(8)]
            assert store.stats().versions == 24
            assert store.check() == []
    for process in processes:
        process.communicate(timeout=60)
        assert process.returncode == 0


# Permissions, full disks, locks


@pytest.fixture
def public() -> Iterator[Path]:
    """Yield a folder that any user can access, with a store in it."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-public-", dir="/tmp"))
    with closing(SQLiteStore(folder / "runs.db")) as store:
        history(store, 1)
    folder.chmod(0o777)
    (folder / "runs.db").chmod(0o666)
    yield folder
    folder.chmod(0o777)
    shutil.rmtree(folder)


def _as_another(path: Path) -> str:
    """Open a store as a user whom the permission bits bind. The child switches to that user itself: to start as that
    user, it would need permission to read this Python."""
    return _python(_OPENS, path, 0.2, *([_NOBODY] if os.geteuid() == 0 else []))


def test_another_user_may_write_with_permission(public: Path) -> None:
    assert _as_another(public / "runs.db").split() == ["run", "True", "wrote", "1"]


def test_read_only_file_can_be_read(public: Path) -> None:
    (public / "runs.db").chmod(0o444)
    printed = _as_another(public / "runs.db").splitlines()
    assert printed[0] == "run True"
    assert printed[1].startswith("write StoreUnavailable")
    assert "read-only" in printed[1]


def test_store_in_a_read_only_folder_can_be_read(public: Path) -> None:
    public.chmod(0o555)
    printed = _as_another(public / "runs.db").splitlines()
    assert printed[0] == "run True"
    assert printed[1].startswith("write StoreUnavailable")
    assert "make it and its folder writable" in printed[1]
    assert _as_another(public / "new.db").startswith("open StoreUnavailable")


def test_file_without_permission_is_reported(public: Path) -> None:
    (public / "runs.db").chmod(0)
    assert _as_another(public / "runs.db").startswith("open StoreUnavailable")


def test_full_disk_loses_only_the_failed_commit(store: SQLiteStore) -> None:
    run = history(store, 3)
    before = everything(store)
    writer = store._database._writing()
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


def test_lock_of_another_process_is_reported_after_the_timeout(path: Path) -> None:
    with closing(SQLiteStore(path, timeout=0.2)) as store:
        run = history(store, 2)
        before = everything(store)
        holder = _start(_HOLDS_THE_LOCK, path)
        assert _read_line(holder) == "held"
        with pytest.raises(StoreBusy, match="locked"):
            commit(store, run)
        with pytest.raises(StoreBusy):
            store.delete_run(run)
        with pytest.raises(StoreBusy):
            store.compact()
        assert everything(store) == before
        assert "write StoreBusy" in _python(_OPENS, path, 0.2)
        _signal(holder)
        holder.communicate(timeout=60)
        assert commit(store, run).last == 3
        store.compact()


def test_lock_that_is_released_in_time_is_waited_for(path: Path) -> None:
    with closing(SQLiteStore(path, timeout=60)) as store:
        run = history(store, 1)
        holder = _start(_HOLDS_THE_LOCK, path)
        assert _read_line(holder) == "held"
        waiting = _start(_OPENS, path, 60)
        assert _read_line(waiting) == "run True"
        _signal(holder)
        assert commit(store, run).last == 2
        assert _read_line(waiting) == "wrote 1"
        for process in (holder, waiting):
            process.communicate(timeout=60)


# Schemas of foreign files


def test_sqlite_version_lacks_the_wal_reset_bug() -> None:
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
def test_file_with_more_than_tables_is_refused(path: Path, statement: str) -> None:
    with closing(SQLiteStore(path)) as store:
        history(store, 3)
    with Database(path) as connection:
        connection.execute(statement)
    with pytest.raises(CorruptStore, match="which Holdfast never creates"):
        SQLiteStore(path)


def test_schema_cannot_call_functions_with_side_effects(store: SQLiteStore) -> None:
    with store._database.reader() as connection:
        assert connection.value("PRAGMA trusted_schema") == 0


def test_wal_is_truncated_after_a_checkpoint(path: Path) -> None:
    with closing(SQLiteStore(path)) as store:
        run = commit(store, begin(store), pack=content("large", 24_000_000))
        for _ in range(300):
            run = commit(store, run)
        assert Path(f"{path}-wal").stat().st_size <= 5 << 20


def test_list_of_runs_without_a_status_reads_no_row(path: Path) -> None:
    rows = []

    def count_rows(connection: apsw.Connection) -> None:
        connection.trace_v2(
            apsw.SQLITE_TRACE_PROFILE,
            lambda event: rows.append(event["stmt_status"]["SQLITE_STMTSTATUS_FULLSCAN_STEP"]),
        )

    apsw.connection_hooks.append(count_rows)
    try:
        with closing(SQLiteStore(path)) as store:
            for number in range(20):
                begin(store, f"run-{number}")
            rows.clear()
            assert store.runs(statuses=["queued", "paused"]) == []
            assert sum(rows) >= 19
            rows.clear()
            assert store.runs(statuses=[]) == store.runs(statuses=["unknown"], live=True) == []
            assert len(rows) == 2
            assert sum(rows) == 0
    finally:
        apsw.connection_hooks.remove(count_rows)
