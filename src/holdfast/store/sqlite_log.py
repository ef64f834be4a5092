"""The two files next to an open SQLite store: the log (`-wal`), and the index by which processes share it (`-shm`).

SQLite removes both when the last connection of all processes closes, and never before. If another program removes or
replaces one earlier, the processes that have the store open no longer see the same files as those that open it later,
and commits that SQLite acknowledges are lost.

Invariant: `find_loss` reports nothing while no program but SQLite touches the files.
"""

from __future__ import annotations

import os
from typing import NamedTuple

from holdfast.errors import StoreUnavailable
from holdfast.store.sqlite_connection import Connection

Identity = tuple[int, int]


class Log(NamedTuple):
    """The two files that a connection has opened."""

    wal_path: str
    shm_path: str
    #: None: the connection works without it, or only reads the store.
    wal: Identity | None
    shm: Identity | None


def identity(path: str) -> Identity | None:
    """Return which file is at a path; None if there is none."""
    try:
        found = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreUnavailable(
            f"{path} cannot be examined ({error.strerror}): check its folder and your rights to it"
        ) from error
    return found.st_dev, found.st_ino


def opened_log(connection: Connection) -> Log:
    """Return the files of a connection that has read its store. They stay the same until the last connection closes."""
    # The names as SQLite has them: behind a symbolic link they are next to the real file.
    wal, shm = connection.filename_wal, f"{connection.filename}-shm"
    if connection.readonly("main"):
        return Log(wal, shm, None, None)
    return Log(wal, shm, identity(wal), identity(shm))


def find_loss(log: Log) -> str | None:
    """Say which of the files is not the one that was opened; None if both are."""
    if log.wal is not None and identity(log.wal_path) != log.wal:
        if _is_empty(log.wal_path):
            return (
                f"the log {log.wal_path} was removed while this store was open, so the store closed itself. If no "
                "other process has it open, that wrote the log into the file, and no commit is lost; otherwise the "
                "last process that closes it does so. End the others, then open the store again"
            )
        return (
            f"the log {log.wal_path} was replaced while this store was open, so the store closed itself: the last "
            "commits of this process may be lost. Open the store again, and continue each run from its head"
        )
    if log.shm is not None and identity(log.shm_path) != log.shm:
        return (
            f"{log.shm_path} was removed or replaced while this store was open, so the store closed itself before "
            "other processes write over its commits, or it over theirs. End them, then open the store again"
        )
    return None


def may_write_back(log: Log) -> bool:
    """May the last connection write the log into the file when it closes? Not if another process may have written
    commits that this one does not see: to another log, or to the same one through another index."""
    if log.wal is None:
        return True
    try:
        if identity(log.wal_path) != log.wal:
            return _is_empty(log.wal_path)
        return log.shm is None or identity(log.shm_path) == log.shm
    except StoreUnavailable:
        return False


def _is_empty(path: str) -> bool:
    """Is there no file, or an empty one, as a process makes it that tries to open the store?"""
    try:
        return os.stat(path).st_size == 0
    except OSError:
        return True
