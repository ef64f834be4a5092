"""A run while it is being executed: where it stands, what it has recorded, how it moves on.

One session at a time advances a run: it owns the run's lease, and the revision that it expects fences it off. Its
methods that write are flows (see `drive`), so that blocking and asyncio code share them.

Invariant: the head here is the head in the store, or the next write is refused and the session looks again. Nothing is
written for a run that another owns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.errors import (
    HoldfastError,
    LeaseExpired,
    LeaseLost,
    LimitExceeded,
    MergeConflict,
    NotFound,
    StaleVersion,
    StepTimeout,
)
from holdfast.event_loop import running_task
from holdfast.history.advance import Drawn, Line
from holdfast.history.commit import Facts as VersionFacts
from holdfast.history.commit import event
from holdfast.history.conflicts import explained
from holdfast.history.implementation import LOOK_BACK
from holdfast.history.reader import Head
from holdfast.model.records import EventRecord, RunRecord
from holdfast.runtime.arguments import LARGE, SMALL, Captured, Stored, captured_small
from holdfast.runtime.awaitable import AwaitableCall, first_unawaited
from holdfast.runtime.boundary import Boundary, briefly
from holdfast.runtime.definition import Step, implementation
from holdfast.runtime.drive import Do, Flow, Rest, Take, Write
from holdfast.runtime.failures import Failure, Failures
from holdfast.runtime.limits import Ledger, added, amounts, innermost, used_by
from holdfast.runtime.replay import Replay
from holdfast.runtime.result_order import BeforeLive, ResultOrder, TaskOrder, ThreadOrder
from holdfast.runtime.scope import has_ended
from holdfast.runtime.sight import Sight
from holdfast.runtime.turn import Turn, current_holder
from holdfast.runtime.view import MARK, Seen, View
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

#: Seconds after which a branch looks again whether another has recorded a failure.
_MOMENT = 0.002
#: Microseconds of an execution that are worth a write of their own to the run's record.
_MATTERS = 10_000
#: What the names of values begin with that record how long a call took which code has abandoned.
_ABANDONED = "abandoned:"


class _Books(NamedTuple):
    """The sums of a run before a write, and how many failed attempts that write counts."""

    totals: dict[str, Any]
    used: dict[str, Any]
    owed: int


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
        Sight.__init__(self, services, head, record, dict(facts.values), workflow.reducers)
        self.workflow = workflow
        self.id = head.run.id
        self.overrides = overrides or {}
        self._ran: dict[str, list[Any]] = {}
        #: Answers that came with the call, by prompt id or address.
        self.answers: Mapping[str, Any] = {}
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
        #: The task, or the thread, in which each of them runs.
        self._runners: dict[str, Any] = {}
        #: When it began, and the frame of the workflow's own function.
        self.began = self.beat
        self.root: Frame | None = None
        #: Numbers of the events that waits of this execution took.
        self.taken: set[int] = set()
        self.failures = Failures()
        #: Calls that nothing has awaited yet, in the order in which they were made.
        self.unawaited: dict[AwaitableCall, None] = {}
        #: Those of them that wait, and that no task will await.
        self.unawaited_waits: dict[AwaitableCall, None] = {}
        self.replay = Replay(self, record, facts.values)
        #: Calls of steps and children that were cancelled, and the microseconds that they had taken: code that makes
        #: its next call without them has abandoned them.
        self.cancelled: dict[str, int] = {}
        #: Addresses of the recorded results that were returned before anything ran in parallel.
        self.returned: list[str] = []
        #: The run as it was before this execution took it over; None if this execution made it.
        self.before: RunRecord | None = None
        #: Values that versions of this execution store, so that arguments refer to them.
        self.stored = Stored()
        self._line = line
        self._turn = Turn(services.committer.wake)
        self._events: list[EventRecord] = []
        self._detail = head.run.detail
        self._kept = True
        #: What failed attempts noted, until it is written.
        self._owed: list[Mapping[str, Any]] = []
        #: Counts what it spends, where that is limited; the ledger of the run that it is a child of, and whether it is
        #: executed without that run.
        self.ledger: Ledger | None = None
        self.around: Ledger | None = None
        self.alone = True
        #: By their addresses, children that were called on a timeline before, once that was looked up.
        self.carried: dict[str, str] | None = None
        #: The limit of the run, or of one around it, that is used up, and the addresses of the steps that were refused.
        self.exceeded: LimitExceeded | None = None
        self.refused: list[str] = []
        #: What a signal handler raised during a write, which may have been carried out.
        self.interrupted: BaseException | None = None
        #: The newest version that this execution has written.
        self._written = 0
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
        self.end_order()

    def count_time(self, *, at_end: bool = False) -> None:
        """Add the time that this execution took to that of the run, where it is watched or limited; at its end in any
        case, unless it was too short to matter."""
        now = self.services.context.clock()
        watch = self.watch
        is_limited = self.facts.limits.get("seconds") is not None
        if (
            is_limited
            or (watch is not None and watch.max_time is not None)
            or (at_end and now - self.began >= _MATTERS)
        ):
            self.facts.worked += now - self.began
            self.began = now
            self.keep()

    # What it may spend

    def lose_attempt(self, attempt: Frame) -> dict[str, Any]:
        """An attempt is over without a result: what it noted has been spent all the same. Return that."""
        attempt.over = True
        attempt.leave()
        notes, attempt.notes = attempt.notes, None
        if not notes:
            return {}
        self._owed.append(notes)
        cost, tokens = amounts(notes)
        ledger = innermost(self)
        if ledger is not None:
            ledger.spend(cost, tokens)
        spent = {"cost": cost, "tokens": tokens}
        attempt.count(spent)
        return spent

    def exceed(self, error: LimitExceeded, address: str) -> None:
        """A limit of the run, or of one around it, is used up: it cannot be completed by this execution."""
        self.exceeded = self.exceeded or error
        self.refused.append(address)

    def check_limits_within(self, attempt: Frame) -> None:
        """A step may not end well if its code has caught that a step in it was refused by a limit of the run."""
        if self.exceeded is not None and any(each.startswith(f"{attempt.address}/") for each in self.refused):
            raise self.exceeded

    # What code in the run sees

    def explained(self, error: MergeConflict, base: int | None, address: str) -> MergeConflict:
        """A conflict of a step with what has been recorded, with the versions and steps that it is about."""
        reader = self.services.context.reader(self.head.run)
        return explained(error, reader, base, self.head, VersionFacts(address))

    def unnamed(self, definition: Step | Workflow) -> list[Any] | None:
        """Return what runs as a step, if its version is to name it (see `history.implementation`)."""
        name = definition.name
        ran = self._ran.get(name)
        if ran is None:
            other = self.overrides.get(name) if isinstance(definition, Step) else None
            ran = [
                *(definition.implementation if other is None else implementation(other)),
                other is not None,
            ]
            self._ran[name] = ran
        known, number = self.record.ran.get(name, (None, 0))
        return None if known == ran and self.head.version.number - number < LOOK_BACK - 1 else ran

    def capture(
        self,
        definition: Step | Workflow,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        size: int = LARGE,
        *,
        strict: bool = False,
    ) -> Captured:
        """Freeze the arguments of a call, of about `size` bytes, for the version that will record it."""
        context = self.services.context
        small = captured_small(definition, args, kwargs, context.redact) if size <= SMALL else None
        if small is not None:
            return small
        folder = Folder(context.reader(self.head.run).space, context.redact, consume=False)
        return self.stored.capture(definition, args, kwargs, folder, strict=strict)

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
        if not self._turn.take_now(current_holder()):
            return False
        try:
            return check()
        finally:
            self._turn.release()

    @property
    def has_written(self) -> bool:
        """Has this execution recorded a version?"""
        return self._written > 0

    def has_only_been_edited(self, address: str, start: Seen | Head) -> bool:
        """Has nothing been recorded, here or in a step's earlier attempts, since the step's caller saw the state?"""
        return self._written <= (start.number or 0) and address not in self.record.begun

    def in_parallel(self) -> ResultOrder:
        """Tasks or threads are about to run in parallel: return the order in which code gets results."""
        with briefly:
            if self.order is None:
                kind = TaskOrder if self.workflow.asynchronous else ThreadOrder
                self.order = kind(self, self._newest)
        return self.order

    def begin(self, address: str, frame: Frame) -> None:
        """Record that a step of this task or thread starts."""
        self._runners[address] = self._runner()
        self.active[address] = frame

    def _runner(self) -> Any:
        return (self.workflow.asynchronous and running_task()) or get_ident()

    def has_steps_elsewhere(self) -> bool:
        """Return whether a step runs in another task or thread. One that this thread, or a task that has ended, did not
        take from the list was interrupted."""
        own = self._runner()
        return any(
            runner != own and (isinstance(runner, int) or not has_ended(runner))
            for runner in list(self._runners.values())
        )

    def refuse_unawaited(self, attempt: Frame | None) -> None:
        """`NotAwaited` if an attempt, or the workflow's own code if there is none, returned without having awaited a
        call that it made."""
        call = first_unawaited(self.unawaited, attempt)
        if call is not None:
            raise call.never_awaited()

    def close_unawaited(self) -> None:
        """Close the calls that nothing will await any more, so that Python does not warn of them as well."""
        for call in list(self.unawaited):
            if not call.in_task:
                call.close()
        self.unawaited.clear()

    def end(self, address: str) -> None:
        """A step has ended, one way or the other."""
        frame = self.active.pop(address, None)
        self._runners.pop(address, None)
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

    def note_event(self, entry: EventRecord) -> None:
        """The same for an event that is drawn up already."""
        self._events.append(entry)

    def go_live(self, address: str) -> Flow[None]:
        """A call that is not recorded: the workflow goes on, so the failures so far were handled, and are results like
        any others."""
        if self.rehearsal is not None:
            if self.order is not None and self.order.is_replaying:
                yield BeforeLive(self.order)
            self.rehearsal.beyond(self, address)
            if self.rehearsal.strict:
                # Only its own frame ends here: others may have more to replay.
                self.halt_at(address.rpartition("/")[0])
            self.halt("rehearsed")
        frame = address.rpartition("/")[0]
        self._note_abandoned(frame)
        self.failures.moved_on(frame)
        while True:
            failure = self.failures.take_handled(frame)
            if failure is not None:
                yield from self._record_failure(failure)
            elif self.failures.is_awaited(frame):
                # Another branch is recording it.
                yield Rest(_MOMENT, self.stop, self._refuse_if_over)
                if address:
                    self.refuse_if_closed()
            else:
                return

    def _note_abandoned(self, frame: str) -> None:
        """The code of a frame makes a call: it has abandoned those that were cancelled in it, unless it is being
        cancelled itself."""
        task = running_task() if self.cancelled else None
        if task is None or task.cancelling():
            return
        within = f"{frame}/" if frame else ""
        for address in [each for each in self.cancelled if each.startswith(within)]:
            took = self.cancelled.pop(address)
            self.value(_ABANDONED + address, partial(int, took))

    def abandoned_after(self, address: str) -> float | None:
        """Return the seconds after which code had abandoned a call when it was recorded; None if it had not."""
        name = _ABANDONED + address
        return self.value(name, int) / 1e6 if self.has_value(name) else None

    def _record_failure(self, failure: Failure) -> Flow[None]:
        facts = VersionFacts(failure.name, error=failure.facts, kind="step", done=False)
        facts.more = {
            "args": failure.args, "failed": True, **self.replay.described(failure.address),
        }  # fmt: skip
        if failure.after is not None:
            facts.more["after"] = list(failure.after)
        if failure.spent:
            facts.more["spent"] = failure.spent
        if failure.address != failure.name:
            facts.more["address"] = failure.address
        if failure.ran is not None:
            facts.more["ran"] = failure.ran
        number = 0
        try:
            head = yield from self.commit(facts, input=failure.given)
            number = head.version.number
        finally:
            self.failures.written(failure, number)
        self.record.enter(head.version, facts.more)
        self.replay.paths.pop(failure.address, None)

    def attempt_failed(self, address: str) -> None:
        """An attempt at a step failed: the next one need not call the steps that this one called."""
        if address in self.record.begun:
            self.facts.retried = {**self.facts.retried, address: self.head.version.number}
            self.keep()

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
        view: View | None = None,
        input: Captured | None = None,  # noqa: A002 - as the root is called
        **changes: Any,
    ) -> Flow[Head]:
        """Write a version: what a frame's draft changed, or nothing, on top of the head. `view` is that of the line
        of execution that it belongs to."""
        facts.status = facts.status or "running"
        known: object | None = None
        while True:
            holder = current_holder()
            if not self._turn.take_now(holder):
                yield Take(self._turn, holder)
            books: _Books | None = None
            try:
                self._refuse_if_over()
                head = self.head
                books = self._enter_in_books(None if frame is None else frame.notes)
                events, values = tuple(self._events), dict(self._values)
                if values:
                    facts.more["values"] = values
                # An abandoned run has no lease; its revision decides.
                leased = head.run.owner is not None
                run = self._next(changes, {})
                apart = view is not None and not view.follows
                facts.more.pop(MARK, None)
                if frame is None or frame.held is None:
                    if apart and view is not None and view.now().root is not head.root:
                        facts.more[MARK] = False
                    drawn = self._line.draw(
                        head.root, head, head, facts, run=run, input=input, events=events, leased=leased
                    )
                else:
                    drawn = self._line.draw(
                        frame.held, frame.base, head, facts, resolve=frame.resolve, known=known, run=run,
                        input=input, events=events, view=MARK if apart else None, leased=leased,
                    )  # fmt: skip
            except BaseException:
                self._undo_books(books)
                self._turn.release()
                raise
            known = known or drawn.space
            try:
                written: Head = yield Write(
                    self.services.committer,
                    drawn.change,
                    partial(self._settle, drawn, events, values, books, view, frame, facts.more.get(MARK)),
                    self._turn,
                )
            except StaleVersion:
                yield Do(self.refresh)
            except LeaseExpired:
                yield Do(self.claim_again)
            else:
                if "ran" in facts.more:
                    self.record.ran[facts.step or ""] = (facts.more["ran"], written.version.number)
                self.stored.note(drawn, facts.result, input)
                return written

    def save(self, **changes: Any) -> Flow[None]:
        """Write changes of the run's record, and the events that wait, without a version."""
        while True:
            holder = current_holder()
            if not self._turn.take_now(holder):
                yield Take(self._turn, holder)
            books: _Books | None = None
            try:
                self._refuse_if_over()
                books = self._enter_in_books(None)
                run, events = self.head.run, tuple(self._events)
                after = msgspec.structs.replace(
                    self._next(changes, self._values),
                    updated=self.services.context.clock(),
                    revision=run.revision + 1,
                )
                change = Append(expect=run, run=after, events=events, leased=run.owner is not None)
            except BaseException:
                self._undo_books(books)
                self._turn.release()
                raise
            try:
                settle = partial(self._settle, None, events, {}, books, None, None, None)
                yield Write(self.services.committer, change, settle, self._turn)
            except StaleVersion:
                yield Do(self.refresh)
            except LeaseExpired:
                yield Do(self.claim_again)
            else:
                return

    def _settle(
        self,
        drawn: Drawn | None,
        events: tuple[EventRecord, ...],
        values: dict[str, Any],
        books: _Books | None,
        view: View | None,
        frame: Frame | None,
        mark: bool | None,
        outcome: RunRecord | BaseException,
    ) -> Head | None:
        """A write has ended, in the thread that wrote. The turn goes to the next from here on. `mark` is what the
        version says under `MARK`."""
        try:
            if isinstance(outcome, BaseException):
                self._undo_books(books)
                if not isinstance(outcome, HoldfastError):
                    self.interrupted = outcome
                return None
            # What was given up meanwhile stays given up.
            self.over = self.over or outcome.owner is None
            self.services.keeper.look_at(outcome)
            if drawn is None:
                self.head = head = self._line.changed(self.head, outcome)
            else:
                head = self._line.settle(drawn, outcome)
                with briefly:
                    if view is not None and not view.follows:
                        _note(view, frame, mark, drawn, head.version.number)
                    self.head = head
                    self._written = head.version.number
                    self._place = None
            del self._events[: len(events)]
            if books is not None:
                del self._owed[: books.owed]
            for address, value in values.items():
                self.record.values[address] = value
                self._values.pop(address, None)
        except BaseException as error:
            self.interrupted = error
            raise
        finally:
            self._turn.release()
        self.services.publisher.wake()
        return head

    def refresh(self) -> None:
        """The run's record has changed: learn how, or that it is another's now."""
        with self._turn:
            self._refresh()

    def claim_again(self) -> None:
        """The lease ran out, because this process was stopped or the store was away: claim the run again, unless
        another has it or its queue is full by now."""
        with self._turn:
            taken = self.services.claim_again(self.head.run)
            self._refresh()
        if not taken:
            raise LeaseExpired(
                f"the lease of run {self.id!r} ran out while this process was stopped or the store was away, and the "
                "run's queue is full by now: what this execution had not committed is not kept, and the run is "
                "claimed again when there is room",
                run=self.id,
            )

    def learn(self) -> None:
        """The run was claimed again for this execution: learn so, unless a write is under way, which will."""

        def refresh() -> bool:
            self._refresh()
            return True

        self.between_writes(refresh)

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
        ours.limits = theirs.limits
        # That this process wants to be rid of the run is told to nobody else.
        handing_back = ours.wish == "hand back"
        ours.wish = theirs.wish or ("hand back" if handing_back else "")
        ours.reason, ours.actor = theirs.reason, theirs.actor
        ours.mail = [letter for letter in theirs.mail if letter.number not in self.taken]
        ours.sent, ours.asked, ours.called = theirs.sent, max(theirs.asked, ours.asked), theirs.called
        for wait in theirs.waits:
            if wait.filled and ours.wait_at(wait.address) is not None:
                ours.put(wait)
        self.outside += self._made_outside(head)
        self.head = head
        self.keep()
        if ours.wish:
            self.end_rests()

    def _made_outside(self, head: Head) -> list[int]:
        """The versions between the head that was known and the one that is read now."""
        reader = self.services.context.reader(head.run)
        found: list[int] = []
        version = head.version
        while version.number > self.head.version.number:
            found.append(version.number)
            if version.parent < 1:
                break
            version = reader.record(version.parent)
        return found[::-1]

    def _refuse_if_over(self) -> None:
        """What was left running by an execution that has ended is not part of the next one."""
        if self.over or self.lost:
            raise LeaseLost(
                f"this execution of run {self.id!r} has ended: what was left running by it is not recorded",
                run=self.id,
            )

    def _enter_in_books(self, notes: Mapping[str, Any] | None) -> _Books | None:
        """Add what a step noted, and what failed attempts did since the last write, to the sums of the run; gives what
        takes that back, None if there was nothing. Only the holder of the turn to write does so."""
        if not notes and not self._owed:
            return None
        facts = self.facts
        books = _Books(facts.totals, facts.used, len(self._owed))
        for each in (*self._owed[: books.owed], *((notes,) if notes else ())):
            cost, tokens = used_by(facts)
            more = amounts(each)
            facts.totals = added(facts.totals, each)
            facts.used = {"cost": cost + more[0], "tokens": tokens + more[1]}
        self.keep()
        return books

    def _undo_books(self, books: _Books | None) -> None:
        if books is not None:
            self.facts.totals, self.facts.used = books.totals, books.used
            self.keep()

    def _next(self, changes: dict[str, Any], loose: dict[str, Any]) -> RunRecord:
        """The run's record as a write leaves it, but for what a version changes in it. Each renews the lease; `loose`
        are the values that only the record keeps."""
        if self.facts.limits:
            self.count_time()
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
        until = services.store.now() + services.lease
        run = msgspec.structs.replace(self.head.run, owner=services.owner, until=until, detail=self._detail)
        if changes:
            run = msgspec.structs.replace(run, **changes)
            if run.status == "suspended" and self.facts.has_come():
                # In the moment of suspending: whoever looks for runs that are due finds it.
                run = msgspec.structs.replace(run, due=services.context.clock())
        self.leaving = run.owner is None
        return run


def _note(view: View, frame: Frame | None, mark: bool | None, drawn: Drawn, number: int) -> None:
    """Enter a version, just written, into the view of the line that it belongs to."""
    if mark is False:
        view.note(number, None, None, None)
        return
    root = drawn.own if mark else drawn.root
    base = None if frame is None or frame.held is None else frame.base
    before = None if base is None else Seen(base.root, base.number)
    view.note(number, before, Seen(root, number, mark is True), None if frame is None else frame.resolve)
