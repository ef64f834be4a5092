"""Values of all kinds that the state machine writes, changes of them, and exact equality.

A change is a function that does the same to a draft and to an ordinary copy: the oracle is plain Python.
"""

from __future__ import annotations

import copy
import datetime as dt
import struct
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass
from decimal import Decimal
from typing import Any

from hypothesis import strategies as st

import holdfast
from holdfast import FrozenDict, FrozenList, Retention

Op = Callable[[Any], object]
Path = tuple[Any, ...]


@holdfast.register
@dataclass
class Plan:
    """A mutable object in state."""

    title: str
    tasks: list[Any]


# Exact equality


def exactly(one: Any, other: Any) -> bool:
    """The same in type, value, order and bits? A type that is not known here is an error."""
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is float:
        return struct.pack("d", one) == struct.pack("d", other)
    if kind is list or kind is tuple:
        return len(one) == len(other) and all(map(exactly, one, other))
    if kind is dict:
        return exactly(list(one.items()), list(other.items()))
    if kind is set or kind is frozenset:
        return len(one) == len(other) and all(any(exactly(a, b) for b in other) for a in one)
    if kind is deque:
        return one.maxlen == other.maxlen and exactly(list(one), list(other))
    if kind is type:
        return one is other
    if is_dataclass(one):
        return all(exactly(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if kind is dt.datetime:
        return bool(one.replace(tzinfo=None) == other.replace(tzinfo=None) and one.tzinfo is other.tzinfo)
    if kind is Decimal:
        return bool(one.as_tuple() == other.as_tuple())
    if kind in (type(None), bool, int, str, bytes, bytearray, dt.date, dt.timedelta, uuid.UUID):
        return bool(one == other)
    raise AssertionError(f"exactly() does not know {kind!r}")


def plain(value: Any) -> Any:
    """An ordinary copy in which no two places share an object; frozen containers become ordinary ones."""
    kind = type(value)
    if kind is dict or isinstance(value, FrozenDict):
        return {key: plain(item) for key, item in value.items()}
    if kind is list or isinstance(value, FrozenList):
        return [plain(item) for item in value]
    if kind is tuple:
        return tuple(map(plain, value))
    return copy.deepcopy(value)


# Values

_LOOK_ALIKES = st.sampled_from(
    [0, False, 0.0, -0.0, 1, True, 1.0, None, "", "1", b"", b"1", (), (1,), (True,)]
)
_TIMES = st.datetimes(dt.datetime(1990, 1, 1), dt.datetime(2090, 1, 1))  # noqa: DTZ001 - naive ones too
_SCALARS = st.one_of(
    _LOOK_ALIKES,
    st.integers(-(1 << 80), 1 << 80),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["\ud800", "$holdfast"]),
    st.builds(lambda sign, size: sign * size, st.sampled_from("xé"), st.sampled_from([513, 600])),
    st.binary(max_size=8),
    _TIMES,
    _TIMES.map(lambda time: time.replace(tzinfo=dt.UTC)),
    st.timedeltas(),
    st.decimals(),
    st.uuids(),
    st.binary(max_size=4).map(bytearray),
)
_HASHABLE = st.one_of(st.integers(-9, 9), st.text(max_size=3), st.booleans(), st.binary(max_size=3))
KEYS = st.one_of(
    st.sampled_from(["a", "b", "c", "messages", "plan", "$holdfast", "odd key", ""]),
    st.sampled_from([0, 1, True, 1.0, None, b"k", (1, "x"), 2.5, dt.date(2024, 2, 29)]),
)
_LEAVES = st.one_of(
    _SCALARS,
    _SCALARS,
    st.sets(_HASHABLE, max_size=4),
    st.frozensets(_HASHABLE, max_size=4),
    st.builds(Plan, st.text(max_size=5), st.lists(_LOOK_ALIKES, max_size=3)),
    st.lists(_SCALARS, max_size=3).map(tuple),
)
_TREES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(st.dictionaries(KEYS, inner, max_size=4), st.lists(inner, max_size=4)),
    max_leaves=8,
)


def _wide(size: int, seed: int) -> dict[str, Any]:
    return {
        f"key-{(number * 7 + seed) % size}": {"n": number} if number % 5 else number for number in range(size)
    }


def _long(size: int, seed: int) -> list[Any]:
    return [
        {"n": number, "text": "m" * ((number + seed) % 40)} if number % 3 else number
        for number in range(size)
    ]


_LARGE = st.one_of(
    st.builds(_wide, st.sampled_from([33, 60, 501]), st.integers(0, 3)),
    st.builds(_long, st.sampled_from([33, 70, 201]), st.integers(0, 3)),
    st.builds(lambda sign, size: sign * size, st.sampled_from(["t", b"b"]), st.sampled_from([513, 66_000])),
    st.builds(lambda size: [f"{number:04}" * 150 for number in range(size)], st.sampled_from([3, 40])),
)
#: Large enough to be nodes of their own, which versions share and programs move about.
_NODES = st.builds(
    lambda sign, number: {"text": sign * 300, "n": number, "more": [sign * 200, {"deep": sign * 250}]},
    st.sampled_from("pq"),
    st.integers(0, 2),
)
VALUES = st.one_of(_TREES, _TREES, _NODES, st.lists(_NODES, min_size=2, max_size=4), _LARGE)
STATES = st.one_of(
    st.dictionaries(KEYS, VALUES, max_size=5),
    st.dictionaries(KEYS, VALUES, max_size=5),
    st.lists(VALUES, max_size=4),
    st.builds(_wide, st.sampled_from([33, 501]), st.integers(0, 3)),
    st.builds(_long, st.sampled_from([33, 201]), st.integers(0, 3)),
)


POLICIES = st.one_of(
    st.builds(lambda last: Retention(last=last), st.integers(0, 4)),
    st.builds(lambda hours: Retention(within=dt.timedelta(hours=hours)), st.integers(0, 48)),
    st.builds(
        lambda daily, weekly: Retention(daily=daily, weekly=weekly), st.integers(0, 2), st.integers(0, 2)
    ),
    st.builds(lambda last, hourly: Retention(last=last, hourly=hourly), st.integers(0, 2), st.integers(1, 3)),
)


# Places in a state


def places(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All places of a plain state, containers before what is in them."""
    yield path, value
    if type(value) is dict:
        for key, item in value.items():
            yield from places(item, (*path, key))
    elif type(value) is list:
        for index, item in enumerate(value):
            yield from places(item, (*path, index))


def reach(state: Any, path: Path) -> Any:
    """Return the value at a place, read step by step as a program would."""
    for key in path:
        state = state[key]
    return state


# Changes


def change(draw: Callable[[Any], Any], state: Any) -> Op:
    """A random change of some part of a plain state, which is only looked at."""
    found = list(places(state))
    # From the start, which shrinks well, or from the end, where the last items of long lists are.
    number = draw(st.integers(0, min(60, len(found)) - 1))
    path, target = found[number if draw(st.booleans()) else -1 - number]
    if type(target) not in (dict, list, Plan):
        path, target = path[:-1], reach(state, path[:-1])
    if type(target) is dict:
        inner = draw(_dict_change(target))
    elif type(target) is list:
        inner = draw(_list_change(target))
    else:
        inner = draw(_plan_change())
    return lambda root: inner(reach(root, path))


def _dict_change(target: dict[Any, Any]) -> st.SearchStrategy[Op]:
    def put(key: Any, value: Any) -> Op:
        return lambda here: here.__setitem__(key, plain(value))

    ops = [
        st.builds(put, KEYS, VALUES),
        st.builds(lambda key, value: lambda here: here.setdefault(key, plain(value)), KEYS, VALUES),
        st.builds(
            lambda more: lambda here: here.update(plain(more)), st.dictionaries(KEYS, VALUES, max_size=3)
        ),
        st.builds(lambda key: lambda here: here.pop(key, None), KEYS),
    ]
    if target:
        key = st.sampled_from(list(target)[:40])
        ops += [
            st.builds(put, key, VALUES),
            st.builds(put, key, _LOOK_ALIKES),
            key.map(lambda key: lambda here: here.__delitem__(key)),
            st.builds(lambda old, new: lambda here: here.__setitem__(new, here.pop(old)), key, KEYS),
            key.map(lambda key: lambda here: here.update({key: here.pop(key)})),
            st.just(lambda here: here.popitem()),
            st.builds(lambda old, new: lambda here: here.__setitem__(new, plain_of(here[old])), key, KEYS),
        ]
    if len(target) < 6:
        ops.append(st.just(lambda here: here.clear()))
    return st.one_of(ops)


def _list_change(target: list[Any]) -> st.SearchStrategy[Op]:
    size = len(target)
    at = st.integers(-size, size)
    ops: list[st.SearchStrategy[Op]] = [
        VALUES.map(lambda value: lambda here: here.append(plain(value))),
        st.builds(lambda index, value: lambda here: here.insert(index, plain(value)), at, VALUES),
        st.lists(VALUES, max_size=3).map(lambda more: lambda here: here.extend(plain(more))),
        st.just(lambda here: here.reverse()),
        st.builds(
            lambda start, stop, new: lambda here: here.__setitem__(slice(start, stop), plain(new)),
            at,
            at,
            st.lists(VALUES, max_size=2),
        ),
        st.builds(lambda start, stop: lambda here: here.__delitem__(slice(start, stop)), at, at),
        st.builds(lambda start: lambda here: here.__delitem__(slice(start, None, 2)), at),
    ]
    if size:
        index = st.integers(-size, size - 1)
        ops += [
            st.builds(lambda at, value: lambda here: here.__setitem__(at, plain(value)), index, VALUES),
            st.builds(lambda at, value: lambda here: here.__setitem__(at, value), index, _LOOK_ALIKES),
            index.map(lambda at: lambda here: here.pop(at)),
            index.map(lambda at: lambda here: here.__delitem__(at)),
            st.builds(lambda old, new: lambda here: here.insert(new, here.pop(old)), index, index),
        ]
    if all(type(item) is str for item in target) or all(type(item) is int for item in target):
        ops.append(st.booleans().map(lambda down: lambda here: here.sort(reverse=down)))
    if size < 20 and all(type(item) in (int, str, bool, float) for item in target):
        ops.append(st.just(lambda here: here.__imul__(2)))
    return st.one_of(ops)


def _plan_change() -> st.SearchStrategy[Op]:
    return st.one_of(
        st.text(max_size=5).map(lambda title: lambda here: setattr(here, "title", title)),
        _LOOK_ALIKES.map(lambda task: lambda here: here.tasks.append(task)),
    )


def rearranged(draw: Callable[[Any], Any], state: Any) -> Op:
    """Two parts of a state change places; done twice, each is back where it was."""
    found = [(path, value) for path, value in places(state) if type(value) in (dict, list) and len(value) > 1]
    if not found:
        return lambda root: None
    path, target = found[draw(st.integers(0, min(12, len(found)) - 1))]
    if type(target) is list and draw(st.booleans()):
        return lambda root: reach(root, path).reverse()
    keys = list(target)[:3] if type(target) is dict else list(range(min(3, len(target))))
    one, other = draw(st.permutations(keys))[:2]

    def swap(root: Any) -> None:
        here = reach(root, path)
        here[one], here[other] = here[other], here[one]

    return swap


def plain_of(value: Any) -> Any:
    """A copy of part of a state or a draft, as a program takes one."""
    return holdfast.thaw(value)
