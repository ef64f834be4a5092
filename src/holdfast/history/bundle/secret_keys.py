"""Search a bundle for keys whose values this store would have redacted.

The hashes of a bundle cover every value, so none can be replaced: a bundle is imported as it is, or refused. Encoded
nodes and leaves are searched without building values, so the application's types are not needed.

Invariant: every dict of a version, at any depth, of an event and of an attachment is searched once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.msgpack import Ext

from holdfast.errors import BadData
from holdfast.history.journal import is_own_kind
from holdfast.tree import path as paths
from holdfast.tree.block import (
    BRANCH,
    BUCKET,
    FORK,
    LARGE,
    REF,
    REFS,
    TRIE,
    VECTOR,
    directory_of,
    expand_references,
    open_block,
    reference,
    slots_of,
)
from holdfast.tree.codec import ARTIFACT, BIG_INT, ODD_DICT, REDACTED, TEXT, decode, to_bytes
from holdfast.tree.fold import Redactor
from holdfast.tree.values import TAGGED

#: The roots of a version, in order.
_PARTS = ("state", "result", "annotations", "error", "arguments")
#: Extensions whose payload holds no value.
_PLAIN = (BIG_INT, TEXT, ARTIFACT, REFS)
_HOLDERS = (dict, list, Ext)
#: The first bytes of encoded texts and bytes: most large leaves.
_TEXTS = (*range(0xA0, 0xC0), 0xC4, 0xC5, 0xC6, 0xD9, 0xDA, 0xDB)

#: The last segment of a path, and the path up to it; None for the root.
Path = tuple[Any, Any] | None
#: An encoded value, its path, and the index of its first item if it is a part of a list.
Place = tuple[Any, Path, int]


class FoundSecret(NamedTuple):
    """The place of a value that would have been redacted."""

    part: str
    version: int | None
    path: str


class SecretKeys:
    """Searches the versions, events, attachments and large leaves of one bundle, in this order."""

    def __init__(self, redactor: Redactor) -> None:
        self._hides = redactor.hides
        #: The leaves that are stored as artifacts, and their places.
        self._large: dict[bytes, tuple[str, int | None, Path]] = {}

    def in_version(self, number: int, pack: bytes, blocks: Sequence[bytes]) -> FoundSecret | None:
        """Return the first secret of a version that has passed its checks."""
        packed_roots, packed_directory, *last = open_block(pack)
        own = _Nodes(slots_of(directory_of(packed_directory), blocks, last))
        for part, root in zip(_PARTS, _decode(packed_roots), strict=False):
            found = self._find(part, number, [(root, None, 0)], own)
            if found is None and part == "arguments":
                found = self._find_argument(own, root)
            if found is not None:
                return FoundSecret(part, number, _show(found))
        # The stub of a pruned version has no roots.
        for node in own.others():
            found = self._find("state", number, [(node, None, 0)], own)
            if found is not None:
                return FoundSecret("state", number, _show(found))
        return None

    def in_event(self, kind: str, data: bytes) -> FoundSecret | None:
        """Return the first secret in the data of an event. Top-level keys of Holdfast's own events are not checked."""
        facts = _decode(data) if data else {}
        if is_own_kind(kind) and type(facts) is dict:
            places: list[Place] = [(value, (None, name), 0) for name, value in facts.items()]
        else:
            places = [(facts, None, 0)]
        return self._find_in_value(f"event {kind!r}", places)

    def in_attachment(self, key: str, name: str, data: bytes) -> FoundSecret | None:
        """Return the first secret in an attachment that has passed its checks; its name is the first key."""
        value = _decode(open_block(data)[0])
        return self._find_in_value(f"attachment of key {key!r}", [({name: value}, None, 0)])

    def is_leaf(self, digest: bytes, start: bytes) -> bool:
        """Return whether an artifact that starts with these bytes is a leaf of a version that may hold keys."""
        return digest in self._large and start[0] not in _TEXTS

    def in_leaf(self, digest: bytes, data: bytes) -> FoundSecret | None:
        """Return the first secret in the content of an artifact for which `is_leaf` returned True."""
        part, number, path = self._large[digest]
        found = self._find(part, number, [(_decode(data), path, 0)], _Nodes([]))
        return None if found is None else FoundSecret(part, number, _show(found))

    def _find_in_value(self, part: str, places: list[Place]) -> FoundSecret | None:
        found = self._find(part, None, places, _Nodes([]))
        return None if found is None else FoundSecret(part, None, _show(found))

    def _find(self, part: str, number: int | None, places: list[Place], own: _Nodes) -> Path:
        """Return the path of the first key that hides its value."""
        # Without recursion: a leaf may nest deeper than the stack.
        places.reverse()
        while places:
            raw, path, first = places.pop()
            below: list[Place] = []
            if type(raw) is dict:
                secret = self._enter(raw.items(), path, below)
            elif type(raw) is list:
                secret = None
                below += [
                    (item, (path, index), 0)
                    for index, item in enumerate(_items(raw), first)
                    if type(item) in _HOLDERS
                ]
            elif type(raw) is Ext and raw.code == LARGE:
                secret = None
                self._large.setdefault(bytes(raw.data)[:32], (part, number, path))
            elif type(raw) is Ext and raw.code == REF:
                secret = None
                below += [(node, path, first) for node in own.behind(raw)]
            elif type(raw) is Ext and raw.code not in _PLAIN:
                secret = self._open(raw.code, _decode(raw.data), path, first, below)
            else:
                continue
            if secret is not None:
                return secret
            places += reversed(below)
        return None

    def _open(self, code: int, parts: Any, path: Path, first: int, below: list[Place]) -> Path:
        """Add the parts of an extension to `below`; return the path of a secret key."""
        if code == ODD_DICT:
            return self._enter(zip(parts[::2], parts[1::2], strict=True), path, below)
        if code == BUCKET:
            return self._enter(zip(parts[1::3], parts[2::3], strict=True), path, below)
        if code == VECTOR:
            below += [(parts[2], path, 0), (parts[3], path, parts[1])]
        elif code == BRANCH:
            for count, child in zip(parts[::2], parts[1::2], strict=True):
                below.append((child, path, first))
                first += count
        elif code == TRIE:
            below.append((parts[2], path, 0))
        elif code == FORK:
            below += [(way, path, 0) for way in parts]
        elif code == TAGGED:
            below.append((parts[1], path, 0))
        else:
            below.append((parts, path, first))
        return None

    def _enter(self, pairs: Iterable[tuple[Any, Any]], path: Path, below: list[Place]) -> Path:
        """Check the keys of a dict, and add the values that may hold others to `below`."""
        for packed, item in pairs:
            key = _open_key(packed)
            if self._hides(key) and item != REDACTED:
                return path, key
            if type(item) in _HOLDERS:
                below.append((item, (path, key), 0))
        return None

    def _find_argument(self, own: _Nodes, root: Any) -> Path:
        """Return the first positional argument whose parameter hides its value."""
        call = own.resolved(root)
        if type(call) is not list or len(call) < 3:
            return None
        given, names = own.resolved(call[0]), own.resolved(call[2])
        if type(given) is not list or type(names) is not list or not names:
            return None
        for index, value in enumerate(_items(given)):
            # The last parameter may take all further values.
            name = names[index] if index < len(names) else names[-1] if names[-1][:1] == "*" else ""
            if self._hides(name.removeprefix("*")) and value != REDACTED:
                return None, name.removeprefix("*")
        return None


class _Nodes:
    """The encoded nodes of a version; each is entered once."""

    def __init__(self, nodes: list[msgspec.Raw | None]) -> None:
        self._nodes = nodes
        self._entered: set[int] = set()

    def behind(self, ref: Ext) -> Iterator[Any]:
        """Yield the node of a reference, if it is one of these and was not entered before. Nodes of earlier versions
        were entered with those."""
        slot = _own_slot(ref)
        if slot is not None and slot not in self._entered:
            self._entered.add(slot)
            yield self._at(slot)

    def resolved(self, raw: Any) -> Any:
        """Return a value, or the node if it is a reference to one of these."""
        slot = _own_slot(raw) if type(raw) is Ext and raw.code == REF else None
        return raw if slot is None else self._at(slot)

    def others(self) -> Iterator[Any]:
        """Yield the nodes that no root refers to."""
        for slot in range(len(self._nodes)):
            if slot not in self._entered:
                self._entered.add(slot)
                yield self._at(slot)

    def _at(self, slot: int) -> Any:
        node = self._nodes[slot]
        return None if node is None else _decode(node)


def _items(raw: list[Any]) -> list[Any]:
    """Return the items of a list, with the references at its start expanded."""
    if not raw or type(raw[0]) is not Ext or raw[0].code != REFS:
        return raw
    return [*(reference(*ref) for ref in expand_references(_decode(raw[0].data))), *raw[1:]]


def _own_slot(ref: Ext) -> int | None:
    """Return the slot of a reference to a node of the same version; otherwise None."""
    data = bytes(ref.data)
    width = len(data) >> 1
    return None if any(data[:width]) else int.from_bytes(data[width:], "big")


def _open_key(key: Any) -> Any:
    """Return a decoded key; None if it cannot be read, which matches no pattern."""
    try:
        return decode(to_bytes(key)) if type(key) is Ext else key
    except BadData:
        return None


def _decode(data: Any) -> Any:
    try:
        return _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadData(f"the bytes are not a stored value: {error}") from error


def _show(path: Path) -> str:
    segments: list[Any] = []
    while path is not None:
        path, segment = path
        segments.append(segment)
    return paths.show(segments[::-1])


#: Does not decode extensions.
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()
