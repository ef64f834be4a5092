"""Writing many versions of a run at once in PostgreSQL: imports, and prunings.

Invariant: all of it is there when it is done, or nothing is.
"""

# ruff: noqa: S608 - statements are made of constants only
from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import msgspec

from holdfast.errors import AlreadyExists
from holdfast.model.records import RunRecord
from holdfast.store import postgres_journal
from holdfast.store.base import Imported, Prune
from holdfast.store.postgres_append import stale
from holdfast.store.postgres_artifacts import Artifacts
from holdfast.store.postgres_link import LONG, Connection, Link
from holdfast.store.postgres_rows import VERSION_COLUMNS, version_row
from holdfast.store.sqlite_rows import RUN, mark_row, run_row, run_sum, timeline_row

_INSERT_RUN = (
    f"INSERT INTO run ({RUN}, sum, attempt) VALUES ({', '.join(['%s'] * 23)}) ON CONFLICT (id) DO NOTHING"
)
_UPDATE_RUN = (
    f"UPDATE run SET ({RUN}, sum, attempt) = ({', '.join(['%s'] * 23)}) WHERE key = %s AND revision = %s"
)
_INSERT_VERSION = f"INSERT INTO journal (seq, {VERSION_COLUMNS}) VALUES (%s, {', '.join(['%s'] * 14)})"
#: Where the versions of an import stand until all are there: nobody reads below 0.
_INSERT_EARLY = _INSERT_VERSION.replace("VALUES (%s,", "VALUES (-nextval('journal_seq'),")
_SHOW = (
    "UPDATE journal SET seq = given.place FROM (SELECT seq, nextval('journal_seq') AS place FROM "
    "(SELECT seq FROM journal WHERE run = %s ORDER BY seq DESC) early) given WHERE journal.seq = given.seq"
)
_INSERT_BLOCK = "INSERT INTO block (run, number, n, data) VALUES (%s, %s, %s, %s)"
_INSERT_TIMELINE = "INSERT INTO timeline VALUES (%s, %s, %s, %s, %s, %s, %s)"
_INSERT_MARK = "INSERT INTO mark VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
#: Versions of an import that are sent at once.
_PAGE = 500


class Bulk:
    """Imports and prunings."""

    def __init__(self, link: Link, artifacts: Artifacts) -> None:
        self._link = link
        self._artifacts = artifacts
        self._schema = link.address.schema

    def import_run(self, imported: Imported) -> RunRecord:
        def write(connection: Connection) -> RunRecord:
            self._artifacts.share(connection)
            run = msgspec.structs.replace(imported.run, key=_next_key(connection))
            row = run_row(run)
            if connection.execute(_INSERT_RUN, (*row, run_sum(row), 0)).rowcount != 1:
                raise AlreadyExists(f"run {run.id!r} exists: import under another id, or delete it first")
            key = run.key
            self._artifacts.keep(connection, self._artifacts.place(imported.uploads), run.created)
            while part := list(islice(imported.versions, _PAGE)):
                self._artifacts.require(connection, {digest for _, _, holds in part for digest in holds}, ())
                rows = [(key, *version_row(version)) for version, _, _ in part]
                blocks = [
                    (key, version.number, index, block)
                    for version, blocks, _ in part
                    for index, block in enumerate(blocks)
                ]
                _many(connection, _INSERT_EARLY, rows)
                _many(connection, _INSERT_BLOCK, blocks)
                for version, _, holds in part:
                    self._artifacts.hold(connection, key, version.number, holds)
            _many(connection, _INSERT_TIMELINE, [timeline_row(key, line) for line in imported.timelines])
            _many(connection, _INSERT_MARK, [mark_row(key, mark) for mark in imported.marks])
            # At the end: while positions are being taken, readers of the journal wait.
            connection.execute(f"SELECT {postgres_journal.taking_places(self._schema)}")
            connection.execute(_SHOW, (key,))
            postgres_journal.note(connection, self._schema, [(key, event) for event in imported.events])
            return run

        return self._link.transact(write, once=True, limit=LONG)

    def prune(self, plan: Prune) -> RunRecord:
        key = plan.run.key

        def write(connection: Connection) -> RunRecord:
            gone = [*plan.drop, *(version.number for version, _, _ in plan.thin)]
            row = run_row(plan.run)
            values = (*row, run_sum(row), 0, plan.expect.key, plan.expect.revision)
            if connection.execute(_UPDATE_RUN, values).rowcount != 1:
                raise stale(plan.run)
            # After the run is locked: what was marked until now is seen.
            marked = "SELECT FROM mark WHERE run = %s AND number = ANY(%b::bigint[]) LIMIT 1"
            if connection.execute(marked, (key, gone)).fetchone() is not None:
                raise stale(plan.run)
            for table in ("block", "hold"):
                connection.execute(
                    f"DELETE FROM {table} WHERE run = %s AND number = ANY(%b::bigint[])",
                    (key, gone),
                )
            removed = (
                "DELETE FROM journal WHERE run = %s AND number = ANY(%b::bigint[]) RETURNING number, seq"
            )
            places: dict[int, int] = dict(connection.execute(removed, (key, gone)).fetchall())
            for version, blocks, holds in plan.thin:
                place = places.get(version.number) or _next_place(connection)
                connection.execute(_INSERT_VERSION, (place, key, *version_row(version)))
                _many(
                    connection,
                    _INSERT_BLOCK,
                    [(key, version.number, index, block) for index, block in enumerate(blocks)],
                )
                self._artifacts.hold(connection, key, version.number, holds)
            postgres_journal.note(connection, self._schema, [(key, event) for event in plan.events])
            return plan.run

        return self._link.transact(write, limit=LONG)


def _many(connection: Connection, statement: str, rows: Sequence[Sequence[Any]]) -> None:
    if rows:
        with connection.cursor() as cursor:
            cursor.executemany(statement, rows)


def _next_key(connection: Connection) -> int:
    row = connection.execute("SELECT nextval('run_key')").fetchone()
    assert row is not None
    return int(row[0])


def _next_place(connection: Connection) -> int:
    """A position for a stub that had none: readers of the journal do not see it."""
    row = connection.execute("SELECT nextval('journal_seq')").fetchone()
    assert row is not None
    return int(row[0])
