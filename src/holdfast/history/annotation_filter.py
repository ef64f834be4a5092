"""Find versions by what their steps annotated: `where={"model": "gpt-4", "cost>": 0.1}`.

Numbers are compared as numbers, whether they are integers, floats, decimals or numpy's; a bool is not a number, and a
text is equal only to a text. A version whose steps did not annotate the name does not match, whatever the operator.

Invariant: a list that is filtered reads the annotations of versions, never their states.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import CorruptVersion, InvalidCall, NotFound
from holdfast.history.version import Version, VersionFilters, list_versions
from holdfast.model.names import short

if TYPE_CHECKING:
    from holdfast.history.history import History

#: The operators at the end of a name; the longer ones first.
_OPERATORS: dict[str, Callable[[Any, Any], bool]] = {
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "=": operator.eq,
}
_EQUALITY = ("=", "!=")
_MAX_CONDITIONS = 50
#: Versions whose packs are read at once.
_PAGE = 64


class Condition(NamedTuple):
    """A condition on one annotation."""

    name: str
    operator: str
    value: Any

    def matches(self, annotations: Mapping[Any, Any]) -> bool:
        """Return whether the annotations of a version meet it."""
        if self.name not in annotations:
            return False
        found, wanted = _comparable(annotations[self.name]), _comparable(self.value)
        if found is None or wanted is None:
            return False
        if found[0] != wanted[0]:
            return self.operator == "!="
        return _OPERATORS[self.operator](found[1], wanted[1])


def _comparable(value: Any) -> tuple[str, Any] | None:
    """Return the kind of a value and what it is compared by; None if nothing equals it."""
    if value is None or isinstance(value, bool):
        return "constant", value
    if isinstance(value, str):
        return "text", str.__str__(value)
    if isinstance(value, float):
        if math.isnan(value):
            return None
        # A decimal 0.1 equals the float that is written as 0.1.
        return "number", Decimal(float.__repr__(value)) if math.isfinite(value) else value
    if isinstance(value, int):
        return "number", value
    if isinstance(value, Decimal):
        return None if value.is_nan() else ("number", value)
    if isinstance(value, Integral):
        return "number", int(value)
    if isinstance(value, Real):
        return _comparable(float(value))
    return "other", object()


def check_conditions(where: Any) -> list[Condition]:
    """Return the conditions that `where` describes; raise `InvalidCall`."""
    if not isinstance(where, Mapping):
        raise InvalidCall(f"where is a dict of annotations, such as {{'cost>': 0.1}}, not {short(where)}")
    if len(where) > _MAX_CONDITIONS:
        raise InvalidCall(f"where has {len(where)} conditions; the maximum is {_MAX_CONDITIONS}")
    return [_condition(key, value) for key, value in where.items()]


def _condition(key: Any, value: Any) -> Condition:
    if not isinstance(key, str):
        raise InvalidCall(f"where names annotations by text, not {short(key)}")
    text = key.strip()
    sign = next((sign for sign in _OPERATORS if text.endswith(sign)), "")
    name = text.removesuffix(sign).strip()
    if not name or name.endswith(("=", "!", "<", ">")):
        raise InvalidCall(
            f"{short(key)} is not a condition: write the name of an annotation, and one of "
            f"{' '.join(_OPERATORS)} after it, such as 'cost>'"
        )
    is_number = isinstance(value, int | float | Decimal | Real) and not isinstance(value, bool)
    if is_number and _comparable(value) is None:
        raise InvalidCall(f"where {name}: NaN compares to nothing: give a number")
    if not (is_number or value is None or isinstance(value, str | bool)):
        raise InvalidCall(f"where {name}: compare with a text, a number, a bool or None, not {short(value)}")
    if sign not in ("", *_EQUALITY) and not (is_number or isinstance(value, str)):
        raise InvalidCall(f"where {name}: {sign} compares numbers or texts, not {short(value)}")
    return Condition(name, sign or "=", value)


def list_annotated(
    history: History, filters: VersionFilters, conditions: Sequence[Condition], before: int | None, limit: int
) -> list[Version]:
    """Return the newest versions before one that meet all conditions, newest first. A version whose annotations cannot
    be read is listed as damaged."""
    return list(islice(_annotated(history, filters, conditions, before), limit))


def _annotated(
    history: History, filters: VersionFilters, conditions: Sequence[Condition], before: int | None
) -> Iterator[Version]:
    while page := list_versions(history, filters, before, _PAGE):
        intact = [version for version in page if not version.is_damaged]
        if intact:
            intact[0].reader.prefetch([version.record for version in intact])
        for version in page:
            if version.is_damaged:
                yield version
                continue
            try:
                found = version.annotations
            except NotFound:
                # Pruned since the list was read.
                continue
            except CorruptVersion as damage:
                yield Version.damaged(history, version.reader, version.reader.run, damage)
                continue
            if isinstance(found, Mapping) and all(each.matches(found) for each in conditions):
                yield version
        before = page[-1].number
