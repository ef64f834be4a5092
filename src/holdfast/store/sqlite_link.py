"""The link to a SQLite file: opening, reading, and writing in shared transactions.

Readers take a connection from a pool, so reads never wait for a commit. Writers hand in jobs; whichever
thread finds no commit under way leads one, with the jobs of all who came meanwhile (*group commit*): many
runs share one fsync. A job that refuses (`HoldfastError`) must do so before its first change, or be
`all_or_nothing`, and harms no other; if one fails in another way, the transaction is undone and each job is
tried by itself.

A COMMIT that fails has perhaps written all of its log, which the next process to open the file would take for a commit.
Until then it is not visible, and the next commit is written over it. So one is made at once, before the outcome is
reported and before anything is read; if that fails, too, the outcome is `CommitUnknown`.

A thread that a signal handler interrupts may leave a transaction open, or a connection that it was lent (see
`interrupts`). Who uses a connection next rolls the transaction back; a connection whose borrower is gone is closed.

Invariant: a job has been committed durably when `write` returns, or has left no trace when it raises anything but
`CommitUnknown`; if it is interrupted, one or the other. No thread is shown what was not committed.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, TypeAlias, TypeVar
from weakref import WeakSet

from apsw import SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, Error, FullError

from holdfast.errors import CommitUnknown, HoldfastError, StoreUnavailable
from holdfast.store.gather import PENDING, Gather, Job
from holdfast.store.interrupts import is_gone
from holdfast.store.sqlite_connection import Connection
from holdfast.store.sqlite_errors import DriverError, closed, reason, translated
from holdfast.store.sqlite_fork import before_forks
from holdfast.store.sqlite_format import check_kind, make_private, name_to_open, prepare
from holdfast.store.sqlite_log import Identity, Log, find_loss, identity, may_write_back, opened_log

T = TypeVar("T")
Work: TypeAlias = Callable[[Connection], Any]

#: Pages in the WAL before it is written back. A short WAL is overwritten in place, which makes its fsync
#: cheaper than growing the file: measured 4,500 commits/s at 256 pages, 2,900 at 4,000.
_CHECKPOINT = 256
_BATCH = 256
#: Seconds between two looks for the log and its index. The file is looked for at every commit.
_LOOK = 0.1

_SYNCHRONOUS = {"durable": "FULL", "fast": "NORMAL", "memory": "OFF"}


class Reading:
    """Lends a connection: the writer's, if nobody writes, since it need not read again what it wrote itself; or
    one from the pool. A class, because it is on the path of every read."""

    __slots__ = ("_connection", "_leads", "_link")

    def __init__(self, link: Link, apart: bool) -> None:
        self._link = link
        self._leads = not apart

    def __enter__(self) -> Connection:
        return self._lend(sys._getframe(1))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._leads:
            self._link._writers.hand_over()
        else:
            self._link._take_back(self._connection)
        if isinstance(error, DriverError):
            raise self._link._ours(error) from error

    def _lend(self, borrower: FrameType) -> Connection:
        """Lend a connection to the function whose frame this is."""
        link = self._link
        if link._pid != os.getpid():
            link.start_anew()
        if time.monotonic() >= link._next_look:
            link._look()
        if link._unsettled:
            link.write(_nothing)
        if self._leads:
            if link._writer is not None and link._writers.lead_now(borrower):
                writer = link._writer
                # The store may have been closed meanwhile.
                if writer is not None:
                    if writer.in_transaction:
                        link._recover(writer)
                    self._connection = writer
                    return writer
                link._writers.hand_over()
            self._leads = False
        self._connection = link._borrow(borrower)
        return self._connection


class Snapshot(Reading):
    """Lends a connection all of whose reads see the store at one moment."""

    __slots__ = ()

    def __enter__(self) -> Connection:
        connection = self._lend(sys._getframe(1))
        connection.execute("BEGIN")
        return connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            self._connection.end_transaction()
        finally:
            super().__exit__(kind, error, trace)


class Link:
    """One SQLite file, for all threads of a process."""

    def __init__(self, path: str, durability: str, timeout: float) -> None:
        #: As it was given, for messages.
        self.path = path
        #: The same file wherever the process goes: connections are made when they are needed.
        self.file = _absolute(path)
        self._synchronous = _SYNCHRONOUS[durability]
        self._timeout = timeout
        #: Every connection; those that nobody reads with; the one to write with.
        self._open: set[Connection] = set()
        self._idle: list[Connection] = []
        self._writer: Connection | None = None
        #: The one that sees the commits of all others, and how many of its kind there were.
        self._watcher: Connection | None = None
        self._watchers = 0
        #: Held while a connection is being opened, lent or taken back; the frame of a fork, during which none is.
        self._gate = threading.RLock()
        self._forking: FrameType | None = None
        self._writers: Gather[Work] = Gather(self._run, _BATCH, self._at_rest)
        self._pid = os.getpid()
        self._abandoned: list[Any] = []
        self._closed = False
        self._commits = 0
        #: May the log end with a commit that failed?
        self._unsettled = False
        #: The file at the path when it was opened; the log, for as long as a connection is open.
        self._identity: Identity | None = None
        self._log: Log | None = None
        self._next_look = 0.0
        #: Why the store closed itself.
        self._loss: str | None = None
        #: The jobs whose COMMIT is being carried out, with their results.
        self._committing: list[tuple[Job[Work], Any]] | None = None
        with self.errors():
            self._open_first()
        before_forks(self)
        _links.add(self)

    def reader(self, *, apart: bool = False) -> Reading:
        """A connection to read with, for the length of a `with`; `apart` from writers if that will be long."""
        return Reading(self, apart)

    def snapshot(self) -> Snapshot:
        """A connection to read with, all of whose reads see the store at one moment."""
        return Snapshot(self, apart=False)

    def write(self, work: Callable[[Connection], T], *, alone: bool = False) -> T:
        """Run a job in a transaction, perhaps together with those of other threads; `alone` if it cannot be
        run a second time."""
        if self._pid != os.getpid():
            self.start_anew()
        if self._closed:
            raise self._refusal()
        result: T = self._writers.hand_in(work, alone=alone)
        return result

    def commits_seen(self) -> tuple[int, int]:
        """Return a value that is another one after every commit, of whichever process, to the file."""
        if self._pid != os.getpid():
            self.start_anew()
        while True:
            with self._gate, self.errors():
                if self._watcher is not None:
                    return self._watchers, self._watcher.value("PRAGMA data_version")
            connection = self._connect(sys._getframe())
            with self._gate:
                if self._watcher is None and not self._closed and not self._is_forking():
                    self._watchers += 1
                    self._watcher = connection
                else:
                    self._drop(connection)
                # A frame that is kept keeps its callers', with all their variables.
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
        if self._writers.lead_now(sys._getframe()):
            self._writers.hand_over()

    def suspend(self) -> None:
        """Before a fork: when no write is under way, close all connections, and let none be opened."""
        # Of the function that forks: the hooks before and after it are calls of their own.
        forking = sys._getframe(2)
        self._writers.hold(forking)
        with self._gate:
            self._forking = forking
            if self._writer is not None:
                self._recover(self._writer)
                self._drop(self._writer)
                self._writer = None
            self._drop_watcher()
        until = time.monotonic() + self._timeout
        while self._open and time.monotonic() < until:
            with self._gate:
                self._reclaim()
                while self._idle:
                    self._drop(self._idle.pop())
            time.sleep(0.001)  # for those who read

    def resume(self) -> None:
        """After a fork, in the parent."""
        self._forking = None
        self._writers.hand_over()

    def start_anew(self) -> None:
        """After a fork, in the child, where no other thread is left. Should a connection of the parent be left,
        it must be neither used nor closed."""
        self._abandoned += [self._open, self._writer, self._watcher]
        self._open = set()
        self._idle = []
        self._writer = None
        self._watcher = None
        self._committing = None
        self._gate = threading.RLock()
        self._forking = None
        self._writers.start_anew()
        self._pid = os.getpid()

    def sync(self) -> None:
        """Make all commits so far survive a power failure, those of a `fast` store, too."""
        if self._synchronous != "NORMAL":
            return
        connection = self._connect(sys._getframe())
        try:
            with self.errors():
                connection.execute("PRAGMA synchronous=FULL")
                connection.sync_fully()
                _commit_nothing(connection)
        finally:
            self._drop(connection)

    def vacuum(self) -> None:
        """Rewrite the file without what is no longer used."""
        with self.reader(apart=True) as connection:
            self._check_files()
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turns the driver's errors into ours."""
        try:
            yield
        except (Error, UnicodeDecodeError) as error:
            raise self._ours(error) from error

    def _at_rest(self) -> None:
        """Nobody writes: a store that was closed meanwhile lets go of its writer, too."""
        if self._closed and self._writer is not None:
            self._recover(self._writer)
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
                # An old snapshot would keep the log from being written back.
                with self._gate:
                    self._reclaim()
            connection = self._writing()
            connection.execute("BEGIN IMMEDIATE")
        except (Error, HoldfastError) as error:
            # Each by itself would wait for the same lock as long again.
            for job in jobs:
                job.outcome = self._named(error)
            return
        try:
            self._transact(connection, jobs)
        except _CommitFailed as failed:
            is_settled = self._try_to_settle()
            for job in jobs:
                job.outcome = self._failed(failed.error, is_settled)
        except BaseException as error:
            self._recover(connection)
            if isinstance(error, DriverError):
                raise self._ours(error) from error
            raise

    def _named(self, error: Exception) -> Exception:
        if not isinstance(error, DriverError):
            return error
        ours = self._ours(error)
        ours.__cause__ = error
        return ours

    def _transact(self, connection: Connection, jobs: list[Job[Work]]) -> None:
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
            # The end of the log was not written.
            self._committing = None
            raise
        except Error as error:
            self._unsettled = True
            self._committing = None
            raise _CommitFailed(error) from error
        self._recover(connection)

    def _recover(self, connection: Connection) -> None:
        """End the transaction that is, or that an interrupted thread has left, on the writer's connection. A COMMIT has
        been carried out if it did not fail and there is no transaction any more."""
        committing = self._committing
        if committing is not None:
            if not connection.in_transaction:
                for job, result in committing:
                    job.outcome = result
                self._commits += 1
            self._committing = None
        if not connection.end_transaction():
            self._writer = None
            self._drop(connection)

    def _try_to_settle(self) -> bool:
        """After a COMMIT failed, on a connection of its own. The failed one is closed after that: it keeps every other
        process from reading the log anew."""
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
        """Write a commit that changes nothing over one that failed."""
        connection = self._writing()
        try:
            _commit_nothing(connection)
        except BaseException:
            self._writer = None
            self._drop(connection)
            raise
        self._unsettled = False

    def _failed(self, error: Error, is_settled: bool) -> Exception:
        """What is reported of a COMMIT that failed."""
        if is_settled:
            return self._named(error)
        ours = CommitUnknown(
            f"the disk under {self.path} failed during a commit ({reason(error)}), and whether it was carried out "
            "cannot be learned: check the disk, then read the run and continue from its head"
        )
        ours.__cause__ = error
        return ours

    def _check_files(self) -> None:
        """Refuse to write to files that others have moved or removed: the next process would not find it there."""
        if self._loss is not None:
            raise self._refusal()
        self._check_place()
        if time.monotonic() >= self._next_look:
            self._look()

    def _check_place(self) -> None:
        """Refuse to work with a file that is not at its path any more."""
        if self._identity is None:
            return
        found = identity(self.file)
        if found != self._identity:
            what = "removed or renamed" if found is None else "replaced by another"
            raise StoreUnavailable(
                f"the file {self.path} was {what} while this store was open, so nothing is written to it: put it back, "
                "or close the store and open it again"
            )

    def _look(self) -> None:
        """Close the store, and refuse, if the log or its index is not the file that its connections have open."""
        self._next_look = time.monotonic() + _LOOK
        log = self._log
        # A file that was moved has perhaps taken them along; commits to it are refused.
        if log is None or self._closed or not self._open or identity(self.file) != self._identity:
            return
        loss = find_loss(log)
        # In this order: if another thread has closed the last connection meanwhile, SQLite has removed them.
        if loss is not None and self._open and self._log is log:
            self._loss = loss
            self.close()
            raise self._refusal()

    def _refusal(self) -> StoreUnavailable:
        """The error of a store that was closed, or has closed itself."""
        return closed(self.path) if self._loss is None else StoreUnavailable(self._loss)

    def _writing(self) -> Connection:
        if self._writer is None:
            connection = self._connect(sys._getframe())
            connection.wal_autocheckpoint(_CHECKPOINT)
            self._writer = connection
            # A frame that is kept keeps its callers', with all their variables.
            connection.borrower = None
        return self._writer

    def _connect(self, borrower: FrameType) -> Connection:
        """Open a connection, which is lent to the function whose frame this is."""
        while True:
            if self._closed:
                raise self._refusal()
            with self._gate, self.errors():
                if not self._is_forking():
                    return self._connect_now(borrower)
            time.sleep(0.001)

    def _connect_now(self, borrower: FrameType) -> Connection:
        """With the gate held."""
        self._check_place()
        # SQLite would make a log where it finds none.
        self._look()
        connection = Connection(name_to_open(self.file), self._timeout)
        try:
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
            if self._synchronous == "FULL":
                connection.sync_fully()
            # It opens the log, which then stays the same for as long as the connection is open.
            connection.value("PRAGMA user_version")
            if not self._open or self._log is None:
                self._log = opened_log(connection)
            else:
                self._look()
        except BaseException:
            self._drop(connection)
            raise
        connection.borrower = borrower
        self._open.add(connection)
        return connection

    def _is_forking(self) -> bool:
        return self._forking is not None and not is_gone(self._forking)

    def _borrow(self, borrower: FrameType) -> Connection:
        """Lend a connection of the pool to the function whose frame this is."""
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

    def _take_back(self, connection: Connection) -> None:
        with self._gate:
            if self._closed:
                self._drop(connection)
            else:
                self._idle.append(connection)
            connection.borrower = None

    def _reclaim(self) -> None:
        """Close the connections whose borrowers were interrupted, with the gate held."""
        for connection in self._open.difference(self._idle):
            # In this order: the writer is known as such before the function that opens it ends.
            lost = connection.borrower is None or is_gone(connection.borrower)
            if lost and connection is not self._writer and connection is not self._watcher:
                self._drop(connection)

    def _drop_watcher(self) -> None:
        """With the gate held."""
        if self._watcher is not None:
            self._drop(self._watcher)
            self._watcher = None

    def _drop(self, connection: Connection) -> None:
        self._open.discard(connection)
        with contextlib.suppress(Error):
            log = self._log
            if log is not None and not may_write_back(log):
                connection.config(SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            connection.close()

    def _open_first(self) -> None:
        folder = os.path.dirname(self.path) or os.curdir
        if not os.path.isdir(os.path.dirname(self.file)):
            raise StoreUnavailable(f"the folder {folder} does not exist: make it, or open a path elsewhere")
        check_kind(self.path)
        make_private(self.file)
        # Before SQLite makes one.
        has_log = os.path.exists(f"{self.file}-wal")
        connection = self._connect(sys._getframe())
        try:
            prepare(connection, self.path, self._timeout, has_log=has_log)
            self._identity = identity(self.file)
            self._log = opened_log(connection)
        except BaseException:
            self._drop(connection)
            raise
        self._idle.append(connection)
        connection.borrower = None

    def _ours(self, error: DriverError) -> HoldfastError:
        return translated(error, self.path, self._timeout)


class _CommitFailed(Exception):
    """COMMIT itself failed, not a statement before it."""

    def __init__(self, error: Error) -> None:
        super().__init__(str(error))
        self.error = error


def _commit_nothing(connection: Connection) -> None:
    """Write a commit to the log that changes nothing."""
    connection.execute("BEGIN IMMEDIATE")
    version = connection.value("PRAGMA user_version")
    connection.execute(f"PRAGMA user_version={version}")
    connection.execute("COMMIT")


def _nothing(_: Connection) -> None:
    """A job for those who only need the log to be settled."""


#: Those that may be open.
_links: WeakSet[Link] = WeakSet()


@atexit.register
def _close_all() -> None:
    """Close what the program has left open: who closes a file last writes its log back, so that the file alone holds
    everything."""
    for link in list(_links):
        link.close()


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError as error:
        raise StoreUnavailable(
            f"{path} is in a folder that is gone ({error.strerror}): open a path elsewhere"
        ) from error


def all_or_nothing(work: Callable[[Connection], T]) -> Callable[[Connection], T]:
    """For a job of which a refusal may come after its first change."""

    def wrapped(connection: Connection) -> T:
        connection.execute("SAVEPOINT job")
        try:
            result = work(connection)
        except BaseException:
            # After some errors, such as a full disk, SQLite itself has undone all.
            if connection.in_transaction:
                connection.execute("ROLLBACK TO job")
                connection.execute("RELEASE job")
            raise
        connection.execute("RELEASE job")
        return result

    return wrapped
