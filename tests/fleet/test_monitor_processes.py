"""Workers and monitors in processes of their own: steps that really hang, workers that are paused and wake up too late,
monitors that are killed half-way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import monitor_flows
import pytest
import worker_processes as crews
from worker_processes import Crew, World, wait_until

from holdfast import Holdfast, Watchdog

pytest_plugins = ["postgres_fixtures"]

#: Real seconds: short, but longer than the time between two signs of life.
SILENT = Watchdog(heartbeat_timeout=1.0, idle_timeout=1.0, autoresume=True, max_recoveries=1)


def timelines(hf: Holdfast, run_id: str) -> int:
    return len(hf.get(run_id).history().timelines())


@pytest.mark.parametrize("flow", ["f_gated", "f_agated"])
def test_hanging_step_is_recovered_then_stalled(hf: Holdfast, crew: Crew, world: World, flow: str) -> None:
    crew.hire(2)
    run = hf.enqueue(flow, "kelp", run_id="run", watchdog=SILENT)
    world.until("begin kelp", 2)
    wait_until(lambda: run.status == "stalled", "the freezing")
    (prompt,) = hf.inbox()
    details = prompt.details
    assert (details["symptom"], details["restores"], details["version"]) == ("silent", 1, 2)
    assert details["address"] == ("f_gate" if flow == "f_gated" else "f_agate")
    assert "fleet_flows.py" in details["stack"]
    assert ("until(" if flow == "f_gated" else "await asyncio.sleep") in details["stack"]
    assert world.told("before") == ["before kelp"]
    world.open("go-kelp")
    hf.answer(prompt.id, "resume", actor="ada")
    wait_until(lambda: run.status == "completed", "the end")
    assert run.result == "after kelp"
    assert world.told("after") == ["after kelp"]
    assert timelines(hf, "run") == 2


def test_run_that_hangs_between_steps_is_stalled(hf: Holdfast, crew: Crew, world: World) -> None:
    crew.hire()
    run = hf.enqueue(
        "f_lingering", "kelp", run_id="run", watchdog=Watchdog(heartbeat_timeout=30, idle_timeout=1.0)
    )
    wait_until(lambda: run.status == "stalled", "the freezing")
    (prompt,) = hf.inbox()
    assert prompt.details["address"] is None
    assert "until(" in prompt.details["stack"]


def test_long_step_with_progress_is_not_stalled(hf: Holdfast, crew: Crew, world: World) -> None:
    crew.hire()
    run = hf.enqueue("f_slow", 4.0, run_id="run", watchdog=SILENT)
    assert run.wait(crews.PATIENCE).result == "slow"
    assert [event.kind for event in run.events() if event.kind == "run.alert"] == []
    assert world.told("slow") == ["slow"]


@pytest.mark.parametrize(
    ("words", "watch", "why"),
    [
        (["again"], Watchdog(max_repeats=10), "has returned the same"),
        (["to", "fro"], Watchdog(max_repeats=10), "alternate"),
        (["a", "b", "c"], Watchdog(max_unchanged=10), "the state has not changed"),
    ],
)
def test_looping_run_is_stalled(
    hf: Holdfast, crew: Crew, world: World, words: list[str], watch: Watchdog, why: str
) -> None:
    crew.hire()
    run = hf.enqueue("f_looping", *words, run_id="run", watchdog=watch)
    wait_until(lambda: run.status == "stalled", "the freezing")
    (prompt,) = hf.inbox()
    assert why in prompt.details["why"]
    head = run.head.number
    assert prompt.details["version"] == {1: 2, 2: 3, 3: 1}[len(words)]
    world.open("enough")
    hf.answer(prompt.id, "rollback", version=prompt.details["version"])
    wait_until(lambda: run.status == "completed", "the end")
    assert run.head.number > head


def test_worker_that_slept_through_a_recovery_cannot_commit(hf: Holdfast, crew: Crew, world: World) -> None:
    (sleeper,) = crew.hire(monitor=False)
    run = hf.enqueue("f_gated", "kelp", run_id="run", watchdog=SILENT)
    world.until("begin kelp")
    wait_until(lambda: hf._store.value(_pulse(hf, "run")) is not None, "a sign of life")
    sleeper.signal(signal.SIGSTOP)
    crew.hire()
    wait_until(lambda: world.told().count("begin kelp") == 2, "another one")
    world.open("go-kelp")
    wait_until(lambda: run.status == "completed", "the end")
    head = run.head.number
    sleeper.signal(signal.SIGCONT)
    world.until("end kelp", 2)
    assert sleeper.stop() == 0
    assert run.head.number == head
    assert world.told("after") == ["after kelp"]


@pytest.mark.parametrize("after", ["fence", "move"])
def test_recovery_of_a_killed_monitor_is_finished_by_another(
    hf: Holdfast, crew: Crew, world: World, where: str, after: str
) -> None:
    crew.hire(monitor=False)
    run = hf.enqueue("f_gated", "kelp", run_id="run", watchdog=SILENT)
    world.until("begin kelp")
    with monitor(world, where, dies=after) as dying:
        assert dying.end() == -signal.SIGKILL
    world.open("go-kelp")
    with monitor(world, where):
        wait_until(lambda: run.status == "completed", "the end")
    assert run.result == "after kelp"
    assert timelines(hf, "run") == 2
    assert [event.kind for event in run.events()].count("run.recovered") == 1


def test_many_monitors_recover_a_run_once(hf: Holdfast, crew: Crew, world: World, where: str) -> None:
    crew.hire(monitor=False)
    run = hf.enqueue("f_gated", "kelp", run_id="run", watchdog=SILENT)
    with monitor(world, where), monitor(world, where), monitor(world, where):
        world.until("begin kelp", 2)
        wait_until(lambda: run.status == "stalled", "the freezing")
    kinds = [event.kind for event in run.events()]
    assert (kinds.count("run.recovered"), kinds.count("run.stalled"), kinds.count("run.alert")) == (1, 1, 2)


def _pulse(hf: Holdfast, run_id: str) -> str:
    run = hf._store.run(run_id)
    assert run is not None
    assert run.owner is not None
    return f"pulse/{run.owner.rpartition('|')[2]}"


class Member(crews.Member):
    """A worker, or a monitor, that runs the programs of these tests."""

    def __init__(self, world: World, where: str, options: dict[str, Any]) -> None:
        given = json.dumps({"where": where, **options})
        environment = {**os.environ, "WORLD": str(world.folder)}
        program = [sys.executable, str(Path(monitor_flows.__file__)), given]
        with (world.folder / "stderr.txt").open("a") as file:
            self.process = subprocess.Popen(program, env=environment, stderr=file)


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crews, "Member", Member)


@contextmanager
def monitor(world: World, where: str, **options: Any) -> Iterator[Member]:
    """A monitor in a process of its own, which executes nothing; it may die at a point."""
    made = Member(world, where, {"role": "monitor", **options})
    try:
        yield made
    finally:
        if made.process.poll() is None:
            made.process.kill()
        made.process.wait()
