"""Runs that are in no queue and that monitors go on with: bounded tries, then a person is asked; what only this process
does not know is left to others."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import monitor_stage as s
import pytest
from monitor_stage import Stage, control

from holdfast import Watchdog, step, workflow
from holdfast.fleet.monitor import recovery
from holdfast.fleet.monitor.unowned_runs import TRIES
from holdfast.fleet.worker import Worker
from holdfast.workflow import definition

stage = s.stage
pytest_plugins = ["postgres_fixtures"]
BACK = Watchdog(autoresume=True)


@step(name="o_once")
def once() -> str:
    control.begun.append("once")
    if control.begun.count("once") == 1:
        raise KeyboardInterrupt
    return "over"


def flow(code: str) -> Any:
    """A workflow that takes no other code than its own for a run that was begun."""

    def careful() -> str:
        return once()

    return workflow(name="o_careful", version=code, changed="refuse", watchdog=BACK)(careful)


def interrupted(stage: Stage, made: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        stage.hf.run(made, run_id="run")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def looked(stage: Stage, times: int) -> None:
    """So many looks, each with all that it has begun."""
    for _ in range(times):
        stage.look()
        for thread in list(stage.monitor._unowned._threads.values()):
            thread.join(s.PATIENCE)


def test_unowned_run_that_cannot_be_resumed_is_stalled_after_some_tries(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(stage, flow("one"))
    flow("two")
    looked(stage, TRIES - 1)
    assert stage.hf.get("run").status == "queued"
    looked(stage, 1)
    prompt = stage.frozen()
    assert prompt.details["symptom"] == "dead"
    assert "it could not be resumed: CodeChanged" in prompt.details["why"]
    looked(stage, 3)
    # One warning, and no trace: it is no fault of the program.
    (told,) = [line for line in warnings(caplog) if "could not be resumed" in line]
    assert "run run" in told
    assert not any(record.exc_info for record in caplog.records)
    flow("one")
    assert stage.hf.answer(prompt.id, "resume").result == "over"


def test_unowned_run_logs_each_cause_once(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    interrupted(stage, flow("one"))
    flow("two")
    looked(stage, 1)
    flow("three")
    looked(stage, 1)
    assert len([line for line in warnings(caplog) if "could not be resumed" in line]) == 2


def test_failed_tries_are_counted_per_run(stage: Stage) -> None:
    interrupted(stage, flow("one"))
    flow("two")
    looked(stage, TRIES)
    flow("one")
    stage.hf.answer("run#1", "resume")
    # Nothing is remembered of runs that are well again.
    looked(stage, 1)
    assert not stage.monitor._unowned._failed
    assert not stage.monitor._unowned._warnings._causes


@pytest.fixture
def half_known(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """This process does not know the compensation of a step that a run has to undo, until this is called."""
    steps = dict(definition._steps)
    with monkeypatch.context() as patch:
        patch.setattr(definition, "_steps", {name: steps[name] for name in steps if name != "m_order"})
        yield lambda: patch.setattr(definition, "_steps", steps)


def test_unknown_workflow_is_left_to_other_processes(
    stage: Stage, half_known: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    control.hangs["after"] = 1
    stage.begin(s.ordering, watchdog=Watchdog(idle_timeout=10))
    s.wait_until(lambda: "after" in control.begun)
    assert [alert.action for alert in stage.look(after=11)] == ["stall"]
    stage.hf.answer("run#1", "rollback", version=1)
    for _ in range(TRIES + 2):
        looked(stage, 1)
        assert stage.hf.get("run").status == "queued"
    assert len([line for line in warnings(caplog) if "waits for a process that has its code" in line]) == 1
    half_known()
    looked(stage, 1)
    assert stage.hf.get("run").status == "completed"
    assert control.undone == ["kelp"]


def handed_back(stage: Stage, times: int) -> bool:
    return stage.kinds().count("run.handed_back") == times


def test_worker_without_the_compensation_hands_the_run_back(
    stage: Stage, half_known: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    control.hangs["after"] = 1
    run = stage.hf.enqueue(s.ordering, run_id="run", watchdog=Watchdog(idle_timeout=10))
    with stage.hf.worker(monitor=False, poll=0.01):
        s.wait_until(lambda: "after" in control.begun)
        assert [alert.action for alert in stage.look(after=11)] == ["stall"]
        stage.hf.answer("run#1", "rollback", version=1)
        for times, rest in ((1, 5), (2, 10), (3, 20)):
            s.wait_until(partial(handed_back, stage, times))
            assert run.status == "queued"
            # Others have as long to take it.
            record = stage.hf._store.run("run")
            assert record is not None
            assert record.due == int((stage.seconds + rest) * 1e6)
            stage.seconds += rest
        half_known()
        stage.seconds += 60
        s.wait_until(lambda: run.status == "completed")
    assert control.undone == ["kelp"]
    assert (
        len([line for line in warnings(caplog) if "handed back for a worker that has its code" in line]) == 1
    )


def test_unowned_run_that_cannot_be_stalled_is_ignored_until_it_changes(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:

    interrupted(stage, flow("one"))
    flow("two")
    with monkeypatch.context() as patch:
        patch.setattr(recovery, "stall", lambda *_: 1 / 0)
        looked(stage, TRIES + 3)
    assert stage.hf.get("run").status == "queued"
    assert len([line for line in warnings(caplog) if "cannot be stalled" in line]) == 1
    assert list(stage.monitor._unowned) == []
    stage.hf.set_watchdog("run", Watchdog(autoresume=True))
    looked(stage, TRIES)
    assert stage.frozen()


def forgotten(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """This process does not know the workflow, until the result is called."""
    known = dict(definition._workflows)
    monkeypatch.setattr(definition, "_workflows", {})
    return lambda: monkeypatch.setattr(definition, "_workflows", known)


def test_unowned_run_of_an_unknown_workflow_is_stalled_after_a_while(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(stage, flow("one"))
    remember = forgotten(monkeypatch)
    assert [alert.action for alert in stage.look()] == ["recover"]
    for _ in range(TRIES + 1):
        assert stage.look(after=10) == []
        assert stage.hf.get("run").status == "queued"
    # Whoever reads the log knows what it waits for, and until when.
    (told,) = warnings(caplog)
    assert "waits for a worker or a monitor that knows its workflow 'o_careful'" in told
    assert "if none starts within 60 s, it is stalled" in told
    stage.seconds += 60
    planned = stage.monitor.plan()
    assert [(alert.run, alert.symptom, alert.action) for alert in planned] == [("run", "dead", "stall")]
    assert stage.look() == planned
    assert "none that knows its workflow 'o_careful' appeared" in stage.frozen().details["why"]
    remember()
    assert stage.hf.answer("run#1", "resume").result == "over"


def test_second_monitor_resumes_what_the_leader_does_not_know(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(stage, flow("one"))
    remember = forgotten(monkeypatch)
    stage.look()
    remember()
    second = stage.hf.monitor(interval=1)
    second.look()
    assert not second._unowned._threads
    stage.seconds += 6
    assert second.look() == []
    assert not second.acting
    second.wait()
    assert stage.hf.get("run").result == "over"


# The engine's own runs


def test_run_of_this_engine_is_not_dead_while_its_lease_is_late(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in the store, and its first renewal is yet to come, when the machine sleeps past the lease."""
    there, go_on = threading.Event(), threading.Event()
    hold = stage.hf._engine.keeper.hold

    def late(run: Any, **how: Any) -> Any:
        there.set()
        assert go_on.wait(s.PATIENCE)
        return hold(run, **how)

    monkeypatch.setattr(stage.hf._engine.keeper, "hold", late)
    stage.begin(s.stuck, watchdog=Watchdog(heartbeat_timeout=60, idle_timeout=60))
    assert there.wait(s.PATIENCE)
    assert stage.look(after=59) == []
    go_on.set()
    stage.join()
    assert stage.hf.get("run").status == "completed"


def test_claimed_run_that_has_not_started_is_not_dead(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    there, go_on = threading.Event(), threading.Event()
    begin = Worker._begin

    def late(worker: Worker, runs: Any) -> None:
        if runs:
            there.set()
            assert go_on.wait(s.PATIENCE)
        begin(worker, runs)

    monkeypatch.setattr(Worker, "_begin", late)
    run = stage.hf.enqueue(s.stuck, run_id="run")
    with stage.hf.worker(monitor=False):
        assert there.wait(s.PATIENCE)
        assert stage.look(after=59) == []
        go_on.set()
        s.wait_until(lambda: run.status == "completed")


# A plan


def test_monitor_plan_lists_actions_and_changes_nothing(stage: Stage) -> None:
    control.hangs.update(one=1, two=1, after=1)
    stage.begin(s.stuck, "one", run_id="stalled", watchdog=Watchdog(heartbeat_timeout=10))
    stage.begin(s.stuck, "two", run_id="restored", watchdog=Watchdog(heartbeat_timeout=10, autoresume=True))
    stage.begin(s.counting, 3, run_id="fine", watchdog=Watchdog(max_steps=5))
    s.wait_until(lambda: {"one", "two", "after"} <= set(control.begun))
    interrupted(stage, flow("one"))
    stage.seconds += 20
    everything = {run.id: stage.hf._store.run(run.id) for run in stage.hf.runs()}
    end = stage.hf._store.journal_end()
    planned = stage.hf.monitor().plan()
    assert sorted((alert.run, alert.symptom, alert.action) for alert in planned) == [
        ("restored", "silent", "recover"),
        ("run", "dead", "recover"),
        ("stalled", "silent", "stall"),
    ]
    assert {run.id: stage.hf._store.run(run.id) for run in stage.hf.runs()} == everything
    assert stage.hf._store.journal_end() == end
    assert stage.hf._store.value("monitor") is None
    assert sorted(map(repr, stage.look())) == sorted(map(repr, planned))


def test_unowned_run_without_a_thread_is_resumed_by_a_later_check(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    interrupted(stage, flow("one"))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        stage.look()
        stage.look(after=1)
    assert stage.hf.get("run").status == "queued"
    assert warnings(caplog) == ["run run cannot be resumed now: can't start new thread"]
    looked(stage, 1)
    assert stage.hf.get("run").result == "over"


def no_thread(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_monitor_plan_lists_unowned_runs_to_resume(stage: Stage) -> None:
    interrupted(stage, flow("one"))
    flow("two")
    looked(stage, 1)
    (alert,) = stage.hf.monitor().plan()
    assert (alert.run, alert.action) == ("run", "resume")
