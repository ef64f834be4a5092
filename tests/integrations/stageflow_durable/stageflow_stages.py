"""Stages that log their executions, and functions that run them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from stageflow.api import Pipeline, StageContext, StageKind, StageOutput
from stageflow.pipeline.dag import UnifiedPipelineCancelled, UnifiedStageExecutionError
from stageflow.pipeline.results import PipelineResults
from stageflow.stages.context import PipelineContext

from holdfast import History

Stage = Callable[[StageContext], Awaitable[Any]]


class Log(list[str]):
    """The stages that ran, in order."""

    def taken(self) -> list[str]:
        found = list(self)
        self.clear()
        return found


def stage(
    log: Log, name: str, gives: Any = None, *, also: Callable[[StageContext], Any] | None = None
) -> Stage:
    """A stage that returns a value, the result of a function, or raises an exception."""

    async def run(ctx: StageContext) -> Any:
        log.append(name)
        if also is not None:
            found = also(ctx)
            if asyncio.iscoroutine(found):
                found = await found
            if found is not None:
                return found
        value = gives() if callable(gives) else gives
        if isinstance(value, BaseException):
            raise value
        return {"from": name} if value is None else value

    return run


def chain(log: Log, *names: str, name: str = "chain", **gives: Any) -> Pipeline:
    """Stages one after another."""
    pipeline, before = Pipeline(name=name), None
    for each in names:
        after = () if before is None else (before,)
        pipeline = pipeline.with_stage(
            each, stage(log, each, gives.get(each)), StageKind.WORK, dependencies=after
        )
        before = each
    return pipeline


def run(pipeline: Pipeline, *args: Any, **kwargs: Any) -> PipelineResults:
    return asyncio.run(pipeline.run(*args, **kwargs))


def fails(pipeline: Pipeline, *args: Any, **kwargs: Any) -> UnifiedStageExecutionError:
    with pytest.raises(UnifiedStageExecutionError) as caught:
        run(pipeline, *args, **kwargs)
    return caught.value


def cancels(pipeline: Pipeline, *args: Any, **kwargs: Any) -> UnifiedPipelineCancelled:
    with pytest.raises(UnifiedPipelineCancelled) as caught:
        run(pipeline, *args, **kwargs)
    return caught.value


def steps(log: History) -> list[str]:
    """The step or note of each version, oldest first."""
    return [version.step or version.note or version.kind for version in reversed(log.versions())]


def hurried(name: str, milliseconds: int, **given: Any) -> PipelineContext:
    """A context with a short timeout for one stage, and the default of Stageflow for the others."""
    context = PipelineContext.create(**given)

    def hurry(stage: str, *_: Any) -> None:
        context.data["_timeout_ms"] = milliseconds if stage == name else 30_000

    context.add_before_stage_start_hook(hurry)
    return context


def ok(**data: Any) -> StageOutput:
    return StageOutput.ok(data)
