"""Who advances a run: the name of an owner, whether it is still alive, and keeping what it owns.

An owner on this machine is alive if its process is; one elsewhere for as long as its lease runs. Every commit renews
the lease of its run; the keeper renews those of runs whose step takes long.

Invariant: a run is taken over only from an owner that is gone, or whose lease has run out. Whoever was taken over is
refused by the run's revision, even if it was only asleep.
"""

from __future__ import annotations

import os
import threading
from functools import cache
from pathlib import Path
from uuid import uuid4
from weakref import WeakSet

from holdfast.errors import HoldfastError
from holdfast.history.context import Context
from holdfast.model.records import RunRecord


class Keeper:
    """Names one engine as an owner, and renews the leases of what it owns."""

    def __init__(self, context: Context, lease: int) -> None:
        self._context = context
        self._lease = lease
        self.start_anew()
        _alive.add(self)

    def start_anew(self) -> None:
        """At first, and in a child after a fork: an owner that owns nothing yet. The thread stayed with the parent."""
        pid = os.getpid()
        self.owner = f"{_machine()}|{pid}|{_started(pid)}|{uuid4().hex[:12]}"
        self._runs: set[int] = set()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def hold(self, run: RunRecord) -> None:
        """Renew the lease of a run from now on."""
        self._runs.add(run.key)
        if self._thread is None:
            self._thread = threading.Thread(target=self._keep, name="holdfast leases", daemon=True)
            self._thread.start()

    def let_go(self, run: RunRecord) -> None:
        """Renew it no longer."""
        self._runs.discard(run.key)

    def close(self) -> None:
        """Renew nothing any more."""
        self._wake.set()
        _alive.discard(self)

    def _keep(self) -> None:
        while not self._wake.wait(self._lease / 3_000_000):
            runs = list(self._runs)
            if runs:
                try:
                    self._context.store.renew(runs, self.owner, self._context.clock() + self._lease)
                except HoldfastError:
                    """A store that cannot be written has other ways to say so; the lease runs out."""


def is_alive(run: RunRecord, now: int) -> bool:
    """Is somebody advancing this run?"""
    if run.owner is None or run.until <= now:
        return False
    machine, pid, started, _ = (run.owner.split("|") + [""] * 4)[:4]
    if machine != _machine() or not pid.isdigit():
        return True
    if int(pid) == os.getpid() and started == _started(os.getpid()):
        return any(keeper.owner == run.owner for keeper in list(_alive))
    return _started(int(pid)) == started and started != ""


#: The keepers of this process.
_alive: WeakSet[Keeper] = WeakSet()


def _node() -> str:
    if hasattr(os, "uname"):
        return os.uname().nodename
    import platform

    return platform.node()


@cache
def _machine() -> str:
    """This machine, and the space in which its process numbers mean something."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
        space = os.readlink("/proc/self/ns/pid")
    except OSError:
        boot = space = ""
    return f"{_node()}/{boot}/{space}".replace("|", "/")


def _started(pid: int) -> str:
    """When a process was started, as far as the system tells; empty if there is no such process, or it is dead and
    only not buried yet."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZXx" else fields[19]
    except (OSError, IndexError):
        pass
    if Path("/proc/self/stat").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return "?"
