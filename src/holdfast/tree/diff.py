"""Differences between two frozen trees: as typed changes, as a JSON patch, as a table of fields.

Shared nodes are skipped by identity, so the cost follows the difference. Dicts are compared by key; lists are aligned,
so that an insertion is one change.

Invariant: `changes(old, new)` is empty if and only if the trees are exactly equal (types, order of keys, every bit);
`json_patch(old, new)`, applied to the old document, gives the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec

from holdfast.errors import IncompatibleFormat
from holdfast.tree import path as paths
from holdfast.tree.codec import encode, open_box
from holdfast.tree.containers import changed_keys
from holdfast.tree.fold import same
from holdfast.tree.frozen import DICTS, LISTS, FrozenDict, FrozenList, reveal
from holdfast.tree.list_alignment import Digests, Gap, digest, find_gaps

Path: TypeAlias = tuple[Any, ...]

#: Characters of a value in a summary.
_WIDTH = 60


class Change(msgspec.Struct, frozen=True):
    """One difference. `old` is None for an added value, `new` for a removed one."""

    kind: Literal["added", "removed", "changed", "moved"]
    #: In the new tree; for a removed value, in the old one.
    path: Path
    old: Any = None
    new: Any = None
    #: The path of a moved list item in the old tree.
    source: Path | None = None

    @property
    def where(self) -> str:
        """Return the path as text; empty for the root."""
        return paths.show(self.path)

    @property
    def summary(self) -> str:
        """Return the change in one line."""
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
    """Return the differences between two frozen trees, in the order of the document."""
    try:
        return [] if old is new else list(_compare(old, new, _PathPair((), ())))
    except RecursionError as error:
        raise IncompatibleFormat("values nest deeper than the rest of the stack allows") from error


def json_patch(
    old: Any, new: Any, *, to_json: Callable[[Any], Any] = lambda value: value
) -> list[dict[str, Any]]:
    """Return operations (RFC 6902) that turn the old document into the new one, with values converted by `to_json`.

    The order of keys is ignored, as in JSON. A dict that differs in a key that is not a string is replaced as a whole:
    a pointer cannot distinguish `1` from `"1"`.
    """
    operations = [] if old is new else list(_patch(old, new, ()))
    for operation in operations:
        if "value" in operation:
            operation["value"] = to_json(_visible(operation["value"]))
    return operations


def fields(found: Iterable[Change]) -> dict[str, dict[str, Any]]:
    """Return changes by path: `{"plan.tasks[3].done": {"from": False, "to": True}}`.

    If list items were shifted, a removed value and another change can have the same path: the entry has the values
    before and after.
    """
    table: dict[str, dict[str, Any]] = {}
    for change in found:
        entry = table.setdefault(change.where, {"from": change.old, "to": change.new})
        if change.kind == "removed":
            entry["from"] = change.old
        else:
            entry["to"] = change.new
    return table


class _PathPair(NamedTuple):
    """The paths of a value in both trees; they differ if list items were shifted."""

    old: Path
    new: Path


def _compare(old: Any, new: Any, at: _PathPair) -> Iterator[Change]:
    if type(old) in DICTS and type(new) in DICTS:
        yield from _compare_dicts(old, new, at)
    elif type(old) in LISTS and type(new) in LISTS:
        yield from _compare_lists(old, new, at)
    elif not same(old, new):
        yield Change("changed", at.new, _visible(old), _visible(new))


def _compare_dicts(old: FrozenDict, new: FrozenDict, at: _PathPair) -> Iterator[Change]:
    before, after = _touched(old, new)
    found = False
    for exact, key in before.items():
        if exact not in after:
            found = True
            yield Change("removed", (*at.old, key), old=_visible(old[key]))
        elif old[key] is not (item := new[after[exact]]):
            for change in _compare(old[key], item, _PathPair((*at.old, key), (*at.new, after[exact]))):
                found = True
                yield change
    for exact, key in after.items():
        if exact not in before:
            found = True
            yield Change("added", (*at.new, key), new=_visible(new[key]))
    if not found and list(old) != list(new) and list(_exact(old)) != list(_exact(new)):
        yield Change("changed", at.new, _visible(old), _visible(new))


def _compare_lists(old: FrozenList, new: FrozenList, at: _PathPair) -> Iterator[Change]:
    for kind, was, now in _steps(old, new):
        source, target = (*at.old, was), (*at.new, now)
        if kind == "replaced":
            yield from _compare(old[was], new[now], _PathPair(source, target))
        elif kind == "removed":
            yield Change(kind, source, old=_visible(old[was]))
        elif kind == "added":
            yield Change(kind, target, new=_visible(new[now]))
        else:
            yield Change(kind, target, _visible(old[was]), _visible(new[now]), source)


def _patch(old: Any, new: Any, at: Path) -> Iterator[dict[str, Any]]:
    if type(old) in DICTS and type(new) in DICTS:
        yield from _patch_dict(old, new, at)
    elif type(old) in LISTS and type(new) in LISTS:
        yield from _patch_list(old, new, at)
    elif not same(old, new):
        yield {"op": "replace", "path": paths.pointer(at), "value": new}


def _patch_dict(old: FrozenDict, new: FrozenDict, at: Path) -> list[dict[str, Any]]:
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
            operations += _patch(old[before[exact]], new[key], (*at, key))
        if type(key) is not str and len(operations) > known:
            return [{"op": "replace", "path": paths.pointer(at), "value": new}]
    return operations


def _patch_list(old: FrozenList, new: FrozenList, at: Path) -> Iterator[dict[str, Any]]:
    """Yield removals from the end, then insertions from the start: so each index is valid when it is applied."""
    steps = _steps(old, new)
    gone = [was for kind, was, _ in steps if kind in ("removed", "moved")]
    for was in sorted(gone, reverse=True):
        yield {"op": "remove", "path": paths.pointer((*at, was))}
    for kind, _, now in steps:
        if kind in ("added", "moved"):
            yield {"op": "add", "path": paths.pointer((*at, now)), "value": new[now]}
    for kind, was, now in steps:
        if kind == "replaced":
            yield from _patch(old[was], new[now], (*at, now))


def _visible(value: Any) -> Any:
    return reveal(value, open_box)


def _touched(old: FrozenDict, new: FrozenDict) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """Return the keys of each dict in which they may differ, in order, by exact form."""
    some = changed_keys(old, new)
    if some is None:
        return _exact(old), _exact(new)
    # From the dicts themselves: of two equal keys of different types, `some` may have one.
    touched = set(some)
    return _exact(filter(touched.__contains__, old)), _exact(filter(touched.__contains__, new))


def _exact(keys: Iterable[Any]) -> dict[Any, Any]:
    """Map an exact form of each key to the key: the forms of `1` and `True` differ, those of two NaNs are equal."""
    return {key if type(key) is str else (encode(key),): key for key in keys}


class _Step(NamedTuple):
    """The change of one item of a list; `old` and `new` are its indices, -1 for none."""

    kind: Literal["added", "removed", "moved", "replaced"]
    old: int
    new: int


def _steps(old: FrozenList, new: FrozenList) -> list[_Step]:
    """Return the steps from one list to the other, by rising new index; items without a step are exactly equal."""
    digests: Digests = {}
    gaps = find_gaps(old, new, digests)
    moved = _moves(old, new, gaps, digests)
    sources = set(moved.values())
    steps: list[_Step] = []
    for gap in gaps:
        rest = iter([index for index in gap.old if index not in sources])
        for index in gap.new:
            if index in moved:
                steps.append(_Step("moved", moved[index], index))
            else:
                source = next(rest, -1)
                steps.append(_Step("added" if source < 0 else "replaced", source, index))
        steps += [_Step("removed", index, -1) for index in rest]
    return steps


def _moves(old: FrozenList, new: FrozenList, gaps: list[Gap], digests: Digests) -> dict[int, int]:
    """Return the new and old indices of items that left one gap and are in another."""
    gone = [index for gap in gaps for index in gap.old]
    come = [index for gap in gaps for index in gap.new]
    if len(gaps) < 2 or not gone or not come:
        return {}
    waiting: dict[bytes, list[int]] = {}
    for index in reversed(gone):
        waiting.setdefault(digest(old[index], digests), []).append(index)
    moved: dict[int, int] = {}
    for index in come:
        candidates = waiting.get(digest(new[index], digests))
        if candidates:
            moved[index] = candidates.pop()
    return moved


def _short(value: Any) -> str:
    text = ""
    for piece in _pieces(value):
        text += piece
        if len(text) > _WIDTH:
            return text[: _WIDTH - 1] + "…"
    return text


def _pieces(value: Any) -> Iterator[str]:
    """Yield the `repr` of a value in pieces: of a large one, only the start is used."""
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
        yield paths.safe_repr(value).replace("\n", " ")
