"""A small pool of connections to a PostgreSQL server: transactions, and what to do when a connection is lost.

When a connection fails, all idle ones are closed: after a restart of the server they are dead. Reads are repeated on
another connection until the store's timeout. A transaction that was lost before its COMMIT is repeated too; after a
COMMIT without an answer, the server is asked whether it was committed.

A thread that a signal handler interrupts may leave a connection that it has borrowed (see `interrupts`): its slot in
the pool records the frame of the borrower, and is freed once that function has ended.

Invariant: work that `write` returns from was committed once; when it raises, nothing was written, unless it raises
`CommitUnknown`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg.types.array import ListBinaryDumper
from psycopg.types.numeric import Int8BinaryDumper

from holdfast.errors import CommitUnknown, HoldfastError, StoreBusy, StoreUnavailable
from holdfast.store.interrupts import POLL_INTERVAL, current_frame, has_returned
from holdfast.store.postgres.connection import (
    ConnectionLost,
    PostgresConnection,
    RetryDeadline,
    Row,
    ServerTime,
    TransactionAborted,
    closed_error,
    is_full,
    is_lost,
    is_repeatable,
    is_starting,
    may_come_back,
    refuse_transaction_pool,
    translate_error,
    unreachable_error,
)
from holdfast.store.postgres.url import PostgresAddress
from holdfast.store.process_fork import reset_in_children

T = TypeVar("T")

#: Seconds after which the connection of a short statement without an answer counts as lost.
ANSWER = 5.0
#: The same for slow statements.
_SLOW_ANSWER = 3600.0
#: The oldest supported version.
_OLDEST = 130000
#: The settings of a session: the schema $1, milliseconds to wait for a lock $2, whether commits are durable $3.
#: The lock timeout is shorter than `ANSWER`, so that the server reports that a statement waits for a lock. The time
#: without a statement in a transaction is longer than the source of an import may take; a dead client is noticed
#: earlier. Durable commits keep a stricter setting of the server, such as waiting for standbys.
_CONFIGURE = """
SELECT set_config('search_path', $1, false),
    set_config('lock_timeout', $2, false),
    set_config('default_transaction_isolation', 'read committed', false),
    set_config('jit', 'off', false),
    set_config('idle_in_transaction_session_timeout', '300000', false),
    set_config('tcp_keepalives_idle', '5', false),
    set_config('tcp_keepalives_interval', '2', false),
    set_config('tcp_keepalives_count', '3', false),
    set_config('client_min_messages', 'warning', false),
    set_config(
        'synchronous_commit',
        CASE WHEN NOT $3 THEN 'off'
            WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
            ELSE current_setting('synchronous_commit') END,
        false
    )
"""


class PoolSlot:
    """A slot of the pool: its connection, once it is open, and the frame of the function that has borrowed it."""

    __slots__ = ("borrower", "connection")

    def __init__(self, borrower: FrameType | None, connection: PostgresConnection | None = None) -> None:
        self.borrower = borrower
        self.connection = connection


class ConnectionScope:
    """Lends a connection for the length of a `with`. Errors of the driver become Holdfast's, `ConnectionLost` or
    `TransactionAborted`."""

    __slots__ = ("_deadline", "_limit", "_pool", "_slot")

    def __init__(self, pool: PostgresPool, deadline: RetryDeadline, limit: float | None) -> None:
        self._pool = pool
        self._deadline = deadline
        self._limit = limit

    def __enter__(self) -> PostgresConnection:
        self._slot = slot = self._pool.take(self._deadline, current_frame(1))
        connection = self._pool.connect_slot(slot)
        connection.limit = self._limit
        return connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        pool, slot = self._pool, self._slot
        if isinstance(error, psycopg.Error):
            if is_lost(error, slot.connection is None or slot.connection.closed):
                was_slow = slot.connection is not None and slot.connection.was_slow
                pool.drop_all_idle(slot)
                raise ConnectionLost(error, was_slow=was_slow) from error
            pool.give_back(slot)
            if is_repeatable(error):
                raise TransactionAborted(error) from error
            raise pool.translate(error) from error
        if error is None or isinstance(error, Exception):
            pool.give_back(slot)
        else:
            # Interrupted at any point: the state of the connection is unknown.
            pool.drop(slot)


class PostgresPool:
    """The connections of one process to a server, shared by its threads."""

    def __init__(
        self,
        address: PostgresAddress,
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
        self.reset_after_fork()
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Start without connections: at first, and in a child, where the parent's are neither used nor closed."""
        self._abandoned.append(getattr(self, "_slots", None))
        self._mutex = threading.RLock()
        #: All slots in use; the ones whose connection is not borrowed; the threads that wait for one.
        self._slots: list[PoolSlot] = []
        self._idle: list[PoolSlot] = []
        self._waiting: deque[threading.Lock] = deque()
        #: When the pool last looked for interrupted borrowers.
        self._reclaimed_at = 0.0
        self._pid = os.getpid()

    # Statements

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return the rows of one query."""
        return self.read(lambda connection: connection.rows(statement, values))

    def row(self, statement: str, values: Sequence[Any] = ()) -> Row | None:
        """Return the first row of one query; None if there is none."""
        return self.read(lambda connection: connection.row(statement, values))

    def read(self, work: Callable[[PostgresConnection], T], *, slow: bool = False) -> T:
        """Run a job that may be repeated, on another connection if the first is lost. A job that got no answer in time
        is tried again with more time, in case it is slow and not lost. After a broken connection, the next one gets no
        more time than the first: if that one is silent, there must be time for another."""
        deadline = RetryDeadline(self.timeout)
        limit = allowed = _SLOW_ANSWER if slow else ANSWER
        while True:
            try:
                with self.lend(deadline, limit=allowed) as connection:
                    return work(connection)
            except ConnectionLost as lost:
                allowed = max(limit, self.timeout) if lost.was_slow else limit
                if not deadline.pause():
                    raise unreachable_error(lost.error, self.shown) from lost.error
            except TransactionAborted as aborted:
                if not deadline.pause():
                    raise self.translate(aborted.error) from aborted.error

    def write(
        self,
        work: Callable[[PostgresConnection], T],
        *,
        once: bool = False,
        atomic: bool = False,
        slow: bool = False,
        synced: bool = False,
        idle: float | None = None,
    ) -> T:
        """Run a job in a transaction: `once` if it cannot be repeated, `slow` if a statement may take long, `synced` if
        the commit must survive a power failure in a `fast` store too. `atomic` has no effect: all jobs are. After
        `idle` seconds without a statement the server ends the transaction: this process was suspended, and others wait
        for its locks."""
        deadline = RetryDeadline(self.timeout)
        while True:
            transaction: str | None = None
            has_started = False
            try:
                with self.lend(deadline, limit=ANSWER) as connection:
                    number = _begin(connection, idle, synced)
                    connection.limit = _SLOW_ANSWER if slow else self.timeout
                    has_started = True
                    result = work(connection)
                    transaction = number
                    connection.execute("COMMIT")
                    return result
            except ConnectionLost as lost:
                if transaction is not None and self._was_committed(transaction, deadline, lost):
                    return result
                if (once and has_started) or not deadline.pause():
                    raise unreachable_error(lost.error, self.shown) from lost.error
            except TransactionAborted as aborted:
                if once or not deadline.pause():
                    raise self.translate(aborted.error) from aborted.error

    def _was_committed(self, transaction: str, deadline: RetryDeadline, lost: ConnectionLost) -> bool:
        """Ask the server about a transaction whose COMMIT was not answered."""
        while True:
            # Whatever prevents the question, the outcome is still unknown.
            with (
                contextlib.suppress(ConnectionLost, TransactionAborted, HoldfastError),
                self.lend(deadline, limit=ANSWER) as connection,
            ):
                row = connection.execute("SELECT pg_xact_status($1::xid8)", (transaction,)).fetchone()
                status = None if row is None else row[0]
                if status in ("committed", "aborted"):
                    return bool(status == "committed")
                if status is None:
                    break
            if not deadline.pause():
                break
        raise CommitUnknown(
            f"the connection to {self.shown} was lost during a commit, and the outcome is unknown: read what was to be "
            "written"
        ) from lost.error

    def lend(self, deadline: RetryDeadline, *, limit: float | None = None) -> ConnectionScope:
        """Return a scope that lends a connection; `limit` is the number of seconds to wait for each answer."""
        return ConnectionScope(self, deadline, limit)

    def translate(self, error: psycopg.Error) -> HoldfastError:
        """Return the error of Holdfast for one of a statement."""
        return translate_error(error, self.shown, self.timeout)

    def vacuum(self, tables: Sequence[str], *, briefly: bool = False) -> None:
        """Make the space of deleted rows usable again. With `briefly`, skip tables that are being vacuumed or changed,
        and do not return space to the file system, which would lock out their readers."""
        options = "(SKIP_LOCKED, TRUNCATE FALSE) " if briefly else ""
        self.read(lambda connection: connection.execute(f"VACUUM {options}{', '.join(tables)}"), slow=True)

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
        for slot in idle:
            self.drop(slot)

    def open(self) -> PostgresConnection:
        """Open a connection outside the pool; the caller closes it."""
        if self._closed:
            raise closed_error(self.shown)
        try:
            return self._connect()
        except psycopg.Error as error:
            raise ConnectionLost(error) from error

    def open_first(self) -> None:
        """Open the first connection: raise an error in the address at once, wait for a server that is starting or has
        no free connection."""
        deadline = RetryDeadline(self.timeout)
        while True:
            try:
                connection = self._connect()
                refuse_transaction_pool(connection, self._connect, self.shown)
                break
            except psycopg.Error as error:
                if not (is_starting(error) or is_full(error)) or not deadline.pause():
                    raise unreachable_error(error, self.shown) from error
        slot = PoolSlot(None, connection)
        self._slots.append(slot)
        self._idle.append(slot)

    # The pool

    def take(self, deadline: RetryDeadline, borrower: FrameType) -> PoolSlot:
        """Lend a slot to the function with a frame; wait until there is one."""
        if self._pid != os.getpid():
            self.reset_after_fork()
        while True:
            wake: threading.Lock | None = None
            with self._mutex:
                if self._closed:
                    raise closed_error(self.shown)
                slot = self._free_slot(borrower)
                if slot is not None:
                    return slot
                wake = threading.Lock()
                wake.acquire()
                self._waiting.append(wake)
            try:
                left = deadline.left()
                # The thread that should wake this one may have been interrupted.
                if (
                    not wake.acquire(timeout=min(POLL_INTERVAL, left))
                    and left <= POLL_INTERVAL
                    and not self._idle
                ):
                    raise StoreBusy(
                        f"all {self.address.connections} connections to {self.shown} were in use for "
                        f"{self.timeout:g} s: try again, or open it with a larger pool="
                    )
            finally:
                with contextlib.suppress(ValueError):
                    self._waiting.remove(wake)

    def _free_slot(self, borrower: FrameType) -> PoolSlot | None:
        now = time.monotonic()
        if len(self._slots) > len(self._idle) and now > self._reclaimed_at + POLL_INTERVAL:
            self._reclaimed_at = now
            self._reclaim()
        if self._idle:
            slot = self._idle.pop()
            slot.borrower = borrower
        elif len(self._slots) < self.address.connections:
            slot = PoolSlot(borrower)
            self._slots.append(slot)
        else:
            return None
        return slot

    def _reclaim(self) -> None:
        """Free the slots of interrupted borrowers, with the mutex held."""
        for slot in [slot for slot in self._slots if slot not in self._idle]:
            if slot.borrower is None or has_returned(slot.borrower):
                self.drop(slot)

    def connect_slot(self, slot: PoolSlot) -> PostgresConnection:
        """Return the connection of a slot; open it if there is none yet."""
        if slot.connection is not None:
            return slot.connection
        try:
            slot.connection = self._connect()
            return slot.connection
        except psycopg.Error as error:
            self.drop(slot)
            if may_come_back(error):
                raise ConnectionLost(error) from error
            raise unreachable_error(error, self.shown) from error
        except BaseException:
            self.drop(slot)
            raise

    def give_back(self, slot: PoolSlot) -> None:
        """Return a slot to the pool; roll back an open transaction."""
        connection = slot.connection
        try:
            if connection is not None and not connection.closed and connection.info.transaction_status:
                connection.limit = 5.0
                connection.roll_back()
        except psycopg.Error:
            self.drop(slot)
            return
        with self._mutex:
            is_usable = connection is not None and not connection.closed
            if is_usable and not self._closed and slot in self._slots:
                self._idle.append(slot)
                slot.borrower = None
                self._wake_one()
                return
        self.drop(slot)

    def drop_all_idle(self, slot: PoolSlot) -> None:
        """Drop a slot whose connection is lost, and all idle ones."""
        with self._mutex:
            idle, self._idle = self._idle, []
        for one in (slot, *idle):
            self.drop(one)

    def drop(self, slot: PoolSlot) -> None:
        """Close the connection of a slot, and free the slot."""
        if slot.connection is not None and self._pid == os.getpid():
            with contextlib.suppress(psycopg.Error, OSError):
                slot.connection.close()
        with self._mutex:
            if slot in self._slots:
                self._slots.remove(slot)
            self._wake_one()

    def _wake_one(self) -> None:
        if self._waiting:
            self._waiting.popleft().release()

    def _connect(self) -> PostgresConnection:
        connection = PostgresConnection.connect(
            make_conninfo("", **self.address.libpq), autocommit=True, cursor_factory=psycopg.RawCursor
        )
        try:
            version = server_version(connection)
            if version < _OLDEST:
                raise StoreUnavailable(
                    f"{self.shown} runs PostgreSQL {version // 10000}: Holdfast needs {_OLDEST // 10000} or newer"
                )
            connection.limit = 10.0
            # One type for numbers of all sizes, so that a statement is prepared once.
            connection.adapters.register_dumper(int, Int8BinaryDumper)
            connection.adapters.register_dumper(list, ListBinaryDumper)
            lock_timeout = str(max(1, int(min(self.timeout, 4.0) * 1000)))
            connection.execute(_CONFIGURE, (quote_name(self.address.schema), lock_timeout, self._durable))
            self.time.measure(connection)
        except BaseException:
            connection.close()
            raise
        return connection


def server_version(connection: PostgresConnection) -> int:
    """Return the server's version as libpq counts: 130004 is 13.4."""
    return connection.info.server_version


def quote_name(name: str) -> str:
    """Return a name as an identifier in SQL."""
    return '"' + name.replace('"', '""') + '"'


def _begin(connection: PostgresConnection, idle: float | None, synced: bool) -> str:
    """Start a transaction in one round trip; return its number on the server."""
    settings = ""
    if idle is not None:
        settings += f"SET LOCAL idle_in_transaction_session_timeout = {round(idle * 1000)}; "
    if synced:
        settings += "SET LOCAL synchronous_commit = on; "
    found = connection.execute(f"BEGIN; {settings}SELECT pg_current_xact_id()::text")
    # The last result is that of the SELECT.
    while found.nextset():
        pass
    row = found.fetchone()
    assert row is not None
    return str(row[0])
