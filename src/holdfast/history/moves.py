"""Has a version moved parts of the state to other places?

Where a node is stored says which version wrote it, not since when it stands where it stands: a program can
take it from one place to another, or put back what stood there before. A version that does so says so, and
those after it carry its number along, so that blame knows how far back a node has surely been in its place.

Every level of a state takes three frames of the stack, which has to hold 200 levels.

Invariant: where `moved` says no, every stored node of the new state stands where it stood in the old one.
"""

from __future__ import annotations

from itertools import accumulate
from operator import is_
from typing import Any

from holdfast.tree.frozen import DICTS, LISTS, aux_of, leaves, stored_at
from holdfast.tree.spine import Fork, Trie, Vector
from holdfast.tree.values import NATIVE

_NOTHING: Any = object()


def moved(new: Any, old: Any, space: object) -> bool:
    """Does a state hold a node stored in `space` in another place than the state that it follows?"""
    if new is old:
        return False
    kind = type(new)
    if kind not in DICTS and kind not in LISTS:
        return False
    at = stored_at(new)
    if at is not None and at[0] is space:
        return True
    spine = aux_of(new)
    if kind in DICTS:
        was = old if type(old) in DICTS else {}
        if type(spine) is Trie:
            other = aux_of(was)
            return _trie_moved(spine.root, other.root if type(other) is Trie else None, was, space)
        return _entries_moved(new, was, leaves(spine), space)
    items = old if type(old) in LISTS else []
    if type(spine) is Vector:
        return _vector_moved(spine, items, space)
    return _moved(new, items, leaves(spine), space)


def _moved(items: list[Any], before: list[Any], long: Any, space: object) -> bool:
    """Items beside what stood in their places; `long` has the places of those that are long leaves."""
    within = _SHORT if long else NATIVE
    for item, was in zip(items, before, strict=False):
        if item is not was and type(item) not in within and _one_moved(item, was, long, space):
            return True
    for item in items[len(before) :]:  # noqa: SIM110 - a generator would take another frame for each level
        if type(item) not in within and _one_moved(item, _NOTHING, long, space):
            return True
    return False


def _entries_moved(items: dict[Any, Any], before: dict[Any, Any], long: Any, space: object) -> bool:
    within = _SHORT if long else NATIVE
    for key, item in items.items():
        if type(item) not in within:
            was = before.get(key, _NOTHING)
            if item is not was and _one_moved(item, was, long, space):
                return True
    return False


def _one_moved(item: Any, was: Any, long: Any, space: object) -> bool:
    if long:
        place = long.get(id(item))
        if place is not None and place[0] is space:
            return True
    return moved(item, was, space)


def _trie_moved(new: Any, old: Any, was: dict[Any, Any], space: object) -> bool:
    """The way to a key is always the same, so a stored part that is the same stands in the same place."""
    if new is old or new is None:
        return False
    if new.at is not None and new.at[0] is space:
        return True
    if type(new) is Fork:
        ways = old.ways if type(old) is Fork else [None] * len(new.ways)
        return any(
            _trie_moved(way, other, was, space)
            for way, other in zip(new.ways, ways, strict=True)
            if way is not other
        )
    return _entries_moved(new.items, was, new.long, space)


def _vector_moved(new: Vector, items: list[Any], space: object) -> bool:
    spine = aux_of(items)
    old = spine if type(spine) is Vector else None
    if old is not None and new.levels is old.levels:
        end, was = new.tail.items, old.tail.items
        if len(end) >= len(was) and all(map(is_, was, end)):
            # Appended to, as lists mostly are.
            return _moved(end[len(was) :], [], new.tail.long, space)
        groups, start = [new.tail], new.count
    else:
        groups, start = [*new.levels[0], new.tail], 0
    starts = {}
    if old is not None and len(groups) > 1:
        places = accumulate((group.count for group in old.levels[0]), initial=0)
        starts = dict(zip(map(id, old.levels[0]), places, strict=False))
    if old is not None:
        starts[id(old.tail)] = old.count
    for group in groups:
        if starts.get(id(group)) != start:
            if group.at is not None and group.at[0] is space:
                return True
            if _moved(group.items, items[start : start + group.count], group.long, space):
                return True
        start += group.count
    return False


#: Values that are always stored within the node around them; all that are native are where none is long.
_SHORT = frozenset((type(None), bool, int, float))
