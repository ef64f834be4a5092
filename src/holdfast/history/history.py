"""One run's history: commit, read, compare, roll back, merge, mark, prune.

`History` checks arguments and calls the module of each operation.

Invariant: history is append-only. Only `prune` and `drop` remove versions; no method changes one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec

from holdfast.errors import CorruptVersion, InvalidCall, InvalidReference, NotFound, StaleVersion
from holdfast.history import blame as blaming
from holdfast.history import compare, snapshot, verify
from holdfast.history import prune as retention
from holdfast.history.annotation_filter import check_conditions, list_annotated
from holdfast.history.attachments import attach, attachment_names, read_attachments
from holdfast.history.branching import append_after, apply_patch, move_head, refuse_workflow, start_timeline
from holdfast.history.builder import VersionMetadata
from holdfast.history.committer import Committer, Edit, Resolver, check_resolver
from holdfast.history.context import StoreContext
from holdfast.history.hashes import check_hash
from holdfast.history.journal import NewEvent, append_event, check_events, to_event
from holdfast.history.reader import Head, check_timelines
from holdfast.history.step_names import StepNames
from holdfast.history.summary import VersionSummary, summarize
from holdfast.history.version import PAGE, Version, VersionFilters, iter_ancestors, list_versions, segments_of
from holdfast.model.checks import check_integer, check_text
from holdfast.model.meta import MetaValue, check_meta
from holdfast.model.names import (
    MAX_STEP,
    Reference,
    check_attachment_key,
    check_run_id,
    check_tag,
    parse_local,
    short,
    suggest,
)
from holdfast.model.public import Event, Pruned, Report, Timeline, when
from holdfast.model.records import KINDS, PIN, RunRecord, VersionRecord
from holdfast.model.retention import Retention
from holdfast.tree.fold import Folded, Folder
from holdfast.tree.frozen import FrozenDict
from holdfast.tree.merge import Declared, merge, reducers_of


class History:
    """The versions of one run. The first commit creates the run."""

    def __init__(
        self,
        context: StoreContext,
        run_id: str,
        merge: Declared | None = None,
        meta: Mapping[str, MetaValue] | None = None,
        check: Callable[[Any], object] | None = None,
    ) -> None:
        self.id = check_run_id(run_id)
        self.context = context
        #: Identifies this history among those of its run (see `Bases`).
        self._identity = object()
        given = {} if meta is None else check_meta(meta)
        self.committer = Committer(
            context, self.id, reducers_of(merge), self._identity, meta=given, check=check
        )
        self._names: StepNames | None = None

    # Reading

    @property
    def head(self) -> Version:
        """The version that the next one follows."""
        return self.at("head")

    @property
    def head_number(self) -> int:
        """The number of the head, whose row is not read."""
        return self.run_record().head

    @property
    def origin(self) -> Version | None:
        """The version that the run was forked from; None if it was not forked, or that version was removed."""
        found = self.run_record().origin
        run = None if found is None else self.context.store.run_by_key(found[0])
        if found is None or run is None:
            return None
        try:
            return History(self.context, run.id).at(found[1])
        except NotFound:
            return None

    def at(self, ref: int | str | Version | Reference) -> Version:
        """Return a version by number, `head`, `~2` (two before the head), or tag (the newest version that has it)."""
        if isinstance(ref, Version):
            ref = self._own(ref).number
        reference = ref if isinstance(ref, Reference) else parse_local(ref)
        while True:
            run = self.run_record()
            reader = self.context.reader(run)
            number = self._resolve(run, reference)
            try:
                return Version(self, reader, reader.record(number), run=run if number == run.head else None)
            except NotFound:
                # Another writer may have moved the head and pruned this one meanwhile.
                if number != run.head or self.run_record().head == number:
                    raise

    def versions(
        self,
        *,
        limit: int = 100,
        before: int | None = None,
        timeline: int | None = None,
        step: str | None = None,
        tag: str | None = None,
        kind: str | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> list[Version]:
        """Return one page of summaries, at most `limit`, newest first, without reading any state.

        With `where`, only versions with these annotations: `{"model": "gpt-4", "cost>": 0.1}`. After the name stands
        one of `= != > >= < <=`, or nothing for `=`. Numbers are compared as numbers; a version without the annotation
        does not match. The annotations of versions are read one page after another until the list is full.

        For the next page, pass the last one's number as `before`; for all versions, use `iter_versions`. A version
        whose row in the store is damaged is listed with `is_damaged` set.
        """
        check_integer("limit", limit, 1)
        for name, number in (("before", before), ("timeline", timeline)):
            if number is not None:
                check_integer(name, number, 1)
        check_text("step", step, MAX_STEP)
        if kind is not None and kind not in KINDS:
            raise InvalidCall(f"kind is one of {', '.join(KINDS)}, not {short(kind)}")
        if tag is not None:
            check_tag(tag)
        filters = VersionFilters(timeline=timeline, step=step, tag=tag, kind=kind)
        conditions = [] if where is None else check_conditions(where)
        if conditions:
            return list_annotated(self, filters, conditions, before, limit)
        return list_versions(self, filters, before, limit)

    def iter_versions(
        self,
        *,
        timeline: int | None = None,
        step: str | None = None,
        tag: str | None = None,
        kind: str | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> Iterator[Version]:
        """Iterate over the summaries of all versions, newest first, with the filters of `versions`. They are read page
        by page; versions committed after the first page was read are not included."""
        before: int | None = None
        while page := self.versions(
            limit=PAGE, before=before, timeline=timeline, step=step, tag=tag, kind=kind, where=where
        ):
            yield from page
            before = page[-1].number

    def summary(self, *, limit: int = 100, before: int | None = None) -> list[VersionSummary]:
        """Return one page of summaries of versions, at most `limit`, newest first: number, time, step, completed steps
        and keys of the state, in one query and without reading any state.

        For the next page, pass the last one's `version` as `before`; for all versions, use `iter_summary`.
        """
        check_integer("limit", limit, 1)
        if before is not None:
            check_integer("before", before, 1)
        return summarize(self, before, limit)

    def iter_summary(self) -> Iterator[VersionSummary]:
        """Iterate over the summaries of all versions, newest first. They are read page by page; versions committed
        after the first page was read are not included."""
        before: int | None = None
        while page := self.summary(limit=PAGE, before=before):
            yield from page
            before = page[-1].version

    def find(self, key: str) -> Version | None:
        """Return the version with a key; None if there is none, or if its key in the store is damaged."""
        run = self.run_record()
        record = self.context.store.version_by_key(run.key, check_attachment_key(key))
        return None if record is None else self._from_record(run, record)

    def keyed_versions(self, *, before: str | None = None, limit: int = 100) -> list[Version]:
        """Return one page of summaries of versions that have a key, in descending order of keys; for the next page,
        pass the last one's key as `before`. A version whose row in the store is damaged is listed with `is_damaged` set
        and the key that the row has."""
        check_integer("limit", limit, 1)
        run = self.run_record()
        before = None if before is None else check_attachment_key(before)
        found = self.context.store.keyed_versions(run.key, before=before, limit=limit)
        return [self._summary(run, record) for record in found]

    def attachments(self, *keys: str) -> dict[str, dict[str, Any]]:
        """Return the values that are attached to keys: for each key, values by name, as private copies."""
        return read_attachments(self.context, self.run_record(), keys)

    def attachment_names(self, key: str) -> list[str]:
        """Return the names of the values that are attached to a key, also of those that cannot be read."""
        return attachment_names(self.context, self.run_record(), key)

    def ancestors(self, ref: int | str | Version = "head") -> Iterator[Version]:
        """Iterate over a version and its ancestors, newest first, until the run's first version or a pruned one."""
        yield from iter_ancestors(self, self.at(ref))

    def timelines(self) -> list[Timeline]:
        """Return all timelines, oldest first."""
        run = self.run_record()
        lines = check_timelines(run, self.context.store.timelines(run.key)) if run.timeline > 1 else []
        return [
            Timeline(1, None, when(run.created)),
            *(Timeline(line.number, line.parent, when(line.at), line.reason, line.actor) for line in lines),
        ]

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """Return the run's journal after a cursor, oldest first."""
        check_integer("after", after, 0)
        check_integer("limit", limit, 1)
        run = self.run_record()
        entries = self.context.store.journal(run=run.key, after=after, limit=limit)
        return [to_event(run, entry) for entry in entries]

    def step_names(self, version: Version) -> list[str]:
        """Return the names of the steps completed up to a version, oldest first."""
        names = self._names
        if names is None or names.reader is not version.reader:
            names = self._names = StepNames(version.reader)
        return names.of(version)

    def note_read(self, run: RunRecord, number: int) -> None:
        """Record that this thread or task read the state of the head; its next commit counts as made from it."""
        self.context.bases.note_read(self.id, run.key, number, self._identity)

    def run_record(self) -> RunRecord:
        """Return the run's record as it is in the store."""
        return self.context.run(self.id)

    # Comparing and checking

    def diff(self, a: int | str | Version, b: int | str | Version = "head") -> compare.Diff:
        """Return the changes from one version to another."""
        return compare.diff(self.at(a), self.at(b))

    def blame(self, path: str | Sequence[Any] = "", *, at: int | str | Version = "head") -> blaming.Blame:
        """Return the version that last changed the part of the state at a path."""
        return blaming.blame(self, self.at(at), path)

    def blame_parts(
        self, path: str | Sequence[Any] = "", *, at: int | str | Version = "head", depth: int = 1
    ) -> Iterator[blaming.Blame]:
        """Iterate over `blame` of each entry or item `depth` levels below a path."""
        return blaming.blame_parts(self, self.at(at), path, check_integer("depth", depth, 0))

    def bisect(
        self,
        check: Callable[[Any], Any],
        *,
        good: int | str | Version | None = None,
        bad: int | str | Version = "head",
        tried: Callable[[Version, bool], Any] | None = None,
    ) -> Version | None:
        """Return the first version among the ancestors of `bad` whose state fails `check`, if all before it pass;
        None if `bad` itself passes. `tried` is called with each version that was checked and whether it passed."""
        if not callable(check):
            raise InvalidCall("bisect takes a function of a state that returns whether it is good")
        if tried is not None and not callable(tried):
            raise InvalidCall("tried is a function of a version and whether it passed")
        return blaming.bisect(self, check, good=good, bad=bad, tried=tried)

    def verify(self) -> Report:
        """Check every version: hashes, the chain, references, artifacts."""
        return verify.verify_run(self.context.store, self.run_record())

    def export(self, ref: int | str | Version = "head") -> dict[str, Any]:
        """Return a version with its state as a JSON document (a snapshot) for people and other tools."""
        return snapshot.export(self.at(ref))

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
        annotations: Any = None,
        error: Any = None,
        kind: str | None = None,
        status: str | None = None,
        events: Iterable[NewEvent] = (),
        expected: int | Version | None = None,
        resolve: Resolver | None = None,
        after: int | Version | None = None,
        move: bool = True,
        key: str | None = None,
    ) -> Version:
        """Commit `state`, an ordinary or a frozen tree, as the next version.

        Parts that equal the head's exactly are shared with it. With `expected`, the head must be that version, or
        `StaleVersion` is raised. Otherwise the state counts as made from the head whose state this thread or task read
        last, or else from the state of its last commit. A change that another writer committed since is merged, or
        `MergeConflict` is raised, unless `resolve` decides: a function of the path, the common value, ours and theirs.

        With `after`, the new version follows that version: on its timeline if it is the last one there, otherwise on
        a new timeline. The head moves to the new version, unless `move=False`.

        Stored with the version: the `step` that made it and its `result` or `error`, `tags`, a `note`, the `actor`,
        and `annotations` (model, prompt, cost, …). `status` sets the status of a manual run, which otherwise stays as
        it is; the status of a workflow's run cannot be set. `events` are entries of the application for the journal,
        each a kind and its data: `[("agent.woke", {"by": "cron"})]`. `key` is a name that another system gives to the
        version: `find` returns the version by it, and `AlreadyExists` is raised if a version of the run has it.
        """
        metadata = VersionMetadata(
            step, result, tags, note, actor, annotations, error, kind, status, events=events, key=key
        ).check()
        check_resolver(resolve)
        number = self._number(expected)
        if after is not None:
            return self._append_after(after, expected, lambda root: state, metadata, move)
        made = self.committer.advance(
            state, metadata, expected=number, version=_record(expected), resolve=resolve
        )
        return self.to_version(made)

    def commit_record(
        self, state: Any, metadata: VersionMetadata, *, expected: int | Version | None = None
    ) -> Version:
        """Commit a state with what only Holdfast itself may write: its own journal entries, and the open questions of a
        run whose questions are not in its detail, as those of a loop."""
        made = self.committer.advance(
            state, metadata.check(), expected=self._number(expected), version=_record(expected)
        )
        return self.to_version(made)

    def patch(
        self,
        changes: Mapping[str | tuple[Any, ...], Any],
        *,
        after: int | Version,
        step: str | None = None,
        note: str | None = None,
        actor: str | None = None,
        kind: str | None = None,
        expected: int | Version | None = None,
        move: bool = True,
    ) -> Version:
        """Commit the state of the version `after` with new values at some paths, as the version that follows it.

        The cost follows the size of the changes, not of the state. A path names a key of a dict, new or not, or an
        index of a list; the list's length appends. The other arguments are those of `commit`.
        """
        metadata = VersionMetadata(step=step, note=note, actor=actor, kind=kind).check()
        if not isinstance(changes, Mapping):
            raise InvalidCall(
                f"patch takes a dict of paths and values, such as {{'plan.done': True}}, not {short(changes)}"
            )
        values = [(segments_of(path), value) for path, value in changes.items()]
        return self._append_after(after, expected, lambda root: apply_patch(root, values), metadata, move)

    def edit(
        self,
        *,
        step: str | None = None,
        result: Any = None,
        tags: Iterable[str] = (),
        note: str | None = None,
        actor: str | None = None,
        annotations: Any = None,
        error: Any = None,
        status: str | None = None,
        events: Iterable[NewEvent] = (),
        expected: int | Version | None = None,
        resolve: Resolver | None = None,
    ) -> Edit:
        """Return a context manager with a draft of the head's state: the end of the block commits it, an exception
        drops it. The arguments are those of `commit`."""
        metadata = VersionMetadata(
            step, result, tags, note, actor, annotations, error, None, status, events=events
        ).check()
        check_resolver(resolve)
        return Edit(self.committer, metadata, self._number(expected), _record(expected), resolve)

    def update(
        self,
        function: Callable[[Any], None],
        *,
        step: str | None = None,
        result: Any = None,
        tags: Iterable[str] = (),
        note: str | None = None,
        actor: str | None = None,
        annotations: Any = None,
        attempts: int | None = None,
    ) -> Version:
        """Apply a function to a draft of the newest state and commit it; return the version.

        If another writer commits first, the function is applied again to the state that is the newest then, so that no
        update is lost. The function changes the draft, as the block of `edit` does, and returns None. It may be called
        several times and should have no other effect. Every repetition means that another writer made progress, so
        repetitions are not limited, unless `attempts` is given: `StaleVersion` after so many. The other arguments are
        those of `commit`.
        """
        if not callable(function):
            raise InvalidCall(f"update takes a function of the draft of a state, not {short(function)}")
        if attempts is not None:
            check_integer("attempts", attempts, 1)
        metadata = VersionMetadata(step, result, tags, note, actor, annotations).check()
        return self.to_version(self.committer.update(function, metadata, attempts))

    def attach(self, key: str, values: Mapping[str, Any], *, replace: bool = True) -> list[str]:
        """Store values under the key of a version, by name, without a new version; return the names that were stored.

        The version with the key may be committed later. A name that exists is replaced, or with `replace=False` left as
        it is. The values are deleted together with the version, or with the run. If no version with the key is
        committed within an hour, the next pruning of versions deletes them. `NotFound` if there is no run.
        """
        return attach(self.context, self.committer, key, values, replace=replace)

    def capture(self, value: Any) -> Folded:
        """Return a value as it is now, with secrets redacted, for a state that is committed later or in another
        thread. `UnsupportedValue` if it cannot be stored."""
        folder = Folder(None, self.context.redact)
        return Folded(folder.fold(value), object(), folder.arrivals)

    def add_event(
        self,
        kind: str,
        data: Mapping[str, Any] | None = None,
        *,
        version: int | Version | None = None,
        step: str | None = None,
    ) -> None:
        """Append an event of the application to the run's journal, without a version. The kind is words separated by
        points, such as `agent.woke`. Subscribers receive it."""
        (event,) = check_events([(kind, {} if data is None else data)])
        check_text("step", step, MAX_STEP)
        append_event(self.context, self.id, event, version=self._number(version), step=step)

    def rollback(
        self,
        to: int | str | Version,
        *,
        reason: str | None = None,
        actor: str | None = None,
        state: Any = None,
        step: str | None = None,
        expected: int | Version | None = None,
    ) -> Version:
        """Move the head back to a version, on a new timeline. Nothing is deleted: the versions after it stay.

        With `state`, the new timeline starts with a version of that state, made by `step`, in the same commit. With
        `expected`, the head must be that version, or `StaleVersion` is raised.
        """
        check_text("reason", reason, 10_000)
        metadata = VersionMetadata(step=step, note=reason, actor=actor).check()
        number = self._number(expected)
        while True:
            run = self.run_record()
            if number is not None:
                self.committer.expect(run.head, number)
                if isinstance(expected, Version):
                    self.committer.expect_same(self.at(number).record, expected.record)
            target = self.at(to)
            if target.number > run.last:
                # Committed since the run was read.
                continue
            self.committer.expect_same(target.record, _record(to))
            self.context.rollbacks.check(run, target.number)
            try:
                if state is None:
                    self.committer.check_target(target.number, run)
                    move_head(self.context, run, target.record, reason=reason, actor=actor)
                else:
                    refuse_workflow(run)
                    at = Head(run, target.record, self.context.reader(run).state(target.number))
                    made = start_timeline(self.context, self.committer, at, state, metadata)
                    target = self.to_version(made)
            except StaleVersion:
                continue
            self.committer.note_moved(run, target.number)
            return target

    def merge(
        self,
        other: int | str | Version | Timeline | None = None,
        *,
        timeline: int | None = None,
        note: str | None = None,
        actor: str | None = None,
        resolve: Resolver | None = None,
        dry_run: bool = False,
    ) -> Version:
        """Merge the changes that another version, or the last version of another timeline, has since the common
        ancestor into the head. With `dry_run`, nothing is written: the head is returned, or `MergeConflict` raised."""
        if isinstance(other, Timeline):
            timeline, other = other.number, None
        if (other is None) == (timeline is None):
            raise InvalidCall("merge takes a version, or timeline=2 for the last version of timeline 2")
        check_resolver(resolve)
        if other is not None:
            theirs = self.at(other)
        else:
            found = self.versions(timeline=check_integer("timeline", timeline, 1), limit=1)
            if not found:
                raise NotFound(
                    f"timeline {timeline} of run {self.id!r} has no version of its own", run=self.id
                )
            theirs = found[0]
        head = self.committer.fresh_head()
        assert head is not None
        reader = self.context.reader(head.run)
        ours = {version.number for version in self.ancestors(head.version.number)}
        common = next((each.number for each in self.ancestors(theirs) if each.number in ours), None)
        folder = Folder(reader.space, self.context.redact)
        merged = merge(
            FrozenDict() if common is None else reader.state(common),
            reader.state(theirs.number),
            head.root,
            resolve=resolve,
            reducers=self.committer.reducers,
            agree=True,
            fold=folder.fold,
        )
        more = {"merged": theirs.number}
        metadata = VersionMetadata(note=note, actor=actor, kind="merge", more=more).check()
        if dry_run:
            return self.to_version(head)
        return self.to_version(self.committer.advance_from(head, merged, metadata, resolve=resolve))

    # Marks and retention

    def tag(self, ref: int | str | Version, name: str) -> None:
        """Add a tag to a version."""
        retention.set_mark(self.context, self.at(ref), check_tag(name), on=True)

    def untag(self, ref: int | str | Version, name: str) -> None:
        """Remove a tag from a version; `NotFound` if it does not have it."""
        retention.set_mark(self.context, self.at(ref), check_tag(name), on=False)

    def pin(self, ref: int | str | Version) -> None:
        """Protect a version from pruning."""
        retention.set_mark(self.context, self.at(ref), PIN, on=True)

    def unpin(self, ref: int | str | Version) -> None:
        """Remove the pin of a version; `NotFound` if it has none."""
        retention.set_mark(self.context, self.at(ref), PIN, on=False)

    def prune(
        self,
        policy: Retention,
        *,
        dry_run: bool = False,
        quiet: bool = False,
        expected: int | Version | None = None,
        damaged: bool = False,
        release: bool = False,
    ) -> Pruned:
        """Remove the versions that a policy does not keep; with `dry_run`, only report which. With `quiet`, the journal
        gets no event: it would grow without limit where versions are pruned every minute. With `expected`, the head
        must be that version, or `StaleVersion` is raised. With `damaged`, damaged versions are removed, too, instead of
        raising `CorruptVersion`; versions that a damaged one that is kept may need stay. With `release`, texts and
        other single values above 64 KiB of removed versions are deleted at once, and not only by `Holdfast.gc`."""
        if not isinstance(policy, Retention):
            raise InvalidCall("prune takes a policy, such as holdfast.Retention(last=100)")
        return self._prune(policy, dry_run, quiet, self._number(expected), damaged, release)

    def drop(self, versions: Iterable[int | Version], *, dry_run: bool = False) -> Pruned:
        """Remove the given versions, except those that are always kept: the head, tagged and pinned versions, fork
        points, and versions that a live run needs. With `dry_run`, only report which."""
        if isinstance(versions, str | Version) or not isinstance(versions, Iterable):
            raise InvalidCall("drop takes a list of versions, such as [3, 4]")
        return self._prune({self.at(version).number for version in versions}, dry_run)

    def _prune(
        self,
        policy: Retention | Collection[int],
        dry_run: bool,
        quiet: bool = False,
        expected: int | None = None,
        damaged: bool = False,
        release: bool = False,
    ) -> Pruned:
        attempt = 0
        while True:
            now, run = self.context.clock(), self.run_record()
            if expected is not None:
                self.committer.expect(run.head, expected)
            try:
                return retention.prune(
                    self.context.store, run, policy, now=now, dry_run=dry_run, quiet=quiet, damaged=damaged,
                    release=release,
                )  # fmt: skip
            except StaleVersion:
                attempt += 1
                if attempt == retention.ATTEMPTS:
                    raise

    # Shared parts

    def to_version(self, head: Head) -> Version:
        """Return a head of this run as a version."""
        return Version(self, self.context.reader(head.run), head.version)

    def _from_record(self, run: RunRecord, record: VersionRecord) -> Version:
        """Return a version whose row was read just now, together with its run."""
        reader = self.context.reader(run)
        return Version(
            self, reader, check_hash(run.id, record), run=run if record.number == run.head else None
        )

    def _summary(self, run: RunRecord, record: VersionRecord) -> Version:
        try:
            return self._from_record(run, record)
        except CorruptVersion as damage:
            listed = Version.damaged(self, self.context.reader(run), run, damage)
            listed.record = msgspec.structs.replace(listed.record, key=record.key)
            return listed

    def _append_after(
        self,
        after: int | Version,
        expected: int | Version | None,
        change: Callable[[Any], Any],
        metadata: VersionMetadata,
        move: bool,
    ) -> Version:
        number = self._number(after)
        if not number:
            raise InvalidReference("after is the number of the version to follow: 1 or more")
        return self.to_version(
            append_after(
                self.context,
                self.committer,
                number,
                self._number(expected),
                change,
                metadata,
                move=move,
                followed=_record(after),
                expected_head=_record(expected),
            )
        )

    def _resolve(self, run: RunRecord, ref: Reference) -> int:
        """Return the number of the version that a reference names."""
        if ref.number is not None:
            return ref.number
        if ref.tag is not None:
            store = self.context.store
            found = store.versions(run.key, tag=ref.tag, limit=1)
            if not found:
                hint = suggest(ref.tag, (mark.name for mark in store.marks(run.key)))
                raise NotFound(
                    f"run {run.id!r} has no version tagged {ref.tag!r}{hint}", run=run.id, tag=ref.tag
                )
            number = check_hash(run.id, found[0]).number
            # The search compares the tag alone; reading the mark checks the whole row.
            store.marks(run.key, number, number)
            return number
        if ref.back == 0:
            return run.head
        for version in islice(self.ancestors(run.head), ref.back, None):
            return version.number
        raise NotFound(f"run {run.id!r} has no version {ref.back} before its head", run=run.id, back=ref.back)

    def _number(self, version: int | Version | None) -> int | None:
        if isinstance(version, Version):
            return self._own(version).number
        return None if version is None else check_integer("expected", version, 0)

    def _own(self, version: Version) -> Version:
        if version.run != self.id:
            raise InvalidReference(
                f"{version!r} is not a version of run {self.id!r}: use the methods of Holdfast across runs"
            )
        return version

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}>"


def _record(version: object) -> VersionRecord | None:
    """Return the record of a version; None for a number or a tag."""
    return version.record if isinstance(version, Version) else None
