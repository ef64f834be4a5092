"""A connection to a SQLite file, through `apsw`, which brings a current SQLite along.

Invariant: every connection of Holdfast's to a store is made here, with the same settings. POSIX locks belong to the
process: a file that is open here must not be opened in this process through another SQLite library, such as Python's
`sqlite3`, which would release our locks when it closes the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import FrameType
from typing import Any

import apsw

from holdfast.operating_system import sync_settings

_FLAGS = apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE | apsw.SQLITE_OPEN_URI
#: Prepared statements that a connection keeps.
_STATEMENTS = 64
#: Bytes to which the log is cut once it has been written back.
_LOG_BYTES = 4 << 20
#: A file that another program has written cannot have code run through its schema, and a damaged page is noticed.
_SETTINGS = (
    "PRAGMA trusted_schema=OFF",
    "PRAGMA cell_size_check=ON",
    f"PRAGMA journal_size_limit={_LOG_BYTES}",
)


class Connection(apsw.Connection):
    """A connection that is used by one thread at a time. It begins no transaction by itself."""

    #: The frame of the function that it is lent to.
    borrower: FrameType | None = None

    def __init__(self, name: str, timeout: float) -> None:
        """Open a file, or what a `file:` URI names. Statements wait so many seconds for the locks of others."""
        super().__init__(name, _FLAGS, statementcachesize=_STATEMENTS)
        try:
            self.set_busy_timeout(int(timeout * 1000))
            for setting in _SETTINGS:
                self.execute(setting)
        except BaseException:
            self.close(True)
            raise

    def sync_fully(self) -> None:
        """Have the medium reached by every sync, on systems where that has to be asked for."""
        for setting in sync_settings():
            self.execute(setting)

    def end_transaction(self) -> bool:
        """Roll back what was not committed; returns False if even that fails, and the connection is of no use."""
        if self.in_transaction:
            try:
                self.execute("ROLLBACK")
            except apsw.Error:
                return not self.in_transaction
        return True

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows that a statement gives."""
        return self.execute(statement, values).fetchall()

    def row(self, statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """Return the first row that a statement gives; None if there is none."""
        return self.execute(statement, values).fetchone()

    def value(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Return the first value of the only row that a statement gives."""
        return self.execute(statement, values).get

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Carry out a statement, and return how many rows it has changed."""
        self.execute(statement, values)
        return self.changes()
