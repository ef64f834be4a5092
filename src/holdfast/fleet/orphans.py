"""Going on with runs that are in no queue: those that were restored, handed over, or answered for.

Any monitor goes on with those whose code its process knows, in threads, a bounded number at once: the one that acts at
once, others if it has not, as it may not know the code.

Invariant: a run that cannot be gone on with is tried a few times; then, or if for a while nobody came who knows its
code, it is frozen, and a person is asked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from holdfast.errors import ReplayDiverged, StaleVersion, TryAgain
from holdfast.fleet import restore
from holdfast.fleet.symptoms import Finding
from holdfast.fleet.told import Told
from holdfast.model.records import RunRecord
from holdfast.runtime.definition import is_unknown_here
from holdfast.runtime.ending import DIVERGED, good_before
from holdfast.runtime.execute import AWAY
from holdfast.runtime.outside import knows
from holdfast.runtime.record import Record
from holdfast.runtime.undo import undoable
from holdfast.runtime.waits import facts_of

if TYPE_CHECKING:
    from holdfast.fleet.care import Care

#: Runs that one monitor goes on with at once.
_AT_ONCE = 32
_PAGE = 500
#: How often it is tried to go on with a run before a person is asked.
TRIES = 3
#: Microseconds that a run waits for somebody who knows its code, and that monitors leave it to the one that acts.
_UNKNOWN = 60_000_000
_LATER = 5_000_000
#: What is told of a run whose code is not known here.
_WAITS = (
    "waits for a worker or a monitor that knows its workflow {!r}, which this process does not: if none comes within "
    "{} s, it is frozen"
)
#: Characters of an error that a prompt shows.
_WHY = 1000


class Orphans:
    """The runs that are for monitors to go on with."""

    def __init__(self, care: Care) -> None:
        self._care = care
        self._services = care._services
        self._store = care._store
        #: What is being finished or resumed, by run.
        self._threads: dict[str, threading.Thread] = {}
        #: How often each could not be gone on with.
        self._failed: dict[str, int] = {}
        #: Those that cannot even be frozen, and the revision at which that was tried.
        self._hopeless: dict[str, int] = {}
        self._told = Told()

    def __iter__(self) -> Iterator[RunRecord]:
        """Those that this process knows."""
        return filter(knows, self._all())

    def _all(self) -> Iterator[RunRecord]:
        before: int | None = None
        find = partial(self._store.runs, statuses=["queued"], due=restore.ORPHAN, live=True, limit=_PAGE)
        while page := find(before=before):
            for run in page:
                if run.due == restore.ORPHAN and self._hopeless.get(run.id) != run.revision:
                    yield run
            before = page[-1].key

    def go_on(self, *, acts: bool = True) -> list[tuple[str, str]]:
        """Go on with them; for who does not act, with those that the one who does has left. Gives those that were
        frozen because nobody came who knows their code, and why in words."""
        now = self._services.context.clock()
        found, strange = [], []
        for run in self._all():
            if not knows(run):
                strange.append(run)
            elif acts or now - run.updated > _LATER:
                found.append(run)
        self._bury_threads()
        present = {run.id for run in found} | set(self._threads)
        self._failed = {name: times for name, times in self._failed.items() if name in present}
        self._hopeless = dict(list(self._hopeless.items())[-_PAGE:])
        self._told.forget(present | set(self._hopeless) | {run.id for run in strange})
        for run in found:
            self._in_thread(run.id, partial(self._resume, run.id))
        frozen = []
        for run in strange if acts else ():
            if now - run.updated <= _UNKNOWN:
                self._told.say(run.id, _WAITS.format(run.workflow, _UNKNOWN // 1_000_000))
            elif self._freeze(run, _nobody_knows(run)):
                frozen.append((run.id, _nobody_knows(run)))
        return frozen

    def overdue(self) -> list[tuple[str, str]]:
        """Those that the next look freezes because nobody came who knows their code, and why in words."""
        now = self._services.context.clock()
        strange = [run for run in self._all() if not knows(run)]
        return [(run.id, _nobody_knows(run)) for run in strange if now - run.updated > _UNKNOWN]

    def wait(self) -> None:
        """Wait until what was begun has ended."""
        for thread in list(self._threads.values()):
            thread.join()

    def finish(self, run: RunRecord) -> None:
        """Finish a rollback that was begun, here if all of it is known, and quickly if there is nothing to undo."""
        undoing = facts_of(run).undoing
        if undoing is None:
            return
        work = partial(self._finish, run)
        if undoable(self._services, run, undoing.get("to", run.head)):
            self._in_thread(run.id, work)
        else:
            work()

    def _in_thread(self, run_id: str, work: Callable[[], object]) -> None:
        self._bury_threads()
        if run_id in self._threads and self._services.claimed(run_id):
            return
        if len(self._threads) >= _AT_ONCE:
            # They are found again by the next look.
            return
        thread = threading.Thread(target=work, name=f"holdfast monitor: {run_id}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            # The system gives no thread; the next look tries again.
            self._told.say(run_id, f"cannot be gone on with now: {error}")
        else:
            self._threads[run_id] = thread

    def _bury_threads(self) -> None:
        self._threads = {name: thread for name, thread in self._threads.items() if thread.is_alive()}

    def _resume(self, run_id: str) -> None:
        try:
            self._care.resume(run_id, raises=False)
        except (TryAgain, *AWAY):
            """Somebody else was quicker, or has taken it away since; or the store is away."""
        except Exception as error:
            if is_unknown_here(error):
                self._told.warn(run_id, "is left to others, who know its code", error)
            else:
                self._could_not(run_id, error)
        else:
            self._failed.pop(run_id, None)

    def _finish(self, run: RunRecord) -> None:
        try:
            self._care._finish_rollback(run)
        except (TryAgain, *AWAY):
            """Whoever comes next finishes it."""
        except Exception as error:
            # It waits in its queue, or is gone on with from here: that is where it is counted.
            self._told.warn(run.id, "could not be rolled back", error)

    def _could_not(self, run_id: str, error: Exception) -> None:
        self._failed[run_id] = times = self._failed.get(run_id, 0) + 1
        self._told.warn(run_id, "could not be gone on with", error)
        diverged = isinstance(error, ReplayDiverged)
        if times < TRIES and not diverged:
            return
        run = self._store.run(run_id)
        if run is None or run.status != "queued" or run.due != restore.ORPHAN:
            return
        if isinstance(error, ReplayDiverged):
            record = Record(self._care._context.reader(run)).load(run.head, facts_of(run).failed)
            self._freeze(run, str(error), DIVERGED, good_before(record, run, error))
            return
        self._freeze(
            run, f"nobody advances it, and it could not be gone on with: {type(error).__name__}: {error}"
        )

    def _freeze(self, run: RunRecord, why: str, symptom: str = "dead", good: int | None = None) -> bool:
        """Ask a person; tells whether that was done."""
        finding = Finding(
            symptom=symptom, why=why[:_WHY], since=run.updated, good=run.head if good is None else good
        )
        try:
            taken = restore.freeze(self._services, run, finding)
            self._failed.pop(run.id, None)
            return taken is not None
        except (StaleVersion, *AWAY):
            """Somebody has changed it; the next look tells."""
        except Exception as error:
            self._hopeless[run.id] = run.revision
            self._told.warn(run.id, "cannot be frozen, and is left as it is until it changes", error)
        return False


def _nobody_knows(run: RunRecord) -> str:
    return f"nobody advances it, and nobody came who knows its workflow {run.workflow!r}"
