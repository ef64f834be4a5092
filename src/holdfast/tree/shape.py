"""The shapes of a run's nodes: what each can be referred to as.

A decoder checks a node by itself. Whether the nodes that it refers to exist, and are of the kind that is needed there,
shows only when all are looked at, oldest first: children are laid before their parents.

Invariant: a tree of nodes that passed can be read. None of its references leads nowhere, to a node of another kind or
back to itself; the counts of long lists and wide dicts are right, and each key of a wide dict is where its hash says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import IncompatibleFormat
from holdfast.tree.block import BRANCH, BUCKET, FORK, TRIE, VECTOR, Raw, Ref, Refs, Sealed, items_of
from holdfast.tree.codec import MAX_DEPTH, check_key, open_key
from holdfast.tree.frozen import DICTS, LISTS
from holdfast.tree.keys import hash_key
from holdfast.tree.load import Place
from holdfast.tree.spine import BITS, MAX_LEVEL, step_down
from holdfast.tree.values import NATIVE

T = TypeVar("T")

#: Values in a state. A few nodes that refer to each other twice on each of many levels would exceed any memory.
MAX_WEIGHT = 100_000_000


class _Value(NamedTuple):
    """A value: the levels of containers that it has, and the values in it. A node with two references counts twice,
    because a reader of the whole value reads it twice."""

    depth: int = 0
    weight: int = 1


class _Group(NamedTuple):
    """A group of a vector: how many levels of groups lie below it, how many items, and what they are."""

    level: int
    size: int
    items: _Value
    #: Is it a list, which is a value as well?
    is_list: bool = False


class _Way(NamedTuple):
    """A part of a trie."""

    size: int
    #: Its values.
    items: _Value
    #: The hash of one of its keys, and the number of levels on which the hashes of all of them agree.
    hashed: int
    agreed: int
    #: The level that it must be on; None if that is not known yet: then the ways that it takes from its own level on.
    level: int | None
    ways: tuple[int, ...] = ()


#: Pruning leaves nothing in the slot of a node that is not needed.
_ABSENT = ()


class Shapes:
    """The shapes of the nodes that have been looked at."""

    def __init__(self) -> None:
        self._known: dict[int, list[Any]] = {}

    def add(self, version: int, nodes: Iterable[Any]) -> None:
        """Look at the nodes of the next version, in the order of their slots; None for those that were pruned."""
        own: list[Any] = []
        self._known[version] = own
        for node in nodes:
            # A node is never a reference itself.
            _require(type(node) is not Ref)
            own.append(_ABSENT if node is None else self._node(node, version))

    def check(self, roots: Sequence[Any], version: int) -> None:
        """Refuse roots of a version that cannot be read."""
        for root in roots:
            depth, weight = self._value(root, version)
            _require(depth <= MAX_DEPTH + 1)
            if weight > MAX_WEIGHT:
                raise IncompatibleFormat(
                    f"a state holds more than {MAX_WEIGHT:,} values, most of them again and again: reading it would "
                    "exhaust the memory"
                )

    def _node(self, node: Any, version: int) -> Any:
        """The shape of a node: a group, a part of a trie, or a value."""
        if type(node) in (list, Sealed) or (type(node) is Raw and node.code == BRANCH):
            return self._group(node, version)
        if type(node) is Raw and node.code in (FORK, BUCKET):
            return self._way(node, version)
        return self._value(node, version)

    def _at(self, ref: Ref, version: int) -> Any:
        place: Place = (version - ref.back, ref.slot)
        slots = self._known.get(place[0], ())
        _require(place[1] < len(slots) and slots[place[1]] is not _ABSENT)
        return slots[place[1]]

    def _at_as(self, kind: type[T], ref: Ref, version: int) -> T:
        found: T = self._at(ref, version)
        _require(type(found) is kind)
        return found

    def _value(self, value: Any, version: int) -> _Value:
        """The shape of a value; what a leaf holds in itself is not counted."""
        kind = type(value)
        if kind in NATIVE:
            return _LEAF
        if kind is Ref:
            found = self._at(value, version)
            if type(found) is _Group:
                # A list is a value and a group.
                _require(found.is_list)
                return _around(found.items)
            _require(type(found) is _Value)
            return _Value(*found)
        if kind is list:
            return _around(self._values(items_of(value), version))
        if kind is dict:
            for key in value:
                check_key(key)
            return _around(self._values(value.values(), version))
        if kind is Raw and value.code == VECTOR:
            height, count, root, tail = value.parts
            end = self._group(tail, version)
            _require(end.level == 0)
            if root is None:
                _require(height == count == 0)
                return _around(end.items)
            top = self._group(root, version)
            _require((top.level, top.size) == (height, count))
            return _around(_together([top.items, end.items]))
        if kind is Raw and value.code == TRIE:
            next_, count, root = value.parts
            way = self._way(root, version)
            _require(way.size == count <= next_ and _fits(way, 0))
            return _around(way.items)
        _require(kind not in (Raw, Refs, Sealed))
        return _LEAF

    def _values(self, values: Collection[Any], version: int) -> _Value:
        if NATIVE.issuperset(map(type, values)):
            return _Value(0, len(values))
        return _together([self._value(value, version) for value in values])

    def _group(self, raw: Any, version: int) -> _Group:
        if type(raw) is Ref:
            return self._at_as(_Group, raw, version)
        if type(raw) is list:
            values = items_of(raw)
            return _Group(0, len(values), self._values(values, version), is_list=True)
        if type(raw) is Sealed:
            return _Group(0, len(raw.items), _together(list(map(_whole, raw.items))))
        _require(type(raw) is Raw and raw.code == BRANCH and bool(raw.parts))
        children = [self._group(child, version) for child in raw.parts[1::2]]
        _require([child.size for child in children] == raw.parts[::2])
        _require(len({child.level for child in children}) == 1)
        items = _together([child.items for child in children])
        return _Group(children[0].level + 1, sum(raw.parts[::2]), items)

    def _way(self, raw: Any, version: int) -> _Way:
        if type(raw) is Ref:
            return self._at_as(_Way, raw, version)
        _require(type(raw) is Raw and raw.code in (FORK, BUCKET))
        if raw.code == FORK:
            return _fork(
                [(at, self._way(way, version)) for at, way in enumerate(raw.parts) if way is not None]
            )
        keys = list(map(open_key, raw.parts[1::3]))
        for key in keys:
            check_key(key)
        items = self._values(raw.parts[2::3], version)
        _require(len(set(raw.parts[::3])) == len(dict.fromkeys(keys)) == len(keys) > 0)
        hashes = list(map(hash_key, keys))
        return _Way(len(keys), items, hashes[0], _agreed(*hashes), None)


def _fork(below: list[tuple[int, _Way]]) -> _Way:
    """The shape of a fork, given those of its ways."""
    _require(bool(below))
    at, first = below[0]
    size = sum(way.size for _, way in below)
    items = _together([way.items for _, way in below])
    if len(below) == 1 and first.level is None:
        return _Way(size, items, first.hashed, first.agreed, None, (at, *first.ways))
    # Where its ways part is its level.
    level = (first.level or 0) - 1 if len(below) == 1 else _agreed(first.hashed, below[1][1].hashed)
    _require(level >= 0)
    for place, way in below:
        _require(
            step_down(way.hashed, level) == place
            and _fits(way, level + 1)
            and _agreed(first.hashed, way.hashed) >= level
        )
    return _Way(size, items, first.hashed, level, level)


def _fits(way: _Way, level: int) -> bool:
    """Can this part of a trie be on a level?"""
    if way.level is not None:
        return way.level == level
    return way.agreed >= level + len(way.ways) and all(
        step_down(way.hashed, at) == each for at, each in enumerate(way.ways, level)
    )


def _agreed(*hashes: int) -> int:
    """The number of levels on which hashes lead the same way."""
    different = 0
    for other in hashes:
        different |= hashes[0] ^ other
    return ((different & -different).bit_length() - 1) // BITS if different else MAX_LEVEL


def _whole(value: Any) -> _Value:
    """The shape of a value of a sealed group, which must not have a reference or a part of a spine in it."""
    kind = type(value)
    if kind in NATIVE:
        return _LEAF
    if kind in DICTS:
        for key in value:
            check_key(key)
        return _around(_together(list(map(_whole, value.values()))))
    if kind in LISTS:
        return _around(_together(list(map(_whole, value))))
    _require(kind not in (Raw, Ref, Refs, Sealed))
    return _LEAF


_LEAF = _Value()


def _together(values: Sequence[_Value]) -> _Value:
    """The deepest levels, and the sum of the values."""
    return _Value(max((value.depth for value in values), default=0), sum(value.weight for value in values))


def _around(items: _Value) -> _Value:
    """The shape of a container with these items."""
    return _Value(items.depth + 1, items.weight + 1)


def _require(is_sound: bool) -> None:
    if not is_sound:
        raise IncompatibleFormat(
            "a node refers to one that is not there, or of another kind than is needed there"
        )
