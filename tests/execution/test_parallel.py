"""Parallel steps: all changes are merged, and finished branches stay finished."""

from __future__ import annotations

import asyncio
import threading
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import step_fixtures
import step_flows as f
from parallel_flows import aadd, add
from step_flows import Broken, control

import holdfast
from growth import growth
from holdfast import Holdfast, InvalidCall, Run, step, workflow
from holdfast.testing import isolated_definitions

fresh, hf = step_fixtures.fresh, step_fixtures.hf


@workflow
def in_threads(count: int) -> list[int]:
    found: list[int] = holdfast.parallel(*[(add, n) for n in range(count)])
    return found


@workflow
async def in_gather(count: int) -> list[int]:
    return await asyncio.gather(*[aadd(n) for n in range(count)])


@workflow
async def in_group(count: int) -> list[int]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(aadd(n)) for n in range(count)]  # type: ignore[arg-type, unused-ignore]
    return [task.result() for task in tasks]


@workflow
async def in_aparallel(count: int) -> list[int]:
    found: list[int] = await holdfast.parallel(*[(aadd, n) for n in range(count)])
    return found


@workflow
async def in_gather_of_workers(count: int) -> list[int]:
    async def worker(n: int) -> int:
        return await aadd(n)

    return await asyncio.gather(*[worker(n) for n in range(count)])


KINDS = [in_threads, in_gather, in_group, in_aparallel, in_gather_of_workers]


@pytest.mark.parametrize("flow", KINDS)
@pytest.mark.parametrize("count", [2, 64])
def test_parallel_changes_are_all_merged(hf: Holdfast, flow: Any, count: int) -> None:
    run = hf.run(flow, count, state={"list": []})
    assert run.result == [n * 10 for n in range(count)]
    assert sorted(run.state["list"]) == list(range(count))
    assert {run.state[f"key-{n}"] for n in range(count)} == set(range(count))
    versions = run.history().versions(limit=1000)
    assert [version.number for version in versions] == list(range(count + 2, 0, -1))
    assert len({version.address for version in versions if version.kind == "step"}) == count


@pytest.mark.parametrize("flow", KINDS)
def test_parallel_failure_keeps_finished_branches(hf: Holdfast, flow: Any) -> None:
    control.failing["add-2"] = 3
    run = hf.run(flow, 5, state={"list": []}, raises=False)
    assert run.status == "failed"
    assert isinstance(run.error, Broken | ExceptionGroup)
    for _ in range(2):
        assert hf.resume(run.id, raises=False).status == "failed"
    assert hf.resume(run.id).result == [0, 10, 20, 30, 40]
    assert control.ran.count("add-2") == 4
    assert control.ran.count("add-0") == control.ran.count("add-1") == 1
    if flow is not in_group:  # which cancels the others
        assert sorted(control.ran) == ["add-0", "add-1", *["add-2"] * 4, "add-3", "add-4"]
    assert sorted(run.state["list"]) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_parallel_limit_bounds_concurrent_branches(hf: Holdfast, kind: str) -> None:
    now, most = 0, 0
    lock = threading.Lock()

    def enter(by: int) -> None:
        nonlocal now, most
        with lock:
            now += by
            most = max(most, now)

    @step
    def busy(n: int) -> int:
        enter(1)
        control.gate.wait(0.005)
        enter(-1)
        return n

    @step(name="abusy")
    async def abusy(n: int) -> int:
        enter(1)
        await asyncio.sleep(0.005)
        enter(-1)
        return n

    @workflow(name="limited")
    def limited() -> list[int]:
        found: list[int] = holdfast.parallel(*[(busy, n) for n in range(12)], limit=3)
        return found

    @workflow(name="alimited")
    async def alimited() -> list[int]:
        found: list[int] = await holdfast.parallel(*[(abusy, n) for n in range(12)], limit=3)
        return found

    assert hf.run(limited if kind == "thread" else alimited).result == list(range(12))
    assert 2 <= most <= 3


@workflow
def nested_parallel() -> list[list[int]]:
    def part(base: int) -> list[int]:
        found: list[int] = holdfast.parallel(*[(add, base + n) for n in range(3)])
        return found

    found: list[list[int]] = holdfast.parallel((part, 0), (part, 10))
    control.did("end")
    return found


@workflow
async def anested_parallel() -> list[list[int]]:
    async def part(base: int) -> list[int]:
        found: list[int] = await holdfast.parallel(*[(aadd, base + n) for n in range(3)])
        return found

    found: list[list[int]] = await holdfast.parallel((part, 0), (part, 10))
    control.did("end")
    return found


@pytest.mark.parametrize("flow", [nested_parallel, anested_parallel])
def test_parallel_blocks_nest(hf: Holdfast, flow: Any) -> None:
    control.failing.update({"add-11": 1, "end": 1})
    run = hf.run(flow, state={"list": []}, raises=False)
    assert run.status == "failed"
    assert hf.resume(run.id, raises=False).status == "failed"
    assert hf.resume(run.id).result == [[0, 10, 20], [100, 110, 120]]
    assert sorted(run.state["list"]) == [0, 1, 2, 10, 11, 12]
    assert len(control.ran) == 9


@step
def fan_out() -> list[int]:
    holdfast.state()["fan"] = True
    found: list[int] = holdfast.parallel(*[(add, n) for n in range(4)])
    state = holdfast.state()
    state["sum"] = sum(state["list"])
    return found


with isolated_definitions():

    @step(name="fan_out")
    async def afan_out() -> list[int]:
        holdfast.state()["fan"] = True
        found = await asyncio.gather(*[aadd(n) for n in range(4)])
        state = holdfast.state()
        state["sum"] = sum(state["list"])
        return found


@workflow
def step_in_parallel() -> list[int]:
    return fan_out()


@workflow
async def astep_in_parallel() -> list[int]:
    return await afan_out()


@pytest.mark.parametrize("flow", [step_in_parallel, astep_in_parallel])
def test_parallel_steps_run_inside_a_step(hf: Holdfast, flow: Any) -> None:
    run = hf.run(flow, state={"list": []})
    assert run.result == [0, 10, 20, 30]
    assert run.state["sum"] == 6
    assert run.state["fan"] is True


def _in_turn(order: list[int], turns: list[threading.Event], n: int) -> int:
    """Add as soon as the one before in the order has added."""
    place = order.index(n)
    if place:
        assert turns[order[place - 1]].wait(60)
    try:
        return add(n)
    finally:
        turns[n].set()


@step
def add_in_turn(order: list[int]) -> int:
    turns = [threading.Event() for _ in order]
    holdfast.state()["fan"] = True
    holdfast.parallel(*[(_in_turn, order, turns, n) for n in range(len(order))])
    state = holdfast.state()
    return sum(state["list"])


@workflow
def adding_in_turn(order: list[int]) -> int:
    return add_in_turn(order)


def test_step_sees_the_changes_of_its_parallel_steps_in_any_order(hf: Holdfast) -> None:
    for order in permutations(range(4)):
        run = hf.run(adding_in_turn, list(order), state={"list": []})
        assert run.state["list"] == list(order)
        assert run.result == 6


@step
async def put(n: int) -> None:
    holdfast.state()[f"key-{n}"] = n


@workflow
async def in_reverse(count: int) -> int:
    turns = [asyncio.Event() for _ in range(count)]

    async def put_in_turn(n: int) -> None:
        if n + 1 < count:
            await turns[n + 1].wait()
        await put(n)
        turns[n].set()

    await holdfast.parallel(*[(put_in_turn, n) for n in range(count)])
    return len(holdfast.state())


@pytest.mark.slow
def test_branch_cost_does_not_grow_with_the_number_of_branches() -> None:
    with holdfast.open(":memory:") as hf:
        assert hf.run(in_reverse, 7, state={}).result == 7
        assert growth(lambda count: hf.run(in_reverse, count, state={}), lambda size: size, 50) < 24


@workflow
async def mixed() -> list[Any]:
    """Steps that are functions, called by tasks together with asynchronous ones."""

    async def plain(n: int) -> int:
        await asyncio.sleep(0)
        return add(n)

    return list(await asyncio.gather(*[aadd(n) for n in range(5)], *[plain(n) for n in range(5, 10)]))


@pytest.mark.slow
def test_blocking_steps_do_not_deadlock_with_asynchronous_ones(tmp_path: Path) -> None:
    body = """
import faulthandler, test_parallel as t
faulthandler.dump_traceback_later(5, exit=True)
r = hf.run(t.mixed, state={"list": []})
print(sorted(r.state["list"]), r.result)"""
    wanted = f"{list(range(10))} {[n * 10 for n in range(10)]}"
    assert f.elsewhere(tmp_path / "runs.db", body) == wanted


@pytest.mark.filterwarnings("ignore:coroutine")
def test_asynchronous_step_in_threads_is_refused(hf: Holdfast) -> None:
    @workflow(name="confused")
    def confused() -> Any:
        return holdfast.parallel((aadd, 1))

    run = hf.run(confused, state={"list": []}, raises=False)
    assert run.status == "failed"
    assert isinstance(run.error, InvalidCall)
    assert "parallel" in str(run.error)


def test_parallel_runs_functions_outside_a_run() -> None:
    assert holdfast.parallel(lambda: 1, (max, 2, 3)) == [1, 3]
    assert holdfast.parallel() == []

    async def two() -> list[Any]:
        async def one() -> int:
            return 1

        found: list[Any] = await holdfast.parallel(one, (max, 2, 3))
        return found

    assert asyncio.run(two()) == [1, 3]


@workflow
async def crowd() -> list[int]:
    found = await asyncio.gather(*[aadd(n) for n in range(8)], return_exceptions=True)
    return [each for each in found if isinstance(each, int)]


def test_failures_gathered_by_the_workflow_are_results(hf: Holdfast) -> None:
    control.failing.update({"add-1": 1, "add-5": 1})
    run = hf.run(crowd, state={"list": []})
    assert run.result == [0, 20, 30, 40, 60, 70]
    assert sorted(run.state["list"]) == [0, 2, 3, 4, 6, 7]
    assert hf.resume(run.id).result == [0, 20, 30, 40, 60, 70]
    assert len(control.ran) == 8


def test_concurrent_runs_do_not_affect_each_other(hf: Holdfast) -> None:
    async def all_of_them() -> list[Run]:
        return await asyncio.gather(
            *[hf.arun(in_gather, 3, run_id=f"run-{n}", state={"list": [], "n": n}) for n in range(20)]
        )

    for n, run in enumerate(asyncio.run(all_of_them())):
        assert run.result == [0, 10, 20]
        assert sorted(run.state["list"]) == [0, 1, 2]
        assert run.state["n"] == n
        assert run.head.number == 5


def test_blocking_steps_in_threads_run_with_asynchronous_ones(hf: Holdfast) -> None:
    @workflow(name="mixed_threads")
    async def mixed_threads() -> list[int]:
        in_thread = [asyncio.to_thread(add, n) for n in range(5)]
        return list(await asyncio.gather(*in_thread, *[aadd(n) for n in range(5, 10)]))

    run = hf.run(mixed_threads, state={"list": []})
    assert run.result == [n * 10 for n in range(10)]
    assert sorted(run.state["list"]) == list(range(10))


@pytest.mark.slow
def test_run_cancelled_at_any_moment_resumes_completely(hf: Holdfast) -> None:
    @workflow(name="long_line")
    async def long_line() -> list[int]:
        return [await aadd(n) for n in range(40)]

    async def all_of_it() -> None:
        for turn in range(8):
            name = f"turn-{turn}"
            task = asyncio.ensure_future(hf.arun(long_line, run_id=name, state={"list": []}))
            while len(control.ran) < 1 + turn * 4 and not task.done():
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait({task})
            run = await hf.aresume(name)
            assert run.result == [n * 10 for n in range(40)]
            assert run.state["list"] == list(range(40))
            assert run.head.number == 42
            control.ran.clear()

    asyncio.run(all_of_it())


@workflow
def parallel_then_after() -> list[int]:
    found: list[int] = holdfast.parallel((add, 1), (add, 2))
    return found


def test_fork_from_the_first_version_runs_one_branch_again(hf: Holdfast) -> None:
    hf.run(parallel_then_after, run_id="origin", state={"kept": True, "list": []})
    hf.fork("origin", "fork", at=1)
    before = hf.resume("fork")
    (last,) = hf.history("fork").versions(step="add", limit=1)
    again = hf.resume("fork", from_address=str(last.address))
    assert again.result == before.result
    assert again.state == before.state
    assert again.state["kept"] is True


def test_fork_of_an_edited_run_replays_its_branches(hf: Holdfast) -> None:
    hf.run(parallel_then_after, run_id="origin", state={"list": []})
    with hf.history("origin").edit() as state:
        state["byhand"] = True
    hf.fork("origin", "fork")
    control.ran.clear()
    assert hf.resume("fork").result == hf.get("origin").result
    assert hf.get("fork").state["byhand"] is True
    assert control.ran == []
