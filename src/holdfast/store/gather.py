"""Carry out together what many threads hand in at once.

A thread that finds no leader leads: it carries out its own job together with those that wait. The jobs stay in the
queue until they have an outcome. A leader that an exception of a signal handler has interrupted, wherever that was,
has left the frame in which it leads (see `interrupts`): the next one leads instead of it, with the same jobs.

Invariant: one thread leads at a time; every job gets its outcome or its error, or its thread was interrupted; once an
interrupt has left `hand_in`, its job has been carried out or never will be.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Generic, TypeVar

from holdfast.errors import HoldfastError, StoreBusy
from holdfast.store.interrupts import LONGEST_LOOK, LOOK, is_gone

T = TypeVar("T")

#: The outcome of a job that has none yet.
PENDING: Any = object()


class Job(Generic[T]):
    """Something that was handed in."""

    __slots__ = ("alone", "frame", "item", "outcome", "wake")

    def __init__(self, item: T, alone: bool) -> None:
        self.item = item
        #: Must it be carried out by itself, and by its own thread, since it cannot be carried out twice?
        self.alone = alone
        #: The result, or an error. Set once, when it is final.
        self.outcome: Any = PENDING
        #: Of the function that waits for the outcome, as long as it does.
        self.frame: FrameType | None = None
        #: Released when there is an outcome, or no leader.
        self.wake: threading.Lock | None = None


class Gather(Generic[T]):
    """One thread at a time carries out what all have handed in, up to so many at once.

    `carry_out` sets the outcome of each job. If it raises, it has kept nothing of those without an outcome. It may be
    given jobs that an interrupted leader had started, and finds out itself what became of them. `at_rest` is called
    when the last leader has finished, before another can lead."""

    def __init__(
        self, carry_out: Callable[[list[Job[T]]], None], most: int, at_rest: Callable[[], None] | None = None
    ) -> None:
        self._carry_out = carry_out
        self._most = most
        self._at_rest = at_rest
        self.start_anew()

    def start_anew(self) -> None:
        """At first, and in a child after a fork."""
        self._mutex = threading.RLock()
        self._queue: list[Job[T]] = []
        #: The frame in which a thread leads, and the one for which leadership is reserved.
        self._leader: FrameType | None = None
        self._next: FrameType | None = None

    @property
    def waiting(self) -> int:
        """How many wait for the one that leads."""
        return len(self._queue) + (self._next is not None)

    def hand_in(self, item: T, *, alone: bool = False) -> Any:
        """Have something carried out, perhaps together with what others hand in."""
        job = Job(item, alone)
        job.frame = sys._getframe()
        self._attend(job)
        # The frame holds the job.
        job.frame = None
        if isinstance(job.outcome, BaseException):
            raise job.outcome
        return job.outcome

    def lead_now(self, holder: FrameType) -> bool:
        """Lead in a frame, with nothing to carry out, if no thread leads or wants to; `hand_over` ends it."""
        with self._mutex:
            if self._queue or not self._is_free(holder):
                return False
            self._leader = holder
            return True

    def hold(self, holder: FrameType) -> None:
        """Lead in a frame, with nothing to carry out, as soon as this thread can; `hand_over` ends it."""
        while True:
            with self._mutex:
                if self._is_free(holder):
                    self._leader, self._next = holder, None
                    return
                self._next = self._next or holder
            self._refuse_to_wait_for_itself()
            time.sleep(0.001)

    def hand_over(self) -> None:
        """Lead no more: wake those whose jobs have an outcome, and the first of those whose have none."""
        with self._mutex:
            self._leader = None
            queue = self._queue
            self._queue = left = [job for job in queue if job.outcome is PENDING] if queue else queue
            if left:
                if left[0].alone:
                    self._next = left[0].frame
                _wake(left[0])
            elif self._at_rest is not None:
                self._at_rest()
            for job in queue:
                if job.outcome is not PENDING:
                    _wake(job)

    def _is_free(self, holder: FrameType | None) -> bool:
        if self._leader is not None and not is_gone(self._leader):
            return False
        if self._next is not None and self._next is not holder and is_gone(self._next):
            self._next = None
        return self._next is None or self._next is holder

    def _attend(self, job: Job[T]) -> None:
        """Wait until the job has an outcome, leading whenever no other thread does."""
        pause = LOOK
        while job.outcome is PENDING:
            jobs: list[Job[T]] | None = None
            with self._mutex:
                if job.outcome is not PENDING:
                    # Since this thread looked, a leader carried the job out and handed over.
                    return
                if self._is_free(job.frame):
                    self._leader, self._next = job.frame, None
                    jobs = self._take(job) if self._queue else [job]
                else:
                    self._line_up(job)
            if jobs is not None:
                self._lead(job, jobs)
            elif job.wake is not None and not job.wake.acquire(timeout=pause):
                # The leader is slow, or was interrupted.
                self._refuse_to_wait_for_itself()
                pause = min(2 * pause, LONGEST_LOOK)

    def _take(self, own: Job[T]) -> list[Job[T]]:
        """Return the jobs to be carried out together: those that have waited longest, perhaps with the leader's own."""
        self._line_up(own)
        # No thread waits any more for the job of one that was interrupted.
        self._queue = queue = [job for job in self._queue if job.outcome is PENDING and not _is_left(job)]
        if own.alone:
            return [own]
        return [job for job in queue if not job.alone][: self._most]

    def _line_up(self, job: Job[T]) -> None:
        """Add a job to the queue, once."""
        if job.wake is None:
            wake = threading.Lock()
            wake.acquire()
            self._queue.append(job)
            job.wake = wake

    def _lead(self, own: Job[T], jobs: list[Job[T]]) -> None:
        try:
            self._carry_out_all(own, jobs)
        except BaseException as error:
            # Interrupted: it waits for its own job no more.
            own.outcome = error
            raise
        finally:
            self.hand_over()

    def _carry_out_all(self, own: Job[T], jobs: list[Job[T]]) -> None:
        """Carry out jobs together; each by itself if one spoils it for all."""
        try:
            self._carry_out(jobs)
            return
        except Exception as error:
            if len(jobs) == 1 and (jobs[0] is own or isinstance(error, HoldfastError)):
                jobs[0].outcome = error
                return
            first = error
        for job in jobs:
            if job.outcome is PENDING:
                try:
                    self._carry_out([job])
                except Exception as error:
                    job.outcome = error
                    first = error
        if not isinstance(first, HoldfastError) and all(job.outcome is not first for job in jobs):
            # No job's fault: a signal handler raised it in this thread, for this thread.
            raise first

    def _refuse_to_wait_for_itself(self) -> None:
        """Refuse to wait for a leader that this very thread is: it waits in a signal handler or a finalizer."""
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            if frame is self._leader:
                raise StoreBusy(
                    "a signal handler or finalizer writes to the store while it interrupts a write of its own thread: "
                    "set a flag there, and write later"
                )
            frame = frame.f_back


def _is_left(job: Job[Any]) -> bool:
    """Was the thread interrupted that waited for a job?"""
    return job.frame is None or is_gone(job.frame)


def _wake(job: Job[Any]) -> None:
    if job.wake is not None and job.wake.locked():
        job.wake.release()
