"""Loading: stored nodes become frozen trees.

A `Loader` reads the trees of one run. It fetches the nodes of a level at once, up to a limit, so that a tree that is
spread over many packs takes few rounds. It caches the frozen object of each stored node by weak reference: versions
that share a node share the object, which makes comparing them cheap.

Invariant: a loaded tree equals the tree that was written; a node is decoded only after `fetch` has checked the hash of
its block.
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
from holdfast.tree.containers import (
    MAX_LEVEL,
    Bucket,
    Group,
    Trie,
    TrieBranch,
    TrieNode,
    Vector,
    assemble_dict,
    assemble_list,
    child_index,
    hash_key,
    levels_over,
)
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
    set_leaves,
)
from holdfast.tree.path import show
from holdfast.tree.values import NATIVE

#: Nodes that are read before the tree is built from them.
_AHEAD = 4096

#: Version and slot of a node.
Slot = tuple[int, int]
#: Returns nodes, verified and decoded.
Fetch = Callable[[Sequence[Slot]], dict[Slot, Any]]
#: Returns the content of an artifact.
FetchLarge = Callable[[bytes], bytes]
#: Builds the object of a decoded node of a version.
Make = Callable[[Any, int], Any]


#: Objects that were read or written and are still used. The keys are the tuples that the objects hold.
Known = WeakValueDictionary[At, Any]


class Loader:
    """Reads the trees of one run."""

    __slots__ = ("_fetch", "_fetch_large", "_known", "space")

    def __init__(self, space: object, known: Known, fetch: Fetch, fetch_large: FetchLarge) -> None:
        self.space = space
        self._known = known
        self._fetch = fetch
        self._fetch_large = fetch_large

    def load(self, root: Any, version: int) -> Any:
        """Return the tree below a root of a version's pack."""
        if type(root) in NATIVE:
            return root
        try:
            return _Builder(self.space, self._known, self._fetch, self._fetch_large).tree(root, version)
        except RecursionError as error:
            raise _too_deep() from error

    def find(self, root: Any, version: int, path: Sequence[Any]) -> tuple[Any, int]:
        """Return the value at `path` below a root, and the version that stored the innermost node around it. Reads
        only the nodes of the path."""
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
            return self._find_item(raw.parts, version, segment)
        if kind is Raw and raw.code == TRIE:
            return self._find_key(raw.parts[2], version, segment, hash_key(segment), 0)
        if kind is list:
            raw = items_of(raw)
        if (kind is list or kind is FrozenList or kind is tuple) and type(segment) is int:
            return self._follow(raw[segment], version) if -len(raw) <= segment < len(raw) else None
        if kind is dict or kind is FrozenDict:
            return self._follow(raw[segment], version) if segment in raw else None
        return None

    def _find_item(self, parts: list[Any], version: int, index: int) -> tuple[Any, int] | None:
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

    def _find_key(self, raw: Any, version: int, key: Any, hashed: int, level: int) -> tuple[Any, int] | None:
        raw, version = self._follow(raw, version)
        if raw is None:
            return None
        _require(type(raw) is Raw and raw.code in (FORK, BUCKET) and level <= MAX_LEVEL)
        if raw.code == FORK:
            return self._find_key(raw.parts[child_index(hashed, level)], version, key, hashed, level + 1)
        for held, value in zip(raw.parts[1::3], raw.parts[2::3], strict=True):
            if open_key(held) == key:
                return self._follow(value, version)
        return None


def _require(is_sound: bool) -> None:
    if not is_sound:
        raise IncompatibleFormat("a reference leads to a node of the wrong kind")


def _too_deep() -> IncompatibleFormat:
    return IncompatibleFormat("nodes nest deeper than the rest of the stack allows")


def refs(raw: Any, version: int) -> list[Slot]:
    """Return the slots that a decoded node of a version refers to."""
    found: list[Slot] = []
    try:
        _gather(raw, version, found)
    except RecursionError as error:
        raise _too_deep() from error
    return found


def _gather(raw: Any, version: int, found: list[Slot]) -> None:
    if type(raw) is Ref:
        found.append((version - raw.back, raw.slot))
        return
    for item in _children(raw):
        if type(item) not in NATIVE:
            _gather(item, version, found)


def _children(raw: Any) -> Iterable[Any]:
    kind = type(raw)
    if kind is dict:
        return raw.values()  # type: ignore[no-any-return]  # narrowed by `kind`
    return items_of(raw if kind is list else raw.parts) if kind is list or kind is Raw else ()


def large_leaves(raw: Any) -> Iterator[bytes]:
    """Yield the digests of the long texts and other leaves that a decoded node refers to. They are written together
    with a version that holds them; a handle of an artifact may be kept by the application, and is not among them."""
    if type(raw) is Large:
        yield raw.digest
    for item in _children(raw):
        if type(item) not in NATIVE:
            yield from large_leaves(item)


def artifacts(raw: Any) -> Iterator[bytes]:
    """Yield the digests of the artifacts that a decoded node refers to."""
    kind = type(raw)
    if kind is Large:
        yield raw.digest
    elif kind is Box:
        yield from nested_artifacts(raw.code, raw.data)
    for item in _children(raw):
        if type(item) not in NATIVE:
            yield from artifacts(item)


class _Builder:
    """Builds one tree from decoded nodes, and drops each node when it has been built."""

    def __init__(self, space: object, known: Known, fetch: Fetch, fetch_large: FetchLarge) -> None:
        self._space = space
        self._known = known
        self._fetch = fetch
        self._fetch_large = fetch_large
        self._nodes: dict[Slot, Any] = {}
        #: Whether all nodes below the current one have been read.
        self._complete = False

    def tree(self, raw: Any, version: int) -> Any:
        """Return the tree below a decoded node of a version."""
        self._complete = self._read_ahead(raw, version)
        return self._item(raw, version, {})

    def _read_ahead(self, raw: Any, version: int) -> bool:
        """Read the nodes below a node, level by level; return False if there are too many to read all."""
        nodes, known, space = self._nodes, self._known, self._space
        wanted = set(refs(raw, version))
        seen: set[Slot] = set()
        count = 0
        while wanted:
            seen |= wanted
            missing = [slot for slot in wanted if slot not in nodes]
            if known:
                missing = [slot for slot in missing if (space, *slot) not in known]
            count += len(missing)
            if count > _AHEAD:
                return False
            if missing:
                nodes.update(self._fetch(missing))
            below: list[Slot] = []
            for slot in wanted:
                if type(nodes.get(slot)) not in _LEAVES:
                    found = refs(nodes[slot], slot[0])
                    # Children are written before their parents; a cycle could not be built.
                    _require(not found or max(found) < slot)
                    below += found
            wanted = set(below) - seen
        return True

    def _open(self, at: At) -> Any:
        """Return a stored node, with the nodes below it read ahead. The caller restores `_complete` when the node has
        been built."""
        slot = at[1:]
        raw = self._nodes.pop(slot, _MISSING)
        if raw is _MISSING:
            raw = self._fetch([slot])[slot]
        if not self._complete:
            self._complete = self._read_ahead(raw, at[1])
        return raw

    def _part(self, raw: Any, version: int, make: Make, fits: Callable[[Any], bool]) -> Any:
        """Return a part of a spine, from its node or a reference. A cached part must fit: it may have been read as
        something else."""
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
        """Return a value of a container; the places of its long leaves go to `long`. A level of the tree takes three
        frames of the stack, which has to hold 200 levels."""
        kind = type(raw)
        if kind is Ref:
            place = (version - raw.back, raw.slot)
            at = (self._space, *place)
            value = self._nodes.get(place)
            if value is not None and type(value) in _LEAVES:
                del self._nodes[place]
                long[id(value)] = at
                return value
            value = self._known.get(at)
            if value is not None:
                _require(type(value) not in _PARTS)
            else:
                complete = self._complete
                value = self._item(self._open(at), at[1], {})
                self._complete = complete
                if type(value) in DICTS or type(value) in LISTS:
                    value.at = at
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
                set_leaves(frozen, below)
            return frozen
        if kind is list:
            below = {}
            frozen = freeze_list(
                [item if type(item) in NATIVE else self._item(item, version, below) for item in items_of(raw)]
            )
            if below:
                set_leaves(frozen, below)
            return frozen
        if kind is Raw and raw.code == VECTOR:
            return self._vector(raw.parts, version)
        if kind is Raw:
            _require(raw.code == TRIE)
            return self._trie(raw.parts, version)
        if kind is Large:
            value = decode_frozen(self._fetch_large(raw.digest))
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
        """Return a group with `level` levels of groups below it."""
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
        frozen = assemble_dict(Trie(self._trie_part(root, version), next_))
        _require(len(frozen) == count)
        return frozen

    def _trie_part(self, raw: Any, version: int) -> TrieNode:
        found: TrieNode = self._part(raw, version, self._trie_node, lambda part: isinstance(part, TrieNode))
        return found

    def _trie_node(self, raw: Any, version: int) -> TrieNode:
        _require(type(raw) is Raw and raw.code in (FORK, BUCKET))
        parts = raw.parts
        if raw.code == FORK:
            return TrieBranch([None if child is None else self._trie_part(child, version) for child in parts])
        long: Long = {}
        keys = list(map(open_key, parts[1::3]))
        items = dict(zip(keys, self._items(parts[2::3], version, long), strict=True))
        _require(len(items) == len(keys))
        return Bucket(items, parts[::3], long or None)


_MISSING: Any = object()
#: Decoded nodes that are values, with no nodes below them.
_LEAVES = NATIVE | {Box}
#: The parts of spines; they are not values.
_PARTS = frozenset((Group, Bucket, TrieBranch))


def _height(part: Any) -> int:
    """Return the number of levels of groups below a group; -1 for anything else."""
    if type(part) is not Group:
        return -1
    height = 0
    while part.items and type(part.items[0]) is Group:
        part = part.items[0]
        height += 1
    return height
