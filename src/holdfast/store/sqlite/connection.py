"""A connection to a SQLite file through `apsw`, which includes a current SQLite; the two files next to an open store;
the translation of errors.

The files are the WAL (`-wal`) and the index by which processes share it (`-shm`). SQLite removes both when the last
connection of all processes closes, and never before. If another program removes or replaces one earlier, the processes
that have the store open no longer see the same files as processes that open it later, and commits that SQLite has
acknowledged are lost.

Invariant: `find_loss` reports nothing while only SQLite touches the files. Every connection to a store is created here,
with the same settings, and no error of the driver leaves the store: it is the cause of one of Holdfast's. POSIX locks
belong to the process: a file that is open here must not be opened in this process through another SQLite library, such
as Python's `sqlite3`, which would release our locks when it closes the file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeAlias, TypeVar

import apsw

from holdfast.errors import (
    CorruptStore,
    HoldfastError,
    IncompatibleFormat,
    InvalidCall,
    StoreBusy,
    StoreUnavailable,
)
from holdfast.operating_system import is_stopped, sync_settings

T = TypeVar("T")
#: The byte of the file `-shm` that a writer locks.
_WRITE_BYTE = 120


class LockHolder(NamedTuple):
    """The process that holds the write lock of a file."""

    pid: int
    #: Whether it is stopped, by Ctrl-Z or a debugger: it keeps the lock until it continues or ends.
    is_stopped: bool


def find_lock_holder(path: str) -> LockHolder | None:
    """Return the process that holds the write lock of a file, from `/proc/locks` on Linux; None if there is none or it
    is unknown. Never raises, and never opens the file: closing it would release the locks of this process."""
    try:
        inode = os.stat(f"{path}-shm").st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except (OSError, ValueError):
        return None
    pids = {pid for line in lines if (pid := _writer(line.split(), inode)) is not None}
    if len(pids) != 1:
        # None, or files with the same inode number on several devices.
        return None
    (pid,) = pids
    return LockHolder(pid, is_stopped(pid))


def _writer(fields: list[str], inode: int) -> int | None:
    """Return the process of a line such as `1: POSIX ADVISORY WRITE 7441 fe:00:2171898 120 120`."""
    try:
        _, kind, _, mode, pid, file, first, last = fields
        if (kind, mode) != ("POSIX", "WRITE") or int(file.rpartition(":")[2]) != inode:
            return None
        covers = int(first) <= _WRITE_BYTE and (last == "EOF" or int(last) >= _WRITE_BYTE)
        return int(pid) if covers and int(pid) > 0 else None
    except ValueError:
        # Another format, or a process that waits for a lock ("1: -> POSIX …").
        return None


_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
#: Prepared statements that a connection caches.
_STATEMENTS = 64
#: Bytes to which the WAL is truncated after a checkpoint: what short commits need, but not a single large value.
_WAL_BYTES = 5 << 18
#: A file that another program has written cannot run code through its schema, and damaged pages are noticed.
_SETTINGS = (
    "PRAGMA trusted_schema=OFF",
    "PRAGMA cell_size_check=ON",
    f"PRAGMA journal_size_limit={_WAL_BYTES}",
)


class SQLiteConnection(apsw.Connection):
    """A connection for one thread at a time. It starts no transaction implicitly."""

    #: The frame of the function that has borrowed it.
    borrower: FrameType | None = None

    def __init__(self, name: str, timeout: float) -> None:
        """Open a file or a `file:` URI. Statements wait up to `timeout` seconds for the locks of others."""
        super().__init__(name, _FLAGS, statementcachesize=_STATEMENTS)
        try:
            self.set_busy_timeout(int(timeout * 1000))
            for setting in _SETTINGS:
                self.execute(setting)
        except BaseException:
            self.close(True)
            raise

    def sync_fully(self) -> None:
        """Make every sync reach the medium, on systems where that is a setting."""
        for setting in sync_settings():
            self.execute(setting)

    def end_transaction(self) -> bool:
        """Roll back an open transaction; return False if that fails and the connection must be closed."""
        if self.in_transaction:
            try:
                self.execute("ROLLBACK")
            except apsw.Error:
                return not self.in_transaction
        return True

    def commit_nothing(self) -> None:
        """Commit a transaction that changes nothing, so that SQLite writes to the WAL."""
        self.execute("BEGIN IMMEDIATE")
        version = self.value("PRAGMA user_version")
        self.execute(f"PRAGMA user_version={version}")
        self.execute("COMMIT")

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a statement."""
        return self.execute(statement, values).fetchall()

    def row(self, statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """Return the first row of a statement; None if there is none."""
        return self.execute(statement, values).fetchone()

    def value(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Return the first value of the only row of a statement."""
        return self.execute(statement, values).get

    def change_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement once for each row of values; return the number of rows that it changed."""
        if not rows:
            return 0
        before = self.total_changes()
        self.executemany(statement, rows)
        return self.total_changes() - before

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; return the number of rows that it changed."""
        self.execute(statement, values)
        return self.changes()


def all_or_nothing(work: Callable[[SQLiteConnection], T]) -> Callable[[SQLiteConnection], T]:
    """Return a job that undoes its changes if it raises."""

    def wrapped(connection: SQLiteConnection) -> T:
        connection.execute("SAVEPOINT job")
        try:
            result = work(connection)
        except BaseException:
            # After some errors, such as a full disk, SQLite has rolled everything back.
            if connection.in_transaction:
                connection.execute("ROLLBACK TO job")
                connection.execute("RELEASE job")
            raise
        connection.execute("RELEASE job")
        return result

    return wrapped


#: Device and inode.
FileId: TypeAlias = tuple[int, int]


class WALFiles(NamedTuple):
    """The two files that a connection has opened."""

    wal_path: str
    shm_path: str
    #: None if the connection works without it, or only reads the store.
    wal: FileId | None
    shm: FileId | None


def file_id(path: str) -> FileId | None:
    """Return which file is at a path; None if there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be examined ({error.strerror}): check its folder and your permissions"
        ) from error
    return found.st_dev, found.st_ino


def opened_files(connection: SQLiteConnection) -> WALFiles:
    """Return the files of a connection that has read its store. They stay the same until the last connection closes."""
    # The names that SQLite uses: behind a symbolic link they are next to the real file.
    wal, shm = connection.filename_wal, f"{connection.filename}-shm"
    if connection.readonly("main"):
        return WALFiles(wal, shm, None, None)
    return WALFiles(wal, shm, file_id(wal), file_id(shm))


def find_loss(files: WALFiles) -> str | None:
    """Return which of the files is no longer the one that was opened; None if both are."""
    if files.wal is not None and file_id(files.wal_path) != files.wal:
        if _is_empty(files.wal_path):
            return (
                f"the log {files.wal_path} was removed while this store was open, so the store closed itself. If no "
                "other process has it open, that wrote the log into the file, and no commit is lost; otherwise the "
                "last process that closes it does so. End the others, then open the store again"
            )
        return (
            f"the log {files.wal_path} was replaced while this store was open, so the store closed itself: the last "
            "commits of this process may be lost. Open the store again, and continue each run from its head"
        )
    if files.shm is not None and file_id(files.shm_path) != files.shm:
        return (
            f"{files.shm_path} was removed or replaced while this store was open, so the store closed itself before "
            "other processes overwrite its commits, or it theirs. End them, then open the store again"
        )
    return None


def may_checkpoint(files: WALFiles) -> bool:
    """Return whether the last connection may write the WAL into the file when it closes: not if another process may
    have written commits that this one does not see, to another WAL or to the same one through another index."""
    if files.wal is None:
        return True
    try:
        if file_id(files.wal_path) != files.wal:
            return _is_empty(files.wal_path)
        return files.shm is None or file_id(files.shm_path) == files.shm
    except StoreUnavailable:
        return False


def _is_empty(path: str) -> bool:
    """Return whether there is no file, or an empty one, as a process creates it that tries to open the store."""
    try:
        return os.stat(path).st_size == 0
    except OSError:
        return True


#: The errors of the driver. Text that is not UTF-8 can only come from a damaged file.
DriverError = apsw.Error | UnicodeDecodeError
#: Messages of SQLite for statements that exceed its limits.
_LIMIT_EXCEEDED = ("Expression tree is too large", "too many ", "at most ", "parser stack overflow")


def closed_error(path: str) -> StoreUnavailable:
    """Return the error of a closed store."""
    return StoreUnavailable(f"the store {path} is closed: open it again")


def reason(error: DriverError) -> str:
    """Return SQLite's name of an error, such as SQLITE_IOERR_FSYNC."""
    # Every error of SQLite has this attribute, although the type stubs lack it.
    code: int = getattr(error, "extendedresult", 0)
    return str(apsw.mapping_extended_result_codes.get(code, error))


def _busy(path: str, timeout: float) -> StoreBusy:
    holder = find_lock_holder(path)
    if holder is None:
        return StoreBusy(f"{path} was locked by another writer for {timeout:g} s: try again")
    pid = holder.pid
    who = "this process" if pid == os.getpid() else f"process {pid}"
    if holder.is_stopped:
        return StoreBusy(
            f"{path} was locked by {who} for {timeout:g} s, which is stopped inside a commit: continue it "
            f"(kill -CONT {pid}) or end it, then try again",
            pid=pid,
        )
    return StoreBusy(f"{path} was locked by {who} for {timeout:g} s: try again", pid=pid)


def translate_error(error: DriverError, path: str, timeout: float) -> HoldfastError:
    """Return the error of Holdfast for one of the driver."""
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return _busy(path, timeout)
    if isinstance(error, apsw.FullError):
        return StoreUnavailable(f"no space left for {path}: free some, then try again; nothing was lost")
    if isinstance(error, apsw.ReadOnlyError):
        return StoreUnavailable(f"{path} is read-only: make it and its folder writable")
    if isinstance(error, apsw.NotADBError):
        return IncompatibleFormat(
            f"{path} is not a Holdfast store (not a SQLite database): open another file"
        )
    if isinstance(error, apsw.CantOpenError | apsw.PermissionsError | apsw.AuthError):
        return StoreUnavailable(f"{path} cannot be opened: check its folder and your permissions")
    if isinstance(error, apsw.ConnectionClosedError | apsw.CursorClosedError):
        return closed_error(path)
    if reason(error) == "SQLITE_IOERR_SHORT_READ":
        return StoreUnavailable(
            f"{path} or its log {path}-wal ends too early. Most likely the log was removed while another process has "
            "the store open: close the store there, which writes the log into the file, then open it again. If no "
            "process has it open, the file was cut off: restore it from a backup"
        )
    if isinstance(error, apsw.IOError):
        return StoreUnavailable(
            f"the disk under {path} fails ({reason(error)}): check it, then verify the store"
        )
    if isinstance(error, apsw.SQLError) and str(error).startswith(_LIMIT_EXCEEDED):
        return InvalidCall(f"the query exceeds a limit of SQLite ({error}): ask for less")
    if isinstance(error, apsw.NoMemError):
        return StoreUnavailable(f"not enough memory for {path}: free some, then try again; nothing was lost")
    return CorruptStore(f"{path} is damaged ({error}): run verify, and restore what it names from a bundle")
