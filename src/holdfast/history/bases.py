"""Which version a plain state was made from: the head that the same thread or task read last.

A plain dict does not know where it came from, so reads are remembered per reader: an asyncio task, or else a thread.
`asyncio.to_thread` and other code that runs in a copy of its caller's context commits on behalf of its caller, unless
it has read the state itself. All histories of one open store share what was read, however it was read
(`log.head.state`, `hf.get(run).state`, `log.versions()[0].copy()`, …).

Invariant: a state that was read here and is committed by its reader is compared with the version that was read, not
with a later one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from contextvars import ContextVar
from itertools import count
from typing import Any, NamedTuple
from weakref import ref

from holdfast.event_loop import running_task

#: Reads that an open store remembers; the oldest are dropped.
_REMEMBERED = 10_000


class _Party:
    """A task or thread that reads; the one in whose context it was started, if that one reads, too."""

    __slots__ = ("_owner", "above", "serial")

    def __init__(self, owner: Any, above: _Party | None) -> None:
        self._owner = ref(owner)
        self.above = above
        self.serial = next(_serials)

    def is_of(self, owner: Any) -> bool:
        return self._owner() is owner


class _Mark(NamedTuple):
    """The version that a party has read, or has committed since."""

    number: int
    is_read: bool
    #: The history through which that was done.
    by: object


class Bases:
    """The versions that tasks and threads have read, or committed last, by run."""

    def __init__(self) -> None:
        self._marks: OrderedDict[tuple[int, str], _Mark] = OrderedDict()
        self.start_anew()

    def start_anew(self) -> None:
        """Replace the lock, in the child after a fork too: the thread that held it is not there."""
        self._lock = threading.Lock()

    def note_read(self, run_id: str, number: int, by: object) -> None:
        """Remember that this task or thread has read the state of the head, `by` a history."""
        owner = running_task() or threading.current_thread()
        party = _party.get()
        if party is None or not party.is_of(owner):
            party = _Party(owner, party)
            _party.set(party)
        self._set(party, run_id, _Mark(number, True, by))

    def note_commit(self, run_id: str, number: int, by: object) -> None:
        """Remember that this task or thread, or the caller on whose behalf it commits, has made a plain state a
        version, or has moved the head to one."""
        found = self._find(run_id)
        if found is not None:
            self._set(found[0], run_id, _Mark(number, False, by))

    def note_edit(self, run_id: str, number: int, by: object) -> None:
        """Remember that this task or thread has edited the state. One that was read through another history is not made
        from that."""
        found = self._find(run_id)
        if found is not None and (found[1].by is by or not found[1].is_read):
            self._set(found[0], run_id, _Mark(number, False, by))

    def base(self, run_id: str, last: int | None) -> int | None:
        """Return the version that a state was made from: the one read since the last commit, or `last`, or the one
        committed last by this task or thread; None if there is none of these."""
        found = self._find(run_id)
        if found is None:
            return last
        mark = found[1]
        return mark.number if mark.is_read or last is None else last

    def _find(self, run_id: str) -> tuple[_Party, _Mark] | None:
        party = _party.get()
        while party is not None:
            mark = self._marks.get((party.serial, run_id))
            if mark is not None:
                return party, mark
            party = party.above
        return None

    def _set(self, party: _Party, run_id: str, mark: _Mark) -> None:
        with self._lock:
            key = (party.serial, run_id)
            self._marks[key] = mark
            self._marks.move_to_end(key)
            if len(self._marks) > _REMEMBERED:
                self._marks.popitem(last=False)


_serials = count()
_party: ContextVar[_Party | None] = ContextVar("holdfast.party", default=None)
