"""One run's history: commit, read, go back, look into.

Each operation has a module of its own; `History` is the door to them.

Invariant: history is append-only. No method changes or removes a version, except `prune`, which says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from holdfast.errors import CorruptStore, InvalidCall, InvalidReference, NotFound, StaleVersion
from holdfast.history import blame as blaming
from holdfast.history import compare, retention, snapshot, verify
from holdfast.history.advance import Edit, Line, Resolver, check_resolver
from holdfast.history.commit import Facts, event
from holdfast.history.complete import is_whole, whole_lines
from holdfast.history.context import Context
from holdfast.history.events import readable
from holdfast.history.reader import Head
from holdfast.history.rollback import move_head
from holdfast.history.seal import check
from holdfast.history.version import Version, along
from holdfast.model.names import (
    MAX_STEP,
    Reference,
    check_number,
    check_run_id,
    check_tag,
    check_text,
    parse_local,
    short,
)
from holdfast.model.public import Event, Pruned, Report, Timeline, when
from holdfast.model.records import (
    KINDS,
    PIN,
    MarkRecord,
    RunRecord,
    VersionRecord,
)
from holdfast.model.retention import Retention
from holdfast.store.base import Append
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import FrozenDict
from holdfast.tree.merge import merge

_PAGE = 256
#: How often a pruning begins anew because others are writing, before they are given the right of way.
_TRIES = 9


class History:
    """The versions of one run. The run is made by the first commit."""

    def __init__(self, context: Context, run_id: str) -> None:
        self.id = check_run_id(run_id)
        self._context = context
        self._store = context.store
        self._line = Line(context, self.id)

    # Writing

    def commit(
        self,
        state: Any,
        *,
        step: str | None = None,
        result: Any = None,
        tags: Iterable[str] = (),
        note: str | None = None,
        actor: str | None = None,
        meta: Any = None,
        error: Any = None,
        kind: str | None = None,
        status: str | None = None,
        expected: int | Version | None = None,
        resolve: Resolver | None = None,
    ) -> Version:
        """Make `state`, an ordinary or a frozen tree, the next version.

        Whatever equals the head exactly is shared with it. With `expected`, the head must be that version, or
        `StaleVersion` is raised; without, a change made meanwhile by others is merged, or `MergeConflict`.
        """
        facts = Facts(step, result, tags, note, actor, meta, error, kind, status)
        facts.check()
        check_resolver(resolve)
        number = self._expected(expected)
        return self._made(self._line.advance(state, facts, expected=number, resolve=resolve))

    def edit(
        self,
        *,
        step: str | None = None,
        result: Any = None,
        tags: Iterable[str] = (),
        note: str | None = None,
        actor: str | None = None,
        meta: Any = None,
        expected: int | Version | None = None,
        resolve: Resolver | None = None,
    ) -> Edit:
        """A draft of the head's state: committed at the end of the block, dropped if it raises."""
        facts = Facts(step, result, tags, note, actor, meta)
        facts.check()
        check_resolver(resolve)
        return Edit(self._line, facts, self._expected(expected), resolve)

    def rollback(
        self, to: int | str | Version, *, reason: str | None = None, actor: str | None = None
    ) -> Version:
        """Move the head back to a version, on a new timeline. Nothing is deleted: the versions after it stay."""
        check_text("reason", reason, 10_000)
        check_text("actor", actor, MAX_STEP)
        while True:
            run = self._run()
            target = self.at(to)
            self._context.may_roll_back(run, target.number)
            try:
                move_head(self._context, run, target._record, reason=reason, actor=actor)
            except StaleVersion:
                continue
            self._line.note_moved(target.number)
            return target

    def merge(
        self,
        other: int | str | Version | Timeline | None = None,
        *,
        timeline: int | None = None,
        note: str | None = None,
        actor: str | None = None,
        resolve: Resolver | None = None,
    ) -> Version:
        """Bring what another version, or the last version of another timeline, changed since the common
        ancestor into the head."""
        if isinstance(other, Timeline):
            timeline, other = other.number, None
        if (other is None) == (timeline is None):
            raise InvalidCall("merge takes a version, or timeline=2 for the last version of timeline 2")
        check_resolver(resolve)
        theirs = self.at(other) if other is not None else self._last_of(check_number("timeline", timeline, 1))
        head = self._line.fresh_head()
        assert head is not None
        reader = self._context.reader(head.run)
        common = self._common(head.version.number, theirs.number)
        base = FrozenDict() if common is None else reader.state(common)
        folder = Folder(reader.space, self._context.redact)
        merged = merge(base, reader.state(theirs.number), head.root, resolve=resolve, fold=folder.fold)
        facts = Facts(note=note, actor=actor, kind="merge", more={"merged": theirs.number})
        facts.check()
        return self._made(self._line.advance_from(head, merged, facts, resolve=resolve))

    # Reading

    @property
    def head(self) -> Version:
        """The version from which the next one follows."""
        return self.at("head")

    def at(self, ref: int | str | Version) -> Version:
        """A version by number, `head`, `~2` (two before the head), or tag (the newest version that has it)."""
        if isinstance(ref, Version):
            ref = self._own(ref).number
        run = self._run()
        reader = self._context.reader(run)
        number = self._resolve(run, parse_local(ref))
        version = Version(self, reader, reader.record(number))
        if number == run.head:
            self._line.note_read(number)
        return version

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
        """Summaries, newest first, without reading any state. For the next page pass the last one's number as
        `before`."""
        check_number("limit", limit, 1)
        for name, number in (("before", before), ("timeline", timeline)):
            if number is not None:
                check_number(name, number, 1)
        check_text("step", step, MAX_STEP)
        if kind is not None and kind not in KINDS:
            raise InvalidCall(f"kind is one of {', '.join(KINDS)}, not {short(kind)}")
        if tag is not None:
            check_tag(tag)
        every = timeline is None and step is None and tag is None and kind is None
        while True:
            run = self._run()
            records = self._store.versions(
                run.key, before=before, after=0, limit=limit, timeline=timeline, step=step, tag=tag, kind=kind
            )
            numbers = [record.number for record in records]
            if not every or is_whole(run, numbers, before=before, limit=limit):
                return self._versions(run, records)
            fresh = self._run()
            if (fresh.key, fresh.epoch) == (run.key, run.epoch):
                raise CorruptStore(
                    f"versions are missing from the list of run {self.id!r}: each can be read by its number; "
                    "verify the store, restore the run from a bundle",
                    run=self.id,
                )

    def ancestors(self, ref: int | str | Version = "head") -> Iterator[Version]:
        """A version and those it follows, newest first; ends where the run began or versions were pruned."""
        version = self.at(ref)
        run = self._run()
        wanted: int = version.number
        page: dict[int, Version] = {}
        while wanted > 0:
            if wanted not in page:
                records = self._store.versions(run.key, before=wanted + 1, after=0, limit=_PAGE)
                page = {found.number: found for found in self._versions(run, records)}
            if wanted not in page:
                try:
                    record = self._context.reader(run).record(wanted)
                except NotFound:
                    return
                page[wanted] = self._versions(run, [record])[0]
            yield page[wanted]
            wanted = page[wanted].parent or 0

    def timelines(self) -> list[Timeline]:
        """All lines of versions, oldest first."""
        run = self._run()
        first = Timeline(1, None, when(run.created))
        return [
            first,
            *(
                Timeline(line.number, line.parent, when(line.at), line.reason, line.actor)
                for line in whole_lines(run, self._store.timelines(run.key))
            ),
        ]

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """What happened to the run after a cursor, oldest first."""
        check_number("after", after, 0)
        check_number("limit", limit, 1)
        run = self._run()
        entries = self._store.journal(run=run.key, after=after, limit=limit)
        return [readable(run, entry) for entry in entries]

    # Looking into it

    def diff(self, a: int | str | Version, b: int | str | Version = "head") -> compare.Diff:
        """What changed from one version to another."""
        return compare.diff(self.at(a), self.at(b))

    def blame(self, path: str | Sequence[Any] = "", *, at: int | str | Version = "head") -> blaming.Blame:
        """The version that last changed the part of the state at a path."""
        return blaming.blame(self, self.at(at), path)

    def bisect(
        self,
        check: Callable[[Any], Any],
        *,
        good: int | str | Version | None = None,
        bad: int | str | Version = "head",
    ) -> Version | None:
        """The first version among the ancestors of `bad` whose state fails `check`, if all before it pass.
        None if `bad` itself passes."""
        if not callable(check):
            raise InvalidCall("bisect takes a function that is given a state and tells whether it is good")
        return blaming.bisect(self, check, good=good, bad=bad)

    def verify(self) -> Report:
        """Check every version: hashes, the chain, references, artifacts."""
        return verify.verify_run(self._store, self._run())

    def export(self, ref: int | str | Version = "head") -> dict[str, Any]:
        """A version with its state as a JSON document, for people and other tools."""
        return snapshot.export(self.at(ref))

    # Marks and retention

    def tag(self, ref: int | str | Version, name: str) -> None:
        """Give a version a name."""
        self._mark(ref, check_tag(name), on=True)

    def untag(self, ref: int | str | Version, name: str) -> None:
        """Take a name from a version; `NotFound` if it does not have it."""
        self._mark(ref, check_tag(name), on=False)

    def pin(self, ref: int | str | Version) -> None:
        """Keep a version from being pruned."""
        self._mark(ref, PIN, on=True)

    def unpin(self, ref: int | str | Version) -> None:
        """Let a version be pruned again."""
        self._mark(ref, PIN, on=False)

    def prune(self, policy: Retention, *, dry_run: bool = False) -> Pruned:
        """Remove the versions that a policy does not keep; with `dry_run`, only say which."""
        if not isinstance(policy, Retention):
            raise InvalidCall("prune takes a policy, such as holdfast.Retention(last=100)")
        for _ in range(_TRIES):
            try:
                return self._prune(policy, dry_run)
            except StaleVersion:
                continue
        return self._prune(policy, dry_run)

    # How it works

    def _made(self, head: Head) -> Version:
        return Version(self, self._context.reader(head.run), head.version)

    def _own(self, version: Version) -> Version:
        if version.run != self.id:
            raise InvalidReference(
                f"{version!r} is no version of run {self.id!r}: use the methods of Holdfast across runs"
            )
        return version

    def _expected(self, expected: int | Version | None) -> int | None:
        if isinstance(expected, Version):
            return self._own(expected).number
        return None if expected is None else check_number("expected", expected, 0)

    def _prune(self, policy: Retention, dry_run: bool) -> Pruned:
        return retention.prune(
            self._context.store, self._run(), policy, now=self._context.clock(), dry_run=dry_run
        )

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
                raise NotFound(f"run {self.id!r} has no version tagged {ref.tag!r}", run=self.id, tag=ref.tag)
            number = check(self.id, found[0]).number
            # The search goes by the tag alone; reading the mark checks the whole of it.
            self._store.marks(run.key, number, number)
            return number
        if ref.back == 0:
            return run.head
        version = along(self.ancestors(run.head), ref.back)
        if version is None:
            raise NotFound(f"run {self.id!r} has no version {ref.back} before its head", run=self.id)
        return version.number

    def _versions(self, run: RunRecord, records: Sequence[VersionRecord]) -> list[Version]:
        """Checked records as versions, with their marks in one read."""
        if not records:
            return []
        numbers = [record.number for record in records]
        marks: dict[int, list[str]] = {}
        for mark in self._store.marks(run.key, min(numbers), max(numbers)):
            marks.setdefault(mark.number, []).append(mark.name)
        reader = self._context.reader(run)
        return [
            Version(self, reader, check(self.id, record), marks.get(record.number, ())) for record in records
        ]

    def _common(self, one: int, other: int) -> int | None:
        """The newest version that two versions both come from."""
        line = {version.number for version in self.ancestors(one)}
        for version in self.ancestors(other):
            if version.number in line:
                return version.number
        return None

    def _last_of(self, timeline: int) -> Version:
        found = self.versions(timeline=timeline, limit=1)
        if not found:
            raise NotFound(f"timeline {timeline} of run {self.id!r} has no version of its own", run=self.id)
        return found[0]

    def _mark(self, ref: int | str | Version, name: str, *, on: bool) -> None:
        version = self.at(ref)
        run = self._run()
        now = self._context.clock()
        kind = (
            ("version.pinned" if on else "version.unpinned")
            if name == PIN
            else ("version.tagged" if on else "version.untagged")
        )
        entry = event(kind, now, version=version.number, tag=name or None)
        mark = MarkRecord(number=version.number, name=name, at=now)
        changed = self._store.set_mark(run.key, mark, on=on, event=entry)
        if changed and on:
            self._protect(version.number)
        if not changed and not on:
            what = "is not pinned" if name == PIN else f"has no tag {name!r}"
            raise NotFound(
                f"version {version.number} of run {self.id!r} {what}", run=self.id, version=version.number
            )

    def _protect(self, number: int) -> None:
        """Have a pruning that did not see a mark refused; `NotFound` if it came first."""
        while True:
            run = self._run()
            self._context.reader(run).record(number)
            try:
                self._store.append(
                    Append(expect=run, run=msgspec.structs.replace(run, revision=run.revision + 1))
                )
            except StaleVersion:
                continue
            return

    def __repr__(self) -> str:
        return f"<History {self.id!r}>"
