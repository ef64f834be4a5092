"""The fields of anything that has some: reading them, and writing them back.

What holds the fields is found first: a function is called, an object with `get_state()` is asked. The fields of a
mapping are its entries; those of any other object its attributes that do not begin with an underscore.

Invariant: reading runs no code of the object but the function or `get_state` itself, and of a mapping its own methods.
Writing all fields is one act: if one is refused, those before it are put back.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast.errors import InvalidCall, InvalidSnapshot
from holdfast.tree.sanitize import public_fields

#: Functions that give functions are followed this far.
_DEEPEST = 4

MISSING: Any = object()


class Target:
    """A store whose fields are about to be written. Made before anything is written: refuses what cannot be."""

    def __init__(self, store: Any) -> None:
        self._set_state: Callable[[Any], Any] | None = None
        method = None if _is_function(store) else _method(store, "set_state")
        if method is not None and _method(store, "get_state") is not None:
            self._set_state = method
        self._holder = holder_of(store)
        if self._set_state is None and holder_of(store) is not self._holder:
            raise InvalidCall(
                f"{_short(store)} gives another object each time, so that nothing would be restored: give the object"
            )
        #: What it holds now.
        self.fields = dict(fields_of(self._holder))
        self.is_mapping = isinstance(self._holder, Mapping)
        if self.is_mapping and self._set_state is None and not isinstance(self._holder, MutableMapping):
            raise InvalidCall(f"{_short(self._holder)} cannot be changed: give a dict or an object")

    def write(self, fields: Mapping[Any, Any], remove: list[Any]) -> None:
        """Set some fields and remove others; all of it, or nothing and `InvalidSnapshot`."""
        if self._set_state is not None:
            kept = {name: value for name, value in self.fields.items() if name not in remove}
            self._call(self._set_state, {**kept, **fields})
            return
        done: list[Any] = []
        try:
            for name in (*fields, *remove):
                done.append(name)
                self._put(name, fields.get(name, MISSING))
        except Exception as error:
            for name in reversed(done):
                with suppress(Exception):
                    self._put(name, self.fields.get(name, MISSING))
            raise self._refused(error, done[-1]) from error

    def _call(self, method: Callable[[Any], Any], fields: dict[Any, Any]) -> None:
        try:
            method(fields)
        except Exception as error:
            raise self._refused(error, None) from error

    def _put(self, name: Any, value: Any) -> None:
        if self.is_mapping:
            if value is MISSING:
                self._holder.pop(name, None)
            else:
                self._holder[name] = value
        elif value is not MISSING:
            setattr(self._holder, name, value)
        elif name in fields_of(self._holder):
            delattr(self._holder, name)

    def _refused(self, error: Exception, name: Any) -> InvalidSnapshot:
        where = "" if name is None else f" at {name!r:.60}"
        return InvalidSnapshot(
            f"{type(self._holder).__name__} does not take the snapshot{where}, and is as it was: "
            f"{type(error).__name__}: {error!s:.300}",
            field=name,
        )


def holder_of(store: Any, depth: int = 0) -> Any:
    """The object that holds the fields of a store."""
    if isinstance(store, type):
        raise InvalidCall(f"{_short(store)} is a class: give an object of it")
    give = store if _is_function(store) else _method(store, "get_state")
    if give is None:
        has_none = callable(store) and not isinstance(store, Mapping) and not fields_of(store)
        give = store if has_none else None
    if give is None:
        return store
    if depth == _DEEPEST:
        raise InvalidCall(
            f"{_short(store)} gives a function that gives a function …: give what holds the fields"
        )
    if inspect.iscoroutinefunction(give):
        raise InvalidCall(f"{_short(give)} has to be awaited: give a plain function")
    with suppress(ValueError):  # some built-in functions do not tell
        try:
            inspect.signature(give).bind()
        except TypeError as error:
            raise InvalidCall(f"{_short(give)} cannot be called without arguments: {error}") from None
    return holder_of(give(), depth + 1)


def fields_of(holder: Any) -> dict[Any, Any]:
    """The fields that an object holds, or `InvalidCall` if it has none. A dict is given as it is."""
    if isinstance(holder, Mapping):
        return holder if type(holder) is dict else dict(holder)
    found = public_fields(holder, type(holder))
    if found is None or holder is None:
        raise InvalidCall(f"a store has fields, which {_short(holder)} has not: give an object or a dict")
    return found


def _is_function(store: Any) -> bool:
    return inspect.isroutine(store) or isinstance(store, partial)


def _method(store: Any, name: str) -> Callable[..., Any] | None:
    """A method of an object; a mapping is what it is, whatever it has for methods."""
    if isinstance(store, Mapping):
        return None
    found = inspect.getattr_static(store, name, None)
    return getattr(store, name) if found is not None and callable(getattr(store, name, None)) else None


def _short(value: Any) -> str:
    """What a thing is, without a word of what it holds."""
    name = getattr(value, "__qualname__", None) if isinstance(value, type) or _is_function(value) else None
    return name if isinstance(name, str) else f"an object of {type(value).__name__}"
