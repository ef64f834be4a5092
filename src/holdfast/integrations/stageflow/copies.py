"""Private copies of the context and of outputs, for one attempt of a stage.

Stageflow's records are frozen, but the lists and dicts in them are not: stages that share them would see each
other's changes, and a retried stage its own. Every attempt therefore gets copies. A list of records (the
messages of a conversation) is copied item by item when it is read, so that a long conversation costs a stage
that does not read it next to nothing.

Invariant: a stage cannot change what another stage, another attempt or the caller sees. A copy equals its
original in type and value, as a value that is read from the store does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import fields
from functools import cached_property
from inspect import signature
from itertools import chain, islice, repeat
from operator import attrgetter, is_
from types import MemberDescriptorType
from typing import Any, ClassVar, SupportsIndex

from holdfast.errors import UnsupportedValue
from holdfast.integrations.stageflow.records import RECORDS, SHAPES
from holdfast.tree.codec import decode, encode
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import Copyable, LazyList, map_tuple, thaw
from holdfast.tree.values import NATIVE, SIMPLE

#: For each record, a function that returns its fields.
_FIELDS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    cls: attrgetter(*[field.name for field in fields(cls)]) for cls in RECORDS
}
#: Records that are created from their fields; others have a constructor of another form.
_PLAIN = {cls for cls in RECORDS if "*" not in str(signature(cls))}
#: For each plain record with slots, its fields: functions that read one and that write one, although it is frozen.
_SLOTS: dict[type, list[tuple[Callable[[Any], Any], Callable[[Any, Any], None]]]] = {
    cls: [(attrgetter(field.name), vars(cls)[field.name].__set__) for field in fields(cls)]
    for cls in _PLAIN
    if not hasattr(cls, "__post_init__")
    and all(isinstance(vars(cls).get(field.name), MemberDescriptorType) for field in fields(cls))
}

#: Fewer items than this are copied one by one, which is faster then.
_FEW = 8
#: Values that are nested deeper are copied one by one, which needs less of the stack.
_MAX_LEVELS = 20


def _value_copier(copy_list: Callable[[list[Any]], list[Any]]) -> Callable[[Any], Any]:
    """Return a function that returns a copy of a value that shares nothing with it that could change."""

    def copy(value: Any) -> Any:
        kind = type(value)
        if kind in SIMPLE:
            return value
        if kind is dict:
            if SIMPLE.issuperset(map(type, value.values())):
                return value.copy()
            return {key: copy(item) for key, item in value.items()}
        if kind is list:
            return copy_list(value)
        if kind in _PLAIN:
            return kind(*map(copy, _FIELDS[kind](value)))
        if isinstance(value, tuple):
            return map_tuple(value, copy)
        try:
            return decode(encode(value))
        except UnsupportedValue:
            # The output of an interceptor, which is not stored, may hold any value.
            return thaw(value)

    return copy


def copy_outputs(outputs: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the outputs that a stage gets."""
    try:
        return {name: copy_value(output) for name, output in outputs.items()}
    except RecursionError:
        # A cycle in the output of an interceptor.
        copied: dict[str, Any] = thaw(outputs)
        return copied


def _copy_together(items: list[Any]) -> list[Any]:
    return _items_copier(items, 0, set())()


def _copy_in_turn(items: list[Any]) -> list[Any]:
    return items.copy() if SIMPLE.issuperset(map(type, items)) else list(map(_copy_shared, items))


#: Return a copy of a value. Items of the lists in it are copied together.
copy_value = _value_copier(_copy_together)
#: The same, depth first, for a value that is shared or in a cycle: fails early with RecursionError in a cycle.
_copy_shared = _value_copier(_copy_in_turn)


def _items_copier(items: list[Any], level: int, seen: set[int]) -> Callable[[], list[Any]]:
    """Return a function that returns new copies of items at each call. The items must not change. Items of one type,
    and the values of one key or field of them, are copied together, without a call of a Python function for each.
    `seen` has the ids of the dicts, lists and records that are copied together already: each is opened once."""
    kinds = set(map(type, items))
    if SIMPLE.issuperset(kinds):
        return items.copy
    if len(items) < _FEW or level == _MAX_LEVELS:
        return lambda: list(map(copy_value, items))
    if len(kinds) == 1:
        return _copier_of_kind(kinds.pop(), items, level, seen)
    found: dict[type, list[int]] = {kind: [] for kind in kinds}
    for index, item in enumerate(items):
        found[type(item)].append(index)
    parts = [
        (places, _copier_of_kind(kind, [items[index] for index in places], level, seen))
        for kind, places in found.items()
        if kind not in SIMPLE
    ]

    def copy_mixed() -> list[Any]:
        copies = items.copy()
        for places, copy_part in parts:
            _exhaust(map(copies.__setitem__, places, copy_part()))
        return copies

    return copy_mixed


def _copier_of_kind(kind: type, items: list[Any], level: int, seen: set[int]) -> Callable[[], list[Any]]:
    if kind is dict and SIMPLE.issuperset(map(type, chain.from_iterable(map(dict.values, items)))):
        return lambda: list(map(dict.copy, items))
    if kind is list and SIMPLE.issuperset(map(type, chain.from_iterable(items))):
        return lambda: list(map(list.copy, items))
    ids = set(map(id, items))
    if len(ids) < len(items) or not seen.isdisjoint(ids):
        # Each level of a cycle, or of shared values, could have many times the items of the level above.
        return lambda: list(map(_copy_shared, items))
    seen |= ids
    if kind is dict:
        return _dicts_copier(items, level, seen)
    if kind is list:
        return _lists_copier(items, level, seen)
    if kind in _SLOTS:
        return _records_copier(kind, items, level, seen)
    return lambda: list(map(copy_value, items))


def _dicts_copier(items: list[dict[Any, Any]], level: int, seen: set[int]) -> Callable[[], list[Any]]:
    #: For each key with a value that must be copied, the dicts that have such a value.
    places: dict[Any, list[int]] = {}
    for index, item in enumerate(items):
        if not SIMPLE.issuperset(map(type, item.values())):
            for key, value in item.items():
                if type(value) not in SIMPLE:
                    places.setdefault(key, []).append(index)
            if len(items) < _FEW * len(places):
                return lambda: list(map(copy_value, items))
    columns = [
        (key, found, _items_copier([items[index][key] for index in found], level + 1, seen))
        for key, found in places.items()
    ]

    def copy_dicts() -> list[Any]:
        copies = list(map(dict.copy, items))
        for key, found, copy_column in columns:
            into = copies if len(found) == len(copies) else map(copies.__getitem__, found)
            _exhaust(map(dict.__setitem__, into, repeat(key), copy_column()))
        return copies

    return copy_dicts


def _lists_copier(items: list[list[Any]], level: int, seen: set[int]) -> Callable[[], list[Any]]:
    lengths = list(map(len, items))
    copy_joined = _items_copier(list(chain.from_iterable(items)), level + 1, seen)

    def copy_lists() -> list[Any]:
        copies = iter(copy_joined())
        return list(map(list, map(islice, repeat(copies), lengths)))

    return copy_lists


def _records_copier(kind: type, items: list[Any], level: int, seen: set[int]) -> Callable[[], list[Any]]:
    columns = [
        (write, _items_copier(list(map(read, items)), level + 1, seen)) for read, write in _SLOTS[kind]
    ]

    def copy_records() -> list[Any]:
        copies: list[Any] = list(map(object.__new__, repeat(kind, len(items))))
        for write, copy_column in columns:
            _exhaust(map(write, copies, copy_column()))
        return copies

    return copy_records


def _exhaust(calls: Iterable[Any]) -> None:
    deque(calls, maxlen=0)


class _Source:
    """A list of records that stages get copies of. It must not change."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items
        self.ids = frozenset(map(id, items))

    @cached_property
    def copy_items(self) -> Callable[[], list[Any]]:
        """Return new copies of all items."""
        return _items_copier(self.items, 0, set())


def copier(value: Any, shape: Any) -> Callable[[], Any]:
    """Return a function that returns a new copy of a record at each call. The record must not change."""
    if isinstance(shape, list) and type(value) is list:
        source = _Source(value)
        return lambda: LazyStageList(value, source)
    if shape in _PLAIN and type(value) is shape:
        inner = SHAPES.get(shape, {})
        names = [field.name for field in fields(shape)]
        parts = [
            copier(part, inner.get(name)) for name, part in zip(names, _FIELDS[shape](value), strict=True)
        ]
        return lambda: shape(*[part() for part in parts])
    return lambda: copy_value(value)


class StageList(Copyable, list[Any]):
    """A stage's copy of a list of records."""

    __slots__ = ("opened_kinds", "source")
    __holdfast_plain__ = list
    opened_type: ClassVar[type[Any]]
    #: Types of items that need not be copied.
    opened_kinds: frozenset[type]
    #: The original list. One of its items in this list has not been copied yet.
    source: _Source

    def __init__(self, items: Iterable[Any] = (), source: _Source | None = None) -> None:
        list.__init__(self, items)
        self.source, self.opened_kinds = source or _Source([]), NATIVE

    def pop(self, index: SupportsIndex = -1) -> Any:
        return self._open_child(list.pop(self, index))

    def _open_child(self, value: Any) -> Any:
        return copy_value(value) if id(value) in self.source.ids else value

    def _put_opened(self, index: SupportsIndex, opened: Any) -> None:
        list.__setitem__(self, index, opened)

    def _open_at_once(self) -> None:
        items, source = list(list.__iter__(self)), self.source
        if len(items) == len(source.items) and all(map(is_, items, source.items)):
            copies = source.copy_items()
        elif source.ids.issuperset(map(id, items)):
            copies = _copy_together(items)
        else:
            return
        list.__setitem__(self, slice(None), copies)
        self.opened_kinds = NATIVE.union(map(type, copies))

    def __holdfast_fold__(self, folder: Folder, base: Any, depth: int) -> Any:
        return folder.list(list(list.__iter__(self)), base, depth)


class LazyStageList(LazyList, StageList):
    """A stage's copy of a list of records before all its items were read."""

    __slots__ = ()


StageList.opened_type = StageList


def is_changed(copy: Any, original: Any) -> bool:
    """Return whether a stage has changed its copy. Values in it that are not dicts, lists, records or plain values may
    have no equality: they are not compared."""
    try:
        return _differs(copy, original)
    except RecursionError:
        return False


def _differs(copy: Any, original: Any) -> bool:
    if _is_equal(copy, original):
        return False
    kind = type(original)
    if kind in _FIELDS and type(copy) is kind:
        return any(map(_differs, _FIELDS[kind](copy), _FIELDS[kind](original)))
    if kind is dict and isinstance(copy, dict):
        return copy.keys() != original.keys() or any(
            map(_differs, map(copy.get, original), original.values())
        )
    if kind is list and isinstance(copy, list):
        return len(copy) != len(original) or any(map(_differs, list.__iter__(copy), original))
    return type(copy) is not kind or kind in SIMPLE


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one is other or one == other)
    except RecursionError:
        raise
    except Exception:
        # Such as an array, which compares item by item.
        return False
