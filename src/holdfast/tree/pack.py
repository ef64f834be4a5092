"""A version's new nodes as bytes: the *pack* that its commit writes, and the way back.

A pack is a list of nodes in numbered slots. A node refers to another by `(how many versions back, slot)`.
Containers and leaves beyond a small size get a slot of their own, so that a change beside them does not
write them again; smaller ones lie inside their parent. A full group of a list is *sealed*: written once
more as one node with all that lies below it, so that reading a long list touches few packs.

Nodes are laid into blocks of about 64 KiB, each compressed and hashed. The last block, with the roots, is
the pack proper and travels in the version's row; further blocks stand beside it and are read when needed.
The pack names the hash of each block: whoever trusts the pack can trust all of it.

Invariant: a node once written is never changed, moved to another slot, or referred to by a later slot of
another version number than its own. `docs/format.md` is the contract for these bytes.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Sequence, Set
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import zstandard
from msgspec.msgpack import Ext

from holdfast.errors import CorruptStore, IncompatibleFormat
from holdfast.tree.codec import (
    ODD_DICT,
    encode,
    ext_hook,
    freeze_decoded,
    leaf_ext,
    nested_artifacts,
    odd_dict,
    prepare_key,
    to_bytes,
)
from holdfast.tree.frozen import BOXED, DICTS, LISTS, At, FrozenDict, FrozenList, aux_of, stored_at
from holdfast.tree.spine import Bucket, Fork, Group, Long, Trie, Vector
from holdfast.tree.values import NATIVE

#: Containers beyond this many bytes get a slot of their own.
OWN_SLOT = 96
#: Leaves beyond this many bytes get a slot of their own.
OWN_LEAF = 512
#: Leaves beyond this many bytes become artifacts.
LARGE_LEAF = 64 * 1024
#: Bytes of nodes in a block, and of a sealed group.
BLOCK = 64 * 1024
#: No block may claim to be larger than this once decompressed.
MAX_BLOCK = 64 * 1024 * 1024
#: A group whose items are stored already is sealed only if it shrinks to this part of its size.
SEAL_RATIO = 0.7

REF, VECTOR, BRANCH, SEALED, FLAT, TRIE, FORK, BUCKET, LARGE, REFS = range(32, 42)

_PLAIN, _ZSTD = b"\x00", b"\x01"


def digest(data: bytes) -> bytes:
    """The hash that guards blocks and versions: 128 bits of SHA-256."""
    return sha256(data).digest()[:16]


class Upload(NamedTuple):
    """A large value on its way into the store."""

    digest: bytes
    size: int
    #: Gives the content from its start, in pieces.
    pieces: Callable[[], Any]


class Pack(NamedTuple):
    """What a commit writes."""

    data: bytes
    blocks: list[bytes]
    uploads: list[Upload]
    #: Digests of all artifacts that nodes of this pack refer to.
    holds: set[bytes]

    @property
    def size(self) -> int:
        return len(self.data) + sum(map(len, self.blocks))


class Writer:
    """Lays the new nodes of one version into a pack. `stamp` tells the nodes where they are, once the
    commit has succeeded; until then nothing in the tree has changed."""

    def __init__(self, space: object, version: int) -> None:
        self.space = space
        self.version = version
        self._nodes: list[Any] = []
        self._size = 0
        self._slots = 0
        self._blocks: list[bytes] = []
        self._directory: list[Any] = []
        self._stamps: list[tuple[Any, int]] = []
        self._long_stamps: list[tuple[Any, Any, Any]] = []
        self._uploads: list[Upload] = []
        self._holds: set[bytes] = set()

    def upload(self, upload: Upload) -> None:
        """Send an artifact along with the pack."""
        self._uploads.append(upload)

    def hold(self, artifact: bytes) -> None:
        """Note that the pack refers to an artifact."""
        self._holds.add(artifact)

    def root(self, value: Any) -> Any:
        """Lay a whole tree; gives what `finish` takes as its root."""
        return self._child(value, None, {})[0]

    def finish(self, roots: list[Any]) -> Pack:
        """The pack; `roots` are what the version is made of (state, result, …)."""
        data = squeeze([roots, self._directory, *self._nodes])
        return Pack(data, self._blocks, self._uploads, self._holds)

    def stamp(self, cache: Callable[[Any, At], None]) -> None:
        """After the commit: every new node learns where it is stored."""
        space, version = self.space, self.version
        for node, slot in self._stamps:
            at = (space, version, slot)
            if type(node) in _HAVE_AT:
                node._at = at
            else:
                node.at = at
            cache(node, at)
        for owner, leaf, place in self._long_stamps:
            if owner is not None:
                _long(owner)[id(leaf)] = (space, place) if type(place) is Ext else (space, version, place)

    def _add(self, node: Any, size: int) -> int:
        slot = self._slots
        self._slots += 1
        self._nodes.append(node)
        self._size += size
        if self._size > BLOCK:
            block = squeeze(self._nodes)
            self._directory.append([slot + 1, digest(block)])
            self._blocks.append(block)
            self._nodes = []
            self._size = 0
        return slot

    def _ref(self, at: At) -> Ext:
        return reference(self.version - at[1], at[2])

    def _child(self, value: Any, owner: Any, long: Long) -> tuple[Any, int]:
        """A value inside `owner`, whose long leaves stored so far are `long`: prepared, and its size."""
        kind = type(value)
        if kind is str or kind is bytes:
            size = len(value)
            return (value, size + 3) if size <= OWN_LEAF else self._leaf(value, value, owner, long)
        if kind in DICTS or kind in LISTS:
            at = stored_at(value)
            if at is not None and at[0] is self.space:
                return self._ref(at), 6
            node, size = self._dict(value) if kind in DICTS else self._list(value)
            return (node, size) if size <= OWN_SLOT else (self._own(value, node, size), 6)
        if kind in NATIVE:
            return value, 9
        ext = leaf_ext(value)
        for artifact in nested_artifacts(ext.code, ext.data):
            self.hold(artifact)
        size = len(ext.data)
        return (ext, size + 4) if size <= OWN_LEAF else self._leaf(value, ext, owner, long)

    def _leaf(self, value: Any, prepared: Any, owner: Any, long: Long) -> tuple[Any, int]:
        place = long.get(id(value))
        if place is not None and place[0] is self.space:
            if len(place) == 3:
                return self._ref(place), 6
            self.hold(bytes(place[1].data[:32]))
            return place[1], 44
        size = len(prepared.data if type(prepared) is Ext else prepared)
        if size > LARGE_LEAF:
            large = self._large(prepared)
            self._long_stamps.append((owner, value, large))
            return large, 44
        slot = self._add(prepared, size)
        self._long_stamps.append((owner, value, slot))
        return reference(0, slot), 6

    def _large(self, prepared: Any) -> Ext:
        data = to_bytes(prepared)
        name = sha256(data).digest()
        self.upload(Upload(name, len(data), lambda: (data,)))
        self.hold(name)
        return Ext(LARGE, name + len(data).to_bytes(8, "big"))

    def _dict(self, value: FrozenDict) -> tuple[Any, int]:
        spine = aux_of(value)
        if type(spine) is Trie:
            return Ext(TRIE, to_bytes([spine.next, len(value), self._way(spine.root)])), OWN_SLOT + 1
        long: Long = spine or {}
        node: dict[Any, Any] = {}
        size = 3
        odd = False
        for key, item in value.items():
            prepared, more = self._child(item, value, long)
            node[key] = prepared
            if type(key) is str:
                size += more + len(key) + 1
            else:
                size += more + 9
                odd = odd or type(key) not in NATIVE
        if odd:
            ext = odd_dict([part for key, item in node.items() for part in (prepare_key(key), item)])
            return ext, len(ext.data)
        return node, size

    def _items(self, items: list[Any], owner: Any, long: Long) -> tuple[list[Any], int]:
        space, version = self.space, self.version
        stored: list[int] = []
        for item in items:
            at = getattr(item, "_at", None)
            if at is None or at[0] is not space:
                break
            stored += (version - at[1], at[2])
        start = len(stored) >> 1
        node: list[Any] = [references(stored)] if start else []
        size = 3 + 4 * start
        for item in items[start:] if start else items:
            prepared, more = self._child(item, owner, long)
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
        return self._items(value, value, spine or {})

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
        self._stamps.append((node, slot))
        return reference(0, slot)

    def _seal(self, group: Group) -> tuple[Any, int] | None:
        """A full group with everything below it in one node, where that pays."""
        items = group.items
        if not BOXED.isdisjoint(map(type, items)) or sum(map(_rough, items)) > BLOCK:
            return None
        flat = all(type(item) is FrozenDict and NATIVE.issuperset(map(type, item.values())) for item in items)
        data = encode(items)
        if len(data) > BLOCK:
            return None
        stored = sum(stored_at(item) is not None for item in items)
        if stored * 2 > len(items) and len(_zstd().compress(data)) > SEAL_RATIO * len(data):
            return None
        return Ext(FLAT if flat else SEALED, data), len(data)

    def _way(self, node: Fork | Bucket | None) -> Ext | None:
        if node is None:
            return None
        if node.at is not None and node.at[0] is self.space:
            return self._ref(node.at)
        if type(node) is Fork:
            return self._own(node, Ext(FORK, to_bytes([self._way(way) for way in node.ways])), 6 * len(node.ways))
        assert type(node) is Bucket
        long = node.long or {}
        flat: list[Any] = []
        size = 0
        for key, item in node.items.items():
            prepared, more = self._child(item, node, long)
            flat += (node.order[key], prepare_key(key), prepared)
            size += more + 12
        return self._own(node, Ext(BUCKET, to_bytes(flat)), size)


class Ref(NamedTuple):
    """A reference as read: versions back from the pack that holds it, and the slot there."""

    back: int
    slot: int


class Refs(NamedTuple):
    """The references with which a list of items begins, as read."""

    refs: list[Ref]


class Large(NamedTuple):
    """A leaf that is kept as an artifact."""

    digest: bytes
    size: int


class Raw(NamedTuple):
    """A node of a spine as read."""

    code: int
    parts: list[Any]


class Sealed(NamedTuple):
    """A sealed group as read: the items are frozen already."""

    items: list[Any]


def reference(back: int, slot: int) -> Ext:
    """The bytes of a reference."""
    width = 1 if (back | slot) < 256 else 2 if (back | slot) < 65536 else 4
    return Ext(REF, back.to_bytes(width, "big") + slot.to_bytes(width, "big"))


def references(flat: list[int]) -> Ext:
    """Several references in one, each as how far back and which slot."""
    highest = max(flat)
    if highest < 256:
        return Ext(REFS, b"\x01" + bytes(flat))
    width = 2 if highest < 65536 else 4
    return Ext(REFS, bytes((width,)) + struct.pack(f">{len(flat)}{'H' if width == 2 else 'I'}", *flat))


def items_of(raw: list[Any]) -> list[Any]:
    """The items of a list as read, with the references at its beginning one by one."""
    return [*raw[0].refs, *raw[1:]] if raw and type(raw[0]) is Refs else raw


def thin(data: bytes, blocks: Sequence[bytes], needed: Set[int]) -> tuple[bytes, list[bytes]]:
    """What is left of a checked pack when only some of its slots are needed: the same slots, the others empty."""
    _, directory, *last = _opaque(data)
    if [expected for _, expected in directory] != list(map(digest, blocks)):
        raise CorruptStore("a block fails its hash and cannot be pruned: run verify")
    nodes = [node for block in blocks for node in _opaque(block)] + last
    kept = [node if slot in needed else None for slot, node in enumerate(nodes)]
    while kept and kept[-1] is None:
        kept.pop()
    fresh: list[bytes] = []
    places: list[Any] = []
    start = 0
    for end, _ in directory:
        part = kept[start:end]
        fresh.append(squeeze(part if any(node is not None for node in part) else []))
        places.append([end, digest(fresh[-1])])
        start = end
    return squeeze([[], places, *kept[start:]]), fresh


def _opaque(block: bytes) -> list[Any]:
    """The nodes of a block, with extensions left as they are."""
    nodes: list[Any] = msgspec.msgpack.decode(_inflate(block))
    return nodes


def squeeze(nodes: list[Any]) -> bytes:
    """A block: a marker byte, then msgpack, compressed where that helps."""
    data = to_bytes(nodes)
    packed = _zstd().compress(data)
    return _ZSTD + packed if len(packed) < len(data) else _PLAIN + data


def unsqueeze(block: bytes) -> list[Any]:
    """The nodes of a block whose hash has been checked."""
    try:
        nodes: list[Any] = _decoder.decode(_inflate(block))
    except (msgspec.DecodeError, RecursionError) as error:
        raise IncompatibleFormat(f"a block that is no list of nodes: {error}") from error
    return nodes


def _inflate(block: bytes) -> bytes:
    marker, data = block[:1], block[1:]
    if marker == _PLAIN:
        return data
    if marker != _ZSTD:
        raise IncompatibleFormat(f"a block of kind {marker!r} was written by a newer Holdfast: upgrade to read it")
    try:
        if not 0 <= zstandard.frame_content_size(data) <= MAX_BLOCK:
            raise IncompatibleFormat("a block claims to be larger than any block may be")
        return _unzstd().decompress(data)
    except zstandard.ZstdError as error:
        raise IncompatibleFormat(f"a block cannot be decompressed: {error}") from error


_HAVE_AT = frozenset((*DICTS, *LISTS))
_local = threading.local()


def _zstd() -> zstandard.ZstdCompressor:
    found: zstandard.ZstdCompressor | None = getattr(_local, "compressor", None)
    if found is None:
        found = _local.compressor = zstandard.ZstdCompressor(level=1)
    return found


def _unzstd() -> zstandard.ZstdDecompressor:
    found: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if found is None:
        found = _local.decompressor = zstandard.ZstdDecompressor()
    return found


def _long(owner: Any) -> Long:
    """The table of long leaves of a container, group or bucket, made where it has none."""
    name = "_aux" if type(owner) in _HAVE_AT else "long"
    long: Long | None = getattr(owner, name, None)
    if long is None:
        long = {}
        setattr(owner, name, long)
    return long


def _rough(item: Any) -> int:
    """About how large an item is, seen from outside."""
    kind = type(item)
    if kind is str or kind is bytes:
        return len(item)
    if kind in DICTS:
        return sum(len(value) if type(value) is str or type(value) is bytes else 9 for value in item.values())
    return 9


_value_hook = ext_hook(True)


def _node_hook(code: int, data: memoryview) -> Any:
    if code == ODD_DICT:
        flat = _decoder.decode(data)
        return dict(zip(flat[::2], flat[1::2], strict=True))
    if code < REF:
        return _value_hook(code, data)
    if code == REF:
        width = len(data) >> 1
        return Ref(int.from_bytes(data[:width], "big"), int.from_bytes(data[width:], "big"))
    if code == REFS:
        width = data[0]
        flat = data[1:] if width == 1 else struct.unpack(f">{(len(data) - 1) // width}{'H' if width == 2 else 'I'}", data[1:])
        return Refs(list(map(Ref, flat[::2], flat[1::2])))
    if code == LARGE:
        return Large(bytes(data[:32]), int.from_bytes(data[32:], "big"))
    if code == FLAT:
        return Sealed(list(map(FrozenDict, _decoder.decode(data))))
    if code == SEALED:
        return Sealed([freeze_decoded(item) for item in _decoder.decode(data)])
    if VECTOR <= code <= BUCKET:
        return Raw(code, _decoder.decode(data))
    raise IncompatibleFormat(f"a node of kind {code} was written by a newer Holdfast: upgrade to read it", kind=code)


_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_node_hook)
