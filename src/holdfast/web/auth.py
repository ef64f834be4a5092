"""Who calls: tokens for programs, one-time codes and sessions for browsers, and the role of each.

Only hashes of tokens, codes and sessions are kept. A code is good once, for a short while; it is the only secret that
ever stands in a URL.

Invariant: secrets are compared in constant time, and none is logged.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterable
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple

from holdfast.web.operation import Role

#: Seconds.
CODE_LIVES = 300.0
SESSION_LIVES = 12 * 3600.0
_MOST_CODES = 32
_MOST_SESSIONS = 256


class Caller(NamedTuple):
    """Somebody who may call."""

    role: Role
    #: The hash of the session of a browser; None for a program with a token.
    session: bytes | None = None


class _Granted(NamedTuple):
    role: Role
    until: float


class Keys:
    """The secrets that open the door."""

    def __init__(
        self,
        tokens: Iterable[tuple[str, Role]],
        *,
        read_only: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.read_only = read_only
        self._clock = clock
        self._lock = threading.Lock()
        self._tokens = [(_hash(token), role) for token, role in tokens]
        self._codes: dict[bytes, _Granted] = {}
        self._sessions: dict[bytes, _Granted] = {}

    def code(self, role: Role) -> str:
        """A new one-time code."""
        made = secrets.token_urlsafe(24)
        with self._lock:
            self._expire(self._codes, _MOST_CODES - 1)
            self._codes[_hash(made)] = _Granted(role, self._clock() + CODE_LIVES)
        return made

    def redeem(self, code: str) -> str | None:
        """A session for a code, which is worth nothing from now on."""
        given = _hash(code)
        with self._lock:
            self._expire(self._codes, _MOST_CODES)
            found = next((kept for kept in self._codes if compare_digest(kept, given)), None)
            if found is None:
                return None
            role = self._codes.pop(found).role
            made = secrets.token_urlsafe(32)
            self._expire(self._sessions, _MOST_SESSIONS - 1)
            self._sessions[_hash(made)] = _Granted(role, self._clock() + SESSION_LIVES)
        return made

    def program(self, token: str) -> Caller | None:
        """Who has a token."""
        given = _hash(token)
        role = None
        for kept, its_role in self._tokens:
            if compare_digest(kept, given):
                role = its_role
        return None if role is None else Caller(self._capped(role))

    def browser(self, session: str) -> Caller | None:
        """Who has a session."""
        return self._in_session(_hash(session))

    def still(self, caller: Caller) -> bool:
        """May somebody who was let in stay?"""
        return caller.session is None or self._in_session(caller.session) is not None

    def end(self, caller: Caller) -> None:
        """End a session."""
        with self._lock:
            self._sessions.pop(caller.session or b"", None)

    def _in_session(self, given: bytes) -> Caller | None:
        with self._lock:
            self._expire(self._sessions, _MOST_SESSIONS)
            for kept, granted in self._sessions.items():
                if compare_digest(kept, given):
                    return Caller(self._capped(granted.role), kept)
        return None

    def _capped(self, role: Role) -> Role:
        return min(role, Role.VIEWER) if self.read_only else role

    def _expire(self, kept: dict[bytes, _Granted], most: int) -> None:
        now = self._clock()
        for name in [name for name, granted in kept.items() if granted.until <= now]:
            del kept[name]
        while len(kept) > most:
            del kept[next(iter(kept))]


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(32)


def _hash(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogatepass")).digest()
