"""Large values cut to what an agent can read, with where to look deeper; long lists cut into pages.

Invariant: what comes out is JSON of a bounded size whatever goes in, the cost follows what is shown and not the size of
the value, and nothing is left out without being told: `cuts` names the place, how much is shown, and of how much.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple, TypeVar

import msgspec

from holdfast.desk.words import as_json, brief, dumps
from holdfast.tree import path as paths
from holdfast.tree.portable import MARK


class Limits(NamedTuple):
    """How much is shown: levels, entries of one container, signs of one text."""

    levels: int
    entries: int
    text: int


#: For what stands in the row of a list.
ROW = Limits(4, 12, 200)
#: For an error.
ERROR = Limits(4, 12, 2000)
#: For a value that is looked at, the first that fits.
_LOOK = (
    Limits(12, 200, 8000),
    Limits(8, 50, 2000),
    Limits(6, 30, 500),
    Limits(4, 20, 200),
    Limits(3, 12, 100),
    Limits(2, 12, 80),
    Limits(1, 12, 60),
)
#: JSON signs of a value that is looked at, and of the rows of a page.
ROOM = 16_000
#: Signs of a key.
_KEY = 200
#: Places that are named where something was cut.
_CUTS = 20

T = TypeVar("T")


class Cut(msgspec.Struct, frozen=True):
    """A place where not all is shown."""

    path: str
    #: text, list, dict, or another type.
    kind: str
    shown: int
    of: int
    #: From which item, entry or sign on.
    start: int = 0

    def told(self, how: str) -> str:
        """In words; `how` is a call that shows more of it."""
        unit = {"text": "characters", "list": "items", "dict": "entries"}.get(self.kind, "characters")
        after = f" from {self.start} on" if self.start else ""
        return f"cut: {self.path or 'all'}: {self.shown} of {self.of} {unit}{after}; {how}"


class Shown(msgspec.Struct, frozen=True):
    """What is shown of a value, as JSON."""

    value: Any
    #: Those nearest to the outside.
    cuts: list[Cut]
    #: How many more places are cut.
    more: int = 0


def cut(
    value: Any, limits: Limits, *, start: int = 0, at: Sequence[Any] = (), written: bool = False
) -> Shown:
    """A value within limits. Of the outermost text or container, what stands before `start` is left out; `at` is where
    the value stands; `written` says that it is in the portable form already."""
    return _Cutter(limits, None, written).whole(value, list(at), start)


def fit(
    value: Any, room: int = ROOM, *, start: int = 0, at: Sequence[Any] = (), written: bool = False
) -> Shown:
    """As much of a value as fits, rather a little of everything than all of its beginning."""
    for limits in _LOOK[:-1]:
        with suppress(_Full):
            return _Cutter(limits, room, written).whole(value, list(at), start)
    return cut(value, _LOOK[-1], start=start, at=at, written=written)


def row(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as the row of a list."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else cut(value, ROW).value
        for name, value in record.items()
    }


def page(found: Iterable[T], record: Callable[[T], Any], limit: int) -> tuple[list[T], list[Any], bool]:
    """As many rows as are wanted and fit, at least one: what they are of, their records, and whether there are more."""
    rows: list[T] = []
    records: list[Any] = []
    left = ROOM
    for each in found:
        if len(rows) == limit:
            return rows, records, True
        made = record(each)
        left -= len(dumps(made))
        if rows and left < 0:
            return rows, records, True
        rows.append(each)
        records.append(made)
    return rows, records, False


class _Full(Exception):
    """There is no more room."""


class _Cutter:
    def __init__(self, limits: Limits, room: int | None, written: bool) -> None:
        self._limits = limits
        self._written = written
        self._left = room
        self._cuts: list[tuple[int, Cut]] = []

    def whole(self, value: Any, at: list[Any], start: int) -> Shown:
        shown = self.show(value, at, 0, start)
        cuts = [each for _, each in sorted(self._cuts, key=itemgetter(0))]
        return Shown(shown, cuts[:_CUTS], max(0, len(cuts) - _CUTS))

    def show(self, value: Any, path: list[Any], level: int, start: int = 0) -> Any:
        if isinstance(value, str):
            return self._text(value, path, start)
        if isinstance(value, dict | list):
            return self._container(value, path, level, start)
        return self._leaf(value, path)

    def _text(self, value: str, path: list[Any], start: int) -> Any:
        room = self._limits.text
        end = start + room
        if start or len(value) > end:
            self._note(path, "text", len(value[start:end]), len(value), start)
            value = value[start:end] + ("…" if len(value) > end else "")
        return self._spend(as_json(value))

    def _container(self, value: Any, path: list[Any], level: int, start: int) -> Any:
        kind = "dict" if isinstance(value, dict) else "list"
        if level >= self._limits.levels and value:
            self._note(path, kind, 0, len(value))
            return self._spend({"$cut": kind, "of": len(value)})
        items = value.items() if isinstance(value, dict) else enumerate(value)
        listed = list(islice(items, start, start + self._limits.entries))
        if len(listed) < len(value):
            self._note(path, kind, len(listed), len(value), start)
        shown = []
        for key, item in listed:
            self._spend(key)
            path.append(key)
            shown.append(self.show(item, path, level + 1))
            path.pop()
        self._spend("")
        if kind == "list":
            return shown
        if (MARK in value and not self._written) or not all(type(key) is str for key, _ in listed):
            pairs = [[self._leaf(key, path), item] for (key, _), item in zip(listed, shown, strict=True)]
            return {MARK: "dict", "value": pairs}
        return {
            self._key(key, number): item
            for number, ((key, _), item) in enumerate(zip(listed, shown, strict=True), start)
        }

    def _key(self, key: str, number: int) -> str:
        if len(key) > _KEY:
            # With its number, or two that begin alike would be one.
            key = f"{key[:_KEY]}… (entry {number}, {len(key)} characters)"
        made = as_json(key)
        return made if isinstance(made, str) else dumps(made)

    def _leaf(self, value: Any, path: list[Any]) -> Any:
        if isinstance(value, str) and len(value) > _KEY:
            value = f"{value[:_KEY]}…"
        made = as_json(value)
        if value is None or isinstance(value, bool | float):
            return self._spend(made)
        written = len(dumps(made))
        if written > max(self._limits.text, _KEY):
            # Marked values cannot be cut in the middle; a line of it can be shown.
            told = brief(value, self._limits.text)
            self._note(path, type(value).__name__, len(told), written)
            made = as_json(told)
        return self._spend(made)

    def _note(self, path: list[Any], kind: str, shown: int, of: int, start: int = 0) -> None:
        self._cuts.append((len(path), Cut(paths.show(path), kind, shown, of, start)))

    def _spend(self, made: Any) -> Any:
        if self._left is not None:
            self._left -= 4 + (len(dumps(made)) if not isinstance(made, str) else len(made))
            if self._left < 0:
                raise _Full
        return made
