"""Guards and interceptors around durable stages: retries, and which output is recorded."""

from __future__ import annotations

from typing import Any

import pytest
from stageflow.api import Pipeline, StageKind, StageOutput
from stageflow.pipeline.dag import UnifiedStageExecutionError
from stageflow.pipeline.guard_retry import GuardRetryPolicy, GuardRetryStrategy
from stageflow.pipeline.interceptors import BaseInterceptor, InterceptorResult, get_default_interceptors
from stageflow.pipeline.retry import BackoffStrategy, JitterStrategy, RetryInterceptor
from stageflow.stages.context import PipelineContext
from stageflow.stages.result import StageResult
from stageflow_stages import Log, chain, ok, run, stage, steps

from holdfast import Holdfast
from holdfast.integrations.stageflow import durable

pytest_plugins = ["postgres_fixtures"]


def test_stage_retried_by_an_interceptor_is_recorded(hf: Holdfast, log: Log) -> None:
    gives: list[Any] = [ConnectionError("one"), ok(n=2)]
    pipeline = chain(log, "plan", "act", act=lambda: gives.pop(0))
    retry = RetryInterceptor(
        base_delay_ms=1, backoff_strategy=BackoffStrategy.CONSTANT, jitter_strategy=JitterStrategy.NONE
    )
    results = run(durable(pipeline, hf, "r"), interceptors=[*get_default_interceptors(), retry])
    assert results["act"].data == {"n": 2}
    assert log.taken() == ["plan", "act", "act"]
    assert steps(hf.history("r")) == ["initial", "plan", "stage act failed", "act"]
    assert hf.get("r").status == "completed"
    assert run(durable(pipeline, hf, "r")) == results


def guarded(log: Log, drafts: list[Any], verdicts: list[Any]) -> Pipeline:
    return (
        Pipeline(name="guarded")
        .with_stage("draft", stage(log, "draft", lambda: drafts.pop(0)), StageKind.TRANSFORM)
        .with_stage("guard", stage(log, "guard", lambda: verdicts.pop(0)), StageKind.GUARD, after="draft")
        .with_stage("send", stage(log, "send"), StageKind.WORK, after="guard")
    )


STRATEGY = GuardRetryStrategy({"guard": GuardRetryPolicy(retry_stage="draft", max_attempts=4)})


def test_stage_retried_by_a_guard_is_recorded(hf: Holdfast, log: Log) -> None:
    bad = [StageOutput.fail("rude", {"n": number}) for number in range(2)]
    pipeline = guarded(log, [ok(n=1), ok(n=2), ok(n=3)], [*bad, ok()])
    results = run(durable(pipeline, hf, "r"), guard_retry_strategy=STRATEGY)
    assert log.taken() == ["draft", "guard", "draft", "guard", "draft", "guard", "send"]
    assert results["draft"].data == {"n": 3}
    assert [
        version.get("stages.draft.data.n") for version in reversed(hf.history("r").versions(step="draft"))
    ] == [1, 2, 3]
    assert run(durable(pipeline, hf, "r"), guard_retry_strategy=STRATEGY) == results
    assert log.taken() == []
    # Back to before the first draft, not to before the last.
    assert durable(pipeline, hf, "r").rollback(before="draft").number == 1


def test_interrupted_guard_resumes_with_the_last_draft(hf: Holdfast, log: Log) -> None:
    verdicts: list[Any] = [StageOutput.fail("rude"), KeyboardInterrupt()]
    pipeline = guarded(log, [ok(n=1), ok(n=2), ok(n=3)], verdicts)
    with pytest.raises(KeyboardInterrupt):
        run(durable(pipeline, hf, "r"), guard_retry_strategy=STRATEGY)
    assert log.taken() == ["draft", "guard", "draft", "guard"]
    verdicts[:] = [StageOutput.fail("rude"), ok()]
    results = run(durable(pipeline, hf, "r"), guard_retry_strategy=STRATEGY)
    assert log.taken() == ["guard", "draft", "guard", "send"]
    assert results["draft"].data == {"n": 3}


def test_guard_out_of_retries_fails_the_run(hf: Holdfast, log: Log) -> None:
    verdicts = [StageOutput.fail(f"rude {number}", {"n": number}) for number in range(4)]
    pipeline = guarded(log, [ok(n=number) for number in range(5)], verdicts)
    with pytest.raises(UnifiedStageExecutionError) as error:
        run(durable(pipeline, hf, "r"), guard_retry_strategy=STRATEGY)
    assert error.value.stage == "guard"
    assert hf.get("r").status == "failed"
    verdicts.append(ok())
    log.clear()
    run(durable(pipeline, hf, "r"))
    assert log.taken() == ["guard", "send"]


class Answer(BaseInterceptor):
    """An interceptor that returns an output in place of a stage."""

    name = "answer"

    def __init__(self, stage: str) -> None:
        self._stage = stage

    async def before(self, stage_name: str, ctx: PipelineContext) -> InterceptorResult | None:
        return InterceptorResult(stage_ran=False, result={"by": "me"}) if stage_name == self._stage else None

    async def after(self, stage_name: str, result: StageResult, ctx: PipelineContext) -> None:
        """Nothing to do."""


def test_output_of_an_interceptor_is_not_recorded_as_the_stages(hf: Holdfast, log: Log) -> None:
    pipeline = chain(log, "plan", "act", "end")
    results = run(durable(pipeline, hf, "r"), interceptors=[Answer("act")])
    assert results["act"].data == {"by": "me"}
    assert log.taken() == ["plan", "end"]
    head = hf.history("r").head
    assert (head.status, head.note) == ("paused", "ended without a record of act")
    run(durable(pipeline, hf, "r"))
    assert log.taken() == ["act", "end"]
    assert hf.get("r").status == "completed"
