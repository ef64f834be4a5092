"""Conversion of any value to a storable tree, with a list of the parts that were replaced.

For values of other owners: a framework's context, the locals of a frame, the arguments of a failed call. Storable
values stay unchanged. A cycle, an open file or a function becomes a short description; an object of an unregistered
class becomes a dict of its public fields; an object of a subclass of a built-in type becomes that type.

Invariant: never raises; the result can be stored; a storable value is returned exactly, with no replacements.
"""

from __future__ import annotations

import datetime as dt
import enum
import io
import types
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from holdfast.tree import path as paths
from holdfast.tree.codec import MAX_DEPTH, leaf_ext, open_box, prepare_key
from holdfast.tree.frozen import Box
from holdfast.tree.values import CONTENT, NATIVE, TAGGED, Kind, kind_of, parts_of, restore, tag_of

#: Levels of objects within objects whose fields are read: deeper objects are the application, not its state.
MAX_OBJECTS_DEEP = 8
#: Objects whose fields are read in all.
MAX_OBJECTS = 10_000
#: Repetitions of values: a few shared lists can make up a tree of astronomic size.
MAX_REPEATS = 1_000_000

#: The key of the class name in the dict that replaces an object.
TYPE_KEY = "<type>"

_SETS = (4, 5)
#: Types whose empty values do not count as repetitions.
_MAY_BE_EMPTY = (list, dict, tuple, set, frozenset)
_LONGEST_TEXT = 200


def sanitize(value: Any, *, instead: Callable[[Any], Any] | None = None) -> tuple[Any, list[str]]:
    """Return a storable, plain copy of `value`, and the paths of replaced parts. Lossy by intent; use it where most of
    a state is better than none.

    `instead` is called with each value that is to be replaced; its result is used, unless it is `NotImplemented`.
    """
    sanitizer = _Sanitizer(instead)
    try:
        return sanitizer.visit(value, 0), sanitizer.replaced
    except Exception:
        # Only if the stack was almost exhausted before.
        return "<unreadable>", [""]


class _Sanitizer:
    """One pass over one value. A level takes two frames of the stack, or three for an object."""

    def __init__(self, instead: Callable[[Any], Any] | None = None) -> None:
        self._instead = instead
        self.replaced: list[str] = []
        self._path: list[Any] = []
        #: The containers around the current value, by identity, with the length of their paths.
        self._around: dict[int, int] = {}
        self._seen: set[int] = set()
        self._repeats = 0
        self._objects = 0
        self._objects_deep = 0

    def visit(self, value: Any, depth: int) -> Any:
        """Return the storable form of a value at this depth of the tree."""
        if _is_native(value):
            return value
        cls = type(value)
        if id(value) in self._around:
            there = _show(self._path[: self._around[id(value)]])
            return self._replace(f"<cycle to {there or 'the root'}>")
        if depth > MAX_DEPTH:
            return self._replace(_too_deep(cls))
        length, count = len(self._path), len(self.replaced)
        self._around[id(value)] = length
        try:
            plain = getattr(cls, "__holdfast_plain__", cls)
            if plain is not dict and plain is not list:
                return self._leaf(value, cls, depth)
            if self._repeats_too_often(value):
                return self._replace(f"<repeated {_name(cls)}>")
            return self._dict(value, depth) if plain is dict else self._list(value, depth)
        except Exception:
            del self._path[length:], self.replaced[count:]
            return self._replace(f"<unreadable {_name(cls)}>")
        finally:
            del self._around[id(value)]

    def _list(self, value: Any, depth: int) -> list[Any]:
        out = []
        for index, item in enumerate(list(list.__iter__(value))):
            self._path.append(index)
            out.append(self.visit(item, depth + 1))
            self._path.pop()
        return out

    def _dict(self, value: Any, depth: int) -> dict[Any, Any]:
        out = {}
        items = list(dict.items(value))
        for key, (was, item) in zip(_storable_keys([key for key, _ in items], depth + 1), items, strict=True):
            self._path.append(key)
            if key is not was:
                self._record()
            out[key] = self.visit(item, depth + 1)
            self._path.pop()
        return out

    def _leaf(self, value: Any, cls: type, depth: int) -> Any:
        if cls is Box:
            return self.visit(open_box(value), depth)
        kind = _kind(value)
        constant = kind is not None and not kind.boxed and not issubclass(cls, tuple | frozenset)
        if not constant and self._repeats_too_often(value):
            return self._replace(f"<repeated {_name(cls)}>")
        if kind is not None:
            length, count = len(self._path), len(self.replaced)
            try:
                return self._known(value, kind, depth)
            except Exception:
                del self._path[length:], self.replaced[count:]
        other = NotImplemented if self._instead is None else self._instead(value)
        if other is not NotImplemented:
            count = len(self.replaced)
            made = self._part(other, depth)
            del self.replaced[count:]
            self._record()
            return made
        text = _describe(value, cls)
        if text is not None:
            return self._replace(text)
        fields = public_fields(value, cls)
        return self._builtin(value, cls, depth) if fields is None else self._object(cls, fields, depth)

    def _known(self, value: Any, kind: Kind, depth: int) -> Any:
        """Return a value of a storable type whose parts may not be storable."""
        if kind.code in _SETS:
            return self._set(value, type(value), depth)
        count = len(self.replaced)
        parts = parts_of(kind, value)
        if not kind.wrapped:
            parts = self._part(parts, depth + 1)
        elif depth + 1 > MAX_DEPTH:
            parts = self._replace(_too_deep(type(value)))
        else:
            parts = [self._part(part, depth + 2) for part in parts]
        # A tuple may contain frozen parts, so it is copied even if nothing was replaced.
        if len(self.replaced) == count and not isinstance(value, tuple):
            return value
        made = restore(kind.code, [tag_of(kind, value), parts] if kind.code == TAGGED else parts)
        if len(self.replaced) > count:
            leaf_ext(made, depth=depth)
        return made

    def _part(self, part: Any, depth: int) -> Any:
        """Visit a new value, whose identity does not matter."""
        if depth <= MAX_DEPTH and type(part) is dict:
            return self._dict(part, depth)
        if depth <= MAX_DEPTH and type(part) is list:
            return self._list(part, depth)
        return self.visit(part, depth)

    def _set(self, value: Any, cls: Any, depth: int) -> Any:
        if depth + 1 > MAX_DEPTH:
            return self._replace(_too_deep(cls))
        kept: list[Any] = []
        lost: list[Any] = []
        for item in list(cls.__iter__(value)):
            fits = _is_native(item) or (depth + 2 <= MAX_DEPTH and _accepts(leaf_ext, item, depth + 2))
            (kept if fits else lost).append(item)
        if lost:
            self._record()
            return cls([*kept, *_replacements(lost, set(kept), depth + 2)])
        return value if type(value) is cls else cls(kept)

    def _builtin(self, value: Any, cls: type, depth: int) -> Any:
        """Return an object of a subclass of a built-in type as that type, without calling its methods."""
        self._record()
        for scalar, convert in SCALARS.items():
            if issubclass(cls, scalar):
                return convert(value)
        if issubclass(cls, dict):
            return self._dict(value, depth)
        if issubclass(cls, list):
            return self._list(value, depth)
        if issubclass(cls, set | frozenset):
            return self._set(value, set if issubclass(cls, set) else frozenset, depth)
        made: Any = (
            tuple(tuple.__iter__(value))
            if issubclass(cls, tuple)
            else deque(deque.__iter__(value), vars(deque)["maxlen"].__get__(value))
        )
        return self._known(made, kind_of(made), depth)

    def _object(self, cls: type, fields: dict[str, Any], depth: int) -> Any:
        """Return a dict of the public fields of an object, and the name of its class."""
        self._objects += 1
        if self._objects_deep == MAX_OBJECTS_DEEP or self._objects > MAX_OBJECTS or not fields:
            return self._replace(f"<{_name(cls)}>")
        self._record()
        self._objects_deep += 1
        try:
            return {TYPE_KEY: _name(cls), **self._dict(fields, depth)}
        finally:
            self._objects_deep -= 1

    def _repeats_too_often(self, value: Any) -> bool:
        if id(value) not in self._seen:
            self._seen.add(id(value))
            return False
        if type(value) not in _MAY_BE_EMPTY or value:
            self._repeats += 1
        return self._repeats > MAX_REPEATS

    def _record(self) -> None:
        self.replaced.append(_show(self._path))

    def _replace(self, text: str) -> str:
        self._record()
        return _short(text)


def _is_native(value: Any) -> bool:
    try:
        return type(value) in NATIVE
    except Exception:
        # A metaclass may make a class unhashable.
        return False


def _kind(value: Any) -> Kind | None:
    try:
        return kind_of(value)
    except Exception:
        return None


def _accepts(encode: Callable[..., Any], value: Any, depth: int) -> bool:
    try:
        encode(value, depth=depth)
    except Exception:
        return False
    return True


def _storable_keys(keys: list[Any], depth: int) -> list[Any]:
    """Return the keys, with replacements for those that cannot be stored; all are different."""
    good = [_is_native(key) or _accepts(prepare_key, key, depth) for key in keys]
    if all(good):
        return keys
    lost = [key for key, fine in zip(keys, good, strict=True) if not fine]
    taken = {key for key, fine in zip(keys, good, strict=True) if fine}
    others = iter(_replacements(lost, taken, depth))
    return [key if fine else next(others) for key, fine in zip(keys, good, strict=True)]


def _replacements(lost: Iterable[Any], taken: set[Any], depth: int) -> list[Any]:
    """Return a hashable, storable value for each lost one; all are different, and not among the taken ones."""
    out = []
    for value in lost:
        made = first = _replacement(value, depth)
        number = 2
        while made in taken:
            made = f"{first} ({number})"
            number += 1
        taken.add(made)
        out.append(made)
    return out


def _replacement(value: Any, depth: int) -> Any:
    cls = type(value)
    try:
        text = _describe(value, cls)
        if text is not None:
            return _short(text)
        if issubclass(cls, tuple):
            made: Any = tuple(
                item
                if _accepts(prepare_key, item, depth)
                else _describe(item, type(item)) or f"<{_name(type(item))}>"
                for item in tuple.__iter__(value)
            )
        else:
            made = next(convert(value) for base, convert in SCALARS.items() if issubclass(cls, base))
        prepare_key(made, depth=depth)
        return made
    except Exception:
        return _short(f"<{_name(cls)}>")


#: Conversions from a subclass to the class itself that call no method of the subclass.
SCALARS: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    int: int.__int__,
    float: float.__float__,
    complex: complex.__pos__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    bytearray: lambda value: bytearray.__getitem__(value, slice(None)),
}

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
_PAUSED = {
    types.GeneratorType: "generator",
    types.CoroutineType: "coroutine",
    types.AsyncGeneratorType: "async generator",
}


def _describe(value: Any, cls: type) -> str | None:
    """Return a short description of a value without useful fields; None for other values."""
    if issubclass(cls, enum.Enum):
        return f"<{_name(cls)}.{value.name}>"
    if cls in _FUNCTIONS:
        return f"<function {value.__qualname__}>"
    if cls is types.MethodType:
        return f"<method {value.__func__.__qualname__}>"
    if cls in _PAUSED:
        return f"<{_PAUSED[cls]} {value.__qualname__}>"
    if issubclass(cls, type):
        return f"<class {_name(value)}>"
    if issubclass(cls, types.ModuleType):
        return f"<module {value.__name__}>"
    if issubclass(cls, io.IOBase):
        name = getattr(value, "name", None)
        known = type(name) in (str, bytes, int)
        return f"<{'closed' if value.closed else 'open'} file {name!r}>" if known else f"<{_name(cls)}>"
    if issubclass(cls, dt.date | dt.time):
        return f"<{_name(cls)} {value.isoformat()}>"
    return None


def public_fields(value: Any, cls: Any) -> dict[str, Any] | None:
    """Return the public attributes of an object without calling its code; None for a built-in container or scalar and
    for subclasses, which have other content."""
    names = [*getattr(cls, "__struct_fields__", ())]
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return dict(zip(cls._fields, tuple.__iter__(value), strict=False))
    if issubclass(cls, CONTENT):
        return None
    for base in cls.__mro__:
        slots = vars(base).get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
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


def _name(cls: Any) -> str:
    try:
        module, name = cls.__module__, cls.__qualname__
        return str(name) if module == "builtins" else f"{module}.{name}"
    except Exception:
        return "nameless"


def _show(path: list[Any]) -> str:
    try:
        return paths.show(path)
    except Exception:
        return "?"


def _too_deep(cls: type) -> str:
    return f"<nested too deep: {_name(cls)}>"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 2] + "…>"
