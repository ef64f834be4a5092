"""sanitize: any value becomes storable; storable values are unchanged."""

from __future__ import annotations

import asyncio
import datetime as dt
import functools
import io
import json
import threading
import types
import weakref
from collections import Counter, OrderedDict, UserDict, defaultdict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exact_equality import exactly
from unstorable_classes import (
    Hollow,
    MyDeque,
    MyDict,
    MyInt,
    MyList,
    MySet,
    MyStr,
    MyTuple,
    OddZone,
    Plain,
    Row,
    Shade,
    Unregistered,
    UnregisteredError,
    UnregisteredModel,
    UnregisteredStruct,
    WithSlots,
)
from value_cases import CASES, Color, Message, Point, Slotted, Spot, Task

from holdfast.tree.codec import decode_frozen, encode
from holdfast.tree.draft import draft
from holdfast.tree.path import get
from holdfast.tree.portable import to_json
from holdfast.tree.sanitize import TYPE_KEY, sanitize


def some_function() -> None:
    pass


def _nothing() -> Iterator[int]:
    yield from ()


def _check(value: Any, expected: Any, *replaced: str) -> None:
    clean, paths = sanitize(value)
    assert exactly(clean, expected), clean
    assert paths == list(replaced)
    encode(clean)
    to_json(clean)


def test_storable_value_is_unchanged() -> None:
    for name, case in CASES.items():
        for value in (case, [case], {"a": (case,)}, Task("t", notes=[case])):
            clean, paths = sanitize(value)
            assert exactly(clean, value), name
            assert paths == [], name


DESCRIPTIONS: list[tuple[Any, str]] = [
    (some_function, "<function some_function>"),
    (lambda: 1, "<function <lambda>>"),
    (len, "<function len>"),
    ([].append, "<function list.append>"),
    (MyInt(1).__int__, "<method MyInt.__int__>"),
    (Plain, "<class unstorable_classes.Plain>"),
    (int, "<class int>"),
    (json, "<module json>"),
    (_nothing(), "<generator _nothing>"),
    (io.BytesIO(b"x"), "<_io.BytesIO>"),
    (threading.Lock(), "<_thread.lock>"),
    (object(), "<object>"),
    (Hollow(), "<unstorable_classes.Hollow>"),
    (Plain(), "<unstorable_classes.Plain>"),
    (Plain(_secret=1), "<unstorable_classes.Plain>"),
    (functools.partial(len), "<functools.partial>"),
    (iter([]), "<list_iterator>"),
    (types.MappingProxyType({}), "<mappingproxy>"),
    (weakref.ref(Plain), "<weakref.ReferenceType>"),
    (..., "<ellipsis>"),
    (NotImplemented, "<NotImplementedType>"),
    (Shade.DARK, "<unstorable_classes.Shade.DARK>"),
    (np.array([object()]), "<numpy.ndarray>"),
    (
        dt.datetime(2024, 1, 1, tzinfo=OddZone()),
        "<datetime.datetime 2024-01-01T00:00:00+01:00>",
    ),
]


def test_unstorable_value_becomes_a_description(subtests: pytest.Subtests) -> None:
    for value, text in DESCRIPTIONS:
        with subtests.test(value=value):
            _check({"a": [1, value], "b": 2}, {"a": [1, text], "b": 2}, "a[1]")
            _check(value, text, "")


def test_coroutine_is_described_and_not_awaited() -> None:
    async def waits() -> None:
        raise AssertionError("awaited")

    coroutine = waits()
    clean, _ = sanitize([coroutine])
    coroutine.close()
    assert clean[0].startswith("<coroutine ")
    loop = asyncio.new_event_loop()
    assert isinstance(sanitize({"loop": loop})[0]["loop"], str | dict)
    loop.close()


def test_generator_is_not_consumed() -> None:
    numbers = iter(range(3))
    sanitize({"numbers": numbers, "more": (n for n in numbers)})
    assert list(numbers) == [0, 1, 2]


def test_file_is_described(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    with path.open("w") as file:
        _check([file], [f"<open file {str(path)!r}>"], "[0]")
    _check([file], [f"<closed file {str(path)!r}>"], "[0]")


def test_object_becomes_its_public_fields(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any]] = [
        (Plain(a=1, _b=2, c=[3]), {TYPE_KEY: "unstorable_classes.Plain", "a": 1, "c": [3]}),
        (WithSlots(), {TYPE_KEY: "unstorable_classes.WithSlots", "shown": [1]}),
        (Unregistered("t", [1]), {TYPE_KEY: "unstorable_classes.Unregistered", "title": "t", "parts": [1]}),
        (UnregisteredModel(), {TYPE_KEY: "unstorable_classes.UnregisteredModel", "x": 1}),
        (UnregisteredStruct(), {TYPE_KEY: "unstorable_classes.UnregisteredStruct", "x": 1}),
        (UnregisteredError("m", 1), {TYPE_KEY: "unstorable_classes.UnregisteredError", "args": ["m", 1]}),
        (Row(1, [2]), {TYPE_KEY: "unstorable_classes.Row", "left": 1, "right": [2]}),
        (UserDict({"a": 1}), {TYPE_KEY: "collections.UserDict", "data": {"a": 1}}),
    ]
    for value, expected in cases:
        with subtests.test(value=value, expected=expected):
            _check({"x": value}, {"x": expected}, "x")


def test_paths_are_valid_before_and_after() -> None:
    value = {"job": Plain(file=len, ok=1, inner=Plain(deep=[len]))}
    clean, paths = sanitize(value)
    assert paths == ["job", "job.file", "job.inner", "job.inner.deep[0]"]
    assert [get(clean, path) for path in paths[1::2]] == ["<function len>", "<function len>"]
    assert clean["job"]["ok"] == 1


def test_subclass_becomes_its_built_in_type(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Any, Any]] = [
        (MyInt(5), 5),
        (MyStr("a"), "a"),
        (MyList([1, [2]]), [1, [2]]),
        (MyDict(a=1), {"a": 1}),
        (MySet([1]), {1}),
        (MyTuple([1, 2]), (1, 2)),
        (MyDeque([1, [2]], maxlen=3), deque([1, [2]], maxlen=3)),
        (defaultdict(list, a=[1]), {"a": [1]}),
        (Counter("aab"), {"a": 2, "b": 1}),
    ]
    for value, expected in cases:
        with subtests.test(value=value, expected=expected):
            _check([value], [expected], "[0]")


def test_container_of_a_replacement_keeps_its_type() -> None:
    bad = "<function len>"
    _check((1, len), (1, bad), "[1]")
    _check(Point(1, len), Point(1, bad), "y")
    _check(deque([len], maxlen=3), deque([bad], maxlen=3), "[0]")
    _check(OrderedDict(a=len), OrderedDict(a=bad), "a")
    _check({1, len}, {1, bad}, "")
    _check(frozenset([len]), frozenset([bad]), "")
    _check(Task("t", notes=[len]), Task("t", notes=[bad]), "notes[0]")
    _check(Slotted(1, {"f": len}), Slotted(1, {"f": bad}), "y.f")
    _check(Message("r", len), Message("r", bad), "content")
    _check(ValueError("m", len), ValueError("m", bad), "[1]")


def test_set_members_and_keys_are_never_merged() -> None:
    one, two = Plain(), Plain()
    name = "<unstorable_classes.Plain>"
    clean, paths = sanitize({one: 1, two: 2, name: 3, Color.RED: 4})
    assert exactly(clean, {f"{name} (2)": 1, f"{name} (3)": 2, name: 3, Color.RED: 4})
    assert paths == [f'["{name} (2)"]', f'["{name} (3)"]']
    _check({one, two}, {name, f"{name} (2)"}, "")


def test_unstorable_keys_are_replaced() -> None:
    value = {
        MyStr("text"): 1,
        MyInt(7): 2,
        Shade.DARK: 3,
        (1, Shade.DARK): 4,
        Spot(1, 2): 5,
        len: 6,
        "plain": 7,
        (1, 2): 8,
    }
    clean, paths = sanitize({"d": value})
    assert exactly(
        list(clean["d"].items()),
        [
            ("text", 1),
            (7, 2),
            ("<unstorable_classes.Shade.DARK>", 3),
            ((1, "<unstorable_classes.Shade.DARK>"), 4),
            ("<value_cases.Spot>", 5),
            ("<function len>", 6),
            ("plain", 7),
            ((1, 2), 8),
        ],
    )
    assert len(paths) == 6
    for path in paths:
        get(clean, path)


def test_cycle_has_the_path_of_its_start() -> None:
    value: dict[str, Any] = {"plan": {"a": {"b": []}}}
    value["plan"]["a"]["b"].append(value["plan"]["a"])
    value["self"] = value
    _check(
        value,
        {"plan": {"a": {"b": ["<cycle to plan.a>"]}}, "self": "<cycle to the root>"},
        "plan.a.b[0]",
        "self",
    )


def test_cycle_through_any_container_is_cut() -> None:
    task = Task("t")
    task.notes.append(task)
    _check([task], [Task("t", notes=["<cycle to [0]>"])], "[0].notes[0]")
    node = Plain(name="n")
    node.me = node  # type: ignore[attr-defined]
    _check(
        [node], [{TYPE_KEY: "unstorable_classes.Plain", "name": "n", "me": "<cycle to [0]>"}], "[0]", "[0].me"
    )
    pair: tuple[Any, ...] = ([],)
    pair[0].append(pair)
    _check(pair, (["<cycle to the root>"],), "[0][0]")


def test_shared_value_is_not_a_cycle() -> None:
    shared = {"a": 1}
    _check([shared, shared, (shared,)], [shared, shared, (shared,)])


def test_frozen_trees_and_drafts_become_plain() -> None:
    value = {"a": [1, (2, [{3}])], "t": Task("x", notes=[{"n": 1}]), "p": Point([1], {"q": 2})}
    frozen = decode_frozen(encode(value))
    _check(frozen, value)
    changed = draft(frozen)
    changed["a"].append(len)
    changed["t"].notes.append(len)
    _check(
        changed,
        {
            "a": [1, (2, [{3}]), "<function len>"],
            "t": Task("x", notes=[{"n": 1}, "<function len>"]),
            "p": Point([1], {"q": 2}),
        },
        "a[2]",
        "t.notes[1]",
    )
    assert type(changed["a"]) is not list  # it is still a draft


def test_result_shares_no_container_with_the_value() -> None:
    value: dict[str, Any] = {"a": [1], "b": {"c": []}}
    clean, _ = sanitize(value)
    clean["a"].append(2)
    clean["b"]["c"].append(3)
    assert value == {"a": [1], "b": {"c": []}}


def test_instead_supplies_replacements() -> None:
    class Failed(Exception):
        pass

    def instead(value: Any) -> Any:
        return {"message": str(value), "of": open} if isinstance(value, Failed) else NotImplemented

    value = {"steps": [Failed("boom"), ValueError("kept")], "call": len}
    made, replaced = sanitize(value, instead=instead)
    assert made["steps"][0] == {"message": "boom", "of": "<function open>"}
    assert repr(made["steps"][1]) == "ValueError('kept')"
    assert made["call"] == "<function len>"
    assert replaced == ["steps[0]", "call"]

    def fails(value: Any) -> Any:
        raise RuntimeError

    assert sanitize({"call": len}, instead=fails) == (
        {"call": "<unreadable builtin_function_or_method>"},
        ["call"],
    )
    assert sanitize({"call": len}, instead=lambda value: value)[1] == ["call"]
