"""Calls that code cancels and does without: a replay does not run them again, and the code does without them again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import store_fixtures

import holdfast
from holdfast import Holdfast, ReplayDiverged, step, workflow

pytest_plugins = ["postgres_fixtures"]

hf, place = store_fixtures.hf, store_fixtures.place

paid: list[str] = []
#: Is the slow model slow?
slow = [True]
#: Seconds after which code does without it.
limit = [0.05]


@pytest.fixture(autouse=True)
def _anew() -> None:
    paid.clear()
    slow[0] = True
    limit[0] = 0.05


@step(name="ab_slow")
async def think() -> str:
    paid.append("slow")
    if slow[0]:
        await asyncio.sleep(3600)
    return "slow"


@step(name="ab_fast")
async def guess() -> str:
    paid.append("fast")
    return "fast"


@workflow(name="ab_child")
async def child() -> str:
    return await think()


async def waited_for(call: Callable[[], Awaitable[Any]]) -> Any:
    return await asyncio.wait_for(call(), limit[0])


async def timed(call: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(limit[0]):
        return await call()


async def cancelled(call: Callable[[], Awaitable[Any]]) -> Any:
    task = asyncio.ensure_future(call())
    await asyncio.sleep(limit[0])
    task.cancel()
    try:
        return await task
    except asyncio.CancelledError:
        raise TimeoutError from None


WAYS = {"wait_for": waited_for, "timeout": timed, "cancel": cancelled}
CALLS: dict[str, Callable[[], Awaitable[Any]]] = {"step": think, "child": child}


def define(way: Callable[..., Awaitable[Any]], call: Callable[[], Awaitable[Any]]) -> Any:
    @workflow(name="ab_flow")
    async def flow() -> Any:
        try:
            answer = await way(call)
        except TimeoutError:
            answer = await guess()
        await holdfast.wait_for("go")
        return answer

    return flow


def start(hf: Holdfast, flow: Any) -> holdfast.Run:
    """Start a run that abandons the slow call after that has started, however long the machine takes to start it."""
    while True:
        run = hf.run(flow, run_id="run")
        if "slow" in paid:
            return run
        hf.delete("run")
        paid.clear()
        limit[0] *= 2


@pytest.mark.parametrize("called", CALLS)
@pytest.mark.parametrize("way", WAYS)
def test_abandoned_call_is_not_run_again(hf: Holdfast, way: str, called: str) -> None:
    run = start(hf, define(WAYS[way], CALLS[called]))
    assert (run.status, paid) == ("suspended", ["slow", "fast"])
    slow[0] = False
    assert hf.check() == []
    assert hf.signal("run", "go").result == "fast"
    assert paid == ["slow", "fast"]


def test_abandoned_call_that_is_not_cancelled_now_is_refused(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.execution.step_machine._CANCELLING", 0.0)

    async def patient(call: Callable[[], Awaitable[Any]]) -> Any:
        return await call()

    start(hf, define(timed, think))
    define(patient, think)
    slow[0] = False
    with pytest.raises(ReplayDiverged, match="cancelled 'ab_slow' after") as caught:
        hf.signal("run", "go")
    assert paid == ["slow", "fast"]
    assert caught.value.details["address"] == "ab_fast"
    assert hf.resume("run", changed="accept").status == "suspended"
    assert paid == ["slow", "fast", "slow"]
    assert hf.signal("run", "go").result == "slow"


def test_interrupted_step_runs_again_even_if_a_step_cleaned_up(hf: Holdfast) -> None:
    """The whole execution was cancelled, as Ctrl-C does: no code has continued without the step."""

    @workflow(name="ab_tidy")
    async def tidy() -> Any:
        try:
            return await think()
        finally:
            await guess()

    async def interrupt() -> None:
        task = asyncio.ensure_future(hf.arun(tidy, run_id="run"))
        while "slow" not in paid:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(interrupt())
    slow[0] = False
    assert hf.resume("run").result == "slow"
    assert paid == ["slow", "fast", "slow"]
