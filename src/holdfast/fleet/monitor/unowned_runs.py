"""Runs that no worker will advance: unowned runs in no queue, and queued runs whose workflow no worker knows.

Unowned runs were recovered, handed over or answered, or wait for a circuit breaker. Every monitor resumes those whose
code its process has, in a bounded number of threads: the leader at once, others after a while, because the leader may
lack the code. The workflow of an unclaimed run was renamed or removed by a deploy, or a later deploy brings it.

Invariant: a run that cannot be resumed is tried a few times; then, or if no process with its code appears in time,
it is stalled and a person is asked. One check reads a bounded number of queued runs and leaves alone what a worker
may claim.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator
from functools import partial
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError, ReplayDiverged, StaleVersion, TryAgain
from holdfast.execution import breakers
from holdfast.execution.compensation import compensable_steps
from holdfast.execution.lifecycle import AWAY, DIVERGED, good_before
from holdfast.execution.operators import knows
from holdfast.execution.options import DEFAULTS
from holdfast.execution.replay_log import ReplayLog
from holdfast.fleet.monitor import recovery
from holdfast.fleet.monitor.detectors import Finding
from holdfast.fleet.presence import Announcement, announced
from holdfast.log import warn
from holdfast.model.records import RunRecord
from holdfast.model.run_detail import detail_of
from holdfast.workflow.definition import is_unknown_here

if TYPE_CHECKING:
    from holdfast.execution.runner import Runner


class Warnings:
    """Warns of each cause once per run. Remembers only runs that have a problem now."""

    def __init__(self) -> None:
        self._causes: dict[str, str] = {}

    def warn(self, run_id: str, what: str, error: BaseException) -> None:
        """Warn of an error, unless it is the last one of this run. Only a fault of the program has a traceback."""
        cause = f"{what} {type(error).__name__}: {error}"
        if self._causes.get(run_id) == cause:
            return
        self._causes[run_id] = cause
        warn("run %s %s: %s", run_id, what, error, trace=not isinstance(error, HoldfastError))

    def say(self, run_id: str, what: str) -> None:
        """Warn of a condition, unless it is the last one of this run."""
        if self._causes.get(run_id) != what:
            self._causes[run_id] = what
            warn("run %s %s", run_id, what)

    def forget(self, but: Container[str]) -> None:
        """Forget all runs but some, so that later problems of the others are reported."""
        for run_id in list(self._causes):
            if run_id not in but:
                self._causes.pop(run_id, None)


SYMPTOM = "unclaimed"
#: Microseconds that a run may be ready before it is checked, and before it is stalled.
_SOON = 5_000_000
_PATIENCE = 600_000_000
#: Microseconds for which the announcements of workers are cached.
_FRESH = 10_000_000
#: Runs of each status that one check reads.
_PAGE = 200


class Unclaimed:
    """Finds and stalls queued runs that no worker knows, for the leading monitor."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._engine = runner.engine
        self._store = runner.engine.store
        self._warnings = Warnings()
        #: By status, the key below which the next check continues.
        self._below: dict[str, int | None] = {}
        self._workers: list[Announcement] = []
        self._read = 0

    def stop(self) -> list[tuple[str, str]]:
        """Report such runs, and stall those that have waited too long; return these, with the reason."""
        stopped, present = [], set()
        for run, queue in self._found():
            present.add(run.id)
            why = _why(run, queue)
            if not self._is_overdue(run):
                self._warnings.say(
                    run.id, f"is not claimed: {why}; if none starts within 10 minutes, it is stalled"
                )
                continue
            finding = Finding(symptom=SYMPTOM, why=why, since=_ready_since(run), good=run.head)
            try:
                taken = recovery.stall(self._engine, run, finding)
            except StaleVersion:
                continue
            if taken is not None:
                stopped.append((run.id, why))
        if not any(self._below.values()):
            self._warnings.forget(present)
        return stopped

    def overdue(self) -> list[tuple[str, str]]:
        """Return the runs that the next check stalls, with the reason. Nothing is changed."""
        below = dict(self._below)
        try:
            return [(run.id, _why(run, queue)) for run, queue in self._found() if self._is_overdue(run)]
        finally:
            self._below = below

    def _is_overdue(self, run: RunRecord) -> bool:
        return self._now() - _ready_since(run) > _PATIENCE

    def _found(self) -> Iterator[tuple[RunRecord, str]]:
        """Yield the runs of the next page that no worker of their queue knows, with the queue."""
        now = self._now()
        for run in [*self._page("queued", None), *self._page("suspended", now)]:
            if run.due == recovery.UNOWNED or run.parent is not None or now - _ready_since(run) < _SOON:
                continue
            workers = self._current(now)
            if not any(worker.general for worker in workers):
                return
            if all(run.workflow in worker.workflows for worker in workers):
                continue
            place = recovery.place_of(self._store, run, detail_of(run))
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
        return self._engine.context.clock()


def _ready_since(run: RunRecord) -> int:
    """Return when a worker could first have claimed a run."""
    return max(run.updated, run.due or 0)


def _why(run: RunRecord, queue: str) -> str:
    return (
        f"no worker of queue {queue!r} knows its workflow {run.workflow!r}: start one that has the code, or give the "
        "new name of the workflow aliases=[…]"
    )


#: Runs that one monitor resumes at once.
_AT_ONCE = 32
_UNOWNED_PAGE = 500
#: Attempts to resume a run before a person is asked.
TRIES = 3
#: Microseconds that a run waits for a process that has its code, and that monitors leave it to the leader.
_UNKNOWN = 60_000_000
_LATER = 5_000_000
#: The warning for a run whose code this process lacks.
_WAITS = (
    "waits for a worker or a monitor that knows its workflow {!r}, which this process does not: if none starts within "
    "{} s, it is stalled"
)
#: Characters of an error that a question shows.
_WHY = 1000


class UnownedRuns:
    """The runs that monitors resume."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._engine = runner.engine
        self._store = runner.engine.store
        #: Threads that finish or resume a run, by its id.
        self._threads: dict[str, threading.Thread] = {}
        #: Failed attempts to resume each.
        self._failed: dict[str, int] = {}
        #: Where the next page of the runs that wait for circuit breakers starts.
        self._breaker_page = ""
        #: Runs that could not be stalled, with the revision at which that was tried.
        self._hopeless: dict[str, int] = {}
        self._warnings = Warnings()

    def __iter__(self) -> Iterator[RunRecord]:
        """Iterate over the runs whose code this process has."""
        return filter(knows, self._all())

    def _all(self) -> Iterator[RunRecord]:
        before: int | None = None
        find = partial(
            self._store.runs, statuses=["queued"], due=recovery.UNOWNED, live=True, limit=_UNOWNED_PAGE
        )
        while page := find(before=before):
            for run in page:
                if run.due == recovery.UNOWNED and self._hopeless.get(run.id) != run.revision:
                    yield run
            before = page[-1].key

    def resume_all(self, *, acts: bool = True) -> list[tuple[str, str]]:
        """Resume these runs; unless this monitor leads, only those that the leader has left. Return the runs that were
        stalled because no process with their code appeared, with the reason."""
        now = self._engine.context.clock()
        found, unknown = [], []
        for run in self._all():
            if not knows(run):
                unknown.append(run)
            elif acts or now - run.updated > _LATER:
                found.append(run)
        self._drop_ended_threads()
        present = {run.id for run in found} | set(self._threads)
        self._failed = {name: times for name, times in self._failed.items() if name in present}
        self._hopeless = dict(list(self._hopeless.items())[-_UNOWNED_PAGE:])
        self._warnings.forget(present | set(self._hopeless) | {run.id for run in unknown})
        for run in self._waiting_for_breakers():
            if acts or now - (run.due or 0) > _LATER:
                found.append(run)
        for run in found:
            self._in_thread(run.id, partial(self._resume, run.id))
        stalled = []
        for run in unknown if acts else ():
            if now - run.updated <= _UNKNOWN:
                self._warnings.say(run.id, _WAITS.format(run.workflow, _UNKNOWN // 1_000_000))
            elif self._stall(run, _no_code(run)):
                stalled.append((run.id, _no_code(run)))
        return stalled

    def _waiting_for_breakers(self) -> list[RunRecord]:
        """Return runs in no queue that a circuit breaker has stopped, and that may try again now; each check looks at
        one page of those that wait."""
        found, self._breaker_page = breakers.due_unowned(self._engine, self._breaker_page, _UNOWNED_PAGE)
        return list(filter(knows, found))

    def overdue(self) -> list[tuple[str, str]]:
        """Return the runs that the next check stalls because no process with their code appeared, with the reason."""
        now = self._engine.context.clock()
        unknown = [run for run in self._all() if not knows(run)]
        return [(run.id, _no_code(run)) for run in unknown if now - run.updated > _UNKNOWN]

    def wait(self) -> None:
        """Wait until all threads have ended."""
        for thread in list(self._threads.values()):
            thread.join()

    def finish(self, run: RunRecord) -> None:
        """Finish a rollback that was started: in a thread if there are effects to compensate, otherwise at once."""
        rollback = detail_of(run).rollback
        if rollback is None:
            return
        work = partial(self._finish, run)
        if compensable_steps(self._engine, run, rollback.to):
            self._in_thread(run.id, work)
        else:
            work()

    def _in_thread(self, run_id: str, work: Callable[[], object]) -> None:
        self._drop_ended_threads()
        if run_id in self._threads and self._engine.claimed(run_id):
            return
        if len(self._threads) >= _AT_ONCE:
            # The next check finds them again.
            return
        thread = threading.Thread(target=work, name=f"holdfast monitor: {run_id}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The operating system refuses a thread; the next check tries again.
            self._warnings.say(run_id, f"cannot be resumed now: {error}")
        else:
            self._threads[run_id] = thread

    def _drop_ended_threads(self) -> None:
        self._threads = {name: thread for name, thread in self._threads.items() if thread.is_alive()}

    def _resume(self, run_id: str) -> None:
        try:
            self._runner.resume(run_id, DEFAULTS)
        except (TryAgain, *AWAY):
            # Another process was faster, or has taken it away since; or the store cannot be reached.
            return
        except Exception as error:
            if is_unknown_here(error):
                self._warnings.warn(run_id, "waits for a process that has its code", error)
            else:
                self._could_not(run_id, error)
        else:
            self._failed.pop(run_id, None)

    def _finish(self, run: RunRecord) -> None:
        try:
            self._runner.finish_rollback(run)
        except (TryAgain, *AWAY):
            # Another process, or the next check, finishes it.
            return
        except Exception as error:
            # It waits in its queue, or the next check resumes it and counts the attempt.
            self._warnings.warn(run.id, "could not be rolled back", error)

    def _could_not(self, run_id: str, error: Exception) -> None:
        self._failed[run_id] = times = self._failed.get(run_id, 0) + 1
        self._warnings.warn(run_id, "could not be resumed", error)
        diverged = isinstance(error, ReplayDiverged)
        if times < TRIES and not diverged:
            return
        run = self._store.run(run_id)
        if run is None or run.status != "queued" or run.due != recovery.UNOWNED:
            return
        if isinstance(error, ReplayDiverged):
            record = ReplayLog(self._engine.context.reader(run)).load(run.head, detail_of(run).failed)
            self._stall(run, str(error), DIVERGED, good_before(record, run, error))
            return
        self._stall(
            run, f"no process advances it, and it could not be resumed: {type(error).__name__}: {error}"
        )

    def _stall(self, run: RunRecord, why: str, symptom: str = "dead", good: int | None = None) -> bool:
        """Stall a run and ask a person; return whether that was done."""
        finding = Finding(
            symptom=symptom, why=why[:_WHY], since=run.updated, good=run.head if good is None else good
        )
        try:
            taken = recovery.stall(self._engine, run, finding)
            self._failed.pop(run.id, None)
            return taken is not None
        except (StaleVersion, *AWAY):
            # It has changed, or the store cannot be reached: the next check decides.
            return False
        except Exception as error:
            self._hopeless[run.id] = run.revision
            self._warnings.warn(run.id, "cannot be stalled and is ignored until it changes", error)
        return False


def _no_code(run: RunRecord) -> str:
    return f"no process advances it, and none that knows its workflow {run.workflow!r} appeared"
