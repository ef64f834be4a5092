"""Monitors, watchdogs, and the answers to the questions of stalled runs.

Invariant: an answer that was accepted is in the store, and is carried out even if this process dies.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from holdfast.errors import HoldfastError, InvalidAnswer, StaleVersion
from holdfast.execution import inbox, stopping
from holdfast.execution.frame import refuse_in_loop
from holdfast.execution.loops import is_control_run
from holdfast.execution.operators import Delivery, Operators, knows, unless_others_do
from holdfast.execution.questions import check_choice, current_choice
from holdfast.execution.run import Run
from holdfast.execution.runner import Runner
from holdfast.execution.stopping import check_reason
from holdfast.fleet.monitor import recovery
from holdfast.fleet.monitor.monitor import Monitor
from holdfast.history.builder import build_event
from holdfast.history.version import Version
from holdfast.model.checks import check_seconds
from holdfast.model.records import RunRecord
from holdfast.model.run_detail import RunDetail, detail_of
from holdfast.model.watchdog import RunWatchdog, Watchdog, check_watchdog
from holdfast.store.protocol import iter_runs
from holdfast.workflow.definition import workflow_of

#: Seconds between two looks of a monitor, unless it is given another interval.
INTERVAL = 2.0


class Monitoring:
    """Makes monitors, and does what an operator decides about a stalled run."""

    def __init__(self, runner: Runner, operators: Operators) -> None:
        self._runner = runner
        self._operators = operators
        self._engine = runner.engine
        self._context = runner.engine.context
        self._store = runner.engine.store
        self._monitors: WeakSet[Monitor] = WeakSet()

    def monitor(self, interval: float, watchdog: Watchdog | None) -> Monitor:
        """Return a monitor, not yet started."""
        check_seconds("interval", interval, above_zero=True, most=86_400)
        monitor = Monitor(self._runner, self._operators.inbox, interval, check_watchdog(watchdog))
        self._monitors.add(monitor)
        return monitor

    def close(self) -> None:
        """Stop the monitors that run in threads of this process."""
        monitors = list(self._monitors)
        for monitor in monitors:
            monitor.stop()
        for monitor in monitors:
            monitor.join()

    def set_watchdog(self, run_id: str, watchdog: Watchdog | None, actor: str | None) -> Run:
        """Replace the watchdog of a run; None for its workflow's."""
        check_watchdog(watchdog)
        check_reason(None, actor)

        def change(run: RunRecord, facts: RunDetail) -> list[Any]:
            facts.watchdog = RunWatchdog.of(watchdog, None)
            if watchdog is None:
                with suppress(HoldfastError):
                    facts.watchdog = RunWatchdog.of(None, workflow_of(run.workflow).watchdog)
            stored = {} if facts.watchdog is None else facts.watchdog.stored
            return [build_event("run.watchdog_set", self._context.clock(), actor=actor, watchdog=stored)]

        self._engine.record(run_id)
        inbox.amend(self._context, run_id, change)
        return Run(self._runner, run_id)

    def answer(
        self,
        question_id: str,
        value: Any,
        *,
        version: int | Version | None,
        keep: Iterable[str],
        actor: str | None,
        resume: bool,
        raises: bool,
    ) -> Run:
        """Answer a question of a workflow or of the monitor, and resume the run if this process is to do that."""
        if resume:
            refuse_in_loop("answer", ", or say resume=False")
        written = self._write_answer(question_id, value, version, keep, actor, resume)
        return self._operators.resume(written, raises)

    async def aanswer(
        self,
        question_id: str,
        value: Any,
        *,
        version: int | Version | None = None,
        keep: Iterable[str] = (),
        actor: str | None = None,
        resume: bool = True,
        raises: bool = True,
    ) -> Run:
        """As `answer`, in an event loop."""
        import asyncio

        given = (question_id, value, version, keep, actor, resume)
        written = await asyncio.to_thread(self._write_answer, *given)
        return await self._operators.aresume(written, raises)

    def _write_answer(
        self, question_id: str, value: Any, version: Any, keep: Any, actor: str | None, resume: bool
    ) -> Delivery:
        check_reason(None, actor)
        run_id = inbox.run_of(question_id)
        if is_control_run(run_id):
            choice = current_choice(value)
            self._operators.inbox.loops.answer(question_id, choice, version=version, keep=keep, actor=actor)
            self._engine.publisher.wake()
            return Delivery(run_id, None)
        run = self._store.run(run_id) if run_id else None
        question = None if run is None else detail_of(run).question
        if question is not None and question.id == question_id:
            choice = current_choice(value)
            return self._answer_stalled(question_id, choice, version, keep, actor, resume)
        if version is not None or keep:
            # An answer that exists already is the error to report first.
            self._operators.inbox.question(question_id)
            raise InvalidAnswer(
                f"version and keep are for the question of a stalled run, and {question_id!r} is not one",
                question_id=question_id,
            )
        return self._operators.write_answer(question_id, value, actor, resume)

    def _answer_stalled(
        self,
        question_id: str,
        choice: Any,
        version: Any,
        keep: Any,
        actor: str | None,
        resume: bool,
    ) -> Delivery:
        run_id = inbox.run_of(question_id)
        while True:
            run = self._engine.record(run_id)
            if choice != "cancel" and self._is_ours(run, resume):
                # Refused before anything is written.
                self._operators.check_code(self._operators.outermost(run))
            try:
                if choice == "cancel":
                    self._cancel_stalled(run, question_id, version, keep, actor)
                    return Delivery(run_id, None)
                run = recovery.answer(
                    self._engine, run, question_id, choice, version=version, keep=keep, actor=actor
                )
                break
            except StaleVersion:
                continue
        self._engine.publisher.wake()
        if detail_of(run).rollback is not None:
            with unless_others_do():
                self._runner.finish_rollback(run)
        self._call_parents(run)
        return Delivery(run_id, self._operators.outermost(run).id if self._is_ours(run, resume) else None)

    def _cancel_stalled(
        self, run: RunRecord, question_id: str, version: Any, keep: Any, actor: str | None
    ) -> None:
        facts = detail_of(run)
        question = facts.question
        if question is None or question.id != question_id or run.status != "stalled":
            raise inbox.no_question(self._store, run, question_id)
        check_choice(self._context, run, facts, "cancel", version, keep)
        stopping.stop_idle(self._engine, run, "cancel", question.why, actor)
        self._engine.publisher.wake()
        for part in iter_runs(self._store, parent=run.key):
            stopping.cancel(self._engine, part.id, "the run that it is a part of was cancelled", actor)
        self._call_parents(run)

    def _is_ours(self, run: RunRecord, resume: bool) -> bool:
        """Is this process to resume a run that was stalled, or its outermost parent?"""
        top = self._operators.outermost(run)
        queued = recovery.place_of(self._store, top, detail_of(top)) is not None
        return resume and not queued and knows(top)

    def _call_parents(self, run: RunRecord) -> None:
        """Have the parents of a run looked at, because something arrived for it."""
        above = None if run.parent is None else self._store.run_by_key(run.parent)
        while above is not None:
            if above.status in ("suspended", "running"):
                inbox.call(self._context, above)
            above = None if above.parent is None else self._store.run_by_key(above.parent)
