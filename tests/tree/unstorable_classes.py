"""Classes whose objects cannot be stored, for the tests of `sanitize`."""

from __future__ import annotations

import datetime as dt
import enum
from collections import deque, namedtuple
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pydantic


class Plain:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class Hollow:
    __slots__ = ()


class WithSlots:
    __slots__ = ("_hidden", "shown", "unset")

    def __init__(self) -> None:
        self.shown = [1]
        self._hidden = 2


@dataclass
class Unregistered:
    title: str
    parts: list[Any] = field(default_factory=list)


class UnregisteredModel(pydantic.BaseModel):
    x: int = 1


class UnregisteredStruct(msgspec.Struct):
    x: int = 1


class UnregisteredError(Exception):
    pass


class Shade(enum.IntEnum):
    DARK = 1


Row: Any = namedtuple("Row", "left right")


class MyInt(int):
    def __int__(self) -> int:
        raise RuntimeError("not mine to call")


class MyStr(str):
    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("not mine to call")


class MyList(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("not mine to call")


class MyDict(dict[Any, Any]):
    def items(self) -> Any:
        raise RuntimeError("not mine to call")


class MySet(set[Any]):
    pass


class MyTuple(tuple[Any, ...]):
    __slots__ = ()


class MyDeque(deque[Any]):
    pass


class OddZone(dt.tzinfo):
    def utcoffset(self, _: Any) -> dt.timedelta:
        return dt.timedelta(hours=1)

    def dst(self, _: Any) -> None:
        return None

    def tzname(self, _: Any) -> str:
        return "odd"
