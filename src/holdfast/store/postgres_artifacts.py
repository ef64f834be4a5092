"""Large values in PostgreSQL, or in a folder that all processes see: what is known of each, its content, who holds it.

Invariant: a version that holds an artifact was committed together with, or after, the artifact's content; whoever
collects waits for those who are about to refer to one.
"""

# ruff: noqa: S608 - statements are made of constants only
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from holdfast.errors import NotFound
from holdfast.model.records import ArtifactRecord
from holdfast.store.artifacts import ArtifactFolder, checked, verified
from holdfast.store.postgres_link import LONG, Connection, Link
from holdfast.store.postgres_locks import ARTIFACTS, lock_number
from holdfast.tree.pack import Upload

_INSERT = (
    "INSERT INTO artifact VALUES (%s, %s, %s) ON CONFLICT (digest) DO UPDATE "
    "SET at = greatest(artifact.at, excluded.at) RETURNING xmax = 0"
)
_FREE = "artifact WHERE at < %s AND NOT EXISTS (SELECT FROM hold WHERE hold.digest = artifact.digest)"


class Artifacts:
    """The artifacts of one store."""

    def __init__(self, link: Link, folder: ArtifactFolder | None) -> None:
        self._link = link
        self._folder = folder
        self._lock = lock_number(link.address.schema, ARTIFACTS)

    # Before and within the transaction of a change

    def place(self, uploads: Iterable[Upload]) -> Iterator[Upload]:
        """Bring contents into the folder, where there is one, as they come."""
        for upload in uploads:
            if self._folder is not None:
                self._folder.put(upload)
            yield upload

    def share(self, connection: Connection) -> None:
        """Let nobody collect until the end of this transaction."""
        connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", (self._lock,))

    def require(self, connection: Connection, holds: Iterable[bytes], brought: Iterable[bytes]) -> None:
        """Refuse what would leave a version without an artifact."""
        wanted = set(holds).difference(brought)
        if not wanted:
            return
        found = connection.execute("SELECT digest FROM artifact WHERE digest = ANY(%b)", (list(wanted),))
        for digest in wanted.difference(row[0] for row in found):
            raise NotFound(
                f"artifact {digest.hex()[:12]} is not in this store: commit holdfast.artifact(…) of its content",
                artifact=digest.hex(),
            )

    def keep(self, connection: Connection, uploads: Iterable[Upload], at: int) -> bool:
        """Write down what was brought; tells whether any was new. `CorruptStore` if it is not what it claims to be."""
        new = False
        for upload in uploads:
            row = connection.execute(_INSERT, (upload.digest, upload.size, at)).fetchone()
            new |= row is not None and row[0]
            if self._folder is not None:
                # A collection may have removed it between its placing and this transaction.
                self._folder.put(upload)
            elif not _inside(connection, upload.digest):
                for index, piece in enumerate(checked(upload)):
                    connection.execute(
                        "INSERT INTO artifact_piece VALUES (%s, %s, %s)", (upload.digest, index, piece)
                    )
        return new

    def hold(self, connection: Connection, key: int, number: int, holds: Sequence[bytes]) -> None:
        """Write down which artifacts a version refers to."""
        if holds:
            connection.execute(
                "INSERT INTO hold SELECT unnest(%b::bytea[]), %s, %s ON CONFLICT DO NOTHING",
                (list(holds), key, number),
            )

    # By themselves

    def put(self, upload: Upload, at: int) -> bool:
        """Keep one before any version holds it; tells whether it was new."""

        def write(connection: Connection) -> bool:
            self.share(connection)
            return self.keep(connection, (upload,), at)

        for _ in self.place((upload,)):
            pass
        return self._link.transact(write)

    def find(self, digest: bytes) -> ArtifactRecord | None:
        """What is known of one."""
        rows = self._link.rows("SELECT digest, size, at FROM artifact WHERE digest = %s", (digest,))
        return ArtifactRecord(digest=rows[0][0], size=rows[0][1], at=rows[0][2]) if rows else None

    def pieces(self, digest: bytes) -> Iterator[bytes]:
        """The content of one, wherever it was put when it came."""
        record = self.find(digest)
        if record is None:
            raise NotFound(f"artifact {digest.hex()[:12]} is not in this store", artifact=digest.hex())
        if record.size == 0 or self._link.read(lambda connection: _inside(connection, digest)):
            return verified(digest, self._rows(digest))
        if self._folder is None:
            raise NotFound(
                f"artifact {digest.hex()[:12]} is not in the database itself: open the store with artifacts=, the "
                "folder that it was kept in",
                artifact=digest.hex(),
            )
        return self._folder.pieces(digest)

    def page(self, after: bytes, limit: int) -> list[ArtifactRecord]:
        """Those whose digests follow one, in order."""
        rows = self._link.rows(
            "SELECT digest, size, at FROM artifact WHERE digest > %s ORDER BY digest LIMIT %s", (after, limit)
        )
        return [ArtifactRecord(digest=row[0], size=row[1], at=row[2]) for row in rows]

    def collect(self, before: int) -> tuple[int, int]:
        """Remove those that nobody holds and that came before a time; gives number and bytes."""

        def write(connection: Connection) -> list[tuple[bytes, int]]:
            if self._folder is not None:
                # Files are removed after this: no version that a crash brings back may lack its artifact.
                connection.execute("SET LOCAL synchronous_commit = on")
            # Before the statement that looks, so that it sees what others have just committed.
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (self._lock,))
            rows = connection.execute(f"DELETE FROM {_FREE} RETURNING digest, size", (before,)).fetchall()
            connection.execute(
                "DELETE FROM artifact_piece WHERE digest = ANY(%b)", ([digest for digest, _ in rows],)
            )
            return [(digest, size) for digest, size in rows]

        def unlink(connection: Connection) -> None:
            """Those that nobody has brought again meanwhile."""
            connection.execute("SELECT pg_advisory_xact_lock(%s)", (self._lock,))
            for digest, _ in gone:
                known = connection.execute("SELECT FROM artifact WHERE digest = %s", (digest,)).fetchone()
                if folder is not None and known is None:
                    folder.remove(digest)

        folder = self._folder
        gone = self._link.transact(write, limit=LONG)
        if folder is not None and gone:
            # After the commit: who dies before it must not have lost a file that is still written down.
            self._link.transact(unlink)
        if folder is not None:
            folder.sweep(before)
        return len(gone), sum(size for _, size in gone)

    def _rows(self, digest: bytes) -> Iterator[bytes]:
        index = 0
        while rows := self._link.rows(
            "SELECT data FROM artifact_piece WHERE digest = %s AND n = %s", (digest, index)
        ):
            yield rows[0][0]
            index += 1


def _inside(connection: Connection, digest: bytes) -> bool:
    """Is its content in the database?"""
    found = connection.execute("SELECT FROM artifact_piece WHERE digest = %s AND n = 0", (digest,))
    return found.fetchone() is not None
