"""How the classes that an application writes (dataclasses, structs, models, …) turn into parts and back.

For each sort of class a pair of functions: object to parts, and class and parts to object. No constructor of
the application runs, except that of msgspec structs: an object comes back as it was, not as it is made anew.
A field that the class gained since has its default; one that it lost is left out.

Invariant: what `split_…` gives, the `join_…` of the same class makes into an equal object.
"""

from __future__ import annotations

import builtins
from dataclasses import MISSING, fields
from typing import Any

from holdfast.errors import UnsupportedValue


def split_named(obj: Any) -> dict[str, Any]:
    """A named tuple."""
    _refuse_extra(obj, getattr(obj, "__dict__", {}).keys())
    return dict(zip(obj._fields, obj, strict=True))


def join_named(cls: Any, parts: dict[str, Any]) -> Any:
    known = {**cls._field_defaults, **parts}
    return tuple.__new__(cls, [known[name] for name in cls._fields])


def split_struct(obj: Any) -> dict[str, Any]:
    """A msgspec struct."""
    return {name: getattr(obj, name) for name in obj.__struct_fields__}


def join_struct(cls: Any, parts: dict[str, Any]) -> Any:
    return cls(**{name: parts[name] for name in cls.__struct_fields__ if name in _mapping(parts)})


def split_dataclass(obj: Any) -> dict[str, Any]:
    """A dataclass; it must not carry more than its fields."""
    parts = {field.name: getattr(obj, field.name) for field in fields(obj)}
    _refuse_extra(obj, getattr(obj, "__dict__", {}).keys() - parts.keys())
    return parts


def join_dataclass(cls: Any, parts: dict[str, Any]) -> Any:
    obj = object.__new__(cls)
    for field in fields(cls):
        if field.name in _mapping(parts):
            value = parts[field.name]
        elif field.default is not MISSING:
            value = field.default
        elif field.default_factory is not MISSING:
            value = field.default_factory()
        else:
            raise TypeError(f"there is no {field.name!r}, which has no default")
        object.__setattr__(obj, field.name, value)
    return obj


def split_model(obj: Any) -> list[Any]:
    """A pydantic model, with extra and private attributes, and which fields were set."""
    return [
        dict(obj.__dict__),
        obj.__pydantic_fields_set__,
        obj.__pydantic_extra__,
        obj.__pydantic_private__,
    ]


def join_model(cls: Any, parts: list[Any]) -> Any:
    values, fields_set, extra, private = parts
    obj = object.__new__(cls)
    for name, field in cls.__pydantic_fields__.items():
        if name not in _mapping(values):
            if field.is_required():
                raise TypeError(f"there is no {name!r}, which has no default")
            values[name] = field.get_default(call_default_factory=True, validated_data=values)
    for name, value in (
        ("__dict__", values),
        ("__pydantic_fields_set__", fields_set),
        ("__pydantic_extra__", extra),
        ("__pydantic_private__", private),
    ):
        object.__setattr__(obj, name, value)
    return obj


#: Python's own exceptions, by name.
BUILTIN_ERRORS: dict[str, type[BaseException]] = {
    cls.__name__: cls
    for cls in vars(builtins).values()
    if isinstance(cls, type) and issubclass(cls, BaseException)
}
_ERROR_TYPES = frozenset(BUILTIN_ERRORS.values())

#: What some exceptions keep beside `args` and `__dict__`. `AttributeError.obj` is no part of an exception's
#: value here: it is whatever object lacked the attribute, and need not be storable.
_BESIDE = ((ImportError, ("name", "path")), (NameError, ("name",)), (AttributeError, ("name",)))


def split_error(error: BaseException) -> list[Any]:
    """An exception's arguments and attributes, notes included; not its traceback, cause and context, which
    say how it came about."""
    args: Any = _builtin_base(type(error)).__reduce__(error)[1]
    attributes = dict(error.__dict__)
    for base, names in _BESIDE:
        if isinstance(error, base):
            beside = {name: vars(base)[name].__get__(error) for name in names}
            attributes.update({name: value for name, value in beside.items() if value is not None})
    return [list(args), attributes]


def join_error(cls: Any, args: list[Any], attributes: dict[str, Any]) -> Any:
    """Python's part of an exception is made anew from its arguments; the application's part is put back."""
    base = _builtin_base(cls)
    error = base.__new__(cls, *args)
    base.__init__(error, *args)
    for owner, names in _BESIDE:
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
            f"{type(obj).__name__} carries attributes beyond its fields: {sorted(extra)}",
            type=f"{type(obj).__module__}.{type(obj).__qualname__}",
        )


def _mapping(parts: Any) -> dict[str, Any]:
    if not isinstance(parts, dict):
        raise TypeError(f"its fields are a {type(parts).__name__}, not a dict")
    return parts
