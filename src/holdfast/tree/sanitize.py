"""Conversion of any value to a storable tree, with a list of the parts that were replaced.

For values of other owners: a framework's context, the locals of a frame, the arguments of a failed call. Storable
values stay unchanged. A cycle, an open file or a function becomes a short description; an object of an unregistered
class becomes a dict of its public fields; an object of a subclass of a built-in type becomes that type.

With `classes`, values of unregistered classes whose content is known keep their content, and the names of their classes
are listed by path, so that a program that has the classes can make the values again.

Invariant: never raises; the result can be stored; a storable value is returned exactly, with no replacements.
"""

from __future__ import annotations

import datetime as dt
import enum
import io
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.tree import path as paths
from holdfast.tree.codec import MAX_DEPTH, REDACTED, leaf_ext, open_box, prepare_key
from holdfast.tree.frozen import Box
from holdfast.tree.object_fields import class_name, is_complete, own_attributes, public_fields
from holdfast.tree.values import CONTENT, NATIVE, TAGGED, Kind, find_kind, kind_of, parts_of, restore, tag_of

#: Levels of objects within objects whose fields are read: deeper objects are the application, not its state.
MAX_OBJECTS_DEEP = 8
#: Objects whose fields are read in all.
MAX_OBJECTS = 10_000
#: Repetitions of values: a few shared lists can make up a tree of astronomic size.
MAX_REPEATS = 1_000_000

#: The key of the class name in the dict that replaces an object, and that of the content of a subclass of a built-in
#: type that has attributes, or of a set whose items are listed.
TYPE_KEY = "<type>"
CONTENT_KEY = "<content>"
#: End of the path of a dict's entry whose key has another class.
KEY_MARK = "#key"
#: End of the class name of a value that is stored as a dict with `TYPE_KEY`.
OBJECT_MARK = "()"

_SETS = (4, 5)
#: Types whose empty values do not count as repetitions.
_MAY_BE_EMPTY = (list, dict, tuple, set, frozenset)
_LONGEST_TEXT = 200


def sanitize(
    value: Any,
    *,
    instead: Callable[[Any], Any] | None = None,
    classes: dict[str, str] | None = None,
) -> tuple[Any, list[str]]:
    """Return a storable, plain copy of `value`, and the paths of replaced parts. Lossy by intent; use it where most of
    a state is better than none.

    `instead` is called with each value that is to be replaced; its result is used, unless it is `NotImplemented`. With
    `classes`, the classes of values whose content is stored are added to it, by path: `package.Color:RED` for an enum,
    `package.Names` for a subclass of a built-in type, `package.Plan()` for an object that is stored as a dict, and
    whose path is among those of the replaced parts, too.
    """
    return _run(_Sanitizer(instead, named=classes is not None), value, classes)


def sanitize_fields(
    holder: Any,
    fields: dict[Any, Any],
    classes: dict[str, str],
    *,
    instead: Callable[[Any], Any],
    is_whole: Callable[[Any], bool],
    hides: Callable[[Any], bool] | None,
) -> tuple[Any, list[str]]:
    """Return a storable, plain copy of fields of an object, and the paths of replaced parts. A storable value that
    `is_whole` is false for is replaced, too; the values of the keys that `hides` is true for are redacted."""
    sanitizer = _Sanitizer(instead, named=True, root=holder, is_whole=is_whole, hides=hides)
    return _run(sanitizer, fields, classes)


def _run(sanitizer: _Sanitizer, value: Any, classes: dict[str, str] | None) -> tuple[Any, list[str]]:
    try:
        made = sanitizer.visit(value, 0)
    except Exception:
        # Only if the stack was almost exhausted before.
        return "<unreadable>", [""]
    if classes is not None:
        classes.update(sanitizer.classes)
    return made, sanitizer.replaced


class _Sanitizer:
    """One pass over one value. A level takes two frames of the stack, or three for an object."""

    def __init__(
        self,
        instead: Callable[[Any], Any] | None = None,
        *,
        named: bool = False,
        root: Any = None,
        is_whole: Callable[[Any], bool] | None = None,
        hides: Callable[[Any], bool] | None = None,
    ) -> None:
        self._instead, self._is_whole, self._hides = instead, is_whole, hides
        self._named = named
        self.replaced: list[str] = []
        #: Paths and names of classes.
        self.classes: list[tuple[str, str]] = []
        self._path: list[Any] = []
        #: The containers around the current value, by identity, with the length of their paths.
        self._around: dict[int, int] = {} if root is None else {id(root): 0}
        self._seen: set[int] = set()
        self._repeats = 0
        self._objects = 0
        self._objects_deep = 0
        #: Members of enums whose classes are not registered, by identity: their content, the name that is recorded, and
        #: the member, so that its identity is not reused.
        self._members: dict[int, tuple[Any, str, Any]] = {}

    def visit(self, value: Any, depth: int) -> Any:
        """Return the storable form of a value at this depth of the tree."""
        if _is_native(value):
            return value
        cls = type(value)
        member = self._member(value, cls) if self._named else None
        if member is not None:
            self._record_class(member[1])
            return member[0]
        if id(value) in self._around:
            there = _show(self._path[: self._around[id(value)]])
            return self._replace(f"<cycle to {there or 'the root'}>")
        if depth > MAX_DEPTH:
            return self._replace(_too_deep(cls))
        mark = self._mark()
        self._around[id(value)] = mark[0]
        try:
            plain = cls if cls is dict or cls is list else getattr(cls, "__holdfast_plain__", cls)
            if plain is not dict and plain is not list:
                return self._leaf(value, cls, depth)
            if self._repeats_too_often(value):
                return self._replace(f"<repeated {class_name(cls)}>")
            return self._dict(value, depth) if plain is dict else self._list(value, depth)
        except Exception:
            self._rewind(mark)
            return self._replace(f"<unreadable {class_name(cls)}>")
        finally:
            del self._around[id(value)]

    def _mark(self) -> tuple[int, int, int]:
        return len(self._path), len(self.replaced), len(self.classes)

    def _rewind(self, mark: tuple[int, int, int]) -> None:
        """Forget everything since a mark."""
        del self._path[mark[0] :], self.replaced[mark[1] :], self.classes[mark[2] :]

    def _list(self, value: Any, depth: int) -> list[Any]:
        out = list(list.__iter__(value))
        if _are_native(out):
            return out
        path, visit = self._path, self.visit
        for index, item in enumerate(out):
            if _is_native(item):
                continue
            flat = self._flat(item, depth + 1)
            if flat is not None:
                out[index] = flat
                continue
            path.append(index)
            out[index] = visit(item, depth + 1)
            path.pop()
        return out

    def _flat(self, value: Any, depth: int) -> Any:
        """Return a copy of a plain container of native values that was not visited before; None for other values."""
        kind = type(value)
        if (kind is not dict and kind is not list) or depth > MAX_DEPTH or id(value) in self._seen:
            return None
        made: Any = value.copy()
        if kind is dict:
            if not _STRINGS.issuperset(map(type, made)) or not _are_native(made.values()):
                return None
        elif not _are_native(made):
            return None
        self._seen.add(id(value))
        return made

    def _dict(self, value: Any, depth: int) -> dict[Any, Any]:
        out = dict.copy(value) if type(value) is dict else dict(dict.items(value))
        if not _STRINGS.issuperset(map(type, out)):
            return self._odd_dict(out, depth)
        if _are_native(out.values()):
            return out
        path, visit = self._path, self.visit
        # Values are replaced while iterating, which keeps the size.
        for key, item in out.items():
            if _is_native(item):
                continue
            if self._hides is not None and self._hides(key):
                out[key] = REDACTED
                continue
            flat = self._flat(item, depth + 1)
            if flat is not None:
                out[key] = flat
                continue
            path.append(key)
            out[key] = visit(item, depth + 1)
            path.pop()
        return out

    def _odd_dict(self, value: dict[Any, Any], depth: int) -> dict[Any, Any]:
        """Visit a dict with keys that are not plain texts."""
        out = {}
        keys = _storable_keys(list(value), depth + 1, named=self._named)
        for key, (was, item) in zip(keys, value.items(), strict=True):
            self._path.append(key)
            if key is not was:
                self._record_key(key, was)
            is_hidden = self._hides is not None and self._hides(key)
            out[key] = REDACTED if is_hidden else self.visit(item, depth + 1)
            self._path.pop()
        return out

    def _record_key(self, key: Any, was: Any) -> None:
        name = _class_of_key(key, was) if self._named else None
        if name is None:
            self._record()
        else:
            self.classes.append((_show(self._path) + KEY_MARK, name))

    def _leaf(self, value: Any, cls: type, depth: int) -> Any:
        if cls is Box:
            return self.visit(open_box(value), depth)
        kind = _kind(value)
        constant = kind is not None and not kind.boxed and not issubclass(cls, tuple | frozenset)
        if not constant and self._repeats_too_often(value):
            return self._replace(f"<repeated {class_name(cls)}>")
        if kind is not None and (self._is_whole is None or self._is_whole(value)):
            mark = self._mark()
            try:
                return self._known(value, kind, depth)
            except Exception:
                self._rewind(mark)
        other = NotImplemented if self._instead is None else self._instead(value)
        if other is not NotImplemented:
            mark = self._mark()
            made = self._part(other, depth)
            self._rewind(mark)
            self._record()
            return made
        text = _describe(value, cls)
        if text is not None:
            return self._replace(text)
        if self._named and issubclass(cls, CONTENT):
            return self._subclass(value, cls, depth)
        fields = public_fields(value, cls)
        return self._builtin(value, cls, depth) if fields is None else self._object(value, cls, fields, depth)

    def _member(self, value: Any, cls: type) -> tuple[Any, str, Any] | None:
        """Return the content of a member of an enum that is not registered, and the name of the member; None for other
        values."""
        known = self._members.get(id(value))
        if known is not None or not issubclass(cls, enum.Enum) or _kind(value) is not None:
            return known
        try:
            plain, name = value._value_, value._name_ or ""
            made = plain if type(plain) in NATIVE else f"{name}", f"{class_name(cls)}:{name}", value
        except Exception:
            return None
        self._members[id(value)] = made
        return made

    def _subclass(self, value: Any, cls: type, depth: int) -> Any:
        """Return the content of an object of a subclass of a built-in type, and record its class."""
        attributes = own_attributes(value, cls)
        if not attributes:
            name = class_name(cls)
            if issubclass(cls, defaultdict):
                name = f"{name}:{_name_of_factory(vars(defaultdict)['default_factory'].__get__(value))}"
            self._record_class(name)
            return self._content(value, cls, depth)
        self._record_class(class_name(cls) + OBJECT_MARK)
        self._path.append(CONTENT_KEY)
        content = self._content(value, cls, depth + 1)
        self._path.pop()
        return {TYPE_KEY: class_name(cls), CONTENT_KEY: content, **self._dict(attributes, depth)}

    def _known(self, value: Any, kind: Kind, depth: int) -> Any:
        """Return a value of a storable type whose parts may not be storable."""
        if kind.code in _SETS:
            return self._set(value, type(value), depth)
        mark = self._mark()
        parts = parts_of(kind, value)
        if not kind.wrapped:
            parts = self._part(parts, depth + 1)
        elif depth + 1 > MAX_DEPTH:
            parts = self._replace(_too_deep(type(value)))
        else:
            parts = [self._part(part, depth + 2) for part in parts]
        # A tuple may contain frozen parts, so it is copied even if nothing was replaced.
        is_changed = self._mark() != mark
        if not is_changed and not isinstance(value, tuple):
            return value
        made = restore(kind.code, [tag_of(kind, value), parts] if kind.code == TAGGED else parts)
        if is_changed:
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
        if lost and self._named:
            self._record_class(class_name(cls) + OBJECT_MARK)
            self._path.append(CONTENT_KEY)
            listed = self._list([*kept, *lost], depth + 1)
            self._path.pop()
            return {TYPE_KEY: class_name(cls), CONTENT_KEY: listed}
        if lost:
            self._record()
            return cls([*kept, *_replacements(lost, set(kept), depth + 2)])
        return value if type(value) is cls else cls(kept)

    def _builtin(self, value: Any, cls: type, depth: int) -> Any:
        """Return an object of a subclass of a built-in type as that type, without calling its methods."""
        self._record()
        return self._content(value, cls, depth)

    def _content(self, value: Any, cls: type, depth: int) -> Any:
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

    def _object(self, value: Any, cls: type, fields: dict[str, Any], depth: int) -> Any:
        """Return a dict of the public fields of an object, and the name of its class."""
        self._objects += 1
        has_all = self._named and is_complete(value, cls, fields)
        if self._objects_deep == MAX_OBJECTS_DEEP or self._objects > MAX_OBJECTS or not (fields or has_all):
            return self._replace(f"<{class_name(cls)}>")
        self._record()
        if has_all:
            self._record_class(class_name(cls) + OBJECT_MARK)
        self._objects_deep += 1
        try:
            return {TYPE_KEY: class_name(cls), **self._dict(fields, depth)}
        finally:
            self._objects_deep -= 1

    def _repeats_too_often(self, value: Any) -> bool:
        if id(value) not in self._seen:
            self._seen.add(id(value))
            return False
        if type(value) not in _MAY_BE_EMPTY or value:
            self._repeats += 1
        return self._repeats > MAX_REPEATS

    def _record_class(self, name: str) -> None:
        self.classes.append((_show(self._path), name))

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


_STRINGS = frozenset((str,))


def _are_native(values: Iterable[Any]) -> bool:
    try:
        return NATIVE.issuperset(map(type, values))
    except Exception:
        return False


def _kind(value: Any) -> Kind | None:
    try:
        return find_kind(value)
    except Exception:
        return None


def _accepts(encode: Callable[..., Any], value: Any, depth: int) -> bool:
    try:
        encode(value, depth=depth)
    except Exception:
        return False
    return True


def _storable_keys(keys: list[Any], depth: int, *, named: bool = False) -> list[Any]:
    """Return the keys, with replacements for those that cannot be stored; all are different."""
    good = [_is_native(key) or _accepts(prepare_key, key, depth) for key in keys]
    if all(good):
        return keys
    lost = [key for key, fine in zip(keys, good, strict=True) if not fine]
    taken = {key for key, fine in zip(keys, good, strict=True) if fine}
    others = iter(_replacements(lost, taken, depth, named=named))
    return [key if fine else next(others) for key, fine in zip(keys, good, strict=True)]


def _replacements(lost: Iterable[Any], taken: set[Any], depth: int, *, named: bool = False) -> list[Any]:
    """Return a hashable, storable value for each lost one; all are different, and not among the taken ones."""
    out = []
    for value in lost:
        made = first = _replacement(value, depth, named=named)
        number = 2
        while made in taken:
            made = f"{first} ({number})"
            number += 1
        taken.add(made)
        out.append(made)
    return out


def _replacement(value: Any, depth: int, *, named: bool = False) -> Any:
    cls = type(value)
    try:
        if named and issubclass(cls, enum.Enum) and type(value._value_) in NATIVE:
            return value._value_
        text = _describe(value, cls)
        if text is not None:
            return _short(text)
        if issubclass(cls, tuple):
            made: Any = tuple(
                item
                if _accepts(prepare_key, item, depth)
                else _describe(item, type(item)) or f"<{class_name(type(item))}>"
                for item in tuple.__iter__(value)
            )
        else:
            made = next(convert(value) for base, convert in SCALARS.items() if issubclass(cls, base))
        prepare_key(made, depth=depth)
        return made
    except Exception:
        return _short(f"<{class_name(cls)}>")


def _class_of_key(key: Any, was: Any) -> str | None:
    """Return the class of a key that was replaced by its content; None if the content was not kept."""
    cls = type(was)
    try:
        if issubclass(cls, enum.Enum):
            return f"{class_name(cls)}:{was._name_ or ''}"
        base = next((base for base in (*SCALARS, tuple) if issubclass(cls, base)), None)
        if base is type(key) and base is not None and cls is not base and not own_attributes(was, cls):
            plain: Any = base
            same = plain.__eq__(was, key)
            return class_name(cls) if same is True else None
    except Exception:
        return None
    return None


def _name_of_factory(factory: Any) -> str:
    """Return the name of the class that makes the missing values of a defaultdict; `?` for another function."""
    return "" if factory is None else class_name(factory) if isinstance(factory, type) else "?"


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
        return f"<{class_name(cls)}.{value.name}>"
    if cls in _FUNCTIONS:
        return f"<function {value.__qualname__}>"
    if cls is types.MethodType:
        return f"<method {value.__func__.__qualname__}>"
    if cls in _PAUSED:
        return f"<{_PAUSED[cls]} {value.__qualname__}>"
    if issubclass(cls, type):
        return f"<class {class_name(value)}>"
    if issubclass(cls, types.ModuleType):
        return f"<module {value.__name__}>"
    if issubclass(cls, io.IOBase):
        name = getattr(value, "name", None)
        known = type(name) in (str, bytes, int)
        return f"<{'closed' if value.closed else 'open'} file {name!r}>" if known else f"<{class_name(cls)}>"
    if issubclass(cls, dt.date | dt.time):
        return f"<{class_name(cls)} {value.isoformat()}>"
    return None


def _show(path: list[Any]) -> str:
    try:
        return paths.show(path)
    except Exception:
        return "?"


def _too_deep(cls: type) -> str:
    return f"<nested too deep: {class_name(cls)}>"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 2] + "…>"
