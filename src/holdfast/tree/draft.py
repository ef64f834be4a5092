"""Drafts: state as a step may change it.

A draft is a real `dict` or `list`, physically complete, so everything that takes one takes a draft. Whatever is read
from it by whatever method is a draft, too; a child becomes one when it is read (see `lazy`). C code writes into lists
and dicts past their methods (`heapq.heappush`, `dict.__setitem__(x, …)`), so folding does not rely on notes of what
was changed: it compares what is there, item by item and by identity, with what the draft began from. The only
exception is a `DraftRecord`, see there.

The code that folds a draft ends it: the draft then refuses every further change, which would be lost.

Invariant: a draft never changes the frozen tree that it began from; folding an untouched draft gives that
very tree.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress
from operator import index as index_of
from operator import is_, is_not
from typing import Any, ClassVar, SupportsIndex

from holdfast.tree.codec import open_box
from holdfast.tree.fold import Folder, same, same_keys_first
from holdfast.tree.frozen import (
    BOXED,
    DICTS,
    LISTS,
    SERVED,
    Box,
    BoxedDict,
    FrozenDict,
    FrozenList,
    are_records,
    kinds_of,
    map_tuple,
    stored_at,
    thaw,
)
from holdfast.tree.lazy import LazyDict, LazyList, alone, opening
from holdfast.tree.spine import build_dict, build_list
from holdfast.tree.values import NATIVE, SIMPLE

_OVER = (
    "this draft is over: its step has ended, or has called another one (take holdfast.state() again); "
    "a change to it would be lost"
)
_MISSING: Any = object()
_FROZEN = frozenset((*DICTS, *LISTS, *SERVED))
#: Types of items that a draft of a list opens when they are read.
_NOT_HEAPED = SIMPLE | {FrozenDict}
#: Types of items that are exactly equal if they are equal. (Of dicts, see `DraftRecord`.)
_EXACT = frozenset((str, bytes, type(None), FrozenDict))


class _Whole:
    """What all containers of one draft share."""

    __slots__ = ("over", "written")

    def __init__(self) -> None:
        self.over = False
        #: The ids of the containers that a method of theirs has changed.
        self.written: set[int] = set()


def draft(value: Any) -> Any:
    """A draft of a frozen value; other values as they are."""
    return _open(value, _Whole())


def end_draft(value: Any) -> None:
    """Let a draft refuse every further change."""
    if type(value) in _DRAFTS:
        value._whole_draft.over = True


def _open(value: Any, whole: _Whole) -> Any:
    """The form in which a draft gives a value to its reader."""
    kind = type(value)
    if kind in DICTS:
        simple = SIMPLE.issuperset(map(type, value.values()))
        opened: Any = DraftRecord(value) if simple else LazyDraftDict(value)
        opened._opened = None if simple else {}
        if kind is BoxedDict:
            for key, item in value.items():
                if type(item) in BOXED:
                    child = opened._opened[key] = _open(item, whole)
                    dict.__setitem__(opened, key, child)
    elif kind in LISTS:
        kinds = kinds_of(value)
        opened = DraftList(value) if SIMPLE.issuperset(kinds) else LazyDraftList(value)
        opened._opened = {}
        # `heapq` hands out lists and tuples past the methods of the list that holds them; dicts, which it cannot
        # compare, only of one item or two.
        not_heaped = _NOT_HEAPED if len(value) > 2 else SIMPLE
        if not not_heaped.issuperset(kinds):
            opened._opened = None
            for index, item in enumerate(value):
                if type(item) not in not_heaped:
                    list.__setitem__(opened, index, _open(item, whole))
    elif kind is Box:
        return open_box(value)
    elif isinstance(value, tuple):
        return map_tuple(value, thaw)
    else:
        return thaw(value) if kind in SERVED else value
    opened._base = value
    opened._whole_draft = whole
    return opened


class DraftDict(dict[Any, Any]):
    """A dict that can be changed until its draft is over."""

    __slots__ = ("_base", "_opened", "_whole_draft")
    _plain = dict
    _whole: ClassVar[type[Any]]
    _base: FrozenDict
    _whole_draft: _Whole
    #: Values that were opened, by key; None in a record, which has none.
    _opened: dict[Any, Any] | None

    def __setitem__(self, key: Any, value: Any) -> None:
        self._change()
        dict.__setitem__(self, key, value)
        if type(value) in _FROZEN:
            self.__class__ = LazyDraftDict

    def __delitem__(self, key: Any) -> None:
        self._change()
        dict.__delitem__(self, key)

    def pop(self, key: Any, *default: Any) -> Any:
        if key not in self:
            return dict.pop(self, key, *default)
        self._change()
        return self._open_child(dict.pop(self, key, *default))

    def popitem(self) -> tuple[Any, Any]:
        if self:
            self._change()
        key, value = dict.popitem(self)
        return key, self._open_child(value)

    def setdefault(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            self._change()
            # Of several threads that do so, one enters its value, and all get that.
            dict.setdefault(self, key, default)
            if type(default) in _FROZEN:
                self.__class__ = LazyDraftDict
        return self[key]

    def update(self, *others: Any, **more: Any) -> None:
        for key, value in dict(*others, **more).items():
            self[key] = value

    def __ior__(self, other: Any) -> DraftDict:  # type: ignore[misc]
        self.update(other)
        return self

    def clear(self) -> None:
        self._change()
        dict.clear(self)

    def __copy__(self) -> dict[Any, Any]:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Any:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (thaw(self),)

    def _change(self) -> None:
        whole = self._whole_draft
        if whole.over:
            raise TypeError(_OVER)
        whole.written.add(id(self))

    def _open_child(self, value: Any) -> Any:
        return _open(value, self._whole_draft)

    def _put_opened(self, key: Any, opened: Any) -> None:
        dict.__setitem__(self, key, opened)
        if self._opened is not None:
            self._opened[key] = opened

    def _content(self) -> dict[Any, Any]:
        """A plain dict of what is there, opened or not."""
        kind = type(self)
        if kind is not LazyDraftDict:
            return self.copy()
        # A class without methods of its own for reading is copied at the speed of C.
        self.__class__ = DraftDict
        content = self.copy()
        self.__class__ = kind
        return content

    def _fold(self, folder: Folder, base: Any, depth: int) -> Any:
        """The frozen form; shares with the frozen dict that this draft began from, wherever it now lies."""
        old = self._base
        items = self._content()
        if not _is_trusted(old, folder, base):
            return folder.dict(items, base, depth)
        in_place = len(items) == len(old) and self._has_keys_of(items, old)
        if not in_place:
            differing = [key for key, item in items.items() if old.get(key, _MISSING) is not item]
        elif self._holds_only_opened(items):
            differing = list(self._opened or ())
        else:
            differing = list(compress(items, map(is_not, items.values(), old.values())))
        changed: list[Any] = []
        for key in differing:
            was = old.get(key, _MISSING)
            new = folder.entry(key, items[key], was, depth)
            if new is not was and same(new, was):
                new = was
            items[key] = new
            if new is not was:
                changed.append(key)
        reordered = False
        if not in_place:
            left = [key for key in old if key in items]
            if len(left) < len(old):
                changed += [key for key in old if key not in items]
            reordered = not same_keys_first(items, left)
        if not changed and not reordered:
            return old
        return build_dict(items, old, changed, reordered=reordered)

    def _has_keys_of(self, items: dict[Any, Any], old: FrozenDict) -> bool:
        """Are the keys those of the base, in their order?"""
        if id(self) in self._whole_draft.written:
            return all(map(is_, items, old))
        return list(items) == list(old)

    def _holds_only_opened(self, items: dict[Any, Any]) -> bool:
        """Are all values those of the base, or opened from them? Few are opened of a wide dict, mostly."""
        opened, old = self._opened, self._base
        if opened is None or any(items.get(key) is not child for key, child in opened.items()):
            return False
        # In place: a copy of a wide dict costs more than all else here.
        items.update((key, old[key]) for key in opened)
        alike = all(map(is_, items.values(), old.values()))
        items.update(opened)
        return alike


class DraftRecord(DraftDict):
    """A draft of a dict of simple values. A loop over a long list gives thousands of them, mostly to be read: there,
    one that no method of its own has changed is compared with what it began from by `==`, at the speed of C. So a
    value in it that C code replaces by an equal one (1 by 1.0) stays what it was."""

    __slots__ = ()


def _is_unchanged(record: DraftRecord) -> bool:
    """Is a record that no method has changed equal to what it began from?"""
    try:
        return bool(record == record._base)
    except Exception:
        # C code put an object into it that cannot be compared.
        return False


DraftDict._whole = DraftDict


class LazyDraftDict(LazyDict, DraftDict):
    """The same before all its values were read."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        self._change()
        with opening:
            dict.__setitem__(self, key, value)

    __delitem__ = alone(DraftDict.__delitem__)
    pop = alone(DraftDict.pop)
    popitem = alone(DraftDict.popitem)
    clear = alone(DraftDict.clear)


class DraftList(list[Any]):
    """A list that can be changed until its draft is over."""

    __slots__ = ("_base", "_opened", "_whole_draft")
    _plain = list
    _whole: ClassVar[type[Any]]
    _opened_kinds: ClassVar[frozenset[type]]
    _base: FrozenList
    _whole_draft: _Whole
    #: Items that were opened one by one, by index; None if others were, or if items may have other indices now.
    _opened: dict[int, Any] | None

    def __setitem__(self, index: Any, value: Any) -> None:
        self._change()
        list.__setitem__(self, index, value)
        if isinstance(index, slice) or type(value) in _FROZEN:
            self.__class__ = LazyDraftList

    def __delitem__(self, index: Any) -> None:
        self._change()
        list.__delitem__(self, index)

    def append(self, value: Any) -> None:
        self._refuse_if_over()
        list.append(self, value)
        if type(value) in _FROZEN:
            self.__class__ = LazyDraftList

    def extend(self, values: Iterable[Any]) -> None:
        self._refuse_if_over()
        list.extend(self, values)
        self.__class__ = LazyDraftList

    def __iadd__(self, values: Iterable[Any]) -> DraftList:  # type: ignore[misc]
        self.extend(values)
        return self

    def __imul__(self, times: SupportsIndex) -> DraftList:
        self._change()
        list.__imul__(self, times)
        return self

    def insert(self, index: SupportsIndex, value: Any) -> None:
        self._change()
        list.insert(self, index, value)
        if type(value) in _FROZEN:
            self.__class__ = LazyDraftList

    def pop(self, index: SupportsIndex = -1) -> Any:
        self._change()
        return list.pop(self, index)

    def remove(self, value: Any) -> None:
        self._change()
        list.remove(self, value)

    def clear(self) -> None:
        self._change()
        list.clear(self)

    def reverse(self) -> None:
        self._change()
        list.reverse(self)

    def sort(self, **how: Any) -> None:
        self._change()
        list.sort(self, **how)

    def __copy__(self) -> list[Any]:
        return self.copy()

    def __deepcopy__(self, memo: Any) -> Any:
        return thaw(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (thaw(self),)

    def _refuse_if_over(self) -> None:
        if self._whole_draft.over:
            raise TypeError(_OVER)

    def _change(self) -> None:
        self._refuse_if_over()
        self._whole_draft.written.add(id(self))
        self._opened = None

    def _open_child(self, value: Any) -> Any:
        return _open(value, self._whole_draft)

    def _put_opened(self, index: SupportsIndex, opened: Any) -> None:
        list.__setitem__(self, index, opened)
        if self._opened is not None:
            at = index_of(index)
            self._opened[at + len(self) if at < 0 else at] = opened

    def _open_at_once(self) -> None:
        base, whole = self._base, self._whole_draft
        if not self._opened and len(self) == len(base):
            items = list.__getitem__(self, slice(None))
            if all(map(is_, items, base)) and are_records(base):
                records = list(map(DraftRecord, base))
                for record, item in zip(records, base, strict=True):
                    record._base, record._opened, record._whole_draft = item, None, whole
                list.__setitem__(self, slice(None), records)
        self._opened = None

    def _differing(self, items: list[Any]) -> list[int]:
        """The indices at which items are not those of the base."""
        old, opened = self._base, self._opened
        if opened is not None and _EXACT.issuperset(kinds_of(old)) and len(items) >= len(old):
            # Equal items of these types are exactly equal, and `==` passes over identical ones at the speed of C.
            expected: list[Any] = old
            if opened:
                expected = list.copy(old)
                for index, child in opened.items():
                    expected[index] = child
            try:
                if (items if len(items) == len(old) else items[: len(old)]) == expected:
                    return [*sorted(opened), *range(len(old), len(items))]
            except Exception:
                # C code put an object into it that cannot be compared.
                self._opened = None
        return [*compress(range(len(items)), map(is_not, items, old)), *range(len(old), len(items))]

    def _fold(self, folder: Folder, base: Any, depth: int) -> Any:
        """The frozen form; shares with the base of this draft, wherever it now lies."""
        old = self._base
        items = list.__getitem__(self, slice(None))
        if not _is_trusted(old, folder, base):
            return folder.list(items, base, depth)
        if self._opened is None and len(items) == len(old) and self._are_unchanged(items):
            return old
        differing = self._differing(items)
        written = self._whole_draft.written
        known: set[int] | None = None
        changed: list[int] = []
        for index in differing:
            item = items[index]
            kind = type(item)
            was = old[index] if index < len(old) else _MISSING
            if kind is DraftRecord and item._base is was and id(item) not in written and _is_unchanged(item):
                items[index] = was
                continue
            if kind in _MOVABLE and not (kind in _DRAFTS and item._base is was):
                # Perhaps it had another index in this list.
                known = known or set(map(id, old))
                if id(item) in known:
                    changed.append(index)
                    continue
                if kind in _DRAFTS and id(item._base) in known:
                    was = item._base
            new = folder.item(item, was, depth, index)
            if new is not was and same(new, was):
                new = was
            items[index] = new
            if index >= len(old) or new is not old[index]:
                changed.append(index)
        if len(items) == len(old):
            return build_list(items, old, changed[0], changed) if changed else old
        return build_list(items, old, min(len(items), len(old), *changed[:1]))

    def _are_unchanged(self, items: list[Any]) -> bool:
        """Are all items records that are what they were? At the speed of C."""
        written = self._whole_draft.written
        if set(map(type, items)) != _RECORD or (
            written and not written.isdisjoint((id(self), *map(id, items)))
        ):
            return False
        try:
            return items == self._base
        except Exception:
            # C code put an object into one of them that cannot be compared.
            return False


DraftList._whole = DraftList


class LazyDraftList(LazyList, DraftList):
    """The same before all its items were read."""

    __slots__ = ()

    def __imul__(self, times: SupportsIndex) -> LazyDraftList:
        LazyList._open_all(self)
        DraftList.__imul__(self, times)
        return self

    def sort(self, **how: Any) -> None:
        LazyList._open_all(self)
        DraftList.sort(self, **how)

    @alone
    def pop(self, index: SupportsIndex = -1) -> Any:
        if self:
            self[index_of(index)]
        return DraftList.pop(self, index)

    __setitem__ = alone(DraftList.__setitem__)
    __delitem__ = alone(DraftList.__delitem__)
    insert = alone(DraftList.insert)
    remove = alone(DraftList.remove)
    clear = alone(DraftList.clear)
    reverse = alone(DraftList.reverse)


_RECORD = {DraftRecord}
DraftList._opened_kinds = NATIVE | {DraftDict, DraftRecord, LazyDraftDict, DraftList, LazyDraftList}
_DRAFTS = frozenset((DraftDict, DraftRecord, LazyDraftDict, DraftList, LazyDraftList))
_MOVABLE = _DRAFTS | {*DICTS, *LISTS}


def _is_trusted(old: Any, folder: Folder, base: Any) -> bool:
    """Is what a draft began from a part of the tree that is folded? A caller can put a frozen container of its own
    into a draft."""
    if old is base:
        return True
    at = stored_at(old)
    return at is not None and at[0] is folder.space
