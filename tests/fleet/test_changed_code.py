"""A run whose workflow refuses other code: what would go on with it is refused before anything is changed."""

from __future__ import annotations

from typing import Any

import monitor_stage as s
import pytest
from monitor_stage import Stage, control

import holdfast
from holdfast import CodeChanged, InvalidCall, Watchdog, workflow

stage = s.stage
pytest_plugins = ["postgres_fixtures"]

STRICT: dict[str, Any] = {
    "name": "cc_strict",
    "changed": "refuse",
    "watchdog": Watchdog(heartbeat_timeout=60),
}


def of_version(version: str) -> Any:
    """The workflow, as if a module with this version of it had been imported."""

    @workflow(version=version, **STRICT)
    def strict(asks: bool = False, hangs: bool = False) -> list[Any]:
        s.order("kelp")
        s.count(1)
        if hangs:
            s.hang("hang")
        return [holdfast.ask("Go on?"), holdfast.wait_for("event")] if asks else [version]

    return strict


def facts(stage: Stage, run_id: str = "run") -> tuple[Any, ...]:
    """What a change of a run would change."""
    run = stage.hf.get(run_id)
    record = stage.hf._store.run(run_id)
    assert record is not None
    return (
        run.status,
        record.revision,
        [version.number for version in run.history().versions()],
        control.undone,
    )


def test_rollback_with_changed_code_is_refused_before_compensation(stage: Stage) -> None:
    stage.hf.run(of_version("1"), run_id="run")
    of_version("2")
    before = facts(stage)
    with pytest.raises(CodeChanged, match="bring the old code back, or say changed='warn'"):
        stage.hf.rollback("run", 1)
    assert facts(stage) == before
    assert stage.hf.rollback("run", 1, changed="allow").result == ["2"]
    assert control.undone == ["kelp"]


def test_rollback_without_resume_ignores_changed_code(stage: Stage) -> None:
    stage.hf.run(of_version("1"), run_id="run")
    of_version("2")
    assert stage.hf.rollback("run", 3, resume=False).status == "paused"
    with pytest.raises(CodeChanged):
        stage.hf.resume("run")
    with pytest.raises(InvalidCall, match="changed is one of warn, refuse, allow"):
        stage.hf.rollback("run", 2, changed="yes")


def test_preview_reports_changed_code(stage: Stage) -> None:
    stage.hf.run(of_version("1"), run_id="run")
    assert not stage.hf.preview("run", 2).changed
    of_version("2")
    assert stage.hf.preview("run", 2).changed
    assert stage.hf.preview("run").changed


def test_fork_has_the_code_of_its_origin(stage: Stage) -> None:
    stage.hf.run(of_version("1"), True, run_id="run")
    of_version("2")
    stage.hf.resume("run", answers={"ask": True}, changed="allow")
    assert not stage.hf.preview("run").changed
    fork = stage.hf.fork("run", at=3)
    assert stage.hf.resume(fork.id).status == "suspended"
    of_version("3")
    with pytest.raises(CodeChanged):
        stage.hf.resume(fork.id)


def test_answer_and_signal_with_changed_code_are_refused_unless_resume_is_false(stage: Stage) -> None:
    hf = stage.hf
    hf.run(of_version("1"), True, run_id="run")
    of_version("2")
    before = facts(stage)
    with pytest.raises(CodeChanged, match="say resume=False, and resume it with changed='warn' later"):
        hf.answer("run#1", True)
    assert facts(stage) == before
    assert hf.answer("run#1", True, resume=False).status == "suspended"
    assert hf.resume("run", changed="warn").status == "suspended"
    of_version("3")
    before = facts(stage)
    with pytest.raises(CodeChanged):
        hf.signal("run", "event", 7)
    assert facts(stage) == before
    of_version("2")
    assert hf.signal("run", "event", 7).result == [True, 7]


def test_stalled_run_with_changed_code_stays_stalled(stage: Stage) -> None:
    control.hangs["hang"] = 1
    stage.begin(of_version("1"), hangs=True)
    s.wait_until(lambda: "hang" in control.begun)
    stage.look(after=61)
    of_version("2")
    prompt = stage.frozen()
    before = facts(stage)
    for choice in ("resume", "rollback", "reinitialize"):
        with pytest.raises(CodeChanged, match="resume=False"):
            stage.hf.answer(prompt.id, choice)
    assert facts(stage) == before
    assert stage.frozen() == prompt
    stage.hf.answer(prompt.id, "resume", resume=False)
    assert stage.hf.resume("run", changed="allow").result == ["2"]


def test_run_with_changed_code_can_be_cancelled(stage: Stage) -> None:
    control.hangs["hang"] = 1
    stage.begin(of_version("1"), hangs=True)
    s.wait_until(lambda: "hang" in control.begun)
    stage.look(after=61)
    of_version("2")
    assert stage.hf.answer(stage.frozen().id, "cancel").status == "cancelled"


def test_queued_run_with_changed_code_is_left_to_workers(stage: Stage) -> None:
    """Whoever answers it does not execute it, whatever code it has."""
    hf = stage.hf
    run = hf.enqueue(of_version("1"), True, run_id="run")
    with hf.worker(monitor=False):
        s.wait_until(lambda: run.status == "suspended")
    of_version("2")
    assert hf.answer("run#1", True).status == "suspended"
    assert hf.signal("run", "event", 7).status == "suspended"
    assert [version.step for version in run.history().versions()][::-1] == [None, "m_order", "m_count"]
    of_version("1")
    with hf.worker(monitor=False):
        assert run.wait(timeout=20).result == [True, 7]
