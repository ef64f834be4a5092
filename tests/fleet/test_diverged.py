"""Runs whose recorded steps do not fit the code of a worker or monitor: reported once, then left to an operator."""

from __future__ import annotations

from typing import Any

import monitor_stage as s
import pytest
from monitor_stage import Stage

import holdfast
from holdfast import Watchdog, step, workflow
from patience import until

stage = s.stage
pytest_plugins = ["postgres_fixtures"]
ran: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> None:
    ran.clear()


@step(name="v-old")
def old() -> str:
    ran.append("old")
    return "old"


@step(name="v-new")
def new() -> str:
    ran.append("new")
    return "new"


def define(*steps: Any) -> Any:
    @workflow(name="diverging", watchdog=Watchdog(autoresume=True))
    def diverging() -> Any:
        return [*(each() for each in steps), holdfast.wait_for("go")]

    return diverging


def kinds(stage: Stage, run_id: str) -> list[str]:
    return [event.kind for event in stage.hf.get(run_id).events()]


def test_worker_reports_a_diverging_run_once_and_executes_others(stage: Stage) -> None:
    hf = stage.hf
    hf.enqueue(define(old), run_id="run")
    with hf.worker(poll=0.01, monitor=False):
        until(lambda: hf.get("run").status == "suspended")
    define(new)
    hf.signal("run", "go", 1)
    hf.enqueue("diverging", run_id="other")
    hf.signal("other", "go", 2)
    with hf.worker(poll=0.01, monitor=False):
        until(lambda: hf.get("run").status == "stalled")
        until(lambda: hf.get("other").status == "completed")
    assert ran == ["old", "new"]
    assert kinds(stage, "run").count("run.diverged") == 1
    (prompt,) = hf.inbox()
    assert (prompt.run, prompt.details["symptom"], prompt.details["version"]) == ("run", "diverged", 1)
    assert "now calls 'v-new' where version 2 has recorded 'v-old'" in prompt.details["why"]
    # With the old code again, it goes on where it was.
    define(old)
    hf.answer(prompt.id, "resume")
    with hf.worker(poll=0.01, monitor=False):
        until(lambda: hf.get("run").status == "completed")
    assert hf.get("run").result == ["old", 1]
    assert ran == ["old", "new"]


def test_operator_can_roll_a_diverging_run_back_to_where_the_code_fits(stage: Stage) -> None:
    hf = stage.hf
    hf.enqueue(define(new, old), run_id="run")
    with hf.worker(poll=0.01, monitor=False):
        until(lambda: hf.get("run").status == "suspended")
    define(new, new)
    hf.signal("run", "go", 1)
    with hf.worker(poll=0.01, monitor=False):
        until(lambda: hf.get("run").status == "stalled")
        hf.answer("run#1", "rollback")
        until(lambda: hf.get("run").status == "suspended")
    assert ran == ["new", "old", "new"]


def test_monitor_reports_a_diverging_run_once(stage: Stage) -> None:
    class Cut(BaseException):
        """Stands for the end of the process."""

    @step(name="v-cut")
    def cut() -> None:
        raise Cut

    with pytest.raises(Cut):
        stage.hf.run(define(old, cut), run_id="run")
    define(new)
    for _ in range(3):
        stage.look()
        stage.monitor.wait()
    prompt = stage.frozen()
    assert prompt.details["symptom"] == "diverged"
    assert kinds(stage, "run").count("run.diverged") == 1
    assert ran == ["old"]
