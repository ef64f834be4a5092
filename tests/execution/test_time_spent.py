"""The seconds that a run has spent, and what is logged of an execution that ends."""

from __future__ import annotations

import asyncio
import gc
import logging
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import LimitExceeded, Limits, step, workflow


def test_spent_seconds_are_counted_without_limits(tmp_path: Path) -> None:
    seconds = [1_000_000_000.0]
    runs: list[str] = []

    @step(name="ts_nap")
    def nap() -> None:
        runs.append("nap")
        seconds[0] += 3
        raise ValueError("again")

    @workflow(name="ts_slow")
    def slow() -> None:
        nap()

    with holdfast.open(tmp_path / "runs.db", clock=lambda: seconds[0]) as hf:
        assert hf.run(slow, run_id="run", raises=False).spent.seconds == 3
        seconds[0] += 100
        assert hf.resume("run", raises=False).spent.seconds == 6
        with pytest.raises(LimitExceeded):
            hf.resume("run", limits=Limits(seconds=5))
    assert runs == ["nap", "nap"]


@pytest.mark.slow
def test_suspended_task_is_not_reported_as_an_error(caplog: pytest.LogCaptureFixture) -> None:
    @step(name="ts_work")
    async def work() -> None:
        await asyncio.sleep(0)

    @workflow(name="ts_asks")
    async def asks() -> Any:
        answer = asyncio.create_task(holdfast.ask("Delete?"))
        await work()
        await work()
        return await answer

    with holdfast.open(":memory:") as hf, caplog.at_level(logging.ERROR, "asyncio"):
        assert hf.run(asks).status == "suspended"
        gc.collect()
    assert caplog.text == ""


def test_error_that_nothing_retrieves_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    @workflow(name="ts_forgets")
    async def forgets() -> None:
        async def fail() -> None:
            raise ValueError("forgotten")

        task = asyncio.create_task(fail())
        await asyncio.wait({task})

    with holdfast.open(":memory:") as hf, caplog.at_level(logging.ERROR, "asyncio"):
        hf.run(forgets)
        gc.collect()
    assert "forgotten" in caplog.text
