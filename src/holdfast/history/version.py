"""A version as a caller holds it: a summary at once, state and result when asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Any

from holdfast.errors import CorruptVersion, InvalidCall, InvalidReference, NotFound
from holdfast.history.arguments import by_name
from holdfast.history.commit import ERROR, INPUT, META, RESULT
from holdfast.history.implementation import Implementation, implementation_of
from holdfast.history.reader import Reader
from holdfast.model.names import meant, printable
from holdfast.model.public import when
from holdfast.model.records import PIN, RunRecord, VersionRecord
from holdfast.tree import path as paths
from holdfast.tree.codec import decode
from holdfast.tree.draft import draft

if TYPE_CHECKING:
    from holdfast.history.past import Past

_UNREAD: Any = object()
#: Kind and status of a version whose row is damaged.
DAMAGED = "damaged"


class Marks:
    """The marks of a range of versions, read together when those of one of them are asked for."""

    __slots__ = ("_first", "_found", "_last", "_reader")

    def __init__(self, reader: Reader, first: int, last: int) -> None:
        self._reader = reader
        self._first = first
        self._last = last
        self._found: dict[int, tuple[str, ...]] | None = None

    def of(self, number: int) -> tuple[str, ...]:
        """The names that a version has."""
        if self._found is None:
            found: dict[int, tuple[str, ...]] = {}
            for mark in self._reader.store.marks(self._reader.run.key, self._first, self._last):
                found[mark.number] = (*found.get(mark.number, ()), mark.name)
            self._found = found
        return self._found.get(number, ())


class StepNames:
    """The names of the completed steps of each version of a run; each version is read once, whichever are asked for.

    Versions of one line share one list: a version's names are the first so many of it. Safe to use from many threads.
    """

    __slots__ = ("_lines", "_lock", "reader")

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        #: By number: the list of the version's line, and how many of its names are the version's.
        self._lines: dict[int, tuple[list[str], int]] = {}
        self._lock = threading.Lock()

    def of(self, version: Version) -> list[str]:
        """Return the names for a version, oldest first."""
        with self._lock:
            names, count = self._lines.get(version.number) or self._learn(version)
            return names[:count]

    def _learn(self, version: Version) -> tuple[list[str], int]:
        known = self._lines
        walked = [version]
        if version.parent in known:
            names, count = known[version.parent]
        else:
            names, count = [], 0
            for each in islice(version._history.ancestors(version), 1, None):
                if each.number in known:
                    names, count = known[each.number]
                    break
                walked.append(each)
        if count < len(names):
            # Another line continues from here.
            names = names[:count]
        for each in reversed(walked):
            if each.step is not None:
                names.append(each.step)
            known[each.number] = names, len(names)
        return known[version.number]


class Version:
    """An immutable, numbered point in a run's history."""

    __slots__ = ("_damage", "_detail", "_history", "_marks", "_reader", "_record", "_run", "_state")

    def __init__(
        self,
        history: Past,
        reader: Reader,
        record: VersionRecord,
        marks: Marks | None = None,
        *,
        run: RunRecord | None = None,
        damage: CorruptVersion | None = None,
    ) -> None:
        self._history = history
        self._reader = reader
        self._record = record
        self._state: Any = _UNREAD
        self._detail: dict[str, Any] | None = None
        self._marks = marks or Marks(reader, record.number, record.number)
        #: The run as it was read with this version, if this was its head.
        self._run = run
        self._damage = damage

    @classmethod
    def damaged(cls, history: Past, reader: Reader, run: RunRecord, damage: CorruptVersion) -> Version:
        """Return the entry of a list for a version whose row in the store is damaged."""
        # Of a run with a single timeline, the numbers say what a version follows.
        alone = run.timeline == 1 and run.epoch == 0
        number = damage.details["version"]
        record = VersionRecord(
            number=number,
            parent=number - 1 if alone else 0,
            timeline=1 if alone else 0,
            kind=DAMAGED,
            status=DAMAGED,
            at=0,
            steps=0,
            prev=b"",
            pack_hash=b"",
            hash=b"",
            size=0,
        )
        return cls(history, reader, record, damage=damage)

    @property
    def is_damaged(self) -> bool:
        """Is its row in the store damaged? Then only `run` and `number` are known: its kind and status are `damaged`,
        other facts are empty, `at` is 1970, and reading its state, result, error or metadata raises
        `CorruptVersion`."""
        return self._damage is not None

    def check(self) -> None:
        """Raise `CorruptVersion` if the version is damaged."""
        if self._damage is not None:
            raise self._damage.with_traceback(None)

    @property
    def run(self) -> str:
        """The id of its run."""
        return self._reader.run.id

    @property
    def number(self) -> int:
        """Its number in the run: 1, 2, 3, …"""
        return self._record.number

    @property
    def parent(self) -> int | None:
        """The version that it followed; None for the first."""
        return self._record.parent or None

    @property
    def timeline(self) -> int:
        """The number of the timeline that it stands on."""
        return self._record.timeline

    @property
    def kind(self) -> str:
        """What made it: initial, step, manual, timed, merge, import, final or fork."""
        return self._record.kind

    @property
    def status(self) -> str:
        """The status of the run with this version."""
        return self._record.status

    @property
    def step(self) -> str | None:
        """The name of the step that made it; None if none did."""
        return self._record.step

    @property
    def steps(self) -> int:
        """How many steps were completed up to here."""
        return self._record.steps

    @property
    def completed_steps(self) -> list[str]:
        """The names of the steps completed up to here, oldest first."""
        self.check()
        return self._history.step_names(self)

    @property
    def at(self) -> datetime:
        """When it was committed, in UTC."""
        return when(self._record.at)

    @property
    def size(self) -> int:
        """Bytes that it added to the store."""
        return self._record.size

    @property
    def hash(self) -> str:
        """The hash over its facts and its pack, in hexadecimal digits."""
        return self._record.hash.hex()

    @property
    def detail(self) -> dict[str, Any]:
        """Further facts: note, actor, and what the writer added."""
        if self._detail is None:
            self._detail = decode(self._record.detail) if self._record.detail else {}
        return self._detail

    @property
    def address(self) -> str | None:
        """Where the step sits in its run: `plan/search#2`."""
        return self.detail.get("address", self.step)

    @property
    def attempt(self) -> int:
        """Which try of the step succeeded."""
        return int(self.detail.get("attempt", 1))

    @property
    def took(self) -> float | None:
        """Seconds that the step took, where that is known."""
        took = self.detail.get("took")
        return None if took is None else took / 1_000_000

    @property
    def note(self) -> str | None:
        """What its writer said about it."""
        return self.detail.get("note")

    @property
    def actor(self) -> str | None:
        """Who made it, if that was said."""
        return self.detail.get("actor")

    @property
    def tags(self) -> tuple[str, ...]:
        """The names that it was given."""
        return tuple(name for name in self._marks.of(self.number) if name != PIN)

    @property
    def pinned(self) -> bool:
        """Is it kept from being pruned?"""
        return PIN in self._marks.of(self.number)

    @property
    def state(self) -> Any:
        """The state, frozen. Read from the store when first asked for."""
        if self._state is _UNREAD:
            self._state = self.read_state()
        else:
            self._note_read()
        return self._state

    def read_state(self) -> Any:
        """The state, frozen, in containers and objects of the caller's own."""
        self.check()
        self._note_read()
        return self._reader.show(self._reader.state(self.number))

    def copy(self, path: str | Sequence[Any] = "") -> Any:
        """A private, ordinary, mutable copy of the state, or of the part at a path, read without the rest."""
        segments = segments_of(path)
        self.check()
        self._note_read()
        if not segments:
            if self._run is None:
                root = self._reader.state(self.number)
            else:
                root = self._reader.state_of_head(self._run, self._record)
            return self._reader.plain(root)
        try:
            return self._reader.plain(self._reader.find(self.number, segments)[0])
        except NotFound as error:
            raise self._nothing_at(segments) or error from None

    @property
    def arguments(self) -> Mapping[str, Any] | None:
        """The arguments of the step, or of the workflow for a run's first version, by parameter; None if the version
        stores none. Secrets are redacted; a value that cannot be stored is a `NotStored`."""
        return by_name(self._reader.part(self.number, INPUT))

    @property
    def implementation(self) -> Implementation | None:
        """Which code ran as the step: qualified name, fingerprint, overridden or not; None if that is not recorded."""
        return implementation_of(self)

    def _note_read(self) -> None:
        if self._run is not None:
            self._history.note_read(self.number)

    def line(self) -> Iterator[Version]:
        """Yield this version and those that it follows, newest first; of a fork also those that it was forked from."""
        last = self
        for last in self._history.ancestors(self):
            if last.kind != "fork" or last.parent is not None:
                yield last
        origin = self._history.origin if last.parent is None else None
        if origin is not None:
            yield from origin.line()

    @property
    def result(self) -> Any:
        """What the step returned."""
        self.check()
        return self._reader.part(self.number, RESULT)

    @property
    def meta(self) -> Any:
        """What shaped its behaviour: model, prompt, tokens, cost, …"""
        self.check()
        return self._reader.part(self.number, META)

    @property
    def error(self) -> Any:
        """How the step failed: type, message, traceback; None if it did not."""
        self.check()
        return self._reader.part(self.number, ERROR)

    def get(self, path: str | Sequence[Any]) -> Any:
        """The part of the state at a path, without reading the rest."""
        segments = segments_of(path)
        self.check()
        self._note_read()
        try:
            return self._reader.show(self._reader.find(self.number, segments)[0])
        except NotFound as error:
            raise self._nothing_at(segments) or error from None

    def _nothing_at(self, segments: list[Any]) -> NotFound | None:
        """Where a path leaves the state, and what was perhaps meant."""
        around: Any = None
        for depth in range(len(segments)):
            try:
                around = self._reader.find(self.number, segments[:depth])[0]
                self._reader.find(self.number, segments[: depth + 1])
            except NotFound:
                where, last = paths.show(segments[: depth + 1]), segments[depth]
                if isinstance(around, dict) and isinstance(last, str):
                    hint = meant(last, (key for key in around if isinstance(key, str)))
                elif isinstance(around, list):
                    hint = f": the list has {len(around)} items"
                else:
                    hint = "" if isinstance(around, dict) else f": {type(around).__name__} has no parts"
                return NotFound(f"there is nothing at {where}{hint}", path=where)
        return None

    def is_beside(self, other: Version) -> bool:
        """Were both read of one run as it was: not begun anew in between, and nothing of it pruned? What is known of
        one then holds for the other."""
        return self._reader is other._reader

    def __repr__(self) -> str:
        step = f" {self.step}" if self.step else ""
        damaged = " (damaged)" if self.is_damaged else ""
        return printable(f"<Version {self.run}@{self.number}{step}{damaged}>")


def segments_of(path: Any) -> list[Any]:
    """The segments of a path that a caller gave, or `InvalidReference`."""
    if not isinstance(path, str | list | tuple):
        raise InvalidReference(
            f"a path is a string such as 'plan.tasks[3]', or its segments, not {path!r:.60}"
        )
    segments = paths.parse(path)
    for segment in segments:
        if not isinstance(segment, Hashable):
            raise InvalidReference(f"{segment!r:.60} is no key of a dict and no index of a list")
    return segments


def along(versions: Iterator[Version], count: int) -> Version | None:
    """The version so many further along a line of ancestors."""
    for passed, version in enumerate(versions):
        if passed == count:
            return version
    return None


def edited(root: Any, edit: Callable[[Any], Any] | Mapping[str, Any]) -> Any:
    """A draft of a state, changed by a function, or by values for paths."""
    state = draft(root)
    if callable(edit):
        edit(state)
        return state
    if not isinstance(edit, Mapping):
        raise InvalidCall("edit is a function that changes a draft, or a dict of paths and values")
    for path, value in edit.items():
        *way, last = segments_of(path) or [None]
        if last is None:
            raise InvalidReference("an edit needs a path: give state= to replace the whole state")
        place = state
        try:
            for segment in way:
                place = place[segment]
            place[last] = value
        except (LookupError, TypeError):
            raise NotFound(f"the state has no place {path!r} to be edited", path=path) from None
    return state
