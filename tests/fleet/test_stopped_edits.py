"""Edits by hand of stopped runs: the status stays, a monitor leaves the run alone, a resume sees the edit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import monitor_stage as s
import pytest
from monitor_stage import Stage, control

import holdfast
from holdfast import History, InvalidCall, Watchdog, step, workflow

stage = s.stage
pytest_plugins = ["postgres_fixtures"]
BACK = Watchdog(autoresume=True, heartbeat_timeout=60)


@step(name="edited_first")
def first() -> None:
    holdfast.state()["first"] = True


@step(name="edited_last")
def last() -> Any:
    control.begun.append("last")
    if control.hangs.pop("fail", 0):
        raise ValueError("no such tool")
    return holdfast.state().get("byhand")


@workflow(name="edited_waits", watchdog=BACK)
def waits() -> Any:
    first()
    holdfast.ask("Deploy?")
    return last()


@workflow(name="edited_plain", watchdog=BACK)
def plain() -> Any:
    first()
    return last()


def suspended(stage: Stage) -> None:
    stage.hf.run(waits, run_id="run")


def paused(stage: Stage) -> None:
    suspended(stage)
    stage.hf.pause("run")


def cancelled(stage: Stage) -> None:
    suspended(stage)
    stage.hf.cancel("run")


def failed(stage: Stage) -> None:
    control.hangs["fail"] = 1
    with suppress(ValueError):
        stage.hf.run(plain, run_id="run")
    control.begun.clear()


def completed(stage: Stage) -> None:
    stage.hf.run(plain, run_id="run")
    control.begun.clear()


def queued(stage: Stage) -> None:
    stage.hf.enqueue(plain, run_id="run", queue="elsewhere")


def stalled(stage: Stage) -> None:
    control.hangs["hang"] = 1
    stage.begin(s.stuck, watchdog=Watchdog(heartbeat_timeout=60))
    s.wait_until(lambda: "hang" in control.begun)
    stage.look(after=61)


def edited(log: History) -> None:
    with log.edit() as state:
        state["byhand"] = 1


def committed(log: History) -> None:
    log.commit({**holdfast.thaw(log.head.state), "byhand": 1})


def patched(log: History) -> None:
    log.patch({"byhand": 1}, after=log.head)


def named_step(log: History) -> None:
    with log.edit(step="fix", note="by hand", tags=["fixed"]) as state:
        state["byhand"] = 1


STOPPED = (suspended, paused, cancelled, failed, completed, queued, stalled)
EDITS = (edited, committed, patched, named_step)


@pytest.mark.parametrize("stop", STOPPED)
def test_status_of_a_stopped_run_survives_every_edit(stage: Stage, stop: Callable[[Stage], None]) -> None:
    stop(stage)
    before = stage.hf._store.run("run")
    assert before is not None
    assert before.status == stop.__name__
    log = stage.hf.history("run")
    for change in EDITS:
        change(log)
        assert log.head.status == before.status
    log.tag(log.head, "looked-at")
    log.pin(log.head)
    log.add_event("operator.looked", {"by": "me"})
    after = stage.hf._store.run("run")
    assert after is not None
    for fact in ("status", "owner", "until", "due", "detail", "timeline", "workflow"):
        assert getattr(after, fact) == getattr(before, fact), fact
    begun = list(control.begun)
    for _ in range(3):
        stage.look(after=100)
        for thread in list(stage.monitor._unowned._threads.values()):
            thread.join(s.PATIENCE)
    assert control.begun == begun
    assert stage.hf.get("run").status == before.status


@pytest.mark.parametrize("change", EDITS)
def test_resume_sees_an_edit_of_a_paused_run(stage: Stage, change: Callable[[History], None]) -> None:
    paused(stage)
    change(stage.hf.history("run"))
    (prompt,) = stage.hf.inbox()
    stage.hf.answer(prompt.id, True)
    assert stage.hf.get("run").status == "paused"
    assert stage.hf.resume("run").result == 1


def test_edit_of_a_run_that_is_executed_leaves_it_running(stage: Stage) -> None:
    control.hangs["hang"] = 1
    stage.begin(s.stuck)
    s.wait_until(lambda: "hang" in control.begun)
    with stage.hf.history("run").edit() as state:
        state["byhand"] = 1
    run = stage.hf._store.run("run")
    assert run is not None
    assert (run.status, run.owner) == ("running", stage.hf._engine.owner)
    stage.join()
    done = stage.hf.get("run")
    assert done.status == "completed"
    assert stage.hf.history("run").head.state["byhand"] == 1


def test_status_of_a_workflows_run_cannot_be_committed(stage: Stage) -> None:
    paused(stage)
    log = stage.hf.history("run")
    with pytest.raises(InvalidCall, match="is paused, and a commit by hand cannot make it"):
        log.commit({}, status="running")
    with pytest.raises(InvalidCall, match="is paused, and a commit by hand cannot make it"):
        log.commit({}, status="completed", after=log.head)
    with pytest.raises(InvalidCall, match="leave out status="), log.edit(status="running") as state:
        state["n"] = 1
    assert stage.hf.get("run").status == "paused"


def test_manual_run_keeps_its_status_and_stays_manual(stage: Stage) -> None:
    log = stage.hf.history("by-hand")
    log.commit({"n": 1}, status="failed")
    with log.edit() as state:
        state["n"] = 2
    assert (log.head.status, stage.hf.get("by-hand").workflow) == ("failed", None)
    stage.hf.history("paused").commit({"n": 1})
    stage.hf.pause("paused")
    stage.hf.history("paused").commit({"n": 2})
    assert stage.hf.get("paused").status == "paused"
    stage.look(after=1000)
    assert [stage.hf.get(each).status for each in ("by-hand", "paused")] == ["failed", "paused"]


def test_patch_follows_a_head_that_was_moved_back(stage: Stage) -> None:
    paused(stage)
    log = stage.hf.history("run")
    with log.edit() as state:
        state["byhand"] = 0
    first = log.head.number - 1
    stage.hf.rollback("run", first, resume=False)
    assert log.patch({"byhand": 1}, after=log.head).parent == first
    assert stage.hf.get("run").status == "paused"
    with pytest.raises(InvalidCall, match="fork it"):
        log.patch({"byhand": 2}, after=first)
