"""Group commit: carry out together the jobs that many threads submit at once.

A thread that finds no leader becomes the leader and carries out its own job together with the waiting ones. Jobs stay
in the queue until they have an outcome. A leader that an exception of a signal handler has interrupted, at any point,
has left the frame in which it led (see `interrupts`): the next thread takes over, with the same jobs.

Invariant: one thread leads at a time; every job gets its result or its error, unless its thread was interrupted; once
an interrupt has left `submit`, its job has been carried out or never will be.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Generic, TypeVar

from holdfast.errors import HoldfastError, StoreBusy
from holdfast.store.interrupts import MAX_POLL_INTERVAL, POLL_INTERVAL, current_frame, has_returned

T = TypeVar("T")

#: The outcome of a job that has none yet.
PENDING: Any = object()


class Job(Generic[T]):
    """A submitted job."""

    __slots__ = ("alone", "frame", "item", "outcome", "wake")

    def __init__(self, item: T, alone: bool) -> None:
        self.item = item
        #: Whether its own thread must carry it out, alone, because it cannot be repeated.
        self.alone = alone
        #: The result or an error. Set once, when it is final.
        self.outcome: Any = PENDING
        #: The frame of the function that waits for the outcome, while it waits.
        self.frame: FrameType | None = None
        #: Released when there is an outcome or no leader.
        self.wake: threading.Lock | None = None


class GroupCommit(Generic[T]):
    """Jobs of all threads, carried out by one thread at a time, at most `most` at once.

    `carry_out` sets the outcome of each job. If it raises, jobs without an outcome have left no trace. It may be given
    jobs that an interrupted leader had started, and finds out itself whether they were carried out. `on_idle` is called
    when a leader has finished and no job waits, before another thread can lead."""

    def __init__(
        self, carry_out: Callable[[list[Job[T]]], None], most: int, on_idle: Callable[[], None] | None = None
    ) -> None:
        self._carry_out = carry_out
        self._most = most
        self._on_idle = on_idle
        self.reset()

    def reset(self) -> None:
        """Start without jobs or a leader: at first, and in a child after a fork."""
        self._mutex = threading.RLock()
        self._queue: list[Job[T]] = []
        #: The frame in which a thread leads, and the one for which the next turn is reserved.
        self._leader: FrameType | None = None
        self._next: FrameType | None = None

    @property
    def waiting(self) -> int:
        """The number of threads that wait for the leader."""
        return len(self._queue) + (self._next is not None)

    def submit(self, item: T, *, alone: bool = False) -> Any:
        """Have a job carried out, perhaps together with jobs of other threads; return its result."""
        job = Job(item, alone)
        job.frame = current_frame()
        self._await_outcome(job)
        # The frame refers to the job: break the cycle.
        job.frame = None
        if isinstance(job.outcome, BaseException):
            raise job.outcome
        return job.outcome

    def try_acquire(self, holder: FrameType) -> bool:
        """Lead in a frame, without a job, if no thread leads or waits; `release` ends it."""
        with self._mutex:
            if self._queue or not self._is_free(holder):
                return False
            self._leader = holder
            return True

    def acquire(self, holder: FrameType) -> None:
        """Wait until this thread can lead in a frame, without a job; `release` ends it."""
        while True:
            with self._mutex:
                if self._is_free(holder):
                    self._leader, self._next = holder, None
                    return
                self._next = self._next or holder
            self._refuse_self_wait()
            time.sleep(0.001)

    def release(self) -> None:
        """Stop leading: wake the threads whose jobs have an outcome, and the first of the others."""
        with self._mutex:
            self._leader = None
            queue = self._queue
            self._queue = left = [job for job in queue if job.outcome is PENDING] if queue else queue
            if left:
                if left[0].alone:
                    self._next = left[0].frame
                _wake(left[0])
            elif self._on_idle is not None:
                self._on_idle()
            for job in queue:
                if job.outcome is not PENDING:
                    _wake(job)

    def _is_free(self, holder: FrameType | None) -> bool:
        if self._leader is not None and not has_returned(self._leader):
            return False
        if self._next is not None and self._next is not holder and has_returned(self._next):
            self._next = None
        return self._next is None or self._next is holder

    def _await_outcome(self, job: Job[T]) -> None:
        """Wait until the job has an outcome, leading whenever no other thread does."""
        pause = POLL_INTERVAL
        while job.outcome is PENDING:
            jobs: list[Job[T]] | None = None
            with self._mutex:
                if job.outcome is not PENDING:
                    # A leader has carried it out since this thread last looked.
                    return
                if self._is_free(job.frame):
                    self._leader, self._next = job.frame, None
                    jobs = self._take(job) if self._queue else [job]
                else:
                    self._enqueue(job)
            if jobs is not None:
                self._lead(job, jobs)
            elif job.wake is not None and not job.wake.acquire(timeout=pause):
                # The leader is slow, or was interrupted.
                self._refuse_self_wait()
                pause = min(2 * pause, MAX_POLL_INTERVAL)

    def _take(self, own: Job[T]) -> list[Job[T]]:
        """Return the jobs to carry out together: the ones that have waited longest, perhaps with the leader's own."""
        self._enqueue(own)
        # Drop the jobs of interrupted threads.
        self._queue = queue = [
            job for job in self._queue if job.outcome is PENDING and not _is_abandoned(job)
        ]
        if own.alone:
            return [own]
        return [job for job in queue if not job.alone][: self._most]

    def _enqueue(self, job: Job[T]) -> None:
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
            # Interrupted: this thread no longer waits for its job.
            own.outcome = error
            raise
        finally:
            self.release()

    def _carry_out_all(self, own: Job[T], jobs: list[Job[T]]) -> None:
        """Carry out jobs together; if that fails, each alone."""
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
            # No job caused it: a signal handler raised it in this thread.
            raise first

    def _refuse_self_wait(self) -> None:
        """Refuse to wait if this thread is the leader itself: it would wait in a signal handler or a finalizer."""
        frame: FrameType | None = current_frame()
        while frame is not None:
            if frame is self._leader:
                raise StoreBusy(
                    "a signal handler or finalizer writes to the store while it interrupts a write of the same thread: "
                    "set a flag there, and write later"
                )
            frame = frame.f_back


def _is_abandoned(job: Job[Any]) -> bool:
    """Return whether the thread that waited for a job was interrupted."""
    return job.frame is None or has_returned(job.frame)


def _wake(job: Job[Any]) -> None:
    if job.wake is not None and job.wake.locked():
        job.wake.release()
