"""Moving a run forward: a state becomes the next version, whoever else is writing.

A plain state that is committed was made from the version whose state its thread or task has read (see `bases`), or,
where none was read, from the one that was committed before, or else from the head: if the run has moved on meanwhile,
the change, and not the whole state, is carried over to the new head by a three-way merge.

Invariant: an acknowledged version is in the store; a change is either in it, or was refused with an error.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from inspect import iscoroutine
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import InvalidCall, MergeConflict, NotFound, StaleVersion
from holdfast.history.commit import Facts, Parts, draw_up, last_move
from holdfast.history.conflicts import explained
from holdfast.history.context import Context
from holdfast.history.moves import moved
from holdfast.history.reader import Head, Reader, Start
from holdfast.history.telling import entry_of
from holdfast.model.names import short
from holdfast.model.records import EventRecord, RunRecord, VersionRecord
from holdfast.store.base import Append
from holdfast.tree.draft import draft, end_draft
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import FrozenDict
from holdfast.tree.merge import merge
from holdfast.tree.pack import Writer
from holdfast.tree.recall import Recall
from holdfast.tree.reducers import Reducers, check_plain_function

#: Decides a conflict: path, the common value, ours, theirs → the value to keep.
Resolver = Callable[[tuple[Any, ...], Any, Any, Any], Any]

#: Seconds that an update which met another waits at first, and at most, before it is applied again.
_WAIT = 0.001
_LONGEST_WAIT = 0.1


class Drawn(NamedTuple):
    """A version on its way: what the store is to do, and what must be known once it has."""

    change: Append
    writer: Writer
    root: Any
    space: object
    #: The state as it was made, before it was merged with the head's.
    own: Any
    #: The frozen result.
    result: Any
    #: The newest version, this one included, that moved parts of the state; 0 if none did.
    moved: int


class Line:
    """The moving end of one run, as one `History` sees it."""

    def __init__(
        self, context: Context, run_id: str, reducers: Reducers | None = None, by: object = None
    ) -> None:
        self.id = run_id
        #: What tells its history from others (see `bases`).
        self._by = by or self
        #: How concurrent changes of one place are merged.
        self.reducers = reducers
        self._context = context
        self._store = context.store
        #: What was committed last: who commits without reading goes on from there, whichever thread it was. Threads
        #: of a pool take turns with a state that they share.
        self._last: int | None = None
        #: Held, so that the head stays at hand for as long as this line is used.
        self._reader: Reader | None = None
        self._recall = Recall()
        self._redact = context.redact

    def advance(
        self, state: Any, facts: Facts, *, expected: int | None = None, resolve: Resolver | None = None
    ) -> Head:
        """Commit a plain state, made from the version that this thread or task read, or else from the last one."""
        if expected is not None:
            head = self.known_head()
            if head is None or head.version.number != expected:
                head = self.fresh_head()
            self.expect(head, expected)
            base = head
        else:
            number = self._context.bases.base(self.id, self._last)
            # Who has neither read nor committed goes on from the head as it is, not from what others here know of it.
            head = self.fresh_head() if number is None else self.known_head()
            if head is not None and number is not None and number != head.version.number:
                # The head that is known may be the older of the two: a rollback moves it without a commit.
                head = self.fresh_head()
            base = self._base(head, number)
        made = self._write(state, base, head, facts, expected=expected, resolve=resolve)
        self._context.bases.note_commit(self.id, made.version.number, self._by)
        return made

    def advance_from(
        self,
        base: Head | None,
        state: Any,
        facts: Facts,
        *,
        expected: int | None = None,
        resolve: Resolver | None = None,
    ) -> Head:
        """Commit a state, or a draft, that was made from `base`."""
        return self._write(state, base, base, facts, expected=expected, resolve=resolve)

    def update(self, function: Callable[[Any], object], facts: Facts, attempts: int | None) -> Head:
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
            number = 0 if head is None else head.version.number
            try:
                return self.advance_from(head, state, facts, expected=number)
            except StaleVersion:
                tried += 1
                if tried == attempts:
                    raise
            # Writers that collided wait for different times, longer each time.
            time.sleep(random.random() * min(_LONGEST_WAIT, _WAIT * 2 ** min(tried, 10)))

    def draft_of(self, head: Head | None) -> Any:
        """A draft of the state of a head; of an empty one if there is no run yet."""
        root = FrozenDict() if head is None else head.root
        state = draft(root)
        if state is root:
            raise InvalidCall(
                f"the state of run {self.id!r} is no dict or list and cannot be edited: use commit"
            )
        return state

    def fresh_head(self) -> Head | None:
        """The head as it is in the store; None if there is no run yet."""
        with self._context.looking:
            known = self._context.known(self.id)
            head = None if known is None else known.head
            if head is not None and self._store.revision(self.id) == (head.run.key, head.run.revision):
                return head
            run = self._store.run(self.id)
            if run is None:
                return None
            reader = self._of(run)
            reader.head = head = Head(run, reader.record(run.head), reader.state(run.head))
            return head

    def head_of(self, run: RunRecord, version: VersionRecord | None = None) -> Head:
        """The head that a run's record tells, which was read from the store just now, perhaps with its version."""
        reader = self._of(run)
        head = Head(run, reader.read(run.head, version), reader.state(run.head))
        if reader.head is None or reader.head.run.revision < run.revision:
            reader.head = head
        return head

    def expect(self, head: Head | None, expected: int) -> None:
        """Refuse to go on if the head is not the version expected; 0 stands for a run that is not there."""
        number = 0 if head is None else head.version.number
        if number != expected:
            raise StaleVersion(
                f"run {self.id!r} is at version {number}, not {expected} as expected: read the head, then try again",
                run=self.id,
                expected=expected,
                head=number,
            )

    def note_moved(self, number: int) -> None:
        """The head is this version now: what is committed next was made from it."""
        self._context.bases.note_commit(self.id, number, self._by)
        self._last = number

    def _write(
        self,
        state: Any,
        base: Head | None,
        head: Head | None,
        facts: Facts,
        *,
        expected: int | None,
        resolve: Resolver | None,
    ) -> Head:
        known: object | None = None
        while True:
            refuse_status(head, facts)
            drawn = self.draw(state, base, head, facts, resolve=resolve, known=known)
            known = known or drawn.space
            try:
                run = self._store.append(drawn.change)
            except StaleVersion:
                head = self.fresh_head()
                if expected is not None:
                    self.expect(head, expected)
                continue
            settled = self.settle(drawn, run)
            self._last = max(settled.version.number, self._last or 0)
            self._context.bases.note_edit(self.id, self._last, self._by)
            return settled

    def draw(
        self,
        state: Any,
        base: Head | Start | None,
        head: Head | None,
        facts: Facts,
        *,
        resolve: Resolver | None = None,
        known: object | None = None,
        run: RunRecord | None = None,
        input: Any = None,  # noqa: A002 - as the root is called
        events: Sequence[EventRecord] = (),
        timeline: int | None = None,
        view: str | None = None,
        leased: bool = False,
    ) -> Drawn:
        """The version that a state, made from `base`, will be on top of `head`; nothing is written yet. `known` is the
        address space that a state was folded for before; `run` is the run's record, if more than the version changes
        in it, or if the run is to be made; `timeline` is the one that it shall stand on, if that is not clear. With
        `view`, the state as it was made is stored, too, if merging changes it: the facts say so under that name.
        `leased` says that the owner of the run's lease writes it."""
        context = self._context
        space = object() if head is None else self._of(head.run).space
        redact = context.redact
        if redact is not self._redact:
            # What was folded with other patterns may hold secrets.
            self._recall, self._redact = Recall(), redact
        self._recall.turn()
        folder = Folder(space, redact, self._recall)
        root = folder.fold(state, None if base is None else base.root)
        end_draft(state)
        if head is not None and known is not None and known is not space:
            # The run was made or pruned meanwhile: what was shared is stored elsewhere now.
            root = folder.fold(root, head.root)
        own = root
        if head is not None and (base is None or base.number != head.version.number):
            was = FrozenDict() if base is None else base.root
            try:
                root = merge(was, own, head.root, resolve=resolve, reducers=self.reducers, fold=folder.fold)
            except MergeConflict as error:
                number = None if base is None else base.number
                raise explained(error, self._of(head.run), number, head, facts) from None
        parts = Parts(root)
        if view is not None:
            facts.more.pop(view, None)
            if own is not root:
                parts.view = own
                facts.more[view] = True
        if facts.result is not None:
            parts.result = folder.fold(facts.result, part="result")
        if facts.meta is not None:
            parts.meta = folder.fold(facts.meta, part="metadata")
        if facts.error is not None:
            parts.error = folder.fold(facts.error, part="error")
        if input is not None:
            parts.input = folder.fold(input, part="arguments")
        parts.arrivals = folder.arrivals
        now = context.clock()
        if run is None:
            run = RunRecord(id=self.id, created=now, updated=now) if head is None else head.run
        if head is not None:
            moves = root is not head.root and moved(root, head.root, space)
            parts.moved = run.last + 1 if moves else last_move(head)
        if facts.events:
            number = run.last + 1
            told = [
                entry_of(entry, now, context.redact, version=number, step=facts.step)
                for entry in facts.events
            ]
            events = [*events, *told]
        if timeline is None and head is not None and head.version.timeline != run.timeline:
            timeline = self._timeline(head)
        change, writer = draw_up(
            space, head, run, parts, facts, now=now, events=events, timeline=timeline, leased=leased
        )
        return Drawn(change, writer, root, space, own, parts.result, parts.moved)

    def _timeline(self, head: Head) -> int:
        """The timeline of what follows a head that is not on the newest one: one that began at it and has no version
        yet, after a rollback; else its own, if that was gone on with after others had left it."""
        lines = self._store.timelines(head.run.key)
        begun = [line.number for line in lines if line.parent == head.version.number]
        if begun and not self._store.versions(head.run.key, timeline=begun[-1], limit=1, pruned=True):
            return begun[-1]
        return head.version.timeline

    def settle(self, drawn: Drawn, run: RunRecord) -> Head:
        """What was committed is known and shared from now on."""
        change = drawn.change
        assert change.version is not None
        reader = self._of(run)
        if change.expect is None:
            reader.adopt(drawn.space)
        if reader.space is drawn.space:
            drawn.writer.stamp(reader.remember)
        made = Head(run, msgspec.structs.replace(change.version, pack=None), drawn.root, drawn.moved)
        if run.head == made.version.number:
            if reader.head is None or reader.head.run.revision < run.revision:
                reader.head = made
        elif reader.head is not None and reader.head.run.revision == run.revision - 1:
            reader.head = reader.head._replace(run=run)
        return made

    def changed(self, head: Head, run: RunRecord) -> Head:
        """The run's record was changed, its head was not."""
        head = head._replace(run=run)
        reader = self._of(run)
        if reader.head is None or reader.head.run.revision < run.revision:
            reader.head = head
        return head

    def _of(self, run: RunRecord) -> Reader:
        """The reader of the run."""
        reader = self._reader
        if reader is None or reader.run.key != run.key or reader.run.epoch != run.epoch:
            self._reader = reader = self._context.reader(run)
        return reader

    def known_head(self) -> Head | None:
        """The newest head that this process knows; the store tells if it is not the newest."""
        reader = self._context.known(self.id)
        if reader is not None and reader.head is not None:
            return reader.head
        return self.fresh_head()

    def _base(self, head: Head | None, number: int | None) -> Head | None:
        if head is None or number is None or number == head.version.number:
            return head
        reader = self._of(head.run)
        try:
            return Head(head.run, reader.record(number), reader.state(number))
        except NotFound:
            raise StaleVersion(
                f"version {number} of run {self.id!r}, which this state was made from, is not there any more, so that "
                "it cannot be merged with the head: read the head, then try again",
                run=self.id,
                expected=number,
                head=head.version.number,
            ) from None


class Edit:
    """The block of a `with log.edit()`."""

    __slots__ = ("_expected", "_facts", "_head", "_line", "_resolve", "_state", "number")

    #: The number of the version that the draft became, once the block has ended.
    number: int

    def __init__(self, line: Line, facts: Facts, expected: int | None, resolve: Resolver | None) -> None:
        self._line = line
        self._facts = facts
        self._expected = expected
        self._resolve = resolve

    def __enter__(self) -> Any:
        self._head = head = self._line.fresh_head()
        if self._expected is not None:
            self._line.expect(head, self._expected)
        self._state = self._line.draft_of(head)
        return self._state

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        try:
            if kind is None:
                made = self._line.advance_from(
                    self._head, self._state, self._facts, expected=self._expected, resolve=self._resolve
                )
                self.number = made.version.number
        finally:
            end_draft(self._state)


def refuse_status(head: Head | None, facts: Facts) -> None:
    """Refuse to set the status of a workflow's run by hand: it would be executed, or never again, by mistake."""
    if facts.status is None or head is None or head.run.workflow is None or facts.status == head.run.status:
        return
    raise InvalidCall(
        f"run {head.run.id!r} of workflow {head.run.workflow!r} is {head.run.status}, and a commit by hand cannot make "
        f"it {facts.status}: leave out status=, and use pause, cancel, resume or rollback",
        run=head.run.id,
        status=head.run.status,
    )


def check_resolver(resolve: Any) -> None:
    """Refuse what cannot decide a conflict."""
    if resolve is not None and not callable(resolve):
        raise InvalidCall("resolve is a function of path, base, ours and theirs that gives the value to keep")
    if resolve is not None:
        check_plain_function("resolve", resolve, "path", "base", "ours", "theirs")
