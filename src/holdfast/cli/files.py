"""Files that a command writes beside the store.

Invariant: a file appears under its name when it is complete, or stays as it was.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import AlreadyExists


@contextmanager
def whole(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """A file to write to, which then takes the place of what is at `path`, and its rights.

    `AlreadyExists` if there is something and it may not be overwritten; `OSError` names `path`.
    """
    if os.path.lexists(path) and not overwrite:
        raise taken(path)
    try:
        if path.exists() and not path.is_file():
            # A device or a pipe has no other place to be written in; of a folder this tells what is wrong.
            with path.open("wb") as straight:
                yield straight
            return
        # What a link points to is meant, not the link.
        target = path.resolve() if path.is_symlink() else path
        # In a folder of its own, so that it has the rights of any new file and no name that is taken.
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".holdfast-") as beside:
            part = Path(beside) / "part"
            with part.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _put(part, target, overwrite)
    except FileExistsError:
        raise taken(path) from None
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error


def taken(path: Path) -> AlreadyExists:
    """What is told of a file that is there."""
    return AlreadyExists(f"{path} is there: say --force to overwrite it, or name another", file=str(path))


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
        shutil.copymode(target, part)
    os.replace(part, target)
