"""Runs whose owner is gone: told, handed over, restored or frozen, as their policy says."""

from __future__ import annotations

from typing import Any

import monitor_stage as s
import pytest
from monitor_stage import Stage, control

from holdfast import Watchdog, step, workflow

stage = s.stage
pytest_plugins = ["postgres_fixtures"]


def hung(stage: Stage, times: int, at: str = "hang") -> None:
    s.wait_until(lambda: control.begun.count(at) >= times)


def dead(stage: Stage, flow: Any, **how: Any) -> None:
    """A run whose engine is gone."""
    other = stage.open()
    control.hangs["hang"] = 1
    stage.begin(flow, hf=other, **how)
    hung(stage, 1)
    other._engine.keeper.close()


@pytest.mark.parametrize(
    ("watch", "action", "status"),
    [
        (None, "report", "running"),
        (Watchdog(), "stall", "stalled"),
        (Watchdog(autoresume=True, max_recoveries=0), "stall", "stalled"),
        (Watchdog(autoresume=True), "recover", "completed"),
    ],
)
def test_run_of_a_closed_engine_is_dead(
    stage: Stage, watch: Watchdog | None, action: str, status: str
) -> None:
    if stage.where == ":memory:":
        pytest.skip("one engine alone has it")
    dead(stage, s.stuck, watchdog=watch)
    (alert,) = stage.look()
    assert (alert.symptom, alert.action) == ("dead", action)
    run = stage.hf.get("run")
    s.wait_until(lambda: run.status == status)
    # It is told once.
    assert stage.look() == []
    assert stage.kinds().count("run.alert") == 1
    if status == "completed":
        assert len(run.history().timelines()) == 1
    stage.join()


def test_dead_queued_run_is_handed_over_at_once(stage: Stage) -> None:
    if stage.where == ":memory:":
        pytest.skip("one engine alone has it")
    control.hangs["hang"] = 1
    other = stage.open()
    worker = other.worker(monitor=False, concurrency=1)
    run = stage.hf.enqueue(s.stuck, run_id="run")
    worker.start()
    hung(stage, 1)
    other._engine.keeper.close()
    (alert,) = stage.look()
    assert (alert.symptom, alert.action) == ("dead", "hand over")
    assert run.status == "queued"
    with stage.hf.worker(monitor=False):
        s.wait_until(lambda: run.status == "completed")
    worker.stop()


def test_interrupted_run_without_an_owner_is_dead(stage: Stage) -> None:
    @step(name="r_interrupted")
    def interrupted() -> str:
        control.begun.append("hang")
        if control.begun.count("hang") == 1:
            raise KeyboardInterrupt
        return "over"

    @workflow(name="r_interrupts")
    def interrupts() -> str:
        return interrupted()

    for run_id, watch in (("told", None), ("restored", Watchdog(autoresume=True))):
        control.begun.clear()
        with pytest.raises(KeyboardInterrupt):
            stage.hf.run(interrupts, run_id=run_id, watchdog=watch)
    assert sorted((alert.run, alert.action) for alert in stage.look()) == [
        ("restored", "recover"),
        ("told", "report"),
    ]
    s.wait_until(lambda: stage.hf.get("restored").status == "completed")
    assert stage.look() == []
