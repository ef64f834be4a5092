"""How fast a queue may be emptied: runs at once, and runs begun in a period.

Limits are kept as small values of the store. How many runs are owned at once is counted by the claim itself; what may
be begun is taken from an account before the claim, to be used within a while, and what was not used is given back.

Invariant: in no stretch of time as long as the period are more runs begun than allowed, however many workers there
are and however long one of them waits between taking and claiming: what was taken counts from when it was to be used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.errors import StaleVersion
from holdfast.store.base import Store
from holdfast.struct_types import resolved

#: An account tells apart so many moments of a period; what was begun in one counts from its end on.
_MOMENTS = 50


class Share(NamedTuple):
    """Beginnings that were taken from an account."""

    amount: int
    #: When they are used by now, or are not to be used any more.
    until: int


class QueueLimits(msgspec.Struct, frozen=True):
    """The limits of a queue, and the account of what was begun lately."""

    concurrency: int | None = None
    rate: int | None = None
    #: The length of a period, in microseconds.
    per: int = 1_000_000
    #: Until when runs were to be begun, and how many, oldest first.
    begun: Sequence[tuple[int, int]] = ()

    def after(self, now: int, wanted: int, until: int) -> tuple[QueueLimits, Share]:
        """The limits when as many of the wanted runs as possible are to be begun, and how many those are."""
        if self.rate is None:
            return self, Share(wanted, until)
        # A machine whose clock is ahead must not close the queue for the others.
        ahead = max(until, now + self.per)
        begun = [(min(at, ahead), count) for at, count in self.begun if at > now - self.per]
        given = max(0, min(wanted, self.rate - sum(count for _, count in begun)))
        until = max([until, *(at for at, _ in begun)])
        if given:
            together = begun and begun[-1][0] // self._moment == until // self._moment
            begun.append((until, given + (begun.pop()[1] if together else 0)))
        return msgspec.structs.replace(self, begun=begun), Share(given, until)

    def without(self, share: Share) -> QueueLimits:
        """The limits when a share, or a part of it, was not used after all."""
        begun, left = [], share.amount
        for at, count in self.begun:
            # What was taken later in the same moment has moved it on.
            back = min(left, count) if at >= share.until else 0
            left -= back
            if count > back:
                begun.append((at, count - back))
        return msgspec.structs.replace(self, begun=begun)

    @property
    def _moment(self) -> int:
        return max(1, self.per // _MOMENTS)


def read_limits(store: Store, queue: str) -> tuple[QueueLimits, int]:
    """The limits of a queue, and the revision of the value that says so."""
    found = store.value(_name(queue))
    if found is None:
        return QueueLimits(), 0
    return msgspec.msgpack.decode(found[0], type=resolved(QueueLimits)), found[1]


def most_at_once(store: Store, queue: str) -> int | None:
    """Return how many runs of a queue may be owned at once; None for any number."""
    return read_limits(store, queue)[0].concurrency


def write_limits(store: Store, queue: str, limits: QueueLimits) -> None:
    """Replace the limits of a queue; what was begun lately still counts."""
    while True:
        before, revision = read_limits(store, queue)
        if _set(store, queue, msgspec.structs.replace(limits, begun=before.begun), revision):
            return


def take(store: Store, queue: str, wanted: int, now: int, until: int) -> Share:
    """Take so many beginnings, or as many as there are, from the account of a queue."""
    while True:
        limits, revision = read_limits(store, queue)
        after, share = limits.after(now, wanted, until)
        if limits.rate is None or after.begun == limits.begun or _set(store, queue, after, revision):
            return share


def give_back(store: Store, queue: str, share: Share) -> None:
    """Beginnings that were taken and not used."""
    while share.amount > 0:
        limits, revision = read_limits(store, queue)
        if limits.rate is None or _set(store, queue, limits.without(share), revision):
            return


def _set(store: Store, queue: str, limits: QueueLimits, revision: int) -> bool:
    try:
        store.set_value(_name(queue), msgspec.msgpack.encode(limits), revision)
    except StaleVersion:
        return False
    return True


def _name(queue: str) -> str:
    return f"queue/{queue}"
