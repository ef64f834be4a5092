"""Adapter: values that the core refuses are replaced within its block, wherever they are, and nowhere else."""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

import pytest
from exact_equality import exactly, plain
from pydantic import BaseModel

import holdfast
from holdfast.errors import UnsupportedValue
from holdfast.tree import adapter
from holdfast.tree.codec import decode, encode, open_box
from holdfast.tree.fold import Folder, Redactor
from holdfast.tree.fold_cache import FoldCache
from holdfast.tree.frozen import FrozenDict, reveal
from holdfast.tree.values import Opaque, find_tag, forget


class Text(str):
    __slots__ = ()


class Sneaky(Text):
    """A text that equals only itself."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


class Model(BaseModel):
    content: Any


holdfast.register(Model)


@dataclass
class Later:
    """A class that only the adapter registers."""

    x: int


class Bases:
    """Stores subclasses of str and dict as str and dict, exceptions with odd arguments as text, and `Later`."""

    def replace(self, value: Any) -> Any:
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, dict):
            return dict.copy(value)
        if isinstance(value, Later):
            holdfast.register(Later)
            return value
        return NotImplemented

    def simplify(self, value: Any) -> Any:
        if isinstance(value, Exception):
            return repr(value)
        return NotImplemented

    def provide(self, tag: str) -> None:
        if tag.endswith(".Later"):
            holdfast.register(Later)


def folded(value: Any, base: Any = None) -> Any:
    return Folder(object()).fold(value, base)


def read(frozen: Any) -> Any:
    return plain(reveal(frozen, open_box))


CASES: dict[str, tuple[Any, Any]] = {
    "value": ([Text("a")], ["a"]),
    "key": ({Text("k"): 1, "z": Text("b")}, {"k": 1, "z": "b"}),
    "order of keys": ({"z": 1, Text("k"): 2, "a": 3}, {"z": 1, "k": 2, "a": 3}),
    "key in a tuple": ({(Text("k"), 1): 1}, {("k", 1): 1}),
    "dict": (defaultdict(list, {"a": [Text("b")]}), {"a": ["b"]}),
    "dict in a dict": ({"d": defaultdict(dict, {1: defaultdict(int)})}, {"d": {1: {}}}),
    "tuple": ((Text("a"), (Text("b"),)), ("a", ("b",))),
    "set": ({Text("a")}, {"a"}),
    "ordered dict": (OrderedDict({"a": Text("b")}), OrderedDict({"a": "b"})),
    "model": (Model(content={Text("k"): defaultdict(int, n=1)}), Model(content={"k": {"n": 1}})),
    "error": (ValueError(object), repr(ValueError(object))),
    "error in a model": (Model(content=[ValueError(object)]), Model(content=[repr(ValueError(object))])),
}


def test_replaced_value_is_stored_everywhere(subtests: pytest.Subtests) -> None:
    for name, (value, expected) in CASES.items():
        with subtests.test(name=name):
            for given, stored in ((value, expected), ({"x": [value]}, {"x": [expected]})):
                with adapter.use(Bases()):
                    frozen, data = folded(given), encode(given)
                assert exactly(read(frozen), stored)
                assert exactly(decode(data), stored)
                assert data == encode(stored) == encode(frozen)


def test_refusal_outside_of_the_block_is_as_before(subtests: pytest.Subtests) -> None:
    for name, (value, _) in CASES.items():
        with subtests.test(name=name):
            for write in (folded, encode):
                with adapter.use(Bases()):
                    write(value)
                with pytest.raises(UnsupportedValue) as refused:
                    write(value)
                assert type(refused.value) is UnsupportedValue


def test_refusal_by_the_adapter_has_its_path() -> None:
    with adapter.use(Bases()), pytest.raises(UnsupportedValue) as refused:
        folded({"a": [{Text("k"): {"b": threading.Lock()}}]})
    assert refused.value.details["path"] == "a[0].k.b"
    assert str(refused.value) == f"at a[0].k.b: {refused.value.details['reason']}"
    with adapter.use(Bases()), pytest.raises(UnsupportedValue, match=r"at a\.content\[1\]: "):
        folded({"a": Model(content=[0, object()])})


def test_block_is_of_its_thread_and_context() -> None:
    refused: list[Any] = []

    def store() -> None:
        try:
            encode([Text("a")])
        except UnsupportedValue as error:
            refused.append(error)

    with adapter.use(Bases()):
        thread = threading.Thread(target=store)
        thread.start()
        thread.join()
        copy_context().run(store)
    assert len(refused) == 1


def test_keys_that_become_equal_are_refused() -> None:
    for value in ({Sneaky("k"): 1, Sneaky("k"): 2}, Model(content={Sneaky("k"): 1, "k": 2})):
        for write in (folded, encode):
            with adapter.use(Bases()), pytest.raises(UnsupportedValue, match="two keys"):
                write(value)


def test_replaced_dict_shares_its_unchanged_parts() -> None:
    value = {"d": defaultdict(list, {"big": [1, [2]], "n": Text("a")})}
    with adapter.use(Bases()):
        first = folded(value)
        assert folded(value, first) is first
        value["d"]["new"] = [3]
        second = folded(value, first)
    assert type(second["d"]) is FrozenDict
    assert second["d"]["big"] is first["d"]["big"]
    assert read(second) == {"d": {"big": [1, [2]], "n": "a", "new": [3]}}


def test_secret_in_a_replaced_dict_is_redacted() -> None:
    redact = Redactor(["api_key"])
    value = {
        "d": defaultdict(str, {Text("api_key"): "hunter22"}),
        "m": Model(content={Text("api_key"): "hunter22"}),
    }
    with adapter.use(Bases()):
        frozen = Folder(object(), redact).fold(value)
        data = encode(value, redact.hides)
    assert b"hunter22" not in encode(frozen) + data
    assert read(frozen)["d"] == {"api_key": "[redacted]"}


def test_object_with_a_replaced_part_is_encoded_again() -> None:
    cache = FoldCache()
    table: Any = defaultdict(int, n=1)
    models = [Model(content=[table, n]) for n in range(20)]

    def stored(base: Any) -> Any:
        return Folder(object(), None, cache).fold(models, base)

    with adapter.use(Bases()):
        first = stored(None)
        assert stored(first) is first
        table["n"] = 2
        second = stored(first)
    assert read(second)[7] == Model(content=[{"n": 2}, 7])
    with pytest.raises(UnsupportedValue):
        stored(second)


def test_class_is_registered_when_an_object_is_stored_or_read() -> None:
    with pytest.raises(UnsupportedValue):
        encode(Later(1))
    with adapter.use(Bases()):
        data = encode(Later(1))
        frozen = folded([Later(2)])
    assert decode(data) == Later(1)
    assert read(frozen) == [Later(2)]


def test_unknown_tag_is_read_with_the_class_of_the_adapter() -> None:
    tag = f"elsewhere.{Later.__name__}"

    class Other(Bases):
        def provide(self, tag: str) -> None:
            if tag == f"elsewhere.{Later.__name__}":
                holdfast.register(Later, tag)

    data = encode([Opaque(tag, {"x": 3}), Opaque("nowhere.Thing", [1])])
    unknown = [Opaque(tag, {"x": 3}), Opaque("nowhere.Thing", [1])]
    assert decode(data) == unknown
    with adapter.use(Bases()):
        frozen = folded(unknown)
    with adapter.use(Other()):
        assert decode(data) == [Later(3), Opaque("nowhere.Thing", [1])]
        assert read(frozen) == [Later(3), Opaque("nowhere.Thing", [1])]


def test_forgotten_class_is_refused_again_and_read_with_its_successor() -> None:
    def define() -> type:
        return holdfast.register(dataclass(type("Again", (), {"__annotations__": {"x": int}})))

    first: Any = define()
    second = define()
    assert find_tag(f"{__name__}.Again") == (second, find_tag(f"{__name__}.Again")[1])  # type: ignore[index]
    data = encode(first(1))
    assert type(decode(data)) is second
    forget(first)
    with pytest.raises(UnsupportedValue):
        encode(first(1))
    assert type(decode(data)) is second
