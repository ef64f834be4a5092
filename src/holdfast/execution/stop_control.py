"""Whether an execution continues: stop requests, waits that end it, and the end of the workflow's function.

Invariant: once an execution is to end, no further step starts after the check that noticed it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from holdfast.store.interrupts import InterruptSafeEvent

if TYPE_CHECKING:
    from holdfast.execution.frame import Frame
    from holdfast.model.run_detail import RunDetail


#: Statuses by stop request. A worker that stops hands its runs back to their queue.
_REQUESTED = {"cancel": "cancelled", "pause": "paused", "hand back": "queued"}


class StopExecution(BaseException):
    """Ends an execution at a boundary between steps. Not an error; user code must not catch it."""

    def __init__(self, status: str) -> None:
        super().__init__(status)
        self.status = status


#: A lock held for moments, shared by all executions: most never need one of their own.
brief_lock = threading.Lock()


class StopControl:
    """Decides at each boundary between steps whether one execution continues."""

    def __init__(self, detail: RunDetail, release_results: Callable[[], None]) -> None:
        self._detail = detail
        #: Releases the recorded results that are held back, so that the code that waits for them reaches a check.
        self._release_results = release_results
        #: How the execution ends, once it is to: a status, "diverged", "rehearsed", or "ended" after the function.
        self.ending = ""
        #: The frame in which a step was called after the workflow's function had returned.
        self.cut_off: Frame | None = None
        #: Has the last attempt been made? The event that wakes pauses between attempts is created when it is needed.
        self._is_set = False
        self._event: InterruptSafeEvent | None = None
        self._closed = False
        #: Addresses of the frames in which a wait has ended the execution.
        self._waiting: list[str] = []

    def check(self, frame: Frame) -> None:
        """Raise `StopExecution` if a stop was requested or the execution has ended. A wait ends the frame that waits
        and the frames around it; other branches continue until the workflow's function has ended."""
        if self._detail.stop_request:
            self.stop(_REQUESTED[self._detail.stop_request])
        if self.ending and (self._closed or self.ending != "suspended" or self._is_around_a_wait(frame)):
            if self.ending == "ended" and self.cut_off is None:
                self.cut_off = frame
            raise StopExecution(self.ending)

    def check_caught(self, attempt: Frame) -> None:
        """Raise `StopExecution` again if the code of an attempt has caught it."""
        if self.ending and self.ending != "ended" and self._is_around_a_wait(attempt):
            raise StopExecution(self.ending)

    def stop(self, status: str, frame: Frame | None = None) -> NoReturn:
        """Let no further step start, and end the execution here."""
        if frame is not None:
            self._waiting.append(frame.address)
        self.ending = self.ending or status
        if self.ending != "suspended":
            self._release_results()
        raise StopExecution(self.ending)

    def stop_frame(self, address: str) -> NoReturn:
        """End the frame of an address as a wait does: other frames continue."""
        self._waiting.append(address)
        self.stop("suspended")

    def close(self) -> None:
        """Let steps that are running finish and no other start: the workflow's function has returned."""
        self._closed = True
        self.ending = self.ending or "ended"
        self.end_pauses()

    def refuse_if_closed(self) -> None:
        """Raise `StopExecution` in a call that waits to start if the workflow's function has returned."""
        if self._closed:
            raise StopExecution(self.ending)

    @property
    def status(self) -> str:
        """How the execution was ended at a boundary, even if user code caught it; empty if it was not."""
        return "" if self.ending == "ended" else self.ending

    def end_pauses(self) -> None:
        """Wake the pauses between attempts: no further attempt is made."""
        self._is_set = True
        if self._event is not None:
            self._event.set()
        self._release_results()

    @property
    def event(self) -> InterruptSafeEvent:
        """Set when no further attempt is made."""
        with brief_lock:
            if self._event is None:
                self._event = InterruptSafeEvent()
        if self._is_set:
            self._event.set()
        return self._event

    def _is_around_a_wait(self, frame: Frame) -> bool:
        around = frame.address
        return not around or any(
            address == around or address.startswith(f"{around}/") for address in self._waiting
        )
