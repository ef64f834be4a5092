"""Exact conversion of values to JSON and back, for people and other tools.

Values that JSON has are written unchanged; others are marked: `{"$holdfast": "tuple", "value": [1, 2]}`, or, for a
registered type, `{"$holdfast": "registered", "tag": "app.Plan", "value": {…}}`. `values` splits a type into parts; this
module names the types. A document from elsewhere is checked before it is used: nothing is imported, and only functions
of `values` and of registered types are called.

Invariant: `from_json(json.loads(json.dumps(to_json(x))))` equals `x` exactly, and no integer in the document is too
large for a tool that reads numbers as doubles. `from_json` raises `InvalidSnapshot`, with the path in the document, for
anything that it cannot read.
"""

from __future__ import annotations

import math
import re
import struct
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable
from typing import Any, NoReturn
from uuid import UUID

from holdfast.errors import IncompatibleFormat, InvalidSnapshot, UnknownTimeZone, UnsupportedValue
from holdfast.tree import path as paths
from holdfast.tree.codec import (
    MAX_COLLISIONS,
    MAX_DEPTH,
    RANDOM,
    decode,
    prepare_key,
    restore_checked,
    too_deep,
    under,
)
from holdfast.tree.frozen import Box
from holdfast.tree.values import TAGGED, kind_of, parts_of, tag_of

#: The key of a marked value. A dict with this key is written as pairs.
MARK = "$holdfast"

_REGISTERED = "registered"
_PAIRS = "dict"

#: The codes of `values` by the names of types.
_KINDS = {
    "tuple": 3, "set": 4, "frozenset": 5, "datetime": 7, "date": 8, "time": 9, "timedelta": 10, "timezone": 11,
    "decimal": 12, "fraction": 13, "complex": 14, "path": 16, "bytearray": 17, "deque": 18, "ordereddict": 19,
    "range": 20, "exception": 21, "array": 22, "scalar": 23, "artifact": 25,
}  # fmt: skip
_NAMES = {code: name for name, code in _KINDS.items()}

#: Integers from here on are written as texts: many tools read numbers as doubles.
_EXACT = 1 << 53
#: Larger integers are written in hexadecimal digits: Python refuses to read very long decimals.
_DECIMAL_BITS = 2048
_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED = re.compile("[\\\\\ud800-\udfff]")
_ESCAPE = re.compile(r"\\(u[0-9a-f]{4})?")
_NAN = struct.pack(">d", math.nan)


def to_json(value: Any) -> Any:
    """Return a storable value, plain, frozen or draft, as dicts with str keys, lists, str, int, finite float, bool and
    None. `UnsupportedValue` has the path of a value that cannot be stored."""
    try:
        return _write(value, 0)
    except UnsupportedValue as error:
        where = paths.show(error.details.get("path", []))
        raise UnsupportedValue(
            f"at {where or 'the root'}: {error}", **{**error.details, "path": where}
        ) from None


def from_json(doc: Any) -> Any:
    """Return the plain value of a document of `to_json`, or raise `InvalidSnapshot`."""
    reader = _DocumentReader()
    try:
        return reader.read(doc, 0)
    except RecursionError as error:
        reader.refuse("nesting deeper than the rest of the stack allows", error)


def _write(value: Any, depth: int) -> Any:
    kind = type(value)
    native = _NATIVE.get(kind)
    if native is not None:
        return native(value)
    if depth > MAX_DEPTH:
        raise too_deep()
    plain = getattr(kind, "__holdfast_plain__", None)
    if kind is list or plain is list:
        out = []
        for index, item in enumerate(value):
            try:
                out.append(_write(item, depth + 1))
            except UnsupportedValue as error:
                raise under(error, index) from None
        return out
    if kind is dict or plain is dict:
        return _write_dict(value, depth)
    if kind is Box:
        code, parts = value.code, decode(value.data)
        tag, parts = parts if code == TAGGED else (None, parts)
        written = _write(parts, depth + 1)
    else:
        code, tag, written = _write_parts(value, depth)
    if code == TAGGED:
        return {MARK: _REGISTERED, "tag": tag, "value": written}
    return _marked(_NAMES[code], written)


def _write_dict(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    pairs = []
    for key, item in value.items():
        try:
            prepare_key(key, depth=depth + 1)
            pairs.append([_write(key, depth + 1), _write(item, depth + 1)])
        except UnsupportedValue as error:
            raise under(error, key) from None
    if MARK not in value and all(type(key) is str for key, _ in pairs):
        return dict(pairs)
    return _marked(_PAIRS, pairs)


def _write_parts(value: Any, depth: int) -> tuple[int, str | None, Any]:
    kind = kind_of(value)
    try:
        return kind.code, tag_of(kind, value), _write(parts_of(kind, value), depth + 1)
    except UnsupportedValue as error:
        if kind.wrapped:
            del error.details.get("path", [])[:1]
        raise


def _marked(name: str, value: Any) -> dict[str, Any]:
    return {MARK: name, "value": value}


def _write_str(text: str) -> Any:
    # JSON joins two lone surrogates to one character, and UTF-8 cannot encode one.
    if text.isascii() or _SURROGATE.search(text) is None:
        return text
    return _marked("str", _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text))


def _write_int(number: int) -> Any:
    if -_EXACT < number < _EXACT:
        return number
    return _marked("int", str(number) if number.bit_length() <= _DECIMAL_BITS else hex(number))


def _write_float(number: float) -> Any:
    if math.isfinite(number):
        return number
    bits = struct.pack(">d", number)
    return _marked("float", f"nan:{bits.hex()}" if math.isnan(number) and bits != _NAN else str(number))


_NATIVE: dict[type, Callable[[Any], Any]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    int: _write_int,
    float: _write_float,
    str: _write_str,
    bytes: lambda data: _marked("bytes", b64encode(data).decode("ascii")),
    # More readable than its parts, which are bytes.
    UUID: lambda value: _marked("uuid", str(value)),
}


class _DocumentReader:
    """Reads one document, up to the first error; `path` is the current position."""

    def __init__(self) -> None:
        self.path: list[Any] = []

    def read(self, doc: Any, depth: int) -> Any:
        kind = type(doc)
        if doc is None or kind in (str, int, float, bool):
            return doc
        if kind is not list and kind is not dict:
            self.refuse(f"{kind.__name__} is not a type of JSON")
        is_marked = kind is dict and MARK in doc
        # A leaf takes no level, however it is written.
        if depth > MAX_DEPTH and not (is_marked and type(doc[MARK]) is str and doc[MARK] in _SCALARS):
            self.refuse(f"nesting deeper than {MAX_DEPTH} levels")
        if is_marked:
            return self.marked(doc, depth)
        out: Any = kind()
        for segment, item in enumerate(doc) if kind is list else doc.items():
            self.path.append(segment)
            value = self.read(item, depth + 1)
            if kind is list:
                out.append(value)
            elif type(segment) is str:
                out[segment] = value
            else:
                self.refuse(f"a key of type {type(segment).__name__}: keys of JSON are texts")
            self.path.pop()
        return out

    def marked(self, doc: dict[Any, Any], depth: int) -> Any:
        name = doc[MARK]
        keys = {MARK, "value", "tag"} if name == _REGISTERED else {MARK, "value"}
        if doc.keys() != keys:
            self.refuse(f"a marked value has exactly the keys {', '.join(sorted(keys))}")
        value = doc["value"]
        if type(name) is not str:
            self.refuse(f"{MARK} is the name of a type, a text")
        if name == _PAIRS:
            return self.pairs(value, depth)
        if name in _SCALARS:
            return self.scalar(name, value)
        if name == _REGISTERED:
            if type(doc["tag"]) is not str:
                self.refuse("the tag of a registered type is a text")
        elif name not in _KINDS:
            self.refuse(
                f"{paths.shorten(name)} is not a type of this version of Holdfast: upgrade, or correct the name"
            )
        self.path.append("value")
        parts = self.read(value, depth + 1)
        self.path.pop()
        try:
            if name == _REGISTERED:
                return restore_checked(TAGGED, [doc["tag"], parts])
            return restore_checked(_KINDS[name], parts)
        except (IncompatibleFormat, UnknownTimeZone, RecursionError) as error:
            self.refuse(str(error), error)

    def pairs(self, pairs: Any, depth: int) -> dict[Any, Any]:
        if type(pairs) is not list or not all(type(pair) is list and len(pair) == 2 for pair in pairs):
            self.refuse("a marked dict is a list of [key, value]")
        out: dict[Any, Any] = {}
        alike: Counter[int] = Counter()
        self.path.append("value")
        for index, (key_doc, item) in enumerate(pairs):
            self.path += (index, 0)
            key = self.read(key_doc, depth + 1)
            try:
                prepare_key(key)
                # Before the key is compared with all others of its hash.
                if type(key) not in RANDOM:
                    alike[hash(key)] += 1
                    if alike[hash(key)] > MAX_COLLISIONS:
                        self.refuse(f"more than {MAX_COLLISIONS:,} keys of one hash")
                known = key in out
            except (UnsupportedValue, TypeError):
                self.refuse(f"a {type(key).__name__} cannot be a key")
            if known:
                self.refuse("the same key as in an earlier pair")
            self.path[-1] = 1
            out[key] = self.read(item, depth + 1)
            del self.path[-2:]
        self.path.pop()
        return out

    def scalar(self, name: str, text: Any) -> Any:
        if type(text) is not str:
            self.refuse(f"the value of a marked {name} is a text")
        try:
            return _SCALARS[name](text)
        except (ValueError, OverflowError):
            self.refuse(f"{paths.shorten(text)} is not a valid {name}")

    def refuse(self, why: str, cause: Exception | None = None) -> NoReturn:
        where = paths.show(self.path)
        raise InvalidSnapshot(f"at {paths.shorten(where, 400) or 'the root'}: {why}", path=where) from cause


def _read_int(text: str) -> int:
    if re.fullmatch(r"-?0x[0-9a-f]+|-?[0-9]+", text, re.ASCII) is None:
        raise ValueError(text)
    return int(text, 16 if "x" in text else 10)


def _read_float(text: str) -> float:
    if text in ("nan", "inf", "-inf"):
        return float(text)
    if not text.startswith("nan:"):
        raise ValueError(text)
    number: float
    (number,) = struct.unpack(">d", _exactly(bytes.fromhex(text[4:]), 8))
    if not math.isnan(number):
        raise ValueError(text)
    return number


def _unescape(match: re.Match[str]) -> str:
    if match[1] is None:
        raise ValueError(match.string)
    return chr(int(match[1][1:], 16))


def _exactly(data: bytes, size: int) -> bytes:
    if len(data) != size:
        raise ValueError(f"{len(data)} bytes, not {size}")
    return data


_SCALARS: dict[str, Callable[[str], Any]] = {
    "int": _read_int,
    "float": _read_float,
    "str": lambda text: _ESCAPE.sub(_unescape, text),
    "bytes": lambda text: b64decode(text, validate=True),
    "uuid": UUID,
}
