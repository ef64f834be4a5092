"""Queues: their runs and limits; enqueue and requeue."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.errors import InvalidCall
from holdfast.operator_view.actions import RunOutcome, enqueue_parameters, run_outcome
from holdfast.operator_view.records import QueueView, queue_view
from holdfast.operator_view.text import parse_duration
from holdfast.web.operation import Actor, Body, Name, OperationTable, Role, SpendingLimits, Tags, Text
from holdfast.web.request import RequestValues
from holdfast.web.service import Service

TABLE = OperationTable("queues")

QueueName = Annotated[str, Meta(min_length=1, max_length=100)]
Priority = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
Delay = Annotated[str, Meta(min_length=1, max_length=20, description="`90s`, `2h`.")]


class LimitsBody(Body):
    """Limits: concurrent runs, and runs started in `per` seconds; null for no limit."""

    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    rate: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    per: Annotated[float, Meta(gt=0, le=86_400)] = 1.0


class EnqueueBody(Body):
    """Workflow by name, with its arguments and the state with which the run starts."""

    workflow: Name
    state: Any = None
    args: Annotated[tuple[Any, ...], Meta(max_length=50)] = ()
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    queue: QueueName = "default"
    priority: Priority = 0
    delay: Delay | None = None
    dedupe: Text | None = None
    run: Name | None = None
    tags: Tags = ()
    meta: dict[str, str | int | float | bool | None] = msgspec.field(default_factory=dict)
    limits: SpendingLimits | None = None
    actor: Actor | None = None


class RequeueBody(Body):
    """Queue and options, by default those that the run had."""

    queue: QueueName | None = None
    priority: Priority | None = None
    delay: Delay | None = None
    limits: SpendingLimits | None = None
    reason: Text | None = None
    actor: Actor | None = None


@TABLE.add("GET", "/queues", Role.VIEWER)
def list_queues(service: Service) -> list[QueueView]:
    """List the queues, with their runs by status and their limits."""
    return [queue_view(queue) for queue in service.hf.queues()]


@TABLE.add("GET", "/queues/{queue}", Role.VIEWER)
def get_queue(service: Service, queue: str) -> QueueView:
    """Return a queue, even if it has no runs yet."""
    return queue_view(service.hf.queue(queue))


@TABLE.add("PUT", "/queues/{queue}", Role.ADMIN)
def set_limits(service: Service, queue: str, body: LimitsBody) -> QueueView:
    """Set both limits of a queue; they apply to all workers together."""
    service.hf.limit_queue(queue, concurrency=body.concurrency, rate=body.rate, per=body.per)
    return queue_view(service.hf.queue(queue))


@TABLE.add("POST", "/enqueue", Role.OPERATOR)
def enqueue_run(service: Service, body: EnqueueBody) -> RunOutcome:
    """Add a run of a workflow to a queue. The run is stored when this returns."""
    if taken := sorted(body.kwargs.keys() & enqueue_parameters()):
        raise InvalidCall(f"{taken[0]!r} cannot be passed by name: enqueue has a parameter of that name")
    hf = service.hf
    given = RequestValues(hf)
    run = hf.enqueue(
        body.workflow,
        *map(given.value, body.args),
        queue=body.queue,
        priority=body.priority,
        delay=_seconds(body.delay),
        dedupe=body.dedupe,
        run_id=body.run,
        tags=body.tags,
        meta=body.meta,
        state=given.value(body.state),
        actor=body.actor,
        limits=None if body.limits is None else body.limits.limits(),
        **given.named(body.kwargs),
    )
    return run_outcome(hf, run)


@TABLE.add("POST", "/runs/{run}/requeue", Role.OPERATOR)
def requeue_run(service: Service, run: str, body: RequeueBody) -> RunOutcome:
    """Put a stopped run back into a queue: paused, failed, stalled, interrupted, or rolled back."""
    hf = service.hf
    requeued = hf.requeue(
        hf.get(run, prefix=True).id,
        queue=body.queue,
        priority=body.priority,
        delay=_seconds(body.delay),
        limits=None if body.limits is None else body.limits.limits(),
        reason=body.reason,
        actor=body.actor,
    )
    return run_outcome(hf, requeued)


def _seconds(delay: str | None) -> float:
    return 0.0 if delay is None else parse_duration(delay).total_seconds()
