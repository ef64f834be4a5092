"""Folding: ordinary values and drafts become frozen trees that share nodes with a base.

`Folder.fold(value, base)` compares an ordinary tree with a frozen one. Exactly equal parts (type, value, order of
keys) are taken from the base, so that storing the result writes only the difference; new parts are checked, copied
and frozen. Secrets are redacted here, before a value is hashed, stored or logged.

A program that commits its whole state again and again passes the same objects each time. `FoldCache` caches the box
of each object with a *witness*: its mutable containers and a copy of their content. If the content is identical, the
object is unchanged and is not encoded again.

Invariant: the result equals the value and shares no mutable part with it; `fold(thaw(t), t) is t`. A cached box is
the box that encoding the object now would give.
"""

from __future__ import annotations

import re
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields
from fnmatch import translate
from itertools import chain, compress, count
from operator import eq, is_, is_not, itemgetter
from struct import pack
from typing import Any, NamedTuple

from holdfast.errors import InvalidCall, UnsupportedValue
from holdfast.tree import path as paths
from holdfast.tree.artifact import Artifact
from holdfast.tree.codec import (
    ARTIFACT,
    MAX_DEPTH,
    REDACTED,
    decode_frozen,
    encode,
    leaf_ext,
    nested_artifacts,
    prepare_key,
    to_bytes,
    too_deep,
    under,
)
from holdfast.tree.containers import build_dict, build_list
from holdfast.tree.frozen import DICTS, LISTS, SERVED, Box, FrozenDict, FrozenList, source_of, stored_at
from holdfast.tree.values import MODEL_STATE, NATIVE, Opaque, kind_of, split_dataclass, split_model

#: Cache entries up to this number are always kept.
_MIN_CACHED = 256


class Witness(NamedTuple):
    """The mutable content of an object, as parallel lists: owners, names and values of attributes; dicts and their
    copies; other containers and lists of their items."""

    owners: list[Any]
    names: list[str]
    held: list[Any]
    dicts: list[Any]
    dict_copies: list[dict[Any, Any]]
    others: list[Any]
    other_copies: list[list[Any]]


class CachedBox(NamedTuple):
    """An object, its box, its content at that time, and its depth in the tree."""

    value: Any
    box: Box
    witness: Witness
    depth: int


class FoldCache:
    """The boxes of a run's objects as last folded; holds the objects of the last states only."""

    def __init__(self) -> None:
        self._new: dict[int, CachedBox] = {}
        self._old: dict[int, CachedBox] = {}

    def expire(self) -> None:
        """Drop objects that earlier states did not contain; called before a state is folded."""
        if len(self._new) >= max(len(self._old) // 2, _MIN_CACHED):
            self._old, self._new = self._new, {}

    def find(self, value: Any, depth: int) -> Box | None:
        """Return the box of an unchanged object that is not deeper in the tree than before; otherwise None."""
        number = id(value)
        known = self._new.get(number) or self._old.get(number)
        if known is None or known.value is not value or depth > known.depth or not _are_unchanged([known]):
            return None
        self._new[number] = known
        return known.box

    def matches(self, values: Sequence[Any], boxes: Sequence[Any], depth: int) -> bool:
        """Return whether `find` would give these boxes for these objects, at the speed of C."""
        numbers = list(map(id, values))
        entries: list[Any] = list(map(self._new.get, numbers))
        if None in entries:
            entries = list(map(self._old.get, numbers))
            if None in entries:
                return False
        if not (
            all(map(is_, map(_VALUE, entries), values))
            and all(map(is_, map(_BOX, entries), boxes))
            and min(map(_DEPTH, entries)) >= depth
            and _are_unchanged(entries)
        ):
            return False
        self._new.update(zip(numbers, entries, strict=True))
        return True

    def add(self, value: Any, box: Box, depth: int) -> Box:
        """Cache the box of an object; return the earlier box instead, if it is equal."""
        known = self._new.get(id(value)) or self._old.get(id(value))
        if (
            known is not None
            and known.value is value
            and (known.box.code, known.box.data) == (box.code, box.data)
        ):
            box, depth = known.box, max(depth, known.depth)
        witness = Witness([], [], [], [], [], [], [])
        with suppress(RecursionError):
            if _observe(value, witness):
                self._new[id(value)] = CachedBox(value, box, witness, depth)
        return box


_VALUE, _BOX, _WITNESS, _DEPTH = map(itemgetter, range(4))
_OWNERS, _NAMES, _HELD, _DICTS, _DICT_COPIES, _OTHERS, _OTHER_COPIES = map(itemgetter, range(7))
_chained = chain.from_iterable


def _are_unchanged(entries: list[CachedBox]) -> bool:
    """Return whether objects have the content of their witnesses. An unchanged set iterates in the same order."""
    witnesses = list(map(_WITNESS, entries))

    def all_of(part: Any) -> list[Any]:
        return list(_chained(map(part, witnesses)))

    if not all(map(is_, map(getattr, all_of(_OWNERS), all_of(_NAMES)), all_of(_HELD))):
        return False
    dicts, copies = all_of(_DICTS), all_of(_DICT_COPIES)
    others, lists = all_of(_OTHERS), all_of(_OTHER_COPIES)
    return (
        all(map(eq, map(len, dicts), map(len, copies)))
        and all(map(eq, map(len, others), map(len, lists)))
        and all(map(is_, _chained(map(dict.values, dicts)), _chained(map(dict.values, copies))))
        and all(map(is_, _chained(dicts), _chained(copies)))
        and all(map(is_, _chained(others), _chained(lists)))
    )


def _observe(value: Any, witness: Witness) -> bool:
    """Add the mutable content of a value to a witness; return False if some of it cannot be observed."""
    kind = type(value)
    if kind in NATIVE:
        return True
    copy = _COPIES.get(kind)
    if copy is not None:
        held = copy(value)
        inner = held.values() if type(held) is dict else held
        (witness.dicts if type(held) is dict else witness.others).append(value)
        (witness.dict_copies if type(held) is dict else witness.other_copies).append(held)
        if type(held) is dict and not all(type(key) in NATIVE or _observe(key, witness) for key in held):
            return False
        return all(type(item) in NATIVE or _observe(item, witness) for item in inner)
    if isinstance(value, tuple | frozenset):
        return all(_observe(item, witness) for item in value)
    known = kind_of(value)
    if not known.boxed:
        return True
    if known.split is split_model:
        names: Iterable[str] = MODEL_STATE
    elif known.split is split_dataclass:
        names = ("__dict__",) if hasattr(value, "__dict__") else (field.name for field in fields(value))
    else:
        return False
    for name in names:
        held = getattr(value, name)
        witness.owners.append(value)
        witness.names.append(name)
        witness.held.append(held)
        if not _observe(held, witness):
            return False
    return True


_COPIES: dict[type, Callable[[Any], Any]] = {
    dict: dict,
    OrderedDict: dict,
    list: list,
    set: list,
    deque: list,
}

_MISSING: Any = object()
#: Shorter lists are compared item by item.
_MIN_BULK = 8
_DICT = {dict}
_FROZEN_DICT = frozenset((FrozenDict,))
#: Characters of a path in a message; a cycle has a long path.
_MAX_PATH = 120
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
    ) -> None:
        self.space = space
        self.redact = redact
        #: Whether folding ends drafts, which is cheaper.
        self._consume = consume
        self._cache = cache
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
            where = paths.show(error.details.get("path", []))
            shown = where if len(where) <= _MAX_PATH else f"{where[:_MAX_PATH]}…"
            of = f" of the {part}" if part else ""
            raise UnsupportedValue(
                f"at {shown or 'the root'}{of}: {error}", **{**error.details, "path": where}
            ) from None

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
            return self.leaf(value, base, depth)
        if self._consume:
            return fold(value, self, base, depth)
        if kind.__holdfast_plain__ is dict:
            return self.dict(dict.copy(value), base, depth)
        return self.list(list.copy(value), base, depth)

    def dict(self, value: dict[Any, Any], base: Any, depth: int) -> FrozenDict:
        """Fold an ordinary dict."""
        old: FrozenDict | None = base if type(base) in DICTS else None
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
        for key, item in value.items():
            was = _MISSING if old is None else old.get(key, _MISSING)
            out[key] = new = self.entry(key, item, was, depth)
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
        out: list[Any] = []
        keep = 0
        if old is not None and (_starts_with(value, old) or self._is_cached(value, old, depth)):
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
        for item in value[len(out) :]:
            out.append(self.item(item, _MISSING, depth, len(out)))
        return build_list(out, old, keep)

    def _is_cached(self, value: Sequence[Any], old: FrozenList, depth: int) -> bool:
        """Return whether a list starts with the unchanged objects of its base."""
        size = len(old)
        if self._cache is None or not _MIN_BULK <= size <= len(value) or type(old[0]) is not Box:
            return False
        return self._cache.matches(value if len(value) == size else value[:size], old, depth + 1)

    def leaf(self, value: Any, base: Any, depth: int) -> Any:
        """Fold a value that is neither native nor a plain container."""
        if self._cache is not None:
            known = self._cache.find(value, depth)
            if known is not None:
                return base if known is base or same(known, base) else known
        kind = kind_of(value)
        ext = leaf_ext(value, None if self.redact is None else self.redact.hides, depth=depth)
        if ext.code == ARTIFACT or ARTIFACT in bytes(ext.data):
            stored = {digest.hex() for digest in nested_artifacts(ext.code, bytes(ext.data))}
            # Without the artifacts of redacted fields.
            self.arrivals += [
                artifact
                for artifact in artifacts_within(value)
                if artifact.arrives and artifact.digest in stored
            ]
        if kind.boxed:
            box = base if _is_box(base, ext) else Box(ext.code, bytes(ext.data))
            if self._cache is not None and not self.arrivals:
                known = self._cache.add(value, box, depth)
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


class Folded:
    """A value that was folded with a base before, perhaps in another thread."""

    __slots__ = ("_arrivals", "_base", "root")

    def __init__(self, root: Any, base: Any, arrivals: Sequence[Any]) -> None:
        self.root, self._base, self._arrivals = root, base, arrivals

    def __holdfast_fold__(self, folder: Folder, base: Any, depth: int) -> Any:
        """Return the folded value; fold it again if the base is another one now."""
        folder.arrivals += self._arrivals
        return self.root if base is self._base else folder.value(self.root, base, depth)


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
    elif isinstance(value, dict):
        for item in value.values():
            yield from artifacts_within(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield from artifacts_within(item)
    elif kind not in NATIVE and kind is not Opaque:
        yield from artifacts_within(kind_of(value).split(value))


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
