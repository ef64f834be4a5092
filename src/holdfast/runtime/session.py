"""A run while it is being executed: where it stands, what it has recorded, how it moves on.

One session at a time advances a run: it owns the run's lease, and the revision that it expects fences it off. Its
methods that write are flows (see `drive`), so that blocking and asyncio code share them.

Invariant: the head here is the head in the store, or the next write is refused and the session looks again. Nothing is
written for a run that another owns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from holdfast.errors import LeaseLost, NotFound, StaleVersion, StepTimeout
from holdfast.history.advance import Drawn, Line
from holdfast.history.commit import Facts as VersionFacts
from holdfast.history.commit import event
from holdfast.history.reader import Head
from holdfast.model.records import EventRecord, RunRecord
from holdfast.runtime.drive import Do, Flow, Take, Write
from holdfast.runtime.failure import describe
from holdfast.runtime.failures import Failures
from holdfast.runtime.scope import is_sum
from holdfast.runtime.turn import Turn
from holdfast.runtime.waits import Facts, encoded, facts_of
from holdfast.store.base import Append
from holdfast.tree.fold import Folder

if TYPE_CHECKING:
    from holdfast.runtime.definition import Workflow
    from holdfast.runtime.record import Entry, Record
    from holdfast.runtime.rehearsal import Rehearsal
    from holdfast.runtime.scope import Frame
    from holdfast.runtime.services import Services


class Halt(BaseException):
    """Ends an execution at a boundary between steps; no error, and not for user code to catch."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


#: A lock for moments, of all sessions together: most never need one of their own.
briefly = threading.Lock()


class Session:
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
        self.services = services
        self.workflow = workflow
        self.id = head.run.id
        self.head = head
        self.record = record
        self.overrides = overrides or {}
        #: What the run's record says beyond its fields; `keep` after a change.
        self.facts: Facts = facts_of(head.run)
        #: Answers that came with the call, by prompt id or address.
        self.answers: Mapping[str, Any] = {}
        #: Tell subscribers of recorded steps again?
        self.republish = False
        #: Has it given the run up? Nothing is written any more.
        self.over = False
        #: May no further step begin? And what wakes those who rest between attempts, once somebody does.
        self.stopped = False
        self._stop: threading.Event | None = None
        #: Steps that run now, by address.
        self.active: dict[str, Frame] = {}
        #: Numbers of the events that waits of this execution took.
        self.taken: set[int] = set()
        self.failures = Failures()
        #: The version whose state the workflow's own code sees; None for the head's.
        self._place: int | None = None
        self._newest = max((entry.number for entry in record.steps.values()), default=0)
        self._seen: tuple[Any, Any] = (None, None)
        self._line = line
        self._turn = Turn(services.committer.wake)
        #: Values that no version has recorded yet.
        self._values: dict[str, Any] = dict(self.facts.values)
        self._events: list[EventRecord] = []
        self._detail = head.run.detail
        self._kept = True
        self._ending = ""
        self._closed = False
        #: Addresses of the frames in which a wait has ended the execution.
        self._waiting: list[str] = []
        #: Runs recorded steps beside the record, where that is asked for.
        self.rehearsal: Rehearsal | None = None
        timeout = workflow.timeout
        #: When this execution must have ended.
        self.deadline = None if timeout is None else services.context.clock() + int(timeout * 1e6)
        if record.steps:
            self._place = record.first

    # What code in the run sees

    def passed(self, entry: Entry) -> None:
        """A recorded step was passed without being run."""
        if self._place is not None:
            self._place = max(self._place, entry.number)
            if entry.number >= self._newest:
                self._place = None

    def seen(self) -> Any:
        """The state, frozen, as it is after the steps that were passed or run so far."""
        reader = self.services.context.reader(self.head.run)
        root = self.head.root if self._place is None else reader.state(self._place)
        if self._seen[0] is not root:
            self._seen = (root, reader.show(root))
        return self._seen[1]

    def value(self, address: str, make: Callable[[], Any]) -> Any:
        """A value that is the same when this code runs again."""
        for known in (self._values, self.record.values):
            if address in known:
                return known[address]
        value = self._values[address] = make()
        return value

    def has_value(self, address: str) -> bool:
        """Is there such a value?"""
        return address in self._values or address in self.record.values

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

    def check(self, frame: Frame) -> None:
        """End the execution here if somebody wants it to end, or if it has ended already. A wait ends it in the frame
        that waits and those around it; what runs beside goes on until the workflow's function has ended."""
        if self.facts.wish:
            self.halt("cancelled" if self.facts.wish == "cancel" else "paused")
        if self._ending and (self._closed or self._ending != "suspended" or self._is_around_a_wait(frame)):
            raise Halt(self._ending)

    def halt(self, status: str, frame: Frame | None = None) -> NoReturn:
        """Let no further step begin, and end."""
        if frame is not None:
            self._waiting.append(frame.address)
        self._ending = self._ending or status
        raise Halt(self._ending)

    def close(self) -> None:
        """The workflow's function has returned: what it left behind may finish its steps but begin none."""
        self._closed = True
        self._ending = self._ending or "ended"
        self.end_rests()

    def check_caught(self, attempt: Frame) -> None:
        """A step may not go on after a wait in it, or a stop, that its code has caught."""
        if self._ending and self._ending != "ended" and self._is_around_a_wait(attempt):
            raise Halt(self._ending)

    @property
    def halted(self) -> str:
        """How the execution was ended at a boundary, even if user code caught it; empty if it was not."""
        return "" if self._ending == "ended" else self._ending

    def _is_around_a_wait(self, frame: Frame) -> bool:
        around = frame.address
        return not around or any(
            address == around or address.startswith(f"{around}/") for address in self._waiting
        )

    def end_rests(self) -> None:
        """Wake those who rest between attempts: there will be no further ones."""
        self.stopped = True
        if self._stop is not None:
            self._stop.set()

    @property
    def stop(self) -> threading.Event:
        """Is set when there will be no further attempts. Most executions never need it."""
        with briefly:
            if self._stop is None:
                self._stop = threading.Event()
        if self.stopped:
            self._stop.set()
        return self._stop

    def look(self) -> None:
        """See whether another process has left word for the run."""
        run = self.head.run
        if self.services.store.revision(self.id) != (run.key, run.revision):
            self.refresh()

    def begin(self, address: str, frame: Frame) -> None:
        """A step begins."""
        self.active[address] = frame

    def end(self, address: str) -> None:
        """A step has ended, one way or the other."""
        self.active.pop(address, None)

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

    def recorded(self, frame: Frame, head: Head, facts: VersionFacts) -> None:
        """A call made in a frame was recorded: a step around it sees what it changed, and passes it if it is tried
        again."""
        if frame.owner is not None:
            frame.owner.newer = head
            self.record.enter(head.version, facts.more)

    def replayed(self, frame: Frame, entry: Entry) -> None:
        """A recorded call was passed in a frame: a step around it sees what it had changed then."""
        self.passed(entry)
        if frame.owner is not None:
            frame.owner.newer = entry.number

    def at(self, number: int) -> Head:
        """A version of the line as something to begin from."""
        if number == self.head.version.number:
            return self.head
        reader = self.services.context.reader(self.head.run)
        version = msgspec.structs.replace(self.head.version, number=number)
        return Head(self.head.run, version, reader.state(number))

    def start_of(self, address: str) -> Head:
        """What a step begins from: the head, or, if it was begun before and has called steps, what it began from
        then."""
        before = self.record.begun.get(address)
        return self.head if before is None else self.at(before)

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
                if frame is None or frame.held is None:
                    drawn = self._line.draw(
                        head.root, head, head, facts, input=input, events=events, **self._changes(changes, {})
                    )
                else:
                    drawn = self._line.draw(
                        frame.held, frame.base, head, facts, resolve=frame.resolve, known=known, input=input,
                        events=events, **self._changes(changes, {}),
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
                    run,
                    updated=self.services.context.clock(),
                    revision=run.revision + 1,
                    **self._changes(changes, self._values),
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
            self.over = outcome.owner is None
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
        head = self._line.fresh_head()
        if head is None:
            raise NotFound(f"run {self.id!r} was deleted while it ran", run=self.id)
        self._refuse_if_over()
        if head.run.owner != self.services.owner:
            raise LeaseLost(
                f"run {self.id!r} was taken over or rolled back by another: what this execution had not "
                "committed is not kept",
                run=self.id,
            )
        ours, theirs = self.facts, facts_of(head.run)
        ours.wish, ours.reason, ours.actor = theirs.wish, theirs.reason, theirs.actor
        ours.mail = [letter for letter in theirs.mail if letter.number not in self.taken]
        ours.sent, ours.asked = theirs.sent, max(theirs.asked, ours.asked)
        for wait in theirs.waits:
            if wait.filled and ours.wait_at(wait.address) is not None:
                ours.put(wait)
        self.head = head
        self.keep()
        if ours.wish:
            self.end_rests()

    def _refuse_if_over(self) -> None:
        """What was left running by an execution that has ended is not part of the next one."""
        if self.over:
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

    def _changes(self, changes: dict[str, Any], loose: dict[str, Any]) -> dict[str, Any]:
        """What a write changes in the run's record. Each renews the lease; `loose` are the values that only the record
        keeps."""
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
        return {"owner": services.owner, "until": until, "detail": self._detail, **changes}
