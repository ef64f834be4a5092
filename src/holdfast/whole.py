"""Files that appear under their names when they are complete, or stay as they were.

Invariant: whoever dies, or fails, while writing leaves what was there before; who returns has left the new content,
also after a power failure.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

#: What is not complete yet is called so, and what those have left who died.
PART = ".holdfast-*.part"


@contextmanager
def whole(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """A file to write to, which then takes the place of what is at `path`, and its rights.

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
        # Made as any new file is, so that it has the rights of one.
        part = target.with_name(PART.replace("*", os.urandom(8).hex()))
        try:
            with part.open("xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _put(part, target, overwrite)
        finally:
            part.unlink(missing_ok=True)
        sync_folder(target.parent)
    except OSError as error:
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error
    except ValueError as error:
        if _can_be(path):
            raise
        raise OSError(errno.EINVAL, "no file can have that name", str(path)) from error


def sync_folder(folder: Path) -> None:
    """Have the names in a folder survive a power failure, where the file system knows how."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _put(part: Path, target: Path, overwrite: bool) -> None:
    if not overwrite:
        try:
            os.link(part, target)
        except FileExistsError:
            raise
        except OSError:
            # A file system without links: take the name first.
            target.touch(exist_ok=False)
        else:
            return
    elif target.exists():
        part.chmod(stat.S_IMODE(target.stat().st_mode))
    os.replace(part, target)


def _can_be(path: Path) -> bool:
    """Can there be a file of that name? The text may hold what no file system takes."""
    try:
        return b"\0" not in os.fsencode(path)
    except ValueError:
        return False
