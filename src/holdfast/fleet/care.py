"""Looking after runs: the part of `Holdfast` that watches them, and that carries out what an operator decides.

Invariant: an answer that was accepted is in the store, and is carried out even if this process dies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from holdfast.errors import (
    HoldfastError,
    InvalidAnswer,
    InvalidCall,
    StaleVersion,
)
from holdfast.fleet import restore
from holdfast.history.commit import event
from holdfast.history.context import Context
from holdfast.history.version import Version
from holdfast.model.names import short
from holdfast.model.records import RunRecord
from holdfast.runtime import mail, undo
from holdfast.runtime.definition import workflow_of
from holdfast.runtime.outside import LEAVE, Delivery, check_texts, knows, left_to_others
from holdfast.runtime.restoring import check_choice
from holdfast.runtime.run import Run
from holdfast.runtime.runner import Runner
from holdfast.runtime.scope import refuse_in_loop
from holdfast.runtime.waits import Facts, facts_of
from holdfast.runtime.watch import Watch, check_watch, follow_workflow, kept_watch
from holdfast.store.base import every_run

if TYPE_CHECKING:
    from holdfast.fleet.monitor import Monitor


class Care(Runner):
    """Watching runs, and putting them right."""

    def __init__(self, context: Context, lease: int, room: Callable[[str], int | None]) -> None:
        super().__init__(context, lease, room)
        self._monitors: WeakSet[Monitor] = WeakSet()

    def monitor(self, *, interval: float = 2.0, watch: Watch | None = None) -> Monitor:
        """A monitor, which looks at all runs every so many seconds; of many on one store, one acts at a time. `watch`
        is for runs that have no policy, of their own or of their workflow."""
        if isinstance(interval, bool) or not isinstance(interval, int | float) or not 0 < interval <= 86_400:
            raise InvalidCall(f"interval is a number of seconds above 0, not {short(interval)}")
        check_watch(watch)
        from holdfast.fleet.monitor import Monitor

        monitor = Monitor(self, interval, watch)
        self._monitors.add(monitor)
        self._begin_work()
        return monitor

    def watch(self, run_id: str, watch: Watch | None, *, actor: str | None = None) -> Run:
        """Say when a run is taken for stuck, and what is done then, from now on; None for what its workflow says."""
        check_watch(watch)
        check_texts(None, actor)

        def change(run: RunRecord, facts: Facts) -> list[Any]:
            facts.watch = kept_watch(watch, None)
            if watch is None:
                with suppress(HoldfastError):
                    facts.watch = follow_workflow({}, workflow_of(run.workflow).watch)
            return [event("run.watched", self._context.clock(), actor=actor, watch=facts.watch)]

        self._known(run_id)
        mail.amend(self._context, run_id, change)
        return Run(self, run_id)

    def answer(
        self,
        prompt_id: str,
        value: Any,
        *,
        version: int | Version | None = None,
        keep: Iterable[str] = (),
        actor: str | None = None,
        resume: bool = True,
        raises: bool = True,
    ) -> Run:
        """Answer a prompt. If this process knows the workflow, the run goes on at once, unless `resume` is False or
        the run is in a queue and workers go on with it. If it fails then, its error is raised, unless `raises` is
        False; the answer is kept. In an event loop await `aanswer`.

        The prompt of a run that is frozen is answered with a choice: `resume`; `rollback`, to `version` or else to the
        last good one; `reinitialise`: begin afresh from version 1, and `keep` parts of the state, given by their paths;
        `cancel`."""
        if resume:
            refuse_in_loop("answer", ", or say resume=False")
        return self._execute(self._answer_any(prompt_id, value, version, keep, actor, resume), raises)

    async def aanswer(
        self,
        prompt_id: str,
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

        given = await asyncio.to_thread(self._answer_any, prompt_id, value, version, keep, actor, resume)
        return await self._aexecute(given, raises)

    def _answer_any(
        self, prompt_id: str, value: Any, version: Any, keep: Any, actor: str | None, resume: bool
    ) -> Delivery:
        """Write an answer to a question, of a workflow or of the monitor."""
        check_texts(None, actor)
        run_id = mail.run_of(prompt_id)
        run = self._store.run(run_id) if run_id else None
        if run is not None and facts_of(run).prompt.get("id") == prompt_id:
            return self._answer_frozen(prompt_id, value, version, keep, actor, resume)
        if version is not None or keep:
            # If it has been answered, that is what to tell.
            mail.prompt(self._context, prompt_id)
            raise InvalidAnswer(
                f"version and keep are for the prompt of a frozen run, and {prompt_id!r} is none",
                prompt=prompt_id,
            )
        return self._answer(prompt_id, value, actor, resume)

    def _answer_frozen(
        self,
        prompt_id: str,
        choice: Any,
        version: Any,
        keep: Any,
        actor: str | None,
        resume: bool,
    ) -> Delivery:
        run_id = mail.run_of(prompt_id)
        while True:
            run = self._known(run_id)
            if choice != "cancel" and self._is_ours(run, resume):
                # Refused before anything is written.
                self._check_code(self._outermost(run), LEAVE)
            try:
                if choice == "cancel":
                    self._cancel_frozen(run, prompt_id, version, keep, actor)
                    return Delivery(run_id, None)
                run = restore.answer(
                    self._services, run, prompt_id, choice, version=version, keep=keep, actor=actor
                )
                break
            except StaleVersion:
                continue
        self._services.publisher.wake()
        if facts_of(run).undoing is not None:
            with left_to_others():
                self._finish_rollback(run)
        self._call_those_around(run)
        return Delivery(run_id, self._outermost(run).id if self._is_ours(run, resume) else None)

    def _cancel_frozen(
        self, run: RunRecord, prompt_id: str, version: Any, keep: Any, actor: str | None
    ) -> None:
        facts = facts_of(run)
        if facts.prompt.get("id") != prompt_id or run.status != "frozen":
            raise mail.no_prompt(self._store, run, prompt_id)
        check_choice(self._context, run, facts, "cancel", version, keep)
        self._stop_idle(run, "cancel", facts.prompt["why"], actor)
        self._services.publisher.wake()
        for part in every_run(self._store, parent=run.key):
            self.cancel(part.id, reason="the run that it is a part of was cancelled", actor=actor)
        self._call_those_around(run)

    def _is_ours(self, run: RunRecord, resume: bool) -> bool:
        """Is it for this process to go on with a run that was frozen, or with the one that it is a part of?"""
        top = self._outermost(run)
        queued = restore.place_of(self._store, top, facts_of(top)) is not None
        return resume and not queued and knows(top)

    def _call_those_around(self, run: RunRecord) -> None:
        """Tell the runs that a run is a part of that something came for it."""
        above = None if run.parent is None else self._store.run_by_key(run.parent)
        while above is not None:
            if above.status in ("suspended", "running"):
                mail.call(self._context, above)
            above = None if above.parent is None else self._store.run_by_key(above.parent)

    def _finish_rollback(self, run: RunRecord, then: str | None = None) -> None:
        """Go on with a rollback that was begun here, or whose process has died."""
        undo.go_on(self._services, self.history(run.id), run, then)
        self._end_parts(run, None)
