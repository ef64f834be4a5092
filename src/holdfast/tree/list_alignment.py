"""Alignment of two frozen lists: which items are equal, and which were inserted, replaced or deleted between them.

Groups of items that both lists share are skipped by identity, so the cost follows the difference. The rest is aligned
by a longest common subsequence while that is affordable.

Invariant: items outside of the gaps of an alignment are exactly equal, in type and value; `Edits` of a base, applied to
it, give the other list.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from hashlib import blake2b
from itertools import accumulate, chain, compress, count, islice
from operator import attrgetter, eq, is_, ne, not_
from typing import Any, NamedTuple

from holdfast.tree.codec import encode
from holdfast.tree.containers import Vector
from holdfast.tree.fold import same
from holdfast.tree.frozen import DICTS, FrozenList, aux_of

#: Lengths of two sequences, multiplied, up to which they are aligned exactly: at most about 30 MB and 60 ms.
_MAX_CELLS = 1 << 27


class _Missing:
    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


#: The value of an entry that does not exist, or was deleted.
MISSING: Any = _Missing()

#: Digests of items by `id`, shared by several alignments of the same lists.
Digests = dict[int, bytes]


class Gap(NamedTuple):
    """Indices of items of two lists between the same equal neighbours."""

    old: range
    new: range

    def within(self, part: Gap) -> Gap:
        """Return a part of this gap whose indices count from the start of the gap."""
        return Gap(self.old[part.old.start : part.old.stop], self.new[part.new.start : part.new.stop])

    def between(self, pairs: Iterable[tuple[int, int]]) -> Iterator[Gap]:
        """Yield the gaps between pairs of equal items, whose indices count from the start of this gap."""
        old_start = new_start = 0
        for old, new in (*pairs, (len(self.old), len(self.new))):
            if old_start < old or new_start < new:
                yield self.within(Gap(range(old_start, old), range(new_start, new)))
            old_start, new_start = old + 1, new + 1


class Edits:
    """Edits that turn a base list into another one, by index in the base. Items without an entry are unchanged."""

    __slots__ = ("blocks", "inserted", "replaced")

    def __init__(self, base: FrozenList, side: FrozenList, gaps: Iterable[Gap]) -> None:
        #: Items inserted before the item at an index; appended, if the index is the length of the base.
        self.inserted: dict[int, list[Any]] = {}
        #: The new item at an index; `MISSING` if the item was deleted.
        self.replaced: dict[int, Any] = {}
        #: Start of a range of items → its end, and the items that replaced it, where single items do not correspond.
        self.blocks: dict[int, tuple[int, list[Any]]] = {}
        for gap in gaps:
            start, end = gap.old.start, gap.old.stop
            self._enter(start, base[start:end], side[gap.new.start : gap.new.stop])

    def _enter(self, start: int, old: list[Any], new: list[Any]) -> None:
        end, more = start + len(old), len(new) - len(old)
        if not old:
            self.inserted[start] = new
        elif not new:
            self.replaced.update(dict.fromkeys(range(start, end), MISSING))
        elif more == 0:
            self.replaced.update(zip(range(start, end), new, strict=True))
        elif more > 0 and all(map(_is_edited, old, new)):
            self.replaced.update(zip(range(start, end), new, strict=False))
            self.inserted[end] = new[len(old) :]
        elif more > 0 and all(map(_is_edited, old, new[more:])):
            self.inserted[start] = new[:more]
            self.replaced.update(zip(range(start, end), new[more:], strict=True))
        else:
            self.blocks[start] = end, new

    def indices(self) -> Iterable[int]:
        """Return the indices in the base at which something was inserted, replaced or removed."""
        return chain(self.inserted, self.replaced, self.blocks)

    def overlap(self, other: Edits, *, agree: bool) -> bool:
        """Return whether the other edits change something within one of our blocks. With `agree`, two equal blocks do
        not count."""
        if not self.blocks:
            return False
        replaced, inserted, starts = sorted(other.replaced), sorted(other.inserted), sorted(other.blocks)
        ends = [other.blocks[start][0] for start in starts]
        for start, (end, items) in self.blocks.items():
            their_end, their_items = other.blocks.get(start, (-1, []))
            equal = their_end == end and len(their_items) == len(items) and all(map(same, their_items, items))
            if agree and equal:
                continue
            # Blocks of one side are disjoint: of those that end after our start, the first starts first.
            behind = bisect_right(ends, start)
            if (
                _has_any(replaced, start, end)
                or _has_any(inserted, start + 1, end)
                or (behind < len(starts) and starts[behind] < end)
            ):
                return True
        return False


def _has_any(indices: list[int], start: int, end: int) -> bool:
    """Return whether a sorted list has an index from `start` up to `end`, which is excluded."""
    found = bisect_left(indices, start)
    return found < len(indices) and indices[found] < end


def _is_edited(old: Any, new: Any) -> bool:
    """Return whether `new` is evidently an edit of `old`: a dict with most of its entries."""
    if type(old) not in DICTS or type(new) not in DICTS:
        return False
    kept = sum(same(value, new.get(key, MISSING)) for key, value in old.items())
    return 2 * kept > len(old)


def both_moved(base: FrozenList, ours: Edits, theirs: Edits, digests: Digests) -> bool:
    """Return whether both sides moved one item: keeping both insertions would duplicate it."""
    gone = [
        base[index]
        for index, item in ours.replaced.items()
        if item is MISSING and theirs.replaced.get(index) is MISSING
    ]
    if not gone or not ours.inserted or not theirs.inserted:
        return False
    moved = {digest(item, digests) for item in gone}
    for edits in (ours, theirs):
        moved &= {digest(item, digests) for item in chain.from_iterable(edits.inserted.values())}
    return bool(moved)


def digest(value: Any, digests: Digests) -> bytes:
    """Return bytes that are equal only for exactly equal values."""
    found = digests.get(id(value))
    if found is None:
        found = encode(value)
        if len(found) >= 32:
            found = blake2b(found, digest_size=32).digest()
        digests[id(value)] = found
    return found


def find_window(old: FrozenList, new: FrozenList) -> Gap:
    """Return the one gap between the equal items at the start and at the end of two lists. Groups that the lists share
    at their start are not opened, so that an append to a long list costs little."""
    start = _shared_start(old, new)
    return _trim_equal(old, new, Gap(range(start, len(old)), range(start, len(new))))


def _shared_start(old: FrozenList, new: FrozenList) -> int:
    """Return the number of items in the groups that two lists share at their start."""
    one, two = aux_of(old), aux_of(new)
    if type(one) is not Vector or type(two) is not Vector:
        return 0
    groups, others = one.levels[0], two.levels[0]
    shared = _count_true(map(is_, groups, others), min(len(groups), len(others)))
    return sum(map(attrgetter("count"), groups[:shared]))


def find_gaps(old: FrozenList, new: FrozenList, digests: Digests) -> list[Gap]:
    """Return the gaps between equal items of two lists, in order."""
    gaps: list[Gap] = []
    for unshared in _unshared(old, new):
        gap = _trim_equal(old, new, unshared)
        if len(gap.old) * len(gap.new) > 1:
            one = [digest(old[index], digests) for index in gap.old]
            two = [digest(new[index], digests) for index in gap.new]
            gaps += map(gap.within, _align(one, two))
        elif gap.old or gap.new:
            gaps.append(gap)
    return gaps


def _unshared(old: FrozenList, new: FrozenList) -> Iterator[Gap]:
    """Yield the gaps between the groups of items that two lists share."""
    one, two = aux_of(old), aux_of(new)
    if type(one) is not Vector or type(two) is not Vector:
        yield Gap(range(len(old)), range(len(new)))
        return
    groups, others = [*one.levels[0], one.tail], [*two.levels[0], two.tail]
    starts = list(accumulate((group.count for group in groups), initial=0))
    other_starts = list(accumulate((group.count for group in others), initial=0))
    for gap in _align(list(map(id, groups)), list(map(id, others))):
        yield Gap(
            range(starts[gap.old.start], starts[gap.old.stop]),
            range(other_starts[gap.new.start], other_starts[gap.new.stop]),
        )


def _trim_equal(old: FrozenList, new: FrozenList, gap: Gap) -> Gap:
    # By identity first, at the speed of C; only the rest is compared in depth.
    return _trim(old, new, _trim(old, new, gap, is_), same)


def _trim(one: list[Any], two: list[Any], gap: Gap, equal: Callable[[Any, Any], bool]) -> Gap:
    """Return a gap without the equal items at its start and its end."""
    left, right = _cut(one, two, gap)
    most = min(len(left), len(right))
    start = _count_true(map(equal, left, right), most)
    end = _count_true(map(equal, reversed(left), reversed(right)), most - start)
    return gap.within(Gap(range(start, len(left) - end), range(start, len(right) - end)))


def _cut(one: list[Any], two: list[Any], gap: Gap) -> tuple[list[Any], list[Any]]:
    return one[gap.old.start : gap.old.stop], two[gap.new.start : gap.new.stop]


def _count_true(values: Iterator[bool], most: int) -> int:
    """Count the values before the first false one, of the first `most`."""
    return next(compress(count(), map(not_, islice(values, most))), most)


def _align(one: list[Any], two: list[Any]) -> Iterator[Gap]:
    """Yield the gaps between equal items of two sequences, in order."""
    gap = _trim(one, two, Gap(range(len(one)), range(len(two))), eq)
    left, right = _cut(one, two, gap)
    if len(left) * len(right) <= _MAX_CELLS or _are_in_place(left, right):
        yield from map(gap.within, _align_part(left, right, _MAX_CELLS))
        return
    room = _MAX_CELLS
    for part in gap.between(_chain_unique(left, right)):
        left, right = _cut(one, two, part)
        yield from map(part.within, _align_part(left, right, room))
        room -= min(room, len(left) * len(right))


def _align_part(one: list[Any], two: list[Any], room: int) -> Iterator[Gap]:
    """Yield the gaps by a longest common subsequence; by index if that is as long and most items are in place, or if
    there are too many items for `room`."""
    pairs = [(index, index) for index in compress(count(), map(eq, one, two))]
    if len(one) * len(two) <= room and not _are_in_place(one, two):
        longest = _longest_common(one, two)
        if len(one) != len(two) or len(longest) > len(pairs) or 2 * len(pairs) < len(one):
            pairs = longest
    return Gap(range(len(one)), range(len(two))).between(pairs)


def _are_in_place(one: list[Any], two: list[Any]) -> bool:
    """Return whether items were only replaced, by others that `one` does not have."""
    return len(one) == len(two) and set(compress(one, map(ne, one, two))).isdisjoint(two)


def _chain_unique(one: list[Any], two: list[Any]) -> list[tuple[int, int]]:
    """Return pairs of indices of items that both sequences have once: the longest chain in one order."""
    ones, twos = Counter(one), Counter(two)
    places = {item: index for index, item in enumerate(two) if ones[item] == twos[item] == 1}
    ends: list[int] = []
    chains: list[Any] = []
    for index, item in enumerate(one):
        if item in places:
            length = bisect_left(ends, places[item])
            ends[length : length + 1] = [places[item]]
            chains[length : length + 1] = [(index, places[item], chains[length - 1] if length else None)]
    pairs: list[tuple[int, int]] = []
    link = chains[-1] if chains else None
    while link is not None:
        *pair, link = link
        pairs.append((pair[0], pair[1]))
    return pairs[::-1]


def _longest_common(one: list[Any], two: list[Any]) -> list[tuple[int, int]]:
    """Return a longest common subsequence as pairs of indices.

    A row of the usual table is one integer (Hyyrö's bit-parallel form): bit `j` is clear where the common length grows
    at `two[j]`. That is exact, and orders of magnitude faster than cell by cell.
    """
    if len(one) < len(two):
        return [(old, new) for new, old in _longest_common(two, one)]
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
    old, new = len(one), len(two)
    while old and new:
        if rows[old] >> (new - 1) & 1:
            new -= 1
        else:
            old -= 1
            if rows[old] >> (new - 1) & 1:
                new -= 1
                pairs.append((old, new))
    return pairs[::-1]
