"""Whose a SQLite file is, and its tables: checked, made, or brought up to date, when it is opened.

The files `sql/NNNN_*.sql` are the formats, each the change from the one before; SQLite's `user_version` says
which one a file has.

Invariant: a file that is not ours, or of a newer format, is not changed.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from functools import cache
from pathlib import Path

from holdfast.errors import IncompatibleFormat
from holdfast.store.sqlite_errors import translated

#: "hold" in ASCII: marks a SQLite file as ours.
APPLICATION_ID = 0x686F6C64


def prepare(connection: sqlite3.Connection, path: str, timeout: float) -> None:
    """Make a file ready for use; `IncompatibleFormat` if it cannot be."""
    newest = len(migrations())
    if _format(connection) == (APPLICATION_ID, newest):
        return
    if os.path.getsize(path) == 1:
        # SQLite takes it for an empty file, and would write over it.
        raise IncompatibleFormat(f"{path} is not a Holdfast store (a single byte): open another file")
    # In one transaction: another process may be making the file just now.
    connection.execute("BEGIN")
    made, version = _format(connection)
    tables = connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchone()
    connection.execute("COMMIT")
    if made == APPLICATION_ID and version == newest:
        return
    if made not in (0, APPLICATION_ID) or (made == 0 and tables):
        raise IncompatibleFormat(f"{path} is a SQLite database, but not one of Holdfast's: open another file")
    if version > newest:
        raise IncompatibleFormat(
            f"{path} has format {version}, this Holdfast knows up to {newest}: upgrade Holdfast"
        )
    _use_log(connection, time.monotonic() + timeout)
    _migrate(connection)


def name_to_open(path: str) -> str:
    """The path; where nothing may be written beside a file, and nobody else has it open, the name under which SQLite
    only reads it, as it is at that moment."""
    folder = os.path.dirname(path) or os.curdir
    if os.access(folder, os.W_OK) or not os.path.exists(path) or os.path.exists(f"{path}-wal"):
        return path
    return f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"


def format_of(path: str) -> int:
    """The format of a file, read without changing it; `IncompatibleFormat` if it is not ours."""
    try:
        name = name_to_open(path)
        name = f"{Path(path).absolute().as_uri()}?mode=ro" if name == path else name
        connection = sqlite3.connect(name, uri=True, timeout=1.0)
        with contextlib.closing(connection):
            made, version = _format(connection)
    except sqlite3.Error as error:
        raise translated(error, path, 1.0) from error
    if made != APPLICATION_ID:
        raise IncompatibleFormat(f"{path} is not a Holdfast store: open another file")
    return version


@cache
def migrations() -> tuple[str, ...]:
    """The statements that lead from each format to the next."""
    folder = Path(__file__).parent / "sql"
    return tuple(path.read_text() for path in sorted(folder.glob("[0-9]*.sql")))


def _use_log(connection: sqlite3.Connection, until: float) -> None:
    """Switch to the write-ahead log. For this, unlike for all else, SQLite does not wait for a lock."""
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(0.002)


def _migrate(connection: sqlite3.Connection) -> None:
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
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def _format(connection: sqlite3.Connection) -> tuple[int, int]:
    made = connection.execute("PRAGMA application_id").fetchone()[0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    return made, version
