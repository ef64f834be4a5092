"""SQLite's errors as ours.

Invariant: no error of the driver crosses the store's boundary; it is the cause of ours.
"""

from __future__ import annotations

import os

import apsw

from holdfast.errors import (
    CorruptStore,
    HoldfastError,
    IncompatibleFormat,
    InvalidCall,
    StoreBusy,
    StoreUnavailable,
)
from holdfast.store.lock_holder import find_holder

#: What the driver raises. A text that is not UTF-8 can only come from a damaged file.
DriverError = apsw.Error | UnicodeDecodeError
#: How SQLite says that a statement is beyond its limits.
_TOO_MUCH = ("Expression tree is too large", "too many ", "at most ", "parser stack overflow")


def closed(path: str) -> StoreUnavailable:
    """The refusal of a store that was closed."""
    return StoreUnavailable(f"the store {path} is closed: open it again")


def reason(error: DriverError) -> str:
    """Return SQLite's name for what went wrong, such as SQLITE_IOERR_FSYNC."""
    # Every error of SQLite has it, though the types do not say so.
    code: int = getattr(error, "extendedresult", 0)
    return str(apsw.mapping_extended_result_codes.get(code, error))


def _busy(path: str, timeout: float) -> StoreBusy:
    holder = find_holder(path)
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


def translated(error: DriverError, path: str, timeout: float) -> HoldfastError:
    """Return what an error of the driver means for the caller."""
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
        return StoreUnavailable(f"{path} cannot be opened: check its folder and your rights to it")
    if isinstance(error, apsw.ConnectionClosedError | apsw.CursorClosedError):
        return closed(path)
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
    if isinstance(error, apsw.SQLError) and str(error).startswith(_TOO_MUCH):
        return InvalidCall(f"this asks for more than SQLite can do in one statement ({error}): ask for less")
    if isinstance(error, apsw.NoMemError):
        return StoreUnavailable(f"not enough memory for {path}: free some, then try again; nothing was lost")
    return CorruptStore(f"{path} is damaged ({error}): run verify, and restore what it names from a bundle")
