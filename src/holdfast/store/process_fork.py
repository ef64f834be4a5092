"""Objects that belong to one process: they refuse to be pickled, and are reset when the process forks.

SQLite records in memory which locks its process holds. A child inherits the records but not the locks: it believes that
it holds locks that it does not, and when the parent closes the file, commits of the child vanish with the WAL. So no
connection may be open at the moment of a fork.

Invariant: during `os.fork`, registered objects have closed their connections; both sides open their own again. Every
object that refers to an open store refuses to be pickled with the same error, which says what to pass instead.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol
from weakref import WeakSet

from holdfast.errors import InvalidCall


class ProcessBound:
    """Base class of objects that cannot be pickled or copied."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise InvalidCall(
            "histories, versions, differences, subscriptions and artifacts cannot be pickled or copied, because they "
            "belong to an open store: pass the ids of runs, the numbers of versions, the digests of artifacts, or "
            "plain values, and call holdfast.open in the other process"
        )


class _Artifacts(Protocol):
    def artifact_pieces(self, digest: bytes) -> Iterator[bytes]: ...


class StoredContent(ProcessBound):
    """Reads the content of a stored artifact."""

    __slots__ = ("_digest", "_store")

    def __init__(self, store: _Artifacts, digest: bytes) -> None:
        self._store = store
        self._digest = digest

    def __call__(self) -> Iterator[bytes]:
        return self._store.artifact_pieces(self._digest)

    def __deepcopy__(self, memo: Any) -> StoredContent:
        """Return itself: a copy reads the same content."""
        return self


class Resettable(Protocol):
    """An object that starts again without connections and threads in the child of a fork."""

    def reset_after_fork(self) -> None:
        """Start again, in the child."""


class Forkable(Resettable, Protocol):
    """An object that closes its connections for the duration of a fork."""

    def before_fork(self) -> None:
        """Close all connections and open no others."""

    def after_fork_in_parent(self) -> None:
        """Allow connections again."""


_resettable: WeakSet[Resettable] = WeakSet()
_forkable: WeakSet[Forkable] = WeakSet()
_suspended: list[Forkable] = []
_forking = threading.Lock()


def reset_in_children(one: Resettable) -> None:
    """Reset an object in every child that is forked from now on."""
    _resettable.add(one)


def close_before_forks(one: Forkable) -> None:
    """Let an object close its connections before every fork from now on, and reset it in the child."""
    _forkable.add(one)
    _resettable.add(one)


def _before() -> None:
    _forking.acquire()
    for one in list(_forkable):
        one.before_fork()
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
        _suspended[-1].after_fork_in_parent()
        _suspended.pop()
    if _forking.locked():
        _forking.release()


def _in_child() -> None:
    _suspended.clear()
    for one in list(_resettable):
        one.reset_after_fork()
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
