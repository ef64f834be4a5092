"""Notifications between processes that something was written: NOTIFY after commits, LISTEN for waiting threads.

Notifications only wake readers of the journal, which also poll. A commit does not contain its NOTIFY: PostgreSQL
commits only one transaction with a NOTIFY at a time, in the whole server; instead a thread sends one NOTIFY for all
commits of a moment, right after them.

Invariant: after a commit of a process that keeps running, all listeners are notified.
"""

from __future__ import annotations

import contextlib
import threading
from hashlib import sha256

import psycopg

from holdfast.errors import HoldfastError
from holdfast.store.interrupts import InterruptSafeEvent
from holdfast.store.postgres.connection import ConnectionLost, PostgresConnection, closed_error
from holdfast.store.postgres.connection_pool import PostgresPool

#: Seconds between two notifications.
_PAUSE = 0.02
#: Seconds after which a listener checks its connection, or reconnects.
_RECONNECT = 1.0


def channel(schema: str) -> str:
    """Return the name of the channel of a store."""
    return f"holdfast_{sha256(schema.encode()).hexdigest()[:16]}"


class ChangeNotifier:
    """Notifies other processes that something was written."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._channel = channel(pool.address.schema)
        self.reset()

    def reset(self) -> None:
        """Start without a thread: at first, and in a child after a fork."""
        self._wake = InterruptSafeEvent()
        self._pending = False
        self._closed = InterruptSafeEvent()
        self._thread: threading.Thread | None = None

    def notify(self) -> None:
        """Send a notification soon."""
        self._pending = True
        self._wake.set()
        if not self._closed.is_set() and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._work, name="holdfast notifier", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Send a pending notification, then stop."""
        self._closed.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _work(self) -> None:
        own = threading.current_thread()
        while self._thread is own:
            self._wake.wait()
            closing = self._closed.is_set()
            self._wake.clear()
            if self._pending:
                self._pending = False
                with contextlib.suppress(HoldfastError):
                    self._pool.read(self._send)
            if closing:
                return
            self._closed.wait(_PAUSE)

    def _send(self, connection: PostgresConnection) -> None:
        connection.execute(f"BEGIN; SET LOCAL synchronous_commit = off; NOTIFY {self._channel}; COMMIT")


class ChangeListener:
    """Waits for notifications on a connection of its own, for all threads of this process."""

    def __init__(self, pool: PostgresPool) -> None:
        self._pool = pool
        self._channel = channel(pool.address.schema)
        self.reset()

    def reset(self) -> None:
        """Start without a thread: at first, and in a child after a fork."""
        self._lock = threading.RLock()
        #: Set when a notification arrives, and replaced by a new one.
        self._arrived = InterruptSafeEvent()
        #: The number of notifications, and the number that each thread has seen.
        self._count = 0
        self._known = threading.local()
        self._closed = InterruptSafeEvent()
        self._thread: threading.Thread | None = None

    def wait(self, timeout: float) -> bool:
        """Wait for a notification that this thread has not seen; return whether there is one."""
        if self._closed.is_set():
            raise closed_error(self._pool.shown)
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="holdfast listener", daemon=True)
                self._thread.start()
        # In this order: a notification after this line sets the event.
        arrived = self._arrived
        known = getattr(self._known, "count", self._count)
        if self._count == known:
            arrived.wait(timeout)
        self._known.count = count = self._count
        return count != known

    def close(self) -> None:
        """Stop listening."""
        self._closed.set()
        self._arrived.set()

    def _work(self) -> None:
        own = threading.current_thread()
        while not self._closed.is_set() and self._thread is own:
            try:
                with self._pool.open() as connection:
                    connection.execute(f"LISTEN {self._channel}")
                    # For commits while this process did not listen.
                    self._count_one()
                    while not self._closed.is_set() and self._thread is own:
                        # A silent connection may be dead: a statement finds out.
                        if list(connection.notifies(timeout=_RECONNECT, stop_after=1)):
                            self._count_one()
                        elif not self._closed.is_set():
                            connection.execute("SELECT 1")
            except (psycopg.Error, ConnectionLost, HoldfastError):
                self._count_one()
                self._closed.wait(_RECONNECT)

    def _count_one(self) -> None:
        self._count += 1
        arrived, self._arrived = self._arrived, InterruptSafeEvent()
        arrived.set()
