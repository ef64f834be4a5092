"""The link to a SQLite file: opening, reading, and writing in shared transactions.

Readers take a connection from a pool, so reads never wait for a commit. Writers hand in jobs; whichever
thread finds no commit under way leads one, with the jobs of all who came meanwhile (*group commit*): many
runs share one fsync. A job that refuses (`HoldfastError`) must do so before its first change, or be
`all_or_nothing`, and harms no other; if one fails in another way, the transaction is undone and each job is
tried by itself.

Invariant: a job has been committed durably when `write` returns, or has left no trace when it raises.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias, TypeVar

from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.store.gather import Gather, Job
from holdfast.store.sqlite_errors import DriverError, closed, translated
from holdfast.store.sqlite_fork import before_forks
from holdfast.store.sqlite_format import name_to_open, prepare
from holdfast.store.sqlite_others import Others

T = TypeVar("T")
Work: TypeAlias = Callable[[sqlite3.Connection], Any]

#: Pages in the WAL before it is written back. A short WAL is overwritten in place, which makes its fsync
#: cheaper than growing the file: measured 4,500 commits/s at 256 pages, 2,900 at 4,000.
_CHECKPOINT = 256
_BATCH = 256

_SYNCHRONOUS = {"durable": "FULL", "fast": "NORMAL", "memory": "OFF"}


class Reading:
    """Lends a connection: the writer's, if nobody writes, since it need not read again what it wrote itself; or
    one from the pool. A class, because it is on the path of every read."""

    __slots__ = ("_connection", "_leads", "_link")

    def __init__(self, link: Link, apart: bool) -> None:
        self._link = link
        self._leads = not apart

    def __enter__(self) -> sqlite3.Connection:
        link = self._link
        if link._pid != os.getpid():
            link.start_anew()
        if self._leads:
            if link._writer is not None and link._writers.lead_now():
                # Whoever closes the store may have been quicker.
                if link._writer is not None:
                    self._connection = link._writer
                    return link._writer
                link._writers.hand_over()
            self._leads = False
        try:
            self._connection = link._idle.pop()
        except IndexError:
            self._connection = link._connect()
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._leads:
            self._link._writers.hand_over()
        elif self._link._closed:
            self._link._drop(self._connection)
        else:
            self._link._idle.append(self._connection)
        if isinstance(error, DriverError):
            raise self._link._ours(error) from error


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
        self._open: set[sqlite3.Connection] = set()
        self._idle: list[sqlite3.Connection] = []
        self._writer: sqlite3.Connection | None = None
        #: Held while a connection is being opened, and while the process forks.
        self._gate = threading.Lock()
        self._writers: Gather[Work] = Gather(self._run, _BATCH, self._at_rest)
        self._pid = os.getpid()
        self._abandoned: list[Any] = []
        self._closed = False
        self._commits = 0
        self._others = Others()
        with self.errors():
            self._open_first()
        before_forks(self)

    def reader(self, *, apart: bool = False) -> Reading:
        """A connection to read with, for the length of a `with`; `apart` from writers if that will be long."""
        return Reading(self, apart)

    @contextlib.contextmanager
    def snapshot(self) -> Iterator[sqlite3.Connection]:
        """A connection to read with, all of whose reads see the store at one moment."""
        with self.reader() as connection:
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")

    def write(self, work: Callable[[sqlite3.Connection], T], *, alone: bool = False) -> T:
        """Run a job in a transaction, perhaps together with those of other threads; `alone` if it cannot be
        run a second time."""
        if self._pid != os.getpid():
            self.start_anew()
        if self._closed:
            raise closed(self.path)
        result: T = self._writers.hand_in(work, alone=alone)
        return result

    def close(self) -> None:
        """Close every connection that is not in use."""
        self._closed = True
        if self._pid != os.getpid():
            return
        connections, self._idle = self._idle, []
        for connection in connections:
            self._drop(connection)
        if self._writers.lead_now():
            self._writers.hand_over()

    def suspend(self) -> None:
        """Before a fork: when no write is under way, close all connections, and let nobody open one."""
        self._writers.hold()
        self._gate.acquire()
        if self._writer is not None:
            self._idle.append(self._writer)
            self._writer = None
        until = time.monotonic() + self._timeout
        while self._open and time.monotonic() < until:
            while self._idle:
                self._drop(self._idle.pop())
            time.sleep(0.001)  # for those who read

    def resume(self) -> None:
        """After a fork, in the parent."""
        self._gate.release()
        self._writers.hand_over()

    def start_anew(self) -> None:
        """After a fork, in the child, where no other thread is left. Should a connection of the parent be left,
        it must be neither used nor closed."""
        self._abandoned += [self._open, self._writer]
        self._open = set()
        self._idle = []
        self._writer = None
        self._gate = threading.Lock()
        self._writers.start_anew()
        self._pid = os.getpid()

    def vacuum(self) -> None:
        """Rewrite the file without what is no longer used."""
        with self.reader(apart=True) as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        # To the writer this looks like another's commit.
        self._others.forget()

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """Turns the driver's errors into ours."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self._ours(error) from error

    def _at_rest(self) -> None:
        """Nobody writes: a store that was closed meanwhile lets go of its writer, too."""
        if self._closed and self._writer is not None:
            self._drop(self._writer)
            self._writer = None

    def _run(self, jobs: list[Job[Work]]) -> None:
        commits = self._commits
        try:
            try:
                connection = self._writing()
                connection.execute("BEGIN IMMEDIATE")
            except (sqlite3.Error, HoldfastError) as error:
                # Each by itself would wait for the same lock as long again.
                for job in jobs:
                    job.outcome = self._named(error)
                return
            self._transact(connection, jobs)
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].outcome = self._named(error)
                return
            for job in jobs:
                self._run([job])
        except BaseException as error:
            if self._commits == commits:
                for job in jobs:
                    job.outcome = StoreUnavailable("the commit was interrupted; nothing of it was kept")
                    job.outcome.__cause__ = error
            raise

    def _named(self, error: Exception) -> Exception:
        if not isinstance(error, DriverError):
            return error
        ours = self._ours(error)
        ours.__cause__ = error
        return ours

    def _transact(self, connection: sqlite3.Connection, jobs: list[Job[Work]]) -> None:
        try:
            for job in jobs:
                try:
                    job.outcome = job.item(connection)
                except HoldfastError as error:
                    job.outcome = error
            connection.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            elif not isinstance(error, Exception):
                # Interrupted between the end of COMMIT and the end of its line: it has been done.
                self._commits += 1
            raise
        self._commits += 1
        if self._commits % 16 == 1:
            self._others.look(connection)

    def _writing(self) -> sqlite3.Connection:
        if self._writer is None:
            connection = self._connect()
            connection.execute(f"PRAGMA wal_autocheckpoint={_CHECKPOINT}")
            self._writer = connection
        return self._writer

    def _connect(self) -> sqlite3.Connection:
        if self._closed:
            raise closed(self.path)
        with self._gate, self.errors():
            name = name_to_open(self.file)
            connection = sqlite3.connect(
                name,
                uri=name != self.file,
                timeout=self._timeout,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=64,
            )
            connection.execute(f"PRAGMA synchronous={self._synchronous}")
            connection.execute("PRAGMA cell_size_check=ON")
            self._open.add(connection)
        return connection

    def _drop(self, connection: sqlite3.Connection) -> None:
        self._open.discard(connection)
        with contextlib.suppress(sqlite3.Error):
            connection.close()

    def _open_first(self) -> None:
        folder = os.path.dirname(self.path) or os.curdir
        if not os.path.isdir(os.path.dirname(self.file)):
            raise StoreUnavailable(f"the folder {folder} does not exist: make it, or open a path elsewhere")
        if os.path.isdir(self.file):
            raise StoreUnavailable(f"{self.path} is a folder: give the path of a file in it")
        connection = self._connect()
        try:
            prepare(connection, self.path, self._timeout)
        except BaseException:
            self._drop(connection)
            raise
        self._idle.append(connection)

    def _ours(self, error: DriverError) -> HoldfastError:
        return translated(error, self.path, self._timeout)


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError as error:
        raise StoreUnavailable(
            f"{path} is in a folder that is gone ({error.strerror}): open a path elsewhere"
        ) from error


def all_or_nothing(work: Callable[[sqlite3.Connection], T]) -> Callable[[sqlite3.Connection], T]:
    """For a job of which a refusal may come after its first change."""

    def wrapped(connection: sqlite3.Connection) -> T:
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
