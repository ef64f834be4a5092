"""What each line of execution in a run sees of the state.

The workflow's own code, with the steps that it awaits one after the other, is one line of execution; each branch of
`parallel` and each asyncio task is another. A line sees the state as it was where it branched off, and the changes that
it has made since. It sees those of another line once it has *joined* it: `parallel` has returned, or the task was
awaited. A step starts from what its caller sees at the moment of the call, so its start does not depend on how fast
others are, on the number of threads, or on the store.

Each version is recorded on top of the head, into which the step's change is merged. Where the merged state is not what
the line itself sees, the version keeps that, too (`VIEW`), so that a replay sees the same.

Invariant: what a line sees is the state where it branched off, with the changes of its own versions, and of those of
the lines that it has joined, in the order in which they were recorded. A line that has joined all others sees the head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.errors import MergeConflict
from holdfast.history.reader import Head, Start
from holdfast.runtime.boundary import briefly
from holdfast.tree.merge import merge

if TYPE_CHECKING:
    from holdfast.history.advance import Resolver
    from holdfast.runtime.record import Entry
    from holdfast.runtime.sight import Sight

#: The detail of a version that says how the line that made it sees the state after it: as the version keeps it (True),
#: as before it (False); without it, as the version's state.
MARK = "view"


class Seen:
    """A state that a line sees. Its tree is read when it is asked for."""

    __slots__ = ("number", "own", "root")

    def __init__(self, root: Any, number: int | None = None, own: bool = False) -> None:
        self.root = root
        #: The version that keeps it, counted as the lineage of the run counts (0 is where it was forked): as its state,
        #: or as the line's own view. None if none does.
        self.number = number
        self.own = own

    def shed(self) -> None:
        """Drop the tree if it can be read again."""
        if self.number is not None:
            self.root = None


class Made(NamedTuple):
    """A version that a line has recorded."""

    number: int
    before: Seen
    after: Seen
    resolve: Resolver | None


class View:
    """What one line of execution sees. That of the workflow's own code follows the head while there is no other."""

    __slots__ = ("_around", "_base", "_ended", "_late", "_made", "_seen", "_sight", "_synced", "apart")

    def __init__(self, sight: Sight, start: Seen | None = None, around: View | None = None) -> None:
        self._sight = sight
        #: The line that this one branched off from; None for the workflow's own.
        self._around = around
        self._base = start
        self._seen = start
        self._made: list[Made] = []
        #: Versions that have been joined and are not in `_seen` yet.
        self._late: list[Made] = []
        #: Changes made from outside the run are seen up to this version.
        self._synced = 0 if around is None else around.synced()
        self._ended = False
        #: Of the workflow's own: how many versions are recorded in lines that it has not joined.
        self.apart = 0

    @property
    def follows(self) -> bool:
        """Does it see all that is recorded?"""
        return self._around is None and not self.apart

    def synced(self) -> int:
        """The version up to which it sees changes made from outside the run."""
        return self._sight.newest if self.follows else self._synced

    def now(self) -> Seen | Head:
        """Return what the line sees at this moment."""
        if self._around is None and not self.apart:
            return self._sight.followed()
        late: list[Made] = []
        with briefly:
            if self._late:
                late, self._late = sorted(self._late), []
                self._made.sort()
                made = list(self._made)
            seen, base = self._seen, self._base
        if seen is None or base is None:
            # The workflow's own line has joined the last of the others in this moment.
            return self._sight.followed()
        if late:
            self._seen = seen = self._folded(base, seen, late, made)
        outside = self._sight.outside
        if outside and outside[-1] > self._synced:
            self._seen = seen = self._with_outside(seen, self._synced)
            self._synced = outside[-1]
        return seen

    def updated(self, start: Seen | Head) -> Seen | Head:
        """Return a state that this line saw earlier with the changes made from outside the run since then."""
        outside = self._sight.outside
        synced = self.synced() if start.number is None else start.number
        return self._with_outside(start, synced) if outside and outside[-1] > synced else start

    def branch(self, start: Seen | Head | None = None) -> View:
        """Return the view of a line that branches off here, or from another state."""
        branch = View(self._sight, _seen(self.now() if start is None else start), self)
        if start is not None and start.number is not None:
            branch._synced = min(branch._synced, start.number)
        return branch

    def note(self, number: int, before: Seen | None, after: Seen | None, resolve: Resolver | None) -> None:
        """A version of this line was recorded, now or earlier, that changed the state from `before` (None: what the
        line sees) to `after` (None: not at all). To be called while `briefly` is held."""
        main = self._sight.main
        if self is main:
            if not self.apart:
                return
        elif not main.apart:
            main._freeze()
        if number in self._sight.noted:
            # By an attempt before this one.
            return
        self._sight.noted.add(number)
        if self is not main:
            main.apart += 1
        seen = self._seen
        assert seen is not None
        if before is None or before.root is seen.root:
            before = seen
        self._made.append(Made(number, before, after or before, resolve))
        if after is not None:
            if seen is not self._base:
                seen.shed()
            self._seen = after

    def replayed(self, entry: Entry, resolve: Resolver | None) -> None:
        """A recorded version of this line was passed."""
        if self._late:
            self.now()
        mark = entry.detail.get(MARK)
        after = None if entry.failed or mark is False else Seen(None, entry.number, mark is True)
        with briefly:
            self.note(entry.number, None, after, resolve)
        if after is not None:
            # The state of that version is seen now, without later changes from outside the run.
            self._synced = min(self._synced, entry.number)

    def join(self) -> Seen | View | None:
        """Let the line that this one branched off from see its changes; returns what that one sees now, to be worked
        out when it is needed, or None if nothing was changed."""
        around, main = self._around, self._sight.main
        if around is None:
            return None
        with briefly:
            self._ended = True
            made, self._made = self._made, []
            if not made:
                return None
            newest = max(each.number for each in made)
            if around is main:
                main.apart -= len(made)
                if not main.apart:
                    # A line that was joined before this one may have recorded a later version.
                    newest = max(each.number for each in (*main._made, *made))
                    main._made, main._late, main._seen, main._base = [], [], None, None
                    self._sight.noted.clear()
            if around is not main or main.apart:
                around._late += made
                around._made += made
        if around is main:
            self._sight.reached(newest)
        elif around._ended:
            return around.join()
        return Seen(None, newest) if around.follows else around

    def _freeze(self) -> None:
        self._seen = self._base = _seen(self._sight.followed())
        self._synced = self._sight.newest
        self._made, self._late = [], []

    def _folded(self, base: Seen, seen: Seen, late: list[Made], made: list[Made]) -> Seen:
        """What is seen with the versions of lines that were joined."""
        joined = {each.number for each in late}
        newest = max((each.number for each in made if each.number not in joined), default=0)
        # In the order in which they were recorded: all over again if a version that is seen came after one of them.
        start, todo = (base, made) if newest > late[0].number else (seen, late)
        root = self._sight.root_of(start)
        for each in todo:
            if each.before is not each.after:
                root = self._changed(root, each)
        return Seen(root)

    def _changed(self, root: Any, made: Made) -> Any:
        sight = self._sight
        before, after = sight.root_of(made.before), sight.root_of(made.after)
        fold = sight.folder().fold
        try:
            return merge(before, after, root, resolve=made.resolve, reducers=sight.reducers, fold=fold)
        except MergeConflict:
            # They did not conflict in the head, which had more: the later one counts.
            return merge(before, after, root, resolve=_later, fold=fold)

    def _with_outside(self, seen: Seen | Head, synced: int) -> Seen:
        """Return a state with the changes that were made from outside the run after the version `synced`."""
        root = self._sight.root_of(seen)
        for number in self._sight.outside:
            if number > synced:
                before, after = self._sight.change_of(number)
                root = merge(before, after, root, resolve=_later, fold=self._sight.folder().fold)
        return Seen(root)


def _later(path: tuple[Any, ...], base: Any, ours: Any, theirs: Any) -> Any:
    return ours


def _seen(state: Seen | Head) -> Seen:
    return Seen(state.root, state.number) if isinstance(state, Head) else state


def is_same(one: Seen | Head, other: Seen | Head) -> bool:
    """Are these the same state, as far as that is known without reading it?"""
    if one is other:
        return True
    own = [isinstance(each, Seen) and each.own for each in (one, other)]
    return one.number is not None and one.number == other.number and own[0] == own[1]


def start_of(sight: Sight, seen: Seen | Head | View) -> Head | Start:
    """Return a state that is seen, or that a line sees now, as something to start from."""
    if isinstance(seen, View):
        seen = seen.now()
    if isinstance(seen, Head):
        return seen
    return Start(sight.root_of(seen), None if seen.own else seen.number)
