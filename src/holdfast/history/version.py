"""A version as callers use it (its fields at once, state and result when they are read), and lists of versions.

A version of a step also stores the call, as `[positional, keywords, names]`: `names` are the parameters of the
positional values; the last one is written `*rest` if it takes all further values. Older versions lack the names.

A version records the implementation of its step (`ran` in its detail: qualified name, code, overridden) unless a recent
version of the run's line recorded the same one for that step; the other versions have the implementation recorded last.

A list that the store cannot read, or that lacks rows, is read again version by version; a version whose row cannot be
read is listed as damaged.

Invariant: reading a call never needs the code of the step. The implementation of a version is found within `LOOK_BACK`
versions of its line, unless it was pruned. A list that lost rows is never returned as if it were complete.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec

from holdfast.errors import CorruptStore, CorruptVersion, InvalidReference, NotFound
from holdfast.history.attachments import attached_to
from holdfast.history.builder import ANNOTATIONS, ERROR, INPUT, RESULT
from holdfast.history.hashes import check_hash
from holdfast.history.reader import Reader, is_complete
from holdfast.model.names import printable, suggest
from holdfast.model.public import when
from holdfast.model.records import PIN, RunRecord, VersionRecord
from holdfast.tree import path as paths
from holdfast.tree.codec import decode
from holdfast.tree.frozen import FrozenDict, freeze_dict, freeze_list
from holdfast.tree.values import register

if TYPE_CHECKING:
    from holdfast.history.history import History


@dataclass(frozen=True, repr=False)
class NotStored:
    """Placeholder for an argument that cannot be stored, such as an open client."""

    #: Module and name of its type.
    type: str

    def __repr__(self) -> str:
        return f"<{self.type}, not stored>"


register(NotStored, "holdfast.NotStored")


def arguments_by_name(call: Any) -> FrozenDict | None:
    """Return the values of a stored call by parameter; None if the version stores no call."""
    if call is None:
        return None
    given, keywords, *names = call
    named = list(names[0]) if names else []
    found: dict[str, Any] = {}
    for index, value in enumerate(given):
        if index >= len(named):
            found[str(index)] = value
        elif named[index].startswith("*"):
            found[named[index]] = freeze_list(list.__getitem__(given, slice(index, None)))
            break
        else:
            found[named[index]] = value
    for name, value in keywords.items():
        # `def f(a, /, **more)` takes two values of one name.
        found[f"**{name}" if name in found else name] = value
    return freeze_dict(found)


#: Versions after which an implementation is recorded again.
LOOK_BACK = 256


class Implementation(msgspec.Struct, frozen=True):
    """The code that ran as a step."""

    #: Module and qualified name of the function.
    name: str
    #: The fingerprint of its code.
    code: str
    #: Whether it was an override instead of the step's own function.
    overridden: bool

    def is_same(self, other: Implementation) -> bool:
        """Return whether this is the same code, wherever it was imported from."""
        one, two = ((each.name.rpartition(".")[2], each.code, each.overridden) for each in (self, other))
        return one == two

    def __str__(self) -> str:
        return f"{self.name} {self.code}{' (override)' if self.overridden else ''}"


def implementation_of(version: Version) -> Implementation | None:
    """Return the implementation that ran as the step of a version; None if it is not recorded."""
    if version.step is None or "args" not in version.detail:
        return None
    for distance, earlier in enumerate(version.lineage()):
        if earlier.step == version.step and "ran" in earlier.detail:
            return Implementation(*earlier.detail["ran"][:3])
        if distance > LOOK_BACK:
            return None
    return None


_UNREAD: Any = object()
#: Kind and status of a version whose row is damaged.
DAMAGED = "damaged"


class VersionMarks:
    """The marks of a range of versions, read together on first use."""

    __slots__ = ("_first", "_found", "_last", "_reader")

    def __init__(self, reader: Reader, first: int, last: int) -> None:
        self._reader = reader
        self._first = first
        self._last = last
        self._found: dict[int, tuple[str, ...]] | None = None

    def of(self, number: int) -> tuple[str, ...]:
        """Return the marks of a version."""
        if self._found is None:
            found: dict[int, tuple[str, ...]] = {}
            for mark in self._reader.store.marks(self._reader.run.key, self._first, self._last):
                found[mark.number] = (*found.get(mark.number, ()), mark.name)
            self._found = found
        return self._found.get(number, ())


class Version:
    """An immutable, numbered point in a run's history."""

    __slots__ = ("_damage", "_detail", "_marks", "_run", "_state", "history", "reader", "record")

    def __init__(
        self,
        history: History,
        reader: Reader,
        record: VersionRecord,
        marks: VersionMarks | None = None,
        *,
        run: RunRecord | None = None,
        damage: CorruptVersion | None = None,
    ) -> None:
        self.history = history
        #: Reads the run as it was when the version was read.
        self.reader = reader
        self.record = record
        self._state: Any = _UNREAD
        self._detail: dict[str, Any] | None = None
        self._marks = marks or VersionMarks(reader, record.number, record.number)
        #: The run as it was read with this version, if this was its head.
        self._run = run
        self._damage = damage

    @classmethod
    def damaged(cls, history: History, reader: Reader, run: RunRecord, damage: CorruptVersion) -> Version:
        """Return the list entry of a version whose row in the store is damaged."""
        # In a run with a single timeline, the parent of a version is the number before it.
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
        """Whether its row in the store is damaged. Then only `run` and `number` are known: its kind and status are
        `damaged`, other fields are empty, `at` is 1970, and reading its state, result, error or annotations raises
        `CorruptVersion`."""
        return self._damage is not None

    def check(self) -> None:
        """Raise `CorruptVersion` if the version is damaged."""
        if self._damage is not None:
            raise self._damage.with_traceback(None)

    @property
    def run(self) -> str:
        """The id of its run."""
        return self.reader.run.id

    @property
    def number(self) -> int:
        """Its number in the run: 1, 2, 3, …"""
        return self.record.number

    @property
    def parent(self) -> int | None:
        """The number of the version that it follows; None for the first."""
        return self.record.parent or None

    @property
    def key(self) -> str | None:
        """The name that another system gave it, unique in the run; None if it has none."""
        return self.record.key

    @property
    def attachments(self) -> dict[str, Any]:
        """The values that are attached to its key, by name, as private copies."""
        self.check()
        return attached_to(self.history.context, self.reader.run, self.record)

    @property
    def timeline(self) -> int:
        """The number of its timeline."""
        return self.record.timeline

    @property
    def kind(self) -> str:
        """How it was made: initial, step, manual, timed, merge, import, final or fork."""
        return self.record.kind

    @property
    def status(self) -> str:
        """The status of the run at this version."""
        return self.record.status

    @property
    def step(self) -> str | None:
        """The name of the step that made it; None if none did."""
        return self.record.step

    @property
    def steps(self) -> int:
        """The number of steps completed up to this version."""
        return self.record.steps

    @property
    def completes_step(self) -> bool:
        """Whether it records the end of a step that did not fail."""
        return self.step is not None and "failed" not in self.detail

    @property
    def completed_steps(self) -> list[str]:
        """The names of the steps completed up to this version, oldest first, without those of pruned versions."""
        self.check()
        return self.history.step_names(self)

    @property
    def at(self) -> datetime:
        """When it was committed, in UTC."""
        return when(self.record.at)

    @property
    def size(self) -> int:
        """The bytes that it added to the store."""
        return self.record.size

    @property
    def hash(self) -> str:
        """The hash over its fields and its pack, in hexadecimal digits."""
        return self.record.hash.hex()

    @property
    def detail(self) -> dict[str, Any]:
        """Further fields: note, actor, and those that the writer added."""
        if self._detail is None:
            self._detail = decode(self.record.detail) if self.record.detail else {}
        return self._detail

    @property
    def address(self) -> str | None:
        """Where the step sits in its run: `plan/search#2`."""
        return self.detail.get("address", self.step)

    @property
    def attempt(self) -> int:
        """The number of the attempt that succeeded."""
        return int(self.detail.get("attempt", 1))

    @property
    def took(self) -> float | None:
        """Seconds that the step took; None if not recorded."""
        took = self.detail.get("took")
        return None if took is None else took / 1_000_000

    @property
    def note(self) -> str | None:
        """The comment of its writer."""
        return self.detail.get("note")

    @property
    def actor(self) -> str | None:
        """The person or program that made it; None if not recorded."""
        return self.detail.get("actor")

    @property
    def tags(self) -> tuple[str, ...]:
        """Its tags."""
        return tuple(name for name in self._marks.of(self.number) if name != PIN)

    @property
    def pinned(self) -> bool:
        """Whether it is protected from pruning."""
        return PIN in self._marks.of(self.number)

    @property
    def state(self) -> Any:
        """The state, frozen. It is read from the store on first use."""
        if self._state is _UNREAD:
            self._state = self.read_state()
        else:
            self._note_read()
        return self._state

    def read_state(self) -> Any:
        """Return the state, frozen. Its containers and objects are new: they are not shared with other callers."""
        self.check()
        self._note_read()
        return self.reader.show(self.reader.state(self.number))

    def keep_state(self, root: Any) -> None:
        """Keep an internal state as the state of this version, which others may prune before it is read."""
        self._state = self.reader.show(root)

    def copy(self, path: str | Sequence[Any] = "") -> Any:
        """Return a private, ordinary, mutable copy of the state, or of the part at a path, read without the rest."""
        segments = segments_of(path)
        self.check()
        self._note_read()
        if not segments:
            reader, run = self.reader, self._run
            root = reader.state(self.number) if run is None else reader.state_of_head(run, self.record)
            return reader.plain(root)
        return self.reader.plain(find_part(self, segments))

    @property
    def arguments(self) -> Mapping[str, Any] | None:
        """The arguments of the step, or of the workflow for a run's first version, by parameter; None if the version
        stores none. Secrets are redacted; a value that cannot be stored is a `NotStored`."""
        return arguments_by_name(self.reader.part(self.number, INPUT))

    @property
    def implementation(self) -> Implementation | None:
        """The code that ran as the step: qualified name, fingerprint, overridden or not; None if not recorded."""
        return implementation_of(self)

    def _note_read(self) -> None:
        if self._run is not None:
            self.history.note_read(self._run, self.number)

    def lineage(self) -> Iterator[Version]:
        """Yield this version and its ancestors, newest first; a fork continues in the run that it was forked from."""
        last = self
        for last in self.history.ancestors(self):
            if last.kind != "fork" or last.parent is not None:
                yield last
        origin = self.history.origin if last.parent is None else None
        if origin is not None:
            yield from origin.lineage()
        elif last.kind == "fork" and last.parent is None:
            yield last

    @property
    def result(self) -> Any:
        """The return value of the step."""
        self.check()
        return self.reader.part(self.number, RESULT)

    @property
    def annotations(self) -> Any:
        """Model, prompt, tokens, cost, …, as passed to `holdfast.annotate`."""
        self.check()
        return self.reader.part(self.number, ANNOTATIONS)

    @property
    def error(self) -> Any:
        """The error of the step: type, message, traceback; None if it did not fail."""
        self.check()
        return self.reader.part(self.number, ERROR)

    def get(self, path: str | Sequence[Any]) -> Any:
        """Return the part of the state at a path, without reading the rest."""
        segments = segments_of(path)
        self.check()
        self._note_read()
        return self.reader.show(find_part(self, segments))

    def is_comparable_to(self, other: Version) -> bool:
        """Return whether both versions were read from the same run, which was not recreated or pruned in between, so
        that facts about one hold for the other."""
        return self.reader is other.reader

    def __repr__(self) -> str:
        step = f" {self.step}" if self.step else ""
        damaged = " (damaged)" if self.is_damaged else ""
        return printable(f"<Version {self.run}@{self.number}{step}{damaged}>")


def find_part(version: Version, segments: list[Any]) -> Any:
    """Return the internal value at a path; `NotFound` says where the path leaves the state, with a suggestion."""
    find = partial(version.reader.find, version.number)
    try:
        return find(segments)[0]
    except NotFound as error:
        if "path" not in error.details:
            # The version was pruned, or an artifact is missing.
            raise
        around: Any = None
        for depth, last in enumerate(segments):
            around = find(segments[:depth])[0]
            try:
                find(segments[: depth + 1])
            except NotFound:
                where = paths.show(segments[: depth + 1])
                if isinstance(around, dict) and isinstance(last, str):
                    hint = suggest(last, (key for key in around if isinstance(key, str)))
                elif isinstance(around, list):
                    hint = f": the list has {len(around)} items"
                else:
                    hint = "" if isinstance(around, dict) else f": {type(around).__name__} has no parts"
                raise NotFound(f"there is nothing at {where}{hint}", path=where) from None
        raise


def segments_of(path: Any) -> list[Any]:
    """Return the segments of a path; `InvalidReference` if it is not a path."""
    if not isinstance(path, str | list | tuple):
        raise InvalidReference(
            f"a path is a string such as 'plan.tasks[3]', or its segments, not {path!r:.60}"
        )
    segments = paths.parse(path)
    for segment in segments:
        if not isinstance(segment, Hashable):
            raise InvalidReference(f"{segment!r:.60} is neither a key of a dict nor an index of a list")
    return segments


#: Rows of a page where the caller does not choose.
PAGE = 256


class VersionFilters(TypedDict):
    """Filters of `VersionStore.versions`."""

    timeline: int | None
    step: str | None
    tag: str | None
    kind: str | None


#: No filters.
ALL_VERSIONS = VersionFilters(timeline=None, step=None, tag=None, kind=None)


def list_versions(history: History, filters: VersionFilters, before: int | None, limit: int) -> list[Version]:
    """Return the newest versions before one, newest first, without reading any state."""
    is_unfiltered = filters == ALL_VERSIONS
    while True:
        run = history.run_record()
        try:
            records = history.context.store.versions(run.key, before=before, after=0, limit=limit, **filters)
        except CorruptStore:
            return _list_one_by_one(history, run, filters, before, limit, is_unfiltered)
        numbers = [record.number for record in records]
        if not is_unfiltered or is_complete(run, numbers, before=before, limit=limit):
            return _to_versions(history, run, records)
        fresh = history.run_record()
        if (fresh.key, fresh.epoch) == (run.key, run.epoch):
            return _list_one_by_one(history, run, filters, before, limit, is_unfiltered)


def iter_ancestors(history: History, version: Version) -> Iterator[Version]:
    """Yield a version and its ancestors, newest first, until the run's first version or a pruned one."""
    run = history.run_record()
    wanted = version.number
    page: dict[int, Version] = {}
    while wanted > 0:
        if wanted not in page:
            try:
                records = history.context.store.versions(run.key, before=wanted + 1, after=0, limit=PAGE)
                found = _to_versions(history, run, records)
            except CorruptStore:
                found = _list_one_by_one(history, run, ALL_VERSIONS, wanted + 1, PAGE, False)
            page = {each.number: each for each in found}
        if wanted not in page:
            try:
                record = history.context.reader(run).record(wanted)
            except NotFound:
                return
            page[wanted] = _to_versions(history, run, [record])[0]
        page[wanted].check()
        yield page[wanted]
        wanted = page[wanted].parent or 0


def _to_versions(history: History, run: RunRecord, records: Sequence[VersionRecord]) -> list[Version]:
    """Check records and return them as versions."""
    if not records:
        return []
    numbers = [record.number for record in records]
    reader = history.context.reader(run)
    marks = VersionMarks(reader, min(numbers), max(numbers))
    found = []
    for record in records:
        try:
            at_head = run if record.number == run.head else None
            found.append(Version(history, reader, check_hash(run.id, record), marks, run=at_head))
        except CorruptVersion as damage:
            found.append(Version.damaged(history, reader, run, damage))
    return found


def _list_one_by_one(
    history: History,
    run: RunRecord,
    filters: VersionFilters,
    before: int | None,
    limit: int,
    is_unfiltered: bool,
) -> list[Version]:
    found: list[Version] = []
    number = run.last if before is None else min(run.last, before - 1)
    missing = 0
    while number > 0 and len(found) < limit:
        try:
            records = history.context.store.versions(
                run.key, before=number + 1, after=number - 1, limit=1, **filters
            )
            found += _to_versions(history, run, records)
            # In a run that was never pruned, every number has a row.
            is_damaged = is_unfiltered and not records and run.epoch == 0
            missing += is_unfiltered and not records
        except CorruptStore:
            is_damaged = True
        if is_damaged:
            # An unreadable row may be that of a pruned version.
            pruned = ", or was pruned" if run.epoch else ""
            damage = CorruptVersion(
                f"version {number} of run {run.id!r} cannot be read{pruned}: other versions stay readable; run "
                "verify, and restore this one from a bundle",
                run=run.id,
                version=number,
            )
            found.append(Version.damaged(history, history.context.reader(run), run, damage))
        number -= 1
    if is_unfiltered and number == 0 and before is None and run.epoch and missing > run.last - run.kept:
        raise CorruptStore(
            f"versions are missing from the list of run {run.id!r}: each can be read by its number; "
            "verify the store, restore the run from a bundle",
            run=run.id,
        )
    return found
