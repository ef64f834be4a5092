"""Drafts: state as a step may change it.

A draft is a real `dict` or `list`, physically complete, so everything that takes one takes a draft. Reading
by index gives a draft of that part; iterating gives frozen values at native speed. It notes which keys and
items were touched, so that folding looks at the changed paths only. After folding, a draft is over: it
refuses every further change, since nobody would ever see it.

Invariant: a draft never changes the frozen tree that it began from; folding an untouched draft gives that
very tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index as index_of
from typing import Any, SupportsIndex

from holdfast.tree.codec import open_box
from holdfast.tree.fold import Folder, same
from holdfast.tree.frozen import BOXED, DICTS, LISTS, Box, FrozenDict, FrozenList, thaw
from holdfast.tree.spine import build_dict, build_list
from holdfast.tree.values import NATIVE

_OVER = (
    "this draft is over: its step has ended, or has called another one (take holdfast.state() again); "
    "a change to it would be lost"
)
_MISSING: Any = object()


def draft(value: Any) -> Any:
    """A draft of a frozen value; other values as they are."""
    kind = type(value)
    if kind in DICTS:
        return DraftDict(value)
    if kind in LISTS:
        return DraftList(value)
    return open_box(value) if kind is Box else value


def _boxed(value: Any) -> bool:
    return type(value) in BOXED


class DraftDict(dict[Any, Any]):
    """A dict that can be changed and remembers where."""

    __slots__ = ("_base", "_gone", "_moved", "_over", "_touched")
    _plain = dict

    def __init__(self, base: FrozenDict) -> None:
        dict.__init__(self, base)
        self._base = base
        #: Keys that were set, deleted or handed out as drafts, in that order.
        self._touched: dict[Any, None] = {}
        #: Keys of the base that were deleted, for a while at least.
        self._gone: set[Any] = set()
        #: Was one of them set again, so that its place in the order is another?
        self._moved = False
        self._over = False
        if type(base) is not FrozenDict:
            for key, item in base.items():
                if _boxed(item):
                    self._touched[key] = None
                    dict.__setitem__(self, key, draft(item))

    def __getitem__(self, key: Any) -> Any:
        value = dict.__getitem__(self, key)
        if type(value) in NATIVE:
            return value
        return self._child(key, value)

    def get(self, key: Any, default: Any = None) -> Any:
        if key in self:
            return self[key]
        return default

    def __setitem__(self, key: Any, value: Any) -> None:
        self._change(key)
        dict.__setitem__(self, key, value)
        if self._gone and key in self._gone:
            self._moved = True

    def __delitem__(self, key: Any) -> None:
        self._change(key)
        dict.__delitem__(self, key)
        if key in self._base:
            self._gone.add(key)

    def pop(self, key: Any, *default: Any) -> Any:
        if key not in self:
            return dict.pop(self, key, *default)
        value = self[key]
        del self[key]
        return value

    def popitem(self) -> tuple[Any, Any]:
        if not self:
            return dict.popitem(self)
        key = next(reversed(self))
        return key, self.pop(key)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def update(self, *others: Any, **more: Any) -> None:
        for key, value in dict(*others, **more).items():
            self[key] = value

    def __ior__(self, other: Any) -> DraftDict:  # type: ignore[misc]
        self.update(other)
        return self

    def clear(self) -> None:
        for key in list(self):
            del self[key]

    def __copy__(self) -> dict[Any, Any]:
        return dict(self)

    def __deepcopy__(self, memo: Any) -> Any:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (self.__deepcopy__(None),)

    def _change(self, key: Any) -> None:
        if self._over:
            raise TypeError(_OVER)
        self._touched[key] = None

    def _child(self, key: Any, value: Any) -> Any:
        kind = type(value)
        if (kind in DICTS or kind in LISTS) and not self._over:
            value = draft(value)
            self._touched[key] = None
            dict.__setitem__(self, key, value)
        return value

    def _fold(self, folder: Folder, base: Any, depth: int) -> Any:
        """The frozen form; shares with the frozen dict that this draft began from."""
        old = self._base
        changed: list[Any] = []
        for key in self._touched:
            was = old.get(key, _MISSING)
            if key in self:
                new = folder.entry(key, dict.__getitem__(self, key), was, depth)
                if new is not was and same(new, was):
                    new = was
                # In place: a copy of a wide dict costs more than all else here.
                dict.__setitem__(self, key, new)
                if new is not was:
                    changed.append(key)
            elif was is not _MISSING:
                changed.append(key)
        self._over = True
        if not changed and not self._moved:
            return old
        return build_dict(self, old, changed, reordered=self._moved)


class DraftList(list[Any]):
    """A list that can be changed and remembers where."""

    __slots__ = ("_base", "_kept", "_over", "_touched")
    _plain = list

    def __init__(self, base: FrozenList) -> None:
        list.__init__(self, base)
        self._base = base
        #: The first so many items are those of the base, but for the touched ones.
        self._kept = len(base)
        self._touched: set[int] = set()
        self._over = False
        if type(base) is not FrozenList:
            for index, item in enumerate(base):
                if _boxed(item):
                    self._touched.add(index)
                    list.__setitem__(self, index, draft(item))

    def __getitem__(self, index: Any) -> Any:
        value = list.__getitem__(self, index)
        kind = type(value)
        if kind in NATIVE:
            return value
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        if (kind in DICTS or kind in LISTS) and not self._over:
            at = _position(index, len(self))
            value = draft(value)
            self._touched.add(at)
            list.__setitem__(self, at, value)
        return value

    def __setitem__(self, index: Any, value: Any) -> None:
        self._change(len(self))
        if isinstance(index, slice):
            start = min(range(len(self))[index], default=index.indices(len(self))[0])
            list.__setitem__(self, index, value)
            self._change(start)
        else:
            list.__setitem__(self, index, value)
            self._touched.add(_position(index, len(self)))

    def __delitem__(self, index: Any) -> None:
        self._change(len(self))
        if isinstance(index, slice):
            start = min(range(len(self))[index], default=len(self))
        else:
            start = _position(index, len(self))
        list.__delitem__(self, index)
        self._change(start)

    def append(self, value: Any) -> None:
        if self._over:
            raise TypeError(_OVER)
        list.append(self, value)

    def extend(self, values: Iterable[Any]) -> None:
        self._change(len(self))
        list.extend(self, values)

    def __iadd__(self, values: Iterable[Any]) -> DraftList:  # type: ignore[misc]
        self.extend(values)
        return self

    def __imul__(self, times: SupportsIndex) -> DraftList:
        self._change(len(self) if index_of(times) > 0 else 0)
        list.__imul__(self, times)
        return self

    def insert(self, index: SupportsIndex, value: Any) -> None:
        at = index_of(index)
        self._change(max(0, at + len(self)) if at < 0 else min(at, len(self)))
        list.insert(self, index, value)

    def pop(self, index: SupportsIndex = -1) -> Any:
        value = self[index] if self else list.pop(self)
        del self[index]
        return value

    def remove(self, value: Any) -> None:
        del self[self.index(value)]

    def clear(self) -> None:
        self._change(0)
        list.clear(self)

    def reverse(self) -> None:
        self._change(0)
        list.reverse(self)

    def sort(self, **how: Any) -> None:
        self._change(0)
        list.sort(self, **how)

    def __copy__(self) -> list[Any]:
        return list(self)

    def __deepcopy__(self, memo: Any) -> Any:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (self.__deepcopy__(None),)

    def _change(self, start: int) -> None:
        """From `start` on, items may be others than the base's."""
        if self._over:
            raise TypeError(_OVER)
        self._kept = min(self._kept, start)

    def _fold(self, folder: Folder, base: Any, depth: int) -> Any:
        """The frozen form; shares with the base of this draft, wherever it now lies."""
        old = self._base
        kept = self._kept
        first = kept
        for index in sorted(self._touched):
            if index < kept:
                was = old[index]
                new = folder.item(list.__getitem__(self, index), was, depth, index)
                if new is not was and same(new, was):
                    new = was
                # In place: a copy of a long list costs more than all else here.
                list.__setitem__(self, index, new)
                if new is not was:
                    first = min(first, index)
        known = {id(item): item for item in old[kept:]} if kept < len(old) else {}
        for index in range(kept, len(self)):
            item = list.__getitem__(self, index)
            if id(item) not in known:
                was = old[index] if index < len(old) else _MISSING
                list.__setitem__(self, index, folder.item(item, was, depth, index))
        self._over = True
        if first == len(self) == len(old):
            return old
        return build_list(self, old, first)


def _position(index: SupportsIndex, length: int) -> int:
    at = index_of(index)
    return at + length if at < 0 else at
