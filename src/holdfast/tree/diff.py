"""What differs between two frozen trees: as typed changes, as a JSON patch, as a table of fields.

Nodes that two versions share are passed over by identity, so the cost follows the difference. Dicts are
compared key by key; lists are aligned by their longest common subsequence, so that an insertion is one
change and not a change of every item behind it.

Invariant: `changes(old, new)` is empty where the trees are exactly equal (types, order of keys, every bit),
and nowhere else; `json_patch(old, new)`, applied to the old document, gives the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import accumulate, compress, count, islice
from operator import eq, is_, ne, not_
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.errors import IncompatibleFormat
from holdfast.tree import path as paths
from holdfast.tree.codec import encode, open_box
from holdfast.tree.fold import same
from holdfast.tree.frozen import DICTS, LISTS, FrozenDict, FrozenList, aux_of, reveal
from holdfast.tree.spine import Vector, changed_keys

Path: TypeAlias = tuple[Any, ...]

#: Characters of a value in a summary.
_WIDTH = 60
#: Lengths of two lists, multiplied, up to which they are aligned exactly: some 30 MB and 60 ms at most.
#: Longer ones are compared place by place.
_CELLS = 1 << 27


class Change(msgspec.Struct, frozen=True):
    """One difference. `old` or `new` is None where there is none: `kind` tells."""

    kind: Literal["added", "removed", "changed", "moved"]
    #: In the new tree; in the old one for what was removed.
    path: Path
    old: Any = None
    new: Any = None
    #: Where a moved list item stood in the old tree.
    source: Path | None = None

    @property
    def where(self) -> str:
        """The path as a person writes it; empty for the root."""
        return paths.show(self.path)

    @property
    def summary(self) -> str:
        """The change in one line."""
        where = self.where or "the root"
        if self.kind == "added":
            return f"+ {where}: {_short(self.new)}"
        if self.kind == "removed":
            return f"- {where}: {_short(self.old)}"
        if self.source is not None:
            return f"{where} ← {paths.show(self.source)}"
        if isinstance(self.old, FrozenDict) and isinstance(self.new, FrozenDict):
            return f"{where}: key order differs"
        return f"{where}: {_short(self.old)} → {_short(self.new)}"


def changes(old: Any, new: Any) -> list[Change]:
    """The differences between two frozen trees, in the order of the document."""
    try:
        return [] if old is new else list(_compare(old, new, at=_Place((), ())))
    except RecursionError as error:
        raise IncompatibleFormat("values nest deeper than what is left of the stack") from error


def json_patch(
    old: Any, new: Any, *, to_json: Callable[[Any], Any] = lambda value: value
) -> list[dict[str, Any]]:
    """Operations (RFC 6902) that turn the old document into the new one, values as `to_json` makes them.

    The order of keys means nothing in JSON and is left alone. A dict that differs in a key that is no string
    is replaced as a whole, since a pointer could not tell `1` from `"1"`.
    """
    operations = [] if old is new else list(_patch(old, new, at=()))
    for operation in operations:
        if "value" in operation:
            operation["value"] = to_json(_visible(operation["value"]))
    return operations


def fields(found: Iterable[Change]) -> dict[str, dict[str, Any]]:
    """Changes by path: `{"plan.tasks[3].done": {"from": False, "to": True}}`.

    Where items of a list were shifted, one path can be that of a removed value and of another change: it
    then shows what stood there before and what stands there now.
    """
    table: dict[str, dict[str, Any]] = {}
    for change in found:
        entry = table.setdefault(change.where, {"from": change.old, "to": change.new})
        if change.kind == "removed":
            entry["from"] = change.old
        else:
            entry["to"] = change.new
    return table


class _Place(NamedTuple):
    """The path of one thing in both trees: they part where list items were shifted."""

    old: Path
    new: Path


def _compare(old: Any, new: Any, *, at: _Place) -> Iterator[Change]:
    if type(old) in DICTS and type(new) in DICTS:
        yield from _compare_dicts(old, new, at=at)
    elif type(old) in LISTS and type(new) in LISTS:
        yield from _compare_lists(old, new, at=at)
    elif not same(old, new):
        yield Change("changed", at.new, _visible(old), _visible(new))


def _compare_dicts(old: FrozenDict, new: FrozenDict, *, at: _Place) -> Iterator[Change]:
    before, after = _touched(old, new)
    found = False
    for exact, key in before.items():
        if exact not in after:
            found = True
            yield Change("removed", (*at.old, key), old=_visible(old[key]))
        elif old[key] is not (item := new[after[exact]]):
            for change in _compare(old[key], item, at=_Place((*at.old, key), (*at.new, after[exact]))):
                found = True
                yield change
    for exact, key in after.items():
        if exact not in before:
            found = True
            yield Change("added", (*at.new, key), new=_visible(new[key]))
    if not found and list(old) != list(new) and list(_exact(old)) != list(_exact(new)):
        yield Change("changed", at.new, _visible(old), _visible(new))


def _compare_lists(old: FrozenList, new: FrozenList, *, at: _Place) -> Iterator[Change]:
    for kind, was, now in _steps(old, new):
        source, target = (*at.old, was), (*at.new, now)
        if kind == "replaced":
            yield from _compare(old[was], new[now], at=_Place(source, target))
        elif kind == "removed":
            yield Change(kind, source, old=_visible(old[was]))
        elif kind == "added":
            yield Change(kind, target, new=_visible(new[now]))
        else:
            yield Change(kind, target, _visible(old[was]), _visible(new[now]), source)


def _patch(old: Any, new: Any, *, at: Path) -> Iterator[dict[str, Any]]:
    if type(old) in DICTS and type(new) in DICTS:
        yield from _patch_dict(old, new, at=at)
    elif type(old) in LISTS and type(new) in LISTS:
        yield from _patch_list(old, new, at=at)
    elif not same(old, new):
        yield {"op": "replace", "path": paths.pointer(at), "value": new}


def _patch_dict(old: FrozenDict, new: FrozenDict, *, at: Path) -> list[dict[str, Any]]:
    before, after = _touched(old, new)
    operations: list[dict[str, Any]] = []
    for exact, key in (before | after).items():
        where = paths.pointer((*at, key))
        known = len(operations)
        if exact not in after:
            operations.append({"op": "remove", "path": where})
        elif exact not in before:
            operations.append({"op": "add", "path": where, "value": new[key]})
        elif old[before[exact]] is not new[key]:
            operations += _patch(old[before[exact]], new[key], at=(*at, key))
        if type(key) is not str and len(operations) > known:
            return [{"op": "replace", "path": paths.pointer(at), "value": new}]
    return operations


def _patch_list(old: FrozenList, new: FrozenList, *, at: Path) -> Iterator[dict[str, Any]]:
    """Removals from the back, then insertions from the front: each index holds when its turn comes."""
    steps = _steps(old, new)
    gone = [was for kind, was, _ in steps if kind in ("removed", "moved")]
    for was in sorted(gone, reverse=True):
        yield {"op": "remove", "path": paths.pointer((*at, was))}
    for kind, _, now in steps:
        if kind in ("added", "moved"):
            yield {"op": "add", "path": paths.pointer((*at, now)), "value": new[now]}
    for kind, was, now in steps:
        if kind == "replaced":
            yield from _patch(old[was], new[now], at=(*at, now))


def _visible(value: Any) -> Any:
    return reveal(value, open_box)


def _touched(old: FrozenDict, new: FrozenDict) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """The keys of each dict in which they may differ, in their order, by exact form."""
    some = changed_keys(old, new)
    if some is None:
        return _exact(old), _exact(new)
    # Read from the dicts themselves: of two keys that are equal and yet not the same, `some` may hold one.
    touched = set(some)
    return _exact(filter(touched.__contains__, old)), _exact(filter(touched.__contains__, new))


def _exact(keys: Iterable[Any]) -> dict[Any, Any]:
    """Keys by a form that is equal for the same key only: not for `1` and `True`, but for `nan` and `nan`."""
    return {key if type(key) is str else (encode(key),): key for key in keys}


class _Step(NamedTuple):
    """What happens to one item of a list; `old` and `new` are its indices, -1 where it has none."""

    kind: Literal["added", "removed", "moved", "replaced"]
    old: int
    new: int


class _Gap(NamedTuple):
    """Items of two lists that stand between the same equal neighbours."""

    old: range
    new: range

    def within(self, part: _Gap) -> _Gap:
        """The part of this gap whose indices count from its start."""
        return _Gap(self.old[part.old.start : part.old.stop], self.new[part.new.start : part.new.stop])

    def between(self, pairs: Iterable[tuple[int, int]]) -> Iterator[_Gap]:
        """What pairs of equal items, counted from the start of this gap, leave of it."""
        was = now = 0
        for old, new in (*pairs, (len(self.old), len(self.new))):
            if was < old or now < new:
                yield self.within(_Gap(range(was, old), range(now, new)))
            was, now = old + 1, new + 1


def _steps(old: FrozenList, new: FrozenList) -> list[_Step]:
    """How one list becomes the other: items in no step are exactly equal, new indices rise."""
    known: dict[int, bytes] = {}
    gaps = [inner for gap in _unshared(old, new) for inner in _settle(old, new, gap=gap, known=known)]
    moved = _moves(old, new, gaps=gaps, known=known)
    left = set(moved.values())
    steps: list[_Step] = []
    for gap in gaps:
        rest = iter([was for was in gap.old if was not in left])
        for now in gap.new:
            if now in moved:
                steps.append(_Step("moved", moved[now], now))
            else:
                was = next(rest, -1)
                steps.append(_Step("added" if was < 0 else "replaced", was, now))
        steps += [_Step("removed", was, -1) for was in rest]
    return steps


def _unshared(old: FrozenList, new: FrozenList) -> Iterator[_Gap]:
    """What is left of two lists beside the groups of items that they share."""
    one, two = aux_of(old), aux_of(new)
    if type(one) is not Vector or type(two) is not Vector:
        yield _Gap(range(len(old)), range(len(new)))
        return
    groups, others = [*one.levels[0], one.tail], [*two.levels[0], two.tail]
    was = list(accumulate((group.count for group in groups), initial=0))
    now = list(accumulate((group.count for group in others), initial=0))
    for gap in _align(list(map(id, groups)), list(map(id, others))):
        left = range(was[gap.old.start], was[gap.old.stop])
        yield _Gap(left, range(now[gap.new.start], now[gap.new.stop]))


def _settle(old: FrozenList, new: FrozenList, *, gap: _Gap, known: dict[int, bytes]) -> Iterator[_Gap]:
    """The gaps that are left in a gap when its equal items have been found."""
    # By identity first, at the speed of C; only what is behind that is compared in depth.
    gap = _trim(old, new, gap=_trim(old, new, gap=gap, equal=is_), equal=same)
    if len(gap.old) * len(gap.new) > 1:
        one = [_digest(old[index], known) for index in gap.old]
        two = [_digest(new[index], known) for index in gap.new]
        yield from map(gap.within, _align(one, two))
    elif gap.old or gap.new:
        yield gap


def _moves(old: FrozenList, new: FrozenList, *, gaps: list[_Gap], known: dict[int, bytes]) -> dict[int, int]:
    """New to old index of items that left one gap and turn up in another."""
    gone = [index for gap in gaps for index in gap.old]
    come = [index for gap in gaps for index in gap.new]
    if len(gaps) < 2 or not gone or not come:
        return {}
    waiting: dict[bytes, list[int]] = {}
    for was in reversed(gone):
        waiting.setdefault(_digest(old[was], known), []).append(was)
    moved: dict[int, int] = {}
    for now in come:
        candidates = waiting.get(_digest(new[now], known))
        if candidates:
            moved[now] = candidates.pop()
    return moved


def _digest(value: Any, known: dict[int, bytes]) -> bytes:
    """Bytes that are equal for exactly equal values only; `known` has them by the `id` of the value."""
    digest = known.get(id(value))
    if digest is None:
        digest = encode(value)
        if len(digest) >= 32:
            digest = blake2b(digest, digest_size=32).digest()
        known[id(value)] = digest
    return digest


def _align(one: list[Any], two: list[Any]) -> Iterator[_Gap]:
    """The gaps between equal items of two sequences, in order, as small as is affordable."""
    gap = _trim(one, two, gap=_Gap(range(len(one)), range(len(two))), equal=eq)
    left, right = _cut(one, two, gap)
    in_place = len(left) == len(right) and set(compress(left, map(ne, left, right))).isdisjoint(right)
    if in_place or len(left) * len(right) > _CELLS:
        return gap.between((index, index) for index in compress(count(), map(eq, left, right)))
    return gap.between(_longest(left, right))


def _cut(one: list[Any], two: list[Any], gap: _Gap) -> tuple[list[Any], list[Any]]:
    return one[gap.old.start : gap.old.stop], two[gap.new.start : gap.new.stop]


def _trim(one: list[Any], two: list[Any], *, gap: _Gap, equal: Callable[[Any, Any], bool]) -> _Gap:
    """A gap without the equal items at its start and its end."""
    left, right = _cut(one, two, gap)
    most = min(len(left), len(right))
    start = _run(map(equal, left, right), most)
    end = _run(map(equal, reversed(left), reversed(right)), most - start)
    return gap.within(_Gap(range(start, len(left) - end), range(start, len(right) - end)))


def _run(equal: Iterator[bool], most: int) -> int:
    """How many of the first `most` are true, up to the first that is not."""
    return next(compress(count(), map(not_, islice(equal, most))), most)


def _longest(one: list[Any], two: list[Any]) -> list[tuple[int, int]]:
    """A longest common subsequence, as pairs of indices.

    One row of the usual table is a single integer (Hyyrö's bit-parallel form): bit `j` is clear where the
    common length grows at `two[j]`. That is exact, and faster by orders of magnitude than cell by cell.
    """
    if len(one) < len(two):
        return [(was, now) for now, was in _longest(two, one)]
    places: dict[Any, int] = {}
    for index, item in enumerate(two):
        places[item] = places.get(item, 0) | 1 << index
    full = (1 << len(two)) - 1
    row = full
    rows = [row]
    for item in one:
        hits = row & places.get(item, 0)
        if hits:
            row = ((row + hits) | (row - hits)) & full
        rows.append(row)
    pairs: list[tuple[int, int]] = []
    was, now = len(one), len(two)
    while was and now:
        if rows[was] >> (now - 1) & 1:
            now -= 1
        else:
            was -= 1
            if rows[was] >> (now - 1) & 1:
                now -= 1
                pairs.append((was, now))
    return pairs[::-1]


def _short(value: Any) -> str:
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > _WIDTH:
            return text[: _WIDTH - 1] + "…"
    return text


def _pieces(value: Any) -> Iterator[str]:
    """The `repr` of a value bit by bit: of a large one, only the start is ever written."""
    if isinstance(value, FrozenDict):
        for number, (key, item) in enumerate(dict.items(value)):
            yield ", " if number else "{"
            yield from _pieces(key)
            yield ": "
            yield from _pieces(item)
        yield "}" if value else "{}"
    elif isinstance(value, FrozenList):
        for number, item in enumerate(list.__iter__(value)):
            yield ", " if number else "["
            yield from _pieces(item)
        yield "]" if value else "[]"
    elif type(value) in (str, bytes):
        yield repr(value[:_WIDTH])
    else:
        try:
            yield repr(value).replace("\n", " ")
        except Exception:  # an application's own `__repr__`, or an int with too many digits
            yield f"<{type(value).__name__}>"
