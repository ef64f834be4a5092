"""Rollbacks that a compensation, an operator or a death stops half way, and how they go on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import compensation_flows
import pytest
from compensation_flows import BROKEN, CALLS, kinds, undo_place, undo_shop

import holdfast
from holdfast import CompensationFailed, Holdfast, InvalidCall, Limits, NotFound, step, workflow
from holdfast.execution import inbox
from holdfast.workflow import definition

clean, hf = compensation_flows.clean, compensation_flows.hf


def test_failing_compensation_stops_the_rollback(hf: Holdfast) -> None:
    run = hf.run(undo_shop)
    BROKEN.add("b")
    CALLS.clear()
    with pytest.raises(CompensationFailed, match=r"undo_place#2.*cannot undo b"):
        hf.rollback(run.id, to=1, reason="wrong")
    assert run.status == "failed"
    assert isinstance(run.error, CompensationFailed)
    assert "resume the run, which finishes the rollback and runs the workflow again from there" in str(
        run.error
    )
    assert "roll it back again with resume=False, which only finishes the rollback" in str(run.error)
    with pytest.raises(CompensationFailed):
        _ = run.result
    assert CALLS == [("undo", "order-c", "c")]
    assert "run.failed" in kinds(run)
    assert "run.rolled_back" not in kinds(run)
    # Still broken: again, and nothing twice.
    with pytest.raises(CompensationFailed):
        hf.resume(run.id)
    with pytest.raises(CompensationFailed):
        hf.rollback(run.id, to=1, reason="still wrong")
    assert CALLS == [("undo", "order-c", "c")]
    BROKEN.clear()
    assert hf.resume(run.id).result == ["order-a", "order-b", "x", "order-c"]
    assert CALLS[:3] == [("undo", "order-c", "c"), ("undo", "order-b", "b"), ("undo", "order-a", "a")]
    assert CALLS[3:] == [("do", "a"), ("do", "b"), ("plain", "x"), ("do", "c")]
    timeline = run.history().timelines()[-1]
    assert (timeline.parent, timeline.reason) == (1, "still wrong")


def test_resume_with_limits_continues_a_run_whose_rollback_was_finished_meanwhile(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = hf.run(undo_shop)
    BROKEN.add("b")
    with pytest.raises(CompensationFailed):
        hf.rollback(run.id, to=1)
    BROKEN.clear()
    write_limits = inbox.limit

    def limit_later(*args: Any) -> Any:
        hf.rollback(run.id, to=1, resume=False)
        return write_limits(*args)

    monkeypatch.setattr(inbox, "limit", limit_later)
    assert hf.resume(run.id, limits=Limits(steps=100)).result == ["order-a", "order-b", "x", "order-c"]
    assert [line.parent for line in run.history().timelines()] == [None, 1]


def test_unfinished_rollback_is_finished_by_another_rollback(hf: Holdfast) -> None:
    run = hf.run(undo_shop)
    BROKEN.add("b")
    with pytest.raises(CompensationFailed):
        hf.rollback(run.id, to=1)
    BROKEN.clear()
    CALLS.clear()
    hf.rollback(run.id, to=1, resume=False)
    assert CALLS == [("undo", "order-b", "b"), ("undo", "order-a", "a")]
    assert run.status == "paused"
    assert run.error is None
    assert run.head.number == 1


def test_rollback_to_a_compensated_version_is_refused(hf: Holdfast) -> None:
    run = hf.run(undo_shop)
    BROKEN.add("b")
    with pytest.raises(CompensationFailed):
        hf.rollback(run.id, to=1)
    CALLS.clear()
    # "c" was undone: a head that has it would not be true.
    with pytest.raises(InvalidCall, match="undone"):
        hf.rollback(run.id, to=5)
    assert run.status == "failed"
    # A target between is fine: it keeps nothing that was undone.
    BROKEN.clear()
    hf.rollback(run.id, to=2, resume=False)
    assert CALLS == [("undo", "order-b", "b")]
    assert run.head.number == 2


def test_rollback_with_an_unknown_compensation_is_refused_first(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @step(name="undo_unknown", compensate=lambda: CALLS.append("unknown"))
    def act() -> str:
        return "done"

    @workflow(name="undo_forgotten")
    def whole() -> Any:
        return [act(), undo_place("a")]

    run = hf.run(whole)
    was = hf._store.run(run.id)
    CALLS.clear()
    with monkeypatch.context() as patch:
        patch.delitem(definition._steps, "undo_unknown")
        with pytest.raises(NotFound, match=r"undo_unknown.*import the module"):
            hf.rollback(run.id, to=1)
    assert CALLS == []
    assert hf._store.run(run.id) == was
    assert run.status == "completed"
    hf.rollback(run.id, to=1, resume=False)
    assert CALLS == [("undo", "order-a", "a"), "unknown"]


def test_stopped_rollback_is_finished_later(hf: Holdfast) -> None:
    def undo(result: str) -> None:
        CALLS.append(result)
        if result == "second" and CALLS.count("second") == 1:
            hf.pause("r")

    @step(name="undo_stopped", compensate=undo)
    def act(name: str) -> str:
        return name

    @workflow(name="undo_stopping")
    def whole() -> Any:
        return [act("first"), act("second")]

    run = hf.run(whole, run_id="r")
    with pytest.raises(holdfast.HoldfastError):
        hf.rollback("r", to=1)
    assert run.status == "paused"
    assert CALLS == ["second"]
    hf.rollback("r", to=1, resume=False)
    assert CALLS == ["second", "first"]
    assert run.head.number == 1


PROGRAM = """
import json, os, signal, sys, time
import holdfast
from holdfast import step, workflow

file, do, hang = sys.argv[1:4]

def note(text):
    with open(file + ".effects", "a") as out:
        out.write(text + "\\n")

def undo(result, name):
    note(f"undo {name}")
    if name == hang:
        note("hangs")
        time.sleep(60)
    return name

@step(compensate=undo)
def act(name):
    note(f"do {name}")
    return name

@workflow
def whole():
    return [act("a"), act("b"), act("c")]

with holdfast.open(file, durability="fast") as hf:
    if do == "run":
        run = hf.run(whole, run_id="r")
    elif do == "rollback":
        run = hf.rollback("r", to=1)
    elif do == "resume":
        run = hf.resume("r")
    print(json.dumps([run.status, run.result]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("then", ["resume", "rollback"])
def test_killed_rollback_is_finished_later(tmp_path: Path, then: str) -> None:
    file = tmp_path / "runs.db"
    effects = Path(f"{file}.effects")

    def start(do: str, hang: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, str(file), do, hang]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(process: subprocess.Popen[str]) -> Any:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return json.loads(out)

    assert finish(start("run")) == ["completed", ["a", "b", "c"]]
    victim = start("rollback", "b")
    deadline = time.monotonic() + 30
    while "hangs" not in effects.read_text():
        assert time.monotonic() < deadline
        assert victim.poll() is None
        time.sleep(0.005)
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    with holdfast.open(file, durability="fast") as hf:
        run = hf.get("r")
        assert [version.result for version in run.history().versions(step="undo act")] == ["c"]
        assert run.head.number == 6
    assert finish(start(then)) == ["completed", ["a", "b", "c"]]
    # What was recorded is not done again; what was cut off is.
    assert effects.read_text().split("\n")[:-1] == [
        "do a", "do b", "do c", "undo c", "undo b", "hangs", "undo b", "undo a", "do a", "do b", "do c",
    ]  # fmt: skip
