"""Steps in threads of the program's own: part of their run with its context; without it, a warning says so."""

from __future__ import annotations

import asyncio
import sys
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
import step_fixtures

import holdfast
from holdfast import Holdfast, HoldfastWarning, step, workflow

hf = step_fixtures.hf


@step(name="ot_step")
def work(value: int = 1) -> int:
    return value


@step(name="ot_async")
async def awork(value: int = 1) -> int:
    return value


def in_pool(call: Callable[[], Any]) -> Any:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


def in_thread(call: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


@pytest.mark.parametrize("where", [in_pool, in_thread])
@pytest.mark.parametrize(
    "call", [lambda: work() * 1, lambda: asyncio.run(awork()), lambda: asyncio.run(_gathered())]
)
def test_step_in_a_thread_without_its_run_warns(
    hf: Holdfast, where: Callable[[Callable[[], Any]], Any], call: Callable[[], Any]
) -> None:
    @workflow(name="ot_flow")
    def flow() -> Any:
        return where(call)

    with pytest.warns(HoldfastWarning, match="called without a run, while run 'run' is executed") as found:
        assert hf.run(flow, run_id="run").result == 1
    assert found[0].filename == __file__
    for remedy in (
        "holdfast.parallel",
        "asyncio.to_thread",
        "copy_context().run",
        "holdfast.call_steps_directly()",
    ):
        assert remedy in str(found[0].message)
    assert [version.step for version in hf.history("run").versions()] == [None, None]


async def _gathered() -> int:
    return (await asyncio.gather(awork()))[0]


def test_warning_is_shown_once_for_a_line_and_can_be_an_error(hf: Holdfast) -> None:
    @workflow(name="ot_often")
    def often() -> list[int]:
        with ThreadPoolExecutor(2) as pool:
            return list(pool.map(lambda number: work(number) + 0, range(20)))

    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        assert hf.run(often).result == list(range(20))
    assert len(found) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", HoldfastWarning)
        with pytest.raises(HoldfastWarning):
            hf.run(often)


def test_child_workflow_in_a_thread_without_its_run_warns(hf: Holdfast) -> None:
    @workflow(name="ot_child")
    def child() -> int:
        return 1

    @workflow(name="ot_parent")
    def parent() -> Any:
        return in_pool(child)

    with pytest.warns(HoldfastWarning, match="workflow 'ot_child' was called without a run"):
        hf.run(parent)


@pytest.mark.filterwarnings("error::holdfast.HoldfastWarning")
def test_step_in_a_thread_with_its_context_is_recorded_without_warning(hf: Holdfast) -> None:
    @workflow(name="ot_remedies")
    def remedies() -> list[Any]:
        found = holdfast.parallel((work, 1), (work, 2))
        return [*found, in_thread_with_context(3)]

    def in_thread_with_context(value: int) -> Any:
        context = copy_context()
        return in_thread(lambda: context.run(work, value))

    @workflow(name="ot_to_thread")
    async def to_thread() -> int:
        return await asyncio.to_thread(work, 4)

    assert hf.run(remedies, run_id="run").result == [1, 2, 3]
    assert [version.step for version in hf.history("run").versions()].count("ot_step") == 3
    assert hf.run(to_thread, run_id="async").result == 4
    assert "ot_step" in [version.step for version in hf.history("async").versions()]


@pytest.mark.filterwarnings("error::holdfast.HoldfastWarning")
def test_step_called_directly_on_purpose_does_not_warn(hf: Holdfast) -> None:
    @workflow(name="ot_trial")
    def flow() -> Any:
        def tried() -> int:
            with holdfast.call_steps_directly():
                return work(5)

        return in_thread(tried)

    assert work() == 1
    assert in_pool(work) == 1
    assert hf.run(flow).result == 5
    assert work() == 1


def test_threads_of_a_step_share_its_state_as_a_dict(hf: Holdfast) -> None:
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    @step(name="shared_by_threads")
    def work() -> None:
        state = holdfast.state()

        def note(worker: int) -> None:
            for key in state["tasks"]:
                state["tasks"][key]["done_by"].append(worker)
                state.setdefault("log", {}).setdefault(key, []).append(worker)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(note, range(4)))

    @workflow(name="shares_its_state")
    def flow() -> None:
        work()

    try:
        for number in range(20):
            tasks: dict[str, Any] = {f"t{n}": {"done_by": []} for n in range(10)}
            state = hf.run(flow, run_id=f"r{number}", state={"tasks": tasks}).state
            assert all(sorted(task["done_by"]) == [0, 1, 2, 3] for task in state["tasks"].values())
            assert all(sorted(workers) == [0, 1, 2, 3] for workers in state["log"].values())
            assert sorted(state["log"]) == sorted(tasks)
    finally:
        sys.setswitchinterval(switching)
