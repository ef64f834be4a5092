"""Reducers: how concurrent changes of one place become one value, declared for the paths that they cover.

    merge={"n": "sum", "status": "last", "seen": "union", "scores.*": "max", "best": better_of}

A pattern is a path; `*` in the place of a key or an index (`scores.*`, `tasks[*].tries`) covers each of them. Where
several patterns cover a path, the one with the earlier literal segment counts. A reducer gets the value before both
changes, the value of the change that is recorded later (mine), and that of the change recorded earlier (theirs);
`MISSING` stands for an entry that is not there.

Invariant: a reducer is called only where both sides changed the place; it decides that place as a whole.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal, InvalidOperation
from typing import Any, TypeAlias

from holdfast.errors import InvalidCall, InvalidReference
from holdfast.tree import path as paths
from holdfast.tree.codec import encode
from holdfast.tree.edits import MISSING
from holdfast.tree.frozen import FrozenDict, FrozenList

#: Gives the value to keep, from the value before, mine and theirs; `MISSING` to delete the entry, `CONFLICT` if it
#: cannot be said.
Reducer: TypeAlias = Callable[[Any, Any, Any], Any]
#: What a caller declares: a name or a function by path pattern.
Declared: TypeAlias = Mapping[str, "str | Reducer"]


class _Conflict:
    __slots__ = ()

    def __repr__(self) -> str:
        return "CONFLICT"


#: What a reducer returns that cannot reconcile two values.
CONFLICT: Any = _Conflict()


class Reducers:
    """The reducers of a workflow or a history, found by path."""

    __slots__ = ("_root",)

    def __init__(self, declared: Mapping[str, Any]) -> None:
        self._root = _Node()
        for pattern, reducer in declared.items():
            node = self._root
            for segment in _pattern(pattern):
                node = node.next(segment)
            if node.reduce is not None:
                raise InvalidCall(f"merge declares two reducers for {pattern!r:.100}: keep one")
            node.reduce = _reducer(pattern, reducer)

    def find(self, path: Sequence[Any]) -> Reducer | None:
        """Return the reducer that covers a path; None if there is none."""
        return self._root.find(path, 0)


class _Node:
    """The patterns that begin alike."""

    __slots__ = ("_any", "_literal", "reduce")

    def __init__(self) -> None:
        self._literal: dict[Any, _Node] = {}
        self._any: _Node | None = None
        self.reduce: Reducer | None = None

    def next(self, segment: Any) -> _Node:
        if segment is paths.ANY:
            self._any = self._any or _Node()
            return self._any
        # The type counts: `1` and `True` are equal, and different keys.
        return self._literal.setdefault((type(segment), segment), _Node())

    def find(self, path: Sequence[Any], at: int) -> Reducer | None:
        if at == len(path):
            return self.reduce
        segment = path[at]
        node = self._literal.get((type(segment), segment)) if self._literal else None
        found = None if node is None else node.find(path, at + 1)
        if found is None and self._any is not None:
            found = self._any.find(path, at + 1)
        return found


def reducers_of(declared: Any) -> Reducers | None:
    """Return the reducers that a caller declares as `merge=`; `InvalidCall` for anything else."""
    if declared is None:
        return None
    if not isinstance(declared, Mapping):
        raise InvalidCall(
            f'merge is a dict of paths and reducers, such as {{"n": "sum"}}, not {declared!r:.60}'
        )
    return Reducers(declared) if declared else None


def _pattern(pattern: Any) -> list[Any]:
    if not isinstance(pattern, str):
        raise InvalidCall(f'a path of merge is a text, such as "scores.*", not {pattern!r:.60}')
    try:
        segments = paths.parse_pattern(pattern)
    except InvalidReference as error:
        raise InvalidCall(f"merge: {error}") from None
    if any(type(segment) is int and segment < 0 for segment in segments):
        raise InvalidCall(
            f"merge: {pattern!r:.60} has a negative index, and paths count from the start of a list: cover all items "
            "by [*], or the whole list"
        )
    return segments


def _reducer(pattern: str, given: Any) -> Reducer:
    if callable(given):
        builtin = next((name for name, function in _BUILTIN.items() if function is given), None)
        if builtin is not None:
            raise InvalidCall(
                f"merge[{pattern!r:.60}] is Python's function {builtin}, which does not merge two changes: give the "
                f'name of the reducer, "{builtin}"'
            )
        check_plain_function(f"merge[{pattern!r:.60}]", given, "base", "mine", "theirs")
        reduce: Reducer = given
        return reduce
    if isinstance(given, str) and given in NAMED:
        return NAMED[given]
    raise InvalidCall(
        f"merge[{pattern!r:.60}] is one of {', '.join(NAMED)}, or a function of base, mine and theirs, "
        f"not {given!r:.60}"
    )


def check_plain_function(what: str, given: Callable[..., Any], *arguments: str) -> None:
    """Raise `InvalidCall` for a function that is asynchronous, or that does not take so many positional arguments."""
    takes = ", ".join(arguments)
    if inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(getattr(given, "__call__", None)):  # noqa: B004
        raise InvalidCall(f"{what} is asynchronous, and a merge cannot await it: give a plain def of {takes}")
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):
        # A function of C that does not declare its parameters.
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise InvalidCall(
            f"{what} cannot be called with {takes} ({error}): give a function of these"
        ) from None


def name_of(reducer: Reducer) -> str:
    """Return the name of a reducer, for a message."""
    for name, named in NAMED.items():
        if named is reducer:
            return name
    return getattr(reducer, "__name__", type(reducer).__name__)


def _sum(base: Any, mine: Any, theirs: Any) -> Any:
    """Both changes of a number; a missing number counts as 0."""
    was, one, other = (0 if value is MISSING else value for value in (base, mine, theirs))
    if not all(is_number(value) for value in (was, one, other)):
        return CONFLICT
    try:
        return other + (one - was)
    except (TypeError, InvalidOperation, OverflowError):
        return CONFLICT


def is_number(value: Any) -> bool:
    """Can a value be added up?"""
    return type(value) in _NUMBERS


def _max(base: Any, mine: Any, theirs: Any) -> Any:
    return _better(mine, theirs, lambda: mine > theirs)


def _min(base: Any, mine: Any, theirs: Any) -> Any:
    return _better(mine, theirs, lambda: mine < theirs)


def _better(mine: Any, theirs: Any, is_mine: Callable[[], Any]) -> Any:
    if mine is MISSING or theirs is MISSING:
        return CONFLICT
    try:
        return mine if is_mine() else theirs
    except TypeError:
        return CONFLICT


def _last(base: Any, mine: Any, theirs: Any) -> Any:
    return mine


def _equal(base: Any, mine: Any, theirs: Any) -> Any:
    if mine is MISSING or theirs is MISSING or encode(mine) != encode(theirs):
        return CONFLICT
    return theirs


def _union(base: Any, mine: Any, theirs: Any) -> Any:
    """What either side added, without what either side removed."""
    if isinstance(mine, AbstractSet) and isinstance(theirs, AbstractSet):
        was = base if isinstance(base, AbstractSet) else frozenset()
        kind: Any = type(theirs)
        return kind((theirs - (was - mine)) | (mine - was))
    if isinstance(mine, FrozenList) and isinstance(theirs, FrozenList):
        return _union_of_lists(base if isinstance(base, FrozenList) else (), mine, theirs)
    if isinstance(mine, FrozenDict) and isinstance(theirs, FrozenDict):
        return _union_of_dicts(base if isinstance(base, FrozenDict) else {}, mine, theirs)
    return CONFLICT


def _union_of_lists(base: Sequence[Any], mine: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    was, ours = ({encode(item) for item in side} for side in (base, mine))
    kept: dict[bytes, Any] = {}
    for item in theirs:
        mark = encode(item)
        if mark in ours or mark not in was:
            kept.setdefault(mark, item)
    for item in mine:
        mark = encode(item)
        if mark not in was:
            kept.setdefault(mark, item)
    return list(kept.values())


def _union_of_dicts(base: Mapping[Any, Any], mine: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> Any:
    merged = dict(theirs)
    for key in {**base, **mine}:
        was, one, other = (side.get(key, MISSING) for side in (base, mine, theirs))
        if _alike(one, was) or _alike(one, other):
            continue
        if not _alike(other, was):
            return CONFLICT
        if one is MISSING:
            merged.pop(key, None)
        else:
            merged[key] = one
    return merged


def _alike(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return one is not MISSING and other is not MISSING and encode(one) == encode(other)


_NUMBERS = frozenset((int, float, complex, Decimal))
#: Functions of Python that have the name of a reducer, and are none.
_BUILTIN: dict[str, Any] = {"sum": sum, "max": max, "min": min}
#: The reducers that have a name.
NAMED: dict[str, Reducer] = {
    "sum": _sum, "max": _max, "min": _min, "union": _union, "equal": _equal, "last": _last,
}  # fmt: skip
