"""Operations on many versions of a PostgreSQL store: import and prune.

Invariant: each is one transaction.
"""

# ruff: noqa: S608 - statements are made of constants only
from __future__ import annotations

from itertools import islice

import msgspec

from holdfast.errors import AlreadyExists
from holdfast.model.records import RunRecord
from holdfast.store.postgres.connection import PostgresConnection
from holdfast.store.postgres.connection_pool import PostgresPool
from holdfast.store.postgres.journal import VERSION_COLUMNS, PostgresJournal, version_row
from holdfast.store.postgres.notify import ChangeNotifier
from holdfast.store.protocol import Prune, RunImport, stale_run
from holdfast.store.rows import RUN, mark_row, run_row, run_sum, timeline_row
from holdfast.store.sql import SQLArtifacts

_VALUES_RUN = ", ".join(["%s"] * 23)
_VALUES_VERSION = ", ".join(["%s"] * 14)
_INSERT_RUN = f"INSERT INTO run ({RUN}, sum, attempt) VALUES ({_VALUES_RUN}) ON CONFLICT (id) DO NOTHING"
_UPDATE_RUN = f"UPDATE run SET ({RUN}, sum, attempt) = ({_VALUES_RUN}) WHERE key = %s AND revision = %s"
#: With the position of the version that the stub replaces.
_INSERT_STUB = f"INSERT INTO journal (seq, {VERSION_COLUMNS}) VALUES (%s, {_VALUES_VERSION})"
#: Versions of an import have negative positions, which no reader sees, until all are there.
_INSERT_HIDDEN = (
    f"INSERT INTO journal (seq, {VERSION_COLUMNS}) VALUES (-nextval('journal_seq'), {_VALUES_VERSION})"
)
_REVEAL = (
    "UPDATE journal SET seq = given.place FROM (SELECT seq, nextval('journal_seq') AS place FROM "
    "(SELECT seq FROM journal WHERE run = %s ORDER BY seq DESC) hidden) given WHERE journal.seq = given.seq"
)
_INSERT_BLOCK = "INSERT INTO block (run, number, n, data) VALUES (%s, %s, %s, %s)"
_INSERT_TIMELINE = "INSERT INTO timeline VALUES (%s, %s, %s, %s, %s, %s, %s)"
INSERT_MARK = "INSERT INTO mark VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
_HAS_MARK = "SELECT 1 FROM mark WHERE run = %s AND number = ANY(%b::bigint[]) LIMIT 1"
_DELETE_BLOCKS = "DELETE FROM block WHERE run = %s AND number = ANY(%b::bigint[])"
_DELETE_HOLDS = "DELETE FROM hold WHERE run = %s AND number = ANY(%b::bigint[])"
_DELETE_VERSIONS = "DELETE FROM journal WHERE run = %s AND number = ANY(%b::bigint[]) RETURNING number, seq"
#: Versions of an import that are sent at once.
_PAGE = 500


class PostgresBulk:
    """Imports and prunings."""

    def __init__(
        self, pool: PostgresPool, artifacts: SQLArtifacts, journal: PostgresJournal, notifier: ChangeNotifier
    ) -> None:
        self._pool = pool
        self._artifacts = artifacts
        self._journal = journal
        self._notifier = notifier

    def import_run(self, imported: RunImport) -> RunRecord:
        """Write a complete run; `AlreadyExists` if its id exists."""

        def write(connection: PostgresConnection) -> RunRecord:
            self._artifacts.lock(connection)
            run = msgspec.structs.replace(imported.run, key=connection.value("SELECT nextval('run_key')"))
            row = run_row(run)
            if connection.change(_INSERT_RUN, (*row, run_sum(row), 0)) != 1:
                raise AlreadyExists(f"run {run.id!r} exists: import under another id, or delete it first")
            key = run.key
            self._artifacts.keep(connection, self._artifacts.place(imported.uploads), run.created)
            while page := list(islice(imported.versions, _PAGE)):
                self._artifacts.require(connection, {digest for _, _, holds in page for digest in holds})
                connection.change_many(
                    _INSERT_HIDDEN, [(key, *version_row(version)) for version, _, _ in page]
                )
                blocks = [
                    (key, version.number, index, block)
                    for version, blocks, _ in page
                    for index, block in enumerate(blocks)
                ]
                connection.change_many(_INSERT_BLOCK, blocks)
                for version, _, holds in page:
                    self._artifacts.hold(connection, key, version.number, holds)
            connection.change_many(_INSERT_TIMELINE, [timeline_row(key, line) for line in imported.timelines])
            connection.change_many(INSERT_MARK, [mark_row(key, mark) for mark in imported.marks])
            # Last: readers of the journal wait while positions are taken.
            connection.execute(f"SELECT {self._journal.lock_positions}")
            connection.execute(_REVEAL, (key,))
            self._journal.add(connection, [(key, event) for event in imported.events])
            return run

        run = self._pool.write(write, once=True, slow=True)
        self._notifier.notify()
        return run

    def prune(self, plan: Prune) -> RunRecord:
        """Remove versions and replace others by stubs."""
        key = plan.run.key

        def write(connection: PostgresConnection) -> RunRecord:
            gone = [*plan.drop, *(version.number for version, _, _ in plan.thin)]
            row = run_row(plan.run)
            values = (*row, run_sum(row), 0, plan.expect.key, plan.expect.revision)
            if connection.change(_UPDATE_RUN, values) != 1:
                raise stale_run(plan.run)
            # After the row of the run is locked, so that all marks are visible.
            if connection.row(_HAS_MARK, (key, gone)) is not None:
                raise stale_run(plan.run)
            connection.execute(_DELETE_BLOCKS, (key, gone))
            connection.execute(_DELETE_HOLDS, (key, gone))
            positions: dict[int, int] = dict(connection.rows(_DELETE_VERSIONS, (key, gone)))
            for version, blocks, holds in plan.thin:
                # A stub that replaces no version: readers of the journal do not see it.
                position = positions.get(version.number) or connection.value("SELECT nextval('journal_seq')")
                connection.execute(_INSERT_STUB, (position, key, *version_row(version)))
                connection.change_many(
                    _INSERT_BLOCK,
                    [(key, version.number, index, block) for index, block in enumerate(blocks)],
                )
                self._artifacts.hold(connection, key, version.number, holds)
            self._journal.add(connection, [(key, event) for event in plan.events])
            return plan.run

        run = self._pool.write(write, slow=True)
        self._notifier.notify()
        return run
