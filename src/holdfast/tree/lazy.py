"""Dicts and lists that open their children when these are read.

A reader's copy of a wide container would be slow to make if every child were copied with it. So the copy starts with
the shared, frozen children in it, and each is replaced by a child of the reader's own when it is read. Reading all of
them (a loop, `values()`, `sorted`) opens all, and the container then changes its class to the one without these
methods: from there on it reads at the speed of a plain `dict` or `list`.

C code that reads the memory of the container directly (msgspec, pydantic) sees children that are not opened yet: they
are complete, frozen dicts and lists.

Threads may share a container, as they may share a dict: a child is opened under a lock, once, and so each thread that
reads it gets the same one. The lock is for all containers of the process, and is held for as long as opening one child
takes.

Invariant: no method of a container gives a caller a child that is not opened, or another one than it gave before.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, ValuesView
from functools import wraps
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, cast

from holdfast.operating_system import fork_safe_lock
from holdfast.tree.values import NATIVE

if TYPE_CHECKING:
    _Dict = dict[Any, Any]
    _List = list[Any]
else:
    _Dict = _List = object

M = TypeVar("M", bound=Callable[..., Any])

#: Held while a child is opened, and while children are replaced or moved. Reentrant: methods that hold it call others.
opening = fork_safe_lock()


def alone(method: M) -> M:
    """Let no child be opened while a method runs."""

    @wraps(method)
    def call(*args: Any, **options: Any) -> Any:
        with opening:
            return method(*args, **options)

    return cast("M", call)


class LazyDict(_Dict):
    """The reading methods of a dict whose values are not all opened. Another thread may open the last of them, and
    change the class, in the middle of a method: the methods use nothing that the class without them lacks."""

    __slots__ = ()

    if TYPE_CHECKING:
        #: The class of the container once all values are opened.
        _whole: type[Any]

        def _open_child(self, value: Any) -> Any:
            """The reader's own form of a value; the value itself if it is that."""

        def _put_opened(self, key: Any, opened: Any) -> None:
            """Put an opened value in the place of what it was opened from."""

    def _open_all(self) -> None:
        with opening:
            for key, value in list(dict.items(self)):
                if type(value) not in NATIVE:
                    opened = self._open_child(value)
                    if opened is not value:
                        self._put_opened(key, opened)
            self.__class__ = self._whole

    def __getitem__(self, key: Any) -> Any:
        value = dict.__getitem__(self, key)
        if type(value) in NATIVE:
            return value
        with opening:
            value = dict.__getitem__(self, key)
            opened = self._open_child(value)
            if opened is not value:
                self._put_opened(key, opened)
            return opened

    def get(self, key: Any, default: Any = None) -> Any:
        value = dict.get(self, key, default)
        if type(value) in NATIVE:
            return value
        with opening:
            return LazyDict.__getitem__(self, key) if key in self else default

    def values(self) -> ValuesView[Any]:  # type: ignore[override]  # dict's own view is a class of C
        LazyDict._open_all(self)
        return dict.values(self)

    def items(self) -> ItemsView[Any, Any]:  # type: ignore[override]  # as above
        LazyDict._open_all(self)
        return dict.items(self)

    def __iter__(self) -> Iterator[Any]:
        # C code that copies a dict (`dict(x)`, `{**x}`) reads its memory unless iteration is overridden.
        return dict.__iter__(self)

    def copy(self) -> dict[Any, Any]:
        LazyDict._open_all(self)
        return self.copy()

    def __or__(self, other: Any) -> Any:
        LazyDict._open_all(self)
        return dict.__or__(self, other)

    def __ror__(self, other: Any) -> Any:
        LazyDict._open_all(self)
        return dict.__ror__(self, other)


class LazyList(_List):
    """The reading methods of a list whose items are not all opened. As with `LazyDict`, another thread may change the
    class meanwhile."""

    __slots__ = ()

    if TYPE_CHECKING:
        #: The class of the container once all items are opened.
        _whole: type[Any]
        #: Types of items that need not be opened.
        _opened_kinds: frozenset[type]

        def _open_child(self, value: Any) -> Any:
            """The reader's own form of an item; the item itself if it is that."""

        def _put_opened(self, index: SupportsIndex, opened: Any) -> None:
            """Put an opened item in the place of what it was opened from."""

        def _open_at_once(self) -> None:
            """Open what can be opened faster than item by item."""

    def _open_all(self) -> None:
        with opening:
            self._open_at_once()
            open_child, opened_already = self._open_child, self._opened_kinds
            for index, value in enumerate(list.__getitem__(self, slice(None))):
                if type(value) not in opened_already:
                    opened = open_child(value)
                    if opened is not value:
                        list.__setitem__(self, index, opened)
            self.__class__ = self._whole

    def __getitem__(self, index: Any) -> Any:
        value = list.__getitem__(self, index)
        if type(value) in NATIVE:
            return value
        with opening:
            if isinstance(index, slice):
                return [LazyList.__getitem__(self, at) for at in range(*index.indices(len(self)))]
            value = list.__getitem__(self, index)
            opened = self._open_child(value)
            if opened is not value:
                self._put_opened(index, opened)
            return opened

    def __iter__(self) -> Iterator[Any]:
        LazyList._open_all(self)
        return list.__iter__(self)

    def __reversed__(self) -> Iterator[Any]:
        LazyList._open_all(self)
        return list.__reversed__(self)

    def copy(self) -> list[Any]:
        LazyList._open_all(self)
        return list.copy(self)

    def __add__(self, other: Any) -> Any:
        LazyList._open_all(self)
        return list.__add__(self, other)

    def __radd__(self, other: Any) -> Any:
        if not isinstance(other, list):
            return NotImplemented
        LazyList._open_all(self)
        return list.__add__(other, self)

    def __mul__(self, times: SupportsIndex) -> Any:
        LazyList._open_all(self)
        return list.__mul__(self, times)

    __rmul__ = __mul__
