"""PostgreSQL's errors as ours.

Invariant: no error of the driver crosses the store's boundary; it goes along as the cause, and none of its texts
holds a password.
"""

from __future__ import annotations

import psycopg

from holdfast.errors import (
    CorruptStore,
    HoldfastError,
    InvalidCall,
    StoreBusy,
    StoreUnavailable,
)


class LinkLost(Exception):
    """A connection was lost, or could not be had: what was under way may or may not have been done."""

    def __init__(self, error: BaseException, *, was_slow: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        #: Did an answer not come in time? Perhaps only the statement is slow.
        self.was_slow = was_slow


class Repeat(Exception):
    """The server undid a transaction for the sake of another: it can be repeated."""

    def __init__(self, error: psycopg.Error) -> None:
        super().__init__(str(error))
        self.error = error


#: Words of a server or of libpq that say that waiting does not help.
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


#: Words of a server that has no connection free.
_FULL = ("too many clients", "connection slots", "too many connections", "no more connections allowed")


def closed(shown: str) -> StoreUnavailable:
    """The refusal of a store that was closed."""
    return StoreUnavailable(f"the store {shown} is closed: open it again")


def is_lost(error: psycopg.Error, broken: bool) -> bool:
    """Is it the connection that failed, rather than a statement?"""
    state = error.sqlstate or ""
    if not state and isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        # Not the server's words: the driver cannot go on with this connection, whatever the server has done.
        return True
    return broken or state.startswith("08") or state in ("57P01", "57P02", "57P03", "57P05", "25P03")


def is_to_be_repeated(error: psycopg.Error) -> bool:
    """Was it undone for the sake of another transaction, did it wait for one for too long, or has the server, or who
    stands before it, forgotten what it had prepared?"""
    return error.sqlstate in ("40001", "40P01", "55P03", "26000")


def may_come_back(error: psycopg.Error) -> bool:
    """After a connection could not be made: may it be possible a little later?"""
    text = str(error)
    return not any(words in text for words in _HOPELESS)


def is_starting(error: psycopg.Error) -> bool:
    """Is there a server that only needs a moment?"""
    text = str(error)
    return any(words in text for words in ("starting up", "shutting down", "recovery mode", "not yet accept"))


def is_full(error: BaseException) -> bool:
    """Has the server, or a pool before it, no connection free?"""
    text = str(error)
    return any(words in text for words in _FULL)


def unreachable(error: BaseException, shown: str) -> HoldfastError:
    """The refusal where no connection can be made, or kept."""
    if isinstance(error, psycopg.DataError):
        return translated(error, shown, 0)
    text = one_line(error)
    if is_full(error):
        return StoreBusy(
            f"{shown} has no connection free ({text}): try again, or open it with a smaller pool="
        )
    if "authentication failed" in text or "no password supplied" in text:
        return StoreUnavailable(f"{shown} refuses user or password: check them ({text})")
    return StoreUnavailable(f"{shown} cannot be reached: {text}")


def translated(error: psycopg.Error, shown: str, timeout: float) -> HoldfastError:
    """What an error of a statement means for the caller."""
    state, text = error.sqlstate or "", one_line(error)
    if isinstance(error, psycopg.DataError) and ("NUL" in text or "0x00" in text):
        return InvalidCall("PostgreSQL keeps no text with a NUL character: leave it out")
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
        return StoreUnavailable(f"{shown} has run out of something ({text}): nothing was lost, try again")
    if state == "25006":
        return StoreUnavailable(f"{shown} is read-only, a standby perhaps: open the primary server")
    if state in ("42501", "0LP01"):
        return StoreUnavailable(f"{shown}: the user lacks a right ({text})")
    if state.startswith("23"):
        return CorruptStore(f"{shown} has a version or timeline that its run's record denies ({text})")
    if state.startswith("XX") or state in ("42P01", "42703"):
        return CorruptStore(
            f"{shown} is damaged ({text}): run verify, and restore what it names from a bundle"
        )
    return StoreUnavailable(f"{shown}: {text}")


def _cancelled(shown: str, text: str) -> StoreBusy:
    """Return the error for a statement that the server has cancelled."""
    if "user request" in text:
        return StoreBusy(f"{shown} cancelled a statement at an administrator's request ({text}): try again")
    return StoreBusy(
        f"{shown} cancelled a statement because of its setting statement_timeout ({text}): try again, or raise it for "
        "this user (ALTER ROLE … SET statement_timeout)"
    )


def one_line(error: BaseException) -> str:
    """The text of an error, the server's own words if there are any."""
    primary = error.diag.message_primary if isinstance(error, psycopg.Error) else None
    return " ".join((primary or str(error) or type(error).__name__).split())
