"""Find the version that made a change: blame, bisect, and the explanation of a merge conflict.

The place of a node in the store names the version that wrote it, so blame jumps from one writing of the node around a
path to the one before, and stops where the value at the path changed. A program can also move a stored node to another
place in the state, or put one back: such a version is recorded as one that moved nodes, later versions carry its
number, and blame does not jump over it.

Invariant: if `has_moved_nodes` returns False, every stored node of the new state is where it was in the old one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from operator import is_
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import HoldfastError, InvalidCall, MergeConflict, NotFound
from holdfast.history.builder import VersionMetadata
from holdfast.history.reader import Head, Reader
from holdfast.history.version import find_part, segments_of
from holdfast.model.records import VersionRecord
from holdfast.tree import path as paths
from holdfast.tree.codec import decode
from holdfast.tree.containers import Trie, TrieBranch, Vector
from holdfast.tree.fold import same
from holdfast.tree.frozen import DICTS, LISTS, aux_of, leaves, stored_at
from holdfast.tree.list_alignment import MISSING
from holdfast.tree.values import NATIVE

if TYPE_CHECKING:
    from holdfast.history.history import History
    from holdfast.history.version import Version


class Blame(msgspec.Struct, frozen=True):
    """A part of the state and the version that last changed it."""

    path: str
    value: Any
    version: Version

    @property
    def step(self) -> str | None:
        return self.version.step

    def __str__(self) -> str:
        by = f" by {self.version.step}" if self.version.step else ""
        return (
            f"{self.path or '(all)'}: version {self.version.number}{by}, {self.version.at:%Y-%m-%d %H:%M:%S}"
        )


def blame(history: History, version: Version, path: str | Sequence[Any]) -> Blame:
    """Return the ancestor of `version` that last changed the value at `path`. The search ends at a pruned version."""
    segments = segments_of(path)
    reader, number = version.reader, version.number
    value = find_part(version, segments)
    while True:
        record = reader.record(number)
        detail = decode(record.detail) if record.detail else {}
        since = max(reader.find(number, segments)[1], detail.get("moved", 0), 1)
        if since < number and reader.run.epoch == 0:
            # The node around the value was stored in that version, and no node has moved since.
            number = since
            continue
        for parent in (record.parent, detail.get("merged")):
            if parent and _has(reader, parent, segments, value):
                number = parent
                break
        else:
            return Blame(paths.show(segments), reader.show(value), history.at(number))


def _has(reader: Reader, number: int, segments: list[Any], value: Any) -> bool:
    try:
        return same(reader.find(number, segments)[0], value)
    except NotFound:
        return False


def blame_parts(history: History, version: Version, path: str | Sequence[Any], depth: int) -> Iterator[Blame]:
    """Yield the blame of each part `depth` levels below a path, or of an empty container or leaf above that level."""
    segments = segments_of(path)
    value = version.get(segments)
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    if not depth or not keys:
        yield blame(history, version, segments)
        return
    for key in keys:
        yield from blame_parts(history, version, [*segments, key], depth - 1)


def bisect(
    history: History,
    check: Callable[[Any], Any],
    *,
    good: Any,
    bad: Any,
    tried: Callable[[Version, bool], Any] | None = None,
) -> Version | None:
    """Return the first version among the ancestors of `bad`, after `good`, whose state fails `check`."""

    def passes(version: Version) -> bool:
        passed = bool(check(version.state))
        if tried is not None:
            tried(version, passed)
        return passed

    line = list(history.ancestors(bad))[::-1]
    low = 0
    if good is not None:
        start = history.at(good).number
        numbers = [version.number for version in line]
        if start not in numbers:
            raise InvalidCall(
                f"version {start} is not an ancestor of version {line[-1].number}: bisect along one line"
            )
        low = numbers.index(start) + 1
    if low == len(line) or passes(line[-1]):
        return None
    high = len(line) - 1
    while low < high:
        middle = (low + high) // 2
        if passes(line[middle]):
            low = middle + 1
        else:
            high = middle
    return line[low]


#: Versions that are searched for the one that changed a path.
_SEARCHED = 500


def explain_conflict(
    error: MergeConflict, reader: Reader, base: int | None, head: Head, metadata: VersionMetadata
) -> MergeConflict:
    """Return the conflict with a message that names the refused step, and the version and step that it conflicts with.
    A version that cannot be read is left out."""
    details: dict[str, Any] = dict(error.details)
    mine = metadata.more.get("address") or metadata.step
    ours = f"step {mine!r}" if mine else "this change"
    if base is not None and base > 0:
        ours += f", made from version {base},"
        details["base_version"] = base
    if mine:
        details["step"] = mine
    theirs = "the head"
    other = None
    writer = _writer(reader, head.version, details.get("path", ""))
    if writer is not None:
        details["version"] = writer.number
        theirs = f"version {writer.number}"
        other = (decode(writer.detail).get("address") if writer.detail else None) or writer.step
        if other:
            details["other_step"] = other
            theirs += f" (step {other!r})"
    details["run"] = reader.run.id
    if mine and other and other.startswith(f"{mine}/"):
        return MergeConflict(_with_own_step(details), **details)
    return MergeConflict(f"{ours} conflicts with {theirs} of run {reader.run.id!r}: {error}", **details)


def _with_own_step(details: dict[str, Any]) -> str:
    """Explain the conflict of a step with a step that it called, where nothing ran concurrently."""
    where = details["path"] or "the root"
    return (
        f"step {details['step']!r} changed {where} in the state that it had taken before it called "
        f"{details['other_step']!r}, which does not see uncommitted changes and changed {where}, too (version "
        f"{details['version']} of run {details['run']!r}): call that step first and take holdfast.state() after it, "
        "pass it values as arguments, or declare how the two changes are merged, merge={…} on the workflow"
    )


def _writer(reader: Reader, newest: VersionRecord, path: str) -> VersionRecord | None:
    """Return the newest version up to this one that changed the value at a path."""
    try:
        segments = paths.parse(path)
        version = newest
        now = _value(reader, version.number, segments)
        for _ in range(_SEARCHED):
            if version.parent < 1:
                return version
            before = _value(reader, version.parent, segments)
            if not same(before, now):
                return version
            version = reader.record(version.parent)
    except HoldfastError:
        return None
    return None


def _value(reader: Reader, number: int, segments: list[Any]) -> Any:
    value = reader.state(number)
    for segment in segments:
        try:
            value = value[segment]
        except (LookupError, TypeError):
            return MISSING
    return value


_NOTHING: Any = object()


def has_moved_nodes(new: Any, old: Any, space: object) -> bool:
    """Return whether a state holds a node stored in `space` in another place than the state that it follows.

    Each level of the state takes three stack frames; a state may have 200 levels."""
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
            return _has_trie_moved(spine.root, other.root if type(other) is Trie else None, was, space)
        return _have_entries_moved(new, was, leaves(spine), space)
    items = old if type(old) in LISTS else []
    if type(spine) is Vector:
        return _has_vector_moved(spine, items, space)
    return _have_items_moved(new, items, leaves(spine), space)


def _have_items_moved(items: list[Any], before: list[Any], long: Any, space: object) -> bool:
    """Compare items with those that were in their places; `long` has the places of long leaves."""
    within = _SHORT if long else NATIVE
    for item, was in zip(items, before, strict=False):
        if item is not was and type(item) not in within and _has_item_moved(item, was, long, space):
            return True
    for item in items[len(before) :]:
        if type(item) not in within and _has_item_moved(item, _NOTHING, long, space):
            return True
    return False


def _have_entries_moved(items: dict[Any, Any], before: dict[Any, Any], long: Any, space: object) -> bool:
    within = _SHORT if long else NATIVE
    for key, item in items.items():
        if type(item) not in within:
            was = before.get(key, _NOTHING)
            if item is not was and _has_item_moved(item, was, long, space):
                return True
    return False


def _has_item_moved(item: Any, was: Any, long: Any, space: object) -> bool:
    if long:
        place = long.get(id(item))
        if place is not None and place[0] is space:
            return True
    return has_moved_nodes(item, was, space)


def _has_trie_moved(new: Any, old: Any, was: dict[Any, Any], space: object) -> bool:
    """Compare two tries. The path to a key depends on its hash alone, so a shared part is in the same place."""
    if new is old or new is None:
        return False
    if new.at is not None and new.at[0] is space:
        return True
    if type(new) is TrieBranch:
        children = old.children if type(old) is TrieBranch else [None] * len(new.children)
        return any(
            _has_trie_moved(child, other, was, space)
            for child, other in zip(new.children, children, strict=True)
            if child is not other
        )
    return _have_entries_moved(new.items, was, new.long, space)


def _has_vector_moved(new: Vector, items: list[Any], space: object) -> bool:
    spine = aux_of(items)
    old = spine if type(spine) is Vector else None
    if old is not None and new.levels is old.levels:
        end, was = new.tail.items, old.tail.items
        if len(end) >= len(was) and all(map(is_, was, end)):
            # The common case: items were appended.
            return _have_items_moved(end[len(was) :], [], new.tail.long, space)
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
            if _have_items_moved(group.items, items[start : start + group.count], group.long, space):
                return True
        start += group.count
    return False


#: Types whose values are always stored within the node around them; all native types are if no leaf is long.
_SHORT = frozenset((type(None), bool, float))
