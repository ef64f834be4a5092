"""Large values truncated to a bounded size, in two forms: nodes for the page, plain JSON for agents.

Both forms open a container for so many levels and entries, and a text for so many characters, from a start on.

Invariant: the size of the result, and the work, are bounded however large the value is, and nothing is left out
without a mark: a node has `more`, JSON has `cuts` that name the place, how much is shown, and of how much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple, NotRequired, TypedDict, TypeVar

import msgspec

from holdfast.errors import HoldfastError
from holdfast.operator_view.text import as_json, brief, dumps
from holdfast.tree import path as paths
from holdfast.tree.artifact import Artifact
from holdfast.tree.portable import MARK

T = TypeVar("T")


class TruncationLimits(NamedTuple):
    """How much of a value is shown: levels, entries of one container, characters of one text."""

    levels: int
    entries: int
    text: int


#: For the result of a step or a run, as a node.
_RESULT = TruncationLimits(3, 50, 10_000)
#: Nodes of one value; beyond them, containers are only counted.
_NODES = 5000
#: Characters of all texts of one value; beyond them, texts have at most `_SHORT`.
_ALL_TEXT = 2_000_000
_SHORT = 100

#: For one row of a list, as JSON.
ROW = TruncationLimits(4, 12, 200)
#: For an error, as JSON.
ERROR = TruncationLimits(4, 12, 2000)
#: For a single value, as JSON: the first that fits.
_FITTING = (
    TruncationLimits(12, 200, 8000),
    TruncationLimits(8, 50, 2000),
    TruncationLimits(6, 30, 500),
    TruncationLimits(4, 20, 200),
    TruncationLimits(3, 12, 100),
    TruncationLimits(2, 12, 80),
    TruncationLimits(1, 12, 60),
)
#: JSON characters of a single value, and of the rows of a page.
ROOM = 16_000
#: Characters of a key in JSON.
_KEY = 200
#: Cuts that are listed.
_CUTS = 20


class ValueEntry(TypedDict):
    """An entry of a container. `path` is its path in the state; null if the key cannot be written in a path."""

    key: Any
    label: str
    path: str | None
    node: ValueNode


class ValueNode(TypedDict):
    """A value, truncated.

    `kind` is dict, list, str, int, float, bool, none, bytes, artifact, or the name of another type. `count` is the
    number of entries, characters or bytes. A container has the requested `entries`, and in `more` how many follow;
    without `entries` it was not opened. `more` of a text is how many characters follow `value`."""

    kind: str
    value: NotRequired[Any]
    count: NotRequired[int]
    entries: NotRequired[list[ValueEntry]]
    more: NotRequired[int]


def value_node(
    value: Any, limits: TruncationLimits, segments: Sequence[Any] = (), *, start: int = 0
) -> ValueNode:
    """Return a value as a node. `segments` is its path in the state. `start` applies to the value itself only."""
    return _NodeBuilder(limits).build(value, paths.show(segments), limits.levels, start)


def result_value(value: Any, *, cut: bool) -> Any:
    """Return the result of a step or a run: as JSON, or truncated as a node."""
    return value_node(value, _RESULT) if cut else as_json(value)


def _items(value: Any, start: int, count: int) -> tuple[str, list[tuple[Any, Any]]]:
    """Return the kind of a container and some of its entries, by key or index."""
    kind, items = ("dict", value.items()) if isinstance(value, dict) else ("list", enumerate(value))
    return kind, list(islice(items, start, start + count))


class _NodeBuilder:
    """Builds the nodes of one value, within one budget for all of them."""

    def __init__(self, limits: TruncationLimits) -> None:
        self._limits = limits
        self._nodes = _NODES
        self._text = _ALL_TEXT

    def build(self, value: Any, at: str | None, levels: int, start: int = 0) -> ValueNode:
        self._nodes -= 1
        if isinstance(value, dict | list):
            return self._container(value, at, levels, start)
        if isinstance(value, str):
            shown = value[start : start + self._allowed_text()]
            self._text -= len(shown)
            more = max(0, len(value) - start - len(shown))
            return {"kind": "str", "value": as_json(shown), "count": len(value), "more": more}
        if isinstance(value, Artifact):
            about = {"digest": value.digest, "size": value.size, "name": value.name}
            return {"kind": "artifact", "value": about, "count": value.size}
        if isinstance(value, bytes):
            return {"kind": "bytes", "count": len(value)}
        kind = "none" if value is None else type(value).__name__
        written = as_json(value)
        if value is None or isinstance(value, bool | int | float):
            return {"kind": kind, "value": written}
        if len(dumps(written)) > self._allowed_text():
            return {"kind": kind, "value": brief(value, _SHORT), "more": 1}
        return {"kind": kind, "value": written}

    def _container(self, value: Any, at: str | None, levels: int, start: int) -> ValueNode:
        count = len(value)
        if levels <= 0 or self._nodes <= 0:
            return {"kind": "dict" if isinstance(value, dict) else "list", "count": count}
        kind, items = _items(value, start, self._limits.entries)
        entries: list[ValueEntry] = []
        for key, item in items:
            if self._nodes <= 0:
                break
            path = _entry_path(at, key)
            entries.append(
                {
                    "key": as_json(key),
                    "label": key if isinstance(key, str) else brief(key, _SHORT),
                    "path": path,
                    "node": self.build(item, path, levels - 1),
                }
            )
        return {
            "kind": kind,
            "count": count,
            "entries": entries,
            "more": max(0, count - start - len(entries)),
        }

    def _allowed_text(self) -> int:
        return self._limits.text if self._text > 0 else min(self._limits.text, _SHORT)


def _entry_path(parent: str | None, key: Any) -> str | None:
    """Return the path of an entry in the state; None if it cannot be written."""
    if parent is None:
        return None
    shown = paths.show([key])
    try:
        if paths.parse(shown) != [key]:
            return None
    except HoldfastError:
        return None
    return parent + ("" if not parent or shown.startswith("[") else ".") + shown


class TruncatedPlace(msgspec.Struct, frozen=True):
    """A place in a value that is not shown completely."""

    path: str
    #: text, list, dict, or another type.
    kind: str
    shown: int
    of: int
    #: The first item, entry or character that is shown.
    start: int = 0

    def describe(self, how: str) -> str:
        """Return it as a line of text; `how` is a call that shows more of it."""
        unit = {"text": "characters", "list": "items", "dict": "entries"}.get(self.kind, "characters")
        after = f" from {self.start} on" if self.start else ""
        return f"cut: {self.path or 'all'}: {self.shown} of {self.of} {unit}{after}; {how}"


class TruncatedValue(msgspec.Struct, frozen=True):
    """The part of a value that is shown, as JSON."""

    value: Any
    #: The outermost ones.
    cuts: list[TruncatedPlace]
    #: How many more there are.
    more: int = 0


def truncate(
    value: Any, limits: TruncationLimits, *, start: int = 0, at: Sequence[Any] = (), written: bool = False
) -> TruncatedValue:
    """Return a value as JSON within limits. `start` applies to the outermost text or container, `at` is the path of the
    value, `written` says that it is in the portable form already."""
    return _JsonBuilder(limits, None, written).build(value, list(at), start)


def fit(
    value: Any, room: int = ROOM, *, start: int = 0, at: Sequence[Any] = (), written: bool = False
) -> TruncatedValue:
    """Return as much of a value as fits, preferring a little of everything to all of its first part."""
    for limits in _FITTING[:-1]:
        with suppress(_NoRoom):
            return _JsonBuilder(limits, room, written).build(value, list(at), start)
    return truncate(value, _FITTING[-1], start=start, at=at, written=written)


def truncate_row(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record as one row of a list."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else truncate(value, ROW).value
        for name, value in record.items()
    }


def fill_page(found: Iterable[T], record: Callable[[T], Any], limit: int) -> tuple[list[T], list[Any], bool]:
    """Return as many items as fit, at most `limit` and at least one, their records, and whether more follow."""
    items: list[T] = []
    records: list[Any] = []
    left = ROOM
    for each in found:
        if len(items) == limit:
            return items, records, True
        made = record(each)
        left -= len(dumps(made))
        if items and left < 0:
            return items, records, True
        items.append(each)
        records.append(made)
    return items, records, False


class _NoRoom(Exception):
    """The value does not fit within these limits."""


class _JsonBuilder:
    """Builds the JSON of one value, and lists where it is cut."""

    def __init__(self, limits: TruncationLimits, room: int | None, written: bool) -> None:
        self._limits = limits
        self._written = written
        self._left = room
        self._cuts: list[tuple[int, TruncatedPlace]] = []

    def build(self, value: Any, at: list[Any], start: int) -> TruncatedValue:
        shown = self._show(value, at, 0, start)
        cuts = [each for _, each in sorted(self._cuts, key=itemgetter(0))]
        return TruncatedValue(shown, cuts[:_CUTS], max(0, len(cuts) - _CUTS))

    def _show(self, value: Any, path: list[Any], level: int, start: int = 0) -> Any:
        if isinstance(value, str):
            end = start + self._limits.text
            if start or len(value) > end:
                self._add_cut(path, "text", len(value[start:end]), len(value), start)
                value = value[start:end] + ("…" if len(value) > end else "")
            return self._spend(as_json(value))
        if isinstance(value, dict | list):
            return self._container(value, path, level, start)
        return self._leaf(value, path)

    def _container(self, value: Any, path: list[Any], level: int, start: int) -> Any:
        if level >= self._limits.levels and value:
            kind = "dict" if isinstance(value, dict) else "list"
            self._add_cut(path, kind, 0, len(value))
            return self._spend({"$cut": kind, "of": len(value)})
        kind, items = _items(value, start, self._limits.entries)
        if len(items) < len(value):
            self._add_cut(path, kind, len(items), len(value), start)
        shown = []
        for key, item in items:
            self._spend(key)
            path.append(key)
            shown.append(self._show(item, path, level + 1))
            path.pop()
        self._spend("")
        if kind == "list":
            return shown
        if (MARK in value and not self._written) or not all(type(key) is str for key, _ in items):
            pairs = [[self._leaf(key, path), item] for (key, _), item in zip(items, shown, strict=True)]
            return {MARK: "dict", "value": pairs}
        return {
            self._key(key, number): item
            for number, ((key, _), item) in enumerate(zip(items, shown, strict=True), start)
        }

    def _key(self, key: str, number: int) -> str:
        if len(key) > _KEY:
            # With the number of the entry: two long keys may start alike.
            key = f"{key[:_KEY]}… (entry {number}, {len(key)} characters)"
        made = as_json(key)
        return made if isinstance(made, str) else dumps(made)

    def _leaf(self, value: Any, path: list[Any]) -> Any:
        if isinstance(value, str) and len(value) > _KEY:
            value = f"{value[:_KEY]}…"
        made = as_json(value)
        if value is None or isinstance(value, bool | float):
            return self._spend(made)
        size = len(dumps(made))
        if size > max(self._limits.text, _KEY):
            # A marked value cannot be cut in the middle: show one line of text instead.
            line = brief(value, self._limits.text)
            self._add_cut(path, type(value).__name__, len(line), size)
            made = as_json(line)
        return self._spend(made)

    def _add_cut(self, path: list[Any], kind: str, shown: int, of: int, start: int = 0) -> None:
        self._cuts.append((len(path), TruncatedPlace(paths.show(path), kind, shown, of, start)))

    def _spend(self, made: Any) -> Any:
        if self._left is not None:
            self._left -= 4 + (len(dumps(made)) if not isinstance(made, str) else len(made))
            if self._left < 0:
                raise _NoRoom
        return made
