"""What workers do with runs: execute, suspend, go on, leave alone what is not theirs."""

from __future__ import annotations

import asyncio
import threading
from typing import Any
from uuid import uuid4

import fleet_flows as flows
import pytest
from worker_processes import Crew, World, wait_until

import holdfast
from database import Database
from holdfast import Holdfast, InvalidCall, StepFailed, step, workflow
from holdfast.testing import isolated_definitions

pytest_plugins = ["postgres_fixtures"]


def test_several_workers_execute_each_run_once(hf: Holdfast, crew: Crew, world: World) -> None:
    crew.hire(3, concurrency=2)
    gates = [f"g{number}" for number in range(6)]
    for name in gates:
        hf.enqueue(flows.gated, name)
    for name in gates:
        world.until(f"begin {name}")
    # As many as all of them together have places for.
    assert len({pid for text, pid, _ in world.lines() if text.startswith("begin")}) == 3
    runs = [hf.enqueue(flows.adding, 3) for _ in range(40)]
    world.open(*(f"go-{name}" for name in gates))
    assert [run.wait(50).result for run in runs] == [6] * 40
    assert all(run.state == {"sum": 3} for run in runs)
    keys = world.told("add")
    assert len(keys) == len(set(keys)) == 120


def test_worker_executes_blocking_workflows_in_parallel(hf: Holdfast, world: World) -> None:
    runs = [hf.enqueue(flows.gated, f"g{number}") for number in range(3)]
    with hf.worker(concurrency=3) as worker:
        for number in range(3):
            world.until(f"begin g{number}")
        assert sorted(worker.active) == sorted(run.id for run in runs)
        assert world.told("end") == []
        world.open("go-g0", "go-g1", "go-g2")
        for run in runs:
            run.wait(60)
    assert worker.done == 3


def test_worker_executes_at_most_concurrency_runs(hf: Holdfast, world: World) -> None:
    for number in range(3):
        hf.enqueue(flows.gated, f"g{number}")
    with hf.worker(concurrency=2):
        world.until("begin g0").until("begin g1")
        assert hf.queues()[0].runs == {"running": 2, "queued": 1}
        world.open("go-g0", "go-g1", "go-g2")
        world.until("after g2")


def test_worker_executes_async_workflows_in_one_event_loop(hf: Holdfast, world: World) -> None:
    seen: set[Any] = set()

    @step(name="f_where")
    async def where_am_i() -> None:
        seen.add((threading.get_ident(), id(asyncio.get_running_loop())))

    @workflow(name="f_loops")
    async def loops() -> int:
        await where_am_i()
        await asyncio.sleep(0.01)
        await where_am_i()
        return 1

    runs = [hf.enqueue(loops) for _ in range(30)]
    with hf.worker(concurrency=30):
        assert [run.wait(60).result for run in runs] == [1] * 30
    assert len(seen) == 1


def test_worker_leaves_unknown_workflows_to_others(hf: Holdfast, crew: Crew, world: World) -> None:
    strange = [hf.enqueue("f_strange", number, priority=5) for number in range(30)]
    ours = hf.enqueue(flows.marking, "ours")
    with hf.worker(concurrency=2):
        assert ours.wait(60).result == "ours"
        assert {run.status for run in strange} == {"queued"}
    crew.hire(defines=["f_strange"])
    for run in strange:
        run.wait(40)


def test_worker_continues_after_a_failed_workflow(hf: Holdfast, world: World) -> None:
    broken, fine = hf.enqueue(flows.failing, "x"), hf.enqueue(flows.marking, "y")
    with hf.worker(concurrency=1):
        fine.wait(60)
    assert broken.status == "failed"
    assert isinstance(broken.error, ValueError)
    assert str(broken.error) == "x is broken"
    assert world.told("boom") == ["boom x"]


@pytest.mark.parametrize("way", ["exit", "interrupt", "cancel"])
def test_worker_survives_exceptions_that_end_a_process(hf: Holdfast, world: World, way: str) -> None:
    errors = {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "cancel": asyncio.CancelledError()}

    @workflow(name="f_ends")
    def ends() -> None:
        flows.mark("once")
        raise errors[way]

    @workflow(name="f_aends")
    async def aends() -> None:
        await flows.awhile("once")
        raise errors[way]

    for flow in (ends, aends):
        run, after = hf.enqueue(flow), hf.enqueue(flows.marking, "after")
        with hf.worker(concurrency=1):
            after.wait(60)
        assert run.status == "failed"
        assert isinstance(run.error, asyncio.CancelledError if way == "cancel" else StepFailed)
        assert type(errors[way]).__name__ in repr(run.error)
    assert world.told("once") == ["once"] * 2


def test_run_whose_arguments_do_not_fit_fails(hf: Holdfast) -> None:
    name = f"f_later_{uuid4().hex}"
    run = hf.enqueue(name, 1, 2)

    @workflow(name=name)
    def later(one: int) -> int:
        return one

    with hf.worker():
        run.wait(60)
    assert run.status == "failed"
    assert "later" in str(run.error)


@pytest.mark.parametrize("changed", ["warn", "refuse", "allow"])
def test_worker_follows_the_policy_for_changed_code(hf: Holdfast, world: World, changed: Any) -> None:
    @workflow(name="f_changing", changed=changed)
    def before() -> str:
        return flows.mark("old")

    fresh = hf.enqueue(before)
    begun = hf.enqueue(before)

    with isolated_definitions():

        @workflow(name="f_changing", changed=changed)
        def after() -> str:
            return flows.mark("new") + "!"

        with hf.worker():
            for run in (fresh, begun):
                run.wait(60)
    if changed == "refuse":
        assert fresh.status == begun.status == "failed"
        assert isinstance(fresh.error, holdfast.CodeChanged)
        assert world.told() == []
    else:
        assert fresh.result == begun.result == "new!"


class TestWaiting:
    def test_suspended_run_continues_after_an_answer_from_elsewhere(
        self, hf: Holdfast, crew: Crew, world: World
    ) -> None:
        run = hf.enqueue(flows.asking)
        crew.hire()
        (prompt,) = wait_until(run.questions)
        wait_until(lambda: run.status == "suspended")
        hf.answer(prompt.id, "yes", resume=False)
        assert wait_until(lambda: run.status == "completed" and run.result) == "answer yes"
        assert world.told("before") == ["before the question"]
        pids = {pid for text, pid, _ in world.lines() if not text.startswith("worker")}
        assert pids == {crew.members[0].pid}

    def test_suspended_run_continues_at_its_time(self, hf: Holdfast, world: World) -> None:
        run = hf.enqueue(flows.sleeping, 0.4)
        with hf.worker():
            wait_until(lambda: run.status == "suspended")
            wait_until(lambda: run.status == "completed")
        (tired, _, first), (awake, _, then) = world.lines()
        assert (tired, awake) == ("tired", "awake")
        assert then - first >= 0.4

    def test_suspended_run_continues_after_a_signal(self, hf: Holdfast) -> None:
        run = hf.enqueue(flows.waiting, "bell")
        early = hf.enqueue(flows.waiting, "bell")
        hf.signal(early.id, "bell", {"n": 1}, resume=False)
        with hf.worker():
            wait_until(lambda: run.status == "suspended")
            hf.signal(run.id, "bell", {"n": 2}, resume=False)
            wait_until(lambda: run.status == early.status == "completed")
        assert (run.result, early.result) == (["waits", {"n": 2}], ["waits", {"n": 1}])

    def test_suspended_run_continues_after_its_child(self, hf: Holdfast, crew: Crew) -> None:
        run = hf.enqueue(flows.parent)
        crew.hire()
        wait_until(lambda: run.status == "suspended")
        (prompt,) = hf.inbox()
        hf.answer(prompt.id, "fine", resume=False)
        assert wait_until(lambda: run.status == "completed" and run.result) == "the child says answer fine"

    def test_answer_during_suspension_is_not_lost(self, hf: Holdfast, world: World) -> None:
        # Answered as soon as the question can be seen, again and again: some answers come before the run is suspended.
        answered: set[str] = set()

        def all_answered() -> bool:
            for prompt in hf.inbox():
                if prompt.id not in answered:
                    answered.add(prompt.id)
                    hf.answer(prompt.id, "yes", resume=False)
            return all(run.status == "completed" for run in runs)

        runs = [hf.enqueue(flow) for flow in (flows.asking, flows.parent) for _ in range(15)]
        with hf.worker(concurrency=8):
            wait_until(all_answered)

    def test_invalid_answer_changes_nothing(self, hf: Holdfast) -> None:
        run = hf.enqueue(flows.asking)
        with hf.worker():
            wait_until(lambda: run.status == "suspended")
            with pytest.raises(holdfast.InvalidAnswer):
                hf.answer(run.questions()[0].id, 7, resume=False)
            assert run.status == "suspended"
            hf.answer(run.questions()[0].id, "seven", resume=False)
            wait_until(lambda: run.status == "completed")


class TestStopping:
    def test_queued_run_can_be_cancelled_and_paused(self, hf: Holdfast, world: World) -> None:
        cancelled, paused = hf.enqueue(flows.marking, "a"), hf.enqueue(flows.marking, "b")
        hf.cancel(cancelled.id, reason="no")
        hf.pause(paused.id)
        last = hf.enqueue(flows.marking, "c")
        with hf.worker(concurrency=1):
            last.wait(60)
            assert (cancelled.status, paused.status) == ("cancelled", "paused")
            hf.requeue(paused.id)
            paused.wait(60)
        assert world.told() == ["c", "b"]

    @pytest.mark.parametrize("what", ["cancel", "pause"])
    def test_run_of_another_process_stops_at_the_next_boundary(
        self, hf: Holdfast, crew: Crew, world: World, what: str
    ) -> None:
        run = hf.enqueue(flows.gated, "g")
        crew.hire()
        world.until("begin g")
        getattr(hf, what)(run.id)
        world.open("go-g")
        wait_until(lambda: run.status == {"cancel": "cancelled", "pause": "paused"}[what])
        assert world.told("after") == []
        if what == "pause":
            hf.requeue(run.id)
            wait_until(lambda: run.status == "completed")
            assert world.told("before", "begin", "after") == ["before g", "begin g", "after g"]

    def test_running_run_is_not_requeued(self, hf: Holdfast, world: World) -> None:
        run = hf.enqueue(flows.gated, "g")
        with hf.worker():
            world.until("begin g")
            with pytest.raises(holdfast.AlreadyRunning):
                hf.requeue(run.id)
            world.open("go-g")
            run.wait(60)


def test_worker_finishes_an_interrupted_rollback(hf: Holdfast, world: World) -> None:
    interrupts = [KeyboardInterrupt()]

    def send_back(result: str) -> None:
        if interrupts:
            raise interrupts.pop()
        flows.did("sent back")

    @step(name="f_order", compensate=send_back)
    def order() -> str:
        flows.did("ordered")
        return "order"

    @workflow(name="f_ordering")
    def ordering() -> str:
        flows.mark("before")
        return order()

    run = hf.enqueue(ordering)
    with hf.worker():
        run.wait(60)
    with pytest.raises(KeyboardInterrupt):
        hf.rollback(run.id, to=2, resume=False)
    assert run.status == "running"
    with hf.worker():
        run.wait(60)
    assert run.result == "order"
    assert run.head.timeline == 2
    assert world.told() == ["before", "ordered", "sent back", "ordered"]


def test_step_in_a_worker_may_fork_the_process(hf: Holdfast, crew: Crew) -> None:
    runs = [hf.enqueue(flows.forking) for _ in range(6)]
    crew.hire(concurrency=3)
    assert [run.wait(40).result for run in runs] == [9] * 6


def test_run_with_a_damaged_head_fails_once(where: str, world: World) -> None:
    if "://" in where:
        pytest.skip("damages a SQLite file")
    with holdfast.open(where) as hf:
        run = hf.enqueue(flows.marking, "a")
    with Database(where) as connection:
        connection.execute("UPDATE journal SET pack = zeroblob(20) WHERE number = 1")
    with holdfast.open(where) as hf:
        fine = hf.enqueue(flows.marking, "b")
        with hf.worker(concurrency=1):
            fine.wait(60)
            wait_until(lambda: hf.get(run.id).status == "failed")
        assert isinstance(hf.get(run.id).error, holdfast.CorruptVersion)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"queues": []}, "at least one queue"),
        ({"queues": [""]}, "queue has a name"),
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": "many"}, "concurrency"),
        ({"poll": -1}, "poll"),
    ],
)
def test_worker_refuses_invalid_arguments(hf: Holdfast, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidCall, match=words):
        hf.worker(**options)


@pytest.mark.parametrize("lease", [0, -1, 0.01, "long", 10**6, None])
def test_open_refuses_an_invalid_lease(lease: Any) -> None:
    with pytest.raises(InvalidCall, match="lease is a number of seconds"):
        holdfast.open(":memory:", lease=lease)


def test_worker_executes_runs_of_a_memory_store(world: World) -> None:
    with holdfast.open(":memory:") as hf:
        runs = [hf.enqueue(flow, number) for number in range(10) for flow in (flows.empty, flows.aempty)]
        with hf.worker():
            assert sum(run.wait(60).result for run in runs) == 90


def test_worker_stops_when_the_store_closes(tmp_path: Any, world: World) -> None:
    hf = holdfast.open(tmp_path / "runs.db")
    run = hf.enqueue(flows.marking, "a")
    worker = hf.worker().start()
    run.wait(60)
    hf.close()
    assert worker.join(0)
    with pytest.raises(InvalidCall, match="started once"):
        worker.start()


def test_worker_merges_parallel_changes_by_the_reducers_of_the_workflow(hf: Holdfast) -> None:
    with isolated_definitions():

        @step
        async def add(number: int) -> None:
            holdfast.state()["sum"] += number

        @step
        def add_in_thread(number: int) -> None:
            holdfast.state()["sum"] += number

        @workflow(merge={"sum": "sum"})
        async def tasks() -> None:
            await asyncio.gather(*map(add, (1, 2, 3)))

        @workflow(merge={"sum": "sum"})
        def threads() -> None:
            holdfast.parallel(*((add_in_thread, number) for number in (1, 2, 3)))

        runs = [hf.enqueue(flow, state={"sum": 0}) for flow in (tasks, threads)]
        with hf.worker():
            assert [run.wait(60).status for run in runs] == ["completed"] * 2
        assert [run.state["sum"] for run in runs] == [6, 6]
