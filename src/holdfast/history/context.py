"""What all histories of one open store share: the store, the clock, the secrets' names, and a reader for each run."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from weakref import WeakSet, WeakValueDictionary

from holdfast.history.bases import Bases
from holdfast.history.reader import Reader
from holdfast.history.redaction import Secrets
from holdfast.model.records import RunRecord
from holdfast.store.base import Store
from holdfast.store.unpicklable import Unpicklable
from holdfast.tree.fold import Redactor

#: Readers kept at hand for histories that nobody holds any more.
_READERS = 256


class Context(Unpicklable):
    """What all histories of one open store share."""

    def __init__(self, store: Store, clock: Callable[[], int], secrets: Secrets) -> None:
        self.store = store
        self.clock = clock
        self.secrets = secrets
        #: Which versions the states were made from that are committed next.
        self.bases = Bases()
        #: All that somebody still uses, and the latest whether or not.
        self._readers: WeakValueDictionary[str, Reader] = WeakValueDictionary()
        self._latest: dict[str, Reader] = {}
        self._lock = threading.Lock()
        #: What stays of the further facts of a run when its head moves back to a version.
        self.carry: Callable[[RunRecord, int], bytes] = _nothing
        #: Refuses to move the head of a run by hand, where that is not all there is to do.
        self.may_roll_back: Callable[[RunRecord, int], None] = _fine
        #: One thread looks for a head at a time: threads that let go of the interpreter for a moment queue up for it
        #: behind all others, each with a connection of its own.
        self.looking = threading.RLock()
        _contexts.add(self)

    @property
    def redact(self) -> Redactor | None:
        """What to redact now."""
        return self.secrets.redactor

    def reader(self, run: RunRecord) -> Reader:
        """The reader of a run; a new one if versions were pruned since the last."""
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

    def known(self, run_id: str) -> Reader | None:
        """The reader of a run, if there is one at hand."""
        return self._readers.get(run_id)

    def forget(self, run_id: str) -> None:
        """Let go of a run that was deleted."""
        with self._lock:
            reader = self._readers.pop(run_id, None)
            self._latest.pop(run_id, None)
        if reader is not None:
            # Versions that somebody holds keep the reader, and must not find in it what is gone.
            reader.head = None


#: All that are in use.
_contexts: WeakSet[Context] = WeakSet()


def _start_anew() -> None:
    """In the child after a fork: the threads that held these locks are not there."""
    for context in _contexts:
        context.looking = threading.RLock()
        context._lock = threading.Lock()
        context.bases.start_anew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


def _fine(run: RunRecord, to: int) -> None:
    """Nothing speaks against it."""


def _nothing(run: RunRecord, to: int) -> bytes:
    return b""
