"""Which Python values can be stored, and how each turns into plain parts and back.

A *kind* knows one type: its extension code, how an object becomes parts (values that the codec can encode)
and how parts become an object again. Built-in types have kinds of their own; an application's types share
the code `TAGGED` and are told apart by the tag under which they were registered. Nothing is ever imported
by a name found in data: an unknown tag reads as `Opaque`, which survives being written back.

Invariant: `restore(split(x))` equals `x` in type and value, or `split` raises `UnsupportedValue`.
"""

from __future__ import annotations

import builtins
import datetime as dt
import enum
import pathlib
import zoneinfo
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import MISSING, fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

import msgspec

from holdfast.errors import InvalidCall, UnsupportedValue
from holdfast.tree.artifact import Artifact

T = TypeVar("T")

#: Types that the codec writes as they are.
NATIVE = frozenset((type(None), bool, int, float, str, bytes))

TAGGED = 24


class Kind(NamedTuple):
    """How one type is stored."""

    code: int
    #: Object to parts.
    split: Callable[[Any], Any]
    #: Parts to object.
    join: Callable[[Any], Any]
    #: Can an object of it change, or hold something that can? Then a tree keeps it boxed.
    boxed: bool
    #: Set for registered types only.
    tag: str | None = None


class Opaque:
    """A stored value of a type that this program has not registered; written back as it was read."""

    __slots__ = ("parts", "tag")

    def __init__(self, tag: str, parts: Any) -> None:
        self.tag = tag
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and (self.tag, self.parts) == (other.tag, other.parts)

    def __hash__(self) -> int:
        return hash(self.tag)

    def __repr__(self) -> str:
        return f"Opaque({self.tag!r}, {self.parts!r})"


def register(
    cls: type[T],
    tag: str | None = None,
    *,
    split: Callable[[T], Any] | None = None,
    join: Callable[[Any], T] | None = None,
) -> type[T]:
    """Let values of `cls` be stored, under `tag` (default: module and name). Usable as a decorator.

    Dataclasses, enums, named tuples, msgspec structs, pydantic models and exceptions need nothing more;
    for another class give `split` (object to storable parts) and `join` (parts to object). Registering the
    same class again under the same tag is harmless.
    """
    if not isinstance(cls, type):
        raise InvalidCall(f"register takes a class, not {cls!r}")
    tag = tag or f"{cls.__module__}.{cls.__qualname__}"
    if (split is None) != (join is None):
        raise InvalidCall(f"register({cls.__name__}): give both split and join, or neither")
    taken = _by_tag.get(tag)
    if taken is not None and taken[0] is not cls and _identity(taken[0]) != _identity(cls):
        raise InvalidCall(f"the tag {tag!r} is taken by {taken[0]!r}: register {cls!r} under another")
    kind = _custom(tag, split, join) if split and join else _derive(cls, tag)
    _by_type[cls] = kind
    _by_tag[tag] = (cls, kind)
    return cls


def kind_of(value: Any) -> Kind:
    """The kind that stores `value`, or `UnsupportedValue`."""
    cls = type(value)
    kind = _by_type.get(cls)
    if kind is None and cls.__module__ == "numpy":
        from holdfast.tree import arrays

        kind = arrays.kind(value)
        if kind is not None:
            _by_type[cls] = kind
    if kind is None:
        raise UnsupportedValue(_why_not(value), type=f"{cls.__module__}.{cls.__qualname__}")
    return kind


def restore(code: int, parts: Any) -> Any:
    """The object that `parts` of an extension code describe."""
    if code == TAGGED:
        tag, inner = parts
        if tag == _NUMPY:
            return _restore_array(*inner)
        known = _by_tag.get(tag)
        return Opaque(tag, inner) if known is None else known[1].join(inner)
    if code in (22, 23):
        return _restore_array(code, parts)
    kind = _by_code.get(code)
    if kind is None:
        raise LookupError(code)
    return kind.join(parts)


def is_constant_tag(tag: str) -> bool:
    """Is this the tag of a registered type whose objects cannot change?"""
    known = _by_tag.get(tag)
    return known is not None and not known[1].boxed


_NUMPY = "numpy"


def _restore_array(code: int, parts: Any) -> Any:
    try:
        from holdfast.tree import arrays
    except ImportError:
        return Opaque(_NUMPY, [code, parts])
    return arrays.BY_CODE[code].join(parts)


def _why_not(value: Any) -> str:
    cls = type(value)
    name = f"{cls.__module__}.{cls.__qualname__}"
    registrable = (
        is_dataclass(cls) or issubclass(cls, enum.Enum | msgspec.Struct | Exception) or hasattr(cls, "_fields")
    )
    if registrable or hasattr(cls, "__pydantic_fields__"):
        return f"{name} is not registered: call holdfast.register({cls.__name__}) first"
    if isinstance(value, str | int | float | bytes | dict | list | tuple | set):
        return f"{name} is a subclass of a built-in type and would not come back as itself: register it"
    return f"{name} cannot be stored: register it with split and join, or use holdfast.sanitize(…)"


def _identity(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _custom(tag: str, split: Callable[[Any], Any], join: Callable[[Any], Any]) -> Kind:
    return Kind(TAGGED, split, join, True, tag)


def _derive(cls: type, tag: str) -> Kind:
    if issubclass(cls, enum.Enum):
        return Kind(TAGGED, lambda member: member.name, lambda name: cls[name], False, tag)
    if issubclass(cls, msgspec.Struct):
        return Kind(TAGGED, _split_struct, lambda parts: cls(**parts), True, tag)
    if is_dataclass(cls):
        return Kind(TAGGED, _split_dataclass, lambda parts: _join_dataclass(cls, parts), True, tag)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return Kind(TAGGED, _split_named, lambda parts: tuple.__new__(cls, parts.values()), False, tag)
    if hasattr(cls, "__pydantic_fields__"):
        return Kind(TAGGED, _split_model, lambda parts: _join_model(cls, parts), True, tag)
    if issubclass(cls, BaseException):
        return Kind(TAGGED, _split_error, lambda parts: _join_error(cls, parts), True, tag)
    raise InvalidCall(
        f"{cls.__name__} is neither a dataclass, enum, named tuple, msgspec struct, pydantic model nor exception: "
        f"call holdfast.register({cls.__name__}, split=…, join=…)"
    )


def _split_named(obj: Any) -> dict[str, Any]:
    return dict(zip(obj._fields, obj, strict=True))


def _split_struct(obj: Any) -> dict[str, Any]:
    return {name: getattr(obj, name) for name in obj.__struct_fields__}


def _split_dataclass(obj: Any) -> dict[str, Any]:
    parts = {field.name: getattr(obj, field.name) for field in fields(obj)}
    extra = getattr(obj, "__dict__", {}).keys() - parts.keys()
    if extra:
        raise UnsupportedValue(f"{type(obj).__name__} carries attributes beyond its fields: {sorted(extra)}")
    return parts


def _join_dataclass(cls: type, parts: dict[str, Any]) -> Any:
    obj = cls.__new__(cls)
    for field in fields(cls):
        if field.name in parts:
            value = parts[field.name]
        elif field.default is not MISSING:
            value = field.default
        elif field.default_factory is not MISSING:
            value = field.default_factory()
        else:
            continue
        object.__setattr__(obj, field.name, value)
    return obj


_MODEL_PARTS = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")


def _split_model(obj: Any) -> list[Any]:
    return [dict(obj.__dict__), obj.__pydantic_fields_set__, obj.__pydantic_extra__, obj.__pydantic_private__]


def _join_model(cls: type, parts: list[Any]) -> Any:
    obj = cls.__new__(cls)
    for name, value in zip(_MODEL_PARTS, parts, strict=True):
        object.__setattr__(obj, name, value)
    return obj


def _split_error(error: BaseException) -> list[Any]:
    return [list(error.args), dict(error.__dict__)]


def _join_error(cls: type, parts: list[Any]) -> Any:
    args, attributes = parts
    error = cls.__new__(cls, *args)
    error.args = tuple(args)
    error.__dict__.update(attributes)
    return error


def _join_builtin_error(name: str, args: list[Any], attributes: dict[str, Any]) -> Any:
    error = _ERRORS[name](*args)
    error.__dict__.update(attributes)
    return error


def _split_zone(zone: dt.tzinfo | None) -> Any:
    if zone is None:
        return None
    if type(zone) is zoneinfo.ZoneInfo and zone.key:
        return zone.key
    if type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        return [_split_delta(offset), None if name == dt.timezone(offset).tzname(None) else name]
    raise UnsupportedValue(f"time zone {zone!r} cannot be stored: use zoneinfo.ZoneInfo or datetime.timezone")


def _join_zone(parts: Any) -> dt.tzinfo | None:
    if parts is None:
        return None
    if isinstance(parts, str):
        return zoneinfo.ZoneInfo(parts)
    offset, name = parts
    if name is None:
        zero = offset == [0, 0, 0]
        return dt.UTC if zero else dt.timezone(dt.timedelta(*offset))
    return dt.timezone(dt.timedelta(*offset), name)


def _split_delta(delta: dt.timedelta) -> list[int]:
    return [delta.days, delta.seconds, delta.microseconds]


def _split_time(value: Any) -> list[Any]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _split_zone(value.tzinfo)]


def _join_time(cls: Any) -> Callable[[Any], Any]:
    return lambda parts: cls.fromisoformat(parts[0]).replace(fold=parts[1], tzinfo=_join_zone(parts[2]))


def _split_set(value: Any) -> list[Any]:
    """In an order of its own, so that equal sets have equal bytes."""
    from holdfast.tree.codec import encode

    return sorted(value, key=encode)


_PATHS = {cls.__name__: cls for cls in (pathlib.PurePosixPath, pathlib.PureWindowsPath)}
_ERRORS = {
    name: cls
    for name, cls in vars(builtins).items()
    if isinstance(cls, type) and issubclass(cls, BaseException) and not issubclass(cls, BaseExceptionGroup)
}


def _join_path(parts: list[str]) -> Any:
    name, text = parts
    return pathlib.Path(text) if name == "Path" else _PATHS[name](text)


_plain_path = type(pathlib.Path())

_by_type: dict[type, Kind] = {
    tuple: Kind(3, list, tuple, False),
    set: Kind(4, _split_set, set, True),
    frozenset: Kind(5, _split_set, frozenset, False),
    dt.datetime: Kind(7, _split_time, _join_time(dt.datetime), False),
    dt.date: Kind(8, lambda value: value.isoformat(), dt.date.fromisoformat, False),
    dt.time: Kind(9, _split_time, _join_time(dt.time), False),
    dt.timedelta: Kind(10, _split_delta, lambda parts: dt.timedelta(*parts), False),
    dt.timezone: Kind(11, _split_zone, _join_zone, False),
    zoneinfo.ZoneInfo: Kind(11, _split_zone, _join_zone, False),
    Decimal: Kind(12, str, Decimal, False),
    Fraction: Kind(13, lambda value: [value.numerator, value.denominator], lambda parts: Fraction(*parts), False),
    complex: Kind(14, lambda value: [value.real, value.imag], lambda parts: complex(*parts), False),
    UUID: Kind(15, lambda value: value.bytes, lambda parts: UUID(bytes=parts), False),
    _plain_path: Kind(16, lambda value: ["Path", str(value)], _join_path, False),
    pathlib.PurePosixPath: Kind(16, lambda value: ["PurePosixPath", str(value)], _join_path, False),
    pathlib.PureWindowsPath: Kind(16, lambda value: ["PureWindowsPath", str(value)], _join_path, False),
    bytearray: Kind(17, bytes, bytearray, True),
    deque: Kind(18, lambda value: [list(value), value.maxlen], lambda parts: deque(*parts), True),
    OrderedDict: Kind(19, dict, OrderedDict, True),
    range: Kind(20, lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts), False),
    Artifact: Kind(25, lambda value: [value.digest, value.size, value.name], lambda parts: Artifact(*parts), True),
    Opaque: Kind(TAGGED, lambda value: value.parts, lambda parts: parts, True),
}
_error_kind = Kind(
    21,
    lambda error: [type(error).__name__, list(error.__reduce__()[1]), dict(error.__dict__)],
    lambda parts: _join_builtin_error(*parts),
    True,
)
_by_type.update(dict.fromkeys(_ERRORS.values(), _error_kind))
_by_code = {kind.code: kind for kind in _by_type.values() if kind.code != TAGGED}
_by_tag: dict[str, tuple[type, Kind]] = {}
