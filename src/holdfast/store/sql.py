"""Artifacts and small values in the tables of a database: the logic that SQLite and PostgreSQL share.

Each database supplies whole statements and a `SQLDatabase` that runs jobs in transactions. Contents that go into a
folder are written there before the transaction that needs them, so that a large file delays no other writer; contents
in the database are written within it.

Invariant: a version that holds an artifact was committed together with, or after, the artifact's content; a value is
replaced only by a writer that has seen the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, Protocol, TypeVar

from holdfast.errors import CorruptStore
from holdfast.model.records import ArtifactRecord
from holdfast.store.artifact_folder import ArtifactFolder, checked, verified
from holdfast.store.protocol import missing_artifact, stale_value
from holdfast.store.rows import row_sum
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

    def change_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement once for each row of values."""


class SQLDatabase(Protocol):
    """A database that all threads of a process share."""

    def read(self, work: Callable[[SQLConnection], T]) -> T:
        """Run a job that only reads; it may run more than once."""

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


class ArtifactStatements(NamedTuple):
    """The statements of a database for artifacts."""

    insert: str
    touch: str
    find: str
    page: str
    find_known: str
    has_content: str
    insert_piece: str
    find_piece: str
    delete_pieces: str
    insert_hold: str
    delete_unheld: str
    #: Convert digests to the value of `find_known`.
    encode_digests: Callable[[Sequence[bytes]], Any]
    #: Before artifacts are written or referred to, and before they are collected; None if writers exclude each other.
    lock_shared: str | None = None
    lock_exclusive: str | None = None


#: A version holds an artifact that does not exist: one of the two rows is damaged.
_DANGLING_HOLD = (
    "SELECT 1 FROM hold WHERE NOT EXISTS (SELECT 1 FROM artifact WHERE artifact.digest = hold.digest) LIMIT 1"
)


class SQLArtifacts:
    """The artifacts of a database: records, contents, and which versions hold them."""

    def __init__(
        self, database: SQLDatabase, statements: ArtifactStatements, folder: ArtifactFolder | None
    ) -> None:
        self._database = database
        self._sql = statements
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
        if self._sql.lock_shared is not None:
            connection.change(self._sql.lock_shared)

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
            if connection.change(self._sql.insert, (upload.digest, upload.size, at)) == 1:
                any_new = True
            else:
                connection.change(self._sql.touch, (at, upload.digest))
            if self.folder is not None:
                # A collection may have removed it since it was placed.
                self.folder.put(upload)
            elif connection.row(self._sql.has_content, (upload.digest,)) is None:
                for index, piece in enumerate(checked(upload)):
                    connection.change(self._sql.insert_piece, (upload.digest, index, piece))
        return any_new

    def hold(self, connection: SQLConnection, key: int, number: int, holds: Iterable[bytes]) -> None:
        """Record which artifacts a version refers to."""
        connection.change_many(self._sql.insert_hold, [(digest, key, number) for digest in holds])

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
        row = self._database.read(lambda connection: connection.row(self._sql.find, (digest,)))
        return None if row is None else _record(row)

    def pieces(self, digest: bytes) -> Iterator[bytes]:
        """Return the content of an artifact in pieces, from where it was stored."""
        record = self.find(digest)
        if record is None:
            raise missing_artifact(digest)
        if record.size == 0 or self._database.read(
            lambda connection: connection.row(self._sql.has_content, (digest,))
        ):
            return verified(digest, self._iter_pieces(digest))
        if self.folder is None:
            raise missing_artifact(
                digest, " itself: open the store with artifacts=, the folder in which it was stored"
            )
        return self.folder.pieces(digest)

    def page(self, *, after: bytes = b"", limit: int = 1000) -> list[ArtifactRecord]:
        """Return artifacts in the order of their digests."""
        rows = self._database.read(lambda connection: connection.rows(self._sql.page, (after, limit)))
        records = [_record(row) for row in rows]
        if any(one >= other for one, other in pairwise([after, *(record.digest for record in records)])):
            raise CorruptStore("the list of artifacts is damaged: verify the store")
        return records

    def collect(self, *, before: int) -> tuple[int, int]:
        """Delete artifacts that no version holds and that were stored before a time; return their number and size."""

        def delete(connection: SQLConnection) -> list[ArtifactRecord]:
            self._lock_exclusively(connection)
            if connection.row(_DANGLING_HOLD) is not None:
                # An artifact that is held under a damaged digest would be deleted.
                raise CorruptStore("a version holds an artifact that does not exist: verify the store")
            gone = [_record(row) for row in connection.rows(self._sql.delete_unheld, (before,))]
            connection.change_many(self._sql.delete_pieces, [(record.digest,) for record in gone])
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
        if folder is not None:
            if gone:
                self._database.write(unlink)
            folder.sweep(before)
        return len(gone), sum(record.size for record in gone)

    def _lock_exclusively(self, connection: SQLConnection) -> None:
        # Before the statement that looks for holds, so that it sees what other transactions have just committed.
        if self._sql.lock_exclusive is not None:
            connection.change(self._sql.lock_exclusive)

    def _known(self, connection: SQLConnection, digests: Iterable[bytes]) -> set[bytes]:
        wanted = list(digests)
        if not wanted:
            return set()
        rows = connection.rows(self._sql.find_known, (self._sql.encode_digests(wanted),))
        return {row[0] for row in rows}

    def _iter_pieces(self, digest: bytes) -> Iterator[bytes]:
        def read(connection: SQLConnection) -> tuple[Any, ...] | None:
            return connection.row(self._sql.find_piece, (digest, index))

        index = 0
        while (row := self._database.read(read)) is not None:
            if not isinstance(row[0], bytes):
                raise CorruptStore(f"artifact {digest.hex()[:12]} is damaged: restore it from a bundle")
            yield row[0]
            index += 1


def _record(row: tuple[Any, ...]) -> ArtifactRecord:
    if type(row[0]) is not bytes or type(row[1]) is not int:
        raise CorruptStore("the record of an artifact is damaged: verify the store")
    return ArtifactRecord(digest=row[0], size=row[1], at=row[2])


class ValueStatements(NamedTuple):
    """The statements of a database for small values."""

    find: str
    insert: str
    update: str
    delete: str
    names: str
    #: Convert a prefix to the value by which `names` ends.
    encode_prefix: Callable[[str], Any]


class SQLValues:
    """Small values that belong to no run."""

    def __init__(self, database: SQLDatabase, statements: ValueStatements) -> None:
        self._database = database
        self._sql = statements

    def get(self, name: str) -> tuple[bytes, int] | None:
        """Return a value and its revision."""
        row = self._database.read(lambda connection: connection.row(self._sql.find, (name,)))
        if row is None:
            return None
        data, revision, guard = row
        if row_sum(name, data, revision) != guard:
            raise CorruptStore(f"the value {name!r} is damaged: verify the store")
        return data, revision

    def set(self, name: str, data: bytes, expect: int) -> int:
        """Create or replace a value whose revision is `expect`, 0 for none; return the new revision."""
        revision = expect + 1
        guard = row_sum(name, data, revision)
        if expect:
            self._change(name, self._sql.update, (data, revision, guard, name, expect))
        else:
            self._change(name, self._sql.insert, (name, data, revision, guard))
        return revision

    def drop(self, name: str, expect: int) -> None:
        """Delete a value whose revision is `expect`."""
        self._change(name, self._sql.delete, (name, expect))

    def names(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Return the names that start with a prefix and sort after a name."""
        values = (prefix, after, self._sql.encode_prefix(prefix), limit)
        return [
            row[0] for row in self._database.read(lambda connection: connection.rows(self._sql.names, values))
        ]

    def _change(self, name: str, statement: str, values: Sequence[Any]) -> None:
        def write(connection: SQLConnection) -> None:
            if connection.change(statement, values) != 1:
                raise stale_value(name)

        self._database.write(write)
