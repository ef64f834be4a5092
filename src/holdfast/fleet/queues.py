"""Queues: put runs into them, limit them, and make workers for them.

Invariant: a run that was put into a queue is in the store, once, and stays there until it has ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from hashlib import sha256
from typing import Any
from weakref import WeakSet

import msgspec

from holdfast.errors import AlreadyExists, InvalidCall, NotFound, StaleVersion
from holdfast.execution import lifecycle
from holdfast.execution.call_arguments import without_secrets
from holdfast.execution.lease import is_alive
from holdfast.execution.limits import Limits, check_limits, limits_record, updated_limits
from holdfast.execution.options import RunOptions, WorkflowCall
from holdfast.execution.questions import settled
from holdfast.execution.run import Run
from holdfast.execution.runner import Runner, check_call
from holdfast.execution.stopping import check_reason
from holdfast.fleet.monitor.monitoring import INTERVAL, Monitoring
from holdfast.fleet.monitor.recovery import place_of
from holdfast.fleet.queue_limits import QueueLimits, read_limits, write_limits
from holdfast.fleet.triggers import Triggers
from holdfast.fleet.worker import Worker
from holdfast.history.builder import VersionMetadata, build_event, with_questions
from holdfast.history.committer import Committer
from holdfast.history.redaction import redact_meta
from holdfast.model.checks import check_integer, check_seconds, check_text
from holdfast.model.names import check_run_id, short
from holdfast.model.public import QueueSummary
from holdfast.model.records import CLOSED, RunRecord
from holdfast.model.run_detail import RunDetail, detail_of, encode_detail
from holdfast.model.watchdog import RunWatchdog
from holdfast.store.protocol import Append, QueuePlace
from holdfast.workflow.definition import Workflow, workflow_of, workflows

QUEUE = "default"
#: Runs started by events that a listening process executes at once, and seconds between looks for them.
_TRIGGERED_AT_ONCE = 4
_TRIGGER_POLL = 1.0
_MOST = 1_000_000
_LONGEST = 100
#: Seconds that a rate may be for.
_SHORTEST_PER, _LONGEST_PER = 0.001, 86_400 * 366


class Queues:
    """Puts runs into queues, and makes the workers that execute them."""

    def __init__(self, runner: Runner, monitoring: Monitoring) -> None:
        self._runner = runner
        self._monitoring = monitoring
        self._engine = runner.engine
        self._context = runner.engine.context
        self._store = runner.engine.store
        self._workers: WeakSet[Worker] = WeakSet()
        self.triggers = Triggers(self._engine, self._enqueue_triggered, self._trigger_worker)

    def enqueue(
        self,
        workflow: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: RunOptions,
        *,
        queue: str = QUEUE,
        priority: int = 0,
        delay: float = 0,
        dedupe: str | None = None,
    ) -> Run:
        """Put a run of a workflow into a queue."""
        found = _find(workflow)
        check_queue(queue)
        check_integer("priority", priority, -_MOST, _MOST)
        waits = int(check_seconds("delay", delay) * 1_000_000)
        if dedupe is not None:
            run_id = _dedupe_id(found, dedupe, options)
        else:
            run_id = lifecycle.new_id(found) if options.run_id is None else check_run_id(options.run_id)
        is_known = found.function is not _unknown
        if is_known:
            check_call(found, args, kwargs)
        given = without_secrets(found, args, kwargs, self._context.redact)
        facts = VersionMetadata(
            tags=options.tags, note=options.note, actor=options.actor, kind="initial", status="queued"
        )
        facts.more = {"queue": [queue, priority], **({"code": found.code} if is_known else {})}
        facts.check()
        now = self._context.clock()
        line = Committer(self._context, run_id)
        detail = RunDetail(
            watchdog=RunWatchdog.of(options.watchdog, found.watchdog),
            limits=limits_record(options.limits, found.limits),
            meta=redact_meta(options.meta, self._context.redact),
        )
        run = RunRecord(
            id=run_id,
            workflow=found.name,
            status="queued",
            created=now,
            updated=now,
            due=now + waits if waits else None,
            detail=encode_detail(detail),
        )
        state = {} if options.state is None else options.state
        drawn = line.build(state, None, None, facts, run=run, input=given)
        change = msgspec.structs.replace(drawn.change, queue=QueuePlace(queue, priority))
        try:
            line.note_committed(drawn, self._store.append(change))
        except StaleVersion:
            if dedupe is None and options.if_exists == "error":
                raise AlreadyExists(
                    f"run {run_id!r} exists: say if_exists='resume' to have it resumed, if_exists='return' to get it "
                    "as it is, or use another run_id, or dedupe=…",
                    run=run_id,
                ) from None
            if dedupe is None:
                run = self._runner.existing(WorkflowCall(found, run_id, args, kwargs, options))
                if options.if_exists == "resume" and self._has_stopped(run):
                    return self.requeue(run_id, queue=queue, priority=priority, delay=delay)
                return Run(self._runner, run_id)
        self._engine.publisher.wake()
        return Run(self._runner, run_id)

    def _has_stopped(self, run: RunRecord) -> bool:
        """Did a run fail, or was it interrupted?"""
        if run.status == "running":
            return not is_alive(run, self._context.clock())
        return run.status == "failed"

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
        """Put a run that has stopped into a queue."""
        check_limits(limits)
        waits = int(check_seconds("delay", delay) * 1_000_000)
        check_reason(reason, actor)
        if queue is not None:
            check_queue(queue)
        if priority is not None:
            check_integer("priority", priority, -_MOST, _MOST)
        while True:
            run = self._engine.record(run_id)
            self._refuse_requeue(run)
            facts = detail_of(run)
            place = self._place(run, facts, queue, priority)
            if facts.stop_request != "cancel":
                facts.stop_request = ""
            now = self._context.clock()
            facts.queue = place.queue
            entries = settled(self._store, run, facts, now, actor=actor)
            if limits is not None:
                facts.limits = updated_limits(facts.limits, _find(run.workflow).limits, limits)
            after = msgspec.structs.replace(
                run, status="queued", owner=None, until=0, due=now + waits if waits else None, updated=now,
                revision=run.revision + 1, detail=encode_detail(facts),
            )  # fmt: skip
            entries.append(build_event("run.requeued", now, queue=place.queue, reason=reason, actor=actor))
            try:
                self._store.append(with_questions(Append(expect=run, run=after, events=entries, queue=place)))
            except StaleVersion:
                continue
            self._engine.publisher.wake()
            return Run(self._runner, run_id)

    def _refuse_requeue(self, run: RunRecord) -> None:
        self._engine.refuse_if_running(run)
        if run.workflow is None:
            raise InvalidCall(f"run {run.id!r} is a manual run: it has no workflow to execute", run=run.id)
        if run.status in CLOSED:
            raise InvalidCall(
                f"run {run.id!r} is {run.status}: roll it back to a version, then requeue it", run=run.id
            )
        if run.parent is not None:
            parent = self._store.run_by_key(run.parent)
            raise InvalidCall(
                f"run {run.id!r} is a part of {parent.id if parent else 'another'!r}: requeue that one",
                run=run.id,
            )

    def _place(self, run: RunRecord, facts: RunDetail, queue: str | None, priority: int | None) -> QueuePlace:
        """Return the queue and the priority for a run: those given, or those it had before."""
        before = place_of(self._store, run, facts) or QueuePlace(queue or "")
        if not queue and not before.queue:
            raise InvalidCall(
                f"run {run.id!r} was never in a queue: name the queue for it, with queue=…", run=run.id
            )
        return QueuePlace(queue or before.queue, before.priority if priority is None else priority)

    def limit(self, queue: str, *, concurrency: int | None, rate: int | None, per: float) -> None:
        """Replace the limits of a queue; None lifts a limit."""
        check_queue(queue)
        for name, value in (("concurrency", concurrency), ("rate", rate)):
            if value is not None:
                check_integer(name, value, 1)
        check_seconds("per", per, least=_SHORTEST_PER, most=_LONGEST_PER)
        write_limits(self._store, queue, QueueLimits(concurrency, rate, int(per * 1_000_000)))

    def summaries(self) -> list[QueueSummary]:
        """Return the queues that have runs."""
        return [self._summary(name, counts) for name, counts in sorted(self._store.queues().items())]

    def summary(self, name: str) -> QueueSummary:
        """Return one queue, even if it has no runs."""
        return self._summary(check_queue(name), self._store.queues().get(name, {}))

    def _summary(self, name: str, counts: dict[str, int]) -> QueueSummary:
        limits = read_limits(self._store, name)[0]
        return QueueSummary(name, counts, limits.concurrency, limits.rate, limits.per / 1_000_000)

    def worker(self, *, queues: Iterable[str], concurrency: int, poll: float, monitor: bool) -> Worker:
        """Return a worker, not yet started."""
        if not isinstance(queues, Iterable):
            raise InvalidCall(f"queues is a list of names of queues, not {short(queues)}")
        names = [queues] if isinstance(queues, str) else list(queues)
        for name in names:
            check_queue(name)
        if not names:
            raise InvalidCall("a worker needs at least one queue")
        check_integer("concurrency", concurrency, 1)
        check_seconds("poll", poll, above_zero=True)
        worker = self._make_worker(names, concurrency, poll, workflows)
        if monitor:
            worker.monitor = self._monitoring.monitor(INTERVAL, None)
        return worker

    def _trigger_worker(self, known: Callable[[], Sequence[str]]) -> Worker:
        """Return a worker for runs of the workflows that events start."""
        return self._make_worker([QUEUE], _TRIGGERED_AT_ONCE, _TRIGGER_POLL, known)

    def _make_worker(
        self, queues: Sequence[str], concurrency: int, poll: float, known: Callable[[], Sequence[str]]
    ) -> Worker:
        # A rollback that a worker finishes leaves the run in its queue, in one write.
        finish = partial(self._runner.finish_rollback, then="queued")
        worker = Worker(self._engine, queues, concurrency, poll, finish, known)
        self._workers.add(worker)
        return worker

    def _enqueue_triggered(self, workflow: Workflow, args: tuple[Any, ...], options: RunOptions) -> None:
        self.enqueue(workflow, args, {}, options)

    def close(self) -> None:
        """Stop the triggers and the workers that run in threads of this process."""
        self.triggers.close()
        workers = list(self._workers)
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.join()


def check_queue(name: Any) -> str:
    """Return the name of a queue; raise `InvalidCall`."""
    if not isinstance(name, str) or not name or not name.isprintable() or len(name) > _LONGEST:
        raise InvalidCall(f"a queue has a name of up to {_LONGEST} printable characters, not {short(name)}")
    return name


def _unknown(*args: Any, **kwargs: Any) -> None:
    """The function of a workflow that only the workers know."""


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


def _dedupe_id(workflow: Workflow, dedupe: str, options: RunOptions) -> str:
    """Return the id of the one run of a workflow with this `dedupe` text."""
    if options.run_id is not None:
        raise InvalidCall("give dedupe or run_id, not both: dedupe determines the run's id")
    if options.if_exists != "error":
        raise InvalidCall("give dedupe or if_exists, not both: dedupe returns the run that exists")
    if not check_text("dedupe", dedupe, 10_000):
        raise InvalidCall("dedupe is empty: give a text that names what is to run once, or None")
    same = sha256(f"{workflow.name}\0{dedupe}".encode("utf-8", "surrogatepass")).hexdigest()
    return f"{lifecycle.plain_name(workflow.name)}-{same[:20]}"
