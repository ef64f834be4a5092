"""The shapes of a run's nodes: what each can be referred to as.

A decoder checks a node by itself. Whether the nodes that it refers to exist, and are of the kind that is needed there,
shows only when all are looked at, oldest first: children are laid before their parents.

Invariant: a tree of nodes that passed can be read. None of its references leads nowhere, to a node of another kind or
back to itself; the counts of long lists and wide dicts are right, and each key of a wide dict is where its hash says.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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


class _Group(NamedTuple):
    """A group of a vector: how many levels of groups lie below it, and how many items."""

    level: int
    size: int
    #: Levels of containers that its items have.
    depth: int
    #: Is it a list, which is a value as well?
    is_list: bool = False


class _Way(NamedTuple):
    """A part of a trie."""

    size: int
    #: Levels of containers that its values have.
    depth: int
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
            _require(self._value(root, version) <= MAX_DEPTH + 1)

    def _node(self, node: Any, version: int) -> Any:
        """The shape of a node: a group, a part of a trie, or the number of levels of a value."""
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

    def _value(self, value: Any, version: int) -> int:
        """The number of levels of containers that a value has; what it holds in itself is not counted."""
        kind = type(value)
        if kind in NATIVE:
            return 0
        if kind is Ref:
            found = self._at(value, version)
            if type(found) is _Group:
                # A list is a value and a group.
                _require(found.is_list)
                return 1 + found.depth
            _require(type(found) is int)
            return int(found)
        if kind is list:
            return 1 + max((self._value(item, version) for item in items_of(value)), default=0)
        if kind is dict:
            for key in value:
                check_key(key)
            return 1 + max((self._value(item, version) for item in value.values()), default=0)
        if kind is Raw and value.code == VECTOR:
            height, count, root, tail = value.parts
            end = self._group(tail, version)
            _require(end.level == 0)
            if root is None:
                _require(height == count == 0)
                return 1 + end.depth
            top = self._group(root, version)
            _require((top.level, top.size) == (height, count))
            return 1 + max(top.depth, end.depth)
        if kind is Raw and value.code == TRIE:
            next_, count, root = value.parts
            way = self._way(root, version)
            _require(way.size == count <= next_ and _fits(way, 0))
            return 1 + way.depth
        _require(kind not in (Raw, Refs, Sealed))
        return 0

    def _group(self, raw: Any, version: int) -> _Group:
        if type(raw) is Ref:
            return self._at_as(_Group, raw, version)
        if type(raw) is list:
            return _Group(0, len(items_of(raw)), self._value(raw, version) - 1, is_list=True)
        if type(raw) is Sealed:
            return _Group(0, len(raw.items), max(map(_depth_whole, raw.items), default=0))
        _require(type(raw) is Raw and raw.code == BRANCH and bool(raw.parts))
        children = [self._group(child, version) for child in raw.parts[1::2]]
        _require([child.size for child in children] == raw.parts[::2])
        _require(len({child.level for child in children}) == 1)
        return _Group(children[0].level + 1, sum(raw.parts[::2]), max(child.depth for child in children))

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
        depth = max((self._value(item, version) for item in raw.parts[2::3]), default=0)
        _require(len(set(raw.parts[::3])) == len(dict.fromkeys(keys)) == len(keys) > 0)
        hashes = list(map(hash_key, keys))
        return _Way(len(keys), depth, hashes[0], _agreed(*hashes), None)


def _fork(below: list[tuple[int, _Way]]) -> _Way:
    """The shape of a fork, given those of its ways."""
    _require(bool(below))
    at, first = below[0]
    size = sum(way.size for _, way in below)
    depth = max(way.depth for _, way in below)
    if len(below) == 1 and first.level is None:
        return _Way(size, depth, first.hashed, first.agreed, None, (at, *first.ways))
    # Where its ways part is its level.
    level = (first.level or 0) - 1 if len(below) == 1 else _agreed(first.hashed, below[1][1].hashed)
    _require(level >= 0)
    for place, way in below:
        _require(
            step_down(way.hashed, level) == place
            and _fits(way, level + 1)
            and _agreed(first.hashed, way.hashed) >= level
        )
    return _Way(size, depth, first.hashed, level, level)


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


def _depth_whole(value: Any) -> int:
    """The levels of a value of a sealed group, which must not have a reference or a part of a spine in it."""
    kind = type(value)
    if kind in NATIVE:
        return 0
    if kind in DICTS:
        for key in value:
            check_key(key)
        return 1 + max(map(_depth_whole, value.values()), default=0)
    if kind in LISTS:
        return 1 + max(map(_depth_whole, value), default=0)
    _require(kind not in (Raw, Ref, Refs, Sealed))
    return 0


def _require(is_sound: bool) -> None:
    if not is_sound:
        raise IncompatibleFormat(
            "a node refers to one that is not there, or of another kind than is needed there"
        )
