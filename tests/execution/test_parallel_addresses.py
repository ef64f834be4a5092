"""Addresses of parallel steps are the same each time, whatever the speed of the steps."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import step_fixtures
from step_flows import Broken, control

import holdfast
from holdfast import Holdfast, step, workflow

fresh, hf = step_fixtures.fresh, step_fixtures.hf


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait only for a moment for results that the code asks for in another order, or no more."""
    monkeypatch.setattr("holdfast.execution.replay_order._PATIENCE", 1.0)
    monkeypatch.setattr("holdfast.execution.replay_order._LOOK", 0.1)


class Turns:
    """Lets workers through one after the other, in a given order, as if each were slower than the one before."""

    def __init__(self, *order: Any) -> None:
        self._order = list(order)
        self._over = {who: asyncio.Event() for who in order}

    @contextlib.asynccontextmanager
    async def write_lock(self, who: Any) -> AsyncIterator[None]:
        place = self._order.index(who)
        if place:
            await self._over[self._order[place - 1]].wait()
        yield
        self._over[who].set()


@step
async def fetch(n: int, part: str) -> str:
    control.did(f"{n}{part}")
    await asyncio.sleep(0)
    return f"{n}{part}"


async def _worker(n: int) -> str:
    first = await fetch(n, "a")
    second = await fetch(n, "b")
    return first + second + await fetch(n, "c")


@workflow
async def workers() -> list[str]:
    found = await asyncio.gather(*[_worker(n) for n in range(4)])
    control.did("end")
    return found


def test_tasks_have_the_same_addresses_each_time(hf: Holdfast) -> None:
    control.failing.update({"2b": 1, "end": 1})
    run = hf.run(workers, raises=False)
    assert run.status == "failed"
    assert hf.resume(run.id, raises=False).status == "failed"
    assert hf.resume(run.id).result == ["0a0b0c", "1a1b1c", "2a2b2c", "3a3b3c"]
    for what in ("0a", "0b", "1a", "1b", "2a", "3a", "3b"):
        assert control.ran.count(what) == 1, what
    assert control.ran.count("2b") == 2


async def _late_worker(n: int) -> str:
    async with control.value.write_lock(n):
        return await fetch(n, "a")


@workflow
async def late_workers() -> list[str]:
    found = await asyncio.gather(*[_late_worker(n) for n in range(3)])
    control.did("end")
    return found


def test_addresses_of_tasks_do_not_depend_on_their_speed(hf: Holdfast) -> None:
    control.failing["end"] = 1
    control.value = Turns(2, 1, 0)
    run = hf.run(late_workers, raises=False)
    assert isinstance(run.error, Broken)
    control.value = Turns(0, 1, 2)
    assert hf.resume(run.id).result == ["0a", "1a", "2a"]


@step(name="parallel.1")
def hostile_name() -> str:
    return tell("hostile")


@step
def tell(who: str) -> str:
    control.did(who)
    return who


@workflow
def colliding() -> list[str]:
    found = [hostile_name(), *holdfast.parallel((tell, "branch"))]
    control.did("end")
    return found


def test_step_name_cannot_collide_with_a_branch(hf: Holdfast) -> None:
    control.failing["end"] = 1
    run = hf.run(colliding, raises=False)
    steps = [version.address for version in run.history().versions() if version.kind == "step"]
    assert len(set(steps)) == 3
    assert hf.resume(run.id).result == ["hostile", "branch"]


async def _team(n: int) -> list[str]:
    async def member(m: int) -> str:
        async with control.value.write_lock((n, m)):
            return await fetch(n * 10 + m, "x")

    return await asyncio.gather(*[member(m) for m in range(2)])


@workflow
async def teams() -> list[list[str]]:
    found = await asyncio.gather(*[_team(n) for n in range(2)])
    control.did("end")
    return found


def test_addresses_of_nested_tasks_do_not_depend_on_their_speed(hf: Holdfast) -> None:
    control.failing["end"] = 1
    control.value = Turns((1, 1), (1, 0), (0, 1), (0, 0))
    run = hf.run(teams, raises=False)
    assert isinstance(run.error, Broken)
    control.value = Turns((0, 0), (0, 1), (1, 0), (1, 1))
    assert hf.resume(run.id).result == [["0x", "1x"], ["10x", "11x"]]
