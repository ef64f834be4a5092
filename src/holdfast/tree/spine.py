"""The inner structure of long lists and wide dicts, so that a small change writes little.

A list beyond `CHUNK` items is a `Vector`: full groups of items, groups of groups above them up to one root, and a
tail that grows by appends outside of the tree. A dict beyond `WIDE` entries is a `Trie`: buckets of entries chosen by
the hash of the key; each carries a sequence number, which keeps the order of keys. Both are persistent: a change makes
new groups on its way to the root and shares all others.

Invariant: the spine of a container and its content say the same; `build_list` and `build_dict` alone make spines.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate
from operator import is_, itemgetter
from typing import Any

from holdfast.tree.frozen import (
    At,
    FrozenDict,
    FrozenList,
    Long,
    are_flat,
    aux_of,
    freeze_dict,
    freeze_list,
    leaves,
    note_leaves,
)
from holdfast.tree.keys import hash_key

#: Items in a group of a vector; longer lists get a vector.
CHUNK = 32
#: Entries in a dict that is stored as one node; wider dicts get a trie.
WIDE = 32
#: Entries in a bucket of a trie before it is divided.
BUCKET = 32
#: Bits of a hash that choose a way of a fork; the lowest do so at the root.
BITS = 4
#: Ways of a fork.
FAN = 1 << BITS
MAX_LEVEL = 64 // BITS


class Group:
    """A run of a list's items, or of groups of them."""

    __slots__ = ("__weakref__", "at", "count", "flat", "items", "long")

    def __init__(
        self, items: list[Any], count: int, long: Long | None = None, *, flat: bool | None = None
    ) -> None:
        self.items = items
        #: List items below this group.
        self.count = count
        self.long = long
        self.at: At | None = None
        #: Are all items dicts that hold nothing which has parts? None until somebody has looked.
        self.flat = flat


class Vector:
    """The groups of a long list: `levels[0]` groups items, each further level the one before, the last is
    the root alone. The tail stands apart."""

    __slots__ = ("count", "levels", "tail")

    def __init__(self, levels: list[list[Group]], tail: Group) -> None:
        self.levels = levels
        self.tail = tail
        #: List items outside of the tail.
        self.count = sum(group.count for group in levels[-1])

    def is_flat(self) -> bool:
        """Are all items records (see `are_flat`)? Versions share groups, so each is looked at once."""
        for group in (*self.levels[0], self.tail):
            if group.flat is None:
                group.flat = are_flat(group.items)
            if not group.flat:
                return False
        return True


class Bucket:
    """A few entries of a wide dict."""

    __slots__ = ("__weakref__", "at", "items", "long", "order")

    def __init__(
        self, items: dict[Any, Any], order: Iterable[int], long: Long | None = None, at: At | None = None
    ) -> None:
        self.items = items
        #: The sequence numbers of the items, in the same order.
        self.order = array("Q", order)
        self.long = long
        self.at = at


class Fork:
    """Sixteen ways down a trie."""

    __slots__ = ("__weakref__", "at", "ways")

    def __init__(self, ways: list[Fork | Bucket | None], at: At | None) -> None:
        self.ways = ways
        self.at = at


class Trie:
    """The entries of a wide dict, and the next sequence number."""

    __slots__ = ("next", "root")

    def __init__(self, root: Fork | Bucket, next_: int) -> None:
        self.root = root
        self.next = next_


def build_list(
    items: list[Any], base: FrozenList | None = None, keep: int = 0, changed: list[int] | None = None
) -> FrozenList:
    """A frozen list of frozen items, sharing with `base`; its first `keep` items are known to be those of it. If it is
    as long as `base` and differs from it in `changed` indices only, only their groups are made."""
    frozen = freeze_list(items, base, keep)
    if len(items) > CHUNK:
        spine = aux_of(base)
        if type(spine) is Vector and changed is not None and len(changed) < len(spine.levels[0]):
            frozen._aux = _replaced(items, spine, changed)
        elif type(spine) is Vector:
            frozen._aux = _vector(frozen, spine, keep, {})
        else:
            frozen._aux = _vector(frozen, None, 0, _long_of(base))
    else:
        _carry_long(frozen, items, base)
    return frozen


def build_dict(
    items: dict[Any, Any], base: FrozenDict | None = None, touched: Any = None, reordered: bool = False
) -> FrozenDict:
    """A frozen dict of frozen values, sharing with `base`, from which it differs in `touched` keys only."""
    new = (
        [dict.get(items, key) for key in touched]
        if type(base) is FrozenDict and touched is not None
        else items.values()
    )
    frozen = freeze_dict(items, new)
    if len(items) > WIDE:
        spine = aux_of(base)
        if type(spine) is Trie and touched is not None and not reordered and base is not None:
            frozen._aux = _update(spine, frozen, base, touched)
        else:
            frozen._aux = _trie(frozen, _long_of(base))
    else:
        _carry_long(frozen, items.values(), base)
    return frozen


def step_down(hashed: int, level: int) -> int:
    """Which way of a fork on `level` leads to a key."""
    return (hashed >> (BITS * level)) & (FAN - 1)


def buckets(node: Fork | Bucket | None) -> Iterator[Bucket]:
    """All buckets of a trie."""
    if type(node) is Bucket:
        yield node
    elif type(node) is Fork:
        for way in node.ways:
            yield from buckets(way)


def assemble_dict(trie: Trie) -> FrozenDict:
    """The whole dict of a trie, in the order of its keys."""
    entries: list[tuple[int, Any, Any]] = []
    for bucket in buckets(trie.root):
        entries.extend(zip(bucket.order, bucket.items, bucket.items.values(), strict=True))
    entries.sort(key=itemgetter(0))
    frozen = freeze_dict({key: value for _, key, value in entries})
    frozen._aux = trie
    return frozen


def assemble_list(vector: Vector) -> FrozenList:
    """The whole list of a vector."""
    items: list[Any] = []
    for group in vector.levels[0]:
        items += group.items
    items += vector.tail.items
    frozen = freeze_list(items)
    frozen._aux = vector
    return frozen


def levels_over(root: Group | None, height: int) -> list[list[Group]]:
    """The levels below a root that was read back."""
    levels: list[list[Group]] = [[root] if root is not None else []]
    for _ in range(height):
        levels.insert(0, [child for group in levels[0] for child in group.items])
    return levels


def changed_keys(old: FrozenDict, new: FrozenDict) -> Iterator[Any] | None:
    """Keys in which two dicts with tries may differ (of keys that Python takes for one, one of them); None
    where one has no trie."""
    one, two = aux_of(old), aux_of(new)
    if type(one) is not Trie or type(two) is not Trie:
        return None
    return _changed(one.root, two.root)


def _changed(old: Fork | Bucket | None, new: Fork | Bucket | None) -> Iterator[Any]:
    if old is new:
        return
    if type(old) is Fork and type(new) is Fork:
        for one, two in zip(old.ways, new.ways, strict=True):
            yield from _changed(one, two)
        return
    seen: set[Any] = set()
    for bucket in (*buckets(old), *buckets(new)):
        for key in bucket.items:
            if key not in seen:
                seen.add(key)
                yield key


def _long_of(container: Any) -> Long:
    aux = aux_of(container)
    if type(aux) is dict or type(aux) is tuple:
        return leaves(aux)
    long: Long = {}
    parts: Iterable[Bucket | Group] = ()
    if type(aux) is Trie:
        parts = buckets(aux.root)
    elif type(aux) is Vector:
        parts = (*aux.levels[0], aux.tail)
    for part in parts:
        if part.long:
            long.update(part.long)
    return long


def _carry_long(frozen: Any, values: Any, base: Any) -> None:
    known = _long_of(base)
    if known:
        long = _pick(values, known)
        if long:
            note_leaves(frozen, long)


def _pick(values: Any, known: Long) -> Long | None:
    return {id(value): known[id(value)] for value in values if id(value) in known} or None


def _vector(items: list[Any], old: Vector | None, keep: int, long: Long) -> Vector:
    if old is not None and keep == old.count + old.tail.count and len(items) - old.count <= CHUNK:
        run = old.tail.items + items[keep:]
        known = {**long, **old.tail.long} if old.tail.long else long
        return Vector(old.levels, Group(run, len(run), _pick(run, known) if known else None))
    reused = 0
    if old is None:
        groups = _regroup(items, [], 0, long)
        old_levels: list[list[Group]] = []
    else:
        chunks = [*old.levels[0], old.tail]
        start, reused = _kept(old, keep)
        groups = chunks[:reused] + _regroup(items[start:] if start else items, chunks[reused:], 0, long)
        old_levels = old.levels[1:]
    tail = groups.pop()
    if old is not None and len(groups) == reused == len(old.levels[0]):
        return Vector(old.levels, tail)
    if old is not None:
        # A tail that is full now has its place in the tree, and is written once more to be sealed.
        groups = [Group(full.items, full.count, full.long) if full is old.tail else full for full in groups]
    levels = [groups]
    while len(levels[-1]) > 1:
        above = old_levels[len(levels) - 1] if len(levels) - 1 < len(old_levels) else []
        levels.append(_regroup(levels[-1], above, len(levels), {}))
    return Vector(levels, tail)


def _replaced(items: list[Any], old: Vector, changed: list[int]) -> Vector:
    """The vector of a list that differs from an old one in some items, in place."""
    groups, tail = list(old.levels[0]), old.tail
    starts = list(accumulate((group.count for group in groups), initial=0))
    for number in {bisect_right(starts, index) - 1 for index in changed}:
        start = starts[number]
        group = tail if number == len(groups) else groups[number]
        run = items[start : start + group.count]
        made = Group(run, group.count, _pick(run, group.long) if group.long else None)
        if number == len(groups):
            tail = made
        else:
            groups[number] = made
    if all(map(is_, groups, old.levels[0])):
        return Vector(old.levels, tail)
    levels = [groups]
    while len(levels[-1]) > 1:
        above = old.levels[len(levels)] if len(levels) < len(old.levels) else []
        levels.append(_regroup(levels[-1], above, len(levels), {}))
    return Vector(levels, tail)


def _kept(vector: Vector, keep: int) -> tuple[int, int]:
    """How many items and groups at the start of a vector lie within its first `keep` items."""
    if keep >= vector.count:
        return vector.count, len(vector.levels[0])
    start = 0
    for number, group in enumerate(vector.levels[0]):
        if start + group.count > keep:
            return start, number
        start += group.count
    return start, len(vector.levels[0])


def _regroup(items: list[Any], old: list[Group], level: int, long: Long) -> list[Group]:
    """Groups over `items`, taking every old group whose items stand together unchanged."""
    starts = {id(group.items[0]): group for group in old if group.items}
    for group in old:
        if group.long:
            long = {**long, **group.long}
    out: list[Group] = []
    run: list[Any] = []
    index, end = 0, len(items)
    while index < end:
        found = starts.get(id(items[index]))
        size = 0 if found is None else len(found.items)
        if (
            found is not None
            and index + size <= end
            and all(map(is_, found.items, items[index : index + size]))
        ):
            _close(out, run, level, long, last=False)
            run = []
            out.append(found)
            index += size
        else:
            run.append(items[index])
            index += 1
    _close(out, run, level, long, last=True)
    return out


def _close(out: list[Group], run: list[Any], level: int, long: Long, *, last: bool) -> None:
    """Divide a run of items that belong to no old group into new groups."""
    if not run:
        return
    room = CHUNK - len(out[-1].items) if out else 0
    if room >= len(run) or (last and room > 0):
        run = out.pop().items + run
    if last:
        pieces = [run[at : at + CHUNK] for at in range(0, len(run), CHUNK)]
    else:
        number = -(-len(run) // CHUNK)
        size = -(-len(run) // number)
        pieces = [run[at : at + size] for at in range(0, len(run), size)]
    for piece in pieces:
        count = len(piece) if level == 0 else sum(group.count for group in piece)
        out.append(Group(piece, count, _pick(piece, long) if long else None))


def _trie(items: dict[Any, Any], long: Long) -> Trie:
    entries = [(hash_key(key), key, number, value) for number, (key, value) in enumerate(items.items())]
    root = _plant(entries, 0, long)
    assert root is not None
    return Trie(root, len(items))


def _plant(entries: list[tuple[int, Any, int, Any]], level: int, long: Long) -> Fork | Bucket | None:
    if not entries:
        return None
    if len(entries) <= BUCKET or level == MAX_LEVEL:
        found = {key: value for _, key, _, value in entries}
        return Bucket(found, [entry[2] for entry in entries], _pick(found.values(), long) if long else None)
    ways: list[list[tuple[int, Any, int, Any]]] = [[] for _ in range(FAN)]
    for entry in entries:
        ways[step_down(entry[0], level)].append(entry)
    return Fork([_plant(way, level + 1, long) for way in ways], None)


_GONE: Any = object()


def _update(trie: Trie, items: dict[Any, Any], base: FrozenDict, touched: Any) -> Trie:
    changes = [
        (hash_key(key), key, -1, items.get(key, _GONE)) for key in touched if key in base or key not in items
    ]
    added = []
    for key in reversed(items):
        if key in base:
            break
        added.append(key)
    number = trie.next
    for key in reversed(added):
        changes.append((hash_key(key), key, number, items[key]))
        number += 1
    root = _apply(trie.root, changes, 0)
    assert root is not None
    return Trie(root, number)


def _apply(
    node: Fork | Bucket | None, changes: list[tuple[int, Any, int, Any]], level: int
) -> Fork | Bucket | None:
    if not changes:
        return node
    if type(node) is Fork:
        ways: list[list[tuple[int, Any, int, Any]]] = [[] for _ in range(FAN)]
        for change in changes:
            ways[step_down(change[0], level)].append(change)
        below = [_apply(way, part, level + 1) for way, part in zip(node.ways, ways, strict=True)]
        return Fork(below, None) if any(way is not None for way in below) else None
    bucket = node if type(node) is Bucket else Bucket({}, ())
    found = dict(bucket.items)
    order = dict(zip(found, bucket.order, strict=True))
    long = bucket.long or {}
    for _, key, number, value in changes:
        if value is _GONE:
            found.pop(key, None)
            order.pop(key, None)
        else:
            found[key] = value
            order.setdefault(key, number)
    if len(found) > BUCKET and level < MAX_LEVEL:
        entries = [(hash_key(key), key, order[key], value) for key, value in found.items()]
        return _plant(entries, level, long)
    return Bucket(found, order.values(), _pick(found.values(), long) if long else None) if found else None
