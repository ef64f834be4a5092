"""Anything at all as a tree that can be stored, with a list of what had to be replaced.

For state that is not yours: a framework's context, the locals of a frame, the arguments of a failed call.
What can be stored stays exactly as it is. A cycle, an open file, a function becomes a short text that says
what it was; an object of an unregistered class becomes a dict of its public fields; a subclass of a built-in
type becomes that type.

Invariant: never raises, never goes deeper than the codec does; the result can be stored; if the value could
be stored as it is, the result equals it exactly and nothing is reported.
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

#: Objects inside objects inside objects are opened this far: beyond lies the application, not its state.
MAX_OBJECTS_DEEP = 8
#: So many objects are opened in all.
MAX_OBJECTS = 10_000
#: So often something is written out again that was written before: a few shared lists can make up a tree of
#: astronomic size.
MAX_REPEATS = 1_000_000

#: The key under which the dict that stands for an object has the name of its class.
TYPE_KEY = "<type>"

_SETS = (4, 5)
#: Of these there can be any number, so long as they are empty.
_MAY_BE_EMPTY = (list, dict, tuple, set, frozenset)
_LONGEST_TEXT = 200


def sanitize(value: Any, *, instead: Callable[[Any], Any] | None = None) -> tuple[Any, list[str]]:
    """A storable, plain copy of `value`, and the paths at which something was replaced. Lossy by intent; use
    it where having most of a state is better than having none.

    `instead` is asked about each thing that is to be replaced: what it gives stands there, unless that is
    `NotImplemented`.
    """
    work = _Work(instead)
    try:
        return work.visit(value, 0), work.replaced
    except Exception:
        # Only where the stack was all but used up before we began.
        return "<unreadable>", [""]


class _Work:
    """One pass over one value. A level takes two frames of the stack, or three with an object in it."""

    def __init__(self, instead: Callable[[Any], Any] | None = None) -> None:
        self._instead = instead
        self.replaced: list[str] = []
        self._path: list[Any] = []
        #: The containers around the place where we are, by identity, with the length of their paths.
        self._around: dict[int, int] = {}
        self._seen: set[int] = set()
        self._repeats = 0
        self._objects = 0
        self._objects_deep = 0

    def visit(self, value: Any, depth: int) -> Any:
        """The storable form of a value that the codec would meet at this depth."""
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
            plain = getattr(cls, "_plain", cls)
            if plain is not dict and plain is not list:
                return self._leaf(value, cls, depth)
            if self._is_too_often(value):
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
                self._note()
            out[key] = self.visit(item, depth + 1)
            self._path.pop()
        return out

    def _leaf(self, value: Any, cls: type, depth: int) -> Any:
        if cls is Box:
            return self.visit(open_box(value), depth)
        kind = _kind(value)
        constant = kind is not None and not kind.boxed and not issubclass(cls, tuple | frozenset)
        if not constant and self._is_too_often(value):
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
            self._note()
            return made
        text = _describe(value, cls)
        if text is not None:
            return self._replace(text)
        fields = public_fields(value, cls)
        return self._builtin(value, cls, depth) if fields is None else self._object(cls, fields, depth)

    def _known(self, value: Any, kind: Kind, depth: int) -> Any:
        """A value of a kind that can be stored, if only its parts can."""
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
        # A tuple is made anew even if nothing was replaced, for there may be frozen parts in it.
        if len(self.replaced) == count and not isinstance(value, tuple):
            return value
        made = restore(kind.code, [tag_of(kind, value), parts] if kind.code == TAGGED else parts)
        if len(self.replaced) > count:
            leaf_ext(made, depth=depth)
        return made

    def _part(self, part: Any, depth: int) -> Any:
        """As `visit`, for what was made just now and has no identity to remember."""
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
            fits = _is_native(item) or (depth + 2 <= MAX_DEPTH and _is_storable(item, depth + 2))
            (kept if fits else lost).append(item)
        if lost:
            self._note()
            return cls([*kept, *_stand_ins(lost, set(kept), depth + 2)])
        return value if type(value) is cls else cls(kept)

    def _builtin(self, value: Any, cls: type, depth: int) -> Any:
        """An object of a subclass of a built-in type, as that type, by no method of its own."""
        self._note()
        for scalar, convert in _SCALARS.items():
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
        """A dict of the public fields of an object, and the name of its class."""
        self._objects += 1
        if self._objects_deep == MAX_OBJECTS_DEEP or self._objects > MAX_OBJECTS or not fields:
            return self._replace(f"<{_name(cls)}>")
        self._note()
        self._objects_deep += 1
        try:
            return {TYPE_KEY: _name(cls), **self._dict(fields, depth)}
        finally:
            self._objects_deep -= 1

    def _is_too_often(self, value: Any) -> bool:
        if id(value) not in self._seen:
            self._seen.add(id(value))
            return False
        if type(value) not in _MAY_BE_EMPTY or value:
            self._repeats += 1
        return self._repeats > MAX_REPEATS

    def _note(self) -> None:
        self.replaced.append(_show(self._path))

    def _replace(self, text: str) -> str:
        self._note()
        return _short(text)


def _is_native(value: Any) -> bool:
    try:
        return type(value) in NATIVE
    except Exception:
        # The class of a class may make it unhashable.
        return False


def _kind(value: Any) -> Kind | None:
    try:
        return kind_of(value)
    except Exception:
        return None


def _is_storable(value: Any, depth: int) -> bool:
    try:
        leaf_ext(value, depth=depth)
    except Exception:
        return False
    return True


def _is_key(value: Any, depth: int) -> bool:
    try:
        prepare_key(value, depth=depth)
    except Exception:
        return False
    return True


def _storable_keys(keys: list[Any], depth: int) -> list[Any]:
    """The keys, with others in the place of those that cannot be stored; no two of them equal."""
    good = [_is_native(key) or _is_key(key, depth) for key in keys]
    if all(good):
        return keys
    lost = [key for key, fine in zip(keys, good, strict=True) if not fine]
    taken = {key for key, fine in zip(keys, good, strict=True) if fine}
    others = iter(_stand_ins(lost, taken, depth))
    return [key if fine else next(others) for key, fine in zip(keys, good, strict=True)]


def _stand_ins(lost: Iterable[Any], taken: set[Any], depth: int) -> list[Any]:
    """A hashable, storable value for each that is not; none of them twice, none that is taken."""
    out = []
    for value in lost:
        made = first = _stand_in(value, depth)
        number = 2
        while made in taken:
            made = f"{first} ({number})"
            number += 1
        taken.add(made)
        out.append(made)
    return out


def _stand_in(value: Any, depth: int) -> Any:
    cls = type(value)
    try:
        text = _describe(value, cls)
        if text is not None:
            return _short(text)
        if issubclass(cls, tuple):
            made: Any = tuple(
                item if _is_key(item, depth) else _describe(item, type(item)) or f"<{_name(type(item))}>"
                for item in tuple.__iter__(value)
            )
        else:
            made = next(convert(value) for base, convert in _SCALARS.items() if issubclass(cls, base))
        prepare_key(made, depth=depth)
        return made
    except Exception:
        return _short(f"<{_name(cls)}>")


#: How an object of a subclass becomes one of the class itself, whatever methods the subclass has.
_SCALARS: dict[type, Callable[[Any], Any]] = {
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
    """What can be said in a few words of a thing that has no fields worth keeping."""
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
    """What an object of a class holds under names without a leading underscore, asking none of its own code for it;
    None for a built-in container or scalar, whose content is something else."""
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
        # What a pydantic model was given beyond its fields.
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
