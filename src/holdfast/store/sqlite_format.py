"""Whose a SQLite file is, and its tables: checked, made, or brought up to date, when it is opened.

The files `sql/NNNN_*.sql` are the formats, each the change from the one before; SQLite's `user_version` says
which one a file has.

Invariant: a file that is not ours, or of a newer format, is not changed.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from functools import cache
from pathlib import Path

import apsw

from holdfast.errors import CorruptStore, HoldfastWarning, IncompatibleFormat, StoreUnavailable
from holdfast.model.names import short
from holdfast.store.sqlite_connection import Connection
from holdfast.store.sqlite_errors import translated
from holdfast.whole import open_private

#: "hold" in ASCII: marks a SQLite file as ours.
APPLICATION_ID = 0x686F6C64
#: Calls from `holdfast.open` down to `prepare`.
_CALLER = 7


def prepare(connection: Connection, path: str, timeout: float, *, has_log: bool) -> None:
    """Make a file ready for use; `IncompatibleFormat` if it cannot be. `has_log`: whether there was a `-wal` before the
    connection was opened."""
    newest = len(migrations())
    if _format(connection) == (APPLICATION_ID, newest):
        _check_schema(connection, path)
        return
    if os.path.getsize(path) == 1:
        # SQLite takes it for an empty file, and would write over it.
        raise IncompatibleFormat(f"{path} is not a Holdfast store (a single byte): open another file")
    # In one transaction: another process may be making the file just now.
    connection.execute("BEGIN")
    made, version = _format(connection)
    tables = connection.row("SELECT 1 FROM sqlite_schema LIMIT 1")
    connection.execute("COMMIT")
    if made == APPLICATION_ID:
        _check_schema(connection, path)
    if made == APPLICATION_ID and version == newest:
        return
    if made not in (0, APPLICATION_ID) or (made == 0 and tables):
        raise IncompatibleFormat(f"{path} is a SQLite database, but not one of Holdfast's: open another file")
    if version > newest:
        raise IncompatibleFormat(
            f"{path} has format {version}, this Holdfast knows up to {newest}: upgrade Holdfast"
        )
    if made == 0 and not has_log and connection.value("PRAGMA journal_mode") == "wal":
        # A new store is in its log until that is first written back.
        warnings.warn(
            f"{path} holds nothing, and its log {path}-wal is missing: if this is a copy of a store, everything is in "
            "the log of the original; copy both files, or use `holdfast backup`. If nothing was ever stored in it, all "
            "is well",
            HoldfastWarning,
            stacklevel=_CALLER,
        )
    _use_log(connection, time.monotonic() + timeout)
    _migrate(connection)


def check_kind(path: str) -> None:
    """Refuse what is at a path if it is not a regular file: SQLite would read a device, and wait for a pipe."""
    if os.path.isdir(path):
        raise StoreUnavailable(f"{path} is a folder: give the path of a file in it")
    if os.path.exists(path) and not os.path.isfile(path):
        raise StoreUnavailable(
            f"{path} is not a regular file, but a device, pipe or socket: open another path"
        )


def make_private(path: str) -> None:
    """Make a file that is not there, for its owner alone. SQLite gives its companion files the same rights."""
    # What is wrong with the path, SQLite finds, too.
    with contextlib.suppress(OSError):
        open_private(Path(os.path.realpath(path))).close()


def name_to_open(path: str) -> str:
    """The path; where nothing may be written beside a file, and nobody else has it open, the name under which SQLite
    only reads it, as it is at that moment."""
    folder = os.path.dirname(path) or os.curdir
    if os.access(folder, os.W_OK) or not os.path.exists(path) or os.path.exists(f"{path}-wal"):
        return path
    return f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"


def format_of(path: str) -> int:
    """The format of a file, read without changing it; `IncompatibleFormat` if it is not ours."""
    check_kind(path)
    try:
        name = name_to_open(path)
        name = f"{Path(path).absolute().as_uri()}?mode=ro" if name == path else name
        with contextlib.closing(Connection(name, 1.0)) as connection:
            made, version = _format(connection)
    except apsw.Error as error:
        raise translated(error, path, 1.0) from error
    if made != APPLICATION_ID:
        raise IncompatibleFormat(f"{path} is not a Holdfast store: open another file")
    return version


@cache
def migrations() -> tuple[str, ...]:
    """The statements that lead from each format to the next."""
    folder = Path(__file__).parent / "sql"
    return tuple(path.read_text() for path in sorted(folder.glob("[0-9]*.sql")))


def _check_schema(connection: Connection, path: str) -> None:
    """Refuse a file that defines more than tables and indexes: a view or a trigger in it would be run by our
    statements, without an end perhaps."""
    found = connection.row(
        "SELECT type, name FROM sqlite_schema WHERE type NOT IN ('table', 'index') OR rootpage = 0 LIMIT 1"
    )
    if found is not None:
        kind = "virtual table" if found[0] == "table" else short(found[0])
        raise CorruptStore(
            f"{path} has a {kind} {short(found[1])}, which Holdfast never makes: it is not opened, because what it "
            "does cannot be known; restore the file from a backup, or drop that"
        )


def _use_log(connection: Connection, until: float) -> None:
    """Switch to the write-ahead log. For this, unlike for all else, SQLite does not wait for a lock."""
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except (apsw.BusyError, apsw.LockedError):
            if time.monotonic() > until:
                raise
        time.sleep(0.002)


def _migrate(connection: Connection) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        _, version = _format(connection)
        for statements in migrations()[version:]:
            for statement in statements.split(";\n"):
                if statement.strip():
                    connection.execute(statement)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={len(migrations())}")
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(apsw.Error):
            connection.execute("ROLLBACK")
        raise


def _format(connection: Connection) -> tuple[int, int]:
    made = connection.value("PRAGMA application_id")
    version = connection.value("PRAGMA user_version")
    return made, version
