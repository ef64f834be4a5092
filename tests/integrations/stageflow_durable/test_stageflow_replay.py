"""A second execution replays completed stages, however the first one ended."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import Any, ClassVar
from uuid import uuid4

import pytest
from stageflow.api import Pipeline, StageContext, StageKind, StageOutput
from stageflow.core import StageArtifact, StageEvent, StageStatus
from stageflow.helpers import PipelineRunner
from stageflow.pipeline.subpipeline import SubpipelineSpawner
from stageflow.stages.context import PipelineContext
from stageflow_stages import Log, chain, fails, ok, run, stage, steps

from holdfast import Holdfast
from holdfast.integrations.stageflow import durable, results_of

pytest_plugins = ["postgres_fixtures"]


def test_completed_stages_are_not_executed_again(hf: Holdfast, log: Log) -> None:
    pipeline = chain(log, "plan", "search", "write")
    first = run(durable(pipeline, hf, "r"), input_text="kelp")
    assert log.taken() == ["plan", "search", "write"]
    second = run(durable(pipeline, hf, "r"), input_text="kelp")
    third = run(durable(pipeline, hf, "r"))
    assert log.taken() == []
    assert first == second == third
    assert list(first) == ["plan", "search", "write"]
    assert steps(hf.history("r")) == ["initial", "plan", "search", "write"]
    assert hf.get("r").status == "completed"


def test_replayed_output_equals_the_recorded_one(hf: Holdfast, log: Log) -> None:
    at = dt.datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=dt.timezone(dt.timedelta(hours=5, minutes=45)))
    whole = StageOutput(
        status=StageStatus.OK,
        data={"big": 2**200, "at": at, "nested": {"a": [1, 1.0, True, None, (1, {2})]}, "nan": -0.0},
        artifacts=[StageArtifact("audio", {"bytes": b"\0\xff"}, at), StageArtifact("empty", {})],
        events=[StageEvent("progress", {"half": 0.5}, at)],
        error="no error, but words",
        version="v7",
    )
    pipeline = Pipeline(name="p")
    gives: dict[str, Any] = {
        "whole": whole,
        "skipped": StageOutput.skip(reason="not today", data={"why": ["rain"]}),
        "empty": StageOutput.ok(),
        "dict": {},
        "payload": {"output": whole, "kind": StageKind.GUARD},
    }
    for name, value in gives.items():
        pipeline = pipeline.with_stage(name, stage(log, name, value), StageKind.WORK)
    pipeline = pipeline.with_stage("nothing", stage(log, "nothing", also=lambda ctx: ok()), StageKind.WORK)
    first = run(durable(pipeline, hf, "r"))
    assert len(log.taken()) == 6
    second = run(durable(pipeline, hf, "r"))
    assert log.taken() == []
    assert first == second
    for name, output in first.items():
        again = second[name]
        assert repr(again) == repr(output)
        assert type(again.data) is dict
    assert second["whole"].artifacts == whole.artifacts
    assert second["whole"].artifacts[0].timestamp.utcoffset() == at.utcoffset()
    assert second["skipped"].status is StageStatus.SKIP
    assert second["whole"].data["nested"]["a"][4][1] == {2}
    assert results_of(hf.history("r").head) == first


def test_stage_without_output_is_replayed(hf: Holdfast) -> None:
    ran = Log()

    async def nothing(ctx: StageContext) -> None:
        ran.append("nothing")

    pipeline = Pipeline(name="p").with_stage("nothing", nothing, StageKind.WORK)
    assert run(durable(pipeline, hf, "r")) == run(durable(pipeline, hf, "r"))
    assert ran == ["nothing"]


def test_results_before_a_failure_are_replayed(hf: Holdfast, log: Log) -> None:
    trouble: list[Any] = [ConnectionError("no answer")]
    pipeline = chain(log, "plan", "search", "write", search=lambda: trouble[0])
    error = fails(durable(pipeline, hf, "r"), input_text="kelp")
    assert isinstance(error.original, ConnectionError)
    assert log.taken() == ["plan", "search"]
    head = hf.history("r").head
    assert (head.status, head.error["message"]) == ("failed", "no answer")
    assert head.error["type"] == "ConnectionError"
    kept = results_of(head)
    assert kept["plan"].data == {"from": "plan"}
    assert (kept["search"].status, kept["search"].error) == (StageStatus.FAIL, "no answer")
    trouble[0] = {"found": 3}
    results = run(durable(pipeline, hf, "r"), input_text="kelp")
    assert log.taken() == ["search", "write"]
    assert results["search"].data == {"found": 3}
    assert steps(hf.history("r")) == ["initial", "plan", "stage search failed", "search", "write"]
    assert hf.get("r").status == "completed"


def test_failed_stage_is_executed_again(hf: Holdfast, log: Log) -> None:
    outcome = [StageOutput.fail("no connection", {"part": 1})]
    pipeline = chain(log, "plan", "act", act=lambda: outcome[0])
    fails(durable(pipeline, hf, "r"))
    kept = results_of(hf.history("r").head)["act"]
    assert (kept.status, kept.error, kept.data) == (StageStatus.FAIL, "no connection", {"part": 1})
    assert hf.history("r").head.error["message"] == "no connection"
    outcome[0] = ok(n=1)
    run(durable(pipeline, hf, "r"))
    assert log.taken() == ["plan", "act", "act"]


def test_output_that_requests_a_retry_is_not_replayed(hf: Holdfast, log: Log) -> None:
    outcome = [StageOutput.retry("later")]
    pipeline = chain(log, "plan", "act", "after", act=lambda: outcome[0])
    run(durable(pipeline, hf, "r"))
    assert log.taken() == ["plan", "act", "after"]
    assert hf.get("r").status == "failed"
    outcome[0] = ok(n=1)
    # The stage after it depends on its first output, so it runs again, too.
    results = run(durable(pipeline, hf, "r"))
    assert log.taken() == ["act", "after"]
    assert results["act"].data == {"n": 1}
    assert hf.get("r").status == "completed"


# Parallel stages


def fan(log: Log, width: int, behave: Any) -> Pipeline:
    pipeline = Pipeline(name="fan").with_stage("split", stage(log, "split"), StageKind.ROUTE)
    names = [f"part{number}" for number in range(width)]
    for name in names:
        pipeline = pipeline.with_stage(name, stage(log, name, also=behave), StageKind.WORK, after="split")
    return pipeline.with_stage("join", stage(log, "join", also=joined), StageKind.TRANSFORM, after=names)


def joined(ctx: StageContext) -> dict[str, Any]:
    return {"parts": sorted(output.data["part"] for output in ctx.inputs.prior_outputs.values())}


def test_completed_parallel_stages_are_replayed(hf: Holdfast, log: Log) -> None:
    """Three have ended when the fourth fails; the others are cancelled."""
    healthy = False

    async def behave(ctx: StageContext) -> dict[str, Any]:
        number = int(ctx.stage_name[4:])
        if not healthy and number == 3:
            while hf.history("r").head.steps < 4:
                await asyncio.sleep(0)
            raise ValueError("no")
        if not healthy and number > 3:
            await asyncio.Event().wait()
        return {"part": number}

    flow = durable(fan(log, 6, behave), hf, "r")
    fails(flow)
    assert sorted(log.taken()) == ["part0", "part1", "part2", "part3", "part4", "part5", "split"]
    kept = results_of(hf.history("r").head)
    assert {name: str(output.status) for name, output in kept.items()} == {
        "split": "ok",
        "part0": "ok",
        "part1": "ok",
        "part2": "ok",
        "part3": "fail",
    }
    healthy = True
    results = run(flow)
    assert sorted(log.taken()) == ["join", "part3", "part4", "part5"]
    assert results["join"].data == {"parts": [0, 1, 2, 3, 4, 5]}
    assert hf.history("r").verify().ok


def test_parallel_stages_are_all_recorded(hf: Holdfast, log: Log) -> None:
    flow = durable(fan(log, 40, lambda ctx: {"part": int(ctx.stage_name[4:])}), hf, "r")
    first = run(flow)
    assert first["join"].data == {"parts": list(range(40))}
    assert len(log.taken()) == 42
    assert run(flow) == first
    assert log.taken() == []
    assert [version.number for version in hf.history("r").versions()] == list(range(43, 0, -1))
    assert hf.history("r").head.status == "completed"


# Skips


@pytest.mark.parametrize("conditional", [True, False])
def test_conditional_stage_is_skipped_as_by_stageflow(hf: Holdfast, log: Log, conditional: bool) -> None:
    pipeline = (
        Pipeline(name="p")
        .with_stage("route", stage(log, "route", {"skip_reason": "nothing to do"}), StageKind.ROUTE)
        .with_stage("act", stage(log, "act"), StageKind.WORK, after="route", conditional=conditional)
        .with_stage("end", stage(log, "end"), StageKind.WORK, after="act")
    )
    plain = run(pipeline)
    expected = log.taken()
    first = run(durable(pipeline, hf, "r"))
    assert log.taken() == expected
    assert first["act"].data == plain["act"].data
    assert first["act"].status is plain["act"].status
    assert run(durable(pipeline, hf, "r")) == first
    assert log.taken() == []
    assert steps(hf.history("r")) == ["initial", "route", "act", "end"]


# Ways to run a pipeline


class Greet:
    name = "greet"
    kind = StageKind.TRANSFORM
    made: ClassVar[list[str]] = []

    def __init__(self, word: str = "hello") -> None:
        self.word = word
        Greet.made.append(word)

    async def execute(self, ctx: StageContext) -> dict[str, Any]:
        return {"text": f"{self.word}, {ctx.snapshot.input_text}"}


def test_stage_classes_and_instances_are_replayed_by_every_runner(hf: Holdfast) -> None:
    Greet.made.clear()
    pipeline = (
        Pipeline(name="p")
        .with_stage("class", Greet)
        .with_stage("config", Greet, config={"word": "hi"})
        .with_stage("instance", Greet("hey"))
    )
    flow = durable(pipeline, hf, "r")
    results = asyncio.run(flow.invoke("ada"))
    said = {name: output.data["text"] for name, output in results.items()}
    assert said == {"class": "hello, ada", "config": "hi, ada", "instance": "hey, ada"}
    assert Greet.made == ["hey", "hello", "hi"]
    graph = flow.build()
    assert asyncio.run(graph.run(PipelineContext.create(input_text="ada"))) == results
    assert asyncio.run(graph.run(PipelineContext.create(input_text="ada"))) == results
    root = PipelineContext.create(input_text="ada").derive_root_stage_context()
    with pytest.warns(DeprecationWarning, match="StageContext"):
        found = asyncio.run(graph.run(root))
    assert found == results
    outcome = asyncio.run(PipelineRunner(verbose=False).run(durable(pipeline, hf, "other"), input_text="ada"))
    assert outcome.success
    assert outcome.stages["config"] == {"text": "hi, ada"}
    assert len(Greet.made) == 5
    assert hf.get("other").status == "completed"


def test_added_and_composed_stages_are_recorded(hf: Holdfast, log: Log) -> None:
    flow = durable(chain(log, "plan"), hf, "r").with_stage(
        "act", stage(log, "act"), StageKind.WORK, after="plan"
    )
    flow = flow.compose(chain(log, "end", name="chain"))
    results = run(flow)
    assert run(flow) == results
    assert sorted(log.taken()) == ["act", "end", "plan"]
    assert "durable" in repr(flow).lower()


def test_nested_pipeline_has_its_own_run(hf: Holdfast, log: Log) -> None:
    trouble: list[Any] = [ValueError("no")]
    inner = chain(log, "find", "read", name="inner", read=lambda: trouble[0])

    async def research(ctx: StageContext) -> dict[str, Any]:
        parent = PipelineContext.from_snapshot(ctx.snapshot, event_sink=ctx.event_sink)
        child = await SubpipelineSpawner().spawn(
            "inner",
            parent,
            uuid4(),
            "research",
            durable(inner, hf, "r/inner").run,
        )
        if not child.success:
            raise RuntimeError(child.error)
        assert child.data is not None
        return {"inner": child.data, "read": child.data["read"].data}

    outer = chain(log, "plan").with_stage("research", research, StageKind.WORK, after="plan")
    fails(durable(outer, hf, "r"), input_text="kelp")
    assert log.taken() == ["plan", "find", "read"]
    trouble[0] = {"pages": 7}
    results = run(durable(outer, hf, "r"), input_text="kelp")
    assert log.taken() == ["read"]
    assert results["research"].data["read"] == {"pages": 7}
    again = run(durable(outer, hf, "r"))
    assert again == results
    assert type(again["research"].data["inner"]) is type(results["research"].data["inner"])
    assert log.taken() == []
    assert steps(hf.history("r/inner")) == ["initial", "find", "stage read failed", "read"]


def test_fork_is_independent(hf: Holdfast, log: Log) -> None:
    pipeline = chain(log, "plan", "search", "write")
    run(durable(pipeline, hf, "r"), input_text="kelp")
    log.clear()
    hf.fork("r@2", "other")
    run(durable(pipeline, hf, "other"))
    assert log.taken() == ["search", "write"]
    assert hf.history("r").head.number == 4
