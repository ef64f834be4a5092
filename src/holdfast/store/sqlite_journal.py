"""The journal in a SQLite file: versions and other events of all runs in the order in which they happened.

Invariant: a position, once given, is never given again, even if what stood there is deleted; so a reader that
goes on from the last position it saw misses nothing.
"""

from __future__ import annotations

from holdfast.errors import CorruptStore
from holdfast.model.records import EventRecord, VersionRecord
from holdfast.store.sqlite_connection import Connection
from holdfast.store.sqlite_link import Link
from holdfast.store.sqlite_rows import VERSION, entry_record, in_order

_SELECT = f"SELECT {VERSION}, run FROM journal WHERE "  # noqa: S608 - constants only
_ALL = _SELECT + "seq > ? AND run > 0 AND pruned IS NOT 1 ORDER BY seq LIMIT ?"
_EVENTS = _SELECT + "run=? AND number IS NULL AND seq > ? ORDER BY seq LIMIT ?"
_VERSIONS = _SELECT + "run=? AND number >= ? AND pruned = 0 ORDER BY number LIMIT ?"


def entries(
    link: Link, *, run: int | None, after: int, limit: int
) -> list[EventRecord | tuple[int, VersionRecord]]:
    """What happened after a position, of one run or of all; versions that were pruned since are left out."""
    # In one snapshot: an event that came between two reads would be passed over for good.
    with link.snapshot() as connection:
        if run is None:
            rows = connection.rows(_ALL, (after, limit))
        else:
            rows = connection.rows(_EVENTS, (run, after, limit))
            first = _first_number_after(connection, run, after)
            rows += connection.rows(_VERSIONS, (run, first, limit))
            rows = sorted(rows, key=lambda row: row[0])[:limit]
    in_order(after, [row[0] for row in rows])
    return [entry_record(row) for row in rows]


def end(link: Link) -> int:
    """The last position."""
    with link.reader() as connection:
        last: int = connection.value("SELECT coalesce(max(seq), 0) FROM journal")
    return last


def mark_end(connection: Connection) -> None:
    """Before rows are deleted: leave a row at the end, which no reader sees, so that what follows gets later
    positions. (AUTOINCREMENT would do the same, for a further page in every commit.)"""
    connection.execute("INSERT INTO journal (run, at, pruned, seal) VALUES (0, 0, 1, x'')")
    end = connection.last_insert_rowid()
    connection.execute("DELETE FROM journal WHERE run=0 AND number IS NULL AND seq < ?", (end,))


def _first_number_after(connection: Connection, run: int, after: int) -> int:
    """The first version whose position is beyond `after`. Positions grow with numbers, but for stubs below 1:
    those came later, and are not part of the journal."""
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
