"""Authentication: tokens for programs, one-time codes and sessions for browsers, their roles, and limits per role.

Only hashes of tokens, codes and sessions are stored. A code is valid once, for a few minutes; it is the only secret
that appears in a URL. Codes and sessions belong to the token or session that requested them: they end with it, and
their number per owner is limited.

Invariant: secrets are compared in constant time and never logged; no caller ends a session or code of another owner.
Callers of a role never take capacity that is reserved for the roles above it.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple

from holdfast.errors import InvalidCall
from holdfast.web.errors import RequestRefused
from holdfast.web.operation import Role

#: Lifetimes.
CODE_SECONDS = 300.0
SESSION_SECONDS = 12 * 3600.0
#: Per caller; a new one replaces the oldest.
MAX_CODES = 32
MAX_SESSIONS = 64
#: A session that came from the code of another session cannot create codes.
_MAX_DEPTH = 2
#: The name of callers that opened the URL printed by the server.
LAUNCH_NAME = "launch"
#: Owner of the codes that the server itself created.
_SERVER = b""


class Token(NamedTuple):
    """Secret of a program, with its role and name."""

    secret: str
    role: Role
    #: Recorded as the actor of its changes; by default the name of its role.
    name: str = ""


class Caller(NamedTuple):
    """Authenticated caller."""

    role: Role
    #: The name of its token, or of the token that its session came from.
    name: str = ""
    #: The hash of its token or session.
    key: bytes = b""
    #: The hash of the session of a browser; None for a program with a token.
    session: bytes | None = None


class _Grant(NamedTuple):
    role: Role
    until: float
    name: str
    #: The hash of the token or session that requested it.
    owner: bytes
    #: The number of codes between it and the token or the server.
    depth: int
    used: Callable[[], None] | None = None


class Credentials:
    """Tokens, codes and sessions of a server."""

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
                    f"the tokens {other.name!r:.60} and {token.name!r:.60} have the same text: give each its own"
                )
        self._codes: dict[bytes, _Grant] = {}
        self._sessions: dict[bytes, _Grant] = {}

    @property
    def highest(self) -> Role:
        """Return the highest role that a token has."""
        return self._capped(max((token.role for token in self._tokens.values()), default=Role.ADMIN))

    def code(self, role: Role, by: Caller | None = None, used: Callable[[], None] | None = None) -> str:
        """Return a new one-time code: the server's own, or one for a caller, which ends with the caller's session.
        `used` is called when the code becomes a session."""
        made = secrets.token_urlsafe(24)
        until = self._clock() + CODE_SECONDS
        with self._lock:
            self._expire()
            if by is None:
                granted = _Grant(role, until, LAUNCH_NAME, _SERVER, 0, used)
            else:
                depth = 0
                if by.session is not None:
                    parent = self._sessions.get(by.session)
                    if parent is None:
                        raise RequestRefused(401, "unknown_caller", "your session has ended")
                    depth, until = parent.depth + 1, min(until, parent.until)
                    if depth >= _MAX_DEPTH:
                        raise RequestRefused(
                            403,
                            "handed_on",
                            "your session came from the link of another session: ask that one for another link",
                        )
                granted = _Grant(role, until, by.name, by.key, depth, used)
            self._make_room(self._codes, granted.owner, MAX_CODES)
            self._codes[_hash(made)] = granted
        return made

    def redeem(self, code: str) -> str | None:
        """Exchange a code for a session; return None if the code is not valid."""
        given = _hash(code)
        with self._lock:
            self._expire()
            found = next((kept for kept in self._codes if compare_digest(kept, given)), None)
            if found is None:
                return None
            granted = self._codes.pop(found)
            until = self._clock() + SESSION_SECONDS
            parent = self._sessions.get(granted.owner)
            if parent is not None:
                until = min(until, parent.until)
            made = secrets.token_urlsafe(32)
            self._make_room(self._sessions, granted.owner, MAX_SESSIONS)
            self._sessions[_hash(made)] = granted._replace(until=until, used=None)
        if granted.used is not None:
            granted.used()
        return made

    def program(self, token: str) -> Caller | None:
        """Return the caller with a token."""
        given = _hash(token)
        found = None
        for kept, each in self._tokens.items():
            if compare_digest(kept, given):
                found = Caller(self._capped(each.role), each.name, kept)
        return found

    def browser(self, session: str) -> Caller | None:
        """Return the caller with a session."""
        return self._in_session(_hash(session))

    def is_valid(self, caller: Caller) -> bool:
        """Return whether the session of a caller is still valid."""
        return caller.session is None or self._in_session(caller.session) is not None

    def end(self, caller: Caller) -> None:
        """End a session, and those that came from it."""
        if caller.session is not None:
            with self._lock:
                self._drop(self._sessions, caller.session)

    def seconds_left(self, session: str) -> float:
        """Return the seconds until a session expires."""
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

    def _make_room(self, kept: dict[bytes, _Grant], owner: bytes, most: int) -> None:
        """End the oldest entries of an owner that has reached its limit."""
        own = [name for name, granted in kept.items() if granted.owner == owner]
        for name in own[: max(0, len(own) - most + 1)]:
            self._drop(kept, name)

    def _drop(self, kept: dict[bytes, _Grant], name: bytes) -> None:
        """End a code or a session, with the codes and sessions that belong to it."""
        if kept.pop(name, None) is None or kept is self._codes:
            return
        for below in (self._codes, self._sessions):
            for each in [each for each, granted in below.items() if granted.owner == name]:
                self._drop(below, each)


def new_token() -> str:
    """Return a new random token."""
    return secrets.token_urlsafe(32)


def _named(tokens: Iterable[Token]) -> list[Token]:
    """Give each token a unique name: by default `viewer`, `viewer-2`, …, in their order."""
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


#: For each role, the limit for callers of that role and the roles below it together.
RoleLimits = Mapping[Role, int]


def role_limits(most: int, *, viewer: int, operator: int) -> RoleLimits:
    """Return the limits of all roles, at least 1 each; admins have all."""
    found = {Role.PUBLIC: viewer // 2, Role.VIEWER: viewer, Role.OPERATOR: operator, Role.ADMIN: most}
    return {role: max(1, each) for role, each in found.items()}


def limit_reached(of: RoleLimits, held: Mapping[Role, int], role: Role) -> int | None:
    """Return the limit that one more for a role would exceed; None if it fits."""
    for each in Role:
        if each >= role and sum(count for other, count in held.items() if other <= each) >= of[each]:
            return of[each]
    return None
