"""The journal in a SQLite file: versions and other events of all runs, in the order in which they were committed.

Invariant: a position is never reused, even after its entry is deleted; so a reader that continues from the last
position it saw misses nothing.
"""

from __future__ import annotations

from holdfast.errors import CorruptStore
from holdfast.store.protocol import JournalEntry
from holdfast.store.rows import check_order, entry_record
from holdfast.store.sqlite.connection import SQLiteConnection
from holdfast.store.sqlite.database import SQLiteDatabase
from holdfast.store.sqlite.rows import VERSION

_SELECT = f"SELECT {VERSION}, run FROM journal WHERE "  # noqa: S608 - constants only
_SELECT_ALL = _SELECT + "seq > ? AND run > 0 AND pruned IS NOT 1 ORDER BY seq LIMIT ?"
_SELECT_EVENTS = _SELECT + "run=? AND number IS NULL AND seq > ? ORDER BY seq LIMIT ?"
_SELECT_VERSIONS = _SELECT + "run=? AND number >= ? AND pruned = 0 ORDER BY number LIMIT ?"


class SQLiteJournal:
    """Reads the journal."""

    def __init__(self, database: SQLiteDatabase) -> None:
        self._database = database

    def entries(self, *, run: int | None, after: int, limit: int) -> list[JournalEntry]:
        """Return the entries after a position, of one run or of all, oldest first; pruned versions are omitted."""
        with self._database.reader() as connection:
            # In one snapshot: an event that was committed between two reads would never be returned.
            connection.execute("BEGIN")
            try:
                if run is None:
                    rows = connection.rows(_SELECT_ALL, (after, limit))
                else:
                    rows = connection.rows(_SELECT_EVENTS, (run, after, limit))
                    first = _first_number_after(connection, run, after)
                    rows += connection.rows(_SELECT_VERSIONS, (run, first, limit))
                    rows = sorted(rows, key=lambda row: row[0])[:limit]
            finally:
                connection.end_transaction()
        check_order(after, [row[0] for row in rows])
        return [entry_record(row) for row in rows]

    def end(self) -> int:
        """Return the last position; 0 if the journal is empty."""
        with self._database.reader() as connection:
            last: int = connection.value("SELECT coalesce(max(seq), 0) FROM journal")
        return last


def mark_end(connection: SQLiteConnection) -> None:
    """Before rows are deleted: insert a row at the end that readers skip, so that the next row gets a later position.
    (AUTOINCREMENT would do the same, at the cost of a further page in every commit.)"""
    connection.execute("INSERT INTO journal (run, at, pruned, seal) VALUES (0, 0, 1, x'')")
    end = connection.last_insert_rowid()
    connection.execute("DELETE FROM journal WHERE run=0 AND number IS NULL AND seq < ?", (end,))


def _first_number_after(connection: SQLiteConnection, run: int, after: int) -> int:
    """Return the first version with a position after `after`, by binary search: positions grow with numbers. Stubs
    with numbers below 1 were written later and are not part of the journal."""
    lowest = 1
    highest = connection.value("SELECT max(number) FROM journal WHERE run=? AND number >= 1", (run,))
    while type(highest) is int and lowest <= highest:
        middle = (lowest + highest) // 2
        row = connection.row(
            "SELECT number, seq FROM journal WHERE run=? AND number >= ? ORDER BY number LIMIT 1",
            (run, middle),
        )
        if row is None or type(row[0]) is not int or row[0] < middle:
            raise CorruptStore("the index of the journal is damaged: verify the store")
        number, seq = row
        if seq > after:
            highest = middle - 1
        else:
            lowest = number + 1
    return lowest
