"""Queues: what waits in them, their limits, and runs for them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from holdfast.desk.records import queue_record
from holdfast.desk.shapes import QueueShown
from holdfast.desk.standing import Standing, standing
from holdfast.desk.words import length
from holdfast.errors import InvalidCall
from holdfast.web.fields import Actor, Body, Name, SpendingLimits, Tags, Text
from holdfast.web.incoming import Incoming
from holdfast.web.operation import Role, Table
from holdfast.web.service import Service

TABLE = Table("queues")

QueueName = Annotated[str, Meta(min_length=1, max_length=100)]
Priority = Annotated[int, Meta(ge=-1_000_000, le=1_000_000)]
Delay = Annotated[str, Meta(min_length=1, max_length=20, description="`90s`, `2h`.")]


class LimitsBody(Body):
    """Runs at once, and runs begun in `per` seconds, at most; null for any number."""

    concurrency: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    rate: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    per: Annotated[float, Meta(gt=0, le=86_400)] = 1.0


class EnqueueBody(Body):
    """A workflow by its name, and what it is called with."""

    workflow: Name
    args: Annotated[tuple[Any, ...], Meta(max_length=50)] = ()
    kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    queue: QueueName = "default"
    priority: Priority = 0
    delay: Delay | None = None
    dedupe: Text | None = None
    run: Name | None = None
    tags: Tags = ()
    limits: SpendingLimits | None = None
    actor: Actor | None = None


class RequeueBody(Body):
    """Where it is to wait, if not where it was."""

    queue: QueueName | None = None
    priority: Priority | None = None
    delay: Delay | None = None
    limits: SpendingLimits | None = None
    reason: Text | None = None
    actor: Actor | None = None


#: Arguments that are for `enqueue` and not for the workflow.
_OWN = {
    "workflow",
    "queue",
    "priority",
    "delay",
    "dedupe",
    "run_id",
    "tags",
    "state",
    "note",
    "actor",
    "watch",
    "limits",
}


@TABLE.add("GET", "/queues", Role.VIEWER)
def list_queues(service: Service) -> list[QueueShown]:
    """The queues, how many runs of each status they have, and their limits."""
    return [queue_record(queue) for queue in service.hf.queues()]


@TABLE.add("GET", "/queues/{queue}", Role.VIEWER)
def get_queue(service: Service, queue: str) -> QueueShown:
    """One queue, even if it has no runs yet."""
    return queue_record(service.hf.queue(queue))


@TABLE.add("PUT", "/queues/{queue}", Role.ADMIN)
def set_limits(service: Service, queue: str, body: LimitsBody) -> QueueShown:
    """Set both limits of a queue; they hold for all workers at once."""
    service.hf.limit(queue, concurrency=body.concurrency, rate=body.rate, per=body.per)
    return queue_record(service.hf.queue(queue))


@TABLE.add("POST", "/enqueue", Role.OPERATOR)
def enqueue_run(service: Service, body: EnqueueBody) -> Standing:
    """Let a worker run a workflow: the run is in the store when this is answered."""
    if taken := sorted(body.kwargs.keys() & _OWN):
        raise InvalidCall(
            f"{taken[0]!r} cannot be given by name: enqueue has an argument of that name itself"
        )
    hf = service.hf
    given = Incoming(hf)
    run = hf.enqueue(
        body.workflow,
        *map(given.value, body.args),
        queue=body.queue,
        priority=body.priority,
        delay=_seconds(body.delay),
        dedupe=body.dedupe,
        run_id=body.run,
        tags=body.tags,
        actor=body.actor,
        limits=None if body.limits is None else body.limits.limits(),
        **given.named(body.kwargs),
    )
    return standing(hf, run)


@TABLE.add("POST", "/runs/{run}/requeue", Role.OPERATOR)
def requeue_run(service: Service, run: str, body: RequeueBody) -> Standing:
    """Let a worker go on with a run that has stopped: paused, failed, frozen, interrupted, or rolled back."""
    hf = service.hf
    requeued = hf.requeue(
        hf.find(run),
        queue=body.queue,
        priority=body.priority,
        delay=_seconds(body.delay),
        limits=None if body.limits is None else body.limits.limits(),
        reason=body.reason,
        actor=body.actor,
    )
    return standing(hf, requeued)


def _seconds(delay: str | None) -> float:
    return 0.0 if delay is None else length(delay).total_seconds()
