"""Word for runs from outside: stop, answer, send, listen. The half of `Holdfast` that an operator uses.

Invariant: word that was accepted is in the store, and a run that is being advanced follows it at the next boundary
between steps.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from holdfast.errors import AlreadyRunning, HoldfastError, InvalidCall, NotFound, StaleVersion
from holdfast.history.advance import Line
from holdfast.history.commit import Facts as VersionFacts
from holdfast.history.context import Context
from holdfast.history.history import History
from holdfast.history.version import Version
from holdfast.model.names import MAX_NOTE, MAX_STEP, check_number, check_run_id, check_text
from holdfast.model.public import Event, Prompt
from holdfast.model.records import RunRecord
from holdfast.runtime import code, mail
from holdfast.runtime.answered import answered
from holdfast.runtime.definition import CHANGED, is_unknown_here, workflow_of
from holdfast.runtime.endings import ENDED
from holdfast.runtime.lease import is_alive
from holdfast.runtime.preview import Preview, preview
from holdfast.runtime.publish import Subscription
from holdfast.runtime.restoring import settled
from holdfast.runtime.run import Run
from holdfast.runtime.scope import refuse_in_loop
from holdfast.runtime.services import Services
from holdfast.runtime.waits import encoded, facts_of, ready
from holdfast.store.base import Store, every_run
from holdfast.tree.reducers import Declared

#: What can be done if a run that word is for cannot go on here.
LEAVE = f"say resume=False, and resume it with changed={CHANGED[0]!r} later"


class Delivery(NamedTuple):
    """Something that was written for a run from outside."""

    #: The run that it was for.
    run: str
    #: The run that this process is to resume because of it: that one, or the one that it is a part of.
    resume: str | None


class Outside(ABC):
    """What can be said to runs."""

    _context: Context
    _store: Store
    _services: Services

    def history(self, run_id: str, *, merge: Declared | None = None) -> History:
        """The history of a run, which is made by the first commit to it. `merge` declares reducers for its paths, such
        as `{"n": "sum"}`: how a change that is committed here is merged with changes that others made meanwhile."""
        return History(self._context, run_id, merge)

    def get(self, run_id: str) -> Run:
        """A run by its id."""
        self._known(run_id)
        return Run(self, run_id)

    @abstractmethod
    def resume(self, run_id: str, *, raises: bool = True) -> Run:
        """Go on from the head."""

    @abstractmethod
    async def aresume(self, run_id: str, *, raises: bool = True) -> Run:
        """As `resume`, in an event loop."""

    def preview(
        self, run_id: str, to: int | str | Version | None = None, *, from_address: str | None = None
    ) -> Preview:
        """What rolling back to a version would do, or, without one, resuming: which steps would be passed, run again,
        undone. Changes nothing."""
        return preview(self._services, self.history(run_id), self._known(run_id), to, from_address)

    def cancel(self, run_id: str, *, reason: str | None = None, actor: str | None = None) -> Run:
        """Stop a run for good, at the next boundary between steps, and the runs that are parts of it."""
        run = self._known(run_id)
        check_texts(reason, actor)
        self._stop(run_id, "cancel", reason, actor)
        for child in every_run(self._store, parent=run.key):
            self.cancel(child.id, reason=reason, actor=actor)
        return Run(self, run_id)

    def pause(self, run_id: str, *, reason: str | None = None, actor: str | None = None) -> Run:
        """Stop a run at the next boundary between steps, until it is resumed."""
        self._known(run_id)
        check_texts(reason, actor)
        self._stop(run_id, "pause", reason, actor)
        return Run(self, run_id)

    def send(
        self,
        run_id: str,
        event: str,
        data: Any = None,
        *,
        actor: str | None = None,
        resume: bool = True,
        raises: bool = True,
    ) -> Run:
        """Send an event to a run, which takes it with `wait_for`, now or later. Resumes it as `answer` does."""
        if resume:
            refuse_in_loop("send", ", or say resume=False")
        return self._execute(self._send(run_id, event, data, actor, resume), raises)

    async def asend(
        self,
        run_id: str,
        event: str,
        data: Any = None,
        *,
        actor: str | None = None,
        resume: bool = True,
        raises: bool = True,
    ) -> Run:
        """As `send`, in an event loop."""
        import asyncio

        sent = await asyncio.to_thread(self._send, run_id, event, data, actor, resume)
        return await self._aexecute(sent, raises)

    def prompt(self, prompt_id: str) -> Prompt:
        """An open question by its id; `InvalidAnswer` if it has been answered, or is not open any more."""
        return mail.prompt(self._context, prompt_id)

    def prompts(
        self,
        *,
        open: bool = True,  # noqa: A002 - as it is called
        run_id: str | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[Prompt]:
        """The questions that can be answered, of all runs or of one, oldest first. A question whose time is over is not
        among them.

        With `open=False` those that have been answered, with who did and when, newest first: at most `limit`. For the
        next page pass the last one's id as `after`."""
        run = None if run_id is None else self._known(run_id)
        check_number("limit", limit, 1)
        check_text("after", after, MAX_NOTE)
        if not open:
            return answered(self._store, run, after, limit)
        if run is not None:
            return mail.prompts(self._context, run)
        found: list[Prompt] = []
        statuses = ["suspended", "running", "paused", "frozen"]
        for each in every_run(self._store, statuses=statuses, live=True):
            found += mail.prompts(self._context, each)
        return sorted(found, key=lambda prompt: prompt.opened)

    def subscribe(
        self,
        callback: Callable[[Event], Any] | None = None,
        *,
        kinds: Sequence[str] = (),
        run_id: str | None = None,
        after: int | None = None,
    ) -> Subscription:
        """Hear of what happens, in this process and others: `callback` is called in a thread of its own; without one,
        iterate over the subscription. `kinds` are patterns such as "run.*"; `after` a cursor to begin from, else
        now."""
        if (
            isinstance(kinds, str)
            or not isinstance(kinds, Iterable)
            or not all(isinstance(kind, str) for kind in kinds)
        ):
            raise InvalidCall('kinds is a list of patterns, such as ["run.*", "step.failed"]')
        if callback is not None and not callable(callback):
            raise InvalidCall("subscribe takes a function of an event")
        if run_id is not None:
            check_run_id(run_id)
        if after is not None:
            check_number("after", after, 0)
        return self._services.publisher.subscribe(callback, kinds=kinds, run_id=run_id, after=after)

    def _stop(self, run_id: str, what: str, reason: str | None, actor: str | None) -> None:
        while True:
            run = self._known(run_id)
            if run.status in ENDED:
                return
            if is_alive(run, self._context.clock()):
                mail.wish(self._context, run_id, what, reason, actor)
                session = self._services.sessions.get(run_id)
                if session is not None:
                    session.facts.wish, session.facts.reason, session.facts.actor = what, reason, actor
                    session.end_rests()
                return
            try:
                self._stop_idle(run, what, reason, actor)
            except StaleVersion:
                continue
            self._services.publisher.wake()
            return

    def _stop_idle(self, run: RunRecord, what: str, reason: str | None, actor: str | None) -> None:
        """Stop a run that nobody advances."""
        if what == "pause":
            if run.status not in ("paused", "frozen"):
                mail.pause(self._context, run, reason, actor)
            return
        line = Line(self._context, run.id)
        head = line.fresh_head()
        assert head is not None
        if head.run.revision != run.revision:
            raise StaleVersion(f"run {run.id!r} has moved on: look at it again")
        facts = facts_of(head.run)
        facts.waits, facts.wish = [], ""
        entries = settled(self._store, head.run, facts, self._context.clock(), choice="cancel", actor=actor)
        ending = VersionFacts(kind="final", status="cancelled", note=reason, actor=actor)
        left = msgspec.structs.replace(head.run, owner=None, until=0, due=None, detail=encoded(facts))
        drawn = line.draw(head.root, head, head, ending, run=left, events=entries)
        line.settle(drawn, self._store.append(drawn.change))

    def _answer(self, prompt_id: str, value: Any, actor: str | None, resume: bool) -> Delivery:
        """Write an answer to a question that a workflow asked."""
        check_texts(None, actor)
        self._refuse_changed(mail.run_of(prompt_id), resume)
        return self._delivered(mail.answer(self._context, prompt_id, value, actor), resume)

    def _send(self, run_id: str, event: str, data: Any, actor: str | None, resume: bool) -> Delivery:
        """Write an event that was sent to a run."""
        check_texts(None, actor)
        self._refuse_changed(check_run_id(run_id), resume)
        return self._delivered(mail.send(self._context, run_id, event, data, actor), resume)

    def _delivered(self, run: RunRecord, resume: bool) -> Delivery:
        """Wake those who wait for a run that something came for; tell which run this process is to resume."""
        self._services.publisher.wake()
        top = self._outermost(run)
        if top is not run and top.status in ("suspended", "running"):
            mail.call(self._context, top)
        ours = resume and self._waits_for_us(run, top) and ready(self._store, top, self._context.clock())
        return Delivery(run.id, top.id if ours else None)

    def _execute(self, delivery: Delivery, raises: bool) -> Run:
        """Resume the run that something came for, if that is for this process to do."""
        resumed: Run | None = None
        if delivery.resume is not None:
            with left_to_others():
                resumed = self.resume(delivery.resume, raises=False)
        if raises and resumed is not None:
            resumed.raise_failure()
        return Run(self, delivery.run)

    async def _aexecute(self, delivery: Delivery, raises: bool) -> Run:
        """As `_execute`, in an event loop."""
        resumed: Run | None = None
        if delivery.resume is not None:
            with left_to_others():
                resumed = await self.aresume(delivery.resume, raises=False)
        if raises and resumed is not None:
            resumed.raise_failure()
        return Run(self, delivery.run)

    def _refuse_changed(self, run_id: str, resume: bool) -> None:
        """`CodeChanged`, before anything is written, if a run is to go on here and its workflow does not allow that."""
        run = self._store.run(run_id) if run_id else None
        if resume and run is not None:
            top = self._outermost(run)
            if self._waits_for_us(run, top):
                self._check_code(top, LEAVE)

    def _waits_for_us(self, run: RunRecord, top: RunRecord) -> bool:
        """Is it for this process to go on with a run, and the outermost that it is a part of, when something comes?"""
        if run.status != "suspended" or top.status != "suspended":
            return False
        if is_alive(top, self._context.clock()) or self._store.place(top.key) is not None:
            return False
        return knows(top)

    def _outermost(self, run: RunRecord) -> RunRecord:
        """The run that a run is a part of, the outermost that has not ended; itself if it is none."""
        top = run
        while top.parent is not None:
            above = self._store.run_by_key(top.parent)
            if above is None or above.status in ENDED:
                break
            top = above
        return top

    def _check_code(
        self, run: RunRecord, otherwise: str | None = None, *, changed: str | None = None
    ) -> None:
        """`CodeChanged` if a run may not go on with the code that its workflow has now."""
        found = workflow_of(run.workflow)
        reader = self._context.reader(run)
        policy = changed or found.changed
        code.compare(run, found, reader, facts_of(run), policy, warns=False, otherwise=otherwise)

    def _known(self, run_id: str) -> RunRecord:
        run = self._store.run(check_run_id(run_id))
        if run is None:
            raise NotFound(f"there is no run {run_id!r}", run=run_id)
        return run


@contextmanager
def left_to_others() -> Iterator[None]:
    """Leave to others the run that they execute already, or whose compensation only they know."""
    try:
        yield
    except AlreadyRunning:
        """They resume it."""
    except NotFound as error:
        if not is_unknown_here(error):
            raise


def knows(run: RunRecord) -> bool:
    """Does this process know the code of a run?"""
    try:
        return workflow_of(run.workflow) is not None
    except HoldfastError:
        return False


def check_texts(reason: Any, actor: Any) -> None:
    check_text("reason", reason, MAX_NOTE)
    check_text("actor", actor, MAX_STEP)
