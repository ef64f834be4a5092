"""An edit of a stopped run is seen by every step that runs afterwards, whatever it runs in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import store_fixtures

import holdfast
from holdfast import Holdfast, parallel, step, workflow

pytest_plugins = ["postgres_fixtures"]

hf, place = store_fixtures.hf, store_fixtures.place


def check() -> str:
    seen = dict(holdfast.state())
    if not seen.get("fixed"):
        raise ValueError(f"saw {seen}")
    return "ok"


@step(name="er_mark")
def mark() -> None:
    holdfast.state()["a"] = 1


@step(name="er_check")
def checked() -> str:
    return check()


@step(name="er_outer")
def outer() -> str:
    return checked()


@step(name="er_amark")
async def amark() -> None:
    holdfast.state()["a"] = 1


@step(name="er_acheck")
async def achecked() -> str:
    return check()


@step(name="er_aouter")
async def aouter() -> str:
    return await achecked()


async def after_mark() -> str:
    await amark()
    return await achecked()


def in_threads(*calls: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: parallel(*calls)


def in_tasks(*calls: Callable[[], Any]) -> Callable[[], Any]:
    async def run() -> Any:
        return await asyncio.gather(*(call() for call in calls))

    return run


SHAPES: dict[str, Callable[[], Any]] = {
    "one after the other": lambda: [mark(), checked()],
    "first in its branch": in_threads(mark, checked),
    "behind a step in its branch": in_threads(lambda: (mark(), checked()), mark),
    "nested in its branch": in_threads(lambda: (mark(), outer()), mark),
    "tasks": in_tasks(amark, achecked),
    "nested in a task": in_tasks(amark, aouter),
    "behind a step in its task": in_tasks(after_mark, amark),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_edit_of_a_failed_run_is_seen_by_its_steps(hf: Holdfast, shape: str) -> None:
    code = SHAPES[shape]
    run = hf.run(workflow(name="er_flow", merge={"a": "last"})(code), run_id="run", raises=False)
    assert (run.status, str(run.error)[:3]) == ("failed", "saw")
    with hf.history("run").edit() as state:
        state["fixed"] = True
    done = hf.resume("run")
    assert (done.status, done.state) == ("completed", {"a": 1, "fixed": True})
    # A replay of what was recorded then sees the same.
    again = hf.rollback("run", to=hf.history("run").head.parent or 1)
    assert (again.status, again.state) == ("completed", {"a": 1, "fixed": True})
