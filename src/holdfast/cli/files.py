"""Files that a command writes beside the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from holdfast.errors import AlreadyExists
from holdfast.whole import whole as written


@contextmanager
def whole(path: Path, *, overwrite: bool) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of what is at `path` when it is complete; `AlreadyExists` if there is
    something and it may not be overwritten."""
    try:
        with written(path, overwrite=overwrite) as file:
            yield file
    except FileExistsError:
        raise taken(path) from None


def taken(path: Path) -> AlreadyExists:
    """What is told of a file that is there."""
    return AlreadyExists(f"{path} is there: say --force to overwrite it, or name another", file=str(path))
