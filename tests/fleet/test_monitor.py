"""What the monitor notices: silence inside and between steps, loops, spent budgets, the dead."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import monitor_stage as s
import pytest
from monitor_stage import Stage, control

import holdfast
from holdfast import Retry, StaleVersion, StoreUnavailable, Watchdog, step, workflow
from holdfast.fleet.monitor.monitor import Monitor

stage = s.stage
pytest_plugins = ["postgres_fixtures"]


def hung(stage: Stage, flow: Any, *args: Any, at: str, **how: Any) -> None:
    """Begin a run and wait until it hangs."""
    control.hangs.setdefault(at, 1)
    stage.begin(flow, *args, **how)
    s.wait_until(lambda: at in control.begun)


# Silence


def test_silent_step_is_stalled(stage: Stage) -> None:
    hung(stage, s.stuck, at="hang", watchdog=Watchdog(heartbeat_timeout=60))
    assert stage.look(after=60) == []
    (alert,) = stage.look(after=1)
    assert (alert.run, alert.symptom, alert.action) == ("run", "silent", "stall")
    prompt = stage.frozen()
    details = prompt.details
    assert (details["symptom"], details["address"], details["attempt"]) == ("silent", "m_hang", 1)
    assert "no heartbeat for 61 s" in details["why"]
    assert "60 s are allowed" in details["why"]
    assert details["since"].timestamp() == 1_000_000_000
    assert details["version"] == 2
    assert details["diff"] == []
    assert details["initial"] == [{"path": "first", "changes": ["+ first: True"]}]
    assert "control.hang(name)" in details["stack"]
    assert stage.kinds()[-3:] == ["run.alert", "run.stalled", "question.opened"]
    assert stage.look(after=100) == []


def test_idle_timeout_stalls_a_run_between_steps(stage: Stage) -> None:
    hung(stage, s.between, at="between", watchdog=Watchdog(heartbeat_timeout=1, idle_timeout=60))
    assert stage.look(after=59) == []
    (alert,) = stage.look(after=2)
    assert alert.why == "no step has started for 61 s, 60 s are allowed between two steps"
    details = stage.frozen().details
    assert details["address"] is None
    assert 'control.hang("between")' in details["stack"]


def test_heartbeat_and_idle_timeouts_are_independent(stage: Stage) -> None:
    hung(stage, s.between, at="between", run_id="between", watchdog=Watchdog(heartbeat_timeout=1))
    hung(stage, s.stuck, at="hang", run_id="inside", watchdog=Watchdog(idle_timeout=1))
    assert stage.look(after=1000) == []


@step(name="m_budgets", timeout=500)
def timed() -> None:
    control.hang("timed")


def test_step_heartbeat_timeout_replaces_that_of_the_watchdog(stage: Stage) -> None:
    @workflow(name="m_own_budget")
    def own() -> None:
        s.patient()

    @workflow(name="m_timed")
    def with_timeout() -> None:
        timed()

    @workflow(name="m_unwatched")
    def unwatched() -> None:
        s.patient()

    hung(stage, own, at="patient", run_id="own", watchdog=Watchdog(heartbeat_timeout=10))
    hung(stage, with_timeout, at="timed", run_id="timed", watchdog=Watchdog(heartbeat_timeout=10))
    assert stage.look(after=99) == []
    assert [alert.run for alert in stage.look(after=2)] == ["own"]
    assert [alert.run for alert in stage.look(after=400)] == ["timed"]
    control.hangs["patient"] = 1
    control.begun.clear()
    hung(stage, unwatched, at="patient", run_id="unwatched")
    assert [alert.run for alert in stage.look(after=101)] == ["unwatched"]


def test_step_that_reports_progress_is_not_stalled(stage: Stage) -> None:
    turn, taken = threading.Semaphore(0), threading.Semaphore(0)

    @step(name="m_long")
    def long() -> str:
        for share in range(100):
            assert turn.acquire(timeout=s.PATIENCE)
            holdfast.progress(share / 100)
            taken.release()
        return "done"

    @workflow(name="m_long_one", watchdog=Watchdog(heartbeat_timeout=60, idle_timeout=60))
    def works() -> str:
        return long()

    stage.begin(works)
    for _ in range(100):
        assert stage.look(after=59) == []
        turn.release()
        assert taken.acquire(timeout=s.PATIENCE)
    stage.join()
    assert stage.hf.get("run").result == "done"


def test_progress_of_another_step_does_not_hide_a_stuck_one(stage: Stage) -> None:
    @step(name="m_ticks")
    def ticks() -> None:
        while not control.stop:
            holdfast.progress()
            time.sleep(0.001)

    @workflow(name="m_two")
    def two() -> None:
        holdfast.parallel((s.hang, "hang"), ticks)

    hung(stage, two, at="hang", watchdog=Watchdog(heartbeat_timeout=60))
    (alert,) = stage.look(after=61)
    assert "parallel/[1]/m_hang" in alert.why


def test_step_with_active_nested_steps_is_not_silent(stage: Stage) -> None:
    @step(name="m_outer")
    def outer() -> None:
        s.patient()
        control.hang("outer")

    @workflow(name="m_nested", watchdog=Watchdog(heartbeat_timeout=10))
    def nested() -> None:
        outer()

    control.hangs["outer"] = 1
    hung(stage, nested, at="patient")
    assert stage.look(after=90) == []
    control.gates["patient"][0].set()
    s.wait_until(lambda: "outer" in control.begun)
    assert stage.look(after=9) == []
    (alert,) = stage.look(after=2)
    assert "step m_outer has" in alert.why


def test_pause_between_attempts_is_not_silence(stage: Stage) -> None:
    @step(name="m_resting", retry=Retry(2, delay=30, jitter=0))
    def resting() -> None:
        control.begun.append("tried")
        raise ConnectionError("not now")

    @workflow(name="m_rests", watchdog=Watchdog(heartbeat_timeout=10, idle_timeout=10))
    def rests() -> None:
        resting()

    stage.begin(rests)
    s.wait_until(lambda: "step.retried" in stage.kinds())
    assert stage.look(after=900) == []
    stage.hf.cancel("run")


def test_step_that_ends_during_the_check_is_not_stalled(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    @workflow(name="m_late")
    def late() -> None:
        s.hang("one")
        s.hang("two")

    control.hangs["two"] = 1
    hung(stage, late, at="one", watchdog=Watchdog(heartbeat_timeout=60))

    def before_it_acts(*_: Any) -> None:
        control.gates["one"][0].set()
        s.wait_until(lambda: "two" in control.begun)

    monkeypatch.setattr(Monitor, "_hand_over_parents", before_it_acts)
    assert stage.look(after=61) == []
    assert stage.hf.get("run").status == "running"
    stage.join()
    assert stage.hf.get("run").status == "completed"


def test_silent_task_is_stalled_with_its_stack(stage: Stage) -> None:
    @step(name="m_awaits")
    async def awaits() -> None:
        control.begun.append("awaits")
        await asyncio.sleep(1000)  # here

    @workflow(name="m_asynchronous", watchdog=Watchdog(heartbeat_timeout=60))
    async def asynchronous() -> None:
        await awaits()

    stage.begin(asynchronous)
    s.wait_until(lambda: "awaits" in control.begun)
    assert len(stage.look(after=61)) == 1
    assert "# here" in stage.frozen().details["stack"]
    stage.join()
    # The task was cancelled: it does not wait for 1000 s.
    assert [type(error).__name__ for error in stage.raised] == ["LeaseLost"]


# Loops


@pytest.mark.parametrize(
    ("flow", "watch", "good", "why"),
    [
        (s.repeating, Watchdog(max_repeats=4), 3, "m_same has returned the same result 4 times"),
        (s.ping_pong, Watchdog(max_repeats=2), 4, "m_other and m_same alternate between two results"),
        (s.toggling, Watchdog(max_repeats=2), 4, "m_toggle alternate between two states"),
        (s.idle, Watchdog(max_unchanged=4), 2, "the state has not changed for 4 versions"),
    ],
)
def test_monitor_finds_loops(stage: Stage, flow: Any, watch: Watchdog, good: int, why: str) -> None:
    hung(stage, flow, 3, at="after", run_id="short", watchdog=watch)
    assert stage.look() == []
    control.begun.clear()
    control.hangs["after"] = 1
    hung(stage, flow, 4, at="after", watchdog=watch)
    (alert,) = stage.look()
    assert (alert.run, alert.symptom) == ("run", "looping")
    assert why in alert.why
    assert stage.frozen().details["version"] == good


def test_changing_results_are_not_a_loop(stage: Stage) -> None:
    hung(stage, s.counting, 50, at="after", watchdog=Watchdog(max_repeats=2, max_unchanged=2))
    assert stage.look() == []


# Budgets


@pytest.mark.parametrize(
    ("watch", "flow", "args", "why"),
    [
        (Watchdog(max_steps=3), s.counting, (4,), "steps: 4 steps used, 3 steps"),
        (Watchdog(max_tokens=100), s.spending, (3, 40), "tokens: 120 tokens used, 100 tokens"),
        (Watchdog(max_cost=0.5), s.spending, (3, 0, 0.25), "cost: 0.75 used, 0.5"),
        (Watchdog(max_seconds=50), s.counting, (1,), "time: 51 s used, 50 s"),
    ],
)
def test_monitor_finds_exceeded_budgets(
    stage: Stage, watch: Watchdog, flow: Any, args: Any, why: str
) -> None:
    hung(stage, flow, args[0] - 1 or 1, *args[1:], at="after", run_id="within", watchdog=watch)
    assert stage.look() == []
    control.begun.clear()
    control.hangs["after"] = 1
    hung(stage, flow, *args, at="after", watchdog=watch)
    (alert,) = [alert for alert in stage.look(after=51) if alert.run == "run"]
    assert (alert.symptom, alert.action) == ("over budget", "stall")
    assert why in alert.why


def test_waiting_does_not_count_for_max_seconds(stage: Stage) -> None:
    @workflow(name="m_waits", watchdog=Watchdog(max_seconds=50))
    def waits() -> None:
        s.count(1)
        holdfast.ask("well?")
        control.hang("after")

    stage.hf.run(waits, run_id="run")
    stage.seconds += 1000
    control.hangs["after"] = 1
    stage.hf.answer("run#1", "yes", resume=False)
    thread = threading.Thread(target=lambda: stage.hf.resume("run"))
    stage.threads.append(thread)
    thread.start()
    s.wait_until(lambda: "after" in control.begun)
    assert stage.look(after=49) == []
    stage.join()
    assert stage.hf.get("run").status == "completed"


# One acts at a time


def test_second_monitor_acts_when_the_first_stops(stage: Stage) -> None:
    second = stage.hf.monitor(interval=1)
    hung(stage, s.stuck, at="hang", watchdog=Watchdog(heartbeat_timeout=1))
    stage.look()
    assert stage.monitor.acting
    assert not second.acting
    stage.seconds += 5
    assert second.look() == []
    stage.monitor.stop()
    stage.monitor.run()
    assert [alert.run for alert in second.look()] == ["run"]
    assert second.acting


def test_monitor_lease_expires_unless_renewed(stage: Stage) -> None:
    second = stage.hf.monitor(interval=1)
    stage.look()
    stage.seconds += 9
    second.look()
    assert not second.acting
    stage.seconds += 2
    second.look()
    assert second.acting
    assert stage.look() == []
    assert not stage.monitor.acting


def test_monitor_retries_while_the_store_is_unavailable(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung(stage, s.stuck, at="hang", watchdog=Watchdog(heartbeat_timeout=1))
    real, fails = stage.hf._store.runs, [3]

    def runs(**how: Any) -> Any:
        fails[0] -= 1
        if fails[0] >= 0:
            raise StoreUnavailable("away") if fails[0] else StaleVersion("meanwhile")
        return real(**how)

    monkeypatch.setattr(stage.hf._store, "runs", runs)
    stage.seconds += 5
    with stage.hf.monitor(interval=0.01):
        s.wait_until(lambda: stage.hf.get("run").status == "stalled")


def test_monitor_logs_its_actions(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever runs it reads that in its log; it is in the run's journal, too."""
    control.hangs["hang"] = 1
    stage.begin(s.stuck, watchdog=Watchdog(heartbeat_timeout=60))
    s.wait_until(lambda: "hang" in control.begun)
    stage.seconds += 61
    with stage.hf.monitor(interval=0.05):
        s.wait_until(lambda: caplog.messages)
    assert caplog.messages == [
        "run run is silent: step m_hang has sent no heartbeat for 61 s, 60 s are allowed; it is stalled, and a "
        "question in the inbox asks a person"
    ]
    assert stage.frozen()
