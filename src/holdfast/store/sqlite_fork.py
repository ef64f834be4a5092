"""Forks of a process that has SQLite files open.

SQLite notes in memory which locks its process holds. A child inherits the notes but not the locks: it believes
to hold what it does not, and when the parent closes the file, commits of the child vanish with the log that
they stand in. So no connection may be open at the moment of a fork.

Invariant: around `os.fork`, whatever was watched has closed its connections; both sides open their own again.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """What can let go of its connections for the length of a fork."""

    def suspend(self) -> None:
        """Let go of all, and wait."""

    def resume(self) -> None:
        """Go on, in the parent."""

    def start_anew(self) -> None:
        """Go on, in the child."""


_watched: WeakSet[Forkable] = WeakSet()
_suspended: list[Forkable] = []
_forking = threading.Lock()


def before_forks(one: Forkable) -> None:
    """Have connections closed before every fork from now on."""
    _watched.add(one)


def _before() -> None:
    _forking.acquire()
    for one in list(_watched):
        one.suspend()
        _suspended.append(one)


def _in_parent() -> None:
    try:
        _resume_all()
    except BaseException:
        # Interrupted: Python reports what a hook raises, and ignores it.
        _resume_all()
        raise


def _resume_all() -> None:
    while _suspended:
        _suspended[-1].resume()
        _suspended.pop()
    if _forking.locked():
        _forking.release()


def _in_child() -> None:
    _suspended.clear()
    for one in list(_watched):
        one.start_anew()
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
