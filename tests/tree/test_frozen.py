"""Frozen containers: immutable, accepted as dicts and lists, with plain copies."""

from __future__ import annotations

import copy
import json
import pickle
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pydantic
import pytest
from exact_equality import exactly, plain
from value_cases import Point, Task, TwoError

from holdfast.tree.artifact import artifact
from holdfast.tree.codec import decode_frozen, encode, open_box
from holdfast.tree.draft import draft
from holdfast.tree.frozen import (
    Box,
    BoxedDict,
    BoxedList,
    FrozenDict,
    FrozenList,
    freeze_dict,
    freeze_list,
    reveal,
    thaw,
)

VALUE: dict[str, Any] = {"a": [1, {"b": 2}], "t": (3, [4, {"c": [5]}]), "s": "x"}


def _frozen() -> Any:
    return decode_frozen(encode(VALUE))


def _assign(value: Any, key: Any) -> None:
    value[key] = 1


def _delete(value: Any, key: Any) -> None:
    del value[key]


def _update_operator(value: Any) -> None:
    value |= {"z": 1}


def _add_operator(value: Any) -> None:
    value += [1]


def _multiply_operator(value: Any) -> None:
    value *= 2


DICT_MUTATORS: dict[str, Callable[[Any], Any]] = {
    "set": lambda value: _assign(value, "a"),
    "set new": lambda value: _assign(value, "new"),
    "delete": lambda value: _delete(value, "a"),
    "|=": _update_operator,
    "clear": lambda value: value.clear(),
    "pop": lambda value: value.pop("a"),
    "pop with default": lambda value: value.pop("new", None),
    "popitem": lambda value: value.popitem(),
    "setdefault": lambda value: value.setdefault("new", 1),
    "setdefault known": lambda value: value.setdefault("a", 1),
    "update": lambda value: value.update({"a": 1}),
    "update by name": lambda value: value.update(a=1),
}
LIST_MUTATORS: dict[str, Callable[[Any], Any]] = {
    "set": lambda value: _assign(value, 0),
    "set slice": lambda value: value.__setitem__(slice(0, 1), [7, 8]),
    "delete": lambda value: _delete(value, 0),
    "delete slice": lambda value: _delete(value, slice(None)),
    "+=": _add_operator,
    "*=": _multiply_operator,
    "append": lambda value: value.append(1),
    "clear": lambda value: value.clear(),
    "extend": lambda value: value.extend([1]),
    "insert": lambda value: value.insert(0, 1),
    "pop": lambda value: value.pop(),
    "pop first": lambda value: value.pop(0),
    "remove": lambda value: value.remove(1),
    "reverse": lambda value: value.reverse(),
    "sort": lambda value: value.sort(key=str),
}


def test_frozen_dict_refuses_to_change(subtests: pytest.Subtests) -> None:
    for kind in [FrozenDict, BoxedDict]:
        for name, change in DICT_MUTATORS.items():
            with subtests.test(kind=kind, name=name):
                for value in (kind(a=1, b=2), kind()):
                    before = dict(value)
                    with pytest.raises(TypeError, match=r"state is immutable.*log\.edit\(\).*holdfast\.thaw"):
                        change(value)
                    assert exactly(dict(value), before)


def test_frozen_list_refuses_to_change(subtests: pytest.Subtests) -> None:
    for kind in [FrozenList, BoxedList]:
        for name, change in LIST_MUTATORS.items():
            with subtests.test(kind=kind, name=name):
                for value in (kind([1, 2]), kind()):
                    before = list(value)
                    with pytest.raises(TypeError, match=r"state is immutable.*log\.edit\(\).*holdfast\.thaw"):
                        change(value)
                    assert exactly(list(value), before)


def test_every_mutator_is_refused() -> None:
    """Whatever dict and list can do beyond their immutable cousins is refused, or leaves the value alone."""
    harmless = {
        "__class_getitem__",
        "__reversed__",
        "__getitem__",
        "copy",
        "fromkeys",
        "get",
        "items",
        "keys",
    }
    harmless |= {"values", "__or__", "__ror__", "__getattribute__", "__init__", "__new__", "__sizeof__"}
    harmless |= {*dir(tuple), *dir(object)}
    for kind, plain_kind in ((FrozenDict, dict), (FrozenList, list)):
        for name in set(dir(plain_kind)) - harmless:
            assert getattr(kind, name) is not getattr(plain_kind, name), name


def test_children_are_frozen() -> None:
    value = _frozen()
    for part in (value, value["a"], value["a"][1], value["t"][1], value["t"][1][1], value["t"][1][1]["c"]):
        assert type(part) in (FrozenDict, FrozenList)


def test_frozen_containers_are_dicts_and_lists() -> None:
    value = _frozen()
    assert value == VALUE
    assert repr(value) == repr(VALUE)
    assert json.loads(json.dumps(value)) == json.loads(json.dumps(VALUE))
    assert json.dumps(value, indent=1) == json.dumps(VALUE, indent=1)
    assert msgspec.json.encode(value) == msgspec.json.encode(VALUE)
    assert msgspec.msgpack.encode(value["a"]) == msgspec.msgpack.encode(VALUE["a"])
    assert msgspec.to_builtins(value["a"]) == VALUE["a"]
    assert {**value} == VALUE
    assert [*value["a"]] == VALUE["a"]
    assert isinstance(value, dict)
    assert isinstance(value["a"], list)


def test_pydantic_accepts_frozen_containers() -> None:
    class State(pydantic.BaseModel):
        a: list[int | dict[str, int]]
        s: str

    value = _frozen()
    state = State.model_validate({"a": value["a"], "s": value["s"]})
    assert exactly(state.model_dump(), {"a": [1, {"b": 2}], "s": "x"})
    dumped = pydantic.TypeAdapter(dict[str, Any]).dump_json(value)
    assert json.loads(dumped) == json.loads(json.dumps(VALUE))


def test_operators_return_plain_values() -> None:
    value = _frozen()
    assert type(value | {"z": 1}) is dict
    assert type({"z": 1} | value) is dict
    assert type(value.copy()) is dict
    assert type(value["a"] + [1]) is list
    assert type([1] + value["a"]) is list
    assert type(value["a"] * 2) is list
    assert type(value["a"].copy()) is list
    assert type(value["a"][:1]) is list
    assert exactly(plain(value), VALUE)


@pytest.mark.parametrize(
    "duplicate",
    [copy.deepcopy, thaw, lambda value: pickle.loads(pickle.dumps(value))],
    ids=["deepcopy", "thaw", "pickle"],
)
def test_deep_copy_is_plain_and_independent(duplicate: Callable[[Any], Any]) -> None:
    value = _frozen()
    copied = duplicate(value)
    assert exactly(copied, VALUE)
    copied["a"][1]["b"] = 9
    copied["t"][1][1]["c"].append(9)
    assert exactly(plain(value), VALUE)


def test_shallow_copy_is_plain() -> None:
    value = _frozen()
    assert type(copy.copy(value)) is dict
    assert type(copy.copy(value["a"])) is list
    assert copy.copy(value)["a"] is value["a"]


def test_objects_in_a_copy_are_copies_too() -> None:
    tree = {"task": Task("t", notes=[1]), "set": {1}, "list": [bytearray(b"a")], "array": np.zeros(2)}
    value = reveal(decode_frozen(encode(tree)), open_box)
    for copied in (thaw(value), copy.deepcopy(value)):
        copied["task"].notes.append(2)
        copied["set"].add(2)
        copied["list"][0].append(98)
        copied["array"][0] = 1
    assert exactly(plain(value), tree)


def test_thaw_keeps_values_that_cannot_be_copied() -> None:
    error = TwoError("t", 5)
    thawed = thaw(FrozenDict(error=error))["error"]
    assert exactly(thawed, error)
    assert thawed is not error
    kept = (number for number in [1])
    assert thaw(FrozenList([kept]))[0] is kept


def test_thaw_keeps_named_tuples_and_handles() -> None:
    handle = artifact(b"abc")
    value = FrozenDict(p=Point(FrozenList([1]), FrozenDict(a=1)), h=handle, o=OrderedDict(h=handle))
    thawed = thaw(value)
    assert exactly(thawed["p"], Point([1], {"a": 1}))
    assert thawed["h"].read() == b"abc"
    assert thawed["o"]["h"].read() == b"abc"


def test_thaw_of_a_draft_sees_its_changes() -> None:
    changed = draft(_frozen())
    changed["a"].append({"new": [1]})
    thawed = thaw(changed)
    assert exactly(thawed["a"], [1, {"b": 2}, {"new": [1]}])
    thawed["a"].clear()
    assert len(changed["a"]) == 3


def test_thaw_returns_plain_values_unchanged() -> None:
    for value in (1, "a", None, (1, 2), b"x"):
        assert exactly(thaw(value), value)


def test_box_is_opened_as_a_new_object() -> None:
    stored = decode_frozen(encode({"a": [{"s": {1}}], "b": [1]}))
    assert type(stored) is BoxedDict
    assert type(stored["a"]) is BoxedList
    assert type(stored["b"]) is FrozenList
    one, other = reveal(stored, open_box), reveal(stored, open_box)
    assert isinstance(one, FrozenDict)
    one["a"][0]["s"].add(2)
    assert other["a"][0]["s"] == {1}
    assert one["b"] == stored["b"]
    assert one["b"] is not stored["b"]
    assert encode(stored) == encode({"a": [{"s": {1}}], "b": [1]})


def test_freezing_detects_boxes() -> None:
    box = Box(4, encode([1]))
    assert type(freeze_dict({"a": 1})) is FrozenDict
    assert type(freeze_dict({"a": box})) is BoxedDict
    assert type(freeze_dict({"a": box, "b": 1}, new=[1])) is FrozenDict
    assert type(freeze_list([FrozenList()])) is FrozenList
    assert type(freeze_list([BoxedList([box])])) is BoxedList
