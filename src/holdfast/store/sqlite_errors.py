"""SQLite's errors as ours.

Invariant: no error of the driver crosses the store's boundary; it goes along as the cause.
"""

from __future__ import annotations

import sqlite3

from holdfast.errors import CorruptStore, HoldfastError, IncompatibleFormat, StoreBusy, StoreUnavailable

#: What the driver raises: where it cannot decode the names in a damaged schema, not even an error of its own.
DriverError = sqlite3.Error | UnicodeDecodeError


def closed(path: str) -> StoreUnavailable:
    """The refusal of a store that was closed."""
    return StoreUnavailable(f"the store {path} is closed: open it again")


def translated(error: DriverError, path: str, timeout: float) -> HoldfastError:
    """What an error of the driver means for the caller."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return StoreBusy(f"{path} was locked by another writer for {timeout:g} s: try again")
    if "full" in text:
        return StoreUnavailable(f"no space left for {path}: free some, then try again; nothing was lost")
    if "readonly" in text or "read-only" in text:
        return StoreUnavailable(f"{path} is read-only: make it and its folder writable")
    if "not a database" in text:
        return IncompatibleFormat(
            f"{path} is not a Holdfast store (not a SQLite database): open another file"
        )
    if "unable to open" in text:
        return StoreUnavailable(f"{path} cannot be opened: check its folder and your rights to it")
    if isinstance(error, sqlite3.ProgrammingError) and "closed" in text:
        return closed(path)
    if isinstance(error, sqlite3.OperationalError) and "disk I/O" in text:
        return StoreUnavailable(f"the disk under {path} fails ({text}): check it, then verify the store")
    if isinstance(error, sqlite3.DatabaseError | UnicodeDecodeError):
        return CorruptStore(
            f"{path} is damaged ({text}): run verify, and restore what it names from a bundle"
        )
    return StoreUnavailable(f"{path}: {text}")
