"""A SQLite file: opening it, reading, and writing in shared transactions.

Readers borrow a connection from a pool, so a read never waits for a commit. Writers submit jobs; a thread that finds no
commit in progress leads one, with the jobs of all threads that wait (*group commit*): many runs share one fsync. A job
that raises a `HoldfastError` must do so before its first change, or be `atomic`; it does not affect the other jobs.
After any other error the transaction is rolled back and each job is tried alone.

A COMMIT that fails may have written all of its WAL frames, which the next process that opens the file would take for a
commit. They are invisible until then, and the next commit overwrites them. So an empty commit follows at once, before
the outcome is reported and before anything is read; if that fails too, the outcome is `CommitUnknown`.

A thread that a signal handler interrupts may leave a transaction open, or a connection that it has borrowed (see
`interrupts`). The next user of a connection rolls the transaction back; a connection without a borrower is closed.

Invariant: a job is durably committed when `write` returns, and has left no trace when it raises anything but
`CommitUnknown`; if it is interrupted, one or the other. No thread reads what was not committed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

from apsw import SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, Error, FullError

from holdfast.errors import CommitUnknown, HoldfastError, StoreUnavailable
from holdfast.store.group_commit import PENDING, GroupCommit, Job
from holdfast.store.interrupts import current_frame, has_returned
from holdfast.store.process_fork import close_before_forks
from holdfast.store.sqlite.connection import (
    DriverError,
    FileId,
    SQLiteConnection,
    WALFiles,
    all_or_nothing,
    closed_error,
    file_id,
    find_loss,
    may_checkpoint,
    opened_files,
    reason,
    translate_error,
)
from holdfast.store.sqlite.schema import check_kind, make_private, name_to_open, prepare

T = TypeVar("T")
Work: TypeAlias = Callable[[SQLiteConnection], Any]

#: Pages in the WAL before a checkpoint. A short WAL is overwritten in place, which makes its fsync cheaper than growing
#: the file: measured 4,500 commits/s at 256 pages, 2,900 at 4,000.
_CHECKPOINT = 256
_BATCH = 256
#: Seconds between two checks of the WAL and its index. The file is checked at every commit.
_CHECK_INTERVAL = 0.1

_SYNCHRONOUS = {"durable": "FULL", "fast": "NORMAL", "memory": "OFF"}


class ReadScope:
    """Lends a connection for the length of a `with`. A class, because every read uses it."""

    __slots__ = ("_apart", "_connection", "_database", "_leads")

    def __init__(self, database: SQLiteDatabase, apart: bool) -> None:
        self._database = database
        self._apart = apart

    def __enter__(self) -> SQLiteConnection:
        self._connection, self._leads = self._database.lend(current_frame(1), apart=self._apart)
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._database.take_back(self._connection, leads=self._leads)
        if isinstance(error, DriverError):
            raise self._database.translate(error) from error


class SQLiteDatabase:
    """One SQLite file, for all threads of a process."""

    def __init__(self, path: str, durability: str, timeout: float) -> None:
        #: As given, for messages.
        self.path = path
        #: Absolute, because connections are opened later and the process may change its directory.
        self.file = _absolute(path)
        self._synchronous = _SYNCHRONOUS[durability]
        self._timeout = timeout
        #: All connections; the ones that are not borrowed; the one that writes.
        self._open: set[SQLiteConnection] = set()
        self._idle: list[SQLiteConnection] = []
        self._writer: SQLiteConnection | None = None
        #: The connection that sees the commits of all others, and how many of them there were.
        self._watcher: SQLiteConnection | None = None
        self._watchers = 0
        #: Held while a connection is opened, lent or taken back; the frame of a fork, during which none is opened.
        self._gate = threading.RLock()
        self._forking: FrameType | None = None
        self._writers: GroupCommit[Work] = GroupCommit(self._run, _BATCH, self._close_writer)
        self._pid = os.getpid()
        self._abandoned: list[Any] = []
        self._closed = False
        self._commits = 0
        #: Whether the WAL may end with a commit that failed.
        self._unsettled = False
        #: The file at the path when it was opened; the WAL, while a connection is open.
        self._file_id: FileId | None = None
        self._wal: WALFiles | None = None
        self._next_check = 0.0
        #: Why the store closed itself.
        self._loss: str | None = None
        #: The jobs whose COMMIT is in progress, with their results.
        self._committing: list[tuple[Job[Work], Any]] | None = None
        with self.errors():
            self._open_first()
        close_before_forks(self)
        _open_databases.add(self)

    def reader(self, *, apart: bool = False) -> ReadScope:
        """Return a scope that lends a connection to read with; `apart` from writers if the read takes long."""
        return ReadScope(self, apart)

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of one query."""
        with ReadScope(self, False) as connection:
            return connection.execute(statement, values).fetchall()

    def row(self, statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """Return the first row of one query; None if there is none."""
        with ReadScope(self, False) as connection:
            return connection.execute(statement, values).fetchone()

    def write(
        self,
        work: Callable[[SQLiteConnection], T],
        *,
        once: bool = False,
        atomic: bool = False,
        slow: bool = False,
        synced: bool = False,
    ) -> T:
        """Run a job in a transaction, perhaps together with jobs of other threads: `once` if it cannot be repeated,
        `atomic` if it may raise after its first change, `synced` if it must survive a power failure in a `fast` store
        too. `slow` has no effect: statements have no time limit."""
        if self._pid != os.getpid():
            self.reset_after_fork()
        if self._closed:
            raise self._refusal()
        result: T = self._writers.submit(all_or_nothing(work) if atomic else work, alone=once)
        if synced:
            self._sync()
        return result

    def lend(self, borrower: FrameType, *, apart: bool = False) -> tuple[SQLiteConnection, bool]:
        """Lend a connection to the function with a frame; return it, and whether the borrower leads. Lend the writer's
        connection if no thread writes, because its cache holds what it wrote; else one of the pool."""
        if self._pid != os.getpid():
            self.reset_after_fork()
        if time.monotonic() >= self._next_check:
            self._check_wal()
        if self._unsettled:
            self.write(lambda _: None)
        if not apart and self._writer is not None and self._writers.try_acquire(borrower):
            writer = self._writer
            # The store may have been closed meanwhile.
            if writer is not None:
                if writer.in_transaction:
                    self._recover(writer)
                return writer, True
            self._writers.release()
        return self._borrow(borrower), False

    def take_back(self, connection: SQLiteConnection, *, leads: bool) -> None:
        """Take a lent connection back."""
        if leads:
            self._writers.release()
            return
        with self._gate:
            if self._closed:
                self._drop(connection)
            else:
                self._idle.append(connection)
            connection.borrower = None

    def commits_seen(self) -> tuple[int, int]:
        """Return a value that differs after every commit to the file by any process. SQLite counts the commits that a
        connection sees, on every system; a query takes microseconds."""
        if self._pid != os.getpid():
            self.reset_after_fork()
        while True:
            with self._gate, self.errors():
                if self._watcher is not None:
                    return self._watchers, self._watcher.value("PRAGMA data_version")
            connection = self._connect(current_frame())
            with self._gate:
                if self._watcher is None and not self._closed and not self._is_forking():
                    self._watchers += 1
                    self._watcher = connection
                else:
                    self._drop(connection)
                # A reference to a frame keeps the variables of all its callers alive.
                connection.borrower = None

    def close(self) -> None:
        """Close every connection that is not in use."""
        self._closed = True
        if self._pid != os.getpid():
            return
        with self._gate:
            self._drop_watcher()
            self._reclaim()
            while self._idle:
                self._drop(self._idle.pop())
        if self._writers.try_acquire(current_frame()):
            self._writers.release()

    def before_fork(self) -> None:
        """Wait until no write is in progress, then close all connections and let none be opened."""
        # The frame of the function that forks: the hooks before and after the fork are calls of their own.
        forking = current_frame(2)
        self._writers.acquire(forking)
        with self._gate:
            self._forking = forking
            self._drop_writer()
            self._drop_watcher()
        until = time.monotonic() + self._timeout
        while self._open and time.monotonic() < until:
            with self._gate:
                self._reclaim()
                while self._idle:
                    self._drop(self._idle.pop())
            time.sleep(0.001)  # for readers

    def after_fork_in_parent(self) -> None:
        """Let connections be opened again."""
        self._forking = None
        self._writers.release()

    def reset_after_fork(self) -> None:
        """Start again without connections, in the child, which has no other thread. A connection of the parent that is
        left must be neither used nor closed."""
        self._abandoned += [self._open, self._writer, self._watcher]
        self._open = set()
        self._idle = []
        self._writer = None
        self._watcher = None
        self._committing = None
        self._gate = threading.RLock()
        self._forking = None
        self._writers.reset()
        self._pid = os.getpid()

    def vacuum(self) -> None:
        """Rewrite the file without unused pages."""
        with self.reader(apart=True) as connection:
            self._check_files()
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Translate the driver's errors."""
        try:
            yield
        except (Error, UnicodeDecodeError) as error:
            raise self.translate(error) from error

    def translate(self, error: DriverError) -> HoldfastError:
        """Return the error of Holdfast for one of the driver."""
        return translate_error(error, self.path, self._timeout)

    def _sync(self) -> None:
        """Make all commits so far survive a power failure, in a `fast` store too."""
        if self._synchronous != "NORMAL":
            return
        connection = self._connect(current_frame())
        try:
            with self.errors():
                connection.execute("PRAGMA synchronous=FULL")
                connection.sync_fully()
                connection.commit_nothing()
        finally:
            self._drop(connection)

    def _close_writer(self) -> None:
        """Close the writer's connection of a closed store, when no thread writes."""
        if self._closed:
            self._drop_writer()

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._recover(self._writer)
        # Recovering may have closed it.
        if self._writer is not None:
            self._drop(self._writer)
            self._writer = None

    def _run(self, jobs: list[Job[Work]]) -> None:
        try:
            if self._committing is not None or (self._writer is not None and self._writer.in_transaction):
                self._recover(self._writing())
                jobs = [job for job in jobs if job.outcome is PENDING]
            if self._unsettled:
                self._settle()
            self._check_files()
            if len(self._open) > len(self._idle) + 1 + (self._watcher is not None):
                # An old snapshot would prevent checkpoints.
                with self._gate:
                    self._reclaim()
            connection = self._writer or self._writing()
            connection.execute("BEGIN IMMEDIATE")
        except (Error, HoldfastError) as error:
            # A job that is tried alone would wait for the same lock again.
            for job in jobs:
                job.outcome = self._translate_any(error)
            return
        try:
            self._transact(connection, jobs)
        except _CommitFailed as failed:
            is_settled = self._try_to_settle()
            for job in jobs:
                job.outcome = self._commit_error(failed.error, is_settled)
        except BaseException as error:
            self._recover(connection)
            if isinstance(error, DriverError):
                raise self.translate(error) from error
            raise

    def _translate_any(self, error: Exception) -> Exception:
        if not isinstance(error, DriverError):
            return error
        translated = self.translate(error)
        translated.__cause__ = error
        return translated

    def _transact(self, connection: SQLiteConnection, jobs: list[Job[Work]]) -> None:
        results: list[tuple[Job[Work], Any]] = []
        for job in jobs:
            try:
                results.append((job, job.item(connection)))
            except HoldfastError as error:
                results.append((job, error))
        self._committing = results
        try:
            connection.execute("COMMIT")
        except FullError:
            # The end of the WAL was not written.
            self._committing = None
            raise
        except Error as error:
            self._unsettled = True
            self._committing = None
            raise _CommitFailed(error) from error
        self._recover(connection)

    def _recover(self, connection: SQLiteConnection) -> None:
        """End the transaction on the writer's connection, also one that an interrupted thread left. A COMMIT that did
        not fail has succeeded if the connection is no longer in a transaction."""
        committing = self._committing
        if committing is not None:
            if not connection.in_transaction:
                for job, result in committing:
                    job.outcome = result
                self._commits += 1
            self._committing = None
        if connection.in_transaction and not connection.end_transaction():
            self._writer = None
            self._drop(connection)

    def _try_to_settle(self) -> bool:
        """Overwrite a failed COMMIT on a new connection, then close the failed connection, which keeps other processes
        from reading the WAL again; return whether that succeeded."""
        failed, self._writer = self._writer, None
        self._unsettled = True
        try:
            self._settle()
        except (Error, HoldfastError):
            return False
        finally:
            if failed is not None:
                self._drop(failed)
        return True

    def _settle(self) -> None:
        """Overwrite a failed commit by an empty one."""
        connection = self._writing()
        try:
            connection.commit_nothing()
        except BaseException:
            self._writer = None
            self._drop(connection)
            raise
        self._unsettled = False

    def _commit_error(self, error: Error, is_settled: bool) -> Exception:
        """Return the error of jobs whose COMMIT failed."""
        if is_settled:
            return self._translate_any(error)
        unknown = CommitUnknown(
            f"the disk under {self.path} failed during a commit ({reason(error)}), and the outcome is unknown: check "
            "the disk, then read the run and continue from its head"
        )
        unknown.__cause__ = error
        return unknown

    def _check_files(self) -> None:
        """Refuse to write to files that were moved or removed: the next process would not find the commit."""
        if self._loss is not None:
            raise self._refusal()
        self._check_file()
        if time.monotonic() >= self._next_check:
            self._check_wal()

    def _check_file(self) -> None:
        """Refuse to use a file that is no longer at its path."""
        if self._file_id is None:
            return
        found = file_id(self.file)
        if found != self._file_id:
            change = "removed or renamed" if found is None else "replaced by another"
            raise StoreUnavailable(
                f"the file {self.path} was {change} while this store was open, so nothing is written to it: put it "
                "back, or close the store and open it again"
            )

    def _check_wal(self) -> None:
        """Close the store, and refuse, if the WAL or its index is not the file that the connections have open."""
        self._next_check = time.monotonic() + _CHECK_INTERVAL
        wal = self._wal
        # A file that was moved may have taken them along; commits to it are refused.
        if wal is None or self._closed or not self._open or file_id(self.file) != self._file_id:
            return
        loss = find_loss(wal)
        # In this order: if another thread has closed the last connection meanwhile, SQLite has removed them.
        if loss is not None and self._open and self._wal is wal:
            self._loss = loss
            self.close()
            raise self._refusal()

    def _refusal(self) -> StoreUnavailable:
        """Return the error of a store that was closed or has closed itself."""
        return closed_error(self.path) if self._loss is None else StoreUnavailable(self._loss)

    def _writing(self) -> SQLiteConnection:
        if self._writer is None:
            connection = self._connect(current_frame())
            connection.wal_autocheckpoint(_CHECKPOINT)
            self._writer = connection
            # A reference to a frame keeps the variables of all its callers alive.
            connection.borrower = None
        return self._writer

    def _connect(self, borrower: FrameType) -> SQLiteConnection:
        """Open a connection and lend it to the function with a frame."""
        while True:
            if self._closed:
                raise self._refusal()
            with self._gate, self.errors():
                if not self._is_forking():
                    return self._connect_now(borrower)
            time.sleep(0.001)

    def _connect_now(self, borrower: FrameType) -> SQLiteConnection:
        """Open a connection, with the gate held."""
        self._check_file()
        # SQLite would create a WAL if there is none.
        self._check_wal()
        connection = SQLiteConnection(name_to_open(self.file), self._timeout)
        try:
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
            if self._synchronous == "FULL":
                connection.sync_fully()
            # This opens the WAL, which stays the same while the connection is open.
            connection.value("PRAGMA user_version")
            if not self._open or self._wal is None:
                self._wal = opened_files(connection)
            else:
                self._check_wal()
        except BaseException:
            self._drop(connection)
            raise
        connection.borrower = borrower
        self._open.add(connection)
        return connection

    def _is_forking(self) -> bool:
        return self._forking is not None and not has_returned(self._forking)

    def _borrow(self, borrower: FrameType) -> SQLiteConnection:
        """Lend a connection of the pool to the function with a frame."""
        with self._gate:
            if not self._idle:
                self._reclaim()
            while self._idle:
                connection = self._idle.pop()
                connection.borrower = borrower
                if connection.end_transaction():
                    return connection
                self._drop(connection)
        return self._connect(borrower)

    def _reclaim(self) -> None:
        """Close the connections of interrupted borrowers, with the gate held."""
        for connection in self._open.difference(self._idle):
            # In this order: the writer is recorded as such before the function that opens it ends.
            lost = connection.borrower is None or has_returned(connection.borrower)
            if lost and connection is not self._writer and connection is not self._watcher:
                self._drop(connection)

    def _drop_watcher(self) -> None:
        if self._watcher is not None:
            self._drop(self._watcher)
            self._watcher = None

    def _drop(self, connection: SQLiteConnection) -> None:
        self._open.discard(connection)
        with contextlib.suppress(Error):
            wal = self._wal
            if wal is not None and not may_checkpoint(wal):
                connection.config(SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()

    def _open_first(self) -> None:
        folder = os.path.dirname(self.path) or os.curdir
        if not os.path.isdir(os.path.dirname(self.file)):
            raise StoreUnavailable(f"the folder {folder} does not exist: create it, or open another path")
        check_kind(self.path)
        make_private(self.file)
        # Before SQLite creates one.
        has_wal = os.path.exists(f"{self.file}-wal")
        connection = self._connect(current_frame())
        try:
            prepare(connection, self.path, self._timeout, has_wal=has_wal)
            self._file_id = file_id(self.file)
            self._wal = opened_files(connection)
        except BaseException:
            self._drop(connection)
            raise
        self._idle.append(connection)
        connection.borrower = None


class _CommitFailed(Exception):
    """COMMIT itself failed, not a statement before it."""

    def __init__(self, error: Error) -> None:
        super().__init__(str(error))
        self.error = error


_open_databases: WeakSet[SQLiteDatabase] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Close databases that the program left open: the last process that closes a file checkpoints its WAL, so that the
    file alone holds everything."""
    for database in list(_open_databases):
        database.close()


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError as error:
        raise StoreUnavailable(
            f"{path} is in a folder that does not exist ({error.strerror}): open another path"
        ) from error
