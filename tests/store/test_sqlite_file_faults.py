"""Failing disks and moved files under a SQLite store: the reported outcome of a commit is true in the next process."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest

import holdfast
from disk import Call, Disk
from holdfast.atomic_file import write_atomically
from holdfast.errors import CommitUnknown, StoreUnavailable
from holdfast.model.records import RunRecord
from holdfast.store.artifact_folder import ArtifactFolder
from holdfast.store.sqlite import database
from holdfast.store.sqlite.connection import SQLiteConnection
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.store_url import formats
from holdfast.testing.samples import commit, digest, everything, history, imported, new_run, numbers, upload
from patience import until


class FailingSyncs:
    """Makes a number of syncs of the WAL fail."""

    def __init__(self) -> None:
        self.left = 0

    def __call__(self, call: Call) -> None:
        if call.kind == "sync" and call.path.endswith("-wal") and self.left:
            self.left -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.fixture
def syncs(tmp_path: Path) -> Iterator[FailingSyncs]:
    failing = FailingSyncs()
    with Disk(tmp_path, failing):
        yield failing


def _next_process(path: Path) -> SQLiteStore:
    """Open the store as the next process finds it if this one dies now."""
    copy = path.parent / f"copy-{len(list(path.parent.iterdir()))}"
    copy.mkdir()
    for suffix in ("", "-wal"):
        shutil.copyfile(f"{path}{suffix}", f"{copy / path.name}{suffix}")
    return SQLiteStore(copy / path.name)


def test_commit_whose_sync_failed_is_undone(tmp_path: Path, syncs: FailingSyncs) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        run = history(store, 3)
        before = everything(store)
        syncs.left = 1
        with pytest.raises(StoreUnavailable, match="SQLITE_IOERR_FSYNC"):
            commit(store, run)
        assert everything(store) == before
        with closing(_next_process(path)) as later:
            assert everything(later) == before
        assert commit(store, run).last == 4
        assert store.check() == []


def test_import_whose_sync_failed_is_undone(tmp_path: Path, syncs: FailingSyncs) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        syncs.left = 1
        with pytest.raises(StoreUnavailable):
            store.import_run(imported(50, "import"))
        with closing(_next_process(path)) as later:
            assert later.run("import") is None
        assert store.import_run(imported(50, "import")).last == 50


def test_commit_on_a_disk_that_stays_broken_is_unknown(tmp_path: Path, syncs: FailingSyncs) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        run = history(store, 3)
        syncs.left = 2
        with pytest.raises(CommitUnknown, match="read the run"):
            commit(store, run)
        # The next process must read the same.
        syncs.left = 1
        with pytest.raises(StoreUnavailable):
            store.run("run")
        found = store.run("run")
        with closing(_next_process(path)) as later:
            assert later.run("run") == found
        assert found is not None
        assert commit(store, found).last == found.last + 1


def test_jobs_that_share_a_failed_commit_get_the_same_error(tmp_path: Path, syncs: FailingSyncs) -> None:
    with closing(SQLiteStore(tmp_path / "runs.db")) as store, ThreadPoolExecutor(5) as pool:
        inside, released = threading.Event(), threading.Event()

        def hold(_: SQLiteConnection) -> None:
            inside.set()
            assert released.wait(60)

        holder = pool.submit(store._database.write, hold)
        assert inside.wait(60)
        futures = [pool.submit(commit, store, new_run(f"run-{number}")) for number in range(4)]
        until(lambda: store._database._writers.waiting == 4)
        syncs.left = 2
        released.set()
        holder.result()
        assert [type(future.exception()) for future in futures] == [CommitUnknown] * 4
        assert store.run_ids("", 9) == []


# Files that others move or remove


def _moved(path: Path) -> None:
    path.rename(path.with_name("elsewhere.db"))


def _replaced(path: Path) -> None:
    copy = path.with_name("copy.db")
    shutil.copyfile(path, copy)
    copy.replace(path)


@pytest.mark.parametrize("change", [_moved, _replaced, Path.unlink], ids=["moved", "replaced", "removed"])
def test_commit_to_a_moved_file_is_refused(tmp_path: Path, change: Callable[[Path], None]) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        run = history(store, 3)
        change(path)
        there = path.exists()
        with pytest.raises(StoreUnavailable, match="while this store was open"):
            commit(store, run)
        with pytest.raises(StoreUnavailable, match="while this store was open"):
            store.compact()
        # No empty file is created at its path, nor by threads that need another connection.
        with ThreadPoolExecutor(1) as pool, store._database.reader(), store._database.reader():
            refused = pool.submit(store.run, "run")
        assert isinstance(refused.exception(), StoreUnavailable)
        assert path.exists() == there
        if change is _moved:
            path.with_name("elsewhere.db").rename(path)
            assert commit(store, run).last == 4


@pytest.mark.parametrize("name", ["/dev/null", "/dev/zero", "pipe", "folder"])
def test_path_that_is_not_a_regular_file_is_refused(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    expected = "is a folder" if name == "folder" else "is not a regular file"
    for use in (holdfast.open, partial(holdfast.open, create=False), formats):
        with pytest.raises(StoreUnavailable, match=expected):
            use(tmp_path / name)


# The WAL and its index, removed while the store is open

LOGS = [("-wal",), ("-shm",), ("-wal", "-shm")]

#: Opens a store as another process does, and carries out a statement on it.
_OTHER = """
import sys
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.testing.samples import commit, new_run
store = SQLiteStore(sys.argv[1])
exec(sys.argv[2])
store.close()
"""


def _in_another_process(path: Path, statement: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _OTHER, str(path), statement],
        capture_output=True,
        text=True,
        check=False,
    )


def _remove(path: Path, *ends: str) -> None:
    for end in ends:
        os.unlink(f"{path}{end}")


def _commit_until_refused(store: SQLiteStore, run: RunRecord) -> tuple[RunRecord, StoreUnavailable]:
    """Commit until that is refused; return the run as last acknowledged, and the error."""
    refusals: list[StoreUnavailable] = []

    def refused() -> bool:
        nonlocal run
        try:
            run = commit(store, run)
        except StoreUnavailable as error:
            refusals.append(error)
        return bool(refusals)

    until(refused)
    return run, refusals[0]


@pytest.mark.slow
@pytest.mark.parametrize("commits", [0, 1, 3])
@pytest.mark.parametrize("ends", LOGS, ids="".join)
def test_removed_wal_is_noticed_and_loses_nothing(
    tmp_path: Path, ends: tuple[str, ...], commits: int
) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        run = history(store, commits) if commits else new_run()
        _remove(path, *ends)
        run, error = _commit_until_refused(store, run)
        assert f"{path}{ends[0]} was removed" in str(error)
        for use in (partial(store.run, "run"), partial(commit, store, run), store.compact):
            with pytest.raises(StoreUnavailable, match="was removed"):
                use()
        # The next process, were this one killed now.
        found = _in_another_process(path, "print(store.run('run').last, store.check())")
        assert (found.stdout == f"{run.last} []\n") if commits else found.returncode, found.stderr
    with closing(SQLiteStore(path)) as store:
        assert store.run("run") == (run if commits else None)
        assert store.check() == []


@pytest.mark.parametrize("ends", LOGS, ids="".join)
def test_removed_wal_is_noticed_by_reads(tmp_path: Path, ends: tuple[str, ...]) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        run = history(store, 1)
        _remove(path, *ends)

        def refused() -> bool:
            try:
                assert store.run("run") == run
            except StoreUnavailable:
                return True
            return False

        until(refused)


def test_commit_of_another_process_after_the_index_was_removed_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        run = history(store, 1)
        _remove(path, "-shm")
        done = _in_another_process(path, "print(commit(store, store.run('run')).last)")
        assert done.stdout == "2\n", done.stderr
        until(lambda: time.monotonic() > store._database._next_check)
        with pytest.raises(StoreUnavailable, match="-shm was removed or replaced"):
            commit(store, run)
    with closing(SQLiteStore(path)) as store:
        found = store.run("run")
        assert found is not None
        assert numbers(store.versions(found.key)) == [2, 1]
        assert store.check() == []


@pytest.mark.parametrize("ends", [("-wal",), ("-wal", "-shm")], ids="".join)
def test_process_that_opens_a_store_without_its_wal_loses_nothing(
    tmp_path: Path, ends: tuple[str, ...]
) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        run = history(store, 1)
        with store._database.reader(apart=True) as connection:
            # An empty file would become a store, which is a commit.
            connection.execute("PRAGMA wal_checkpoint")
        run = commit(store, run)
        _remove(path, *ends)
        found = _in_another_process(path, "print(store.run('run'))")
        if ends == ("-wal",):
            assert "Most likely the log was removed" in found.stderr
        run, _ = _commit_until_refused(store, run)
    with closing(SQLiteStore(path)) as store:
        assert store.run("run") == run
        assert store.check() == []


def test_wal_of_another_process_is_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store:
        run = history(store, 1)
        with store._database.reader(apart=True) as connection:
            connection.execute("PRAGMA wal_checkpoint")
        _remove(path, "-wal", "-shm")
        for number in (2, 3):
            done = _in_another_process(path, "print(commit(store, store.run('run')).last)")
            assert done.stdout == f"{number}\n", done.stderr
        until(lambda: time.monotonic() > store._database._next_check)
        with pytest.raises(StoreUnavailable, match="-wal was replaced"):
            commit(store, run)
    with closing(SQLiteStore(path)) as store:
        found = store.run("run")
        assert found is not None
        assert found.last == 3
        assert store.check() == []


def test_waiting_commits_are_refused_after_a_loss(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path)) as store, ThreadPoolExecutor(5) as pool:
        history(store, 1)
        inside, released = threading.Event(), threading.Event()

        def hold(_: SQLiteConnection) -> None:
            inside.set()
            assert released.wait(60)

        holder = pool.submit(store._database.write, hold)
        assert inside.wait(60)
        alone = [pool.submit(store._database.write, lambda _: None, once=True) for _ in range(4)]
        until(lambda: store._database._writers.waiting >= 4)
        _remove(path, "-wal")
        until(lambda: time.monotonic() > store._database._next_check)
        released.set()
        holder.result()
        assert [type(future.exception()) for future in alone] == [StoreUnavailable] * 4
        assert store._database._open == set()


@pytest.mark.slow
def test_wal_that_only_sqlite_touches_is_not_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_CHECK_INTERVAL", 0.0)
    path = tmp_path / "folder" / "runs.db"
    path.parent.mkdir()
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with closing(SQLiteStore(link)) as store, ThreadPoolExecutor(3) as pool:
        run = history(store, 3)
        ended = threading.Event()

        def read() -> None:
            # Not without a pause: three busy threads would only compete for the interpreter.
            while not ended.wait(0.001):
                assert store.run("run") is not None

        readers = [pool.submit(read) for _ in range(3)]
        for _ in range(3):
            assert _in_another_process(path, "commit(store, new_run('other')); store.compact()").stderr == ""
            assert _in_another_process(path, "store.delete_run(store.run('other'))").stderr == ""
            store.compact()
            run = commit(store, run)
            pid = os.fork()
            if pid == 0:
                with suppress(BaseException):
                    os._exit(0 if store.run("run") == run else 1)
                os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            run = commit(store, run)
        ended.set()
        for reader in readers:
            reader.result()
    assert sorted(path.parent.iterdir()) == [path]


# Artifacts in a folder


def test_folder_that_cannot_be_synced_is_an_error_unless_it_never_can(tmp_path: Path) -> None:
    code = errno.EIO

    def watch(call: Call) -> None:
        if call.kind == "sync_folder" and not call.by_sqlite and code:
            raise OSError(code, os.strerror(code))

    with Disk(tmp_path, watch), closing(SQLiteStore(tmp_path / "runs.db", artifacts=tmp_path)) as store:
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            store.put_artifact(upload(b"one"), 5)
        assert store.artifacts() == []
        code = errno.EINVAL
        store.put_artifact(upload(b"one"), 5)
        code = errno.ENOTSUP
        store.put_artifact(upload(b"two"), 5)
        assert b"".join(store.artifact_pieces(digest(b"two"))) == b"two"
        code = errno.EIO
        with (
            pytest.raises(OSError, match="Input/output error"),
            write_atomically(tmp_path / "file", overwrite=False) as file,
        ):
            file.write(b"three")
        assert not (tmp_path / "file").exists()


def test_file_renamed_by_another_process_is_synced(tmp_path: Path) -> None:
    folder = tmp_path / "artifacts"
    synced: list[str] = []

    def watch(call: Call) -> None:
        if call.kind.startswith("sync") and not call.by_sqlite:
            synced.append(os.path.relpath(call.path, tmp_path))

    ArtifactFolder(folder).put(upload(b"one"))
    name = digest(b"one").hex()
    with Disk(tmp_path, watch), closing(SQLiteStore(tmp_path / "runs.db", artifacts=folder)) as store:
        store.put_artifact(upload(b"one"), 5)
        file = f"artifacts/{name[:2]}/{name[2:]}"
        assert {file, os.path.dirname(file), "artifacts", "."} == set(synced)
        synced.clear()
        store.put_artifact(upload(b"one"), 6)
        assert synced == []
