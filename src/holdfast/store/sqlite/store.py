"""The store in a SQLite file: for one process, or several on one machine. The contracts are those of `protocol.Store`.

`database` opens the file and runs jobs in shared transactions, `rows` writes records, `queue` gives runs to workers.

Invariant: a commit after the start of `wait_for_change` ends it, at the latest at the next poll.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import msgspec

from holdfast.errors import CorruptStore, HoldfastError, InvalidCall, NotFound, StaleVersion
from holdfast.model.records import (
    EventRecord,
    MarkRecord,
    RunRecord,
    StoreStats,
    TimelineRecord,
    VersionRecord,
)
from holdfast.store.artifact_folder import ArtifactFolder
from holdfast.store.process_fork import ProcessBound
from holdfast.store.protocol import Append, RunFilters, VersionQuery, stale_new_run, wall_clock
from holdfast.store.rows import (
    LIVE_RUN,
    RUN,
    STATUS_NUMBER,
    check_order,
    event_row,
    intact_packs,
    join_clauses,
    mark_record,
    mark_row,
    run_clauses,
    run_record,
    timeline_record,
    timeline_row,
    version_clauses,
    version_record,
)
from holdfast.store.sql import ArtifactStatements, SQLArtifacts, SQLValues, ValueStatements
from holdfast.store.sqlite import queue
from holdfast.store.sqlite.bulk import SQLiteBulk
from holdfast.store.sqlite.connection import SQLiteConnection, all_or_nothing
from holdfast.store.sqlite.database import SQLiteDatabase
from holdfast.store.sqlite.rows import (
    INSERT_EVENT,
    INSERT_MARK,
    INSERT_TIMELINE,
    PACK,
    VERSION,
    SQLiteJournal,
    insert_run,
    insert_version,
    mark_end,
    update_run,
)

#: Seconds between two polls for commits of other processes.
_POLL_INTERVAL = 0.01

# ruff: noqa: S608 - statements are made of constants only
_SELECT_RUN = f"SELECT {RUN}, sum FROM run WHERE "
_SELECT_VERSION = f"SELECT {VERSION} FROM journal WHERE number IS NOT NULL AND "
_SELECT_PACK = (
    f"SELECT {VERSION}, {PACK} FROM journal WHERE run=? AND number IN (SELECT value FROM json_each(?))"
)
_SELECT_PACKS_OF = (
    f"SELECT {VERSION}, {PACK}, run FROM json_each(?) given CROSS JOIN journal "
    "ON run = json_extract(given.value, '$[0]') AND number = json_extract(given.value, '$[1]')"
)
_SELECT_PACK_BYTES = (
    f"SELECT number, {PACK} FROM journal WHERE run=? AND number IN (SELECT value FROM json_each(?))"
)
_SELECT_STATS = (
    "SELECT count(*), coalesce(sum(kept), 0), coalesce(sum(size), 0), "
    "(SELECT count(*) FROM journal WHERE number IS NULL AND run > 0), "
    "(SELECT count(*) FROM artifact), (SELECT coalesce(sum(size), 0) FROM artifact) FROM run"
)
_RENEW = "UPDATE run SET until=? WHERE key IN (SELECT value FROM json_each(?)) AND owner=? AND until > ? AND until < ?"
_SELECT_EXPIRED = (
    "SELECT key FROM run WHERE key IN (SELECT value FROM json_each(?)) AND owner=? AND until <= ?"
)
#: The number of distinct tags of a list that a run has.
_COUNT_TAGS = (
    "(SELECT count(DISTINCT name) FROM mark "
    "WHERE mark.run = run.key AND name IN (SELECT value FROM json_each(?)))"
)
#: The tables whose rows belong to runs.
_RUN_TABLES = ("journal", "block", "timeline", "mark", "hold")


def _encode_list(values: Sequence[Any]) -> str:
    """Return a list for `json_each`."""
    return msgspec.json.encode(list(values)).decode()


def _encode_digests(digests: Sequence[bytes]) -> str:
    return json.dumps([digest.hex() for digest in digests])


def _prefix_end(prefix: str) -> bytes:
    """Return the first text after all texts with a prefix: 0xff is greater than every byte of UTF-8."""
    return prefix.encode() + b"\xff"


_ARTIFACTS = ArtifactStatements(
    insert="INSERT OR IGNORE INTO artifact VALUES (?, ?, ?)",
    touch="UPDATE artifact SET at=max(at, ?) WHERE digest=?",
    find="SELECT digest, size, at FROM artifact WHERE digest=?",
    page="SELECT digest, size, at FROM artifact WHERE digest > ? ORDER BY digest LIMIT ?",
    find_known="SELECT digest FROM artifact WHERE digest IN (SELECT unhex(value) FROM json_each(?))",
    has_content="SELECT 1 FROM artifact_piece WHERE digest=? AND n=0",
    insert_piece="INSERT INTO artifact_piece (digest, n, data) VALUES (?, ?, ?)",
    find_piece="SELECT data FROM artifact_piece WHERE digest=? AND n=?",
    delete_pieces="DELETE FROM artifact_piece WHERE digest=?",
    insert_hold="INSERT OR IGNORE INTO hold VALUES (?, ?, ?)",
    delete_unheld=(
        "DELETE FROM artifact WHERE at < ? AND digest NOT IN (SELECT digest FROM hold) RETURNING digest, size, at"
    ),
    encode_digests=_encode_digests,
)
_VALUES = ValueStatements(
    find="SELECT data, revision, sum FROM value WHERE name=?",
    insert="INSERT OR IGNORE INTO value VALUES (?, ?, ?, ?)",
    update="UPDATE value SET data=?, revision=?, sum=? WHERE name=? AND revision=?",
    delete="DELETE FROM value WHERE name=? AND revision=?",
    names=(
        "SELECT name FROM value WHERE name >= ? AND name > ? AND name < CAST(? AS TEXT) ORDER BY name LIMIT ?"
    ),
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

        folder = None if artifacts is None else ArtifactFolder(artifacts)
        self._artifacts = SQLArtifacts(self._database, _ARTIFACTS, folder)
        self.put_artifact = self._artifacts.put
        self.artifact = self._artifacts.find
        self.artifact_pieces = self._artifacts.pieces
        self.artifacts = self._artifacts.page
        self.collect = self._artifacts.collect

        values = SQLValues(self._database, _VALUES)
        self.value = values.get
        self.set_value = values.set
        self.drop_value = values.drop
        self.value_names = values.names

        queues = queue.SQLiteQueues(self._database, self.now)
        self.claim = queues.claim
        self.claim_again = queues.claim_again
        self.has_claimable = queues.has_claimable
        self.queue_place = queues.queue_place
        self.queues = queues.queues

        journal = SQLiteJournal(self._database)
        self.journal = journal.entries
        self.journal_end = journal.end

        bulk = SQLiteBulk(self._database, self._artifacts)
        self.import_run = bulk.import_run
        self.prune = bulk.prune
        self.backup = bulk.backup

    # Runs

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
        for event in change.events:
            connection.execute(INSERT_EVENT, event_row(key, event))
        return run

    def run(self, run_id: str) -> RunRecord | None:
        return self._one_run("id=?", run_id)

    def revision(self, run_id: str) -> tuple[int, int] | None:
        with self._database.reader() as connection:
            row: tuple[int, int] | None = connection.row(
                "SELECT key, revision FROM run WHERE id=?", (run_id,)
            )
        return row

    def run_by_key(self, key: int) -> RunRecord | None:
        return self._one_run("key=?", key)

    def _one_run(self, where: str, value: Any) -> RunRecord | None:
        with self._database.reader() as connection:
            row = connection.row(_SELECT_RUN + where, (value,))
        return None if row is None else run_record(row)

    def run_ids(self, prefix: str, limit: int) -> list[str]:
        with self._database.reader() as connection:
            rows = connection.rows(
                "SELECT id FROM run WHERE id >= ? AND id < CAST(? AS TEXT) ORDER BY id LIMIT ?",
                (prefix, _prefix_end(prefix), limit),
            )
        return [row[0] for row in rows]

    def runs(
        self, *, before: int | None = None, limit: int = 100, **filters: Unpack[RunFilters]
    ) -> list[RunRecord]:
        clauses = run_clauses("?", before, filters)
        if prefix := filters.get("prefix"):
            clauses.append(("id < CAST(? AS TEXT)", _prefix_end(prefix)))
        tags = sorted(set(filters.get("tags", ())))
        if len(tags) > 1:
            clauses.append((f"{_COUNT_TAGS} = {len(tags)}", _encode_list(tags)))
        where, values = join_clauses(clauses)
        statuses = filters.get("statuses")
        if statuses is not None:
            numbers = [str(STATUS_NUMBER[status]) for status in statuses if status in STATUS_NUMBER]
            where += f" AND status IN ({', '.join(numbers)})"
        where += f" AND {LIVE_RUN}" if filters.get("live") else ""
        with self._database.reader() as connection:
            statement = f"{_SELECT_RUN}{where} ORDER BY key DESC LIMIT ?"
            rows = connection.rows(statement, (*values, limit))
        check_order(before, [row[0] for row in rows], ascending=False)
        return [run_record(row) for row in rows]

    def forks_of(self, key: int) -> list[RunRecord]:
        with self._database.reader() as connection:
            rows = connection.rows(_SELECT_RUN + "origin_run=? ORDER BY key", (key,))
        return [run_record(row) for row in rows]

    def delete_run(self, run: RunRecord) -> None:
        def delete(connection: SQLiteConnection) -> None:
            which = (run.key, run.revision)
            if connection.change("DELETE FROM run WHERE key=? AND revision=?", which) != 1:
                raise StaleVersion(f"run {run.id!r} has changed since it was read: read it, then delete it")
            mark_end(connection)
            for table in _RUN_TABLES:
                connection.execute(f"DELETE FROM {table} WHERE run=?", (run.key,))

        self._database.write(delete)

    # Versions

    def versions(
        self, run: int, *, limit: int = 100, ascending: bool = False, **filters: Unpack[VersionQuery]
    ) -> list[VersionRecord]:
        where, values = join_clauses(version_clauses("?", run, filters))
        with self._database.reader() as connection:
            statement = f"{_SELECT_VERSION}{where} ORDER BY number {'ASC' if ascending else 'DESC'} LIMIT ?"
            rows = connection.rows(statement, (*values, limit))
        start = filters.get("after") if ascending else filters.get("before")
        check_order(start, [row[1] for row in rows], ascending=ascending)
        return [version_record(row) for row in rows]

    def packs(self, run: int, numbers: Sequence[int]) -> list[VersionRecord]:
        with self._database.reader() as connection:
            rows = connection.rows(_SELECT_PACK, (run, _encode_list(numbers)))
        return list(map(version_record, rows))

    def pack_bytes(self, run: int, numbers: Sequence[int]) -> dict[int, bytes]:
        with self._database.reader() as connection:
            return dict(connection.rows(_SELECT_PACK_BYTES, (run, _encode_list(numbers))))

    def packs_of(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], VersionRecord]:
        with self._database.reader() as connection:
            return intact_packs(connection.rows(_SELECT_PACKS_OF, (_encode_list(places),)))

    def block(self, run: int, number: int, index: int) -> bytes | None:
        with self._database.reader() as connection:
            row = connection.row(
                "SELECT data FROM block WHERE run=? AND number=? AND n=?", (run, number, index)
            )
        return None if row is None else row[0]

    def timelines(self, run: int) -> list[TimelineRecord]:
        with self._database.reader() as connection:
            rows = connection.rows("SELECT * FROM timeline WHERE run=? ORDER BY number", (run,))
        return [timeline_record(row) for row in rows]

    def marks(self, run: int, first: int | None = None, last: int | None = None) -> list[MarkRecord]:
        where, values = join_clauses([("run = ?", run), ("number >= ?", first), ("number <= ?", last)])
        with self._database.reader() as connection:
            statement = f"SELECT * FROM mark WHERE {where} ORDER BY number, name"
            rows = connection.rows(statement, values)
        return [mark_record(row) for row in rows]

    def set_mark(self, run: int, mark: MarkRecord, *, on: bool, event: EventRecord) -> bool:
        def write(connection: SQLiteConnection) -> bool:
            there = "SELECT 1 FROM journal WHERE run=? AND number=? AND pruned=0"
            if on and connection.row(there, (run, mark.number)) is None:
                raise NotFound(f"version {mark.number} no longer exists: mark another")
            if on:
                statement, values = INSERT_MARK, mark_row(run, mark)
            else:
                statement = "DELETE FROM mark WHERE run=? AND name=? AND number=?"
                values = (run, mark.name, mark.number)
            changed = connection.change(statement, values) == 1
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
        with self._database.reader() as connection:
            ((runs, versions, pack_bytes, events, artifacts, artifact_bytes),) = connection.rows(
                _SELECT_STATS
            )
        files = [self._database.file, f"{self._database.file}-wal"]
        return StoreStats(
            runs=runs,
            versions=versions,
            events=events,
            artifacts=artifacts,
            artifact_bytes=artifact_bytes,
            pack_bytes=pack_bytes,
            file_bytes=sum(map(os.path.getsize, filter(os.path.exists, files))),
        )

    def check(self) -> list[str]:
        try:
            with self._database.reader(apart=True) as connection:
                found = [row[0] for row in connection.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
                for table in _RUN_TABLES:
                    placeholder = " AND NOT (run = 0 AND seal = x'')" if table == "journal" else ""
                    orphan = f"SELECT 1 FROM {table} WHERE run NOT IN (SELECT key FROM run){placeholder}"
                    if connection.row(orphan) is not None:
                        found.append(f"table {table} has rows that belong to no run")
        except CorruptStore as error:
            return [str(error)]
        return found

    def compact(self) -> None:
        self._database.vacuum()

    def close(self) -> None:
        self._database.close()
