"""The schema of a SQLite store: checked, created or migrated when the file is opened.

The files `sql/NNNN_*.sql` are the formats, each a migration from the one before; SQLite's `user_version` is the format
of a file.

Invariant: a file that is not a Holdfast store, or has a newer format, is not changed.
"""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from functools import cache
from pathlib import Path

import apsw

from holdfast.atomic_file import open_private
from holdfast.errors import CorruptStore, HoldfastWarning, IncompatibleFormat, StoreUnavailable
from holdfast.model.names import short
from holdfast.store.questions import SELECT_WITH_DETAIL, stored_questions
from holdfast.store.sqlite.connection import SQLiteConnection, translate_error
from holdfast.store.sqlite.questions import put_questions

#: "hold" in ASCII: identifies a SQLite file as a store.
APPLICATION_ID = 0x686F6C64
_COUNT_LANGGRAPH_TABLES = (
    "SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name IN ('checkpoints', 'writes')"
)
#: The format with an index of open questions, which is filled from the records of runs.
_WITH_QUESTIONS = 5
#: Seconds that another process may take to create the tables of a new file.
_CREATION = 1.0
#: Calls from `holdfast.open` down to `prepare`.
_CALLER = 7


def prepare(connection: SQLiteConnection, path: str, timeout: float, *, has_wal: bool) -> None:
    """Create or migrate the tables of a file; `IncompatibleFormat` if it is not a store. `has_wal`: whether there was a
    `-wal` before the connection was opened."""
    newest = len(migrations())
    if _format(connection) == (APPLICATION_ID, newest):
        _check_schema(connection, path)
        return
    if os.path.getsize(path) == 1:
        # SQLite takes it for an empty file, and would overwrite it.
        raise IncompatibleFormat(f"{path} is not a Holdfast store (a single byte): open another file")
    # In one transaction: another process may be creating the tables.
    connection.execute("BEGIN")
    made, version = _format(connection)
    tables = connection.row("SELECT 1 FROM sqlite_schema LIMIT 1")
    connection.execute("COMMIT")
    if made == APPLICATION_ID:
        # A newer format may have other views.
        _check_format(version, path)
        _check_schema(connection, path)
    if made == APPLICATION_ID and version == newest:
        return
    if made not in (0, APPLICATION_ID) or (made == 0 and tables):
        advice = "open another file"
        if connection.value(_COUNT_LANGGRAPH_TABLES) == 2:
            advice = f"copy the threads of LangGraph's SqliteSaver with `holdfast import-langgraph {path}`, or {advice}"
        raise IncompatibleFormat(f"{path} is a SQLite database, but not a Holdfast store: {advice}")
    _check_format(version, path)
    if (
        made == 0
        and not has_wal
        and connection.value("PRAGMA journal_mode") == "wal"
        and not _gets_tables(connection)
    ):
        # A new store is only in its WAL until the first checkpoint.
        warnings.warn(
            f"{path} is empty, and its log {path}-wal is missing: if this is a copy of a store, everything is in "
            "the log of the original; copy both files, or use `holdfast backup`. Ignore this if nothing was ever "
            "stored in it",
            HoldfastWarning,
            stacklevel=_CALLER,
        )
    _use_wal(connection, time.monotonic() + timeout)
    _migrate(connection, path)


def check_kind(path: str) -> None:
    """Refuse a path that is not a regular file: SQLite would read a device, and wait for a pipe."""
    if os.path.isdir(path):
        raise StoreUnavailable(f"{path} is a folder: give the path of a file in it")
    if os.path.exists(path) and not os.path.isfile(path):
        raise StoreUnavailable(
            f"{path} is not a regular file, but a device, pipe or socket: open another path"
        )


def make_private(path: str) -> None:
    """Create a missing file, readable for its owner only. SQLite gives the WAL and its index the same permissions."""
    # SQLite reports the errors of a path, too.
    with contextlib.suppress(OSError):
        open_private(Path(os.path.realpath(path))).close()


def name_to_open(path: str) -> str:
    """Return the name by which SQLite opens a file: the path; in a folder that is not writable, if no process has the
    file open, a URI by which it only reads the file."""
    folder = os.path.dirname(path) or os.curdir
    if os.access(folder, os.W_OK) or not os.path.exists(path) or os.path.exists(f"{path}-wal"):
        return path
    return f"{Path(path).absolute().as_uri()}?mode=ro&immutable=1"


def format_of(path: str) -> int:
    """Return the format of a file without changing it; `IncompatibleFormat` if it is not a store."""
    check_kind(path)
    try:
        name = name_to_open(path)
        name = f"{Path(path).absolute().as_uri()}?mode=ro" if name == path else name
        with contextlib.closing(SQLiteConnection(name, 1.0)) as connection:
            made, version = _format(connection)
    except apsw.Error as error:
        raise translate_error(error, path, 1.0) from error
    if made != APPLICATION_ID:
        raise IncompatibleFormat(f"{path} is not a Holdfast store: open another file")
    return version


@cache
def migrations() -> tuple[str, ...]:
    """Return the statements of each migration."""
    folder = Path(__file__).parent / "sql"
    return tuple(path.read_text() for path in sorted(folder.glob("[0-9]*.sql")))


@cache
def views() -> dict[str, str]:
    """Return the statements that create the views, by name, as SQLite stores them."""
    found = {}
    for statements in migrations():
        for statement in statements.split(";\n"):
            _, created, rest = statement.strip().partition("CREATE VIEW ")
            if created:
                found[rest.split(" ", 1)[0]] = created + rest
    return found


def _check_schema(connection: SQLiteConnection, path: str) -> None:
    """Refuse a file with more than tables, indexes and our views: our statements would run a view or a trigger in it,
    perhaps endlessly. A view of another text may have the name of one of our tables."""
    for found in connection.rows(
        "SELECT type, name, sql FROM sqlite_schema WHERE type NOT IN ('table', 'index') OR rootpage = 0 LIMIT 50"
    ):
        if found[0] == "view" and views().get(found[1]) == found[2]:
            continue
        kind = "virtual table" if found[0] == "table" else short(found[0])
        raise CorruptStore(
            f"{path} has a {kind} {short(found[1])}, which Holdfast never creates, so it is not opened: restore the "
            f"file from a backup, or drop the {kind}"
        )


def _gets_tables(connection: SQLiteConnection) -> bool:
    """Return whether another process, which has switched an empty file to the WAL, creates its tables now."""
    until = time.monotonic() + _CREATION
    while _format(connection)[0] == 0:
        if time.monotonic() > until:
            return False
        time.sleep(0.002)
    return True


def _use_wal(connection: SQLiteConnection, until: float) -> None:
    """Switch to the WAL. Here SQLite does not wait for a lock by itself."""
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except (apsw.BusyError, apsw.LockedError):
            if time.monotonic() > until:
                raise
        time.sleep(0.002)


def _check_format(version: int, path: str) -> None:
    newest = len(migrations())
    if version > newest:
        raise IncompatibleFormat(
            f"{path} has format {version}, this Holdfast knows up to {newest}: upgrade Holdfast"
        )


def _migrate(connection: SQLiteConnection, path: str) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        _, version = _format(connection)
        # Again, under the lock: a newer Holdfast may have migrated the file meanwhile.
        _check_format(version, path)
        for number, statements in enumerate(migrations()[version:], version + 1):
            for statement in statements.split(";\n"):
                if statement.strip():
                    connection.execute(statement)
            if number == _WITH_QUESTIONS:
                for key, questions in stored_questions(connection.execute(SELECT_WITH_DETAIL)):
                    put_questions(connection, key, questions)
        connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version={len(migrations())}")
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(apsw.Error):
            connection.execute("ROLLBACK")
        raise


def _format(connection: SQLiteConnection) -> tuple[int, int]:
    made = connection.value("PRAGMA application_id")
    version = connection.value("PRAGMA user_version")
    return made, version
