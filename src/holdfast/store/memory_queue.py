"""Queues of the store in memory: who is ready, and whose turn it is. Whoever asks holds the store's lock."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.model.records import RunRecord
from holdfast.store.base import Claim
from holdfast.store.claims import claimed, claimed_again, ready_at
from holdfast.store.memory_run import Run


def ready(runs: Iterable[Run], wanted: Claim) -> list[Run]:
    """Runs that can be claimed."""
    return [
        run
        for run in runs
        if run.queue is not None
        and run.queue.queue in wanted.queues
        and run.record.workflow in wanted.workflows
        and (when := ready_at(run.record)) is not None
        and when <= wanted.now
    ]


def take(runs: Iterable[Run], wanted: Claim) -> list[Run]:
    """Give runs to an owner."""
    queue = [run for run in runs if run.queue is not None and run.queue.queue in wanted.queues]
    room = wanted.limit if wanted.most is None else min(wanted.limit, wanted.most - _owned(queue, wanted.now))
    taken = sorted(ready(queue, wanted), key=_turn)[: max(0, room)]
    for run in taken:
        run.record = claimed(run.record, wanted)
        run.begun = True
    return taken


def take_again(
    runs: Iterable[Run], run: Run, owner: str, now: int, lease: int, most: int | None
) -> RunRecord | None:
    """Give a run back to an owner whose lease has run out; None if that cannot be."""
    if run.record.owner != owner or run.record.until > now:
        return run.record if run.record.owner == owner else None
    if run.queue is not None and most is not None:
        queue = run.queue.queue
        if _owned((each for each in runs if each.queue and each.queue.queue == queue), now) >= most:
            return None
    run.record = claimed_again(run.record, now, lease)
    return run.record


def _owned(queue: Iterable[Run], now: int) -> int:
    return sum(run.record.status == "running" and run.record.until > now for run in queue)


def counts(runs: Iterable[Run]) -> dict[str, dict[str, int]]:
    """By queue, how many runs it has of each status."""
    found: dict[str, dict[str, int]] = {}
    for run in runs:
        if run.queue is not None:
            those = found.setdefault(run.queue.queue, {})
            those[run.record.status] = those.get(run.record.status, 0) + 1
    return found


def _turn(run: Run) -> tuple[int, bool, int, int]:
    assert run.queue is not None
    return -run.queue.priority, not run.begun, ready_at(run.record) or 0, run.record.key
