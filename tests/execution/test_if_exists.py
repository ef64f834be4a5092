"""A second `run` with an id that exists: an error, the same run resumed, or the run as it is."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import store_fixtures

import holdfast
from holdfast import AlreadyExists, AlreadyRunning, Holdfast, InvalidCall, RunMismatch, step, workflow
from patience import until

pytest_plugins = ["postgres_fixtures"]
hf, place = store_fixtures.hf, store_fixtures.place

RAN: list[Any] = []
BROKEN: set[str] = set()
GATE = threading.Event()
INSIDE = threading.Event()


@step(name="exists_work")
def work(topic: str) -> str:
    RAN.append(topic)
    return topic.upper()


@step(name="exists_end")
def end(found: str) -> str:
    if "end" in BROKEN:
        raise ConnectionError("down")
    return found


@workflow(name="exists_flow")
def flow(topic: str, *, depth: int = 1, api_key: str = "") -> str:
    return end(work(topic))


@workflow(name="exists_aflow")
async def aflow(topic: str, *, depth: int = 1, api_key: str = "") -> str:
    return end(work(topic))


@workflow(name="exists_other")
def other(topic: str) -> str:
    return topic


@workflow(name="exists_asking")
def asking(topic: str) -> str:
    return str(holdfast.ask("Which?"))


@step(name="exists_slow")
def slow() -> None:
    RAN.append("slow")
    INSIDE.set()
    GATE.wait(30)


@workflow(name="exists_slow_flow")
def slow_flow() -> str:
    slow()
    return "slow"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    RAN.clear()
    BROKEN.clear()
    GATE.clear()
    INSIDE.clear()
    yield
    GATE.set()


BOTH = pytest.mark.parametrize("which", [flow, aflow], ids=["def", "async"])


def test_if_exists_error_is_the_default_and_names_the_choices(hf: Holdfast) -> None:
    hf.run(flow, "kelp", run_id="r")
    with pytest.raises(AlreadyExists, match=r"if_exists='resume'.*if_exists='return'.*another run_id"):
        hf.run(flow, "kelp", run_id="r")
    with pytest.raises(InvalidCall, match="error, resume, return"):
        hf.run(flow, "kelp", run_id="r", if_exists="ignore")


@BOTH
def test_if_exists_resume_starts_resumes_or_returns_the_run(hf: Holdfast, which: Any) -> None:
    BROKEN.add("end")
    for _ in range(2):
        with pytest.raises(ConnectionError):
            hf.run(which, "kelp", run_id="r", if_exists="resume")
    assert RAN == ["kelp"]
    BROKEN.clear()
    # The same call, written otherwise.
    assert asyncio.run(hf.arun(which, topic="kelp", depth=1, run_id="r", if_exists="resume")).result == "KELP"
    assert hf.run(which, "kelp", run_id="r", if_exists="resume").result == "KELP"
    assert RAN == ["kelp"]


def test_if_exists_resume_refuses_another_call(hf: Holdfast) -> None:
    hf.run(flow, "kelp", run_id="r", state={"n": 1})
    cases: list[tuple[Any, list[Any], dict[str, Any], str]] = [
        (other, ["kelp"], {}, "'exists_flow', not of 'exists_other'"),
        (flow, ["rock"], {}, "other values of topic"),
        (flow, ["kelp"], {"depth": 2}, "other values of depth"),
        (flow, ["kelp"], {"state": {"n": 2}}, "other values of state"),
        (flow, [object()], {}, "other values of topic"),
        (other, ["kelp"], {"if_exists": "return"}, "not of 'exists_other'"),
    ]
    for which, args, more, message in cases:
        with pytest.raises(RunMismatch, match=message):
            hf.run(which, *args, run_id="r", **{"if_exists": "resume", **more})
    hf.history("hand").commit({"n": 1})
    with pytest.raises(RunMismatch, match="manual run"):
        hf.run(flow, "kelp", run_id="hand", if_exists="resume")
    assert hf.run(flow, "kelp", run_id="r", state={"n": 1}, if_exists="resume").result == "KELP"
    assert RAN == ["kelp"]


def test_if_exists_resume_refuses_arguments_that_cannot_be_compared(hf: Holdfast) -> None:
    def define(function: Any) -> Any:
        function.__qualname__ = function.__name__ = "exists_changing"
        return workflow(name="exists_changing")(function)

    def before(topic: str) -> str:
        return topic

    def after(topic: str, depth: int) -> str:
        return topic * depth

    hf.run(define(before), "kelp", run_id="r")
    with pytest.raises(RunMismatch, match="cannot be compared"):
        hf.run(define(after), "kelp", 2, run_id="r", if_exists="resume")


def test_if_exists_resume_does_not_compare_redacted_arguments(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "r.db", redact=["api_key"]) as hf:
        hf.run(flow, "kelp", api_key="one", run_id="r")
        assert hf.run(flow, "kelp", api_key="two", run_id="r", if_exists="resume").result == "KELP"
        with pytest.raises(RunMismatch, match="topic"):
            hf.run(flow, "rock", api_key="one", run_id="r", if_exists="resume")


def test_if_exists_resume_compares_a_fork_with_the_call_of_its_origin(hf: Holdfast) -> None:
    hf.run(flow, "kelp", run_id="r")
    hf.fork("r@2", "forked", state={"n": 5})
    with pytest.raises(RunMismatch, match="topic"):
        hf.run(flow, "rock", run_id="forked", if_exists="resume")
    BROKEN.add("end")
    hf.resume("forked", raises=False)
    BROKEN.clear()
    assert hf.run(flow, "kelp", run_id="forked", state={"n": 1}, if_exists="resume").result == "KELP"
    assert RAN == ["kelp"]


def test_if_exists_return_returns_the_run_unchanged(hf: Holdfast) -> None:
    BROKEN.add("end")
    assert hf.run(flow, "kelp", run_id="r", if_exists="return", raises=False).status == "failed"
    BROKEN.clear()
    run = hf.run(flow, "other arguments", run_id="r", if_exists="return")
    assert (run.id, run.status, RAN) == ("r", "failed", ["kelp"])


def test_if_exists_resume_leaves_paused_and_stalled_runs(hf: Holdfast) -> None:
    hf.run(asking, "kelp", run_id="r")
    assert hf.run(asking, "kelp", run_id="r", if_exists="resume").status == "suspended"
    hf.pause("r")
    assert hf.run(asking, "kelp", run_id="r", if_exists="resume").status == "paused"
    hf.cancel("r")
    assert hf.run(asking, "kelp", run_id="r", if_exists="resume").status == "cancelled"


def test_if_exists_refuses_or_returns_a_running_run(hf: Holdfast) -> None:
    first = threading.Thread(target=lambda: hf.run(slow_flow, run_id="r", if_exists="resume"))
    first.start()
    assert INSIDE.wait(30)
    with pytest.raises(AlreadyRunning):
        hf.run(slow_flow, run_id="r", if_exists="resume")
    assert hf.run(slow_flow, run_id="r", if_exists="return").status == "running"
    GATE.set()
    first.join(30)
    assert hf.run(slow_flow, run_id="r", if_exists="resume").result == "slow"
    assert RAN == ["slow"]


def test_if_exists_lets_one_of_many_threads_execute(hf: Holdfast) -> None:
    outcomes: list[Any] = []

    def call() -> None:
        try:
            outcomes.append(hf.run(slow_flow, run_id="r", if_exists="resume").result)
        except AlreadyRunning:
            outcomes.append("refused")

    threads = [threading.Thread(target=call) for _ in range(6)]
    for each in threads:
        each.start()
    until(lambda: len(outcomes) == 5, "five are refused")
    GATE.set()
    for each in threads:
        each.join(30)
    assert sorted(outcomes) == [*["refused"] * 5, "slow"]
    assert RAN == ["slow"]


PROGRAM = """
import sys
import holdfast


@holdfast.step
def write():
    with open("effects", "a") as file:
        file.write("x")
    return "done"


@holdfast.workflow
def letter():
    return write()


with holdfast.open(sys.argv[1]) as hf:
    for turn in range(int(sys.argv[2])):
        try:
            assert hf.run(letter, run_id=f"letter-{turn}", if_exists="resume").result == "done"
        except holdfast.AlreadyRunning:
            print("refused")
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_if_exists_lets_one_of_many_processes_execute(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    where = "h.db" if kind == "sqlite" else request.getfixturevalue("url")
    (tmp_path / "letter.py").write_text(PROGRAM)
    command = [sys.executable, "letter.py", where, "20"]
    several = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for each in several:
        assert each.wait(60) == 0, each.communicate()[1]
    assert (tmp_path / "effects").read_text() == "x" * 20


@pytest.mark.slow
def test_if_exists_resume_lets_a_program_run_again(tmp_path: Path) -> None:
    (tmp_path / "letter.py").write_text(PROGRAM)
    for _ in range(2):
        subprocess.run([sys.executable, "letter.py", "h.db", "1"], cwd=tmp_path, check=True)
    assert (tmp_path / "effects").read_text() == "x"


def test_enqueue_with_if_exists_queues_a_run_once(hf: Holdfast) -> None:
    run = hf.enqueue(flow, "kelp", run_id="r")
    with pytest.raises(AlreadyExists, match="if_exists"):
        hf.enqueue(flow, "kelp", run_id="r")
    for how in ("return", "resume"):
        assert hf.enqueue(flow, "kelp", run_id="r", if_exists=how).status == "queued"
    with pytest.raises(RunMismatch, match="topic"):
        hf.enqueue(flow, "rock", run_id="r", if_exists="resume")
    with pytest.raises(RunMismatch, match="not of"):
        hf.enqueue(other, "kelp", run_id="r", if_exists="return")
    with pytest.raises(InvalidCall, match="dedupe or if_exists"):
        hf.enqueue(flow, "kelp", dedupe="x", if_exists="resume")
    BROKEN.add("end")
    with pytest.raises(ConnectionError):
        hf.resume("r")
    assert hf.enqueue(flow, "kelp", run_id="r", if_exists="return").status == "failed"
    assert hf.enqueue(flow, "kelp", run_id="r", if_exists="resume").status == "queued"
    BROKEN.clear()
    assert hf.resume(run.id).result == "KELP"
    assert hf.enqueue(flow, "kelp", run_id="r", if_exists="resume").status == "completed"
