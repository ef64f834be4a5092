"""Blocks: the compressed lists of nodes that packs consist of.

A node is a value in msgpack, or a reference to other nodes or a part of a spine under an extension code of its own.
`docs/format.md` specifies the bytes.

Invariant: `unsqueeze(squeeze(nodes))` equals the nodes; a block that claims to be larger than `MAX_BLOCK` is never
decompressed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence, Set
from hashlib import sha256
from itertools import chain, pairwise
from typing import Any, NamedTuple, TypeVar

import msgspec
import zstandard
from msgspec.msgpack import Ext

from holdfast.errors import CorruptStore, IncompatibleFormat
from holdfast.tree.codec import (
    BIG_INT,
    ODD_DICT,
    TEXT,
    check_key,
    ext_hook,
    freeze_decoded,
    open_key,
    pairs_of,
    refuse_collisions,
    to_bytes,
)
from holdfast.tree.containers import FAN
from holdfast.tree.dictionary import WORDS
from holdfast.tree.frozen import At, FrozenDict
from holdfast.tree.values import NATIVE

#: Bytes of a block after decompression.
MAX_BLOCK = 64 * 1024 * 1024

#: References at the start of a list of items.
_MAX_REFS = 1024

REF, VECTOR, BRANCH, SEALED, FLAT, TRIE, FORK, BUCKET, LARGE, REFS = range(32, 42)

#: Markers of blocks: not compressed, compressed, compressed with the dictionary.
_PLAIN, _ZSTD, _ZSTD_WORDS = b"\x00", b"\x01", b"\x02"
#: Bytes below which compression does not pay, and up to which the dictionary does.
_SHORT, _MAX_WORDS = 64, 8 * 1024
#: Levels of groups that a vector can have.
_MAX_HEIGHT = 12


def digest(data: bytes) -> bytes:
    """Return the hash of a block or version: 128 bits of SHA-256."""
    return sha256(data).digest()[:16]


class Ref(NamedTuple):
    """A reference as read: versions back from the pack that contains it, and the slot there."""

    back: int
    slot: int


class Refs(NamedTuple):
    """The references at the start of a list of items, as read."""

    refs: list[Ref]


class Large(NamedTuple):
    """A leaf that is stored as an artifact."""

    digest: bytes
    size: int


class Raw(NamedTuple):
    """A node of a spine as read."""

    code: int
    parts: list[Any]


class Sealed(NamedTuple):
    """A sealed group as read, with frozen items; `flat` if all of them are records."""

    items: list[Any]
    flat: bool = False


def reference(back: int, slot: int) -> Ext:
    """Return the extension of a reference."""
    width = 1 if (back | slot) < 256 else 2 if (back | slot) < 65536 else 4
    return Ext(REF, back.to_bytes(width, "big") + slot.to_bytes(width, "big"))


def references(version: int, places: list[At]) -> Ext:
    """Return the extension of several references. Nodes in the same slot of consecutive versions, as appends leave
    them, are one run: versions back to the first, slot, length."""
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
    """Return the items of a list as read, with the references at its start expanded."""
    return [*raw[0].refs, *raw[1:]] if raw and type(raw[0]) is Refs else raw


def thin(data: bytes, blocks: Sequence[bytes], needed: Set[int]) -> tuple[bytes, list[bytes]]:
    """Return a verified pack with all but the needed slots empty."""
    _, packed_directory, *last = open_block(data)
    directory = directory_of(packed_directory)
    if [expected for _, expected in directory] != list(map(digest, blocks)):
        raise CorruptStore("a block fails its hash and cannot be pruned: run verify")
    nodes = slots_of(directory, blocks, last)
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
    """Return a block: a marker byte, then msgpack, compressed if that is shorter."""
    data = to_bytes(nodes)
    if len(data) < _SHORT:
        return _PLAIN + data
    marker, used = (_ZSTD, _compressor) if len(data) > _MAX_WORDS else (_ZSTD_WORDS, _word_compressor)
    packed = used().compress(data)
    return marker + packed if len(packed) < len(data) else _PLAIN + data


def compressed_size(data: bytes) -> int:
    """Return the approximate size of data in a compressed block."""
    return len(_compressor().compress(data))


def open_block(block: bytes) -> list[msgspec.Raw]:
    """Return the nodes of a verified block, each still encoded."""
    try:
        return _splitter.decode(_inflate(block))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise IncompatibleFormat(f"a block is not a list of nodes: {error}") from error


def slots_of(
    directory: list[tuple[int, bytes]], blocks: Sequence[bytes], last: list[msgspec.Raw]
) -> list[msgspec.Raw | None]:
    """Return the encoded nodes of a pack by slot: those of its further blocks, then the `last` ones, from its data."""
    nodes: list[msgspec.Raw | None] = []
    for (end, _), block in zip(directory, blocks, strict=True):
        nodes += open_block(block)
        # A thinned pack has shorter blocks; slots keep their numbers.
        nodes += [None] * (end - len(nodes))
    return [*nodes, *last]


def node_of(raw: msgspec.Raw) -> Any:
    """Return the decoded node."""
    try:
        return _decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError) as error:
        raise _not_a_node(error) from error


def _not_a_node(error: Exception) -> IncompatibleFormat:
    return IncompatibleFormat(f"a block contains bytes that are not a node: {error}")


def refuse_ext_keys(raw: msgspec.Raw) -> None:
    """Raise `IncompatibleFormat` if a map in a node has an extension for a key. Holdfast writes such a dict as a flat
    list, whose keys are checked before a dict is made. The decoder makes a dict of a map at once, which takes quadratic
    time for many keys of one hash."""
    waiting: list[Any] = [raw]
    try:
        while waiting:
            value = _opaque_decoder.decode(waiting.pop())
            holders = [value] if type(value) in _HOLDERS else []
            while holders:
                value = holders.pop()
                if type(value) is not Ext:
                    items = value.values() if type(value) is dict else value
                    holders += [item for item in items if type(item) in _HOLDERS]
                elif value.code not in _NOT_MSGPACK and value.code <= REFS:
                    waiting.append(value.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _not_a_node(error) from error


def directory_of(raw: msgspec.Raw) -> list[tuple[int, bytes]]:
    """Return the directory of a pack: for each further block the slot after its last node, and its hash."""
    try:
        found = _directory_decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise IncompatibleFormat(f"the directory of a pack cannot be decoded: {error}") from error
    if any(one[0] > two[0] for one, two in pairwise(found)) or any(end < 0 for end, _ in found):
        raise IncompatibleFormat("a pack has a directory that is not in order")
    return found


def unsqueeze(block: bytes) -> list[Any]:
    """Return the decoded nodes of a verified block."""
    return list(map(node_of, open_block(block)))


def _inflate(block: bytes) -> bytes | memoryview:
    marker, data = block[:1], memoryview(block)[1:]
    if marker == _PLAIN:
        return data
    if marker not in _DECOMPRESSORS:
        raise IncompatibleFormat(
            f"a block of kind {marker!r} was written by a newer Holdfast: upgrade to read it"
        )
    try:
        size = zstandard.get_frame_parameters(data, zstandard.FORMAT_ZSTD1_MAGICLESS).content_size
        if not 0 <= size <= MAX_BLOCK:
            raise IncompatibleFormat("a block claims to be larger than the maximum")
        return _DECOMPRESSORS[marker]().decompress(data)
    except zstandard.ZstdError as error:
        raise IncompatibleFormat(f"a block cannot be decompressed: {error}") from error


_local = threading.local()
#: Level 1: higher levels cost more and save nothing at this size. The marker byte replaces the magic number.
_PARAMETERS = zstandard.ZstdCompressionParameters.from_level(1, format=zstandard.FORMAT_ZSTD1_MAGICLESS)


_DICTIONARY = zstandard.ZstdCompressionDict(WORDS, dict_type=zstandard.DICT_TYPE_RAWCONTENT)
_DICTIONARY.precompute_compress(compression_params=_PARAMETERS)

T = TypeVar("T")


def _of_thread(make: Callable[[], T]) -> Callable[[], T]:
    """Return a function that returns an object of the calling thread: contexts of zstd are for one thread at a time."""
    name = make.__qualname__

    def get() -> T:
        found: T | None = getattr(_local, name, None)
        if found is None:
            found = make()
            setattr(_local, name, found)
        return found

    return get


@_of_thread
def _compressor() -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(compression_params=_PARAMETERS)


@_of_thread
def _word_compressor() -> zstandard.ZstdCompressor:
    return zstandard.ZstdCompressor(compression_params=_PARAMETERS, dict_data=_DICTIONARY)


@_of_thread
def _decompressor() -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS)


@_of_thread
def _word_decompressor() -> zstandard.ZstdDecompressor:
    return zstandard.ZstdDecompressor(format=zstandard.FORMAT_ZSTD1_MAGICLESS, dict_data=_DICTIONARY)


_DECOMPRESSORS = {_ZSTD: _decompressor, _ZSTD_WORDS: _word_decompressor}


_value_hook = ext_hook(True)


def _node_hook(code: int, data: memoryview) -> Any:
    if code == ODD_DICT:
        return pairs_of(_decoder.decode(data))
    if code < REF:
        return _value_hook(code, data)
    if code == REF:
        width = len(data) >> 1
        _require(len(data) == 2 * width > 0, code)
        return Ref(int.from_bytes(data[:width], "big"), int.from_bytes(data[width:], "big"))
    if code == LARGE:
        _require(len(data) == 40, code)
        return Large(bytes(data[:32]), int.from_bytes(data[32:], "big"))
    if REFS >= code >= VECTOR:
        parts = _decoder.decode(data)
        _require(type(parts) is list and _fits(code, parts), code)
        return _MADE[code](code, parts)
    raise IncompatibleFormat(
        f"a node of kind {code} was written by a newer Holdfast: upgrade to read it", kind=code
    )


def expand_references(runs: list[int]) -> list[Ref]:
    """Return the references of `references`."""
    if sum(runs[2::3]) > _MAX_REFS:
        raise IncompatibleFormat("a list claims to start with more references than the maximum")
    return [
        Ref(back - step, slot)
        for back, slot, length in zip(runs[::3], runs[1::3], runs[2::3], strict=True)
        for step in range(length)
    ]


def _sealed(code: int, items: list[Any]) -> Sealed:
    is_flat = code == FLAT
    return Sealed(list(map(FrozenDict if is_flat else freeze_decoded, items)), flat=is_flat)


#: Constructors of nodes by code.
_MADE: dict[int, Callable[[int, list[Any]], Any]] = {
    REFS: lambda _, runs: Refs(expand_references(runs)),
    FLAT: _sealed,
    SEALED: _sealed,
    **dict.fromkeys((VECTOR, BRANCH, TRIE, FORK, BUCKET), Raw),
}


def _fits(code: int, parts: list[Any]) -> bool:
    """Return whether a node of this code can have these parts."""
    if code == VECTOR:
        return len(parts) == 4 and _are_counts(parts[:2]) and parts[0] <= _MAX_HEIGHT
    if code == TRIE:
        return len(parts) == 3 and _are_counts(parts[:2])
    if code == BRANCH:
        return len(parts) % 2 == 0 and _are_counts(parts[::2])
    if code == FORK:
        return len(parts) == FAN
    if code == BUCKET:
        keys = parts[1::3]
        if not NATIVE.issuperset(map(type, keys)):
            keys = list(map(open_key, keys))
            for key in keys:
                check_key(key)
        refuse_collisions(keys, IncompatibleFormat)
        return len(parts) % 3 == 0 and _are_counts(parts[::3])
    if code == REFS:
        return len(parts) % 3 == 0 and _are_counts(parts)
    if code == FLAT:
        return set(map(type, parts)) <= _DICTS and NATIVE.issuperset(
            map(type, chain.from_iterable(map(dict.values, parts)))
        )
    return True


_DICTS = {dict}
#: Types of values, decoded without a hook for extensions, that can contain others.
_HOLDERS = frozenset((dict, list, Ext))
#: Extensions whose bytes are not msgpack.
_NOT_MSGPACK = frozenset((BIG_INT, TEXT, REF, LARGE))


def _are_counts(numbers: list[Any]) -> bool:
    return all(type(number) is int and 0 <= number < 1 << 64 for number in numbers)


def _require(is_sound: bool, code: int) -> None:
    if not is_sound:
        raise IncompatibleFormat(f"a node of kind {code} has invalid parts", kind=code)


_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=_node_hook)
#: Keeps extensions encoded; they cannot be keys.
_opaque_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()
_directory_decoder: msgspec.msgpack.Decoder[list[tuple[int, bytes]]] = msgspec.msgpack.Decoder(
    list[tuple[int, bytes]]
)
_splitter: msgspec.msgpack.Decoder[list[msgspec.Raw]] = msgspec.msgpack.Decoder(list[msgspec.Raw])
_encode = msgspec.msgpack.Encoder().encode
