"""The metadata of a run: a few names and values of the application, by which runs are found.

Values keep their types, and a filter finds values of the same type only: 7, 7.0, "7" and True are four values. In an
index a value is its JSON text.

Invariant: metadata that exist are valid; two runs have the same facets for a name exactly if their values are equal and
of one type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import combinations
from typing import Any, TypeAlias

import msgspec

from holdfast.errors import InvalidCall
from holdfast.model.names import CONTROL, short

MetaValue: TypeAlias = str | int | float | bool | None
#: A name and its value as JSON.
MetaRow: TypeAlias = tuple[str, str]

#: The names of a run at most: pairs of them are indexed.
MAX_NAMES = 16
MAX_NAME = 64
#: Characters of a text; bytes of all names and values as JSON: they are in the record that every step writes.
MAX_TEXT = 500
MAX_BYTES = 2_000
_INTEGERS = range(-(1 << 63), 1 << 63)
#: Characters that separate a name from its value on the command line.
_SIGNS = frozenset("=<>!")

_encode = msgspec.json.Encoder().encode


def check_meta(meta: Any, of: str = "meta") -> dict[str, MetaValue]:
    """Return metadata as a private dict of plain values, or raise `InvalidCall`."""
    if not isinstance(meta, Mapping):
        raise InvalidCall(f"{of} is a dict such as {{'customer': 7}}, not {short(meta)}")
    if len(meta) > MAX_NAMES:
        raise InvalidCall(
            f"{of} has {len(meta)} names; the maximum is {MAX_NAMES}: put the rest into the state"
        )
    found = {
        check_meta_name(name, of): _check_value(f"{of}[{short(name)}]", value) for name, value in meta.items()
    }
    size = sum(len(name.encode()) + len(text) for name, text in meta_rows(found))
    if size > MAX_BYTES:
        raise InvalidCall(f"{of} has {size} bytes; the maximum is {MAX_BYTES}: put the rest into the state")
    return found


def check_meta_name(name: Any, of: str = "meta") -> str:
    """Return a name, or raise `InvalidCall`."""
    if (
        not isinstance(name, str)
        or not 0 < len(name) <= MAX_NAME
        or name != name.strip()
        or CONTROL.search(name)
        or _SIGNS.intersection(name)
    ):
        raise InvalidCall(
            f"{of}: {short(name)} cannot be a name: a name is a text of 1 to {MAX_NAME} characters without control "
            "characters and = < > !, and without spaces around it"
        )
    return str.__str__(name)


def _check_value(where: str, value: Any) -> MetaValue:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if len(value) > MAX_TEXT:
            raise InvalidCall(f"{where} has {len(value)} characters; the maximum is {MAX_TEXT}")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidCall(f"{where} contains a lone surrogate, which cannot be encoded") from None
        return str.__str__(value)
    if isinstance(value, int):
        if int(value) not in _INTEGERS:
            raise InvalidCall(f"{where} does not fit in 64 bits: give it as a text")
        return int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidCall(
                f"{where} is {float(value)}: nothing equals it, so give a finite number or None"
            )
        # -0.0 equals 0.0.
        return float(value) + 0.0
    raise InvalidCall(
        f"{where} is a str, an int, a float, a bool or None, not {short(value)}: convert it, as with str() or int()"
    )


def meta_rows(meta: Mapping[str, MetaValue]) -> tuple[MetaRow, ...]:
    """Return checked metadata as rows of an index, by name."""
    return tuple((name, _encode(meta[name]).decode()) for name in sorted(meta))


def facet_of(rows: Iterable[MetaRow]) -> bytes:
    """Return the facet of runs that have these names and values."""
    return sha256(_encode(sorted(rows))).digest()[:16]


def facets_of(rows: Sequence[MetaRow]) -> list[bytes]:
    """Return the facets by which a run with these metadata is found: one for each name, and one for each pair."""
    return [facet_of(some) for count in (1, 2) for some in combinations(rows, count)]


def wanted_facets(rows: Sequence[MetaRow]) -> list[bytes]:
    """Return facets that a run has, all of them, exactly if it has all these names and values. For one or two names it
    is one facet: a page costs the same however many runs there are."""
    distinct = sorted(set(rows))
    found = [facet_of(distinct[at : at + 2]) for at in range(0, len(distinct) - 1, 2)]
    return (
        found
        if len(distinct) % 2 == 0
        else [*found, facet_of(distinct[-1:] if len(distinct) == 1 else distinct[-2:])]
    )
