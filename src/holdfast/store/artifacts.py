"""Contents of artifacts in a folder, one file each, named by the hash.

Invariant: a file under its final name is complete; it got there by a rename after an fsync. Its rights are those of any
new file: whoever may use the folder can read what others have put there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import CorruptStore, NotFound, StoreUnavailable
from holdfast.tree.artifact import PIECE
from holdfast.tree.pack import Upload
from holdfast.whole import PART, sync_folder, whole

#: A day, in microseconds: nobody writes a single content for so long.
_LONG = 86_400 * 1_000_000


class ArtifactFolder:
    """A folder of artifacts, shared by any number of processes."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            #: The same wherever the process goes.
            self.folder = Path(folder).absolute()
            _make(self.folder)
        except OSError as error:
            raise StoreUnavailable(
                f"the artifact folder {folder} cannot be made: {error.strerror}"
            ) from error

    def put(self, upload: Upload) -> None:
        """Keep a content; harmless if it is there. One that was cut off, or has grown, is put right."""
        target = self._path(upload.digest)
        with self._told("written to"):
            if target.is_file() and target.stat().st_size == upload.size:
                return
            _make(target.parent)
            with whole(target, overwrite=True) as file:
                for piece in checked(upload):
                    file.write(piece)

    def pieces(self, digest: bytes) -> Iterator[bytes]:
        """A content in pieces; `CorruptStore` at its end if it does not fit its hash."""
        with self._told("read from"):
            try:
                file = self._path(digest).open("rb")
            except FileNotFoundError as error:
                raise NotFound(
                    f"artifact {digest.hex()[:12]} is not in {self.folder}", artifact=digest.hex()
                ) from error
        with file:
            yield from verified(digest, iter(lambda: self._read(file), b""))

    def remove(self, digest: bytes) -> None:
        """Forget a content; harmless if it is gone."""
        with self._told("removed from"):
            self._path(digest).unlink(missing_ok=True)

    def sweep(self, before: int) -> None:
        """Remove what those who died have left half written, if that was long before a time in microseconds."""
        with self._told("removed from"):
            for part in self.folder.glob(f"??/{PART}"):
                with suppress(FileNotFoundError):
                    if part.stat().st_mtime * 1_000_000 < before - _LONG:
                        part.unlink()

    def _read(self, file: BinaryIO) -> bytes:
        with self._told("read from"):
            return file.read(PIECE)

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(f"an artifact cannot be {what} {self.folder}: {error.strerror}") from error

    def _path(self, digest: bytes) -> Path:
        name = digest.hex()
        return self.folder / name[:2] / name[2:]


def _make(folder: Path) -> None:
    """Make a folder, and those above it, so that they survive a power failure; harmless if it is there."""
    if folder.is_dir():
        return
    _make(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


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
