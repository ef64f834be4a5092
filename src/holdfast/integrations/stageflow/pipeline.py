"""A pipeline with recorded stages: when it runs again, completed stages are replayed.

`build` wraps the stages, so that everything Stageflow does with a pipeline (run, invoke, runners, guard
retries, interceptors, subpipelines) uses the record. An interceptor alone would not see skips and artifacts.

Invariant: a replayed output was recorded for the same stage, of the same pipeline, for the same task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from typing import Any

from stageflow.core import StageContext, StageKind
from stageflow.observability.wide_events import WideEventEmitter
from stageflow.pipeline.dag import (
    UnifiedPipelineCancelled,
    UnifiedStageExecutionError,
    UnifiedStageGraph,
    UnifiedStageSpec,
)
from stageflow.pipeline.guard_retry import GuardRetryStrategy
from stageflow.pipeline.interceptors import BaseInterceptor
from stageflow.pipeline.pipeline import Pipeline, StageRunnerLike
from stageflow.pipeline.results import PipelineResults
from stageflow.stages.context import PipelineContext

from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall, NotFound
from holdfast.history.history import History
from holdfast.history.version import Version
from holdfast.integrations.histories import check_not_workflow, check_store
from holdfast.integrations.stageflow.execution import PipelineExecution, Plan
from holdfast.model.checks import check_text
from holdfast.model.names import MAX_STEP, check_run_id, short, suggest
from holdfast.off_loop import run_off_loop
from holdfast.workflow.definition import CHANGED

#: The execution of the current stage.
_current: ContextVar[PipelineExecution | None] = ContextVar("holdfast_stageflow_execution", default=None)


def durable(pipeline: Pipeline, hf: Holdfast, run_id: str, *, changed: str = "refuse") -> DurablePipeline:
    """Return the same pipeline, recorded as run `run_id`: each stage's output and the context's snapshot are
    a version.

    Run it like any pipeline. When it runs again, also after a crash and in another process, completed stages
    are not executed; failed ones are. `changed` is the reaction if the run was started with other stages:
    refuse, warn (and replay the stages that are the same) or allow.
    """
    if not isinstance(pipeline, Pipeline):
        raise InvalidCall(f"durable takes a stageflow.Pipeline, before build(), not {short(pipeline)}")
    if changed not in CHANGED:
        raise InvalidCall(f"changed is one of {', '.join(CHANGED)}, not {short(changed)}")
    return DurablePipeline(pipeline, check_store(hf), check_run_id(run_id), changed)


class DurablePipeline(Pipeline):
    """A pipeline and the run that records it. Created by `durable`."""

    def __init__(self, pipeline: Pipeline, hf: Holdfast, run_id: str, changed: str) -> None:
        super().__init__(name=pipeline.name, stages=dict(pipeline.stages))
        self._hf, self._run_id, self._changed = hf, run_id, changed

    @property
    def history(self) -> History:
        """Return the history of its run."""
        return self._hf.history(self._run_id)

    def rollback(
        self,
        *,
        to: str | None = None,
        before: str | None = None,
        reason: str | None = None,
        actor: str | None = None,
    ) -> Version:
        """Roll the run back to the end of a stage (`to`), or to before its first execution (`before`), on a
        new timeline. Nothing is deleted; run the pipeline again to continue from there."""
        name = to if before is None else before
        if (to is None) == (before is None) or not isinstance(name, str):
            raise InvalidCall(
                "rollback takes the name of a stage: to='plan', or before='plan' to run that again, too"
            )
        history = self.history
        line = [version for version in history.ancestors() if version.step is not None]
        found = [version for version in line if version.step == name]
        if not found:
            done = dict.fromkeys(version.step or "" for version in reversed(line))
            hint = suggest(name, done) or (f"; it has {', '.join(done)}"[:1000] if done else "")
            raise NotFound(
                f"run {history.id!r} has not completed a stage {short(name)}{hint}",
                run=history.id,
                stage=name,
            )
        target = found[0].number if before is None else found[-1].parent
        if target is None:
            raise NotFound(
                f"there is nothing before stage {name!r} of run {history.id!r}", run=history.id, stage=name
            )
        return history.rollback(target, reason=reason, actor=actor)

    def build(
        self,
        *,
        interceptors: list[BaseInterceptor] | None = None,
        guard_retry_strategy: GuardRetryStrategy | None = None,
        emit_stage_wide_events: bool = False,
        emit_pipeline_wide_event: bool = False,
        wide_event_emitter: WideEventEmitter | None = None,
    ) -> Any:
        """Return the graph that executes the pipeline."""
        for name in self.stages:
            check_text("the name of a stage", name, MAX_STEP)
        specs: Any = Pipeline(name=self.name, stages=self.stages).build().stage_specs
        stages = {
            spec.name: {
                "kind": None if spec.kind is None else str(spec.kind),
                "after": sorted(set(spec.dependencies)),
                "conditional": bool(spec.conditional),
            }
            for spec in specs
        }
        plan = Plan(self.name, stages, self._changed)
        return _DurableGraph(
            [_recorded(spec, plan) for spec in specs],
            self._hf,
            self._run_id,
            plan,
            pipeline_name=self.name,
            interceptors=interceptors,
            guard_retry_strategy=guard_retry_strategy,
            wide_event_emitter=wide_event_emitter,
            emit_stage_wide_events=emit_stage_wide_events,
            emit_pipeline_wide_event=emit_pipeline_wide_event,
        )

    def with_stage(
        self,
        name: str,
        runner: StageRunnerLike,
        kind: StageKind | str | None = None,
        dependencies: tuple[str, ...] | list[str] | None = None,
        *,
        after: str | Sequence[str] | None = None,
        conditional: bool = False,
        config: dict[str, Any] | None = None,
    ) -> DurablePipeline:
        """Return the pipeline with one more stage, also recorded."""
        more = super().with_stage(
            name, runner, kind, dependencies, after=after, conditional=conditional, config=config
        )
        return self._again(more)

    def compose(self, other: Pipeline) -> DurablePipeline:
        """Return the pipeline with the stages of another one, also recorded."""
        return self._again(super().compose(other))

    def _again(self, pipeline: Pipeline) -> DurablePipeline:
        return DurablePipeline(pipeline, self._hf, self._run_id, self._changed)

    def __repr__(self) -> str:
        return f"<DurablePipeline {self.name!r} as run {self._run_id!r}>"


class _DurableGraph(UnifiedStageGraph):
    """Graph that executes or replays the stages of a durable pipeline."""

    def __init__(
        self,
        specs: Sequence[UnifiedStageSpec],
        hf: Holdfast,
        run_id: str,
        plan: Plan,
        **options: Any,
    ) -> None:
        self._hf, self._run_id, self._plan = hf, run_id, plan
        super().__init__(specs, **options)

    async def run(self, ctx: StageContext | PipelineContext) -> PipelineResults:
        given = ctx.to_snapshot() if isinstance(ctx, PipelineContext) else ctx.snapshot
        await run_off_loop(check_not_workflow, self._hf, self._run_id)
        execution = PipelineExecution(self._hf.history(self._run_id), self._plan, ctx.try_emit_event)
        await execution.open(given)
        token = _current.set(execution)
        try:
            results = await super().run(ctx)
            await execution.record_end()
            return execution.restore_durations(results)
        except UnifiedPipelineCancelled as error:
            await execution.record_cancellation(error.reason)
            execution.restore_durations(error.results)
            raise
        except UnifiedStageExecutionError as error:
            await execution.record_failure(error.stage, error.original)
            raise
        except asyncio.CancelledError:
            await execution.stop()
            raise
        except Exception as error:
            await execution.record_failure(None, error)
            raise
        finally:
            execution.close()
            # A coroutine that is dropped halfway is closed in another context.
            with suppress(ValueError):
                _current.reset(token)


def _recorded(spec: UnifiedStageSpec, plan: Plan) -> UnifiedStageSpec:
    """Return a stage that runs through the current execution, which also decides whether a conditional stage is
    skipped: Stageflow would skip it without calling the runner."""
    run: Callable[[StageContext], Awaitable[Any]] = spec.runner

    async def runner(ctx: StageContext) -> Any:
        execution = _current.get()
        if execution is None or execution.plan is not plan:
            # The execution of another pipeline: this one is nested in a stage of it.
            raise InvalidCall(
                f"stage {spec.name!r} of the durable pipeline {plan.name!r} was called outside of its run, which would "
                "record it: run the pipeline (`await flow.run(…)` or `await flow.build().run(ctx)`); to call one stage "
                "without a record, use the function or class that you passed to with_stage",
                stage=spec.name,
                pipeline=plan.name,
            )
        return await execution.run_stage(spec.name, run, ctx)

    return UnifiedStageSpec(
        name=spec.name, runner=runner, kind=spec.kind, dependencies=spec.dependencies, conditional=False
    )
