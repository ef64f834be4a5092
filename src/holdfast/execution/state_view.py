"""The state that each branch of execution in a run sees.

The workflow's own code, with the steps that it awaits one after the other, is the main branch; each branch of
`parallel` and each asyncio task is another. A branch sees the state as it was where it branched off, and its own
changes since. It sees those of another branch once it has *joined* it: `parallel` has returned, or the task was
awaited. A step starts from the state that its caller sees at the moment of the call, so its start does not depend on
the speed of other branches, on the number of threads, or on the store.

Each version is recorded on top of the head, into which the step's change is merged. Where the merged state differs
from the state that the branch sees, the version stores both (`VIEW`), so that a replay sees the same.

Invariant: a branch sees the state where it branched off, with the changes of its own versions and of those of the
branches that it has joined, in the order in which they were recorded. A branch that has joined all others sees the
head. The workflow's own code sees the same state, between the same steps, whenever it is run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast.errors import MergeConflict
from holdfast.execution.stop_control import brief_lock
from holdfast.history.builder import STATE, VIEW
from holdfast.history.reader import BaseState, Head
from holdfast.tree.fold import Folder
from holdfast.tree.merge import Reducers, merge

if TYPE_CHECKING:
    from holdfast.execution.replay_log import RecordedStep, ReplayLog
    from holdfast.history.committer import Resolver
    from holdfast.history.context import StoreContext


class HeadSource(Protocol):
    """An execution, as far as its state is concerned."""

    head: Head


class StateView:
    """The state of one run as its code sees it: after the steps that were replayed or run so far."""

    def __init__(
        self, source: HeadSource, context: StoreContext, replay_log: ReplayLog, reducers: Reducers | None
    ) -> None:
        self.source = source
        self._context = context
        self._replay_log = replay_log
        #: The version that the replay has reached; None once the head is.
        self.position: int | None = replay_log.first if replay_log.steps else None
        #: The newest version that was recorded before this execution.
        self.newest_recorded = max((entry.number for entry in replay_log.steps.values()), default=0)
        #: The last root that was shown to code, and its frozen form.
        self._shown: tuple[Any, Any] = (None, None)
        #: How concurrent changes of one place are merged.
        self.reducers = reducers
        #: Versions that were made from outside the run, in order, and those that views have noted.
        self.outside: list[int] = list(replay_log.outside)
        self.noted: set[int] = set()
        #: The view of the workflow's own code.
        self.main = BranchView(self)

    @property
    def newest(self) -> int:
        """The version that a branch sees which has joined all others."""
        return self.source.head.version.number if self.position is None else self.position

    def current(self) -> Head | ViewedState:
        """Return the state that a branch sees which has joined all others: the head's, or that of the version which
        the replay has reached."""
        return self.source.head if self.position is None else ViewedState(None, self.position)

    def reach(self, number: int) -> None:
        """Note that the main branch has replayed a version."""
        if self.position is not None:
            self.position = None if number >= self.newest_recorded else max(self.position, number)

    def folder(self) -> Folder:
        """Return a folder for values of this run."""
        return Folder(self._context.reader(self.source.head.run).space, self._context.redact)

    def root_of(self, seen: ViewedState | Head) -> Any:
        """Return the tree of a state."""
        root = seen.root
        if root is None and isinstance(seen, ViewedState) and seen.number is not None:
            reader = self._context.reader(self.source.head.run)
            seen.root = root = reader.root(seen.number, VIEW if seen.own else STATE)
        return root

    def change_of(self, number: int) -> tuple[Any, Any]:
        """Return the states before and after a version that was made from outside the run."""
        reader = self._context.reader(self.source.head.run)
        version = reader.record(number)
        # Of a version before a fork, the numbers are those of the run that was forked.
        before = number - (version.number - version.parent)
        return reader.state(before), reader.state(number)

    def show(self, view: BranchView) -> Any:
        """Return the frozen state that a branch sees."""
        root = self.root_of(view.now())
        shown = self._shown
        if shown[0] is not root:
            shown = self._shown = (root, self._context.reader(self.source.head.run).show(root))
        return shown[1]

    def start_of_step(self, address: str, view: BranchView, start: ViewedState | Head) -> Head | BaseState:
        """Return the state that a step starts from: the state that its caller saw when it called, with the changes made
        from outside the run. A step that is run again because its failure was dropped starts from the head: others may
        have been recorded since."""
        log = self._replay_log
        if view.follows and address in log.failed and address not in log.before_inner:
            return self.source.head
        if self.outside:
            start = view.with_edits(start)
        return start if isinstance(start, Head) else self.as_base(start)

    def as_base(self, seen: ViewedState | Head | BranchView) -> Head | BaseState:
        """Return a state, or the state that a branch sees now, as the base of a change."""
        if isinstance(seen, BranchView):
            seen = seen.now()
        if isinstance(seen, Head):
            return seen
        return BaseState(self.root_of(seen), None if seen.own else seen.number)


#: The detail of a version that says how the branch that made it sees the state after it: as the version stores it
#: (True), as before it (False); without it, as the version's state.
MARK = "view"


class ViewedState:
    """A state that a branch sees. Its tree is read on demand."""

    __slots__ = ("number", "own", "root")

    def __init__(self, root: Any, number: int | None = None, own: bool = False) -> None:
        self.root = root
        #: The version that stores it, numbered as in the lineage of the run (0 is where it was forked): as its state,
        #: or as the view of the branch (`own`). None if no version does.
        self.number = number
        self.own = own

    def drop_root(self) -> None:
        """Drop the tree if it can be read again."""
        if self.number is not None:
            self.root = None


class BranchVersion(NamedTuple):
    """A version that a branch has recorded."""

    number: int
    before: ViewedState
    after: ViewedState
    resolve: Resolver | None


class BranchView:
    """The state that one branch sees. The main branch follows the head while there is no other."""

    __slots__ = (
        "_around",
        "_state",
        "apart",
        "base",
        "ended",
        "follows",
        "late",
        "made",
        "seen",
        "synced_to",
    )

    def __init__(
        self, state: StateView, start: ViewedState | None = None, around: BranchView | None = None
    ) -> None:
        self._state = state
        #: The branch that this one branched off from; None for the main one.
        self._around = around
        self.base = start
        self.seen = start
        self.made: list[BranchVersion] = []
        #: Versions of joined branches that are not in `seen` yet.
        self.late: list[BranchVersion] = []
        #: The version up to which it sees changes made from outside the run.
        self.synced_to = 0 if around is None else around.synced()
        self.ended = False
        #: Of the main branch: how many versions are recorded in branches that it has not joined.
        self.apart = 0
        #: Does it see everything that is recorded?
        self.follows = around is None

    def synced(self) -> int:
        """Return the version up to which it sees changes made from outside the run."""
        return self._state.newest if self.follows else self.synced_to

    def now(self) -> ViewedState | Head:
        """Return the state that the branch sees at this moment."""
        state = self._state
        if self.follows:
            return state.source.head if state.position is None else state.current()
        late: list[BranchVersion] = []
        with brief_lock:
            if self.late:
                late, self.late = sorted(self.late), []
                self.made.sort()
                made = list(self.made)
            seen, base = self.seen, self.base
        if seen is None or base is None:
            # The main branch has joined the last of the others in this moment.
            return self._state.current()
        if late:
            self.seen = seen = self._folded(base, seen, late, made)
        outside = self._state.outside
        if outside and outside[-1] > self.synced_to:
            self.seen = seen = self._with_outside(seen, self.synced_to)
            self.synced_to = outside[-1]
        return seen

    def with_edits(self, start: ViewedState | Head) -> ViewedState | Head:
        """Return a state that this branch saw earlier, with the changes made from outside the run since then."""
        outside = self._state.outside
        synced = self.synced() if start.number is None else start.number
        return self._with_outside(start, synced) if outside and outside[-1] > synced else start

    def branch(self, start: ViewedState | Head | None = None) -> BranchView:
        """Return the view of a branch that starts here, or from another state."""
        branch = BranchView(self._state, _viewed(self.now() if start is None else start), self)
        if start is not None and start.number is not None:
            branch.synced_to = min(branch.synced_to, start.number)
        return branch

    def note(
        self, number: int, before: ViewedState | None, after: ViewedState | None, resolve: Resolver | None
    ) -> None:
        """Note a version of this branch, recorded now or earlier, that changed the state from `before` (None: the state
        that the branch sees) to `after` (None: not at all). The caller holds `brief_lock`."""
        main = self._state.main
        if self is main:
            if not self.apart:
                return
        elif not main.apart:
            main.freeze()
        if number in self._state.noted:
            # An earlier attempt noted it.
            return
        self._state.noted.add(number)
        if self is not main:
            main.apart += 1
        seen = self.seen
        assert seen is not None
        if before is None or before.root is seen.root:
            before = seen
        self.made.append(BranchVersion(number, before, after or before, resolve))
        if after is not None:
            if seen is not self.base:
                seen.drop_root()
            self.seen = after

    def note_replayed(self, entry: RecordedStep, resolve: Resolver | None) -> None:
        """Note that a recorded version of this branch was replayed."""
        if self.late:
            self.now()
        mark = entry.detail.get(MARK)
        after = None if entry.failed or mark is False else ViewedState(None, entry.number, mark is True)
        with brief_lock:
            self.note(entry.number, None, after, resolve)
        if after is not None:
            # The branch sees the state of that version now, without later changes from outside the run.
            self.synced_to = min(self.synced_to, entry.number)

    def join(self) -> ViewedState | BranchView | None:
        """Let the branch around this one see its changes. Return the state that it sees now, computed on demand; None
        if nothing was changed."""
        around, main = self._around, self._state.main
        if around is None:
            return None
        with brief_lock:
            self.ended = True
            made, self.made = self.made, []
            if not made:
                return None
            newest = max(each.number for each in made)
            if around is main:
                main.apart -= len(made)
                if not main.apart:
                    main.follows = True
                    # A branch that was joined before this one may have recorded a later version.
                    newest = max(each.number for each in (*main.made, *made))
                    main.made, main.late, main.seen, main.base = [], [], None, None
                    self._state.noted.clear()
            if around is not main or main.apart:
                around.late += made
                around.made += made
        if around is main:
            self._state.reach(newest)
        elif around.ended:
            return around.join()
        return ViewedState(None, newest) if around.follows else around

    def freeze(self) -> None:
        self.seen = self.base = _viewed(self._state.current())
        self.synced_to = self._state.newest
        self.made, self.late = [], []
        self.follows = False

    def _folded(
        self, base: ViewedState, seen: ViewedState, late: list[BranchVersion], made: list[BranchVersion]
    ) -> ViewedState:
        """Return the state with the versions of branches that were joined."""
        joined = {each.number for each in late}
        newest = max((each.number for each in made if each.number not in joined), default=0)
        # In the order in which they were recorded: from the base again if a version that is seen came after one.
        start, todo = (base, made) if newest > late[0].number else (seen, late)
        root = self._state.root_of(start)
        for each in todo:
            if each.before is not each.after:
                root = self._changed(root, each)
        return ViewedState(root)

    def _changed(self, root: Any, made: BranchVersion) -> Any:
        state = self._state
        before, after = state.root_of(made.before), state.root_of(made.after)
        fold = state.folder().fold
        try:
            return merge(before, after, root, resolve=made.resolve, reducers=state.reducers, fold=fold)
        except MergeConflict:
            # They did not conflict in the head, which had more changes: the later one wins.
            return merge(before, after, root, resolve=_later, fold=fold)

    def _with_outside(self, seen: ViewedState | Head, synced: int) -> ViewedState:
        """Return a state with the changes that were made from outside the run after the version `synced`."""
        root = self._state.root_of(seen)
        for number in self._state.outside:
            if number > synced:
                before, after = self._state.change_of(number)
                root = merge(before, after, root, resolve=_later, fold=self._state.folder().fold)
        return ViewedState(root)


def _later(path: tuple[Any, ...], base: Any, ours: Any, theirs: Any) -> Any:
    return ours


def _viewed(state: ViewedState | Head) -> ViewedState:
    return ViewedState(state.root, state.number) if isinstance(state, Head) else state


def is_same(one: ViewedState | Head, other: ViewedState | Head) -> bool:
    """Return whether two states are the same, as far as that is known without reading them."""
    if one is other:
        return True
    own = [isinstance(each, ViewedState) and each.own for each in (one, other)]
    return one.number is not None and one.number == other.number and own[0] == own[1]
