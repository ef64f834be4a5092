"""Recorded results come back in the order in which they were recorded, so that races end as they did."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Run, step, workflow

pytest_plugins = ["postgres_fixtures"]

NAMES = ["a", "b", "c", "d", "e", "f", "g", "h"]
#: Not that in which the calls are made.
ORDER = ["d", "b", "h", "a", "g", "c", "f", "e"]


class Live:
    """Lets steps end in a given order while they really run, and notes what the workflow sees."""

    def __init__(self) -> None:
        self.begin([])

    def begin(self, order: list[str]) -> None:
        self.order = order
        self.ran: list[str] = []
        self.seen: list[Any] = []
        self.turns = {name: threading.Event() for name in order}
        self.failing = True
        self.stop: Callable[[], object] = list
        if order:
            self.turns[order[0]].set()

    def saw(self, name: str) -> None:
        """The workflow has got the result of a step: the next one may end."""
        self.seen.append(name)
        place = self.order.index(name) + 1
        if place < len(self.order):
            self.turns[self.order[place]].set()


live = Live()


def both(hf: Holdfast, flow: Callable[..., Any], *args: Any, order: list[str] = ORDER) -> tuple[Run, Run]:
    """A run that fails at its end, and the same once it is resumed."""
    live.begin(list(order))
    first = hf.run(flow, *args, raises=False)
    assert first.status == "failed", first.status
    assert isinstance(first.error, RuntimeError), first.error
    ran, seen = live.ran, live.seen
    live.begin(list(order))
    live.failing = False
    for turn in live.turns.values():
        turn.set()
    again = hf.resume(first.id)
    assert live.ran == [], "a recorded step was run again"
    assert ran
    assert live.seen == seen
    return first, again


@step(name="order_ordered")
async def ordered(name: str) -> str:
    live.ran.append(name)
    turn = live.turns[name]
    while not turn.is_set():
        await asyncio.sleep(0.001)
    return name


@step(name="order_ordered_plain")
def ordered_plain(name: str) -> str:
    live.ran.append(name)
    assert live.turns[name].wait(60)
    return name


@step(name="order_at_once")
def at_once(name: str) -> str:
    live.ran.append(name)
    return name


@step(name="order_after")
async def after(name: str) -> str:
    live.ran.append(f"after {name}")
    return name


@step(name="order_last")
async def last() -> str:
    if live.failing:
        raise RuntimeError("at the end")
    return "last"


@step(name="order_last_plain")
def last_plain() -> str:
    if live.failing:
        raise RuntimeError("at the end")
    return "last"


@workflow(name="order_completed_first")
async def completed_first(make_tasks: bool) -> list[str]:
    calls: list[Any] = [ordered(name) for name in NAMES]
    if make_tasks:
        calls = [asyncio.create_task(call) for call in calls]
    found = []
    for each in asyncio.as_completed(calls):
        found.append(await each)
        live.saw(found[-1])
    await last()
    return found


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    place = {"memory": ":memory:", "sqlite": str(tmp_path / "runs.db")}.get(request.param)
    with holdfast.open(place or request.getfixturevalue("url")) as engine:
        yield engine


@pytest.fixture
def memory() -> Iterator[Holdfast]:
    with holdfast.open(":memory:") as engine:
        yield engine


@pytest.mark.parametrize("make_tasks", [False, True])
def test_as_completed_sees_the_recorded_order(hf: Holdfast, make_tasks: bool) -> None:
    assert both(hf, completed_first, make_tasks)[1].result == ORDER


@workflow(name="order_raced")
async def raced() -> list[list[str]]:
    """The winner of each round decides which step is called next."""
    pending = {asyncio.create_task(ordered(name), name=name) for name in NAMES}
    rounds = []
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        rounds.append(sorted(task.get_name() for task in done))
        for name in rounds[-1]:
            await after(name)
            live.saw(name)
    await last()
    return rounds


def test_first_completed_is_the_same_on_replay(hf: Holdfast) -> None:
    assert both(hf, raced)[1].result == [[name] for name in ORDER]


@step(name="order_at_once_async")
async def at_once_async(name: str) -> str:
    live.ran.append(name)
    return name


@workflow(name="order_together")
async def together() -> list[list[str]]:
    """Steps that end at about the same time."""
    pending = {asyncio.create_task(at_once_async(name), name=name) for name in NAMES * 4}
    rounds = []
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        rounds.append([task.get_name() for task in done])
    live.seen.append(rounds)
    await last()
    return rounds


def test_results_that_come_together_are_returned_one_by_one(hf: Holdfast) -> None:
    _, again = both(hf, together, order=[])
    versions = sorted(hf.history(again.id).iter_versions(), key=lambda version: version.number)
    assert again.result == [[version.result] for version in versions if version.step == "order_at_once_async"]


@workflow(name="order_deep")
async def deep() -> list[str]:
    """Code learns of a result through tasks that wait for tasks."""
    found: list[str] = []

    async def within(name: str, depth: int) -> str:
        if depth == 0:
            return await at_once_async(name)
        return await asyncio.create_task(within(name, depth - 1))

    async def note(name: str, depth: int) -> None:
        found.append(await within(name, depth))

    await asyncio.gather(*(note(name, depth) for depth, name in enumerate(NAMES)))
    live.seen.append(found)
    await last()
    return found


def test_code_learns_of_a_result_before_the_next_one(memory: Holdfast) -> None:
    _, again = both(memory, deep, order=[])
    versions = sorted(memory.history(again.id).iter_versions(), key=lambda version: version.number)
    assert again.result == [version.result for version in versions if version.step == "order_at_once_async"]


@step(name="order_failing_in_turn")
async def failing_in_turn(name: str) -> str:
    live.ran.append(name)
    turn = live.turns[name]
    while not turn.is_set():
        await asyncio.sleep(0.001)
    raise ValueError(name)


@workflow(name="order_some_fail")
async def some_fail() -> list[str]:
    calls = [failing_in_turn(name) if name in "bhg" else ordered(name) for name in NAMES]
    found: list[str] = []
    for each in asyncio.as_completed([asyncio.create_task(call) for call in calls]):
        try:
            found.append(await each)
        except ValueError as error:
            found.append(str(error))
        live.saw(found[-1])
        if len(found) == 4:
            await after("four")
    await last()
    return found


def test_failures_keep_their_place_in_the_order(hf: Holdfast) -> None:
    _, again = both(hf, some_fail)
    assert again.result == ORDER
    fork = hf.fork(f"{again.id}~2")
    live.begin(list(ORDER))
    live.failing = False
    assert hf.resume(fork.id).result == ORDER
    assert live.ran == []


@workflow(name="order_loses")
async def loses() -> list[str]:
    """The steps that have lost are cancelled, and are not recorded."""
    tasks = [asyncio.create_task(ordered(name)) for name in NAMES]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    found = [await after(task.result()) for task in done]
    live.seen.append(found)
    await last()
    return found


def test_step_that_lost_a_race_is_not_started_again(hf: Holdfast) -> None:
    assert both(hf, loses)[1].result == [ORDER[0]]


@step(name="order_broken")
async def broken(name: str) -> str:
    if not live.turns:
        raise LookupError(name)
    live.ran.append(name)
    return name


@step(name="order_broken_plain")
def broken_plain(name: str) -> str:
    if not live.turns:
        raise LookupError(name)
    live.ran.append(name)
    return name


@workflow(name="order_limited")
async def limited() -> list[str]:
    """One branch at a time: those after the one that fails begin because it has failed."""
    found: list[str] = []

    async def work(name: str) -> None:
        found.append(await (broken(name) if name == "b" else at_once_async(name)))

    await holdfast.parallel(*((work, name) for name in NAMES), limit=1)
    live.seen.append(found)
    await last()
    return found


@workflow(name="order_limited_threads")
def limited_threads() -> list[str]:
    found: list[str] = []

    def work(name: str) -> None:
        found.append(broken_plain(name) if name == "b" else at_once(name))

    holdfast.parallel(*((work, name) for name in NAMES), limit=1)
    live.seen.append(found)
    last_plain()
    return found


@pytest.mark.parametrize("flow", [limited, limited_threads])
def test_result_of_a_resumed_run_keeps_its_place_before_recorded_ones(
    memory: Holdfast, monkeypatch: pytest.MonkeyPatch, flow: Any
) -> None:
    """The later branches are recorded, and can only ask for their results once the broken one has its own."""
    monkeypatch.setattr("holdfast.execution.replay_order._PATIENCE", 1e9)
    live.begin([])
    run = memory.run(flow, raises=False)
    assert isinstance(run.error, LookupError)
    assert live.ran == [name for name in NAMES if name != "b"]
    for failing in (True, False):
        live.begin(list(ORDER))
        live.failing = failing
        run = memory.resume(run.id, raises=False)
        assert live.seen == [NAMES]
        assert live.ran == (["b"] if failing else [])
    assert run.result == NAMES


@workflow(name="order_busy")
async def busy() -> list[str]:
    """A task that never waits does not keep others from their results."""

    async def spin() -> None:
        while True:
            await asyncio.sleep(0)

    spinning = asyncio.create_task(spin())
    found: list[str] = []

    async def work(name: str) -> None:
        found.append(await ordered(name))
        live.saw(name)

    await asyncio.gather(*(work(name) for name in NAMES))
    spinning.cancel()
    await last()
    return found


def test_busy_event_loop_keeps_the_order(memory: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.execution.replay_order._PATIENCE", 1e9)
    assert both(memory, busy)[1].result == ORDER


@workflow(name="order_queued")
async def queued() -> list[str]:
    results: asyncio.Queue[str] = asyncio.Queue()

    async def work(name: str) -> None:
        await results.put(await ordered(name))

    found = []
    async with asyncio.TaskGroup() as group:
        for name in NAMES:
            group.create_task(work(name))
        for _ in NAMES:
            found.append(await results.get())
            live.saw(found[-1])
            await after(found[-1])
    await last()
    return found


def test_queue_between_tasks_gets_the_recorded_order(memory: Holdfast) -> None:
    assert both(memory, queued)[1].result == ORDER


@workflow(name="order_in_parallel")
async def in_parallel(limit: int | None) -> list[str]:
    found: list[str] = []

    async def work(name: str) -> None:
        found.append(await ordered(name))
        live.saw(name)
        await after(name)

    await holdfast.parallel(*((work, name) for name in NAMES), limit=limit)
    await last()
    return found


def test_asynchronous_parallel_sees_the_recorded_order(memory: Holdfast) -> None:
    assert both(memory, in_parallel, None)[1].result == ORDER
    limited = ["b", "c", "a", "d", "f", "e", "h", "g"]
    assert both(memory, in_parallel, 2, order=limited)[1].result == limited


@workflow(name="order_in_threads")
def in_threads(limit: int | None) -> list[str]:
    found: list[str] = []

    def work(name: str) -> None:
        found.append(ordered_plain(name))
        live.saw(name)

    holdfast.parallel(*((work, name) for name in NAMES), limit=limit)
    last_plain()
    return found


@pytest.mark.parametrize("limit", [8, 2])
def test_threads_of_parallel_see_the_recorded_order(hf: Holdfast, limit: int) -> None:
    order = ORDER if limit == 8 else ["b", "c", "a", "d", "f", "e", "h", "g"]
    assert both(hf, in_threads, limit, order=order)[1].result == order


@workflow(name="order_through_a_queue")
def through_a_queue() -> list[str]:
    results: queue.Queue[str] = queue.Queue()
    found: list[str] = []

    def collect() -> None:
        for _ in NAMES:
            found.append(results.get())
            live.saw(found[-1])
            at_once(f"after {found[-1]}")

    def work(name: str) -> None:
        results.put(ordered_plain(name))

    holdfast.parallel(collect, *((work, name) for name in NAMES))
    last_plain()
    return found


def test_queue_between_threads_gets_the_recorded_order(memory: Holdfast) -> None:
    assert both(memory, through_a_queue)[1].result == ORDER


@workflow(name="order_nested_threads")
def nested_threads() -> list[str]:
    found: list[str] = []

    def work(name: str) -> None:
        found.append(ordered_plain(name))
        live.saw(name)

    def four(names: list[str]) -> None:
        holdfast.parallel(*((work, name) for name in names))

    holdfast.parallel((four, NAMES[:4]), (four, NAMES[4:]))
    last_plain()
    return found


@workflow(name="order_nested_tasks")
async def nested_tasks() -> list[str]:
    found: list[str] = []

    async def work(name: str) -> str:
        return await ordered(name)

    async def four(names: list[str]) -> None:
        for each in asyncio.as_completed([asyncio.create_task(work(name)) for name in names]):
            found.append(await each)
            live.saw(found[-1])

    await holdfast.parallel((four, NAMES[:4]), (four, NAMES[4:]))
    await last()
    return found


@pytest.mark.parametrize("flow", [nested_threads, nested_tasks])
def test_nested_branches_see_the_recorded_order(memory: Holdfast, flow: Any) -> None:
    assert both(memory, flow)[1].result == ORDER


@step(name="order_failing")
async def failing(name: str) -> str:
    live.ran.append(name)
    raise ValueError(name)


@workflow(name="order_with_a_failure")
async def with_a_failure() -> list[str]:
    found: list[str] = []

    async def work(name: str) -> None:
        if name in ("a", "d"):
            with pytest.raises(ValueError, match=name):
                await failing(name)
        await ordered(name)
        found.append(name)
        live.saw(name)

    async with asyncio.TaskGroup() as group:
        for name in NAMES:
            group.create_task(work(name))
    await last()
    return found


def test_failure_caught_by_a_branch_delays_no_result(memory: Holdfast) -> None:
    assert both(memory, with_a_failure)[1].result == ORDER


@step(name="order_endless")
async def endless(name: str) -> str:
    await asyncio.sleep(3600)
    return name


@workflow(name="order_cut_short")
async def cut_short() -> list[str]:
    """A step is abandoned after a while, each time; results recorded after that wait for it."""
    found: list[str] = []

    async def work(name: str) -> None:
        if name == ORDER[0]:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await endless(name)
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(endless(name), 0.05)
        await ordered(name)
        found.append(name)
        live.saw(name)

    async with asyncio.TaskGroup() as group:
        for name in NAMES:
            group.create_task(work(name))
    await last()
    return found


def test_abandoned_step_keeps_the_order(memory: Holdfast) -> None:
    assert both(memory, cut_short)[1].result == ORDER


@workflow(name="order_abandoned")
async def abandoned() -> list[str]:
    """On the replay, a task is cancelled before it calls the first step that is recorded."""
    found: list[str] = []

    async def work(name: str) -> None:
        if not live.failing and name == ORDER[0]:
            raise asyncio.CancelledError
        await ordered(name)
        found.append(name)
        live.saw(name)

    await asyncio.gather(*(work(name) for name in NAMES), return_exceptions=True)
    await last()
    return found


def test_task_that_ends_early_delays_no_result(memory: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the end of the task, the test would never end.
    monkeypatch.setattr("holdfast.execution.replay_order._PATIENCE", 1e9)
    live.begin(list(ORDER))
    run = memory.run(abandoned, raises=False)
    live.begin(list(ORDER))
    live.failing = False
    assert memory.resume(run.id).result == ORDER[1:]


@workflow(name="order_waits_for_a_timeout")
async def waits_for_a_timeout() -> list[Any]:
    """The first recorded step is called once a wait for the other has timed out."""
    slow = asyncio.create_task(ordered("b"))
    done, _ = await asyncio.wait({slow}, timeout=0.05)
    found: list[Any] = [len(done), await ordered("a")]
    live.saw("a")
    found.append(await slow)
    live.saw("b")
    await last()
    return found


def test_timeout_that_came_first_comes_first_on_replay(memory: Holdfast) -> None:
    assert both(memory, waits_for_a_timeout, order=["a", "b"])[1].result == [0, "a", "b"]


@workflow(name="order_loses_a_call")
async def loses_a_call() -> list[str]:
    async def work(name: str) -> str:
        if not live.failing and name == ORDER[0]:
            await asyncio.sleep(3600)
        found = await ordered(name)
        live.saw(name)
        return found

    tasks = [asyncio.create_task(work(name)) for name in NAMES]
    found = [await task for task in tasks if task is not tasks[NAMES.index(ORDER[0])]]
    tasks[NAMES.index(ORDER[0])].cancel()
    await last()
    return found


@workflow(name="order_loses_a_call_in_threads")
def loses_a_call_in_threads() -> list[str]:
    ended = threading.Event()
    found: list[str] = []

    def work(name: str) -> None:
        if not live.failing and name == ORDER[0]:
            assert ended.wait(60)
        ordered_plain(name)
        live.saw(name)
        found.append(name)
        if len(found) == len(NAMES) - 1:
            ended.set()

    holdfast.parallel(*((work, name) for name in NAMES))
    last_plain()
    return sorted(found)


@pytest.mark.parametrize(("flow", "left"), [(loses_a_call, {ORDER[0]}), (loses_a_call_in_threads, set())])
def test_result_that_is_never_requested_delays_others_for_a_limited_time(
    memory: Holdfast,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    flow: Any,
    left: set[str],
) -> None:
    monkeypatch.setattr("holdfast.execution.replay_order._PATIENCE", 0.05)
    monkeypatch.setattr("holdfast.execution.replay_order._LOOK", 0.02)
    live.begin(list(ORDER))
    run = memory.run(flow, raises=False)
    assert isinstance(run.error, RuntimeError)
    live.begin(list(ORDER))
    live.failing = False
    assert memory.resume(run.id).result == sorted(set(NAMES) - left)
    assert "has not been called" in caplog.text


@workflow(name="order_changes")
async def changes() -> None:
    async def work(name: str) -> None:
        if not live.failing and name == ORDER[0]:
            await after(name)
        await ordered(name)
        live.saw(name)

    async with asyncio.TaskGroup() as group:
        for name in NAMES:
            group.create_task(work(name))
    await last()


@workflow(name="order_changes_in_threads")
def changes_in_threads() -> None:
    def work(name: str) -> None:
        if not live.failing and name == ORDER[0]:
            last_plain()
        ordered_plain(name)
        live.saw(name)

    holdfast.parallel(*((work, name) for name in NAMES))
    last_plain()


@pytest.mark.parametrize("flow", [changes, changes_in_threads])
def test_changed_code_wakes_waiting_branches(
    memory: Holdfast, monkeypatch: pytest.MonkeyPatch, flow: Any
) -> None:
    monkeypatch.setattr("holdfast.execution.replay_order._PATIENCE", 1e9)
    live.begin(list(ORDER))
    run = memory.run(flow, raises=False)
    assert isinstance(run.error, RuntimeError)
    live.begin(list(ORDER))
    live.failing = False
    with pytest.raises(holdfast.ReplayDiverged):
        memory.resume(run.id)
    assert live.ran == []


@workflow(name="order_stopped")
async def stopped() -> None:
    async def work(name: str) -> None:
        if not live.failing and name == ORDER[0]:
            live.stop()
            await asyncio.sleep(0)
        await ordered(name)
        live.saw(name)

    async with asyncio.TaskGroup() as group:
        for name in NAMES:
            group.create_task(work(name))
    await last()


def test_cancel_wakes_waiting_branches(memory: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.execution.replay_order._PATIENCE", 1e9)
    live.begin(list(ORDER))
    run = memory.run(stopped, raises=False)
    live.begin(list(ORDER))
    live.failing = False
    live.stop = lambda: memory.cancel(run.id)
    memory.resume(run.id, raises=False)
    assert memory.get(run.id).status == "cancelled"
    assert live.ran == []


@workflow(name="order_mixed")
async def mixed() -> list[str]:
    """Plain steps in an event loop, and in threads of its pool, never wait."""
    found: list[str] = []

    async def work(name: str) -> None:
        if name in "ab":
            found.append(at_once(f"plain {name}"))
        elif name in "cd":
            await asyncio.to_thread(at_once, f"thread {name}")
        await ordered(name)
        live.saw(name)
        found.append(name)

    async with asyncio.TaskGroup() as group:
        for name in NAMES:
            group.create_task(work(name))
    await last()
    return [name for name in found if name in NAMES]


def test_plain_steps_do_not_block_the_event_loop(memory: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.execution.replay_order._PATIENCE", 1e9)
    assert both(memory, mixed)[1].result == ORDER


@workflow(name="order_many")
async def many(count: int) -> list[int]:
    found: list[int] = []
    for each in asyncio.as_completed([numbered(number) for number in range(count)]):
        found.append(await each)
    await last()
    live.seen.append(found)
    return found


@step(name="order_numbered")
async def numbered(number: int) -> int:
    live.ran.append("numbered")
    for _ in range(number * 7 % 13):
        await asyncio.sleep(0)
    return number


@pytest.mark.slow
def test_thousand_branches_see_the_recorded_order(memory: Holdfast) -> None:
    live.begin([])
    run = memory.run(many, 1000, raises=False)
    recorded = [
        version.result
        for version in memory.history(run.id).iter_versions()
        if version.step == "order_numbered"
    ]
    assert sorted(recorded) == list(range(1000)) != recorded
    live.begin([])
    live.failing = False
    again = memory.resume(run.id)
    assert live.ran == []
    assert again.result in (recorded, recorded[::-1])


@pytest.mark.parametrize("flow", [raced, in_threads, queued])
def test_code_checks_and_validation_see_the_recorded_order(memory: Holdfast, flow: Any) -> None:
    live.begin(list(ORDER))
    args = (8,) if flow is in_threads else ()
    run = memory.run(flow, *args, raises=False)
    live.begin(list(ORDER))
    for turn in live.turns.values():
        turn.set()
    assert memory.check(run.id) == []
    assert live.ran == []
    assert live.seen == ORDER


@workflow(name="order_waits")
async def waits() -> list[Any]:
    async def work(name: str) -> str:
        await ordered(name)
        live.saw(name)
        return f"{name} {await holdfast.wait_for(name)}"

    return await asyncio.gather(*(work(name) for name in NAMES))


def test_every_branch_reaches_its_wait_again(memory: Holdfast) -> None:
    """A wait in one branch ends the workflow's function, but not before others have got what is recorded for them."""
    live.begin(list(ORDER))
    run = memory.run(waits)
    assert live.seen == ORDER
    live.begin(list(ORDER))
    run = memory.signal(run.id, ORDER[0], "came")
    assert live.seen == ORDER
    for name in reversed(ORDER[1:]):
        before = len(list(memory.history(run.id).iter_versions()))
        run = memory.signal(run.id, name, "came")
        assert len(list(memory.history(run.id).iter_versions())) > before, f"{name} is not taken"
    assert run.result == [f"{name} came" for name in NAMES]


@workflow(name="order_asks_in_a_group")
async def asks_in_a_group() -> str:
    async with asyncio.TaskGroup() as group:
        task = group.create_task(holdfast.ask("Go?"))
    return str(task.result())


def test_wait_in_a_task_group_suspends_the_run(memory: Holdfast) -> None:
    run = memory.run(asks_in_a_group)
    assert run.status == "suspended"
    assert memory.check(run.id) == []
    (question,) = memory.inbox()
    assert memory.answer(question.id, "yes").result == "yes"


@workflow(name="order_continues")
async def continues() -> list[str]:
    """A step that is not recorded ends after those that are."""
    found: list[str] = []

    async def work(name: str) -> None:
        found.append(await ordered(name))
        live.saw(name)
        if not live.failing:
            found.append(await numbered_name(name))

    await asyncio.gather(*(work(name) for name in NAMES))
    await last()
    return found


@step(name="order_numbered_name")
async def numbered_name(name: str) -> str:
    return f"new {name}"


def test_unrecorded_step_comes_after_recorded_ones(memory: Holdfast) -> None:
    assert both(memory, continues)[1].result[: len(ORDER)] == ORDER
