"""A value of every storable type, by name, and the registered types that they need."""

from __future__ import annotations

import datetime as dt
import enum
import pathlib
import struct
import zoneinfo
from collections import OrderedDict, deque, namedtuple
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
import numpy as np
import pydantic

from holdfast.tree.artifact import Artifact
from holdfast.tree.values import Opaque, register


@register
class Color(enum.Enum):
    RED = 1
    BLUE = "blue"


@register
class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@register
class Word(enum.StrEnum):
    A = "a"


@register
class Perm(enum.Flag):
    READ = 1
    WRITE = 2


@register
class IntPerm(enum.IntFlag):
    READ = 1
    WRITE = 2


@register
@dataclass
class Task:
    title: str
    done: bool = False
    notes: list[Any] = field(default_factory=list)


@register
@dataclass(frozen=True)
class Spot:
    x: int
    y: int


@register
@dataclass(slots=True)
class Slotted:
    x: Any
    y: Any = None


@register
@dataclass(kw_only=True)
class Guarded:
    """Its constructor must not run again when it is read."""

    x: int

    def __post_init__(self) -> None:
        self.x += 1


Pair: Any = register(namedtuple("Pair", "left right"))


@register
class Point(NamedTuple):
    x: Any
    y: Any = 0


@register
class Message(msgspec.Struct):
    role: str
    content: Any = None


@register
class FrozenMessage(msgspec.Struct, frozen=True, kw_only=True):
    role: str


@register
class Inner(pydantic.BaseModel):
    n: int = 0


@register
class Model(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str
    inner: Inner = Inner()
    count: int = 3
    _secret: int = pydantic.PrivateAttr(default=7)


@register
class TwoError(Exception):
    def __init__(self, task: str, code: int) -> None:
        super().__init__(f"{task} failed with {code}")
        self.task = task
        self.code = code


@register
class KeywordError(ValueError):
    def __init__(self, *, why: str) -> None:
        self.why = why


@register
class FileError(OSError):
    def __init__(self, path: str) -> None:
        super().__init__(2, "No such file", path)
        self.tried = 3


@register
class BothError(KeyError, AttributeError):
    """Two of Python's own exceptions at once."""


@register
@dataclass
class DataError(Exception):
    reason: str


class Money:
    """A class of its own, registered with split and join."""

    def __init__(self, cents: int) -> None:
        self.cents = cents

    def fields_for_test(self) -> list[int]:
        return [self.cents]


register(Money, "money", split=lambda money: money.cents, join=Money)


def _noted(error: Exception, *notes: str) -> Exception:
    for note in notes:
        error.add_note(note)
    return error


def _caught(code: str) -> Exception:
    try:
        exec(code, {})
    except Exception as error:
        return error
    raise AssertionError(code)


def _model() -> Model:
    model = Model(name="m", inner=Inner(n=1), other=[1, 2])  # type: ignore[call-arg]
    model._secret = 8
    return model


BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NAMED_ZONE = dt.timezone(dt.timedelta(hours=-3, seconds=7), "HOME")
ODD_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000123))[0]
DIGEST = "ab" * 32

#: Every hashable value here that nothing can change is a possible dict key.
CONSTANT: dict[str, Any] = {
    "none": None,
    "true": True,
    "false": False,
    "zero": 0,
    "one": 1,
    "minus": -1,
    "exact": 2**53,
    "inexact": 2**53 + 1,
    "int64": -(2**63),
    "uint64": 2**64 - 1,
    "beyond uint64": 2**64,
    "below int64": -(2**63) - 1,
    "huge": 3**2000,
    "huge negative": -(7**20000),
    "float": 1.5,
    "float one": 1.0,
    "float zero": 0.0,
    "minus zero": -0.0,
    "nan": float("nan"),
    "odd nan": ODD_NAN,
    "inf": float("inf"),
    "minus inf": float("-inf"),
    "tiny": 5e-324,
    "empty": "",
    "text": "héllo 🌍\x00\n\\u0041",
    "surrogate": "a\ud800b",
    "surrogates": "\\\ud83d\ude00é",
    "marker": "$holdfast",
    "bytes": b"\x00\xff",
    "no bytes": b"",
    "empty tuple": (),
    "tuple": (1, "a", (2.0, None)),
    "frozenset": frozenset([1, "a", (2,), frozenset([3])]),
    "datetime": dt.datetime(2024, 2, 29, 1, 2, 3, 4),  # noqa: DTZ001
    "datetime utc": dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
    "datetime offset": dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=45))),
    "datetime named": dt.datetime(2024, 1, 1, tzinfo=NAMED_ZONE),
    "datetime zone": dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN),
    "datetime fold": dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN, fold=1),
    "naive fold": dt.datetime(2024, 10, 27, 2, 30, fold=1),  # noqa: DTZ001
    "date": dt.date(9999, 12, 31),
    "time": dt.time(23, 59, 59, 999999),
    "time zone": dt.time(1, tzinfo=dt.UTC, fold=1),
    "timedelta": dt.timedelta(days=-1, seconds=5, microseconds=7),
    "utc": dt.UTC,
    "timezone": dt.timezone(dt.timedelta(seconds=-1)),
    "named timezone": NAMED_ZONE,
    "zoneinfo": BERLIN,
    "decimal": Decimal("1.10"),
    "decimal nan": Decimal("NaN123"),
    "decimal minus nan": Decimal("-NaN"),
    "decimal inf": Decimal("-Infinity"),
    "decimal zero": Decimal("-0E+7"),
    "fraction": Fraction(-1, 3),
    "complex": complex(1, -2),
    "complex zeros": complex(-0.0, -0.0),
    "complex nan": complex(float("nan"), float("-inf")),
    "uuid": UUID(int=5),
    "path": pathlib.Path("/a/b c"),
    "relative path": pathlib.Path(),
    "surrogate path": pathlib.PurePosixPath("a/\udcff"),
    "posix path": pathlib.PurePosixPath("a/b"),
    "windows path": pathlib.PureWindowsPath("C:\\a"),
    "enum": Color.RED,
    "int enum": Level.HIGH,
    "str enum": Word.A,
    "flag": Perm.READ,
    "flags": Perm.READ | Perm.WRITE,
    "no flag": Perm(0),
    "int flags": IntPerm.READ | IntPerm.WRITE,
    "unknown int flags": IntPerm(9),
    "namedtuple": Pair(1, "b"),
    "typed namedtuple": Point(1),
    "range": range(10, 0, -(2**70)),
    "np float": np.float64(1.5),
    "np minus zero": np.float32(-0.0),
    "np nan": np.float16("nan"),
    "np int": np.int8(-5),
    "np longlong": np.longlong(5),
    "np bool": np.bool_(True),
    "np complex": np.complex64(1 + 2j),
    "np datetime": np.datetime64("2024-01-01T00:00", "m"),
    "np not a time": np.datetime64("NaT"),
    "np timedelta": np.timedelta64(5, "D"),
    "np str": np.str_("é\x00"),
    "np empty str": np.str_(""),
    "np bytes": np.bytes_(b"a\x00"),
    "np empty bytes": np.bytes_(b""),
}

#: Values that could change, or hold something that could.
CHANGING: dict[str, Any] = {
    "list": [1, [2, []], {}],
    "dict": {"b": 1, "a": {"c": []}},
    "dict of odd keys": {None: 1, True: 2, 2: 3, 1.5: 4, b"x": 5, (1, ("a",)): 6, 2**80: 7, "\ud800": 8},
    "dict of objects": {dt.date(2024, 1, 1): 1, Color.RED: [2], Word.A: 3, frozenset([1]): 4, np.int8(9): 5},
    "dict with marker": {"$holdfast": "tuple", "value": [1]},
    "dict within marker": {"a": {"$holdfast": {"$holdfast": 1}}, "value": 1},
    "tuple of list": (1, [2, {"a": (3, set())}]),
    "decimal signaling": Decimal("sNaN"),
    "set": {1, "a", (2,), None, 2.5},
    "empty set": set(),
    "set of look-alikes": {"1", 1, b"1", Decimal("1.5"), Spot(1, 2)},
    "bytearray": bytearray(b"ab"),
    "deque": deque([1, [2]], maxlen=5),
    "unbounded deque": deque(),
    "ordereddict": OrderedDict([("b", 1), ((1, 2), {"a": []})]),
    "dataclass": Task("t", True, [1, {"a": Task("inner")}]),
    "frozen dataclass": Spot(1, -2),
    "slotted dataclass": Slotted((1, 2), {3}),
    "guarded dataclass": Guarded(x=1),
    "namedtuple of list": Point([1], {2}),
    "struct": Message("user", [Message("x")]),
    "frozen struct": FrozenMessage(role="r"),
    "model": _model(),
    "small model": Model(name="n"),
    "custom": Money(5),
    "error": ValueError("bad", 1),
    "error no args": ValueError(),
    "key error": KeyError("k"),
    "os error": FileNotFoundError(2, "No such file", "a.txt"),
    "os error two files": OSError(18, "cross-device", "a", None, "b"),
    "os error text": OSError("odd"),
    "unicode error": UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"),
    "stop iteration": StopIteration(5),
    "system exit": SystemExit(3),
    "interrupt": KeyboardInterrupt(),
    "import error": ImportError("no", name="mod", path="/x"),
    "caught import": _caught("import holdfast_is_not_here"),
    "caught name": _caught("missing_name"),
    "caught attribute": _caught("''.missing"),
    "caught syntax": _caught("a b"),
    "noted error": _noted(TimeoutError("slow"), "first", "second"),
    "error group": ExceptionGroup("two", [ValueError(1), ExceptionGroup("in", [KeyError("k")])]),
    "base group": BaseExceptionGroup("odd", [KeyboardInterrupt()]),
    "custom error": TwoError("t", 5),
    "noted custom error": _noted(TwoError("t", 5), "note"),
    "keyword error": KeywordError(why="w"),
    "custom os error": FileError("f.txt"),
    "double error": BothError("b"),
    "data error": DataError("r"),
    "array": np.arange(6, dtype="<i4").reshape(2, 3),
    "array floats": np.array([0.0, -0.0, float("nan"), float("inf")]),
    "array big endian": np.array([1, 2], dtype=">u8"),
    "array bool": np.array([True, False]),
    "array longlong": np.array([1], dtype=np.longlong),
    "array text": np.array(["a", "é🌍", ""]),
    "array bytes": np.array([b"a", b"bc"]),
    "array times": np.array(["2024-01-01", "NaT"], dtype="M8[ns]"),
    "array complex": np.array([1 + 2j]),
    "array structured": np.array([(1, 2.5, b"x")], dtype=[("a", "<i2"), ("b", ">f8"), ("c", "S3")]),
    "array nested": np.zeros(2, dtype=[("p", [("x", "<f4"), ("y", "<f4", (2, 3))]), ("q", "?")]),
    "array aligned": np.zeros(2, dtype=np.dtype([("a", "i1"), ("b", "f8")], align=True)),
    "array 0-d": np.array(5.5),
    "array empty": np.zeros((0, 3), dtype="f4"),
    "array empty text": np.zeros(3, dtype="U0"),
    "array strided": np.arange(20).reshape(4, 5)[::2, ::-2],
    "array fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "opaque": Opaque("not.registered", {"a": [1, (2,)], "b": {3}}),
    "artifact": Artifact(DIGEST, 10, "report.pdf"),
    "nameless artifact": Artifact(DIGEST, 0),
}

CASES: dict[str, Any] = {**CONSTANT, **CHANGING}
