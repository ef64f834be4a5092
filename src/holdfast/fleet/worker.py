"""A worker: claims runs from queues and executes them, many at once.

One thread claims; plain workflows run in threads, asynchronous ones as tasks of one event loop, which share commits.
Leases are renewed by the engine's keeper, however long a step takes.

Invariant: a worker executes only what it owns; told to stop, it claims nothing more, lets steps end, and hands back the
runs that it has not finished.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from holdfast.errors import AlreadyRunning, HoldfastError, InvalidCall, LeaseExpired, LeaseLost
from holdfast.fleet.hands import Hands, NoThread
from holdfast.fleet.limits import Share, give_back, read_limits, take
from holdfast.fleet.monitor import Monitor
from holdfast.fleet.presence import Presence
from holdfast.fleet.refusing import Refusals
from holdfast.fleet.signals import stopped_by_signals
from holdfast.history.commit import event
from holdfast.model.records import RunRecord, VersionRecord
from holdfast.runtime import adopt
from holdfast.runtime.definition import Workflow, workflow_of, workflows
from holdfast.runtime.drive import adrive, drive
from holdfast.runtime.execute import AWAY
from holdfast.runtime.lease import Hold
from holdfast.runtime.log import warn
from holdfast.runtime.services import Services
from holdfast.runtime.waits import facts_of
from holdfast.store.base import Claim
from holdfast.store.interrupts import Flag

#: Runs that one claim takes at most.
_BATCH = 200
#: Seconds between two looks at a store that cannot be reached, at most.
_PATIENCE = 5.0
#: Microseconds within which what was taken from the account of a queue is used, as a rule.
_HASTE = 20_000
#: Seconds between two looks at how the last runs of a worker that was stopped are getting on.
_DRAIN = 0.02


class _Job:
    """A run that was claimed to be executed here."""

    __slots__ = ("hold", "run")

    def __init__(self, run: RunRecord) -> None:
        #: As it was claimed.
        self.run = run
        #: That its lease is being renewed.
        self.hold: Hold | None = None


class Worker:
    """Claims and executes runs until it is stopped: `start` and `stop` it, use it in a `with`, or let `serve` do both
    for a process that does nothing else."""

    def __init__(
        self,
        services: Services,
        queues: Sequence[str],
        concurrency: int,
        poll: float,
        finish_rollback: Callable[[RunRecord], None],
        known: Callable[[], Sequence[str]] = workflows,
    ) -> None:
        self._services = services
        self._queues = list(dict.fromkeys(queues))
        self._concurrency = concurrency
        self._poll = poll
        self._finish_rollback = finish_rollback
        #: Gives the names of the workflows whose runs it claims.
        self._known = known
        self._stop = Flag()
        self._news = Flag()
        #: The runs that are being executed, as they were claimed last.
        self._active: dict[str, _Job] = {}
        self._hands = Hands()
        self._refusals = Refusals(services)
        self._presence = Presence(services, self._queues, poll, general=known is workflows)
        self._counting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._fault: BaseException | None = None
        #: Looks after the runs of the store for as long as this worker works.
        self.monitor: Monitor | None = None
        #: How many executions have ended here.
        self.done = 0

    # From outside

    def start(self) -> Worker:
        """Work in threads."""
        if self._thread is not None:
            raise InvalidCall("a worker is started once: make another")
        thread = threading.Thread(target=self._run, name="holdfast worker", daemon=True)
        thread.start()
        self._thread = thread
        return self

    def serve(
        self, told: Callable[[int], None] | None = None, ready: Callable[[], None] | None = None
    ) -> None:
        """Work until a SIGTERM or SIGINT, in the main thread. Another one ends the process at once; what it leaves is
        taken over when the lease has run out. `told` hears of each; `ready` is called once signals are handled."""
        with stopped_by_signals(self.stop, told):
            if ready is not None:
                ready()
            self.start()
            while not self.join(_PATIENCE):
                """A signal wakes nobody who waits without end."""

    def stop(self) -> None:
        """Claim nothing more; steps that are under way may end, then runs that are not finished are handed back."""
        self._stop.set()
        self._hand_back()
        self._news.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until everything has ended; tells whether it has. Raises what ended it, if it was not told to."""
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                return False
            if self._fault is not None:
                raise self._fault
        return True

    @property
    def active(self) -> list[str]:
        """The runs that it executes now."""
        return list(self._active)

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()

    # Its own life

    def _run(self) -> None:
        self._services.on_abandoned.append(self._abandoned)
        watched = False
        try:
            if self.monitor is not None:
                watched = self._watch(self.monitor)
            self._work_until_stopped()
        except BaseException as error:
            self._fault = error
        finally:
            self._presence.withdraw()
            # A step that is stuck would keep it from ending; the monitor frees it.
            self._drain()
            if self.monitor is not None and watched:
                self.monitor.stop()
                self.monitor.join()

    def _watch(self, monitor: Monitor) -> bool:
        """Let a monitor look after runs beside the work; tells whether it does."""
        try:
            monitor.start()
        except RuntimeError as error:
            # Others may look; leases are renewed, and runs of the dead are claimed, without it.
            warn("no monitor looks after runs in this worker: %s", error)
            return False
        return True

    def _work_until_stopped(self) -> None:
        wait = 0.0
        while not self._stop.is_set():
            self._news.clear()
            try:
                claimed = self._claim()
                wait = 0.0
            except HoldfastError as error:
                wait = min(_PATIENCE, wait * 2 or 0.1)
                if not self._stop.is_set():
                    warn("a worker could not claim runs, and tries again in %.1f s: %s", wait, error)
                self._stop.wait(wait)
                continue
            if not claimed:
                self._rest()

    # Claiming

    def _claim(self) -> int:
        """Claim and begin runs for all the places that are free; gives how many."""
        free = min(_BATCH, self._concurrency - len(self._active))
        known = self._known()
        self._presence.announce(known)
        if free <= 0 or not known:
            return 0
        count = 0
        plain = []
        for name in self._queues:
            limits, _ = read_limits(self._services.store, name)
            if limits.concurrency is None and limits.rate is None:
                plain.append(name)
            elif count < free:
                want = partial(self._wanted, [name], known, free - count, limits.concurrency)
                count += (self._take(want) or 0) if limits.rate is None else self._take_rated(name, want)
        if plain and count < free:
            count += self._take(partial(self._wanted, plain, known, free - count, None)) or 0
        return count

    def _wanted(self, queues: Sequence[str], known: Sequence[str], limit: int, most: int | None) -> Claim:
        services = self._services
        now = services.context.clock()
        entry = event("run.claimed", now, owner=services.owner)
        until = services.store.now() + services.lease
        return Claim(queues, known, services.owner, now, until, limit, most, entry)

    def _take_rated(self, name: str, want: Callable[[], Claim]) -> int:
        """Claim what the account of a queue gives. If that came to be too late, it is asked for more time."""
        store, haste = self._services.store, _HASTE
        while store.waiting(wanted := want()):
            share = take(store, name, wanted.limit, wanted.now, wanted.now + haste)
            if not share.amount:
                break
            count = None
            try:
                count = self._take(want, share)
            finally:
                give_back(store, name, share._replace(amount=share.amount - (count or 0)))
            if count is not None:
                return count
            haste *= 2
        return 0

    def _take(self, want: Callable[[], Claim], share: Share | None = None) -> int | None:
        """Claim and begin runs; gives how many, and None if it is too late to."""
        # No execution that has lost a run may take it for its own when it is claimed again.
        with self._services.claiming:
            # A lease begins now, not before whatever was waited for.
            wanted = want()
            if share is not None:
                if wanted.now > share.until:
                    return None
                wanted = wanted._replace(limit=share.amount)
            taken = self._services.store.claim(wanted)
            now = self._services.store.now()
            # A worker stopped while it claims runs nothing: the next claim takes over what this one claimed.
            found = [_Job(run) for run in taken if run.until > now]
            fresh = [job for job in found if self._is_new(job)]
            for job in fresh:
                job.hold = self._services.keeper.hold(job.run)
        self._begin(fresh)
        return len(found)

    def _is_new(self, job: _Job) -> bool:
        """Is a run that was claimed to be executed? Not if an execution of it that may go on is under way here: this
        worker was asleep for longer than its lease."""
        run = job.run
        before = self._active.get(run.id)
        # In this order: of an execution that is about to begin and this claim, one sees the other.
        self._active[run.id] = job
        session = self._services.sessions.get(run.id)
        if session is None:
            return True
        known = session.head.run
        if known.owner is not None and run.revision <= known.revision + 1:
            if before is None:
                del self._active[run.id]
            else:
                self._active[run.id] = before
            return False
        if session.leaving and run.revision <= known.revision + 2:
            # It has given the run back, or is about to learn that it came too late; the next one waits for its end.
            session.lose()
            return True
        warn("run %s was another's while this worker was asleep", run.id)
        self._services.abandon(run.id, session)
        self._active[run.id] = job
        return True

    # Executing

    def _begin(self, jobs: Sequence[_Job]) -> None:
        heads = adopt.heads_of(self._services, [job.run for job in jobs]) if jobs else {}
        tasks: list[tuple[_Job, Any]] = []
        for job in jobs:
            run = job.run
            head = heads.pop(run.key, None)
            try:
                workflow = workflow_of(run.workflow)
                if run.detail and facts_of(run).undoing is not None:
                    self._hands.do(partial(self._execute, job, partial(self._roll_back, job)))
                elif workflow.asynchronous:
                    tasks.append((job, self._flow(workflow, job, head, ahead=run.head == 1)))
                else:
                    self._hands.do(partial(self._execute, job, partial(self._drive, workflow, job, head)))
            except Exception as error:
                self._told(run, error)
                self._ended(job)
        try:
            if tasks:
                self._hands.spawn([self._execute_async(*task) for task in tasks])
        except NoThread as error:
            for job, flow in tasks:
                flow.close()
                self._told(job.run, error)
                self._ended(job)

    def _flow(self, workflow: Workflow, job: _Job, head: VersionRecord | None, *, ahead: bool) -> Any:
        """The execution of a run. What a run that was never begun needs is made ready `ahead`, in this thread."""
        ready = partial(adopt.adopt, self._services, workflow, job.run, head)
        newest = partial(self._is_newest, job)
        return adopt.claimed(self._services, job.run, newest, ready() if ahead else ready)

    def _is_newest(self, job: _Job) -> bool:
        return self._active.get(job.run.id) is job

    def _drive(self, workflow: Workflow, job: _Job, head: VersionRecord | None) -> None:
        drive(self._flow(workflow, job, head, ahead=True))

    def _roll_back(self, job: _Job) -> None:
        """Finish a rollback that was begun."""
        while True:
            # Whoever advances it here, in a moment or two, does so no longer.
            claim = drive(adopt.turn(self._services, job.run, partial(self._is_newest, job)))
            self._services.release(job.run.id, claim)
            try:
                return self._finish_rollback(job.run)
            except AlreadyRunning:
                if not self._services.claimed(job.run.id):
                    raise

    def _execute(self, job: _Job, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._told(job.run, error)
        finally:
            self._ended(job)

    async def _execute_async(self, job: _Job, flow: Any) -> None:
        try:
            await adrive(flow)
        except BaseException as error:
            self._told(job.run, error)
        finally:
            self._ended(job)

    def _told(self, run: RunRecord, error: BaseException) -> None:
        """An execution that could not write how it ended. The run is somebody else's, or will be."""
        if isinstance(error, LeaseExpired):
            warn("run %s waits for a place in its queue: %s", run.id, error)
        elif isinstance(error, LeaseLost | AlreadyRunning):
            warn("run %s is another's now: %s", run.id, error)
        elif isinstance(error, NoThread):
            self._refusals.hand_back(run, error)
        elif isinstance(error, AWAY):
            warn("run %s is left until its lease has run out: %s", run.id, error)
        elif isinstance(error, HoldfastError):
            self._refusals.refuse(run, error)
        else:
            warn("run %s was interrupted by %s", run.id, type(error).__name__, trace=True)

    def _ended(self, job: _Job) -> None:
        self._services.keeper.let_go(job.hold)
        # If it was taken away, its place is another's.
        if self._active.get(job.run.id) is job:
            self._services.suspended.discard(job.run.id)
            del self._active[job.run.id]
        with self._counting:
            self.done += 1
        self._news.set()

    def _abandoned(self, run_id: str) -> None:
        """An execution was given up, whatever it still does: its place is free."""
        job = self._active.pop(run_id, None)
        if job is not None:
            self._services.keeper.let_go(job.hold)
        self._news.set()

    def _rest(self) -> None:
        """Wait until a place is free, or something may have come. What comes with time alone is looked for, too."""
        if len(self._active) >= self._concurrency:
            self._news.wait(self._poll)
        else:
            self._services.store.news(self._poll)

    # Stopping

    def _hand_back(self) -> None:
        """Ask what is under way to end at the next boundary between steps; parts of its runs, too."""
        services = self._services
        for session in list(services.sessions.values()):
            facts = session.facts
            mine = session.id in self._active or session.head.run.parent is not None
            if mine and not facts.wish and facts.undoing is None:
                facts.wish = "hand back"
                session.end_rests()

    def _drain(self) -> None:
        """Let what is under way end."""
        while self._active:
            self._hand_back()
            self._news.clear()
            if self._active:
                self._news.wait(_DRAIN)
        self._hands.close()
        self._services.on_abandoned.remove(self._abandoned)
