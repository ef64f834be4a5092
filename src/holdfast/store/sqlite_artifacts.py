"""Large values in a SQLite file, or in a folder beside it: what is known of each, its content, who holds it.

Contents that go into a folder are placed there before the transaction that needs them, so that writing a
large file keeps nobody waiting; those in the database are written within it.

Invariant: a version that holds an artifact was committed together with, or after, the artifact's content.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from holdfast.errors import CorruptStore, NotFound
from holdfast.model.records import ArtifactRecord
from holdfast.store.artifacts import ArtifactFolder, checked, verified
from holdfast.store.sqlite_connection import Connection
from holdfast.store.sqlite_link import Link, all_or_nothing
from holdfast.tree.pack import Upload

#: A holding of what is not there: one of the two is damaged.
_UNKNOWN = "SELECT 1 FROM hold WHERE digest NOT IN (SELECT digest FROM artifact) LIMIT 1"


class Artifacts:
    """The artifacts of one SQLite file."""

    def __init__(self, link: Link, folder: ArtifactFolder | None) -> None:
        self._link = link
        #: Where contents are kept; None if in the file.
        self.folder = folder

    # Before and within the transaction of a change

    def place(self, uploads: Iterable[Upload]) -> list[Upload]:
        """Bring contents into the folder, where there is one, before the transaction that needs them."""
        placed = []
        for upload in uploads:
            if self.folder is not None:
                self.folder.put(upload)
            placed.append(upload)
        return placed

    def require(self, connection: Connection, holds: Iterable[bytes], uploads: Iterable[Upload]) -> None:
        """Refuse what would leave a version without an artifact."""
        brought = {upload.digest for upload in uploads}
        for digest in holds:
            if digest not in brought and not _known(connection, digest):
                raise NotFound(
                    f"artifact {digest.hex()[:12]} is not in this store: "
                    "commit holdfast.artifact(…) of its content",
                    artifact=digest.hex(),
                )

    def keep(self, connection: Connection, uploads: Iterable[Upload], at: int) -> None:
        """Write down what was brought; `CorruptStore` if it is not what it claims to be."""
        for upload in uploads:
            row = (upload.digest, upload.size, at)
            if connection.change("INSERT OR IGNORE INTO artifact VALUES (?, ?, ?)", row) != 1:
                connection.execute("UPDATE artifact SET at=max(at, ?) WHERE digest=?", (at, upload.digest))
            if self.folder is not None:
                # A collection may have removed it between its placing and this transaction.
                self.folder.put(upload)
            elif not _inside(connection, upload.digest):
                for index, piece in enumerate(checked(upload)):
                    connection.execute(
                        "INSERT INTO artifact_piece (digest, n, data) VALUES (?, ?, ?)",
                        (upload.digest, index, piece),
                    )

    def hold(self, connection: Connection, key: int, number: int, holds: Sequence[bytes]) -> None:
        """Write down which artifacts a version refers to."""
        for digest in holds:
            connection.execute("INSERT OR IGNORE INTO hold VALUES (?, ?, ?)", (digest, key, number))

    # By themselves

    def put(self, upload: Upload, at: int) -> bool:
        """Keep one before any version holds it; tells whether it was new."""
        self.place((upload,))

        def write(connection: Connection) -> bool:
            new = not _known(connection, upload.digest)
            self.keep(connection, (upload,), at)
            return new

        return self._link.write(all_or_nothing(write))

    def find(self, digest: bytes) -> ArtifactRecord | None:
        """What is known of one."""
        with self._link.reader() as connection:
            row = connection.row("SELECT digest, size, at FROM artifact WHERE digest=?", (digest,))
        return None if row is None else _record(row)

    def pieces(self, digest: bytes) -> Iterator[bytes]:
        """The content of one, wherever it was put when it came."""
        record = self.find(digest)
        if record is None:
            raise NotFound(f"artifact {digest.hex()[:12]} is not in this store", artifact=digest.hex())
        with self._link.reader() as connection:
            inside = record.size == 0 or _inside(connection, digest)
        if inside:
            return verified(digest, self._rows(digest))
        if self.folder is None:
            raise NotFound(
                f"artifact {digest.hex()[:12]} is not in {self._link.path} itself: "
                "open the store with artifacts=, the folder that it was kept in",
                artifact=digest.hex(),
            )
        return self.folder.pieces(digest)

    def page(self, after: bytes, limit: int) -> list[ArtifactRecord]:
        """Those whose digests follow one, in order."""
        with self._link.reader() as connection:
            rows = connection.rows(
                "SELECT digest, size, at FROM artifact WHERE digest > ? ORDER BY digest LIMIT ?",
                (after, limit),
            )
        records = [_record(row) for row in rows]
        if any(one >= other for one, other in pairwise([after, *(record.digest for record in records)])):
            raise CorruptStore("the list of artifacts is damaged: verify the store")
        return records

    def collect(self, before: int) -> tuple[int, int]:
        """Remove those that nobody holds and that came before a time; gives number and bytes."""

        def write(connection: Connection) -> list[ArtifactRecord]:
            if connection.row(_UNKNOWN) is not None:
                # Whoever is held under a damaged name would be removed.
                raise CorruptStore("a version holds an artifact that is not there: verify the store")
            rows = connection.rows(
                "DELETE FROM artifact WHERE at < ? AND digest NOT IN (SELECT digest FROM hold) "
                "RETURNING digest, size, at",
                (before,),
            )
            gone = [_record(row) for row in rows]
            for record in gone:
                connection.execute("DELETE FROM artifact_piece WHERE digest=?", (record.digest,))
            return gone

        def unlink(connection: Connection) -> None:
            """Those that nobody has brought again meanwhile."""
            for record in gone:
                if folder is not None and not _known(connection, record.digest):
                    folder.remove(record.digest)

        folder = self.folder
        gone = self._link.write(all_or_nothing(write))
        if folder is not None and gone:
            # After the commit is durable: no version that a power failure brings back may lack its artifact.
            self._link.sync()
            self._link.write(unlink)
        if folder is not None:
            folder.sweep(before)
        return len(gone), sum(record.size for record in gone)

    def _rows(self, digest: bytes) -> Iterator[bytes]:
        index = 0
        while True:
            with self._link.reader() as connection:
                row = connection.row(
                    "SELECT data FROM artifact_piece WHERE digest=? AND n=?", (digest, index)
                )
            if row is None:
                return
            if not isinstance(row[0], bytes):
                raise CorruptStore(f"artifact {digest.hex()[:12]} is damaged: restore it from a bundle")
            yield row[0]
            index += 1


def _record(row: tuple[bytes, int, int]) -> ArtifactRecord:
    if type(row[0]) is not bytes or type(row[1]) is not int:
        raise CorruptStore("the record of an artifact is damaged: verify the store")
    return ArtifactRecord(digest=row[0], size=row[1], at=row[2])


def _known(connection: Connection, digest: bytes) -> bool:
    return connection.row("SELECT 1 FROM artifact WHERE digest=?", (digest,)) is not None


def _inside(connection: Connection, digest: bytes) -> bool:
    """Is its content in the database?"""
    found = connection.row("SELECT 1 FROM artifact_piece WHERE digest=? AND n=0", (digest,))
    return found is not None
