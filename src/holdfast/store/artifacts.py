"""Contents of artifacts in a folder, one file each, named by the hash.

Invariant: a file under its final name is complete; it got there by a rename after an fsync.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from holdfast.errors import CorruptStore, NotFound, StoreUnavailable
from holdfast.tree.artifact import PIECE
from holdfast.tree.pack import Upload


class ArtifactFolder:
    """A folder of artifacts, shared by any number of processes."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreUnavailable(
                f"the artifact folder {folder} cannot be made: {error.strerror}"
            ) from error

    def put(self, upload: Upload) -> None:
        """Keep a content; harmless if it is there."""
        target = self._path(upload.digest)
        if target.exists():
            return
        try:
            target.parent.mkdir(exist_ok=True)
            descriptor, name = tempfile.mkstemp(dir=target.parent, suffix=".part")
            try:
                with os.fdopen(descriptor, "wb") as file:
                    for piece in checked(upload):
                        file.write(piece)
                    file.flush()
                    os.fsync(file.fileno())
                Path(name).replace(target)
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            _sync_folder(target.parent)
        except OSError as error:
            raise StoreUnavailable(
                f"an artifact cannot be written to {self.folder}: {error.strerror}"
            ) from error

    def pieces(self, digest: bytes) -> Iterator[bytes]:
        """A content in pieces; `CorruptStore` at its end if it does not fit its hash."""
        try:
            with self._path(digest).open("rb") as file:
                yield from verified(digest, iter(lambda: file.read(PIECE), b""))
        except FileNotFoundError as error:
            raise NotFound(
                f"artifact {digest.hex()[:12]} is not in {self.folder}", artifact=digest.hex()
            ) from error

    def remove(self, digest: bytes) -> None:
        """Forget a content; harmless if it is gone."""
        self._path(digest).unlink(missing_ok=True)

    def _path(self, digest: bytes) -> Path:
        name = digest.hex()
        return self.folder / name[:2] / name[2:]


def checked(upload: Upload) -> Iterator[bytes]:
    """The pieces of an upload; `CorruptStore` at the end if its source has changed since it was hashed."""
    hashed = sha256()
    for piece in upload.pieces():
        hashed.update(piece)
        yield piece
    if hashed.digest() != upload.digest:
        raise CorruptStore(
            f"the source of artifact {upload.digest.hex()[:12]} changed while it was being stored: "
            "make the artifact anew"
        )


def verified(digest: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Stored pieces, held back by one, so that the last is not handed out before all of them fit the hash."""
    hashed = sha256()
    held: bytes | None = None
    for piece in pieces:
        hashed.update(piece)
        if held is not None:
            yield held
        held = piece
    if hashed.digest() != digest:
        raise CorruptStore(
            f"artifact {digest.hex()[:12]} is damaged: restore it from a bundle", artifact=digest.hex()
        )
    if held is not None:
        yield held


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
