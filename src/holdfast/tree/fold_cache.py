"""The boxes of objects as they were folded last.

A program that commits its whole state again and again passes the same objects each time. `FoldCache` keeps the box of
each object with a *witness*: its mutable containers and their content. If the content is identical, the object is
unchanged and is not encoded again. A long list of objects is compared at once.

Invariant: a cached box is the box that encoding the object now would give.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import chain
from operator import attrgetter, is_, itemgetter
from typing import Any, NamedTuple

from holdfast.errors import UnsupportedValue
from holdfast.tree.frozen import Box, FrozenList
from holdfast.tree.values import MODEL_STATE, NATIVE, kind_of, split_dataclass, split_model

#: Cache entries up to this number are always kept.
_MIN_CACHED = 256
#: Long lists whose objects are cached together.
_MAX_LISTS = 16


class Witness(NamedTuple):
    """The mutable content of objects as it was when they were encoded, as parallel sequences. Content of several
    containers is flat, one after the other, so that any number of objects is compared in a few calls."""

    #: Objects, and their classes.
    objects: Any
    classes: Any
    #: Pydantic models, and the attributes that hold their state; the names of assigned fields.
    models: Any
    model_dicts: Any
    assigned: Any
    extras: Any
    privates: Any
    assigned_names: Any
    #: Owners, names and values of other attributes.
    owners: Any
    names: Any
    held: Any
    #: Dicts of attributes; their keys and values.
    fields: Any
    field_names: Any
    entries: Any
    #: Other dicts; their sizes, keys and values.
    dicts: Any
    dict_sizes: Any
    keys: Any
    values: Any
    #: Other containers; their sizes and items. An unchanged set iterates in the same order.
    others: Any
    sizes: Any
    items: Any
    #: Containers without content.
    empty: Any

    @classmethod
    def new(cls) -> Witness:
        """Return a witness of nothing, to which objects can be added."""
        return cls(*([] for _ in cls._fields))

    @classmethod
    def of(cls, value: Any) -> Witness | None:
        """Return the witness of an object; None if some of it cannot be observed."""
        found = cls.new()
        with suppress(AttributeError, RecursionError, UnsupportedValue):
            if found.observe(value):
                return cls(*map(tuple, found))
        return None

    def extend(self, other: Witness) -> None:
        """Add the content of another."""
        for mine, more in zip(self, other, strict=True):
            mine.extend(more)

    def is_unchanged(self) -> bool:
        """Return whether all objects have this content, at the speed of C."""
        models, fields, dicts, others = self.models, self.fields, self.dicts, self.others
        columns = (self.model_dicts, self.assigned, self.extras, self.privates)
        try:
            return (
                not any(self.empty)
                and all(map(is_, map(type, self.objects), self.classes))
                and all(
                    all(map(is_, map(get, models), was)) for get, was in zip(_STATE, columns, strict=True)
                )
                and all(map(is_, map(getattr, self.owners, self.names), self.held))
                and list(self.assigned) == list(self.assigned_names)
                and list(map(tuple, fields)) == list(self.field_names)
                and list(map(len, dicts)) == list(self.dict_sizes)
                and list(map(len, others)) == list(self.sizes)
                and all(map(is_, _chained(map(dict.values, fields)), self.entries))
                and all(map(is_, _chained(map(dict.values, dicts)), self.values))
                and all(map(is_, _chained(dicts), self.keys))
                and all(map(is_, _chained(others), self.items))
            )
        except AttributeError:
            # One was deleted.
            return False

    def observe(self, value: Any) -> bool:
        """Add the mutable content of a value; return False if some of it cannot be observed."""
        kind = type(value)
        if kind in NATIVE:
            return True
        if kind in _OBSERVED:
            return self._observe_container(value)
        if isinstance(value, tuple | frozenset):
            return all(map(self.observe, value))
        if hasattr(kind, "__holdfast_plain__"):
            # A draft or a reader's copy, which a folded object may hold.
            return False
        known = kind_of(value)
        if not known.boxed:
            return True
        self.objects.append(value)
        self.classes.append(kind)
        if known.split is split_model:
            return self._observe_model(value)
        if known.split is not split_dataclass:
            return False
        attributes = getattr(value, "__dict__", None)
        # A base class may have added the dict.
        slots = [field.name for field in fields(value) if attributes is None or field.name not in attributes]
        if not all(map(self.observe, self._hold(value, slots))):
            return False
        return attributes is None or self._observe_fields(*self._hold(value, ["__dict__"]))

    def _observe_model(self, value: Any) -> bool:
        attributes, assigned, extra, private = (get(value) for get in _STATE)
        self.models.append(value)
        self.model_dicts.append(attributes)
        self.assigned.append(assigned)
        self.extras.append(extra)
        self.privates.append(private)
        self.assigned_names.append(frozenset(assigned))
        return self._observe_fields(attributes) and self.observe(extra) and self.observe(private)

    def _observe_fields(self, value: dict[str, Any]) -> bool:
        held = list(value.values())
        self.fields.append(value)
        self.field_names.append(tuple(value))
        self.entries.extend(held)
        return all(type(item) in NATIVE or self.observe(item) for item in held)

    def _hold(self, owner: Any, names: Sequence[str]) -> list[Any]:
        """Add attributes; return their values."""
        held = [getattr(owner, name) for name in names]
        self.owners.extend([owner] * len(held))
        self.names.extend(names)
        self.held.extend(held)
        return held

    def _observe_container(self, value: Any) -> bool:
        if not value:
            self.empty.append(value)
            return True
        if not isinstance(value, dict):
            items = list(value)
            self.others.append(value)
            self.sizes.append(len(items))
            self.items.extend(items)
            return all(type(item) in NATIVE or self.observe(item) for item in items)
        copy = dict(value)
        self.dicts.append(value)
        self.dict_sizes.append(len(copy))
        self.keys.extend(copy)
        self.values.extend(copy.values())
        return all(type(item) in NATIVE or self.observe(item) for item in (*copy, *copy.values()))


class CachedBox(NamedTuple):
    """An object, its box, its content at that time, and its depth in the tree."""

    value: Any
    box: Box
    witness: Witness
    depth: int


class CachedList:
    """The objects of a frozen list and the content of all of them: the next version of a long list is compared with it
    at once, and grows it."""

    __slots__ = ("boxes", "depth", "objects", "witness")

    def __init__(self, boxes: list[CachedBox]) -> None:
        self.boxes: list[CachedBox] = []
        self.objects: list[Any] = []
        self.witness = Witness.new()
        self.depth = boxes[0].depth
        for box in boxes:
            self.add(box)

    def add(self, box: CachedBox) -> None:
        """Add the next object."""
        self.boxes.append(box)
        self.objects.append(box.value)
        self.witness.extend(box.witness)
        self.depth = min(self.depth, box.depth)

    def matches(self, values: Sequence[Any], depth: int) -> bool:
        """Return whether the values are the same objects, unchanged, and not deeper in the tree."""
        return (
            len(values) == len(self.objects)
            and depth <= self.depth
            and all(map(is_, values, self.objects))
            and self.witness.is_unchanged()
        )


class FoldCache:
    """The boxes of a run's objects as last folded; holds the objects of the last states only."""

    def __init__(self) -> None:
        self._new: dict[int, CachedBox] = {}
        self._old: dict[int, CachedBox] = {}
        #: Long lists of objects, by the identity of the frozen list, which is held.
        self._lists: OrderedDict[int, tuple[FrozenList, CachedList]] = OrderedDict()

    def expire(self) -> None:
        """Drop objects that earlier states did not contain; called before a state is folded."""
        if len(self._new) >= max(len(self._old) // 2, _MIN_CACHED):
            self._old, self._new = self._new, {}

    def find(self, value: Any, depth: int) -> Box | None:
        """Return the box of an unchanged object that is not deeper in the tree than before; otherwise None."""
        known = self._known(value)
        if known is None or depth > known.depth or not known.witness.is_unchanged():
            return None
        self._new[id(value)] = known
        return known.box

    def matches(self, values: Sequence[Any], old: FrozenList, depth: int) -> bool:
        """Return whether `find` would give the boxes of a frozen list for these objects, at the speed of C."""
        _, known = self._lists.get(id(old), (None, None))
        if known is None:
            boxes = [box for value in values if (box := self._known(value)) is not None]
            if len(boxes) < len(values) or not all(map(is_, map(_BOX, boxes), old)):
                return False
            known = CachedList(boxes)
        if known.matches(values, depth):
            self._keep(old, known)
            return True
        # Some are other objects, or have changed: each is looked up by itself.
        self._lists.pop(id(old), None)
        self._new.update((id(box.value), box) for box in known.boxes)
        return False

    def grow(self, old: FrozenList, grown: FrozenList, values: Sequence[Any]) -> None:
        """Note that a frozen list for which `matches` was true has grown by the last of these values."""
        _, known = self._lists.pop(id(old), (None, None))
        if known is None:
            # Another thread has taken it.
            return
        for value in values[len(old) :]:
            box = self._known(value)
            if box is None:
                return
            known.add(box)
        self._keep(grown, known)

    def _keep(self, frozen: FrozenList, known: CachedList) -> None:
        self._lists[id(frozen)] = (frozen, known)
        self._lists.move_to_end(id(frozen))
        if len(self._lists) > _MAX_LISTS:
            self._lists.popitem(last=False)

    def _known(self, value: Any) -> CachedBox | None:
        known = self._new.get(id(value)) or self._old.get(id(value))
        return known if known is not None and known.value is value else None

    def add(self, value: Any, box: Box, witness: Witness, depth: int) -> Box:
        """Cache the box of an object with its content before it was encoded; return the earlier box instead, if it is
        equal."""
        known = self._known(value)
        if known is not None and (known.box.code, known.box.data) == (box.code, box.data):
            box, depth = known.box, max(depth, known.depth)
        self._new[id(value)] = CachedBox(value, box, witness, depth)
        return box


_BOX = itemgetter(1)
_chained = chain.from_iterable
#: Return the attributes that hold the state of a pydantic model.
_STATE = tuple(map(attrgetter, MODEL_STATE))
#: Containers that are observed.
_OBSERVED = frozenset((dict, OrderedDict, list, set, deque))
