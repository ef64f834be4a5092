"""The store on a PostgreSQL server: a fleet of processes on any number of machines.

`postgres_link` keeps connections and transactions; `postgres_append` is the way of changing runs; `postgres_journal`
reads what happened, `postgres_artifacts` keeps large values, `postgres_queue` gives runs to workers, `postgres_news`
carries word between processes. What is here is the other statements. The contracts are on the protocol, `store.base`.

Invariant: the key of a run, once given, is never given again.
"""

# ruff: noqa: S608 - statements are made of constants only
from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import CorruptStore, HoldfastError, InvalidCall, NotFound, StaleVersion
from holdfast.model.records import (
    EventRecord,
    MarkRecord,
    RunRecord,
    StoreStats,
    TimelineRecord,
    VersionRecord,
)
from holdfast.store import postgres_format, postgres_journal, postgres_queue
from holdfast.store.artifacts import ArtifactFolder
from holdfast.store.base import Append, Claim, Imported, Place, Prune
from holdfast.store.beside import Beside
from holdfast.store.postgres_append import Appender
from holdfast.store.postgres_artifacts import Artifacts
from holdfast.store.postgres_bulk import Bulk
from holdfast.store.postgres_link import LONG, Connection, Link
from holdfast.store.postgres_news import Listener, Teller
from holdfast.store.postgres_rows import SELECT_RUN, VERSION
from holdfast.store.postgres_url import parse
from holdfast.store.postgres_values import Values
from holdfast.store.sqlite_fork import before_forks
from holdfast.store.sqlite_rows import (
    KIND_NUMBER,
    LIVE_RUN,
    STATUS_NUMBER,
    in_order,
    mark_record,
    mark_row,
    run_record,
    sound_packs,
    timeline_record,
    version_record,
    where_all,
)

_SELECT_VERSION = f"SELECT {VERSION} FROM journal WHERE number IS NOT NULL AND "
_SELECT_PACK = (
    f"SELECT {VERSION}, coalesce(pack, '') FROM journal WHERE run = %s AND number = ANY(%b::bigint[])"
)
_SELECT_PACKS_OF = (
    f"SELECT {VERSION}, coalesce(pack, ''), run FROM journal "
    "JOIN unnest(%b::bigint[], %b::bigint[]) given (run, number) USING (run, number)"
)
_SELECT_PACK_BYTES = (
    "SELECT number, coalesce(pack, '') FROM journal WHERE run = %s AND number = ANY(%b::bigint[])"
)
_SELECT_STATS = (
    "SELECT count(*), coalesce(sum(kept), 0)::bigint, coalesce(sum(size), 0)::bigint, "
    "(SELECT count(*) FROM journal WHERE number IS NULL), "
    "(SELECT count(*) FROM artifact), (SELECT coalesce(sum(size), 0)::bigint FROM artifact), "
    "(SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class "
    "WHERE relkind = 'r' AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())) FROM run"
)
_INSERT_MARK = "INSERT INTO mark VALUES (%s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"
#: How many of the tags in a list a run has.
_COUNT_TAGS = "(SELECT count(DISTINCT name) FROM mark WHERE mark.run = run.key AND name = ANY(%b::text[]))"
#: The tables whose rows belong to runs.
_OF_RUNS = ("journal", "block", "timeline", "mark", "hold", "queued")
_OTHERS = ("run", "artifact", "artifact_piece", "value")


class PostgresStore(Beside):
    """A store in a schema of a PostgreSQL database."""

    def __init__(
        self,
        url: str,
        *,
        durability: str = "durable",
        artifacts: str | os.PathLike[str] | None = None,
        timeout: float = 30.0,
        create: bool = True,
        clock: Callable[[], int] | None = None,
    ) -> None:
        address = parse(url)
        #: Where it is, without the password.
        self.shown = address.shown
        self._schema = address.schema
        self._link = Link(address, durability, timeout, clock)
        self._link.open_first()
        try:
            postgres_format.prepare(self._link, create=create)
        except BaseException:
            self._link.close()
            raise
        self._artifacts = Artifacts(self._link, None if artifacts is None else ArtifactFolder(artifacts))
        self._bulk = Bulk(self._link, self._artifacts)
        self._small = Values(self._link)
        self._large = self._artifacts
        self._teller = Teller(self._link)
        self._listener = Listener(self._link)
        self._appender = Appender(self._link, self._artifacts, self._teller)
        before_forks(self)

    # For forks of the process

    def suspend(self) -> None:
        """Before a fork."""

    def resume(self) -> None:
        """After a fork, in the parent."""

    def start_anew(self) -> None:
        """After a fork, in the child, where no other thread is left."""
        self._teller.start_anew()
        self._listener.start_anew()
        self._appender.start_anew()

    # Runs

    def append(self, change: Append) -> RunRecord:
        return self._appender.append(change)

    def append_many(self, changes: Sequence[Append]) -> list[RunRecord | HoldfastError]:
        return self._appender.append_many(changes)

    def run(self, run_id: str) -> RunRecord | None:
        return self._one_run("id = %s", run_id)

    def revision(self, run_id: str) -> tuple[int, int] | None:
        rows = self._link.rows("SELECT key, revision FROM run WHERE id = %s", (run_id,))
        return (rows[0][0], rows[0][1]) if rows else None

    def run_by_key(self, key: int) -> RunRecord | None:
        return self._one_run("key = %s", key)

    def _one_run(self, where: str, value: Any) -> RunRecord | None:
        rows = self._link.rows(SELECT_RUN + where, (value,))
        return run_record(rows[0]) if rows else None

    def run_ids(self, prefix: str, limit: int) -> list[str]:
        rows = self._link.rows(
            "SELECT id FROM run WHERE id >= %s AND starts_with(id, %s) ORDER BY id LIMIT %s",
            (prefix, prefix, limit),
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
        numbers = (
            None if statuses is None else [STATUS_NUMBER[name] for name in statuses if name in STATUS_NUMBER]
        )
        clauses: list[tuple[str, Any]] = [
            ("workflow = %s", workflow),
            ("updated >= %s", since),
            ("key < %s", before),
        ]
        clauses += [("due <= %s", due), ("parent = %s", parent)]
        # Those of one status come from the index in the order that is wanted.
        one = numbers[0] if numbers and len(numbers) == 1 else None
        clauses += [("status = %s", one), ("status = ANY(%b::bigint[])", numbers if one is None else None)]
        if prefix:
            clauses += [("id >= %s", prefix), ("starts_with(id, %s)", prefix)]
        names = sorted(set(tags))
        if names:
            clauses.append(
                ("EXISTS (SELECT FROM mark WHERE mark.run = run.key AND mark.name = %s)", names[0])
            )
        if len(names) > 1:
            # The server would plan a join for each, in all orders.
            clauses.append((f"{_COUNT_TAGS} = {len(names)}", names))
        where, values = where_all(clauses)
        where += f" AND {LIVE_RUN}" if live else ""
        rows = self._link.rows(f"{SELECT_RUN}{where} ORDER BY key DESC LIMIT %s", (*values, limit))
        in_order(before, [row[0] for row in rows], ascending=False)
        return [run_record(row) for row in rows]

    def forks_of(self, key: int) -> list[RunRecord]:
        return [
            run_record(row) for row in self._link.rows(SELECT_RUN + "origin_run = %s ORDER BY key", (key,))
        ]

    def delete_run(self, run: RunRecord) -> None:
        def delete(connection: Connection) -> None:
            gone = connection.execute(
                "DELETE FROM run WHERE key = %s AND revision = %s", (run.key, run.revision)
            )
            if gone.rowcount != 1:
                raise StaleVersion(f"run {run.id!r} has changed meanwhile: look at it, then delete it again")
            for table in _OF_RUNS:
                connection.execute(f"DELETE FROM {table} WHERE run = %s", (run.key,))

        self._link.transact(delete, limit=LONG)

    def import_run(self, imported: Imported) -> RunRecord:
        run = self._bulk.import_run(imported)
        self._teller.tell()
        return run

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
                ("run = %s", run),
                ("number < %s", before),
                ("number > %s", after),
                ("timeline = %s", timeline),
                ("step = %s", step),
                ("kind = %s", None if kind is None else KIND_NUMBER.get(kind, -1)),
                ("number IN (SELECT number FROM mark WHERE mark.run = journal.run AND mark.name = %s)", tag),
                ("pruned = %s", None if pruned else 0),
            ]
        )
        order = "ASC" if ascending else "DESC"
        rows = self._link.rows(f"{_SELECT_VERSION}{where} ORDER BY number {order} LIMIT %s", (*values, limit))
        in_order(after if ascending else before, [row[1] for row in rows], ascending=ascending)
        return [version_record(row) for row in rows]

    def packs(self, run: int, numbers: Sequence[int]) -> list[VersionRecord]:
        return list(map(version_record, self._link.rows(_SELECT_PACK, (run, list(numbers)))))

    def pack_bytes(self, run: int, numbers: Sequence[int]) -> dict[int, bytes]:
        return {row[0]: row[1] for row in self._link.rows(_SELECT_PACK_BYTES, (run, list(numbers)))}

    def packs_of(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], VersionRecord]:
        runs, numbers = [run for run, _ in places], [number for _, number in places]
        return sound_packs(self._link.rows(_SELECT_PACKS_OF, (runs, numbers)))

    def block(self, run: int, number: int, index: int) -> bytes | None:
        rows = self._link.rows(
            "SELECT data FROM block WHERE run = %s AND number = %s AND n = %s", (run, number, index)
        )
        return rows[0][0] if rows else None

    def timelines(self, run: int) -> list[TimelineRecord]:
        rows = self._link.rows("SELECT * FROM timeline WHERE run = %s ORDER BY number", (run,))
        return [timeline_record(row) for row in rows]

    def marks(self, run: int, first: int | None = None, last: int | None = None) -> list[MarkRecord]:
        where, values = where_all([("run = %s", run), ("number >= %s", first), ("number <= %s", last)])
        statement = f"SELECT * FROM mark WHERE {where} ORDER BY number, name"
        return [mark_record(row) for row in self._link.rows(statement, values)]

    def set_mark(self, run: int, mark: MarkRecord, *, on: bool, event: EventRecord) -> bool:
        def write(connection: Connection) -> bool:
            # Not while the run is being pruned.
            connection.execute("SELECT FROM run WHERE key = %s FOR UPDATE", (run,))
            there = "SELECT FROM journal WHERE run = %s AND number = %s AND pruned = 0"
            if on and connection.execute(there, (run, mark.number)).fetchone() is None:
                raise NotFound(f"version {mark.number} is not there any more: mark another")
            if on:
                changed = connection.execute(_INSERT_MARK, mark_row(run, mark)).rowcount == 1
            else:
                gone = "DELETE FROM mark WHERE run = %s AND name = %s AND number = %s"
                changed = connection.execute(gone, (run, mark.name, mark.number)).rowcount == 1
            if changed:
                postgres_journal.note(connection, self._schema, [(run, event)])
            return changed

        changed = self._link.transact(write)
        self._teller.tell()
        return changed

    def journal(
        self, *, run: int | None, after: int, limit: int
    ) -> list[EventRecord | tuple[int, VersionRecord]]:
        return postgres_journal.entries(self._link, run=run, after=after, limit=limit)

    def journal_end(self) -> int:
        return postgres_journal.end(self._link)

    def prune(self, plan: Prune) -> RunRecord:
        pruned = self._bulk.prune(plan)
        self._teller.tell()
        return pruned

    # Queues

    def claim(self, wanted: Claim) -> list[RunRecord]:
        taken = postgres_queue.claim(self._link, wanted)
        if taken:
            self._teller.tell()
        return taken

    def claim_again(
        self, run: int, owner: str, lease: int, most: int | None, event: EventRecord
    ) -> RunRecord | None:
        taken = postgres_queue.claim_again(self._link, run, owner, lease, most, event)
        self._teller.tell()
        return taken

    def waiting(self, wanted: Claim) -> bool:
        return postgres_queue.waiting(self._link, wanted)

    def place(self, run: int) -> Place | None:
        return postgres_queue.place(self._link, run)

    def queues(self) -> dict[str, dict[str, int]]:
        return postgres_queue.queues(self._link)

    # The whole

    def news(self, timeout: float) -> bool:
        return self._listener.wait(timeout)

    def now(self) -> int:
        return self._link.time.now()

    def stats(self) -> StoreStats:
        ((runs, versions, pack_bytes, events, artifacts, artifact_bytes, size),) = self._link.rows(
            _SELECT_STATS
        )
        return StoreStats(
            runs=runs,
            versions=versions,
            events=events,
            artifacts=artifacts,
            artifact_bytes=artifact_bytes,
            pack_bytes=pack_bytes,
            file_bytes=size,
        )

    def check(self) -> list[str]:
        found = []
        try:
            for table in _OF_RUNS:
                if self._link.rows(f"SELECT FROM {table} WHERE run NOT IN (SELECT key FROM run) LIMIT 1"):
                    found.append(f"there are rows in {table} that belong to no run")
        except CorruptStore as error:
            found.append(str(error))
        return found

    def backup(self, path: str | os.PathLike[str], artifacts: str | os.PathLike[str] | None) -> None:
        raise InvalidCall(
            "a PostgreSQL store is backed up by its server: use pg_dump, or the backups of your provider"
        )

    def compact(self) -> None:
        self._link.vacuum([*_OF_RUNS, *_OTHERS])

    def close(self) -> None:
        self._listener.close()
        self._teller.close()
        self._link.close()
