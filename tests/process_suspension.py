"""Suspend worker processes (SIGSTOP) without blocking the store."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import apsw

from database import Database
from patience import until


def suspend_process(pid: int, where: str) -> None:
    """Suspend a process, but not inside a transaction of a SQLite store, where it would block all other writers.
    `where` is the path of the store, or the address of a server."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        until(lambda: _state(pid) == "T", f"process {pid} to stop")
        if "://" in where or _is_free(where):
            return
        os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _is_free(where: str) -> bool:
    """Return whether others can write. Processes that are not suspended hold the lock only briefly."""
    with Database(where, timeout=2.0) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except apsw.BusyError:
            return False
        connection.execute("ROLLBACK")
        return True
