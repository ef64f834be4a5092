"""Threads and processes that share a SQLite file: shared transactions, interrupts, forks, closing."""

from __future__ import annotations

import _thread
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from database import Database
from holdfast.errors import HoldfastError, StaleVersion, StoreBusy, StoreUnavailable
from holdfast.model.records import RunRecord
from holdfast.store import group_commit
from holdfast.store.protocol import Append
from holdfast.store.sqlite.connection import SQLiteConnection
from holdfast.store.sqlite.store import SQLiteStore
from holdfast.testing.samples import (
    advanced,
    begin,
    commit,
    digest,
    everything,
    history,
    imported,
    new_run,
    numbers,
    upload,
    version,
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SQLiteStore]:
    store = SQLiteStore(tmp_path / "runs.db")
    yield store
    store.close()


class Gate:
    """A writer that holds the store's transaction until it is released: waiting writers share the next one."""

    def __init__(self, store: SQLiteStore, pool: ThreadPoolExecutor) -> None:
        self._store = store
        self._inside = threading.Event()
        self._open = threading.Event()
        self.holder = pool.submit(store._database.write, self._hold)
        assert self._inside.wait(60)

    def _hold(self, _: SQLiteConnection) -> str:
        self._inside.set()
        assert self._open.wait(60)
        return "held"

    def wait_for(self, count: int) -> None:
        """Wait until so many writers are queued."""
        until = time.monotonic() + 60
        while self._store._database._writers.waiting < count:
            assert time.monotonic() < until
            time.sleep(0.001)

    def let_go(self) -> None:
        self._open.set()


def _in_order(
    gate: Gate, pool: ThreadPoolExecutor, *works: Callable[[], RunRecord]
) -> list[Future[RunRecord]]:
    """Writers that wait behind a gate in the given order."""
    futures = []
    for count, work in enumerate(works, 1):
        futures.append(pool.submit(work))
        gate.wait_for(count)
    return futures


def test_writers_of_many_runs_share_transactions(store: SQLiteStore) -> None:
    start = store._database._commits
    barrier = threading.Barrier(32)

    def write(index: int) -> None:
        run = new_run(f"run-{index}")
        barrier.wait()
        for _ in range(10):
            run = commit(store, run)

    with ThreadPoolExecutor(32) as pool:
        list(pool.map(write, range(32)))
    assert store.stats().versions == 320
    assert store._database._commits - start < 320


def test_waiting_writers_share_the_next_transaction(store: SQLiteStore) -> None:
    with ThreadPoolExecutor(33) as pool:
        gate = Gate(store, pool)
        start = store._database._commits
        works = [lambda index=index: commit(store, new_run(f"run-{index}")) for index in range(32)]
        futures = _in_order(gate, pool, *works)
        gate.let_go()
        assert [future.result().last for future in futures] == [1] * 32
        assert gate.holder.result() == "held"
    assert store._database._commits - start == 2


def test_refused_job_does_not_affect_others(store: SQLiteStore) -> None:
    run = history(store, 3)
    changed = upload(b"another", becomes=b"changed")
    with ThreadPoolExecutor(5) as pool:
        gate = Gate(store, pool)
        start = store._database._commits
        first, stale, spoiled, last = _in_order(
            gate,
            pool,
            lambda: begin(store, "first"),
            lambda: commit(store, new_run()),
            lambda: commit(store, run, change={"uploads": [upload(b"large"), changed], "tags": ["spoiled"]}),
            lambda: begin(store, "last"),
        )
        gate.let_go()
    assert isinstance(stale.exception(), StaleVersion)
    assert isinstance(spoiled.exception(), HoldfastError)
    assert first.result().id == "first"
    assert last.result().id == "last"
    assert store._database._commits - start == 2
    assert store.run("run") == run
    assert store.artifacts() == []


def test_failed_job_does_not_affect_others(store: SQLiteStore) -> None:
    run = history(store, 3)
    with ThreadPoolExecutor(6) as pool:
        gate = Gate(store, pool)
        first, wrong, taken, whole, last = _in_order(
            gate,
            pool,
            lambda: begin(store, "first"),
            lambda: commit(store, new_run("wrong"), kind="no such kind"),
            lambda: store.append(Append(expect=run, run=advanced(run), version=version(1))),
            lambda: store.import_run(imported(50, "import")),
            lambda: commit(store, run, change={"uploads": [upload(b"large")], "holds": [digest(b"large")]}),
        )
        gate.let_go()
    assert isinstance(wrong.exception(), KeyError)
    assert isinstance(taken.exception(), HoldfastError)
    assert first.result().id == "first"
    assert last.result().last == 4
    # An iterator cannot be read twice: an import must not share the failure of other jobs.
    assert numbers(store.versions(whole.result().key)) == list(range(50, 0, -1))
    assert store.run("wrong") is None
    assert store.stats().versions == 54


def test_lock_is_waited_for_once_by_all_jobs(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    with closing(SQLiteStore(path, timeout=0.5)) as store, Database(path) as other:
        other.execute("BEGIN IMMEDIATE")
        start = time.monotonic()
        with ThreadPoolExecutor(24) as pool:
            futures = [pool.submit(begin, store, f"run-{index}") for index in range(24)]
        assert all(isinstance(future.exception(), StoreBusy) for future in futures)
        assert time.monotonic() - start < 24 * 0.5 / 2
        other.execute("ROLLBACK")
        assert begin(store).id == "run"


# Interrupts


def test_interrupted_waiting_writer_blocks_no_other(store: SQLiteStore) -> None:
    main = threading.main_thread().ident
    assert main is not None
    with ThreadPoolExecutor(2) as pool:
        gate = Gate(store, pool)

        def interrupt() -> None:
            gate.wait_for(1)
            signal.pthread_kill(main, signal.SIGINT)

        interrupting = pool.submit(interrupt)
        with pytest.raises(KeyboardInterrupt):
            begin(store, "interrupted")
        interrupting.result()
        gate.let_go()
        assert gate.holder.result() == "held"
        assert pool.submit(begin, store, "next").result(60).id == "next"
    assert store.run_ids("", 9) == ["next"]


def test_interrupted_job_leaves_no_trace(store: SQLiteStore) -> None:
    run = history(store, 1)

    def interrupted(connection: SQLiteConnection) -> None:
        connection.execute("DELETE FROM journal")
        signal.raise_signal(signal.SIGINT)

    before = everything(store)
    with pytest.raises(KeyboardInterrupt):
        store._database.write(interrupted)
    assert everything(store) == before
    assert commit(store, run).last == 2


@pytest.mark.parametrize("committed", [True, False])
def test_jobs_next_to_an_interrupted_one_get_their_true_outcome(
    store: SQLiteStore, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The main thread leads a transaction for two and is interrupted in it, or just after its end."""
    # The other job waits for the main thread to lead.
    monkeypatch.setattr(group_commit, "POLL_INTERVAL", 60.0)

    def lead(_: SQLiteConnection) -> None:
        if not committed:
            signal.raise_signal(signal.SIGINT)

    def follow(connection: SQLiteConnection) -> RunRecord:
        made = store._append(connection, Append(expect=None, run=new_run("neighbour")))
        # SQLite calls it from within COMMIT. It runs no bytecode, so the interrupt is raised when COMMIT has returned.
        interrupt = partial(any, map(_thread.interrupt_main, [signal.SIGINT]))
        if committed:
            connection.set_progress_handler(interrupt, 1)
        return made

    with ThreadPoolExecutor(3) as pool:
        gate = Gate(store, pool)

        def neighbour() -> RunRecord:
            gate.wait_for(1)
            return store._database.write(follow)

        outcome = pool.submit(neighbour)

        def release() -> None:
            gate.wait_for(2)
            gate.let_go()

        pool.submit(release)
        with pytest.raises(KeyboardInterrupt):
            store._database.write(lead)
        store._database._writing().set_progress_handler(None, 1)
        # If it was not committed with the interrupted job, the other thread has committed it.
        assert outcome.result(60) == store.run("neighbour")
    assert begin(store, "next").id == "next"


# Closing and forking


def test_closing_waits_for_a_write_in_progress(store: SQLiteStore) -> None:
    with ThreadPoolExecutor(2) as pool:
        gate = Gate(store, pool)
        (waiting,) = _in_order(gate, pool, lambda: begin(store, "waiting"))
        store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            begin(store, "late")
        gate.let_go()
        assert gate.holder.result(60) == "held"
        assert waiting.result(60).id == "waiting"
    assert store._database._writer is None
    with pytest.raises(StoreUnavailable, match="closed"):
        store.run("waiting")
    with closing(SQLiteStore(store._database.path)) as again:
        assert again.run_ids("", 9) == ["waiting"]


def test_closing_leaves_one_file(store: SQLiteStore) -> None:
    history(store, 5)
    everything(store)
    store.close()
    path = Path(store._database.path)
    assert list(path.parent.iterdir()) == [path]


def _child(work: Callable[[], object]) -> int:
    """Run a function in a forked child; return its process id."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            work()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    return pid


def _ended_well(pid: int) -> bool:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_forked_child_and_parent_both_continue(store: SQLiteStore) -> None:
    run = history(store, 3)

    def work() -> None:
        assert store.run("run") is not None
        history(store, 5, f"child-{os.getpid()}")
        store.close()

    children = [_child(work) for _ in range(4)]
    for _ in range(20):
        run = commit(store, run)
    assert all(map(_ended_well, children))
    assert commit(store, run).last == 24
    assert len(store.run_ids("child-", 9)) == 4
    assert store.stats().versions == 24 + 20
    assert store.check() == []


def test_child_that_closes_the_store_does_not_affect_its_parent(store: SQLiteStore) -> None:
    run = history(store, 1)
    assert _ended_well(_child(store.close))
    assert commit(store, run).last == 2
    assert store.check() == []


def test_fork_waits_for_a_write_in_progress(store: SQLiteStore) -> None:
    with ThreadPoolExecutor(3) as pool:
        gate = Gate(store, pool)
        (waiting,) = _in_order(gate, pool, lambda: begin(store, "waiting"))

        def release() -> None:
            gate.wait_for(2)
            gate.let_go()

        pool.submit(release)
        child = _child(lambda: history(store, 3, "child"))
        assert waiting.result(60).id == "waiting"
        assert _ended_well(child)
    assert store.run_ids("", 9) == ["child", "waiting"]


def test_fork_does_not_affect_readers_and_writers(store: SQLiteStore) -> None:
    done = threading.Event()

    def write(index: int) -> int:
        run = history(store, 1, f"writer-{index}")
        while not done.is_set():
            run = commit(store, run)
            assert store.run(run.id) == run
        return run.last

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, index) for index in range(4)]
        children = [_child(lambda: history(store, 10, f"child-{os.getpid()}")) for _ in range(5)]
        assert all(map(_ended_well, children))
        done.set()
    for index, writer in enumerate(writers):
        run = store.run(f"writer-{index}")
        assert run is not None
        assert run.last == writer.result()
    assert [store.run(name).last for name in store.run_ids("child-", 9)] == [10] * 5  # type: ignore[union-attr]
    assert store.check() == []


def test_commit_of_a_child_survives_the_close_of_its_parent(store: SQLiteStore) -> None:
    """SQLite would remove the child's WAL if the parent's connection were open during the fork."""
    history(store, 3)
    started, closed = os.pipe(), os.pipe()

    def work() -> None:
        run = history(store, 2, "child")
        os.write(started[1], b"x")
        os.read(closed[0], 1)
        for _ in range(5):
            run = commit(store, run)

    child = _child(work)
    os.read(started[0], 1)
    store.close()
    os.write(closed[1], b"x")
    assert _ended_well(child)
    with closing(SQLiteStore(store._database.path)) as again:
        run = again.run("child")
        assert run is not None
        assert run.last == 7
        assert numbers(again.versions(run.key)) == [7, 6, 5, 4, 3, 2, 1]
