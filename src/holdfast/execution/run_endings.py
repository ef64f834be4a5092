"""Notify coroutines that a run they wait for has ended, or can be resumed.

One thread per engine watches all runs that are waited for, as long as there are any. It looks when the store has news,
at a pace that falls with the number of runs, and every second in any case. An execution that ends in this engine wakes
those who wait for its run at once.

Invariant: a waiter that registered before the thread looked at a run is woken if the run ends afterwards.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from holdfast.errors import HoldfastError
from holdfast.execution.lease import is_alive
from holdfast.history.context import StoreContext
from holdfast.model.records import ENDED, RunRecord
from holdfast.model.run_detail import RunDetail, Wait, detail_of
from holdfast.store.protocol import Store
from holdfast.workflow.definition import workflows

#: Seconds between looks while the store has no news; between looks in any case, and more for each run watched.
_REST = 1.0
_PAUSE = 0.02
_PAUSE_PER_RUN = 0.002

Wake = Callable[[], object]


def can_go_on(store: Store, run: RunRecord, now: int) -> bool:
    """Is a run suspended, has what it waits for come, and does this process know its code? Workers may know others."""
    waits = run.status == "suspended" and run.workflow in workflows() and not is_alive(run, now)
    return waits and ready(store, run, now)


def ready(store: Store, run: RunRecord, now: int) -> bool:
    """Return whether a suspended run would continue if it were resumed."""
    facts = detail_of(run)
    return not facts.waits or any(
        not wait.idle and has_come(store, run, facts, wait, now) for wait in facts.waits
    )


def has_come(
    store: Store, run: RunRecord, facts: RunDetail, wait: Wait, now: int, around: frozenset[str] = frozenset()
) -> bool:
    """Return whether a wait of a run is over. A wait for a child run is over when the child has ended or can be
    resumed."""
    if wait.kind != "run":
        return facts.is_over(wait, now)
    child = store.run(wait.name)
    if child is None or child.status not in ("suspended", "paused", "running", "stalled"):
        return True
    if child.status == "running":
        return not is_alive(child, now)
    if child.status != "suspended" or child.id in around:
        return False
    its = detail_of(child)
    around = around | {run.id}
    return not its.waits or any(
        not each.idle and has_come(store, child, its, each, now, around) for each in its.waits
    )


class Endings:
    """The runs of one engine's store that coroutines wait for."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self.reset_after_fork()

    def reset_after_fork(self) -> None:
        """In the child after a fork: the thread, and those who wait, stayed with the parent."""
        self._lock = threading.Lock()
        self._waiting: dict[str, list[Wake]] = {}
        self._watching = False

    def add(self, run_id: str, wake: Wake) -> None:
        """Call `wake`, in any thread, when a run may be over; perhaps more than once, and perhaps too early."""
        with self._lock:
            self._waiting.setdefault(run_id, []).append(wake)
            if not self._watching:
                threading.Thread(target=self._watch, name="holdfast endings", daemon=True).start()
                self._watching = True

    def remove(self, run_id: str, wake: Wake) -> None:
        """Do not call `wake` any more."""
        with self._lock:
            left = [each for each in self._waiting.get(run_id, ()) if each is not wake]
            if left:
                self._waiting[run_id] = left
            else:
                self._waiting.pop(run_id, None)

    def wake(self, run_id: str) -> None:
        """Wake those who wait for a run."""
        if run_id in self._waiting:
            with self._lock:
                waiting = list(self._waiting.get(run_id, ()))
            for wake in waiting:
                wake()

    def _watch(self) -> None:
        store = self._context.store
        while True:
            with self._lock:
                names = list(self._waiting)
                if not names:
                    self._watching = False
                    return
            try:
                store.wait_for_change(_REST)
                for name in names:
                    run = store.run(name)
                    if run is None or run.status in ENDED or can_go_on(store, run, self._context.clock()):
                        self.wake(name)
            except HoldfastError:
                # The store is closed or away: those who wait find out when they look.
                for name in names:
                    self.wake(name)
                time.sleep(_REST)
            time.sleep(_PAUSE + _PAUSE_PER_RUN * len(names))
