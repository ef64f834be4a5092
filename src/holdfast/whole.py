"""Files that appear under their names when they are complete, or stay as they were.

Invariant: a writer that dies or fails leaves the previous content; one that returns has left the new content, also
after a power failure. If only the folder cannot be synced, that is an error, too: a file that replaced another stays, a
new one is removed.
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

#: What is not complete yet is called so, and what those have left who died.
PART = ".holdfast-*.part"
#: The rights of a new file: only its owner reads it. To share it, change them.
PRIVATE = 0o600
#: File systems that do not sync folders say so by one of these.
_CANNOT_SYNC = (errno.EINVAL, errno.ENOTSUP)
#: … and those without links, or without the right to make one.
_CANNOT_LINK = (
    errno.EPERM,
    errno.EACCES,
    errno.EINVAL,
    errno.ENOTSUP,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EMLINK,
)


@contextmanager
def whole(path: Path, *, overwrite: bool, mode: int = PRIVATE) -> Iterator[BinaryIO]:
    """A file to write to, which then takes the place of what is at `path`, and its rights. A new one has the rights
    `mode`: its owner alone may read it, unless that says otherwise.

    `FileExistsError` if there is something and it may not be overwritten; each `OSError` names `path`.
    """
    try:
        if os.path.lexists(path) and not overwrite:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        if path.exists() and not path.is_file():
            # A device or a pipe has no other place to be written in; of a folder this tells what is wrong.
            with path.open("wb") as straight:
                yield straight
            return
        # What a link points to is meant, not the link.
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
        if _can_be(path):
            raise
        raise OSError(errno.EINVAL, "no file can have that name", str(path)) from error


def put_in_place(part: Path, target: Path) -> None:
    """Give a complete file its name, durably; `FileExistsError` if something has it."""
    sync_file(part)
    _put(part, target, overwrite=False)


def open_private(path: Path) -> BinaryIO:
    """Open a new file to write to, for its owner alone; `FileExistsError` if there is something."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOFOLLOW", 0)
    return open(os.open(path, flags, PRIVATE), "wb")


def sync_file(path: Path) -> None:
    """Make the content of a file that another process has written survive a power failure."""
    descriptor = operating_system.open_to_sync(path)
    try:
        operating_system.sync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power failure, where the file system can do that."""
    if not operating_system.can_sync_folders():
        return
    try:
        sync_file(folder)
    except OSError as error:
        if error.errno not in _CANNOT_SYNC:
            raise


def _put(part: Path, target: Path, overwrite: bool) -> None:
    """Give a file its name, durably. A new name that this fails for is taken back, so that it can be tried again."""
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
        # Take the name first.
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


def _can_be(path: Path) -> bool:
    """Can there be a file of that name? The text may hold what no file system takes."""
    try:
        return b"\0" not in os.fsencode(path)
    except ValueError:
        return False
