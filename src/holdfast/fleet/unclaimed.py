"""Runs in a queue that no worker claims because none of those that serve the queue knows the workflow.

The workflow may have been renamed or removed by a deploy, or be part of one that is still to come: such a run is
reported in the log at once, and stopped with a question in the inbox if no worker comes that knows it.

Invariant: a look reads a bounded number of runs, however many are queued; a run that a worker may claim is left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from holdfast.errors import StaleVersion
from holdfast.fleet import restore
from holdfast.fleet.presence import Announcement, announced
from holdfast.fleet.symptoms import Finding
from holdfast.fleet.told import Told
from holdfast.model.records import RunRecord
from holdfast.runtime.waits import facts_of

if TYPE_CHECKING:
    from holdfast.fleet.care import Care

SYMPTOM = "unclaimed"
#: Microseconds for which a run may be ready before it is looked at, and before it is stopped.
_SOON = 5_000_000
_PATIENCE = 600_000_000
#: Microseconds for which the announcements of workers are not read again.
_FRESH = 10_000_000
#: Runs that one look reads of each status.
_PAGE = 200


class Unclaimed:
    """Finds and stops such runs, for the monitor that acts."""

    def __init__(self, care: Care) -> None:
        self._care = care
        self._services = care._services
        self._store = care._store
        self._told = Told()
        #: By status, the key below which the next look reads on.
        self._below: dict[str, int | None] = {}
        self._workers: list[Announcement] = []
        self._read = 0

    def stop(self) -> list[tuple[str, str]]:
        """Report such runs, and stop those that have waited for too long; return these, and why."""
        stopped, present = [], set()
        for run, queue in self._found():
            present.add(run.id)
            why = _why(run, queue)
            if not self._is_overdue(run):
                self._told.say(
                    run.id, f"is not claimed: {why}; if none comes within 10 minutes, it is frozen"
                )
                continue
            finding = Finding(symptom=SYMPTOM, why=why, since=_ready_since(run), good=run.head)
            try:
                taken = restore.freeze(self._services, run, finding)
            except StaleVersion:
                continue
            if taken is not None:
                stopped.append((run.id, why))
        if not any(self._below.values()):
            self._told.forget(present)
        return stopped

    def overdue(self) -> list[tuple[str, str]]:
        """Return those that the next look stops, and why. Nothing is changed."""
        below = dict(self._below)
        try:
            return [(run.id, _why(run, queue)) for run, queue in self._found() if self._is_overdue(run)]
        finally:
            self._below = below

    def _is_overdue(self, run: RunRecord) -> bool:
        return self._now() - _ready_since(run) > _PATIENCE

    def _found(self) -> Iterator[tuple[RunRecord, str]]:
        """The runs of the next page that no worker of their queue knows, and the queue."""
        now = self._now()
        for run in [*self._page("queued", None), *self._page("suspended", now)]:
            if run.due == restore.ORPHAN or run.parent is not None or now - _ready_since(run) < _SOON:
                continue
            workers = self._current(now)
            if not any(worker.general for worker in workers):
                return
            if all(run.workflow in worker.workflows for worker in workers):
                continue
            place = restore.place_of(self._store, run, facts_of(run))
            serving = [worker for worker in workers if place is not None and place.queue in worker.queues]
            known = any(run.workflow in worker.workflows for worker in serving)
            if place is not None and not known and any(worker.general for worker in serving):
                yield run, place.queue

    def _page(self, status: str, due: int | None) -> list[RunRecord]:
        below = self._below.get(status)
        found = self._store.runs(statuses=[status], due=due, live=True, before=below, limit=_PAGE)
        self._below[status] = found[-1].key if len(found) == _PAGE else None
        return found

    def _current(self, now: int) -> list[Announcement]:
        if not self._read <= now < self._read + _FRESH:
            self._workers, self._read = announced(self._store, now), now
        return self._workers

    def _now(self) -> int:
        return self._services.context.clock()


def _ready_since(run: RunRecord) -> int:
    """When a worker could first have claimed a run."""
    return max(run.updated, run.due or 0)


def _why(run: RunRecord, queue: str) -> str:
    return (
        f"no worker of queue {queue!r} knows its workflow {run.workflow!r}: start one that has the code, or give the "
        "new name of the workflow aliases=[…]"
    )
