"""A run while it is being executed: where it stands, what it has recorded, how it moves on.

One session at a time advances a run: it owns the run's lease, and the revision that it expects fences it off. Its
methods that write are flows (see `drive`), so that blocking and asyncio code share them.

Invariant: the head here is the head in the store, or the next write is refused and the session looks again. Nothing is
written for a run that another owns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.errors import LeaseLost, NotFound, StaleVersion, StepTimeout
from holdfast.history.advance import Drawn, Line
from holdfast.history.commit import Facts as VersionFacts
from holdfast.history.commit import event
from holdfast.history.reader import Head
from holdfast.model.records import EventRecord, RunRecord
from holdfast.runtime.boundary import Boundary
from holdfast.runtime.drive import Do, Flow, Take, Write
from holdfast.runtime.failure import describe
from holdfast.runtime.failures import Failures
from holdfast.runtime.scope import is_sum
from holdfast.runtime.sight import Sight
from holdfast.runtime.turn import Turn
from holdfast.runtime.waits import Facts, encoded, facts_of
from holdfast.runtime.watch import Watch, watch_of
from holdfast.store.base import Append
from holdfast.tree.fold import Folder

if TYPE_CHECKING:
    from holdfast.runtime.definition import Workflow
    from holdfast.runtime.lease import Hold
    from holdfast.runtime.record import Record
    from holdfast.runtime.rehearsal import Rehearsal
    from holdfast.runtime.scope import Frame
    from holdfast.runtime.services import Services


class Session(Boundary, Sight):
    """One execution of a run."""

    def __init__(
        self,
        services: Services,
        workflow: Workflow,
        line: Line,
        head: Head,
        record: Record,
        *,
        overrides: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        facts = facts_of(head.run)
        Boundary.__init__(self, facts)
        Sight.__init__(self, services, head, record, dict(facts.values))
        self.workflow = workflow
        self.id = head.run.id
        self.overrides = overrides or {}
        #: Answers that came with the call, by prompt id or address.
        self.answers: Mapping[str, Any] = {}
        #: Tell subscribers of recorded steps again?
        self.republish = False
        #: Has it given the run up? Nothing is written any more.
        self.over = False
        #: Is, or was, the last that it writes on its way: that nobody owns the run?
        self.leaving = False
        #: Was the run taken away from it, or given to another execution? Then it never comes back.
        self.lost = False
        #: That the lease of its run is being renewed.
        self.hold: Hold | None = None
        #: Is nobody there to hear of what user code raises, whatever it is? And is a store that was away no failure?
        self.contained = False
        #: Steps that run now, by address: the attempt, or, where there is none, the frame that waits for it.
        self.active: dict[str, Frame] = {}
        #: When it began, and the frame of the workflow's own function.
        self.began = self.beat
        self.root: Frame | None = None
        #: Numbers of the events that waits of this execution took.
        self.taken: set[int] = set()
        self.failures = Failures()
        self._line = line
        self._turn = Turn(services.committer.wake)
        self._events: list[EventRecord] = []
        self._detail = head.run.detail
        self._kept = True
        #: Runs recorded steps beside the record, where that is asked for.
        self.rehearsal: Rehearsal | None = None
        timeout = workflow.timeout
        #: When this execution must have ended.
        self.deadline = None if timeout is None else services.context.clock() + int(timeout * 1e6)

    # What others see of it

    @property
    def watch(self) -> Watch | None:
        """When it is taken for stuck."""
        return watch_of(self.facts.watch)

    def is_fenced(self, run: RunRecord, facts: Facts) -> bool:
        """Was the run taken away from this execution, whoever has it now?"""
        return facts.fence != self.facts.fence or run.timeline != self.head.run.timeline

    def lose(self) -> None:
        """Write nothing any more: the run is another execution's."""
        self.over = self.lost = True

    def count_time(self) -> None:
        """The time that this execution took counts, where that is watched."""
        watch = self.watch
        if watch is not None and watch.max_time is not None:
            now = self.services.context.clock()
            self.facts.worked += now - self.began
            self.began = now
            self.keep()

    # What code in the run sees

    def folder(self) -> Folder:
        """Folds values for this run."""
        return Folder(self.services.context.reader(self.head.run).space, self.services.context.redact)

    def time_for(self, seconds: float | None) -> float | None:
        """How long a step may take: its own time, or what is left of the run's."""
        if self.deadline is None:
            return seconds
        left = (self.deadline - self.services.context.clock()) / 1e6
        if left <= 0:
            raise StepTimeout(
                f"run {self.id!r} took longer than the {self.workflow.timeout:g} s that its workflow allows",
                run=self.id,
            )
        return left if seconds is None else min(seconds, left)

    # Boundaries between steps

    def look(self) -> None:
        """See whether another process has left word for the run."""
        run = self.head.run
        if self.services.store.revision(self.id) != (run.key, run.revision):
            self.refresh()

    def between_writes(self, check: Callable[[], bool]) -> bool:
        """What a check says while nothing is being written; False if something is, which will tell by itself."""
        if not self._turn.take_now():
            return False
        try:
            return check()
        finally:
            self._turn.release()

    def begin(self, address: str, frame: Frame) -> None:
        """A step begins."""
        self.active[address] = frame

    def end(self, address: str) -> None:
        """A step has ended, one way or the other."""
        frame = self.active.pop(address, None)
        self.beat = self.services.context.clock()
        if frame is not None:
            frame.sign(self.beat)

    # Writing

    def keep(self) -> None:
        """`facts` were changed: they go into the run's record with the next write."""
        self._kept = False

    def keep_if(self, needed: bool) -> None:
        """The same, where there was or is something to keep."""
        if needed:
            self.keep()

    def note(self, kind: str, **data: Any) -> None:
        """An event that goes into the journal with the next write."""
        self._events.append(event(kind, self.services.context.clock(), **data))

    def go_live(self, address: str) -> Flow[None]:
        """A call that is not recorded: the workflow goes on, so the failures so far were handled, and are results like
        any others."""
        if self.rehearsal is not None:
            self.rehearsal.beyond(self, address)
            self.halt("rehearsed")
        self.failures.moved_on(address.rpartition("/")[0])
        while (failure := self.failures.next_handled()) is not None:
            facts = VersionFacts(failure.name, error=describe(failure.error), kind="step", done=False)
            facts.more = {"args": failure.args, "failed": True}
            if failure.address != failure.name:
                facts.more["address"] = failure.address
            head = yield from self.commit(facts)
            self.failures.recorded(failure._replace(number=head.version.number))
            self.record.enter(head.version, facts.more)

    def let_go(self, error: BaseException) -> None:
        """Failures that led to this one are no results: those steps are tried again."""
        for failure in self.failures.let_go(error):
            if failure.number not in self.facts.failed:
                self.facts.failed = [*self.facts.failed, failure.number]
                self.record.forget(failure.address, failure.number)
                self.keep()

    def commit(
        self,
        facts: VersionFacts,
        *,
        frame: Frame | None = None,
        input: Any = None,  # noqa: A002 - as the root is called
        **changes: Any,
    ) -> Flow[Head]:
        """Write a version: what a frame's draft changed, or nothing, on top of the head."""
        facts.status = facts.status or "running"
        known: object | None = None
        totals = self.facts.totals
        while True:
            if not self._turn.take_now():
                yield Take(self._turn)
            try:
                self._refuse_if_over()
                head = self.head
                totals = self.facts.totals
                if frame is not None and frame.notes:
                    self.facts.totals = self._summed(frame.notes)
                    self.keep()
                events, values = tuple(self._events), dict(self._values)
                if values:
                    facts.more["values"] = values
                run = self._next(changes, {})
                if frame is None or frame.held is None:
                    drawn = self._line.draw(head.root, head, head, facts, run=run, input=input, events=events)
                else:
                    drawn = self._line.draw(
                        frame.held, frame.base, head, facts, resolve=frame.resolve, known=known, run=run,
                        input=input, events=events,
                    )  # fmt: skip
            except BaseException:
                self.facts.totals = totals
                self._turn.release()
                raise
            known = known or drawn.space
            try:
                written: Head = yield Write(
                    self.services.committer,
                    drawn.change,
                    partial(self._settle, drawn, events, values, totals),
                )
            except StaleVersion:
                yield Do(self.refresh)
            else:
                return written

    def save(self, **changes: Any) -> Flow[None]:
        """Write changes of the run's record, and the events that wait, without a version."""
        while True:
            if not self._turn.take_now():
                yield Take(self._turn)
            try:
                self._refuse_if_over()
                run, events = self.head.run, tuple(self._events)
                after = msgspec.structs.replace(
                    self._next(changes, self._values),
                    updated=self.services.context.clock(),
                    revision=run.revision + 1,
                )
                change = Append(expect=run, run=after, events=events)
            except BaseException:
                self._turn.release()
                raise
            try:
                yield Write(self.services.committer, change, partial(self._settle, None, events, {}, None))
            except StaleVersion:
                yield Do(self.refresh)
            else:
                return

    def _settle(
        self,
        drawn: Drawn | None,
        events: tuple[EventRecord, ...],
        values: dict[str, Any],
        totals: dict[str, Any] | None,
        outcome: RunRecord | BaseException,
    ) -> Head | None:
        """A write has ended, in the thread that wrote. The turn goes to the next from here on."""
        try:
            if isinstance(outcome, BaseException):
                if totals is not None:
                    self.facts.totals = totals
                return None
            # What was given up meanwhile stays given up.
            self.over = self.over or outcome.owner is None
            self.services.keeper.look_at(outcome)
            if drawn is None:
                self.head = head = self._line.changed(self.head, outcome)
            else:
                self.head = head = self._line.settle(drawn, outcome)
                self._place = None
            del self._events[: len(events)]
            for address, value in values.items():
                self.record.values[address] = value
                self._values.pop(address, None)
        finally:
            self._turn.release()
        self.services.publisher.wake()
        return head

    def refresh(self) -> None:
        """The run's record has changed: learn how, or that it is another's now."""
        with self._turn:
            self._refresh()

    def _refresh(self) -> None:
        with self.services.claiming:
            head = self._line.fresh_head()
        if head is None:
            raise NotFound(f"run {self.id!r} was deleted while it ran", run=self.id)
        self._refuse_if_over()
        theirs = facts_of(head.run)
        if head.run.owner != self.services.owner or self.is_fenced(head.run, theirs):
            raise LeaseLost(
                f"run {self.id!r} was taken over or rolled back by another: what this execution had not "
                "committed is not kept",
                run=self.id,
            )
        ours = self.facts
        ours.watch, ours.restores, ours.dead = theirs.watch, theirs.restores, theirs.dead
        # That this process wants to be rid of the run is told to nobody else.
        handing_back = ours.wish == "hand back"
        ours.wish = theirs.wish or ("hand back" if handing_back else "")
        ours.reason, ours.actor = theirs.reason, theirs.actor
        ours.mail = [letter for letter in theirs.mail if letter.number not in self.taken]
        ours.sent, ours.asked, ours.called = theirs.sent, max(theirs.asked, ours.asked), theirs.called
        for wait in theirs.waits:
            if wait.filled and ours.wait_at(wait.address) is not None:
                ours.put(wait)
        self.head = head
        self.keep()
        if ours.wish:
            self.end_rests()

    def _refuse_if_over(self) -> None:
        """What was left running by an execution that has ended is not part of the next one."""
        if self.over or self.lost:
            raise LeaseLost(
                f"this execution of run {self.id!r} has ended: what was left running by it is not recorded",
                run=self.id,
            )

    def _summed(self, notes: Mapping[str, Any]) -> dict[str, Any]:
        """The tokens and the cost of the run with those of a step."""
        totals = dict(self.facts.totals)
        for name, value in notes.items():
            if is_sum(name, value):
                totals[name] = totals.get(name, 0) + value
        return totals

    def _next(self, changes: dict[str, Any], loose: dict[str, Any]) -> RunRecord:
        """The run's record as a write leaves it, but for what a version changes in it. Each renews the lease; `loose`
        are the values that only the record keeps."""
        if self.facts.values != loose:
            self.facts.values = dict(loose)
            self.keep()
        if not self._kept:
            self._kept = True
            try:
                self._detail = encoded(self.facts)
            except BaseException:
                self._kept = False
                raise
        services = self.services
        until = services.context.clock() + services.lease
        run = msgspec.structs.replace(self.head.run, owner=services.owner, until=until, detail=self._detail)
        if changes:
            run = msgspec.structs.replace(run, **changes)
            if run.status == "suspended" and self.facts.has_come():
                # In the moment of suspending: whoever looks for runs that are due finds it.
                run = msgspec.structs.replace(run, due=services.context.clock())
        self.leaving = run.owner is None
        return run
