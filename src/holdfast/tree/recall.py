"""What objects were when they were folded last, so that an object that has not changed is not encoded again.

A program that keeps its own state commits it whole, again and again, with the same objects in it: messages, records.
A `Recall` remembers the box that each became, with a *witness*: every container in it that could change, beside a copy
of what it held. An object whose containers hold the very same things is what it was. Objects whose parts cannot be
watched are not remembered.

Invariant: `box(x)` is the box that encoding `x` would give now, or None.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from itertools import chain
from operator import eq, is_, itemgetter
from typing import Any, NamedTuple

from holdfast.tree.frozen import Box
from holdfast.tree.records import split_dataclass, split_model
from holdfast.tree.values import NATIVE, kind_of

#: Attributes in which a pydantic model keeps what it is.
_MODEL = ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
#: Fewer than this are always kept.
_FEW = 256


class Witness(NamedTuple):
    """What an object was. Side by side: owners, names of their attributes, what those were; dicts and copies of them;
    other containers and lists of what they held."""

    owners: list[Any]
    names: list[str]
    held: list[Any]
    dicts: list[Any]
    dict_copies: list[dict[Any, Any]]
    others: list[Any]
    other_copies: list[list[Any]]


class Entry(NamedTuple):
    """An object, the box that it became, what it was then, and how deep it stood."""

    value: Any
    box: Box
    witness: Witness
    depth: int


class Recall:
    """What a run's objects were when they were folded last. Holds those of the last states only."""

    def __init__(self) -> None:
        self._new: dict[int, Entry] = {}
        self._old: dict[int, Entry] = {}

    def turn(self) -> None:
        """A state is about to be folded: let go of what the states before did not hold."""
        if len(self._new) >= max(len(self._old) // 2, _FEW):
            self._old, self._new = self._new, {}

    def box(self, value: Any, depth: int) -> Box | None:
        """The box of an object that is what it was, and stands no deeper."""
        number = id(value)
        known = self._new.get(number) or self._old.get(number)
        if known is None or known.value is not value or depth > known.depth or not _hold([known]):
            return None
        self._new[number] = known
        return known.box

    def are(self, values: Sequence[Any], boxes: Sequence[Any], depth: int) -> bool:
        """Are these objects, which stand no deeper than before, what became these boxes? At the speed of C."""
        numbers = list(map(id, values))
        entries: list[Any] = list(map(self._new.get, numbers))
        if None in entries:
            entries = list(map(self._old.get, numbers))
            if None in entries:
                return False
        if not (
            all(map(is_, map(_VALUE, entries), values))
            and all(map(is_, map(_BOX, entries), boxes))
            and min(map(_DEPTH, entries)) >= depth
            and _hold(entries)
        ):
            return False
        self._new.update(zip(numbers, entries, strict=True))
        return True

    def note(self, value: Any, box: Box, depth: int) -> Box:
        """An object became this box just now; gives the box that it became before, if that is the same."""
        known = self._new.get(id(value)) or self._old.get(id(value))
        if (
            known is not None
            and known.value is value
            and (known.box.code, known.box.data) == (box.code, box.data)
        ):
            box, depth = known.box, max(depth, known.depth)
        witness = Witness([], [], [], [], [], [], [])
        try:
            watched = _watch(value, witness)
        except RecursionError:
            watched = False
        if watched:
            self._new[id(value)] = Entry(value, box, witness, depth)
        return box


_VALUE, _BOX, _WITNESS, _DEPTH = map(itemgetter, range(4))
_OWNERS, _NAMES, _HELD, _DICTS, _DICT_COPIES, _OTHERS, _OTHER_COPIES = map(itemgetter, range(7))
_chained = chain.from_iterable


def _hold(entries: list[Entry]) -> bool:
    """Are these objects what they were? An unchanged set is gone through in the same order."""
    witnesses = list(map(_WITNESS, entries))

    def all_of(part: Any) -> list[Any]:
        return list(_chained(map(part, witnesses)))

    if not all(map(is_, map(getattr, all_of(_OWNERS), all_of(_NAMES)), all_of(_HELD))):
        return False
    dicts, copies = all_of(_DICTS), all_of(_DICT_COPIES)
    others, lists = all_of(_OTHERS), all_of(_OTHER_COPIES)
    return (
        all(map(eq, map(len, dicts), map(len, copies)))
        and all(map(eq, map(len, others), map(len, lists)))
        and all(map(is_, _chained(map(dict.values, dicts)), _chained(map(dict.values, copies))))
        and all(map(is_, _chained(dicts), _chained(copies)))
        and all(map(is_, _chained(others), _chained(lists)))
    )


def _watch(value: Any, witness: Witness) -> bool:
    """Note all that could change in a value; False if not all of it can be watched."""
    kind = type(value)
    if kind in NATIVE:
        return True
    copy = _COPIES.get(kind)
    if copy is not None:
        held = copy(value)
        inner = held.values() if type(held) is dict else held
        (witness.dicts if type(held) is dict else witness.others).append(value)
        (witness.dict_copies if type(held) is dict else witness.other_copies).append(held)
        if type(held) is dict and not all(type(key) in NATIVE or _watch(key, witness) for key in held):
            return False
        return all(type(item) in NATIVE or _watch(item, witness) for item in inner)
    if isinstance(value, tuple | frozenset):
        return all(_watch(item, witness) for item in value)
    known = kind_of(value)
    if not known.boxed:
        return True
    if known.split is split_model:
        names: Iterable[str] = _MODEL
    elif known.split is split_dataclass:
        names = ("__dict__",) if hasattr(value, "__dict__") else (field.name for field in fields(value))
    else:
        return False
    for name in names:
        held = getattr(value, name)
        witness.owners.append(value)
        witness.names.append(name)
        witness.held.append(held)
        if not _watch(held, witness):
            return False
    return True


_COPIES: dict[type, Callable[[Any], Any]] = {
    dict: dict,
    OrderedDict: dict,
    list: list,
    set: list,
    deque: list,
}
