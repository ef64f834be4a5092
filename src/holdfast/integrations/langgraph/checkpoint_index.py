"""Index of the checkpoints of a run: find the version that holds a checkpoint's id.

A version's note names its checkpoint, so that the summaries of versions are enough and no state is read.
LangGraph's ids increase with time, as version numbers do: while a run has a single timeline, a few reads find
an id. An asterisk in the note marks a run whose ids do not increase; in that case, and if there are several
timelines, all notes are read, once.

Invariant: of several versions of one checkpoint, the newest is returned.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from operator import itemgetter
from typing import Any, NamedTuple

from holdfast import History, Version
from holdfast.errors import NotFound

_NOTE = re.compile(r"(?:checkpoint|writes)(?P<star>\*?) (?P<id>\S+)(?: late for (?P<late>\S+)| .*)?")
_NO_CHECKPOINT = "-"
_PAGE = 100
#: Writes that are at most this many versions late are stored in a later version, and are searched there.
MAX_LATE = 8
#: A guess this close to a known version is off by a few versions at most, which are read together.
_CLOSE_GUESS = 64
_CLOSE_READ = MAX_LATE + 8
#: Maximum number of checkpoints of a run whose location is remembered.
_REMEMBERED = 10_000


class VersionNote(NamedTuple):
    """Content of a version's note."""

    checkpoint: str | None
    #: Whether checkpoint ids have increased with version numbers up to this version.
    ids_increase: bool
    #: Another checkpoint, whose late writes are stored in this version.
    late: str | None = None


class StoredCheckpoint(NamedTuple):
    """A checkpoint: its newest version, and later versions that hold its late writes."""

    version: Version
    late: tuple[Version, ...] = ()


def format_note(what: str, checkpoint: str | None, *, ids_increase: bool, more: str = "") -> str:
    """Return the note of a version."""
    return f"{what}{'' if ids_increase else '*'} {checkpoint or _NO_CHECKPOINT}{more}"


def parse_note(version: Version) -> VersionNote:
    """Return the checkpoint of a version; from its state, if the note is not from this module."""
    match = _NOTE.fullmatch(version.note or "")
    if match is None:
        found = read_part(version, "checkpoint", "id")
        return VersionNote(found if isinstance(found, str) else None, False)
    return VersionNote(
        None if match["id"] == _NO_CHECKPOINT else match["id"], not match["star"], match["late"]
    )


def iter_checkpoints(history: History) -> Iterator[tuple[str, StoredCheckpoint]]:
    """Yield the checkpoints of a run, the highest id first: a page at a time, if ids increase with versions."""
    try:
        ids_increase = parse_note(history.head).ids_increase and len(history.timelines()) == 1
    except NotFound:
        return
    found = _iter_newest(history)
    yield from found if ids_increase else sorted(found, key=itemgetter(0), reverse=True)


def _iter_newest(history: History) -> Iterator[tuple[str, StoredCheckpoint]]:
    """Yield the newest version of each checkpoint, newest first."""
    seen: set[str] = set()
    late: dict[str, list[Version]] = {}
    for version in iter_versions(history):
        note = parse_note(version)
        if note.late is not None:
            late.setdefault(note.late, []).append(version)
        if note.checkpoint is not None and note.checkpoint not in seen:
            seen.add(note.checkpoint)
            yield note.checkpoint, StoredCheckpoint(version, tuple(late.pop(note.checkpoint, ())))


def iter_versions(history: History, *, until: int = 0) -> Iterator[Version]:
    """Yield all versions above a number, newest first; end early if the run is deleted meanwhile."""
    before: int | None = None
    while True:
        try:
            page = history.versions(before=before, limit=_PAGE)
        except NotFound:
            return
        yield from takewhile(lambda version: version.number > until, page)
        if len(page) < _PAGE or page[-1].number <= until:
            return
        before = page[-1].number


def read_part(version: Version, *path: str) -> Any:
    """Return a private copy of a part of a version's state; None if it does not exist."""
    try:
        return version.copy(path)
    except NotFound:
        return None


@dataclass(slots=True)
class _Cache:
    """Cache of a run's checkpoint locations, valid for the run as of the version `seen`."""

    seen: Version | None = None
    #: Known locations of checkpoints, sorted; a checkpoint may have newer versions right after its location.
    names: list[str] = field(default_factory=list)
    numbers: dict[str, int] = field(default_factory=dict)
    #: Whether the oldest version, the lower bound of guesses, has been read.
    has_first: bool = False
    #: The newest version of each checkpoint, up to version `upto`.
    newest: dict[str, int] = field(default_factory=dict)
    upto: int = 0

    def add(self, checkpoint: str | None, version: Version) -> None:
        """Record that a version holds a checkpoint."""
        if checkpoint is None or self.seen is None or not self.seen.is_comparable_to(version):
            return
        if checkpoint not in self.numbers:
            if len(self.names) >= _REMEMBERED:
                self.names.clear()
                self.numbers.clear()
            insort(self.names, checkpoint)
        self.numbers[checkpoint] = max(version.number, self.numbers.get(checkpoint, 0))


class CheckpointIndex:
    """Locations of the checkpoints of one run, found on demand. Safe to use from several threads."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._lock = threading.Lock()
        self._cache = _Cache()

    def remember(self, checkpoint: str | None, version: Version) -> None:
        """Record that a version holds a checkpoint; drop the cache if it is of a different state of the run."""
        with self._lock:
            seen = self._cache.seen
            if seen is None or not seen.is_comparable_to(version):
                self._cache = _Cache()
            self._cache.seen = version
            self._cache.add(checkpoint, version)

    def find(self, checkpoint: str, head: Version) -> StoredCheckpoint | None:
        """Return the newest version of a checkpoint, and its late writes; `head` is the run's current head."""
        note = parse_note(head)
        if note.checkpoint == checkpoint and note.ids_increase:
            return StoredCheckpoint(head)
        self.remember(note.checkpoint, head)
        if note.ids_increase and len(self._history.timelines()) == 1:
            return self._find_by_guess(checkpoint, head)
        return self._find_by_scan(checkpoint)

    # Runs whose ids increase

    def _find_by_guess(self, checkpoint: str, head: Version) -> StoredCheckpoint | None:
        """Find a checkpoint by interpolation search: guess its location, read around it, and guess again."""
        if not self._cache.has_first:
            self._learn(self._history.versions(before=2, limit=1))
            self._cache.has_first = True
        low, high, first, last = self._bounds(checkpoint)
        high = min(high, head.number)
        left, stretch = 2 * (high - low) + 1, 1
        while low <= high:
            # If the last read left more than half of the range, guess further from the nearer end: that
            # excludes more, and ids may increase unevenly.
            stretch, left = 2 * stretch if high - low > left // 2 else 1, high - low
            guess = _guess(low, high, first, last, checkpoint, stretch)
            # Far from the target, a read only improves the next guess.
            above, wide = (
                (MAX_LATE + 4, _CLOSE_READ) if min(guess - low, high - guess) <= _CLOSE_GUESS else (0, 2)
            )
            top = min(guess + above, head.number)
            page = self._history.versions(before=top + 1, limit=wide)
            names = self._learn(page)
            if checkpoint in names:
                return self._last_of_group(checkpoint, page, top, head)
            if not page:
                low = top + 1
            elif names[0] < checkpoint:
                low, first = top + 1, names[0]
            elif names[-1] > checkpoint and len(page) == wide:
                high, last = page[-1].number - 1, names[-1]
            else:
                return None
        return None

    def _last_of_group(
        self, checkpoint: str, page: list[Version], top: int, head: Version
    ) -> StoredCheckpoint | None:
        """Return the last of the consecutive versions of a checkpoint, and its late writes soon after; start
        from a page that contains one of them. Return None if they were pruned meanwhile."""
        reach = MAX_LATE + 4
        while True:
            notes = [parse_note(version) for version in page]
            newest = next((i for i, note in enumerate(notes) if note.checkpoint == checkpoint), None)
            if newest is None:
                return None
            number = page[newest].number
            if top >= min(number + MAX_LATE + 1, head.number):
                newer = zip(page[:newest], notes, strict=False)
                return StoredCheckpoint(
                    page[newest], tuple(v for v, note in newer if note.late == checkpoint)
                )
            top = min(number + reach, head.number)
            page = self._history.versions(before=top + 1, limit=top - number + 1)
            reach *= 2

    def _bounds(self, checkpoint: str) -> tuple[int, int, str, str]:
        """Return the bounds of a checkpoint's version number, and the checkpoints at the bounds, from the
        cache."""
        with self._lock:
            names, numbers = self._cache.names, self._cache.numbers
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
        found = [parse_note(version).checkpoint for version in page]
        with self._lock:
            for name, version in zip(found, page, strict=True):
                self._cache.add(name, version)
        return [name or "" for name in found]

    # Runs whose ids do not increase

    def _find_by_scan(self, checkpoint: str) -> StoredCheckpoint | None:
        """Find a checkpoint by reading all notes, once, and later only those of newer versions."""
        while True:
            number = self._newest_number(checkpoint)
            if number is None:
                return None
            try:
                version = self._history.at(number)
            except NotFound:
                # Pruned since: an older version of it may still exist.
                with self._lock:
                    self._cache = _Cache()
                continue
            page = self._history.versions(before=number + MAX_LATE + 2, limit=MAX_LATE + 1)
            near = (other for other in page if other.number > number)
            return StoredCheckpoint(
                version, tuple(other for other in near if parse_note(other).late == checkpoint)
            )

    def _newest_number(self, checkpoint: str) -> int | None:
        known = self._cache
        fresh: dict[str, int] = {}
        upto = known.upto
        for version in iter_versions(self._history, until=upto):
            upto = max(upto, version.number)
            name = parse_note(version).checkpoint
            if name is not None:
                fresh.setdefault(name, version.number)
        with self._lock:
            if upto > known.upto:
                known.newest.update(fresh)
                known.upto = upto
            return known.newest.get(checkpoint)


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
