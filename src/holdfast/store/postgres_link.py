"""The link to a PostgreSQL server: a small pool of connections, transactions, and what to do when one is lost.

A connection that fails takes all idle ones with it: after a restart of the server they are all dead. Reads are
repeated on another until the store's time is over. A transaction that was lost before its COMMIT is repeated too;
during it, the server is asked what became of it.

A thread that a signal handler interrupts may leave a connection that it was lent (see `interrupts`): its place in the
pool records the frame of the borrower, and is freed once that is gone.

Invariant: what `transact` returns has been committed once; when it raises, nothing was written, unless it raises
`CommitUnknown`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

import psycopg
from psycopg import generators
from psycopg.conninfo import make_conninfo
from psycopg.types.numeric import Int8BinaryDumper

from holdfast.errors import CommitUnknown, HoldfastError, StoreBusy, StoreUnavailable
from holdfast.store.interrupts import LOOK, is_gone
from holdfast.store.postgres_errors import (
    LinkLost,
    Repeat,
    closed,
    is_full,
    is_lost,
    is_starting,
    is_to_be_repeated,
    may_come_back,
    translated,
    unreachable,
)
from holdfast.store.postgres_pool_mode import refuse_transaction_pool
from holdfast.store.postgres_time import ServerTime
from holdfast.store.postgres_url import Address
from holdfast.store.sqlite_fork import before_forks

T = TypeVar("T")
Row = tuple[Any, ...]

#: Seconds after which a short statement that was not answered is taken for lost.
ANSWER = 5.0
#: For statements that may have much to do.
LONG = 3600.0
#: The oldest server that has all we use.
_OLDEST = 130000
_SETTINGS = {
    "search_path": "%(schema)s",
    "default_transaction_isolation": "'read committed'",
    "jit": "'off'",
    # Shorter than `ANSWER`: that it waits for another is the server's to say.
    "lock_timeout": "%(patience)s",
    # Longer than a source of an import may take; a client that is gone is noticed earlier.
    "idle_in_transaction_session_timeout": "'300000'",
    "tcp_keepalives_idle": "'5'",
    "tcp_keepalives_interval": "'2'",
    "tcp_keepalives_count": "'3'",
    "client_min_messages": "'warning'",
}
#: A server that is to do more than we ask for, wait for standbys for instance, goes on doing so.
_DURABLE = (
    "CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on' "
    "ELSE current_setting('synchronous_commit') END"
)


class Connection(psycopg.Connection[Row]):
    """A connection that does not wait for ever: a network may swallow an answer without a word."""

    #: Seconds for which an answer is waited for.
    limit: float | None = None

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        #: Was its last error that an answer did not come within the limit?
        self.was_slow = False
        #: Statements that the server has prepared for it, and their names there (see `postgres_wire`).
        self.prepared: dict[bytes, bytes] = {}

    def roll_back(self, to: str = "") -> None:
        """Undo a transaction, or what came after a savepoint. Beneath psycopg, which would have the server forget all
        that it has prepared."""
        with self.lock:
            self.pgconn.send_query(f"ROLLBACK TO {to}".encode() if to else b"ROLLBACK")
            self.wait(generators.execute(self.pgconn))

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        limit = self.limit if timeout is None else timeout
        began = time.monotonic()
        try:
            return super().wait(gen, interval, limit)
        except psycopg.Error:
            self.was_slow = limit is not None and time.monotonic() - began >= limit
            raise


class _Place:
    """A place in the pool: its connection, once it is made, and the frame of the function that it is lent to."""

    __slots__ = ("borrower", "connection")

    def __init__(self, borrower: FrameType | None, connection: Connection | None = None) -> None:
        self.borrower = borrower
        self.connection = connection


class Lending:
    """A connection for the length of a `with`. Errors of the driver become ours, or `LinkLost`, `Repeat`."""

    __slots__ = ("_limit", "_link", "_patience", "_place")

    def __init__(self, link: Link, patience: Patience, limit: float | None) -> None:
        self._link = link
        self._patience = patience
        self._limit = limit

    def __enter__(self) -> Connection:
        self._place = place = self._link._take(self._patience, sys._getframe(1))
        connection = self._link._connected(place)
        connection.limit = self._limit
        return connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        link, place = self._link, self._place
        if isinstance(error, psycopg.Error):
            if is_lost(error, place.connection is None or place.connection.closed):
                was_slow = place.connection is not None and place.connection.was_slow
                link._lose(place)
                raise LinkLost(error, was_slow=was_slow) from error
            link._give_back(place)
            if is_to_be_repeated(error):
                raise Repeat(error) from error
            raise translated(error, link.shown, link.timeout) from error
        if error is None or isinstance(error, Exception):
            link._give_back(place)
        else:
            # Interrupted anywhere: its state is unknown.
            link._drop(place)


class Link:
    """One server, for all threads of a process."""

    def __init__(
        self,
        address: Address,
        durability: str,
        timeout: float,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self.address = address
        self.shown = address.shown
        self.timeout = timeout
        self.time = ServerTime(clock)
        self._durable = durability == "durable"
        self._closed = False
        self._abandoned: list[Any] = []
        self.start_anew()
        before_forks(self)

    # For forks of the process

    def suspend(self) -> None:
        """Before a fork: connections may stay open, the child does not touch them."""

    def resume(self) -> None:
        """After a fork, in the parent."""

    def start_anew(self) -> None:
        """At first, and in a child after a fork, where connections of the parent are neither used nor closed."""
        self._abandoned.append(getattr(self, "_places", None))
        self._mutex = threading.RLock()
        #: All places that are taken; those of them whose connection is free; those who wait for one.
        self._places: list[_Place] = []
        self._idle: list[_Place] = []
        self._waiting: deque[threading.Lock] = deque()
        #: When it was last looked whether borrowers are gone.
        self._looked = 0.0
        self._pid = os.getpid()

    # Statements

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """What one statement reads."""
        if any(isinstance(value, str) and "\0" in value for value in values):
            # PostgreSQL has no such text, and does not let it be asked for.
            return []
        return self.read(lambda connection: connection.execute(statement, values, binary=True).fetchall())

    def read(self, work: Callable[[Connection], T], *, limit: float = ANSWER) -> T:
        """Do something that may be done again: on another connection if the first one is lost. What takes longer than
        `limit` is tried a second time, with more time, in case it is slow and not lost. After a connection that broke,
        the next one gets no more time than the first: if that one is silent, there must be time for another."""
        patience = Patience(self.timeout)
        allowed = limit
        while True:
            try:
                with self.lend(patience, limit=allowed) as connection:
                    return work(connection)
            except LinkLost as lost:
                allowed = max(limit, self.timeout) if lost.was_slow else limit
                if not patience.again():
                    raise unreachable(lost.error, self.shown) from lost.error
            except Repeat as undone:
                if not patience.again():
                    raise translated(undone.error, self.shown, self.timeout) from undone.error

    def transact(
        self,
        work: Callable[[Connection], T],
        *,
        once: bool = False,
        limit: float | None = None,
        idle: float | None = None,
    ) -> T:
        """Do something in a transaction; `once` if it cannot be done a second time, with a `limit` for each statement
        if one may take long. After `idle` seconds without a statement the server ends it: this process was stopped,
        and others wait for its locks."""
        patience = Patience(self.timeout)
        while True:
            transaction: str | None = None
            begun = False
            try:
                with self.lend(patience, limit=ANSWER) as connection:
                    began = _begin(connection, idle)
                    connection.limit = limit or self.timeout
                    begun = True
                    result = work(connection)
                    transaction = began
                    connection.execute("COMMIT")
                    return result
            except LinkLost as lost:
                if transaction is not None and self._committed(transaction, patience, lost):
                    return result
                if (once and begun) or not patience.again():
                    raise unreachable(lost.error, self.shown) from lost.error
            except Repeat as undone:
                if once or not patience.again():
                    raise translated(undone.error, self.shown, self.timeout) from undone.error

    def _committed(self, transaction: str, patience: Patience, lost: LinkLost) -> bool:
        """What became of a transaction whose COMMIT was not answered."""
        while True:
            # Whatever keeps us from asking, the answer is still unknown.
            with (
                contextlib.suppress(LinkLost, Repeat, HoldfastError),
                self.lend(patience, limit=ANSWER) as connection,
            ):
                row = connection.execute("SELECT pg_xact_status(%s::xid8)", (transaction,)).fetchone()
                status = None if row is None else row[0]
                if status in ("committed", "aborted"):
                    return bool(status == "committed")
                if status is None:
                    break
            if not patience.again():
                break
        raise CommitUnknown(
            f"the connection to {self.shown} was lost during a commit: look whether it was carried out"
        ) from lost.error

    def lend(self, patience: Patience, *, limit: float | None = None) -> Lending:
        """A connection for the length of a `with`. Errors of the driver become ours, or `LinkLost`, `Repeat`."""
        return Lending(self, patience, limit)

    def vacuum(self, tables: Sequence[str]) -> None:
        """Make the space of what was deleted usable again."""
        self.read(lambda connection: connection.execute(f"VACUUM {', '.join(tables)}"), limit=LONG)

    def close(self) -> None:
        """Close every connection that is not in use."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
            if self._pid != os.getpid():
                return
            self._reclaim()
            while self._waiting:
                self._waiting.popleft().release()
        for place in idle:
            self._drop(place)

    def open(self) -> Connection:
        """A connection beside the pool, to be closed by whoever asked for it."""
        if self._closed:
            raise closed(self.shown)
        try:
            return self._connect()
        except psycopg.Error as error:
            raise LinkLost(error) from error

    def open_first(self) -> None:
        """Make the first connection: an error in the address is raised at once, a server that is just starting, or
        has no connection free, is waited for."""
        patience = Patience(self.timeout)
        while True:
            try:
                connection = self._connect()
                refuse_transaction_pool(connection, self._connect, self.shown)
                break
            except psycopg.Error as error:
                if not (is_starting(error) or is_full(error)) or not patience.again():
                    raise unreachable(error, self.shown) from error
        place = _Place(None, connection)
        self._places.append(place)
        self._idle.append(place)

    # The pool

    def _take(self, patience: Patience, borrower: FrameType) -> _Place:
        """Lend a place to the function whose frame this is; wait until there is one."""
        if self._pid != os.getpid():
            self.start_anew()
        while True:
            bell: threading.Lock | None = None
            with self._mutex:
                if self._closed:
                    raise closed(self.shown)
                place = self._free_place(borrower)
                if place is not None:
                    return place
                bell = threading.Lock()
                bell.acquire()
                self._waiting.append(bell)
            try:
                left = patience.left()
                # The one that owes the wake-up may be gone.
                if not bell.acquire(timeout=min(LOOK, left)) and left <= LOOK and not self._idle:
                    raise StoreBusy(
                        f"all {self.address.connections} connections to {self.shown} were in use for "
                        f"{self.timeout:g} s: try again, or open it with a larger pool="
                    )
            finally:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(bell)

    def _free_place(self, borrower: FrameType) -> _Place | None:
        now = time.monotonic()
        if len(self._places) > len(self._idle) and now > self._looked + LOOK:
            self._looked = now
            self._reclaim()
        if self._idle:
            place = self._idle.pop()
            place.borrower = borrower
        elif len(self._places) < self.address.connections:
            place = _Place(borrower)
            self._places.append(place)
        else:
            return None
        return place

    def _reclaim(self) -> None:
        """Free the places whose borrowers were interrupted, with the mutex held."""
        for place in [place for place in self._places if place not in self._idle]:
            if place.borrower is None or is_gone(place.borrower):
                self._drop(place)

    def _connected(self, place: _Place) -> Connection:
        """Return the connection of a place; make it if there is none yet."""
        if place.connection is not None:
            return place.connection
        try:
            place.connection = self._connect()
            return place.connection
        except psycopg.Error as error:
            self._drop(place)
            if may_come_back(error):
                raise LinkLost(error) from error
            raise unreachable(error, self.shown) from error
        except BaseException:
            self._drop(place)
            raise

    def _give_back(self, place: _Place) -> None:
        connection = place.connection
        try:
            if connection is not None and not connection.closed and connection.info.transaction_status:
                connection.limit = 5.0
                connection.roll_back()
        except psycopg.Error:
            self._drop(place)
            return
        with self._mutex:
            if (
                connection is not None
                and not connection.closed
                and not self._closed
                and place in self._places
            ):
                self._idle.append(place)
                place.borrower = None
                self._wake()
                return
        self._drop(place)

    def _lose(self, place: _Place) -> None:
        with self._mutex:
            idle, self._idle = self._idle, []
        for one in (place, *idle):
            self._drop(one)

    def _drop(self, place: _Place) -> None:
        """Close the connection of a place, and free it."""
        if place.connection is not None and self._pid == os.getpid():
            with contextlib.suppress(psycopg.Error, OSError):
                place.connection.close()
        with self._mutex:
            if place in self._places:
                self._places.remove(place)
            self._wake()

    def _wake(self) -> None:
        if self._waiting:
            self._waiting.popleft().release()

    def _connect(self) -> Connection:
        connection = Connection.connect(make_conninfo("", **self.address.libpq), autocommit=True)
        try:
            version = server_version(connection)
            if version < _OLDEST:
                raise StoreUnavailable(
                    f"{self.shown} runs PostgreSQL {version // 10000}: Holdfast needs {_OLDEST // 10000} or newer"
                )
            connection.limit = 10.0
            # One type for all numbers, whatever their size: statements are prepared once.
            connection.adapters.register_dumper(int, Int8BinaryDumper)
            settings = {**_SETTINGS, "synchronous_commit": _DURABLE if self._durable else "'off'"}
            quoted = '"' + self.address.schema.replace('"', '""') + '"'
            connection.execute(
                "SELECT "
                + ", ".join(f"set_config('{name}', {value}, false)" for name, value in settings.items()),
                {"schema": quoted, "patience": str(max(1, int(min(self.timeout, 4.0) * 1000)))},
            )
            self.time.measure(connection)
        except BaseException:
            connection.close()
            raise
        return connection


class Patience:
    """How long something is tried: pauses that grow, until a time is over."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._pause = 0.01

    def left(self) -> float:
        """Seconds that are left."""
        return max(0.0, self._until - time.monotonic())

    def again(self) -> bool:
        """Pause; tells whether there is time to try again."""
        if self.left() <= self._pause:
            return False
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, 0.5)
        return True


def server_version(connection: Connection) -> int:
    """The server's version as libpq counts: 130004 is 13.4."""
    return connection.info.server_version


def _begin(connection: Connection, idle: float | None) -> str:
    """Begin a transaction, in one round trip; gives the number by which the server knows it."""
    setting = (
        "" if idle is None else f"SET LOCAL idle_in_transaction_session_timeout = {round(idle * 1000)}; "
    )
    found = connection.execute(f"BEGIN; {setting}SELECT pg_current_xact_id()::text")
    while found.nextset():
        """The last result is that of the SELECT."""
    row = found.fetchone()
    assert row is not None
    return str(row[0])
