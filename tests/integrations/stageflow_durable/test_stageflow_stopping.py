"""Durable pipelines that are cancelled, or take too long."""

from __future__ import annotations

import asyncio

import pytest
from flowing import Log, cancels, chain, fails, hurried, run, stage, steps
from stageflow.api import StageContext, StageKind, StageOutput
from stageflow.pipeline.dag import UnifiedPipelineCancelled
from stageflow.stages.context import PipelineContext

from holdfast import Holdfast
from holdfast.integrations.stageflow import durable, results_of

pytest_plugins = ["postgres_fixtures"]


def test_a_pipeline_that_a_stage_cancelled_stays_so(hf: Holdfast, log: Log) -> None:
    pipeline = chain(log, "plan", "check", "act", check=StageOutput.cancel("nothing to do", {"n": 1}))
    first = cancels(durable(pipeline, hf, "r"))
    assert log.taken() == ["plan", "check"]
    again = cancels(durable(pipeline, hf, "r"))
    assert log.taken() == []
    assert (again.stage, again.reason, again.results) == (first.stage, first.reason, first.results)
    assert hf.get("r").status == "cancelled"
    assert steps(hf.history("r")) == ["initial", "plan", "check"]
    flow = durable(pipeline, hf, "r")
    flow.rollback(to="plan")
    cancels(flow)
    assert log.taken() == ["check"]


def test_a_pipeline_that_was_cancelled_from_outside_goes_on(hf: Holdfast, log: Log) -> None:
    context = PipelineContext.create(input_text="kelp")
    stop = True

    def act(ctx: StageContext) -> None:
        if stop:
            context.mark_canceled("the user left")
            ctx.raise_if_cancelled()

    pipeline = chain(log, "plan").with_stage("act", stage(log, "act", also=act), StageKind.WORK, after="plan")
    cancels(durable(pipeline, hf, "r"), context)
    head = hf.history("r").head
    assert (head.status, head.note) == ("cancelled", "cancelled: the user left")
    assert list(results_of(head)) == ["plan"]
    stop = False
    run(durable(pipeline, hf, "r"), input_text="kelp")
    assert log.taken() == ["plan", "act", "act"]
    assert hf.get("r").status == "completed"


def test_a_task_that_is_cancelled_leaves_nobody_running(hf: Holdfast, log: Log) -> None:
    """Stageflow lets its stages go on by themselves; here they are ended, and nothing is written afterwards."""
    ended: list[str] = []

    async def slow(ctx: StageContext) -> None:
        try:
            if not ended:
                await asyncio.Event().wait()
        finally:
            ended.append(ctx.stage_name)

    pipeline = chain(log, "plan").with_stage(
        "slow", stage(log, "slow", also=slow), StageKind.WORK, after="plan"
    )
    flow = durable(pipeline, hf, "r")

    async def main() -> None:
        task = asyncio.ensure_future(flow.run())
        while "slow" not in log:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["slow"]
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await flow.run()

    asyncio.run(main())
    assert log.taken() == ["plan", "slow", "slow"]
    assert hf.get("r").status == "completed"


def test_a_stage_that_takes_too_long_has_failed(hf: Holdfast, log: Log) -> None:
    slow = True

    async def act(ctx: StageContext) -> None:
        if slow:
            await asyncio.Event().wait()

    pipeline = chain(log, "plan").with_stage("act", stage(log, "act", also=act), StageKind.WORK, after="plan")
    error = fails(durable(pipeline, hf, "r"), hurried("act", 20))
    assert "timed out" in str(error)
    head = hf.history("r").head
    assert head.status == "failed"
    assert "timed out" in head.error["message"]
    slow = False
    run(durable(pipeline, hf, "r"))
    assert log.taken() == ["plan", "act", "act"]


def test_cancelled_results_are_those_of_the_first_time(hf: Holdfast, log: Log) -> None:
    pipeline = chain(log, "plan", "check", check=StageOutput.cancel("no"))
    found: list[UnifiedPipelineCancelled] = [cancels(durable(pipeline, hf, "r")) for _ in range(2)]
    assert found[0].results == found[1].results
    assert list(found[0].results) == ["plan", "check"]
