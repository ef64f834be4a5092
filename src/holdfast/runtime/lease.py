"""Who advances a run: the name of an owner, whether it is still alive, and keeping what it owns.

An owner on this machine is alive if its process is; one elsewhere for as long as its lease runs. Every commit renews
the lease of its run; the keeper renews those of runs whose step takes long. A lease that has run out is not renewed:
the run is claimed again, if its queue has room, before anything is written for it.

Invariant: a run is taken over only from an owner that is gone, or whose lease has run out. Whoever was taken over is
refused by the run's revision, even if it was only asleep.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any
from uuid import uuid4
from weakref import WeakSet

from holdfast.errors import HoldfastError
from holdfast.history.context import Context
from holdfast.model.records import RunRecord
from holdfast.operating_system import UNKNOWN, machine, process_start
from holdfast.runtime.log import warn
from holdfast.runtime.turn import is_lost
from holdfast.store.interrupts import Flag


class Hold:
    """That somebody has the lease of a run renewed."""

    __slots__ = ("holder", "key")

    def __init__(self, key: int, holder: Any) -> None:
        self.key = key
        self.holder = holder


class Keeper:
    """Names one engine as an owner, and renews the leases of what it owns."""

    def __init__(self, context: Context, lease: int, claim_again: Callable[[int], None]) -> None:
        self._context = context
        self._lease = lease
        #: Claims a run, by its key, whose lease has run out.
        self._claim_again = claim_again
        #: Tells of what is owned whenever leases are renewed, and in between if it has to be told more often: gives
        #: the seconds until the next time, at most so many as it is given.
        self.tell: Callable[[], None] = _nothing
        self.pace: Callable[[float], float] = _as_given
        self.start_anew()
        _alive.add(self)

    def start_anew(self) -> None:
        """At first, and in a child after a fork: an owner that owns nothing yet. The thread stayed with the parent."""
        pid = os.getpid()
        self.owner = f"{machine()}|{pid}|{_begun(pid)}|{uuid4().hex[:12]}"
        #: Several may have the lease of one run renewed, and none ends that for another.
        self._holds: set[Hold] = set()
        self._wake = Flag()
        #: Is there a lease that must not wait for its turn?
        self._late = False
        self._closed = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def hold(self, run: RunRecord, *, hurry: bool = False, holder: Any = None) -> Hold:
        """Renew the lease of a run from now on, until the hold is released or its holder has ended; with `hurry`,
        the pace may be another now."""
        hold = Hold(run.key, holder)
        self._holds.add(hold)
        self.look_at(run)
        if self._thread is None or not self._thread.is_alive():
            self._start()
        elif hurry:
            self._wake.set()
        return hold

    def holds(self, run: RunRecord) -> bool:
        """Is its lease being renewed?"""
        return any(hold.key == run.key for hold in list(self._holds))

    def let_go(self, hold: Hold | None) -> None:
        """Renew it no longer for whoever held it; harmless when done twice."""
        if hold is not None:
            self._holds.discard(hold)
            # The frame refers to the execution that refers to this hold: a cycle.
            hold.holder = None

    def look_at(self, run: RunRecord) -> None:
        """A run was written: if that took so long that most of its lease has passed, it is renewed at once."""
        if run.owner == self.owner and run.until - self._context.store.now() < self._lease // 2:
            self._late = True
            self._wake.set()

    def close(self) -> None:
        """Renew nothing any more."""
        self._closed = True
        self._wake.set()
        _alive.discard(self)

    def beat(self) -> None:
        """Renew all leases, and tell of what is owned, now."""
        for hold in list(self._holds):
            # Its thread was interrupted before it could end it.
            if is_lost(hold.holder):
                self._holds.discard(hold)
        runs = list({hold.key for hold in list(self._holds)})
        if runs:
            try:
                store = self._context.store
                for key in store.renew(runs, self.owner, store.now() + self._lease):
                    self._claim_again(key)
            except HoldfastError:
                """A store that cannot be written has other ways to say so; the lease runs out."""
        self.tell()

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                return
            # Known before it starts: an interrupt in between must not leave a second one running.
            self._thread = thread = threading.Thread(target=self._keep, name="holdfast leases", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # Commits renew leases, too; whoever holds the next run tries again.
                warn("leases are not renewed while steps run: %s", error)

    def _keep(self) -> None:
        longest = self._lease / 3_000_000
        renewed = time.monotonic()
        own = threading.current_thread()
        while self._thread is own:
            left = max(0.0, renewed + longest - time.monotonic())
            hurried = self._wake.wait(min(left, self.pace(longest)))
            if self._closed:
                return
            self._wake.clear()
            if self._late or time.monotonic() - renewed >= longest * 0.9:
                self._late = False
                renewed = time.monotonic()
                self.beat()
            elif not hurried:
                self.tell()


def is_alive(run: RunRecord, now: int) -> bool:
    """Is somebody advancing this run?"""
    if run.owner is None or run.until <= now:
        return False
    where, pid, started, _ = (run.owner.split("|") + [""] * 4)[:4]
    if where != machine() or not (pid.isascii() and pid.isdigit()):
        return True
    found = process_start(int(pid))
    if int(pid) == os.getpid() and started == found:
        return any(keeper.owner == run.owner for keeper in list(_alive))
    # A process whose start is not known may be the owner: its lease decides.
    return found != "" and (found == started or UNKNOWN in (found, started))


def _nothing() -> None:
    """There is nothing to be told."""


def _as_given(seconds: float) -> float:
    return seconds


#: The keepers of this process.
_alive: WeakSet[Keeper] = WeakSet()


@cache
def _begun(pid: int) -> str:
    """When this process was started; a child after a fork asks with another id."""
    return process_start(pid)
