"""Translation of PostgreSQL's errors.

Invariant: no error of the driver leaves the store: it is the cause of one of Holdfast's. No message holds a password.
"""

from __future__ import annotations

import psycopg

from holdfast.errors import CorruptStore, HoldfastError, InvalidCall, StoreBusy, StoreUnavailable


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
