"""Lookup of the checkpoints of a run: from a checkpoint's id to a version.

A version's note names its checkpoint, so that a list of versions is enough and no state is read. LangGraph's
ids increase with time, as version numbers do: while a run has a single timeline, a few reads find an id. A
star in the note marks a run whose ids do not increase; in that case, and if there are several timelines, all
notes are read, once.

Invariant: of several versions of one checkpoint, the newest is returned.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple

from holdfast import History, Version
from holdfast.errors import NotFound

_NOTE = re.compile(r"(?:checkpoint|writes)(?P<star>\*?) (?P<id>\S+)(?: late for (?P<late>\S+)| .*)?")
_NOBODY = "-"
_PAGE = 100
#: Writes that are at most this many versions late are stored in a later version, and are searched there.
NEAR = 8
#: A guess this close to a known version is off by a few versions at most, which are read together.
_CLOSE = 64
_LOOK = NEAR + 8
#: Maximum number of checkpoints of a run whose location is remembered.
_REMEMBERED = 10_000


class Said(NamedTuple):
    """Content of a version's note: the checkpoint, and whether ids have been increasing up to this version."""

    checkpoint: str | None
    growing: bool
    #: Another checkpoint, whose late writes are stored in this version.
    late: str | None = None


class Found(NamedTuple):
    """A checkpoint: its newest version, and later versions that hold its late writes."""

    version: Version
    late: tuple[Version, ...] = ()


def note(what: str, checkpoint: str | None, *, growing: bool, more: str = "") -> str:
    """Return the note of a version."""
    return f"{what}{'' if growing else '*'} {checkpoint or _NOBODY}{more}"


def said(version: Version) -> Said:
    """Return the checkpoint of a version; from its state, if the note is not from this module."""
    match = _NOTE.fullmatch(version.note or "")
    if match is None:
        found = part(version, "checkpoint", "id")
        return Said(found if isinstance(found, str) else None, False)
    return Said(None if match["id"] == _NOBODY else match["id"], not match["star"], match["late"])


def stream(history: History) -> Iterator[tuple[str, Found]]:
    """Yield the checkpoints of a run, the highest id first: a page at a time, if ids increase with versions."""
    try:
        growing = said(history.head).growing and len(history.timelines()) == 1
    except NotFound:
        return
    if growing:
        yield from _each(history)
    else:
        yield from sorted(_each(history), key=itemgetter(0), reverse=True)


def _each(history: History) -> Iterator[tuple[str, Found]]:
    """Yield the newest version of each checkpoint, newest first."""
    seen: set[str] = set()
    late: dict[str, list[Version]] = {}
    for version in versions(history):
        about = said(version)
        if about.late is not None:
            late.setdefault(about.late, []).append(version)
        if about.checkpoint is not None and about.checkpoint not in seen:
            seen.add(about.checkpoint)
            yield about.checkpoint, Found(version, tuple(late.pop(about.checkpoint, ())))


def versions(history: History, *, until: int = 0) -> Iterator[Version]:
    """Yield all versions above a number, newest first; end early if the run is deleted meanwhile."""
    before: int | None = None
    while True:
        try:
            page = history.versions(before=before, limit=_PAGE)
        except NotFound:
            return
        for version in page:
            if version.number <= until:
                return
            yield version
        if len(page) < _PAGE:
            return
        before = page[-1].number


def part(version: Version, *path: str) -> Any:
    """Return a private copy of a part of a version's state; None if it does not exist."""
    try:
        return version.copy(path)
    except NotFound:
        return None


@dataclass(slots=True)
class _Known:
    """Cache of a run's checkpoint locations, valid for the run as of the version `seen`."""

    seen: Version | None = None
    #: Known locations of checkpoints, sorted; a checkpoint may have newer versions right after its location.
    names: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    #: Whether the oldest version, the lower bound of guesses, has been read.
    begun: bool = False
    #: The newest version of each checkpoint, up to version `upto`.
    newest: dict[str, int] = field(default_factory=dict)
    upto: int = 0

    def note(self, checkpoint: str | None, version: Version) -> None:
        """Record that a version holds a checkpoint."""
        if checkpoint is None or self.seen is None or not self.seen.is_comparable_to(version):
            return
        if checkpoint not in self.numbers:
            if len(self.names) >= _REMEMBERED:
                self.names.clear()
                self.numbers.clear()
            insort(self.names, checkpoint)
        self.numbers[checkpoint] = max(version.number, self.numbers.get(checkpoint, 0))


class Places:
    """Locations of the checkpoints of one run, found on demand. Safe to use from several threads."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._lock = threading.Lock()
        self._known = _Known()

    def remember(self, checkpoint: str, version: Version) -> None:
        """Record that a version holds a checkpoint."""
        with self._lock:
            self._see(version, checkpoint)

    def find(self, checkpoint: str, head: Version) -> Found | None:
        """Return the newest version of a checkpoint, and its late writes; `head` is the run's current head."""
        about = said(head)
        if about.checkpoint == checkpoint and about.growing:
            return Found(head)
        with self._lock:
            self._see(head, about.checkpoint)
        if about.growing and len(self._history.timelines()) == 1:
            return self._search(checkpoint, head)
        return self._look_up(checkpoint)

    # Runs whose ids increase

    def _search(self, checkpoint: str, head: Version) -> Found | None:
        """Find a checkpoint by interpolation search: guess its location, read around it, and guess again."""
        if not self._known.begun:
            self._learn(self._history.versions(before=2, limit=1))
            self._known.begun = True
        low, high, first, last = self._between(checkpoint)
        high = min(high, head.number)
        left, stretch = 2 * (high - low) + 1, 1
        while low <= high:
            # If the last read left more than half of the range, guess further from the nearer end: that
            # excludes more, and ids may increase unevenly.
            stretch, left = 2 * stretch if high - low > left // 2 else 1, high - low
            guess = _guess(low, high, first, last, checkpoint, stretch)
            # Far from the target, a read only improves the next guess.
            above, wide = (NEAR + 4, _LOOK) if min(guess - low, high - guess) <= _CLOSE else (0, 2)
            top = min(guess + above, head.number)
            page = self._history.versions(before=top + 1, limit=wide)
            names = self._learn(page)
            if checkpoint in names:
                return self._row(checkpoint, page, top, head)
            if not page:
                low = top + 1
            elif names[0] < checkpoint:
                low, first = top + 1, names[0]
            elif names[-1] > checkpoint and len(page) == wide:
                high, last = page[-1].number - 1, names[-1]
            else:
                return None
        return None

    def _row(self, checkpoint: str, page: list[Version], top: int, head: Version) -> Found | None:
        """Return the last of the consecutive versions of a checkpoint, and its late writes soon after; start
        from a page that contains one of them. Return None if they were pruned meanwhile."""
        reach = NEAR + 4
        while True:
            told = [(version, said(version)) for version in page]
            own = (place for place, (_, about) in enumerate(told) if about.checkpoint == checkpoint)
            newest = next(own, None)
            if newest is None:
                return None
            number = page[newest].number
            if top >= min(number + NEAR + 1, head.number):
                return Found(page[newest], tuple(v for v, about in told[:newest] if about.late == checkpoint))
            top = min(number + reach, head.number)
            page = self._history.versions(before=top + 1, limit=top - number + 1)
            reach *= 2

    def _between(self, checkpoint: str) -> tuple[int, int, str, str]:
        """Return the bounds of a checkpoint's version number, and the checkpoints at the bounds, from the
        cache."""
        with self._lock:
            names, numbers = self._known.names, self._known.numbers
            place = bisect_left(names, checkpoint)
            first = names[place - 1] if place else ""
            if place == len(names):
                # Greater than the head's id: it does not exist.
                return 1, 0, first, ""
            last = names[place]
            if last == checkpoint:
                return numbers[last], numbers[last], first, last
            return numbers[first] + 1 if first else 1, numbers[last] - 1, first, last

    def _learn(self, page: list[Version]) -> list[str]:
        """Return the checkpoints of some versions, and cache them."""
        found = [said(version).checkpoint for version in page]
        with self._lock:
            for name, version in zip(found, page, strict=True):
                self._known.note(name, version)
        return [name or "" for name in found]

    # Runs whose ids do not increase

    def _look_up(self, checkpoint: str) -> Found | None:
        """Find a checkpoint by reading all notes, once, and later only those of newer versions."""
        while True:
            number = self._newest_of(checkpoint)
            if number is None:
                return None
            try:
                version = self._history.at(number)
            except NotFound:
                # Pruned since: an older version of it may still exist.
                with self._lock:
                    self._known = _Known()
                continue
            page = self._history.versions(before=number + NEAR + 2, limit=NEAR + 1)
            near = (other for other in page if other.number > number)
            return Found(version, tuple(other for other in near if said(other).late == checkpoint))

    def _newest_of(self, checkpoint: str) -> int | None:
        known = self._known
        fresh: dict[str, int] = {}
        upto = known.upto
        for version in versions(self._history, until=upto):
            upto = max(upto, version.number)
            name = said(version).checkpoint
            if name is not None:
                fresh.setdefault(name, version.number)
        with self._lock:
            if upto > known.upto:
                known.newest.update(fresh)
                known.upto = upto
            return known.newest.get(checkpoint)

    def _see(self, version: Version, checkpoint: str | None) -> None:
        """Record that a version was read; drop the cache if it is of a different state of the run."""
        known = self._known.seen
        if known is None or not known.is_comparable_to(version):
            self._known = _Known()
        self._known.seen = version
        self._known.note(checkpoint, version)


def _guess(low: int, high: int, first: str, last: str, wanted: str, stretch: int) -> int:
    """Return the probable location of a checkpoint if ids increase evenly; multiply the distance from the
    nearer end by `stretch`, at most up to the middle."""
    middle = (low + high) // 2
    try:
        begin, end, at = (int(name.replace("-", "")[:15], 16) for name in (first, last, wanted))
    except ValueError:
        return middle
    if not begin <= at <= end or begin == end:
        return middle
    guess = low + (high - low) * (at - begin) // (end - begin)
    if guess < middle:
        return min(low + (guess - low + 1) * stretch - 1, middle)
    return max(high - (high - guess + 1) * stretch + 1, middle)
