"""A run that is taken away from a worker waits where it waited before, and goes before what came later."""

from __future__ import annotations

import monitor_stage as s
from monitor_stage import Stage

from holdfast.store.protocol import Claim, QueuePlace

stage = s.stage
pytest_plugins = ["postgres_fixtures"]


def claimed(stage: Stage, owner: str) -> list[str]:
    """What a worker would claim, of which nothing is heard afterwards."""
    now = stage.hf._context.clock()
    wanted = Claim(["busy", "default"], ["m_stuck"], owner, now, now + 15_000_000, 10)
    return [run.id for run in stage.hf._store.claim(wanted)]


def key_of(stage: Stage) -> int:
    run = stage.hf._store.run("run")
    assert run is not None
    return run.key


def test_handed_over_run_keeps_its_queue_priority_and_turn(stage: Stage) -> None:
    stage.hf.enqueue(s.stuck, run_id="run", priority=1)
    stage.hf.requeue("run", queue="busy", priority=7)
    assert claimed(stage, "who dies") == ["run"]
    stage.hf.enqueue(s.stuck, run_id="later", queue="busy", priority=7)
    (alert,) = stage.look(after=60)
    assert (alert.run, alert.action) == ("run", "hand over")
    key = key_of(stage)
    assert stage.hf._store.queue_place(key) == QueuePlace("busy", 7)
    assert claimed(stage, "another") == ["run", "later"]


def test_requeued_run_returns_to_its_last_queue(stage: Stage) -> None:
    stage.hf.enqueue(s.stuck, run_id="run", priority=1)
    stage.hf.requeue("run", queue="busy", priority=7)
    stage.hf.pause("run")
    stage.hf.requeue("run")
    key = key_of(stage)
    assert stage.hf._store.queue_place(key) == QueuePlace("busy", 7)
    stage.hf.pause("run")
    stage.hf.requeue("run", priority=-2)
    assert stage.hf._store.queue_place(key) == QueuePlace("busy", -2)
