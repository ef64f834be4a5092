"""Write records as rows of a SQLite store, and read its journal: versions and other events of all runs, in the order in
which they were committed.

Invariant: the record of a run is replaced only by a writer that has seen the one before it, and keys of runs are never
reused: a record of a deleted run matches no other run. Nor is a position in the journal, even after its entry is
deleted: a reader that continues from the last position it saw misses nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.errors import CorruptStore
from holdfast.model.records import RunRecord, VersionRecord
from holdfast.store.protocol import JournalEntry, changes_readiness, lease_expired, ready_at, stale_run
from holdfast.store.rows import LIVE_RUN, RUN, check_order, entry_record, run_row, run_sum, version_values
from holdfast.store.sql import INSERT_BLOCK
from holdfast.store.sqlite.connection import SQLiteConnection
from holdfast.store.sqlite.database import SQLiteDatabase

VERSION = (
    "seq, number, back, timeline, kind, status, steps, pruned, extra, at, step, detail, seal, external, "
    "length(pack)"
)
#: The pack of a row, in whichever table it is stored.
PACK = (
    "CASE WHEN length(pack) > 0 THEN pack ELSE coalesce((SELECT data FROM block WHERE block.run = journal.run "
    "AND block.number = journal.number AND block.n = -1), x'') END"
)
#: A row that fills most of a page would leave the page before it half empty: longer packs are stored as block -1.
_LONG_PACK = 1500
#: Before every time, for a change that needs no lease.
_ANY_TIME = -(1 << 63)

_INSERT_VERSION = (
    "INSERT INTO journal "
    "(seq, run, number, back, timeline, kind, status, steps, pruned, extra, at, step, detail, seal, external, pack) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
INSERT_EVENT = "INSERT INTO journal (run, at, step, detail, seal) VALUES (?, ?, ?, ?, ?)"
#: Created with the first run of a workflow: an empty index takes a page, too.
_CREATE_LIVE_INDEX = f"CREATE INDEX IF NOT EXISTS run_live ON run (status, due) WHERE {LIVE_RUN}"
_NEXT_KEY = (
    "SELECT max(coalesce((SELECT max(key) FROM run), 0), "
    "coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'run'), 0)) + 1"
)
_INSERT_RUN = f"INSERT INTO run ({RUN}, sum) VALUES ({', '.join('?' * 22)})"  # noqa: S608 - constants only
_UPDATE_RUN = (
    "UPDATE run SET workflow=?, status=?, updated=?, head=?, last=?, timeline=?, revision=?, epoch=?, "
    "origin_run=?, origin_version=?, step=?, size=?, kept=?, parent=?, due=?, owner=?, detail=?, until=?, sum=? "
    "WHERE key=? AND revision=? AND until > ?"
)
#: For a run of which no indexed column changes: SQLite writes no page of an index.
_UPDATE_STEP = (
    "UPDATE run SET updated=?, head=?, last=?, timeline=?, revision=?, epoch=?, "
    "origin_run=?, origin_version=?, step=?, size=?, kept=?, parent=?, owner=?, detail=?, until=?, sum=? "
    "WHERE key=? AND revision=? AND until > ?"
)
#: For a run that can be claimed at another time after the change (see `queue`).
_UPDATE_READINESS = (
    "UPDATE run SET workflow=?, status=?, updated=?, head=?, last=?, timeline=?, revision=?, epoch=?, "
    "origin_run=?, origin_version=?, step=?, size=?, kept=?, parent=?, due=?, owner=?, detail=?, until=?, sum=?, "
    "ready = CASE WHEN queue IS NOT NULL THEN ? END WHERE key=? AND revision=? AND until > ?"
)

_SELECT_ENTRIES = f"SELECT {VERSION}, run FROM journal WHERE "  # noqa: S608 - constants only
_SELECT_ALL = _SELECT_ENTRIES + "seq > ? AND run > 0 AND pruned IS NOT 1 ORDER BY seq LIMIT ?"
_SELECT_EVENTS = _SELECT_ENTRIES + "run=? AND number IS NULL AND seq > ? ORDER BY seq LIMIT ?"
_SELECT_VERSIONS = _SELECT_ENTRIES + "run=? AND number >= ? AND pruned = 0 ORDER BY number LIMIT ?"


def insert_run(connection: SQLiteConnection, run: RunRecord) -> RunRecord:
    """Insert a run; return it with its key."""
    run = msgspec.structs.replace(run, key=connection.value(_NEXT_KEY))
    row = run_row(run)
    if run.workflow is not None:
        connection.execute(_CREATE_LIVE_INDEX)
    connection.execute(_INSERT_RUN, (*row, run_sum(row)))
    return run


def update_run(
    connection: SQLiteConnection, run: RunRecord, expect: RunRecord, *, leased_at: int | None = None
) -> None:
    """Replace the record of a run; `StaleVersion` if it has changed since it was read, `LeaseExpired` if its lease
    has expired at the time `leased_at`."""
    row = run_row(run)
    which = (expect.key, expect.revision, _ANY_TIME if leased_at is None else leased_at)
    if changes_readiness(expect, run):
        connection.execute(_UPDATE_READINESS, (*row[2:4], *row[5:], run_sum(row), ready_at(run), *which))
    elif run.workflow == expect.workflow:
        connection.execute(_UPDATE_STEP, (*row[5:17], *row[18:], run_sum(row), *which))
    else:
        connection.execute(_UPDATE_RUN, (*row[2:4], *row[5:], run_sum(row), *which))
    if connection.changes() != 1:
        is_unchanged = leased_at is not None and connection.row(
            "SELECT 1 FROM run WHERE key=? AND revision=?", which[:2]
        )
        raise lease_expired(run) if is_unchanged else stale_run(run)


def insert_version(
    connection: SQLiteConnection,
    key: int,
    version: VersionRecord,
    blocks: Sequence[bytes],
    position: int | None = None,
) -> None:
    """Insert a version with its pack and further blocks, at a position of the journal or at its end."""
    pack = version.pack or b""
    is_long = len(pack) > _LONG_PACK
    values = version_values(version, b"" if is_long else pack)
    connection.execute(_INSERT_VERSION, (position, key, *values))
    if blocks or is_long:
        rows = [(key, version.number, index, block) for index, block in enumerate(blocks)]
        if is_long:
            rows.append((key, version.number, -1, pack))
        connection.executemany(INSERT_BLOCK, rows)


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
