"""When a step is tried again, how long that waits, and what ends the wait."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import step_fixtures
import step_flows as f
from attempt_flows import both, flow_of
from step_flows import Broken, control

import holdfast
from holdfast import Holdfast, Retry, step, workflow
from patience import until

fresh, hf = step_fixtures.fresh, step_fixtures.hf


def _retries(run: holdfast.Run) -> list[dict[str, Any]]:
    return [event.data for event in run.events() if event.kind == "step.retried"]


@both
def test_step_is_tried_as_often_as_allowed(hf: Holdfast, kind: str) -> None:
    control.failing["x"] = 2
    run = hf.run(flow_of(kind, lambda: control.did("x"), retry=Retry(3, delay=0)))
    assert run.status == "completed"
    assert control.ran == ["x"] * 3
    version = run.history().at(2)
    assert version.attempt == 3
    assert version.address == "try"
    assert version.took is not None
    assert version.took >= 0
    assert [data["attempt"] for data in _retries(run)] == [1, 2]
    assert all("Broken: x" in data["error"] for data in _retries(run))


@both
def test_step_that_keeps_failing_fails(hf: Holdfast, kind: str) -> None:
    control.failing["x"] = 9
    run = hf.run(flow_of(kind, lambda: control.did("x"), retry=Retry(3, delay=0)), raises=False)
    assert run.status == "failed"
    assert isinstance(run.error, Broken)
    assert control.ran == ["x"] * 3
    kinds = [event.kind for event in run.events()]
    assert kinds == ["run.started", "step.retried", "step.retried", "step.failed", "run.failed"]
    failed = run.events()[3]
    assert failed.step == "try"
    assert failed.data["attempt"] == 3


@pytest.mark.parametrize(
    ("retry", "wanted"),
    [
        (Retry(5, "exponential", delay=0.001, factor=3, jitter=0), [0.001, 0.003, 0.009, 0.027]),
        (Retry(5, "constant", delay=0.002, jitter=0), [0.002] * 4),
        (Retry(6, "fibonacci", delay=0.001, jitter=0), [0.001, 0.001, 0.002, 0.003, 0.005]),
        (Retry(4, "exponential", delay=0.001, max_delay=0.0015, jitter=0), [0.001, 0.0015, 0.0015]),
        (Retry(2, "constant", delay=0.002, jitter=0.5), [0.0015]),
    ],
)
def test_retry_delays_follow_the_policy(hf: Holdfast, retry: Retry, wanted: list[float]) -> None:
    hf._engine.chance = lambda: 0.25
    control.failing["x"] = 99
    run = hf.run(flow_of("def", lambda: control.did("x"), retry=retry), raises=False)
    assert [data["delay"] for data in _retries(run)] == pytest.approx(wanted)
    assert len(control.ran) == retry.attempts


@both
def test_retry_follows_only_the_named_errors(hf: Holdfast, kind: str) -> None:
    def work() -> None:
        control.ran.append("x")
        raise KeyError("no") if len(control.ran) == 2 else Broken("yes")

    run = hf.run(flow_of(kind, work, retry=Retry(5, delay=0, on=Broken)), raises=False)
    assert isinstance(run.error, KeyError)
    assert control.ran == ["x", "x"]


def test_retry_does_not_follow_a_programming_mistake(hf: Holdfast) -> None:
    def work() -> None:
        control.ran.append("x")
        raise TypeError("a mistake")

    run = hf.run(flow_of("def", work, retry=5), raises=False)
    assert isinstance(run.error, TypeError)
    assert control.ran == ["x"]


@both
def test_retry_starts_no_attempt_beyond_the_budget(tmp_path: Path, kind: str) -> None:
    now = [1_000_000.0]

    def work() -> None:
        now[0] += 4.0
        control.did("x")

    with holdfast.open(tmp_path / "runs.db", clock=lambda: now[0]) as hf:
        control.failing["x"] = 99
        run = hf.run(flow_of(kind, work, retry=Retry(50, delay=0, budget=10)), raises=False)
        assert run.status == "failed"
        assert control.ran == ["x"] * 3


@both
def test_cancel_ends_the_wait_before_the_next_attempt(hf: Holdfast, kind: str) -> None:
    control.failing["x"] = 99
    flow = flow_of(kind, lambda: control.did("x"), retry=Retry(5, "constant", delay=500, max_delay=500))
    thread = threading.Thread(target=lambda: hf.run(flow, run_id="waiting"))
    thread.start()
    until(lambda: control.ran)
    hf.cancel("waiting", reason="enough", actor="op")
    thread.join(f.DEADLINE)
    assert not thread.is_alive()
    run = hf.get("waiting")
    assert run.status == "cancelled"
    assert control.ran == ["x"]
    assert run.head.kind == "final"
    assert run.head.note == "enough"
    with pytest.raises(holdfast.Cancelled):
        _ = run.result


@both
def test_pause_by_another_engine_ends_the_wait_before_the_next_attempt(tmp_path: Path, kind: str) -> None:
    control.failing["x"] = 1
    flow = flow_of(kind, lambda: control.did("x"), retry=Retry(5, "constant", delay=500, max_delay=500))
    with holdfast.open(tmp_path / "runs.db") as hf, holdfast.open(tmp_path / "runs.db") as other:
        thread = threading.Thread(target=lambda: hf.run(flow, run_id="waiting"))
        thread.start()
        until(lambda: control.ran)
        other.pause("waiting")
        thread.join(f.DEADLINE)
        assert not thread.is_alive()
        assert other.get("waiting").status == "paused"
        assert other.resume("waiting").status == "completed"
        assert control.ran == ["x", "x"]


def test_run_timeout_ends_retries(hf: Holdfast) -> None:
    control.failing["x"] = 99

    @step(name="hopeless", retry=Retry(6, "constant", delay=60, jitter=0))
    def hopeless() -> None:
        control.did("x")

    @workflow(name="hopeless_run", timeout=0.2)
    def hopeless_run() -> None:
        hopeless()

    began = time.monotonic()
    run = hf.run(hopeless_run, raises=False)
    assert run.status == "failed"
    assert time.monotonic() - began < 50


def test_idempotency_key_is_the_same_in_all_attempts(hf: Holdfast) -> None:
    keys: list[str] = []

    def work() -> None:
        keys.append(holdfast.idempotency_key())
        control.did("x")

    control.failing["x"] = 3
    run = hf.run(flow_of("def", work, retry=Retry(2, delay=0)), raises=False)
    assert run.status == "failed"
    hf.resume(run.id)
    assert run.status == "completed"
    assert len(keys) == 4
    assert len(set(keys)) == 1
    hf.rollback(run.id, to=1)
    assert len(set(keys)) == 2


def test_subscriber_is_notified_of_each_attempt(hf: Holdfast) -> None:
    heard: list[tuple[str, Any]] = []
    control.failing["x"] = 1
    with hf.subscribe(lambda event: heard.append((event.kind, event.data.get("attempt"))), kinds=["step.*"]):
        hf.run(flow_of("def", lambda: control.did("x"), retry=Retry(2, delay=0)))
        until(lambda: any(kind == "step.completed" for kind, _ in heard))
    assert [each for each in heard if each[0] == "step.started"] == [("step.started", 1), ("step.started", 2)]
    assert [each[0] for each in heard].count("step.completed") == 1
    assert [each for each in heard if each[0] == "step.retried"] == [("step.retried", 1)]


def test_failed_branch_ends_the_retry_waits_of_the_others(hf: Holdfast) -> None:
    @step(name="fails_now")
    async def fails_now() -> None:
        while not control.ran:
            await asyncio.sleep(0.001)
        raise Broken("now")

    @step(name="retries", retry=Retry(3, "constant", delay=60))
    async def retries() -> None:
        control.ran.append("x")
        raise ConnectionError("again")

    @workflow(name="siblings")
    async def siblings() -> None:
        await asyncio.gather(fails_now(), retries())

    began = time.monotonic()
    run = hf.run(siblings, raises=False)
    assert isinstance(run.error, Broken)
    assert time.monotonic() - began < 50
    assert control.ran == ["x"]


def test_step_may_fail_with_stop_iteration(hf: Holdfast) -> None:
    @step(name="ends")
    def ends() -> Any:
        return next(iter(()))

    @workflow(name="stops")
    def stops() -> str:
        try:
            ends()
        except StopIteration:
            return "caught"
        return "not"

    assert hf.run(stops).result == "caught"
