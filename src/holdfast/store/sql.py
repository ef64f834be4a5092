"""The tables of a database: the statements and the logic that SQLite and PostgreSQL share.

Both databases understand the placeholders `$1`, `$2`, …, numbered in the order in which they first occur. Each supplies
the statements in which it differs, as an `SQLDialect`, and an `SQLDatabase` that runs jobs in transactions. Contents
that go into a folder are written there before the transaction that needs them, so that a large file delays no other
writer; contents in the database are written within it.

Invariant: a version that holds an artifact was committed together with, or after, the artifact's content; a value is
replaced only by a writer that has seen the one before it.
"""

# ruff: noqa: S608 - statements are made of constants only

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar, Unpack

from holdfast.errors import CorruptStore
from holdfast.model.meta import MetaRow, wanted_facets
from holdfast.model.records import (
    ArtifactRecord,
    MarkRecord,
    RunRecord,
    StoreStats,
    TimelineRecord,
    VersionRecord,
)
from holdfast.store.artifact_folder import ArtifactFolder, checked, verified
from holdfast.store.protocol import RunFilters, VersionQuery, missing_artifact, stale_value
from holdfast.store.rows import (
    KIND_NUMBER,
    LIVE_RUN,
    RUN,
    STATUS_NUMBER,
    check_order,
    intact_packs,
    mark_record,
    row_sum,
    run_record,
    timeline_record,
    version_record,
)
from holdfast.tree.pack import Upload

T = TypeVar("T")


class SQLConnection(Protocol):
    """A connection on which a job runs its statements."""

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of a statement."""

    def row(self, statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """Return the first row of a statement; None if there is none."""

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; return the number of rows that it changed."""

    def change_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement once for each row of values; return the number of rows that it changed."""


class SQLDatabase(Protocol):
    """A database that all threads of a process share."""

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return all rows of one query."""

    def row(self, statement: str, values: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """Return the first row of one query; None if there is none."""

    def write(
        self,
        work: Callable[[SQLConnection], T],
        *,
        once: bool = False,
        atomic: bool = False,
        slow: bool = False,
        synced: bool = False,
    ) -> T:
        """Run a job in a transaction: `once` if it cannot be repeated, `atomic` if it may raise after its first change,
        `slow` if a statement may take long, `synced` if the commit must survive a power failure in a `fast` store too.
        """


class SQLDialect(NamedTuple):
    """The statements in which a database differs from others."""

    #: The columns of a version without its pack.
    version: str
    #: Ids of runs from $1 with the prefix $2, at most $3; names of values from $1, after $2, with the prefix $3, at
    #: most $4.
    run_ids: str
    value_names: str
    #: Versions of the run $1 with the numbers $2: with packs; only the number and the pack.
    packs: str
    pack_bytes: str
    #: Versions of many runs with packs and keys of runs.
    packs_of: str
    #: Attachments of the run $1 with the keys $2, by key and name.
    attachments_of: str
    #: The digests of a list $1 that are stored; delete the contents of such a list.
    known_artifacts: str
    delete_pieces: str
    #: Delete artifacts stored before $1 that no version holds; return them.
    delete_unheld: str
    #: Parts of `RunStore.runs`; `{}` is the place of the value. Whether the id has a prefix; the number of distinct
    #: tags of a list that a run has.
    has_prefix: str
    count_tags: str
    #: The rows of `meta_place` with their runs, joined in this order, so that a page reads the runs of a page.
    runs_of_facet: str
    #: Convert a list of numbers or texts, digests, pairs of numbers and a prefix to the values of these statements.
    encode_list: Callable[[Sequence[Any]], Any]
    encode_digests: Callable[[Sequence[bytes]], Any]
    encode_places: Callable[[Sequence[tuple[int, int]]], Sequence[Any]]
    encode_prefix: Callable[[str], Any]
    #: Before artifacts are written or referred to, and before they are collected; None if writers exclude each other.
    lock_shared: str | None = None
    lock_exclusive: str | None = None


_META = "SELECT name, value FROM meta WHERE run = $1 ORDER BY name"
#: Whether there are as many places as the metadata have facets.
_HAS_ALL_PLACES = (
    "SELECT (SELECT count(*) FROM meta_place) = (SELECT coalesce(sum(names * (names + 1) / 2), 0) "
    "FROM (SELECT count(*) AS names FROM meta GROUP BY run) counted)"
)
_HAS_FACET = "EXISTS (SELECT 1 FROM meta_place other WHERE other.facet = {} AND other.run = meta_place.run)"


class SQLRuns:
    """Reads runs and the size of the store."""

    _SELECT = f"SELECT {RUN}, sum FROM run"
    _BY_ID = f"{_SELECT} WHERE id = $1"
    _BY_KEY = f"{_SELECT} WHERE key = $1"
    _FORKS = f"{_SELECT} WHERE origin_run = $1 ORDER BY key"
    _REVISION = "SELECT key, revision FROM run WHERE id = $1"
    _STATS = (
        "SELECT count(*), CAST(coalesce(sum(kept), 0) AS BIGINT), CAST(coalesce(sum(size), 0) AS BIGINT), "
        "(SELECT count(*) FROM journal WHERE number IS NULL AND run > 0), (SELECT count(*) FROM artifact), "
        "(SELECT CAST(coalesce(sum(size), 0) AS BIGINT) FROM artifact) FROM run"
    )

    def __init__(self, database: SQLDatabase, dialect: SQLDialect) -> None:
        self._database = database
        self._dialect = dialect

    def run(self, run_id: str) -> RunRecord | None:
        """Return the run with an id."""
        row = self._database.row(self._BY_ID, (run_id,))
        return None if row is None else run_record(row)

    def run_by_key(self, key: int) -> RunRecord | None:
        """Return the run with a key."""
        row = self._database.row(self._BY_KEY, (key,))
        return None if row is None else run_record(row)

    def revision(self, run_id: str) -> tuple[int, int] | None:
        """Return the key and the revision of a run."""
        row = self._database.row(self._REVISION, (run_id,))
        return None if row is None else (row[0], row[1])

    def run_ids(self, prefix: str, limit: int) -> list[str]:
        """Return ids that start with a prefix, sorted."""
        values = (prefix, self._dialect.encode_prefix(prefix), limit)
        return [row[0] for row in self._database.rows(self._dialect.run_ids, values)]

    def runs(
        self, *, before: int | None = None, limit: int = 100, **filters: Unpack[RunFilters]
    ) -> list[RunRecord]:
        """Return runs that match the filters, newest first, with keys below `before`."""
        facets = wanted_facets(filters.get("meta", ()))
        where, values = self._where(before, filters, facets)
        if facets:
            statement = (
                f"SELECT {RUN}, sum FROM {self._dialect.runs_of_facet}{where} ORDER BY meta_place.run DESC"
            )
        else:
            statement = f"{self._SELECT}{where} ORDER BY key DESC"
        rows = self._database.rows(f"{statement} LIMIT ${len(values) + 1}", (*values, limit))
        check_order(before, [row[0] for row in rows], ascending=False)
        return [run_record(row) for row in rows]

    def _where(
        self, before: int | None, filters: RunFilters, facets: Sequence[bytes]
    ) -> tuple[str, list[Any]]:
        dialect = self._dialect
        prefix, tags = filters.get("prefix") or None, sorted(set(filters.get("tags", ())))
        fixed = [LIVE_RUN] if filters.get("live") else []
        fixed += ["run.key = meta_place.run"] if facets else []
        statuses = filters.get("statuses")
        if statuses is not None:
            numbers = sorted({STATUS_NUMBER[name] for name in statuses if name in STATUS_NUMBER})
            # Constants: without a status no row is read, and the runs of one status come from the index in order.
            fixed.append(f"status IN ({', '.join(map(str, numbers))})" if numbers else "1 = 0")
        conditions = [
            ("workflow = {}", filters.get("workflow")),
            ("updated >= {}", filters.get("since")),
            ("meta_place.run < {}" if facets else "key < {}", before),
            ("due <= {}", filters.get("due")),
            ("parent = {}", filters.get("parent")),
            ("id >= {}", prefix),
            (dialect.has_prefix, None if prefix is None else dialect.encode_prefix(prefix)),
            (
                "EXISTS (SELECT 1 FROM mark WHERE mark.run = run.key AND mark.name = {})",
                tags[0] if tags else None,
            ),
            # A join for each tag would be planned in all orders.
            (f"{dialect.count_tags} = {len(tags)}", dialect.encode_list(tags) if len(tags) > 1 else None),
            *(("meta_place.facet = {}" if at == 0 else _HAS_FACET, each) for at, each in enumerate(facets)),
        ]
        return _join(fixed, conditions)

    def check_meta(self) -> list[str]:
        """Return what is wrong with the index of metadata as a whole."""
        row = self._database.row(_HAS_ALL_PLACES)
        return [] if row is None or row[0] else ["the index of metadata lists runs that have other metadata"]

    def meta_of(self, key: int) -> list[MetaRow]:
        """Return the metadata of a run as the index has them, by name."""
        return [(row[0], row[1]) for row in self._database.rows(_META, (key,))]

    def forks_of(self, key: int) -> list[RunRecord]:
        """Return the runs that were forked from a run."""
        return [run_record(row) for row in self._database.rows(self._FORKS, (key,))]

    def stats(self, file_bytes: int) -> StoreStats:
        """Return counts and sizes."""
        ((runs, versions, pack_bytes, events, artifacts, artifact_bytes),) = self._database.rows(self._STATS)
        return StoreStats(
            runs=runs,
            versions=versions,
            events=events,
            artifacts=artifacts,
            artifact_bytes=artifact_bytes,
            pack_bytes=pack_bytes,
            file_bytes=file_bytes,
        )


def _join(fixed: list[str], conditions: Sequence[tuple[str, Any]]) -> tuple[str, list[Any]]:
    """Return a WHERE of fixed conditions and of those whose value is not None, and these values."""
    given = [(condition, value) for condition, value in conditions if value is not None]
    where = [*(text.format(f"${n}") for n, (text, _) in enumerate(given, 1)), *fixed]
    return f" WHERE {' AND '.join(where)}" if where else "", [value for _, value in given]


#: Below and above every number of a version.
_LOWEST, _HIGHEST = -(1 << 63), (1 << 63) - 1


class SQLVersions:
    """Reads versions, their packs, timelines and marks."""

    _BY_KEY = "SELECT {} FROM journal WHERE run = $1 AND external = $2"
    _KEYED = "SELECT {} FROM journal WHERE run = $1 AND external IS NOT NULL ORDER BY external DESC LIMIT $2"
    _KEYED_BEFORE = "SELECT {} FROM journal WHERE run = $1 AND external < $2 ORDER BY external DESC LIMIT $3"
    _BLOCK = "SELECT data FROM block WHERE run = $1 AND number = $2 AND n = $3"
    _TIMELINES = "SELECT * FROM timeline WHERE run = $1 AND number > $2 ORDER BY number"
    _MARKS = "SELECT * FROM mark WHERE run = $1 AND number >= $2 AND number <= $3 ORDER BY number, name"

    def __init__(self, database: SQLDatabase, dialect: SQLDialect) -> None:
        self._database = database
        self._dialect = dialect

    def versions(
        self, run: int, *, limit: int = 100, ascending: bool = False, **filters: Unpack[VersionQuery]
    ) -> list[VersionRecord]:
        """Return versions without packs, newest first or `ascending`."""
        kind = filters.get("kind")
        where, values = _join(
            ["number IS NOT NULL"],
            [
                ("run = {}", run),
                ("number < {}", filters.get("before")),
                ("number > {}", filters.get("after")),
                ("timeline = {}", filters.get("timeline")),
                ("step = {}", filters.get("step")),
                ("kind = {}", None if kind is None else KIND_NUMBER.get(kind, -1)),
                (
                    "number IN (SELECT number FROM mark WHERE mark.run = journal.run AND mark.name = {})",
                    filters.get("tag"),
                ),
                ("pruned = {}", None if filters.get("pruned") else 0),
            ],
        )
        order = "ASC" if ascending else "DESC"
        rows = self._database.rows(
            f"SELECT {self._dialect.version} FROM journal{where} ORDER BY number {order} LIMIT ${len(values) + 1}",
            (*values, limit),
        )
        start = filters.get("after") if ascending else filters.get("before")
        check_order(start, [row[1] for row in rows], ascending=ascending)
        return [version_record(row) for row in rows]

    def packs(self, run: int, numbers: Sequence[int]) -> list[VersionRecord]:
        """Return versions with packs, stubs included, in any order; missing ones are omitted."""
        values = (run, self._dialect.encode_list(numbers))
        return list(map(version_record, self._database.rows(self._dialect.packs, values)))

    def pack_bytes(self, run: int, numbers: Sequence[int]) -> dict[int, bytes]:
        """Return only the packs, by number; missing ones are omitted."""
        values = (run, self._dialect.encode_list(numbers))
        return dict(self._database.rows(self._dialect.pack_bytes, values))

    def packs_of(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], VersionRecord]:
        """Return versions of many runs with packs, by run key and number; missing and damaged ones are omitted."""
        values = self._dialect.encode_places(places)
        return intact_packs(self._database.rows(self._dialect.packs_of, values))

    def block(self, run: int, number: int, index: int) -> bytes | None:
        """Return a further block of a version's pack."""
        row = self._database.row(self._BLOCK, (run, number, index))
        return None if row is None else row[0]

    def by_key(self, run: int, key: str) -> VersionRecord | None:
        """Return the version with a key, without its pack."""
        row = self._database.row(self._BY_KEY.format(self._dialect.version), (run, key))
        return None if row is None else version_record(row)

    def keyed(self, run: int, *, before: str | None = None, limit: int = 100) -> list[VersionRecord]:
        """Return versions that have a key below `before`, without packs, in descending order of keys."""
        version = self._dialect.version
        if before is None:
            rows = self._database.rows(self._KEYED.format(version), (run, limit))
        else:
            rows = self._database.rows(self._KEYED_BEFORE.format(version), (run, before, limit))
        return list(map(version_record, rows))

    def timelines(self, run: int, *, after: int = 0) -> list[TimelineRecord]:
        """Return the timelines with higher numbers than `after`, oldest first."""
        return [timeline_record(row) for row in self._database.rows(self._TIMELINES, (run, after))]

    def marks(self, run: int, first: int | None = None, last: int | None = None) -> list[MarkRecord]:
        """Return the tags and pins of a range of versions, by number and name."""
        values = (run, _LOWEST if first is None else first, _HIGHEST if last is None else last)
        return [mark_record(row) for row in self._database.rows(self._MARKS, values)]


# Statements of both databases for rows that belong to a run
INSERT_MARK = "INSERT INTO mark VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING"
DELETE_MARK = "DELETE FROM mark WHERE run = $1 AND name = $2 AND number = $3"
HAS_VERSION = "SELECT 1 FROM journal WHERE run = $1 AND number = $2 AND pruned = 0"
HAS_KEY = "SELECT 1 FROM journal WHERE run = $1 AND external = $2"
INSERT_TIMELINE = "INSERT INTO timeline VALUES ($1, $2, $3, $4, $5, $6, $7)"
INSERT_BLOCK = "INSERT INTO block (run, number, n, data) VALUES ($1, $2, $3, $4)"
DELETE_RUN = "DELETE FROM run WHERE key = $1 AND revision = $2"


class SQLArtifacts:
    """The artifacts of a database: records, contents, and which versions hold them."""

    _INSERT = "INSERT INTO artifact VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
    #: Locks the row, even if the time stays: of two transactions that bring one content, the second finds it stored.
    _TOUCH = "UPDATE artifact SET at = CASE WHEN at < $1 THEN $1 ELSE at END WHERE digest = $2"
    _FIND = "SELECT digest, size, at FROM artifact WHERE digest = $1"
    _PAGE = "SELECT digest, size, at FROM artifact WHERE digest > $1 ORDER BY digest LIMIT $2"
    _HAS_CONTENT = "SELECT 1 FROM artifact_piece WHERE digest = $1 AND n = 0"
    _INSERT_PIECE = "INSERT INTO artifact_piece VALUES ($1, $2, $3)"
    _FIND_PIECE = "SELECT data FROM artifact_piece WHERE digest = $1 AND n = $2"
    _INSERT_HOLD = "INSERT INTO hold VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"
    _DELETE_UNHELD = (
        "DELETE FROM artifact WHERE digest = $1 AND NOT EXISTS "
        "(SELECT 1 FROM hold WHERE hold.digest = artifact.digest) RETURNING digest, size, at"
    )
    #: A version holds an artifact that does not exist: one of the two rows is damaged.
    _DANGLING_HOLD = (
        "SELECT 1 FROM hold WHERE NOT EXISTS (SELECT 1 FROM artifact WHERE artifact.digest = hold.digest) "
        "LIMIT 1"
    )

    def __init__(self, database: SQLDatabase, dialect: SQLDialect, folder: ArtifactFolder | None) -> None:
        self._database = database
        self._dialect = dialect
        #: Where contents are stored; None if in the database.
        self.folder = folder

    # Before and within the transaction of a change

    def place(self, uploads: Iterable[Upload]) -> Iterator[Upload]:
        """Write contents to the folder, if there is one, before the transaction that needs them."""
        for upload in uploads:
            if self.folder is not None:
                self.folder.put(upload)
            yield upload

    def lock(self, connection: SQLConnection) -> None:
        """Let no other transaction collect artifacts until the end of this one."""
        if self._dialect.lock_shared is not None:
            connection.change(self._dialect.lock_shared)

    def require(
        self, connection: SQLConnection, holds: Iterable[bytes], uploads: Iterable[Upload] = ()
    ) -> None:
        """Refuse a version that refers to an artifact that is neither stored nor in `uploads`."""
        wanted = set(holds).difference(upload.digest for upload in uploads)
        for digest in wanted.difference(self._known(connection, wanted)):
            raise missing_artifact(digest, ": commit holdfast.artifact(…) of its content")

    def keep(self, connection: SQLConnection, uploads: Iterable[Upload], at: int) -> bool:
        """Record uploads; return whether any is new. `CorruptStore` if a content does not match its hash."""
        any_new = False
        for upload in uploads:
            if connection.change(self._INSERT, (upload.digest, upload.size, at)) == 1:
                any_new = True
            else:
                connection.change(self._TOUCH, (at, upload.digest))
            if self.folder is not None:
                # A collection may have removed it since it was placed.
                self.folder.put(upload)
            elif connection.row(self._HAS_CONTENT, (upload.digest,)) is None:
                for index, piece in enumerate(checked(upload)):
                    connection.change(self._INSERT_PIECE, (upload.digest, index, piece))
        return any_new

    def hold(self, connection: SQLConnection, key: int, number: int, holds: Iterable[bytes]) -> None:
        """Record which artifacts a version refers to."""
        connection.change_many(self._INSERT_HOLD, [(digest, key, number) for digest in holds])

    # Methods of `ArtifactStore`

    def put(self, upload: Upload, at: int) -> bool:
        """Store an artifact that no version holds yet; return whether it is new."""

        def write(connection: SQLConnection) -> bool:
            self.lock(connection)
            return self.keep(connection, (upload,), at)

        for _ in self.place((upload,)):
            pass
        return self._database.write(write, atomic=True)

    def find(self, digest: bytes) -> ArtifactRecord | None:
        """Return the record of an artifact."""
        row = self._database.row(self._FIND, (digest,))
        return None if row is None else _record(row)

    def pieces(self, digest: bytes) -> Iterator[bytes]:
        """Return the content of an artifact in pieces, from where it was stored."""
        record = self.find(digest)
        if record is None:
            raise missing_artifact(digest)
        if record.size == 0 or self._database.row(self._HAS_CONTENT, (digest,)):
            return verified(digest, self._iter_pieces(digest))
        if self.folder is None:
            raise missing_artifact(
                digest, " itself: open the store with artifacts=, the folder in which it was stored"
            )
        return self.folder.pieces(digest)

    def page(self, *, after: bytes = b"", limit: int = 1000) -> list[ArtifactRecord]:
        """Return artifacts in the order of their digests."""
        rows = self._database.rows(self._PAGE, (after, limit))
        records = [_record(row) for row in rows]
        if any(one >= other for one, other in pairwise([after, *(record.digest for record in records)])):
            raise CorruptStore("the list of artifacts is damaged: verify the store")
        return records

    def collect(self, *, before: int) -> tuple[int, int]:
        """Delete artifacts that no version holds and that were stored before a time; return their number and size."""
        gone = self._delete(lambda connection: connection.rows(self._dialect.delete_unheld, (before,)))
        if self.folder is not None:
            self.folder.sweep(before)
        return gone

    def release(self, digests: Sequence[bytes]) -> tuple[int, int]:
        """Delete those of these artifacts that no version holds; return their number and size."""
        if not digests:
            return 0, 0
        return self._delete(
            lambda connection: [
                row for digest in digests for row in connection.rows(self._DELETE_UNHELD, (digest,))
            ]
        )

    def _delete(self, rows: Callable[[SQLConnection], list[tuple[Any, ...]]]) -> tuple[int, int]:
        """Delete artifacts by a statement that returns their rows, and their contents; return number and size."""

        def delete(connection: SQLConnection) -> list[ArtifactRecord]:
            self._lock_exclusively(connection)
            if connection.row(self._DANGLING_HOLD) is not None:
                # An artifact that is held under a damaged digest would be deleted.
                raise CorruptStore("a version holds an artifact that does not exist: verify the store")
            gone = [_record(row) for row in rows(connection)]
            if gone:
                # At once: until the end of the transaction, no other one can store artifacts.
                digests = self._dialect.encode_digests([record.digest for record in gone])
                connection.change(self._dialect.delete_pieces, (digests,))
            return gone

        def unlink(connection: SQLConnection) -> None:
            self._lock_exclusively(connection)
            digests = {record.digest for record in gone}
            # Not the ones that were stored again meanwhile.
            for digest in digests.difference(self._known(connection, digests)):
                if folder is not None:
                    folder.remove(digest)

        folder = self.folder
        # Durable before files are removed: no version that a power failure restores may lack its artifact.
        gone = self._database.write(delete, atomic=True, slow=True, synced=folder is not None)
        if folder is not None and gone:
            self._database.write(unlink)
        return len(gone), sum(record.size for record in gone)

    def _lock_exclusively(self, connection: SQLConnection) -> None:
        # Before the statement that looks for holds, so that it sees what other transactions have just committed.
        if self._dialect.lock_exclusive is not None:
            connection.change(self._dialect.lock_exclusive)

    def _known(self, connection: SQLConnection, digests: Iterable[bytes]) -> set[bytes]:
        wanted = list(digests)
        if not wanted:
            return set()
        rows = connection.rows(self._dialect.known_artifacts, (self._dialect.encode_digests(wanted),))
        return {row[0] for row in rows}

    def _iter_pieces(self, digest: bytes) -> Iterator[bytes]:
        index = 0
        while (row := self._database.row(self._FIND_PIECE, (digest, index))) is not None:
            if not isinstance(row[0], bytes):
                raise CorruptStore(f"artifact {digest.hex()[:12]} is damaged: restore it from a bundle")
            yield row[0]
            index += 1


def _record(row: tuple[Any, ...]) -> ArtifactRecord:
    if type(row[0]) is not bytes or type(row[1]) is not int:
        raise CorruptStore("the record of an artifact is damaged: verify the store")
    return ArtifactRecord(digest=row[0], size=row[1], at=row[2])


class SQLValues:
    """Small values that belong to no run."""

    _FIND = "SELECT data, revision, sum FROM value WHERE name = $1"
    _INSERT = "INSERT INTO value VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING"
    _UPDATE = "UPDATE value SET data = $1, revision = $2, sum = $3 WHERE name = $4 AND revision = $5"
    _DELETE = "DELETE FROM value WHERE name = $1 AND revision = $2"

    def __init__(self, database: SQLDatabase, dialect: SQLDialect) -> None:
        self._database = database
        self._dialect = dialect

    def get(self, name: str) -> tuple[bytes, int] | None:
        """Return a value and its revision."""
        row = self._database.row(self._FIND, (name,))
        if row is None:
            return None
        data, revision, guard = row
        if row_sum(name, data, revision) != guard:
            raise CorruptStore(
                f"the value {name!r} is damaged: restore the store from a backup",
                value=name,
                revision=revision,
            )
        return data, revision

    def set(self, name: str, data: bytes, expect: int) -> int:
        """Create or replace a value whose revision is `expect`, 0 for none; return the new revision."""
        revision = expect + 1
        guard = row_sum(name, data, revision)
        if expect:
            self._change(name, self._UPDATE, (data, revision, guard, name, expect))
        else:
            self._change(name, self._INSERT, (name, data, revision, guard))
        return revision

    def drop(self, name: str, expect: int) -> None:
        """Delete a value whose revision is `expect`."""
        self._change(name, self._DELETE, (name, expect))

    def names(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Return the names that start with a prefix and sort after a name."""
        values = (prefix, after, self._dialect.encode_prefix(prefix), limit)
        return [row[0] for row in self._database.rows(self._dialect.value_names, values)]

    def _change(self, name: str, statement: str, values: Sequence[Any]) -> None:
        def write(connection: SQLConnection) -> None:
            if connection.change(statement, values) != 1:
                raise stale_value(name)

        self._database.write(write)
