"""Steps and runs that take too long: what ends them, and what they leave."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import step_fixtures
import step_flows as f
from attempt_flows import both, flow_of
from step_flows import control

import holdfast
from holdfast import Holdfast, Retry, StepTimeout, step, workflow

fresh, hf = step_fixtures.fresh, step_fixtures.hf


def test_timed_out_function_is_abandoned(hf: Holdfast) -> None:
    late: list[BaseException] = []
    over = threading.Event()

    def work() -> str:
        state = holdfast.state()
        state["mark"] = "early"
        try:
            control.gate.wait(f.DEADLINE)
            state["mark"] = "late"
            holdfast.state()["more"] = 1
        except BaseException as error:
            late.append(error)
            raise
        finally:
            over.set()
        return "late"

    run = hf.run(flow_of("def", work, timeout=0.03), raises=False)
    assert run.status == "failed"
    assert isinstance(run.error, StepTimeout)
    assert isinstance(run.error, TimeoutError)
    assert "'try'" in str(run.error)
    assert run.state == {}
    control.gate.set()
    assert over.wait(f.DEADLINE)
    assert isinstance(late[0], holdfast.InvalidCall)
    assert run.state == {}
    assert run.head.number == 1


@pytest.mark.parametrize("stubborn", [False, True])
def test_timed_out_coroutine_is_cancelled(hf: Holdfast, stubborn: bool) -> None:
    async def work() -> str:
        state = holdfast.state()
        state["mark"] = "early"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            control.ran.append("cancelled")
            state["mark"] = "late"
            if not stubborn:
                raise
        return "late"

    began = time.monotonic()
    run = hf.run(flow_of("async", work, timeout=0.03), raises=False)
    assert time.monotonic() - began < 50
    assert isinstance(run.error, StepTimeout)
    assert control.ran == ["cancelled"]
    assert run.state == {}


def test_coroutine_that_ignores_cancellation_is_abandoned(hf: Holdfast) -> None:
    free = asyncio.Event()

    async def work() -> str:
        for _ in range(2):
            try:
                await free.wait()
            except asyncio.CancelledError:
                control.ran.append("cancelled")
        return "late"

    @step(name="endless", timeout=0.02)
    async def endless() -> str:
        return await work()

    @workflow(name="gives_up")
    async def gives_up() -> str:
        try:
            return await endless()
        except StepTimeout:
            free.set()
            return "timed out"

    run = hf.run(gives_up)
    assert run.result == "timed out"
    assert control.ran == ["cancelled"]


@both
def test_retry_after_a_timeout_starts_from_the_state_before(hf: Holdfast, kind: str) -> None:
    def work() -> Any:
        state = holdfast.state()
        state["tries"] = state.get("tries", 0) + 1
        control.ran.append("x")
        if len(control.ran) > 1:
            return "fine"
        return asyncio.sleep(60) if kind == "async" else control.gate.wait(f.DEADLINE)

    run = hf.run(flow_of(kind, work, timeout=0.05, retry=Retry(2, delay=0)))
    control.gate.set()
    assert run.result == "fine"
    assert run.state == {"tries": 1}
    assert run.history().at(2).attempt == 2


def test_call_of_an_abandoned_attempt_is_refused(hf: Holdfast) -> None:
    late: list[Any] = []
    over = threading.Event()

    @step(name="part")
    def part() -> str:
        holdfast.state()["late"] = True
        control.ran.append("part")
        return "part"

    @step(name="slow", timeout=0.03)
    def slow() -> str:
        control.gate.wait(f.DEADLINE)
        try:
            late.append(part())
        except BaseException as error:
            late.append(error)
        finally:
            over.set()
        return "slow"

    @step(name="after")
    def after() -> str:
        control.gate.set()
        over.wait(f.DEADLINE)
        return "after"

    @workflow(name="abandons")
    def abandons() -> str:
        try:
            return slow()
        except StepTimeout:
            return after()

    run = hf.run(abandons)
    assert run.result == "after"
    assert control.ran == []
    assert isinstance(late[0], BaseException)
    assert "late" not in run.state
    assert [version.address for version in run.history().versions() if version.kind == "step"] == [
        "after",
        "slow",
    ]


@both
def test_run_timeout_fails_the_run(hf: Holdfast, kind: str) -> None:
    @step(name="wait_long")
    def wait_long() -> str:
        control.gate.wait(60)
        return "late"

    @step(name="await_long")
    async def await_long() -> str:
        await asyncio.sleep(60)
        return "late"

    @workflow(name="timed", timeout=0.2)
    def timed() -> list[str]:
        return [f.write("a"), wait_long(), f.write("b")]

    @workflow(name="atimed", timeout=0.2)
    async def atimed() -> list[str]:
        return [f.write("a"), await await_long(), f.write("b")]

    began = time.monotonic()
    run = hf.run(timed if kind == "def" else atimed, raises=False)
    control.gate.set()
    assert time.monotonic() - began < 50
    assert run.status == "failed"
    assert isinstance(run.error, StepTimeout)
    assert control.ran == ["write-a"]
    assert run.state == {"texts": ["a"]}


def test_run_timeout_lets_no_further_step_start(tmp_path: Path) -> None:
    now = [1_000_000.0]

    @step(name="takes_five")
    def takes_five(n: int) -> int:
        now[0] += 5.0
        control.ran.append(str(n))
        return n

    @workflow(name="timed_by_clock", timeout=12)
    def timed_by_clock() -> list[int]:
        return [takes_five(n) for n in range(10)]

    with holdfast.open(tmp_path / "runs.db", clock=lambda: now[0]) as hf:
        run = hf.run(timed_by_clock, raises=False)
        assert isinstance(run.error, StepTimeout)
        assert run.id in str(run.error)
        assert control.ran == ["0", "1", "2"]


def test_run_that_took_too_long_can_be_resumed(tmp_path: Path) -> None:
    now = [1_000_000.0]

    @step(name="takes")
    def takes(n: int) -> int:
        now[0] += 5.0
        control.did(f"t{n}")
        return n

    @workflow(name="timed_again", timeout=12)
    def timed_again() -> list[int]:
        return [takes(n) for n in range(4)]

    with holdfast.open(tmp_path / "runs.db", clock=lambda: now[0]) as hf:
        run = hf.run(timed_again, raises=False)
        assert run.status == "failed"
        now[0] += 3600
        assert hf.resume(run.id).result == [0, 1, 2, 3]
        assert control.ran == ["t0", "t1", "t2", "t3"]


def test_step_cancelled_by_the_workflow_changes_nothing(hf: Holdfast) -> None:
    @step(name="long")
    async def long() -> None:
        holdfast.state()["long"] = True
        await asyncio.sleep(60)

    @workflow(name="gives_up_by_itself")
    async def gives_up_by_itself() -> str:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(long(), 0.02)
        return await f.awrite("a")

    run = hf.run(gives_up_by_itself)
    assert run.result == "A"
    assert run.state == {"texts": ["a"]}
    assert [version.address for version in run.history().versions() if version.kind == "step"] == ["write"]
