"""Putting runs into queues, and who gets them first."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import fleet_flows as flows
import pytest
from worker_processes import Crew, World, wait_until

import holdfast
from holdfast import AlreadyExists, Holdfast, InvalidCall, NotFound, UnsupportedValue

pytest_plugins = ["postgres_fixtures"]


def drained(hf: Holdfast, **options: Any) -> None:
    """Let a worker empty the queues."""
    with hf.worker(**options):
        wait_until(lambda: not hf.runs(status=["queued", "running"]))


def test_enqueued_run_is_in_the_store_until_a_worker_executes_it(hf: Holdfast, world: World) -> None:
    run = hf.enqueue(flows.marking, "a", then="b", tags=["t"], note="n", actor="me", run_id="one")
    assert (run.id, run.status, run.workflow) == ("one", "queued", "f_marking")
    assert hf.queues()[0].runs == {"queued": 1}
    with pytest.raises(holdfast.NotFinished):
        _ = run.result
    drained(hf)
    assert run.result == "b"
    assert world.told() == ["a", "b"]
    assert hf.queues()[0].runs == {"completed": 1}
    first = run.history().at(1)
    assert (first.tags, first.note, first.actor) == (("t",), "n", "me")
    assert [event.kind for event in run.events() if event.kind == "run.claimed"] == ["run.claimed"]


def test_enqueue_accepts_the_name_of_an_unknown_workflow(hf: Holdfast, crew: Crew) -> None:
    run = hf.enqueue("f_elsewhere", 1, 2)
    other = hf.enqueue(flows.empty, 3)
    crew.hire(defines=["f_elsewhere"])
    assert run.wait(40).result == "f_elsewhere (1, 2)"
    assert other.wait(40).result == 3


def test_enqueue_passes_the_state_and_values_of_all_types(hf: Holdfast) -> None:
    value = {"n": [1, 1.0, True, None, b"x"], (1, 2): {3, 4}}
    run = hf.enqueue(flows.empty, value, state={"a": [1]})
    drained(hf)
    assert run.result == value
    assert run.state == {"a": [1]}


def test_enqueued_runs_are_claimed_by_priority_then_age(hf: Holdfast, world: World) -> None:
    for name, priority in [("c1", 0), ("b1", 5), ("d", -1), ("a", 9), ("b2", 5), ("c2", 0)]:
        hf.enqueue(flows.marking, name, priority=priority)
    drained(hf, concurrency=1)
    assert world.told() == ["a", "b1", "b2", "c1", "c2", "d"]


def test_enqueued_run_starts_after_its_delay(hf: Holdfast, world: World) -> None:
    begun = time.time()
    late = hf.enqueue(flows.marking, "late", delay=0.6)
    hf.enqueue(flows.marking, "soon")
    with hf.worker():
        late.wait(20)
    assert world.told() == ["soon", "late"]
    assert world.lines()[1][2] - begun >= 0.6


def test_worker_claims_only_from_its_queues(hf: Holdfast, world: World) -> None:
    hf.enqueue(flows.marking, "a", queue="one")
    hf.enqueue(flows.marking, "b", queue="two")
    hf.enqueue(flows.marking, "c", queue="three")
    with hf.worker(queues=["one", "three"]):
        world.until("a").until("c")
    assert {queue.name: queue.runs for queue in hf.queues()} == {
        "one": {"completed": 1},
        "two": {"queued": 1},
        "three": {"completed": 1},
    }


def test_enqueue_with_dedupe_returns_the_existing_run(hf: Holdfast, world: World) -> None:
    first = hf.enqueue(flows.marking, "a", dedupe="order 7")
    again = hf.enqueue(flows.marking, "b", dedupe="order 7")
    other = hf.enqueue(flows.marking, "c", dedupe="order 8")
    another = hf.enqueue(flows.empty, dedupe="order 7")
    assert first.id == again.id
    assert len({first.id, other.id, another.id}) == 3
    drained(hf)
    assert hf.enqueue(flows.marking, "d", dedupe="order 7").result == "a"
    assert sorted(world.told()) == ["a", "c"]


_EIGHT = """
import json, sys, holdfast

where, number = json.loads(sys.argv[1])
with holdfast.open(where) as hf:
    print(json.dumps([hf.enqueue("f_marking", f"{n} by {number}", dedupe=f"n {n}").id for n in range(25)]))
"""


def test_enqueue_with_dedupe_in_eight_processes_makes_one_run(hf: Holdfast, where: str, world: World) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", _EIGHT, json.dumps([where, number])], stdout=subprocess.PIPE, text=True
        )
        for number in range(8)
    ]
    told = [json.loads(process.communicate(timeout=50)[0]) for process in started]
    assert all(ids == told[0] for ids in told)
    assert len(hf.runs(limit=1000)) == 25
    drained(hf)
    assert sorted(int(text.split()[0]) for text in world.told()) == list(range(25))


def test_enqueue_refuses_an_existing_run_id(hf: Holdfast) -> None:
    hf.enqueue(flows.empty, run_id="a")
    with pytest.raises(AlreadyExists, match="'a' exists"):
        hf.enqueue(flows.empty, run_id="a")
    with pytest.raises(AlreadyExists):
        hf.run(flows.empty, run_id="a")


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"queue": ""}, InvalidCall, "queue has a name"),
        ({"queue": "a\nb"}, InvalidCall, "queue has a name"),
        ({"queue": 7}, InvalidCall, "queue has a name"),
        ({"priority": 1.5}, InvalidCall, "priority is a whole number"),
        ({"priority": True}, InvalidCall, "priority is a whole number"),
        ({"priority": 10**9}, InvalidCall, "priority is a whole number"),
        ({"delay": -1}, InvalidCall, "delay is a number of seconds"),
        ({"delay": 1e10}, InvalidCall, "delay is a number of seconds from 0 to 9,000,000,000"),
        ({"delay": float("nan")}, InvalidCall, "delay is a number of seconds"),
        ({"delay": "soon"}, InvalidCall, "delay is a number of seconds"),
        ({"dedupe": 7}, InvalidCall, "dedupe"),
        ({"dedupe": ""}, InvalidCall, "dedupe is empty"),
        ({"dedupe": "a", "run_id": "b"}, InvalidCall, "dedupe or run_id"),
        ({"run_id": "a/../b\n"}, InvalidCall, "run id"),
        ({"what": 1}, InvalidCall, "cannot be called like this"),
        ({"value": object()}, UnsupportedValue, "object"),
        ({"state": {"x": object()}}, UnsupportedValue, "x"),
        ({"tags": [""]}, InvalidCall, "tag"),
    ],
)
def test_enqueue_refuses_invalid_arguments_and_writes_nothing(
    hf: Holdfast, wrong: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        hf.enqueue(flows.empty, **wrong)
    assert hf.runs() == []
    assert hf.queues() == []


def test_enqueue_refuses_a_value_that_is_not_a_workflow(hf: Holdfast) -> None:
    for wrong in (len, None, 7, ""):
        with pytest.raises(InvalidCall):
            hf.enqueue(wrong)
    assert hf.runs() == []


class TestRequeue:
    def test_requeued_run_continues(self, hf: Holdfast, world: World) -> None:
        run = hf.enqueue(flows.failing, "x", queue="q", priority=3)
        drained(hf, queues="q")
        assert run.status == "failed"
        world.open("mended-x")
        hf.requeue(run.id, reason="mended", actor="me")
        assert (run.status, hf.queues()[0].runs) == ("queued", {"queued": 1})
        drained(hf, queues="q")
        assert run.result == "x"
        assert world.told() == ["before x", "boom x", "boom x"]
        (told,) = [event for event in run.events() if event.kind == "run.requeued"]
        assert (told.data["reason"], told.data["actor"], told.data["queue"]) == ("mended", "me", "q")

    def test_requeue_after_a_rollback(self, hf: Holdfast, world: World) -> None:
        run = hf.enqueue(flows.marking, "a", then="b")
        drained(hf)
        hf.rollback(run.id, to=2, resume=False)
        assert run.status == "paused"
        hf.requeue(run.id)
        drained(hf)
        assert (run.result, run.head.timeline) == ("b", 2)
        assert world.told() == ["a", "b", "b"]

    def test_requeue_with_another_queue_and_a_delay(self, hf: Holdfast, world: World) -> None:
        run = hf.enqueue(flows.marking, "a")
        hf.pause(run.id)
        hf.requeue(run.id, queue="slow", priority=-1, delay=0.3)
        assert [queue.name for queue in hf.queues()] == ["slow"]
        with hf.worker(queues=["slow"]):
            run.wait(20)

    def test_requeue_of_a_run_that_was_never_queued_needs_a_queue(self, hf: Holdfast, world: World) -> None:
        run = hf.run(flows.failing, "y", raises=False)
        with pytest.raises(InvalidCall, match="never in a queue"):
            hf.requeue(run.id)
        world.open("mended-y")
        hf.requeue(run.id, queue="q")
        drained(hf, queues=["q"])
        assert run.result == "y"

    def test_requeue_refuses_a_run_that_cannot_continue(self, hf: Holdfast) -> None:
        done = hf.run(flows.empty)
        with pytest.raises(InvalidCall, match="is completed"):
            hf.requeue(done.id, queue="q")
        waiting = hf.enqueue(flows.empty)
        hf.cancel(waiting.id)
        with pytest.raises(InvalidCall, match="is cancelled"):
            hf.requeue(waiting.id)
        hf.history("by-hand").commit({})
        with pytest.raises(InvalidCall, match="is a manual run"):
            hf.requeue("by-hand", queue="q")
        with pytest.raises(NotFound):
            hf.requeue("nobody")
        asks = hf.run(flows.parent)
        with pytest.raises(InvalidCall, match="is a part of"):
            hf.requeue(asks.children[0], queue="q")
