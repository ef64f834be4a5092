"""Runs for workers: the part of `Holdfast` that puts them into queues and says how fast those may be emptied.

Invariant: a run that was put into a queue is in the store, once, and stays there until it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import msgspec

from holdfast.errors import AlreadyExists, InvalidCall, NotFound, StaleVersion
from holdfast.fleet.care import Care
from holdfast.fleet.limits import QueueLimits, most_at_once, read_limits, write_limits
from holdfast.fleet.restore import place_of
from holdfast.fleet.triggers import Triggers
from holdfast.history.advance import Line
from holdfast.history.commit import Facts, event
from holdfast.history.context import Context
from holdfast.model.names import check_number, check_run_id, check_text, short
from holdfast.model.public import QueueSummary
from holdfast.model.records import RunRecord
from holdfast.runtime import execute
from holdfast.runtime.definition import Workflow, without_secrets, workflow_of
from holdfast.runtime.lease import is_alive
from holdfast.runtime.limits import Limits, check_limits, follow_limits, kept_limits
from holdfast.runtime.outside import check_texts
from holdfast.runtime.restoring import settled
from holdfast.runtime.run import Run
from holdfast.runtime.same_call import check_if_exists
from holdfast.runtime.waiting import check_seconds
from holdfast.runtime.waits import Facts as RunFacts
from holdfast.runtime.waits import encoded, facts_of
from holdfast.runtime.watch import Watch, check_watch, kept_watch
from holdfast.store.base import Append, Place

if TYPE_CHECKING:
    from holdfast.fleet.worker import Worker

QUEUE = "default"
#: Runs started by events that a listening process executes at once, and seconds between looks for them.
_TRIGGERED_AT_ONCE = 4
_TRIGGER_POLL = 1.0
_MOST = 1_000_000
_LONGEST = 100
#: Seconds. Below, a busy machine would lose its leases.
_SHORTEST = 0.1
#: Seconds that a rate may be for.
_SHORTEST_PER, _LONGEST_PER = 0.001, 86_400 * 366


class Fleet(Care):
    """Queues."""

    def __init__(self, context: Context, lease: float) -> None:
        if type(lease) not in (int, float) or not _SHORTEST <= lease <= 86_400:
            raise InvalidCall(f"lease is a number of seconds from {_SHORTEST} to a day, not {short(lease)}")
        super().__init__(context, int(lease * 1_000_000), partial(most_at_once, context.store))
        self._workers: WeakSet[Worker] = WeakSet()
        self._triggers = Triggers(self, self._trigger_worker)

    def enqueue(
        self,
        workflow: Any,
        *args: Any,
        queue: str = QUEUE,
        priority: int = 0,
        delay: float = 0,
        dedupe: str | None = None,
        run_id: str | None = None,
        tags: Iterable[str] = (),
        state: Any = None,
        note: str | None = None,
        actor: str | None = None,
        watch: Watch | None = None,
        if_exists: str = "error",
        limits: Limits | None = None,
        **kwargs: Any,
    ) -> Run:
        """Let a worker run a workflow: the run is in the store when this returns. A name will do for a workflow that
        only the workers know.

        Runs of a higher `priority` go first, then those that wait for longest; not before `delay` seconds. With
        `dedupe`, a run of this workflow that was put in with the same text is given back instead of another, whatever
        its arguments and wherever it is by now. `watch` is for this run instead of what its workflow says; `limits`
        are as for `run`.

        `if_exists` says what to do if there is a run of this id: "error" raises `AlreadyExists`; "return" returns it as
        it is; "resume" puts it into the queue again if it failed or was interrupted, else returns it. `RunMismatch` is
        raised as by `run`.
        """
        check_if_exists(if_exists)
        found = _find(workflow)
        check_queue(queue)
        _check_priority(priority)
        waits = int(check_seconds("delay", delay) * 1_000_000)
        if dedupe is not None:
            if run_id is not None:
                raise InvalidCall("give dedupe or run_id, not both: dedupe makes up the run's id")
            if if_exists != "error":
                raise InvalidCall("give dedupe or if_exists, not both: dedupe returns the run that exists")
            if not check_text("dedupe", dedupe, 10_000):
                raise InvalidCall("dedupe is empty: give a text that tells what is to be run once, or None")
            same = sha256(f"{found.name}\0{dedupe}".encode("utf-8", "surrogatepass")).hexdigest()
            run_id = f"{execute.plain_name(found.name)}-{same[:20]}"
        if found.function is not _unknown:
            _check_call(found, args, kwargs)
        name = execute.new_id(found) if run_id is None else check_run_id(run_id)
        given = without_secrets(found, args, kwargs, self._context.redact)
        facts = Facts(tags=tags, note=note, actor=actor, kind="initial", status="queued")
        facts.more = {"queue": [queue, priority]}
        if found.function is not _unknown:
            facts.more["code"] = found.code
        facts.check()
        now = self._context.clock()
        line = Line(self._context, name)
        run = RunRecord(
            id=name,
            workflow=found.name,
            status="queued",
            created=now,
            updated=now,
            due=now + waits if waits else None,
            detail=encoded(
                RunFacts(
                    watch=kept_watch(check_watch(watch), found.watch),
                    limits=kept_limits(check_limits(limits), found.limits),
                )
            ),
        )
        drawn = line.draw({} if state is None else state, None, None, facts, run=run, input=given)
        change = msgspec.structs.replace(drawn.change, queue=Place(queue, priority))
        try:
            line.settle(drawn, self._store.append(change))
        except StaleVersion:
            if dedupe is None and if_exists == "error":
                raise AlreadyExists(
                    f"run {name!r} exists: say if_exists='resume' to have it resumed, if_exists='return' to get it as "
                    "it is, or put it in under another run_id, or with dedupe=…",
                    run=name,
                ) from None
            if dedupe is None:
                return self._put_in_again(found, name, args, kwargs, state, queue, priority, delay, if_exists)
        self._services.publisher.wake()
        return Run(self, name)

    async def aenqueue(self, workflow: Any, *args: Any, **options: Any) -> Run:
        """As `enqueue`, with the same arguments, in an event loop."""
        import asyncio

        return await asyncio.to_thread(partial(self.enqueue, workflow, *args, **options))

    def _put_in_again(
        self,
        workflow: Workflow,
        run_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        state: Any,
        queue: str,
        priority: int,
        delay: float,
        if_exists: str,
    ) -> Run:
        """Put a run that exists into the queue, if it stopped before its end and a worker may resume it."""
        run = self._check_same(workflow, run_id, args, kwargs, state, if_exists)
        stopped = run.status == "failed" or (
            run.status == "running" and not is_alive(run, self._context.clock())
        )
        if if_exists == "return" or not stopped:
            return Run(self, run_id)
        return self.requeue(run_id, queue=queue, priority=priority, delay=delay)

    def requeue(
        self,
        run_id: str,
        *,
        queue: str | None = None,
        priority: int | None = None,
        delay: float = 0,
        reason: str | None = None,
        actor: str | None = None,
        limits: Limits | None = None,
    ) -> Run:
        """Let a worker go on with a run that has stopped: paused, failed, frozen, interrupted, or rolled back with
        `resume=False`. It goes into the queue and has the priority that it was put in with, unless others are given;
        a run that was never in a queue needs `queue`. `limits` are as for `resume`."""
        check_limits(limits)
        waits = int(check_seconds("delay", delay) * 1_000_000)
        check_texts(reason, actor)
        if queue is not None:
            check_queue(queue)
        if priority is not None:
            _check_priority(priority)
        while True:
            run = self._known(run_id)
            self._refuse_requeue(run)
            place = self._place(run, queue, priority)
            facts = facts_of(run)
            if facts.wish != "cancel":
                facts.wish = ""
            now = self._context.clock()
            facts.queue = place.queue
            entries = settled(self._store, run, facts, now, actor=actor)
            if limits is not None:
                facts.limits = follow_limits(facts.limits, _limits_of(run), limits)
            after = msgspec.structs.replace(
                run, status="queued", owner=None, until=0, due=now + waits if waits else None, updated=now,
                revision=run.revision + 1, detail=encoded(facts),
            )  # fmt: skip
            entries.append(event("run.requeued", now, queue=place.queue, reason=reason, actor=actor))
            try:
                self._store.append(Append(expect=run, run=after, events=entries, queue=place))
            except StaleVersion:
                continue
            self._services.publisher.wake()
            return Run(self, run_id)

    def _refuse_requeue(self, run: RunRecord) -> None:
        execute.refuse_if_running(self._services, run)
        if run.workflow is None:
            raise InvalidCall(
                f"run {run.id!r} is a history kept by hand: there is no workflow to execute", run=run.id
            )
        if run.status in ("completed", "cancelled"):
            raise InvalidCall(
                f"run {run.id!r} is {run.status}: roll it back to a version, then requeue it", run=run.id
            )
        if run.parent is not None:
            parent = self._store.run_by_key(run.parent)
            raise InvalidCall(
                f"run {run.id!r} is a part of {parent.id if parent else 'another'!r}: requeue that one",
                run=run.id,
            )

    def _place(self, run: RunRecord, queue: str | None, priority: int | None) -> Place:
        """Where a run is to wait: as it is told, or as it did before."""
        before = place_of(self._store, run, facts_of(run)) or Place(queue or "")
        if not queue and not before.queue:
            raise InvalidCall(
                f"run {run.id!r} was never in a queue: say into which it shall go, with queue=…", run=run.id
            )
        return Place(queue or before.queue, before.priority if priority is None else priority)

    def limit(
        self, queue: str, *, concurrency: int | None = None, rate: int | None = None, per: float = 1.0
    ) -> None:
        """Let workers run not more than so many runs of a queue at once, and begin not more than `rate` of them in
        `per` seconds. None lifts a limit. It holds for all workers of the store, at once."""
        check_queue(queue)
        for name, value in (("concurrency", concurrency), ("rate", rate)):
            if value is not None:
                check_number(name, value, 1)
        if type(per) not in (int, float) or not _SHORTEST_PER <= per <= _LONGEST_PER:
            raise InvalidCall(
                f"per is a number of seconds from {_SHORTEST_PER} to {_LONGEST_PER:,}, not {short(per)}"
            )
        write_limits(self._store, queue, QueueLimits(concurrency, rate, int(per * 1_000_000)))

    def queues(self) -> list[QueueSummary]:
        """The queues that have runs, how many of each status, and their limits."""
        return [self._queue(name, counts) for name, counts in sorted(self._store.queues().items())]

    def queue(self, name: str) -> QueueSummary:
        """One queue, even if it has no runs yet."""
        return self._queue(check_queue(name), self._store.queues().get(name, {}))

    def _queue(self, name: str, counts: dict[str, int]) -> QueueSummary:
        limits = read_limits(self._store, name)[0]
        return QueueSummary(name, counts, limits.concurrency, limits.rate, limits.per / 1_000_000)

    def worker(
        self,
        *,
        queues: Iterable[str] = (QUEUE,),
        concurrency: int = 10,
        poll: float = 0.5,
        monitor: bool = True,
    ) -> Worker:
        """A worker that claims runs of some queues and executes those whose workflows this process knows. Unless
        `monitor` is False, it looks after the runs of the store, too, in turns with others (see `monitor`)."""
        if not isinstance(queues, Iterable):
            raise InvalidCall(f"queues is a list of names of queues, not {short(queues)}")
        names = [queues] if isinstance(queues, str) else list(queues)
        for name in names:
            check_queue(name)
        if not names:
            raise InvalidCall("a worker needs at least one queue")
        check_number("concurrency", concurrency, 1)
        if check_seconds("poll", poll) <= 0:
            raise InvalidCall(
                "poll is a number of seconds above 0: between two looks for what time has made due"
            )
        from holdfast.fleet.worker import Worker

        # Whoever finishes a rollback for a worker leaves the run in its queue, in one write.
        finish = partial(self._finish_rollback, then="queued")
        worker = Worker(self._services, names, concurrency, poll, finish)
        if monitor:
            worker.monitor = self.monitor()
        self._workers.add(worker)
        self._triggers.listen()
        return worker

    def listen(self) -> None:
        """Start workflows by events (`@workflow(on=…)`) from now on, in this process. Workers, monitors, `run` and
        `resume` do that by themselves."""
        self._triggers.listen()

    def _trigger_worker(self, known: Callable[[], Sequence[str]]) -> Worker:
        """Return a worker for runs of the workflows that events start."""
        from holdfast.fleet.worker import Worker

        finish = partial(self._finish_rollback, then="queued")
        worker = Worker(self._services, [QUEUE], _TRIGGERED_AT_ONCE, _TRIGGER_POLL, finish, known)
        self._workers.add(worker)
        return worker

    def _begin_work(self) -> None:
        self._triggers.listen()

    def _stop_workers(self) -> None:
        """Let the workers and monitors that are at work in threads of this process end."""
        self._triggers.close()
        for several in (list(self._workers), list(self._monitors)):
            for each in several:
                each.stop()
            for each in several:
                each.join()


def check_queue(name: Any) -> str:
    """The name of a queue, or `InvalidCall`."""
    if not isinstance(name, str) or not name or not name.isprintable() or len(name) > _LONGEST:
        raise InvalidCall(f"a queue has a name of up to {_LONGEST} printable characters, not {short(name)}")
    return name


def _check_priority(priority: Any) -> None:
    if type(priority) is not int or not -_MOST <= priority <= _MOST:
        raise InvalidCall(f"priority is a whole number up to {_MOST:,}, not {short(priority)}")


def _unknown(*args: Any, **kwargs: Any) -> None:
    """Stands for a workflow that only the workers know."""


def _find(workflow: Any) -> Workflow:
    if not isinstance(workflow, str):
        return workflow_of(workflow)
    try:
        return workflow_of(workflow)
    except NotFound:
        if not workflow:
            raise InvalidCall("a workflow has a name") from None
        check_text("workflow", workflow, 500)
        return Workflow(workflow, _unknown, False)


def _limits_of(run: RunRecord) -> Limits | None:
    """The limits of a run's workflow, where this process knows it."""
    return _find(run.workflow).limits


def _check_call(workflow: Workflow, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    try:
        workflow.signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidCall(f"workflow {workflow.name!r} cannot be called like this: {error}") from None
