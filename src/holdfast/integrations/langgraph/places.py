"""Where the checkpoints of a run are: from a checkpoint's id to a version.

A version's note says which checkpoint its state is, so that a list of versions tells without reading any state. Ids of
LangGraph grow with time, as versions do: while a run has a single timeline, one is found in a few looks. A star in
the note says that ids of this run do not grow; then, and where there are timelines, all notes are read, once.

Invariant: of several versions of one checkpoint, the newest is given.
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
#: Writes that come at most so many versions late stand on the way, and are looked for there.
NEAR = 8
#: A guess this close to what is known is probably right but for a few versions, which are looked at together.
_CLOSE = 64
_LOOK = NEAR + 8
#: Checkpoints of a run whose places are remembered.
_REMEMBERED = 10_000


class Said(NamedTuple):
    """What a version's note says: the checkpoint, and whether ids have been growing up to here."""

    checkpoint: str | None
    growing: bool
    #: Another checkpoint, whose writes came late and stand here.
    late: str | None = None


class Found(NamedTuple):
    """A checkpoint: its newest version, and the versions after it where writes stand that came late."""

    version: Version
    late: tuple[Version, ...] = ()


def note(what: str, checkpoint: str | None, *, growing: bool, more: str = "") -> str:
    """The note of a version."""
    return f"{what}{'' if growing else '*'} {checkpoint or _NOBODY}{more}"


def said(version: Version) -> Said:
    """Which checkpoint a version is; from its state, if somebody else has written it."""
    match = _NOTE.fullmatch(version.note or "")
    if match is None:
        found = part(version, "checkpoint", "id")
        return Said(found if isinstance(found, str) else None, False)
    return Said(None if match["id"] == _NOBODY else match["id"], not match["star"], match["late"])


def stream(history: History) -> Iterator[tuple[str, Found]]:
    """The checkpoints of a run, the highest id first: a page at a time, if ids grow with versions."""
    try:
        growing = said(history.head).growing and len(history.timelines()) == 1
    except NotFound:
        return
    if growing:
        yield from _each(history)
    else:
        yield from sorted(_each(history), key=itemgetter(0), reverse=True)


def _each(history: History) -> Iterator[tuple[str, Found]]:
    """The newest version of each checkpoint, newest first."""
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
    """All versions above a number, newest first; ends early if the run is deleted meanwhile."""
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
    """A part of a version's state as a private copy; None if it has none."""
    try:
        return version.copy(path)
    except NotFound:
        return None


@dataclass(slots=True)
class _Known:
    """What is remembered of a run as it was when a version of it was read."""

    seen: Version | None = None
    #: Where checkpoints were seen, in order; each may have newer versions right after that.
    names: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    #: Has the oldest been looked at, from which guesses begin?
    begun: bool = False
    #: The newest version of each checkpoint, up to a version.
    newest: dict[str, int] = field(default_factory=dict)
    upto: int = 0

    def note(self, checkpoint: str | None, version: Version) -> None:
        """A checkpoint was seen in a version."""
        if checkpoint is None or self.seen is None or not self.seen.is_beside(version):
            return
        if checkpoint not in self.numbers:
            if len(self.names) >= _REMEMBERED:
                self.names.clear()
                self.numbers.clear()
            insort(self.names, checkpoint)
        self.numbers[checkpoint] = max(version.number, self.numbers.get(checkpoint, 0))


class Places:
    """Where the checkpoints of one run are, as far as it was needed. Safe to use from many threads."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._lock = threading.Lock()
        self._known = _Known()

    def remember(self, checkpoint: str, version: Version) -> None:
        """A checkpoint was seen in a version."""
        with self._lock:
            self._see(version, checkpoint)

    def find(self, checkpoint: str, head: Version) -> Found | None:
        """The newest version of a checkpoint, and what came late for it; `head` is the run's, read just now."""
        about = said(head)
        if about.checkpoint == checkpoint and about.growing:
            return Found(head)
        with self._lock:
            self._see(head, about.checkpoint)
        if about.growing and len(self._history.timelines()) == 1:
            return self._search(checkpoint, head)
        return self._look_up(checkpoint)

    # Where ids grow

    def _search(self, checkpoint: str, head: Version) -> Found | None:
        """Guess where it should be, look around there, and guess again from what was seen."""
        if not self._known.begun:
            self._learn(self._history.versions(before=2, limit=1))
            self._known.begun = True
        low, high, first, last = self._between(checkpoint)
        high = min(high, head.number)
        left, stretch = 2 * (high - low) + 1, 1
        while low <= high:
            # If the last look left more than half of it, this one is further away from the near end: there is more
            # to leave out beyond, and ids may grow by leaps.
            stretch, left = 2 * stretch if high - low > left // 2 else 1, high - low
            guess = _guess(low, high, first, last, checkpoint, stretch)
            # From afar, a look only serves to aim.
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
        """The last of the versions of a checkpoint, which stand in a row, and writes that came late, soon after; from a
        page up to a version in which there is one of them. None if they were pruned meanwhile."""
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
        """The numbers among which a checkpoint is, and the checkpoints around them, by what was seen."""
        with self._lock:
            names, numbers = self._known.names, self._known.numbers
            place = bisect_left(names, checkpoint)
            first = names[place - 1] if place else ""
            if place == len(names):
                # Greater than the head's: it is not there.
                return 1, 0, first, ""
            last = names[place]
            if last == checkpoint:
                return numbers[last], numbers[last], first, last
            return numbers[first] + 1 if first else 1, numbers[last] - 1, first, last

    def _learn(self, page: list[Version]) -> list[str]:
        """The checkpoints of some versions, which are remembered."""
        found = [said(version).checkpoint for version in page]
        with self._lock:
            for name, version in zip(found, page, strict=True):
                self._known.note(name, version)
        return [name or "" for name in found]

    # Where they do not

    def _look_up(self, checkpoint: str) -> Found | None:
        """Read all notes, once, and then those of newer versions."""
        while True:
            number = self._newest_of(checkpoint)
            if number is None:
                return None
            try:
                version = self._history.at(number)
            except NotFound:
                # Pruned since: perhaps an older version of it was kept.
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
        """A version was read just now; what is remembered of the run as it was before is forgotten."""
        known = self._known.seen
        if known is None or not known.is_beside(version):
            self._known = _Known()
        self._known.seen = version
        self._known.note(checkpoint, version)


def _guess(low: int, high: int, first: str, last: str, wanted: str, stretch: int) -> int:
    """Where a checkpoint probably is, if ids grow evenly; but so many times as far from the nearer end, at most in the
    middle."""
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
