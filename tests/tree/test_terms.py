"""Terms of values: they never hide a value that satisfies a comparison."""

from __future__ import annotations

import enum
import math
import operator
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import holdfast
from holdfast.tree.codec import decode, encode
from holdfast.tree.terms import ANY, MAX_FIELDS, TermQuery, select, terms_of

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


@holdfast.register
class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@holdfast.register
class Name(enum.StrEnum):
    ANA = "ana"


_NUMBERS: list[Any] = [
    0,
    -0.0,
    1,
    True,
    False,
    1.5,
    -1,
    -1.5,
    5e-324,
    -5e-324,
    0.1,
    Decimal("0.1"),
    Fraction(1, 3),
]
_NUMBERS += [
    sign * (1 << power) + more
    for sign in (1, -1)
    for power in (53, 63, 64, 1023, 1024, 4000)
    for more in (-1, 0, 1)
]
_NUMBERS += [2.0**53, -(2.0**53), 2.0**64, 1e308, -1e308, math.inf, -math.inf, math.nan, complex(1, 0)]
_TEXTS: list[Any] = [
    "",
    "a",
    "ab",
    "b",
    "\0",
    "a\0",
    "é",
    "\udc80",
    "\uffff",
    "𝄞",
    "x" * 15,
    "x" * 16,
    "x" * 17,
]
_TEXTS += ["x" * 16 + "a", "x" * 16 + "b", "x" * 40, "x" * 15 + "é", "x" * 15 + "𝄞", "1", "ana"]
_OTHERS: list[Any] = [
    None,
    [],
    [1],
    {},
    {"a": 1},
    (),
    (1,),
    {1},
    frozenset(),
    deque([1]),
    OrderedDict(a=1),
    range(3),
]
_OTHERS += [datetime(2026, 1, 2, tzinfo=UTC), date(2026, 1, 2), timedelta(0), UUID(int=1), PurePosixPath("a")]
_OTHERS += [b"", b"a", b"\xff" * 15, b"\xff" * 16, b"\xff" * 30, bytearray(b"a"), Level.LOW, Name.ANA]
_VALUES = [*_NUMBERS, *_TEXTS, *_OTHERS]


def _holds(name: str, value: Any, operand: Any) -> bool:
    try:
        return bool(_OPERATORS[name](value, operand))
    except TypeError:
        return False


def test_terms_select_every_value_that_satisfies_a_comparison() -> None:
    stored: list[tuple[Any, tuple[bytes, ...]]] = [(None, terms_of(encode({"other": 1})))]
    for value in _VALUES:
        encoded = encode({"field": value, "other": 1})
        stored.append((decode(encoded)["field"], terms_of(encoded)))
    selected = 0
    for name in _OPERATORS:
        for operand in _VALUES:
            query = select("field", name, operand)
            if query is None:
                continue
            for value, terms in stored:
                if query.selects(terms):
                    selected += 1
                else:
                    assert not _holds(name, value, operand), (name, value, operand)
    assert selected < 0.5 * len(stored) * len(_VALUES) * len(_OPERATORS), "terms select little"


def test_terms_of_equal_scalars_select_little_else() -> None:
    texts = [f"a text of some length, number {number}" for number in range(1000)]
    for values in (range(1000), texts, [1 << 70 | number for number in range(1000)]):
        stored = [terms_of(encode({"field": value})) for value in values]
        query = select("field", "$eq", values[7])
        assert query is not None
        assert sum(map(query.selects, stored)) == 1


def test_conditions_are_joined() -> None:
    one, two = select("a", "$eq", 1), select("b", "$ne", "x")
    assert one is not None
    assert two is not None
    assert one.is_point
    both = one & two
    assert not both.is_point
    assert both.selects(terms_of(encode({"a": 1})))
    assert not both.selects(terms_of(encode({"a": 1, "b": "x"})))
    assert not both.selects(terms_of(encode({"b": "y"})))
    assert TermQuery().selects(())


def test_value_with_other_keys_or_many_fields_is_always_selected() -> None:
    many = {str(number): number for number in range(MAX_FIELDS + 1)}
    for value in ({Name.ANA: 1}, {(1, 2): 3}, {"\udc80": 1}, many):
        assert terms_of(encode(value)) == (ANY,)
    assert terms_of(encode({1: 2, None: 3, b"x": 4})) == ()
    query = select("ana", "$eq", 1)
    assert query is not None
    assert query.selects((ANY,))


def test_terms_are_short() -> None:
    for value in _VALUES:
        assert all(len(term) <= 32 for term in terms_of(encode({"f" * 1000: value})))
