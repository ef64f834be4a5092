"""The fields of any object: found, read for a snapshot, and written back.

To find the object that holds the fields, a function is called, and `get_state()` of an object that has it.
The fields of a mapping are its entries; those of any other object its attributes that do not start with an
underscore.

Invariant: reading fields runs no code of the object except the function or `get_state` itself, and the methods
of a mapping. Writing fields changes all of them or none; an error says which of the two could not be verified.
"""

from __future__ import annotations

import inspect
import sys
from collections import OrderedDict, UserDict
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from functools import partial
from types import GetSetDescriptorType, MemberDescriptorType, SimpleNamespace
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import InvalidCall, InvalidSnapshot
from holdfast.execution.exception_codec import describe
from holdfast.model.names import short
from holdfast.tree.fold import Folder, same
from holdfast.tree.object_fields import public_fields
from holdfast.tree.sanitize import TYPE_KEY, sanitize_fields
from holdfast.tree.values import split_error

#: Maximum depth of functions that return functions.
_MAX_DEPTH = 4

MISSING: Any = object()

#: Value of `TYPE_KEY` in the dict for an error whose class is not registered. No class has this name.
ERROR = "exception"
#: The key of the names of its attributes that could not be stored.
LOST = "lost"


class StorableFields(NamedTuple):
    """The fields of an object in storable form."""

    state: dict[Any, Any]
    #: Paths of the values that had to be replaced.
    replaced: list[str]
    #: Classes of values that are stored by their content, by path.
    classes: dict[str, str]


def storable_fields(
    holder: Any, fields: dict[Any, Any], hides: Callable[[Any], bool] | None = None
) -> StorableFields:
    """Return the fields of an object in storable form, without the values of the keys that are hidden."""

    def instead(value: Any) -> Any:
        """Describe an error whose class is not registered: its message and its traceback."""
        if not isinstance(value, BaseException):
            return NotImplemented
        facts = describe(value)
        _name_lost_parts(value, facts)
        return {TYPE_KEY: ERROR, **facts}

    classes: dict[str, str] = {}
    made, replaced = sanitize_fields(holder, fields, classes, instead=instead, is_whole=is_whole, hides=hides)
    return StorableFields(made, replaced, classes)


def is_whole(value: Any) -> bool:
    """Return whether a value is stored with all that belongs to it: an error without its causes is not."""
    if not issubclass(type(value), BaseException):
        return True
    with suppress(Exception):
        return value.__cause__ is value.__context__ is None
    return False


def _name_lost_parts(error: BaseException, facts: dict[str, Any]) -> None:
    """Add the names of the attributes that cannot be stored to the description of an error, and of its causes."""
    if "same_as" in facts:
        return
    with suppress(Exception):
        args, attributes = split_error(error)
        kept = facts.get("attributes", {})
        lost = [name for name in attributes if name not in kept and not name.startswith("__")]
        if args and "args" not in facts:
            lost.append("args")
        if lost:
            facts[LOST] = lost
    for name in ("cause", "context"):
        below, other = facts.get(name), getattr(error, f"__{name}__", None)
        if isinstance(other, BaseException) and isinstance(below, dict) and "skipped" not in facts:
            _name_lost_parts(other, below)
    if isinstance(error, BaseExceptionGroup) and not facts.get("left_out"):
        for other, below in zip(error.exceptions, facts.get("errors", ()), strict=False):
            _name_lost_parts(other, below)


def holder_of(store: Any, depth: int = 0) -> Any:
    """Return the object that holds the fields of a store."""
    if isinstance(store, type):
        raise InvalidCall(f"{describe_store(store)} is a class: give an object of it")
    give = store if _is_function(store) else _method(store, "get_state")
    if give is None:
        has_none = (
            callable(store) and not isinstance(store, Mapping) and not public_fields(store, type(store))
        )
        give = store if has_none else None
    if give is None:
        return store
    if depth == _MAX_DEPTH:
        raise InvalidCall(
            f"{describe_store(store)} returns a function that returns a function …: give the object with the fields"
        )
    _refuse_async(give)
    with suppress(ValueError):  # some built-in functions have no signature
        try:
            inspect.signature(give).bind()
        except TypeError as error:
            raise InvalidCall(f"{describe_store(give)} cannot be called without arguments: {error}") from None
    return holder_of(give(), depth + 1)


def fields_of(holder: Any) -> dict[Any, Any]:
    """Return the fields of an object, or raise `InvalidCall` if it has none. A dict is returned as it is."""
    if isinstance(holder, Mapping):
        return holder if type(holder) is dict else dict(holder)
    module = type(holder).__module__
    if module == "holdfast" or module.startswith("holdfast."):
        raise InvalidCall(
            f"{describe_store(holder)} is an object of Holdfast, which has its own history: give your object or its "
            "state, such as thaw(version.state)"
        )
    found = public_fields(holder, type(holder))
    if found is None or holder is None:
        raise InvalidCall(f"{describe_store(holder)} has no fields: give an object or a dict")
    if not found:
        raise InvalidCall(
            f"{describe_store(holder)} has no public fields, so that a snapshot of it would be empty: give an object "
            "whose attributes do not start with an underscore, a dict, or a function that returns one"
        )
    return found


def _refuse_async(function: Any) -> None:
    if inspect.iscoroutinefunction(function):
        raise InvalidCall(f"{describe_store(function)} has to be awaited: give a plain function")


def _is_function(store: Any) -> bool:
    return inspect.isroutine(store) or isinstance(store, partial)


def _method(store: Any, name: str) -> Callable[..., Any] | None:
    """Return a method of an object; None for a mapping, whose fields are always its entries."""
    if isinstance(store, Mapping):
        return None
    found = inspect.getattr_static(store, name, None)
    return getattr(store, name) if found is not None and callable(getattr(store, name, None)) else None


def describe_store(value: Any) -> str:
    """Return a description of a value that does not reveal its content."""
    name = getattr(value, "__qualname__", None) if isinstance(value, type) or _is_function(value) else None
    return name if isinstance(name, str) else f"an object of {type(value).__name__}"


# Temporary objects


def _count(run_id: object, store: object, *, strict: object = None) -> int:
    """Return the references to `store` that a method sees in its own parameter."""
    return sys.getrefcount(store)


def _references() -> int:
    """Return the references that a method sees to a temporary object; 0 where it sees as many to a variable."""
    held: dict[str, int] = {}
    temporary = _count("run", dict(held))
    return temporary if _count("run", held) > temporary else 0


#: References to a temporary object, such as the result of a call, in the method that it is passed to.
TEMPORARY = _references()


#: Setters of attributes and of items that do nothing else.
_PLAIN_SETTERS: tuple[Any, ...] = (
    object.__setattr__,
    SimpleNamespace.__setattr__,
    msgspec.Struct.__setattr__,
)
_PLAIN_ITEM_SETTERS: tuple[Any, ...] = (
    dict.__setitem__,
    OrderedDict.__setitem__,
    UserDict.__setitem__,
)
#: Descriptors that write to the object itself.
_PLAIN_DESCRIPTORS = (MemberDescriptorType, GetSetDescriptorType)


def _writes_elsewhere(attribute: Any) -> bool:
    """Return whether an attribute of a class may write to another object when it is set."""
    if isinstance(attribute, property):
        return attribute.fset is not None
    return hasattr(type(attribute), "__set__") and not isinstance(attribute, _PLAIN_DESCRIPTORS)


def refuse_temporary(store: Any) -> None:
    """Raise `InvalidCall` for an object that only the current call refers to, if writing to it has no effect outside.
    The caller has established that nothing else refers to it."""
    cls = type(store)
    if isinstance(store, dict | UserDict):
        is_plain = cls.__setitem__ in _PLAIN_ITEM_SETTERS
    else:
        is_plain = (
            not _is_function(store)
            and _method(store, "get_state") is None
            and not isinstance(store, Mapping)
            and (
                cls.__setattr__ in _PLAIN_SETTERS
                or hasattr(cls, "__pydantic_fields__")
                or getattr(cls, "__attrs_own_setattr__", False) is True
            )
            and not any(_writes_elsewhere(inspect.getattr_static(cls, name, None)) for name in dir(cls))
            and bool(public_fields(store, cls))
        )
    if is_plain:
        raise InvalidCall(
            f"nothing refers to {describe_store(store)} except this call: it is a copy, and restoring into it would "
            "have no effect. Give the store itself, with get_state and set_state, or keep the "
            "object in a variable and use it afterwards"
        )


class Unwritten(NamedTuple):
    """Fields that a store does not have as they were given."""

    #: Fields that a store has otherwise than it was given them, and fields that it kept.
    fields: tuple[Any, ...] = ()
    kept: tuple[Any, ...] = ()


class Target:
    """A store whose fields are to be written. The constructor refuses a store that cannot be written."""

    def __init__(self, store: Any) -> None:
        self._set_state: Callable[[Any], Any] | None = None
        method = None if _is_function(store) else _method(store, "set_state")
        if method is not None and _method(store, "get_state") is not None:
            _refuse_async(method)
            self._set_state = method
        self._store = store
        #: The object that holds the fields.
        self.holder = holder_of(store)
        if self._set_state is None and holder_of(store) is not self.holder:
            raise InvalidCall(
                f"{describe_store(store)} returns another object each time, so that nothing would be restored: give "
                "the object itself, or add set_state to the class"
            )
        #: The current fields.
        self.fields = dict(writable_fields(self.holder))
        self.is_mapping = isinstance(self.holder, Mapping)
        if self.is_mapping and self._set_state is None and not isinstance(self.holder, MutableMapping):
            raise InvalidCall(f"{describe_store(self.holder)} cannot be changed: give a dict or an object")

    def write(
        self,
        fields: Mapping[Any, Any],
        remove: list[Any],
        *,
        order: Iterable[Any] = (),
        strict: bool = False,
    ) -> Unwritten:
        """Set some fields and remove others; all of it, or nothing and raise `InvalidSnapshot`. The keys of a dict get
        an order, before those that are not in it. Return what a `set_state` did not do, or with `strict` count it as a
        refusal."""
        if self._set_state is not None:
            return self._replace(self._set_state, fields, remove, order, strict=strict)
        done: dict[Any, Any] = {}
        try:
            for name in (*fields, *remove):
                done[name] = self._value(name, self.fields)
                self._put(name, fields.get(name, MISSING))
            # All of them move.
            done = {**self.fields, **done} if self.is_mapping else done
            self._arrange(order)
        except BaseException as error:
            name = next(reversed(done), None)
            for each in reversed(done):
                with suppress(Exception):
                    self._put(each, done[each])
            before, now = {**self.fields, **done}, self._current()
            left = [
                each for each in {**before, **now} if self._value(each, now) is not before.get(each, MISSING)
            ]
            if isinstance(error, Exception):
                raise self._refused(error, name, left) from error
            raise
        return Unwritten()

    def _arrange(self, order: Iterable[Any]) -> None:
        """Give the keys of a dict an order and their classes: a key may be equal to that of a snapshot, and of another
        class."""
        holder = self.holder
        if not isinstance(holder, dict) or type(holder).__setitem__ not in _PLAIN_ITEM_SETTERS:
            return
        wanted = list(_in_order(holder, order))
        if [(type(key), key) for key in holder] != [(type(key), key) for key in wanted]:
            for key in wanted:
                holder[key] = holder.pop(key)

    def _replace(
        self,
        set_state: Callable[[Any], Any],
        fields: Mapping[Any, Any],
        remove: list[Any],
        order: Iterable[Any],
        *,
        strict: bool,
    ) -> Unwritten:
        """Write through `set_state`; if it fails half-way, write the previous state again."""
        before = _frozen(self.holder, self.fields)
        gone = set(remove)
        wanted = {**{name: value for name, value in self.fields.items() if name not in gone}, **fields}
        wanted = _in_order(wanted, order)
        try:
            set_state(dict(wanted))
            now = self._current()
            changed = tuple(name for name in fields if not _is_same(now.get(name, MISSING), wanted[name]))
            kept = tuple(name for name in remove if name in now)
            if strict and (changed or kept):
                raise ValueError(f"set_state did not take over {', '.join(map(short, (*changed, *kept)))}")
        except BaseException as error:
            with suppress(Exception):
                set_state(dict(self.fields))
            now = self._current()
            left = [] if same(_frozen(self.holder, now), before) else self._differing(now)
            if isinstance(error, Exception):
                raise self._refused(error, None, left) from error
            raise
        return Unwritten(changed, kept)

    def _differing(self, now: dict[Any, Any]) -> list[Any]:
        names = {**self.fields, **now}
        return [
            name for name in names if not _is_same(now.get(name, MISSING), self.fields.get(name, MISSING))
        ] or list(names)

    def _current(self) -> dict[Any, Any]:
        try:
            holder = self.holder if self._set_state is None else holder_of(self._store)
            return dict(writable_fields(holder))
        except Exception:
            return {}

    def _value(self, name: Any, fields: dict[Any, Any]) -> Any:
        """Return the value of a field, or of a property, which is not among the fields."""
        if not self.is_mapping and isinstance(
            inspect.getattr_static(type(self.holder), str(name), None), property
        ):
            with suppress(Exception):
                return getattr(self.holder, name)
        return fields.get(name, MISSING)

    def _put(self, name: Any, value: Any) -> None:
        if self.is_mapping:
            if value is MISSING:
                self.holder.pop(name, None)
            else:
                self.holder[name] = value
        elif value is not MISSING:
            setattr(self.holder, name, value)
        elif name in writable_fields(self.holder):
            delattr(self.holder, name)

    def _refused(self, error: Exception, name: Any, left: list[Any]) -> InvalidSnapshot:
        where = "" if name is None else f" at {name!r:.60}"
        state = (
            f"could not be put back: {', '.join(map(short, left)):.300} may have changed"
            if left
            else "is unchanged"
        )
        refusing = self.holder if self._set_state is None else self._store
        return InvalidSnapshot(
            f"{type(refusing).__name__} refused the snapshot{where}, and {state}: "
            f"{type(error).__name__}: {error!s:.300}",
            field=name,
            unchanged=not left,
            changed=tuple(left),
        )


def writable_fields(holder: Any) -> dict[Any, Any]:
    """Return the fields of an object that is to be written, which may have none yet."""
    if isinstance(holder, Mapping):
        return fields_of(holder)
    found = public_fields(holder, type(holder))
    if found or found is None or holder is None or not hasattr(holder, "__dict__"):
        return fields_of(holder)
    return found


def _in_order(fields: dict[Any, Any], order: Iterable[Any]) -> dict[Any, Any]:
    """Return fields with the keys in an order first."""
    return {**{name: fields[name] for name in order if name in fields}, **fields}


def _frozen(holder: Any, fields: dict[Any, Any]) -> Any:
    return Folder(None).fold([*storable_fields(holder, fields)])


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values are the same as far as a snapshot can show."""
    if one is MISSING or other is MISSING:
        return one is other
    return one is other or same(_frozen(None, {"value": one}), _frozen(None, {"value": other}))
