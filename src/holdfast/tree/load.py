"""Stored nodes back to frozen trees.

A `Loader` serves one run. It asks for the nodes of a whole level at once, so that a tree that is spread over
many packs is read in few rounds, but for no more at a time than memory should hold beside the tree; and it
remembers, weakly, which frozen object stands for which stored node: two versions that share a node share the
object, which makes comparing them cheap.

Invariant: a tree that is loaded equals the tree that was written; a node is decoded only after its block's
hash has been checked (by whoever implements `fetch`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from msgspec.msgpack import Ext

from holdfast.errors import IncompatibleFormat, NotFound
from holdfast.tree.block import (
    BRANCH,
    BUCKET,
    FORK,
    LARGE,
    TRIE,
    VECTOR,
    Large,
    Raw,
    Ref,
    Refs,
    Sealed,
    items_of,
)
from holdfast.tree.codec import decode_frozen, nested_artifacts, open_key
from holdfast.tree.frozen import (
    DICTS,
    LISTS,
    At,
    Box,
    FrozenDict,
    FrozenList,
    Long,
    freeze_dict,
    freeze_list,
    note_leaves,
)
from holdfast.tree.keys import hash_key
from holdfast.tree.path import show
from holdfast.tree.spine import (
    MAX_LEVEL,
    Bucket,
    Fork,
    Group,
    Trie,
    Vector,
    assemble_dict,
    assemble_list,
    levels_over,
    step_down,
)
from holdfast.tree.values import NATIVE

#: Nodes that are read ahead of building the tree from them.
_AHEAD = 4096

Place = tuple[int, int]
#: Nodes by (version, slot), verified and decoded.
Fetch = Callable[[Sequence[Place]], dict[Place, Any]]
#: Builds what a decoded node of a version stands for.
Make = Callable[[Any, int], Any]


#: What was read or written and is still used, by the very tuples that the objects carry, which saves a second one for
#: each.
Known = WeakValueDictionary[At, Any]


class Loader:
    """Reads the trees of one run, and has what is known of them at hand."""

    __slots__ = ("_fetch", "_fetch_large", "_known", "space")

    def __init__(
        self, space: object, known: Known, fetch: Fetch, fetch_large: Callable[[bytes], bytes]
    ) -> None:
        self.space = space
        self._known = known
        self._fetch = fetch
        self._fetch_large = fetch_large

    def load(self, root: Any, version: int) -> Any:
        """The whole tree below a root of a version's pack."""
        if type(root) in NATIVE:
            return root
        try:
            return _Builder(self).tree(root, version)
        except RecursionError as error:
            raise _too_deep() from error

    def find(self, root: Any, version: int, path: Sequence[Any]) -> tuple[Any, int]:
        """The value at `path` below a root, and the version that stored the innermost node around it.
        Reads only the nodes on the way."""
        raw, stored = self._follow(root, version)
        for depth, segment in enumerate(path):
            found = self._step(raw, stored, segment)
            if found is None:
                where = show(path[: depth + 1])
                raise NotFound(f"there is nothing at {where}", path=where)
            raw, stored = found
        return self.load(raw, stored), stored

    def _follow(self, raw: Any, version: int) -> tuple[Any, int]:
        if type(raw) is Ref:
            place = (version - raw.back, raw.slot)
            raw, version = self._fetch([place])[place], place[0]
            _require(type(raw) is not Ref)
        return raw, version

    def _step(self, raw: Any, version: int, segment: Any) -> tuple[Any, int] | None:
        kind = type(raw)
        if kind is Raw and raw.code == VECTOR and type(segment) is int:
            return self._pick(raw.parts, version, segment)
        if kind is Raw and raw.code == TRIE:
            return self._look_up(raw.parts[2], version, segment, hash_key(segment), 0)
        if kind is list:
            raw = items_of(raw)
        if (kind is list or kind is FrozenList or kind is tuple) and type(segment) is int:
            return self._follow(raw[segment], version) if -len(raw) <= segment < len(raw) else None
        if kind is dict or kind is FrozenDict:
            return self._follow(raw[segment], version) if segment in raw else None
        return None

    def _pick(self, parts: list[Any], version: int, index: int) -> tuple[Any, int] | None:
        _, count, raw, tail = parts
        if index < 0:
            end, _ = self._follow(tail, version)
            _require(type(end) is list)
            index += count + len(items_of(end))
            if index < 0:
                return None
        if index >= count:
            raw, index = tail, index - count
        raw, version = self._follow(raw, version)
        while type(raw) is Raw and raw.code == BRANCH:
            for held, child in zip(raw.parts[::2], raw.parts[1::2], strict=True):
                if index < held:
                    raw, version = self._follow(child, version)
                    break
                index -= held
            else:
                return None
        _require(type(raw) is Sealed or type(raw) is list)
        items = raw.items if type(raw) is Sealed else items_of(raw)
        return self._follow(items[index], version) if index < len(items) else None

    def _look_up(self, raw: Any, version: int, key: Any, hashed: int, level: int) -> tuple[Any, int] | None:
        raw, version = self._follow(raw, version)
        if raw is None:
            return None
        _require(type(raw) is Raw and raw.code in (FORK, BUCKET) and level <= MAX_LEVEL)
        if raw.code == FORK:
            return self._look_up(raw.parts[step_down(hashed, level)], version, key, hashed, level + 1)
        for held, value in zip(raw.parts[1::3], raw.parts[2::3], strict=True):
            if open_key(held) == key:
                return self._follow(value, version)
        return None


def _require(is_sound: bool) -> None:
    if not is_sound:
        raise IncompatibleFormat("a node is not of the kind that is needed where it is referred to")


def _too_deep() -> IncompatibleFormat:
    return IncompatibleFormat("nodes nest deeper than what is left of the stack")


def refs(raw: Any, version: int) -> list[Place]:
    """The places that a decoded node of a version refers to."""
    found: list[Place] = []
    try:
        _gather(raw, version, found)
    except RecursionError as error:
        raise _too_deep() from error
    return found


def _gather(raw: Any, version: int, found: list[Place]) -> None:
    kind = type(raw)
    if kind is Ref:
        found.append((version - raw.back, raw.slot))
    elif kind is dict:
        _gather_all(raw.values(), version, found)
    elif kind is list:
        _gather_all(items_of(raw), version, found)
    elif kind is Raw:
        _gather_all(items_of(raw.parts), version, found)


def _gather_all(items: Iterable[Any], version: int, found: list[Place]) -> None:
    for item in items:
        if type(item) not in NATIVE:
            _gather(item, version, found)


def artifacts(raw: Any) -> Iterator[bytes]:
    """The digests of the artifacts that a decoded node refers to."""
    kind = type(raw)
    if kind is Large:
        yield raw.digest
    elif kind is Box:
        yield from nested_artifacts(raw.code, raw.data)
    elif kind is dict:
        for item in raw.values():
            if type(item) not in NATIVE:
                yield from artifacts(item)
    elif kind is list:
        for item in raw:
            if type(item) not in NATIVE:
                yield from artifacts(item)
    elif kind is Raw:
        yield from artifacts(raw.parts)


class _Builder:
    """Builds a tree from decoded nodes, each of which it lets go when it has been built."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._fetch = loader._fetch
        self._known = loader._known
        self._space = loader.space
        self._nodes: dict[Place, Any] = {}
        #: Has all that lies below what is being built been read?
        self._complete = False

    def tree(self, raw: Any, version: int) -> Any:
        """The whole tree below a decoded node of a version."""
        self._complete = self._read_ahead(raw, version)
        return self._item(raw, version, {})

    def _read_ahead(self, raw: Any, version: int) -> bool:
        """Read what lies below a node, level by level; not all of it if that is much."""
        nodes, known, space = self._nodes, self._known, self._space
        wanted = set(refs(raw, version))
        seen: set[Place] = set()
        count = 0
        while wanted:
            seen |= wanted
            missing = [place for place in wanted if place not in nodes and (space, *place) not in known]
            count += len(missing)
            if count > _AHEAD:
                return False
            if missing:
                nodes.update(self._fetch(missing))
            below: list[Place] = []
            for place in wanted:
                if place in nodes:
                    found = refs(nodes[place], place[0])
                    # Children are laid before their parents: a node that comes back to itself could not be built.
                    _require(not found or max(found) < place)
                    below += found
            wanted = set(below) - seen
        return True

    def _open(self, at: At) -> Any:
        """A stored node, to be built now, and what lies below it read ahead. Whoever calls puts `_complete` back as it
        was, when the node has been built."""
        place = at[1:]
        raw = self._nodes.pop(place, _MISSING)
        if raw is _MISSING:
            raw = self._fetch([place])[place]
        if not self._complete:
            self._complete = self._read_ahead(raw, at[1])
        return raw

    def _part(self, raw: Any, version: int, make: Make, fits: Callable[[Any], bool]) -> Any:
        """A group, bucket or fork, by itself or by reference. A part that is known already has to fit: it may have been
        read as something else."""
        if type(raw) is not Ref:
            return make(raw, version)
        at = (self._space, version - raw.back, raw.slot)
        part = self._known.get(at)
        if part is not None:
            _require(fits(part))
        else:
            complete = self._complete
            part = make(self._open(at), at[1])
            self._complete = complete
            part.at = at
            self._known[at] = part
        return part

    def _item(self, raw: Any, version: int, long: Long) -> Any:
        """A value in a container that keeps the places of its long leaves in `long`. Every level of a tree takes three
        frames of the stack, which has to hold 200 levels."""
        kind = type(raw)
        if kind is Ref:
            at = (self._space, version - raw.back, raw.slot)
            value = self._known.get(at)
            if value is not None:
                _require(type(value) not in _PARTS)
            else:
                complete = self._complete
                value = self._item(self._open(at), at[1], {})
                self._complete = complete
                if type(value) in DICTS or type(value) in LISTS:
                    value._at = at
                    self._known[at] = value
                else:
                    long[id(value)] = at
            return value
        if kind is dict:
            if NATIVE.issuperset(map(type, raw.values())):
                return FrozenDict(raw)
            below: Long = {}
            frozen: Any = freeze_dict(
                {
                    key: item if type(item) in NATIVE else self._item(item, version, below)
                    for key, item in raw.items()
                }
            )
            if below:
                note_leaves(frozen, below)
            return frozen
        if kind is list:
            below = {}
            frozen = freeze_list(
                [item if type(item) in NATIVE else self._item(item, version, below) for item in items_of(raw)]
            )
            if below:
                note_leaves(frozen, below)
            return frozen
        if kind is Raw and raw.code == VECTOR:
            return self._vector(raw.parts, version)
        if kind is Raw:
            _require(raw.code == TRIE)
            return self._trie(raw.parts, version)
        if kind is Large:
            value = decode_frozen(self._loader._fetch_large(raw.digest))
            long[id(value)] = (self._space, Ext(LARGE, raw.digest + raw.size.to_bytes(8, "big")))
            return value
        _require(kind is not Sealed and kind is not Refs)
        return raw

    def _items(self, raw: list[Any], version: int, long: Long) -> list[Any]:
        return [item if type(item) in NATIVE else self._item(item, version, long) for item in items_of(raw)]

    def _vector(self, parts: list[Any], version: int) -> FrozenList:
        height, count, root, tail = parts
        top = None if root is None else self._child(height, root, version)
        end = self._child(0, tail, version)
        vector = Vector(levels_over(top, height), end)
        _require(vector.count == count and (top is not None or height == 0))
        return assemble_list(vector)

    def _child(self, level: int, raw: Any, version: int) -> Group:
        """A group with so many levels of groups below it."""
        group: Group = self._part(
            raw, version, partial(self._group, level), lambda part: _height(part) == level
        )
        return group

    def _group(self, level: int, raw: Any, version: int) -> Group:
        if level:
            _require(type(raw) is Raw and raw.code == BRANCH and bool(raw.parts))
            children = [self._child(level - 1, child, version) for child in raw.parts[1::2]]
            _require([child.count for child in children] == raw.parts[::2])
            return Group(children, sum(raw.parts[::2]))
        if type(raw) is Sealed:
            return Group(raw.items, len(raw.items), flat=raw.flat or None)
        _require(type(raw) is list)
        long: Long = {}
        items = self._items(raw, version, long)
        return Group(items, len(items), long or None)

    def _trie(self, parts: list[Any], version: int) -> FrozenDict:
        next_, count, root = parts
        frozen = assemble_dict(Trie(self._branch(root, version), next_))
        _require(len(frozen) == count)
        return frozen

    def _branch(self, raw: Any, version: int) -> Fork | Bucket:
        found: Fork | Bucket = self._part(
            raw, version, self._way, lambda part: type(part) is Fork or type(part) is Bucket
        )
        return found

    def _way(self, raw: Any, version: int) -> Fork | Bucket:
        _require(type(raw) is Raw and raw.code in (FORK, BUCKET))
        parts = raw.parts
        if raw.code == FORK:
            return Fork([None if way is None else self._branch(way, version) for way in parts], None)
        long: Long = {}
        keys = list(map(open_key, parts[1::3]))
        items = dict(zip(keys, self._items(parts[2::3], version, long), strict=True))
        _require(len(items) == len(keys))
        return Bucket(items, parts[::3], long or None)


_MISSING: Any = object()
#: The inner parts of long lists and wide dicts; they are not values.
_PARTS = frozenset((Group, Bucket, Fork))


def _height(part: Any) -> int:
    """The number of levels of groups below a group; -1 if it is not a group."""
    if type(part) is not Group:
        return -1
    height = 0
    while part.items and type(part.items[0]) is Group:
        part = part.items[0]
        height += 1
    return height
