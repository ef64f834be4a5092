"""Direct access to the SQLite file of a store, as by another program.

POSIX locks belong to the process, so a test that has the store open cannot use Python's `sqlite3` on the same file:
this module uses the same library as Holdfast.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from holdfast.store.sqlite.connection import SQLiteConnection


class Database(SQLiteConnection):
    """A connection in which each statement is a transaction. The end of a `with` closes it."""

    def __init__(self, path: str | os.PathLike[str], timeout: float = 5.0) -> None:
        super().__init__(os.fspath(path), timeout)

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *_: Any) -> None:  # type: ignore[override]
        self.close()

    def dump(self) -> Iterator[tuple[Any, ...]]:
        """Yield every row of every table, after the table's name."""
        for (table,) in self.rows("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name"):
            for row in self.execute(f'SELECT * FROM "{table}"'):
                yield table, *row
