"""Encoding of values: msgpack, with extension codes for types that msgpack does not have.

`encode` accepts any storable tree, plain or frozen, and is deterministic. `decode` returns plain values,
`decode_frozen` the values of a version's state. `docs/format.md` lists the extension codes.

Invariant: `decode(encode(x))` equals `x` exactly; equal bytes mean equal values, in type, order and every bit.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any

import msgspec
from msgspec.msgpack import Ext

from holdfast.errors import HoldfastError, IncompatibleFormat, UnknownTimeZone, UnsupportedValue
from holdfast.tree import adapter
from holdfast.tree.adapter import Replaced
from holdfast.tree.frozen import BOXED, DICTS, LISTS, Box, FrozenDict, FrozenList, freeze_dict, freeze_list
from holdfast.tree.values import NATIVE, TAGGED, Opaque, find_tag, kind_of, parts_of, restore, tag_of

BIG_INT = 1
TEXT = 2
ODD_DICT = 6
ARTIFACT = 25

#: Levels of nesting. Deeper trees are mistakes or attacks, and would exhaust the stack of a reader.
MAX_DEPTH = 200

#: Keys with the same hash in a dict or a set. Python compares a new key with all of them, and the hashes of numbers
#: and tuples are predictable: a document from elsewhere could take quadratic time.
MAX_COLLISIONS = 200
#: Types whose hashes cost the same for each value.
_NUMBERS = frozenset((int, float, bool, str, bytes, type(None)))
#: Types whose hashes are not predictable.
RANDOM = frozenset((str, bytes))

_raw = msgspec.msgpack.Encoder()

#: The replacement of a secret.
REDACTED = "[redacted]"

#: Returns whether the value of a key is a secret.
Hides = Callable[[Any], bool]


def encode(value: Any, hides: Hides | None = None) -> bytes:
    """Return the bytes of a storable tree; `UnsupportedValue` has the path of a value that cannot be stored."""
    return to_bytes(_prepare(value, 0, hides))


def decode(data: bytes | memoryview) -> Any:
    """Return the plain value of `encode`'s bytes."""
    return _decode(_plain, data)


def decode_frozen(data: bytes | memoryview) -> Any:
    """Return the frozen value of `encode`'s bytes, with boxes for values that could change."""
    try:
        return freeze_decoded(_decode(_frozen, data))
    except RecursionError as error:
        raise _invalid(error) from error


def with_current_tags(data: bytes) -> bytes:
    """Return `encode`'s bytes with the tags under which classes are registered now; all else stays unchanged."""
    try:
        return to_bytes(_rename(_plain_parts.decode(data)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(error) from error


def _rename(raw: Any) -> Any:
    if type(raw) is list:
        return list(map(_rename, raw))
    if type(raw) is dict:
        return {key: _rename(item) for key, item in raw.items()}
    if type(raw) is not Ext or raw.code in (BIG_INT, TEXT):
        return raw
    parts = _rename(_plain_parts.decode(raw.data))
    if raw.code == TAGGED and type(parts) is list and parts and type(parts[0]) is str:
        known = find_tag(parts[0])
        parts[0] = parts[0] if known is None else known[1].tag
    return Ext(raw.code, to_bytes(parts))


def to_bytes(prepared: Any) -> bytes:
    """Return the bytes of a value that consists of native values, lists, dicts and `Ext` only."""
    try:
        return _raw.encode(prepared)
    except (OverflowError, UnicodeEncodeError):
        return _raw.encode(_extend(prepared))


def leaf_ext(value: Any, hides: Hides | None = None, *, depth: int = 0) -> Ext:
    """Return the extension of a leaf of a type that msgpack does not have. It counts as two levels of depth: reading
    an extension takes about twice the stack of reading a list."""
    if type(value) is Box:
        return Ext(value.code, value.data)
    kind = kind_of(value)
    if kind.code in _SETS:
        if depth + 1 > MAX_DEPTH:
            raise too_deep()
        # A copy: another thread may change the set meanwhile.
        members = (*value,)
        refuse_collisions(members, UnsupportedValue)
        # Each item is encoded once: sorting in `split` would double the work with every set inside a set.
        items = sorted(to_bytes(_prepare(item, depth + 2, hides)) for item in members)
        return Ext(kind.code, _raw.encode([msgspec.Raw(item) for item in items]))
    try:
        parts = _prepare(parts_of(kind, value), depth + 1, hides)
    except UnsupportedValue as error:
        if kind.wrapped:
            del error.details.get("path", [])[:1]
        adapter.simplify(value, error)
    return Ext(kind.code, to_bytes([tag_of(kind, value), parts] if kind.code == TAGGED else parts))


def nested_artifacts(code: int, data: bytes) -> Iterator[bytes]:
    """Yield the digests of the artifacts that an extension is or contains."""
    if code == ARTIFACT:
        yield bytes.fromhex(restore(code, _decode(_plain, data)).digest)
    elif ARTIFACT in data and code not in (BIG_INT, TEXT):
        yield from _artifacts_in(_decode(_plain_parts, data))


def artifacts_in(data: bytes) -> Iterator[bytes]:
    """Yield the digests of the artifacts in `encode`'s bytes."""
    if ARTIFACT in data:
        yield from _artifacts_in(_decode(_plain_parts, data))


def _artifacts_in(value: Any) -> Iterator[bytes]:
    if type(value) is Ext:
        yield from nested_artifacts(value.code, bytes(value.data))
    elif type(value) is list:
        for item in value:
            yield from _artifacts_in(item)
    elif type(value) is dict:
        for item in value.values():
            yield from _artifacts_in(item)


def open_box(box: Box) -> Any:
    """Return a new object from its encoded form."""
    return restore_checked(box.code, decode(box.data))


def restore_checked(code: int, parts: Any) -> Any:
    """Restore a value, but refuse a set with too many hash collisions."""
    if code in _SETS and type(parts) is list:
        # Items without a hash are refused by `restore`.
        with suppress(TypeError):
            refuse_collisions(parts, IncompatibleFormat)
    return restore(code, parts)


def refuse_collisions(keys: Collection[Any], error: type[HoldfastError]) -> None:
    """Raise `error` if too many keys for a dict or a set have the same hash."""
    if len(keys) <= MAX_COLLISIONS or RANDOM.issuperset(map(type, keys)):
        return
    if _NUMBERS.issuperset(map(type, keys)) and len(keys) - len(set(map(hash, keys))) < MAX_COLLISIONS:
        return
    found: Counter[int] = Counter()
    for key in keys:
        number = hash(key)
        found[number] += 1
        if found[number] > MAX_COLLISIONS:
            # At once: hashing a Fraction may search a dict, which compares it with all keys of the same hash.
            raise error(
                f"a dict or a set has at most {MAX_COLLISIONS} keys of one hash: use strings for keys"
            )


def big_int(value: int) -> Ext:
    """Return the extension of an integer beyond 64 bits."""
    return Ext(BIG_INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def odd_dict(pairs: list[Any]) -> Ext:
    """Return the extension of a dict with keys that msgpack does not have, from a flat list of prepared keys and
    values."""
    return Ext(ODD_DICT, to_bytes(pairs))


def prepare_key(key: Any, *, depth: int = 0) -> Any:
    """Return a prepared dict key; raise `UnsupportedValue` if it could change."""
    if type(key) in NATIVE:
        return key
    ext = leaf_ext(key, depth=depth)
    try:
        _refuse_mutable(key)
    except Replaced:
        # An item of a tuple.
        raise Replaced(decode(to_bytes(ext))) from None
    return ext


def replace_keys(value: dict[Any, Any], *, depth: int = 0) -> dict[Any, Any]:
    """Return a dict in which the adapter has replaced keys that cannot be stored."""
    out: dict[Any, Any] = {}
    for key, item in dict.items(value):
        stored = key
        try:
            prepare_key(key, depth=depth)
        except Replaced as error:
            stored = error.value
        if stored in out:
            raise UnsupportedValue(f"two keys would both be stored as {stored!r:.60}: use other keys")
        out[stored] = item
    return out


def open_key(key: Any) -> Any:
    """Return a decoded dict key that can be looked up: a box is opened."""
    return open_box(key) if type(key) is Box else key


def under(error: UnsupportedValue, segment: Any) -> UnsupportedValue:
    """Prepend a segment to the path of an error."""
    error.details.setdefault("path", []).insert(0, segment)
    return error


def too_deep() -> UnsupportedValue:
    """Return the error for a tree that is too deep, or has a cycle."""
    return UnsupportedValue(f"nesting deeper than {MAX_DEPTH} levels, or a cycle: use holdfast.sanitize(…)")


def freeze_decoded(value: Any) -> Any:
    """Freeze a decoded plain tree; parts that are frozen already stay unchanged."""
    kind = type(value)
    if kind is dict:
        for item in value.values():
            if type(item) not in NATIVE:
                return freeze_dict({key: freeze_decoded(item) for key, item in value.items()})
        return FrozenDict(value)
    if kind is list:
        for item in value:
            if type(item) not in NATIVE:
                return freeze_list([freeze_decoded(item) for item in value])
        return FrozenList(value)
    return value


def pairs_of(flat: Any) -> dict[Any, Any]:
    """Return the dict of a decoded flat list of keys and values."""
    if type(flat) is not list or len(flat) % 2:
        raise IncompatibleFormat("a stored dict does not consist of keys and values")
    keys = list(map(open_key, flat[::2]))
    try:
        # Before all keys are hashed: see `refuse_collisions`.
        for key in keys:
            _refuse_mutable(key)
        refuse_collisions(keys, IncompatibleFormat)
        return dict(zip(keys, flat[1::2], strict=True))
    except (UnsupportedValue, TypeError):
        for key in keys:
            check_key(key)
        raise


def check_key(key: Any) -> None:
    """Raise `IncompatibleFormat` if a decoded key could change, or is not a value."""
    try:
        _refuse_mutable(key)
        hash(key)
    except (UnsupportedValue, TypeError) as error:
        raise IncompatibleFormat(f"a stored dict has a {type(key).__name__} for a key") from error


def ext_hook(freeze: bool) -> Callable[[int, Any], Any]:
    """Return a decoder hook for extension codes; with `freeze`, values that could change become boxes."""

    def hook(code: int, data: memoryview) -> Any:
        if code == BIG_INT:
            return int.from_bytes(data, "big", signed=True)
        if code == TEXT:
            return bytes(data).decode("utf-8", "surrogatepass")
        if code == ODD_DICT:
            odd = pairs_of(_decode(_frozen if freeze else _plain, data))
            return freeze_decoded(odd) if freeze else odd
        if not freeze:
            return restore_checked(code, _decode(_plain, data))
        if code in _BOXED_CODES:
            return Box(code, bytes(data))
        return _restore_frozen(code, data)

    return hook


_SETS = (4, 5)
#: Codes of the kinds that could change. TAGGED is decided by its tag.
_BOXED_CODES = frozenset((4, 17, 18, 19, 21, 22, ARTIFACT))


def _restore_frozen(code: int, data: memoryview) -> Any:
    if code == TAGGED and not _is_constant(data):
        return Box(code, bytes(data))
    parts = _decode(_frozen, data)
    if code == TAGGED:
        parts = [parts[0], freeze_decoded(parts[1])]
    elif type(parts) is list:
        parts = [freeze_decoded(item) for item in parts]
    if _holds_box(parts):
        return Box(code, bytes(data))
    try:
        return restore_checked(code, parts)
    except UnknownTimeZone:
        return Box(code, bytes(data))
    except IncompatibleFormat:
        if code != TAGGED:
            raise
        # The application's type has changed: the error is raised when the box is opened.
        return Box(code, bytes(data))


def _is_constant(data: memoryview) -> bool:
    tag, _ = _decode(_tagged, data)
    if type(tag) is Ext:
        # A text with a lone surrogate.
        tag = _decode(_plain, to_bytes(tag))
    if type(tag) is not str:
        raise IncompatibleFormat("a stored value of a registered type has no tag", kind=TAGGED)
    known = find_tag(tag)
    return known is not None and not known[1].boxed


def _holds_box(value: Any) -> bool:
    return type(value) in BOXED or (type(value) is list and any(map(_holds_box, value)))


def _refuse_mutable(key: Any) -> None:
    """Raise `UnsupportedValue` if a key could change. An `Opaque` is as constant as its bytes."""
    if type(key) in NATIVE or type(key) is Opaque:
        return
    if kind_of(key).boxed:
        raise UnsupportedValue(
            f"a key of type {type(key).__name__} could change: use a string, a number, a tuple of them",
            type=f"{type(key).__module__}.{type(key).__qualname__}",
        )
    if isinstance(key, tuple | frozenset):
        for item in key:
            _refuse_mutable(item)


def _decode(decoder: msgspec.msgpack.Decoder[Any], data: bytes | memoryview) -> Any:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _invalid(error) from error


def _invalid(error: Exception) -> IncompatibleFormat:
    return IncompatibleFormat(f"the bytes are not a stored value: {error}")


def _prepare(value: Any, depth: int, hides: Hides | None) -> Any:
    kind = type(value)
    if kind in NATIVE:
        return value
    if depth > MAX_DEPTH:
        raise too_deep()
    if kind is list or kind in LISTS or getattr(kind, "__holdfast_plain__", None) is list:
        # The memory of a draft or a reader's copy is complete; its methods would open every item.
        if NATIVE.issuperset(map(type, list.__iter__(value))):
            return list(list.__iter__(value))
        out = []
        for index, item in enumerate(list.__iter__(value)):
            try:
                out.append(_prepare(item, depth + 1, hides))
            except UnsupportedValue as error:
                raise under(error, index) from None
        return out
    if kind is dict or kind in DICTS or getattr(kind, "__holdfast_plain__", None) is dict:
        return _prepare_dict(value, depth, hides)
    try:
        return leaf_ext(value, hides, depth=depth)
    except Replaced as error:
        return _prepare(error.value, depth, hides)


def _prepare_dict(value: dict[Any, Any], depth: int, hides: Hides | None) -> Any:
    # A copy: another thread may add keys meanwhile.
    value = dict.copy(value)
    if hides is None and NATIVE.issuperset(map(type, value)) and NATIVE.issuperset(map(type, value.values())):
        return value
    out = {}
    odd_keys = {}
    for key, item in value.items():
        try:
            if type(key) not in NATIVE:
                odd_keys[key] = prepare_key(key, depth=depth + 1)
            out[key] = REDACTED if hides is not None and hides(key) else _prepare(item, depth + 1, hides)
        except Replaced:
            return _prepare_dict(replace_keys(value, depth=depth + 1), depth, hides)
        except UnsupportedValue as error:
            raise under(error, key) from None
    if not odd_keys:
        return out
    refuse_collisions(out, UnsupportedValue)
    return odd_dict([part for key, item in out.items() for part in (odd_keys.get(key, key), item)])


def _extend(value: Any) -> Any:
    """Replace huge integers and texts with lone surrogates in a prepared value by extensions."""
    kind = type(value)
    if kind is int:
        return value if -(1 << 63) <= value < 1 << 64 else big_int(value)
    if kind is str:
        try:
            value.encode()
        except UnicodeEncodeError:
            return Ext(TEXT, value.encode("utf-8", "surrogatepass"))
        return value
    if isinstance(value, list):
        return [_extend(item) for item in value]
    if isinstance(value, dict):
        pairs = [(_extend(key), _extend(item)) for key, item in value.items()]
        if any(type(key) is Ext for key, _ in pairs):
            refuse_collisions(value, UnsupportedValue)
            return Ext(ODD_DICT, _raw.encode([part for pair in pairs for part in pair]))
        return dict(pairs)
    return value


_plain: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=ext_hook(False))
_frozen: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(ext_hook=ext_hook(True))
#: Keeps extensions encoded.
_plain_parts: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder()
#: A tag, and the parts still encoded.
_tagged: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(tuple[Any, msgspec.Raw])
