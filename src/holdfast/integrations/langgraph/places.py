"""Where the checkpoints of a run are: from a checkpoint's id to a version.

A version's note says which checkpoint its state is, so that a list of versions tells without reading any state. Ids of
LangGraph grow with time, as versions do: while a run has a single timeline, one is found in a few looks. A star in
the note says that ids of this run do not grow; then, and where there are timelines, all notes are read, once.

Invariant: of several versions of one checkpoint, the newest is given.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from operator import itemgetter
from typing import Any, NamedTuple

from holdfast import History, Version
from holdfast.errors import NotFound

_NOTE = re.compile(r"(?:checkpoint|writes)(?P<star>\*?) (?P<id>\S+)(?: late for (?P<late>\S+)| .*)?")
_NOBODY = "-"
_PAGE = 100
#: Writes that come at most so many versions late stand on the way, and are looked for there.
NEAR = 8
#: Versions that are looked at together around a guess.
_LOOK = 6
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


class Places:
    """Where the checkpoints of one run are, as far as it was needed."""

    def __init__(self, history: History) -> None:
        self._history = history
        #: The newest version of each checkpoint, up to the version `_upto`, of which this is number and hash.
        self._known: dict[str, int] = {}
        self._upto = (0, "")
        #: Where checkpoints were seen; they may have newer versions right after that.
        self._seen: dict[str, int] = {}
        self._oldest = ""

    def remember(self, checkpoint: str, number: int) -> None:
        """A checkpoint was seen in a version."""
        if len(self._seen) >= _REMEMBERED:
            self._seen.clear()
        self._seen[checkpoint] = number

    def find(self, checkpoint: str, head: Version) -> Found | None:
        """The newest version of a checkpoint, and what came late for it; `head` is the run's, read just now."""
        about = said(head)
        if about.checkpoint == checkpoint and about.growing:
            return Found(head)
        growing = about.growing and len(self._history.timelines()) == 1
        if growing and checkpoint in self._seen:
            found = self._after(checkpoint, self._seen[checkpoint], head)
            if found is not None:
                return found
        version = self._search(checkpoint, head) if growing else self._look_up(checkpoint)
        if version is None:
            return None
        self.remember(checkpoint, version.number)
        return self._after(checkpoint, version.number, head) if growing else self._late(checkpoint, version)

    def _look_up(self, checkpoint: str) -> Version | None:
        self._check()
        fresh: dict[str, int] = {}
        newest: Version | None = None
        for version in versions(self._history, until=self._upto[0]):
            newest = newest or version
            name = said(version).checkpoint
            if name is not None:
                fresh.setdefault(name, version.number)
        self._known.update(fresh)
        if newest is not None:
            self._upto = newest.number, newest.hash
        number = self._known.get(checkpoint)
        if number is None:
            return None
        try:
            return self._history.at(number)
        except NotFound:
            # Pruned since: perhaps an older version of it was kept.
            self._known, self._upto = {}, (0, "")
            older = [found.version for name, found in _each(self._history) if name == checkpoint]
            return older[0] if older else None

    def _check(self) -> None:
        """Forget all, if the run is not the one that was looked at: it may have been deleted and begun anew."""
        number, seal = self._upto
        try:
            same = not number or self._history.at(number).hash == seal
        except NotFound:
            same = False
        if not same:
            self._known, self._upto = {}, (0, "")

    def _after(self, checkpoint: str, number: int, head: Version) -> Found | None:
        """The last of the versions of a checkpoint, which stand in a row, and writes that came late, soon after."""
        page = self._history.versions(before=number + NEAR + 2, limit=NEAR + 2)
        told = [(version, said(version)) for version in page if version.number >= number]
        own = [place for place, (_, about) in enumerate(told) if about.checkpoint == checkpoint]
        if not own:
            return None
        newest = told[own[0]][0]
        if newest.number - number > NEAR // 2 and newest.number < head.number:
            return self._after(checkpoint, newest.number, head)
        return Found(newest, tuple(version for version, about in told[: own[0]] if about.late == checkpoint))

    def _late(self, checkpoint: str, version: Version) -> Found:
        page = self._history.versions(before=version.number + NEAR + 2, limit=NEAR + 1)
        near = (other for other in page if other.number > version.number)
        return Found(version, tuple(other for other in near if said(other).late == checkpoint))

    def _first(self) -> str:
        """The oldest checkpoint, from which guesses begin; perhaps pruned since, which makes them worse only."""
        if not self._oldest:
            page = self._history.versions(before=2, limit=1)
            self._oldest = (said(page[0]).checkpoint or "") if page else ""
        return self._oldest

    def _search(self, checkpoint: str, head: Version) -> Version | None:
        """Among versions whose checkpoints grow: a guess where it should be, and a look around it."""
        low, high = 1, head.number
        first, last = self._first(), said(head).checkpoint or ""
        guessing = True
        while low <= high:
            # Every other time in the middle: ids may grow by leaps.
            guess = _between(low, high, first, last, checkpoint) if guessing else (low + high) // 2
            guessing = not guessing
            top = min(guess + _LOOK // 2, high)
            page = [v for v in self._history.versions(before=top + 1, limit=_LOOK) if v.number >= low]
            names = [said(version).checkpoint or "" for version in page]
            if not page:
                low = top + 1
            elif checkpoint in names:
                return page[names.index(checkpoint)]
            elif names[-1] > checkpoint:
                high, last = page[-1].number - 1, names[-1]
            elif names[0] < checkpoint:
                low, first = top + 1, names[0]
            else:
                return None
        return None


def _between(low: int, high: int, first: str, last: str, wanted: str) -> int:
    """Where a checkpoint probably is, if ids grow evenly; else in the middle."""
    try:
        begin, end, at = (int(name.replace("-", "")[:15], 16) for name in (first, last, wanted))
    except ValueError:
        return (low + high) // 2
    if not begin <= at <= end or begin == end:
        return (low + high) // 2
    return low + (high - low) * (at - begin) // (end - begin)
