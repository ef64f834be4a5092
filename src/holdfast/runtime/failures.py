"""The steps of one execution that failed for good, and whether the workflow could live with that.

A failure that the code around it handles is a result like any other: it is recorded when that code goes on, and fails
the same way on replay. One that ends the run is not: a resume tries that step again.

Invariant: a failure is recorded only when the code of its frame, or of one around it, has done something else since.
"""

from __future__ import annotations

from typing import NamedTuple

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


class Failures:
    """What failed in one execution."""

    __slots__ = ("_handled", "_survived", "pending")

    def __init__(self) -> None:
        #: Those that nobody is known to have handled.
        self.pending: list[Failure] = []
        #: Those that are to be recorded with the next step, and those that are recorded.
        self._handled: list[Failure] = []
        self._survived: list[Failure] = []

    def __bool__(self) -> bool:
        """Is there any that is not recorded?"""
        return bool(self.pending or self._handled)

    def add(self, failure: Failure) -> None:
        """A step failed for good; whether the workflow can live with that will be seen."""
        self.pending.append(failure)

    def moved_on(self, frame: str) -> None:
        """The code of a frame (its address) does something else: it has handled what failed in it. What failed in
        another branch, nobody may have handled yet."""
        if self.pending:
            within = f"{frame}/" if frame else ""
            handled = [each for each in self.pending if each.address.startswith(within)]
            self.pending = [each for each in self.pending if each not in handled]
            self._handled += handled

    def next_handled(self) -> Failure | None:
        """One that is to be recorded."""
        return self._handled.pop(0) if self._handled else None

    def recorded(self, failure: Failure) -> None:
        """One was recorded, now or when it was replayed."""
        self._survived.append(failure)
        del self._survived[:-_SURVIVED]

    def let_go(self, error: BaseException) -> list[Failure]:
        """Forget those that led to an error; gives those of them that were recorded, and count no more."""
        self.pending = [each for each in self.pending if not led_to(each.error, error)]
        self._handled = [each for each in self._handled if not led_to(each.error, error)]
        return [each for each in self._survived if led_to(each.error, error)]


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
