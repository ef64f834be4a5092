"""Boundaries between steps: where an execution is ended, if somebody wants it to, or if it waits.

Invariant: once an execution is to end, no further step begins where it has been told so.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NoReturn

from holdfast.store.interrupts import Flag

if TYPE_CHECKING:
    from holdfast.runtime.result_order import ResultOrder
    from holdfast.runtime.scope import Frame
    from holdfast.runtime.waits import Facts


#: How a run ends at the next boundary if somebody wants it to. A worker that stops hands its runs back.
_WISHES = {"cancel": "cancelled", "pause": "paused", "hand back": "queued"}


class Halt(BaseException):
    """Ends an execution at a boundary between steps; no error, and not for user code to catch."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


#: A lock for moments, of all sessions together: most never need one of their own.
briefly = threading.Lock()


class Boundary:
    """The half of a session that says whether it goes on."""

    def __init__(self, facts: Facts) -> None:
        #: What the run's record says beyond its fields; `keep` after a change.
        self.facts = facts
        #: May no further step begin? And what wakes those who rest between attempts, once somebody does.
        self.stopped = False
        self._stop: Flag | None = None
        self._ending = ""
        self._closed = False
        #: The order in which code gets results; None until something runs in parallel.
        self.order: ResultOrder | None = None
        #: Where a step was to begin after the workflow's function had returned.
        self.cut_off: Frame | None = None
        #: Addresses of the frames in which a wait has ended the execution.
        self._waiting: list[str] = []

    def check(self, frame: Frame) -> None:
        """End the execution here if somebody wants it to end, or if it has ended already. A wait ends it in the frame
        that waits and those around it; what runs beside goes on until the workflow's function has ended."""
        if self.facts.wish:
            self.halt(_WISHES[self.facts.wish])
        if self._ending and (self._closed or self._ending != "suspended" or self._is_around_a_wait(frame)):
            if self._ending == "ended" and self.cut_off is None:
                self.cut_off = frame
            raise Halt(self._ending)

    def halt(self, status: str, frame: Frame | None = None) -> NoReturn:
        """Let no further step begin, and end."""
        if frame is not None:
            self._waiting.append(frame.address)
        self._ending = self._ending or status
        if self._ending != "suspended":
            self.end_order()
        raise Halt(self._ending)

    def halt_at(self, address: str) -> NoReturn:
        """End as a wait in the frame of an address does: what runs in other frames continues."""
        self._waiting.append(address)
        self.halt("suspended")

    def close(self) -> None:
        """The workflow's function has returned: what it left behind may finish its steps but begin none."""
        self._closed = True
        self._ending = self._ending or "ended"
        self.end_rests()

    def refuse_if_closed(self) -> None:
        """End a call that waits to start: the workflow's function has returned meanwhile."""
        if self._closed:
            raise Halt(self._ending)

    def check_caught(self, attempt: Frame) -> None:
        """A step may not go on after a wait in it, or a stop, that its code has caught."""
        if self._ending and self._ending != "ended" and self._is_around_a_wait(attempt):
            raise Halt(self._ending)

    @property
    def halted(self) -> str:
        """How the execution was ended at a boundary, even if user code caught it; empty if it was not."""
        return "" if self._ending == "ended" else self._ending

    def _is_around_a_wait(self, frame: Frame) -> bool:
        around = frame.address
        return not around or any(
            address == around or address.startswith(f"{around}/") for address in self._waiting
        )

    def end_rests(self) -> None:
        """Wake those who rest between attempts: there will be no further ones."""
        self.stopped = True
        if self._stop is not None:
            self._stop.set()
        self.end_order()

    def end_order(self) -> None:
        """Hold no recorded result back any more: those who wait for one are to learn that the execution ends."""
        if self.order is not None:
            self.order.open()

    @property
    def stop(self) -> Flag:
        """Is set when there will be no further attempts. Most executions never need it."""
        with briefly:
            if self._stop is None:
                self._stop = Flag()
        if self.stopped:
            self._stop.set()
        return self._stop
