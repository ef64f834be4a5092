"""The values of a snapshot, made again and written back into a store.

Values that could be stored are restored as copies. A value of an unregistered class is stored by its content and the
name of its class; it is made again if the class is found: among registered classes, a few of Python's own, and those
that can be reached from the fields and annotations of the store. No class is looked up in modules by a name from data,
and no constructor of the application runs, except that of a msgspec struct.

For values that could not be stored (a client, a function), and for redacted secrets, the store keeps its current value.

Invariant: each value of the snapshot is the store's afterwards, or its path is listed. The store shares no mutable
object with the snapshot; nothing in the store changes except its fields.
"""

from __future__ import annotations

import enum
import sys
import types
import typing
import warnings
from bisect import bisect_left
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import fields as dataclass_fields
from dataclasses import is_dataclass
from typing import Any

import msgspec

from holdfast.compat.snapshot_manager.fields import ERROR, LOST, MISSING, Target, storable_fields
from holdfast.compat.snapshot_manager.snapshot import Snapshot
from holdfast.errors import InvalidSnapshot, StepFailed
from holdfast.execution.exception_codec import revive
from holdfast.tree import path as paths
from holdfast.tree.codec import REDACTED
from holdfast.tree.frozen import thaw
from holdfast.tree.object_fields import class_name, private_fields, public_fields
from holdfast.tree.sanitize import CONTENT_KEY, KEY_MARK, OBJECT_MARK, SCALARS, TYPE_KEY
from holdfast.tree.values import MODEL_STATE, NATIVE, find_tag, join_dataclass

#: Values and annotations that are looked at to find classes.
_MAX_REACHED = 100_000
#: Paths that a message names.
_MAX_NAMED = 10
#: Classes of Python that need not be registered, by the name that a snapshot has for them.
_PLAIN: dict[str, type] = {
    "set": set,
    "frozenset": frozenset,
    "collections.Counter": Counter,
    "collections.OrderedDict": OrderedDict,
    "collections.defaultdict": defaultdict,
    "collections.deque": deque,
    "types.SimpleNamespace": types.SimpleNamespace,
}
_FACTORIES: dict[str, type] = {
    **_PLAIN,
    **{cls.__name__: cls for cls in (dict, list, str, int, float, bool, bytes, tuple, bytearray, complex)},
}


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a restore."""

    #: The fields that were set.
    fields: tuple[Any, ...]
    #: Fields that are not in the snapshot and were kept.
    kept: tuple[Any, ...] = ()
    #: Fields that are not in the snapshot and were removed.
    removed: tuple[Any, ...] = ()
    #: Paths of values that the store does not have now as they were: their class was not found, so that a plain value
    #: or a dict replaces them; or they could not be stored, and the store has another value there, or a text.
    not_restored: tuple[str, ...] = ()

    @property
    def lost(self) -> tuple[str, ...]:
        """Deprecated: `not_restored`."""
        warnings.warn("Restored.lost is deprecated: use not_restored", DeprecationWarning, stacklevel=2)
        return self.not_restored


def restore(target: Target, snapshot: Snapshot, *, keep_unknown: bool | None, strict: bool) -> Restored:
    """Write the fields of a snapshot back; all of them, or none."""
    graft = _Graft(snapshot, target)
    made = {}
    names: dict[Any, None] = {}
    for stored, value in thaw(snapshot.state).items():
        name = graft.key(stored, (stored,))
        names[name] = None
        new = graft.value(value, target.fields.get(name, MISSING), (stored,))
        if (stored,) not in graft.live:
            made[name] = new
    if strict and graft.not_restored:
        raise InvalidSnapshot(
            f"{_named(graft.not_restored)} cannot be restored, and nothing was changed: register the classes "
            "(holdfast.register), annotate the fields of the store with them, or restore without strict",
            not_restored=tuple(graft.not_restored),
        )
    unknown = [name for name in target.fields if name not in names]
    keep = not target.is_mapping if keep_unknown is None else keep_unknown
    left = target.write(made, [] if keep else unknown, order=names, strict=strict)
    return Restored(
        fields=tuple(made),
        kept=tuple(unknown) if keep else left.kept,
        removed=() if keep else tuple(name for name in unknown if name not in left.kept),
        not_restored=tuple(
            dict.fromkeys((*graft.not_restored, *(paths.show([name]) for name in left.fields)))
        ),
    )


def _named(found: list[str]) -> str:
    more = len(found) - _MAX_NAMED
    return ", ".join(found[:_MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


class _Graft:
    """The values of a snapshot, as they are to be in a store."""

    def __init__(self, snapshot: Snapshot, target: Target) -> None:
        self._types = snapshot.types
        self._replaced = frozenset(snapshot.replaced)
        self._redacts = snapshot.redacts
        #: All paths with something to do, in order, to find those within a value.
        self._marked = sorted({*self._types, *self._replaced})
        self._target = target
        self._classes = _Classes(target)
        self._live_state: Any = None
        self.not_restored: list[str] = []
        #: Paths where the store keeps its current value.
        self.live: set[tuple[Any, ...]] = set()

    def value(self, value: Any, live: Any, path: tuple[Any, ...]) -> Any:
        """Return the value to restore for a value of the snapshot; `live` is the store's current one."""
        kind = type(value)
        if self._is_secret(value):
            return self._instead(value, live, path)
        if not self._marked:
            return value if kind in NATIVE else self._parts(value, live, path)
        shown = paths.show(path)
        name = self._types.get(shown)
        if name is not None:
            return self._typed(value, name, live, path, shown)
        if shown in self._replaced:
            return self._instead(value, live, path)
        return value if kind in NATIVE else self._parts(value, live, path)

    def _is_secret(self, value: Any) -> bool:
        return self._redacts and type(value) is str and value == REDACTED

    def key(self, key: Any, path: tuple[Any, ...]) -> Any:
        """Return the key to restore for a key of the snapshot."""
        if not self._marked:
            return key
        shown = paths.show(path) + KEY_MARK
        name = self._types.get(shown)
        if name is None:
            if shown in self._replaced:
                self.not_restored.append(shown)
            return key
        name, _, member = name.partition(":")
        with suppress(Exception):
            cls = self._classes.find(name)
            if cls is not None:
                return _member(cls, member, key) if issubclass(cls, enum.Enum) else _subclass(cls, key)
        self.not_restored.append(shown)
        return key

    def _parts(self, value: Any, live: Any, path: tuple[Any, ...]) -> Any:
        """Return a value with its parts as they are to be restored."""
        kind = type(value)
        if kind is dict or kind is OrderedDict:
            within = live if isinstance(live, Mapping) else {}
            made: Any = kind()
            for stored, item in value.items():
                below = (*path, stored)
                key = self.key(stored, below)
                made[key] = self.value(item, within.get(key, MISSING), below)
            return made
        if kind is list or kind is tuple or kind is deque:
            current = live if isinstance(live, kind) else ()
            items = [
                self.value(item, current[index] if index < len(current) else MISSING, (*path, index))
                for index, item in enumerate(value)
            ]
            return deque(items, value.maxlen) if kind is deque else kind(items)
        if self._has_marks(path):
            # A new object of a registered class that contains a value that could not be stored.
            with suppress(Exception):
                self._set_fields(value, public_fields(value, kind) or {}, live, path)
        return value

    def _has_marks(self, path: tuple[Any, ...]) -> bool:
        if not self._marked:
            return False
        shown = paths.show(path)
        for start in (f"{shown}.", f"{shown}["):
            index = bisect_left(self._marked, start)
            if index < len(self._marked) and self._marked[index].startswith(start):
                return True
        return False

    def _typed(self, value: Any, name: str, live: Any, path: tuple[Any, ...], shown: str) -> Any:
        """Return the value of a class that the snapshot has the name of."""
        if name.endswith(OBJECT_MARK):
            return self._object(value, name.removesuffix(OBJECT_MARK), live, path)
        name, _, more = name.partition(":")
        cls = self._classes.find(name, live)
        content = value if type(value) in NATIVE else self._parts(value, live, path)
        if cls is not None:
            with suppress(Exception):
                if issubclass(cls, enum.Enum):
                    return _member(cls, more, content)
                made = _subclass(cls, content)
                if issubclass(cls, defaultdict):
                    _FACTORY.__set__(made, self._factory(more, live, shown))
                return made
        self.not_restored.append(shown)
        return content

    def _factory(self, name: str, live: Any, shown: str) -> Any:
        if not name:
            return None
        current = live.default_factory if isinstance(live, defaultdict) else None
        if name == "?" and current is not None and not isinstance(current, type):
            return current
        found = _FACTORIES.get(name) or self._classes.find(name)
        if found is None:
            self.not_restored.append(shown)
        return found

    def _object(self, value: Any, name: str, live: Any, path: tuple[Any, ...]) -> Any:
        """Return an object of its fields, if its class is found."""
        cls = self._classes.find(name, live)
        if cls is None or type(value) is not dict:
            return self._instead(value, live, path)
        count = len(self.not_restored)
        current = {} if live is MISSING or type(live) is not cls else public_fields(live, cls) or {}
        try:
            fields = {
                key: self.value(item, current.get(key, MISSING), (*path, key))
                for key, item in value.items()
                if key not in (TYPE_KEY, CONTENT_KEY)
            }
            if CONTENT_KEY in value:
                content = self.value(value[CONTENT_KEY], live, (*path, CONTENT_KEY))
                made = _subclass(cls, content)
                for key, item in fields.items():
                    object.__setattr__(made, key, item)
                return made
            return _object(cls, fields)
        except Exception:
            del self.not_restored[count:]
            return self._instead(value, live, path)

    def _instead(self, value: Any, live: Any, path: tuple[Any, ...]) -> Any:
        """Return the value to use for a text or a dict that represents something else."""
        if type(value) is dict and TYPE_KEY in value:
            fields = {name: item for name, item in value.items() if name != TYPE_KEY}
            if value[TYPE_KEY] == ERROR:
                error = revive(fields)
                self.not_restored += (paths.show([*path, *part]) for part in _lost_parts(fields, error))
                return error
            kind = type(live)
            if live is not MISSING and f"{kind.__module__}.{kind.__qualname__}" == value[TYPE_KEY]:
                count = len(self.not_restored)
                try:
                    made = copy(live)
                    if made is not live:
                        self._set_fields(made, fields, live, path)
                        if self._described(path) != value:
                            self._leave_rest(made, fields, path)
                        return made
                except Exception:
                    del self.not_restored[count:]
        if live is MISSING:
            self.not_restored.append(paths.show(path))
            return value
        self.live.add(path)
        if not self._is_secret(value) and self._described(path) != value:
            self.not_restored.append(paths.show(path))
        return live

    def _described(self, path: tuple[Any, ...]) -> Any:
        """Return the description that a snapshot of the store would have now at a path."""
        if self._live_state is None:
            self._live_state = storable_fields(self._target.holder, self._target.fields).state
        found = self._live_state
        try:
            for segment in path:
                found = (
                    found[segment]
                    if isinstance(found, Mapping | list | tuple | deque)
                    else getattr(found, segment)
                )
        except Exception:
            return MISSING
        return found

    def _leave_rest(self, made: Any, fields: dict[str, Any], path: tuple[Any, ...]) -> None:
        """Remove the public attributes that a copy of a current object has in addition to those of the snapshot. List
        its other attributes that are data: they may be those of another time, or of another object."""
        for name in (public_fields(made, type(made)) or {}).keys() - fields:
            object.__delattr__(made, name)
        for name, item in private_fields(made, type(made)).items():
            stored = storable_fields(None, {name: item})
            if type(stored.state[name]) is not str or not stored.replaced:
                self.not_restored.append(paths.show([*path, name]))

    def _set_fields(self, made: Any, fields: dict[str, Any], live: Any, path: tuple[Any, ...]) -> None:
        """Set the fields of an object that is not referenced elsewhere yet."""
        current = {} if live is MISSING else public_fields(live, type(live)) or {}
        for name, item in fields.items():
            new = self.value(item, current.get(name, MISSING), (*path, name))
            object.__setattr__(made, name, new)


def _lost_parts(facts: Any, error: BaseException | None) -> Iterator[tuple[Any, ...]]:
    """Yield the places within an error that are not as they were: the error itself is `()`."""
    if not isinstance(facts, dict) or "same_as" in facts:
        return
    if error is None or (isinstance(error, StepFailed) and not str(facts.get("type")).endswith("StepFailed")):
        yield ()
        return
    lost = facts.get(LOST)
    yield from ((name,) for name in (lost if isinstance(lost, list) else ()) if isinstance(name, str))
    for name in ("cause", "context"):
        for below in _lost_parts(facts.get(name), getattr(error, f"__{name}__")):
            yield (f"__{name}__", *below)
    if isinstance(error, BaseExceptionGroup) and isinstance(facts.get("errors"), list):
        for number, (other, one) in enumerate(zip(error.exceptions, facts["errors"], strict=False)):
            for below in _lost_parts(one, other):
                yield ("exceptions", number, *below)


# Making objects

_FACTORY: Any = vars(defaultdict)["default_factory"]


def _member(cls: type[enum.Enum], name: str, value: Any) -> enum.Enum:
    """Return the member of an enum that has a name, or the combination of flags that has a value."""
    return cls.__members__[name] if name in cls.__members__ or not issubclass(cls, enum.Flag) else cls(value)


def _subclass(cls: Any, content: Any) -> Any:
    """Return an object of a subclass of a built-in type with some content; no method of the subclass is called."""
    for scalar in SCALARS:
        if issubclass(cls, scalar) and scalar is not bytearray:
            return scalar.__new__(cls, content)
    if issubclass(cls, tuple):
        if len(getattr(cls, "_fields", content)) != len(content):
            raise TypeError("the named tuple has other fields now")
        return tuple.__new__(cls, content)
    if issubclass(cls, frozenset):
        return frozenset.__new__(cls, content)
    base: Any = next(
        each
        for each in (OrderedDict, defaultdict, dict, list, set, deque, bytearray)
        if issubclass(cls, each)
    )
    made = base.__new__(cls)
    if base is OrderedDict:
        for key, item in content.items():
            OrderedDict.__setitem__(made, key, item)
    elif base is deque:
        deque.__init__(made, content, getattr(content, "maxlen", None))
    elif base is list:
        list.extend(made, content)
    elif base is bytearray:
        bytearray.extend(made, content)
    else:
        (set if base is set else dict).update(made, content)
    return made


def _object(cls: Any, fields: dict[str, Any]) -> Any:
    """Return an object of its fields; of the constructors, only that of a msgspec struct is called."""
    if cls is types.SimpleNamespace:
        return types.SimpleNamespace(**fields)
    if issubclass(cls, msgspec.Struct):
        return cls(**fields)
    if hasattr(cls, "__pydantic_fields__"):
        own = {name: item for name, item in fields.items() if name in cls.__pydantic_fields__}
        extra = {name: item for name, item in fields.items() if name not in own}
        made = object.__new__(cls)
        for name, item in zip(MODEL_STATE, (own, set(own), extra or None, None), strict=True):
            object.__setattr__(made, name, item)
        return made
    if is_dataclass(cls):
        known = {field.name for field in dataclass_fields(cls)}
        made = join_dataclass(cls, {name: item for name, item in fields.items() if name in known})
        fields = {name: item for name, item in fields.items() if name not in known}
    else:
        made = object.__new__(cls)
    for name, item in fields.items():
        object.__setattr__(made, name, item)
    return made


# Finding classes


class _Classes:
    """The classes that a restore may use, by name."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._found: dict[str, type | None] | None = None

    def find(self, name: str, live: Any = MISSING) -> type | None:
        """Return the class of a name: that of the store's current value at this place, one of Python, a registered one,
        or the only one of this name that can be reached from the store."""
        if live is not MISSING and class_name(type(live)) == name:
            return type(live)
        plain = _PLAIN.get(name)
        if plain is not None:
            return plain
        known = find_tag(name)
        if known is not None and class_name(known[0]) == name:
            return known[0]
        if self._found is None:
            self._found = _reachable_classes(self._target.holder, self._target.fields)
        return self._found.get(name)


def _reachable_classes(holder: Any, fields: dict[Any, Any]) -> dict[str, type | None]:
    """Return the classes of the values of a store, and those in the annotations of these classes, by name; None where
    two classes have one name."""
    found: dict[str, type | None] = {}
    classes: set[type] = set()
    pending: list[Any] = [holder, *fields, *fields.values()]
    seen: set[int] = set()
    while pending and len(seen) < _MAX_REACHED:
        value = pending.pop()
        if type(value) in NATIVE or id(value) in seen:
            continue
        seen.add(id(value))
        # Reading runs no code of the application, except the iteration of a container of its own.
        with suppress(Exception):
            if not isinstance(value, type):
                pending.extend(_contents(value))
            cls = value if isinstance(value, type) else type(value)
            if cls not in classes:
                classes.add(cls)
                name = class_name(cls)
                found[name] = cls if found.get(name, cls) is cls else None
                pending.extend(_annotated(cls))
    return found


def _contents(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from dict.copy(value)
        yield from dict.copy(value).values()
        if isinstance(value, defaultdict):
            yield _FACTORY.__get__(value)
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from tuple(value)
    elif not isinstance(value, types.ModuleType | types.FunctionType):
        yield from (public_fields(value, type(value)) or {}).values()


def _annotated(cls: type) -> Iterator[type]:
    """Yield the classes in the annotations of a class and of its constructor."""
    if cls.__module__ == "builtins":
        return
    for base in cls.__mro__:
        if base is object:
            continue
        space = vars(sys.modules.get(base.__module__, types))
        for owner in (base, vars(base).get("__init__")):
            for hint in dict(getattr(owner, "__annotations__", None) or {}).values():
                with suppress(Exception):
                    if isinstance(hint, str):
                        # The code of the class itself, as typing.get_type_hints evaluates it.
                        hint = eval(hint, dict(space), dict(vars(base)))  # noqa: PLW2901, S307
                    yield from _classes_in(hint)


def _classes_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and typing.get_origin(hint) is None:
        yield hint
    for part in typing.get_args(hint):
        yield from _classes_in(part)
