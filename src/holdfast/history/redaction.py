"""Which keys hold secrets: patterns that this process was given, and those that the store keeps for all who use it.

Invariant: patterns that are kept hold at once in the process that keeps them, and in every other for what is committed
a second later; in an event loop, which does not wait for the store, for what is committed soon after that.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

import msgspec

from holdfast.errors import CorruptStore, HoldfastError, InvalidCall, StaleVersion
from holdfast.event_loop import in_event_loop
from holdfast.model.names import short
from holdfast.store.base import Store
from holdfast.struct_types import resolved
from holdfast.tree.codec import REDACTED
from holdfast.tree.fold import Redactor

#: What loops and HTTP redact, unless that is switched off.
DEFAULTS = ("*password*", "*api_key*", "*secret*", "*token")
#: Where the store keeps it.
_NAME = "config/redact"
#: Seconds after which it is read again.
_FRESH = 1.0
#: Former lists that are kept, by which the arguments of recorded steps are recognised.
_FORMER = 32
_LONGEST = 200
_MOST = 1000

_by_default: ContextVar[bool] = ContextVar("holdfast_redacts_by_default", default=False)


class Redaction(msgspec.Struct, frozen=True, kw_only=True):
    """The patterns that a store keeps."""

    patterns: tuple[str, ...] = ()
    #: Whether loops and HTTP redact the usual names, too.
    defaults: bool = True


class _Kept(Redaction, frozen=True, kw_only=True):
    former: tuple[tuple[str, ...], ...] = ()


class Secrets:
    """The patterns of an open store."""

    def __init__(self, store: Store, given: Sequence[str | re.Pattern[str]]) -> None:
        self._store = store
        self._given = list(given)
        self._revision = -1
        self._checked = time.monotonic()
        self._read()

    @property
    def redactor(self) -> Redactor | None:
        """What to redact now; None for nothing."""
        if time.monotonic() - self._checked > _FRESH:
            self._refresh()
        return self._usual if _by_default.get() else self._plain

    @property
    def kept(self) -> Redaction:
        """Return what the store keeps."""
        kept, _ = self._load()
        return Redaction(patterns=kept.patterns, defaults=kept.defaults)

    @property
    def former(self) -> Iterator[Redactor | None]:
        """Yield what was redacted before the patterns were changed."""
        for patterns in reversed(self._kept.former):
            yield self._made(patterns)

    @property
    def usual(self) -> Redactor | None:
        """What loops and HTTP redact."""
        token = _by_default.set(True)
        try:
            return self.redactor
        finally:
            _by_default.reset(token)

    def change(self, add: Iterable[str], remove: Iterable[str], defaults: bool | None) -> Redaction:
        """Add and remove patterns, for all who use the store."""
        added, removed = _checked(add), set(_checked(remove))
        while True:
            kept, revision = self._load()
            if missing := sorted(removed - set(kept.patterns)):
                raise InvalidCall(
                    f"{missing[0]!r} is not among the patterns: `holdfast config redact list` shows them"
                )
            patterns = tuple(
                pattern for pattern in dict.fromkeys((*kept.patterns, *added)) if pattern not in removed
            )
            if len(patterns) > _MOST:
                raise InvalidCall(f"a store keeps {_MOST} patterns at most")
            former = kept.former
            if patterns != kept.patterns:
                former = (*(each for each in former if each != kept.patterns), kept.patterns)[-_FORMER:]
            after = _Kept(
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
            self._try()
        else:
            # A loop waits for no store.
            with suppress(RuntimeError):
                threading.Thread(target=self._try, name="holdfast redaction", daemon=True).start()

    def _try(self) -> None:
        # A store that cannot be read has other ways to say so.
        with suppress(HoldfastError):
            self._read()

    def _read(self) -> None:
        kept, revision = self._load()
        if revision != self._revision:
            self._kept = kept
            self._plain = self._made(kept.patterns)
            self._usual = self._made((*kept.patterns, *DEFAULTS)) if kept.defaults else self._plain
            self._revision = revision

    def _load(self) -> tuple[_Kept, int]:
        found = self._store.value(_NAME)
        if found is None:
            return _Kept(), 0
        try:
            return msgspec.json.decode(found[0], type=resolved(_Kept)), found[1]
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise CorruptStore(
                f"the patterns that the store keeps for redaction cannot be read ({error}): remove the value {_NAME!r}"
            ) from error

    def _made(self, patterns: Iterable[str]) -> Redactor | None:
        every = [*self._given, *patterns]
        return Redactor(every) if every else None


@contextmanager
def redacting_by_default() -> Iterator[None]:
    """Redact the usual names, too, in what is committed within the block, unless the store says otherwise."""
    token = _by_default.set(True)
    try:
        yield
    finally:
        _by_default.reset(token)


def redacted(value: Any, redactor: Redactor | None) -> Any:
    """Return JSON without the values that are to be redacted."""
    if redactor is None:
        return value
    # Without recursion: a body nests deeper than Python calls.
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


def _checked(patterns: Any) -> list[str]:
    if isinstance(patterns, str) or not isinstance(patterns, Iterable):
        raise InvalidCall('patterns are a list, such as ["*password*", "api_key"]')
    found = list(patterns)
    for pattern in found:
        if not isinstance(pattern, str) or not pattern.strip("*? ") or not pattern.isprintable():
            raise InvalidCall(
                f"a pattern that a store keeps is a name of keys with * and ?, such as *password*, not {short(pattern)}"
            )
        if len(pattern) > _LONGEST:
            raise InvalidCall(f"a pattern has at most {_LONGEST} characters, not {len(pattern)}")
    return found
