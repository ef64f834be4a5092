"""Blocks of nodes: the bytes that packs are made of.

A block is a list of nodes in msgpack, compressed where that helps. A node is a value, or one of the forms below
under an extension code of its own: references to other nodes, and the parts of spines. `docs/format.md` is the
contract for these bytes.

Invariant: `unsqueeze(squeeze(nodes))` gives the nodes as they were; a block that claims to be larger than any
block may be is never decompressed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence, Set
from hashlib import sha256
from typing import Any, NamedTuple

import msgspec
import zstandard
from msgspec.msgpack import Ext

from holdfast.errors import CorruptStore, IncompatibleFormat
from holdfast.tree.codec import ODD_DICT, ext_hook, freeze_decoded, open_key, to_bytes
from holdfast.tree.frozen import At, FrozenDict

#: No block may claim to be larger than this once decompressed.
MAX_BLOCK = 64 * 1024 * 1024

#: No list of items may claim to begin with more references than this.
MAX_REFS = 1024

REF, VECTOR, BRANCH, SEALED, FLAT, TRIE, FORK, BUCKET, LARGE, REFS = range(32, 42)

_PLAIN, _ZSTD = b"\x00", b"\x01"
#: Bytes below which compression does not pay.
_SHORT = 64


def digest(data: bytes) -> bytes:
    """The hash that guards blocks and versions: 128 bits of SHA-256."""
    return sha256(data).digest()[:16]


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
    """A sealed group as read: the items are frozen already; are they all dicts without parts of their own?"""

    items: list[Any]
    flat: bool = False


def reference(back: int, slot: int) -> Ext:
    """The bytes of a reference."""
    width = 1 if (back | slot) < 256 else 2 if (back | slot) < 65536 else 4
    return Ext(REF, back.to_bytes(width, "big") + slot.to_bytes(width, "big"))


def references(version: int, places: list[At]) -> Ext:
    """Several references in one. Nodes in the same slot of one version after the other, as appends leave them,
    make a run: how far back the first is, the slot, how many."""
    _, first, slot = places[0]
    runs: list[int] = []
    following = first
    for _, number, place in places:
        if number != following or place != slot:
            runs += (version - first, slot, following - first)
            first, slot = number, place
            following = number
        following += 1
    runs += (version - first, slot, following - first)
    return Ext(REFS, _encode(runs))


def items_of(raw: list[Any]) -> list[Any]:
    """The items of a list as read, with the references at its beginning one by one."""
    return [*raw[0].refs, *raw[1:]] if raw and type(raw[0]) is Refs else raw


def thin(data: bytes, blocks: Sequence[bytes], needed: Set[int]) -> tuple[bytes, list[bytes]]:
    """What is left of a checked pack when only some of its slots are needed: the same slots, the others empty."""
    _, packed_directory, *last = open_block(data)
    directory = node_of(packed_directory)
    if [expected for _, expected in directory] != list(map(digest, blocks)):
        raise CorruptStore("a block fails its hash and cannot be pruned: run verify")
    nodes: list[Any] = []
    for (end, _), block in zip(directory, blocks, strict=True):
        nodes += open_block(block)
        # A pack that was thinned before has shorter blocks; its slots keep their numbers.
        nodes += [None] * (end - len(nodes))
    nodes += last
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


def squeeze(nodes: list[Any]) -> bytes:
    """A block: a marker byte, then msgpack, compressed where that helps."""
    data = to_bytes(nodes)
    if len(data) < _SHORT:
        return _PLAIN + data
    packed = compressor().compress(data)
    return _ZSTD + packed if len(packed) < len(data) else _PLAIN + data


def open_block(block: bytes) -> list[msgspec.Raw]:
    """The nodes of a block whose hash has been checked, each still encoded."""
    try:
        return _splitter.decode(_inflate(block))
    except (msgspec.DecodeError, RecursionError) as error:
        raise IncompatibleFormat(f"a block that is no list of nodes: {error}") from error


def node_of(raw: msgspec.Raw) -> Any:
    """A node of an open block."""
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise IncompatibleFormat(f"a block holds what is no node: {error}") from error


def unsqueeze(block: bytes) -> list[Any]:
    """All nodes of a block whose hash has been checked."""
    return list(map(node_of, open_block(block)))


def _inflate(block: bytes) -> bytes | memoryview:
    marker, data = block[:1], memoryview(block)[1:]
    if marker == _PLAIN:
        return data
    if marker != _ZSTD:
        raise IncompatibleFormat(
            f"a block of kind {marker!r} was written by a newer Holdfast: upgrade to read it"
        )
    try:
        if (
            not 0
            <= zstandard.get_frame_parameters(data, zstandard.FORMAT_ZSTD1_MAGICLESS).content_size
            <= MAX_BLOCK
        ):
            raise IncompatibleFormat("a block claims to be larger than any block may be")
        return _decompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise IncompatibleFormat(f"a block cannot be decompressed: {error}") from error


_local = threading.local()
#: Level 1: higher ones gain nothing on texts of this size and cost more. The marker byte makes the magic needless.
_PARAMETERS = zstandard.ZstdCompressionParameters.from_level(1, format=zstandard.FORMAT_ZSTD1_MAGICLESS)


def compressor() -> zstandard.ZstdCompressor:
    """This thread's compressor."""
    found: zstandard.ZstdCompressor | None = getattr(_local, "compressor", None)
    if found is None:
        found = _local.compressor = zstandard.ZstdCompressor(compression_params=_PARAMETERS)
    return found


def _decompressor() -> zstandard.ZstdDecompressor:
    found: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if found is None:
        found = _local.decompressor = zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS)
    return found


_value_hook = ext_hook(True)


def _node_hook(code: int, data: memoryview) -> Any:
    if code == ODD_DICT:
        flat = _decoder.decode(data)
        return dict(zip(map(open_key, flat[::2]), flat[1::2], strict=True))
    if code < REF:
        return _value_hook(code, data)
    if code == REF:
        width = len(data) >> 1
        return Ref(int.from_bytes(data[:width], "big"), int.from_bytes(data[width:], "big"))
    if code == REFS:
        runs = _decoder.decode(data)
        if sum(runs[2::3]) > MAX_REFS:
            raise IncompatibleFormat("a list claims to begin with more references than any list may")
        return Refs(
            [
                Ref(back - step, slot)
                for back, slot, length in zip(runs[::3], runs[1::3], runs[2::3], strict=True)
                for step in range(length)
            ]
        )
    if code == LARGE:
        return Large(bytes(data[:32]), int.from_bytes(data[32:], "big"))
    if code == FLAT:
        return Sealed(list(map(FrozenDict, _decoder.decode(data))), flat=True)
    if code == SEALED:
        return Sealed([freeze_decoded(item) for item in _decoder.decode(data)])
    if VECTOR <= code <= BUCKET:
        return Raw(code, _decoder.decode(data))
    raise IncompatibleFormat(
        f"a node of kind {code} was written by a newer Holdfast: upgrade to read it", kind=code
    )


_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_node_hook)
_splitter: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw])
_encode = msgspec.msgpack.Encoder().encode
