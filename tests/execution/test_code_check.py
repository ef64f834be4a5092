"""`hf.check`: which unfinished runs the code of this process cannot resume."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest
import step_fixtures
from step_flows import control

import holdfast
from holdfast import Holdfast, step, workflow
from holdfast.store.protocol import iter_runs

fresh, hf = step_fixtures.fresh, step_fixtures.hf


def named(name: str) -> Any:
    @step(name=f"check-{name}")
    def run(*args: Any) -> str:
        control.did(name)
        return name

    return run


a, b, x = [named(name) for name in "abx"]


def define(*steps: Any, name: str = "checked") -> Any:
    @workflow(name=name)
    def checked() -> Any:
        found = [each() for each in steps]
        holdfast.wait_for("go")
        b("after")
        return found

    return checked


def stored(hf: Holdfast) -> Any:
    """Return everything that a write would change."""
    runs = hf._store.runs(limit=1000)
    return [(run.id, run.revision, run.status, hf.get(run.id).events()) for run in runs]


def test_check_finds_runs_that_would_diverge(hf: Holdfast) -> None:
    for number in range(3):
        hf.run(define(a, b), run_id=f"run-{number}")
    hf.run(define(a, name="other"), run_id="fine")
    assert hf.check() == []
    define(a, x)
    control.ran.clear()
    before = stored(hf)
    found = hf.check()
    assert sorted(problem.run for problem in found) == ["run-0", "run-1", "run-2"]
    first = found[0]
    assert (first.kind, first.workflow, first.status) == ("diverges", "checked", "suspended")
    assert (first.address, first.version, first.called) == ("check-b", 3, "check-x")
    assert hf.check("run-1")[0].run == "run-1"
    assert hf.check("fine") == []
    assert control.ran == []
    assert stored(hf) == before
    define(a, b)
    assert hf.check() == []
    assert hf.signal("run-0", "go").result == ["a", "b"]


def test_check_finds_runs_whose_workflow_is_missing_or_raises(hf: Holdfast) -> None:
    with holdfast.testing.isolated_definitions():
        hf.run(define(a), run_id="missing")
        hf.run(define(a, name="raising"), run_id="raises")

    @workflow(name="raising")
    def raising() -> None:
        a()
        raise KeyError("gone")

    kinds = {problem.run: (problem.kind, problem.message) for problem in hf.check()}
    assert kinds["missing"][0] == "missing"
    assert "'checked'" in kinds["missing"][1]
    assert kinds["raises"] == ("fails", "KeyError: 'gone'")


def test_check_looks_at_all_branches(hf: Holdfast) -> None:
    @step(name="check-async")
    async def one(*args: Any) -> None:
        control.did("async")

    def branches(second: Any) -> Any:
        async def work(done: asyncio.Barrier, *steps: Any) -> None:
            for each in steps:
                await each()
            # The first wait for an event suspends the run: no branch waits before all have run their steps.
            await done.wait()
            await holdfast.wait_for("go")

        @workflow(name="branches")
        async def branches() -> None:
            done = asyncio.Barrier(2)
            await asyncio.gather(work(done, one), work(done, one, *second))

        return branches

    hf.run(branches([one]), run_id="run")
    assert hf.check() == []
    branches([])
    (problem,) = hf.check()
    assert problem.address == "[2]/check-async#2"


def test_check_pages_through_all_runs(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.execution.runner.iter_runs", partial(iter_runs, page=3))
    for number in range(10):
        hf.run(define(a), run_id=f"run-{number}")
    define(x)
    assert len(hf.check()) == 10


def test_check_refuses_an_unknown_run(hf: Holdfast) -> None:
    with pytest.raises(holdfast.NotFound):
        hf.check("nowhere")
