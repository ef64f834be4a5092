"""Stored nodes back to frozen trees.

A `Loader` serves one run. It asks for the nodes of a whole level at once, so that a tree that is spread over
many packs is read in few rounds; and it remembers, weakly, which frozen object stands for which stored node:
two versions that share a node share the object, which makes comparing them cheap.

Invariant: a tree that is loaded equals the tree that was written; a node is decoded only after its block's
hash has been checked (by whoever implements `fetch`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any
from weakref import WeakValueDictionary

from msgspec.msgpack import Ext

from holdfast.errors import NotFound
from holdfast.tree.block import BRANCH, BUCKET, FORK, LARGE, TRIE, VECTOR, Large, Raw, Ref, Sealed, items_of
from holdfast.tree.codec import decode_frozen, nested_artifacts, open_key
from holdfast.tree.frozen import DICTS, LISTS, At, Box, FrozenDict, FrozenList, freeze_dict, freeze_list
from holdfast.tree.path import show
from holdfast.tree.spine import (
    Bucket,
    Fork,
    Group,
    Long,
    Trie,
    Vector,
    assemble_dict,
    assemble_list,
    hash_key,
    levels_over,
    step_down,
)
from holdfast.tree.values import NATIVE

Place = tuple[int, int]
#: Nodes by (version, slot), verified and decoded.
Fetch = Callable[[Sequence[Place]], dict[Place, Any]]


class Loader:
    """Reads the trees of one run."""

    def __init__(self, space: object, fetch: Fetch, fetch_large: Callable[[bytes], bytes]) -> None:
        self.space = space
        self._fetch = fetch
        self._fetch_large = fetch_large
        self._known: WeakValueDictionary[Place, Any] = WeakValueDictionary()

    def remember(self, node: Any, at: At) -> None:
        """A node that was written just now need not be read again."""
        self._known[at[1:]] = node

    def load(self, root: Any, version: int) -> Any:
        """The whole tree below a root of a version's pack."""
        if type(root) in NATIVE:
            return root
        nodes: dict[Place, Any] = {}
        wanted = set(refs(root, version))
        while wanted:
            missing = [place for place in wanted if place not in nodes and place not in self._known]
            if not missing:
                break
            got = self._fetch(missing)
            nodes.update(got)
            wanted = {ref for place, raw in got.items() for ref in refs(raw, place[0])}
        return _Builder(self, nodes).value(root, version, {})

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
        while type(raw) is Ref:
            place = (version - raw.back, raw.slot)
            raw, version = self._fetch([place])[place], place[0]
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
        items = raw.items if type(raw) is Sealed else items_of(raw)
        return self._follow(items[index], version) if index < len(items) else None

    def _look_up(self, raw: Any, version: int, key: Any, hashed: int, level: int) -> tuple[Any, int] | None:
        raw, version = self._follow(raw, version)
        if raw is None:
            return None
        if raw.code == FORK:
            return self._look_up(raw.parts[step_down(hashed, level)], version, key, hashed, level + 1)
        for held, value in zip(raw.parts[1::3], raw.parts[2::3], strict=True):
            if open_key(held) == key:
                return self._follow(value, version)
        return None


def refs(raw: Any, version: int) -> Iterator[Place]:
    """The places that a decoded node of a version refers to."""
    kind = type(raw)
    if kind is Ref:
        yield version - raw.back, raw.slot
    elif kind is dict:
        for item in raw.values():
            if type(item) not in NATIVE:
                yield from refs(item, version)
    elif kind is list:
        for item in items_of(raw):
            if type(item) not in NATIVE:
                yield from refs(item, version)
    elif kind is Raw:
        yield from refs(raw.parts, version)


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
    """Builds a tree from decoded nodes."""

    def __init__(self, loader: Loader, nodes: dict[Place, Any]) -> None:
        self._loader = loader
        self._known = loader._known
        self._space = loader.space
        self._nodes = nodes

    def value(self, raw: Any, version: int, long: Long) -> Any:
        kind = type(raw)
        if kind in NATIVE:
            return raw
        if kind is Ref:
            place = (version - raw.back, raw.slot)
            value = self._node(place)
            if type(value) not in DICTS and type(value) not in LISTS:
                long[id(value)] = (self._space, *place)
            return value
        if kind is dict:
            below: Long = {}
            frozen: Any = freeze_dict({key: self.value(item, version, below) for key, item in raw.items()})
            if below:
                frozen._aux = below
            return frozen
        if kind is list:
            below = {}
            frozen = freeze_list([self.value(item, version, below) for item in items_of(raw)])
            if below:
                frozen._aux = below
            return frozen
        if kind is Raw:
            return self._vector(raw.parts, version) if raw.code == VECTOR else self._trie(raw.parts, version)
        if kind is Large:
            value = decode_frozen(self._loader._fetch_large(raw.digest))
            long[id(value)] = (self._space, Ext(LARGE, raw.digest + raw.size.to_bytes(8, "big")))
            return value
        return raw

    def _node(self, place: Place) -> Any:
        value = self._known.get(place)
        if value is None:
            raw = self._raw(place)
            value = self.value(raw, place[0], {})
            if type(value) in DICTS or type(value) in LISTS:
                value._at = (self._space, *place)
                self._known[place] = value
        return value

    def _raw(self, place: Place) -> Any:
        if place not in self._nodes:
            self._nodes.update(self._loader._fetch([place]))
        return self._nodes[place]

    def _part(self, raw: Any, version: int, make: Callable[[Any, int], Any]) -> Any:
        """A group, bucket or fork, by itself or by reference."""
        if type(raw) is not Ref:
            return make(raw, version)
        place = (version - raw.back, raw.slot)
        part = self._known.get(place)
        if part is None:
            part = make(self._raw(place), place[0])
            part.at = (self._space, *place)
            self._known[place] = part
        return part

    def _vector(self, parts: list[Any], version: int) -> FrozenList:
        height, _, root, tail = parts
        top = (
            None if root is None else self._part(root, version, lambda raw, at: self._group(raw, at, height))
        )
        end = self._part(tail, version, lambda raw, at: self._group(raw, at, 0))
        return assemble_list(Vector(levels_over(top, height), end))

    def _group(self, raw: Any, version: int, level: int) -> Group:
        if type(raw) is Sealed:
            return Group(raw.items, len(raw.items))
        if level:
            groups = [
                self._part(child, version, lambda raw, at: self._group(raw, at, level - 1))
                for child in raw.parts[1::2]
            ]
            return Group(groups, sum(raw.parts[::2]))
        long: Long = {}
        items = [self.value(item, version, long) for item in items_of(raw)]
        return Group(items, len(items), long or None)

    def _trie(self, parts: list[Any], version: int) -> FrozenDict:
        next_, _, root = parts
        return assemble_dict(Trie(self._part(root, version, self._way), next_))

    def _way(self, raw: Any, version: int) -> Fork | Bucket:
        parts = raw.parts
        if raw.code == FORK:
            return Fork([None if way is None else self._part(way, version, self._way) for way in parts], None)
        assert raw.code == BUCKET
        long: Long = {}
        keys = list(map(open_key, parts[1::3]))
        items = {key: self.value(item, version, long) for key, item in zip(keys, parts[2::3], strict=True)}
        return Bucket(items, dict(zip(keys, parts[::3], strict=True)), long or None, None)
