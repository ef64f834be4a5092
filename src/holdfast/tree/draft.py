"""Drafts: mutable views of the state for a step.

A draft is a real `dict` or `list`, complete in memory. Its children become drafts when they are read (see `frozen`).
C code writes into lists and dicts past their methods (`heapq.heappush`), so folding compares the content with the base,
item by item and by identity, instead of relying on a log of changes; `DraftRecord` is the exception. Folding ends the
draft: further changes would be lost and raise `TypeError`.

Invariant: a draft never changes its base, the frozen tree; folding an unchanged draft returns the base itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import compress
from operator import index as index_of
from operator import is_, is_not
from typing import Any, ClassVar, SupportsIndex

from holdfast.tree.codec import open_box
from holdfast.tree.containers import build_dict, build_list
from holdfast.tree.fold import Folder, same, same_keys_first
from holdfast.tree.frozen import (
    BOXED,
    DICTS,
    LISTS,
    SERVED,
    Box,
    BoxedDict,
    Copyable,
    FrozenDict,
    FrozenList,
    LazyDict,
    LazyList,
    alone,
    are_records,
    kinds_of,
    map_tuple,
    opening,
    stored_at,
    thaw,
)
from holdfast.tree.values import NATIVE, SIMPLE

_ENDED = (
    "this draft has ended: its step has ended or called another step; the change would be lost: call "
    "holdfast.state() again"
)
_MISSING: Any = object()
_FROZEN = frozenset((*DICTS, *LISTS, *SERVED))
#: Types of items that a list draft opens when they are read, not at once.
_NOT_HEAPED = SIMPLE | {FrozenDict}
#: Types of items that are exactly equal if they are equal. (Of dicts, see `DraftRecord`.)
_EXACT = frozenset((str, bytes, type(None), FrozenDict))


class _DraftState:
    """State that all containers of one draft share."""

    __slots__ = ("ended", "written")

    def __init__(self) -> None:
        self.ended = False
        #: The ids of containers that were changed by a method.
        self.written: set[int] = set()


def draft(value: Any) -> Any:
    """Return a draft of a frozen value; other values unchanged."""
    return _open(value, _DraftState())


def end_draft(value: Any) -> None:
    """Make a draft refuse further changes."""
    if type(value) in _DRAFTS:
        value.draft_state.ended = True


def _open(value: Any, state: _DraftState) -> Any:
    """Return the form of a value that a draft hands out."""
    kind = type(value)
    if kind in DICTS:
        simple = SIMPLE.issuperset(map(type, value.values()))
        opened: Any = DraftRecord(value) if simple else LazyDraftDict(value)
        opened.draft_opened = None if simple else {}
        if kind is BoxedDict:
            for key, item in value.items():
                if type(item) in BOXED:
                    child = opened.draft_opened[key] = _open(item, state)
                    dict.__setitem__(opened, key, child)
    elif kind in LISTS:
        kinds = kinds_of(value)
        opened = DraftList(value) if SIMPLE.issuperset(kinds) else LazyDraftList(value)
        opened.draft_opened = {}
        # `heapq` returns lists and tuples past the methods of the list; dicts, which it cannot compare, only if the
        # list has one or two items.
        not_heaped = _NOT_HEAPED if len(value) > 2 else SIMPLE
        if not not_heaped.issuperset(kinds):
            opened.draft_opened = None
            for index, item in enumerate(value):
                if type(item) not in not_heaped:
                    list.__setitem__(opened, index, _open(item, state))
    elif kind is Box:
        return open_box(value)
    elif isinstance(value, tuple):
        return map_tuple(value, thaw)
    else:
        return thaw(value) if kind in SERVED else value
    opened.draft_base = value
    opened.draft_state = state
    return opened


class DraftDict(Copyable, dict[Any, Any]):
    """A dict that can be changed until its draft has ended."""

    __slots__ = ("draft_base", "draft_opened", "draft_state")
    __holdfast_plain__ = dict
    opened_type: ClassVar[type[Any]]
    draft_base: FrozenDict
    draft_state: _DraftState
    #: Opened values by key; None in a record.
    draft_opened: dict[Any, Any] | None

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
            # If several threads do this, all get the value of one of them.
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

    def _change(self) -> None:
        state = self.draft_state
        if state.ended:
            raise TypeError(_ENDED)
        state.written.add(id(self))

    def _open_child(self, value: Any) -> Any:
        return _open(value, self.draft_state)

    def _put_opened(self, key: Any, opened: Any) -> None:
        dict.__setitem__(self, key, opened)
        if self.draft_opened is not None:
            self.draft_opened[key] = opened

    def __holdfast_fold__(self, folder: Folder, base: Any, depth: int) -> Any:
        """Return the frozen form; it shares with the base of this draft, wherever the draft is now."""
        old = self.draft_base
        kind = type(self)
        if kind is LazyDraftDict:
            # A class without reading methods of its own is copied at the speed of C.
            self.__class__ = DraftDict
            items = self.copy()
            self.__class__ = kind
        else:
            items = self.copy()
        if old is not base and not _is_stored(old, folder):
            return folder.dict(items, base, depth)
        in_place = len(items) == len(old) and (
            all(map(is_, items, old)) if id(self) in self.draft_state.written else list(items) == list(old)
        )
        if not in_place:
            differing = [key for key, item in items.items() if old.get(key, _MISSING) is not item]
        elif self._holds_only_opened(items):
            differing = list(self.draft_opened or ())
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

    def _holds_only_opened(self, items: dict[Any, Any]) -> bool:
        """Return whether all values are those of the base or opened from them; of a wide dict, usually few are."""
        opened, old = self.draft_opened, self.draft_base
        if opened is None or any(items.get(key) is not child for key, child in opened.items()):
            return False
        # In place: copying a wide dict would cost more than the rest of this method.
        items.update((key, old[key]) for key in opened)
        alike = all(map(is_, items.values(), old.values()))
        items.update(opened)
        return alike


class DraftRecord(DraftDict):
    """A draft of a dict of simple values. A loop over a long list yields thousands of them, usually only to read: one
    that no method has changed is compared with its base by `==`, at the speed of C. A value in it that C code replaces
    by an equal one (1 by 1.0) therefore stays unchanged."""

    __slots__ = ()


def _is_unchanged(record: DraftRecord) -> bool:
    """Return whether a record that no method has changed equals its base."""
    try:
        return bool(record == record.draft_base)
    except Exception:
        # C code inserted an object that cannot be compared.
        return False


DraftDict.opened_type = DraftDict


class LazyDraftDict(LazyDict, DraftDict):
    """A dict draft before all its values were read."""

    __slots__ = ()

    def __setitem__(self, key: Any, value: Any) -> None:
        self._change()
        with opening:
            dict.__setitem__(self, key, value)

    __delitem__ = alone(DraftDict.__delitem__)
    pop = alone(DraftDict.pop)
    popitem = alone(DraftDict.popitem)
    clear = alone(DraftDict.clear)


class DraftList(Copyable, list[Any]):
    """A list that can be changed until its draft has ended."""

    __slots__ = ("draft_base", "draft_opened", "draft_state")
    __holdfast_plain__ = list
    opened_type: ClassVar[type[Any]]
    opened_kinds: ClassVar[frozenset[type]]
    draft_base: FrozenList
    draft_state: _DraftState
    #: Items opened one by one, by index; None if all were opened, or if indices may have changed.
    draft_opened: dict[int, Any] | None

    def __setitem__(self, index: Any, value: Any) -> None:
        self._change()
        list.__setitem__(self, index, value)
        if isinstance(index, slice) or type(value) in _FROZEN:
            self.__class__ = LazyDraftList

    def __delitem__(self, index: Any) -> None:
        self._change()
        list.__delitem__(self, index)

    def append(self, value: Any) -> None:
        self._refuse_if_ended()
        list.append(self, value)
        if type(value) in _FROZEN:
            self.__class__ = LazyDraftList

    def extend(self, values: Iterable[Any]) -> None:
        self._refuse_if_ended()
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

    def _refuse_if_ended(self) -> None:
        if self.draft_state.ended:
            raise TypeError(_ENDED)

    def _change(self) -> None:
        self._refuse_if_ended()
        self.draft_state.written.add(id(self))
        self.draft_opened = None

    def _open_child(self, value: Any) -> Any:
        return _open(value, self.draft_state)

    def _put_opened(self, index: SupportsIndex, opened: Any) -> None:
        list.__setitem__(self, index, opened)
        if self.draft_opened is not None:
            at = index_of(index)
            at = at + len(self) if at < 0 else at
            # An appended item differs from the base in any case.
            if at < len(self.draft_base):
                self.draft_opened[at] = opened

    def _open_at_once(self) -> None:
        base, state = self.draft_base, self.draft_state
        if not self.draft_opened and len(self) == len(base):
            items = list.__getitem__(self, slice(None))
            if all(map(is_, items, base)) and are_records(base):
                records = list(map(DraftRecord, base))
                for record, item in zip(records, base, strict=True):
                    record.draft_base, record.draft_opened, record.draft_state = item, None, state
                list.__setitem__(self, slice(None), records)
        self.draft_opened = None

    def _differing(self, items: list[Any]) -> list[int]:
        """Return the indices of items that are not those of the base."""
        old, opened = self.draft_base, self.draft_opened
        if opened is not None and _EXACT.issuperset(kinds_of(old)) and len(items) >= len(old):
            # Equal items of these types are exactly equal, and `==` skips identical ones at the speed of C.
            expected: list[Any] = old
            if opened:
                expected = list.copy(old)
                for index, child in opened.items():
                    expected[index] = child
            try:
                if (items if len(items) == len(old) else items[: len(old)]) == expected:
                    return [*sorted(opened), *range(len(old), len(items))]
            except Exception:
                # C code inserted an object that cannot be compared.
                self.draft_opened = None
        return [*compress(range(len(items)), map(is_not, items, old)), *range(len(old), len(items))]

    def __holdfast_fold__(self, folder: Folder, base: Any, depth: int) -> Any:
        """Return the frozen form; it shares with the base of this draft, wherever the draft is now."""
        old = self.draft_base
        items = list.__getitem__(self, slice(None))
        if old is not base and not _is_stored(old, folder):
            return folder.list(items, base, depth)
        if self.draft_opened is None and len(items) == len(old) and self._are_unchanged(items):
            return old
        differing = self._differing(items)
        written = self.draft_state.written
        known: set[int] | None = None
        changed: list[int] = []
        for index in differing:
            item = items[index]
            kind = type(item)
            was = old[index] if index < len(old) else _MISSING
            if (
                kind is DraftRecord
                and item.draft_base is was
                and id(item) not in written
                and _is_unchanged(item)
            ):
                items[index] = was
                continue
            if kind in _MOVABLE and not (kind in _DRAFTS and item.draft_base is was):
                # It may have had another index in this list.
                known = known or set(map(id, old))
                if id(item) in known:
                    changed.append(index)
                    continue
                if kind in _DRAFTS and id(item.draft_base) in known:
                    was = item.draft_base
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
        """Return whether all items are unchanged records. Compares whole lists at once, which is fast for long ones."""
        written = self.draft_state.written
        if set(map(type, items)) != _RECORD or (
            written and not written.isdisjoint((id(self), *map(id, items)))
        ):
            return False
        try:
            return items == self.draft_base
        except Exception:
            # C code inserted an object that cannot be compared.
            return False


DraftList.opened_type = DraftList


class LazyDraftList(LazyList, DraftList):
    """A list draft before all its items were read."""

    __slots__ = ()

    def __imul__(self, times: SupportsIndex) -> LazyDraftList:  # type: ignore[misc]  # __mul__ is untyped
        LazyList.open_all(self)
        DraftList.__imul__(self, times)
        return self

    def sort(self, **how: Any) -> None:
        LazyList.open_all(self)
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
DraftList.opened_kinds = NATIVE | {DraftDict, DraftRecord, LazyDraftDict, DraftList, LazyDraftList}
_DRAFTS = frozenset((DraftDict, DraftRecord, LazyDraftDict, DraftList, LazyDraftList))
_MOVABLE = _DRAFTS | {*DICTS, *LISTS}


def _is_stored(old: Any, folder: Folder) -> bool:
    """Return whether the base of a draft is stored in the folder's run. A caller can put a draft of another tree into
    this one."""
    at = stored_at(old)
    return at is not None and at[0] is folder.space
