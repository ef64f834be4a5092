"""State that all histories of one open store share: the store, the clock, redaction, and one reader per run.

`Bases` remembers what a plain state was made from. A plain dict does not know where it came from, so reads and commits
are remembered per asyncio task, or else per thread. Code that runs in a copy of its caller's context, such as
`asyncio.to_thread`, commits on behalf of its caller, unless it has read the state itself. All histories of one open
store share these reads, however the state was read (`log.head.state`, `hf.get(run).state`, …).

A commit that was merged leaves the caller with the state that it gave, which is not that of the version: the next
change is made from the former. Threads that share a state commit in turns: those that have read nothing themselves
continue the commits of others through their history.

Invariant: a state that a task or thread has read or committed, and commits, is compared with what it read or committed,
not with a later version: what others have changed since is merged, not undone.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from itertools import count
from typing import Any, NamedTuple, Protocol
from weakref import WeakValueDictionary, ref

import msgspec

from holdfast.errors import NotFound, StaleVersion
from holdfast.event_loop import running_task
from holdfast.history.reader import Reader
from holdfast.history.redaction import RedactionPatterns
from holdfast.model.records import EventRecord, RunRecord
from holdfast.store.process_fork import ProcessBound, reset_in_children
from holdfast.store.protocol import Append, Store
from holdfast.tree.fold import Redactor

#: Reads that an open store remembers; the oldest are dropped.
_REMEMBERED = 10_000
#: States, given to commits that were merged, that an open store keeps.
_STATES = 256
#: Readers that are cached for runs that no history refers to.
_READERS = 256


class _ReadingTask:
    """A task or thread that reads, and the reading task in whose context it was started."""

    __slots__ = ("_owner", "parent", "serial")

    def __init__(self, owner: Any, parent: _ReadingTask | None) -> None:
        self._owner = ref(owner)
        self.parent = parent
        self.serial = next(_serials)

    def is_of(self, owner: Any) -> bool:
        return self._owner() is owner


class Basis(NamedTuple):
    """The origin of a plain state: a version of a run, or the state that was given to the commit of that version."""

    #: The key of the run.
    run: int
    number: int
    #: The state, before it was merged; `SAME` for that of the version, `FORGOTTEN` if it is not kept any more.
    own: Any
    #: Identifies the history that was used.
    by: object
    #: Identifies the read, or the first commit, with which a series of commits through one history began.
    series: object


#: The values of `Basis.own` that are not states.
SAME, FORGOTTEN = object(), object()


class _Known(NamedTuple):
    """The last read of a task, or its commit since."""

    basis: Basis
    is_read: bool
    #: Whether the task has ever read the run. Otherwise only the history of its commits knows what they were made from.
    has_read: bool


class Bases:
    """The versions that tasks and threads have read, or committed last, by run."""

    def __init__(self) -> None:
        self._found: OrderedDict[tuple[int, str], _Known] = OrderedDict()
        #: The keys of those with a state of their own, the latest last.
        self._merged: OrderedDict[tuple[int, str], None] = OrderedDict()
        self._lock = threading.RLock()
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Replace the lock: a thread that does not exist in the child may hold it."""
        self._lock = threading.RLock()

    def note_read(self, run_id: str, run: int, number: int, by: object) -> None:
        """Record that this task or thread has read the state of the head through the history `by`."""
        self._set(_current_task(), run_id, _Known(Basis(run, number, SAME, by, object()), True, True))

    def note_commit(self, run_id: str, basis: Basis) -> None:
        """Record that this task or thread, or the caller on whose behalf it commits, has committed a plain state, or
        has moved the head."""
        found = self._find(run_id)
        if found is None:
            self._set(_current_task(), run_id, _Known(basis, False, False))
        else:
            self._set(found[0], run_id, _Known(basis, False, found[1].has_read))

    def note_edit(self, run_id: str, run: int, number: int, by: object) -> Basis | None:
        """Record that this task or thread has edited the state; return what a plain state of it is made from now. A
        state that was read through another history is not made from the edited one, nor that of another thread."""
        found = self._find(run_id)
        if found is None or (found[1].basis.by is not by and (found[1].is_read or not found[1].has_read)):
            return None
        basis = Basis(run, number, SAME, by, found[1].basis.series)
        self._set(found[0], run_id, _Known(basis, False, found[1].has_read))
        return basis

    def base(self, run_id: str, last: Basis | None, by: object) -> Basis | None:
        """Return what a state was made from, for a commit through the history `by`, whose last commit is `last`: what
        this task or thread has read, or the newer of its last commit and of `last`, if both are of one series. Of
        two series, the older: it is not known which one the state belongs to, and what is merged is not undone."""
        found = self._find(run_id)
        if found is None or not (found[1].has_read or found[1].basis.by is by):
            return last
        own, is_read, _ = found[1]
        if is_read or last is None:
            return own
        choose = max if own.series is last.series else min
        return choose(own, last, key=lambda each: each.number)

    def _find(self, run_id: str) -> tuple[_ReadingTask, _Known] | None:
        task = _task.get()
        while task is not None:
            base = self._found.get((task.serial, run_id))
            if base is not None:
                return task, base
            task = task.parent
        return None

    def _set(self, task: _ReadingTask, run_id: str, known: _Known) -> None:
        with self._lock:
            key = (task.serial, run_id)
            self._found[key] = known
            self._found.move_to_end(key)
            self._merged.pop(key, None)
            if known.basis.own is not SAME:
                self._merged[key] = None
                if len(self._merged) > _STATES:
                    self._forget(self._merged.popitem(last=False)[0])
            if len(self._found) > _REMEMBERED:
                self._merged.pop(self._found.popitem(last=False)[0], None)

    def _forget(self, key: tuple[int, str]) -> None:
        """Drop the state of an entry, but not that there was one."""
        known = self._found[key]
        self._found[key] = known._replace(basis=known.basis._replace(own=FORGOTTEN))


_serials = count()
_task: ContextVar[_ReadingTask | None] = ContextVar("holdfast.reading_task", default=None)


def _current_task() -> _ReadingTask:
    """Return the asyncio task, or else the thread, that runs this."""
    owner = running_task() or threading.current_thread()
    task = _task.get()
    if task is None or not task.is_of(owner):
        task = _ReadingTask(owner, task)
        _task.set(task)
    return task


class ManualRollbacks(Protocol):
    """Rules for moving the head of a run back by hand."""

    def check(self, run: RunRecord, to: int) -> None:
        """Raise `InvalidCall` if a rollback to a version must do more than move the head."""

    def carry_over(self, run: RunRecord, to: int) -> bytes:
        """Return the part of the run's detail that stays when the head moves back to a version."""


class StoreContext(ProcessBound):
    """Shared by all histories of one open store."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], int],
        redaction: RedactionPatterns,
        rollbacks: ManualRollbacks,
    ) -> None:
        self.store = store
        self.clock = clock
        self.redaction = redaction
        self.bases = Bases()
        #: Every reader in use, and the latest ones whether in use or not.
        self._readers: WeakValueDictionary[str, Reader] = WeakValueDictionary()
        self._latest: dict[str, Reader] = {}
        self.rollbacks = rollbacks
        self.reset_after_fork()
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Create the locks; again in a forked child, which lacks the threads that may hold them. They are reentrant,
        because a signal handler may read while it interrupts a read."""
        self._lock = threading.RLock()
        #: One thread reads a head at a time: concurrent readers would each wait for the interpreter, and hold a
        #: connection while they do.
        self.head_lock = threading.RLock()

    @property
    def redact(self) -> Redactor | None:
        """The current redactor; None if nothing is redacted."""
        return self.redaction.redactor

    def run(self, run_id: str) -> RunRecord:
        """Return the record of a run as it is in the store."""
        run = self.store.run(run_id)
        if run is None:
            raise NotFound(f"there is no run {run_id!r}: commit to it first", run=run_id)
        return run

    def touch(self, read: Callable[[], RunRecord], events: Sequence[EventRecord] = ()) -> None:
        """Change the revision of a run, and append journal entries, without a version. The record is read again if
        another writer changes it first."""
        while True:
            run = read()
            after = msgspec.structs.replace(run, revision=run.revision + 1)
            with suppress(StaleVersion):
                self.store.append(Append(expect=run, run=after, events=events))
                return

    def reader(self, run: RunRecord) -> Reader:
        """Return the reader of a run; a new one if versions were pruned since it was created."""
        reader = self._readers.get(run.id)
        if reader is not None and reader.run.key == run.key and reader.run.epoch == run.epoch:
            return reader
        with self._lock:
            reader = self._readers.get(run.id)
            if reader is None or reader.run.key != run.key or reader.run.epoch != run.epoch:
                reader = self._readers[run.id] = Reader(self.store, run)
            self._latest.pop(run.id, None)
            self._latest[run.id] = reader
            if len(self._latest) > _READERS:
                del self._latest[next(iter(self._latest))]
            return reader

    def cached_reader(self, run_id: str) -> Reader | None:
        """Return the reader of a run if there is one."""
        return self._readers.get(run_id)

    def drop_reader(self, run_id: str) -> None:
        """Drop the reader of a run that was deleted."""
        with self._lock:
            reader = self._readers.pop(run_id, None)
            self._latest.pop(run_id, None)
        if reader is not None:
            # Versions in use keep the reader, which must not serve the deleted head.
            reader.head = None
