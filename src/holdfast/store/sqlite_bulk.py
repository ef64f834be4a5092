"""Writing much at once to a SQLite store: a whole run that is imported, versions that are pruned.

Invariant: each is one transaction; half of it is never seen.
"""

from __future__ import annotations

from holdfast.errors import AlreadyExists
from holdfast.model.records import RunRecord
from holdfast.store import sqlite_journal
from holdfast.store.base import Imported, Prune
from holdfast.store.sqlite_artifacts import Artifacts
from holdfast.store.sqlite_connection import Connection
from holdfast.store.sqlite_link import Link, all_or_nothing
from holdfast.store.sqlite_rows import (
    INSERT_EVENT,
    INSERT_MARK,
    INSERT_STUB,
    INSERT_TIMELINE,
    INSERT_VERSION,
    event_row,
    has,
    insert_blocks,
    insert_run,
    mark_row,
    stale,
    timeline_row,
    update_run,
    version_row,
)


class Bulk:
    """Imports and prunings."""

    def __init__(self, link: Link, artifacts: Artifacts) -> None:
        self._link = link
        self._artifacts = artifacts

    def import_run(self, imported: Imported) -> RunRecord:
        uploads = self._artifacts.place(imported.uploads)

        def write(connection: Connection) -> RunRecord:
            if has(connection, "run WHERE id=?", imported.run.id):
                raise AlreadyExists(
                    f"run {imported.run.id!r} exists: import under another id, or delete it first"
                )
            run = insert_run(connection, imported.run)
            self._artifacts.keep(connection, uploads, run.created)
            for version, blocks, holds in imported.versions:
                connection.execute(INSERT_VERSION, version_row(run.key, version))
                insert_blocks(connection, run.key, version, blocks)
                self._artifacts.require(connection, holds, ())
                self._artifacts.hold(connection, run.key, version.number, holds)
            for timeline in imported.timelines:
                connection.execute(INSERT_TIMELINE, timeline_row(run.key, timeline))
            for mark in imported.marks:
                connection.execute(INSERT_MARK, mark_row(run.key, mark))
            for event in imported.events:
                connection.execute(INSERT_EVENT, event_row(run.key, event))
            return run

        return self._link.write(all_or_nothing(write), alone=True)

    def prune(self, plan: Prune) -> RunRecord:
        key = plan.run.key

        def write(connection: Connection) -> RunRecord:
            gone = [*plan.drop, *(version.number for version, _, _ in plan.thin)]
            if any(has(connection, "mark WHERE run=? AND number=?", key, number) for number in gone):
                raise stale(plan.run)
            update_run(connection, plan.run, plan.expect)
            sqlite_journal.mark_end(connection)
            for number in gone:
                connection.execute("DELETE FROM block WHERE run=? AND number=?", (key, number))
                connection.execute("DELETE FROM hold WHERE run=? AND number=?", (key, number))
            for number in plan.drop:
                connection.execute("DELETE FROM journal WHERE run=? AND number=?", (key, number))
            for version, blocks, holds in plan.thin:
                seq = connection.row(
                    "DELETE FROM journal WHERE run=? AND number=? RETURNING seq", (key, version.number)
                )
                connection.execute(INSERT_STUB, (None if seq is None else seq[0], *version_row(key, version)))
                insert_blocks(connection, key, version, blocks)
                self._artifacts.hold(connection, key, version.number, holds)
            for event in plan.events:
                connection.execute(INSERT_EVENT, event_row(key, event))
            return plan.run

        return self._link.write(write)
