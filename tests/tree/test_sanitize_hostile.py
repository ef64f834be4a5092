"""sanitize: deep, large and hostile values end in a storable result."""

from __future__ import annotations

import datetime as dt
import io
import json
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from exact_equality import exactly
from hypothesis import given
from hypothesis import strategies as st
from unstorable_classes import (
    MyInt,
    MyList,
    MyStr,
    MyTuple,
    Plain,
    Row,
    Shade,
    Unregistered,
    UnregisteredError,
)
from value_cases import Color, Money, Point, Slotted, Spot, Task

from holdfast.tree import sanitize as module
from holdfast.tree.codec import MAX_DEPTH, encode
from holdfast.tree.portable import to_json
from holdfast.tree.sanitize import TYPE_KEY, sanitize
from holdfast.tree.values import register


def _check(value: Any, expected: Any, *replaced: str) -> None:
    clean, paths = sanitize(value)
    assert exactly(clean, expected), clean
    assert paths == list(replaced)
    encode(clean)
    to_json(clean)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: [inner],
        lambda inner: {"a": inner},
        lambda inner: (inner,),
        lambda inner: {(1,): inner},
        lambda inner: OrderedDict(a=inner),
        lambda inner: MyList([inner]),
        lambda inner: [MyTuple([inner])],
        Point,
        Slotted,
    ],
)
def test_tree_too_deep_is_cut(wrap: Callable[[Any], Any]) -> None:
    value: Any = None
    for _ in range(100_000):
        value = wrap(value)
    clean, paths = sanitize(value)
    assert paths
    encode(clean)
    to_json(clean)
    while value is not None:  # so that the end of this test does not take it apart recursively
        if isinstance(value, Slotted):
            value.x, value = None, value.x
        else:
            value = next(iter(dict.values(value))) if isinstance(value, dict) else value[0]


def test_cut_is_at_the_maximum_depth(subtests: pytest.Subtests) -> None:
    cases_0: list[Callable[[Any], Any]] = [
        lambda x: [x],
        lambda x: (x,),
        lambda x: {x},
        lambda x: {(1,): x},
        Slotted,
    ]
    for number, wrap in enumerate(cases_0):
        for depth in range(MAX_DEPTH - 3, MAX_DEPTH + 3):
            with subtests.test(number=number, depth=depth):
                for leaf in (1, (), (1,), frozenset([1]), frozenset([(1,)]), frozenset(), Spot(1, 2)):
                    value = wrap(leaf)
                    for _ in range(depth):
                        value = [value]
                    clean, paths = sanitize(value)
                    encode(clean)
                    try:
                        encode(value)
                    except Exception:
                        assert paths
                    else:
                        assert not paths
                        assert encode(clean) == encode(value)


@pytest.mark.slow
def test_chain_of_objects_is_cut() -> None:
    node = Plain(next=None)
    for _ in range(100_000):
        node = Plain(next=node)
    clean, paths = sanitize(node)
    assert len(paths) == module.MAX_OBJECTS_DEEP + 1
    assert "<unstorable_classes.Plain>" in json.dumps(clean)
    while node is not None:
        node = node.__dict__.pop("next")


@pytest.mark.slow
def test_value_that_expands_to_a_huge_tree_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REPEATS", 10_000)
    for wrap in (lambda x: [x, x], lambda x: (x, x), lambda x: {"a": x, "b": x}, lambda x: Slotted(x, x)):
        value: Any = [1]
        for _ in range(60):
            value = wrap(value)
        started = time.thread_time()
        clean, paths = sanitize(value)
        assert paths
        encode(clean)
        assert time.thread_time() - started < 20


def test_repeated_constants_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_REPEATS", 10)
    for item in (Color.RED, (), dt.date(2024, 1, 1), Path("a")):
        _check([item] * 100, [item] * 100)
    _check([Task("t") for _ in range(100)], [Task("t") for _ in range(100)])


class RaisesOnEverything:
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __hash__(self) -> int:
        return 1

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")


class Liar:
    __class__ = dict  # type: ignore[assignment]
    __module__ = 5  # type: ignore[assignment]


class Unhashable(type):
    __hash__ = None  # type: ignore[assignment]

    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


class Cursed(metaclass=Unhashable):
    pass


class DictRaises:
    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no")


class BadFile(io.RawIOBase):
    name = "x"

    @property
    def closed(self) -> bool:
        raise RuntimeError("no")


class BadSplit:
    pass


register(BadSplit, "bad split", split=lambda _: 1 / 0, join=lambda _: BadSplit())


class BadJoin:
    def __init__(self) -> None:
        self.f = len


def _fail(_: Any) -> Any:
    raise RuntimeError("no")


register(BadJoin, "bad join", split=lambda bad: bad.f, join=_fail)


def test_hostile_objects_do_not_raise() -> None:
    for make in (RaisesOnEverything, Liar, Cursed, DictRaises, BadFile, BadSplit, BadJoin):
        bad = make()
        for value in (bad, [1, bad, {"ok": (2,)}], {"a": bad}, (bad,), Task("t", notes=[bad])):
            clean, paths = sanitize(value)
            assert paths
            encode(clean)
        assert sanitize([1, bad, {"ok": (2,)}])[0][2] == {"ok": (2,)}
    clean, _ = sanitize({RaisesOnEverything(): 1, "a": 2})
    assert clean == {"<test_sanitize_hostile.RaisesOnEverything>": 1, "a": 2}


def test_registered_object_that_cannot_be_rebuilt_becomes_its_fields() -> None:
    _check([BadJoin()], [{TYPE_KEY: "test_sanitize_hostile.BadJoin", "f": "<function len>"}], "[0]", "[0].f")
    _check([Money(len)], [Money("<function len>")], "[0]")  # type: ignore[arg-type]


def test_sanitize_works_with_an_almost_full_stack() -> None:
    def dive(frames: int) -> Any:
        if frames:
            return dive(frames - 1)
        value: Any = []
        for _ in range(150):
            value = [value, len]
        return sanitize(value)

    for frames in range(sys.getrecursionlimit() - 150, sys.getrecursionlimit() - 80, 7):
        clean, paths = dive(frames)
        assert paths
        encode(clean)


@pytest.mark.slow
def test_locals_of_a_frame_can_be_stored() -> None:
    clean, _ = sanitize(dict(vars(sys.modules[__name__])))
    encode(clean)
    assert clean["TYPE_KEY"] == TYPE_KEY


def _dict(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    out = {}
    for key, item in pairs:
        try:
            out[key] = item
        except TypeError:
            continue
    return out


oddities = st.sampled_from(
    [
        *(len, lambda: 1, object(), Plain(a=1), Plain(), Unregistered("t"), MyStr("s"), MyInt(1), Shade.DARK),
        *(Row(1, 2), UnregisteredError("x"), float("nan"), Color.RED, Task("t"), Spot(1, 2), (1, Shade.DARK)),
    ]
)
hashables = st.integers() | st.text(max_size=3) | st.tuples(st.integers()) | oddities
trees = st.recursive(
    oddities | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(st.tuples(hashables, inner), max_size=4).map(_dict)
        | st.builds(Task, st.text(max_size=3), st.booleans(), st.lists(inner, max_size=2))
        | st.builds(Plain, a=inner)
        | st.lists(inner, max_size=2).map(MyList)
    ),
    max_leaves=20,
)


@pytest.mark.slow
@given(trees)
def test_result_can_always_be_stored(value: Any) -> None:
    clean, paths = sanitize(value)
    encode(clean)
    again, nothing = sanitize(clean)
    assert exactly(again, clean)
    assert nothing == []
    try:
        encode(value)
    except Exception:
        assert paths
    else:
        assert not paths
