"""Gathering what many threads hand in at once, for one of them to carry out together.

Whichever thread finds nobody at work leads, with what all who came meanwhile have handed in.

Invariant: one thread leads at a time; whoever handed something in gets its outcome, or its error, when it has been
carried out; a thread that is interrupted, wherever it stands, keeps nobody else waiting.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from holdfast.errors import CommitUnknown

T = TypeVar("T")

_NONE: Any = object()
_INTERRUPTED = (
    "the thread that wrote for several was interrupted: read the run, then go on from where it stands"
)


class Job(Generic[T]):
    """Something that was handed in. Whoever carries it out sets its outcome: what it gave, or an error."""

    __slots__ = ("alone", "done", "item", "leads", "outcome", "wake")

    def __init__(self, item: T, alone: bool) -> None:
        self.item = item
        #: Must it be carried out by itself?
        self.alone = alone
        self.outcome: Any = _NONE
        self.leads = False
        self.done = False
        self.wake: Any = None


class Gather(Generic[T]):
    """One thread at a time carries out what all have handed in, up to so many at once. `at_rest` is called when nobody
    leads any more, while nobody can begin to."""

    def __init__(
        self, carry_out: Callable[[list[Job[T]]], None], most: int, at_rest: Callable[[], None] | None = None
    ) -> None:
        self._carry_out = carry_out
        self._most = most
        self._at_rest = at_rest
        self.start_anew()

    def start_anew(self) -> None:
        """At first, and in a child after a fork."""
        self._mutex = threading.Lock()
        self._queue: list[Job[T]] = []
        self._batch: list[Job[T]] = []
        self._leading = False

    @property
    def waiting(self) -> int:
        """How many wait for whoever leads."""
        return len(self._queue)

    def hand_in(self, item: T, *, alone: bool = False) -> Any:
        """Have something carried out, perhaps together with what others hand in."""
        job = Job(item, alone)
        try:
            self._enter(job)
            if not job.done:
                self._lead(job)
        except BaseException:
            self._leave(job)
            raise
        if isinstance(job.outcome, BaseException):
            raise job.outcome
        return job.outcome

    def lead_now(self) -> bool:
        """Lead, with nothing to carry out, if nobody does; `hand_over` ends it."""
        with self._mutex:
            if self._leading:
                return False
            self._leading = True
            return True

    def hold(self) -> None:
        """Lead, with nothing to carry out, as soon as this thread can; `hand_over` ends it."""
        job: Job[Any] = Job(None, True)
        try:
            self._enter(job)
            self._take(job)
        except BaseException:
            self._leave(job)
            raise

    def hand_over(self) -> None:
        """Let the next in the queue lead, or nobody."""
        with self._mutex:
            self._hand_over()

    def _enter(self, job: Job[T]) -> None:
        """Lead if nobody does, and so nobody waits; else wait until the job is done, or until it is to lead."""
        with self._mutex:
            if not self._leading:
                self._leading = job.leads = True
                return
            job.wake = threading.Lock()
            job.wake.acquire()
            self._queue.append(job)
        job.wake.acquire()

    def _leave(self, job: Job[T]) -> None:
        """Take back the job of a thread that was interrupted: it leads nobody any more."""
        with self._mutex:
            if job in self._queue:
                self._queue.remove(job)
            if job.leads:
                job.leads = False
                self._hand_over()

    def _take(self, own: Job[T]) -> None:
        """What is to be carried out together; the job of the thread that leads is the first."""
        with self._mutex:
            if own.wake is None:
                self._batch = [own]
                return
            count = 1
            if not own.alone:
                while count < min(self._most, len(self._queue)) and not self._queue[count].alone:
                    count += 1
            self._batch, self._queue = self._queue[:count], self._queue[count:]

    def _lead(self, own: Job[T]) -> None:
        try:
            self._take(own)
            self._carry_out(self._batch)
        except Exception as error:
            for job in self._batch:
                if job.outcome is _NONE:
                    job.outcome = error
        finally:
            jobs, self._batch = self._batch, []
            with self._mutex:
                own.leads = False
                self._hand_over()
            for job in jobs:
                if job.outcome is _NONE:
                    job.outcome = CommitUnknown(_INTERRUPTED)
                job.done = True
                if job is not own and job.wake is not None:
                    job.wake.release()

    def _hand_over(self) -> None:
        if self._queue:
            self._queue[0].leads = True
            self._queue[0].wake.release()
            return
        self._leading = False
        if self._at_rest is not None:
            self._at_rest()
