"""How one list came from another: which items were inserted, replaced or deleted, by position.

A merge compares each side with the common base this way. Only the stretch that a side has changed is looked at (its
*window*); items that both lists hold once are matched first, then what lies between them is aligned.

Invariant: the edits, applied to the base, give the side, item by item.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from hashlib import blake2b
from itertools import chain, compress
from operator import is_not
from typing import Any, NamedTuple

from holdfast.tree.codec import encode
from holdfast.tree.fold import same
from holdfast.tree.frozen import DICTS, FrozenList


class _Missing:
    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"

    def __bool__(self) -> bool:
        return False


#: Stands for an entry that does not exist, or no longer.
MISSING: Any = _Missing()

#: Pairs of items beyond which alignment skips those that recur most, lest it take minutes.
_CROWD = 200_000


class Edits:
    """How one side's list came from the base, by position in the base. Unmentioned items are unchanged."""

    __slots__ = ("added", "blocks", "put")

    def __init__(self) -> None:
        #: Items inserted before the base's item here; at the length of the base, appended.
        self.added: dict[int, list[Any]] = {}
        #: What took the place of the item here; `MISSING` if it was deleted.
        self.put: dict[int, Any] = {}
        #: Items from here to an end that became others, and nobody can say which became which.
        self.blocks: dict[int, tuple[int, list[Any]]] = {}

    def points(self) -> Iterable[int]:
        """Where in the base something was done."""
        return chain(self.added, self.put, self.blocks)

    def clashes(self, other: Edits, asked: bool) -> bool:
        """Did the other side do something else within one of our blocks? If somebody is asked, also the same."""
        for start, (end, items) in self.blocks.items():
            until, twin = other.blocks.get(start, (-1, []))
            if not asked and until == end and len(twin) == len(items) and all(map(same, twin, items)):
                continue
            if (
                any(start <= point < end for point in other.put)
                or any(start < point < end for point in other.added)
                or any(begin < end and start < until for begin, (until, _) in other.blocks.items())
            ):
                return True
        return False


class Window(NamedTuple):
    """The smallest stretch `start:end` of the base outside of which a side has not changed it."""

    start: int
    end: int
    items: list[Any]


def window_of(base: FrozenList, side: FrozenList) -> Window:
    """The stretch of the base that a side has changed, and what it became."""
    start = common(base, side)
    room = min(len(base), len(side)) - start
    tail = common(base[len(base) - room :][::-1], side[len(side) - room :][::-1])
    return Window(start, len(base) - tail, side[start : len(side) - tail])


def common(one: list[Any], other: list[Any]) -> int:
    """How many items at the start are exactly equal; runs at the speed of C over shared ones."""
    for index in compress(range(len(one)), map(is_not, one, other)):
        if not same(one[index], other[index]):
            return index
    return min(len(one), len(other))


def align(base: FrozenList, window: Window, other: Window, marks: dict[int, bytes]) -> Edits:
    """The edits of the side that a window belongs to, as finely as the `other` side's window asks for; `marks` are
    remembered between the two."""
    edits = Edits()
    old, new = base[window.start : window.end], window.items
    if old and (window.end < other.start or other.end < window.start):
        # What the other side does not even touch needs no alignment, which could be slow.
        edits.blocks[window.start] = window.end, new
    elif not old or not new:
        _note(edits, window.start, old, new)
    else:
        for start, end, until in _runs(old, new):
            one, two = old[start:end], new[start:until]
            for low, high, first, last in _changes(_marked(one, marks), _marked(two, marks)):
                _note(edits, window.start + start + low, one[low:high], two[first:last])
    return edits


def _runs(old: list[Any], new: list[Any]) -> list[tuple[int, int, int]]:
    """Stretches `old[start:end]`, `new[start:until]` to be aligned: the whole, unless most items stand where
    they stood; then what lies between those."""
    others = [at for at in compress(range(len(old)), map(is_not, old, new)) if not same(old[at], new[at])]
    if len(old) != len(new) or 2 * len(others) > len(old):
        return [(0, len(old), len(new))]
    runs: list[tuple[int, int, int]] = []
    for at in others:
        start = runs.pop()[0] if runs and runs[-1][1] == at else at
        runs.append((start, at + 1, at + 1))
    return runs


def _note(edits: Edits, start: int, old: list[Any], new: list[Any]) -> None:
    """Enter that the items `old` from `start` on became `new`."""
    end, more = start + len(old), len(new) - len(old)
    if not old:
        edits.added[start] = new
    elif not new:
        edits.put.update(dict.fromkeys(range(start, end), MISSING))
    elif more == 0:
        edits.put.update(zip(range(start, end), new, strict=True))
    elif more > 0 and all(map(_akin, old, new)):
        edits.put.update(zip(range(start, end), new, strict=False))
        edits.added[end] = new[len(old) :]
    elif more > 0 and all(map(_akin, old, new[more:])):
        edits.added[start] = new[:more]
        edits.put.update(zip(range(start, end), new[more:], strict=True))
    else:
        edits.blocks[start] = end, new


def _akin(old: Any, new: Any) -> bool:
    """Is `new` plainly `old` with an edit: a dict that kept most of its entries?"""
    if type(old) not in DICTS or type(new) not in DICTS:
        return False
    kept = sum(same(value, new.get(key, MISSING)) for key, value in old.items())
    return 2 * kept > len(old)


def _marked(items: list[Any], marks: dict[int, bytes]) -> list[bytes]:
    """A short mark for each item, equal for exactly equal items."""
    out = []
    for item in items:
        mark = marks.get(id(item))
        if mark is None:
            mark = marks[id(item)] = blake2b(encode(item), digest_size=16).digest()
        out.append(mark)
    return out


def _changes(one: list[bytes], two: list[bytes]) -> Iterator[tuple[int, int, int, int]]:
    """The stretches of one list that became stretches of the other."""
    from difflib import SequenceMatcher

    for low, high, first, last in _gaps(one, two):
        crowded = (high - low) * (last - first) > _CROWD
        for tag, *at in SequenceMatcher(None, one[low:high], two[first:last], crowded).get_opcodes():
            if tag != "equal":
                yield low + at[0], low + at[1], first + at[2], first + at[3]


def _gaps(one: list[bytes], two: list[bytes]) -> list[tuple[int, int, int, int]]:
    """What lies between the items that both lists hold once, along the longest chain of such in one order."""
    ones, twos = Counter(one), Counter(two)
    place = {mark: at for at, mark in enumerate(two) if ones[mark] == twos[mark] == 1}
    ends: list[int] = []
    chains: list[Any] = []
    for at, mark in enumerate(one):
        if mark in place:
            size = bisect_left(ends, place[mark])
            ends[size : size + 1] = [place[mark]]
            chains[size : size + 1] = [(at, place[mark], chains[size - 1] if size else None)]
    gaps = []
    link: Any = (len(one), len(two), chains[-1] if chains else None)
    while link is not None:
        high, last, link = link
        low, first = link[:2] if link else (-1, -1)
        if (high - low, last - first) != (1, 1):
            gaps.append((low + 1, high, first + 1, last))
    return gaps


def both_moved(base: FrozenList, mine: Edits, head: Edits, marks: dict[int, bytes]) -> bool:
    """Did both sides take out an item and insert it elsewhere? Keeping both insertions would double it."""
    gone = [base[at] for at, item in mine.put.items() if item is MISSING and head.put.get(at) is MISSING]
    if not gone or not mine.added or not head.added:
        return False
    moved = set(_marked(gone, marks))
    for edits in (mine, head):
        moved &= set(_marked(list(chain.from_iterable(edits.added.values())), marks))
    return bool(moved)
