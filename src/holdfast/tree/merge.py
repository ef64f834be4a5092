"""Three ways to one: `merge` carries a change (`ours`, made from `base`) over to a newer head (`theirs`).

Dicts merge by key. Lists merge by item: each side is compared with the base, an edit of one item meets the
other side's edit of the same item, and what both insert in one place stands theirs first, then ours: the
order of completion. A container that both sides added is merged as if an empty one had been there before.
Where both sides changed one place, to equal values or not (two that each count from 0 to 1 make 2), the reducer that
is declared for its path decides, or a resolver, or `MergeConflict` is raised. What both deleted is gone. A reducer
also decides the containers that its path leads to, which are then not merged by key or item.

Keys stand in the order of theirs, our new ones after them; if we alone changed their order, in ours.

Invariant: every change of a value on either side is in the result, was handed to the resolver, or is named
in the error. The result shares its storage with `theirs`; where one side alone changed, it is that side's
very object.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, compress, count
from operator import is_not
from typing import Any, NamedTuple, TypeAlias

from holdfast.errors import MergeConflict
from holdfast.tree import path as paths
from holdfast.tree.codec import encode, open_box
from holdfast.tree.edits import MISSING, align, both_moved, common, window_of
from holdfast.tree.fold import Folder, same
from holdfast.tree.frozen import DICTS, LISTS, FrozenDict, FrozenList, reveal, source_of
from holdfast.tree.reducers import CONFLICT, NAMED, Reducer, Reducers, is_number, name_of
from holdfast.tree.spine import build_dict, build_list, changed_keys

Path: TypeAlias = tuple[Any, ...]
#: Decides a conflict: path, base, ours, theirs → the value to keep, or `MISSING` to delete the entry.
Resolver: TypeAlias = Callable[[Path, Any, Any, Any], Any]

#: Characters of a value in a message.
_SHOWN = 60


def merge(
    base: Any,
    ours: Any,
    theirs: Any,
    *,
    resolve: Resolver | None = None,
    reducers: Reducers | None = None,
    agree: bool = False,
    fold: Callable[[Any], Any] | None = None,
) -> Any:
    """The frozen tree with the changes of both sides. In paths, the index of a list item is the head's.

    Without `resolve`, all conflicts are collected into one `MergeConflict`. `resolve` is asked before `reducers`. What
    either returns is frozen by `fold`. With `agree`, equal values of both sides are no conflict: they are two accounts
    of the same work, not two changes.
    """
    work = _Merge(resolve, reducers, agree and resolve is None, Folder(None).fold if fold is None else fold)
    merged = work.value(base, ours, theirs, ())
    if work.conflicts:
        raise _conflict_error(work.conflicts)
    return merged


class _Conflict(NamedTuple):
    path: Path
    base: Any
    ours: Any
    theirs: Any
    #: The reducer that is declared for the path and cannot merge the values.
    reducer: Reducer | None = None


class _Merge:
    """One merge under way; each method returns `theirs` where it had to note a conflict."""

    def __init__(
        self,
        resolve: Resolver | None,
        reducers: Reducers | None,
        agree: bool,
        fold: Callable[[Any], Any],
    ) -> None:
        self._resolve = resolve
        self._reducers = reducers
        self._agree = agree
        self._fold = fold
        self.conflicts: list[_Conflict] = []

    def value(self, base: Any, ours: Any, theirs: Any, path: Path) -> Any:
        if ours is base or (ours is theirs and self._agreed(ours)):
            return theirs
        if theirs is base:
            return ours
        if same(ours, base):
            return theirs
        if same(theirs, base):
            return ours
        reduce = None if self._reducers is None else self._reducers.find(path)
        if reduce is not None and ours is MISSING and theirs is MISSING:
            return theirs
        if reduce is not None:
            if self._resolve is not None and not _are_alike_containers(ours, theirs):
                return self.conflict(base, ours, theirs, path)
            return self.reduced(reduce, base, ours, theirs, path)
        if base is MISSING and self._agreed(ours) and same(ours, theirs):
            return theirs
        if type(ours) in DICTS and type(theirs) in DICTS and (base is MISSING or type(base) in DICTS):
            return self.by_key(FrozenDict() if base is MISSING else base, ours, theirs, path)
        if type(ours) in LISTS and type(theirs) in LISTS and (base is MISSING or type(base) in LISTS):
            return self.by_item(FrozenList() if base is MISSING else base, ours, theirs, path)
        return self.conflict(base, ours, theirs, path)

    def by_key(self, base: FrozenDict, ours: FrozenDict, theirs: FrozenDict, path: Path) -> Any:
        if _respelled(base, ours, theirs):
            return self.conflict(base, ours, theirs, path)
        shared = changed_keys(base, ours)
        changes: dict[Any, Any] = {}
        for key in dict.fromkeys(chain(base, ours) if shared is None else shared):
            was, mine, head = (side.get(key, MISSING) for side in (base, ours, theirs))
            if mine is not was:
                new = self.value(was, mine, head, (*path, key))
                if new is not head:
                    changes[key] = new
        items = dict(theirs)
        # First in our order, then the entries without a place in it, which a resolver may have brought back.
        for key in chain(filter(changes.__contains__, ours), changes):
            new = changes[key]
            if new is MISSING:
                items.pop(key, None)
            else:
                items[key] = new
        ordered = _in_our_order(items, base, ours, theirs)
        if ordered is not None:
            return build_dict(ordered, theirs, list(changes), reordered=True)
        return build_dict(items, theirs, list(changes)) if changes else theirs

    def by_item(self, base: FrozenList, ours: FrozenList, theirs: FrozenList, path: Path) -> Any:
        here, there = window_of(base, ours), window_of(base, theirs)
        replaced = here.start < here.end and here[:2] == there[:2]
        equal = replaced and len(here.items) == len(there.items) == common(here.items, there.items)
        if equal and self._agree:
            return theirs
        marks: dict[int, bytes] = {}
        mine, head = align(base, here, there, marks), align(base, there, here, marks)
        asked = not self._agree
        if mine.clashes(head, asked) or head.clashes(mine, asked) or both_moved(base, mine, head, marks):
            return self.conflict(base, ours, theirs, path)
        out: list[Any] = []
        at = shift = 0  # where we are in the base, and how much further that place is in theirs
        for point in sorted({*mine.points(), *head.points()}):
            out += theirs[at + shift : point + shift]
            at = point
            added = head.added.get(point, [])
            shift += len(added)
            out += added
            out += mine.added.get(point, ())
            if point in head.blocks:
                at, items = head.blocks[point]
                shift += len(items) - (at - point)
                out += items
            elif point in mine.blocks:
                at, items = mine.blocks[point]
                out += items
            elif point in mine.put or point in head.put:
                was = base[point]
                now = head.put[point] if point in head.put else theirs[point + shift]
                new = self.value(was, mine.put.get(point, was), now, (*path, point + shift))
                if new is not MISSING:
                    out.append(new)
                if now is MISSING:
                    shift -= 1
                at = point + 1
        out += theirs[at + shift :]
        keep = min(here.start, there.start)
        keep = next(compress(count(keep), map(is_not, out[keep:], theirs[keep:])), min(len(out), len(theirs)))
        return theirs if keep == len(out) == len(theirs) else build_list(out, theirs, keep)

    def _agreed(self, value: Any) -> bool:
        """Is it no conflict that both sides gave a place this value? A resolver is not asked about a place that both
        have deleted."""
        return self._agree or (value is MISSING and self._resolve is not None)

    def reduced(self, reduce: Reducer, base: Any, ours: Any, theirs: Any, path: Path) -> Any:
        """The value that a reducer makes of both sides."""
        shown = [reveal(value, open_box) for value in (base, ours, theirs)]
        try:
            chosen = source_of(reduce(*shown))
        except Exception as error:
            error.add_note(f"raised by the reducer that is declared for {paths.show(path) or 'the root'}")
            raise
        if chosen is CONFLICT:
            self.conflicts.append(_Conflict(path, base, ours, theirs, reduce))
            return theirs
        for value in (theirs, ours, base):
            if chosen is value:
                return value
        return self._chosen(chosen, theirs)

    def conflict(self, base: Any, ours: Any, theirs: Any, path: Path) -> Any:
        if self._agreed(ours) and same(ours, theirs):
            return theirs
        if self._resolve is None:
            self.conflicts.append(_Conflict(path, base, ours, theirs))
            return theirs
        chosen = source_of(self._resolve(path, *(reveal(value, open_box) for value in (base, ours, theirs))))
        for value in (theirs, ours, base):
            if chosen is value:
                return value
        return self._chosen(chosen, theirs)

    def _chosen(self, chosen: Any, theirs: Any) -> Any:
        if chosen is MISSING:
            return chosen
        folded = self._fold(chosen)
        return theirs if same(folded, theirs) else folded


def _are_alike_containers(ours: Any, theirs: Any) -> bool:
    """Are both dicts, or both lists, which would be merged without a question?"""
    return (type(ours) in DICTS and type(theirs) in DICTS) or (type(ours) in LISTS and type(theirs) in LISTS)


def _conflict_error(conflicts: list[_Conflict]) -> MergeConflict:
    path, *values, reducer = conflicts[0]
    base, ours, theirs = (reveal(value, open_box) for value in values)
    where = paths.show(path)
    more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
    if reducer is None:
        # The index of an item is another one tomorrow: the pattern covers all items.
        pattern = paths.show([paths.ANY if type(segment) is int else segment for segment in path])
        remedy = _remedy(pattern or "n", ours, theirs)
    else:
        kinds = _kinds(reducer, base, ours, theirs)
        remedy = (
            f"the reducer {name_of(reducer)!r} for {where or 'the root'} cannot merge {kinds}: give the place values "
            "that it can merge, or declare another reducer, such as a function of base, mine and theirs"
        )
    return MergeConflict(
        f"two concurrent changes of {where or 'the root'}{more}: ours {_told(ours)}, the head {_told(theirs)}; "
        f"{remedy}",
        path=where,
        paths=[paths.show(conflict.path) for conflict in conflicts],
        base=base,
        ours=ours,
        theirs=theirs,
    )


def _remedy(pattern: str, ours: Any, theirs: Any) -> str:
    """Name reducers that merge two such values."""
    if any(isinstance(side, dict | list | set | frozenset) for side in (ours, theirs)):
        names = ["union", "last"]
    elif ours is MISSING and theirs is MISSING:
        names = ["equal", "last"]
    elif is_number(ours) and is_number(theirs):
        names = ["sum", "max", "last"]
    else:
        names = ["last", "equal"]
    first, *others = (f'"{name}"' for name in names)
    return (
        f"declare how they are merged, such as merge={{{pattern!r}: {first}}} on the workflow or history "
        f"({', '.join(others)}, a function, …), or change the state by history.update"
    )


def _kinds(reducer: Reducer, base: Any, ours: Any, theirs: Any) -> str:
    """Name what a reducer was to merge."""
    values = [base, ours, theirs] if reducer is NAMED["sum"] and base is not MISSING else [ours, theirs]
    kinds = list(dict.fromkeys(map(_kind, values)))
    return f"{', '.join(kinds[:-1])} and {kinds[-1]}" if len(kinds) > 1 else "these values"


def _kind(value: Any) -> str:
    if value is MISSING:
        return "a deletion"
    return next((kind.__name__ for kind in (dict, list) if isinstance(value, kind)), type(value).__name__)


def _told(value: Any) -> str:
    if value is MISSING:
        return "deletes it"
    text = paths.safe_repr(value)
    return f"has {text if len(text) <= _SHOWN else text[: _SHOWN - 1] + '…'}"


#: Types of keys that are equal only if they are exactly equal, `1` and `True` not being among them.
_EXACT_KEYS = frozenset((str, bytes, int, type(None)))


def _respelled(*sides: FrozenDict) -> bool:
    """Do equal keys differ in type, as `1` and `True`? No entry can then stand for both."""
    if _EXACT_KEYS.issuperset(map(type, chain(*sides))):
        return False
    known: dict[Any, Any] = {}
    for key in chain(*sides):
        first = known.setdefault(key, key)
        if first is not key and encode(first) != encode(key):
            return True
    return False


def _in_our_order(
    items: dict[Any, Any], base: FrozenDict, ours: FrozenDict, theirs: FrozenDict
) -> dict[Any, Any] | None:
    """`items` in the order of our keys, if we changed the order and they did not; else None."""
    before = list(base)
    if list(ours)[: len(before)] == before:
        return None
    if list(theirs) != before:
        left = [key for key in base if key in ours and key in theirs]
        if [key for key in theirs if key in ours and key in base] != left:
            return None
        if [key for key in ours if key in base and key in theirs] == left:
            return None
    ordered = {key: items[key] for key in chain(ours, items) if key in items}
    return None if list(ordered) == list(items) else ordered
