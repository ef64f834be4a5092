"""Which of many monitors acts: a lease, kept as a small value of the store.

Invariant: a lease is taken over only from a process that is gone, or when its time has run out.
"""

from __future__ import annotations

from uuid import uuid4

import msgspec

from holdfast.errors import HoldfastError, StaleVersion
from holdfast.model.records import RunRecord
from holdfast.runtime.lease import is_alive
from holdfast.runtime.services import Services
from holdfast.struct_types import resolved

_VALUE = "monitor"


class _Lease(msgspec.Struct, frozen=True):
    """Who acts, and until when unless it is renewed."""

    owner: str
    name: str
    until: int


class Lead:
    """The right of one monitor to act."""

    def __init__(self, services: Services, seconds: float) -> None:
        self._services = services
        self._lasts = int(seconds * 1_000_000)
        self._name = uuid4().hex[:12]

    @property
    def held(self) -> bool:
        """Does it act?"""
        lease, _ = self._read()
        return lease is not None and lease.name == self._name and lease.until > self._services.context.clock()

    def take(self) -> bool:
        """Take or renew the lease, if nobody else has it; tells whether it acts now."""
        now = self._services.context.clock()
        lease, revision = self._read()
        if lease is not None and lease.name == self._name and lease.until - now > self._lasts // 2:
            return True
        if lease is not None and lease.name != self._name and _holds(lease, now):
            return False
        mine = _Lease(self._services.owner, self._name, now + self._lasts)
        try:
            self._services.store.set_value(_VALUE, msgspec.msgpack.encode(mine), revision)
        except StaleVersion:
            return False
        return True

    def resign(self) -> None:
        """Let another act at once."""
        try:
            lease, revision = self._read()
            if lease is not None and lease.name == self._name:
                over = msgspec.structs.replace(lease, until=0)
                self._services.store.set_value(_VALUE, msgspec.msgpack.encode(over), revision)
        except HoldfastError:
            """The lease runs out."""

    def _read(self) -> tuple[_Lease | None, int]:
        found = self._services.store.value(_VALUE)
        if found is None:
            return None, 0
        return msgspec.msgpack.decode(found[0], type=resolved(_Lease)), found[1]


def _holds(lease: _Lease, now: int) -> bool:
    """Does somebody else act? Not if its process is gone."""
    stand_in = RunRecord(id=_VALUE, created=0, updated=0, owner=lease.owner, until=lease.until)
    return is_alive(stand_in, now)
