"""The policy: what it takes, where it is given, and that it stays with its run."""

from __future__ import annotations

from typing import Any

import monitor_stage as s
import pytest
from monitor_stage import Stage, control

from holdfast import InvalidCall, NotFound, Watchdog, step, workflow
from holdfast.fleet.monitor.monitor import Monitor
from holdfast.model.run_detail import detail_of
from holdfast.model.watchdog import RunWatchdog

stage = s.stage
pytest_plugins = ["postgres_fixtures"]
OWN = Watchdog(heartbeat_timeout=7, autoresume=True, max_recoveries=2)


@workflow(name="w_watched", watchdog=Watchdog(heartbeat_timeout=30, max_repeats=5))
def watched() -> None:
    s.hang("hang")


def policy(stage: Stage, run_id: str = "run") -> Watchdog | None:
    run = stage.hf._store.run(run_id)
    assert run is not None
    return detail_of(run).watchdog_policy


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("heartbeat_timeout", 0), ("heartbeat_timeout", -1), ("heartbeat_timeout", "60"), ("heartbeat_timeout", True),
        ("idle_timeout", float("nan")), ("max_repeats", 1), ("max_repeats", 2.5), ("max_unchanged", 0),
        ("max_steps", 0),
        ("max_tokens", 1.5), ("max_cost", 0), ("max_seconds", 1e13), ("max_recoveries", -1), ("max_recoveries", None),
        ("autoresume", 1),
    ],
)  # fmt: skip
def test_watchdog_refuses_values_out_of_range(field: str, value: Any) -> None:
    with pytest.raises(InvalidCall, match=field):
        Watchdog(**{field: value})


def test_watchdog_arguments_refuse_other_types(stage: Stage) -> None:
    with pytest.raises(InvalidCall, match=r"Watchdog\(heartbeat_timeout=60\)"):
        workflow(watchdog={"heartbeat_timeout": 3})(lambda: None)  # type: ignore[call-overload]
    with pytest.raises(InvalidCall, match="heartbeat_timeout"):
        step(heartbeat_timeout=0)(s.take_back)
    for call in (
        lambda: stage.hf.run(s.stuck, watchdog=60),  # type: ignore[arg-type]
        lambda: stage.hf.enqueue(s.stuck, watchdog="no"),  # type: ignore[arg-type]
        lambda: stage.hf.monitor(watchdog=3),  # type: ignore[arg-type]
        lambda: stage.hf.set_watchdog("run", 3),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidCall, match="Watch"):
            call()
    for interval in (0, -1, "1", True, None):
        with pytest.raises(InvalidCall, match="interval"):
            stage.hf.monitor(interval=interval)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        stage.hf.set_watchdog("nobody", OWN)


def test_run_has_its_own_watchdog_or_that_of_its_workflow(stage: Stage) -> None:
    stage.hf.run(watched, run_id="plain")
    assert policy(stage, "plain") == Watchdog(heartbeat_timeout=30, max_repeats=5)
    stage.hf.run(watched, run_id="own", watchdog=OWN)
    stage.hf.enqueue(watched, run_id="queued")
    stage.hf.enqueue(watched, run_id="queued-own", watchdog=OWN)
    stage.hf.run(s.stuck, run_id="none")
    assert policy(stage, "own") == policy(stage, "queued-own") == OWN
    assert policy(stage, "queued") == Watchdog(heartbeat_timeout=30, max_repeats=5)
    assert policy(stage, "none") is None


def test_changed_workflow_replaces_only_inherited_watchdogs(stage: Stage) -> None:
    fails = [True]

    @step(name="w_fails")
    def failing() -> None:
        if fails[0]:
            raise ValueError("not yet")

    def define(watch: Watchdog | None) -> Any:
        @workflow(name="w_changing", watchdog=watch)
        def changing() -> None:
            failing()

        return changing

    first = define(Watchdog(heartbeat_timeout=1))
    stage.hf.run(first, run_id="follows", raises=False)
    stage.hf.run(first, run_id="own", watchdog=OWN, raises=False)
    define(Watchdog(heartbeat_timeout=2))
    for run_id in ("follows", "own"):
        stage.hf.resume(run_id, raises=False)
    assert policy(stage, "follows") == Watchdog(heartbeat_timeout=2)
    assert policy(stage, "own") == OWN
    define(None)
    stage.hf.resume("follows", raises=False)
    assert policy(stage, "follows") is None


def test_watchdog_can_be_set_while_the_run_is_stuck(stage: Stage) -> None:
    control.hangs["hang"] = 1
    stage.begin(s.stuck)
    s.wait_until(lambda: "hang" in control.begun)
    assert stage.look(after=100) == []
    stage.hf.set_watchdog("run", Watchdog(heartbeat_timeout=5), actor="ada")
    (alert,) = stage.look()
    assert alert.symptom == "silent"
    (told,) = [event for event in stage.hf.get("run").events() if event.kind == "run.watchdog_set"]
    assert told.data["actor"] == "ada"


def test_set_watchdog_reaches_a_run_that_is_executed(stage: Stage) -> None:
    control.hangs["hang"] = 1
    stage.begin(s.stuck)
    s.wait_until(lambda: "hang" in control.begun)
    stage.hf.set_watchdog("run", OWN)
    stage.join()
    assert stage.hf.get("run").status == "completed"
    assert policy(stage) == OWN


def test_watchdog_survives_rollbacks_and_restarts(stage: Stage) -> None:
    stage.hf.run(s.stuck, run_id="run", watchdog=OWN)
    for _ in range(3):
        stage.hf.rollback("run", to=2)
        assert policy(stage) == OWN
    if stage.where != ":memory:":
        stage.hf.close()
        stage.hf = stage.open()
        stage.hf.rollback("run", to=1)
        assert policy(stage) == OWN


def test_monitor_watchdog_is_for_runs_without_one(stage: Stage) -> None:
    control.hangs.update(one=1, two=1)
    stage.begin(s.stuck, "one", run_id="one")
    stage.begin(s.stuck, "two", run_id="two", watchdog=Watchdog(heartbeat_timeout=1000))
    s.wait_until(lambda: {"one", "two"} <= set(control.begun))
    stage.monitor = stage.hf.monitor(watchdog=Watchdog(heartbeat_timeout=10))
    assert [alert.run for alert in stage.look(after=20)] == ["one"]
    assert "control.hang(name)" in stage.frozen("one").details["stack"]


def test_watchdog_of_another_version_that_is_not_understood_is_ignored() -> None:
    assert RunWatchdog.read({"silent": "a while", "own": True}).policy is None
    assert RunWatchdog.read({"repeats": 1}).policy is None
    assert RunWatchdog.read({"silent": 3, "of the future": 4}).policy == Watchdog(heartbeat_timeout=3)


def test_monitor_checks_other_runs_after_an_error(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    control.hangs.update(one=1, two=1)
    for name in ("one", "two"):
        stage.begin(s.stuck, name, run_id=name, watchdog=Watchdog(heartbeat_timeout=10))
    s.wait_until(lambda: {"one", "two"} <= set(control.begun))
    examine = Monitor._examine

    def fails(monitor: Monitor, watched: Any, *, act: bool) -> Any:
        if watched.run.id == "two":
            raise ZeroDivisionError("a fault")
        return examine(monitor, watched, act=act)

    monkeypatch.setattr(Monitor, "_examine", fails)
    assert [alert.run for alert in stage.look(after=20)] == ["one"]
    assert [alert.run for alert in stage.look()] == []
    # One cause, one warning, with a trace: it is a fault of the program.
    (told,) = [record for record in caplog.records if "cannot be checked" in record.getMessage()]
    assert told.exc_info is not None
