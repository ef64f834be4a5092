"""Atomic writes of files: a file has its old content or the complete new one.

Invariant: a writer that dies or fails leaves the previous content; after one that returns, the new content survives a
power failure. If only syncing the folder fails, the writer raises: a file that replaced another stays, a new one is
removed.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from holdfast import operating_system

#: The name of an incomplete file, also of those that dead writers left.
PART = ".holdfast-*.part"
#: The mode of a new file: only its owner can read it.
PRIVATE = 0o600
#: Errors of file systems that cannot sync folders.
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)
#: Errors of file systems without hard links, or without the permission to create one.
_CANNOT_LINK = (
    errno.EPERM, errno.EACCES, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK,
)  # fmt: skip


@contextmanager
def write_atomically(path: Path, *, overwrite: bool, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """Yield a file to write to, which then replaces the file at `path` and keeps its mode. A new file gets `mode`.

    Raise `FileExistsError` if the file exists and `overwrite` is False; each `OSError` contains `path`.
    """
    try:
        if os.path.lexists(path) and not overwrite:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if path.exists() and not path.is_file():
            # A device or a pipe is written directly; for a folder this raises the right error.
            with path.open("wb") as direct:
                yield direct
            return
        # Follow a link: replace its target.
        target = path.resolve() if path.is_symlink() else path
        part = target.with_name(PART.replace("*", os.urandom(8).hex()))
        try:
            with open_private(part) as file:
                if mode != PRIVATE:
                    part.chmod(mode)
                yield file
                file.flush()
                operating_system.sync(file.fileno())
            _put(part, target, overwrite)
        finally:
            operating_system.remove(part)
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error
    except ValueError as error:
        if _is_valid_name(path):
            raise
        raise OSError(errno.EINVAL, "not a valid file name", str(path)) from error


def put_in_place(part: Path, target: Path) -> None:
    """Rename a complete file, durably; raise `FileExistsError` if the target exists."""
    sync_file(part)
    _put(part, target, overwrite=False)


def open_private(path: Path) -> BinaryIO:
    """Open a new file that only its owner can read; raise `FileExistsError` if it exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    return open(os.open(path, flags, PRIVATE), "wb")


def sync_file(path: Path) -> None:
    """Sync the content of a file that another process has written."""
    descriptor = operating_system.open_to_sync(path)
    try:
        operating_system.sync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Sync the names in a folder, if the file system can."""
    if not operating_system.can_sync_folders():
        return
    try:
        sync_file(folder)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def _put(part: Path, target: Path, overwrite: bool) -> None:
    """Rename a file, durably. If that fails for a new name, the name is removed, so that a retry is possible."""
    if overwrite:
        if target.exists():
            part.chmod(stat.S_IMODE(target.stat().st_mode))
        operating_system.replace(part, target)
        sync_folder(target.parent)
        return
    try:
        os.link(part, target)
        is_linked = True
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        # Reserve the name first.
        target.touch(mode=PRIVATE, exist_ok=False)
        is_linked = False
    try:
        if not is_linked:
            operating_system.replace(part, target)
        sync_folder(target.parent)
    except BaseException:
        with suppress(OSError):
            target.unlink()
        raise


def _is_valid_name(path: Path) -> bool:
    try:
        return b"\0" not in os.fsencode(path)
    except ValueError:
        return False
