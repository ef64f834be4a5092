"""Limits of a queue: runs at once, and runs started in a period.

Limits are small values of the store. The claim itself counts how many runs are owned at once. A worker takes starts
from the queue's account before it claims, for use within a while, and gives back those that it did not use.

Invariant: in no interval as long as the period do more runs start than allowed, however many workers there are and
however long one of them waits between taking and claiming: a start that was taken counts from the end of its use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from holdfast.errors import StaleVersion
from holdfast.store.protocol import Store
from holdfast.struct_types import resolved

#: Starts are counted in this many slots of a period; a start counts from the end of its slot.
_MOMENTS = 50


class Share(NamedTuple):
    """Starts that a rate limit has granted."""

    amount: int
    #: When the grant expires.
    until: int


class QueueLimits(msgspec.Struct, frozen=True, rename={"started": "begun"}):  # words: the stored word
    """The limits of a queue, and its recent starts."""

    concurrency: int | None = None
    rate: int | None = None
    #: The length of a period, in microseconds.
    per: int = 1_000_000
    #: Recent grants, oldest first: when each expires, and how many starts it allows.
    started: Sequence[tuple[int, int]] = ()

    def after(self, now: int, wanted: int, until: int) -> tuple[QueueLimits, Share]:
        """Return the limits after granting as many of the wanted starts as possible, and the grant."""
        if self.rate is None:
            return self, Share(wanted, until)
        # A machine whose clock is ahead must not close the queue for the others.
        ahead = max(until, now + self.per)
        started = [(min(at, ahead), count) for at, count in self.started if at > now - self.per]
        given = max(0, min(wanted, self.rate - sum(count for _, count in started)))
        until = max([until, *(at for at, _ in started)])
        if given:
            together = started and started[-1][0] // self._moment == until // self._moment
            started.append((until, given + (started.pop()[1] if together else 0)))
        return msgspec.structs.replace(self, started=started), Share(given, until)

    def without(self, share: Share) -> QueueLimits:
        """Return the limits after a grant, or a part of it, was not used."""
        started, left = [], share.amount
        for at, count in self.started:
            # A later grant in the same slot has extended it.
            back = min(left, count) if at >= share.until else 0
            left -= back
            if count > back:
                started.append((at, count - back))
        return msgspec.structs.replace(self, started=started)

    @property
    def _moment(self) -> int:
        return max(1, self.per // _MOMENTS)


def read_limits(store: Store, queue: str) -> tuple[QueueLimits, int]:
    """Return the limits of a queue, and the revision of the stored value."""
    found = store.value(_name(queue))
    if found is None:
        return QueueLimits(), 0
    return msgspec.msgpack.decode(found[0], type=resolved(QueueLimits)), found[1]


def write_limits(store: Store, queue: str, limits: QueueLimits) -> None:
    """Replace the limits of a queue; recent starts still count."""
    while True:
        before, revision = read_limits(store, queue)
        if _set(store, queue, msgspec.structs.replace(limits, started=before.started), revision):
            return


def take(store: Store, queue: str, wanted: int, now: int, until: int) -> Share:
    """Take as many of the wanted starts as the rate limit of a queue allows."""
    while True:
        limits, revision = read_limits(store, queue)
        after, share = limits.after(now, wanted, until)
        if limits.rate is None or after.started == limits.started or _set(store, queue, after, revision):
            return share


def give_back(store: Store, queue: str, share: Share) -> None:
    """Return starts that were taken and not used."""
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
