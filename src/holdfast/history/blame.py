"""Who changed what: blame and bisect.

Where a node is stored says which version wrote it, so blame jumps from one writing of the node around a
path to the one before, and stops where the value at the path changed. It does not jump over a version that
moved parts of the state (see `moves`), since a node may stand elsewhere now than where it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import InvalidCall, NotFound
from holdfast.history.reader import Reader
from holdfast.history.version import segments_of
from holdfast.tree import path as paths
from holdfast.tree.codec import decode
from holdfast.tree.fold import same

if TYPE_CHECKING:
    from holdfast.history.past import Past
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


def blame(history: Past, version: Version, path: str | Sequence[Any]) -> Blame:
    """The ancestor of `version` that last changed the value at `path`; of those before a gap in the history
    nothing is known."""
    segments = segments_of(path)
    reader = version._reader
    try:
        value = reader.find(version.number, segments)[0]
    except NotFound as error:
        raise version._nothing_at(segments) or error from None
    number = version.number
    while True:
        record = reader.record(number)
        facts = decode(record.detail) if record.detail else {}
        since = max(reader.find(number, segments)[1], facts.get("moved", 0), 1)
        if since < number and reader.run.epoch == 0:
            # The node around the value was stored then, and no node has moved since.
            number = since
            continue
        for parent in (record.parent, facts.get("merged")):
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


def blame_parts(history: Past, version: Version, path: str | Sequence[Any], depth: int) -> Iterator[Blame]:
    """Blame for each part so many levels below a path, or higher up where there is nothing below."""
    segments = segments_of(path)
    value = version.get(segments)
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    if not depth or not keys:
        yield blame(history, version, segments)
        return
    for key in keys:
        yield from blame_parts(history, version, [*segments, key], depth - 1)


def bisect(
    history: Past,
    check: Callable[[Any], Any],
    *,
    good: Any,
    bad: Any,
    tried: Callable[[Version, bool], Any] | None = None,
) -> Version | None:
    """The first version among the ancestors of `bad`, after `good`, whose state fails `check`."""

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
                f"version {start} is no ancestor of version {line[-1].number}: bisect along one line"
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
