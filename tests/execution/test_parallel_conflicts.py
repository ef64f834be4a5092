"""Parallel steps that change the same place conflict, unless a resolver decides."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import step_fixtures
import step_flows as f
from parallel_flows import aadd
from step_flows import Broken, control

import holdfast
from holdfast import Holdfast, MergeConflict, step, workflow
from holdfast.testing import isolated_definitions

fresh, hf = step_fixtures.fresh, step_fixtures.hf


def _meet() -> None:
    """Wait until both steps have read the state, so that neither sees what the other changes."""
    assert isinstance(control.value, threading.Barrier)
    control.value.wait(f.DEADLINE)


async def _ameet() -> None:
    assert isinstance(control.value, asyncio.Barrier)
    await asyncio.wait_for(control.value.wait(), f.DEADLINE)


@step
def set_x(value: str) -> str:
    state = holdfast.state()
    _meet()
    state["x"] = value
    return value


with isolated_definitions():

    @step(name="set_x")
    async def aset_x(value: str) -> str:
        state = holdfast.state()
        await _ameet()
        state["x"] = value
        return value


def _join(path: tuple[Any, ...], base: Any, ours: Any, theirs: Any) -> Any:
    control.ran.append(f"{path} {base}")
    return "".join(sorted(ours + theirs))


@step(on_conflict=_join)
def set_x_joined(value: str) -> str:
    state = holdfast.state()
    _meet()
    state["x"] = value
    return value


@step(on_conflict=_join)
async def aset_x_joined(value: str) -> str:
    state = holdfast.state()
    await _ameet()
    state["x"] = value
    return value


@workflow
def conflicting(joined: bool) -> list[str]:
    control.value = threading.Barrier(2)
    which = set_x_joined if joined else set_x
    found: list[str] = holdfast.parallel((which, "a"), (which, "b"))
    return found


@workflow
async def aconflicting(joined: bool) -> list[str]:
    control.value = asyncio.Barrier(2)
    which = aset_x_joined if joined else aset_x
    return list(await asyncio.gather(which("a"), which("b")))


@pytest.mark.parametrize("flow", [conflicting, aconflicting])
def test_different_values_for_one_key_conflict(hf: Holdfast, flow: Any) -> None:
    run = hf.run(flow, False, state={"x": ""}, raises=False)
    assert run.status == "failed"
    error = run.error
    assert isinstance(error, MergeConflict)
    assert "x" in str(error)
    assert "'a'" in str(error)
    assert "'b'" in str(error)
    assert run.state["x"] in {"a", "b"}
    assert len(run.history().versions()) == 2


@pytest.mark.parametrize("flow", [conflicting, aconflicting])
def test_resolver_decides_a_conflict(hf: Holdfast, flow: Any) -> None:
    run = hf.run(flow, True, state={"x": ""})
    assert run.result == ["a", "b"]
    assert run.state["x"] == "ab"
    assert control.ran == ["('x',) "]


def _raising(path: tuple[Any, ...], base: Any, ours: Any, theirs: Any) -> Any:
    raise Broken("resolver")


@step(on_conflict=_raising)
async def aset_x_raising(value: str) -> str:
    state = holdfast.state()
    await _ameet()
    state["x"] = value
    return value


@workflow
async def conflict_caught() -> list[Any]:
    control.value = asyncio.Barrier(2)
    found = await asyncio.gather(aset_x_raising("a"), aset_x_raising("b"), return_exceptions=True)
    shown = sorted(str(each) for each in found)
    await aadd(1)
    control.did("end")
    return shown


def test_resolver_that_raises_fails_its_step(hf: Holdfast) -> None:
    control.failing["end"] = 1
    run = hf.run(conflict_caught, state={"x": "", "list": []}, raises=False)
    assert run.status == "failed"
    assert hf.resume(run.id).result in (["a", "resolver"], ["b", "resolver"])
    assert sum(version.error is not None for version in run.history().versions()) == 1


def _count() -> int:
    state = holdfast.state()
    seen = state["n"]
    _meet()
    state["n"] = seen + 1
    return int(seen)


@step(on_conflict=lambda path, base, ours, theirs: ours + theirs - base)
def count_asked() -> int:
    return _count()


@step
def count_alone() -> int:
    return _count()


@workflow
def counting(asked: bool) -> list[int]:
    control.value = threading.Barrier(2)
    which = count_asked if asked else count_alone
    found: list[int] = holdfast.parallel(which, which)
    return found


def test_resolver_is_called_for_equal_changes(hf: Holdfast) -> None:
    run = hf.run(counting, True, state={"n": 0})
    assert run.result == [0, 0]
    assert run.state["n"] == 2


def test_equal_changes_of_one_place_conflict(hf: Holdfast) -> None:
    run = hf.run(counting, False, state={"n": 0}, raises=False)
    assert isinstance(run.error, MergeConflict)
    assert run.state["n"] == 1
    details = run.error.details
    assert {details["step"], details["other_step"]} == {
        "parallel/[1]/count_alone",
        "parallel/[2]/count_alone",
    }
    assert (details["path"], details["base_version"], details["version"]) == ("n", 1, 2)


@step
def pop_job() -> Any:
    return holdfast.state()["jobs"].pop(0)


@workflow
def two_pop() -> Any:
    return holdfast.parallel(pop_job, pop_job)


def test_steps_that_take_the_same_queue_item_conflict(hf: Holdfast) -> None:
    with pytest.raises(MergeConflict, match=r"jobs\[0\].*deletes it"):
        hf.run(two_pop, run_id="r", state={"jobs": ["a", "b", "c"]})
    assert len(hf.history("r").head.state["jobs"]) == 2
