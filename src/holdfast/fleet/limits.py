"""How fast a queue may be emptied: runs at once, and runs begun in a period.

Limits are kept as small values of the store. How many runs are owned at once is counted by the claim itself; what may
be begun is taken from an account before the claim, and what was not used is given back.

Invariant: in no stretch of time as long as the period are more runs begun than allowed, however many workers there
are.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.errors import StaleVersion
from holdfast.store.base import Store

#: An account tells apart so many moments of a period; what was begun in one counts from its end on.
_MOMENTS = 50


class Limits(msgspec.Struct, frozen=True):
    """The limits of a queue, and the account of what was begun lately."""

    concurrency: int | None = None
    rate: int | None = None
    #: The length of a period, in microseconds.
    per: int = 1_000_000
    #: When runs were begun, and how many, oldest first.
    begun: Sequence[tuple[int, int]] = ()

    def after(self, now: int, wanted: int) -> tuple[Limits, int]:
        """The limits when as many of the wanted runs as possible are begun, and how many those are."""
        if self.rate is None:
            return self, wanted
        # A machine whose clock is ahead must not close the queue for the others.
        begun = [(min(at, now), count) for at, count in self.begun if at > now - self.per]
        given = max(0, min(wanted, self.rate - sum(count for _, count in begun)))
        if given:
            if begun and begun[-1][0] // self._moment == now // self._moment:
                at, count = begun.pop()
                begun.append((max(at, now), count + given))
            else:
                begun.append((max([now, *(at for at, _ in begun)]), given))
        return msgspec.structs.replace(self, begun=begun), given

    def without(self, count: int) -> Limits:
        """The limits when so many runs were not begun after all."""
        begun = list(self.begun)
        while begun and count > 0:
            at, taken = begun.pop()
            if taken > count:
                begun.append((at, taken - count))
            count -= taken
        return msgspec.structs.replace(self, begun=begun)

    @property
    def _moment(self) -> int:
        return max(1, self.per // _MOMENTS)


def read_limits(store: Store, queue: str) -> tuple[Limits, int]:
    """The limits of a queue, and the revision of the value that says so."""
    found = store.value(_name(queue))
    if found is None:
        return Limits(), 0
    return msgspec.msgpack.decode(found[0], type=Limits), found[1]


def write_limits(store: Store, queue: str, limits: Limits) -> None:
    """Replace the limits of a queue; what was begun lately still counts."""
    while True:
        before, revision = read_limits(store, queue)
        if _set(store, queue, msgspec.structs.replace(limits, begun=before.begun), revision):
            return


def take(store: Store, queue: str, wanted: int, now: int) -> int:
    """Take so many beginnings, or as many as there are, from the account of a queue."""
    while True:
        limits, revision = read_limits(store, queue)
        after, given = limits.after(now, wanted)
        if limits.rate is None or not given or _set(store, queue, after, revision):
            return given


def give_back(store: Store, queue: str, count: int) -> None:
    """Beginnings that were taken and not used."""
    while count > 0:
        limits, revision = read_limits(store, queue)
        if limits.rate is None or _set(store, queue, limits.without(count), revision):
            return


def _set(store: Store, queue: str, limits: Limits, revision: int) -> bool:
    try:
        store.set_value(_name(queue), msgspec.msgpack.encode(limits), revision)
    except StaleVersion:
        return False
    return True


def _name(queue: str) -> str:
    return f"queue/{queue}"
