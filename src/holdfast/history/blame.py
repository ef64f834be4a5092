"""Who changed what: blame and bisect.

Where a node is stored says which version wrote it, so blame jumps from one writing of the node around a
path to the one before, and stops where the value at the path changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from holdfast.errors import InvalidCall, NotFound
from holdfast.history.reader import Reader
from holdfast.tree import path as paths
from holdfast.tree.codec import decode
from holdfast.tree.fold import same

if TYPE_CHECKING:
    from holdfast.history.history import History
    from holdfast.history.version import Version


@dataclass(frozen=True, slots=True)
class Blame:
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
    """The ancestor of `version` that last changed the value at `path`."""
    segments = paths.parse(path)
    reader = version._reader
    value = reader.find(version.number, segments)[0]
    number = _written(history, reader, version.number, segments)
    while True:
        record = reader.record(number)
        merged = decode(record.detail).get("merged") if record.detail else None
        for parent in (record.parent, merged):
            if parent and _has(reader, parent, segments, value):
                number = _written(history, reader, parent, segments)
                break
        else:
            return Blame(paths.show(segments), reader.show(value), history.at(number))


def _has(reader: Reader, number: int, segments: list[Any], value: Any) -> bool:
    try:
        return same(reader.find(number, segments)[0], value)
    except NotFound:
        return False


def _written(history: History, reader: Reader, number: int, segments: list[Any]) -> int:
    """The oldest ancestor that is known, from where the node is stored, to have the same value."""
    stored = max(reader.find(number, segments)[1], 1)
    return stored if stored != number and history.is_ancestor(stored, number) else number


def blame_parts(history: History, version: Version, path: str | Sequence[Any] = "") -> Iterator[Blame]:
    """Blame for each entry or item directly below a path."""
    segments = paths.parse(path)
    value = version.get(segments)
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield blame(history, version, [*segments, key])


def bisect(history: History, check: Callable[[Any], Any], *, good: Any, bad: Any) -> Version | None:
    """The first version among the ancestors of `bad`, after `good`, whose state fails `check`."""
    line = list(history.ancestors(bad))[::-1]
    low = 0
    if good is not None:
        start = history.at(good).number
        numbers = [version.number for version in line]
        if start not in numbers:
            raise InvalidCall(
                f"version {start} is no ancestor of version {line[-1].number}: bisect along one line"
            )
        low = numbers.index(start) + 1
    if low == len(line) or check(line[-1].state):
        return None
    high = len(line) - 1
    while low < high:
        middle = (low + high) // 2
        if check(line[middle].state):
            low = middle + 1
        else:
            high = middle
    return line[low]
