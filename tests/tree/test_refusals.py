"""What cannot be stored is refused before anything is written, by path, type and remedy; what was stored
under an unregistered tag survives."""

from __future__ import annotations

import datetime as dt
import enum
import io
import struct
import sys
import zoneinfo
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import pydantic
import pytest
from exact_equality import exactly, plain
from value_cases import Guarded, Inner, Model, Point, Slotted, Spot, Task

from holdfast.errors import IncompatibleFormat, InvalidCall, UnsupportedValue
from holdfast.tree.codec import MAX_DEPTH, decode, decode_frozen, encode, open_box, to_bytes
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import reveal
from holdfast.tree.portable import to_json
from holdfast.tree.values import Opaque, register


@dataclass
class NotRegistered:
    x: int = 1


class PlainClass:
    pass


class NotRegisteredEnum(enum.Enum):
    A = 1


class NotRegisteredModel(pydantic.BaseModel):
    x: int = 1


class NotRegisteredStruct(msgspec.Struct):
    x: int = 1


class NotRegisteredError(Exception):
    pass


class TakenError(Exception):
    pass


NotRegisteredTuple: Any = namedtuple("NotRegisteredTuple", "x")


class MyInt(int):
    pass


class MyStr(str):
    __slots__ = ()


class MyDict(dict[Any, Any]):
    pass


class OddZone(dt.tzinfo):
    def utcoffset(self, _: Any) -> dt.timedelta:
        return dt.timedelta(0)

    def dst(self, _: Any) -> None:
        return None

    def tzname(self, _: Any) -> str:
        return "odd"


def _zone_of_a_file(key: str) -> zoneinfo.ZoneInfo:
    """A time zone that is always UTC, under a name of its own."""
    counts = struct.pack(">6l", 0, 0, 0, 0, 1, 4)
    data = b"TZif" + bytes(16) + counts + struct.pack(">lbb", 0, 0, 0) + b"UTC\0"
    return zoneinfo.ZoneInfo.from_file(io.BytesIO(data), key)


def _nothing() -> Iterator[int]:
    yield from ()


UNSUPPORTED: dict[str, tuple[Any, str, str]] = {
    "dataclass": (NotRegistered(), "NotRegistered", "holdfast.register(NotRegistered)"),
    "enum": (NotRegisteredEnum.A, "NotRegisteredEnum", "holdfast.register(NotRegisteredEnum)"),
    "model": (NotRegisteredModel(), "NotRegisteredModel", "holdfast.register(NotRegisteredModel)"),
    "struct": (NotRegisteredStruct(), "NotRegisteredStruct", "holdfast.register(NotRegisteredStruct)"),
    "error": (NotRegisteredError(), "NotRegisteredError", "holdfast.register(NotRegisteredError)"),
    "namedtuple": (NotRegisteredTuple(1), "NotRegisteredTuple", "holdfast.register(NotRegisteredTuple)"),
    "class": (PlainClass(), "PlainClass", "holdfast.register(PlainClass, split=…, join=…)"),
    "object": (object(), "object", "holdfast.register(object, split=…, join=…)"),
    "type": (int, "type", "sanitize"),
    "int subclass": (MyInt(1), "subclass of int", "holdfast.register(MyInt, split=…, join=…)"),
    "str subclass": (MyStr("a"), "subclass of str", "holdfast.register(MyStr, split=…, join=…)"),
    "dict subclass": (MyDict(), "subclass of dict", "holdfast.register(MyDict, split=…, join=…)"),
    "defaultdict": (defaultdict(list), "subclass of dict", "holdfast.register(defaultdict, split=…, join=…)"),
    "counter": (Counter("a"), "collections.Counter", "or store dict(…) of it"),
    "lambda": (lambda: 1, "function", "sanitize"),
    "generator": (iter(_nothing()), "generator", "sanitize"),
    "file": (sys.stdout, "", "sanitize"),
    "odd zone": (dt.datetime(2024, 1, 1, tzinfo=OddZone()), "time zone", "zoneinfo.ZoneInfo"),
    "zone of a file": (dt.time(tzinfo=_zone_of_a_file("No/Where")), "time zone", "zoneinfo.ZoneInfo"),
    "zone that leads out": (_zone_of_a_file("../../etc"), "time zone", "zoneinfo.ZoneInfo"),
    "array of objects": (np.array([object()]), "numpy array", "store a list instead"),
    "record": (np.zeros(1, dtype=[("a", "i4")])[0], "numpy.void", "sanitize"),
    "matrix": (np.ma.masked_array([1]), "MaskedArray", "split=…, join=…"),
    "overlapping fields": (
        np.zeros(1, np.dtype({"names": ["a", "b"], "formats": ["i4", "i4"], "offsets": [0, 2]})),
        "numpy.ndarray",
        "",
    ),
}


def test_refusal_has_path_type_and_remedy(subtests: pytest.Subtests) -> None:
    for name, (value, kind, remedy) in UNSUPPORTED.items():
        with subtests.test(name=name):
            tree = {"plan": {"tasks": [1, {"odd key": value}]}}
            for write in (Folder(object()).fold, to_json):
                with pytest.raises(UnsupportedValue) as caught:
                    write(tree)
                assert caught.value.details["path"] == 'plan.tasks[1]["odd key"]'
                message = str(caught.value)
                assert message.startswith('at plan.tasks[1]["odd key"]: ')
                assert kind in message
                assert remedy in message


def test_path_includes_fields_of_objects(subtests: pytest.Subtests) -> None:
    cases: list[tuple[Callable[[Any], Any], str]] = [
        (lambda bad: [bad], "x[0]"),
        (lambda bad: (1, bad), "x[1]"),
        (lambda bad: deque([0, bad]), "x[1]"),
        (lambda bad: OrderedDict(a=bad), "x.a"),
        (lambda bad: Task("t", notes=[bad]), "x.notes[0]"),
        (lambda bad: Slotted(1, bad), "x.y"),
        (lambda bad: Point(1, [bad]), "x.y[0]"),
        (lambda bad: Model.model_validate({"name": "n", "extra": {"a": bad}}), "x.extra.a"),
        (lambda bad: ValueError("m", bad), "x[1]"),
        (lambda bad: {1, bad}, "x"),
        (lambda bad: {dt.date(2024, 1, 1): bad}, "x[datetime.date(2024, 1, 1)]"),
        (lambda bad: Opaque("t", {"a": bad}), "x.a"),
    ]
    for around, path in cases:
        with subtests.test(around=around):
            value = {"x": around(NotRegisteredEnum.A)}
            for write in (Folder(object()).fold, to_json):
                with pytest.raises(UnsupportedValue) as caught:
                    write(value)
                assert caught.value.details["path"] == path
                assert caught.value.details["type"] == f"{__name__}.NotRegisteredEnum"


def test_error_names_a_key_that_cannot_be_stored() -> None:
    for key in (NotRegisteredEnum.A, Spot(1, 2), (1, Spot(1, 2)), PlainClass()):
        for write in (Folder(object()).fold, to_json):
            with pytest.raises(UnsupportedValue) as caught:
                write({"a": {key: 1}})
            assert str(caught.value.details["path"]).startswith("a[")


def _list_cycle() -> Any:
    value: list[Any] = []
    value.append({"a": value})
    return value


def _tuple_cycle() -> Any:
    value: tuple[Any, ...] = ([],)
    value[0].append(value)
    return value


def _object_cycle() -> Any:
    task = Task("t")
    task.notes.append(task)
    return task


def _deque_cycle() -> Any:
    value: deque[Any] = deque()
    value.append(value)
    return value


def _model_cycle() -> Any:
    model = Model(name="m")
    model.__dict__["inner"] = model
    return model


CYCLES = (_list_cycle, _tuple_cycle, _object_cycle, _deque_cycle, _model_cycle)


@pytest.mark.parametrize("cycle", CYCLES)
def test_cycle_is_refused(cycle: Callable[[], Any]) -> None:
    for write in (encode, Folder(object()).fold, to_json):
        with pytest.raises(UnsupportedValue, match=r"a cycle.*sanitize"):
            write({"a": cycle()})


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap",
    [
        lambda inner: [inner],
        lambda inner: {"a": inner},
        lambda inner: (inner,),
        lambda inner: {(1,): inner},
        Slotted,
        Point,
        lambda inner: deque([inner]),
        lambda inner: OrderedDict(a=inner),
        ValueError,
    ],
)
def test_tree_too_deep_is_refused(wrap: Callable[[Any], Any]) -> None:
    value: Any = None
    for _ in range(100_000):
        value = wrap(value)
    for write in (encode, Folder(object()).fold, to_json):
        with pytest.raises(UnsupportedValue, match=f"deeper than {MAX_DEPTH} levels"):
            write(value)
    while value is not None:  # so that the end of this test does not take it apart recursively
        value = _open(value)


def _open(value: Any) -> Any:
    if isinstance(value, BaseException):
        inner = value.args[0]
        value.args = ()
        return inner
    if isinstance(value, Slotted):
        inner, value.x = value.x, None
        return inner
    return next(iter(value.values())) if isinstance(value, dict) else value[0]


def test_attributes_beyond_the_fields_are_refused() -> None:
    task = Task("t")
    task.surprise = 1  # type: ignore[attr-defined]
    with pytest.raises(UnsupportedValue, match="surprise"):
        encode(task)


def test_object_that_cannot_be_split_is_refused() -> None:
    class Fragile:
        pass

    def split(_: Fragile) -> Any:
        raise RuntimeError("no")

    register(Fragile, "fragile", split=split, join=lambda _: Fragile())
    with pytest.raises(UnsupportedValue, match=r"Fragile cannot be split into parts: RuntimeError"):
        encode(Fragile())
    half = object.__new__(Guarded)
    with pytest.raises(UnsupportedValue, match="Guarded cannot be split into parts"):
        encode(half)


def test_endless_split_is_refused() -> None:
    class Mirror:
        pass

    register(Mirror, "mirror", split=lambda mirror: mirror, join=lambda parts: parts)
    with pytest.raises(UnsupportedValue, match="deeper than"):
        encode(Mirror())


def test_register_refuses_invalid_arguments() -> None:
    with pytest.raises(InvalidCall, match="takes a class"):
        register(Spot(1, 2))  # type: ignore[arg-type]
    with pytest.raises(InvalidCall, match=r"split=.*join="):
        register(PlainClass)
    with pytest.raises(InvalidCall, match="both split and join"):
        register(PlainClass, split=lambda _: 1)
    with pytest.raises(InvalidCall, match="both split and join"):
        register(PlainClass, join=lambda _: PlainClass())
    with pytest.raises(InvalidCall, match="tag is a string"):
        register(TakenError, 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidCall, match="are functions"):
        register(PlainClass, split=5, join=6)  # type: ignore[arg-type]
    with pytest.raises(InvalidCall, match=r"tag .* is a string"):
        Opaque(5, {})  # type: ignore[arg-type]
    register(TakenError, "taken")
    with pytest.raises(InvalidCall, match=r"'taken' is taken by .*TakenError"):
        register(PlainClass, "taken", split=lambda _: 1, join=lambda _: PlainClass())
    with pytest.raises(InvalidCall, match="'numpy' is taken"):
        register(PlainClass, "numpy", split=lambda _: 1, join=lambda _: PlainClass())
    for cls in (int, str, dict, list, tuple, dt.datetime, ValueError, Opaque):
        with pytest.raises(InvalidCall, match="need not be registered"):
            register(cls)


def test_register_refuses_a_dataclass_with_built_in_content() -> None:
    @dataclass
    class Bag(dict[str, int]):
        label: str

    with pytest.raises(InvalidCall, match="split="):
        register(Bag)


def test_registering_again_has_no_effect() -> None:
    assert register(Task) is Task
    assert exactly(decode(encode(Task("t"))), Task("t"))


def test_unknown_tag_is_written_back_unchanged() -> None:
    data = to_bytes({"a": [1, _tagged("gone.Type", {"x": [1, (2,)], "y": {3}})], "b": _tagged("gone", None)})
    value = decode(data)
    assert type(value["a"][1]) is Opaque
    assert value["a"][1].tag == "gone.Type"
    assert exactly(value["a"][1].parts, {"x": [1, (2,)], "y": {3}})
    assert encode(value) == data
    frozen = decode_frozen(data)
    assert encode(frozen) == data
    assert exactly(plain(reveal(frozen, open_box)), value)


def test_unknown_tag_can_be_a_key() -> None:
    class Suit(enum.Enum):
        HEARTS = 1

    opaque = Opaque("gone.Suit", "HEARTS")
    value = {opaque: 1, (1, opaque): [2]}
    data = encode(value)
    assert exactly(decode(data), value)
    assert exactly(plain(decode_frozen(data)), value)
    assert encode(decode_frozen(data)) == data
    register(Suit, "gone.Suit")
    assert exactly(plain(decode_frozen(data)), {Suit.HEARTS: 1, (1, Suit.HEARTS): [2]})


def test_error_names_a_value_that_does_not_fit_its_class() -> None:
    data = encode(Opaque(f"{Inner.__module__}.Spot", [1, 2]))
    with pytest.raises(IncompatibleFormat, match=r"Spot.*not a dict"):
        decode(data)
    for name in ("Spot", "Model", "Message", "Point"):
        with pytest.raises(IncompatibleFormat, match=f"{name}.*does not fit"):
            decode(
                encode(
                    Opaque(f"{Inner.__module__}.{name}", [{}, set(), None, None] if name == "Model" else {})
                )
            )
    with pytest.raises(IncompatibleFormat, match=r"Color.*does not fit"):
        decode(encode(Opaque(f"{Inner.__module__}.Color", "GREEN")))


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(IncompatibleFormat, match="newer Holdfast"):
        decode(to_bytes(msgspec.msgpack.Ext(99, b"\xc0")))


def _tagged(tag: str, parts: Any) -> msgspec.msgpack.Ext:
    return msgspec.msgpack.Ext(24, to_bytes([tag, msgspec.Raw(encode(parts))]))


def test_nothing_is_imported_from_data(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"imported {args[0]}")

    data = encode([Opaque("os.system", "true"), Opaque("ast.literal_eval", "1")])
    monkeypatch.setattr("builtins.__import__", refuse)
    value = decode(data)
    monkeypatch.undo()
    assert [type(item) for item in value] == [Opaque, Opaque]
