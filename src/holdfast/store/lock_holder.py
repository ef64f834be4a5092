"""Which process holds the write lock of a SQLite file, where the system can say so.

Linux lists the locks of files in `/proc/locks`; elsewhere the holder is not known.

Invariant: this never raises, and never opens the file: closing it would release the locks of this process.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from holdfast.operating_system import is_stopped

#: The byte of the file `-shm` that a writer locks.
_WRITE_BYTE = 120


class Holder(NamedTuple):
    """A process that holds the lock."""

    pid: int
    #: Was it stopped, by Ctrl-Z or a debugger? Then it keeps the lock until it continues or ends.
    is_stopped: bool


def find_holder(path: str) -> Holder | None:
    """Return the process that holds the write lock of a SQLite file; None if there is none, or it is not known."""
    try:
        inode = os.stat(f"{path}-shm").st_ino
        lines = Path("/proc/locks").read_text().splitlines()
    except (OSError, ValueError):
        return None
    pids = {pid for line in lines if (pid := _writer(line.split(), inode)) is not None}
    if len(pids) != 1:
        # None, or files of the same number on several devices.
        return None
    (pid,) = pids
    return Holder(pid, is_stopped(pid))


def _writer(fields: list[str], inode: int) -> int | None:
    """The process of a line such as `1: POSIX ADVISORY WRITE 7441 fe:00:2171898 120 120`."""
    try:
        _, kind, _, mode, pid, file, first, last = fields
        if (kind, mode) != ("POSIX", "WRITE") or int(file.rpartition(":")[2]) != inode:
            return None
        covers = int(first) <= _WRITE_BYTE and (last == "EOF" or int(last) >= _WRITE_BYTE)
        return int(pid) if covers and int(pid) > 0 else None
    except ValueError:
        # Another form, or a process that waits for a lock ("1: -> POSIX …").
        return None
