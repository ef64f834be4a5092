"""The types that can be stored, and the conversion of their values to plain parts and back.

A `Kind` describes one type: its extension code, a function from object to parts (values that the codec can encode) and
one back. Built-in types have codes of their own; types of the application share the code `TAGGED` and are identified by
the tag of their registration. Nothing is imported by a name found in data: an unknown tag reads as `Opaque`, which can
be written back.

Objects of the application's classes are restored without calling their constructors, except for msgspec structs. Fields
that the class gained since get their default; fields that it lost are dropped.

Invariant: `restore(split(x))` equals `x` in type and value, or `split` raises `UnsupportedValue`.
"""

from __future__ import annotations

import builtins
import datetime as dt
import enum
import pathlib
import zoneinfo
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from decimal import Decimal
from fractions import Fraction
from functools import partial
from types import UnionType
from typing import Any, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from holdfast.errors import IncompatibleFormat, InvalidCall, UnknownTimeZone, UnsupportedValue
from holdfast.tree import adapter
from holdfast.tree.artifact import Artifact
from holdfast.tree.class_names import is_of_program, own_name, type_name
from holdfast.tree.frameworks import integration_hint


def _split_named(obj: Any) -> dict[str, Any]:
    _refuse_extra(obj, getattr(obj, "__dict__", {}).keys())
    return dict(zip(obj._fields, obj, strict=True))


def _join_named(cls: Any, parts: dict[str, Any]) -> Any:
    known = {**cls._field_defaults, **parts}
    return tuple.__new__(cls, [known[name] for name in cls._fields])


def _split_struct(obj: Any) -> dict[str, Any]:
    return {name: getattr(obj, name) for name in obj.__struct_fields__}


def _join_struct(cls: Any, parts: dict[str, Any]) -> Any:
    return cls(**{name: parts[name] for name in cls.__struct_fields__ if name in _mapping(parts)})


def split_dataclass(obj: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance; attributes beyond them are refused."""
    parts = {field.name: getattr(obj, field.name) for field in fields(obj)}
    _refuse_extra(obj, getattr(obj, "__dict__", {}).keys() - parts.keys())
    return parts


def join_dataclass(cls: Any, parts: dict[str, Any]) -> Any:
    """Return an instance of a dataclass with these fields."""
    obj = object.__new__(cls)
    for field in fields(cls):
        if field.name in _mapping(parts):
            value = parts[field.name]
        elif field.default is not MISSING:
            value = field.default
        elif field.default_factory is not MISSING:
            value = field.default_factory()
        else:
            raise TypeError(f"the field {field.name!r} is missing and has no default")
        object.__setattr__(obj, field.name, value)
    return obj


#: Attributes that hold the state of a pydantic model.
MODEL_STATE = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")


def split_model(obj: Any) -> list[Any]:
    """Return the state of a pydantic model."""
    values, *others = (getattr(obj, name) for name in MODEL_STATE)
    return [dict(values), *others]


def _join_model(cls: Any, parts: list[Any]) -> Any:
    obj, values = object.__new__(cls), _mapping(parts[0])
    is_complete = cls.__pydantic_fields__.keys() <= values.keys()
    for name in () if is_complete else [name for name in cls.__pydantic_fields__ if name not in values]:
        field = cls.__pydantic_fields__[name]
        if field.is_required():
            raise TypeError(f"the field {name!r} is missing and has no default")
        values[name] = field.get_default(call_default_factory=True, validated_data=values)
    for name, value in zip(MODEL_STATE, parts, strict=True):
        object.__setattr__(obj, name, value)
    return obj


#: Python's own exceptions, by name.
BUILTIN_ERRORS: dict[str, type[BaseException]] = {
    cls.__name__: cls
    for cls in vars(builtins).values()
    if isinstance(cls, type) and issubclass(cls, BaseException)
}
_ERROR_TYPES = frozenset(BUILTIN_ERRORS.values())

#: Members of exceptions outside of `args` and `__dict__`. Without `AttributeError.obj`, which need not be storable.
_MEMBERS = ((ImportError, ("name", "path")), (NameError, ("name",)), (AttributeError, ("name",)))


def split_error(error: BaseException) -> list[Any]:
    """Return an exception's arguments and attributes, with its notes, without traceback, cause and context."""
    args: Any = _builtin_base(type(error)).__reduce__(error)[1]
    attributes = dict(error.__dict__)
    for base, names in _MEMBERS:
        if isinstance(error, base):
            members = {name: vars(base)[name].__get__(error) for name in names}
            attributes.update({name: value for name, value in members.items() if value is not None})
    return [list(args), attributes]


def join_error(cls: Any, args: list[Any], attributes: dict[str, Any]) -> Any:
    """Return an exception; only the constructor of its built-in base is called."""
    base = _builtin_base(cls)
    error = base.__new__(cls, *args)
    base.__init__(error, *args)
    for owner, names in _MEMBERS:
        if isinstance(error, owner):
            for name in names & attributes.keys():
                vars(owner)[name].__set__(error, attributes.pop(name))
    error.__dict__.update(attributes)
    return error


def _builtin_base(cls: Any) -> Any:
    while cls not in _ERROR_TYPES:
        cls = cls.__base__
    return cls


def _refuse_extra(obj: Any, extra: Any) -> None:
    if extra:
        raise UnsupportedValue(
            f"{type(obj).__name__} has attributes beyond its fields: {sorted(extra)}",
            type=own_name(type(obj)),
        )


def _mapping(parts: Any) -> dict[str, Any]:
    if not isinstance(parts, dict):
        raise TypeError(f"the fields are a {type(parts).__name__}, not a dict")
    return parts


T = TypeVar("T")

#: Types that the codec writes as they are.
NATIVE = frozenset((type(None), bool, int, float, str, bytes))

TAGGED = 24

#: The type of parts, or the types of the items of a list of parts.
Shape: TypeAlias = type | UnionType | tuple[type | UnionType, ...]


class Kind(NamedTuple):
    """The storage of one type."""

    code: int
    #: Object to parts.
    split: Callable[[Any], Any]
    #: Parts to object.
    join: Callable[[Any], Any]
    #: Whether an object can change, or contain something that can: a tree stores it as a `Box`.
    boxed: bool
    #: Set for registered types only.
    tag: str | None = None
    #: Whether the parts are a list around the object's own keys and indices, which paths leave out.
    wrapped: bool = False


def _hash_parts(parts: Any) -> int:
    """Return a hash of parts that may contain lists and dicts; equal parts have equal hashes."""
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
    """A stored value of a type that this program has not registered; it is written back unchanged."""

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

    def __getattr__(self, name: str) -> Any:
        if name in Opaque.__slots__ or name.startswith("__"):
            raise AttributeError(name=name, obj=self)
        raise AttributeError(
            f"this value has no attribute {name!r} because no class is registered under its tag {self.tag!r}: "
            f"import the module that registers it, or call holdfast.register(cls, {self.tag!r})",
            name=name,
            obj=self,
        )


def fields_of_opaque(value: Opaque) -> Any:
    """Return the parts of an opaque value for a reader: of a pydantic model, only its fields."""
    parts = value.parts
    is_model = isinstance(parts, list) and len(parts) == len(MODEL_STATE) and isinstance(parts[1], set)
    return parts[0] if is_model and isinstance(parts[0], dict) else parts


def register(
    cls: type[T],
    tag: str | None = None,
    *,
    split: Callable[[T], Any] | None = None,
    join: Callable[[Any], T] | None = None,
) -> type[T]:
    """Make values of `cls` storable, under `tag`. Usable as a decorator.

    The default tag is the class's module and name. A class of the program that you start (`python agent.py`) counts as
    one of the module `agent`, so that `holdfast --app agent` and workers read its values. Pass a tag if you may move
    or rename the class, or if you define it in a notebook.

    Dataclasses, enums, named tuples, msgspec structs, pydantic models and exceptions need nothing more; for another
    class pass `split` (object to storable parts) and `join` (parts to object). Registering a class again under the
    same tag has no effect.
    """
    if not isinstance(cls, type):
        raise InvalidCall(f"register takes a class, not {cls!r:.60}")
    if cls in NATIVE or cls in (dict, list) or (cls in _by_type and _by_type[cls].tag is None):
        raise InvalidCall(f"{cls.__name__} is storable already: it need not be registered")
    if tag is not None and not isinstance(tag, str):
        raise InvalidCall(f"register({cls.__name__}): a tag is a string, not {tag!r:.60}")
    tag = tag or type_name(cls)
    if tag == _NUMPY:
        raise InvalidCall(f"the tag {tag!r} is taken by arrays: register {cls!r} under another")
    if (split is None) != (join is None):
        raise InvalidCall(f"register({cls.__name__}): pass both split and join, or neither")
    if split is not None and not (callable(split) and callable(join)):
        raise InvalidCall(f"register({cls.__name__}): split and join are functions")
    taken = _by_tag.get(tag)
    if taken is not None and taken[0] is not cls and _identity(taken[0]) != _identity(cls):
        if type_name(taken[0]) != type_name(cls) or own_name(taken[0]) == own_name(cls):
            raise InvalidCall(f"the tag {tag!r} is taken by {taken[0]!r}: register {cls!r} under another")
        # The program also imports itself: two classes, whose values stay apart.
        if is_of_program(cls):
            tag = own_name(cls)
        else:
            _add(taken[0], taken[1]._replace(tag=own_name(taken[0])))
    kind = Kind(TAGGED, split, join, True, tag) if split and join else _derive(cls, tag)
    _add(cls, kind)
    if is_of_program(cls):
        # Values that a notebook stored with this code are read, too.
        _by_tag.setdefault(f"__main__.{cls.__qualname__}", (cls, kind))
    return cls


def _add(cls: type, kind: Kind) -> None:
    assert kind.tag is not None
    _by_type[cls] = kind
    _by_tag[kind.tag] = (cls, kind)


def kind_of(value: Any) -> Kind:
    """Return the kind of a value, or raise `UnsupportedValue`."""
    kind = _known_kind(value)
    if kind is None:
        adapter.replace(value, _why_not)
        kind = _by_type[type(value)]
    return kind


def find_kind(value: Any) -> Kind | None:
    """Return the kind of a value; None if its class cannot be stored as it is."""
    kind = _known_kind(value)
    if kind is None and adapter.is_in_use():
        with suppress(UnsupportedValue, adapter.Replaced):
            return kind_of(value)
    return kind


def _known_kind(value: Any) -> Kind | None:
    cls = type(value)
    kind = _by_type.get(cls)
    if kind is None and cls.__module__ == "numpy":
        from holdfast.tree import numpy_values

        kind = numpy_values.kind(value)
        if kind is not None:
            _by_type[cls] = kind
    return kind


def parts_of(kind: Kind, value: Any) -> Any:
    """Return the parts of a value, or raise `UnsupportedValue` if `split` fails."""
    try:
        return kind.split(value)
    except UnsupportedValue:
        raise
    except Exception as error:
        name = own_name(type(value))
        raise UnsupportedValue(f"{name} cannot be split into parts: {error!r}", type=name) from error


def tag_of(kind: Kind, value: Any) -> str | None:
    """Return the tag of a value's type; None if it has none."""
    return value.tag if type(value) is Opaque else kind.tag


def restore(code: int, parts: Any) -> Any:
    """Return the object of an extension code and its parts. Raise `IncompatibleFormat` if they do not fit, and
    `UnknownTimeZone` if this machine lacks the zone of a time."""
    if code not in _SHAPES:
        raise IncompatibleFormat(
            f"a value of kind {code} was written by a newer Holdfast: upgrade to read it", kind=code
        )
    if not _fits(parts, _SHAPES[code]):
        raise IncompatibleFormat(f"a stored value of kind {code} has invalid parts", kind=code)
    try:
        return _restore(code, parts)
    except (RecursionError, UnknownTimeZone):
        raise
    except Exception as error:
        what = f"kind {code}" if code != TAGGED else f"type {parts[0]!r:.200}"
        raise IncompatibleFormat(
            f"a stored value of {what} does not fit this program's definition of it: {error!r}", kind=code
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
    if tag not in _by_tag:
        adapter.provide(tag)
    known = _by_tag.get(tag)
    return Opaque(tag, inner) if known is None else known[1].join(inner)


def find_tag(tag: str) -> tuple[type, Kind] | None:
    """Return the class that is registered under a tag, and its kind."""
    return _by_tag.get(tag)


def is_registered(cls: type) -> bool:
    """Return whether objects of a class can be stored."""
    return cls in _by_type


def forget(cls: type) -> None:
    """Drop the registration of a class that a newer definition has replaced under its tag."""
    _by_type.pop(cls, None)


_NUMPY = "numpy"
_ARRAYS = (22, 23)


def _restore_array(code: int, parts: Any) -> Any:
    try:
        from holdfast.tree import numpy_values
    except ImportError:
        return Opaque(_NUMPY, [code, parts])
    return numpy_values.BY_CODE[code].join(parts)


def _identity(cls: type) -> tuple[str, str]:
    # Not the name: the class `B.C` of module `a` and `C` of module `a.B` have the same one.
    return cls.__module__, cls.__qualname__


def _why_not(value: Any) -> str:
    cls = type(value)
    # An integration that refuses a value does not name itself.
    hint = "" if adapter.is_in_use() else integration_hint(cls)
    if not hint:
        return _reason(value)
    more = "" if _is_registrable(cls) else ", split=…, join=…"
    own = f"in a history of your own, call holdfast.register({cls.__name__}{more}) first"
    return f"{own_name(cls)} is {hint}; {own}"


def _is_registrable(cls: type) -> bool:
    """Return whether `register` needs no functions for a class."""
    return (
        is_dataclass(cls)
        or issubclass(cls, enum.Enum | msgspec.Struct | Exception)
        or hasattr(cls, "_fields")
        or hasattr(cls, "__pydantic_fields__")
    )


def _reason(value: Any) -> str:
    cls = type(value)
    name = own_name(cls)
    if _is_registrable(cls):
        return f"{name} is not registered: call holdfast.register({cls.__name__}) first"
    if isinstance(value, Awaitable):
        return f"{name} cannot be stored, its result can: write `await` before the call that returned it"
    register = f"call holdfast.register({cls.__name__}, split=…, join=…) first"
    for kind in (str, int, float, bytes, dict, list, tuple, set):
        if isinstance(value, kind):
            return (
                f"{name} is a subclass of {kind.__name__} and would be read as {kind.__name__}: {register}, or store "
                f"{kind.__name__}(…) of it"
            )
    return f"{name} cannot be stored: {register}, or use holdfast.sanitize(…)"


def _derive(cls: type, tag: str) -> Kind:
    if issubclass(cls, enum.Flag):
        # A combination of flags has no name.
        return Kind(TAGGED, lambda member: member.value, cls, False, tag)
    if issubclass(cls, enum.Enum):
        return Kind(TAGGED, lambda member: member.name, lambda name: cls[name], False, tag)
    if issubclass(cls, msgspec.Struct):
        return Kind(TAGGED, _split_struct, partial(_join_struct, cls), True, tag)
    if issubclass(cls, BaseException):
        return Kind(TAGGED, split_error, lambda parts: join_error(cls, *parts), True, tag, wrapped=True)
    if is_dataclass(cls) and not issubclass(cls, CONTENT):
        return Kind(TAGGED, split_dataclass, partial(join_dataclass, cls), True, tag)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return Kind(TAGGED, _split_named, partial(_join_named, cls), False, tag)
    if hasattr(cls, "__pydantic_fields__"):
        return Kind(TAGGED, split_model, partial(_join_model, cls), True, tag, wrapped=True)
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
    """Return whether there is a time zone of this name; one that was read from a file can have any name."""
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
            "upgrade the package tzdata (pip install -U tzdata); other values stay readable",
            zone=key,
        ) from error


def _join_zone(parts: Any) -> dt.tzinfo | None:
    if parts is None:
        return None
    if isinstance(parts, str):
        return _zone(parts)
    offset, name = parts
    if name is not None:
        return dt.timezone(dt.timedelta(*offset), name)
    return dt.UTC if offset == [0, 0, 0] else dt.timezone(dt.timedelta(*offset))


def _split_delta(delta: dt.timedelta) -> list[int]:
    return [delta.days, delta.seconds, delta.microseconds]


def _split_time(value: Any) -> list[Any]:
    return [value.replace(tzinfo=None, fold=0).isoformat(), value.fold, _split_zone(value.tzinfo)]


def _join_time(cls: Any) -> Callable[[Any], Any]:
    return lambda parts: cls.fromisoformat(parts[0]).replace(fold=parts[1], tzinfo=_join_zone(parts[2]))


def _split_set(value: Any) -> list[Any]:
    """Return the items in the order of their bytes, so that equal sets have equal bytes."""
    from holdfast.tree.codec import encode

    return sorted(value, key=encode)


#: The stored names of path classes.
_PATH_NAMES = {
    pathlib.PosixPath: "Path",
    pathlib.WindowsPath: "WindowsPath",
    pathlib.PurePosixPath: "PurePosixPath",
    pathlib.PureWindowsPath: "PureWindowsPath",
}
#: Built-in types with content: an instance of a subclass holds more than its fields.
CONTENT = (dict, list, tuple, set, frozenset, str, bytes, bytearray, int, float, complex, deque)


def path_classes(own: type[pathlib.Path]) -> dict[str, type[pathlib.PurePath]]:
    """Return the class for each name of a stored path, on a system whose paths are of the class `own`. A path of the
    other kind of system becomes a pure path of its flavour."""
    posix, windows = pathlib.PurePosixPath, pathlib.PureWindowsPath
    return {
        "Path": own if issubclass(own, posix) else posix,
        "WindowsPath": own if issubclass(own, windows) else windows,
        "PurePosixPath": posix,
        "PureWindowsPath": windows,
    }


_own_path = type(pathlib.Path())
_paths = path_classes(_own_path)


def _join_path(parts: list[str]) -> pathlib.PurePath:
    return _paths[parts[0]](parts[1])


def _split_path(value: pathlib.PurePath) -> list[str]:
    return [_PATH_NAMES[type(value)], str(value)]


def _split_artifact(value: Artifact) -> list[Any]:
    parts = [value.digest, value.size, value.name]
    # Raises for a handle, made by hand, that could not be read.
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
    Fraction: Kind(13, lambda value: list(value.as_integer_ratio()), lambda parts: Fraction(*parts), False),
    complex: Kind(14, lambda value: [value.real, value.imag], lambda parts: complex(*parts), False),
    UUID: Kind(15, lambda value: value.bytes, lambda parts: UUID(bytes=parts), False),
    **dict.fromkeys(
        (_own_path, pathlib.PurePosixPath, pathlib.PureWindowsPath), Kind(16, _split_path, _join_path, False)
    ),
    bytearray: Kind(17, bytes, bytearray, True),
    deque: Kind(18, lambda value: [[*value], value.maxlen], lambda parts: deque(*parts), True, wrapped=True),
    OrderedDict: Kind(19, dict, OrderedDict, True),
    range: Kind(20, lambda value: [value.start, value.stop, value.step], lambda parts: range(*parts), False),
    Artifact: Kind(25, _split_artifact, _join_artifact, True),
    Opaque: Kind(TAGGED, lambda value: value.parts, lambda parts: parts, True),
}
#: The shape of the parts of each kind. Checked before they are used: a few bytes from elsewhere must not become a large
#: object or one of another type.
_SHAPES: dict[int, Shape] = {
    3: list, 4: list, 5: list, 7: (str, int, object), 8: str, 9: (str, int, object), 10: (int, int, int),
    11: str | list, 12: str, 13: (int, int), 14: (float | int, float | int), 15: bytes, 16: (str, str), 17: bytes,
    18: (list, int | None), 19: dict, 20: (int, int, int), 21: (str, list, dict), 22: (str | list, list, bytes),
    23: (str, bytes | str), TAGGED: (str, object), 25: (str, int, str | None),
}  # fmt: skip
#: Types whose values cannot change and contain nothing that could.
SIMPLE = NATIVE | {cls for cls, kind in _by_type.items() if not kind.boxed and cls is not tuple}
_error_kind = Kind(
    21,
    lambda error: [type(error).__name__, *split_error(error)],
    lambda parts: join_error(BUILTIN_ERRORS[parts[0]], *parts[1:]),
    True,
    wrapped=True,
)
_by_type.update(dict.fromkeys(BUILTIN_ERRORS.values(), _error_kind))
_by_code = {kind.code: kind for kind in _by_type.values() if kind.code != TAGGED}
_by_tag: dict[str, tuple[type, Kind]] = {}
