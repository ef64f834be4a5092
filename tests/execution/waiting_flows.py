"""A clock that is set by hand, an engine on it, and workflows that wait, for the tests of waiting."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Run, step, workflow


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "memory"])
def hf(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Holdfast]:
    where = tmp_path / "runs.db" if request.param == "sqlite" else ":memory:"
    durability = "fast" if request.param == "sqlite" else "memory"
    with holdfast.open(where, durability=durability, clock=clock, redact=["*password*"]) as opened:
        yield opened


def prompt_of(run: Run) -> str:
    (prompt,) = run.questions()
    return prompt.id


def record(hf: Holdfast, run: Run) -> Any:
    """All that the store says about a run."""
    return hf._store.run(run.id), len(run.events())


CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


@step
def before(value: Any = "before") -> Any:
    CALLS.append(value)
    holdfast.state()["before"] = value
    return value


@step
def after(value: Any) -> Any:
    CALLS.append(value)
    return value


@step
async def aafter(value: Any) -> Any:
    CALLS.append(value)
    return value


@workflow
def wait_sleep(seconds: float) -> list[Any]:
    first = before()
    holdfast.sleep(seconds)
    return [first, after("woke")]


@workflow
async def wait_asleep(seconds: float) -> list[Any]:
    first = before()
    await holdfast.sleep(seconds)
    return [first, await aafter("woke")]


@workflow
def wait_ask(schema: Any = None, timeout: float | None = None) -> Any:
    before()
    answer = holdfast.ask("Publish?", schema=schema, timeout=timeout)
    return after([answer])


@workflow
async def wait_aask(schema: Any = None, timeout: float | None = None) -> Any:
    before()
    answer = await holdfast.ask("Publish?", schema=schema, timeout=timeout)
    return await aafter([answer])


@workflow
def wait_event(timeout: float | None = None) -> Any:
    before()
    return after([holdfast.wait_for("paid", timeout=timeout)])


@workflow
async def wait_aevent(timeout: float | None = None) -> Any:
    before()
    return await aafter([await holdfast.wait_for("paid", timeout=timeout)])


@workflow
def wait_second() -> Any:
    holdfast.wait_for("first")
    return after([holdfast.wait_for("paid")])
