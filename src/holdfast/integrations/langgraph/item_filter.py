"""Filters of a search in the store: which values match.

A filter maps keys to values that must be equal, to operators (`{"$gte": 3}`), or to filters for a nested dict. A key
that a value does not have is None to its filter; a key with dots, such as `user.name`, is also found in nested dicts.
No key starts with `$`, which would be an operator without a key, such as `$or`.

Invariant: a filter is checked completely before anything is read; then it returns True or False for every value,
whatever its type. The value decides whether it matches, in Python; terms only spare reading others.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import reduce
from operator import and_
from typing import Any

from holdfast.errors import InvalidCall
from holdfast.items import Selection
from holdfast.model.names import short
from holdfast.tree.terms import TermQuery, select

Matches = Callable[[Any], bool]

#: Comparisons of a filter for which terms are used; the others are only made with the values.
_MOST_TERMS = 4
#: Levels of a filter.
_MAX_DEPTH = 50

_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def build_filter(given: Any) -> Selection | None:
    """Return what selects the values that match; None if all do."""
    matches = None if given is None else _build_matches(given)
    return None if matches is None else Selection(matches, _build_terms(given))


def _build_terms(given: Mapping[str, Any]) -> TermQuery | None:
    """Return the terms that select at least the values that match; None if there are none."""
    found: list[TermQuery] = []
    for key, wanted in given.items():
        # A key with dots may be that of a nested dict, which has no terms.
        if "." not in key:
            is_operators = isinstance(wanted, Mapping) and any(str(name).startswith("$") for name in wanted)
            comparisons = wanted.items() if is_operators else [("$eq", wanted)]
            found += filter(None, (select(str.__str__(key), name, operand) for name, operand in comparisons))
    # Few rows first: equal values, then ranges, then all rows but some.
    found.sort(key=lambda terms: (not terms.is_point, not terms.having))
    return reduce(and_, found[:_MOST_TERMS]) if found else None


def _build_matches(given: Any, depth: int = 0) -> Matches | None:
    if not isinstance(given, Mapping):
        raise InvalidCall(f"filter is a dict of keys and values, not {short(given)}")
    tests = [(_path(key), _test(wanted, depth)) for key, wanted in given.items()]
    return (lambda value: all(test(_find(value, path)) for path, test in tests)) if tests else None


def _path(key: Any) -> tuple[str, ...]:
    if not isinstance(key, str):
        raise InvalidCall(f"the keys of a filter are strings, not {short(key)}")
    key = str.__str__(key)
    if key.startswith("$"):
        raise InvalidCall(
            f"a filter has {short(key)} where a key belongs; the operators are {', '.join(_OPERATORS)}, each for one "
            'key, such as {"n": {"$gte": 3}}, and all keys of a filter must match'
        )
    return (key, *key.split(".")) if "." in key else (key,)


def _find(value: Any, path: tuple[str, ...]) -> Any:
    """Return the value of a key, or else of the nested dicts that its dots name."""
    if isinstance(value, Mapping) and path[0] in value:
        return value[path[0]]
    for key in path[1:] or path:
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def _test(wanted: Any, depth: int) -> Matches:
    if depth > _MAX_DEPTH:
        raise InvalidCall(f"a filter has more than {_MAX_DEPTH} levels, or a cycle")
    if isinstance(wanted, Mapping):
        if any(isinstance(key, str) and key.startswith("$") for key in wanted):
            tests = [_comparison(name, operand) for name, operand in wanted.items()]
            return lambda value: all(test(value) for test in tests)
        inner = _build_matches(wanted, depth + 1)
        return lambda value: isinstance(value, Mapping) and (inner is None or inner(value))
    if isinstance(wanted, list | tuple):
        items = [_test(item, depth + 1) for item in wanted]
        return lambda value: (
            isinstance(value, list | tuple)
            and len(value) == len(items)
            and all(test(item) for test, item in zip(items, value, strict=True))
        )
    return lambda value: _holds(operator.eq, value, wanted)


def _comparison(name: Any, operand: Any) -> Matches:
    compare = _OPERATORS.get(name) if isinstance(name, str) else None
    if compare is None:
        raise InvalidCall(f"a filter has the operator {short(name)}; there are {', '.join(_OPERATORS)}")
    return lambda value: _holds(compare, value, operand)


def _holds(compare: Callable[[Any, Any], Any], value: Any, operand: Any) -> bool:
    try:
        return bool(compare(value, operand))
    except (TypeError, ValueError, ArithmeticError):
        # Not comparable, such as a number and a text, an array with several answers, or a Decimal and NaN.
        return False
