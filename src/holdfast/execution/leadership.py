"""Leadership: a lease, kept as a small value in the store, that elects the process that does a periodic job.

Invariant: the lease is taken over only from a dead process, after it expired, or by a process that does the job more
often. Leadership saves work; what must happen once is a compare-and-set of its own.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TypeGuard
from uuid import uuid4

import msgspec

from holdfast.errors import HoldfastError, StaleVersion
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.lease import is_owner_alive
from holdfast.struct_types import resolved

#: A lease lasts this many intervals of the job, and at least this many seconds.
_INTERVALS = 4
_SHORTEST = 10.0


class _Lease(msgspec.Struct, frozen=True):
    """The leader, when its lease expires unless it is renewed, and the seconds between two rounds of its job."""

    owner: str
    name: str
    until: int
    every: float = 0.0


class Leadership:
    """The lease of one job, under a name of the store."""

    def __init__(self, engine: EngineContext, job: str) -> None:
        self._engine = engine
        self._job = job
        self._name = uuid4().hex[:12]

    @property
    def held(self) -> bool:
        """Whether this process is the leader."""
        lease, _ = self._read()
        return self._is_mine(lease) and lease.until > self._engine.context.clock()

    def take(self, every: float, *, from_slower: bool = False) -> bool:
        """Take or renew the lease, for a job that is done every so many seconds, unless another process holds it;
        return whether this process is the leader. With `from_slower`, also take it from a process that does the job
        less often."""
        now = self._engine.context.clock()
        lasts = int(max(_SHORTEST, every * _INTERVALS) * 1_000_000)
        lease, revision = self._read()
        if self._is_mine(lease):
            if lease.until - now > lasts // 2:
                return True
        elif lease is not None and _holds(lease, now) and not (from_slower and lease.every > every):
            return False
        mine = _Lease(self._engine.owner, self._name, now + lasts, every)
        try:
            self._engine.store.set_value(self._job, msgspec.msgpack.encode(mine), revision)
        except StaleVersion:
            return False
        return True

    def resign(self) -> None:
        """Release the lease, so that another process can lead at once."""
        # Otherwise it expires.
        with suppress(HoldfastError):
            lease, revision = self._read()
            if self._is_mine(lease):
                over = msgspec.structs.replace(lease, until=0)
                self._engine.store.set_value(self._job, msgspec.msgpack.encode(over), revision)

    def _is_mine(self, lease: _Lease | None) -> TypeGuard[_Lease]:
        """Return whether a lease is of this leadership, and not of that of the parent of a forked process."""
        return lease is not None and (lease.name, lease.owner) == (self._name, self._engine.owner)

    def _read(self) -> tuple[_Lease | None, int]:
        found = self._engine.store.value(self._job)
        if found is None:
            return None, 0
        return msgspec.msgpack.decode(found[0], type=resolved(_Lease)), found[1]


def _holds(lease: _Lease, now: int) -> bool:
    """Return whether a lease is valid: it has not expired, and its process has not died."""
    return is_owner_alive(lease.owner, lease.until, now)
