"""Folding: ordinary values and drafts become frozen trees that share nodes with a base.

`Folder.fold(value, base)` compares an ordinary tree with a frozen one. Exactly equal parts (type, value, order of
keys) are taken from the base, so that storing the result writes only the difference; new parts are checked, copied
and frozen. Secrets are redacted here, before a value is hashed, stored or logged.

Invariant: the result equals the value and shares no mutable part with it; `fold(thaw(t), t) is t`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import translate
from itertools import chain, compress, count
from operator import eq, is_, is_not
from struct import pack
from typing import Any

from holdfast.errors import InvalidCall, UnsupportedValue
from holdfast.tree import path as paths
from holdfast.tree.adapter import Replaced
from holdfast.tree.artifact import Artifact, without_secrets
from holdfast.tree.codec import (
    ARTIFACT,
    MAX_DEPTH,
    REDACTED,
    decode_frozen,
    encode,
    leaf_ext,
    nested_artifacts,
    prepare_key,
    replace_keys,
    to_bytes,
    too_deep,
    under,
)
from holdfast.tree.containers import build_dict, build_list
from holdfast.tree.fold_cache import FoldCache, Witness
from holdfast.tree.frozen import DICTS, LISTS, SERVED, Box, FrozenDict, FrozenList, source_of, stored_at
from holdfast.tree.values import NATIVE, Opaque, kind_of

_MISSING: Any = object()
_chained = chain.from_iterable
#: Shorter lists are compared item by item.
_MIN_BULK = 8
_DICT = {dict}
_FROZEN_DICT = frozenset((FrozenDict,))
#: Characters of a key: nodes contain their keys, whatever the size.
_MAX_KEY = 64 * 1024


class Redactor:
    """The keys whose values are secrets: shell patterns, case-insensitive, or compiled expressions."""

    def __init__(self, patterns: Iterable[str | re.Pattern[str]]) -> None:
        if isinstance(patterns, str):
            raise InvalidCall('redact takes a list of patterns, such as ["*password*", "api_key"]')
        self._matchers = [
            re.compile(translate(pattern), re.IGNORECASE) if isinstance(pattern, str) else pattern
            for pattern in patterns
        ]
        self._known: dict[str, bool] = {}

    def hides(self, key: Any) -> bool:
        """Return whether the value of this key is a secret."""
        if isinstance(key, bytes):
            key = key.decode(errors="replace")
        if not isinstance(key, str):
            return isinstance(key, tuple | frozenset) and any(map(self.hides, key))
        key = str.__str__(key)
        known = self._known.get(key)
        if known is None:
            known = any(matcher.fullmatch(key) for matcher in self._matchers)
            if len(self._known) < 10_000:
                self._known[key] = known
        return known


class Folder:
    """Folds values for one run. `space` is its address space: containers stored there are trusted."""

    def __init__(
        self,
        space: object,
        redact: Redactor | None = None,
        cache: FoldCache | None = None,
        *,
        consume: bool = True,
        most: int = sys.maxsize,
        is_whole: Callable[[Any], bool] | None = None,
    ) -> None:
        self.space = space
        self.redact = redact
        #: Whether folding ends drafts, which is cheaper.
        self._consume = consume
        self._cache = cache
        self._has_expired = False
        #: Containers that may be folded: a few shared lists can make up a tree of astronomic size.
        self._left = most
        #: Whether a leaf can be stored without a loss that matters here; others are refused.
        self._is_whole = is_whole
        #: Artifacts in folded values that are not in the store yet.
        self.arrivals: list[Any] = []

    def fold(self, value: Any, base: Any = _MISSING, *, part: str = "") -> Any:
        """Return the frozen form of `value`. `UnsupportedValue` has the path of the value that cannot be stored, and
        the `part` of the version, if it is not the state."""
        if base is _MISSING and type(value) in NATIVE:
            return value
        try:
            return self.value(value, base, 0)
        except UnsupportedValue as error:
            raise paths.name_place(error, part) from None

    def field(self, name: Any, value: Any, base: Any) -> Any:
        """Return the value of a dict's key, folded in advance; `base` is that of the dict. `UnsupportedValue` leaves
        nothing behind."""
        if self.redact is not None and self.redact.hides(name):
            return REDACTED
        was = base.get(name, _MISSING) if type(base) in DICTS else _MISSING
        count = len(self.arrivals)
        try:
            return Folded(self.value(value, was, 1), was, ())
        except UnsupportedValue:
            del self.arrivals[count:]
            raise

    def value(self, value: Any, base: Any, depth: int) -> Any:
        """Fold a value; paths in `UnsupportedValue` are relative to it."""
        if value is base:
            return base
        kind = type(value)
        if kind in NATIVE:
            if type(base) is not kind:
                return value
            return base if (_same_float(value, base) if kind is float else value == base) else value
        if depth > MAX_DEPTH:
            raise too_deep()
        if kind is dict:
            return self.dict(value, base, depth)
        if kind is list:
            return self.list(value, base, depth)
        if kind in SERVED:
            value = source_of(value)
            kind = type(value)
            if kind in SERVED:
                plain = dict(dict.items(value)) if isinstance(value, dict) else list(list.__iter__(value))
                return self.value(plain, base, depth)
        if kind in DICTS or kind in LISTS:
            at = stored_at(value)
            if at is not None and at[0] is self.space:
                return value
            return self.dict(value, base, depth) if kind in DICTS else self.list(value, base, depth)
        if kind is Box:
            return base if same(value, base) else value
        fold = getattr(kind, "__holdfast_fold__", None)
        if fold is None:
            try:
                return self.leaf(value, base, depth)
            except Replaced as error:
                return self.value(error.value, base, depth)
        if self._consume:
            return fold(value, self, base, depth)
        if kind.__holdfast_plain__ is dict:
            return self.dict(dict.copy(value), base, depth)
        return self.list(list.copy(value), base, depth)

    def dict(self, value: dict[Any, Any], base: Any, depth: int) -> FrozenDict:
        """Fold an ordinary dict."""
        old: FrozenDict | None = base if type(base) in DICTS else None
        self._count()
        if (
            old is not None
            and len(old) == len(value)
            and all(map(is_, value.values(), old.values()))
            and all(map(is_, value, old))
            # The base may have been stored before a key was redacted.
            and (self.redact is None or not any(map(self.redact.hides, value)))
        ):
            return old
        out: dict[Any, Any] = {}
        touched: list[Any] = []
        # A copy: another thread may add keys meanwhile.
        copied = dict.copy(value)
        is_plain = self.redact is None and _has_plain_keys(copied)
        if is_plain and old is None and NATIVE.issuperset(map(type, copied.values())):
            return build_dict(copied)
        for key, item in copied.items():
            was = _MISSING if old is None else old.get(key, _MISSING)
            if is_plain:
                try:
                    out[key] = new = item if was is item else self.value(item, was, depth + 1)
                except UnsupportedValue as error:
                    raise under(error, key) from None
                if new is not was:
                    touched.append(key)
                continue
            try:
                out[key] = new = self.entry(key, item, was, depth)
            except Replaced:
                return self.dict(replace_keys(value, depth=depth + 1), base, depth)
            if new is not was:
                touched.append(key)
        if old is None:
            return build_dict(out)
        if _same_keys(out, old):
            if any(key not in old for key in touched):
                # NaN keys are not equal: keep the old one.
                out = {
                    key: new if not same(new, old[key]) else old[key]
                    for key, new in zip(old, out.values(), strict=True)
                }
                touched = [key for key, new in out.items() if new is not old[key]]
            return build_dict(out, old, touched) if touched else old
        touched += [key for key in old if key not in out]
        left = [key for key in old if key in out]
        return build_dict(out, old, touched, reordered=not same_keys_first(out, left))

    def list(self, value: list[Any], base: Any, depth: int) -> FrozenList:
        """Fold an ordinary list."""
        old: FrozenList | None = base if type(base) in LISTS else None
        self._count()
        out: list[Any] = []
        keep = 0
        is_cached = False
        if old is not None and (
            (_starts_with(value, old) and not self._hides_keys(old))
            or (is_cached := self._is_cached(value, old, depth))
        ):
            if len(value) == len(old):
                return old
            out = list.copy(old)
            keep = len(old)
        elif old is not None:
            for was, item in zip(old, value, strict=False):
                out.append(self.item(item, was, depth, len(out)))
            keep = next(compress(count(), map(is_not, out, old)), len(out))
            if keep == len(old) == len(value):
                return old
        rest = value[len(out) :]
        if NATIVE.issuperset(map(type, rest)):
            out += rest
            rest = []
        for item in rest:
            out.append(self.item(item, _MISSING, depth, len(out)))
        built = build_list(out, old, keep)
        if is_cached and old is not None and self._cache is not None:
            self._cache.grow(old, built, value)
        return built

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise UnsupportedValue("the value has too many dicts and lists", type="dict")

    def _hides_keys(self, dicts: FrozenList) -> bool:
        """Return whether a key of some dicts is redacted: they may have been stored before it was."""
        return self.redact is not None and any(map(self.redact.hides, set(_chained(dicts))))

    def _is_cached(self, value: Sequence[Any], old: FrozenList, depth: int) -> bool:
        """Return whether a list starts with the unchanged objects of its base."""
        size = len(old)
        if self._cache is None or not _MIN_BULK <= size <= len(value) or type(old[0]) is not Box:
            return False
        self._expire_cache()
        return self._cache.matches(value if len(value) == size else value[:size], old, depth + 1)

    def _expire_cache(self) -> None:
        """Before the cache is used for the first time: most states hold no objects."""
        if self._cache is not None and not self._has_expired:
            self._has_expired = True
            self._cache.expire()

    def leaf(self, value: Any, base: Any, depth: int) -> Any:
        """Fold a value that is neither native nor a plain container."""
        if self._is_whole is not None and not self._is_whole(value):
            raise UnsupportedValue("a part of the value cannot be stored", type=type(value).__name__)
        if self._cache is not None:
            self._expire_cache()
            known = self._cache.find(value, depth)
            if known is not None:
                return base if known is base or same(known, base) else known
        kind = kind_of(value)
        if type(value) is Artifact and self.redact is not None and value.arrives:
            value = without_secrets(value, self.redact.hides)
        replaced = Replaced.total
        # Before it is encoded: a change by another thread meanwhile is noticed the next time.
        witness = Witness.of(value) if self._cache is not None and kind.boxed else None
        ext = leaf_ext(value, None if self.redact is None else self.redact.hides, depth=depth)
        if ext.code == ARTIFACT or ARTIFACT in bytes(ext.data):
            stored = {digest.hex() for digest in nested_artifacts(ext.code, bytes(ext.data))}
            # Without the artifacts of redacted fields.
            arrivals = [
                artifact
                for artifact in artifacts_within(value)
                if artifact.arrives and artifact.digest in stored
            ]
            if self.redact is not None and type(value) is not Artifact:
                for artifact in arrivals:
                    if without_secrets(artifact, self.redact.hides) is not artifact:
                        raise UnsupportedValue(
                            "an artifact within an object contains a key that is redacted: remove it first, or put the "
                            "artifact into a dict or a list",
                            type=type(value).__name__,
                        )
            self.arrivals += arrivals
        if kind.boxed:
            box = base if _is_box(base, ext) else Box(ext.code, bytes(ext.data))
            if (
                self._cache is not None
                and witness is not None
                and not self.arrivals
                and Replaced.total == replaced
            ):
                known = self._cache.add(value, box, witness, depth)
                return box if box is base else known
            return box
        if _is_box(base, ext):
            return base
        if type(base) is type(value) and leaf_ext(base) == ext:
            return base
        return decode_frozen(to_bytes(ext)) if isinstance(value, tuple) else value

    def entry(self, key: Any, item: Any, was: Any, depth: int) -> Any:
        """Fold a dict's value; `was` is the base's value of the same key."""
        redact = self.redact
        if redact is not None and type(key) not in NATIVE and leaf_ext(key, redact.hides) != leaf_ext(key):
            # Outside of `try`: the path in a message must not show the key.
            raise UnsupportedValue(
                "a key contains a value that must be redacted: use another key", type="key"
            )
        try:
            if type(key) is not str:
                _check_key_size(len(to_bytes(prepare_key(key, depth=depth + 1))))
            elif len(key) > _MAX_KEY:
                _check_key_size(len(key))
            if redact is not None and redact.hides(key):
                return was if type(was) is str and was == REDACTED else REDACTED
            return self.value(item, was, depth + 1)
        except UnsupportedValue as error:
            raise under(error, key) from None

    def item(self, item: Any, was: Any, depth: int, index: int) -> Any:
        """Fold a list's item; `was` is the base's item at the same index."""
        if item is was and type(item) in NATIVE:
            return was
        try:
            return self.value(item, was, depth + 1)
        except UnsupportedValue as error:
            raise under(error, index) from None


def _has_plain_keys(value: dict[Any, Any]) -> bool:
    """Return whether all keys of a dict are short texts."""
    return _TEXT.issuperset(map(type, value)) and (not value or max(map(len, value)) <= _MAX_KEY)


_TEXT = frozenset((str,))


class Folded:
    """A value that was folded with a base before, perhaps in another thread."""

    __slots__ = ("_arrivals", "_base", "root")

    def __init__(self, root: Any, base: Any, arrivals: Sequence[Any]) -> None:
        self.root, self._base, self._arrivals = root, base, arrivals

    def __holdfast_fold__(self, folder: Folder, base: Any, depth: int) -> Any:
        """Return the folded value; fold it again if the base is another one now."""
        folder.arrivals += self._arrivals
        return self.root if base is self._base else folder.value(self.root, base, depth)


class Unchanged:
    """Placeholder in a state for a part that is as in the base: it is taken from there without being compared."""

    def __holdfast_fold__(self, folder: Folder, base: Any, depth: int) -> Any:
        """Return the part of the base."""
        if base is _MISSING:
            raise InvalidCall("a part that is to stay unchanged does not exist in the version before")
        return base


#: The placeholder.
UNCHANGED = Unchanged()


def _starts_with(value: list[Any], old: FrozenList) -> bool:
    """Return whether a list starts with the dicts of its base, with identical keys and values, at the speed of C.
    False means unknown."""
    size = len(old)
    if len(value) < size or size < _MIN_BULK or type(value[0]) is not dict:
        return False
    first = value if len(value) == size else value[:size]
    return (
        set(map(type, first)) == _DICT
        and _FROZEN_DICT.issuperset(map(type, old))
        and all(map(eq, map(len, first), map(len, old)))
        and all(map(is_, _chained(map(dict.values, first)), _chained(map(dict.values, old))))
        and all(map(is_, _chained(first), _chained(old)))
    )


def _is_box(base: Any, ext: Any) -> bool:
    return type(base) is Box and base.code == ext.code and base.data == ext.data


def same(one: Any, other: Any) -> bool:
    """Return whether two frozen values are exactly equal; cheap where they share nodes."""
    if one is other:
        return True
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in DICTS:
        return _same_keys(one, other) and _same_items(one.values(), other.values())
    if kind in LISTS:
        return len(one) == len(other) and _same_items(one, other)
    if kind is float:
        return _same_float(one, other)
    if kind in NATIVE:
        return bool(one == other)
    if kind is Box:
        return bool(one.code == other.code and one.data == other.data)
    return bool(leaf_ext(one) == leaf_ext(other))


def _same_items(one: Iterable[Any], other: Iterable[Any]) -> bool:
    return all(same(mine, yours) for mine, yours in zip(one, other, strict=True) if mine is not yours)


def artifacts_within(value: Any) -> Iterator[Artifact]:
    """Yield the artifacts that a leaf is or contains."""
    kind = type(value)
    if kind is Artifact:
        yield value
    elif isinstance(value, dict | list | tuple | set | frozenset):
        # A copy: another thread may change the value meanwhile.
        for item in (*(value.values() if isinstance(value, dict) else value),):
            yield from artifacts_within(item)
    elif kind not in NATIVE and kind is not Opaque:
        try:
            parts = kind_of(value).split(value)
        except Replaced as error:
            parts = error.value
        yield from artifacts_within(parts)


def _check_key_size(size: int) -> None:
    if size > _MAX_KEY:
        raise UnsupportedValue(f"a key has {size} characters; the maximum is {_MAX_KEY}", type="key")


def _same_float(one: float, other: float) -> bool:
    return pack("d", one) == pack("d", other)


def _same_keys(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    """Return whether two dicts have exactly the same keys in the same order."""
    return len(one) == len(other) and (all(map(is_, one, other)) or all(map(_same_key, one, other)))


def _same_key(one: Any, other: Any) -> bool:
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is str or kind is int:
        return bool(one == other)
    return one is other or encode(one) == encode(other)


def same_keys_first(new: dict[Any, Any], left: list[Any]) -> bool:
    """Return whether a dict starts with exactly these keys."""
    return all(map(is_, new, left)) or all(map(_same_key, new, left))
