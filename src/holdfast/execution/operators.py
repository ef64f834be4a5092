"""Calls of an operator: cancel, pause, signal, answer, inbox.

Invariant: a signal or answer that was accepted is in the store; a process that advances the run reads it at the next
boundary between steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from holdfast.errors import AlreadyRunning, HoldfastError, InvalidCall, NotFound
from holdfast.execution import inbox, stopping
from holdfast.execution.frame import refuse_in_loop
from holdfast.execution.lease import is_alive
from holdfast.execution.loops import Loops, control_run_of
from holdfast.execution.open_questions import Inbox
from holdfast.execution.options import DEFAULTS
from holdfast.execution.preflight import check_code
from holdfast.execution.questions import answered
from holdfast.execution.run import Run
from holdfast.execution.run_endings import ready
from holdfast.execution.runner import Runner
from holdfast.execution.stopping import check_reason
from holdfast.model.checks import check_integer, check_text
from holdfast.model.names import MAX_NOTE, check_run_id
from holdfast.model.public import Question
from holdfast.model.records import ENDED, RunRecord
from holdfast.model.run_detail import detail_of
from holdfast.workflow.definition import CHANGED, is_unknown_here, workflow_of

#: Advice for a call that cannot resume the run here.
_LEAVE = f"say resume=False, and resume it with changed={CHANGED[0]!r} later"


class Delivery(NamedTuple):
    """A signal or an answer that was written."""

    #: The run that it is for.
    run: str
    #: The run that this process has to resume because of it: that one, or its outermost parent.
    resume: str | None


class Operators:
    """Stops runs, and delivers signals and answers to them."""

    def __init__(self, runner: Runner, loops: Callable[[], Loops]) -> None:
        self._runner = runner
        self._engine = runner.engine
        self.inbox = Inbox(runner.engine, loops)
        self._context = runner.engine.context
        self._store = runner.engine.store

    def cancel(self, run_id: str, reason: str | None, actor: str | None) -> Run:
        """Cancel a run and its children."""
        check_run_id(run_id)
        check_reason(reason, actor)
        stopping.cancel(self._engine, run_id, reason, actor)
        return Run(self._runner, run_id)

    def pause(self, run_id: str, reason: str | None, actor: str | None) -> Run:
        """Pause a run."""
        check_run_id(run_id)
        check_reason(reason, actor)
        stopping.stop(self._engine, run_id, "pause", reason, actor)
        return Run(self._runner, run_id)

    def signal(
        self, run_id: str, name: str, data: Any, *, actor: str | None, resume: bool, raises: bool
    ) -> Run:
        """Send a signal to a run, and resume the run if this process is to do that."""
        if resume:
            refuse_in_loop("signal", ", or say resume=False")
        return self.resume(self._write_signal(run_id, name, data, actor, resume), raises)

    async def asignal(
        self,
        run_id: str,
        name: str,
        data: Any,
        *,
        actor: str | None = None,
        resume: bool = True,
        raises: bool = True,
    ) -> Run:
        """As `signal`, in an event loop."""
        import asyncio

        sent = await asyncio.to_thread(self._write_signal, run_id, name, data, actor, resume)
        return await self.aresume(sent, raises)

    def list_questions(
        self, *, open: bool, run_id: str | None, limit: int, after: str | None, **filters: Any,  # noqa: A002 - the public name
    ) -> list[Question]:  # fmt: skip
        """Return a page of the open questions, or of those that were answered, newest first."""
        run = None if run_id is None else self._asker(run_id)
        check_integer("limit", limit, 1)
        check_text("after", after, MAX_NOTE)
        if open:
            return self.inbox.page(run=run, limit=limit, after=after, **filters)
        given = [name for name, value in filters.items() if value is not None]
        if given:
            raise InvalidCall(f"{', '.join(given)} selects open questions: leave it out with open=False")
        return answered(self._store, run, after, limit)

    def _asker(self, run_id: str) -> RunRecord:
        """Return the run that asks the questions of a run: for the run with the state of a loop, the control run."""
        control = control_run_of(check_run_id(run_id))
        found = None if control is None else self._store.run(control)
        return found or self._engine.record(run_id)

    def write_answer(self, question_id: str, value: Any, actor: str | None, resume: bool) -> Delivery:
        """Write the answer to a question that a workflow asked."""
        self._refuse_changed(inbox.run_of(question_id), resume)
        return self._delivered(inbox.answer(self._context, question_id, value, actor), resume)

    def _write_signal(self, run_id: str, name: str, data: Any, actor: str | None, resume: bool) -> Delivery:
        check_reason(None, actor)
        self._refuse_changed(check_run_id(run_id), resume)
        return self._delivered(inbox.signal(self._context, run_id, name, data, actor), resume)

    def _delivered(self, run: RunRecord, resume: bool) -> Delivery:
        """Wake the waiters of a run that something arrived for; return which run this process has to resume."""
        self._engine.publisher.wake()
        top = self.outermost(run)
        if top is not run and top.status in ("suspended", "running"):
            inbox.call(self._context, top)
        ours = resume and self._waits_for_us(run, top) and ready(self._store, top, self._context.clock())
        return Delivery(run.id, top.id if ours else None)

    def resume(self, delivery: Delivery, raises: bool) -> Run:
        """Resume the run of a delivery, if this process is to do that."""
        resumed: Run | None = None
        if delivery.resume is not None:
            with unless_others_do():
                resumed = self._runner.resume(delivery.resume, DEFAULTS)
        if raises and resumed is not None:
            resumed.raise_failure()
        return Run(self._runner, delivery.run)

    async def aresume(self, delivery: Delivery, raises: bool) -> Run:
        """As `resume`, in an event loop."""
        resumed: Run | None = None
        if delivery.resume is not None:
            with unless_others_do():
                resumed = await self._runner.aresume(delivery.resume, DEFAULTS)
        if raises and resumed is not None:
            resumed.raise_failure()
        return Run(self._runner, delivery.run)

    def outermost(self, run: RunRecord) -> RunRecord:
        """Return the outermost parent of a run that has not ended; the run itself if it has none."""
        top = run
        while top.parent is not None:
            above = self._store.run_by_key(top.parent)
            if above is None or above.status in ENDED:
                break
            top = above
        return top

    def check_code(self, run: RunRecord) -> None:
        """Raise `CodeChanged` if a run may not be resumed with the code of its workflow."""
        check_code(self._engine, run, workflow_of(run.workflow), detail_of(run), advice=_LEAVE)

    def _refuse_changed(self, run_id: str, resume: bool) -> None:
        """Raise `CodeChanged`, before anything is written, if this process is to resume a run and may not."""
        run = self._store.run(run_id) if run_id else None
        if resume and run is not None:
            top = self.outermost(run)
            if self._waits_for_us(run, top):
                self.check_code(top)

    def _waits_for_us(self, run: RunRecord, top: RunRecord) -> bool:
        """Is this process to resume a run, and its outermost parent, when something arrives?"""
        if run.status != "suspended" or top.status != "suspended":
            return False
        if is_alive(top, self._context.clock()) or self._store.queue_place(top.key) is not None:
            return False
        return knows(top)


@contextmanager
def unless_others_do() -> Iterator[None]:
    """Ignore that another process executes a run already, or is the only one that knows its code."""
    try:
        yield
    except AlreadyRunning:
        pass
    except NotFound as error:
        if not is_unknown_here(error):
            raise


def knows(run: RunRecord) -> bool:
    """Does this process know the workflow of a run?"""
    try:
        return workflow_of(run.workflow) is not None
    except HoldfastError:
        return False
