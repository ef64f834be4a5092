"""Several processes on one project, and processes that are killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from loop_fixtures import Clock, good, state_of

import holdfast
from holdfast import Holdfast
from holdfast.loops import LoopEngine

WORKER = Path(__file__).with_name("loop_worker.py")


class Worker:
    """A process that works on the project."""

    def __init__(self, file: Path, clock: Clock, role: str, *arguments: str) -> None:
        command = [sys.executable, str(WORKER), str(file), role, str(clock.now), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def read_line(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@contextmanager
def working(*workers: Worker) -> Iterator[tuple[Worker, ...]]:
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()


@pytest.fixture
def hf(file: Path, clock: Clock) -> Iterator[Holdfast]:
    with holdfast.open(file, durability="fast", clock=clock) as opened:
        yield opened


def test_killed_agent_is_found_and_its_changes_undone(engine: LoopEngine, file: Path, clock: Clock) -> None:
    engine.configure("p", loop_autoresume=True)
    engine.save_loop_snapshot("p", {"loop_count": 1, "memory": "good"})
    with working(Worker(file, clock, "hang")) as (worker,):
        assert worker.read_line()["status"] == "set"
        worker.kill()
    assert state_of(engine)["memory"] == "half done"
    assert engine.check_timeouts()["stalled"] == [], "its time is not up"
    clock.forward(61)
    (stalled,) = engine.check_timeouts()["stalled"]
    assert (stalled["agent"], stalled["result"]["status"]) == ("planner", "restored")
    assert state_of(engine) == {"loop_count": 1, "memory": "good"}
    assert good(engine.log_agent_start("p", "planner"))["unfinished"] is None


def test_agent_killed_while_its_snapshot_is_saved_is_found_in_time(
    engine: LoopEngine, file: Path, clock: Clock
) -> None:
    engine.set_project_state("p", {"loop_count": 1})
    with working(Worker(file, clock, "complete")) as (worker,):
        assert worker.read_line() == "completing"
        clock.forward(6)
        assert engine.check_timeouts()["stalled"] == [], "the process lives, and saves it"
        worker.kill()
    (stalled,) = engine.check_timeouts()["stalled"]
    assert stalled["agent"] == "planner"


@pytest.mark.parametrize("by", ["configuration", "answer"])
def test_decision_of_a_killed_process_is_executed_at_once(
    engine: LoopEngine, file: Path, clock: Clock, by: str
) -> None:
    engine.save_loop_snapshot("p", {"loop_count": 1})
    engine.update_project_state("p", {"loop_count": 2})
    asked = []
    if by == "answer":
        asked = [good(engine.auto_restore_if_configured("p"))["question_id"]]
    engine.configure("p", loop_autoresume=True)
    with working(Worker(file, clock, "decide", *asked)) as (worker,):
        assert worker.read_line() == "decided"
        assert engine.check_timeouts()["finished"] == [], "the process lives, and may still execute it"
        worker.kill()
    (finished,) = engine.check_timeouts()["finished"]
    assert finished["status"] == "restored"
    assert state_of(engine)["loop_count"] == 1
    assert engine.check_timeouts()["finished"] == []


def test_start_after_a_kill_reports_the_unfinished_start(
    engine: LoopEngine, file: Path, clock: Clock
) -> None:
    engine.set_project_state("p", {})
    with working(Worker(file, clock, "hang")) as (worker,):
        worker.read_line()
        worker.kill()
    assert engine.log_agent_start("p", "planner")["unfinished"]["token"] == 1


def test_checkers_in_many_processes_restore_once(
    hf: Holdfast, engine: LoopEngine, file: Path, clock: Clock
) -> None:
    engine.configure("p", loop_autoresume=True)
    engine.save_loop_snapshot("p", {"loop_count": 1})
    engine.log_agent_start("p", "planner", timeout=60)
    clock.forward(61)
    with working(*(Worker(file, clock, "check") for _ in range(5))) as workers:
        assert [worker.read_line() for worker in workers] == ["ready"] * 5
        for worker in workers:
            worker.go()
        found = [worker.read_line() for worker in workers]
    assert {reply["status"] for reply in found} == {"ok"}
    assert sorted(len(reply["stalled"]) for reply in found) == [0, 0, 0, 0, 1]
    assert len(hf.history("loop/p").timelines()) == 2


def test_concurrent_processes_lose_no_change_of_the_state(
    hf: Holdfast, engine: LoopEngine, file: Path, clock: Clock
) -> None:
    engine.set_project_state("p", {"log": []})
    with working(*(Worker(file, clock, "count", name) for name in "abc")) as workers:
        for worker in workers:
            worker.read_line()
        for worker in workers:
            worker.go()
        for worker in workers:
            assert worker.read_line() == ["set", "started", "saved"] * 15
    state = state_of(engine)
    assert (state["a"], state["b"], state["c"]) == (14, 14, 14)
    assert sorted(state["log"]) == sorted(f"{name} {turn}" for name in "abc" for turn in range(15))
    assert engine.get_snapshot_history("p")["snapshot_count"] == 45
    assert engine.get_agents("p")["running"] == {}
    assert hf.verify()


def test_project_stays_usable_after_kills_at_any_moment(
    hf: Holdfast, engine: LoopEngine, file: Path, clock: Clock
) -> None:
    engine.configure("p", loop_autoresume=True, max_restores=100)
    last = 0
    for turn in range(8):
        with working(Worker(file, clock, "start_and_complete")) as (worker,):
            for _ in range(turn % 3 + 1):
                last = worker.read_line()
            worker.kill()
        clock.forward(61)
        reply = engine.check_timeouts()
        assert (reply["status"], reply["errors"]) == ("ok", [])
        assert all(each["result"]["status"] == "restored" for each in reply["stalled"])
        assert engine.get_agents("p")["running"] == {}
        assert engine.restore_last_snapshot("p")["loop"] >= last, "what was acknowledged is there"
        assert hf.verify()
