"""Announcements of workers: the queues that each serves, and the workflows whose code it has.

Each worker keeps a small value in the store and renews it while it claims runs, so that a monitor in any process can
find runs that no worker will claim.

Invariant: a worker that claims runs is announced; one that died is counted for `_VALID` at most.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from uuid import uuid4

import msgspec

from holdfast.errors import CorruptStore, HoldfastError, StaleVersion
from holdfast.execution.engine_context import EngineContext
from holdfast.store.protocol import Store
from holdfast.struct_types import resolved

_PREFIX = "worker/"
#: Microseconds for which an announcement is valid; it is renewed after a third of that.
_VALID = 60_000_000
#: Microseconds after which the value of a worker that died is removed.
_OLD = 3_600_000_000
_PAGE = 1000


class Announcement(msgspec.Struct, frozen=True):
    """A worker that claims runs."""

    until: int
    queues: list[str]
    workflows: list[str]
    #: Whether it claims runs of all workflows of its process; a worker for triggers does not.
    general: bool = True


class Presence:
    """Announces one worker."""

    def __init__(self, engine: EngineContext, queues: Sequence[str], poll: float, *, general: bool) -> None:
        self._engine = engine
        self._queues = list(queues)
        self._general = general
        self._lasts = _VALID + 3 * int(poll * 1_000_000)
        self._name = f"{_PREFIX}{uuid4().hex}"
        self._revision = 0
        self._last: list[str] | None = None
        self._due = 0

    def announce(self, workflows: Sequence[str]) -> None:
        """Announce the worker, unless a valid announcement says the same."""
        now = self._engine.context.clock()
        # A clock that was set back counts as time that has passed.
        if workflows == self._last and self._due - self._lasts // 3 <= now < self._due:
            return
        mine = Announcement(now + self._lasts, self._queues, list(workflows), self._general)
        store, data = self._engine.store, msgspec.msgpack.encode(mine)
        try:
            self._revision = store.set_value(self._name, data, self._revision)
        except StaleVersion:
            # The last write succeeded without an answer, or the value was removed while this worker was suspended.
            found = store.value(self._name)
            self._revision = store.set_value(self._name, data, 0 if found is None else found[1])
        self._last, self._due = list(workflows), now + self._lasts // 3

    def withdraw(self) -> None:
        """Remove the announcement."""
        if self._revision:
            # Otherwise it expires soon.
            with suppress(HoldfastError):
                self._engine.store.drop_value(self._name, self._revision)
            self._revision, self._last = 0, None


def announced(store: Store, now: int) -> list[Announcement]:
    """Return the workers that claim runs now; remove announcements of workers that died long ago."""
    found: list[Announcement] = []
    after = ""
    while names := store.value_names(_PREFIX, after=after, limit=_PAGE):
        after = names[-1]
        for name in names:
            # `verify` reports values that cannot be read.
            with suppress(StaleVersion, CorruptStore, msgspec.MsgspecError):
                value = store.value(name)
                if value is None:
                    continue
                each = msgspec.msgpack.decode(value[0], type=resolved(Announcement))
                if each.until > now:
                    found.append(each)
                elif each.until + _OLD < now:
                    store.drop_value(name, value[1])
    return found
