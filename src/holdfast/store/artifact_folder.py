"""Contents of artifacts in a folder, one file each, named by the hash.

Invariant: a file under its final name is complete: it was renamed after an fsync. `put` returns when the file and its
name survive a power failure, also if another process wrote it. Only the owner can access a new folder and its files; in
a folder that others may write to, they may also read and replace the files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO

from holdfast.atomic_file import PART, sync_file, sync_folder, write_atomically
from holdfast.errors import CorruptStore, NotFound, StoreUnavailable
from holdfast.operating_system import remove
from holdfast.tree.artifact import PIECE
from holdfast.tree.pack import Upload

#: A day, in microseconds: writing one content never takes so long.
_ABANDONED = 86_400 * 1_000_000
#: The number of synced files and folders to remember.
_SYNCED = 10_000


class ArtifactFolder:
    """A folder of artifacts, shared by any number of processes."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            #: Absolute, because the process may change its directory.
            self.folder = Path(folder).absolute()
            #: Paths that this process has synced, with the file that was there.
            self._synced: dict[Path, tuple[int, int, int]] = {}
            if not self.folder.is_dir():
                self._make_folder(self.folder)
        except OSError as error:
            raise StoreUnavailable(
                f"the artifact folder {folder} cannot be created: {error.strerror}"
            ) from error

    def put(self, upload: Upload) -> None:
        """Store a content, unless it exists; replace a file of the wrong size."""
        target = self._path(upload.digest)
        with self._translating("written to"):
            self._make_folder(target.parent)
            if not _has_size(target, upload.size):
                with write_atomically(target, overwrite=True, mode=self._mode() & 0o666) as file:
                    for piece in checked(upload):
                        file.write(piece)
                self._remember(target)
            elif not self._is_synced(target):
                # Another process wrote it, and may not have synced its name yet.
                sync_file(target)
                sync_folder(target.parent)
                self._remember(target)

    def pieces(self, digest: bytes) -> Iterator[bytes]:
        """Yield a content in pieces; `CorruptStore` before the last one if it does not match its hash."""
        with self._translating("read from"):
            try:
                file = self._path(digest).open("rb")
            except FileNotFoundError as error:
                raise NotFound(
                    f"artifact {digest.hex()[:12]} is not in {self.folder}", artifact=digest.hex()
                ) from error
        with file:
            yield from verified(digest, iter(lambda: self._read(file), b""))

    def remove(self, digest: bytes) -> None:
        """Delete a content, if it exists."""
        with self._translating("removed from"):
            remove(self._path(digest))

    def sweep(self, before: int) -> None:
        """Delete partial files of processes that ended, if they are older than a day at a time in microseconds."""
        with self._translating("removed from"):
            for part in self.folder.glob(f"??/{PART}"):
                with suppress(FileNotFoundError):
                    if part.stat().st_mtime * 1_000_000 < before - _ABANDONED:
                        part.unlink()

    def _make_folder(self, folder: Path) -> None:
        """Create a folder durably; an existing parent folder is assumed to be durable."""
        is_inside = folder.is_relative_to(self.folder)
        if self._is_synced(folder) or (not is_inside and folder.is_dir()):
            return
        self._make_folder(folder.parent)
        if not folder.is_dir():
            folder.mkdir(0o700, exist_ok=True)
            if is_inside and folder != self.folder and self._mode() != 0o700:
                folder.chmod(self._mode() | (stat.S_IMODE(folder.stat().st_mode) & stat.S_ISGID))
        sync_folder(folder.parent)
        self._remember(folder)

    def _mode(self) -> int:
        """Return the mode of new folders: access for the owner, and for others who may write to the folder."""
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
        with self._translating("read from"):
            return file.read(PIECE)

    @contextmanager
    def _translating(self, action: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StoreUnavailable(
                f"an artifact cannot be {action} {self.folder}: {error.strerror}"
            ) from error

    def _path(self, digest: bytes) -> Path:
        name = digest.hex()
        return self.folder / name[:2] / name[2:]


def _identity(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    # An inode number may be reused after the file is removed.
    return found.st_dev, found.st_ino, 0 if stat.S_ISDIR(found.st_mode) else found.st_mtime_ns


def _has_size(path: Path, size: int) -> bool:
    try:
        found = path.stat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_size == size


def checked(upload: Upload) -> Iterator[bytes]:
    """Yield the pieces of an upload; `CorruptStore` at the end if its source has changed since it was hashed."""
    hashed = sha256()
    for piece in upload.pieces():
        hashed.update(piece)
        yield piece
    if hashed.digest() != upload.digest:
        raise CorruptStore(
            f"the source of artifact {upload.digest.hex()[:12]} changed while it was being stored: "
            "create the artifact again"
        )


def verified(digest: bytes, pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Yield stored pieces, one behind, so that the last one is yielded only if all of them match the hash."""
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
