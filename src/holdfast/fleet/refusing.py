"""What becomes of a run that a worker has claimed and cannot execute.

Invariant: it is written only by whoever owns the run; a run that only this process cannot execute is not failed.
"""

from __future__ import annotations

from typing import Any

from holdfast.errors import HoldfastError, LeaseLost
from holdfast.history.commit import event
from holdfast.model.records import RunRecord
from holdfast.runtime import mail
from holdfast.runtime.definition import is_unknown_here
from holdfast.runtime.ending import AGAIN
from holdfast.runtime.failure import pack
from holdfast.runtime.log import warn
from holdfast.runtime.services import Services
from holdfast.runtime.waits import Facts

#: Microseconds, at most, before a run is claimed again of which code is not known here; how many such are remembered.
_LONGEST = 60_000_000
_LEFT = 1000


class Refusals:
    """Fails runs, or leaves them to others."""

    def __init__(self, services: Services) -> None:
        self._services = services
        #: How often runs were handed back because this process does not know all of their code, the latest last.
        self._left: dict[str, int] = {}

    def refuse(self, run: RunRecord, error: HoldfastError) -> None:
        """A run cannot be executed: it has failed, or everybody would try it again and again. If only this process
        cannot, for want of code that others may know, it is handed back, for longer each time."""
        if not is_unknown_here(error):
            self._write(run, error, "run.failed", status="failed", due=None)
            return
        times = self._left[run.id] = self._left.pop(run.id, 0) + 1
        if times == 1:
            warn("run %s is left to others, who know its code: %s", run.id, error)
        if len(self._left) > _LEFT:
            del self._left[next(iter(self._left))]
        rest = min(_LONGEST, AGAIN * 2 ** min(times - 1, 10))
        due = self._services.context.clock() + rest
        self._write(run, error, "run.handed_back", status="queued", due=due)

    def hand_back(self, run: RunRecord, error: BaseException) -> None:
        """A run cannot be begun here and now, which is no fault of its own."""
        warn("run %s is handed back: %s", run.id, error)
        due = self._services.context.clock() + AGAIN
        self._write(run, error, "run.handed_back", status="queued", due=due)

    def _write(
        self, run: RunRecord, error: BaseException, kind: str, *, status: str, due: int | None
    ) -> None:
        context = self._services.context

        def change(now: RunRecord, facts: Facts) -> list[Any]:
            if now.owner != self._services.owner:
                raise LeaseLost(f"run {run.id!r} is another's now", run=run.id)
            if status == "failed":
                facts.error, facts.failed_step = pack(error, context.redact), ""
            return [event(kind, context.clock(), error=f"{type(error).__name__}: {error}"[:1000])]

        try:
            mail.amend(context, run.id, change, status=status, owner=None, until=0, due=due)
        except HoldfastError as further:
            warn("run %s cannot be executed (%s), which cannot be written: %s", run.id, error, further)
