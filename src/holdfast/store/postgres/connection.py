"""A connection to a PostgreSQL server, the server's clock, and the translation of errors.

All machines of a fleet share the server's clock. It is measured when a connection is opened and when leases are
renewed; in between, this machine's monotonic clock continues from there, so this machine's own time has no effect.

Connection pools in transaction mode, such as PgBouncer's `pool_mode = transaction`, may run each transaction in another
session of the server, but this store relies on settings, prepared statements and LISTEN, which belong to a session.

Invariant: `ServerTime.now` differs from the server's time at most by one round trip and the drift since the last
measurement. A connection through a pool is used only if it keeps its session. No error of the driver leaves the store:
it is the cause of one of Holdfast's. No message holds a password.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any, TypeAlias

import psycopg
from psycopg import generators

from holdfast.errors import CorruptStore, HoldfastError, InvalidCall, StoreBusy, StoreUnavailable

Row: TypeAlias = tuple[Any, ...]

#: The time in a statement, by which leases expire.
SERVER_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
#: A clock that also runs while the machine is suspended, where there is one.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


class ServerTime:
    """The server's time, in microseconds since 1970, or the time of a given clock instead."""

    def __init__(self, clock: Callable[[], int] | None = None) -> None:
        self._clock = clock
        #: The difference to the monotonic clock; None before the first measurement.
        self._ahead: int | None = None

    def now(self) -> int:
        """Return the time."""
        return _ticks() + (self._ahead or 0) if self._clock is None else self._clock()

    def stated(self) -> int | None:
        """Return the time for a statement that compares leases; None for the server's own, `SERVER_NOW`."""
        return None if self._clock is None else self._clock()

    def measure(self, connection: PostgresConnection) -> None:
        """Ask the server for its time."""
        before = _ticks()
        time_there = int(connection.value(f"SELECT {SERVER_NOW}"))
        after = _ticks()
        ahead = time_there - (before + after) // 2
        # A difference within the round trip does not change the clock.
        if self._ahead is None or abs(ahead - self._ahead) > after - before:
            self._ahead = ahead


def _ticks() -> int:
    return (time.monotonic_ns() if _CLOCK is None else time.clock_gettime_ns(_CLOCK)) // 1000


class PostgresConnection(psycopg.Connection[Row]):
    """A connection with a time limit for answers: a network may lose one without an error."""

    #: Seconds to wait for an answer.
    limit: float | None = None

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        #: Whether its last error was an answer that did not come within the limit.
        self.was_slow = False
        #: Statements that the server has prepared, and their names (see `prepared`).
        self.prepared: dict[bytes, bytes] = {}

    def roll_back(self, to: str = "") -> None:
        """Roll back a transaction, or to a savepoint. Bypass psycopg, which would deallocate prepared statements."""
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

    def rows(self, statement: str, values: Sequence[Any] = ()) -> list[Row]:
        """Return all rows of a query. None matches a text with NUL, which PostgreSQL cannot store."""
        if any(isinstance(value, str) and "\0" in value for value in values):
            return []
        return self.execute(statement, values, binary=True).fetchall()

    def row(self, statement: str, values: Sequence[Any] = ()) -> Row | None:
        """Return the first row of a query; None if there is none."""
        rows = self.rows(statement, values)
        return rows[0] if rows else None

    def value(self, statement: str, values: Sequence[Any] = ()) -> Any:
        """Return the first value of the only row of a query."""
        return self.rows(statement, values)[0][0]

    def change(self, statement: str, values: Sequence[Any] = ()) -> int:
        """Run a statement; return the number of rows that it changed."""
        return self.execute(statement, values).rowcount

    def change_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> int:
        """Run a statement once for each row of values; return the number of rows that it changed."""
        if not rows:
            return 0
        with self.cursor() as cursor:
            cursor.executemany(statement, rows)
            return cursor.rowcount


def refuse_transaction_pool(
    first: PostgresConnection, connect: Callable[[], PostgresConnection], shown: str
) -> None:
    """Raise `StoreUnavailable`, and close the connection, if it does not keep its session of the server."""
    session = _session(first)
    # A pool reports a process number of its own: a direct connection needs no further check.
    if session == first.info.backend_pid:
        return
    try:
        with closing(connect()) as second:
            second.execute("BEGIN")
            kept = _session(second) != session and _session(first) == session
            second.roll_back()
        if not kept:
            raise StoreUnavailable(
                f"{shown} is a connection pool in transaction mode, in which settings and prepared statements of a "
                "connection do not last: open the server itself, or a pool in session mode (PgBouncer: pool_mode = "
                "session)"
            )
    except BaseException:
        first.close()
        raise


def _session(connection: PostgresConnection) -> int:
    return int(connection.value("SELECT pg_backend_pid()"))


class RetryDeadline:
    """The time for which an operation is repeated, with growing pauses."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._pause = 0.01

    def left(self) -> float:
        """Return the number of seconds left."""
        return max(0.0, self._until - time.monotonic())

    def pause(self) -> bool:
        """Pause before the next try; return False at once if there is no time for one."""
        if self.left() <= self._pause:
            return False
        time.sleep(self._pause)
        self._pause = min(self._pause * 2, 0.5)
        return True


class ConnectionLost(Exception):
    """A connection was lost or could not be opened; the outcome of its statements is unknown."""

    def __init__(self, error: BaseException, *, was_slow: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        #: Whether an answer did not come in time; perhaps only the statement is slow.
        self.was_slow = was_slow


class TransactionAborted(Exception):
    """The server rolled a transaction back because of another one: it can be repeated."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error = error


#: Messages of a server or of libpq for errors that waiting does not cure.
_HOPELESS = (
    "authentication failed",
    "no password supplied",
    "does not exist",
    "no pg_hba.conf entry",
    "permission denied",
    "not permitted to log in",
    "could not translate host name",
    "invalid",
    "does not support SSL",
    "certificate",
)

#: Messages of a server that has no free connection.
_FULL = ("too many clients", "connection slots", "too many connections", "no more connections allowed")


def closed_error(shown: str) -> StoreUnavailable:
    """Return the error of a closed store."""
    return StoreUnavailable(f"the store {shown} is closed: open it again")


def is_lost(error: psycopg.Error, broken: bool) -> bool:
    """Return whether the connection failed, rather than a statement."""
    state = error.sqlstate or ""
    if not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        # The driver's own error: this connection is unusable, whatever the server has done.
        return True
    return broken or state.startswith("08") or state in ("57P01", "57P02", "57P03", "57P05", "25P03")


def is_repeatable(error: psycopg.Error) -> bool:
    """Return whether a transaction was rolled back because of another, waited too long for a lock, or used a prepared
    statement that the server, or a pool before it, no longer has."""
    return error.sqlstate in ("40001", "40P01", "55P03", "26000")


def may_come_back(error: psycopg.Error) -> bool:
    """Return whether a connection that could not be opened may be possible a little later."""
    text = str(error)
    return not any(words in text for words in _HOPELESS)


def is_starting(error: psycopg.Error) -> bool:
    """Return whether the server is starting or stopping."""
    text = str(error)
    return any(words in text for words in ("starting up", "shutting down", "recovery mode", "not yet accept"))


def is_full(error: BaseException) -> bool:
    """Return whether the server, or a pool before it, has no free connection."""
    text = str(error)
    return any(words in text for words in _FULL)


def unreachable_error(error: BaseException, shown: str) -> HoldfastError:
    """Return the error for a server to which no connection can be opened or kept."""
    if isinstance(error, psycopg.DataError):
        return translate_error(error, shown, 0)
    text = one_line(error)
    if is_full(error):
        return StoreBusy(
            f"{shown} has no free connection ({text}): try again, or open it with a smaller pool="
        )
    if "authentication failed" in text or "no password supplied" in text:
        return StoreUnavailable(f"{shown} rejects the user or the password: check them ({text})")
    return StoreUnavailable(f"{shown} cannot be reached: {text}")


def translate_error(error: psycopg.Error, shown: str, timeout: float) -> HoldfastError:
    """Return the error of Holdfast for one of a statement."""
    state, text = error.sqlstate or "", one_line(error)
    if isinstance(error, psycopg.DataError) and ("NUL" in text or "0x00" in text):
        return InvalidCall("PostgreSQL cannot store text with a NUL character: remove it")
    if state in ("22P05", "22021"):
        return InvalidCall(
            f"the encoding of the database at {shown} cannot hold this text ({text}): use other characters in ids and "
            "names, or a database with the encoding UTF8"
        )
    if state == "57014":
        return _cancelled(shown, text)
    if state == "53100":
        return StoreUnavailable(
            f"the disk of {shown} is full ({text}): nothing was written; free some space there, then try again"
        )
    if state in ("55P03", "40001", "40P01"):
        return StoreBusy(f"{shown} was locked by another writer for {timeout:g} s: try again")
    if state.startswith("53"):
        return StoreUnavailable(f"{shown} is out of resources ({text}): nothing was written; try again")
    if state == "25006":
        return StoreUnavailable(f"{shown} is read-only, perhaps a standby: open the primary server")
    if state in ("42501", "0LP01"):
        return StoreUnavailable(f"{shown}: the user lacks a permission ({text})")
    if state.startswith("23"):
        return CorruptStore(
            f"{shown} has a version or timeline that contradicts the record of its run ({text})"
        )
    if state.startswith("XX") or state in ("42P01", "42703"):
        return CorruptStore(
            f"{shown} is damaged ({text}): run verify, and restore what it names from a bundle"
        )
    return StoreUnavailable(f"{shown}: {text}")


def _cancelled(shown: str, text: str) -> StoreBusy:
    """Return the error for a statement that the server cancelled."""
    if "user request" in text:
        return StoreBusy(f"{shown} cancelled a statement at an administrator's request ({text}): try again")
    return StoreBusy(
        f"{shown} cancelled a statement because of its setting statement_timeout ({text}): try again, or raise it for "
        "this user (ALTER ROLE … SET statement_timeout)"
    )


def one_line(error: BaseException) -> str:
    """Return the text of an error in one line, the server's message if there is one."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return " ".join((primary or str(error) or type(error).__name__).split())
