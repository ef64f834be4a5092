"""Exact equality for tests: type, value, order and every bit, unlike `==`.

Invariant: a type that is not known here is an error, never taken for equal.
"""

from __future__ import annotations

import datetime as dt
import enum
import pathlib
import struct
import zoneinfo
from collections import OrderedDict, deque
from dataclasses import fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

import msgspec
import numpy as np
import pydantic

from holdfast.tree.artifact import Artifact
from holdfast.tree.frozen import FrozenDict, FrozenList
from holdfast.tree.values import Opaque

_BY_EQUALITY = (type(None), bool, int, str, bytes, bytearray, dt.date, dt.timedelta, Fraction, UUID)
_ERROR_ATTRIBUTES = (
    *("errno", "strerror", "filename", "filename2", "name", "path", "code", "value", "exceptions"),
    *("encoding", "object", "start", "end", "reason", "msg", "lineno", "offset", "text"),
)


def exactly(one: Any, other: Any) -> bool:
    """Are two plain values the same in type, value, order and bits?"""
    kind = type(one)
    if kind is not type(other):
        return False
    if kind in _BY_EQUALITY:
        return bool(one == other)
    if kind is float:
        return struct.pack("d", one) == struct.pack("d", other)
    if kind is complex:
        return exactly([one.real, one.imag], [other.real, other.imag])
    if isinstance(one, enum.Enum):
        return one is other
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(exactly, one, other))
    if kind is deque:
        return one.maxlen == other.maxlen and exactly(list(one), list(other))
    if kind is dict or kind is OrderedDict:
        return exactly(list(one.items()), list(other.items()))
    if kind is set or kind is frozenset:
        return len(one) == len(other) and all(any(exactly(a, b) for b in other) for a in one)
    if is_dataclass(one):
        return all(exactly(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, BaseException):
        return _same_error(one, other)
    return _same_object(one, other)


def plain(value: Any) -> Any:
    """A frozen tree with its containers made ordinary and its leaves left alone."""
    kind = type(value)
    if isinstance(value, FrozenDict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, FrozenList):
        return [plain(item) for item in value]
    return tuple.__new__(kind, map(plain, value)) if isinstance(value, tuple) else value


def _same_error(one: BaseException, other: BaseException) -> bool:
    return (
        exactly(one.args, other.args)
        and exactly(one.__dict__, other.__dict__)
        and all(
            exactly(getattr(one, name, None), getattr(other, name, None))
            for name in _ERROR_ATTRIBUTES
            if name not in one.__dict__
        )
    )


def _same_object(one: Any, other: Any) -> bool:
    kind = type(one)
    if kind is np.ndarray:
        if (one.dtype, one.dtype.type, one.shape) != (other.dtype, other.dtype.type, other.shape):
            return False
        if one.dtype.names is not None:  # its padding is not part of the value
            return all(exactly(one[name], other[name]) for name in one.dtype.names)
        return bool(one.tobytes() == other.tobytes())
    if isinstance(one, np.str_):
        return str.__eq__(one, other)
    if isinstance(one, np.bytes_):
        return bytes.__eq__(one, other)
    if isinstance(one, np.generic):
        return one.dtype == other.dtype and bool(one.tobytes() == other.tobytes())
    if isinstance(one, msgspec.Struct):
        return exactly(msgspec.structs.astuple(one), msgspec.structs.astuple(other))
    if isinstance(one, pydantic.BaseModel):
        parts = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
        return all(exactly(getattr(one, part), getattr(other, part)) for part in parts)
    if kind is dt.datetime or kind is dt.time:
        naive = one.replace(tzinfo=None) == other.replace(tzinfo=None)
        return naive and one.fold == other.fold and exactly(one.tzinfo, other.tzinfo)
    if kind is dt.timezone:
        return exactly([one.utcoffset(None), one.tzname(None)], [other.utcoffset(None), other.tzname(None)])
    if kind is zoneinfo.ZoneInfo:
        return bool(one.key == other.key)
    if kind is Decimal:
        return exactly(one.as_tuple(), other.as_tuple())
    if isinstance(one, pathlib.PurePath):
        return str(one) == str(other)
    if kind is range:
        return exactly([one.start, one.stop, one.step], [other.start, other.stop, other.step])
    if kind is Opaque:
        return exactly([one.tag, one.parts], [other.tag, other.parts])
    if kind is Artifact:
        return exactly([one.digest, one.size, one.name], [other.digest, other.size, other.name])
    if hasattr(kind, "fields_for_test"):
        return exactly(one.fields_for_test(), other.fields_for_test())
    raise AssertionError(f"exactly() does not know {kind!r}")
