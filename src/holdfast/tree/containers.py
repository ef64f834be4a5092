"""The spines of long lists and wide dicts: persistent structures, so that a small change writes little.

A list of more than `CHUNK` items has a `Vector`: groups of items, groups of groups above them up to one root, and a
tail outside of the tree, to which appends go. A dict of more than `WIDE` entries has a `Trie`: buckets of entries by
the hash of the key, with a sequence number for each entry, which keeps the order of keys. A change makes new nodes on
the way to the root and shares all others.

Invariant: the spine of a container and its content are equal; only `build_list` and `build_dict` make spines. The hash
of a key is the same in every process, and for keys that Python treats as equal (`1`, `1.0`, `True`); `docs/format.md`
specifies it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import accumulate
from numbers import Number
from operator import is_, itemgetter
from typing import Any, TypeAlias

from holdfast.tree.codec import encode
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
    set_leaves,
)


def hash_key(key: Any) -> int:
    """Return the hash of a dict key: 64 bits of BLAKE2b."""
    return int.from_bytes(blake2b(_key_bytes(key), digest_size=8).digest(), "little")


def _key_bytes(key: Any) -> bytes:
    if isinstance(key, str):
        return key.encode("utf-8", "surrogatepass")
    if isinstance(key, Number):
        return b"\xffn" + (b"nan" if key != key else str(hash(key)).encode())  # noqa: PLR0124 - is it NaN?
    if isinstance(key, tuple):
        return b"\xfft" + b"".join(hash_key(item).to_bytes(8, "little") for item in key)
    if isinstance(key, frozenset):
        return b"\xffs" + b"".join(sorted(hash_key(item).to_bytes(8, "little") for item in key))
    if isinstance(key, datetime) and key.utcoffset() is not None:
        return b"\xffd" + str(key.astimezone(UTC)).encode()
    return b"\xff" + encode(key)


#: Items in a group of a vector; longer lists get a vector.
CHUNK = 32
#: Entries in a dict that is stored as one node; wider dicts get a trie.
WIDE = 32
#: Entries in a bucket of a trie before it is divided.
BUCKET = 32
#: Bits of a hash that select a child of a trie node; the lowest bits do so at the root.
BITS = 4
#: Children of a trie node.
FAN = 1 << BITS
MAX_LEVEL = 64 // BITS


class Group:
    """Consecutive items of a list, or groups of them."""

    __slots__ = ("__weakref__", "at", "count", "flat", "is_mended", "items", "long")

    def __init__(
        self,
        items: list[Any],
        count: int,
        long: Long | None = None,
        *,
        flat: bool | None = None,
        is_mended: bool = False,
    ) -> None:
        self.items = items
        #: List items below this group.
        self.count = count
        self.long = long
        self.at: At | None = None
        #: Whether all items are records (see `are_flat`); None if not known.
        self.flat = flat
        #: Whether it is a group of which items were replaced.
        self.is_mended = is_mended


class Vector:
    """The groups of a long list: `levels[0]` are groups of items, each further level groups of the one before, the last
    only the root; and the tail."""

    __slots__ = ("count", "levels", "tail")

    def __init__(self, levels: list[list[Group]], tail: Group) -> None:
        self.levels = levels
        self.tail = tail
        #: List items outside of the tail.
        self.count = sum(group.count for group in levels[-1])

    def is_flat(self) -> bool:
        """Return whether all items are records (see `are_flat`). Versions share groups, so each is checked once."""
        for group in (*self.levels[0], self.tail):
            if group.flat is None:
                group.flat = are_flat(group.items)
            if not group.flat:
                return False
        return True


class Bucket:
    """A leaf of a trie: some entries of a wide dict."""

    __slots__ = ("__weakref__", "at", "items", "long", "order")

    def __init__(
        self, items: dict[Any, Any], order: Iterable[int], long: Long | None = None, at: At | None = None
    ) -> None:
        self.items = items
        #: The sequence numbers of the items, in the same order.
        self.order = array("Q", order)
        self.long = long
        self.at = at


class TrieBranch:
    """An inner node of a trie."""

    __slots__ = ("__weakref__", "at", "children")

    def __init__(self, children: list[TrieNode | None]) -> None:
        self.children = children
        self.at: At | None = None


TrieNode: TypeAlias = TrieBranch | Bucket


class Trie:
    """The entries of a wide dict, and the next sequence number."""

    __slots__ = ("next", "root")

    def __init__(self, root: TrieNode, next_: int) -> None:
        self.root = root
        self.next = next_


def build_list(
    items: list[Any], base: FrozenList | None = None, keep: int = 0, changed: list[int] | None = None
) -> FrozenList:
    """Return a frozen list of frozen items that shares with `base`, whose first `keep` items it has. If `changed` is
    given, the list is as long as `base` and differs from it at these indices only."""
    frozen = freeze_list(items, base, keep)
    if len(items) > CHUNK:
        spine = aux_of(base)
        if type(spine) is Vector and changed is not None and len(changed) < len(spine.levels[0]):
            frozen.aux = _replaced(items, spine, changed)
        elif type(spine) is Vector:
            frozen.aux = _vector(frozen, spine, keep, {})
        else:
            frozen.aux = _vector(frozen, None, 0, _long_of(base))
    elif getattr(base, "aux", None) is not None:
        _keep_long(frozen, items, base)
    return frozen


def build_dict(
    items: dict[Any, Any], base: FrozenDict | None = None, touched: Any = None, reordered: bool = False
) -> FrozenDict:
    """Return a frozen dict of frozen values that shares with `base` and differs from it in `touched` keys only."""
    new = (
        [dict.get(items, key) for key in touched]
        if type(base) is FrozenDict and touched is not None
        else items.values()
    )
    frozen = freeze_dict(items, new)
    if len(items) > WIDE:
        spine = aux_of(base)
        if type(spine) is Trie and touched is not None and not reordered and base is not None:
            frozen.aux = _update(spine, frozen, base, touched)
        else:
            frozen.aux = _trie(frozen, _long_of(base))
    elif getattr(base, "aux", None) is not None:
        _keep_long(frozen, items.values(), base)
    return frozen


def child_index(hashed: int, level: int) -> int:
    """Return the index of the child of a trie branch at `level` that leads to a key."""
    return (hashed >> (BITS * level)) & (FAN - 1)


def _buckets(node: TrieNode | None) -> Iterator[Bucket]:
    if type(node) is Bucket:
        yield node
    elif type(node) is TrieBranch:
        for child in node.children:
            yield from _buckets(child)


def assemble_dict(trie: Trie) -> FrozenDict:
    """Return the dict of a trie, in the order of its keys."""
    entries: list[tuple[int, Any, Any]] = []
    for bucket in _buckets(trie.root):
        entries.extend(zip(bucket.order, bucket.items, bucket.items.values(), strict=True))
    entries.sort(key=itemgetter(0))
    frozen = freeze_dict({key: value for _, key, value in entries})
    frozen.aux = trie
    return frozen


def assemble_list(vector: Vector) -> FrozenList:
    """Return the list of a vector."""
    items: list[Any] = []
    for group in vector.levels[0]:
        items += group.items
    items += vector.tail.items
    frozen = freeze_list(items)
    frozen.aux = vector
    return frozen


def levels_over(root: Group | None, height: int) -> list[list[Group]]:
    """Return the levels of a vector from its root."""
    levels: list[list[Group]] = [[root] if root is not None else []]
    for _ in range(height):
        levels.insert(0, [child for group in levels[0] for child in group.items])
    return levels


def changed_keys(old: FrozenDict, new: FrozenDict) -> Iterator[Any] | None:
    """Return the keys in which two dicts may differ (of equal keys, one of them); None if a dict has no trie."""
    one, two = aux_of(old), aux_of(new)
    if type(one) is not Trie or type(two) is not Trie:
        return None
    return _changed(one.root, two.root)


def _changed(old: TrieNode | None, new: TrieNode | None) -> Iterator[Any]:
    if old is new:
        return
    if type(old) is TrieBranch and type(new) is TrieBranch:
        for one, two in zip(old.children, new.children, strict=True):
            yield from _changed(one, two)
        return
    yield from dict.fromkeys(key for bucket in (*_buckets(old), *_buckets(new)) for key in bucket.items)


def _long_of(container: Any) -> Long:
    aux = aux_of(container)
    if type(aux) is dict or type(aux) is tuple:
        return leaves(aux)
    long: Long = {}
    parts: Iterable[Bucket | Group] = ()
    if type(aux) is Trie:
        parts = _buckets(aux.root)
    elif type(aux) is Vector:
        parts = (*aux.levels[0], aux.tail)
    for part in parts:
        if part.long:
            long.update(part.long)
    return long


def _keep_long(frozen: Any, values: Any, base: Any) -> None:
    long = _select_long(values, _long_of(base))
    if long:
        set_leaves(frozen, long)


def _select_long(values: Any, known: Long | None) -> Long | None:
    """Return the places of those values that are long leaves."""
    if not known:
        return None
    return {id(value): known[id(value)] for value in values if id(value) in known} or None


def _vector(items: list[Any], old: Vector | None, keep: int, long: Long) -> Vector:
    if old is not None and keep == old.count + old.tail.count and len(items) - old.count <= CHUNK:
        run = old.tail.items + items[keep:]
        known = {**long, **old.tail.long} if old.tail.long else long
        return Vector(old.levels, Group(run, len(run), _select_long(run, known)))
    if old is None:
        groups = _regroup(items, [], 0, long)
        tail = groups.pop()
        return Vector(_build_levels(groups, []), tail)
    chunks = [*old.levels[0], old.tail]
    start, reused = _count_kept(old, keep)
    groups = chunks[:reused] + _regroup(items[start:] if start else items, chunks[reused:], 0, long)
    tail = groups.pop()
    if len(groups) == reused == len(old.levels[0]):
        return Vector(old.levels, tail)
    # A full tail joins the tree, and is written once more to be sealed.
    groups = [Group(full.items, full.count, full.long) if full is old.tail else full for full in groups]
    return Vector(_build_levels(groups, old.levels), tail)


def _build_levels(groups: list[Group], old: list[list[Group]]) -> list[list[Group]]:
    """Return the levels of a vector over its lowest groups; groups of the `old` levels are used again."""
    levels = [groups]
    while len(levels[-1]) > 1:
        above = old[len(levels)] if len(levels) < len(old) else []
        levels.append(_regroup(levels[-1], above, len(levels), {}))
    return levels


def _replaced(items: list[Any], old: Vector, changed: list[int]) -> Vector:
    """Return the vector of a list that differs from an old one at the `changed` indices only."""
    groups, tail = list(old.levels[0]), old.tail
    starts = list(accumulate((group.count for group in groups), initial=0))
    for number in {bisect_right(starts, index) - 1 for index in changed}:
        start = starts[number]
        group = tail if number == len(groups) else groups[number]
        run = items[start : start + group.count]
        made = Group(run, group.count, _select_long(run, group.long), is_mended=True)
        if number == len(groups):
            tail = made
        else:
            groups[number] = made
    if all(map(is_, groups, old.levels[0])):
        return Vector(old.levels, tail)
    return Vector(_build_levels(groups, old.levels), tail)


def _count_kept(vector: Vector, keep: int) -> tuple[int, int]:
    """Return the numbers of items and of groups at the start of a vector that are within its first `keep` items."""
    if keep >= vector.count:
        return vector.count, len(vector.levels[0])
    start = 0
    for number, group in enumerate(vector.levels[0]):
        if start + group.count > keep:
            return start, number
        start += group.count
    return start, len(vector.levels[0])


def _regroup(items: list[Any], old: list[Group], level: int, long: Long) -> list[Group]:
    """Return groups of `items`; old groups whose items are consecutive and unchanged are used again."""
    starts = {id(group.items[0]): group for group in old if group.items}
    long = dict(long)
    for group in old:
        if group.long:
            long.update(group.long)
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
    """Append new groups for a run of items that are in no old group."""
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
        out.append(Group(piece, count, _select_long(piece, long)))


def _trie(items: dict[Any, Any], long: Long) -> Trie:
    entries = [(hash_key(key), key, number, value) for number, (key, value) in enumerate(items.items())]
    root = _build_node(entries, 0, long)
    assert root is not None
    return Trie(root, len(items))


#: An entry of a trie: hash, key, sequence number, value.
_Entry: TypeAlias = tuple[int, Any, int, Any]


def _build_node(entries: list[_Entry], level: int, long: Long) -> TrieNode | None:
    if not entries:
        return None
    if len(entries) <= BUCKET or level == MAX_LEVEL:
        found = {key: value for _, key, _, value in entries}
        return Bucket(found, [entry[2] for entry in entries], _select_long(found.values(), long))
    return TrieBranch([_build_node(part, level + 1, long) for part in _divide(entries, level)])


def _divide(entries: list[_Entry], level: int) -> list[list[_Entry]]:
    """Return the entries of each child of a branch."""
    parts: list[list[_Entry]] = [[] for _ in range(FAN)]
    for entry in entries:
        parts[child_index(entry[0], level)].append(entry)
    return parts


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


def _apply(node: TrieNode | None, changes: list[_Entry], level: int) -> TrieNode | None:
    if not changes:
        return node
    if type(node) is TrieBranch:
        parts = zip(node.children, _divide(changes, level), strict=True)
        children = [_apply(child, part, level + 1) for child, part in parts]
        return TrieBranch(children) if any(child is not None for child in children) else None
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
        return _build_node(entries, level, long)
    return Bucket(found, order.values(), _select_long(found.values(), long)) if found else None
