"""Who calls: tokens for programs, one-time codes and sessions for browsers, and the role of each.

Only hashes of tokens, codes and sessions are kept. A code is good once, for a short while; it is the only secret that
ever appears in a URL. Codes and sessions belong to the token or session that asked for them: they end with it, and only
so many belong to one.

Invariant: secrets are compared in constant time, and none is logged; no caller ends a session or voids a code that does
not belong to it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple

from holdfast.errors import InvalidCall
from holdfast.web.operation import Role
from holdfast.web.problems import Refused

#: Seconds.
CODE_LIVES = 300.0
SESSION_LIVES = 12 * 3600.0
#: Of one caller; another takes the place of its oldest.
CODES_EACH = 32
SESSIONS_EACH = 64
#: Who hands out codes hands them to people: a session that came from the code of a session hands out none.
_DEEPEST = 2
#: The name of callers that opened the URL that the server printed.
LAUNCH = "launch"
#: Whose the codes are that the server itself made.
_SERVER = b""


class Token(NamedTuple):
    """A secret that a program sends, and what it is good for."""

    secret: str
    role: Role
    #: Whose it is; kept with what is done with it. That of its role, if it is empty.
    name: str = ""


class Caller(NamedTuple):
    """An authenticated caller."""

    role: Role
    #: The name of the token that it has, or that its session came from.
    name: str = ""
    #: The hash of its token or session.
    key: bytes = b""
    #: The hash of the session of a browser; None for a program with a token.
    session: bytes | None = None


class _Granted(NamedTuple):
    role: Role
    until: float
    name: str
    #: The hash of the token or session that asked for it.
    owner: bytes
    #: How many codes lie between it and the token or the server.
    depth: int
    used: Callable[[], None] | None = None


class Keys:
    """The secrets that open the door."""

    def __init__(
        self,
        tokens: Iterable[Token],
        *,
        read_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.read_only = read_only
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens: dict[bytes, Token] = {}
        for token in _named(tokens):
            other = self._tokens.setdefault(_hash(token.secret), token)
            if other is not token:
                raise InvalidCall(
                    f"the tokens {other.name!r:.60} and {token.name!r:.60} are the same text: give each its own"
                )
        self._codes: dict[bytes, _Granted] = {}
        self._sessions: dict[bytes, _Granted] = {}

    @property
    def highest(self) -> Role:
        """The highest role that a token gives."""
        return self._capped(max((token.role for token in self._tokens.values()), default=Role.ADMIN))

    def code(self, role: Role, by: Caller | None = None, used: Callable[[], None] | None = None) -> str:
        """Return a new one-time code: the server's own, or one that a caller asked for, which ends with that caller's
        session. `used` is called when it becomes a session."""
        made = secrets.token_urlsafe(24)
        until = self._clock() + CODE_LIVES
        with self._lock:
            self._expire()
            if by is None:
                granted = _Granted(role, until, LAUNCH, _SERVER, 0, used)
            else:
                depth = 0
                if by.session is not None:
                    parent = self._sessions.get(by.session)
                    if parent is None:
                        raise Refused(401, "unknown_caller", "your session has ended")
                    depth, until = parent.depth + 1, min(until, parent.until)
                    if depth >= _DEEPEST:
                        raise Refused(
                            403,
                            "handed_on",
                            "your session came from a link that another session handed out: ask there for another link",
                        )
                granted = _Granted(role, until, by.name, by.key, depth, used)
            self._make_room(self._codes, granted.owner, CODES_EACH)
            self._codes[_hash(made)] = granted
        return made

    def redeem(self, code: str) -> str | None:
        """Return a session for a code, which is worth nothing from now on; None for one that is not good."""
        given = _hash(code)
        with self._lock:
            self._expire()
            found = next((kept for kept in self._codes if compare_digest(kept, given)), None)
            if found is None:
                return None
            granted = self._codes.pop(found)
            until = self._clock() + SESSION_LIVES
            parent = self._sessions.get(granted.owner)
            if parent is not None:
                until = min(until, parent.until)
            made = secrets.token_urlsafe(32)
            self._make_room(self._sessions, granted.owner, SESSIONS_EACH)
            self._sessions[_hash(made)] = granted._replace(until=until, used=None)
        if granted.used is not None:
            granted.used()
        return made

    def program(self, token: str) -> Caller | None:
        """Return the caller that has a token."""
        given = _hash(token)
        found = None
        for kept, each in self._tokens.items():
            if compare_digest(kept, given):
                found = Caller(self._capped(each.role), each.name, kept)
        return found

    def browser(self, session: str) -> Caller | None:
        """Return the caller that has a session."""
        return self._in_session(_hash(session))

    def still(self, caller: Caller) -> bool:
        """Return whether a caller that was let in may stay."""
        return caller.session is None or self._in_session(caller.session) is not None

    def end(self, caller: Caller) -> None:
        """End a session, and all that came from it."""
        if caller.session is not None:
            with self._lock:
                self._drop(self._sessions, caller.session)

    def seconds_left(self, session: str) -> float:
        """Return for how long a session is good."""
        with self._lock:
            granted = self._sessions.get(_hash(session))
            return 0.0 if granted is None else max(0.0, granted.until - self._clock())

    def _in_session(self, given: bytes) -> Caller | None:
        with self._lock:
            self._expire()
            for kept, granted in self._sessions.items():
                if compare_digest(kept, given):
                    return Caller(self._capped(granted.role), granted.name, kept, kept)
        return None

    def _capped(self, role: Role) -> Role:
        return min(role, Role.VIEWER) if self.read_only else role

    def _expire(self) -> None:
        now = self._clock()
        for kept in (self._codes, self._sessions):
            for name in [name for name, granted in kept.items() if granted.until <= now]:
                self._drop(kept, name)

    def _make_room(self, kept: dict[bytes, _Granted], owner: bytes, most: int) -> None:
        """End the oldest of an owner's, if it has as many as it may."""
        own = [name for name, granted in kept.items() if granted.owner == owner]
        for name in own[: max(0, len(own) - most + 1)]:
            self._drop(kept, name)

    def _drop(self, kept: dict[bytes, _Granted], name: bytes) -> None:
        """End a code or a session, with the codes and sessions that it owns."""
        if kept.pop(name, None) is None or kept is self._codes:
            return
        for below in (self._codes, self._sessions):
            for each in [each for each, granted in below.items() if granted.owner == name]:
                self._drop(below, each)


def new_token() -> str:
    """Return a token that cannot be guessed."""
    return secrets.token_urlsafe(32)


def _named(tokens: Iterable[Token]) -> list[Token]:
    """Give each token a name of its own: those without one are `viewer`, `viewer-2`, …, in their order."""
    given = list(tokens)
    taken = {token.name for token in given if token.name}
    found = []
    for token in given:
        role = token.role.name.lower()
        name, number = token.name or role, 1
        while not token.name and name in taken:
            number += 1
            name = f"{role}-{number}"
        taken.add(name)
        found.append(token._replace(name=name))
    return found


def _hash(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()
