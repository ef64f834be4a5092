"""The attributes of any object, read without calling its code, and the name of its class.

Invariant: nothing is read by a method of the object or of its class.
"""

from __future__ import annotations

import types
from contextlib import suppress
from typing import Any

from holdfast.tree.values import CONTENT


def _slots(cls: type) -> list[str]:
    """Return the names of the attributes that a class itself has slots for: `__x` of a class `C` is `_C__x`."""
    slots = vars(cls).get("__slots__", ())
    prefix = f"_{cls.__name__.lstrip('_')}"
    return [
        f"{prefix}{name}" if name.startswith("__") and not name.endswith("__") else name
        for name in ((slots,) if isinstance(slots, str) else slots)
    ]


def own_attributes(value: Any, cls: type) -> dict[str, Any]:
    """Return the attributes that an object of a subclass of a built-in type has in addition to its content."""
    found: dict[str, Any] = {}
    for base in cls.__mro__:
        for name in _slots(base):
            with suppress(AttributeError):
                found[name] = object.__getattribute__(value, name)
    with suppress(AttributeError):
        found.update(object.__getattribute__(value, "__dict__"))
    return found


def is_complete(value: Any, cls: Any, fields: dict[str, Any]) -> bool:
    """Return whether an object consists of its public fields, so that it can be made of them."""
    if cls is types.SimpleNamespace:
        return len(fields) == len(vars(value))
    if hasattr(cls, "__pydantic_fields__"):
        return not object.__getattribute__(value, "__pydantic_private__")
    if hasattr(cls, "__struct_fields__"):
        return len(fields) == len(cls.__struct_fields__)
    if cls.__new__ is not object.__new__ or issubclass(cls, BaseException | type):
        return False
    names: set[str] = set()
    for base in cls.__mro__:
        names.update(_slots(base))
        if "__slots__" not in vars(base) and base is not object and not hasattr(value, "__dict__"):
            return False
    if "__dict__" not in names and not hasattr(value, "__dict__") and not names:
        return False
    with suppress(Exception):
        names.update(object.__getattribute__(value, "__dict__"))
    names -= {"__dict__", "__weakref__"}
    missing = object()
    return all(name in fields or getattr(value, name, missing) is missing for name in names)


def public_fields(value: Any, cls: Any) -> dict[str, Any] | None:
    """Return the public attributes of an object without calling its code; None for a built-in container or scalar and
    for subclasses, which have other content."""
    names = [*getattr(cls, "__struct_fields__", ())]
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return dict(zip(cls._fields, tuple.__iter__(value), strict=False))
    if issubclass(cls, CONTENT):
        return None
    for base in cls.__mro__:
        names += _slots(base)
    found: dict[str, Any] = {"args": list(value.args)} if issubclass(cls, BaseException) else {}
    for name in names:
        try:
            found[name] = object.__getattribute__(value, name)
        except AttributeError:
            continue
    with suppress(Exception):
        found.update(object.__getattribute__(value, "__dict__"))
        # Extra attributes of a pydantic model.
        found.update(object.__getattribute__(value, "__pydantic_extra__") or {})
    return {name: item for name, item in found.items() if type(name) is str and not name.startswith("_")}


def private_fields(value: Any, cls: Any) -> dict[str, Any]:
    """Return the attributes of an object that start with an underscore, private ones of a pydantic model included."""
    found = own_attributes(value, cls)
    more = found.get("__pydantic_private__")
    found |= more if type(more) is dict else {}
    return {name: item for name, item in found.items() if name[0] == "_" and not name.startswith("__")}


def class_name(cls: Any) -> str:
    """Return the name of a class as it is recorded: with its module, unless it is built in."""
    try:
        module, name = cls.__module__, cls.__qualname__
        return str(name) if module == "builtins" else f"{module}.{name}"
    except Exception:
        return "nameless"
