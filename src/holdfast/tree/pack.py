"""Packs: the new nodes of a version as bytes, written by its commit.

A pack is a list of nodes in numbered slots. A node refers to another by `(versions back, slot)`. Containers and
leaves beyond a small size get a slot of their own, so that a change next to them does not write them again; smaller
ones are part of their parent. A full group of a list is *sealed*: written once more as one node with everything below
it, so that reading a long list needs few packs.

Nodes are written into blocks of about 64 KiB, each compressed and hashed. The last block, with the roots, is the data
of the pack in the version's row; further blocks are stored separately and read when needed. The data contains the
hash of each block.

Invariant: a written node is never changed or moved to another slot. `docs/format.md` specifies the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
from msgspec.msgpack import Ext

from holdfast.errors import UnsupportedValue
from holdfast.tree.block import (
    BRANCH,
    BUCKET,
    FLAT,
    FORK,
    LARGE,
    SEALED,
    TRIE,
    VECTOR,
    compressed_size,
    digest,
    reference,
    references,
    squeeze,
)
from holdfast.tree.codec import (
    big_int,
    encode,
    leaf_ext,
    nested_artifacts,
    odd_dict,
    prepare_key,
    refuse_collisions,
    to_bytes,
)
from holdfast.tree.containers import Bucket, Group, Trie, TrieBranch, TrieNode, Vector
from holdfast.tree.frozen import (
    BOXED,
    DICTS,
    LISTS,
    At,
    Box,
    FrozenDict,
    FrozenList,
    Long,
    are_flat,
    aux_of,
    leaves,
    set_leaves,
    stored_at,
)
from holdfast.tree.values import NATIVE

#: Containers beyond this many bytes get a slot of their own.
OWN_SLOT = 96
#: Leaves beyond this many bytes get a slot of their own; in a small dict, such as a message, beyond twice as many: it
#: is usually written once, as a whole.
OWN_LEAF = 512
SMALL_DICT = 4
#: Leaves in a list beyond this many bytes get a slot of their own: the end of a list is written again by each append.
OWN_ITEM = 96
#: Leaves beyond this many bytes become artifacts.
LARGE_LEAF = 64 * 1024
#: Bytes of nodes in a block, and of a sealed group.
BLOCK = 64 * 1024
#: A group whose items are stored already is sealed only if it shrinks to this fraction of its size.
SEAL_RATIO = 0.7


class Upload(NamedTuple):
    """A large value that a commit writes to the store."""

    digest: bytes
    size: int
    #: Returns the content from its start, in pieces.
    pieces: Callable[[], Any]


class Prepared(NamedTuple):
    """A root of small plain values as the pack contains it: a value without parts of other types, or its bytes."""

    node: Any


class Pack(msgspec.Struct, frozen=True, gc=False):
    """The data of a commit."""

    data: bytes
    blocks: Sequence[bytes]
    uploads: Sequence[Upload]
    #: Digests of all artifacts that nodes of this pack refer to.
    holds: Collection[bytes]

    @property
    def size(self) -> int:
        """Return the number of bytes."""
        return len(self.data) + sum(map(len, self.blocks))


class Writer:
    """Writes the new nodes of one version into a pack. The tree is unchanged until `stamp`, after the commit, sets the
    places of the nodes."""

    __slots__ = (
        "_blocks", "_directory", "_holds", "_long_stamps", "_nodes", "_size", "_slots", "_stamps", "_uploads", "loose",
        "space", "version",
    )  # fmt: skip

    def __init__(self, space: object, version: int) -> None:
        self.space = space
        self.version = version
        self._nodes: list[Any] = []
        self._size = 0
        self._slots = 0
        # Most versions have none of these: each is made when it is needed.
        self._blocks: list[bytes] | None = None
        self._directory: list[Any] | None = None
        self._stamps: list[tuple[Any, int]] | None = None
        self._long_stamps: list[tuple[Any, Any, Any]] | None = None
        self._uploads: list[Upload] | None = None
        self._holds: set[bytes] | None = None
        #: Long leaves that are roots, and their places, set by `stamp`.
        self.loose: Sequence[tuple[Any, Any]] = ()

    def upload(self, upload: Upload) -> None:
        """Add an artifact that the commit writes with the pack."""
        self._uploads = self._uploads or []
        self._uploads.append(upload)

    def hold(self, artifact: bytes) -> None:
        """Record that the pack refers to an artifact."""
        self._holds = self._holds or set()
        self._holds.add(artifact)

    def root(self, value: Any) -> Any:
        """Write a tree; return the root for `finish`."""
        kind = type(value)
        if kind is Prepared:
            return value.node
        return value if kind in _CONSTANTS else self._child(value, None, {})[0]

    def finish(self, roots: list[Any]) -> Pack:
        """Return the pack; `roots` are the parts of the version (state, result, …)."""
        data = squeeze([roots, self._directory or (), *self._nodes])
        self._nodes = []
        return Pack(data, self._blocks or (), self._uploads or (), self._holds or ())

    def stamp(self, cache: Callable[[Any, At], None]) -> None:
        """Set the places of the new nodes, after the commit. Frees its own records on the way: a large state leaves
        little memory."""
        space, version = self.space, self.version
        stamps, long_stamps = self._stamps or [], self._long_stamps or []
        while stamps:
            node, slot = stamps.pop()
            node.at = at = (space, version, slot)
            cache(node, at)
        while long_stamps:
            owner, leaf, place = long_stamps.pop()
            at_leaf = (space, place) if type(place) is Ext else (space, version, place)
            if owner is not None:
                _set_leaf(owner, leaf, at_leaf)
            else:
                self.loose = (*self.loose, (leaf, at_leaf))

    def _add(self, node: Any, size: int) -> int:
        slot = self._slots
        self._slots += 1
        self._nodes.append(node)
        self._size += size
        if self._size > BLOCK:
            block = squeeze(self._nodes)
            self._directory = self._directory or []
            self._directory.append([slot + 1, digest(block)])
            self._blocks = self._blocks or []
            self._blocks.append(block)
            self._nodes = []
            self._size = 0
        return slot

    def _ref(self, at: At) -> Ext:
        return reference(self.version - at[1], at[2])

    def _child(self, value: Any, owner: Any, long: Long, most: int = OWN_LEAF) -> tuple[Any, int]:
        """Return a value prepared as part of `owner`, and its size. `long` are the places of the owner's stored long
        leaves; leaves of up to `most` bytes get no slot of their own."""
        kind = type(value)
        if kind is str or kind is bytes:
            size = len(value)
            return (value, size + 3) if size <= most else self._leaf(value, value, owner, long)
        if kind in DICTS or kind in LISTS:
            at = stored_at(value)
            if at is not None and at[0] is self.space:
                return self._ref(at), 6
            node, size = self._dict(value) if kind in DICTS else self._list(value)
            return (node, size) if size <= OWN_SLOT else (self._own(value, node, size), 6)
        if kind is int and not _SMALLEST <= value <= _LARGEST:
            size = value.bit_length() // 8 + 4
            prepared = big_int(value)
            return (prepared, size) if size <= OWN_LEAF else self._leaf(value, prepared, owner, long)
        if kind in NATIVE:
            return value, 9
        ext = leaf_ext(value)
        data = bytes(ext.data)
        for artifact in nested_artifacts(ext.code, data):
            self.hold(artifact)
        size = len(data)
        return (ext, size + 4) if size <= min(most, OWN_LEAF) else self._leaf(value, ext, owner, long)

    def _leaf(self, value: Any, prepared: Any, owner: Any, long: Long) -> tuple[Any, int]:
        place = long.get(id(value))
        if place is not None and place[0] is self.space:
            if len(place) == 3:
                return self._ref(place), _LONG_LEAF
            self.hold(bytes(place[1].data[:32]))
            return place[1], _LONG_LEAF
        size = len(bytes(prepared.data) if type(prepared) is Ext else prepared)
        if size > LARGE_LEAF:
            large = self._large(prepared)
            self._stamp_long(owner, value, large)
            return large, _LONG_LEAF
        slot = self._add(prepared, size)
        self._stamp_long(owner, value, slot)
        return reference(0, slot), _LONG_LEAF

    def _stamp_long(self, owner: Any, leaf: Any, place: Any) -> None:
        self._long_stamps = self._long_stamps or []
        self._long_stamps.append((owner, leaf, place))

    def _large(self, prepared: Any) -> Ext:
        data = to_bytes(prepared)
        name = sha256(data).digest()
        self.upload(Upload(name, len(data), lambda: (data,)))
        self.hold(name)
        return Ext(LARGE, name + len(data).to_bytes(8, "big"))

    def _dict(self, value: FrozenDict) -> tuple[Any, int]:
        spine = aux_of(value)
        if type(spine) is Trie:
            return Ext(TRIE, to_bytes([spine.next, len(value), self._trie_node(spine.root)])), OWN_SLOT + 1
        long: Long = {} if spine is None else leaves(spine)
        most = 2 * OWN_LEAF if len(value) <= SMALL_DICT else OWN_LEAF
        node: dict[Any, Any] = {}
        size = 3
        odd = False
        for key, item in value.items():
            if type(item) is str and len(item) <= most:
                node[key], more = item, len(item) + 3
            else:
                node[key], more = self._child(item, value, long, most)
            if type(key) is str:
                size += more + len(key) + 1
            else:
                size += more + 9
                odd = odd or type(key) not in NATIVE
        if odd:
            ext = odd_dict([part for key, item in node.items() for part in (prepare_key(key), item)])
            return ext, len(bytes(ext.data))
        return node, size

    def _items(self, items: list[Any], owner: Any, long: Long) -> tuple[list[Any], int]:
        space, version = self.space, self.version
        stored: list[At] = []
        for item in items:
            at = stored_at(item) or long.get(id(item))
            if at is None or at[0] is not space or len(at) != 3:
                break
            stored.append(at)
        start = len(stored)
        node: list[Any] = [references(version, stored)] if start else []
        size = 3 + 2 * start
        rest = items[start:] if start else items
        if _CONSTANTS.issuperset(map(type, rest)):
            return [*node, *rest], size + 9 * len(rest)
        for item in rest:
            prepared, more = self._child(item, owner, long, OWN_ITEM)
            node.append(prepared)
            size += more
        return node, size

    def _list(self, value: FrozenList) -> tuple[Any, int]:
        spine = aux_of(value)
        if type(spine) is Vector:
            levels, tail = spine.levels, spine.tail
            root = self._group(levels[-1][0], len(levels) - 1) if levels[-1] else None
            if tail.at is not None and tail.at[0] is self.space:
                end: Any = self._ref(tail.at)
            else:
                end, size = self._items(tail.items, tail, tail.long or {})
                end = end if size <= OWN_SLOT else self._own(tail, end, size)
            return Ext(VECTOR, to_bytes([len(levels) - 1, spine.count, root, end])), OWN_SLOT + 1
        return self._items(value, value, {} if spine is None else leaves(spine))

    def _group(self, group: Group, level: int) -> Ext:
        if group.at is not None and group.at[0] is self.space:
            return self._ref(group.at)
        if level == 0:
            node, size = self._seal(group) or self._items(group.items, group, group.long or {})
        else:
            flat: list[Any] = []
            for child in group.items:
                flat += (child.count, self._group(child, level - 1))
            node, size = Ext(BRANCH, to_bytes(flat)), 8 * len(flat)
        return self._own(group, node, size)

    def _own(self, node: Any, prepared: Any, size: int) -> Ext:
        slot = self._add(prepared, size)
        self._stamps = self._stamps or []
        self._stamps.append((node, slot))
        return reference(0, slot)

    def _seal(self, group: Group) -> tuple[Any, int] | None:
        """Return a full group with everything below it as one node, or None if that does not pay: for a group in which
        items were replaced, or whose items are stored and do not shrink."""
        items = group.items
        is_stored = [self._is_stored(item, group.long or {}) for item in items]
        if group.is_mended or (True in is_stored and _is_mended(items, is_stored)):
            return None
        if not _NESTED_BOXES.isdisjoint(map(type, items)):
            return None
        if sum(map(_rough, items)) > BLOCK or any(map(_has_artifacts, items)):
            return None
        data = encode(items)
        if len(data) > BLOCK:
            return None
        if sum(is_stored) * 2 > len(items) and compressed_size(data) > SEAL_RATIO * len(data):
            return None
        return Ext(FLAT if are_flat(items) else SEALED, data), len(data)

    def _is_stored(self, item: Any, long: Long) -> bool:
        """Return whether an item of a list has a slot of its own."""
        at = stored_at(item) or long.get(id(item))
        return at is not None and at[0] is self.space

    def _trie_node(self, node: TrieNode | None) -> Ext | None:
        if node is None:
            return None
        if node.at is not None and node.at[0] is self.space:
            return self._ref(node.at)
        if type(node) is TrieBranch:
            children = [self._trie_node(child) for child in node.children]
            return self._own(node, Ext(FORK, to_bytes(children)), 6 * len(children))
        assert type(node) is Bucket
        refuse_collisions(node.items, UnsupportedValue)
        long = node.long or {}
        flat: list[Any] = []
        size = 0
        for number, (key, item) in zip(node.order, node.items.items(), strict=True):
            prepared, more = self._child(item, node, long)
            flat += (number, prepare_key(key), prepared)
            size += more + 12
        return self._own(node, Ext(BUCKET, to_bytes(flat)), size)


#: The size that is counted for a long leaf, so that its container gets a slot, too: a message should be written with
#: its text, not again with every message after it.
_LONG_LEAF = OWN_SLOT + 1
#: The range of integers in msgpack.
_SMALLEST, _LARGEST = -(1 << 63), (1 << 64) - 1
_CONSTANTS = frozenset((type(None), bool, float))
_CONTAINERS = frozenset((*DICTS, *LISTS))


def _set_leaf(owner: Any, leaf: Any, place: Any) -> None:
    """Set the place of a long leaf in its container, group or bucket."""
    if type(owner) in _CONTAINERS:
        set_leaves(owner, {**leaves(aux_of(owner)), id(leaf): place})
    elif owner.long is None:
        owner.long = {id(leaf): place}
    else:
        owner.long[id(leaf)] = place


def _rough(item: Any) -> int:
    """Return the approximate size of an item, without its nested containers."""
    kind = type(item)
    if kind is str or kind is bytes:
        return len(item)
    if kind in DICTS:
        return sum(
            [len(value) if type(value) is str or type(value) is bytes else 9 for value in item.values()]
        )
    return len(item.data) if kind is Box else 9


def _is_mended(items: list[Any], is_stored: list[bool]) -> bool:
    """Return whether items of a group were replaced: a long one is not stored, and one after it is."""
    has_new = False
    for item, known in zip(items, is_stored, strict=True):
        if known and has_new:
            return True
        has_new = has_new or (not known and _rough(item) > OWN_ITEM)
    return False


def _has_artifacts(item: Any) -> bool:
    """Return whether an item is or contains an artifact, which the version that refers to it must hold."""
    return type(item) is Box and any(nested_artifacts(item.code, item.data))


#: Containers of boxes.
_NESTED_BOXES = BOXED - {Box}
