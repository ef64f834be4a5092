"""The store in a SQLite file: for one process, or several on one machine. The contracts are those of `protocol.Store`.

`database` opens the file and runs jobs in shared transactions, `rows` writes records, `queue` gives runs to workers.

Invariant: a commit after the start of `wait_for_change` ends it, at the latest at the next poll. An import or a pruning
is one transaction. A backup is the store as of one moment, in one file that needs no other, with the artifacts that its
versions hold; it gets its name when it is complete.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from holdfast.atomic_file import PART, put_in_place
from holdfast.errors import (
    AlreadyExists,
    CorruptStore,
    HoldfastError,
    InvalidCall,
    NotFound,
    StaleVersion,
    StoreUnavailable,
)
from holdfast.model.records import EventRecord, MarkRecord, RunRecord, StoreStats
from holdfast.store.artifact_folder import ArtifactFolder
from holdfast.store.attachments import INSERT_ATTACHMENT, SQLAttachments
from holdfast.store.items import SQLItems
from holdfast.store.process_fork import ProcessBound
from holdfast.store.protocol import Append, Prune, RunImport, stale_new_run, stale_run, wall_clock
from holdfast.store.questions import SQLQuestions
from holdfast.store.rows import attachment_row, event_row, mark_row, timeline_row
from holdfast.store.sql import (
    DELETE_MARK,
    DELETE_RUN,
    HAS_KEY,
    HAS_VERSION,
    INSERT_MARK,
    INSERT_TIMELINE,
    SQLArtifacts,
    SQLDialect,
    SQLRuns,
    SQLValues,
    SQLVersions,
)
from holdfast.store.sqlite import queue
from holdfast.store.sqlite.connection import SQLiteConnection, all_or_nothing
from holdfast.store.sqlite.database import SQLiteDatabase
from holdfast.store.sqlite.items import ITEM_DIALECT
from holdfast.store.sqlite.meta import put_meta
from holdfast.store.sqlite.questions import put_questions
from holdfast.store.sqlite.rows import (
    INSERT_EVENT,
    PACK,
    VERSION,
    SQLiteJournal,
    insert_run,
    insert_version,
    mark_end,
    update_run,
)
from holdfast.tree.pack import Upload

#: Seconds between two polls for commits of other processes.
_POLL_INTERVAL = 0.01

#: Pages that a backup copies at a time.
_PAGES = 1000
_BACKUP_TIMEOUT = 30.0

_RENEW = "UPDATE run SET until=? WHERE key IN (SELECT value FROM json_each(?)) AND owner=? AND until > ? AND until < ?"
_SELECT_EXPIRED = (
    "SELECT key FROM run WHERE key IN (SELECT value FROM json_each(?)) AND owner=? AND until <= ?"
)
#: The tables whose rows belong to runs.
_RUN_TABLES = ("journal", "block", "timeline", "mark", "hold", "attachment")


def _encode_list(values: Sequence[Any]) -> str:
    """Return a list for `json_each`."""
    return msgspec.json.encode(list(values)).decode()


def _encode_digests(digests: Sequence[bytes]) -> str:
    return _encode_list([digest.hex() for digest in digests])


def _prefix_end(prefix: str) -> bytes:
    """Return the first text after all texts with a prefix: 0xff is greater than every byte of UTF-8."""
    return prefix.encode() + b"\xff"


# ruff: noqa: S608 - statements are made of constants only
_DIALECT = SQLDialect(
    version=VERSION,
    run_ids="SELECT id FROM run WHERE id >= $1 AND id < CAST($2 AS TEXT) ORDER BY id LIMIT $3",
    value_names=(
        "SELECT name FROM value WHERE name >= $1 AND name > $2 AND name < CAST($3 AS TEXT) ORDER BY name LIMIT $4"
    ),
    packs=(
        f"SELECT {VERSION}, {PACK} FROM journal WHERE run = $1 AND number IN (SELECT value FROM json_each($2))"
    ),
    pack_bytes=(
        f"SELECT number, {PACK} FROM journal WHERE run = $1 AND number IN (SELECT value FROM json_each($2))"
    ),
    packs_of=(
        f"SELECT {VERSION}, {PACK}, run FROM json_each($1) given CROSS JOIN journal "
        "ON run = json_extract(given.value, '$[0]') AND number = json_extract(given.value, '$[1]')"
    ),
    attachments_of=(
        "SELECT run, key, name, at, data, hash FROM attachment "
        "WHERE run = $1 AND key IN (SELECT value FROM json_each($2)) ORDER BY key, name"
    ),
    known_artifacts="SELECT digest FROM artifact WHERE digest IN (SELECT unhex(value) FROM json_each($1))",
    delete_pieces="DELETE FROM artifact_piece WHERE digest IN (SELECT unhex(value) FROM json_each($1))",
    delete_unheld=(
        "DELETE FROM artifact WHERE at < $1 AND digest NOT IN (SELECT digest FROM hold) RETURNING digest, size, at"
    ),
    has_prefix="id < CAST({} AS TEXT)",
    runs_of_facet="meta_place CROSS JOIN run",
    count_tags=(
        "(SELECT count(DISTINCT name) FROM mark "
        "WHERE mark.run = run.key AND name IN (SELECT value FROM json_each({})))"
    ),
    encode_list=_encode_list,
    encode_digests=_encode_digests,
    encode_places=lambda places: (_encode_list(places),),
    encode_prefix=_prefix_end,
)


class SQLiteStore(ProcessBound):
    """A store in a SQLite file. Artifacts, values, queues and the journal are parts with their own classes."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: str = "durable",
        artifacts: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
        clock: Callable[[], int] | None = None,
    ) -> None:
        if durability not in ("durable", "fast", "memory"):
            raise InvalidCall(f"durability is 'durable', 'fast' or 'memory', not {durability!r}")
        self.now = clock or wall_clock
        self._database = SQLiteDatabase(os.fspath(path), durability, timeout)
        #: The commits that each thread has seen.
        self._seen = threading.local()

        runs = SQLRuns(self._database, _DIALECT)
        self._stats = runs.stats
        self.run = runs.run
        self.run_by_key = runs.run_by_key
        self.revision = runs.revision
        self.run_ids = runs.run_ids
        self.runs = runs.runs
        self.forks_of = runs.forks_of
        self.meta_of = runs.meta_of
        self._check_meta = runs.check_meta

        versions = SQLVersions(self._database, _DIALECT)
        self.versions = versions.versions
        self.packs = versions.packs
        self.pack_bytes = versions.pack_bytes
        self.packs_of = versions.packs_of
        self.block = versions.block
        self.version_by_key = versions.by_key
        self.keyed_versions = versions.keyed
        self.timelines = versions.timelines
        self.marks = versions.marks

        attached = SQLAttachments(self._database, _DIALECT)
        self.attach = attached.attach
        self.attachments_of = attached.of_keys
        self.attachment_names = attached.names
        self.attachments = attached.page
        self.attachment_keys = attached.keys

        folder = None if artifacts is None else ArtifactFolder(artifacts)
        self._artifacts = SQLArtifacts(self._database, _DIALECT, folder)
        self.put_artifact = self._artifacts.put
        self.artifact = self._artifacts.find
        self.artifact_pieces = self._artifacts.pieces
        self.artifacts = self._artifacts.page
        self.collect = self._artifacts.collect
        self.release = self._artifacts.release

        values = SQLValues(self._database, _DIALECT)
        self.value = values.get
        self.set_value = values.set
        self.drop_value = values.drop
        self.value_names = values.names

        self._items = SQLItems(self._database, ITEM_DIALECT)
        self.put_items = self._items.put
        self.items = self._items.find
        self.recent_items = self._items.recent
        self.live_items = self._items.live
        self.item_names = self._items.names
        self.nearest_items = self._items.nearest
        self.namespaces = self._items.namespaces
        self.renew_items = self._items.renew
        self.sweep_items = self._items.sweep

        questions = SQLQuestions(self._database)
        self.open_questions = questions.page
        self.questions_of = questions.of_run
        self.waking_questions = questions.waking
        self._check_questions = questions.check

        queues = queue.SQLiteQueues(self._database, self.now)
        self.claim = queues.claim
        self.claim_again = queues.claim_again
        self.has_claimable = queues.has_claimable
        self.queue_place = queues.queue_place
        self.queues = queues.queues

        journal = SQLiteJournal(self._database)
        self.journal = journal.entries
        self.journal_end = journal.end

    # Changes

    def append(self, change: Append) -> RunRecord:
        def write(connection: SQLiteConnection) -> RunRecord:
            return self._append(connection, change)

        if not change.uploads:
            return self._database.write(write)
        self._place(change)
        return self._database.write(write, atomic=True)

    def append_many(self, changes: Sequence[Append]) -> list[RunRecord | HoldfastError]:
        for change in changes:
            if change.uploads:
                self._place(change)

        def write(connection: SQLiteConnection) -> list[RunRecord | HoldfastError]:
            return [self._try_append(connection, change) for change in changes]

        return self._database.write(write)

    def _place(self, change: Append) -> None:
        for _ in self._artifacts.place(change.uploads):
            pass

    def _try_append(self, connection: SQLiteConnection, change: Append) -> RunRecord | HoldfastError:
        try:
            if change.uploads:
                return all_or_nothing(lambda inner: self._append(inner, change))(connection)
            return self._append(connection, change)
        except HoldfastError as error:
            return error

    def _append(self, connection: SQLiteConnection, change: Append) -> RunRecord:
        run = change.run
        if change.holds:
            self._artifacts.require(connection, change.holds, change.uploads)
        if change.expect is None:
            if connection.row("SELECT 1 FROM run WHERE id=?", (run.id,)) is not None:
                raise stale_new_run(run)
            run = insert_run(connection, run)
        else:
            name = None if change.version is None else change.version.key
            if name is not None and connection.row(HAS_KEY, (change.expect.key, name)) is not None:
                raise stale_run(run)
            update_run(connection, run, change.expect, leased_at=self.now() if change.leased else None)
        if change.queue is not None:
            queue.put(connection, run, change.queue)
        key = run.key
        if change.uploads:
            self._artifacts.keep(connection, change.uploads, run.updated)
        if change.version is not None:
            number = change.version.number
            insert_version(connection, key, change.version, change.blocks)
            for name in change.tags:
                mark = MarkRecord(number=number, name=name, at=change.version.at)
                connection.execute(INSERT_MARK, mark_row(key, mark))
            if change.holds:
                self._artifacts.hold(connection, key, number, change.holds)
        if change.timeline is not None:
            connection.execute(INSERT_TIMELINE, timeline_row(key, change.timeline))
        for attachment in change.attachments:
            connection.execute(INSERT_ATTACHMENT[True], attachment_row(key, attachment))
        for event in change.events:
            connection.execute(INSERT_EVENT, event_row(key, event))
        if change.questions is not None:
            put_questions(connection, key, change.questions)
        if change.meta is not None:
            put_meta(connection, key, change.meta, is_new=change.expect is None)
        return run

    def delete_run(self, run: RunRecord) -> None:
        def delete(connection: SQLiteConnection) -> None:
            which = (run.key, run.revision)
            if connection.change(DELETE_RUN, which) != 1:
                raise StaleVersion(f"run {run.id!r} has changed since it was read: read it, then delete it")
            mark_end(connection)
            put_questions(connection, run.key, ())
            put_meta(connection, run.key, ())
            for table in _RUN_TABLES:
                connection.execute(f"DELETE FROM {table} WHERE run=?", (run.key,))

        self._database.write(delete)

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
            put_meta(connection, run.key, imported.meta, is_new=True)
            connection.executemany(INSERT_EVENT, [event_row(run.key, event) for event in imported.events])
            connection.executemany(
                INSERT_ATTACHMENT[False], (attachment_row(run.key, each) for each in imported.attachments)
            )
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
                "DELETE FROM attachment WHERE run=? AND key=?", [(key, name) for name in plan.keys]
            )
            connection.executemany(
                "DELETE FROM attachment WHERE run=? AND key=? AND at<?",
                [(key, name, plan.before) for name in plan.unused],
            )
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

    def set_mark(self, run: int, mark: MarkRecord, *, on: bool, event: EventRecord) -> bool:
        def write(connection: SQLiteConnection) -> bool:
            if on and connection.row(HAS_VERSION, (run, mark.number)) is None:
                raise NotFound(f"version {mark.number} no longer exists: mark another")
            if on:
                changed = connection.change(INSERT_MARK, mark_row(run, mark)) == 1
            else:
                changed = connection.change(DELETE_MARK, (run, mark.name, mark.number)) == 1
            if changed:
                connection.execute(INSERT_EVENT, event_row(run, event))
            return changed

        return self._database.write(write)

    # Leases

    def renew(self, runs: Sequence[int], owner: str, until: int) -> list[int]:
        keys = _encode_list(runs)

        def write(connection: SQLiteConnection) -> list[int]:
            # The transaction excludes claims: no lease expires unnoticed between the two statements.
            now = self.now()
            connection.execute(_RENEW, (until, keys, owner, now, until))
            return [row[0] for row in connection.rows(_SELECT_EXPIRED, (keys, owner, now))]

        return self._database.write(write)

    # The whole

    def wait_for_change(self, timeout: float) -> bool:
        until = time.monotonic() + timeout
        seen = getattr(self._seen, "commits", None)
        try:
            while (commits := self._database.commits_seen()) == seen:
                left = until - time.monotonic()
                if left <= 0:
                    return False
                time.sleep(min(left, _POLL_INTERVAL))
        except HoldfastError:
            # For instance, the store is closed: the next read or write raises the same error.
            time.sleep(min(timeout, _POLL_INTERVAL))
            return True
        self._seen.commits = commits
        return True

    def stats(self) -> StoreStats:
        files = [self._database.file, f"{self._database.file}-wal"]
        return self._stats(sum(map(os.path.getsize, filter(os.path.exists, files))))

    def check(self) -> list[str]:
        try:
            with self._database.reader(apart=True) as connection:
                found = [row[0] for row in connection.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
                for table in (*_RUN_TABLES, "question", "question_place", "meta", "meta_place"):
                    placeholder = " AND NOT (run = 0 AND seal = x'')" if table == "journal" else ""
                    orphan = f"SELECT 1 FROM {table} WHERE run NOT IN (SELECT key FROM run){placeholder}"
                    if connection.row(orphan) is not None:
                        found.append(f"table {table} has rows that belong to no run")
            found += self._items.check()
            found += self._check_questions()
            found += self._check_meta()
        except CorruptStore as error:
            return [str(error)]
        return found

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
            with self._database.errors(), closing(SQLiteConnection(os.fspath(part), _BACKUP_TIMEOUT)) as copy:
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

    def compact(self) -> None:
        self._database.vacuum()

    def close(self) -> None:
        self._database.close()
