"""Subscriptions to events.

A subscription reads the journal by cursor, in a thread of its own. Commits of this process, and notifications of the
store about others, wake it, and it polls now and then in any case. So no event is missed, and a subscriber that is
slow or raises affects only itself. Transient events, which are not in the journal (a step that starts, progress, a
replayed step), go to the subscriptions that exist at that moment.

Invariant: a subscription gets every entry of the journal after its cursor once, in order.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

from holdfast.errors import HoldfastError, InvalidCall
from holdfast.history.context import StoreContext
from holdfast.history.journal import read_events
from holdfast.log import warn
from holdfast.model.checks import check_integer
from holdfast.model.names import check_run_id
from holdfast.model.public import Event, when
from holdfast.store.interrupts import InterruptSafeEvent

#: Entries that are read at once; each may hold tens of kilobytes.
_PAGE = 100
#: Seconds between polls of a subscription that was not woken.
_POLL_INTERVAL = 2.0
#: Transient events that are kept for a slow subscriber; older ones are dropped.
_MOST_TRANSIENT = 10_000


class Publisher:
    """The subscriptions of one engine."""

    def __init__(self, context: StoreContext) -> None:
        self._context = context
        self.subscriptions: list[Subscription] = []
        self._lock = threading.Lock()
        #: Is a thread waiting for notifications of the store?
        self._listening = False

    def subscribe(
        self,
        callback: Callable[[Event], Any] | None,
        *,
        kinds: Sequence[str],
        run_id: str | None,
        after: int | None,
    ) -> Subscription:
        """Subscribe from a cursor on; without one, from now on."""
        # A tuple of them, since an iterator can be read only once.
        wanted = tuple(kinds) if isinstance(kinds, Iterable) and not isinstance(kinds, str) else None
        if wanted is None or not all(isinstance(kind, str) for kind in wanted):
            raise InvalidCall('kinds is a list of patterns, such as ["run.*", "step.failed"]')
        if callback is not None and not callable(callback):
            raise InvalidCall("subscribe takes a function of an event")
        if run_id is not None:
            check_run_id(run_id)
        if after is not None:
            check_integer("after", after, 0)
        subscription = Subscription(self, self._context, callback, wanted, run_id, after)
        with self._lock:
            self.subscriptions.append(subscription)
            if not self._listening:
                self._listening = True
                threading.Thread(target=self._listen, name="holdfast notifications", daemon=True).start()
        subscription.start()
        return subscription

    def _listen(self) -> None:
        """Wake the subscriptions when the store reports changes, for as long as there are any."""
        while True:
            with self._lock:
                if not self.subscriptions:
                    self._listening = False
                    return
            try:
                if self._context.store.wait_for_change(_POLL_INTERVAL):
                    self.wake()
            except HoldfastError:
                # Closed, for instance. Subscriptions still poll by themselves.
                self._listening = False
                return

    def wake(self) -> None:
        """Wake the subscriptions: something was committed."""
        for subscription in self.subscriptions:
            subscription.wake()

    def publish(self, run_id: str, kind: str, step: str | None = None, **data: Any) -> None:
        """Publish an event that is not in the journal."""
        if self.subscriptions:
            event = Event(0, run_id, kind, when(self._context.clock()), None, step, data)
            for subscription in self.subscriptions:
                subscription.add(event)

    def drop(self, subscription: Subscription) -> None:
        """Remove a subscription that has ended."""
        with self._lock:
            self.subscriptions = [other for other in self.subscriptions if other is not subscription]

    def reset_after_fork(self) -> None:
        """Reset in the child after a fork: the subscribers are in the parent."""
        self.subscriptions = []
        self._lock = threading.Lock()
        self._listening = False

    def close(self) -> None:
        """End all subscriptions."""
        for subscription in self.subscriptions:
            subscription.close()


class Subscription:
    """A subscriber. Ends with `close`, or with its `with` block."""

    def __init__(
        self,
        publisher: Publisher,
        context: StoreContext,
        callback: Callable[[Event], Any] | None,
        kinds: Sequence[str],
        run_id: str | None,
        after: int | None,
    ) -> None:
        self._publisher = publisher
        self._context = context
        self._callback = callback
        self._kinds = tuple(kinds)
        self._run_id = run_id
        #: The position in the journal up to which events were delivered.
        self.cursor = context.store.journal_end() if after is None else after
        self._transient: deque[Event] = deque(maxlen=_MOST_TRANSIENT)
        self._woken = InterruptSafeEvent()
        self._closed = False
        self._warned = ""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread that calls the callback, if there is one."""
        if self._callback is not None:
            self._thread = threading.Thread(target=self._work, name="holdfast subscription", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Read the journal now."""
        self._woken.set()

    def add(self, event: Event) -> None:
        """Add a transient event."""
        self._transient.append(event)
        self._woken.set()

    def close(self) -> None:
        """End the subscription. A delivery in progress is finished first."""
        self._closed = True
        self._woken.set()
        self._publisher.drop(self)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=5)

    def wait(self, timeout: float | None = None) -> Iterator[Event]:
        """Yield events as they come; end when none came for `timeout` seconds, or when closed."""
        until = None if timeout is None else time.monotonic() + timeout
        while not self._closed:
            came = self._take()
            if came:
                yield from came
                until = None if timeout is None else time.monotonic() + timeout
            elif until is not None and time.monotonic() >= until:
                return
            else:
                left = _POLL_INTERVAL if until is None else until - time.monotonic()
                self._woken.wait(max(0.0, min(_POLL_INTERVAL, left)))
                self._woken.clear()

    def __iter__(self) -> Iterator[Event]:
        return self.wait()

    def __enter__(self) -> Subscription:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self) -> None:
        while True:
            closing = self._closed
            try:
                came = self._take()
            except HoldfastError as error:
                if self._closed:
                    return
                self._warn(error)
                came = []
            for event in came:
                self._deliver(event)
            if closing:
                return
            if not came:
                self._woken.wait(_POLL_INTERVAL)
                self._woken.clear()

    def _deliver(self, event: Event) -> None:
        assert self._callback is not None
        try:
            self._callback(event)
        except Exception:
            warn("a subscriber failed on %s of run %s", event.kind, event.run, trace=True)

    def _take(self) -> list[Event]:
        """Return the events since the last call."""
        found = []
        while self._transient:
            found.append(self._transient.popleft())
        came = [event for event in found if self._wants(event)]
        while True:
            after = self.cursor
            entries, self.cursor = read_events(self._context.store, after=after, limit=_PAGE)
            came += [event for event in entries if self._wants(event)]
            # After a page without a wanted event, read the next one at once.
            if came or self.cursor == after:
                return came

    def _warn(self, error: HoldfastError) -> None:
        if str(error) != self._warned:
            self._warned = str(error)
            warn("a subscription could not read the journal, and tries again: %s", error)

    def _wants(self, event: Event) -> bool:
        if self._run_id is not None and event.run != self._run_id:
            return False
        names = (event.kind, "version.saved") if event.saved else (event.kind,)
        return not self._kinds or any(fnmatchcase(name, pattern) for name in names for pattern in self._kinds)
