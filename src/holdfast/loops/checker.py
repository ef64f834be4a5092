"""The thread that looks for frozen agents and takes scheduled snapshots, without being asked.

Invariant: there is at most one for each open store in a process. What fails is a warning on the logger `holdfast`, the
same only once in a row, and the next look is taken all the same. It ends when it is stopped, when the store is closed,
or when nobody holds the engine any more.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall
from holdfast.model.names import short
from holdfast.runtime.log import warn
from holdfast.store.interrupts import Flag

if TYPE_CHECKING:
    from holdfast.loops.engine import LoopEngine
    from holdfast.loops.replies import Reply

_checkers: WeakKeyDictionary[Holdfast, Checker] = WeakKeyDictionary()
_guard = threading.Lock()


def checker_of(hf: Holdfast, engine: LoopEngine, every: float) -> Checker:
    """The checker of an open store in this process."""
    if type(every) not in (int, float) or not 0 < every <= threading.TIMEOUT_MAX:
        raise InvalidCall(f"every is a number of seconds above 0, not {short(every)}")
    with _guard:
        found = _checkers.get(hf)
        if found is None:
            found = _checkers[hf] = Checker()
    found._set(engine, every)
    return found


def _start_anew() -> None:
    """In the child after a fork: the threads are not there, and may have held the locks."""
    global _guard  # noqa: PLW0603 - a lock that another thread holds cannot be freed, only replaced
    _guard = threading.Lock()
    _checkers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_anew)


class Checker:
    """Looks at all projects of a store, again and again. As a context manager it runs at least until the end of the
    block; what `start` began goes on until `stop`."""

    def __init__(self) -> None:
        self._engine: ref[LoopEngine] | None = None
        self._every = 1.0
        self._thread: threading.Thread | None = None
        self._ended = Flag()
        self._lock = threading.RLock()
        self._uses, self._kept = 0, False
        self._told: str | None = None
        #: How many looks were taken.
        self.looks = 0

    @property
    def alive(self) -> bool:
        """Is it at work?"""
        thread = self._thread
        return thread is not None and thread.is_alive() and not self._ended.is_set()

    def start(self) -> Checker:
        """Look from now on, until `stop`. Harmless if it does already."""
        with self._lock:
            self._kept = True
            self._run()
        return self

    def stop(self) -> None:
        """Look no more, whoever wanted it; a look that is being taken is finished first."""
        with self._lock:
            self._kept = False
            thread, self._thread = self._thread, None
            self._ended.set()
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join()

    def __enter__(self) -> Checker:
        with self._lock:
            self._uses += 1
            self._run()
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._uses = max(self._uses - 1, 0)
            wanted = self._uses or self._kept
        if not wanted:
            self.stop()

    def _set(self, engine: LoopEngine, every: float) -> None:
        with self._lock:
            known = None if self._engine is None else self._engine()
            if known is None:
                self._engine = ref(engine)
            self._every = every if not self.alive else min(every, self._every)

    def _run(self) -> None:
        if self.alive:
            return
        self._ended = ended = Flag()
        self._thread = threading.Thread(
            target=self._work, args=(ended,), name="holdfast-loop-checker", daemon=True
        )
        self._thread.start()

    def _work(self, ended: Flag) -> None:
        while not ended.wait(self._every):
            engine = None if self._engine is None else self._engine()
            if engine is None:
                return
            try:
                if not self._look(engine):
                    return
            except BaseException as error:
                self._tell(f"{type(error).__name__}: {error}")
            del engine

    def _look(self, engine: LoopEngine) -> bool:
        """Take one look; tells whether there can be another."""
        problems: list[Reply] = []
        for reply in (engine.check_timeouts(), engine.take_scheduled_snapshots()):
            problems += [reply] if reply["status"] == "error" else reply["errors"]
            if reply.get("code") == "store_unavailable" and "closed" in reply["message"]:
                return False
        if problems:
            self._tell("; ".join(str(problem["message"]) for problem in problems[:5]))
        else:
            self._told = None
        self.looks += 1
        return True

    def _tell(self, what: str) -> None:
        if what != self._told:
            self._told = what
            with suppress(Exception):
                warn("looking for frozen agents: %s", what)
