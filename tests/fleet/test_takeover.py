"""Workers that die, freeze or lose their store: their runs go on elsewhere, and what they still do is refused."""

from __future__ import annotations

import signal
import time

import fleet_flows as flows
import pytest
from worker_processes import Crew, World, wait_until

from database import Database
from holdfast import Holdfast

pytest_plugins = ["postgres_fixtures"]


def test_lease_is_renewed_during_a_long_step(hf: Holdfast, crew: Crew, world: World) -> None:
    run = hf.enqueue(flows.gated, "g")
    crew.hire(1, lease=0.5)
    world.until("begin g")
    crew.hire(1, lease=0.5)
    begun = time.monotonic()
    other = hf.enqueue(flows.sleeping, 1.5)
    wait_until(lambda: other.status == "completed")
    assert time.monotonic() - begun > 1.5
    world.open("go-g")
    wait_until(lambda: run.status == "completed")
    assert world.told("begin") == ["begin g"]


def test_runs_of_a_killed_worker_are_taken_over_within_the_lease(
    hf: Holdfast, crew: Crew, world: World
) -> None:
    run, arun = hf.enqueue(flows.gated, "g"), hf.enqueue(flows.agated, "a")
    (first,) = crew.hire(lease=1.0)
    world.until("begin g").until("begin a")
    (second,) = crew.hire(lease=1.0, queues=["default", "other"])
    first.signal(signal.SIGKILL)
    killed = time.time()
    world.until("begin g", 2).until("begin a", 2)
    world.open("go-g", "go-a")
    wait_until(lambda: run.status == arun.status == "completed")
    again = [at for text, pid, at in world.lines() if text.startswith("begin") and pid == second.pid]
    assert max(again) - killed < 1.0 + 0.8
    # What the first had recorded was not done again.
    assert sorted(world.told("before")) == ["before a", "before g"]


def test_child_of_a_killed_run_is_taken_over_with_it(hf: Holdfast, crew: Crew, world: World) -> None:
    run = hf.enqueue(flows.parent_of_gated, "g")
    (first,) = crew.hire(lease=0.8)
    world.until("begin g")
    crew.hire(lease=0.8)
    first.signal(signal.SIGKILL)
    world.until("begin g", 2)
    world.open("go-g")
    assert wait_until(lambda: run.status == "completed" and run.result) == "parent of after g"
    assert world.told("before") == ["before g"]


def test_commit_of_a_suspended_worker_is_refused_and_it_continues(
    hf: Holdfast, crew: Crew, world: World
) -> None:
    run = hf.enqueue(flows.gated, "g")
    (frozen,) = crew.hire(lease=0.6)
    world.until("begin g")
    frozen.freeze()
    (other,) = crew.hire(lease=0.6)
    world.until("begin g", 2)
    # Both are in the step now; the frozen one ends it first.
    other.freeze()
    world.open("go-g")
    frozen.signal(signal.SIGCONT)
    world.until("end g")
    later = hf.enqueue(flows.marking, "later")
    wait_until(lambda: later.status == "completed")
    other.signal(signal.SIGCONT)
    wait_until(lambda: run.status == "completed")
    history = run.history()
    steps = [version.step for version in history.versions(limit=50) if version.step == "f_gate"]
    assert steps == ["f_gate"]
    assert history.verify().ok


def test_worker_that_slept_without_a_takeover_continues(hf: Holdfast, crew: Crew, world: World) -> None:
    run = hf.enqueue(flows.gated, "g")
    (frozen,) = crew.hire(lease=0.4)
    world.until("begin g")
    frozen.freeze()
    wait_until(lambda: not hf.get(run.id).alive)
    frozen.signal(signal.SIGCONT)
    wait_until(lambda: hf.get(run.id).alive)
    world.open("go-g")
    wait_until(lambda: run.status == "completed")
    assert world.told("begin") == ["begin g"]


def test_worker_survives_a_locked_store(hf: Holdfast, crew: Crew, world: World, where: str) -> None:
    if "://" in where:
        pytest.skip("locks a SQLite file")
    run = hf.enqueue(flows.gated, "g")
    crew.hire(lease=0.5, timeout=0.1)
    world.until("begin g")
    with Database(where) as connection:
        connection.execute("BEGIN IMMEDIATE")
        world.open("go-g")
        world.until("end g")
        # The commit is refused, and so are claims and renewals, until the lock is gone.
        wait_until(lambda: "could not claim" in errors(world) or "left until" in errors(world))
        connection.execute("ROLLBACK")
    wait_until(lambda: run.status == "completed")
    assert world.told("before") == ["before g"]
    assert crew.members[0].stop() == 0


def errors(world: World) -> str:
    return (world.folder / "stderr.txt").read_text()
