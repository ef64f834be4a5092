"""Contents of artifacts in a folder, one file each, named by the hash.

Invariant: a file under its final name is complete; it got there by a rename after an fsync. `put` returns when the file
and its name survive a power failure, whichever process has put it there. A new folder is its owner's alone, and so are
the files in it; a folder that others may write to is shared with them: they may read and replace its files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import CorruptStore, NotFound, StoreUnavailable
from holdfast.operating_system import remove
from holdfast.tree.artifact import PIECE
from holdfast.tree.pack import Upload
from holdfast.whole import PART, sync_file, sync_folder, whole

#: A day, in microseconds: nobody writes a single content for so long.
_LONG = 86_400 * 1_000_000
#: Files and folders that are remembered to have been synced.
_SYNCED = 10_000


class ArtifactFolder:
    """A folder of artifacts, shared by any number of processes."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            #: The same wherever the process goes.
            self.folder = Path(folder).absolute()
            #: What this process has synced: a path, with the file that was there.
            self._synced: dict[Path, tuple[int, int, int]] = {}
            if not self.folder.is_dir():
                self._make(self.folder)
        except OSError as error:
            raise StoreUnavailable(
                f"the artifact folder {folder} cannot be made: {error.strerror}"
            ) from error

    def put(self, upload: Upload) -> None:
        """Keep a content; harmless if it is there. One that was cut off, or has grown, is put right."""
        target = self._path(upload.digest)
        with self._told("written to"):
            self._make(target.parent)
            if not _has_size(target, upload.size):
                with whole(target, overwrite=True, mode=self._rights() & 0o666) as file:
                    for piece in checked(upload):
                        file.write(piece)
                self._remember(target)
            elif not self._is_synced(target):
                # Another process has put it there, and may not have come to the sync of its name.
                sync_file(target)
                sync_folder(target.parent)
                self._remember(target)

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
            remove(self._path(digest))

    def sweep(self, before: int) -> None:
        """Remove what those who died have left half written, if that was long before a time in microseconds."""
        with self._told("removed from"):
            for part in self.folder.glob(f"??/{PART}"):
                with suppress(FileNotFoundError):
                    if part.stat().st_mtime * 1_000_000 < before - _LONG:
                        part.unlink()

    def _make(self, folder: Path) -> None:
        """Make a folder so that it survives a power failure; one above ours that exists is taken to do so."""
        is_ours = folder.is_relative_to(self.folder)
        if self._is_synced(folder) or (not is_ours and folder.is_dir()):
            return
        self._make(folder.parent)
        if not folder.is_dir():
            folder.mkdir(0o700, exist_ok=True)
            if is_ours and folder != self.folder and self._rights() != 0o700:
                folder.chmod(self._rights() | (stat.S_IMODE(folder.stat().st_mode) & stat.S_ISGID))
        sync_folder(folder.parent)
        self._remember(folder)

    def _rights(self) -> int:
        """Return the rights of what is made in the folder: the owner's, and those of others who may write to it."""
        found = stat.S_IMODE(self.folder.stat().st_mode)
        return 0o700 | (0o070 if found & 0o020 else 0) | (0o007 if found & 0o002 else 0)

    def _is_synced(self, path: Path) -> bool:
        known = self._synced.get(path)
        return known is not None and known == _identity(path)

    def _remember(self, path: Path) -> None:
        if len(self._synced) >= _SYNCED:
            self._synced.clear()
        identity = _identity(path)
        if identity is not None:
            self._synced[path] = identity

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


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    # The number of a file may be used again after its removal.
    return found.st_dev, found.st_ino, 0 if stat.S_ISDIR(found.st_mode) else found.st_mtime_ns


def _has_size(path: Path, size: int) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size


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
