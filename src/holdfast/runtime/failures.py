"""The steps of one execution that failed for good, and whether the workflow could live with that.

A failure that the code around it handles is a result like any other: it is recorded when that code goes on, and fails
the same way on replay. One that ends the run is not: a resume tries that step again.

Invariant: a failure is recorded only when the code of its frame, or of one around it, has done something else since.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

from holdfast.runtime.failure import describe

#: Failures that are remembered, with all that their tracebacks hold.
_SURVIVED = 200


class Failure(NamedTuple):
    """A step that failed for good. It is recorded if the workflow goes on after all."""

    name: str
    address: str
    args: bytes
    error: BaseException
    attempts: int
    #: The version that recorded it, once there is one.
    number: int = 0
    #: Its arguments, captured.
    given: Any = None
    #: Its implementation, if its version is to name it.
    ran: Any = None
    #: The error as it was when the step failed: code that handles it may add notes, or raise others from it.
    facts: Any = None
    #: What it has spent: cost, tokens, and steps that it called.
    spent: dict[str, Any] | None = None
    #: Its place among the results that code got (see `result_order`), where that ran in parallel.
    after: tuple[int, int] | None = None


class _Handled:
    """A failure that is to be recorded."""

    __slots__ = ("by", "failure", "writing")

    def __init__(self, failure: Failure, by: str) -> None:
        self.failure = failure
        #: The address of the outermost frame whose code is known to have handled it.
        self.by = by
        #: Is a branch recording it?
        self.writing = False

    def concerns(self, frame: str) -> bool:
        """Must it be recorded before the code of a frame starts a step? So it must if it failed within that frame, or
        if code that called what this frame is part of has handled it."""
        return self.failure.address.startswith(_within(frame)) or _within(frame).startswith(_within(self.by))


class Failures:
    """What failed in one execution."""

    __slots__ = ("_handled", "_lock", "_survived", "pending")

    def __init__(self) -> None:
        #: Those that nobody is known to have handled.
        self.pending: list[Failure] = []
        #: Those that are to be recorded with the next step, and those that are recorded.
        self._handled: list[_Handled] = []
        self._survived: list[Failure] = []
        self._lock = threading.Lock()

    def __bool__(self) -> bool:
        """Is there any that is not recorded?"""
        return bool(self.pending or self._handled)

    def add(self, failure: Failure) -> None:
        """A step failed for good; whether the workflow can live with that will be seen."""
        described = failure._replace(facts=describe(failure.error))
        with self._lock:
            self.pending.append(described)

    def moved_on(self, frame: str) -> None:
        """The code of a frame (its address) does something else: it has handled what failed in it. What failed in
        another branch, nobody may have handled yet."""
        if self:
            within = _within(frame)
            with self._lock:
                for each in self._handled:
                    if _within(each.by).startswith(within):
                        each.by = frame
                handled = [each for each in self.pending if each.address.startswith(within)]
                self.pending = [each for each in self.pending if each not in handled]
                self._handled += [_Handled(each, frame) for each in handled]

    def take_handled(self, frame: str) -> Failure | None:
        """Return one that must be recorded before the code of a frame goes on, for the caller to record."""
        with self._lock:
            for each in self._handled:
                if not each.writing and each.concerns(frame):
                    each.writing = True
                    return each.failure
        return None

    def is_awaited(self, frame: str) -> bool:
        """Is one being recorded that the code of a frame must wait for?"""
        with self._lock:
            return any(each.concerns(frame) for each in self._handled)

    def written(self, failure: Failure, number: int) -> None:
        """One that was taken was recorded by a version, or, with 0, was not."""
        with self._lock:
            for each in self._handled:
                if each.failure is failure:
                    each.writing = False
            if number:
                self._handled = [each for each in self._handled if each.failure is not failure]
        if number:
            self.recorded(failure._replace(number=number))

    def recorded(self, failure: Failure) -> None:
        """One was recorded, now or when it was replayed."""
        with self._lock:
            self._survived.append(failure)
            del self._survived[:-_SURVIVED]

    def step_of(self, error: BaseException) -> str:
        """Return the address of the step whose failure is this error, or led to it; empty if none did."""
        failed = [*self._survived, *(each.failure for each in self._handled), *self.pending]
        same = [each.address for each in failed if each.error is error]
        led = [each.address for each in failed if led_to(each.error, error)]
        # A failure passes through the steps around it: the innermost is added first.
        return next(iter([*same, *reversed(led)]), "")

    def let_go(self, error: BaseException) -> list[Failure]:
        """Forget those that led to an error; gives those of them that were recorded, and count no more."""
        with self._lock:
            self.pending = [each for each in self.pending if not led_to(each.error, error)]
            self._handled = [each for each in self._handled if not led_to(each.failure.error, error)]
        return [each for each in self._survived if led_to(each.error, error)]


def _within(frame: str) -> str:
    """How the addresses in a frame begin."""
    return f"{frame}/" if frame else ""


def led_to(cause: BaseException, error: BaseException | None) -> bool:
    """Is a failure what a run failed with, or a reason for it?"""
    seen: set[int] = set()
    waiting = [error]
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        if one is cause:
            return True
        seen.add(id(one))
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions
    return False
