"""The store on a PostgreSQL server: for a fleet of processes on any number of machines. The contracts are those of
`protocol.Store`.

`connection_pool` runs jobs in transactions, `append` changes runs, `queue` gives runs to workers, `notify` wakes other
processes.

Invariant: keys of runs are never reused.
"""

# ruff: noqa: S608 - statements are made of constants only

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Unpack

from holdfast.errors import CorruptStore, InvalidCall, NotFound, StaleVersion
from holdfast.model.records import (
    EventRecord,
    MarkRecord,
    RunRecord,
    StoreStats,
    TimelineRecord,
    VersionRecord,
)
from holdfast.store.artifact_folder import ArtifactFolder
from holdfast.store.postgres import schema
from holdfast.store.postgres.append import Appender
from holdfast.store.postgres.bulk import INSERT_MARK, PostgresBulk
from holdfast.store.postgres.connection import SERVER_NOW, PostgresConnection
from holdfast.store.postgres.connection_pool import PostgresPool
from holdfast.store.postgres.journal import SELECT_RUN, VERSION, PostgresJournal
from holdfast.store.postgres.notify import ChangeListener, ChangeNotifier
from holdfast.store.postgres.queue import PostgresQueues
from holdfast.store.postgres.url import parse
from holdfast.store.process_fork import ProcessBound, reset_in_children
from holdfast.store.protocol import RunFilters, VersionQuery
from holdfast.store.rows import (
    LIVE_RUN,
    STATUS_NUMBER,
    check_order,
    intact_packs,
    join_clauses,
    mark_record,
    mark_row,
    run_clauses,
    run_record,
    timeline_record,
    version_clauses,
    version_record,
)
from holdfast.store.sql import ArtifactStatements, SQLArtifacts, SQLValues, ValueStatements

_NOW = f"coalesce(%s::bigint, {SERVER_NOW})"
#: Skips rows that are being written: a commit renews the lease itself, and a slow one must not delay the other leases.
_RENEW = (
    f"WITH held AS (SELECT key FROM run WHERE key = ANY(%b::bigint[]) AND owner = %s AND until > {_NOW} AND until < %s "
    "ORDER BY key FOR UPDATE SKIP LOCKED), "
    "renewed AS (UPDATE run SET until = %s FROM held WHERE run.key = held.key) "
    f"SELECT key FROM run WHERE key = ANY(%b::bigint[]) AND owner = %s AND until <= {_NOW}"
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
#: The number of distinct tags of a list that a run has.
_COUNT_TAGS = "(SELECT count(DISTINCT name) FROM mark WHERE mark.run = run.key AND name = ANY(%b::text[]))"
#: The tables whose rows belong to runs.
_RUN_TABLES = ("journal", "block", "timeline", "mark", "hold", "queued")
_OTHER_TABLES = ("run", "artifact", "artifact_piece", "value")


_VALUES = ValueStatements(
    find="SELECT data, revision, sum FROM value WHERE name = %s",
    insert="INSERT INTO value VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING",
    update="UPDATE value SET data = %s, revision = %s, sum = %s WHERE name = %s AND revision = %s",
    delete="DELETE FROM value WHERE name = %s AND revision = %s",
    names=(
        "SELECT name FROM value WHERE name >= %s AND name > %s AND starts_with(name, %s) ORDER BY name LIMIT %s"
    ),
    encode_prefix=str,
)


def _artifact_statements(schema_name: str) -> ArtifactStatements:
    lock = schema.lock_number(schema_name, schema.ARTIFACTS)
    return ArtifactStatements(
        insert="INSERT INTO artifact VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
        touch="UPDATE artifact SET at = greatest(at, %s) WHERE digest = %s",
        find="SELECT digest, size, at FROM artifact WHERE digest = %s",
        page="SELECT digest, size, at FROM artifact WHERE digest > %s ORDER BY digest LIMIT %s",
        find_known="SELECT digest FROM artifact WHERE digest = ANY(%b)",
        has_content="SELECT 1 FROM artifact_piece WHERE digest = %s AND n = 0",
        insert_piece="INSERT INTO artifact_piece VALUES (%s, %s, %s)",
        find_piece="SELECT data FROM artifact_piece WHERE digest = %s AND n = %s",
        delete_pieces="DELETE FROM artifact_piece WHERE digest = %s",
        insert_hold="INSERT INTO hold VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
        delete_unheld=(
            "DELETE FROM artifact WHERE at < %s AND NOT EXISTS (SELECT FROM hold WHERE hold.digest = artifact.digest) "
            "RETURNING digest, size, at"
        ),
        encode_digests=list,
        lock_shared=f"SELECT pg_advisory_xact_lock_shared({lock})",
        lock_exclusive=f"SELECT pg_advisory_xact_lock({lock})",
    )


class PostgresStore(ProcessBound):
    """A store in a schema of a PostgreSQL database. Artifacts, values, queues and the journal are parts with their own
    classes."""

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
        #: The address without the password.
        self.shown = address.shown
        self._pool = PostgresPool(address, durability, timeout, clock)
        self._pool.open_first()
        try:
            schema.prepare(self._pool, create=create)
        except BaseException:
            self._pool.close()
            raise
        self.now = self._pool.time.now
        self._notifier = ChangeNotifier(self._pool)
        self._listener = ChangeListener(self._pool)
        self.wait_for_change = self._listener.wait

        self._journal = PostgresJournal(self._pool)
        self.journal = self._journal.entries
        self.journal_end = self._journal.end

        folder = None if artifacts is None else ArtifactFolder(artifacts)
        stored = SQLArtifacts(self._pool, _artifact_statements(address.schema), folder)
        self.put_artifact = stored.put
        self.artifact = stored.find
        self.artifact_pieces = stored.pieces
        self.artifacts = stored.page
        self.collect = stored.collect

        values = SQLValues(self._pool, _VALUES)
        self.value = values.get
        self.set_value = values.set
        self.drop_value = values.drop
        self.value_names = values.names

        queues = PostgresQueues(self._pool, self._journal, self._notifier)
        self.claim = queues.claim
        self.claim_again = queues.claim_again
        self.has_claimable = queues.has_claimable
        self.queue_place = queues.queue_place
        self.queues = queues.queues

        self._appender = Appender(self._pool, stored, self._journal, self._notifier)
        self.append = self._appender.append
        self.append_many = self._appender.append_many

        bulk = PostgresBulk(self._pool, stored, self._journal, self._notifier)
        self.import_run = bulk.import_run
        self.prune = bulk.prune
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Start again without threads, in the child."""
        self._notifier.reset()
        self._listener.reset()
        self._appender.reset()

    # Runs

    def run(self, run_id: str) -> RunRecord | None:
        return self._one_run("id = %s", run_id)

    def revision(self, run_id: str) -> tuple[int, int] | None:
        row = self._pool.row("SELECT key, revision FROM run WHERE id = %s", (run_id,))
        return None if row is None else (row[0], row[1])

    def run_by_key(self, key: int) -> RunRecord | None:
        return self._one_run("key = %s", key)

    def _one_run(self, where: str, value: Any) -> RunRecord | None:
        row = self._pool.row(SELECT_RUN + where, (value,))
        return None if row is None else run_record(row)

    def run_ids(self, prefix: str, limit: int) -> list[str]:
        rows = self._pool.rows(
            "SELECT id FROM run WHERE id >= %s AND starts_with(id, %s) ORDER BY id LIMIT %s",
            (prefix, prefix, limit),
        )
        return [row[0] for row in rows]

    def runs(
        self, *, before: int | None = None, limit: int = 100, **filters: Unpack[RunFilters]
    ) -> list[RunRecord]:
        clauses = run_clauses("%s", before, filters)
        statuses = filters.get("statuses")
        numbers = (
            None if statuses is None else [STATUS_NUMBER[name] for name in statuses if name in STATUS_NUMBER]
        )
        # The runs of one status come from the index in the right order.
        one = numbers[0] if numbers and len(numbers) == 1 else None
        clauses += [("status = %s", one), ("status = ANY(%b::bigint[])", numbers if one is None else None)]
        clauses.append(("starts_with(id, %s)", filters.get("prefix") or None))
        tags = sorted(set(filters.get("tags", ())))
        if len(tags) > 1:
            # A join for each tag would be planned in all orders.
            clauses.append((f"{_COUNT_TAGS} = {len(tags)}", tags))
        where, values = join_clauses(clauses)
        where += f" AND {LIVE_RUN}" if filters.get("live") else ""
        rows = self._pool.rows(f"{SELECT_RUN}{where} ORDER BY key DESC LIMIT %s", (*values, limit))
        check_order(before, [row[0] for row in rows], ascending=False)
        return [run_record(row) for row in rows]

    def forks_of(self, key: int) -> list[RunRecord]:
        return [
            run_record(row) for row in self._pool.rows(SELECT_RUN + "origin_run = %s ORDER BY key", (key,))
        ]

    def delete_run(self, run: RunRecord) -> None:
        def delete(connection: PostgresConnection) -> None:
            which = (run.key, run.revision)
            if connection.change("DELETE FROM run WHERE key = %s AND revision = %s", which) != 1:
                raise StaleVersion(f"run {run.id!r} has changed since it was read: read it, then delete it")
            for table in _RUN_TABLES:
                connection.execute(f"DELETE FROM {table} WHERE run = %s", (run.key,))

        self._pool.write(delete, slow=True)

    # Versions

    def versions(
        self, run: int, *, limit: int = 100, ascending: bool = False, **filters: Unpack[VersionQuery]
    ) -> list[VersionRecord]:
        where, values = join_clauses(version_clauses("%s", run, filters))
        order = "ASC" if ascending else "DESC"
        rows = self._pool.rows(f"{_SELECT_VERSION}{where} ORDER BY number {order} LIMIT %s", (*values, limit))
        start = filters.get("after") if ascending else filters.get("before")
        check_order(start, [row[1] for row in rows], ascending=ascending)
        return [version_record(row) for row in rows]

    def packs(self, run: int, numbers: Sequence[int]) -> list[VersionRecord]:
        return list(map(version_record, self._pool.rows(_SELECT_PACK, (run, list(numbers)))))

    def pack_bytes(self, run: int, numbers: Sequence[int]) -> dict[int, bytes]:
        return {row[0]: row[1] for row in self._pool.rows(_SELECT_PACK_BYTES, (run, list(numbers)))}

    def packs_of(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], VersionRecord]:
        runs, numbers = [run for run, _ in places], [number for _, number in places]
        return intact_packs(self._pool.rows(_SELECT_PACKS_OF, (runs, numbers)))

    def block(self, run: int, number: int, index: int) -> bytes | None:
        row = self._pool.row(
            "SELECT data FROM block WHERE run = %s AND number = %s AND n = %s", (run, number, index)
        )
        return None if row is None else row[0]

    def timelines(self, run: int) -> list[TimelineRecord]:
        rows = self._pool.rows("SELECT * FROM timeline WHERE run = %s ORDER BY number", (run,))
        return [timeline_record(row) for row in rows]

    def marks(self, run: int, first: int | None = None, last: int | None = None) -> list[MarkRecord]:
        where, values = join_clauses([("run = %s", run), ("number >= %s", first), ("number <= %s", last)])
        statement = f"SELECT * FROM mark WHERE {where} ORDER BY number, name"
        return [mark_record(row) for row in self._pool.rows(statement, values)]

    def set_mark(self, run: int, mark: MarkRecord, *, on: bool, event: EventRecord) -> bool:
        def write(connection: PostgresConnection) -> bool:
            # Excludes pruning.
            connection.execute("SELECT FROM run WHERE key = %s FOR UPDATE", (run,))
            there = "SELECT 1 FROM journal WHERE run = %s AND number = %s AND pruned = 0"
            if on and connection.row(there, (run, mark.number)) is None:
                raise NotFound(f"version {mark.number} no longer exists: mark another")
            if on:
                changed = connection.change(INSERT_MARK, mark_row(run, mark))
            else:
                delete = "DELETE FROM mark WHERE run = %s AND name = %s AND number = %s"
                changed = connection.change(delete, (run, mark.name, mark.number))
            if changed:
                self._journal.add(connection, [(run, event)])
            return bool(changed)

        is_changed = self._pool.write(write)
        self._notifier.notify()
        return is_changed

    # Leases

    def renew(self, runs: Sequence[int], owner: str, until: int) -> list[int]:
        def write(connection: PostgresConnection) -> list[int]:
            held = (list(runs), owner, self._pool.time.stated())
            expired = connection.rows(_RENEW, (*held, until, until, *held))
            self._pool.time.measure(connection)
            return [row[0] for row in expired]

        # Not in a transaction: repeating it has no further effect.
        return self._pool.read(write)

    # The whole

    def stats(self) -> StoreStats:
        ((runs, versions, pack_bytes, events, artifacts, artifact_bytes, size),) = self._pool.rows(
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
            for table in _RUN_TABLES:
                if self._pool.rows(f"SELECT FROM {table} WHERE run NOT IN (SELECT key FROM run) LIMIT 1"):
                    found.append(f"table {table} has rows that belong to no run")
        except CorruptStore as error:
            found.append(str(error))
        return found

    def backup(self, path: str | os.PathLike[str], artifacts: str | os.PathLike[str] | None) -> None:
        raise InvalidCall(
            "a PostgreSQL store is backed up on its server: use pg_dump, or the backups of your provider"
        )

    def compact(self) -> None:
        self._pool.vacuum([*_RUN_TABLES, *_OTHER_TABLES])

    def close(self) -> None:
        self._listener.close()
        self._notifier.close()
        self._pool.close()
