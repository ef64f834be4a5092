"""Invalid use: another pipeline, another task, another kind of run, invalid names, a closed store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from stageflow.api import Pipeline, StageContext, StageKind
from stageflow.context.conversation import Conversation
from stageflow.pipeline.spec import PipelineValidationError
from stageflow_stages import Log, chain, fails, ok, run, stage, steps

import holdfast
from holdfast import (
    CodeChanged,
    Holdfast,
    HoldfastError,
    IncompatibleFormat,
    InvalidCall,
    InvalidReference,
    ReplayDiverged,
    workflow,
)
from holdfast.integrations.stageflow import durable, results_of, snapshot_of

pytest_plugins = ["postgres_fixtures"]


@pytest.fixture
def memory() -> Holdfast:
    return holdfast.open(":memory:")


@workflow
def tiny() -> int:
    return 1


def test_durable_refuses_invalid_pipeline_store_and_id(memory: Holdfast, log: Log, tmp_path: Path) -> None:
    pipeline = chain(log, "plan")
    for wrong in (None, "pipeline", pipeline.build(), Pipeline):
        with pytest.raises(InvalidCall, match=r"stageflow\.Pipeline"):
            durable(wrong, memory, "r")  # type: ignore[arg-type]
    for store in (None, str(tmp_path), memory.history("r")):
        with pytest.raises(InvalidCall, match=r"holdfast\.open"):
            durable(pipeline, store, "r")  # type: ignore[arg-type]
    for run_id in (
        "",
        "../../etc/passwd",
        "a@1",
        "a~2",
        "x" * 300,
        "a\0b",
        "a\nb",
        " a",
        "\ud800",
        None,
        7,
        b"r",
    ):
        with pytest.raises(InvalidReference):
            durable(pipeline, memory, run_id)  # type: ignore[arg-type]
    with pytest.raises(InvalidCall, match="refuse"):
        durable(pipeline, memory, "r", changed="ignore")
    assert memory.runs() == []


def test_durable_raises_errors_of_stageflow(memory: Holdfast, log: Log) -> None:
    with pytest.raises(PipelineValidationError):
        run(durable(Pipeline(name="empty"), memory, "r"))
    lost = Pipeline(name="p").with_stage("a", stage(log, "a"), StageKind.WORK, after="missing")
    with pytest.raises(PipelineValidationError):
        run(durable(lost, memory, "r"))
    with pytest.raises(ValueError, match="not both"):
        run(durable(chain(log, "plan"), memory, "r"), object(), input_text="x")
    assert memory.runs() == []


def test_invalid_output_fails_its_stage(memory: Holdfast, log: Log) -> None:
    error = fails(durable(chain(log, "plan", "act", act=7), memory, "r"))
    assert "unsupported result type" in str(error)
    assert memory.get("r").status == "failed"
    assert list(results_of(memory.history("r").head)) == ["plan", "act"]


@pytest.mark.parametrize("name", ["x" * 600, "a\ud800"])
def test_invalid_stage_name_is_refused(memory: Holdfast, log: Log, name: str) -> None:
    with pytest.raises(InvalidCall, match="name of a stage"):
        run(durable(chain(log, name), memory, "r"))
    assert memory.runs() == []


def test_unusual_stage_names_are_recorded(memory: Holdfast, log: Log) -> None:
    names = ("a.b[0]", "", "../x", "__proto__", "stages", "ünï ☂", "'; DROP TABLE run; --")
    pipeline = chain(log, *names)
    first = run(durable(pipeline, memory, "r"))
    assert list(first) == list(names)
    assert run(durable(pipeline, memory, "r")) == first
    assert len(log.taken()) == len(names)


def test_stage_name_matching_redaction_is_refused(log: Log) -> None:
    with holdfast.open(":memory:", redact=["*token*", "sta?us"]) as hf:
        with pytest.raises(InvalidCall, match=r"get_token, status.*redact"):
            run(durable(chain(log, "get_token"), hf, "r"))
        assert hf.runs() == []
    with holdfast.open(":memory:", redact=["*token*"]) as hf:
        run(durable(chain(log, "plan", plan={"token": "s3cret"}), hf, "r"), metadata={"token": "s3cret"})
        assert "s3cret" not in str(hf.history("r").head.state)
        run(durable(chain(log, "plan"), hf, "r"), metadata={"token": "another"})


# Another pipeline


def test_changed_pipeline_is_refused(hf: Holdfast, log: Log) -> None:
    run(durable(chain(log, "plan", "act"), hf, "r"))
    log.clear()
    for other, words in (
        (chain(log, "plan", "act", name="other"), "'chain'; 'other' has another name"),
        (chain(log, "buy", "sell", name="shop"), r"other stages \(plan, act, buy, sell\)"),
        (chain(log, "plan", "act", "end"), r"\(end\)"),
        (chain(log, "plan"), r"\(act\)"),
        (chain(log, "act", "plan"), r"\(plan, act\)"),
    ):
        with pytest.raises(CodeChanged, match=words) as caught:
            run(durable(other, hf, "r"))
        assert "another run id" in str(caught.value)
    assert log.taken() == []
    assert hf.history("r").head.number == 3


def test_changed_pipeline_continues_if_allowed(hf: Holdfast, log: Log, caplog: Any) -> None:
    run(durable(chain(log, "plan", "act", "end"), hf, "r"))
    log.clear()
    changed = (
        chain(log, "plan")
        .with_stage("act", stage(log, "act"), StageKind.TRANSFORM, after="plan")
        .with_stage("end", stage(log, "end"), StageKind.WORK, after="act")
        .with_stage("new", stage(log, "new"), StageKind.WORK)
    )
    with caplog.at_level(logging.WARNING, "holdfast"):
        results = run(durable(changed, hf, "r", changed="warn"))
    assert "other stages (act, new)" in caplog.text
    # `act` is of another kind, and `end` comes after it.
    assert sorted(log.taken()) == ["act", "end", "new"]
    assert sorted(results) == ["act", "end", "new", "plan"]
    assert steps(hf.history("r"))[4] == "continued with pipeline chain"
    assert list(results_of(hf.history("r").at(5))) == ["plan"]
    assert run(durable(changed, hf, "r")) == results
    assert run(durable(changed, hf, "r", changed="allow")) == results
    assert log.taken() == []
    with pytest.raises(CodeChanged):
        run(durable(chain(log, "plan", "act", "end"), hf, "r"))
    assert hf.get("r").status == "completed"


def test_removed_stage_leaves_no_output(hf: Holdfast, log: Log) -> None:
    run(durable(chain(log, "plan", "act"), hf, "r"))
    run(durable(chain(log, "plan"), hf, "r", changed="allow"))
    assert list(results_of(hf.history("r").head)) == ["plan"]
    assert hf.get("r").status == "completed"


# Another task


def test_changed_context_is_refused(hf: Holdfast, log: Log) -> None:
    flow = durable(chain(log, "plan"), hf, "r")
    run(flow, input_text="kelp")
    given: dict[str, Any]
    for given, field in (
        ({"input_text": "rock"}, "input_text"),
        ({"input_text": None, "metadata": {"n": 1}}, "input_text, metadata"),
        ({"metadata": {"n": 1.0}}, "metadata"),
        ({"conversation": Conversation()}, "conversation"),
        ({"topology": "slow"}, "topology"),
        ({"execution_mode": "practice"}, "execution_mode"),
    ):
        with pytest.raises(ReplayDiverged, match=rf"with another {field}: use another run id"):
            run(flow, **{"input_text": "kelp", **given})
    run(flow, input_text="kelp")
    run(flow)
    assert log.taken() == ["plan"]
    assert hf.history("r").head.number == 2


# Another kind of run


def test_run_that_is_not_a_pipeline_is_refused(hf: Holdfast, log: Log) -> None:
    flow = chain(log, "plan")
    hf.run(tiny, run_id="workflow")
    hf.history("dict").commit({"stages": {}, "pipeline": "mine"})
    hf.history("list").commit([1, 2])
    for run_id in ("workflow", "dict", "list"):
        with pytest.raises(InvalidCall, match="another run id"):
            run(durable(flow, hf, run_id))
    for run_id in ("dict", "list"):
        with pytest.raises(InvalidCall, match="not a run of a Stageflow pipeline"):
            results_of(hf.history(run_id).head)
    assert log.taken() == []
    assert hf.history("dict").head.number == 1


#: Edits after which a state cannot be read.
_INVALID: list[Callable[[Any], Any]] = [
    lambda state: state["pipeline"].update(format=2),
    lambda state: state["pipeline"].pop("stages"),
    lambda state: state["pipeline"].update(given={}),
    lambda state: state.pop("snapshot"),
    lambda state: state.update(stages=[]),
    lambda state: state.update(snapshot=[1, 2]),
    lambda state: state.update(snapshot="text"),
    lambda state: state["snapshot"].pop("run_id") and state.update(snapshot=7),
]


def test_invalid_state_is_refused(memory: Holdfast, log: Log) -> None:
    for number, edit in enumerate(_INVALID):
        history = memory.history(f"r{number}")
        flow = durable(chain(log, "plan", "act"), memory, history.id)
        run(flow)
        log.clear()
        with history.edit() as state:
            edit(state)
        with pytest.raises(IncompatibleFormat, match="roll back"):
            run(flow)
        with pytest.raises(IncompatibleFormat):
            snapshot_of(history.head)
        assert log.taken() == []
        flow.rollback(to="act")
        run(flow)
        assert log.taken() == []


def test_invalid_output_in_the_state_is_refused(memory: Holdfast, log: Log) -> None:
    flow = durable(chain(log, "plan", "act"), memory, "r")
    run(flow)
    with memory.history("r").edit() as state:
        state["stages"]["plan"] = "spoiled"
        state["stages"]["act"] = {"status": "ok", "artifacts": 7}
    log.clear()
    run(flow)
    assert log.taken() == ["plan", "act"]
    with memory.history("r").edit() as state:
        del state["stages"]["plan"]["status"]
    with pytest.raises(IncompatibleFormat, match=r"stages\.plan"):
        results_of(memory.history("r").head)


# The store


def test_closed_store_is_refused(tmp_path: Path, log: Log) -> None:
    hf = holdfast.open(tmp_path / "runs.db")
    flow = durable(chain(log, "plan"), hf, "r")
    hf.close()
    with pytest.raises(HoldfastError):
        run(flow)
    assert log.taken() == []


def test_stage_error_is_raised_if_the_store_is_closed_meanwhile(tmp_path: Path, log: Log) -> None:
    """The stage's own error is raised, not the error while recording it."""
    file = tmp_path / "runs.db"
    hf = holdfast.open(file)

    def act(ctx: StageContext) -> None:
        if log.count("act") == 1:
            hf.close()
            raise ValueError("mine")

    pipeline = chain(log, "plan").with_stage("act", stage(log, "act", also=act), StageKind.WORK, after="plan")
    error = fails(durable(pipeline, hf, "r"))
    assert isinstance(error.original, ValueError)
    with holdfast.open(file) as again:
        assert list(results_of(again.history("r").head)) == ["plan"]
        run(durable(pipeline, again, "r"))
    assert log.taken() == ["plan", "act", "act"]


def test_too_deep_output_fails_its_stage(memory: Holdfast, log: Log) -> None:
    deep: Any = 1
    for _ in range(5_000):
        deep = [deep]
    flow = durable(chain(log, "plan", plan={"deep": deep}), memory, "r")
    assert isinstance(fails(flow).original, holdfast.UnsupportedValue)


def test_run_deleted_during_a_stage_raises(memory: Holdfast, log: Log) -> None:
    pipeline = chain(log, "plan").with_stage(
        "act", stage(log, "act", also=lambda ctx: memory.delete("r")), StageKind.WORK, after="plan"
    )
    error = fails(durable(pipeline, memory, "r"))
    assert isinstance(error.original, holdfast.NotFound)
    assert memory.runs() == []


def test_concurrent_runs_record_all_stages(hf: Holdfast) -> None:
    """Concurrent runs in one event loop: none sees the record of another."""
    import asyncio

    pipeline = Pipeline(name="p")
    for number in range(5):
        pipeline = pipeline.with_stage(
            f"s{number}", stage(Log(), "s", also=lambda ctx: ok(who=ctx.snapshot.input_text)), StageKind.WORK
        )

    async def main() -> list[Any]:
        return await asyncio.gather(
            *(durable(pipeline, hf, f"r{n}").run(input_text=f"{n}") for n in range(12))
        )

    for number, results in enumerate(asyncio.run(main())):
        assert {output.data["who"] for output in results.values()} == {str(number)}
        assert results_of(hf.history(f"r{number}").head) == results
