"""Leases: the owner of a run, whether it is alive, and the thread that renews its leases.

An owner on this machine is alive while its process is; one elsewhere until its lease expires. Every commit renews the
lease of its run; the keeper renews the leases of runs whose steps take long. An expired lease is not renewed: the run
is claimed again, if its queue has room, before anything is written for it.

Invariant: a run is taken over only from an owner that is gone, or whose lease has expired. The run's revision fences
off the previous owner, even if it was only asleep.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, Protocol
from uuid import uuid4
from weakref import WeakSet

from holdfast.errors import HoldfastError
from holdfast.execution.write_lock import has_holder_ended
from holdfast.history.context import StoreContext
from holdfast.log import warn
from holdfast.model.records import RunRecord
from holdfast.operating_system import UNKNOWN, machine, process_start
from holdfast.store.interrupts import InterruptSafeEvent


class LeaseHandle:
    """Handle; the run's lease is renewed while it is held."""

    __slots__ = ("holder", "key")

    def __init__(self, key: int, holder: Any) -> None:
        self.key = key
        self.holder = holder


class HeartbeatWriter(Protocol):
    """Writes a heartbeat whenever leases are renewed, and in between if a step needs it more often."""

    def beat(self) -> None:
        """Write a heartbeat now."""

    def pace(self, most: float) -> float:
        """Return the seconds until the next heartbeat, at most `most`."""


class LeaseKeeper:
    """Names one engine as an owner, and renews the leases of its runs."""

    def __init__(
        self,
        context: StoreContext,
        lease: int,
        claim_again: Callable[[int], None],
        heartbeats: HeartbeatWriter,
    ) -> None:
        self._context = context
        self._lease = lease
        #: Claims a run, by its key, whose lease has expired.
        self._claim_again = claim_again
        self._heartbeats = heartbeats
        self.reset_after_fork()
        _alive.add(self)

    def reset_after_fork(self) -> None:
        """Become an owner without runs: at first, and in a child after a fork, without the parent's thread."""
        pid = os.getpid()
        self.owner = f"{machine()}|{pid}|{_start_of(pid)}|{uuid4().hex[:12]}"
        #: Several handles may hold the lease of one run.
        self._handles: set[LeaseHandle] = set()
        self._wake = InterruptSafeEvent()
        #: Must a lease be renewed at once?
        self._late = False
        self._closed = False
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None

    def hold(self, run: RunRecord, *, hurry: bool = False, holder: Any = None) -> LeaseHandle:
        """Renew the lease of a run until the handle is released or its holder has ended; with `hurry`, compute the pace
        again."""
        handle = LeaseHandle(run.key, holder)
        self._handles.add(handle)
        self.renew_if_late(run)
        if self._thread is None or not self._thread.is_alive():
            self._start()
        elif hurry:
            self._wake.set()
        return handle

    def holds(self, run: RunRecord) -> bool:
        """Return whether the lease of a run is being renewed."""
        return any(handle.key == run.key for handle in list(self._handles))

    def release(self, handle: LeaseHandle | None) -> None:
        """Release a handle; harmless when done twice."""
        if handle is not None:
            self._handles.discard(handle)
            # The frame refers to the execution that refers to this handle: a cycle.
            handle.holder = None

    def renew_if_late(self, run: RunRecord) -> None:
        """Renew the lease of a run at once if the write of the run took most of it."""
        if run.owner == self.owner and run.until - self._context.store.now() < self._lease // 2:
            self._late = True
            self._wake.set()

    def close(self) -> None:
        """Stop renewing."""
        self._closed = True
        self._wake.set()
        _alive.discard(self)

    def beat(self) -> None:
        """Renew all leases, and write a heartbeat, now."""
        for handle in list(self._handles):
            # Its thread was interrupted before it could release it.
            if has_holder_ended(handle.holder):
                self._handles.discard(handle)
        runs = list({handle.key for handle in list(self._handles)})
        if runs:
            # If the store cannot be written, the leases expire.
            with suppress(HoldfastError):
                store = self._context.store
                for key in store.renew(runs, self.owner, store.now() + self._lease):
                    self._claim_again(key)
        self._heartbeats.beat()

    def _start(self) -> None:
        with self._starting:
            if self._thread is not None and self._thread.is_alive():
                return
            # Set before it starts: an interrupt in between must not leave a second thread running.
            self._thread = thread = threading.Thread(target=self._keep, name="holdfast leases", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                # Commits renew leases, too; the next handle tries again.
                warn("leases are not renewed while steps run: %s", error)

    def _keep(self) -> None:
        longest = self._lease / 3_000_000
        renewed = time.monotonic()
        own = threading.current_thread()
        while self._thread is own:
            left = max(0.0, renewed + longest - time.monotonic())
            is_woken = self._wake.wait(min(left, self._heartbeats.pace(longest)))
            if self._closed:
                return
            self._wake.clear()
            if self._late or time.monotonic() - renewed >= longest * 0.9:
                self._late = False
                renewed = time.monotonic()
                self.beat()
            elif not is_woken:
                self._heartbeats.beat()


def is_alive(run: RunRecord, now: int) -> bool:
    """Return whether a live owner advances this run."""
    return is_owner_alive(run.owner, run.until, now)


def is_owner_alive(owner: str | None, until: int, now: int) -> bool:
    """Return whether an owner lives: its lease has not expired, and its process has not died, as far as this machine
    can see."""
    if owner is None or until <= now:
        return False
    where, pid, started, _ = (owner.split("|") + [""] * 4)[:4]
    if where != machine() or not (pid.isascii() and pid.isdigit()):
        return True
    found = process_start(int(pid))
    if int(pid) == os.getpid() and started == found:
        return any(keeper.owner == owner for keeper in list(_alive))
    # A process whose start is not known may be the owner: its lease decides.
    return found != "" and (found == started or UNKNOWN in (found, started))


#: The keepers of this process.
_alive: WeakSet[LeaseKeeper] = WeakSet()


@cache
def _start_of(pid: int) -> str:
    """Return when this process was started; a child after a fork has another id."""
    return process_start(pid)
