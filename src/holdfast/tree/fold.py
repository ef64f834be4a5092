"""Ordinary values and drafts into frozen trees that share all they can with a base.

`Folder.fold(value, base)` walks an ordinary tree beside the frozen tree it probably came from. Whatever is
exactly equal (type, value, order of keys) is taken from the base, so that storing the result writes the
difference only; whatever is new is checked, copied and frozen. The secrets named by `redact` are replaced
here, before a value is hashed, stored or logged.

Invariant: the result equals the value and shares no mutable part with it; `fold(thaw(t), t) is t`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import translate
from itertools import chain
from operator import eq, is_
from struct import pack
from typing import Any

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
from holdfast.tree.frozen import DICTS, LISTS, SERVED, Box, FrozenDict, FrozenList, source_of, stored_at
from holdfast.tree.recall import Recall
from holdfast.tree.spine import build_dict, build_list
from holdfast.tree.values import NATIVE, Opaque, kind_of

_MISSING: Any = object()
#: Lists that are shorter than this are looked at item by item.
_FEW = 8
_DICT = {dict}
_FROZEN_DICT = frozenset((FrozenDict,))
_chained = chain.from_iterable
#: Characters of a path in a message; a cycle has a long one.
_SHOWN = 120
#: Keys lie within nodes, whatever their size; longer ones are mistakes.
_MAX_KEY = 64 * 1024


class Redactor:
    """Knows which keys hold secrets: shell patterns without regard to case, or compiled expressions."""

    def __init__(self, patterns: Iterable[str | re.Pattern[str]]) -> None:
        if isinstance(patterns, str):
            raise InvalidCall('redact takes a list of patterns, such as ["*password*", "api_key"]')
        self._matchers = [
            re.compile(translate(pattern), re.IGNORECASE) if isinstance(pattern, str) else pattern
            for pattern in patterns
        ]
        self._known: dict[str, bool] = {}

    def hides(self, key: Any) -> bool:
        """Is the value under this key a secret?"""
        if not isinstance(key, str):
            return self._hides_within(key)
        key = str.__str__(key)
        known = self._known.get(key)
        if known is None:
            known = any(matcher.fullmatch(key) for matcher in self._matchers)
            if len(self._known) < 10_000:
                self._known[key] = known
        return known

    def _hides_within(self, key: Any) -> bool:
        """Is the value under a key a secret that is not a text, but holds one?"""
        if isinstance(key, bytes):
            return self.hides(key.decode(errors="replace"))
        return isinstance(key, tuple | frozenset) and any(map(self.hides, key))


class Folder:
    """Folds values for one run. `space` is its address space: containers stored there are trusted."""

    def __init__(
        self,
        space: object,
        redact: Redactor | None = None,
        recall: Recall | None = None,
        *,
        consume: bool = True,
    ) -> None:
        self.space = space
        self._redact = redact
        #: Whether drafts end when they are folded, which is cheaper.
        self._consume = consume
        #: What objects were when they were folded last.
        self._recall = recall
        #: Artifacts that came with the value and are not in the store yet.
        self.arrivals: list[Any] = []

    @property
    def redact(self) -> Redactor | None:
        """Which keys hold secrets."""
        return self._redact

    def fold(self, value: Any, base: Any = _MISSING, *, part: str = "") -> Any:
        """The frozen form of `value`; `UnsupportedValue` names the path of what cannot be stored, and of which part of
        a version, if it is not the state."""
        try:
            return self.value(value, base, 0)
        except UnsupportedValue as error:
            where = paths.show(error.details.get("path", []))
            shown = where if len(where) <= _SHOWN else f"{where[:_SHOWN]}…"
            of = f" of the {part}" if part else ""
            raise UnsupportedValue(
                f"at {shown or 'the root'}{of}: {error}", **{**error.details, "path": where}
            ) from None

    def value(self, value: Any, base: Any, depth: int) -> Any:
        """As `fold`, with paths of refusals still relative to `value`."""
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
        fold = getattr(kind, "_fold", None)
        if fold is not None:
            return fold(value, self, base, depth) if self._consume else self._copied(value, base, depth)
        return self.leaf(value, base, depth)

    def _copied(self, value: Any, base: Any, depth: int) -> Any:
        """The frozen form of a draft that is used further."""
        if type(value)._plain is dict:
            return self.dict(dict.copy(value), base, depth)
        return self.list(list.copy(value), base, depth)

    def dict(self, value: dict[Any, Any], base: Any, depth: int) -> FrozenDict:
        """An ordinary dict beside its base."""
        old: FrozenDict | None = base if type(base) in DICTS else None
        if (
            old is not None
            and len(old) == len(value)
            and all(map(is_, value.values(), old.values()))
            and all(map(is_, value, old))
            # What is there may have been stored before its key was redacted.
            and (self._redact is None or not any(map(self._redact.hides, value)))
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
                # NaN is a key that no other NaN finds: the old one stays.
                out = {
                    key: new if not same(new, old[key]) else old[key]
                    for key, new in zip(old, out.values(), strict=True)
                }
                touched = [key for key, new in out.items() if new is not old[key]]
            return build_dict(out, old, touched) if touched else old
        touched += [key for key in old if key not in out]
        return build_dict(out, old, touched, reordered=not _only_grown(out, old))

    def list(self, value: list[Any], base: Any, depth: int) -> FrozenList:
        """An ordinary list beside its base."""
        old: FrozenList | None = base if type(base) in LISTS else None
        out: list[Any] = []
        keep = 0
        if old is not None and (_begins_with(value, old) or self._recalled(value, old, depth)):
            if len(value) == len(old):
                return old
            out = list.copy(old)
            keep = len(old)
        elif old is not None:
            same = True
            for was, item in zip(old, value, strict=False):
                new = self.item(item, was, depth, len(out))
                out.append(new)
                if same:
                    if new is was:
                        keep += 1
                    else:
                        same = False
            if keep == len(old) == len(value):
                return old
        for item in value[len(out) :]:
            out.append(self.item(item, _MISSING, depth, len(out)))
        return build_list(out, old, keep)

    def _recalled(self, value: Sequence[Any], old: FrozenList, depth: int) -> bool:
        """Is a list of objects what it was, perhaps with more at its end?"""
        count = len(old)
        if self._recall is None or not _FEW <= count <= len(value) or type(old[0]) is not Box:
            return False
        return self._recall.are(value if len(value) == count else value[:count], old, depth + 1)

    def leaf(self, value: Any, base: Any, depth: int) -> Any:
        """A value that is neither native nor a plain container."""
        if self._recall is not None:
            known = self._recall.box(value, depth)
            if known is not None:
                return base if known is base or same(known, base) else known
        kind = kind_of(value)
        ext = leaf_ext(value, None if self._redact is None else self._redact.hides, depth=depth)
        if ext.code == ARTIFACT or ARTIFACT in bytes(ext.data):
            stored = {digest.hex() for digest in nested_artifacts(ext.code, bytes(ext.data))}
            # Not those of fields that are redacted.
            self.arrivals += [
                artifact
                for artifact in artifacts_within(value)
                if artifact.arrives and artifact.digest in stored
            ]
        if kind.boxed:
            box = base if _is_box(base, ext) else Box(ext.code, bytes(ext.data))
            if self._recall is not None and not self.arrivals:
                noted = self._recall.note(value, box, depth)
                return box if box is base else noted
            return box
        if _is_box(base, ext):
            return base
        if type(base) is type(value) and leaf_ext(base) == ext:
            return base
        return decode_frozen(to_bytes(ext)) if isinstance(value, tuple) else value

    def entry(self, key: Any, item: Any, was: Any, depth: int) -> Any:
        """A dict's value beside what stood under the same key."""
        if self._redact is not None and type(key) not in NATIVE:
            self._refuse_secret(key)
        try:
            if type(key) is not str:
                _check_key_size(len(to_bytes(prepare_key(key, depth=depth + 1))))
            elif len(key) > _MAX_KEY:
                _check_key_size(len(key))
            if self._redact is not None and self._redact.hides(key):
                return was if type(was) is str and was == REDACTED else REDACTED
            return self.value(item, was, depth + 1)
        except UnsupportedValue as error:
            raise under(error, key) from None

    def _refuse_secret(self, key: Any) -> None:
        """A key cannot be redacted; nor may a refusal name it."""
        assert self._redact is not None
        if leaf_ext(key, self._redact.hides) != leaf_ext(key):
            raise UnsupportedValue("a key holds a value that is to be redacted: use another key", type="key")

    def item(self, item: Any, was: Any, depth: int, index: int) -> Any:
        """A list's item beside what stood in the same place."""
        if item is was and type(item) in NATIVE:
            return was
        try:
            return self.value(item, was, depth + 1)
        except UnsupportedValue as error:
            raise under(error, index) from None


class Folded:
    """A value that was folded beside a base before, perhaps in another thread, on its way into a tree."""

    __slots__ = ("_arrivals", "_base", "root")

    def __init__(self, root: Any, base: Any, arrivals: Sequence[Any]) -> None:
        self.root, self._base, self._arrivals = root, base, arrivals

    def _fold(self, folder: Folder, base: Any, depth: int) -> Any:
        folder.arrivals += self._arrivals
        return self.root if base is self._base else folder.value(self.root, base, depth)


def _begins_with(value: list[Any], old: FrozenList) -> bool:
    """Is a list what it was, perhaps with more at its end? Tells so, at the speed of C, of lists of small dicts with
    the very same keys and values; of others it does not know."""
    count = len(old)
    if len(value) < count or count < _FEW or type(value[0]) is not dict:
        return False
    first = value if len(value) == count else value[:count]
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
    """Are two frozen values exactly equal? Cheap where they share nodes."""
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
    """The artifacts that a leaf is, or holds."""
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
        raise UnsupportedValue(f"a key of {size} characters: {_MAX_KEY} are the most", type="key")


def _same_float(one: float, other: float) -> bool:
    return pack("d", one) == pack("d", other)


def _same_keys(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    """Exactly the same keys in the same order?"""
    return len(one) == len(other) and (all(map(is_, one, other)) or all(map(_same_key, one, other)))


def _same_key(one: Any, other: Any) -> bool:
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is str or kind is int:
        return bool(one == other)
    return one is other or encode(one) == encode(other)


def _only_grown(new: dict[Any, Any], old: dict[Any, Any]) -> bool:
    """Do the old keys that are left come first, in their old order and of their old types?"""
    return same_keys_first(new, [key for key in old if key in new])


def same_keys_first(new: dict[Any, Any], left: list[Any]) -> bool:
    """Does a dict begin with exactly these keys?"""
    return all(map(is_, new, left)) or all(map(_same_key, new, left))
