"""Word from process to process that something was written: NOTIFY after commits, LISTEN for those who wait.

The journal is the truth, this is only the wake-up: whoever waits looks again now and then in any case. A commit does
not carry its NOTIFY itself, because PostgreSQL lets only one transaction with a NOTIFY commit at a time, in the whole
server; a thread sends one for all commits of a moment, right after them.

Invariant: after a commit of a process that goes on living, those who listen are told.
"""

from __future__ import annotations

import contextlib
import threading
from hashlib import sha256

import psycopg

from holdfast.errors import HoldfastError
from holdfast.store.interrupts import Flag
from holdfast.store.postgres_errors import LinkLost, closed
from holdfast.store.postgres_link import Connection, Link

#: Seconds for which word of commits is gathered.
_PAUSE = 0.02
#: Seconds after which a listener whose connection was lost tries again.
_AGAIN = 1.0


def channel(schema: str) -> str:
    """The name under which word of a store is sent."""
    return f"holdfast_{sha256(schema.encode()).hexdigest()[:16]}"


class Teller:
    """Tells other processes that something was written."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._channel = channel(link.address.schema)
        self.start_anew()

    def start_anew(self) -> None:
        """At first, and in a child after a fork."""
        self._news = Flag()
        self._pending = False
        self._closed = Flag()
        self._thread: threading.Thread | None = None

    def tell(self) -> None:
        """Something was written."""
        self._pending = True
        self._news.set()
        if not self._closed.is_set() and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._work, name="holdfast teller", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Tell what is left to tell, then nothing more."""
        self._closed.set()
        self._news.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _work(self) -> None:
        own = threading.current_thread()
        while self._thread is own:
            self._news.wait()
            closing = self._closed.is_set()
            self._news.clear()
            if self._pending:
                self._pending = False
                with contextlib.suppress(HoldfastError):
                    self._link.read(self._notify)
            if closing:
                return
            self._closed.wait(_PAUSE)

    def _notify(self, connection: Connection) -> None:
        connection.execute(f"BEGIN; SET LOCAL synchronous_commit = off; NOTIFY {self._channel}; COMMIT")


class Listener:
    """Waits for word of other processes, with a connection of its own, for all threads of this one."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._channel = channel(link.address.schema)
        self.start_anew()

    def start_anew(self) -> None:
        """At first, and in a child after a fork."""
        self._lock = threading.RLock()
        #: Set when word comes, and replaced by another.
        self._came = Flag()
        #: How often word has come; what each thread knows of that.
        self._count = 0
        self._known = threading.local()
        self._closed = Flag()
        self._thread: threading.Thread | None = None

    def wait(self, timeout: float) -> bool:
        """Wait until word comes that has not come to this thread before; False if none did."""
        if self._closed.is_set():
            raise closed(self._link.shown)
        with self._lock:
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._work, name="holdfast listener", daemon=True)
                self._thread.start()
        # In this order: what comes after the flag was read, sets it.
        came = self._came
        known = getattr(self._known, "count", self._count)
        if self._count == known:
            came.wait(timeout)
        self._known.count = count = self._count
        return count != known

    def close(self) -> None:
        """Listen no more."""
        self._closed.set()
        self._came.set()

    def _work(self) -> None:
        own = threading.current_thread()
        while not self._closed.is_set() and self._thread is own:
            try:
                with self._link.open() as connection:
                    connection.execute(f"LISTEN {self._channel}")
                    # What was written while nobody listened.
                    self._tell()
                    while not self._closed.is_set() and self._thread is own:
                        # A connection that is silent for long may be dead: a statement finds out.
                        if list(connection.notifies(timeout=_AGAIN, stop_after=1)):
                            self._tell()
                        elif not self._closed.is_set():
                            connection.execute("SELECT 1")
            except (psycopg.Error, LinkLost, HoldfastError):
                self._tell()
                self._closed.wait(_AGAIN)

    def _tell(self) -> None:
        self._count += 1
        came, self._came = self._came, Flag()
        came.set()
