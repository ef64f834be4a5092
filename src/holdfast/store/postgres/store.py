"""The store on a PostgreSQL server: for a fleet of processes on any number of machines. The contracts are those of
`protocol.Store`.

`connection_pool` runs jobs in transactions, `append` changes runs, `queue` gives runs to workers, `notify` wakes other
processes.

Invariant: keys of runs are never reused. An import or a pruning is one transaction.
"""

# ruff: noqa: S608 - statements are made of constants only

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import islice

import msgspec

from holdfast.errors import AlreadyExists, CorruptStore, InvalidCall, NotFound, StaleVersion
from holdfast.model.meta import facets_of
from holdfast.model.records import EventRecord, MarkRecord, RunRecord, StoreStats
from holdfast.store.artifact_folder import ArtifactFolder
from holdfast.store.attachments import INSERT_ATTACHMENT
from holdfast.store.items import SQLItems
from holdfast.store.postgres import schema
from holdfast.store.postgres.append import Appender
from holdfast.store.postgres.attachments import PostgresAttachments
from holdfast.store.postgres.connection import SERVER_NOW, PostgresConnection
from holdfast.store.postgres.connection_pool import PostgresPool
from holdfast.store.postgres.items import ServerSearch, item_dialect
from holdfast.store.postgres.journal import VERSION, VERSION_COLUMNS, PostgresJournal, version_row
from holdfast.store.postgres.notify import ChangeListener, ChangeNotifier
from holdfast.store.postgres.queue import PostgresQueues
from holdfast.store.postgres.space import DeletedSpace
from holdfast.store.postgres.url import parse
from holdfast.store.process_fork import ProcessBound, reset_in_children
from holdfast.store.protocol import Prune, RunImport, stale_run
from holdfast.store.questions import SQLQuestions
from holdfast.store.rows import RUN, attachment_row, mark_row, run_row, run_sum, timeline_row
from holdfast.store.sql import (
    DELETE_MARK,
    DELETE_RUN,
    HAS_VERSION,
    INSERT_BLOCK,
    INSERT_MARK,
    INSERT_TIMELINE,
    SQLArtifacts,
    SQLDialect,
    SQLRuns,
    SQLValues,
    SQLVersions,
)

_NOW = f"coalesce($3::bigint, {SERVER_NOW})"
#: Skips rows that are being written: a commit renews the lease itself, and a slow one must not delay the other leases.
_RENEW = (
    f"WITH held AS (SELECT key FROM run WHERE key = ANY($1::bigint[]) AND owner = $2 AND until > {_NOW} AND until < $4 "
    "ORDER BY key FOR UPDATE SKIP LOCKED), "
    "renewed AS (UPDATE run SET until = $4 FROM held WHERE run.key = held.key) "
    f"SELECT key FROM run WHERE key = ANY($1::bigint[]) AND owner = $2 AND until <= {_NOW}"
)
_SELECT_SIZE = (
    "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class "
    "WHERE relkind = 'r' AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
)
_INSERT_META = "INSERT INTO meta (run, name, value) VALUES ($1, $2, $3)"
_INSERT_META_PLACE = "INSERT INTO meta_place (facet, run) VALUES ($1, $2)"
#: The tables whose rows belong to runs.
_RUN_TABLES = (
    "journal",
    "block",
    "timeline",
    "mark",
    "hold",
    "queued",
    "attachment",
    "question",
    "question_place",
    "meta",
    "meta_place",
)
_OTHER_TABLES = ("run", "artifact", "artifact_piece", "value", "item", "item_term", "item_vector")

_VALUES_RUN = ", ".join(f"${n}" for n in range(1, 24))
_VALUES_VERSION = ", ".join(f"${n}" for n in range(1, 16))
_INSERT_RUN = f"INSERT INTO run ({RUN}, sum, attempt) VALUES ({_VALUES_RUN}) ON CONFLICT (id) DO NOTHING"
_UPDATE_RUN = f"UPDATE run SET ({RUN}, sum, attempt) = ({_VALUES_RUN}) WHERE key = $24 AND revision = $25"
#: With the position of the version that the stub replaces.
_INSERT_STUB = f"INSERT INTO journal ({VERSION_COLUMNS}, seq) VALUES ({_VALUES_VERSION}, $16)"
#: Versions of an import have negative positions, which no reader sees, until all are there.
_INSERT_HIDDEN = (
    f"INSERT INTO journal ({VERSION_COLUMNS}, seq) VALUES ({_VALUES_VERSION}, -nextval('journal_seq'))"
)
_REVEAL = (
    "UPDATE journal SET seq = given.place FROM (SELECT seq, nextval('journal_seq') AS place FROM "
    "(SELECT seq FROM journal WHERE run = $1 ORDER BY seq DESC) hidden) given WHERE journal.seq = given.seq"
)
_HAS_MARK = "SELECT 1 FROM mark WHERE run = $1 AND number = ANY($2::bigint[]) LIMIT 1"
_DELETE_BLOCKS = "DELETE FROM block WHERE run = $1 AND number = ANY($2::bigint[])"
_DELETE_HOLDS = "DELETE FROM hold WHERE run = $1 AND number = ANY($2::bigint[])"
_DELETE_ATTACHMENTS = "DELETE FROM attachment WHERE run = $1 AND key = ANY($2::text[])"
_DELETE_UNUSED = f"{_DELETE_ATTACHMENTS} AND at < $3"
_DELETE_VERSIONS = "DELETE FROM journal WHERE run = $1 AND number = ANY($2::bigint[]) RETURNING number, seq"
#: Versions of an import that are sent at once.
_PAGE = 500


def _dialect(schema_name: str) -> SQLDialect:
    lock = schema.lock_number(schema_name, schema.ARTIFACTS)
    return SQLDialect(
        version=VERSION,
        run_ids="SELECT id FROM run WHERE id >= $1 AND starts_with(id, $2) ORDER BY id LIMIT $3",
        value_names=(
            "SELECT name FROM value WHERE name >= $1 AND name > $2 AND starts_with(name, $3) ORDER BY name LIMIT $4"
        ),
        packs=(
            f"SELECT {VERSION}, coalesce(pack, '') FROM journal WHERE run = $1 AND number = ANY($2::bigint[])"
        ),
        pack_bytes=(
            "SELECT number, coalesce(pack, '') FROM journal WHERE run = $1 AND number = ANY($2::bigint[])"
        ),
        packs_of=(
            f"SELECT {VERSION}, coalesce(pack, ''), run FROM journal "
            "JOIN unnest($1::bigint[], $2::bigint[]) given (run, number) USING (run, number)"
        ),
        attachments_of=(
            "SELECT run, key, name, at, data, hash FROM attachment WHERE run = $1 AND key = ANY($2::text[]) "
            "ORDER BY key, name"
        ),
        known_artifacts="SELECT digest FROM artifact WHERE digest = ANY($1)",
        delete_pieces="DELETE FROM artifact_piece WHERE digest = ANY($1)",
        delete_unheld=(
            "DELETE FROM artifact WHERE at < $1 AND NOT EXISTS (SELECT FROM hold WHERE hold.digest = artifact.digest) "
            "RETURNING digest, size, at"
        ),
        has_prefix="starts_with(id, {})",
        runs_of_facet="meta_place CROSS JOIN LATERAL (SELECT * FROM run WHERE key = meta_place.run OFFSET 0) run",
        count_tags="(SELECT count(DISTINCT name) FROM mark WHERE mark.run = run.key AND name = ANY({}::text[]))",
        encode_list=list,
        encode_digests=list,
        encode_places=lambda places: ([run for run, _ in places], [number for _, number in places]),
        encode_prefix=str,
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

        dialect = _dialect(address.schema)
        runs = SQLRuns(self._pool, dialect)
        self._stats = runs.stats
        self.run = runs.run
        self.run_by_key = runs.run_by_key
        self.revision = runs.revision
        self.run_ids = runs.run_ids
        self.runs = runs.runs
        self.forks_of = runs.forks_of
        self.meta_of = runs.meta_of
        self._check_meta = runs.check_meta

        versions = SQLVersions(self._pool, dialect)
        self.versions = versions.versions
        self.packs = versions.packs
        self.pack_bytes = versions.pack_bytes
        self.packs_of = versions.packs_of
        self.block = versions.block
        self.version_by_key = versions.by_key
        self.keyed_versions = versions.keyed
        self.timelines = versions.timelines
        self.marks = versions.marks

        attached = PostgresAttachments(self._pool, dialect)
        self.attach = attached.attach
        self.attachments_of = attached.of_keys
        self.attachment_names = attached.names
        self.attachments = attached.page
        self.attachment_keys = attached.keys

        folder = None if artifacts is None else ArtifactFolder(artifacts)
        self._artifacts = SQLArtifacts(self._pool, dialect, folder)
        self.put_artifact = self._artifacts.put
        self.artifact = self._artifacts.find
        self.artifact_pieces = self._artifacts.pieces
        self.artifacts = self._artifacts.page
        self.collect = self._artifacts.collect
        self._deleted_contents = DeletedSpace(self._pool, ("artifact_piece",))
        self._deleted_versions = DeletedSpace(self._pool, ("journal", "block"))

        values = SQLValues(self._pool, dialect)
        self.value = values.get
        self.set_value = values.set
        self.drop_value = values.drop
        self.value_names = values.names

        self._items = SQLItems(self._pool, item_dialect(address.schema))
        self.put_items = self._items.put
        self.items = self._items.find
        self.recent_items = self._items.recent
        self.live_items = self._items.live
        self.item_names = self._items.names
        self.nearest_items = ServerSearch(self._pool, self._items.nearest).nearest
        self.namespaces = self._items.namespaces
        self.renew_items = self._items.renew
        self.sweep_items = self._items.sweep

        questions = SQLQuestions(self._pool)
        self.open_questions = questions.page
        self.questions_of = questions.of_run
        self.waking_questions = questions.waking
        self._check_questions = questions.check

        queues = PostgresQueues(self._pool, self._journal, self._notifier)
        self.claim = queues.claim
        self.claim_again = queues.claim_again
        self.has_claimable = queues.has_claimable
        self.queue_place = queues.queue_place
        self.queues = queues.queues

        self._appender = Appender(self._pool, self._artifacts, self._journal, self._notifier)
        self.append = self._appender.append
        self.append_many = self._appender.append_many
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Start again without threads, in the child."""
        self._notifier.reset()
        self._listener.reset()
        self._appender.reset()

    # Changes

    def delete_run(self, run: RunRecord) -> None:
        def delete(connection: PostgresConnection) -> None:
            which = (run.key, run.revision)
            if connection.change(DELETE_RUN, which) != 1:
                raise StaleVersion(f"run {run.id!r} has changed since it was read: read it, then delete it")
            for table in _RUN_TABLES:
                connection.execute(f"DELETE FROM {table} WHERE run = $1", (run.key,))

        self._pool.write(delete, slow=True)

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
                connection.change_many(INSERT_BLOCK, blocks)
                for version, _, holds in page:
                    self._artifacts.hold(connection, key, version.number, holds)
            connection.change_many(INSERT_TIMELINE, [timeline_row(key, line) for line in imported.timelines])
            connection.change_many(INSERT_MARK, [mark_row(key, mark) for mark in imported.marks])
            connection.change_many(_INSERT_META, [(key, *row) for row in imported.meta])
            connection.change_many(_INSERT_META_PLACE, [(facet, key) for facet in facets_of(imported.meta)])
            with connection.cursor() as cursor:
                cursor.executemany(
                    INSERT_ATTACHMENT[False], (attachment_row(key, each) for each in imported.attachments)
                )
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
            connection.execute(_DELETE_ATTACHMENTS, (key, list(plan.keys)))
            connection.execute(_DELETE_UNUSED, (key, list(plan.unused), plan.before))
            positions: dict[int, int] = dict(connection.rows(_DELETE_VERSIONS, (key, gone)))
            for version, blocks, holds in plan.thin:
                # A stub that replaces no version: readers of the journal do not see it.
                position = positions.get(version.number) or connection.value("SELECT nextval('journal_seq')")
                connection.execute(_INSERT_STUB, (key, *version_row(version), position))
                connection.change_many(
                    INSERT_BLOCK,
                    [(key, version.number, index, block) for index, block in enumerate(blocks)],
                )
                self._artifacts.hold(connection, key, version.number, holds)
            self._journal.add(connection, [(key, event) for event in plan.events])
            return plan.run

        run = self._pool.write(write, slow=True)
        self._notifier.notify()
        self._deleted_versions.add(plan.expect.size - plan.run.size)
        return run

    def release(self, digests: Sequence[bytes]) -> tuple[int, int]:
        """Delete those of these artifacts that no version holds; return their number and size."""
        count, size = self._artifacts.release(digests)
        if self._artifacts.folder is None:
            self._deleted_contents.add(size)
        return count, size

    def set_mark(self, run: int, mark: MarkRecord, *, on: bool, event: EventRecord) -> bool:
        def write(connection: PostgresConnection) -> bool:
            # Excludes pruning.
            connection.execute("SELECT FROM run WHERE key = $1 FOR UPDATE", (run,))
            if on and connection.row(HAS_VERSION, (run, mark.number)) is None:
                raise NotFound(f"version {mark.number} no longer exists: mark another")
            if on:
                changed = connection.change(INSERT_MARK, mark_row(run, mark))
            else:
                changed = connection.change(DELETE_MARK, (run, mark.name, mark.number))
            if changed:
                self._journal.add(connection, [(run, event)])
            return bool(changed)

        is_changed = self._pool.write(write)
        self._notifier.notify()
        return is_changed

    # Leases

    def renew(self, runs: Sequence[int], owner: str, until: int) -> list[int]:
        def write(connection: PostgresConnection) -> list[int]:
            expired = connection.rows(_RENEW, (list(runs), owner, self._pool.time.stated(), until))
            self._pool.time.measure(connection)
            return [row[0] for row in expired]

        # Not in a transaction: repeating it has no further effect.
        return self._pool.read(write)

    # The whole

    def stats(self) -> StoreStats:
        ((size,),) = self._pool.rows(_SELECT_SIZE)
        return self._stats(size)

    def check(self) -> list[str]:
        found = []
        try:
            for table in _RUN_TABLES:
                if self._pool.rows(f"SELECT FROM {table} WHERE run NOT IN (SELECT key FROM run) LIMIT 1"):
                    found.append(f"table {table} has rows that belong to no run")
            found += self._items.check()
            found += self._check_questions()
            found += self._check_meta()
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
