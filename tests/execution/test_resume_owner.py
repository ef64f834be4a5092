"""One owner: at most one execution advances a run, and one that was taken over cannot commit."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import step_fixtures
import step_flows as f
from step_fixtures import ALL
from step_flows import control, effects_in, kill, start_stuck

import holdfast
from holdfast import AlreadyRunning, Holdfast, step, workflow

fresh, hf = step_fixtures.fresh, step_fixtures.hf


@pytest.mark.parametrize("where", ["thread", "engine"])
@pytest.mark.parametrize("call", ["resume", "rollback"])
def test_resume_of_a_running_run_is_refused(tmp_path: Path, where: str, call: str) -> None:
    @step
    def hold() -> str:
        control.entered.set()
        assert control.gate.wait(f.DEADLINE)
        return "held"

    @workflow(name="holding")
    def holding() -> str:
        return hold()

    with holdfast.open(tmp_path / "runs.db") as hf, holdfast.open(tmp_path / "runs.db") as second:
        thread = threading.Thread(target=lambda: hf.run(holding, run_id="held"))
        thread.start()
        try:
            assert control.entered.wait(f.DEADLINE)
            other = hf if where == "thread" else second
            with pytest.raises(AlreadyRunning, match="held"):
                other.resume("held") if call == "resume" else other.rollback("held", to=1)
            assert other.get("held").status == "running"
        finally:
            control.gate.set()
            thread.join()
        assert second.get("held").result == "held"
        assert second.get("held").head.number == 3


def test_resume_by_two_threads_executes_once(hf: Holdfast) -> None:
    for turn in range(10):
        control.reset()
        control.failing["finish"] = 1
        run = hf.run(f.book, "kelp", run_id=f"race-{turn}", raises=False)
        assert run.status == "failed"
        barrier = threading.Barrier(4)
        refused: list[BaseException] = []

        def resume(
            run_id: str = run.id, barrier: threading.Barrier = barrier, refused: Any = refused
        ) -> None:
            barrier.wait()
            try:
                hf.resume(run_id)
            except AlreadyRunning as error:
                refused.append(error)

        threads = [threading.Thread(target=resume) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert control.ran == [*ALL, "finish"]
        assert run.result == "A+B"
        assert [version.number for version in run.history().versions()] == [6, 5, 4, 3, 2, 1]


def test_execution_with_an_expired_lease_cannot_commit(tmp_path: Path) -> None:
    @step(name="slow_step")
    def slow_step() -> str:
        control.ran.append("slow")
        if len(control.ran) == 1:
            control.entered.set()
            assert control.gate.wait(f.DEADLINE)
            holdfast.state()["by"] = "the first"
            return "the first"
        holdfast.state()["by"] = "the second"
        return "the second"

    @workflow(name="fenced")
    def fenced() -> str:
        return slow_step()

    lost: list[BaseException] = []

    def first(hf: Holdfast) -> None:
        try:
            hf.run(fenced, run_id="fenced")
        except holdfast.LeaseLost as error:
            lost.append(error)

    import time

    late = holdfast.open(tmp_path / "runs.db", clock=lambda: time.time() + 3600)
    with holdfast.open(tmp_path / "runs.db") as hf, late:
        thread = threading.Thread(target=first, args=(hf,))
        thread.start()
        assert control.entered.wait(f.DEADLINE)
        assert late.resume("fenced").result == "the second"
        control.gate.set()
        thread.join()
        assert len(lost) == 1
        assert "fenced" in str(lost[0])
        run = hf.get("fenced")
        assert run.result == "the second"
        assert run.state == {"by": "the second"}
        assert len(run.history().versions()) == 3


@pytest.mark.parametrize("flow", ["killed", "akilled"])
def test_resume_is_refused_until_the_owner_process_is_killed(tmp_path: Path, flow: str) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    process = start_stuck(db, flow, effects, "k-1")
    try:
        with holdfast.open(db) as hf:
            with pytest.raises(AlreadyRunning):
                hf.resume("k-1")
            kill(process)
            run = hf.resume("k-1")
            assert run.result == ["A", "free", "B"]
            assert control.ran == ["stuck", "write-b"]
            assert run.state == {"texts": ["a", "b"]}
    finally:
        kill(process)
    assert effects_in(effects) == ["write-a", "stuck"]
