"""Terms of a value: the short bytes by which a store finds values with a field, without reading them.

A term has 8 bytes of the hash of the field's name, a byte for the class of the field's value, and bytes in the order of
the values of that class. Numbers of all types are one class, in which a number is its nearest float; of a long text the
first bytes count, then a checksum. Only top-level fields with a name of type str have terms.

Invariant: a value that satisfies a comparison has a term in one of its `having` ranges, and a value that has one in its
`lacking` range does not satisfy it. A value with such terms need not satisfy the comparison: the caller compares it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

import msgspec
from msgspec.msgpack import Ext

from holdfast.tree.codec import BIG_INT, TEXT

#: The only term of a value with fields that have no terms: it may satisfy any comparison.
ANY = b""
#: Fields of a value that have terms.
MAX_FIELDS = 64

#: Classes: a value that may be equal to values of other types, numbers, text, bytes. None, containers and values that
#: are neither equal to those of a class nor ordered with them have no term.
_UNKNOWN, _NUMBER, _TEXT, _BYTES, _END = (bytes((number,)) for number in range(5))
#: Extensions that have no term: containers, times, UUID, paths.
_APART = frozenset((3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 16, 18, 19, 20))
#: Bytes of a text that count in order, and the byte before its checksum, which UTF-8 does not have.
_PREFIX = 16
_CUT = b"\xff"
#: Higher than all that can follow in a term.
_HIGHEST = b"\xff" * 24

_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
)
_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")

_float, _bits, _checksum = Struct(">d").pack, Struct(">Q"), Struct(">I").pack
_SIGN = 1 << 63
_ALL_BITS = (1 << 64) - 1


class TermRange(NamedTuple):
    """All terms between two, both included."""

    first: bytes
    last: bytes


class TermQuery(NamedTuple):
    """Selects values: those that have a term in one of the ranges of each group, and none in the other ranges."""

    having: tuple[tuple[TermRange, ...], ...] = ()
    lacking: tuple[TermRange, ...] = ()

    @property
    def is_point(self) -> bool:
        """Whether it selects by one value of one field."""
        return len(self.having) == 1 and not self.lacking and all(one == last for one, last in self.having[0])

    def __and__(self, other: TermQuery) -> TermQuery:
        return TermQuery(self.having + other.having, self.lacking + other.lacking)

    def selects(self, terms: tuple[bytes, ...]) -> bool:
        """Return whether a value with these terms is selected."""
        return all(_has(terms, group) for group in self.having) and not _has(terms, self.lacking)


def _has(terms: tuple[bytes, ...], ranges: tuple[TermRange, ...]) -> bool:
    return any(first <= term <= last for term in terms for first, last in ranges)


def terms_of(encoded: bytes) -> tuple[bytes, ...]:
    """Return the terms of an encoded dict."""
    try:
        fields = _split(encoded)
    except msgspec.DecodeError:
        # Keys of other types, which may be equal to a text.
        return (ANY,)
    if len(fields) > MAX_FIELDS:
        return (ANY,)
    found = [(_field(name), _stored_term(raw)) for name, raw in fields.items() if type(name) is str]
    return tuple(field + term for field, term in found if term is not None)


def select(field: str, operator: str, operand: Any) -> TermQuery | None:
    """Return the query for values whose field satisfies a comparison, such as `$gte`; None if terms do not help."""
    start = _field(field)
    operand = _plain(operand)
    if operand is None:
        return TermQuery(lacking=(TermRange(start + _NUMBER, start + _END),)) if operator == "$eq" else None
    term = _term(operand)
    if term is None:
        return None
    point = TermRange(start + term, start + term)
    if operator == "$ne":
        return TermQuery(lacking=(point,)) if _is_exact(term) else None
    lowest = start + term[:1]
    # The checksum does not have the order of values.
    ordered = start + term[: 1 + (8 if term.startswith(_NUMBER) else _PREFIX)]
    if operator == "$eq":
        wanted = point
    elif operator in ("$gt", "$gte"):
        wanted = TermRange(ordered, lowest + _HIGHEST)
    else:
        wanted = TermRange(lowest, ordered + _HIGHEST)
    unknown = start + _UNKNOWN
    return TermQuery(having=((wanted, TermRange(unknown, unknown), TermRange(ANY, ANY)),))


def _plain(operand: Any) -> Any:
    """Return an object of a subclass of text or numbers as that type, if it compares alike: a member of a StrEnum."""
    for base, convert in _BASES:
        if isinstance(operand, base) and all(
            getattr(type(operand), name) is getattr(base, name) for name in _COMPARISONS
        ):
            return convert(operand)
    return operand


@lru_cache(maxsize=4096)
def _field(name: str) -> bytes:
    return sha256(name.encode("utf-8", "surrogatepass")).digest()[:8]


def _stored_term(raw: msgspec.Raw) -> bytes | None:
    """Return the class and the bytes of an encoded value; None if it has no term."""
    kind = memoryview(raw)[0]
    if 0x80 <= kind <= 0x9F or 0xDC <= kind <= 0xDF or kind == 0xC0:
        # A container, or None.
        return None
    value = _decode(raw)
    if type(value) is Ext:
        if value.code in _APART:
            return None
        if value.code == BIG_INT:
            value = int.from_bytes(value.data, "big", signed=True)
        elif value.code == TEXT:
            value = bytes(value.data).decode("utf-8", "surrogatepass")
        else:
            return _UNKNOWN
    return _term(value)


def _term(value: Any) -> bytes | None:
    """Return the class and the bytes of a number, a text or bytes; None for other types and for NaN."""
    kind = type(value)
    if kind is str:
        return _TEXT + _cut(value.encode("utf-8", "surrogatepass"))
    if kind is bytes:
        return _BYTES + _cut(value)
    if kind is int or kind is float or kind is bool:
        return _number(value)
    return None


def _cut(data: bytes) -> bytes:
    return data if len(data) <= _PREFIX else data[:_PREFIX] + _CUT + _checksum(crc32(data))


def _number(value: float) -> bytes | None:
    try:
        # -0.0 equals 0.0.
        number = float(value) + 0.0
    except OverflowError:
        number = math.inf if value > 0 else -math.inf
    if math.isnan(number):
        return None
    (bits,) = _bits.unpack(_float(number))
    term = _NUMBER + _bits.pack(bits ^ _ALL_BITS if bits & _SIGN else bits | _SIGN)
    if number == value:
        return term
    digits = int(value).to_bytes(int(value).bit_length() // 8 + 1, "big", signed=True)
    return term + _checksum(crc32(digits))


def _is_exact(term: bytes) -> bool:
    """Return whether only equal values have this term."""
    return len(term) <= 1 + (8 if term.startswith(_NUMBER) else _PREFIX) and not term.startswith(_BYTES)


_split = msgspec.msgpack.Decoder(dict[Any, msgspec.Raw]).decode
#: Keeps extensions encoded.
_decode = msgspec.msgpack.Decoder().decode
