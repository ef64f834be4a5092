"""A worker: claims runs from queues and executes them, many at once.

One thread claims. Plain workflows run in threads, asynchronous ones as tasks of one event loop, which share
commits. The engine's lease keeper renews leases, however long a step takes.

Invariant: a worker executes only runs that it owns. After `stop` it claims nothing, lets steps end, and hands back
unfinished runs. A run that only this process cannot execute is handed back, not failed.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from holdfast.errors import AlreadyRunning, HoldfastError, LeaseExpired, LeaseLost
from holdfast.execution import claimed_runs, inbox
from holdfast.execution.effects import adrive, drive
from holdfast.execution.engine_context import EngineContext
from holdfast.execution.exception_codec import pack
from holdfast.execution.lease import LeaseHandle
from holdfast.execution.lifecycle import AGAIN, AWAY
from holdfast.fleet.monitor.monitor import Monitor
from holdfast.fleet.presence import Presence
from holdfast.fleet.queue_limits import Share, give_back, read_limits, take
from holdfast.fleet.service_thread import ServiceThread
from holdfast.history.builder import build_event
from holdfast.log import warn
from holdfast.model.records import RunRecord, VersionRecord
from holdfast.model.run_detail import RunDetail, detail_of
from holdfast.store.interrupts import InterruptSafeEvent
from holdfast.store.protocol import Claim
from holdfast.workflow.definition import Workflow, is_unknown_here, workflow_of, workflows


class NoThread(Exception):
    """The operating system refuses another thread."""


class Executors:
    """Threads for plain workflows, as many as are busy at once, and one event loop for asynchronous ones.

    Work that was accepted runs once; otherwise `NoThread` is raised, and it never runs."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        #: Busy threads, including those stuck in an abandoned execution.
        self._busy = 0
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def do(self, work: Callable[[], None]) -> None:
        """Run a function that raises nothing in a thread."""
        with self._lock:
            self._busy += 1
            try:
                if self._busy > len(self._threads):
                    self._threads.append(_start_thread(self._work_on, "holdfast worker's"))
            except NoThread:
                self._busy -= 1
                raise
        self._work.put(work)

    def spawn(self, coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Run coroutines that raise nothing in the event loop."""
        try:
            loop = self._event_loop()
        except NoThread:
            for coroutine in coroutines:
                coroutine.close()
            raise
        loop.call_soon_threadsafe(self._spawn, loop, coroutines)

    def close(self) -> None:
        """End the threads and the event loop. Only abandoned executions are still running."""
        for _ in self._threads:
            self._work.put(None)
        if not self._busy:
            for thread in self._threads:
                thread.join()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _work_on(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._lock:
                self._busy -= 1

    def _spawn(
        self, loop: asyncio.AbstractEventLoop, coroutines: Sequence[Coroutine[Any, Any, None]]
    ) -> None:
        for coroutine in coroutines:
            task = loop.create_task(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()

            def work() -> None:
                asyncio.set_event_loop(loop)
                loop.run_forever()
                loop.run_until_complete(loop.shutdown_default_executor())
                loop.close()

            try:
                _start_thread(work, "holdfast worker's loop")
            except NoThread:
                loop.close()
                raise
            self._loop = loop
        return self._loop


def _start_thread(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise NoThread(str(error)) from error
    return thread


#: Microseconds, at most, until a run whose code this process lacks may be claimed again; how many such are remembered.
_LONGEST = 60_000_000
_LEFT = 1000


class Refusals:
    """Fails claimed runs that cannot be executed, or hands them back."""

    def __init__(self, engine: EngineContext) -> None:
        self._engine = engine
        #: How often each run was handed back because this process lacks its code, the latest last.
        self._left: dict[str, int] = {}

    def refuse(self, run: RunRecord, error: HoldfastError) -> None:
        """Fail a run that cannot be executed, so that workers do not retry it for ever. If only this process lacks its
        code, hand it back, with a longer delay each time."""
        if not is_unknown_here(error):
            self._write(run, error, "run.failed", status="failed", due=None)
            return
        times = self._left[run.id] = self._left.pop(run.id, 0) + 1
        if times == 1:
            warn("run %s was handed back for a worker that has its code: %s", run.id, error)
        if len(self._left) > _LEFT:
            del self._left[next(iter(self._left))]
        rest = min(_LONGEST, AGAIN * 2 ** min(times - 1, 10))
        due = self._engine.context.clock() + rest
        self._write(run, error, "run.handed_back", status="queued", due=due)

    def hand_back(self, run: RunRecord, error: BaseException) -> None:
        """Hand back a run that this process cannot start now."""
        warn("run %s was handed back: %s", run.id, error)
        due = self._engine.context.clock() + AGAIN
        self._write(run, error, "run.handed_back", status="queued", due=due)

    def hand_back_unstarted(self, run: RunRecord) -> None:
        """Hand back a run that was claimed while the worker was being stopped; another worker may claim it at once."""
        self._write(run, None, "run.handed_back", status="queued", due=None)

    def _write(
        self, run: RunRecord, error: BaseException | None, kind: str, *, status: str, due: int | None
    ) -> None:
        context = self._engine.context

        def change(now: RunRecord, facts: RunDetail) -> list[Any]:
            if now.owner != self._engine.owner:
                raise LeaseLost(f"another process owns run {run.id!r} now", run=run.id)
            if error is None:
                return [build_event(kind, context.clock())]
            if status == "failed":
                facts.error, facts.failed_step = pack(error, context.redact), ""
            return [build_event(kind, context.clock(), error=f"{type(error).__name__}: {error}"[:1000])]

        try:
            inbox.amend(context, run.id, change, status=status, owner=None, until=0, due=due)
        except HoldfastError as further:
            reason = error or "the worker was stopped"
            warn(
                "run %s cannot be executed (%s), and that could not be recorded: %s", run.id, reason, further
            )


#: The most runs that one claim takes.
_BATCH = 200
#: The longest pause, in seconds, between attempts to reach the store.
_LONGEST_PAUSE = 5.0
#: Microseconds within which a share of a rate limit is normally used.
_SHARE_TIME = 20_000
#: Seconds between checks whether the last runs of a stopped worker have ended.
_DRAIN = 0.02


class _Job:
    """A run that this worker claimed."""

    __slots__ = ("hold", "run")

    def __init__(self, run: RunRecord) -> None:
        #: As it was claimed.
        self.run = run
        #: Keeps the lease renewed.
        self.hold: LeaseHandle | None = None


class Worker:
    """Claims and executes runs until it is stopped: call `start` and `stop`, use it in a `with`, or call `serve` in a
    process that does nothing else."""

    def __init__(
        self,
        engine: EngineContext,
        queues: Sequence[str],
        concurrency: int,
        poll: float,
        finish_rollback: Callable[[RunRecord], None],
        known: Callable[[], Sequence[str]] = workflows,
    ) -> None:
        self._engine = engine
        self._queues = list(dict.fromkeys(queues))
        self._concurrency = concurrency
        self._poll = poll
        self._finish_rollback = finish_rollback
        #: Returns the names of the workflows whose runs it claims.
        self._known = known
        self._stop = InterruptSafeEvent()
        self._news = InterruptSafeEvent()
        #: The runs that are being executed, as they were claimed last.
        self._active: dict[str, _Job] = {}
        self._executors = Executors()
        self._refusals = Refusals(engine)
        self._presence = Presence(engine, self._queues, poll, general=known is workflows)
        self._counting = threading.Lock()
        self._thread = ServiceThread("worker")
        self._fault: BaseException | None = None
        #: Monitors the runs of the store while this worker runs.
        self.monitor: Monitor | None = None
        #: How many executions have ended here.
        self.done = 0

    def start(self) -> Worker:
        """Start working in threads."""
        self._thread.start(self._run)
        return self

    def serve(
        self, on_signal: Callable[[int], None] | None = None, ready: Callable[[], None] | None = None
    ) -> None:
        """Work until a SIGTERM or SIGINT, in the main thread. A second signal ends the process at once; other workers
        claim its runs when their leases have expired. `on_signal` gets the number of each; `ready` is called once
        signals are handled."""
        self._thread.serve(self._run, self.stop, on_signal, ready)
        self.join()

    def stop(self) -> None:
        """Claim nothing more, let running steps end, and hand back unfinished runs."""
        self._stop.set()
        self._hand_back()
        self._news.set()

    def join(self, timeout: float | None = None) -> bool:
        """Wait until everything has ended; return whether it has. Raise the error that ended the worker, if one did."""
        has_ended = self._thread.join(timeout)
        if has_ended and self._fault is not None:
            raise self._fault
        return has_ended

    @property
    def active(self) -> list[str]:
        """The ids of the runs that it executes now."""
        return list(self._active)

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
        self.join()

    def _run(self) -> None:
        self._engine.on_abandoned.append(self._abandoned)
        is_monitoring = False
        try:
            if self.monitor is not None:
                is_monitoring = self._start_monitor(self.monitor)
            self._work_until_stopped()
        except BaseException as error:
            self._fault = error
        finally:
            self._presence.withdraw()
            # The monitor frees steps that hang: it must run until the last one has ended.
            self._drain()
            if self.monitor is not None and is_monitoring:
                self.monitor.stop()
                self.monitor.join()

    def _start_monitor(self, monitor: Monitor) -> bool:
        """Start a monitor; return whether it runs."""
        try:
            monitor.start()
        except RuntimeError as error:
            # Leases are renewed, and runs of dead workers are claimed, without a monitor.
            warn("this worker runs without a monitor: %s", error)
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
                wait = min(_LONGEST_PAUSE, wait * 2 or 0.1)
                if not self._stop.is_set():
                    warn("a worker could not claim runs and retries in %.1f s: %s", wait, error)
                self._stop.wait(wait)
                continue
            if not claimed:
                self._rest()

    def _claim(self) -> int:
        """Claim and start runs for all free places; return how many."""
        free = min(_BATCH, self._concurrency - len(self._active))
        known = self._known()
        self._presence.announce(known)
        if free <= 0 or not known:
            return 0
        count = 0
        plain = []
        for name in self._queues:
            limits, _ = read_limits(self._engine.store, name)
            if limits.concurrency is None and limits.rate is None:
                plain.append(name)
            elif count < free:
                want = partial(self._wanted, [name], known, free - count, limits.concurrency)
                count += (self._take(want) or 0) if limits.rate is None else self._take_rated(name, want)
        if plain and count < free:
            count += self._take(partial(self._wanted, plain, known, free - count, None)) or 0
        return count

    def _wanted(self, queues: Sequence[str], known: Sequence[str], limit: int, most: int | None) -> Claim:
        engine = self._engine
        now = engine.context.clock()
        entry = build_event("run.claimed", now, owner=engine.owner)
        until = engine.store.now() + engine.lease
        return Claim(queues, known, engine.owner, now, until, limit, most, entry)

    def _take_rated(self, name: str, want: Callable[[], Claim]) -> int:
        """Claim as many runs as the rate limit of a queue allows. If the share expired first, ask for one that
        lasts longer."""
        store, share_time = self._engine.store, _SHARE_TIME
        while store.has_claimable(wanted := want()):
            share = take(store, name, wanted.limit, wanted.now, wanted.now + share_time)
            if not share.amount:
                break
            count = None
            try:
                count = self._take(want, share)
            finally:
                give_back(store, name, share._replace(amount=share.amount - (count or 0)))
            if count is not None:
                return count
            share_time *= 2
        return 0

    def _take(self, want: Callable[[], Claim], share: Share | None = None) -> int | None:
        """Claim and start runs; return how many, None if the share of the rate limit has expired."""
        # An execution that has lost its run must not mistake the new claim for its own.
        with self._engine.claiming:
            if self._stop.is_set():
                return 0
            # The lease starts now, not before the wait for the lock.
            wanted = want()
            if share is not None:
                if wanted.now > share.until:
                    return None
                wanted = wanted._replace(limit=share.amount)
            taken = self._engine.store.claim(wanted)
            now = self._engine.store.now()
            # A worker that was suspended during its claim runs nothing: the next claim takes over what this one
            # claimed.
            found = [_Job(run) for run in taken if run.until > now]
            fresh = [job for job in found if self._is_new(job)]
            for job in fresh:
                job.hold = self._engine.keeper.hold(job.run)
        if self._stop.is_set():
            # It was stopped while the store executed the claim.
            for job in fresh:
                self._refusals.hand_back_unstarted(job.run)
                self._ended(job)
            return len(found) - len(fresh)
        self._begin(fresh)
        return len(found)

    def _is_new(self, job: _Job) -> bool:
        """Return whether a claimed run is to be executed: not if an execution that still owns it is running here,
        because this worker was suspended for longer than its lease."""
        run = job.run
        before = self._active.get(run.id)
        # In this order: either an execution that is about to start sees this claim, or this claim sees the execution.
        self._active[run.id] = job
        execution = self._engine.executions.get(run.id)
        if execution is None:
            return True
        known = execution.head.run
        if known.owner is not None and run.revision <= known.revision + 1:
            if before is None:
                del self._active[run.id]
            else:
                self._active[run.id] = before
            return False
        if execution.leaving and run.revision <= known.revision + 2:
            # It has handed the run back, or is about to find that it came too late; the next execution waits for
            # its end.
            execution.lose()
            return True
        warn("another process owned run %s while this worker was suspended", run.id)
        self._engine.abandon(run.id, execution)
        self._active[run.id] = job
        return True

    def _begin(self, jobs: Sequence[_Job]) -> None:
        heads = claimed_runs.heads_of(self._engine, [job.run for job in jobs]) if jobs else {}
        tasks: list[tuple[_Job, Any]] = []
        for job in jobs:
            run = job.run
            head = heads.pop(run.key, None)
            try:
                workflow = workflow_of(run.workflow)
                if run.detail and detail_of(run).rollback is not None:
                    self._executors.do(partial(self._execute, job, partial(self._roll_back, job)))
                elif workflow.asynchronous:
                    tasks.append((job, self._flow(workflow, job, head, ahead=run.head == 1)))
                else:
                    self._executors.do(partial(self._execute, job, partial(self._drive, workflow, job, head)))
            except Exception as error:
                self._report(run, error)
                self._ended(job)
        try:
            if tasks:
                self._executors.spawn([self._execute_async(*task) for task in tasks])
        except NoThread as error:
            for job, flow in tasks:
                flow.close()
                self._report(job.run, error)
                self._ended(job)

    def _flow(self, workflow: Workflow, job: _Job, head: VersionRecord | None, *, ahead: bool) -> Any:
        """Return the execution of a run. With `ahead`, prepare a run that was never started in this thread."""
        ready = partial(claimed_runs.adopt, self._engine, workflow, job.run, head)
        newest = partial(self._is_newest, job)
        return claimed_runs.claimed(self._engine, job.run, newest, ready() if ahead else ready)

    def _is_newest(self, job: _Job) -> bool:
        return self._active.get(job.run.id) is job

    def _drive(self, workflow: Workflow, job: _Job, head: VersionRecord | None) -> None:
        drive(self._flow(workflow, job, head, ahead=True))

    def _roll_back(self, job: _Job) -> None:
        """Finish a rollback that was started."""
        while True:
            # Wait for the execution of this process, which is about to end.
            claim = drive(
                claimed_runs.wait_for_execution(self._engine, job.run, partial(self._is_newest, job))
            )
            self._engine.release(job.run.id, claim)
            try:
                return self._finish_rollback(job.run)
            except AlreadyRunning:
                if not self._engine.claimed(job.run.id):
                    raise

    def _execute(self, job: _Job, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self._report(job.run, error)
        finally:
            self._ended(job)

    async def _execute_async(self, job: _Job, flow: Any) -> None:
        try:
            await adrive(flow)
        except BaseException as error:
            self._report(job.run, error)
        finally:
            self._ended(job)

    def _report(self, run: RunRecord, error: BaseException) -> None:
        """Handle an execution that could not record how it ended: another process owns the run, or will."""
        if isinstance(error, LeaseExpired):
            warn("run %s waits for a free place in its queue: %s", run.id, error)
        elif isinstance(error, LeaseLost | AlreadyRunning):
            warn("another process owns run %s now: %s", run.id, error)
        elif isinstance(error, NoThread):
            self._refusals.hand_back(run, error)
        elif isinstance(error, AWAY):
            warn("run %s waits until its lease has expired: %s", run.id, error)
        elif isinstance(error, HoldfastError):
            self._refusals.refuse(run, error)
        else:
            warn("run %s was interrupted by %s", run.id, type(error).__name__, trace=True)

    def _ended(self, job: _Job) -> None:
        self._engine.keeper.release(job.hold)
        # If the run was taken away, a newer job has its place.
        if self._active.get(job.run.id) is job:
            self._engine.suspended.discard(job.run.id)
            del self._active[job.run.id]
        with self._counting:
            self.done += 1
        self._news.set()

    def _abandoned(self, run_id: str) -> None:
        """Free the place of an execution that was abandoned, even if its code still runs."""
        job = self._active.pop(run_id, None)
        if job is not None:
            self._engine.keeper.release(job.hold)
        self._news.set()

    def _rest(self) -> None:
        """Wait until a place is free or the store has changed, but no longer than `poll`: delayed runs become due."""
        if len(self._active) >= self._concurrency:
            self._news.wait(self._poll)
        else:
            self._engine.store.wait_for_change(self._poll)

    def _hand_back(self) -> None:
        """Ask executions, those of child runs included, to end before their next step."""
        engine = self._engine
        for execution in list(engine.executions.values()):
            facts = execution.detail
            mine = execution.id in self._active or execution.head.run.parent is not None
            if mine and not facts.stop_request and facts.rollback is None:
                facts.stop_request = "hand back"
                execution.stop.end_pauses()

    def _drain(self) -> None:
        """Wait until all executions have ended."""
        while self._active:
            self._hand_back()
            self._news.clear()
            if self._active:
                self._news.wait(_DRAIN)
        self._executors.close()
        self._engine.on_abandoned.remove(self._abandoned)
