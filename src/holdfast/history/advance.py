"""Moving a run forward: a state becomes the next version, whoever else is writing.

A `Line` remembers which version each thread (or asyncio task) has read, because a plain state that is committed
was made from that version, or, where none was read, from the one that was committed before, or else from the head:
if the run has moved on meanwhile, the change, and not the whole state, is carried over to the new head by a
three-way merge.

Invariant: an acknowledged version is in the store; a change is either in it, or was refused with an error.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from holdfast.errors import InvalidCall, NotFound, StaleVersion
from holdfast.history.commit import Facts, Parts, draw_up
from holdfast.history.context import Context
from holdfast.history.moves import moved
from holdfast.history.reader import Head, Reader
from holdfast.history.telling import entry_of
from holdfast.model.records import EventRecord, RunRecord, VersionRecord
from holdfast.store.base import Append
from holdfast.tree.draft import draft
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import FrozenDict
from holdfast.tree.merge import merge
from holdfast.tree.pack import Writer
from holdfast.tree.recall import Recall

#: Decides a conflict: path, the common value, ours, theirs → the value to keep.
Resolver = Callable[[tuple[Any, ...], Any, Any, Any], Any]


class Drawn(NamedTuple):
    """A version on its way: what the store is to do, and what must be known once it has."""

    change: Append
    writer: Writer
    root: Any
    space: object


class Line:
    """The moving end of one run, as one `History` sees it."""

    def __init__(self, context: Context, run_id: str) -> None:
        self.id = run_id
        self._context = context
        self._store = context.store
        #: What a thread or task has read since its last commit: what it commits next was made from that.
        self._read: WeakKeyDictionary[Any, int] | None = None
        #: What was committed last: who commits without reading goes on from there, whichever thread it was. Threads
        #: of a pool take turns with a state that they share.
        self._last: int | None = None
        #: Held, so that the head stays at hand for as long as this line is used.
        self._reader: Reader | None = None
        self._recall = Recall()

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
            number = self._last if self._read is None else self._read.get(_who(), self._last)
            # Who has neither read nor committed goes on from the head as it is, not from what others here know of it.
            head = self.fresh_head() if number is None else self.known_head()
            if head is not None and number is not None and number != head.version.number:
                # The head that is known may be the older of the two: a rollback moves it without a commit.
                head = self.fresh_head()
            base = self._base(head, number)
        return self._write(state, base, head, facts, expected=expected, resolve=resolve)

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

    def note_read(self, number: int) -> None:
        """This thread or task has read the head."""
        if self._read is None:
            self._read = WeakKeyDictionary()
        self._read[_who()] = number

    def note_moved(self, number: int) -> None:
        """The head is this version now."""
        if self._read is not None:
            self._read.pop(_who(), None)
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
            self.note_moved(max(settled.version.number, self._last or 0))
            return settled

    def draw(
        self,
        state: Any,
        base: Head | None,
        head: Head | None,
        facts: Facts,
        *,
        resolve: Resolver | None = None,
        known: object | None = None,
        run: RunRecord | None = None,
        input: Any = None,  # noqa: A002 - as the root is called
        events: Sequence[EventRecord] = (),
        timeline: int | None = None,
    ) -> Drawn:
        """The version that a state, made from `base`, will be on top of `head`; nothing is written yet. `known` is the
        address space that a state was folded for before; `run` is the run's record, if more than the version changes
        in it, or if the run is to be made; `timeline` is the one that it shall stand on, if that is not clear."""
        context = self._context
        space = object() if head is None else self._of(head.run).space
        self._recall.turn()
        folder = Folder(space, context.redact, self._recall)
        root = folder.fold(state, None if base is None else base.root)
        if head is not None and known is not None and known is not space:
            # The run was made or pruned meanwhile: what was shared is stored elsewhere now.
            root = folder.fold(root, head.root)
        if head is not None and (base is None or base.version.number != head.version.number):
            was = FrozenDict() if base is None else base.root
            root = merge(was, root, head.root, resolve=resolve, fold=folder.fold)
        parts = Parts(root)
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
            parts.moved = root is not head.root and moved(root, head.root, space)
        if facts.events:
            number = run.last + 1
            told = [
                entry_of(entry, now, context.redact, version=number, step=facts.step)
                for entry in facts.events
            ]
            events = [*events, *told]
        if timeline is None and head is not None and head.version.timeline != run.timeline:
            timeline = self._timeline(head)
        change, writer = draw_up(space, head, run, parts, facts, now=now, events=events, timeline=timeline)
        return Drawn(change, writer, root, space)

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
            drawn.writer.stamp(reader.loader.remember)
        made = Head(run, msgspec.structs.replace(change.version, pack=None), drawn.root)
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
            return head


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
        root = FrozenDict() if head is None else head.root
        self._state = draft(root)
        if self._state is root:
            raise InvalidCall(
                f"the state of run {self._line.id!r} is no dict or list and cannot be edited: use commit"
            )
        return self._state

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            made = self._line.advance_from(
                self._head, self._state, self._facts, expected=self._expected, resolve=self._resolve
            )
            self.number = made.version.number


def check_resolver(resolve: Any) -> None:
    """Refuse what cannot decide a conflict."""
    if resolve is not None and not callable(resolve):
        raise InvalidCall("resolve is a function of path, base, ours and theirs that gives the value to keep")


def _who() -> Any:
    """The asyncio task, or else the thread, that is calling."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is not None and asyncio._get_running_loop() is not None:
        task = asyncio.current_task()
        if task is not None:
            return task
    return threading.current_thread()
