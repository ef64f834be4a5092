"""Leases that ran out while their owner was stopped or its store was away: limits of queues hold, and results that can
still be committed are."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import fleet_flows as flows
import pytest
from msgspec.structs import replace
from postgres_server import Server, address
from worker_processes import Crew, Member, World, wait_until

import holdfast
from holdfast import Holdfast, LeaseExpired, Run, step, workflow
from holdfast.store.protocol import Append

pytest_plugins = ["postgres_fixtures"]

LEASE = 0.6


def owned(hf: Holdfast) -> list[str]:
    """The runs of a queue that are owned now."""
    now = hf._store.now()
    return [run.id for run in hf._store.runs(statuses=["running"]) if run.until > now]


@contextmanager
def sampled(hf: Holdfast) -> Iterator[list[int]]:
    """How many runs were owned at once, as often as can be looked."""
    counts: list[int] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            counts.append(len(owned(hf)))
            time.sleep(0.005)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield counts
    finally:
        over.set()
        thread.join()


def has_completed(run: Run) -> bool:
    return run.status == "completed"


def freeze(hf: Holdfast, member: Member, run_id: str) -> None:
    """Stop a worker until its lease of a run has run out."""
    member.freeze()
    wait_until(lambda: run_id not in owned(hf), "the end of the lease")


def test_queue_limit_holds_when_a_suspended_worker_continues(hf: Holdfast, crew: Crew, world: World) -> None:
    hf.limit_queue("default", concurrency=1)
    slow = hf.enqueue(flows.gated, "slow")
    (frozen,) = crew.hire(lease=LEASE)
    world.until("begin slow")
    with sampled(hf) as counts:
        freeze(hf, frozen, slow.id)
        urgent = hf.enqueue(flows.gated, "urgent", priority=5)
        crew.hire(lease=LEASE)
        world.until("begin urgent")
        frozen.signal(signal.SIGCONT)
        # It ends its step while the other has the only place.
        world.open("go-slow")
        world.until("end slow")
        wait_until(lambda: "waits for a free place in its queue" in (world.folder / "stderr.txt").read_text())
        assert owned(hf) == [urgent.id]
        world.open("go-urgent")
        wait_until(lambda: urgent.status == slow.status == "completed")
    assert max(counts) == 1
    # What could not be committed was not kept, and done again once there was room.
    assert world.told("begin slow") == ["begin slow"] * 2
    assert [version.step for version in slow.history().versions(limit=50)].count("f_gate") == 1


def test_step_that_ends_after_its_lease_is_committed_if_its_queue_has_room(
    hf: Holdfast, crew: Crew, world: World
) -> None:
    hf.limit_queue("default", concurrency=1)
    run, arun = hf.enqueue(flows.gated, "g"), hf.enqueue(flows.agated, "a")
    (frozen,) = crew.hire(lease=LEASE)
    for name, each in (("g", run), ("a", arun)):
        world.until(f"begin {name}")
        freeze(hf, frozen, each.id)
        world.open(f"go-{name}")
        frozen.signal(signal.SIGCONT)
        wait_until(partial(has_completed, each))
    assert sorted(world.told("begin")) == ["begin a", "begin g"]


@pytest.fixture(scope="module")
def server_of_ours() -> Iterator[Server]:
    with Server() as own:
        yield own


def test_queue_limit_holds_after_an_outage_longer_than_the_lease(
    server_of_ours: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows, "WORLD", tmp_path)
    world, where = World(tmp_path), address(server_of_ours.url, "away")
    crew = Crew(world, where)
    names = ["a", "b", "c"]
    try:
        with holdfast.open(where, lease=LEASE) as hf:
            hf.limit_queue("default", concurrency=1)
            runs = [hf.enqueue(flows.gated, name) for name in names]
            crew.hire(3, lease=LEASE)
            world.until("begin a")
            server_of_ours.stop()
            # The step ends while there is no server, and the lease as well.
            world.open("go-a")
            world.until("end a")
            time.sleep(LEASE)
            server_of_ours.again()
            with sampled(hf) as counts:
                world.open("go-b", "go-c")
                wait_until(lambda: {run.status for run in runs} == {"completed"})
            assert max(counts) == 1
            assert all(run.history().verify().ok for run in runs)
    finally:
        crew.close()


@pytest.mark.parametrize("place", [":memory:", "sqlite"])
def test_unqueued_run_is_claimed_again_after_its_lease_expired(place: str, tmp_path: Path) -> None:
    """A laptop that was closed for a night."""
    seconds = [1_000_000_000.0]

    @step(name="e_long")
    def long(number: int) -> int:
        seconds[0] += 30_000
        return number

    @workflow(name="e_longly")
    def longly() -> int:
        return long(1) + child() + long(3)

    @workflow(name="e_child")
    def child() -> int:
        return long(2)

    where = place if place == ":memory:" else str(tmp_path / "runs.db")
    with holdfast.open(where, clock=lambda: seconds[0]) as hf:
        run = hf.run(longly, run_id="run")
        assert run.result == 6
        claims = [event for event in run.history().events() if event.kind == "run.claimed"]
        assert len(claims) >= 2


@pytest.mark.parametrize("place", [":memory:", "sqlite"])
def test_expired_run_of_a_full_queue_is_refused_and_claimed_later(place: str, tmp_path: Path) -> None:
    seconds = [1_000_000_000.0]
    begun: list[str] = []

    @step(name="e_one")
    def one(name: str) -> str:
        begun.append(name)
        if name == "late" and begun.count("late") == 1:
            seconds[0] += 3_600
            other = hf._store.run("other")
            assert other is not None
            # Another worker claims the other run now that this one's lease has run out.
            until = hf._store.now() + 60_000_000
            taken = replace(
                other, status="running", owner="another", until=until, revision=other.revision + 1
            )
            hf._store.append(Append(expect=other, run=taken))
        return name

    @workflow(name="e_single")
    def single(name: str) -> str:
        return one(name)

    where = place if place == ":memory:" else str(tmp_path / "runs.db")
    with holdfast.open(where, clock=lambda: seconds[0]) as hf:
        hf.limit_queue("default", concurrency=1)
        hf.enqueue(single, "other", run_id="other", delay=1_000_000)
        hf.enqueue(single, "late", run_id="late")
        with pytest.raises(LeaseExpired, match="the run's queue is full"):
            hf.resume("late")
        late = hf._store.run("late")
        assert late is not None
        assert (late.status, late.last) == ("running", 1)
        seconds[0] += 3_600
        assert hf.resume("late").result == "late"
