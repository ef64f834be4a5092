"""Replay that validates a run against its record, or republishes its events, and changes nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import step_fixtures
import step_flows as f
from replay_flows import asking, diverging, given, layered
from step_flows import Broken, control

import holdfast
from database import Database
from holdfast import Holdfast, InvalidCall, step, workflow
from patience import until

fresh, hf = step_fixtures.fresh, step_fixtures.hf


# Validate


def _dump(path: Path) -> list[tuple[Any, ...]]:
    """All that a store holds."""
    with Database(path) as connection:
        return list(connection.dump())


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


def test_validate_reports_errors_that_differ(hf: Holdfast) -> None:
    control.value = Broken("old trouble")
    hf.run(measuring, run_id="r")
    assert hf.resume("r", mode="validate").differences == ()
    control.value = 5
    found = hf.resume("r", mode="validate").differences
    assert [(each.address, each.what) for each in found] == [("measured", "error")]


def test_validate_reports_another_error_than_the_recorded_one(hf: Holdfast) -> None:
    control.value = Broken("old trouble")
    hf.run(measuring, run_id="r")
    control.value = Broken("new trouble")
    found = hf.resume("r", mode="validate").differences
    assert [(each.address, each.what) for each in found] == [("measured", "error")]


def test_validate_reports_other_arguments_and_results(hf: Holdfast) -> None:
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


def test_validate_reports_steps_beyond_a_finished_record(hf: Holdfast) -> None:
    hf.run(growing, run_id="r")
    control.value = "more"
    control.ran.clear()
    found = hf.resume("r", mode="validate").differences
    assert control.ran == ["given-one"]
    assert found


def test_validate_reports_another_result_of_the_workflow(hf: Holdfast) -> None:
    hf.run(growing, run_id="r")
    control.value = "less"
    found = hf.resume("r", mode="validate").differences
    assert [(each.address, each.what) for each in found] == [("", "result")]


def test_validate_compares_nested_steps(hf: Holdfast) -> None:
    hf.run(layered, run_id="r")
    control.ran.clear()
    assert hf.resume("r", mode="validate").differences == ()
    assert control.ran == ["top-a", "sub-a1", "sub-a2", "top-b", "sub-b1", "sub-b2"]


def test_validate_of_a_failed_run_stops_where_the_record_ends(hf: Holdfast) -> None:
    control.failing["finish"] = 1
    hf.run(f.book, "kelp", run_id="r", raises=False)
    control.ran.clear()
    assert hf.resume("r", mode="validate").differences == ()
    assert control.ran == ["plan", "write-a", "write-b"]
    assert hf.get("r").status == "failed"


def test_validate_accepts_a_run_whose_own_code_failed(hf: Holdfast) -> None:
    @workflow(name="own_failure")
    def own_failure() -> None:
        f.write("a")
        raise Broken("own")

    hf.run(own_failure, run_id="r", raises=False)
    assert hf.resume("r", mode="validate").differences == ()


def test_validate_stops_where_a_run_waits(hf: Holdfast) -> None:
    hf.run(asking, run_id="r")
    assert hf.resume("r", mode="validate").differences == ()
    assert hf.get("r").status == "suspended"


def test_validate_compares_parallel_steps(hf: Holdfast) -> None:
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


def test_republish_publishes_recorded_steps_again(hf: Holdfast) -> None:
    control.failing["finish"] = 1
    run = hf.run(f.book, "kelp", run_id="r", raises=False)
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


def test_republish_of_a_completed_run_covers_nested_steps(hf: Holdfast) -> None:
    @step(name="inner")
    def inner(n: int) -> int:
        return n

    @step(name="outer")
    def outer() -> int:
        return inner(1) + inner(2)

    @workflow(name="nesting")
    def nesting() -> int:
        return outer() + inner(3)

    assert hf.run(nesting, run_id="r").result == 6
    mark = hf.events(limit=10_000)[-1].cursor
    assert hf.resume("r", mode="republish").status == "completed"
    found = [event for event in hf.events(after=mark, limit=10_000) if event.kind == "step.replayed"]
    recorded = [version for version in hf.history("r").versions() if version.kind == "step"][::-1]
    assert [(event.data["address"], event.version) for event in found] == [
        (version.address, version.number) for version in recorded
    ]
    assert {event.data["address"] for event in found} >= {"outer/inner", "outer", "inner"}
    assert [event.kind for event in hf.events(after=mark, limit=10_000)] == ["step.replayed"] * len(found)


def test_republish_reaches_subscribers_in_other_processes(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db") as hf:
        hf.run(f.book, "kelp", run_id="r")
    program = (
        "import holdfast, sys\n"
        "with holdfast.open(sys.argv[1]) as hf, hf.subscribe(kinds=['step.replayed']) as events:\n"
        "    print('listening', flush=True)\n"
        "    for count, event in enumerate(events, 1):\n"
        "        print(event.data['address'], flush=True)\n"
        "        if count == 4: break\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "runs.db")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "listening\n"
        with holdfast.open(tmp_path / "runs.db") as hf:
            hf.resume("r", mode="republish")
        assert other.stdout.read().split() == ["plan", "write", "write#2", "finish"]


def test_republish_of_a_cancelled_run_is_refused(hf: Holdfast) -> None:
    hf.run(asking, run_id="r")
    hf.cancel("r")
    mark = len(hf.events(limit=10_000))
    with pytest.raises(InvalidCall, match="cancelled"):
        hf.resume("r", mode="republish")
    assert len(hf.events(limit=10_000)) == mark


def test_resume_publishes_nothing_twice(hf: Holdfast) -> None:
    control.failing["finish"] = 1
    run = hf.run(f.book, "kelp", run_id="r", raises=False)
    heard: list[str] = []
    with hf.subscribe(lambda event: heard.append(event.kind), run_id="r"):
        hf.resume("r")
        until(lambda: "run.completed" in heard)
    assert heard.count("step.completed") == 1
    assert "step.replayed" not in heard
    assert [event.kind for event in run.events()].count("step.completed") == 4
