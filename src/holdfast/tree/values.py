"""Which Python values can be stored, and how each turns into plain parts and back.

A *kind* knows one type: its extension code, how an object becomes parts (values that the codec can encode)
and how parts become an object again. Built-in types have kinds of their own; an application's types share
the code `TAGGED` and are told apart by the tag under which they were registered. Nothing is ever imported
by a name found in data: an unknown tag reads as `Opaque`, which survives being written back.

Invariant: `restore(split(x))` equals `x` in type and value, or `split` raises `UnsupportedValue`.
"""

from __future__ import annotations

import datetime as dt
import enum
import pathlib
import zoneinfo
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import is_dataclass
from decimal import Decimal
from fractions import Fraction
from types import UnionType
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from holdfast.errors import IncompatibleFormat, InvalidCall, UnknownTimeZone, UnsupportedValue
from holdfast.tree import records
from holdfast.tree.artifact import Artifact

T = TypeVar("T")

#: Types that the codec writes as they are.
NATIVE = frozenset((type(None), bool, int, float, str, bytes))

TAGGED = 24

#: What parts look like: one type, or a list of so many parts of these types.
Shape: TypeAlias = type | UnionType | tuple[type | UnionType, ...]


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
    #: Are the parts a list around what the object's own keys and indices name? Paths leave that list out.
    wrapped: bool = False


def _hash_parts(parts: Any) -> int:
    """Return a hash of parts that may hold lists and dicts; equal parts have one hash."""
    if isinstance(parts, dict):
        return hash(frozenset((key, _hash_parts(item)) for key, item in parts.items()))
    if isinstance(parts, list | tuple):
        return hash((isinstance(parts, list), *map(_hash_parts, parts)))
    if isinstance(parts, set):
        return hash(frozenset(parts))
    if isinstance(parts, bytearray):
        return hash(bytes(parts))
    try:
        return hash(parts)
    except TypeError:
        # An array or another leaf that could change.
        return hash(type(parts))


class Opaque:
    """A stored value of a type that this program has not registered; written back as it was read."""

    __slots__ = ("parts", "tag")

    def __init__(self, tag: str, parts: Any) -> None:
        if not isinstance(tag, str):
            raise InvalidCall(f"the tag of an opaque value is a string, not {tag!r:.60}")
        self.tag = tag
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and (self.tag, self.parts) == (other.tag, other.parts)

    def __hash__(self) -> int:
        return hash((self.tag, _hash_parts(self.parts)))

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
        raise InvalidCall(f"register takes a class, not {cls!r:.60}")
    if cls in NATIVE or cls in (dict, list) or (cls in _by_type and _by_type[cls].tag is None):
        raise InvalidCall(f"{cls.__name__} is stored as it is: there is nothing to register")
    if tag is not None and not isinstance(tag, str):
        raise InvalidCall(f"register({cls.__name__}): a tag is a string, not {tag!r:.60}")
    tag = tag or f"{cls.__module__}.{cls.__qualname__}"
    if tag == _NUMPY:
        raise InvalidCall(f"the tag {tag!r} is taken by arrays: register {cls!r} under another")
    if (split is None) != (join is None):
        raise InvalidCall(f"register({cls.__name__}): give both split and join, or neither")
    if split is not None and not (callable(split) and callable(join)):
        raise InvalidCall(f"register({cls.__name__}): split and join are functions")
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
        raise UnsupportedValue(_why_not(value), type=_name(cls))
    return kind


def parts_of(kind: Kind, value: Any) -> Any:
    """The parts of `value`, or `UnsupportedValue` if it cannot be taken apart."""
    try:
        return kind.split(value)
    except UnsupportedValue:
        raise
    except Exception as error:
        name = _name(type(value))
        raise UnsupportedValue(f"{name} cannot be taken apart: {error!r}", type=name) from error


def tag_of(kind: Kind, value: Any) -> str | None:
    """The tag under which `value` is stored, if it has one."""
    return value.tag if type(value) is Opaque else kind.tag


def restore(code: int, parts: Any) -> Any:
    """The object that `parts` of an extension code describe; `IncompatibleFormat` if they describe none,
    `UnknownTimeZone` if this machine lacks the zone of a time."""
    if code not in _by_code and code not in (TAGGED, *_ARRAYS):
        raise IncompatibleFormat(
            f"a value of kind {code} was written by a newer Holdfast: upgrade to read it", kind=code
        )
    if not _fits(parts, SHAPES[code]):
        raise IncompatibleFormat(f"a stored value of kind {code} is made of other parts", kind=code)
    try:
        return _restore(code, parts)
    except (RecursionError, UnknownTimeZone):
        raise
    except Exception as error:
        what = f"kind {code}" if code != TAGGED else f"type {parts[0]!r:.200}"
        raise IncompatibleFormat(
            f"a stored value of {what} does not fit what this program knows of it: {error!r}", kind=code
        ) from error


def _fits(parts: Any, shape: Shape) -> bool:
    if not isinstance(shape, tuple):
        return isinstance(parts, shape)
    return type(parts) is list and len(parts) == len(shape) and all(map(isinstance, parts, shape))


def _restore(code: int, parts: Any) -> Any:
    if code in _ARRAYS:
        return _restore_array(code, parts)
    if code != TAGGED:
        return _by_code[code].join(parts)
    tag, inner = parts
    if tag == _NUMPY:
        array_code, array_parts = inner
        if array_code not in _ARRAYS:
            raise ValueError(f"{array_code!r:.60} is not the code of an array or a scalar")
        return restore(array_code, array_parts)
    known = _by_tag.get(tag)
    return Opaque(tag, inner) if known is None else known[1].join(inner)


def is_constant_tag(tag: str) -> bool:
    """Is this the tag of a registered type whose objects cannot change?"""
    known = _by_tag.get(tag)
    return known is not None and not known[1].boxed


_NUMPY = "numpy"
_ARRAYS = (22, 23)


def _restore_array(code: int, parts: Any) -> Any:
    try:
        from holdfast.tree import arrays
    except ImportError:
        return Opaque(_NUMPY, [code, parts])
    return arrays.BY_CODE[code].join(parts)


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _why_not(value: Any) -> str:
    cls = type(value)
    name = _name(cls)
    registrable = (
        is_dataclass(cls)
        or issubclass(cls, enum.Enum | msgspec.Struct | Exception)
        or hasattr(cls, "_fields")
    )
    if registrable or hasattr(cls, "__pydantic_fields__"):
        return f"{name} is not registered: call holdfast.register({cls.__name__}) first"
    register = f"call holdfast.register({cls.__name__}, split=…, join=…) first"
    for kind in (str, int, float, bytes, dict, list, tuple, set):
        if isinstance(value, kind):
            return (
                f"{name} is a subclass of {kind.__name__} and would not come back as itself: {register}, or store "
                f"{kind.__name__}(…) of it"
            )
    return f"{name} cannot be stored: {register}, or use holdfast.sanitize(…)"


def _identity(cls: type) -> tuple[str, str]:
    return cls.__module__, cls.__qualname__


def _custom(tag: str, split: Callable[[Any], Any], join: Callable[[Any], Any]) -> Kind:
    return Kind(TAGGED, split, join, True, tag)


def _derive(cls: type, tag: str) -> Kind:
    if issubclass(cls, enum.Flag):
        # A combination of flags has no name that the class could be asked for.
        return Kind(TAGGED, lambda member: member.value, cls, False, tag)
    if issubclass(cls, enum.Enum):
        return Kind(TAGGED, lambda member: member.name, lambda name: cls[name], False, tag)
    if issubclass(cls, msgspec.Struct):
        return Kind(TAGGED, records.split_struct, lambda parts: records.join_struct(cls, parts), True, tag)
    if issubclass(cls, BaseException):
        return Kind(
            TAGGED,
            records.split_error,
            lambda parts: records.join_error(cls, *parts),
            True,
            tag,
            wrapped=True,
        )
    if is_dataclass(cls) and not issubclass(cls, CONTENT):
        return Kind(
            TAGGED, records.split_dataclass, lambda parts: records.join_dataclass(cls, parts), True, tag
        )
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return Kind(TAGGED, records.split_named, lambda parts: records.join_named(cls, parts), False, tag)
    if hasattr(cls, "__pydantic_fields__"):
        return Kind(
            TAGGED, records.split_model, lambda parts: records.join_model(cls, parts), True, tag, wrapped=True
        )
    raise InvalidCall(
        f"{cls.__name__} is neither a dataclass, enum, named tuple, msgspec struct, pydantic model "
        f"nor exception: call holdfast.register({cls.__name__}, split=…, join=…)"
    )


def _split_zone(zone: dt.tzinfo | None) -> Any:
    if zone is None:
        return None
    if type(zone) is zoneinfo.ZoneInfo and zone.key and _is_known(zone.key):
        return zone.key
    if type(zone) is dt.timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        return [_split_delta(offset), None if name == dt.timezone(offset).tzname(None) else name]
    raise UnsupportedValue(f"time zone {zone!r} cannot be stored: use zoneinfo.ZoneInfo or datetime.timezone")


def _is_known(key: str) -> bool:
    """Is there a time zone of this name? One that was read from a file may have any."""
    try:
        _zone(key)
    except UnknownTimeZone:
        return False
    return True


def _zone(key: str) -> zoneinfo.ZoneInfo:
    try:
        return zoneinfo.ZoneInfo(key)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise UnknownTimeZone(
            f"the time zone {key!r:.60} is not known on this machine, so a stored time cannot be read: install or "
            "upgrade the package tzdata (pip install -U tzdata); all else stays readable",
            zone=key,
        ) from error


def _join_zone(parts: Any) -> dt.tzinfo | None:
    if parts is None:
        return None
    if isinstance(parts, str):
        return _zone(parts)
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


#: The names under which paths are stored: a `Path` of a POSIX system is called "Path".
_PATH_NAMES = {
    pathlib.PosixPath: "Path",
    pathlib.WindowsPath: "WindowsPath",
    pathlib.PurePosixPath: "PurePosixPath",
    pathlib.PureWindowsPath: "PureWindowsPath",
}
#: Built-in types: a class of the application that derives from one of these holds more than its fields.
CONTENT = (dict, list, tuple, set, frozenset, str, bytes, bytearray, int, float, complex, deque)


def path_classes(own: type[pathlib.Path]) -> dict[str, type[pathlib.PurePath]]:
    """Return the class for each name of a stored path, on a system whose own paths are of the class `own`. A path of
    the other kind of system keeps its flavour and is pure: it means nothing here."""
    posix, windows = pathlib.PurePosixPath, pathlib.PureWindowsPath
    return {
        "Path": own if issubclass(own, posix) else posix,
        "WindowsPath": own if issubclass(own, windows) else windows,
        "PurePosixPath": posix,
        "PureWindowsPath": windows,
    }


_plain_path = type(pathlib.Path())
_paths = path_classes(_plain_path)


def _join_path(parts: list[str]) -> pathlib.PurePath:
    name, text = parts
    return _paths[name](text)


def _split_path(value: pathlib.PurePath) -> list[str]:
    return [_PATH_NAMES[type(value)], str(value)]


def _split_artifact(value: Artifact) -> list[Any]:
    """What cannot be read back is not written, either: a handle can be made by hand."""
    parts = [value.digest, value.size, value.name]
    _join_artifact(parts)
    return parts


def _join_artifact(parts: list[Any]) -> Artifact:
    digest, size, name = parts
    if type(size) is not int or size < 0 or not (name is None or type(name) is str):
        raise ValueError("an artifact has a digest, a size and perhaps a name")
    if len(bytes.fromhex(digest)) != 32:
        raise ValueError("the digest of an artifact is a SHA-256 in hexadecimal digits")
    return Artifact(digest, size, name)


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
    Fraction: Kind(
        13, lambda value: [value.numerator, value.denominator], lambda parts: Fraction(*parts), False
    ),
    complex: Kind(14, lambda value: [value.real, value.imag], lambda parts: complex(*parts), False),
    UUID: Kind(15, lambda value: value.bytes, lambda parts: UUID(bytes=parts), False),
    _plain_path: Kind(16, _split_path, _join_path, False),
    pathlib.PurePosixPath: Kind(16, _split_path, _join_path, False),
    pathlib.PureWindowsPath: Kind(16, _split_path, _join_path, False),
    bytearray: Kind(17, bytes, bytearray, True),
    deque: Kind(
        18, lambda value: [list(value), value.maxlen], lambda parts: deque(*parts), True, wrapped=True
    ),
    OrderedDict: Kind(19, dict, OrderedDict, True),
    range: Kind(20, lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts), False),
    Artifact: Kind(25, _split_artifact, _join_artifact, True),
    Opaque: Kind(TAGGED, lambda value: value.parts, lambda parts: parts, True),
}
#: What the parts of each kind must look like. Checked before anything is made of them: a few bytes from elsewhere must
#: not become a large object, nor another than the kind's own.
SHAPES: dict[int, Shape] = {
    3: list,
    4: list,
    5: list,
    7: (str, int, object),
    8: str,
    9: (str, int, object),
    10: (int, int, int),
    11: str | list,
    12: str,
    13: (int, int),
    14: (float | int, float | int),
    15: bytes,
    16: (str, str),
    17: bytes,
    18: (list, int | None),
    19: dict,
    20: (int, int, int),
    21: (str, list, dict),
    22: (str | list, list, bytes),
    23: (str, bytes | str),
    TAGGED: (str, object),
    25: (str, int, str | None),
}
#: Types whose values cannot change and hold nothing that could.
SIMPLE = NATIVE | {cls for cls, kind in _by_type.items() if not kind.boxed and cls is not tuple}
_error_kind = Kind(
    21,
    lambda error: [type(error).__name__, *records.split_error(error)],
    lambda parts: records.join_error(records.BUILTIN_ERRORS[parts[0]], *parts[1:]),
    True,
    wrapped=True,
)
_by_type.update(dict.fromkeys(records.BUILTIN_ERRORS.values(), _error_kind))
_by_code = {kind.code: kind for kind in _by_type.values() if kind.code != TAGGED}
_by_tag: dict[str, tuple[type, Kind]] = {}
