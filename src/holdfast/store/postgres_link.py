"""The link to a PostgreSQL server: a small pool of connections, transactions, and what to do when one is lost.

A connection that fails takes all idle ones with it: after a restart of the server they are all dead. Reads are
repeated on another until the store's time is over. A transaction that was lost before its COMMIT is repeated too;
during it, the server is asked what became of it.

Invariant: what `transact` returns has been committed once; when it raises, nothing was written, unless it raises
`CommitUnknown`.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg import generators
from psycopg.conninfo import make_conninfo
from psycopg.types.numeric import Int8BinaryDumper

from holdfast.errors import CommitUnknown, HoldfastError, StoreBusy, StoreUnavailable
from holdfast.store.postgres_errors import (
    LinkLost,
    Repeat,
    closed,
    is_lost,
    is_starting,
    is_to_be_repeated,
    may_come_back,
    translated,
    unreachable,
)
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
        #: Statements that the server has prepared for it, and their names there (see `postgres_wire`).
        self.prepared: dict[bytes, bytes] = {}

    def roll_back(self, to: str = "") -> None:
        """Undo a transaction, or what came after a savepoint. Beneath psycopg, which would have the server forget all
        that it has prepared."""
        with self.lock:
            self.pgconn.send_query(f"ROLLBACK TO {to}".encode() if to else b"ROLLBACK")
            self.wait(generators.execute(self.pgconn))

    def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
        return super().wait(gen, interval, self.limit if timeout is None else timeout)


class Link:
    """One server, for all threads of a process."""

    def __init__(self, address: Address, durability: str, timeout: float) -> None:
        self.address = address
        self.shown = address.shown
        self.timeout = timeout
        self.time = ServerTime()
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
        self._abandoned.append(getattr(self, "_idle", None))
        self._free = threading.Condition()
        self._idle: list[Connection] = []
        self._count = 0
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
        `limit` is tried a second time, with more time, in case it is slow and not lost."""
        patience = Patience(self.timeout)
        while True:
            try:
                with self.lend(patience, limit=limit) as connection:
                    return work(connection)
            except LinkLost as lost:
                limit = max(limit, self.timeout)
                if not patience.again():
                    raise unreachable(lost.error, self.shown) from lost.error
            except Repeat as undone:
                if not patience.again():
                    raise translated(undone.error, self.shown, self.timeout) from undone.error

    def transact(
        self, work: Callable[[Connection], T], *, once: bool = False, limit: float | None = None
    ) -> T:
        """Do something in a transaction; `once` if it cannot be done a second time, with a `limit` for each statement
        if one may take long."""
        patience = Patience(self.timeout)
        while True:
            transaction: str | None = None
            begun = False
            try:
                with self.lend(patience, limit=ANSWER) as connection:
                    began = _begin(connection)
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
                self.lend(patience, limit=self.timeout) as connection,
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

    @contextlib.contextmanager
    def lend(self, patience: Patience, *, limit: float | None = None) -> Iterator[Connection]:
        """A connection for the length of a `with`. Errors of the driver become ours, or `LinkLost`, `Repeat`."""
        connection = self._take(patience)
        connection.limit = limit
        try:
            yield connection
        except psycopg.Error as error:
            if is_lost(error, connection.closed):
                self._lose(connection)
                raise LinkLost(error) from error
            self._give_back(connection)
            if is_to_be_repeated(error):
                raise Repeat(error) from error
            raise translated(error, self.shown, self.timeout) from error
        except Exception:
            self._give_back(connection)
            raise
        except BaseException:
            # Interrupted anywhere: nobody knows in which state it is.
            self._drop(connection)
            raise
        self._give_back(connection)

    def vacuum(self, tables: Sequence[str]) -> None:
        """Make the space of what was deleted usable again."""
        self.read(lambda connection: connection.execute(f"VACUUM {', '.join(tables)}"), limit=LONG)

    def close(self) -> None:
        """Close every connection that is not in use."""
        with self._free:
            self._closed = True
            idle, self._idle = self._idle, []
            if self._pid != os.getpid():
                return
            self._free.notify_all()
        for connection in idle:
            self._drop(connection)

    def open(self) -> Connection:
        """A connection beside the pool, to be closed by whoever asked for it."""
        if self._closed:
            raise closed(self.shown)
        try:
            return self._connect()
        except psycopg.Error as error:
            raise LinkLost(error) from error

    def open_first(self) -> None:
        """Make the first connection: what is wrong with the address is told at once, a server that is just starting is
        waited for."""
        patience = Patience(self.timeout)
        while True:
            try:
                connection = self._connect()
                break
            except psycopg.Error as error:
                if not is_starting(error) or not patience.again():
                    raise unreachable(error, self.shown) from error
        self._count = 1
        self._idle.append(connection)

    # The pool

    def _take(self, patience: Patience) -> Connection:
        if self._pid != os.getpid():
            self.start_anew()
        with self._free:
            while True:
                if self._closed:
                    raise closed(self.shown)
                if self._idle:
                    return self._idle.pop()
                if self._count < self.address.connections:
                    self._count += 1
                    break
                if not self._free.wait(patience.left()) and not self._idle:
                    raise StoreBusy(
                        f"all {self.address.connections} connections to {self.shown} were in use for "
                        f"{self.timeout:g} s: try again, or open it with a larger pool="
                    )
        try:
            return self._connect()
        except psycopg.Error as error:
            self._forget_one()
            if may_come_back(error):
                raise LinkLost(error) from error
            raise unreachable(error, self.shown) from error
        except BaseException:
            self._forget_one()
            raise

    def _give_back(self, connection: Connection) -> None:
        try:
            if not connection.closed and connection.info.transaction_status:
                connection.limit = 5.0
                connection.roll_back()
        except psycopg.Error:
            self._drop(connection)
            return
        with self._free:
            if not self._closed and not connection.closed and self._pid == os.getpid():
                self._idle.append(connection)
                self._free.notify()
                return
        self._drop(connection)

    def _lose(self, connection: Connection) -> None:
        with self._free:
            idle, self._idle = self._idle, []
        for one in (connection, *idle):
            self._drop(one)

    def _drop(self, connection: Connection) -> None:
        with contextlib.suppress(psycopg.Error, OSError):
            connection.close()
        self._forget_one()

    def _forget_one(self) -> None:
        with self._free:
            self._count -= 1
            self._free.notify()

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


def _begin(connection: Connection) -> str:
    """Begin a transaction, in one round trip; gives the number by which the server knows it."""
    found = connection.execute("BEGIN; SELECT pg_current_xact_id()::text")
    found.nextset()
    row = found.fetchone()
    assert row is not None
    return str(row[0])
