"""The journal in PostgreSQL: versions and other events of all runs, in the order of their positions.

Transactions do not commit in the order in which they took their positions. A reader that continued from the last
position it saw would miss rows that become visible before it later. So a writer, before it takes positions, takes a
shared advisory lock whose number is the last position given so far, and keeps it until its rows are visible. A reader
reads the last position, then these locks, then the rows: below the lowest lock, no row can appear any more.

Invariant: no row can become visible before a position that was returned; no position is reused.
"""

# ruff: noqa: S608 - statements are made of constants only

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.model.records import EventRecord, VersionRecord
from holdfast.store.postgres.connection import PostgresConnection, Row
from holdfast.store.postgres.connection_pool import PostgresPool
from holdfast.store.postgres.prepared import PreparedStatement, execute_prepared
from holdfast.store.postgres.schema import POSITIONS, lock_class
from holdfast.store.protocol import JournalEntry
from holdfast.store.rows import check_order, entry_record, event_row, version_values

VERSION = (
    "seq, number, back, timeline, kind, status, steps, pruned, extra, at, step, detail, seal, external, "
    "coalesce(length(pack), 0)"
)
#: Columns of a version's row.
VERSION_COLUMNS = (
    "run, number, back, timeline, kind, status, steps, pruned, extra, at, step, detail, seal, external, pack"
)
#: The types of the columns of both tables that are not `bigint`, as they are sent.
_TYPES = {
    "id": "text", "workflow": "text", "step": "text", "owner": "text", "external": "text",
    "detail": "bytea", "seal": "bytea", "pack": "bytea", "sum": "bytea",
}  # fmt: skip


def type_of(column: str) -> str:
    """Return the type in which a column's value is sent."""
    return _TYPES.get(column, "bigint")


def version_row(version: VersionRecord) -> tuple[Any, ...]:
    """Return the values of `VERSION_COLUMNS` without the run. Packs of any length are stored in the journal."""
    return version_values(version, version.pack or b"")


#: The numbers of these locks wrap around: half of this exceeds the positions that can be in flight at once.
_ROUND = 2**31
_SELECT_END = (
    "WITH given AS MATERIALIZED (SELECT last_value AS last FROM journal_seq) SELECT last, "
    f"(SELECT min(mod(objid::bigint - mod(last, {_ROUND}) + {_ROUND + _ROUND // 2}, {_ROUND}) - {_ROUND // 2}) "
    "FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND classid = $1::bigint::oid "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) FROM given"
)
_SELECT = f"SELECT {VERSION}, run FROM journal WHERE "
_SELECT_ALL = _SELECT + "seq > $1 AND seq <= $2 AND pruned IS DISTINCT FROM 1 ORDER BY seq LIMIT $3"
#: The first version after a position is found by binary search: positions grow with numbers, except for stubs below 1,
#: which were written later and are not part of the journal.
_SELECT_OF_RUN = (
    "WITH RECURSIVE search (low, high) AS ("
    "SELECT 1::bigint, coalesce((SELECT max(number) FROM journal WHERE run = $1 AND number >= 1), 0) "
    "UNION ALL SELECT CASE WHEN probe.seq > $2 THEN low ELSE probe.number + 1 END, "
    "CASE WHEN probe.seq > $2 THEN (low + high) / 2 - 1 ELSE high END "
    "FROM search, LATERAL (SELECT number, seq FROM journal WHERE run = $1 AND number >= (low + high) / 2 "
    "ORDER BY number LIMIT 1) probe WHERE low <= high) "
    f"(SELECT {VERSION}, run FROM journal WHERE run = $1 AND number IS NULL AND seq > $2 "
    "AND seq <= $3 ORDER BY seq LIMIT $4) UNION ALL "
    f"(SELECT {VERSION}, run FROM journal WHERE run = $1 AND number >= (SELECT max(low) FROM search) "
    "AND pruned = 0 AND seq > $2 AND seq <= $3 ORDER BY number LIMIT $4) ORDER BY 1 LIMIT $4"
)

_INSERT_EVENTS = (
    "INSERT INTO journal (run, at, step, detail, seal) SELECT given.run, given.at, given.kind, given.data, given.seal "
    "FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::bytea[], %s::bytea[]) "
    "WITH ORDINALITY given (run, at, kind, data, seal, n) ORDER BY n"
)


class PostgresJournal:
    """Reads the journal and adds events to it."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._lock_class = lock_class(pool.address.schema, POSITIONS)
        #: The expression that a writer selects before it takes positions.
        self.lock_positions = (
            f"pg_advisory_xact_lock_shared({self._lock_class}, "
            f"(SELECT mod(last_value, {_ROUND})::int4 FROM journal_seq))"
        )

    def entries(self, *, run: int | None, after: int, limit: int) -> list[JournalEntry]:
        """Return the entries after a position, of one run or of all, oldest first; pruned versions are omitted."""

        def read(connection: PostgresConnection) -> list[Row]:
            last = self._end(connection)
            if run is None:
                return connection.rows(_SELECT_ALL, (after, last, limit))
            return connection.rows(_SELECT_OF_RUN, (run, after, last, limit))

        rows = self._pool.read(read)
        check_order(after, [row[0] for row in rows])
        return [entry_record(row) for row in rows]

    def end(self) -> int:
        """Return the last position before which no row can appear any more."""
        return self._pool.read(self._end)

    def add(self, connection: PostgresConnection, events: Iterable[tuple[int, EventRecord]]) -> None:
        """Add events, each with the key of its run, within a transaction."""
        if statements := self.statements(events):
            execute_prepared(connection, statements)

    def statements(self, events: Iterable[tuple[int, EventRecord]]) -> list[PreparedStatement]:
        """Return the statements that add events, to be sent together with others; none if there are no events."""
        rows = [event_row(key, event) for key, event in events]
        if not rows:
            return []
        return [
            PreparedStatement(f"SELECT {self.lock_positions}", ()),
            PreparedStatement(_INSERT_EVENTS, [list(column) for column in zip(*rows, strict=True)]),
        ]

    def _end(self, connection: PostgresConnection) -> int:
        ((last, behind),) = connection.rows(_SELECT_END, (self._lock_class,))
        return int(last) if behind is None else int(last) + min(0, int(behind))
