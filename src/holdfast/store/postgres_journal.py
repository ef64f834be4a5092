"""The journal in PostgreSQL: versions and other events of all runs, in the order of their positions.

Transactions end in another order than that in which they took their positions. A reader that went on from the last
position it saw would miss what appears before it later. So a writer, before it takes positions, takes a shared
advisory lock whose number is the last position given so far, and keeps it until its rows can be seen. A reader looks
at the last position, then at these locks, then at the rows: below the lowest lock, nothing can appear any more.

Invariant: no position that can still appear lies before one that was served; none is ever given again.
"""

# ruff: noqa: S608 - statements are made of constants only
from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.records import EventRecord, VersionRecord
from holdfast.store.postgres_link import Connection, Link, Row
from holdfast.store.postgres_locks import PLACES, lock_class
from holdfast.store.postgres_rows import VERSION
from holdfast.store.postgres_wire import Statement, carry_out
from holdfast.store.sqlite_rows import entry_record, event_row, in_order

#: Numbers of these locks count round: half of this is more than the positions that can be on their way at once.
_ROUND = 2**31
_END = (
    "WITH given AS MATERIALIZED (SELECT last_value AS last FROM journal_seq) SELECT last, "
    f"(SELECT min(mod(objid::bigint - mod(last, {_ROUND}) + {_ROUND + _ROUND // 2}, {_ROUND}) - {_ROUND // 2}) "
    "FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND classid = %s::bigint::oid "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())) FROM given"
)
_SELECT = f"SELECT {VERSION}, run FROM journal WHERE "
_ALL = _SELECT + "seq > %s AND seq <= %s AND pruned IS DISTINCT FROM 1 ORDER BY seq LIMIT %s"
#: The first version after a position is searched for by halves: positions grow with numbers, but for stubs below 1,
#: which came later and are not part of the journal.
_OF_RUN = (
    "WITH RECURSIVE search (low, high) AS ("
    "SELECT 1::bigint, coalesce((SELECT max(number) FROM journal WHERE run = %(run)s AND number >= 1), 0) "
    "UNION ALL SELECT CASE WHEN probe.seq > %(after)s THEN low ELSE probe.number + 1 END, "
    "CASE WHEN probe.seq > %(after)s THEN (low + high) / 2 - 1 ELSE high END "
    "FROM search, LATERAL (SELECT number, seq FROM journal WHERE run = %(run)s AND number >= (low + high) / 2 "
    "ORDER BY number LIMIT 1) probe WHERE low <= high) "
    f"(SELECT {VERSION}, run FROM journal WHERE run = %(run)s AND number IS NULL AND seq > %(after)s "
    "AND seq <= %(end)s ORDER BY seq LIMIT %(limit)s) UNION ALL "
    f"(SELECT {VERSION}, run FROM journal WHERE run = %(run)s AND number >= (SELECT max(low) FROM search) "
    "AND pruned = 0 AND seq > %(after)s AND seq <= %(end)s ORDER BY number LIMIT %(limit)s) ORDER BY 1 LIMIT %(limit)s"
)

_NOTE = (
    "INSERT INTO journal (run, at, step, detail, seal) SELECT given.run, given.at, given.kind, given.data, given.seal "
    "FROM unnest(%s::bigint[], %s::bigint[], %s::text[], %s::bytea[], %s::bytea[]) "
    "WITH ORDINALITY given (run, at, kind, data, seal, n) ORDER BY n"
)


def entries(
    link: Link, *, run: int | None, after: int, limit: int
) -> list[EventRecord | tuple[int, VersionRecord]]:
    """What happened after a position, of one run or of all; versions that were pruned since are left out."""

    def read(connection: Connection) -> list[Row]:
        last = _end(connection, link.address.schema)
        if run is None:
            return connection.execute(_ALL, (after, last, limit), binary=True).fetchall()
        values = {"run": run, "after": after, "end": last, "limit": limit}
        return connection.execute(_OF_RUN, values, binary=True).fetchall()

    rows = link.read(read)
    in_order(after, [row[0] for row in rows])
    return [entry_record(row) for row in rows]


def end(link: Link) -> int:
    """The last position before which nothing can appear any more."""
    return link.read(lambda connection: _end(connection, link.address.schema))


def taking_places(schema: str) -> str:
    """What a writer selects before it takes positions."""
    number = lock_class(schema, PLACES)
    return (
        f"pg_advisory_xact_lock_shared({number}, (SELECT mod(last_value, {_ROUND})::int4 FROM journal_seq))"
    )


def note(connection: Connection, schema: str, events: Iterable[tuple[int, EventRecord]]) -> None:
    """Write down events, each with the key of its run, within a transaction."""
    if statements := noting(schema, events):
        carry_out(connection, statements)


def noting(schema: str, events: Iterable[tuple[int, EventRecord]]) -> list[Statement]:
    """The statements that write down events, to be carried out together with others; none if there are no events."""
    rows = [event_row(key, event) for key, event in events]
    if not rows:
        return []
    return [
        Statement(f"SELECT {taking_places(schema)}", ()),
        Statement(_NOTE, [list(column) for column in zip(*rows, strict=True)]),
    ]


def _end(connection: Connection, schema: str) -> int:
    row = connection.execute(_END, (lock_class(schema, PLACES),)).fetchone()
    assert row is not None
    last, behind = int(row[0]), row[1]
    return last if behind is None else last + min(0, int(behind))
