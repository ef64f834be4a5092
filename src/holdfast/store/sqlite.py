"""The store on a SQLite file: one process or several of one machine.

`Link` opens the file and shares transactions; `sqlite_rows` turns records into rows. What is here is the
statements. The contracts are on the protocol, `store.base`.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from holdfast.errors import AlreadyExists, CorruptStore, InvalidCall, NotFound, StaleVersion
from holdfast.model.records import (
    KINDS,
    STATUSES,
    ArtifactRecord,
    EventRecord,
    MarkRecord,
    RunRecord,
    StoreStats,
    TimelineRecord,
    VersionRecord,
)
from holdfast.store.artifacts import ArtifactFolder, checked, verified
from holdfast.store.base import Append, Imported, Prune
from holdfast.store.sqlite_link import Link
from holdfast.store.sqlite_rows import (
    INSERT_EVENT,
    INSERT_VERSION,
    RUN,
    VERSION,
    event_record,
    event_row,
    mark_record,
    mark_row,
    row_sum,
    run_record,
    run_row,
    timeline_record,
    timeline_row,
    version_record,
    version_row,
)
from holdfast.tree.pack import Upload

_INSERT_RUN = f"INSERT INTO run ({RUN}, sum) VALUES ({', '.join('?' * 17)})"  # noqa: S608 - constants only
_UPDATE_RUN = (
    "UPDATE run SET workflow=?, status=?, updated=?, head=?, last=?, timeline=?, revision=?, epoch=?, "
    "origin_run=?, origin_version=?, step=?, size=?, kept=?, sum=? WHERE key=? AND revision=?"
)
_SELECT_RUN = f"SELECT {RUN}, sum FROM run WHERE "  # noqa: S608 - constants only
_SELECT_VERSION = f"SELECT {VERSION} FROM journal WHERE run=? AND number IS NOT NULL"  # noqa: S608 - constants only
_SELECT_PACK = f"SELECT {VERSION}, pack FROM journal WHERE run=? AND number "  # noqa: S608 - constants only
#: SQLite before 3.32 takes no more bound values in one statement.
_MANY = 900


class SQLiteStore:
    """A store in a SQLite file."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: str = "durable",
        artifacts: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
    ) -> None:
        if durability not in ("durable", "fast", "memory"):
            raise InvalidCall(f"durability is 'durable', 'fast' or 'memory', not {durability!r}")
        self._link = Link(os.fspath(path), durability, timeout)
        self._folder = None if artifacts is None else ArtifactFolder(artifacts)

    # Runs

    def append(self, change: Append) -> RunRecord:
        self._place(change.uploads)

        def write(connection: sqlite3.Connection) -> RunRecord:
            return self._append(connection, change)

        return self._link.write(_all_or_nothing(write) if change.uploads else write)

    def _append(self, connection: sqlite3.Connection, change: Append) -> RunRecord:
        self._require(connection, change)
        run = change.run
        if change.expect is None:
            run = self._insert_run(connection, run)
        else:
            _update_run(connection, run, change.expect)
        key = run.key
        if change.version is not None:
            number = change.version.number
            connection.execute(INSERT_VERSION, version_row(key, change.version))
            if change.blocks:
                _insert_blocks(connection, key, number, change.blocks)
            for name in change.tags:
                mark = MarkRecord(number=number, name=name, at=change.version.at)
                connection.execute("INSERT OR IGNORE INTO mark VALUES (?, ?, ?, ?, ?)", mark_row(key, mark))
            if change.holds:
                self._hold(connection, key, number, change.holds, change.uploads, change.version.at)
        if change.timeline is not None:
            connection.execute(
                "INSERT INTO timeline VALUES (?, ?, ?, ?, ?, ?, ?)", timeline_row(key, change.timeline)
            )
        for event in change.events:
            connection.execute(INSERT_EVENT, event_row(key, event))
        return run

    def _require(self, connection: sqlite3.Connection, change: Append) -> None:
        """Refuse, before anything is written, what would leave a version without an artifact."""
        brought = {upload.digest for upload in change.uploads}
        for digest in change.holds:
            if digest not in brought and not _has_artifact(connection, digest):
                raise NotFound(
                    f"artifact {digest.hex()[:12]} is not in this store: commit holdfast.artifact(…) of its content",
                    artifact=digest.hex(),
                )
        if change.expect is None:
            taken = connection.execute("SELECT 1 FROM run WHERE id=?", (change.run.id,)).fetchone()
            if taken:
                raise StaleVersion(
                    f"run {change.run.id!r} was made by another writer: read it, then try again"
                )

    def _insert_run(self, connection: sqlite3.Connection, run: RunRecord) -> RunRecord:
        key = connection.execute("SELECT coalesce(max(key), 0) + 1 FROM run").fetchone()[0]
        run = msgspec.structs.replace(run, key=key)
        row = run_row(run)
        connection.execute(_INSERT_RUN, (*row, row_sum(*row)))
        return run

    def run(self, run_id: str) -> RunRecord | None:
        return self._one_run("id=?", run_id)

    def run_by_key(self, key: int) -> RunRecord | None:
        return self._one_run("key=?", key)

    def _one_run(self, where: str, value: Any) -> RunRecord | None:
        with self._link.reader() as connection:
            row = connection.execute(_SELECT_RUN + where, (value,)).fetchone()
        return None if row is None else run_record(row)

    def run_ids(self, prefix: str, limit: int) -> list[str]:
        with self._link.reader() as connection:
            rows = connection.execute(
                "SELECT id FROM run WHERE id >= ? AND substr(id, 1, ?) = ? ORDER BY id LIMIT ?",
                (prefix, len(prefix), prefix, limit),
            ).fetchall()
        return [row[0] for row in rows]

    def runs(
        self,
        *,
        statuses: Sequence[str] | None = None,
        workflow: str | None = None,
        tags: Sequence[str] = (),
        since: int | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[RunRecord]:
        where = ["1"]
        values: list[Any] = []
        if statuses is not None:
            where.append(f"status IN ({', '.join('?' * len(statuses))})")
            values += [STATUSES.index(status) for status in statuses]
        if workflow is not None:
            where.append("workflow = ?")
            values.append(workflow)
        for tag in tags:
            where.append("EXISTS (SELECT 1 FROM mark WHERE mark.run = run.key AND mark.name = ?)")
            values.append(tag)
        if since is not None:
            where.append("updated >= ?")
            values.append(since)
        if before is not None:
            where.append("key < ?")
            values.append(before)
        statement = _SELECT_RUN + " AND ".join(where) + " ORDER BY key DESC LIMIT ?"
        with self._link.reader() as connection:
            return [run_record(row) for row in connection.execute(statement, (*values, limit)).fetchall()]

    def forks_of(self, key: int) -> list[RunRecord]:
        with self._link.reader() as connection:
            rows = connection.execute(_SELECT_RUN + "origin_run=? ORDER BY key", (key,)).fetchall()
        return [run_record(row) for row in rows]

    def delete_run(self, run: RunRecord) -> None:
        def delete(connection: sqlite3.Connection) -> None:
            gone = connection.execute("DELETE FROM run WHERE key=? AND revision=?", (run.key, run.revision))
            if gone.rowcount != 1:
                raise StaleVersion(f"run {run.id!r} has changed meanwhile: look at it, then delete it again")
            for table in ("journal", "block", "timeline", "mark", "hold"):
                connection.execute(f"DELETE FROM {table} WHERE run=?", (run.key,))  # noqa: S608 - constants only

        self._link.write(delete)

    def import_run(self, imported: Imported) -> RunRecord:
        uploads = list(imported.uploads) if self._folder is None else self._place(imported.uploads)

        def write(connection: sqlite3.Connection) -> RunRecord:
            if connection.execute("SELECT 1 FROM run WHERE id=?", (imported.run.id,)).fetchone():
                raise AlreadyExists(
                    f"run {imported.run.id!r} exists: import under another id, or delete it first"
                )
            run = self._insert_run(connection, imported.run)
            for upload in uploads:
                self._keep(connection, upload, run.created)
            for version, blocks, holds in imported.versions:
                connection.execute(INSERT_VERSION, version_row(run.key, version))
                _insert_blocks(connection, run.key, version.number, blocks)
                self._hold(connection, run.key, version.number, holds, uploads, run.created)
            for timeline in imported.timelines:
                connection.execute(
                    "INSERT INTO timeline VALUES (?, ?, ?, ?, ?, ?, ?)", timeline_row(run.key, timeline)
                )
            for mark in imported.marks:
                connection.execute("INSERT INTO mark VALUES (?, ?, ?, ?, ?)", mark_row(run.key, mark))
            for event in imported.events:
                connection.execute(INSERT_EVENT, event_row(run.key, event))
            return run

        return self._link.write(_all_or_nothing(write))

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
        where: list[str] = []
        values: list[Any] = [run]
        for clause, value in (
            (" AND number < ?", before),
            (" AND number > ?", after),
            (" AND timeline = ?", timeline),
            (" AND step = ?", step),
            (" AND kind = ?", None if kind is None else KINDS.index(kind)),
            (" AND number IN (SELECT number FROM mark WHERE mark.run = journal.run AND mark.name = ?)", tag),
        ):
            if value is not None:
                where.append(clause)
                values.append(value)
        if not pruned:
            where.append(" AND pruned = 0")
        order = " ORDER BY number ASC LIMIT ?" if ascending else " ORDER BY number DESC LIMIT ?"
        with self._link.reader() as connection:
            rows = connection.execute(_SELECT_VERSION + "".join(where) + order, (*values, limit)).fetchall()
        return [version_record(row) for row in rows]

    def packs(self, run: int, numbers: Sequence[int]) -> list[VersionRecord]:
        found: list[VersionRecord] = []
        with self._link.reader() as connection:
            for start in range(0, len(numbers), _MANY):
                some = numbers[start : start + _MANY]
                statement = _SELECT_PACK + f"IN ({', '.join('?' * len(some))})"
                found += map(version_record, connection.execute(statement, (run, *some)).fetchall())
        return found

    def block(self, run: int, number: int, index: int) -> bytes | None:
        with self._link.reader() as connection:
            row = connection.execute(
                "SELECT data FROM block WHERE run=? AND number=? AND n=?", (run, number, index)
            ).fetchone()
        return None if row is None else row[0]

    def timelines(self, run: int) -> list[TimelineRecord]:
        with self._link.reader() as connection:
            rows = connection.execute("SELECT * FROM timeline WHERE run=? ORDER BY number", (run,)).fetchall()
        return [timeline_record(row) for row in rows]

    def marks(self, run: int, first: int | None = None, last: int | None = None) -> list[MarkRecord]:
        with self._link.reader() as connection:
            rows = connection.execute(
                "SELECT * FROM mark WHERE run=? AND number >= ? AND number <= ? ORDER BY number, name",
                (run, -(1 << 62) if first is None else first, 1 << 62 if last is None else last),
            ).fetchall()
        return [mark_record(row) for row in rows]

    def set_mark(self, run: int, mark: MarkRecord, *, on: bool, event: EventRecord) -> bool:
        def write(connection: sqlite3.Connection) -> bool:
            if on:
                statement, values = "INSERT OR IGNORE INTO mark VALUES (?, ?, ?, ?, ?)", mark_row(run, mark)
            else:
                statement = "DELETE FROM mark WHERE run=? AND name=? AND number=?"
                values = (run, mark.name, mark.number)
            changed = connection.execute(statement, values).rowcount == 1
            if changed:
                connection.execute(INSERT_EVENT, event_row(run, event))
            return changed

        return self._link.write(write)

    def journal(
        self, *, run: int | None, after: int, limit: int
    ) -> list[EventRecord | tuple[int, VersionRecord]]:
        columns = f"SELECT {VERSION}, run FROM journal "
        with self._link.reader() as connection:
            if run is None:
                rows = connection.execute(
                    columns + "WHERE seq > ? ORDER BY seq LIMIT ?", (after, limit)
                ).fetchall()
            else:
                first = _first_number_after(connection, run, after)
                events = "WHERE run=? AND number IS NULL AND seq > ? ORDER BY seq LIMIT ?"
                versions = "WHERE run=? AND number >= ? ORDER BY number LIMIT ?"
                rows = connection.execute(columns + events, (run, after, limit)).fetchall()
                rows += connection.execute(columns + versions, (run, first, limit)).fetchall()
                rows = sorted((row for row in rows if row[0] > after), key=lambda row: row[0])[:limit]
        return [_entry(row) for row in rows if not (row[1] is not None and row[7])]

    def prune(self, plan: Prune) -> RunRecord:
        key = plan.run.key

        def write(connection: sqlite3.Connection) -> RunRecord:
            _update_run(connection, plan.run, plan.expect)
            for number in [*plan.drop, *(version.number for version, _, _ in plan.thin)]:
                connection.execute("DELETE FROM block WHERE run=? AND number=?", (key, number))
                connection.execute("DELETE FROM hold WHERE run=? AND number=?", (key, number))
                connection.execute("DELETE FROM mark WHERE run=? AND number=?", (key, number))
            for number in plan.drop:
                connection.execute("DELETE FROM journal WHERE run=? AND number=?", (key, number))
            for version, blocks, holds in plan.thin:
                seq = connection.execute(
                    "DELETE FROM journal WHERE run=? AND number=? RETURNING seq", (key, version.number)
                ).fetchone()
                names = INSERT_VERSION.replace("(run,", "(seq, run,").replace("(?,", "(?, ?,")
                connection.execute(names, (None if seq is None else seq[0], *version_row(key, version)))
                _insert_blocks(connection, key, version.number, blocks)
                for digest in holds:
                    connection.execute(
                        "INSERT OR IGNORE INTO hold VALUES (?, ?, ?)", (digest, key, version.number)
                    )
            for event in plan.events:
                connection.execute(INSERT_EVENT, event_row(key, event))
            return plan.run

        return self._link.write(write)

    # Artifacts

    def put_artifact(self, upload: Upload, at: int) -> bool:
        self._place((upload,))

        def write(connection: sqlite3.Connection) -> bool:
            new = not _has_artifact(connection, upload.digest)
            self._keep(connection, upload, at)
            return new

        return self._link.write(_all_or_nothing(write))

    def artifact(self, digest: bytes) -> ArtifactRecord | None:
        with self._link.reader() as connection:
            row = connection.execute(
                "SELECT digest, size, at FROM artifact WHERE digest=?", (digest,)
            ).fetchone()
        return None if row is None else ArtifactRecord(digest=row[0], size=row[1], at=row[2])

    def artifact_pieces(self, digest: bytes) -> Iterator[bytes]:
        if self._folder is not None:
            yield from self._folder.pieces(digest)
            return
        if self.artifact(digest) is None:
            raise NotFound(f"artifact {digest.hex()[:12]} is not in this store", artifact=digest.hex())
        yield from verified(digest, self._rows(digest))

    def _rows(self, digest: bytes) -> Iterator[bytes]:
        index = 0
        while True:
            with self._link.reader() as connection:
                row = connection.execute(
                    "SELECT data FROM artifact_piece WHERE digest=? AND n=?", (digest, index)
                ).fetchone()
            if row is None:
                return
            yield row[0]
            index += 1

    def artifacts(self, *, after: bytes = b"", limit: int = 1000) -> list[ArtifactRecord]:
        with self._link.reader() as connection:
            rows = connection.execute(
                "SELECT digest, size, at FROM artifact WHERE digest > ? ORDER BY digest LIMIT ?",
                (after, limit),
            ).fetchall()
        return [ArtifactRecord(digest=row[0], size=row[1], at=row[2]) for row in rows]

    def collect(self, *, before: int) -> tuple[int, int]:
        def write(connection: sqlite3.Connection) -> list[tuple[bytes, int]]:
            rows = connection.execute(
                "DELETE FROM artifact WHERE at < ? AND NOT EXISTS "
                "(SELECT 1 FROM hold WHERE hold.digest = artifact.digest) RETURNING digest, size",
                (before,),
            ).fetchall()
            for digest, _ in rows:
                connection.execute("DELETE FROM artifact_piece WHERE digest=?", (digest,))
                if self._folder is not None:
                    self._folder.remove(digest)
            return rows

        gone = self._link.write(write)
        return len(gone), sum(size for _, size in gone)

    def _place(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Bring contents into the folder, where there is one, before the transaction that needs them."""
        placed = []
        for upload in uploads:
            if self._folder is not None:
                self._folder.put(upload)
            placed.append(upload)
        return placed

    def _hold(
        self,
        connection: sqlite3.Connection,
        key: int,
        number: int,
        holds: Sequence[bytes],
        uploads: Sequence[Upload],
        at: int,
    ) -> None:
        for upload in uploads:
            self._keep(connection, upload, at)
        for digest in holds:
            connection.execute("INSERT OR IGNORE INTO hold VALUES (?, ?, ?)", (digest, key, number))

    def _keep(self, connection: sqlite3.Connection, upload: Upload, at: int) -> None:
        row = (upload.digest, upload.size, at)
        if connection.execute("INSERT OR IGNORE INTO artifact VALUES (?, ?, ?)", row).rowcount != 1:
            connection.execute("UPDATE artifact SET at=max(at, ?) WHERE digest=?", (at, upload.digest))
        elif self._folder is None:
            for index, piece in enumerate(checked(upload)):
                connection.execute(
                    "INSERT INTO artifact_piece (digest, n, data) VALUES (?, ?, ?)",
                    (upload.digest, index, piece),
                )

    # The whole

    def stats(self) -> StoreStats:
        def one(statement: str) -> tuple[Any, ...]:
            found: tuple[Any, ...] = connection.execute(statement).fetchone()
            return found

        with self._link.reader() as connection:
            runs, versions, size = one(
                "SELECT count(*), coalesce(sum(kept), 0), coalesce(sum(size), 0) FROM run"
            )
            (events,) = one("SELECT count(*) FROM journal WHERE number IS NULL")
            artifacts, artifact_bytes = one("SELECT count(*), coalesce(sum(size), 0) FROM artifact")
        files = [Path(self._link.path + suffix) for suffix in ("", "-wal")]
        return StoreStats(
            runs=runs,
            versions=versions,
            events=events,
            artifacts=artifacts,
            artifact_bytes=artifact_bytes,
            pack_bytes=size,
            file_bytes=sum(file.stat().st_size for file in files if file.exists()),
        )

    def check(self) -> list[str]:
        try:
            with self._link.reader() as connection:
                rows = connection.execute("PRAGMA integrity_check(20)").fetchall()
        except CorruptStore as error:
            return [str(error)]
        return [row[0] for row in rows if row[0] != "ok"]

    def compact(self) -> None:
        with self._link.reader() as connection:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        self._link.close()


def _update_run(connection: sqlite3.Connection, run: RunRecord, expect: RunRecord) -> None:
    row = run_row(run)
    done = connection.execute(_UPDATE_RUN, (*row[2:4], *row[5:], row_sum(*row), expect.key, expect.revision))
    if done.rowcount != 1:
        raise StaleVersion(f"run {run.id!r} has moved on since it was read: read its head, then try again")


def _insert_blocks(connection: sqlite3.Connection, key: int, number: int, blocks: Sequence[bytes]) -> None:
    connection.executemany(
        "INSERT INTO block (run, number, n, data) VALUES (?, ?, ?, ?)",
        ((key, number, index, block) for index, block in enumerate(blocks)),
    )


def _has_artifact(connection: sqlite3.Connection, digest: bytes) -> bool:
    return connection.execute("SELECT 1 FROM artifact WHERE digest=?", (digest,)).fetchone() is not None


def _first_number_after(connection: sqlite3.Connection, run: int, after: int) -> int:
    """The first version number whose position may be beyond `after`: positions grow with numbers."""
    lowest, highest = connection.execute(
        "SELECT min(number), max(number) FROM journal WHERE run=? AND number IS NOT NULL", (run,)
    ).fetchone()
    if after <= 0 or lowest is None:
        return -(1 << 62)
    while lowest <= highest:
        middle = (lowest + highest) // 2
        number, seq = connection.execute(
            "SELECT number, seq FROM journal WHERE run=? AND number >= ? ORDER BY number LIMIT 1",
            (run, middle),
        ).fetchone()
        if seq > after:
            highest = middle - 1
        else:
            lowest = number + 1
    found: int = lowest
    return found


def _entry(row: tuple[Any, ...]) -> EventRecord | tuple[int, VersionRecord]:
    if row[1] is None:
        return event_record(row[0], (row[14], row[9], row[10], row[11], row[12]))
    return row[14], version_record(row[:14])


def _all_or_nothing(work: Callable[[sqlite3.Connection], Any]) -> Callable[[sqlite3.Connection], Any]:
    """For a job of which a refusal may come after its first change."""

    def wrapped(connection: sqlite3.Connection) -> Any:
        connection.execute("SAVEPOINT job")
        try:
            result = work(connection)
        except BaseException:
            connection.execute("ROLLBACK TO job")
            connection.execute("RELEASE job")
            raise
        connection.execute("RELEASE job")
        return result

    return wrapped
