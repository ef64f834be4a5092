"""The two files next to an open SQLite store: the WAL (`-wal`), and the index by which processes share it (`-shm`).

SQLite removes both when the last connection of all processes closes, and never before. If another program removes or
replaces one earlier, the processes that have the store open no longer see the same files as processes that open it
later, and commits that SQLite has acknowledged are lost.

Invariant: `find_loss` reports nothing while only SQLite touches the files.
"""

from __future__ import annotations

import os
from typing import NamedTuple, TypeAlias

from holdfast.errors import StoreUnavailable
from holdfast.store.sqlite.connection import SQLiteConnection

#: Device and inode.
FileId: TypeAlias = tuple[int, int]


class WALFiles(NamedTuple):
    """The two files that a connection has opened."""

    wal_path: str
    shm_path: str
    #: None if the connection works without it, or only reads the store.
    wal: FileId | None
    shm: FileId | None


def file_id(path: str) -> FileId | None:
    """Return which file is at a path; None if there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be examined ({error.strerror}): check its folder and your permissions"
        ) from error
    return found.st_dev, found.st_ino


def opened_files(connection: SQLiteConnection) -> WALFiles:
    """Return the files of a connection that has read its store. They stay the same until the last connection closes."""
    # The names that SQLite uses: behind a symbolic link they are next to the real file.
    wal, shm = connection.filename_wal, f"{connection.filename}-shm"
    if connection.readonly("main"):
        return WALFiles(wal, shm, None, None)
    return WALFiles(wal, shm, file_id(wal), file_id(shm))


def find_loss(files: WALFiles) -> str | None:
    """Return which of the files is no longer the one that was opened; None if both are."""
    if files.wal is not None and file_id(files.wal_path) != files.wal:
        if _is_empty(files.wal_path):
            return (
                f"the log {files.wal_path} was removed while this store was open, so the store closed itself. If no "
                "other process has it open, that wrote the log into the file, and no commit is lost; otherwise the "
                "last process that closes it does so. End the others, then open the store again"
            )
        return (
            f"the log {files.wal_path} was replaced while this store was open, so the store closed itself: the last "
            "commits of this process may be lost. Open the store again, and continue each run from its head"
        )
    if files.shm is not None and file_id(files.shm_path) != files.shm:
        return (
            f"{files.shm_path} was removed or replaced while this store was open, so the store closed itself before "
            "other processes overwrite its commits, or it theirs. End them, then open the store again"
        )
    return None


def may_checkpoint(files: WALFiles) -> bool:
    """Return whether the last connection may write the WAL into the file when it closes: not if another process may
    have written commits that this one does not see, to another WAL or to the same one through another index."""
    if files.wal is None:
        return True
    try:
        if file_id(files.wal_path) != files.wal:
            return _is_empty(files.wal_path)
        return files.shm is None or file_id(files.shm_path) == files.shm
    except StoreUnavailable:
        return False


def _is_empty(path: str) -> bool:
    """Return whether there is no file, or an empty one, as a process creates it that tries to open the store."""
    try:
        return os.stat(path).st_size == 0
    except OSError:
        return True
