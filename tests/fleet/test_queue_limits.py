"""Limits of queues: never exceeded, whoever works."""

from __future__ import annotations

import random
import threading
import time
from itertools import pairwise
from typing import Any

import fleet_flows as flows
import pytest
from worker_processes import Crew, World, wait_until

import holdfast
from holdfast import Holdfast, InvalidCall
from holdfast.fleet.queue_limits import QueueLimits, Share, take

pytest_plugins = ["postgres_fixtures"]


def most_at_once(world: World) -> int:
    """How many gates were passed at the same time, at most."""
    now = most = 0
    for text in world.told("begin", "end"):
        now += 1 if text.startswith("begin") else -1
        most = max(most, now)
    return most


def test_queue_concurrency_holds_for_several_workers(hf: Holdfast, crew: Crew, world: World) -> None:
    hf.limit_queue("default", concurrency=3)
    runs = [hf.enqueue(flows.gated, f"g{number}") for number in range(12)]
    crew.hire(3, concurrency=5)
    for count in range(3, 13):
        # Three are under way. Let the eldest go on, so that another may begin.
        wait_until(lambda: len(world.told("begin")) >= count)  # noqa: B023 - called at once
        world.open(f"go-{world.told('begin')[count - 3].removeprefix('begin ')}")
    world.open(*(f"go-g{number}" for number in range(12)))
    for run in runs:
        run.wait(40)
    assert most_at_once(world) == 3


def test_queue_limit_does_not_delay_another_queue(hf: Holdfast, world: World) -> None:
    hf.limit_queue("narrow", concurrency=1)
    for number in range(3):
        hf.enqueue(flows.gated, f"g{number}", queue="narrow", priority=9)
    wide = hf.enqueue(flows.marking, "wide", queue="wide")
    with hf.worker(queues=["narrow", "wide"], concurrency=4):
        wide.wait(20)
        assert world.told("begin") == ["begin g0"]
        world.open("go-g0", "go-g1", "go-g2")
        world.until("after g2")


def test_queue_limit_can_be_lifted_while_workers_run(hf: Holdfast, world: World) -> None:
    hf.limit_queue("default", concurrency=1)
    for number in range(3):
        hf.enqueue(flows.gated, f"g{number}")
    with hf.worker(concurrency=4):
        world.until("begin g0")
        hf.limit_queue("default")
        world.until("begin g1").until("begin g2")
        world.open("go-g0", "go-g1", "go-g2")
        world.until("after g2")


def test_queue_rate_holds_for_several_workers(hf: Holdfast, crew: Crew, world: World) -> None:
    hf.limit_queue("default", rate=5, per=0.5)
    crew.hire(2, concurrency=10)
    runs = [hf.enqueue(flows.marking, "x") for _ in range(18)]
    for run in runs:
        run.wait(40)
    begun = sorted(
        event.at.timestamp() for run in runs for event in run.events() if event.kind == "run.claimed"
    )
    assert all(later - earlier >= 0.5 for earlier, later in zip(begun, begun[5:], strict=False))
    # And it is used: not much slower than it may be.
    assert begun[-1] - begun[0] < 8


def test_queue_rate_writes_nothing_while_the_queue_is_empty(hf: Holdfast, world: World) -> None:
    hf.limit_queue("default", rate=1, per=60)
    hf.enqueue(flows.marking, "a")
    hf.enqueue(flows.marking, "b", delay=3600)
    with hf.worker():
        world.until("a")
        wait_until(lambda: hf.queues()[0].runs.get("completed") == 1)
        before = hf._store.value("queue/default")
        time.sleep(0.2)
        assert hf._store.value("queue/default") == before
    assert world.told() == ["a"]


def test_queue_rate_gets_unused_starts_back(hf: Holdfast, world: World) -> None:
    hf.limit_queue("default", rate=4, per=3600)
    with hf.worker(concurrency=10):
        for name in "abcd":
            hf.enqueue(flows.marking, name)
            world.until(name)
        last = hf.enqueue(flows.marking, "e")
        wait_until(lambda: len(hf.runs(status="completed")) == 4)
        time.sleep(0.1)
        assert last.status == "queued"
        hf.limit_queue("default", rate=5, per=3600)
        last.wait(20)


def test_queues_lists_counts_and_limits(hf: Holdfast) -> None:
    hf.limit_queue("b", concurrency=2, rate=10, per=60)
    hf.enqueue(flows.empty, queue="b")
    hf.enqueue(flows.empty, queue="a")
    first, second = hf.queues()
    assert (first.name, first.runs, first.concurrency, first.rate) == ("a", {"queued": 1}, None, None)
    assert (second.name, second.concurrency, second.rate, second.per) == ("b", 2, 10, 60.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"concurrency": 0},
        {"concurrency": 1.5},
        {"rate": 0},
        {"rate": "fast"},
        {"rate": 1, "per": 0},
        {"rate": 1, "per": float("nan")},
        {"rate": 1, "per": "minute"},
        {"rate": 1, "per": 1e-9},
        {"rate": 1, "per": True},
        {"queue": ""},
    ],
)
def test_limit_queue_refuses_invalid_limits(wrong: dict[str, Any]) -> None:
    with holdfast.open(":memory:") as hf, pytest.raises(InvalidCall):
        hf.limit_queue(**{"queue": "q", **wrong})


@pytest.mark.parametrize("wrong", [None, 7, [], [7], "", ["a", None]])
def test_worker_refuses_invalid_queues(wrong: Any) -> None:
    with holdfast.open(":memory:") as hf, pytest.raises(InvalidCall, match="queue"):
        hf.worker(queues=wrong)


@pytest.mark.parametrize("wrong", [0, True, "15", float("nan"), 10**6])
def test_open_refuses_invalid_leases(wrong: Any) -> None:
    with pytest.raises(InvalidCall, match="lease is a number of seconds"):
        holdfast.open(":memory:", lease=wrong)


def test_queue_rate_is_never_exceeded_in_any_period() -> None:
    """However long those who take from it hesitate, and whoever of them gives back what."""
    chance = random.Random(5)
    for rate, per in ((1, 1000), (7, 1000), (100, 1_000_000), (1000, 10)):
        limits, now = QueueLimits(rate=rate, per=per), 0
        begun: list[int] = []
        taken: list[Share] = []
        for _ in range(3000):
            now += chance.randint(0, max(1, per // 20))
            if chance.random() < 0.5:
                limits, share = limits.after(now, chance.randint(1, 9), now + chance.randint(0, per // 10))
                taken.append(share)
            elif taken:
                share = taken.pop(chance.randrange(len(taken)))
                back = share.amount if now > share.until else chance.randint(0, share.amount)
                limits = limits.without(share._replace(amount=back))
                begun += [now] * (share.amount - back)
            assert len(limits.started) <= 70
        assert all(later - earlier >= per for earlier, later in zip(begun, begun[rate:], strict=False))
        # Nearly as fast as allowed.
        assert len(begun) > 10
        assert all(earlier <= later for earlier, later in pairwise(begun))


def test_queue_rate_ignores_grants_of_a_clock_that_was_ahead() -> None:
    with holdfast.open(":memory:") as hf:
        hf.limit_queue("default", rate=1, per=10)
        hour, second = 3_600_000_000, 1_000_000
        assert take(hf._store, "default", 1, hour, hour).amount == 1
        assert take(hf._store, "default", 1, 0, 0).amount == 0
        assert take(hf._store, "default", 1, 21 * second, 21 * second).amount == 1


def test_queue_rate_holds_for_a_worker_that_claims_late(world: World) -> None:
    """Nearly a whole period goes by between what it takes from the account and its claim."""
    slow, late = [0.0, 0.9], 0.0

    def clock() -> float:
        nonlocal late
        if slow and threading.current_thread().name == "holdfast worker":
            late += slow.pop(0)
        return 1_700_000_000 + late + time.monotonic()

    with holdfast.open(":memory:", clock=clock) as hf:
        hf.limit_queue("default", rate=1, per=1)
        runs = [hf.enqueue(flows.marking, name) for name in "ab"]
        with hf.worker(monitor=False):
            claimed = [
                event.at for run in runs for event in run.wait(40).events() if event.kind == "run.claimed"
            ]
    assert not slow
    assert (claimed[1] - claimed[0]).total_seconds() >= 1
