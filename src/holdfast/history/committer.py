"""Commit states as the next version of a run while others write to it.

A plain state was made from what its thread or task has read or committed before (see `Bases`), or else from the head.
If the run has advanced since, a three-way merge applies the change, not the whole state, to the new head.

Invariant: a version that was acknowledged is in the store; a change is either part of it, or was refused with an error.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from inspect import iscoroutine
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import AlreadyExists, InvalidCall, MergeConflict, NotFound, StaleVersion
from holdfast.history.blame import explain_conflict, has_moved_nodes
from holdfast.history.builder import VersionMetadata, VersionTrees, build_version, last_move
from holdfast.history.context import FORGOTTEN, SAME, Basis, StoreContext
from holdfast.history.journal import encode_event
from holdfast.history.reader import BaseState, Head, Reader
from holdfast.history.redaction import redact_meta
from holdfast.model.meta import MetaValue
from holdfast.model.names import short
from holdfast.model.records import EventRecord, RunRecord, VersionRecord
from holdfast.model.run_detail import RunDetail, encode_detail
from holdfast.store.protocol import Append, Store
from holdfast.tree.draft import draft, end_draft
from holdfast.tree.fold import Folder, Redactor
from holdfast.tree.fold_cache import FoldCache
from holdfast.tree.frozen import FrozenDict
from holdfast.tree.merge import Reducers, check_plain_function, merge
from holdfast.tree.pack import Prepared, Writer

#: Resolves a conflict: a function of path, common value, ours and theirs that returns the value to keep.
Resolver = Callable[[tuple[Any, ...], Any, Any, Any], Any]

#: Seconds before the first retry of an update that lost a race, and the longest wait.
_WAIT = 0.001
_LONGEST_WAIT = 0.1


class VersionDraft(NamedTuple):
    """A version that is not committed yet."""

    change: Append
    writer: Writer
    root: Any
    space: object
    #: The state before it was merged with the head's.
    own: Any
    #: The frozen result.
    result: Any
    #: The newest version, this one included, that moved nodes of the state; 0 if none did.
    moved: int


class Committer:
    """Builds and commits the next versions of one run."""

    def __init__(
        self,
        context: StoreContext,
        run_id: str,
        reducers: Reducers | None = None,
        by: object = None,
        *,
        meta: Mapping[str, MetaValue] | None = None,
        check: Callable[[Any], object] | None = None,
    ) -> None:
        self.id = run_id
        #: The metadata of the run, if the first commit here creates it.
        self._meta = meta
        #: Identifies the history that commits (see `Bases`).
        self._by = by or self
        #: How concurrent changes of one path are merged.
        self.reducers = reducers
        #: Called with each new state, frozen; raises if the state must not be committed, or the head not moved to it.
        self._check = check
        self._context = context
        self._store = context.store
        #: The last commit of a plain state by any thread: threads of a pool take turns with a state that they share.
        self._last: Basis | None = None
        #: A strong reference: the context keeps a reader only while it is used.
        self._reader: Reader | None = None
        self._fold_cache = FoldCache()
        self._redact = context.redaction.redactor

    def advance(
        self,
        state: Any,
        metadata: VersionMetadata,
        *,
        expected: int | None = None,
        version: VersionRecord | None = None,
        resolve: Resolver | None = None,
    ) -> Head:
        """Commit a plain state, made from what this thread or task has read or committed before. With `version`, the
        head must be that version, and not one of the same number in a run created again."""
        basis = self._context.bases.base(self.id, self._last, self._by)
        base: Head | BaseState | None
        if expected is not None:
            head = self.known_head()
            if head is None or head.number != expected or is_another(head, version):
                head = self.fresh_head()
            self.expect_head(head, expected, version)
            base = head
        else:
            # Without a read or a commit, the base is the head in the store, not the one that others here have cached.
            head = self.fresh_head() if basis is None else self.known_head()
            if head is not None and basis is not None and basis.number != head.number:
                # The cached head may be the older of the two: a rollback moves it without a commit.
                head = self.fresh_head()
            base = self._base(head, basis)
        run = None if basis is None or expected is not None else basis.run
        made, own = self._write(
            state, base, head, metadata, run=run, expected=expected, version=version, resolve=resolve
        )
        series = basis.series if basis is not None and basis.by is self._by else object()
        self._note(Basis(made.run.key, made.number, own, self._by, series))
        return made

    def advance_from(
        self,
        base: Head | None,
        state: Any,
        metadata: VersionMetadata,
        *,
        expected: int | None = None,
        resolve: Resolver | None = None,
    ) -> Head:
        """Commit a state, or a draft, that was made from `base`. With `expected`, which is its number, the head must
        still be that version, and not one of the same number in a run created again."""
        version = None if expected is None or base is None else base.version
        run = None if base is None else base.run.key
        made, _ = self._write(
            state, base, base, metadata, run=run, expected=expected, version=version, resolve=resolve
        )
        edited = self._context.bases.note_edit(self.id, made.run.key, made.number, self._by)
        if edited is not None:
            self._last = edited
        return made

    def update(
        self, function: Callable[[Any], object], metadata: VersionMetadata, attempts: int | None
    ) -> Head:
        """Apply a function to a draft of the newest state until it is committed, at most `attempts` times."""
        tried = 0
        while True:
            head = self.fresh_head()
            state = self.draft_of(head)
            returned = function(state)
            if returned is not None and returned is not state:
                if iscoroutine(returned):
                    returned.close()
                raise InvalidCall(
                    f"the function of update changes the draft that it is given and returns nothing, not "
                    f"{short(returned)}: nothing was committed"
                )
            try:
                return self.advance_from(head, state, metadata, expected=0 if head is None else head.number)
            except StaleVersion:
                tried += 1
                if tried == attempts:
                    raise
            # Random waits that grow keep writers from colliding again.
            time.sleep(random.random() * min(_LONGEST_WAIT, _WAIT * 2 ** min(tried, 10)))

    def draft_of(self, head: Head | None) -> Any:
        """Return a draft of the state of a head; of an empty state if there is no run yet."""
        root = FrozenDict() if head is None else head.root
        state = draft(root)
        if state is root:
            raise InvalidCall(
                f"the state of run {self.id!r} is not a dict or list and cannot be edited: use commit"
            )
        return state

    def fresh_head(self) -> Head | None:
        """Return the head that is in the store; None if there is no run yet."""
        with self._context.head_lock:
            cached = self._context.cached_reader(self.id)
            head = None if cached is None else cached.head
            if head is not None and self._store.revision(self.id) == (head.run.key, head.run.revision):
                return head
            while (run := self._store.run(self.id)) is not None:
                reader = self._reader_of(run)
                try:
                    reader.head = head = Head(run, reader.record(run.head), reader.state(run.head))
                except NotFound:
                    # Another writer may have moved the head and pruned this one meanwhile.
                    if self._store.revision(self.id) == (run.key, run.revision):
                        raise
                else:
                    return head
            return None

    def known_head(self) -> Head | None:
        """Return the newest head that this process knows; a commit detects that it is not the newest."""
        reader = self._context.cached_reader(self.id)
        if reader is not None and reader.head is not None:
            return reader.head
        return self.fresh_head()

    def head_of(self, run: RunRecord, version: VersionRecord | None = None) -> Head:
        """Return the head of a run's record that was read just now, perhaps with its version."""
        reader = self._reader_of(run)
        head = Head(run, reader.read(run.head, version), reader.state(run.head))
        reader.note_head(head)
        return head

    def refuse_known_key(self, head: Head | None, metadata: VersionMetadata) -> None:
        """Raise `AlreadyExists` if the run has a version with the key of a new one."""
        key = metadata.key
        if key is None or head is None:
            return
        found = self._store.version_by_key(head.run.key, key)
        if found is not None:
            raise AlreadyExists(
                f"version {found.number} of run {self.id!r} has the key {short(key)}: use another key",
                run=self.id,
                version=found.number,
                key=key,
            )

    def expect_head(self, head: Head | None, expected: int, version: VersionRecord | None = None) -> None:
        """Raise `StaleVersion` if the head is not the expected version; 0 is a run that does not exist."""
        self.expect(0 if head is None else head.number, expected)
        if head is not None:
            self.expect_same(head.version, version)

    def expect_same(self, found: VersionRecord, version: VersionRecord | None) -> None:
        """Raise `StaleVersion` if a version of the run is not the one that the caller has read, under its number."""
        if version is not None and found.hash != version.hash:
            raise StaleVersion(
                f"version {version.number} of run {self.id!r} is not the expected one, because the run was deleted and "
                "created again: read the head, then try again",
                run=self.id,
                expected=version.number,
                head=found.number,
            )

    def expect(self, number: int, expected: int) -> None:
        """Raise `StaleVersion` if the number of the head is not the expected one."""
        if number != expected:
            raise StaleVersion(
                f"run {self.id!r} is at version {number}, not {expected} as expected: read the head, then try again",
                run=self.id,
                expected=expected,
                head=number,
            )

    def check_target(self, number: int, run: RunRecord) -> None:
        """Raise if the head must not be moved to a version, because of its state."""
        if self._check is not None:
            self._check(self._reader_of(run).state(number))

    def note_moved(self, run: RunRecord, number: int) -> None:
        """Record that the head is this version now: the next commit is made from it."""
        self._note(Basis(run.key, number, SAME, self._by, object()))

    def _note(self, basis: Basis) -> None:
        """Record what the next state of this task or thread, and of those that share it, is made from."""
        self._context.bases.note_commit(self.id, basis)
        self._last = basis

    def _write(
        self,
        state: Any,
        base: Head | BaseState | None,
        head: Head | None,
        metadata: VersionMetadata,
        *,
        run: int | None,
        expected: int | None,
        resolve: Resolver | None,
        version: VersionRecord | None = None,
    ) -> tuple[Head, Any]:
        """Commit a state of the run with a key; return the new head, and the state before it was merged, or `SAME`."""
        known: object | None = None
        while True:
            if head is not None and run is not None and head.run.key != run:
                raise self._stale(head, "it is of a run of this id that was deleted and created again")
            check_status(head, metadata)
            drafted = self.build(state, base, head, metadata, resolve=resolve, known=known)
            known = known or drafted.space
            try:
                written = self._store.append(drafted.change)
            except StaleVersion:
                head = self.fresh_head()
                self.refuse_known_key(head, metadata)
                if expected is not None:
                    self.expect_head(head, expected, version)
                continue
            return self.note_committed(drafted, written), SAME if drafted.own is drafted.root else drafted.own

    def build(
        self,
        state: Any,
        base: Head | BaseState | None,
        head: Head | None,
        metadata: VersionMetadata,
        *,
        resolve: Resolver | None = None,
        known: object | None = None,
        run: RunRecord | None = None,
        input: Any = None,  # noqa: A002 - as the root is called
        events: Sequence[EventRecord] = (),
        timeline: int | None = None,
        view: str | None = None,
        leased: bool = False,
        now: int | None = None,
    ) -> VersionDraft:
        """Build the version of a state, made from `base`, that follows `head`; nothing is written yet.

        `known` is the address space for which the state was folded before. `run` is the run's record if the commit
        changes more of it than the version does, or creates it. `timeline` overrides the timeline of the version. With
        `view`, the state before merging is stored too if merging changes it, and the metadata have that name set.
        `leased` says that the owner of the run's lease commits it.
        """
        context = self._context
        space = object() if head is None else self._reader_of(head.run).space
        redact = context.redaction.redactor
        if redact is not self._redact:
            # Values that were folded with other patterns may hold secrets.
            self._fold_cache, self._redact = FoldCache(), redact
        folder = Folder(space, redact, self._fold_cache)
        if base is not None and state is base.root:
            root = state
        else:
            root = folder.fold(state, None if base is None else base.root)
            end_draft(state)
        if head is not None and known is not None and known is not space:
            # The run was created or pruned meanwhile: shared nodes have other places now.
            root = folder.fold(root, head.root)
        own = root
        if head is not None and base is not head and (base is None or base.number != head.version.number):
            was = FrozenDict() if base is None else base.root
            try:
                root = merge(was, own, head.root, resolve=resolve, reducers=self.reducers, fold=folder.fold)
            except MergeConflict as error:
                number = None if base is None else base.number
                raise explain_conflict(error, self._reader_of(head.run), number, head, metadata) from None
        if self._check is not None:
            self._check(root)
        trees = VersionTrees(root)
        if view is not None:
            metadata.more.pop(view, None)
            if own is not root:
                trees.view = own
                metadata.more[view] = True
        if metadata.result is not None:
            trees.result = folder.fold(metadata.result, part="result")
        if metadata.annotations is not None:
            trees.annotations = folder.fold(metadata.annotations, part="annotations")
        if metadata.error is not None:
            trees.error = folder.fold(metadata.error, part="error")
        if input is not None:
            trees.input = input if type(input) is Prepared else folder.fold(input, part="arguments")
        trees.arrivals = folder.arrivals
        now = context.clock() if now is None else now
        if run is None:
            run = self._new_run(now, redact) if head is None else head.run
        if head is not None:
            moves = root is not head.root and has_moved_nodes(root, head.root, space)
            trees.moved = run.last + 1 if moves else last_move(head)
        if metadata.events:
            own_events = (
                encode_event(event, now, redact, version=run.last + 1, step=metadata.step)
                for event in metadata.events
            )
            events = [*events, *own_events]
        if metadata.entries:
            events = [*events, *metadata.entries]
        if timeline is None and head is not None and head.version.timeline != run.timeline:
            timeline = self._timeline_after(head)
        change, writer = build_version(
            space, head, run, trees, metadata, now=now, events=events, timeline=timeline, leased=leased
        )
        return VersionDraft(change, writer, root, space, own, trees.result, trees.moved)

    def _new_run(self, now: int, redact: Redactor | None) -> RunRecord:
        detail = encode_detail(RunDetail(meta=redact_meta(self._meta, redact)))
        return RunRecord(id=self.id, created=now, updated=now, detail=detail)

    def _timeline_after(self, head: Head) -> int:
        """Return the timeline of the version that follows a head that is not on the newest one: a timeline that started
        at it and has no version yet (after a rollback), or else its own."""
        started = started_timelines(self._store, head.run, head.number)
        return open_timeline(self._store, head.run, started) or head.version.timeline

    def note_committed(self, drafted: VersionDraft, run: RunRecord) -> Head:
        """Return a draft that the store committed as a head, and share its nodes with later commits."""
        change = drafted.change
        assert change.version is not None
        reader = self._reader_of(run)
        if change.expect is None:
            # The run's first version was written in this address space.
            reader.space = drafted.space
        if reader.space is drafted.space:
            drafted.writer.stamp(reader.remember)
        made = Head(run, msgspec.structs.replace(change.version, pack=None), drafted.root, drafted.moved)
        if run.head == made.version.number:
            reader.note_head(made)
        elif reader.head is not None and reader.head.run.revision == run.revision - 1:
            reader.head = reader.head._replace(run=run)
        return made

    def note_run_changed(self, head: Head, run: RunRecord) -> Head:
        """Return a head with the run's changed record."""
        head = head._replace(run=run)
        self._reader_of(run).note_head(head)
        return head

    def _reader_of(self, run: RunRecord) -> Reader:
        reader = self._reader
        if reader is None or reader.run.key != run.key or reader.run.epoch != run.epoch:
            self._reader = reader = self._context.reader(run)
        return reader

    def _base(self, head: Head | None, basis: Basis | None) -> Head | BaseState | None:
        """Return the state that a plain state was made from."""
        if head is None or basis is None or head.run.key != basis.run:
            return head
        if basis.own is FORGOTTEN:
            why = f"its last commit, version {basis.number}, was merged, and so were too many others since"
            raise self._stale(head, why)
        if basis.own is not SAME:
            return BaseState(basis.own)
        if basis.number == head.number:
            return head
        reader = self._reader_of(head.run)
        try:
            return Head(head.run, reader.record(basis.number), reader.state(basis.number))
        except NotFound:
            why = f"version {basis.number}, which it was made from, was removed"
            raise self._stale(head, why, expected=basis.number) from None

    def _stale(self, head: Head, why: str, **details: int) -> StaleVersion:
        return StaleVersion(
            f"a state of run {self.id!r} cannot be merged with the head: {why}; read the head, then try again",
            run=self.id,
            head=head.number,
            **details,
        )


class Edit:
    """Context manager of `History.edit`."""

    __slots__ = ("_committer", "_expected", "_head", "_metadata", "_resolve", "_state", "_version", "number")

    #: The number of the committed version, once the block has ended.
    number: int

    def __init__(
        self,
        committer: Committer,
        metadata: VersionMetadata,
        expected: int | None,
        version: VersionRecord | None,
        resolve: Resolver | None,
    ) -> None:
        self._committer = committer
        self._metadata = metadata
        self._expected = expected
        self._version = version
        self._resolve = resolve

    def __enter__(self) -> Any:
        self._head = head = self._committer.fresh_head()
        if self._expected is not None:
            self._committer.expect_head(head, self._expected, self._version)
        self._state = self._committer.draft_of(head)
        return self._state

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if kind is None:
                made = self._committer.advance_from(
                    self._head, self._state, self._metadata, expected=self._expected, resolve=self._resolve
                )
                self.number = made.number
        finally:
            end_draft(self._state)


def is_another(head: Head, version: VersionRecord | None) -> bool:
    """Return whether a head is not the version that the caller has read."""
    return version is not None and head.version.hash != version.hash


def started_timelines(store: Store, run: RunRecord, number: int) -> list[int]:
    """Return the timelines that started at a version, oldest first."""
    if run.timeline == 1:
        return []
    return [line.number for line in store.timelines(run.key) if line.parent == number]


def open_timeline(store: Store, run: RunRecord, started: Sequence[int]) -> int | None:
    """Return the newest of some timelines that has no version yet; None if there is none."""
    for timeline in reversed(started):
        # Stubs of the origin have numbers below 1, and the timelines of the origin.
        if not store.versions(run.key, timeline=timeline, after=0, limit=1, pruned=True):
            return timeline
    return None


def check_status(head: Head | None, metadata: VersionMetadata) -> None:
    """Raise `InvalidCall` if a commit by hand would change the status of a workflow's run."""
    status = metadata.status
    if status is None or head is None or head.run.workflow is None or status == head.run.status:
        return
    raise InvalidCall(
        f"run {head.run.id!r} of workflow {head.run.workflow!r} is {head.run.status}, and a commit by hand cannot make "
        f"it {status}: leave out status=, and use pause, cancel, resume or rollback",
        run=head.run.id,
        status=head.run.status,
    )


def check_resolver(resolve: Any) -> None:
    """Raise `InvalidCall` if `resolve` is not a function of path, base, ours and theirs."""
    if resolve is not None and not callable(resolve):
        raise InvalidCall(
            "resolve is a function of path, base, ours and theirs that returns the value to keep"
        )
    if resolve is not None:
        check_plain_function("resolve", resolve, "path", "base", "ours", "theirs")
