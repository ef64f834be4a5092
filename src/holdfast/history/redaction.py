"""Patterns of keys that hold secrets: those given to this process, and those stored for all processes. The class
`Redactor` in `tree.fold` replaces the values.

Invariant: a change of the stored patterns applies at once in the process that makes it, and in every other to commits
a second later; in an event loop, which does not wait for the store, to commits soon after that.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import msgspec

from holdfast.errors import CorruptStore, HoldfastError, InvalidCall, StaleVersion
from holdfast.event_loop import in_event_loop
from holdfast.model.meta import MetaValue
from holdfast.model.names import short
from holdfast.store.protocol import Store
from holdfast.struct_types import resolved
from holdfast.tree.codec import REDACTED
from holdfast.tree.fold import Redactor

#: Patterns that loops and HTTP redact, unless that is switched off.
DEFAULT_PATTERNS = ("*password*", "*api_key*", "*secret*", "*token")
#: The name of the value in the store.
_NAME = "config/redact"
#: Seconds after which it is read again.
_MAX_AGE = 1.0
#: Earlier lists that are stored: arguments of recorded steps were digested with them.
_MAX_EARLIER = 32
_MAX_LENGTH = 200
_MAX_PATTERNS = 1000

_by_default: ContextVar[bool] = ContextVar("holdfast_redacts_by_default", default=False)


class Redaction(msgspec.Struct, frozen=True, kw_only=True):
    """The patterns that are stored for all processes."""

    patterns: tuple[str, ...] = ()
    #: Whether loops and HTTP also redact `DEFAULT_PATTERNS`.
    defaults: bool = True


class _StoredRedaction(Redaction, frozen=True, kw_only=True):
    former: tuple[tuple[str, ...], ...] = ()


class RedactionPatterns:
    """The patterns of this process and of its store."""

    def __init__(self, store: Store, given: Iterable[str | re.Pattern[str]]) -> None:
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise InvalidCall('redact takes a list of patterns, such as ["*password*", "api_key"]')
        self._store = store
        self._given = list(given)
        for pattern in self._given:
            if not isinstance(pattern, str | re.Pattern):
                raise InvalidCall(f"redact takes strings and compiled expressions, not {short(pattern)}")
        self._revision = -1
        self._checked = time.monotonic()
        self._read()

    @property
    def redactor(self) -> Redactor | None:
        """The current redactor; None if nothing is redacted."""
        if time.monotonic() - self._checked > _MAX_AGE:
            self._refresh()
        return self._with_defaults if _by_default.get() else self._plain

    @property
    def stored(self) -> Redaction:
        """The patterns in the store, read now."""
        kept, _ = self._load()
        return Redaction(patterns=kept.patterns, defaults=kept.defaults)

    @property
    def earlier(self) -> Iterator[Redactor | None]:
        """Yield the redactors of the patterns before each change, newest first."""
        for patterns in reversed(self._stored.former):
            yield self._redactor(patterns)

    @property
    def with_defaults(self) -> Redactor | None:
        """The redactor of loops and HTTP."""
        with redacting_by_default():
            return self.redactor

    def change(self, add: Iterable[str], remove: Iterable[str], defaults: bool | None) -> Redaction:
        """Add and remove patterns in the store."""
        added, removed = _check_patterns(add), set(_check_patterns(remove))
        while True:
            kept, revision = self._load()
            if missing := sorted(removed - set(kept.patterns)):
                raise InvalidCall(
                    f"{missing[0]!r} is not among the patterns: `holdfast config redact list` shows them"
                )
            patterns = tuple(
                pattern for pattern in dict.fromkeys((*kept.patterns, *added)) if pattern not in removed
            )
            if len(patterns) > _MAX_PATTERNS:
                raise InvalidCall(f"a store has at most {_MAX_PATTERNS} patterns")
            former = kept.former
            if patterns != kept.patterns:
                former = (*(each for each in former if each != kept.patterns), kept.patterns)[-_MAX_EARLIER:]
            after = _StoredRedaction(
                patterns=patterns, defaults=kept.defaults if defaults is None else defaults, former=former
            )
            if after == kept:
                break
            with suppress(StaleVersion):
                self._store.set_value(_NAME, msgspec.json.encode(after), revision)
                break
        self._read()
        return Redaction(patterns=after.patterns, defaults=after.defaults)

    def _refresh(self) -> None:
        self._checked = time.monotonic()
        if not in_event_loop():
            self._try_read()
        else:
            # An event loop must not wait for the store.
            with suppress(RuntimeError):
                threading.Thread(target=self._try_read, name="holdfast redaction", daemon=True).start()

    def _try_read(self) -> None:
        # Commits report a store that cannot be read.
        with suppress(HoldfastError):
            self._read()

    def _read(self) -> None:
        kept, revision = self._load()
        if revision != self._revision:
            self._stored = kept
            self._plain = self._redactor(kept.patterns)
            self._with_defaults = (
                self._redactor((*kept.patterns, *DEFAULT_PATTERNS)) if kept.defaults else self._plain
            )
            self._revision = revision

    def _load(self) -> tuple[_StoredRedaction, int]:
        found = self._store.value(_NAME)
        if found is None:
            return _StoredRedaction(), 0
        try:
            return msgspec.json.decode(found[0], type=resolved(_StoredRedaction)), found[1]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptStore(
                f"the patterns for redaction in the store cannot be read ({error}): remove the value {_NAME!r}"
            ) from error

    def _redactor(self, patterns: Iterable[str]) -> Redactor | None:
        every = [*self._given, *patterns]
        return Redactor(every) if every else None


@contextmanager
def redacting_by_default() -> Iterator[None]:
    """Also redact `DEFAULT_PATTERNS` in commits within the block, unless the store switches that off."""
    token = _by_default.set(True)
    try:
        yield
    finally:
        _by_default.reset(token)


def redact_meta(meta: Mapping[str, MetaValue] | None, redactor: Redactor | None) -> dict[str, MetaValue]:
    """Return metadata of a run with the values of secret names replaced."""
    return {
        name: REDACTED if redactor is not None and redactor.hides(name) else value
        for name, value in (meta or {}).items()
    }


def redact_json(value: Any, redactor: Redactor | None) -> Any:
    """Return a JSON value with the values of secret keys replaced."""
    if redactor is None:
        return value
    # Without recursion: a body may nest deeper than the stack.
    root = [value]
    copies: list[Any] = [root]
    while copies:
        copy = copies.pop()
        is_dict = isinstance(copy, dict)
        for key, item in list(copy.items() if is_dict else enumerate(copy)):
            if is_dict and redactor.hides(key):
                copy[key] = REDACTED
            elif isinstance(item, dict | list):
                copy[key] = item.copy()
                copies.append(copy[key])
    return root[0]


def _check_patterns(patterns: Any) -> list[str]:
    if isinstance(patterns, str) or not isinstance(patterns, Iterable):
        raise InvalidCall('patterns are a list, such as ["*password*", "api_key"]')
    found = list(patterns)
    for pattern in found:
        if not isinstance(pattern, str) or not pattern.strip("*? ") or not pattern.isprintable():
            raise InvalidCall(
                f"a pattern in a store is a name of keys with * and ?, such as *password*, not {short(pattern)}"
            )
        if len(pattern) > _MAX_LENGTH:
            raise InvalidCall(f"a pattern has at most {_MAX_LENGTH} characters, not {len(pattern)}")
    return found
