"""The store on a SQLite file: one process or several of one machine.

`Link` opens the file and shares transactions; `sqlite_rows` turns records into rows; `sqlite_artifacts` keeps
large values; `sqlite_journal` reads what happened. What is here is the other statements. The contracts are on
the protocol, `store.base`.

Invariant: the key of a run, once given, is never given again: no record that a writer still has of a run that
is gone fits another.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

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
from holdfast.store import sqlite_journal, sqlite_queue
from holdfast.store.artifacts import ArtifactFolder
from holdfast.store.base import Append, Claim, Imported, Place, Prune, wall_clock
from holdfast.store.beside import Beside
from holdfast.store.sqlite_artifacts import Artifacts
from holdfast.store.sqlite_backup import backup
from holdfast.store.sqlite_bulk import Bulk
from holdfast.store.sqlite_connection import Connection
from holdfast.store.sqlite_link import Link, all_or_nothing
from holdfast.store.sqlite_news import News
from holdfast.store.sqlite_rows import (
    INSERT_EVENT,
    INSERT_MARK,
    INSERT_TIMELINE,
    INSERT_VERSION,
    KIND_NUMBER,
    LIVE_RUN,
    PACK,
    RUN,
    STATUS_NUMBER,
    VERSION,
    beyond,
    event_row,
    has,
    in_order,
    insert_blocks,
    insert_run,
    is_long,
    mark_record,
    mark_row,
    run_record,
    sound_packs,
    timeline_record,
    timeline_row,
    update_run,
    version_record,
    version_row,
    where_all,
)
from holdfast.store.sqlite_values import Values

_SELECT_RUN = f"SELECT {RUN}, sum FROM run WHERE "  # noqa: S608 - constants only
_SELECT_REVISION = "SELECT key, revision FROM run WHERE id=?"
_SELECT_VERSION = f"SELECT {VERSION} FROM journal WHERE number IS NOT NULL AND "  # noqa: S608 - constants only
_SELECT_PACK = (
    f"SELECT {VERSION}, {PACK} FROM journal WHERE run=? AND number IN (SELECT value FROM json_each(?))"  # noqa: S608 - constants only
)
_SELECT_PACKS_OF = (
    f"SELECT {VERSION}, {PACK}, run FROM json_each(?) given CROSS JOIN journal "  # noqa: S608 - constants only
    "ON run = json_extract(given.value, '$[0]') AND number = json_extract(given.value, '$[1]')"
)
_SELECT_PACK_BYTES = (
    f"SELECT number, {PACK} FROM journal WHERE run=? AND number IN (SELECT value FROM json_each(?))"  # noqa: S608 - constants only
)
_SELECT_STATS = (
    "SELECT count(*), coalesce(sum(kept), 0), coalesce(sum(size), 0), "
    "(SELECT count(*) FROM journal WHERE number IS NULL AND run > 0), "
    "(SELECT count(*) FROM artifact), (SELECT coalesce(sum(size), 0) FROM artifact) FROM run"
)
#: How many of the tags in a list a run has.
_COUNT_TAGS = (
    "(SELECT count(DISTINCT name) FROM mark "
    "WHERE mark.run = run.key AND name IN (SELECT value FROM json_each(?)))"
)
#: The tables whose rows belong to runs.
_OF_RUNS = ("journal", "block", "timeline", "mark", "hold")


class SQLiteStore(Beside):
    """A store in a SQLite file."""

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
        self._link = Link(os.fspath(path), durability, timeout)
        self._artifacts = Artifacts(self._link, None if artifacts is None else ArtifactFolder(artifacts))
        self._clock = self.now = clock or wall_clock
        self._small = Values(self._link, self._clock)
        self._large = self._artifacts
        self._queues = sqlite_queue.Queues(self._link, self._clock)
        #: What each thread knows of the commits.
        self._news = News(self._link.commits_seen)
        self._bulk = Bulk(self._link, self._artifacts)

    # Runs

    def append(self, change: Append) -> RunRecord:
        if change.uploads:
            self._artifacts.place(change.uploads)

        def write(connection: Connection) -> RunRecord:
            return self._append(connection, change)

        return self._link.write(all_or_nothing(write) if change.uploads else write)

    def append_many(self, changes: Sequence[Append]) -> list[RunRecord | HoldfastError]:
        for change in changes:
            if change.uploads:
                self._artifacts.place(change.uploads)

        def write(connection: Connection) -> list[RunRecord | HoldfastError]:
            return [self._try_append(connection, change) for change in changes]

        return self._link.write(write)

    def _try_append(self, connection: Connection, change: Append) -> RunRecord | HoldfastError:
        try:
            if change.uploads:
                return all_or_nothing(lambda inner: self._append(inner, change))(connection)
            return self._append(connection, change)
        except HoldfastError as error:
            return error

    def _append(self, connection: Connection, change: Append) -> RunRecord:
        run = change.run
        if change.holds:
            self._artifacts.require(connection, change.holds, change.uploads)
        if change.expect is None:
            if has(connection, "run WHERE id=?", run.id):
                raise StaleVersion(f"run {run.id!r} was made by another writer: read it, then try again")
            run = insert_run(connection, run)
        else:
            update_run(connection, run, change.expect, leased_at=self._clock() if change.leased else None)
        if change.queue is not None:
            sqlite_queue.put(connection, run, change.queue)
        key = run.key
        if change.uploads:
            self._artifacts.keep(connection, change.uploads, run.updated)
        if change.version is not None:
            number = change.version.number
            connection.execute(INSERT_VERSION, version_row(key, change.version))
            if change.blocks or is_long(change.version):
                insert_blocks(connection, key, change.version, change.blocks)
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
        with self._link.reader() as connection:
            row: tuple[int, int] | None = connection.row(_SELECT_REVISION, (run_id,))
        return row

    def run_by_key(self, key: int) -> RunRecord | None:
        return self._one_run("key=?", key)

    def _one_run(self, where: str, value: Any) -> RunRecord | None:
        with self._link.reader() as connection:
            row = connection.row(_SELECT_RUN + where, (value,))
        return None if row is None else run_record(row)

    def run_ids(self, prefix: str, limit: int) -> list[str]:
        with self._link.reader() as connection:
            rows = connection.rows(
                "SELECT id FROM run WHERE id >= ? AND id < CAST(? AS TEXT) ORDER BY id LIMIT ?",
                (prefix, beyond(prefix), limit),
            )
        return [row[0] for row in rows]

    def runs(
        self,
        *,
        statuses: Sequence[str] | None = None,
        workflow: str | None = None,
        tags: Sequence[str] = (),
        since: int | None = None,
        before: int | None = None,
        due: int | None = None,
        parent: int | None = None,
        prefix: str = "",
        live: bool = False,
        limit: int = 100,
    ) -> list[RunRecord]:
        clauses: list[tuple[str, Any]] = [("workflow = ?", workflow), ("updated >= ?", since)]
        clauses += [("key < ?", before), ("due <= ?", due), ("parent = ?", parent)]
        if prefix:
            clauses += [("id >= ?", prefix), ("id < CAST(? AS TEXT)", beyond(prefix))]
        names = sorted(set(tags))
        if names:
            clauses.append(
                ("EXISTS (SELECT 1 FROM mark WHERE mark.run = run.key AND mark.name = ?)", names[0])
            )
        if len(names) > 1:
            clauses.append((f"{_COUNT_TAGS} = {len(names)}", msgspec.json.encode(names).decode()))
        where, values = where_all(clauses)
        if statuses is not None:
            numbers = [str(STATUS_NUMBER[status]) for status in statuses if status in STATUS_NUMBER]
            where += f" AND status IN ({', '.join(numbers)})"
        where += f" AND {LIVE_RUN}" if live else ""
        with self._link.reader() as connection:
            statement = f"{_SELECT_RUN}{where} ORDER BY key DESC LIMIT ?"
            rows = connection.rows(statement, (*values, limit))
        in_order(before, [row[0] for row in rows], ascending=False)
        return [run_record(row) for row in rows]

    def forks_of(self, key: int) -> list[RunRecord]:
        with self._link.reader() as connection:
            rows = connection.rows(_SELECT_RUN + "origin_run=? ORDER BY key", (key,))
        return [run_record(row) for row in rows]

    def delete_run(self, run: RunRecord) -> None:
        def delete(connection: Connection) -> None:
            which = (run.key, run.revision)
            if connection.change("DELETE FROM run WHERE key=? AND revision=?", which) != 1:
                raise StaleVersion(f"run {run.id!r} has changed meanwhile: look at it, then delete it again")
            sqlite_journal.mark_end(connection)
            for table in _OF_RUNS:
                connection.execute(f"DELETE FROM {table} WHERE run=?", (run.key,))  # noqa: S608 - constants only

        self._link.write(delete)

    def import_run(self, imported: Imported) -> RunRecord:
        return self._bulk.import_run(imported)

    # Queues

    def claim(self, wanted: Claim) -> list[RunRecord]:
        return self._queues.claim(wanted)

    def claim_again(
        self, run: int, owner: str, lease: int, most: int | None, event: EventRecord
    ) -> RunRecord | None:
        return self._queues.claim_again(run, owner, lease, most, event)

    def waiting(self, wanted: Claim) -> bool:
        return self._queues.waiting(wanted)

    def place(self, run: int) -> Place | None:
        return self._queues.place(run)

    def queues(self) -> dict[str, dict[str, int]]:
        return self._queues.queues()

    # Versions

    def versions(
        self,
        run: int,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int = 100,
        timeline: int | None = None,
        step: str | None = None,
        kind: str | None = None,
        tag: str | None = None,
        ascending: bool = False,
        pruned: bool = False,
    ) -> list[VersionRecord]:
        where, values = where_all(
            [
                ("run = ?", run),
                ("number < ?", before),
                ("number > ?", after),
                ("timeline = ?", timeline),
                ("step = ?", step),
                ("kind = ?", None if kind is None else KIND_NUMBER.get(kind, -1)),
                ("number IN (SELECT number FROM mark WHERE mark.run = journal.run AND mark.name = ?)", tag),
                ("pruned = ?", None if pruned else 0),
            ]
        )
        with self._link.reader() as connection:
            statement = f"{_SELECT_VERSION}{where} ORDER BY number {'ASC' if ascending else 'DESC'} LIMIT ?"
            rows = connection.rows(statement, (*values, limit))
        in_order(after if ascending else before, [row[1] for row in rows], ascending=ascending)
        return [version_record(row) for row in rows]

    def packs(self, run: int, numbers: Sequence[int]) -> list[VersionRecord]:
        wanted = msgspec.json.encode(list(numbers)).decode()
        with self._link.reader() as connection:
            rows = connection.rows(_SELECT_PACK, (run, wanted))
        return list(map(version_record, rows))

    def pack_bytes(self, run: int, numbers: Sequence[int]) -> dict[int, bytes]:
        wanted = msgspec.json.encode(list(numbers)).decode()
        with self._link.reader() as connection:
            return dict(connection.rows(_SELECT_PACK_BYTES, (run, wanted)))

    def packs_of(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], VersionRecord]:
        wanted = msgspec.json.encode(list(places)).decode()
        with self._link.reader() as connection:
            return sound_packs(connection.rows(_SELECT_PACKS_OF, (wanted,)))

    def block(self, run: int, number: int, index: int) -> bytes | None:
        with self._link.reader() as connection:
            row = connection.row(
                "SELECT data FROM block WHERE run=? AND number=? AND n=?", (run, number, index)
            )
        return None if row is None else row[0]

    def timelines(self, run: int) -> list[TimelineRecord]:
        with self._link.reader() as connection:
            rows = connection.rows("SELECT * FROM timeline WHERE run=? ORDER BY number", (run,))
        return [timeline_record(row) for row in rows]

    def marks(self, run: int, first: int | None = None, last: int | None = None) -> list[MarkRecord]:
        where, values = where_all([("run = ?", run), ("number >= ?", first), ("number <= ?", last)])
        with self._link.reader() as connection:
            statement = f"SELECT * FROM mark WHERE {where} ORDER BY number, name"  # noqa: S608 - constants only
            rows = connection.rows(statement, values)
        return [mark_record(row) for row in rows]

    def set_mark(self, run: int, mark: MarkRecord, *, on: bool, event: EventRecord) -> bool:
        def write(connection: Connection) -> bool:
            there = "journal WHERE run=? AND number=? AND pruned=0"
            if on and not has(connection, there, run, mark.number):
                raise NotFound(f"version {mark.number} is not there any more: mark another")
            if on:
                statement, values = INSERT_MARK, mark_row(run, mark)
            else:
                statement = "DELETE FROM mark WHERE run=? AND name=? AND number=?"
                values = (run, mark.name, mark.number)
            changed = connection.change(statement, values) == 1
            if changed:
                connection.execute(INSERT_EVENT, event_row(run, event))
            return changed

        return self._link.write(write)

    def journal(
        self, *, run: int | None, after: int, limit: int
    ) -> list[EventRecord | tuple[int, VersionRecord]]:
        return sqlite_journal.entries(self._link, run=run, after=after, limit=limit)

    def journal_end(self) -> int:
        return sqlite_journal.end(self._link)

    def prune(self, plan: Prune) -> RunRecord:
        return self._bulk.prune(plan)

    # The whole

    def news(self, timeout: float) -> bool:
        return self._news.wait(timeout)

    def stats(self) -> StoreStats:
        with self._link.reader() as connection:
            ((runs, versions, pack_bytes, events, artifacts, artifact_bytes),) = connection.rows(
                _SELECT_STATS
            )
        files = [self._link.file, f"{self._link.file}-wal"]
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
            with self._link.reader(apart=True) as connection:
                found = [row[0] for row in connection.execute("PRAGMA integrity_check(20)") if row[0] != "ok"]
                for table in _OF_RUNS:
                    placeholder = " AND NOT (run = 0 AND seal = x'')" if table == "journal" else ""
                    if has(connection, f"{table} WHERE run NOT IN (SELECT key FROM run){placeholder}"):  # noqa: S608 - constants only
                        found.append(f"there are rows in {table} that belong to no run")
        except CorruptStore as error:
            return [str(error)]
        return found

    def backup(self, path: str | os.PathLike[str], artifacts: str | os.PathLike[str] | None) -> None:
        backup(self._link, self._artifacts, path, artifacts)

    def compact(self) -> None:
        self._link.vacuum()

    def close(self) -> None:
        self._link.close()
