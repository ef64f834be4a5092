"""Check the nodes of a bundle's versions: the kinds of value that a reference to each can be.

A decoder checks a node by itself. Whether the nodes that it refers to exist, and are of the required kind, shows when
all are checked, oldest first: children are written before their parents.

Invariant: a tree of nodes that passed can be read. No reference leads to a missing node, to a node of the wrong kind or
back to itself; the counts of long lists and wide dicts are right, and each key of a wide dict is where its hash says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from holdfast.errors import IncompatibleFormat
from holdfast.tree.block import BRANCH, BUCKET, FORK, TRIE, VECTOR, Raw, Ref, Refs, Sealed, items_of
from holdfast.tree.codec import MAX_DEPTH, check_key, open_key
from holdfast.tree.containers import BITS, MAX_LEVEL, child_index, hash_key
from holdfast.tree.frozen import DICTS, LISTS
from holdfast.tree.values import NATIVE

T = TypeVar("T")

#: Values in a state. A few nodes that refer to each other twice on each of many levels would exceed any memory.
MAX_WEIGHT = 100_000_000


class _Value(NamedTuple):
    """A value: its levels of containers, and the number of values in it. A node that is referred to twice counts twice,
    as it does for a reader of the whole value."""

    depth: int = 0
    weight: int = 1


class _Group(NamedTuple):
    """A group of a vector: the levels of groups below it, the number of its items, and their shape."""

    level: int
    size: int
    items: _Value
    #: Whether it is a list, which is a value as well.
    is_list: bool = False


class _Way(NamedTuple):
    """A part of a trie."""

    size: int
    #: Its values.
    items: _Value
    #: The hash of one of its keys, and the number of levels on which the hashes of all of them agree.
    hashed: int
    agreed: int
    #: Its level in the trie; None if not known yet, with the path that it takes from its own level on.
    level: int | None
    ways: tuple[int, ...] = ()


#: The shape in the slot of a pruned node.
_ABSENT = ()


class NodeShapes:
    """The shapes of the nodes of all versions added so far."""

    def __init__(self) -> None:
        self._known: dict[int, list[Any]] = {}

    def add(self, version: int, nodes: Iterable[Any]) -> None:
        """Add the nodes of the next version in the order of their slots; None for pruned ones."""
        own: list[Any] = []
        self._known[version] = own
        for node in nodes:
            # A node is never a reference itself.
            _require(type(node) is not Ref)
            own.append(_ABSENT if node is None else self._node(node, version))

    def check(self, roots: Sequence[Any], version: int) -> None:
        """Raise `IncompatibleFormat` if the roots of a version cannot be read."""
        for root in roots:
            depth, weight = self._value(root, version)
            _require(depth <= MAX_DEPTH + 1)
            if weight > MAX_WEIGHT:
                raise IncompatibleFormat(
                    f"a state holds more than {MAX_WEIGHT:,} values, most of them again and again: reading it would "
                    "exhaust the memory"
                )

    def _node(self, node: Any, version: int) -> Any:
        """Return the shape of a node: a group, a part of a trie, or a value."""
        if type(node) in (list, Sealed) or (type(node) is Raw and node.code == BRANCH):
            return self._group(node, version)
        if type(node) is Raw and node.code in (FORK, BUCKET):
            return self._way(node, version)
        return self._value(node, version)

    def _at(self, ref: Ref, version: int) -> Any:
        slots = self._known.get(version - ref.back, ())
        _require(ref.slot < len(slots) and slots[ref.slot] is not _ABSENT)
        return slots[ref.slot]

    def _at_as(self, kind: type[T], ref: Ref, version: int) -> T:
        found: T = self._at(ref, version)
        _require(type(found) is kind)
        return found

    def _value(self, value: Any, version: int) -> _Value:
        """Return the shape of a value; the content of a leaf is not counted."""
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
    """Check the children of an inner node of a trie, and return the shape of the node."""
    _require(bool(below))
    at, first = below[0]
    size = sum(way.size for _, way in below)
    items = _together([way.items for _, way in below])
    if len(below) == 1 and first.level is None:
        return _Way(size, items, first.hashed, first.agreed, None, (at, *first.ways))
    # Its level is where the hashes of its children differ.
    level = (first.level or 0) - 1 if len(below) == 1 else _agreed(first.hashed, below[1][1].hashed)
    _require(level >= 0)
    for place, way in below:
        _require(
            child_index(way.hashed, level) == place
            and _fits(way, level + 1)
            and _agreed(first.hashed, way.hashed) >= level
        )
    return _Way(size, items, first.hashed, level, level)


def _fits(way: _Way, level: int) -> bool:
    """Return whether a subtree of a trie may start at a level: its hashes lead there."""
    if way.level is not None:
        return way.level == level
    return way.agreed >= level + len(way.ways) and all(
        child_index(way.hashed, at) == each for at, each in enumerate(way.ways, level)
    )


def _agreed(*hashes: int) -> int:
    """Return the number of levels on which hashes agree."""
    different = 0
    for other in hashes:
        different |= hashes[0] ^ other
    return ((different & -different).bit_length() - 1) // BITS if different else MAX_LEVEL


def _whole(value: Any) -> _Value:
    """Return the shape of a value in a sealed group, which must not hold references or parts of a spine."""
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
    """Return the shape of several values: the deepest level, and the number of all values."""
    return _Value(max((value.depth for value in values), default=0), sum(value.weight for value in values))


def _around(items: _Value) -> _Value:
    """Return the shape of a container with these items."""
    return _Value(items.depth + 1, items.weight + 1)


def _require(is_sound: bool) -> None:
    if not is_sound:
        raise IncompatibleFormat("a node refers to a missing node, or to one of the wrong kind")
