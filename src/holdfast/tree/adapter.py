"""The way for an integration to store values that the core refuses, within a `with` block.

Some frameworks store values less exactly than Holdfast, and their users expect that. While an `Adapter` is in use, it
is asked where a value would be refused, and where a stored tag is unknown. Values of known types never reach it.

Invariant: without an adapter, nothing changes. A cached value never has a replaced part.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, ClassVar, NoReturn, Protocol

from holdfast.errors import UnsupportedValue
from holdfast.tree.class_names import own_name


class Adapter(Protocol):
    """Storage of values that the core refuses."""

    def replace(self, value: Any) -> Any:
        """Return the value to store instead of one of an unknown type; the same one if its class is registered now;
        `NotImplemented` if there is none. May raise `UnsupportedValue` with a better reason."""

    def simplify(self, value: Any) -> Any:
        """Return the value to store instead of one whose parts are refused; `NotImplemented` if there is none."""

    def provide(self, tag: str) -> None:
        """Register the class of an unknown tag, if there is one."""


class Replaced(UnsupportedValue):
    """Raised by `replace` and `simplify`, and caught where the value is stored: the adapter stores another value
    instead. Where that is not possible, in some keys, the caller sees it as an `UnsupportedValue`."""

    #: Number of replacements so far, in all threads.
    total: ClassVar[int] = 0

    def __init__(self, value: Any) -> None:
        super().__init__("a key cannot be stored here: use a plain text or number")
        #: The value that can be stored instead.
        self.value = value
        Replaced.total += 1


_current: ContextVar[Adapter | None] = ContextVar("holdfast_adapter", default=None)


class _Use:
    """Uses an adapter for the length of a `with`. A class, because every read of an integration uses it."""

    __slots__ = ("_adapter", "_token")

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter

    def __enter__(self) -> None:
        self._token = _current.set(self._adapter)

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)


def use(adapter: Adapter) -> AbstractContextManager[None]:
    """Use an adapter within a `with` block, in this thread or task. Do not yield from inside the block: the caller of
    a generator has the same context."""
    return _Use(adapter)


def is_in_use() -> bool:
    """Return whether an adapter is in use in this thread or task."""
    return _current.get() is not None


def replace(value: Any, explain: Callable[[Any], str]) -> None:
    """Return if the adapter has registered the class of a value of an unknown type. Raise `Replaced` if it stores
    another value instead; otherwise, or without an adapter, raise `UnsupportedValue`."""
    adapter = _current.get()
    other = NotImplemented if adapter is None else adapter.replace(value)
    if other is NotImplemented:
        raise UnsupportedValue(explain(value), type=own_name(type(value)))
    if other is not value:
        raise Replaced(other)


def simplify(value: Any, error: UnsupportedValue) -> NoReturn:
    """Raise `Replaced` if the adapter stores another value instead of one whose parts are refused; otherwise, or
    without an adapter, raise `error`."""
    adapter = _current.get()
    other = NotImplemented if adapter is None else adapter.simplify(value)
    raise error if other is NotImplemented else Replaced(other)


def provide(tag: str) -> None:
    """Let the adapter, if there is one, register the class of a tag."""
    adapter = _current.get()
    if adapter is not None:
        adapter.provide(tag)
