"""Replay that compares with the record, or tells of it again, and changes nothing."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import flows_steps as f
import pytest
import step_fixtures
from flows_steps import Broken, control
from replay_flows import asking, diverging, given, layered

import holdfast
from holdfast import Holdfast, step, workflow
from patience import until

fresh, hf = step_fixtures.fresh, step_fixtures.hf


# Validate


def _dump(path: Path) -> list[str]:
    """All that a store holds."""
    with sqlite3.connect(path) as connection:
        return list(connection.iterdump())


@step
def measured() -> Any:
    control.did("measured")
    if isinstance(control.value, Exception):
        raise control.value
    holdfast.state()["level"] = control.value
    return control.value


@workflow
def measuring() -> list[Any]:
    try:
        found = measured()
    except Broken as error:
        found = str(error)
    return [found, f.write("a")]


@workflow
async def ameasuring() -> list[Any]:
    try:
        found = measured()
    except Broken as error:
        found = str(error)
    return [found, await f.awrite("a")]


@pytest.mark.parametrize("flow", [measuring, ameasuring])
def test_validate_runs_the_steps_and_changes_nothing(tmp_path: Path, flow: Any) -> None:
    path = tmp_path / "runs.db"
    with holdfast.open(path) as hf:
        control.value = 5
        run = hf.run(flow, run_id="r")
        control.ran.clear()
        before = _dump(path)
        assert hf.resume("r", mode="validate").differences == ()
        assert control.ran == ["measured", "write-a"]
        control.value = 6
        found = hf.resume("r", mode="validate").differences
        assert [(each.address, each.what) for each in found] == [
            ("measured", "result"),
            ("measured", "state"),
        ]
        assert (found[0].recorded, found[0].now) == (5, 6)
        assert "measured" in str(found[0])
        control.value = Broken("now it fails")
        found = hf.resume("r", mode="validate").differences
        assert [(each.address, each.what) for each in found] == [("measured", "error")]
        assert "now it fails" in str(found[0])
        assert _dump(path) == before
        assert run.result == [5, "A"]
        assert run.status == "completed"


def test_validate_tells_of_errors_that_differ(hf: Holdfast) -> None:
    control.value = Broken("old trouble")
    hf.run(measuring, run_id="r")
    assert hf.resume("r", mode="validate").differences == ()
    control.value = 5
    found = hf.resume("r", mode="validate").differences
    assert [(each.address, each.what) for each in found] == [("measured", "error")]


def test_validate_tells_of_another_error_than_the_recorded_one(hf: Holdfast) -> None:
    control.value = Broken("old trouble")
    hf.run(measuring, run_id="r")
    control.value = Broken("new trouble")
    found = hf.resume("r", mode="validate").differences
    assert [(each.address, each.what) for each in found] == [("measured", "error")]


def test_validate_tells_of_other_arguments_and_another_result(hf: Holdfast) -> None:
    control.value = "old"
    hf.run(diverging, run_id="r")
    control.value = "new"
    found = hf.resume("r", mode="validate").differences
    assert [(each.address, each.what) for each in found] == [("given#2", "arguments"), ("given#2", "result")]
    assert hf.get("r").result == ["got same", "got old", "got last"]


@workflow
def growing() -> list[str]:
    found = [given("one")]
    if control.value == "more":
        found.append(given("two"))
    return found if control.value != "less" else []


def test_validate_tells_of_steps_beyond_a_finished_record(hf: Holdfast) -> None:
    hf.run(growing, run_id="r")
    control.value = "more"
    control.ran.clear()
    found = hf.resume("r", mode="validate").differences
    assert control.ran == ["given-one"]
    assert found


def test_validate_tells_of_another_result_of_the_workflow(hf: Holdfast) -> None:
    hf.run(growing, run_id="r")
    control.value = "less"
    found = hf.resume("r", mode="validate").differences
    assert [(each.address, each.what) for each in found] == [("", "result")]


def test_validate_of_nested_steps(hf: Holdfast) -> None:
    hf.run(layered, run_id="r")
    control.ran.clear()
    assert hf.resume("r", mode="validate").differences == ()
    assert control.ran == ["top-a", "sub-a1", "sub-a2", "top-b", "sub-b1", "sub-b2"]


def test_validate_of_a_failed_run_stops_where_the_record_ends(hf: Holdfast) -> None:
    control.failing["finish"] = 1
    hf.run(f.book, "kelp", run_id="r")
    control.ran.clear()
    assert hf.resume("r", mode="validate").differences == ()
    assert control.ran == ["plan", "write-a", "write-b"]
    assert hf.get("r").status == "failed"


def test_validate_of_a_run_whose_own_code_failed(hf: Holdfast) -> None:
    @workflow(name="own_failure")
    def own_failure() -> None:
        f.write("a")
        raise Broken("own")

    hf.run(own_failure, run_id="r")
    assert hf.resume("r", mode="validate").differences == ()


def test_validate_of_a_run_that_waits(hf: Holdfast) -> None:
    hf.run(asking, run_id="r")
    assert hf.resume("r", mode="validate").differences == ()
    assert hf.get("r").status == "suspended"


def test_validate_of_parallel_steps(hf: Holdfast) -> None:
    @step(name="adds")
    async def adds(n: int) -> int:
        state = holdfast.state()
        await asyncio.sleep(0)
        state["list"].append(n)
        return n

    @workflow(name="adding")
    async def adding() -> list[int]:
        return list(await asyncio.gather(*[adds(n) for n in range(5)]))

    hf.run(adding, run_id="r", state={"list": []})
    assert hf.resume("r", mode="validate").differences == ()


# Republish


def test_republish_tells_of_recorded_steps_again(hf: Holdfast) -> None:
    control.failing["finish"] = 1
    run = hf.run(f.book, "kelp", run_id="r")
    assert run.status == "failed"
    heard: list[tuple[str, Any]] = []
    with hf.subscribe(lambda event: heard.append((event.kind, event.data.get("address"))), run_id="r"):
        control.ran.clear()
        assert hf.resume("r", mode="republish").result == "A+B"
        until(lambda: any(kind == "run.completed" for kind, _ in heard))
    assert control.ran == ["finish"]
    replayed = [address for kind, address in heard if kind == "step.replayed"]
    assert replayed == ["plan", "write", "write#2"]
    assert [kind for kind, _ in heard].count("step.completed") == 1


def test_a_normal_resume_tells_nothing_twice(hf: Holdfast) -> None:
    control.failing["finish"] = 1
    run = hf.run(f.book, "kelp", run_id="r")
    heard: list[str] = []
    with hf.subscribe(lambda event: heard.append(event.kind), run_id="r"):
        hf.resume("r")
        until(lambda: "run.completed" in heard)
    assert heard.count("step.completed") == 1
    assert "step.replayed" not in heard
    assert [event.kind for event in run.events()].count("step.completed") == 4
