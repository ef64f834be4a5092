"""Operations on many rows of a SQLite store: import, prune and backup.

Invariant: an import or a pruning is one transaction. A backup is the store as of one moment, in one file that needs no
other, with the artifacts that its versions hold; it gets its name when it is complete.
"""

from __future__ import annotations

import os
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from holdfast.atomic_file import PART, put_in_place
from holdfast.errors import AlreadyExists, InvalidCall, StoreUnavailable
from holdfast.model.records import RunRecord
from holdfast.store.artifact_folder import ArtifactFolder
from holdfast.store.protocol import Prune, RunImport, stale_run
from holdfast.store.rows import event_row, mark_row, timeline_row
from holdfast.store.sql import SQLArtifacts
from holdfast.store.sqlite.connection import SQLiteConnection
from holdfast.store.sqlite.database import SQLiteDatabase
from holdfast.store.sqlite.rows import (
    INSERT_EVENT,
    INSERT_MARK,
    INSERT_TIMELINE,
    insert_run,
    insert_version,
    mark_end,
    update_run,
)
from holdfast.tree.pack import Upload

#: Pages that a backup copies at a time.
_PAGES = 1000
_TIMEOUT = 30.0


class SQLiteBulk:
    """Imports, prunings and backups."""

    def __init__(self, database: SQLiteDatabase, artifacts: SQLArtifacts) -> None:
        self._database = database
        self._artifacts = artifacts

    def import_run(self, imported: RunImport) -> RunRecord:
        """Write a complete run; `AlreadyExists` if its id exists."""
        uploads = list(self._artifacts.place(imported.uploads))

        def write(connection: SQLiteConnection) -> RunRecord:
            if connection.row("SELECT 1 FROM run WHERE id=?", (imported.run.id,)) is not None:
                raise AlreadyExists(
                    f"run {imported.run.id!r} exists: import under another id, or delete it first"
                )
            run = insert_run(connection, imported.run)
            self._artifacts.keep(connection, uploads, run.created)
            for version, blocks, holds in imported.versions:
                insert_version(connection, run.key, version, blocks)
                self._artifacts.require(connection, holds)
                self._artifacts.hold(connection, run.key, version.number, holds)
            connection.executemany(
                INSERT_TIMELINE, [timeline_row(run.key, each) for each in imported.timelines]
            )
            connection.executemany(INSERT_MARK, [mark_row(run.key, mark) for mark in imported.marks])
            connection.executemany(INSERT_EVENT, [event_row(run.key, event) for event in imported.events])
            return run

        return self._database.write(write, once=True, atomic=True)

    def prune(self, plan: Prune) -> RunRecord:
        """Remove versions and replace others by stubs."""
        key = plan.run.key

        def write(connection: SQLiteConnection) -> RunRecord:
            gone = [
                (key, number) for number in (*plan.drop, *(version.number for version, _, _ in plan.thin))
            ]
            marked = "SELECT 1 FROM mark WHERE run=? AND number=?"
            if any(connection.row(marked, place) is not None for place in gone):
                raise stale_run(plan.run)
            update_run(connection, plan.run, plan.expect)
            mark_end(connection)
            connection.executemany("DELETE FROM block WHERE run=? AND number=?", gone)
            connection.executemany("DELETE FROM hold WHERE run=? AND number=?", gone)
            connection.executemany(
                "DELETE FROM journal WHERE run=? AND number=?", [(key, number) for number in plan.drop]
            )
            for version, blocks, holds in plan.thin:
                row = connection.row(
                    "DELETE FROM journal WHERE run=? AND number=? RETURNING seq", (key, version.number)
                )
                insert_version(connection, key, version, blocks, None if row is None else row[0])
                self._artifacts.hold(connection, key, version.number, holds)
            connection.executemany(INSERT_EVENT, [event_row(key, event) for event in plan.events])
            return plan.run

        return self._database.write(write)

    def backup(self, path: str | os.PathLike[str], artifacts: str | os.PathLike[str] | None) -> None:
        """Copy the store to the new file `path`, and the contents of its artifact folder to `artifacts`."""
        target = Path(path).absolute()
        folder = self._artifacts.folder
        if folder is not None and artifacts is None:
            raise InvalidCall(
                f"{self._database.path} stores artifacts in {folder.folder}: give artifacts=, a folder for their "
                "copies"
            )
        if os.path.lexists(target):
            raise AlreadyExists(f"{path} exists: name a new file for the backup")
        part = target.with_name(PART.replace("*", os.urandom(8).hex()))
        try:
            part.touch(0o600, exist_ok=False)
            with self._database.errors(), closing(SQLiteConnection(os.fspath(part), _TIMEOUT)) as copy:
                self._copy_pages(copy)
                if folder is not None and artifacts is not None:
                    self._copy_contents(copy, ArtifactFolder(artifacts))
            put_in_place(part, target)
        except FileExistsError as error:
            raise AlreadyExists(f"{path} exists: name a new file for the backup") from error
        except OSError as error:
            raise StoreUnavailable(
                f"the backup cannot be written to {path}: {error.strerror}: check its folder and your permissions"
            ) from error
        finally:
            for end in ("", "-wal", "-shm", "-journal"):
                # On a failing disk a file may remain; the error that is raised says why.
                with suppress(OSError):
                    part.with_name(part.name + end).unlink(missing_ok=True)

    def _copy_pages(self, copy: SQLiteConnection) -> None:
        with self._database.reader(apart=True) as source:
            work = copy.backup("main", source, "main")
            try:
                while not work.done:
                    work.step(_PAGES)
            finally:
                # An error while SQLite ends the copy, on a failing disk, must not hide the error of a step. (apsw
                # raises SystemError if a VFS in Python raises meanwhile.)
                with suppress(SystemError):
                    work.close(force=True)

    def _copy_contents(self, copy: SQLiteConnection, folder: ArtifactFolder) -> None:
        for digest, size in copy.execute(
            "SELECT digest, size FROM artifact WHERE digest NOT IN (SELECT digest FROM artifact_piece)"
        ):
            if size:
                folder.put(Upload(digest, size, partial(self._artifacts.pieces, digest)))
