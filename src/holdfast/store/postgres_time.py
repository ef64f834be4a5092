"""The time of a PostgreSQL server, which all machines of a fleet share.

It is measured when a connection is made and whenever leases are renewed; in between this machine's monotonic clock
goes on from there. A clock of this machine that is wrong, or is set, changes nothing.

Invariant: what `now` gives differs from the server's time by no more than a round trip took, and what both clocks have
drifted apart since the last measurement.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.store.postgres_link import Connection

#: The time in a statement, by which leases are judged.
SERVER_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
_ASK = f"SELECT {SERVER_NOW}"
#: A clock that also runs while the machine is suspended, where there is one.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


class ServerTime:
    """The server's time, in microseconds since 1970; or that of another clock, which then counts everywhere."""

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock
        #: What is to be added to the monotonic clock; None before the first measurement.
        self._ahead: int | None = None

    def now(self) -> int:
        """The time."""
        return _ticks() + (self._ahead or 0) if self._clock is None else self._clock()

    def stated(self) -> int | None:
        """Return the time for a statement that judges a lease; None for the server's own, `SERVER_NOW`."""
        return None if self._clock is None else self._clock()

    def measure(self, connection: Connection) -> None:
        """Ask the server."""
        before = _ticks()
        row = connection.execute(_ASK).fetchone()
        after = _ticks()
        assert row is not None
        ahead = int(row[0]) - (before + after) // 2
        # What may be the round trip's doing moves no clock.
        if self._ahead is None or abs(ahead - self._ahead) > after - before:
            self._ahead = ahead


def _ticks() -> int:
    return (time.monotonic_ns() if _CLOCK is None else time.clock_gettime_ns(_CLOCK)) // 1000
