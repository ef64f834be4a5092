"""One run's past: its versions to look at, to compare, to ask who changed what.

Each question has a module of its own; `Past` is the door to them.

Invariant: nothing is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypedDict

from holdfast.errors import CorruptStore, CorruptVersion, InvalidCall, InvalidReference, NotFound
from holdfast.history import blame as blaming
from holdfast.history import compare, snapshot, verify
from holdfast.history.complete import is_whole, whole_lines
from holdfast.history.context import Context
from holdfast.history.events import readable
from holdfast.history.seal import check
from holdfast.history.version import Marks, StepNames, Version, along
from holdfast.model.names import (
    MAX_STEP,
    Reference,
    check_number,
    check_run_id,
    check_tag,
    check_text,
    meant,
    parse_local,
    short,
)
from holdfast.model.public import Event, Report, Timeline, when
from holdfast.model.records import KINDS, RunRecord, VersionRecord

_PAGE = 256


class _Filters(TypedDict):
    """Filters of `VersionStore.versions`."""

    timeline: int | None
    step: str | None
    tag: str | None
    kind: str | None


_NO_FILTERS = _Filters(timeline=None, step=None, tag=None, kind=None)


class Past:
    """The versions of one run, as they are."""

    def __init__(self, context: Context, run_id: str) -> None:
        self.id = check_run_id(run_id)
        self._context = context
        self._store = context.store
        self._names: StepNames | None = None
        #: Tells this history from others (see `bases`).
        self._by = object()

    @property
    def head(self) -> Version:
        """The version from which the next one follows."""
        return self.at("head")

    @property
    def head_number(self) -> int:
        """The number of the head, which is not read."""
        return self._run().head

    @property
    def origin(self) -> Version | None:
        """The version that the run was forked from; None if it was not, or if that is not there any more."""
        found = self._run().origin
        run = None if found is None else self._store.run_by_key(found[0])
        if found is None or run is None:
            return None
        try:
            return type(self)(self._context, run.id).at(found[1])
        except NotFound:
            return None

    def at(self, ref: int | str | Version) -> Version:
        """A version by number, `head`, `~2` (two before the head), or tag (the newest version that has it)."""
        if isinstance(ref, Version):
            ref = self._own(ref).number
        run = self._run()
        reader = self._context.reader(run)
        number = self._resolve(run, parse_local(ref))
        return Version(self, reader, reader.record(number), run=run if number == run.head else None)

    def note_read(self, number: int) -> None:
        """Remember that this thread or task has read the state of the head: what it commits next is made from that."""
        self._context.bases.note_read(self.id, number, self._by)

    def versions(
        self,
        *,
        limit: int = 100,
        before: int | None = None,
        timeline: int | None = None,
        step: str | None = None,
        tag: str | None = None,
        kind: str | None = None,
    ) -> list[Version]:
        """Return one page of summaries, newest first, without reading any state: at most `limit`. For the next page
        pass the last one's number as `before`; for all versions, use `iter_versions`. A version whose row in the store
        is damaged is listed, too: it `is_damaged`."""
        check_number("limit", limit, 1)
        for name, number in (("before", before), ("timeline", timeline)):
            if number is not None:
                check_number(name, number, 1)
        check_text("step", step, MAX_STEP)
        if kind is not None and kind not in KINDS:
            raise InvalidCall(f"kind is one of {', '.join(KINDS)}, not {short(kind)}")
        if tag is not None:
            check_tag(tag)
        wanted = _Filters(timeline=timeline, step=step, tag=tag, kind=kind)
        every = wanted == _NO_FILTERS
        while True:
            run = self._run()
            try:
                records = self._store.versions(run.key, before=before, after=0, limit=limit, **wanted)
            except CorruptStore:
                return self._salvage(run, wanted, before, limit, every=every)
            numbers = [record.number for record in records]
            if not every or is_whole(run, numbers, before=before, limit=limit):
                return self._versions(run, records)
            fresh = self._run()
            if (fresh.key, fresh.epoch) == (run.key, run.epoch):
                return self._salvage(run, wanted, before, limit, every=every)

    def iter_versions(
        self,
        *,
        timeline: int | None = None,
        step: str | None = None,
        tag: str | None = None,
        kind: str | None = None,
    ) -> Iterator[Version]:
        """Iterate over the summaries of all versions, newest first, with the filters of `versions`. They are read page
        by page; versions made after the first page was read are not among them."""
        before: int | None = None
        while page := self.versions(
            limit=_PAGE, before=before, timeline=timeline, step=step, tag=tag, kind=kind
        ):
            yield from page
            before = page[-1].number

    def ancestors(self, ref: int | str | Version = "head") -> Iterator[Version]:
        """A version and those it follows, newest first; ends where the run began or versions were pruned."""
        version = self.at(ref)
        run = self._run()
        wanted: int = version.number
        page: dict[int, Version] = {}
        while wanted > 0:
            if wanted not in page:
                try:
                    records = self._store.versions(run.key, before=wanted + 1, after=0, limit=_PAGE)
                    read = self._versions(run, records)
                except CorruptStore:
                    read = self._salvage(run, _NO_FILTERS, wanted + 1, _PAGE, every=False)
                page = {found.number: found for found in read}
            if wanted not in page:
                try:
                    record = self._context.reader(run).record(wanted)
                except NotFound:
                    return
                page[wanted] = self._versions(run, [record])[0]
            page[wanted].check()
            yield page[wanted]
            wanted = page[wanted].parent or 0

    def timelines(self) -> list[Timeline]:
        """All lines of versions, oldest first."""
        run = self._run()
        lines = whole_lines(run, self._store.timelines(run.key)) if run.timeline > 1 else []
        return [
            Timeline(1, None, when(run.created)),
            *(Timeline(line.number, line.parent, when(line.at), line.reason, line.actor) for line in lines),
        ]

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """What happened to the run after a cursor, oldest first."""
        check_number("after", after, 0)
        check_number("limit", limit, 1)
        run = self._run()
        entries = self._store.journal(run=run.key, after=after, limit=limit)
        return [readable(run, entry) for entry in entries]

    def step_names(self, version: Version) -> list[str]:
        """Return the names of the steps completed up to a version, oldest first."""
        names = self._names
        if names is None or names.reader is not version._reader:
            names = self._names = StepNames(version._reader)
        return names.of(version)

    # Looking into it

    def diff(self, a: int | str | Version, b: int | str | Version = "head") -> compare.Diff:
        """What changed from one version to another."""
        return compare.diff(self.at(a), self.at(b))

    def blame(self, path: str | Sequence[Any] = "", *, at: int | str | Version = "head") -> blaming.Blame:
        """The version that last changed the part of the state at a path."""
        return blaming.blame(self, self.at(at), path)

    def blame_parts(
        self, path: str | Sequence[Any] = "", *, at: int | str | Version = "head", depth: int = 1
    ) -> Iterator[blaming.Blame]:
        """The same for each entry or item below a path, so many levels down."""
        return blaming.blame_parts(self, self.at(at), path, check_number("depth", depth, 0))

    def bisect(
        self,
        check: Callable[[Any], Any],
        *,
        good: int | str | Version | None = None,
        bad: int | str | Version = "head",
        tried: Callable[[Version, bool], Any] | None = None,
    ) -> Version | None:
        """The first version among the ancestors of `bad` whose state fails `check`, if all before it pass.
        None if `bad` itself passes. `tried` is told of each version that was checked, and whether it passed."""
        if not callable(check):
            raise InvalidCall("bisect takes a function that is given a state and tells whether it is good")
        if tried is not None and not callable(tried):
            raise InvalidCall("tried is a function that is given a version and whether it passed")
        return blaming.bisect(self, check, good=good, bad=bad, tried=tried)

    def verify(self) -> Report:
        """Check every version: hashes, the chain, references, artifacts."""
        return verify.verify_run(self._store, self._run())

    def export(self, ref: int | str | Version = "head") -> dict[str, Any]:
        """A version with its state as a JSON document, for people and other tools: a snapshot."""
        return snapshot.export(self.at(ref))

    # How it works

    def _own(self, version: Version) -> Version:
        if version.run != self.id:
            raise InvalidReference(
                f"{version!r} is no version of run {self.id!r}: use the methods of Holdfast across runs"
            )
        return version

    def _run(self) -> RunRecord:
        run = self._store.run(self.id)
        if run is None:
            raise NotFound(f"there is no run {self.id!r}: commit to it first", run=self.id)
        return run

    def _resolve(self, run: RunRecord, ref: Reference) -> int:
        if ref.number is not None:
            return ref.number
        if ref.tag is not None:
            found = self._store.versions(run.key, tag=ref.tag, limit=1)
            if not found:
                hint = meant(ref.tag, (mark.name for mark in self._store.marks(run.key)))
                raise NotFound(
                    f"run {self.id!r} has no version tagged {ref.tag!r}{hint}", run=self.id, tag=ref.tag
                )
            number = check(self.id, found[0]).number
            # The search goes by the tag alone; reading the mark checks the whole of it.
            self._store.marks(run.key, number, number)
            return number
        if ref.back == 0:
            return run.head
        version = along(self.ancestors(run.head), ref.back)
        if version is None:
            raise NotFound(
                f"run {self.id!r} has no version {ref.back} before its head", run=self.id, back=ref.back
            )
        return version.number

    def _versions(self, run: RunRecord, records: Sequence[VersionRecord]) -> list[Version]:
        """Checked records as versions."""
        if not records:
            return []
        numbers = [record.number for record in records]
        reader = self._context.reader(run)
        marks = Marks(reader, min(numbers), max(numbers))
        found = []
        for record in records:
            try:
                at_head = run if record.number == run.head else None
                found.append(Version(self, reader, check(self.id, record), marks, run=at_head))
            except CorruptVersion as damage:
                found.append(Version.damaged(self, reader, run, damage))
        return found

    def _salvage(
        self, run: RunRecord, wanted: _Filters, before: int | None, limit: int, *, every: bool
    ) -> list[Version]:
        """Read a list that the store cannot give as a whole version by version: what cannot be read is damaged."""
        found: list[Version] = []
        number = run.last if before is None else min(run.last, before - 1)
        missing = 0
        while number > 0 and len(found) < limit:
            try:
                records = self._store.versions(
                    run.key, before=number + 1, after=number - 1, limit=1, **wanted
                )
                found += self._versions(run, records)
                # Of a run that was never pruned, every number has a row.
                damaged = every and not records and run.epoch == 0
                missing += every and not records
            except CorruptStore:
                damaged = True
            if damaged:
                # Where the place of a row cannot be read, a pruned version cannot be distinguished from a damaged one.
                pruned = ", or was pruned" if run.epoch else ""
                damage = CorruptVersion(
                    f"version {number} of run {self.id!r} cannot be read{pruned}: other versions stay readable; run "
                    "verify, and restore this one from a bundle",
                    run=self.id,
                    version=number,
                )
                found.append(Version.damaged(self, self._context.reader(run), run, damage))
            number -= 1
        if every and number == 0 and before is None and run.epoch and missing > run.last - run.kept:
            raise CorruptStore(
                f"versions are missing from the list of run {self.id!r}: each can be read by its number; "
                "verify the store, restore the run from a bundle",
                run=self.id,
            )
        return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}>"
