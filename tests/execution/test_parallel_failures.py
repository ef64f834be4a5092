"""A failure that a parallel branch has caught is recorded when the branch continues, not when the block ends."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import step_fixtures
from step_flows import Broken, control

import holdfast
from holdfast import Holdfast, step, workflow

fresh, hf = step_fixtures.fresh, step_fixtures.hf


class Killed(BaseException):
    """The process ends in this step."""


@step
def bad_in_parallel(n: int) -> None:
    control.ran.append(f"bad-{n}")
    raise Broken(f"bad {n}")


@step
async def abad_in_parallel(n: int) -> None:
    control.ran.append(f"bad-{n}")
    raise Broken(f"bad {n}")


@step
def after_bad(n: int) -> str:
    control.ran.append(f"after-{n}")
    if control.value == "kill":
        raise Killed
    holdfast.state()[f"after-{n}"] = True
    return f"after {n}"


@step
async def aafter_bad(n: int) -> str:
    control.ran.append(f"after-{n}")
    if control.value == "kill":
        raise Killed
    holdfast.state()[f"after-{n}"] = True
    return f"after {n}"


def _branch(n: int) -> Any:
    try:
        bad_in_parallel(n)
    except Broken as error:
        return [str(error), after_bad(n)]


async def _abranch(n: int) -> Any:
    try:
        await abad_in_parallel(n)
    except Broken as error:
        return [str(error), await aafter_bad(n)]


async def _inner(n: int) -> Any:
    """The failure is caught around a gather within the branch."""
    try:
        await asyncio.gather(abad_in_parallel(n))
    except Broken as error:
        return [str(error), await aafter_bad(n)]


@workflow
def failing_threads() -> Any:
    return holdfast.parallel((_branch, 1), (_branch, 2))


@workflow
async def failing_tasks() -> Any:
    return await asyncio.gather(_abranch(1), _abranch(2))


@workflow
async def failing_inner_tasks() -> Any:
    return await asyncio.gather(_inner(1), _inner(2))


@pytest.mark.parametrize("flow", [failing_threads, failing_tasks, failing_inner_tasks])
def test_failure_caught_in_a_branch_is_recorded_when_the_branch_continues(hf: Holdfast, flow: Any) -> None:
    control.value = "kill"
    with pytest.raises(Killed):
        hf.run(flow, run_id="r")
    recorded = [version for version in hf.history("r").versions() if version.error is not None]
    failed = {name for name in control.ran if name.startswith("bad")}
    began = {name for name in control.ran if name.startswith("after")}
    # Of every branch that continued, the failure before that is recorded.
    assert len(recorded) >= len(began) > 0
    control.value = None
    control.ran.clear()
    run = hf.resume("r")
    assert run.result == [["bad 1", "after 1"], ["bad 2", "after 2"]]
    again = [name for name in control.ran if name.startswith("bad")]
    assert len(again) == 2 - len(recorded)
    assert failed
    assert hf.resume("r").result == run.result
    assert hf.history("r").verify().ok


@workflow
def failing_before_threads() -> Any:
    try:
        holdfast.parallel((bad_in_parallel, 1), (after_bad, 1))
    except Broken as error:
        return [str(error), *holdfast.parallel((after_bad, 2), (after_bad, 3))]


@workflow
async def failing_before_tasks() -> Any:
    try:
        await asyncio.gather(abad_in_parallel(1), aafter_bad(1))
    except Broken as error:
        return [str(error), *await asyncio.gather(aafter_bad(2), aafter_bad(3))]


@pytest.mark.parametrize("flow", [failing_before_threads, failing_before_tasks])
def test_failure_caught_between_two_blocks_is_recorded_before_the_second(hf: Holdfast, flow: Any) -> None:
    run = hf.run(flow, run_id="r")
    assert run.result == ["bad 1", "after 2", "after 3"]
    versions = {version.number: version for version in hf.history("r").versions()}
    (failed,) = [number for number, version in versions.items() if version.error is not None]
    second = [
        number for number, version in versions.items() if (version.result or "") in ("after 2", "after 3")
    ]
    assert len(second) == 2
    assert failed < min(second)
