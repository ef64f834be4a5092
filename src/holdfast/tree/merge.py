"""Three-way merge: apply a change (`ours`, made from `base`) to a newer head (`theirs`).

Dicts merge by key, lists by item: each side is aligned with the base; items that both sides insert at one index are
theirs first, then ours, the order of completion. A container that both sides added is merged with an empty base. Where
both sides changed one place, to equal values or not (two increments of 0 make 2), the resolver decides, or the reducer
of the path, or `MergeConflict` is raised; a place that both deleted is deleted. Keys have the order of theirs, then our
new ones; if only we changed the order, ours.

Reducers are declared by path patterns, in which `*` matches any key or index:

    merge={"n": "sum", "status": "last", "seen": "union", "scores.*": "max", "best": better_of}

Of several matching patterns, the one with the earlier literal segment is used. A reducer gets the base value, ours (the
change that is recorded later) and theirs; `MISSING` is the value of a missing entry.

Invariant: every change on either side is in the result, was passed to the resolver, or is in the error. A reducer is
called only where both sides changed the place, and decides it as a whole. The result shares its storage with `theirs`;
where only one side changed, it is that side's object.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from decimal import Decimal, InvalidOperation
from itertools import chain, compress, count
from operator import gt, is_not, lt
from typing import Any, NamedTuple, TypeAlias

from holdfast.errors import InvalidCall, InvalidReference, MergeConflict
from holdfast.tree import path as paths
from holdfast.tree.codec import encode, open_box
from holdfast.tree.containers import build_dict, build_list, changed_keys
from holdfast.tree.fold import Folder, same
from holdfast.tree.frozen import DICTS, LISTS, FrozenDict, FrozenList, reveal, source_of
from holdfast.tree.list_alignment import MISSING, Digests, Edits, both_moved, find_gaps, find_window

#: Returns the value to keep from base, mine and theirs; `MISSING` to delete the entry, `CONFLICT` if it cannot decide.
Reducer: TypeAlias = Callable[[Any, Any, Any], Any]
#: A name or a function by path pattern.
Declared: TypeAlias = Mapping[str, "str | Reducer"]


class _Conflict:
    __slots__ = ()

    def __repr__(self) -> str:
        return "CONFLICT"


#: The result of a reducer that cannot merge the values.
CONFLICT: Any = _Conflict()


class Reducers:
    """The reducers of a workflow or a history, found by path."""

    __slots__ = ("_root",)

    def __init__(self, declared: Mapping[str, Any]) -> None:
        self._root = _Node()
        for pattern, reducer in declared.items():
            node = self._root
            for segment in _pattern(pattern):
                node = node.next(segment)
            if node.reduce is not None:
                raise InvalidCall(f"merge declares two reducers for {pattern!r:.100}: keep one")
            node.reduce = _reducer(pattern, reducer)

    def find(self, path: Sequence[Any]) -> Reducer | None:
        """Return the reducer that covers a path; None if there is none."""
        return self._root.find(path, 0)


class _Node:
    """Patterns with a common start."""

    __slots__ = ("_any", "_literal", "reduce")

    def __init__(self) -> None:
        self._literal: dict[Any, _Node] = {}
        self._any: _Node | None = None
        self.reduce: Reducer | None = None

    def next(self, segment: Any) -> _Node:
        if segment is paths.ANY:
            self._any = self._any or _Node()
            return self._any
        # With the type: `1` and `True` are equal, but different keys.
        return self._literal.setdefault((type(segment), segment), _Node())

    def find(self, path: Sequence[Any], at: int) -> Reducer | None:
        if at == len(path):
            return self.reduce
        segment = path[at]
        node = self._literal.get((type(segment), segment)) if self._literal else None
        found = None if node is None else node.find(path, at + 1)
        if found is None and self._any is not None:
            found = self._any.find(path, at + 1)
        return found


def reducers_of(declared: Any) -> Reducers | None:
    """Return the reducers that a caller declares as `merge=`, or raise `InvalidCall`."""
    if declared is None:
        return None
    if not isinstance(declared, Mapping):
        raise InvalidCall(
            f'merge is a dict of paths and reducers, such as {{"n": "sum"}}, not {declared!r:.60}'
        )
    return Reducers(declared) if declared else None


def _pattern(pattern: Any) -> list[Any]:
    if not isinstance(pattern, str):
        raise InvalidCall(f'a path of merge is a text, such as "scores.*", not {pattern!r:.60}')
    try:
        segments = paths.parse_pattern(pattern)
    except InvalidReference as error:
        raise InvalidCall(f"merge: {error}") from None
    if any(type(segment) is int and segment < 0 for segment in segments):
        raise InvalidCall(
            f"merge: {pattern!r:.60} has a negative index: write [*] for all items, or the path of the list"
        )
    return segments


def _reducer(pattern: str, given: Any) -> Reducer:
    if callable(given):
        builtin = next((name for name, function in _BUILTIN.items() if function is given), None)
        if builtin is not None:
            raise InvalidCall(
                f"merge[{pattern!r:.60}] is Python's function {builtin}, which does not merge two changes: give the "
                f'name of the reducer, "{builtin}"'
            )
        check_plain_function(f"merge[{pattern!r:.60}]", given, "base", "mine", "theirs")
        return given  # type: ignore[no-any-return]  # checked above
    if isinstance(given, str) and given in NAMED:
        return NAMED[given]
    raise InvalidCall(
        f"merge[{pattern!r:.60}] is one of {', '.join(NAMED)}, or a function of base, mine and theirs, "
        f"not {given!r:.60}"
    )


def check_plain_function(what: str, given: Callable[..., Any], *arguments: str) -> None:
    """Raise `InvalidCall` for a function that is asynchronous, or does not accept these positional arguments."""
    takes = ", ".join(arguments)
    if inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(getattr(given, "__call__", None)):  # noqa: B004
        raise InvalidCall(f"{what} is asynchronous, and a merge cannot await it: pass a plain def of {takes}")
    try:
        signature = inspect.signature(given)
    except (TypeError, ValueError):
        # A C function without a signature.
        return
    try:
        signature.bind(*arguments)
    except TypeError as error:
        raise InvalidCall(
            f"{what} cannot be called with {takes} ({error}): pass a function of these"
        ) from None


def _name_of(reducer: Reducer) -> str:
    for name, named in NAMED.items():
        if named is reducer:
            return name
    return getattr(reducer, "__name__", type(reducer).__name__)


def _sum(base: Any, mine: Any, theirs: Any) -> Any:
    """Add both changes of a number; a missing number counts as 0."""
    was, one, other = (0 if value is MISSING else value for value in (base, mine, theirs))
    if not _NUMBERS.issuperset(map(type, (was, one, other))):
        return CONFLICT
    try:
        return other + (one - was)
    except (TypeError, InvalidOperation, OverflowError):
        return CONFLICT


def _choose(is_better: Callable[[Any, Any], Any]) -> Reducer:
    """Return a reducer that keeps the better of two values."""

    def reduce(base: Any, mine: Any, theirs: Any) -> Any:
        if mine is MISSING or theirs is MISSING:
            return CONFLICT
        try:
            return mine if is_better(mine, theirs) else theirs
        except TypeError:
            return CONFLICT

    return reduce


def _last(base: Any, mine: Any, theirs: Any) -> Any:
    return mine


def _equal(base: Any, mine: Any, theirs: Any) -> Any:
    if mine is MISSING or theirs is MISSING or encode(mine) != encode(theirs):
        return CONFLICT
    return theirs


def _union(base: Any, mine: Any, theirs: Any) -> Any:
    """Keep what either side added, without what either side removed."""
    if isinstance(mine, AbstractSet) and isinstance(theirs, AbstractSet):
        was = base if isinstance(base, AbstractSet) else frozenset()
        kind: Any = type(theirs)
        return kind((theirs - (was - mine)) | (mine - was))
    if isinstance(mine, FrozenList) and isinstance(theirs, FrozenList):
        return _union_of_lists(base if isinstance(base, FrozenList) else (), mine, theirs)
    if isinstance(mine, FrozenDict) and isinstance(theirs, FrozenDict):
        return _union_of_dicts(base if isinstance(base, FrozenDict) else {}, mine, theirs)
    return CONFLICT


def _union_of_lists(base: Sequence[Any], mine: Sequence[Any], theirs: Sequence[Any]) -> list[Any]:
    was, ours = ({encode(item) for item in side} for side in (base, mine))
    kept: dict[bytes, Any] = {}
    for item in theirs:
        mark = encode(item)
        if mark in ours or mark not in was:
            kept.setdefault(mark, item)
    for item in mine:
        mark = encode(item)
        if mark not in was:
            kept.setdefault(mark, item)
    return list(kept.values())


def _union_of_dicts(base: Mapping[Any, Any], mine: Mapping[Any, Any], theirs: Mapping[Any, Any]) -> Any:
    merged = dict(theirs)
    for key in {**base, **mine}:
        was, one, other = (side.get(key, MISSING) for side in (base, mine, theirs))
        if _alike(one, was) or _alike(one, other):
            continue
        if not _alike(other, was):
            return CONFLICT
        if one is MISSING:
            merged.pop(key, None)
        else:
            merged[key] = one
    return merged


def _alike(one: Any, other: Any) -> bool:
    if one is other:
        return True
    return one is not MISSING and other is not MISSING and encode(one) == encode(other)


_NUMBERS = frozenset((int, float, complex, Decimal))
#: Functions of Python with the name of a reducer.
_BUILTIN: dict[str, Any] = {"sum": sum, "max": max, "min": min}
NAMED: dict[str, Reducer] = {
    "sum": _sum, "max": _choose(gt), "min": _choose(lt), "union": _union, "equal": _equal, "last": _last,
}  # fmt: skip


Path: TypeAlias = tuple[Any, ...]
#: Decides a conflict: path, base, ours, theirs → the value to keep, or `MISSING` to delete the entry.
Resolver: TypeAlias = Callable[[Path, Any, Any, Any], Any]


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
    """Return the frozen tree with the changes of both sides. In paths, the index of a list item is that in the head.

    Without `resolve`, one `MergeConflict` has all conflicts. `resolve` is called before `reducers`; `fold` freezes
    their results. With `agree`, equal values of both sides do not conflict: they are two reports of the same work.
    """
    work = _Merge(resolve, reducers, agree and resolve is None, Folder(None).fold if fold is None else fold)
    merged = work.value(base, ours, theirs, ())
    if work.conflicts:
        raise _conflict_error(work.conflicts)
    return merged


class _FoundConflict(NamedTuple):
    path: Path
    base: Any
    ours: Any
    theirs: Any
    #: The reducer of the path, which could not merge the values.
    reducer: Reducer | None = None


class _Merge:
    """A merge in progress; methods return `theirs` for a place where they found a conflict."""

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
        self.conflicts: list[_FoundConflict] = []

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
        # First in our order, then entries that we deleted and a resolver restored.
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
        here, there = find_window(base, ours), find_window(base, theirs)
        if self._agree and here.old and here.old == there.old and len(here.new) == len(there.new):
            one, two = (side[gap.new.start : gap.new.stop] for side, gap in ((ours, here), (theirs, there)))
            if all(map(same, one, two)):
                return theirs
        digests: Digests = {}
        if here.old and there.old and (here.old.stop < there.old.start or there.old.stop < here.old.start):
            gaps, their_gaps = [here], [there]
        else:
            gaps, their_gaps = find_gaps(base, ours, digests), find_gaps(base, theirs, digests)
        mine, head = Edits(base, ours, gaps), Edits(base, theirs, their_gaps)
        agree = self._agree
        if (
            mine.overlap(head, agree=agree)
            or head.overlap(mine, agree=agree)
            or both_moved(base, mine, head, digests)
        ):
            return self.conflict(base, ours, theirs, path)
        out: list[Any] = []
        at = shift = 0  # the position in the base, and the difference to the same position in theirs
        for point in sorted({*mine.indices(), *head.indices()}):
            out += theirs[at + shift : point + shift]
            at = point
            added = head.inserted.get(point, [])
            shift += len(added)
            out += added
            out += mine.inserted.get(point, ())
            if point in head.blocks:
                at, items = head.blocks[point]
                shift += len(items) - (at - point)
                out += items
            elif point in mine.blocks:
                at, items = mine.blocks[point]
                out += items
            elif point in mine.replaced or point in head.replaced:
                was = base[point]
                now = head.replaced[point] if point in head.replaced else theirs[point + shift]
                new = self.value(was, mine.replaced.get(point, was), now, (*path, point + shift))
                if new is not MISSING:
                    out.append(new)
                if now is MISSING:
                    shift -= 1
                at = point + 1
        out += theirs[at + shift :]
        keep = min(here.old.start, there.old.start)
        keep = next(compress(count(keep), map(is_not, out[keep:], theirs[keep:])), min(len(out), len(theirs)))
        return theirs if keep == len(out) == len(theirs) else build_list(out, theirs, keep)

    def _agreed(self, value: Any) -> bool:
        """Return whether both sides may set a place to this value. A resolver is not called for a place that both
        deleted."""
        return self._agree or (value is MISSING and self._resolve is not None)

    def reduced(self, reduce: Reducer, base: Any, ours: Any, theirs: Any, path: Path) -> Any:
        """Return the result of a reducer."""
        values = (base, ours, theirs)
        try:
            chosen = source_of(reduce(*(reveal(value, open_box) for value in values)))
        except Exception as error:
            error.add_note(f"raised by the reducer that is declared for {paths.show(path) or 'the root'}")
            raise
        if chosen is CONFLICT:
            self.conflicts.append(_FoundConflict(path, *values, reduce))
            return theirs
        return self._fold_chosen(chosen, values)

    def conflict(self, base: Any, ours: Any, theirs: Any, path: Path) -> Any:
        """Return the result of the resolver; without one, record a conflict."""
        if self._agreed(ours) and same(ours, theirs):
            return theirs
        values = (base, ours, theirs)
        if self._resolve is None:
            self.conflicts.append(_FoundConflict(path, *values))
            return theirs
        chosen = source_of(self._resolve(path, *(reveal(value, open_box) for value in values)))
        return self._fold_chosen(chosen, values)

    def _fold_chosen(self, chosen: Any, values: tuple[Any, Any, Any]) -> Any:
        if chosen is MISSING or any(chosen is value for value in values):
            return chosen
        folded, theirs = self._fold(chosen), values[2]
        return theirs if same(folded, theirs) else folded


def _are_alike_containers(ours: Any, theirs: Any) -> bool:
    """Return whether both are dicts or both lists, which are merged without the resolver."""
    return (type(ours) in DICTS and type(theirs) in DICTS) or (type(ours) in LISTS and type(theirs) in LISTS)


def _conflict_error(conflicts: list[_FoundConflict]) -> MergeConflict:
    path, *values, reducer = conflicts[0]
    base, ours, theirs = (reveal(value, open_box) for value in values)
    where = paths.show(path)
    more = f" (and {len(conflicts) - 1} more)" if len(conflicts) > 1 else ""
    if reducer is None:
        # Indices change: the pattern matches all items.
        pattern = paths.show([paths.ANY if type(segment) is int else segment for segment in path])
        remedy = _remedy(pattern or "n", ours, theirs)
    else:
        kinds = _kinds(reducer, base, ours, theirs)
        remedy = (
            f"the reducer {_name_of(reducer)!r} for {where or 'the root'} cannot merge {kinds}: declare another "
            "reducer, such as a function of base, mine and theirs, or change the values"
        )
    return MergeConflict(
        f"two concurrent changes of {where or 'the root'}{more}: ours {_describe(ours)}, "
        f"the head {_describe(theirs)}; {remedy}",
        path=where,
        paths=[paths.show(conflict.path) for conflict in conflicts],
        base=base,
        ours=ours,
        theirs=theirs,
    )


def _remedy(pattern: str, ours: Any, theirs: Any) -> str:
    """Suggest reducers that merge two such values."""
    if any(isinstance(side, dict | list | set | frozenset) for side in (ours, theirs)):
        names = ["union", "last"]
    elif ours is MISSING and theirs is MISSING:
        names = ["equal", "last"]
    elif _NUMBERS.issuperset((type(ours), type(theirs))):
        names = ["sum", "max", "last"]
    else:
        names = ["last", "equal"]
    first, *others = (f'"{name}"' for name in names)
    return (
        f"declare a reducer, such as merge={{{pattern!r}: {first}}} on the workflow or history "
        f"({', '.join(others)}, a function, …), or change the state with history.update"
    )


def _kinds(reducer: Reducer, base: Any, ours: Any, theirs: Any) -> str:
    """Return the types of the values that a reducer could not merge."""
    values = [base, ours, theirs] if reducer is NAMED["sum"] and base is not MISSING else [ours, theirs]
    kinds = list(dict.fromkeys(map(_kind, values)))
    return f"{', '.join(kinds[:-1])} and {kinds[-1]}" if len(kinds) > 1 else "these values"


def _kind(value: Any) -> str:
    if value is MISSING:
        return "a deletion"
    return next((kind.__name__ for kind in (dict, list) if isinstance(value, kind)), type(value).__name__)


def _describe(value: Any) -> str:
    if value is MISSING:
        return "deletes it"
    return f"has {paths.shorten(paths.safe_repr(value))}"


#: Types of keys that are equal only if they are exactly equal (not `bool`: `1 == True`).
_EXACT_KEYS = frozenset((str, bytes, int, type(None)))


def _respelled(*sides: FrozenDict) -> bool:
    """Return whether equal keys differ in type, as `1` and `True`, so that no entry can represent both."""
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
    """Return `items` in the order of our keys, if we changed the order and they did not; otherwise None."""
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
