"""One run's history: commit, go back, merge, mark, prune; what can be read of it is its past.

Each operation has a module of its own; `History` is the door to them.

Invariant: history is append-only. No method changes or removes a version, except `prune` and `drop`, which say so.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from holdfast.errors import InvalidCall, InvalidReference, NotFound, StaleVersion
from holdfast.history import retention
from holdfast.history.advance import Edit, Line, Resolver, check_resolver, refuse_status
from holdfast.history.commit import Facts
from holdfast.history.context import Context
from holdfast.history.follow import follow, patched
from holdfast.history.marks import set_mark
from holdfast.history.past import Past
from holdfast.history.reader import Head
from holdfast.history.rollback import begin_anew, move_head
from holdfast.history.telling import Told, check_told, tell
from holdfast.history.version import Version, segments_of
from holdfast.model.names import MAX_STEP, check_number, check_tag, check_text, short
from holdfast.model.public import Pruned, Timeline
from holdfast.model.records import PIN, RunRecord
from holdfast.model.retention import Retention
from holdfast.tree.fold import Folded, Folder
from holdfast.tree.frozen import FrozenDict
from holdfast.tree.merge import merge
from holdfast.tree.reducers import Declared, reducers_of

_PAGE = 256
#: How often a pruning begins anew because others are writing, before they are given the right of way.
_TRIES = 9


class History(Past):
    """The versions of one run. The run is made by the first commit."""

    def __init__(self, context: Context, run_id: str, merge: Declared | None = None) -> None:
        super().__init__(context, run_id)
        self._line = Line(context, self.id, reducers_of(merge), self._by)

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
        events: Iterable[Told] = (),
        expected: int | Version | None = None,
        resolve: Resolver | None = None,
        after: int | Version | None = None,
        move: bool = True,
    ) -> Version:
        """Make `state`, an ordinary or a frozen tree, the next version.

        Whatever equals the head exactly is shared with it. With `expected`, the head must be that version, or
        `StaleVersion` is raised. Without, the state counts as made from the head whose state this thread or task read
        last, or else from its last commit; a change made meanwhile by others is merged, or `MergeConflict`, unless
        `resolve` decides: a function of the path, the common value, ours and theirs.

        With `after`, it follows that version, whoever else went on from there: on its timeline, if it is the last
        one there, and else on a new one. The head moves to it; with `move=False`, a head elsewhere stays.

        Kept with the version: the `step` that made it and its `result` or `error`, `tags`, a `note`, the `actor` who
        made it, and `meta`: what shaped it (model, prompt, cost, …). `status` is that of a manual run from here on,
        which otherwise stays as it is; the run of a workflow keeps its status. `events` are entries of your
        own for the journal, each a kind and its data: `[("agent.woke", {"by": "cron"})]`.
        """
        facts = Facts(step, result, tags, note, actor, meta, error, kind, status, events=events)
        facts.check()
        check_resolver(resolve)
        number = self._expected(expected)
        if after is not None:
            return self._follow(after, number, lambda root: state, facts, move)
        return self._made(self._line.advance(state, facts, expected=number, resolve=resolve))

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
        """Make the state of the version `after`, with the values that are given for paths, the version that follows it.
        The cost follows what is given, whatever else the state holds. A path leads to a key of a dict, new or
        not, or to an index of a list, its length for one more. The other arguments are those of `commit`."""
        facts = Facts(step=step, note=note, actor=actor, kind=kind)
        facts.check()
        if not isinstance(changes, Mapping):
            raise InvalidCall(
                f"patch takes a dict of paths and values, such as {{'plan.done': True}}, not {short(changes)}"
            )
        given = [(segments_of(path), value) for path, value in changes.items()]
        return self._follow(after, self._expected(expected), lambda root: patched(root, given), facts, move)

    def edit(
        self,
        *,
        step: str | None = None,
        result: Any = None,
        tags: Iterable[str] = (),
        note: str | None = None,
        actor: str | None = None,
        meta: Any = None,
        error: Any = None,
        status: str | None = None,
        events: Iterable[Told] = (),
        expected: int | Version | None = None,
        resolve: Resolver | None = None,
    ) -> Edit:
        """A draft of the head's state: committed at the end of the block, dropped if it raises. The arguments are those
        of `commit`."""
        facts = Facts(step, result, tags, note, actor, meta, error, None, status, events=events)
        facts.check()
        check_resolver(resolve)
        return Edit(self._line, facts, self._expected(expected), resolve)

    def update(
        self,
        function: Callable[[Any], None],
        *,
        step: str | None = None,
        result: Any = None,
        tags: Iterable[str] = (),
        note: str | None = None,
        actor: str | None = None,
        meta: Any = None,
        attempts: int | None = None,
    ) -> Version:
        """Apply a function to a draft of the newest state and commit it; if others commit meanwhile, apply it again to
        what is the newest state then, so that no update is lost. Returns the version.

        The function changes the draft, as the block of `edit` does, and returns nothing. It may be called several
        times: it should have no effect elsewhere. Every repetition means that another writer has made progress, so
        they are not bounded, unless `attempts` is given: `StaleVersion` after so many. The other arguments are those
        of `commit`.
        """
        if not callable(function):
            raise InvalidCall(f"update takes a function of the draft of a state, not {short(function)}")
        if attempts is not None:
            check_number("attempts", attempts, 1)
        facts = Facts(step, result, tags, note, actor, meta)
        facts.check()
        return self._made(self._line.update(function, facts, attempts))

    def capture(self, value: Any) -> Folded:
        """A value as it is at this moment, to stand in a state that is committed later, or in another thread; secrets
        are replaced. `UnsupportedValue` if it cannot be stored."""
        folder = Folder(None, self._context.redact)
        return Folded(folder.fold(value), object(), folder.arrivals)

    def tell(
        self,
        kind: str,
        data: Mapping[str, Any] | None = None,
        *,
        version: int | Version | None = None,
        step: str | None = None,
    ) -> None:
        """Write an entry of your own into the journal of the run, and no version: what happened, in words with points
        between them, and what is to be known about it. Subscribers hear of it."""
        (told,) = check_told([(kind, {} if data is None else data)])
        check_text("step", step, MAX_STEP)
        tell(self._context, self.id, told, version=self._expected(version), step=step)

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

        With `state`, the new timeline begins with a version of that state in the same moment, made by `step`. With
        `expected`, the head must be that version, or `StaleVersion` is raised.
        """
        check_text("reason", reason, 10_000)
        facts = Facts(step=step, note=reason, actor=actor)
        facts.check()
        number = self._expected(expected)
        while True:
            run = self._run()
            if number is not None and number != run.head:
                raise StaleVersion(
                    f"run {self.id!r} is at version {run.head}, not {number} as expected: look at it, then try again",
                    run=self.id,
                    expected=number,
                    head=run.head,
                )
            target = self.at(to)
            self._context.may_roll_back(run, target.number)
            try:
                if state is None:
                    move_head(self._context, run, target._record, reason=reason, actor=actor)
                else:
                    target = self._begin_anew(run, target, state, facts)
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
        dry_run: bool = False,
    ) -> Version:
        """Bring what another version, or the last version of another timeline, changed since the common
        ancestor into the head. With `dry_run`, nothing is written: the head is returned as it is, or
        `MergeConflict` raised."""
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
        merged = merge(
            base, reader.state(theirs.number), head.root, resolve=resolve, reducers=self._line.reducers, agree=True,
            fold=folder.fold,
        )  # fmt: skip
        facts = Facts(note=note, actor=actor, kind="merge", more={"merged": theirs.number})
        facts.check()
        if dry_run:
            return self._made(head)
        return self._made(self._line.advance_from(head, merged, facts, resolve=resolve))

    # Marks and retention

    def tag(self, ref: int | str | Version, name: str) -> None:
        """Give a version a name."""
        set_mark(self._context, self.at(ref), check_tag(name), on=True)

    def untag(self, ref: int | str | Version, name: str) -> None:
        """Take a name from a version; `NotFound` if it does not have it."""
        set_mark(self._context, self.at(ref), check_tag(name), on=False)

    def pin(self, ref: int | str | Version) -> None:
        """Keep a version from being pruned."""
        set_mark(self._context, self.at(ref), PIN, on=True)

    def unpin(self, ref: int | str | Version) -> None:
        """Let a version be pruned again."""
        set_mark(self._context, self.at(ref), PIN, on=False)

    def prune(self, policy: Retention, *, dry_run: bool = False, quiet: bool = False) -> Pruned:
        """Remove the versions that a policy does not keep; with `dry_run`, only say which. The journal tells of it,
        unless it is to be `quiet`: where versions come and go by the minute, it would grow for ever."""
        if not isinstance(policy, Retention):
            raise InvalidCall("prune takes a policy, such as holdfast.Retention(last=100)")
        return self._try_prune(policy, dry_run, quiet)

    def drop(self, versions: Iterable[int | Version], *, dry_run: bool = False) -> Pruned:
        """Remove versions that are named, but for those that are always kept: the head, tagged and pinned ones, fork
        points, and whatever a live run needs. With `dry_run`, only say which."""
        if isinstance(versions, str | Version) or not isinstance(versions, Iterable):
            raise InvalidCall("drop takes a list of versions, such as [3, 4]")
        return self._try_prune({self.at(version).number for version in versions}, dry_run)

    def _try_prune(self, policy: Retention | Collection[int], dry_run: bool, quiet: bool = False) -> Pruned:
        for _ in range(_TRIES):
            try:
                return self._prune(policy, dry_run, quiet)
            except StaleVersion:
                continue
        return self._prune(policy, dry_run, quiet)

    # How it works

    def _follow(
        self,
        after: int | Version,
        expected: int | None,
        change: Callable[[Any], Any],
        facts: Facts,
        move: bool,
    ) -> Version:
        number = self._expected(after)
        if not number:
            raise InvalidReference("after names a version that is followed: 1 or more")
        head = self._line.known_head()
        is_fresh = False
        while True:
            if head is None:
                raise NotFound(f"there is no run {self.id!r}: commit to it first", run=self.id)
            if expected is not None and head.version.number != expected:
                head = self._line.fresh_head()
                self._line.expect(head, expected)
                assert head is not None
            refuse_status(head, facts)
            try:
                if number != head.version.number and head.run.workflow is not None and not is_fresh:
                    # The head that is known here may have moved: another may have rolled the run back.
                    is_fresh, head = True, self._line.fresh_head()
                    continue
                if number == head.version.number:
                    drawn = self._line.draw(change(head.root), head, head, facts)
                    made = self._line.settle(drawn, self._store.append(drawn.change))
                else:
                    reader = self._context.reader(head.run)
                    at = Head(head.run, reader.record(number), reader.state(number))
                    made = follow(self._context, self._line, at, change(at.root), facts, move=move)
            except StaleVersion:
                head = self._line.fresh_head()
                continue
            if made.run.head == made.version.number:
                self._line.note_moved(made.version.number)
            return self._made(made)

    def _begin_anew(self, run: RunRecord, target: Version, state: Any, facts: Facts) -> Version:
        if run.workflow is not None:
            raise InvalidCall(
                f"run {self.id!r} belongs to a workflow, whose state comes from its steps: fork it with edit=…",
                run=self.id,
            )
        at = Head(run, target._record, self._context.reader(run).state(target.number))
        return self._made(begin_anew(self._context, self._line, at, state, facts))

    def _made(self, head: Head) -> Version:
        return Version(self, self._context.reader(head.run), head.version)

    def _expected(self, expected: int | Version | None) -> int | None:
        if isinstance(expected, Version):
            return self._own(expected).number
        return None if expected is None else check_number("expected", expected, 0)

    def _prune(self, policy: Retention | Collection[int], dry_run: bool, quiet: bool) -> Pruned:
        now = self._context.clock()
        return retention.prune(
            self._context.store, self._run(), policy, now=now, dry_run=dry_run, quiet=quiet
        )

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
