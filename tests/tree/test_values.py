"""Every storable value is read exactly as it was written: through bytes, a frozen tree and JSON."""

from __future__ import annotations

import copy
import inspect
import json
import sys
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
import pydantic
import pytest
from exact_equality import exactly, plain
from value_cases import CASES, CHANGING, CONSTANT, Color, Level, Pair, Perm, Point, Spot, Word

import holdfast.tree
from holdfast.errors import InvalidCall, UnsupportedValue
from holdfast.tree.codec import MAX_DEPTH, decode, decode_frozen, encode, open_box
from holdfast.tree.fold import Folder, same
from holdfast.tree.frozen import reveal
from holdfast.tree.portable import from_json, to_json
from holdfast.tree.values import Opaque, register, restore


def _through_bytes(value: Any) -> Any:
    return decode(encode(value))


def _through_frozen(value: Any) -> Any:
    return plain(reveal(decode_frozen(encode(value)), open_box))


def _through_fold(value: Any) -> Any:
    return plain(reveal(Folder(object()).fold(value), open_box))


def _through_json(value: Any) -> Any:
    return from_json(json.loads(json.dumps(to_json(value), allow_nan=False)))


def _frozen_through_json(value: Any) -> Any:
    return from_json(json.loads(json.dumps(to_json(decode_frozen(encode(value))), ensure_ascii=False)))


ROUND_TRIPS: list[Callable[[Any], Any]] = [
    _through_bytes,
    _through_frozen,
    _through_fold,
    _through_json,
    _frozen_through_json,
]


@pytest.mark.parametrize("round_trip", ROUND_TRIPS)
def test_value_is_read_as_written(round_trip: Callable[[Any], Any]) -> None:
    for name, value in CASES.items():
        assert exactly(round_trip(value), value), name


@pytest.mark.parametrize("round_trip", ROUND_TRIPS)
def test_value_inside_others_is_read_as_written(round_trip: Callable[[Any], Any]) -> None:
    for name, value in CASES.items():
        for around in (
            [value, [value]],
            {"a": value, "b": {"c": value}},
            (value, (1, value)),
            {(1,): value},
            OrderedDict(a=value),
            Point(value, [value]),
        ):
            assert exactly(round_trip(around), around), name


@pytest.mark.parametrize("round_trip", ROUND_TRIPS)
def test_constant_can_be_a_key(round_trip: Callable[[Any], Any]) -> None:
    for name, constant in CONSTANT.items():
        for key in (constant, (constant,), (1, (constant, "x"))):
            value = {"first": 1, key: [2], "last": 3}
            assert exactly(round_trip(value), value), name


def test_mutable_value_cannot_be_a_key() -> None:
    for name, changing in CHANGING.items():
        for around in (lambda key: key, lambda key: (1, key), Point, lambda key: frozenset([key])):
            try:
                value = {around(changing): 1}
            except TypeError:  # not hashable
                continue
            if name == "opaque":
                assert exactly(_through_frozen(value), value)
                continue
            for write in (encode, Folder(object()).fold, to_json):
                with pytest.raises(UnsupportedValue):
                    write(value)


def test_equal_values_have_equal_bytes() -> None:
    for name, value in CASES.items():
        data = encode(value)
        assert encode(decode(data)) == data, name
        assert encode(decode_frozen(data)) == data, name


def test_document_is_json() -> None:
    for name, value in CASES.items():
        doc = to_json(value)
        assert exactly(json.loads(json.dumps(doc, allow_nan=False)), doc), name
        msgspec.json.encode(doc)  # UTF-8 throughout
        assert not any(type(part) is int and abs(part) >= 2**53 for part in _leaves(doc)), name


def _leaves(doc: Any) -> list[Any]:
    if isinstance(doc, dict):
        doc = list(doc.values())
    return [leaf for item in doc for leaf in _leaves(item)] if isinstance(doc, list) else [doc]


SIMILAR: list[list[Any]] = [
    [0, 0.0, -0.0, False, Perm(0), Decimal("0"), Decimal("-0"), np.int64(0), np.False_, 0j, -0j],
    [1, True, 1.0, Level.LOW, Color.RED, Decimal("1"), Decimal("1.0"), np.int8(1), np.longlong(1), 1 + 0j],
    ["a", Word.A, b"a", np.str_("a"), np.bytes_(b"a"), ["a"], ("a",), {"a"}, frozenset("a"), {"a": None}],
    [(1, 2), [1, 2], Pair(1, 2), Point(1, 2), Spot(1, 2), {1, 2}, range(1, 3), {1: 2}, OrderedDict({1: 2})],
    [(1,), (True,), (1.0,), [1], [True], [1.0]],
    [(), [], set(), frozenset(), {}, OrderedDict(), None, "", b"", bytearray(), range(0)],
    [{1: 0}, {True: 0}, {1.0: 0}, {Level.LOW: 0}],
    [{(1,): 0}, {(True,): 0}, {(1.0,): 0}],
    [{0.0: 0}, {-0.0: 0}, {Decimal("0"): 0}, {Decimal("0.0"): 0}],
    [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
    [float("nan"), CONSTANT["odd nan"], Decimal("NaN"), Decimal("sNaN"), np.float64("nan"), None],
    [np.zeros(2), np.zeros(2, "f4"), np.zeros((2, 1)), np.zeros((1, 2)), [0.0, 0.0]],
    [CONSTANT["datetime zone"], CONSTANT["datetime fold"], CONSTANT["datetime zone"].replace(tzinfo=None)],
]


def test_similar_values_are_different(subtests: pytest.Subtests) -> None:
    for values in SIMILAR:
        with subtests.test(values=values):
            for one, other in combinations(values, 2):
                assert not exactly(one, other)
                assert encode(one) != encode(other), (one, other)
                assert json.dumps(to_json(one)) != json.dumps(to_json(other)), (one, other)
                folder = Folder(object())
                assert not same(folder.fold(one), folder.fold(other)), (one, other)
                base = folder.fold({"x": [one]})
                assert exactly(plain(reveal(folder.fold({"x": [other]}, base), open_box)), {"x": [other]})
            for value in values:
                assert same(Folder(object()).fold(value), Folder(object()).fold(value))


def test_class_can_gain_and_lose_fields() -> None:
    def first() -> list[Any]:
        @dataclass
        class Job:
            name: str
            old: int = 1

        class Note(msgspec.Struct):
            name: str
            old: int = 1

        class Form(pydantic.BaseModel):
            name: str

        kinds: list[Any] = [Job, namedtuple("Item", "name old"), Note, Form]
        for cls in kinds:
            register(cls, f"test.{cls.__name__}")
        return [cls(**({"name": "n"} | ({} if cls is Form else {"old": 1}))) for cls in kinds]

    data = encode(first())

    @dataclass
    class Job:
        name: str
        size: int = 5
        tags: list[str] = field(default_factory=list)

    class Note(msgspec.Struct):
        size: int = 5
        name: str = "?"

    class Form(pydantic.BaseModel):
        name: str
        size: int = 5
        tags: list[str] = pydantic.Field(default_factory=list)

    kinds: list[Any] = [Job, namedtuple("Item", "size name", defaults=[5, "?"]), Note, Form]
    for cls in kinds:
        cls.__qualname__ = f"test_class_can_gain_and_lose_fields.<locals>.first.<locals>.{cls.__name__}"
        if cls.__name__ == "Item":
            cls.__qualname__ = "Item"
        register(cls, f"test.{cls.__name__}")
    for obj, cls in zip(decode(data), kinds, strict=True):
        assert type(obj) is cls
        assert (obj.name, obj.size) == ("n", 5)
        assert getattr(obj, "tags", []) == []


NESTS: dict[str, Callable[[Any], Any]] = {
    "list": lambda inner: [inner],
    "dict": lambda inner: {"a": inner},
    "odd dict": lambda inner: {(1,): inner},
    "tuple": lambda inner: (inner,),
    "frozenset": lambda inner: frozenset([inner]),
    "namedtuple": Point,
    "mixed": lambda inner: [{"a": (inner,)}],
}


@pytest.mark.parametrize("name", NESTS)
def test_deepest_tree_that_can_be_written_can_be_read(name: str) -> None:
    """Also with a few hundred frames of the stack in use."""
    value, deepest = None, None
    for _ in range(MAX_DEPTH + 2):
        try:
            encode(value)
        except UnsupportedValue:
            break
        deepest, value = value, NESTS[name](value)
    assert deepest is not None
    frames = len(inspect.stack())
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(frames + 700)
    try:
        for round_trip in ROUND_TRIPS:
            back = round_trip(deepest)
            assert type(back) is type(deepest)
            assert encode(back) == encode(deepest)
    finally:
        sys.setrecursionlimit(limit)


def test_nested_sets_take_linear_time() -> None:
    value: Any = frozenset()
    for _ in range(90):
        value = frozenset([value])
    assert _through_bytes(value) == value
    assert _through_json(value) == value


def test_array_is_read_as_opaque_without_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"a": np.arange(3), "b": np.float32(1), "c": 1}
    data, doc = encode(value), to_json(value)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "holdfast.tree.numpy_values", None)
        without.delattr(holdfast.tree, "numpy_values", raising=False)
        read = [decode(data), from_json(doc)]
        for each in read:
            assert type(each["a"]) is Opaque
            assert type(each["b"]) is Opaque
        again = [encode(read[0]), encode(read[1])]
        docs = [json.dumps(to_json(each)) for each in read]
    for back in map(decode, again):
        assert exactly(back, value)
    for back in map(json.loads, docs):
        assert exactly(from_json(back), value)


@pytest.mark.parametrize("name", ["O", "|O", [["a", "O"]], "T", "", 5, None])
def test_array_of_objects_is_never_read(name: Any) -> None:
    for parts in ([name, [1], b"\x01" * 16], [name, [1], None]):
        with pytest.raises(holdfast.errors.IncompatibleFormat):
            restore(22, parts)


def test_attribute_of_an_opaque_value_names_the_missing_registration() -> None:
    value = copy.copy(Opaque("shop.Offer", {"price": 30}))
    assert value == Opaque("shop.Offer", {"price": 30})
    with pytest.raises(AttributeError, match=r"holdfast\.register\(cls, 'shop\.Offer'\)"):
        value.price  # noqa: B018
    assert not hasattr(value, "__fspath__")


def test_tag_of_a_class_with_the_same_dotted_name_is_taken() -> None:
    inner = type("C", (), {"__module__": "app", "__qualname__": "B.C"})
    outer = type("C", (), {"__module__": "app.B", "__qualname__": "C"})
    split, join = (lambda value: 1), (lambda parts: None)
    register(inner, split=split, join=join)
    with pytest.raises(InvalidCall, match="is taken by"):
        register(outer, split=split, join=join)
