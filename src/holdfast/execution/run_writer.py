"""The writes of one execution: versions, changes of the run's record, and events.

Writing methods are flows (see `effects`), so that blocking and asyncio code share them.

Invariant: one write of an execution is under way at a time. The head of the execution is the head in the store, or the
write is refused and the head is read again. Nothing is written for a run that another execution owns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.errors import HoldfastError, LeaseExpired, LeaseLost, NotFound, StaleVersion
from holdfast.execution.call_arguments import CapturedCall
from holdfast.execution.effects import AcquireWriteLock, AppendChange, Done, Flow, RunBlocking
from holdfast.execution.limits import add_figures, amounts, used_by
from holdfast.execution.state_view import MARK, BranchView, ViewedState
from holdfast.execution.stop_control import brief_lock
from holdfast.execution.write_lock import WriteLock, current_holder
from holdfast.history.builder import VersionMetadata, build_event
from holdfast.history.committer import Committer, VersionDraft
from holdfast.history.reader import Head
from holdfast.model.records import EventRecord, RunRecord
from holdfast.model.run_detail import Used, detail_of, encode_detail, question_rows
from holdfast.store.protocol import Append

if TYPE_CHECKING:
    from holdfast.execution.execution import Execution
    from holdfast.execution.frame import Frame


class _TotalsBefore(NamedTuple):
    """The totals of a run before a write, and how many failed attempts that write counts."""

    totals: dict[str, Any]
    used: Used | None
    failed_attempts: int


class RunWriter:
    """Writes for one execution."""

    def __init__(self, execution: Execution, committer: Committer) -> None:
        self._execution = execution
        self._committer = committer
        self._lock = WriteLock(execution.engine.committer.wake)
        #: Events that go into the journal with the next write.
        self._events: list[EventRecord] = []
        self._encoded_detail = execution.head.run.detail
        self._is_changed = False
        #: The detail of the last write, and the status, whose questions are in the index; None if that is unknown.
        self._indexed: tuple[bytes, str] | None = None
        #: Annotations of failed attempts that are not counted in the run's totals yet.
        self._uncounted: list[Mapping[str, Any]] = []
        #: The newest version that was written; 0 if none was.
        self.newest = 0

    def count_later(self, notes: Mapping[str, Any]) -> None:
        """Count the annotations of a failed attempt in the run's totals with the next write."""
        self._uncounted.append(notes)

    def mark_changed(self) -> None:
        """Have the detail, which was changed, written into the run's record with the next write."""
        self._is_changed = True

    def add_event(self, kind: str, **data: Any) -> None:
        """Add an event that goes into the journal with the next write."""
        self._events.append(build_event(kind, self._execution.engine.context.clock(), **data))

    def append_event(self, entry: EventRecord) -> None:
        """Add an event that is built already."""
        self._events.append(entry)

    def commit(
        self,
        metadata: VersionMetadata,
        *,
        frame: Frame | None = None,
        view: BranchView | None = None,
        input: CapturedCall | None = None,  # noqa: A002 - as the root is called
        **changes: Any,
    ) -> Flow[Head]:
        """Write a version on top of the head, with the changes of a frame's draft, if it has one. `view` is that of the
        branch that it belongs to."""
        execution = self._execution
        metadata.status = metadata.status or "running"
        more = metadata.more
        draft: VersionDraft | None = None
        known: object | None = None

        def build(before: _TotalsBefore | None, now: int) -> tuple[Append, Done]:
            nonlocal draft, known
            head = execution.head
            events, values = tuple(self._events), dict(execution.new_values)
            if values:
                more["values"] = values
            # An abandoned run has no lease; its revision decides.
            leased = head.run.owner is not None
            run = self._next_run(now, changes, {})
            is_apart = view is not None and not view.follows
            more.pop(MARK, None)
            # The arguments of a small call are prepared for storage and need no folding.
            given = input.root if input is not None and input.parameters is None else input
            if frame is None or frame.held is None:
                if is_apart and view is not None and view.now().root is not head.root:
                    more[MARK] = False
                draft = self._committer.build(
                    head.root, head, head, metadata, run=run, input=given, events=events, leased=leased, now=now
                )  # fmt: skip
            else:
                draft = self._committer.build(
                    frame.held, frame.base, head, metadata, resolve=frame.resolve, known=known, run=run,
                    input=given, events=events, view=MARK if is_apart else None, leased=leased, now=now,
                )  # fmt: skip
            known = known or draft.space
            settle = partial(self._settle, draft, events, values, before, view, frame, more.get(MARK))
            return self._with_questions(draft.change), settle

        written: Head = yield from self._write(build, None if frame is None else frame.notes)
        if "ran" in more:
            execution.replay_log.ran[metadata.step or ""] = more["ran"], written.version.number
        assert draft is not None
        execution.stored.note(draft, metadata.result, input)
        return written

    def save(self, **changes: Any) -> Flow[None]:
        """Write changes of the run's record, and the events that wait, without a version."""
        execution = self._execution

        def build(before: _TotalsBefore | None, now: int) -> tuple[Append, Done]:
            run, events = execution.head.run, tuple(self._events)
            after = self._next_run(now, changes, execution.new_values)
            after = msgspec.structs.replace(after, updated=now, revision=run.revision + 1)
            change = Append(expect=run, run=after, events=events, leased=run.owner is not None)
            settle = partial(self._settle, None, events, {}, before, None, None, None)
            return self._with_questions(change), settle

        yield from self._write(build, None)

    def _with_questions(self, change: Append) -> Append:
        """Return a change that also keeps the index of open questions. The caller holds the write lock."""
        if not self._execution.detail.asked:
            return change
        if self._indexed == (change.run.detail, change.run.status):
            return change
        return msgspec.structs.replace(change, questions=question_rows(change.run, detail_of(change.run)))

    def _write(
        self,
        build: Callable[[_TotalsBefore | None, int], tuple[Append, Done]],
        notes: Mapping[str, Any] | None,
    ) -> Flow[Any]:
        """Write the change that `build` returns, and build it again if the run's record has changed meanwhile. `notes`
        are annotations that the change adds to the run's totals."""
        execution = self._execution
        engine = execution.engine
        while True:
            holder = current_holder()
            if not self._lock.take_now(holder):
                yield AcquireWriteLock(self._lock, holder)
            before: _TotalsBefore | None = None
            try:
                if execution.over or execution.lost:
                    raise self._ended()
                if self._uncounted or notes:
                    before = self._add_totals(notes)
                change, settle = build(before, engine.context.clock())
            except BaseException:
                self._restore_totals(before)
                self._lock.release()
                raise
            try:
                return (yield AppendChange(engine.committer, change, settle, self._lock))
            except StaleVersion:
                yield RunBlocking(self.refresh)
            except LeaseExpired:
                yield RunBlocking(self.claim_again)

    def _settle(
        self,
        draft: VersionDraft | None,
        events: tuple[EventRecord, ...],
        values: dict[str, Any],
        before: _TotalsBefore | None,
        view: BranchView | None,
        frame: Frame | None,
        mark: bool | None,
        outcome: RunRecord | BaseException,
    ) -> Head | None:
        """End a write, in the thread that wrote, and release the write lock. `mark` is the version's `MARK`."""
        execution = self._execution
        engine = execution.engine
        try:
            if isinstance(outcome, BaseException):
                self._restore_totals(before)
                if not isinstance(outcome, HoldfastError):
                    execution.interrupted = outcome
                return None
            self._indexed = outcome.detail, outcome.status
            # An execution that was ended meanwhile stays ended.
            execution.over = execution.over or outcome.owner is None
            engine.keeper.renew_if_late(outcome)
            if draft is None:
                execution.head = head = self._committer.note_run_changed(execution.head, outcome)
            else:
                head = self._committer.note_committed(draft, outcome)
                with brief_lock:
                    if view is not None and not view.follows:
                        _note_version(view, frame, mark, draft, head.version.number)
                    execution.head = head
                    self.newest = head.version.number
                    execution.state.position = None
            del self._events[: len(events)]
            if before is not None:
                del self._uncounted[: before.failed_attempts]
            for address, value in values.items():
                execution.replay_log.values[address] = value
                execution.new_values.pop(address, None)
        except BaseException as error:
            execution.interrupted = error
            raise
        finally:
            self._lock.release()
        if engine.publisher.subscriptions:
            engine.publisher.wake()
        return head

    def refresh(self) -> None:
        """Read the run's record, which has changed; `LeaseLost` if another execution owns the run now."""
        with self._lock:
            self._refresh()

    def claim_again(self) -> None:
        """Claim the run again after its lease has expired, because this process was stopped or the store was
        unavailable; `LeaseExpired` if its queue is full by now."""
        execution = self._execution
        with self._lock:
            taken = execution.engine.claim_again(execution.head.run)
            self._refresh()
        if not taken:
            raise LeaseExpired(
                f"the lease of run {execution.id!r} expired while this process was stopped or the store was "
                "unavailable, and the run's queue is full: uncommitted work of this execution is discarded, and the "
                "run is claimed again when its queue has room",
                run=execution.id,
            )

    def learn_of_claim(self) -> None:
        """Read the run's record, in which this execution was claimed again, unless a write is under way, which will."""

        def refresh() -> bool:
            self._refresh()
            return True

        self.between_writes(refresh)

    def _refresh(self) -> None:
        execution = self._execution
        with execution.engine.claiming:
            head = self._committer.fresh_head()
        if head is None:
            raise NotFound(f"run {execution.id!r} was deleted while it ran", run=execution.id)
        if execution.over or execution.lost:
            raise self._ended()
        theirs = detail_of(head.run)
        if head.run.owner != execution.engine.owner or execution.is_fenced(head.run, theirs):
            raise LeaseLost(
                f"run {execution.id!r} was taken over or rolled back by another process: uncommitted work of this "
                "execution is discarded",
                run=execution.id,
            )
        ours = execution.detail
        ours.watchdog, ours.restores, ours.dead = theirs.watchdog, theirs.restores, theirs.dead
        ours.limits, ours.meta = theirs.limits, theirs.meta
        # Only this process knows that it wants to hand the run back.
        is_handing_back = ours.stop_request == "hand back"
        ours.stop_request = theirs.stop_request or ("hand back" if is_handing_back else "")
        ours.reason, ours.actor = theirs.reason, theirs.actor
        ours.signals = [signal for signal in theirs.signals if signal.number not in execution.taken]
        ours.sent, ours.asked, ours.called = theirs.sent, max(theirs.asked, ours.asked), theirs.called
        for wait in theirs.waits:
            mine = ours.wait_at(wait.address)
            if mine is not None and wait.filled:
                ours.put(wait)
            elif mine is not None and mine.name == wait.name and mine.handling != wait.handling:
                ours.put(msgspec.structs.replace(mine, handling=wait.handling))
        execution.state.outside += self._edits_before(head)
        self._indexed = None
        execution.head = head
        self.mark_changed()
        if ours.stop_request:
            execution.stop.end_pauses()

    def _edits_before(self, head: Head) -> list[int]:
        """Return the versions after the known head, up to one that was read from the store."""
        execution = self._execution
        reader = execution.engine.context.reader(head.run)
        found: list[int] = []
        version = head.version
        while version.number > execution.head.version.number:
            found.append(version.number)
            if version.parent < 1:
                break
            version = reader.record(version.parent)
        return found[::-1]

    def refuse_if_ended(self) -> None:
        """Raise `LeaseLost` if this execution has ended."""
        execution = self._execution
        if execution.over or execution.lost:
            raise self._ended()

    def _ended(self) -> LeaseLost:
        execution = self._execution
        return LeaseLost(
            f"this execution of run {execution.id!r} has ended: code that is still running is not recorded",
            run=execution.id,
        )

    def _add_totals(self, notes: Mapping[str, Any] | None) -> _TotalsBefore:
        """Add the annotations of a step, and of attempts that failed since the last write, to the totals of the run.
        Return the totals before. The caller holds the write lock."""
        detail = self._execution.detail
        before = _TotalsBefore(detail.totals, detail.used, len(self._uncounted))
        for each in (*self._uncounted[: before.failed_attempts], *((notes,) if notes else ())):
            cost, tokens = used_by(detail)
            more = amounts(each)
            detail.totals = add_figures(detail.totals, each)
            detail.used = Used(cost + more[0], tokens + more[1])
        self.mark_changed()
        return before

    def _restore_totals(self, before: _TotalsBefore | None) -> None:
        if before is not None:
            detail = self._execution.detail
            detail.totals, detail.used = before.totals, before.used
            self.mark_changed()

    def _next_run(self, now: int, changes: dict[str, Any], values: dict[str, Any]) -> RunRecord:
        """Return the run's record after a write, which renews the lease, without the changes that a version makes.
        `values` are the recorded values that only the record holds."""
        execution = self._execution
        detail = execution.detail
        if detail.limits is not None:
            execution.count_time()
        if detail.values != values:
            detail.values = dict(values)
            self._is_changed = True
        if self._is_changed:
            self._is_changed = False
            try:
                self._encoded_detail = encode_detail(detail)
            except BaseException:
                self._is_changed = True
                raise
        engine = execution.engine
        run: RunRecord = msgspec.structs.replace(
            execution.head.run,
            owner=engine.keeper.owner,
            until=now + engine.lease,
            detail=self._encoded_detail,
        )
        if changes:
            run = msgspec.structs.replace(run, **changes)
            if run.status == "suspended" and detail.has_come():
                # What it waits for came while it was suspended: the search for due runs finds it.
                run = msgspec.structs.replace(run, due=now)
        execution.leaving = run.owner is None
        return run

    def read_requests(self) -> None:
        """Learn of requests that other processes have written into the run's record."""
        execution = self._execution
        run = execution.head.run
        if execution.engine.store.revision(execution.id) != (run.key, run.revision):
            self.refresh()

    def between_writes(self, check: Callable[[], bool]) -> bool:
        """Return the result of a check made while nothing is written; False during a write, which checks by itself."""
        if not self._lock.take_now(current_holder()):
            return False
        try:
            return check()
        finally:
            self._lock.release()


def _note_version(
    view: BranchView, frame: Frame | None, mark: bool | None, draft: VersionDraft, number: int
) -> None:
    """Enter a version, just written, into the view of the branch that it belongs to."""
    if mark is False:
        view.note(number, None, None, None)
        return
    root = draft.own if mark else draft.root
    base = None if frame is None or frame.held is None else frame.base
    before = None if base is None else ViewedState(base.root, base.number)
    resolve = None if frame is None else frame.resolve
    view.note(number, before, ViewedState(root, number, mark is True), resolve)
