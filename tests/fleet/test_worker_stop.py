"""Stopping workers: SIGTERM lets steps end and hands the rest back, a second one ends everything at once."""

from __future__ import annotations

import signal

import fleet_flows as flows
import pytest
from worker_processes import Crew, World, wait_until

from holdfast import Holdfast
from holdfast.model.records import RunRecord
from holdfast.store.protocol import Claim

pytest_plugins = ["postgres_fixtures"]


def test_stopping_worker_finishes_its_step_and_hands_the_run_back(
    hf: Holdfast, crew: Crew, world: World
) -> None:
    plain, asynchronous = hf.enqueue(flows.gated, "p"), hf.enqueue(flows.agated, "a")
    (first,) = crew.hire()
    world.until("begin p").until("begin a")
    later = hf.enqueue(flows.marking, "later")
    wait_until(lambda: later.status == "completed")
    first.signal(signal.SIGTERM)
    world.until("signal 1")
    left = hf.enqueue(flows.marking, "left")
    # It waits for the steps, and claims nothing meanwhile.
    world.open("go-p")
    world.until("end p")
    wait_until(lambda: plain.status == "queued")
    assert first.process.poll() is None
    # A claim that was under way when the signal came is handed back.
    wait_until(lambda: left.status == "queued")
    world.open("go-a")
    assert first.end() == 0
    assert [plain.status, asynchronous.status, left.status] == ["queued"] * 3
    assert not plain.alive
    assert "run.handed_back" in [event.kind for event in plain.events()]
    (second,) = crew.hire()
    wait_until(lambda: {run.status for run in (plain, asynchronous, left)} == {"completed"})
    # Nothing was done twice, and the rest by the second.
    done = world.told("before", "begin", "end", "after")
    assert len(done) == len(set(done)) == 8
    assert {pid for text, pid, _ in world.lines() if text.startswith(("after", "left"))} == {second.pid}


def test_worker_stopped_during_a_claim_hands_the_run_back_unstarted(
    hf: Holdfast, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf.limit_queue("default", rate=1, per=3600)
    run = hf.enqueue(flows.marking, "never here")
    worker = hf.worker()
    claim = hf._store.claim

    def claim_and_stop(wanted: Claim) -> list[RunRecord]:
        taken = claim(wanted)
        worker.stop()
        return taken

    monkeypatch.setattr(hf._store, "claim", claim_and_stop)
    worker.start()
    assert worker.join(60)
    assert world.told("never here") == []
    assert run.status == "queued"
    assert not run.alive
    assert [event.kind for event in run.events()][-2:] == ["run.claimed", "run.handed_back"]
    # Another worker may claim it at once, because a run that was not started does not count in the rate.
    monkeypatch.undo()
    monkeypatch.setattr(flows, "WORLD", world.folder)
    with hf.worker():
        wait_until(lambda: run.status == "completed")


def test_worker_stopped_before_a_claim_claims_nothing(hf: Holdfast, world: World) -> None:
    worker = hf.worker()
    with hf._engine.claiming:
        worker.start()
        run = hf.enqueue(flows.marking, "never here")
        worker.stop()
    assert worker.join(60)
    assert world.told("never here") == []
    assert [event.kind for event in run.events()] == ["run.queued"]


def test_stopping_worker_ends_the_pause_between_attempts(hf: Holdfast, crew: Crew, world: World) -> None:
    run = hf.enqueue(flows.retrying, "r")
    (first,) = crew.hire()
    world.until("try r")
    wait_until(lambda: any(event.kind == "step.retried" for event in run.events()))
    assert first.stop() == 0
    assert run.status == "queued"
    world.open("go-r")
    crew.hire()
    wait_until(lambda: run.status == "completed")
    assert world.told("try") == ["try r"] * 2


def test_stopping_worker_hands_back_children_with_their_parent(
    hf: Holdfast, crew: Crew, world: World
) -> None:
    run = hf.enqueue(flows.parent_of_gated, "g")
    (first,) = crew.hire()
    world.until("begin g")
    first.signal(signal.SIGTERM)
    world.until("signal 1")
    world.open("go-g")
    assert first.end() == 0
    assert run.status == "queued"
    assert world.told("after") == []
    crew.hire()
    assert wait_until(lambda: run.status == "completed" and run.result) == "parent of after g"
    assert world.told("begin") == ["begin g"]


def test_stopping_worker_leaves_waiting_runs_suspended(hf: Holdfast, crew: Crew) -> None:
    run = hf.enqueue(flows.asking)
    (first,) = crew.hire()
    wait_until(lambda: run.status == "suspended")
    assert first.stop() == 0
    assert run.status == "suspended"
    hf.answer(run.questions()[0].id, "yes", resume=False)
    crew.hire()
    wait_until(lambda: run.status == "completed")


def test_second_signal_ends_the_worker_and_its_run_is_taken_over(
    hf: Holdfast, crew: Crew, world: World
) -> None:
    run = hf.enqueue(flows.gated, "g")
    (first,) = crew.hire()
    world.until("begin g")
    first.signal(signal.SIGTERM)
    world.until("signal 1")
    first.signal(signal.SIGTERM)
    assert first.end() == 128 + signal.SIGTERM
    assert run.status == "running"
    crew.hire()
    world.until("begin g", 2)
    world.open("go-g")
    wait_until(lambda: run.status == "completed")
    assert world.told("before") == ["before g"]


def test_stopping_idle_worker_ends_at_once(crew: Crew, world: World) -> None:
    (first,) = crew.hire()
    first.signal(signal.SIGINT)
    assert first.end() == 0
    assert world.told("worker ended") == ["worker ended"]


def test_worker_in_a_thread_is_stopped_and_joined(hf: Holdfast, world: World) -> None:
    run = hf.enqueue(flows.gated, "g")
    worker = hf.worker().start()
    world.until("begin g")
    worker.stop()
    assert not worker.join(0.05)
    world.open("go-g")
    assert worker.join(20)
    assert run.status == "queued"
