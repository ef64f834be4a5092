"""Durable pipelines that are cancelled, or take too long."""

from __future__ import annotations

import asyncio

import pytest
from stageflow.api import StageContext, StageKind, StageOutput
from stageflow.pipeline.dag import UnifiedPipelineCancelled
from stageflow.stages.context import PipelineContext
from stageflow_stages import Log, cancels, chain, fails, hurried, run, stage, steps

from holdfast import Holdfast
from holdfast.integrations.stageflow import durable, results_of

pytest_plugins = ["postgres_fixtures"]


def test_pipeline_cancelled_by_a_stage_stays_cancelled(hf: Holdfast, log: Log) -> None:
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


def test_pipeline_cancelled_from_outside_can_be_continued(hf: Holdfast, log: Log) -> None:
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


def test_cancelled_task_leaves_no_stage_running(hf: Holdfast, log: Log) -> None:
    """Stageflow would leave its stages running; here they are cancelled, and nothing is written afterwards."""
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


def test_stage_timeout_fails_the_run(hf: Holdfast, log: Log) -> None:
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


def test_cancelled_results_are_replayed(hf: Holdfast, log: Log) -> None:
    pipeline = chain(log, "plan", "check", check=StageOutput.cancel("no"))
    found: list[UnifiedPipelineCancelled] = [cancels(durable(pipeline, hf, "r")) for _ in range(2)]
    assert found[0].results == found[1].results
    assert list(found[0].results) == ["plan", "check"]
