"""Programs whose steps run in parallel, sync and async, with random delays: each has one outcome.

Every delay is drawn from `chance`, outside of what is recorded: it differs from execution to execution.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import holdfast
from holdfast import step, workflow

START: dict[str, Any] = {"n": 0, "by": {}, "log": [], "seen": [], "best": 0, "status": ""}


class Chance:
    """Delays, and the step after which the process is as good as dead."""

    def __init__(self) -> None:
        self.random = random.Random(0)
        self.longest = 0.002
        #: So many more steps may end; None for as many as there are.
        self.left: int | None = None

    def delay(self) -> float:
        return self.random.random() * self.longest

    def ended(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Interrupted


class Interrupted(BaseException):
    """Ends an execution in the middle of a step."""


chance = Chance()


def _change(what: str, key: Any) -> Any:
    state = holdfast.state()
    if what == "add":
        state["n"] += 1
    elif what == "put":
        state["by"][key] = state["n"]
    elif what == "append":
        state["log"].append(key)
    elif what == "best":
        state["best"] = max(state["best"], key)
    elif what == "see":
        state["seen"].append(key)
    elif what == "status":
        state["status"] = "done"
    return state["n"]


@step
def change(what: str, key: Any = None) -> Any:
    time.sleep(chance.delay())
    found = _change(what, key)
    time.sleep(chance.delay())
    chance.ended()
    return found


@step
async def achange(what: str, key: Any = None) -> Any:
    await asyncio.sleep(chance.delay())
    found = _change(what, key)
    await asyncio.sleep(chance.delay())
    chance.ended()
    return found


@step
def twice(key: Any) -> Any:
    """A step that calls steps and changes the state itself."""
    change("add")
    change("put", key)
    holdfast.state()["by"][f"outer-{key}"] = holdfast.state()["n"]
    chance.ended()
    return holdfast.state()["n"]


@step
def fanned(limit: int | None) -> Any:
    """A step that reads and changes the state after its own parallel steps."""
    holdfast.state()["by"]["before"] = holdfast.state()["n"]
    found = holdfast.parallel(*((_several, number) for number in range(3)), limit=limit)
    holdfast.state()["by"]["after"] = holdfast.state()["n"]
    chance.ended()
    return [found, sorted(holdfast.state()["log"])]


@step
async def afanned() -> Any:
    holdfast.state()["by"]["before"] = holdfast.state()["n"]
    found = await asyncio.gather(*(_aseveral(number) for number in range(3)))
    holdfast.state()["by"]["after"] = holdfast.state()["n"]
    chance.ended()
    return [found, sorted(holdfast.state()["log"])]


def _several(key: int) -> list[Any]:
    return [change("add"), change("add"), change("put", key), change("append", key)]


async def _aseveral(key: int) -> list[Any]:
    return [
        await achange("add"),
        await achange("add"),
        await achange("put", key),
        await achange("append", key),
    ]


def _nested(key: int) -> list[Any]:
    first = change("add")
    inner: list[Any] = holdfast.parallel((_several, key * 10 + 100), (_several, key * 10 + 101))
    return [first, inner, change("put", key)]


async def _anested(key: int) -> list[Any]:
    first = await achange("add")
    inner = await asyncio.gather(_aseveral(key * 10 + 100), _aseveral(key * 10 + 101))
    return [first, inner, await achange("put", key)]


def _in_threads(work: Callable[[int], Any], limit: int | None = None) -> Any:
    found = holdfast.parallel(*((work, number) for number in range(4)), limit=limit)
    return [found, change("add"), holdfast.state()["n"]]


# The same bodies with a counter that is summed, and without.

SUM = {"n": "sum", "seen": "union", "best": "max", "status": "last"}
Body = Callable[..., Any]


def _counters(limit: int | None) -> Any:
    return _in_threads(lambda _: change("add"), limit)


def _branches(limit: int | None) -> Any:
    return _in_threads(_several, limit)


def _nests(limit: int | None) -> Any:
    return _in_threads(_nested, limit)


def _in_steps(limit: int | None) -> Any:
    return _in_threads(twice, limit)


def _within_a_step(limit: int | None) -> Any:
    return [fanned(limit), change("add"), holdfast.state()["n"]]


def _disjoint(limit: int | None) -> Any:
    return _in_threads(lambda number: [change("put", number), change("append", number)], limit)


def _reduced(limit: int | None) -> Any:
    def work(number: int) -> Any:
        return [change("best", number * 3), change("see", number % 2), change("status")]

    return _in_threads(work, limit)


async def _gathered_within_a_step(limit: int | None) -> Any:
    return [await afanned(), await achange("add"), holdfast.state()["n"]]


async def _gathered_steps(limit: int | None) -> Any:
    found = await asyncio.gather(*(achange("add") for _ in range(4)))
    return [found, await achange("add"), holdfast.state()["n"]]


async def _gathered_branches(limit: int | None) -> Any:
    found = await asyncio.gather(*(_aseveral(number) for number in range(4)))
    return [found, await achange("add"), holdfast.state()["n"]]


async def _gathered_nests(limit: int | None) -> Any:
    found = await asyncio.gather(*(_anested(number) for number in range(3)))
    return [found, await achange("add"), holdfast.state()["n"]]


async def _grouped(limit: int | None) -> Any:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_aseveral(number)) for number in range(3)]
        await achange("put", "body")
    return [[task.result() for task in tasks], await achange("add"), holdfast.state()["n"]]


async def _awaited_later(limit: int | None) -> Any:
    task = asyncio.create_task(_aseveral(1))
    found = [await achange("add"), await achange("add"), holdfast.state()["n"]]
    return [found, await task, await achange("add"), holdfast.state()["n"]]


async def _called_early(limit: int | None) -> Any:
    early = achange("add")
    first = await achange("add")
    return [first, await early, holdfast.state()["n"]]


async def _waited(limit: int | None) -> Any:
    tasks = [asyncio.create_task(_aseveral(number)) for number in range(3)]
    await asyncio.wait(tasks)
    errors = [task.exception() for task in tasks]
    for error in filter(None, errors):
        raise error
    return [await achange("add"), holdfast.state()["n"]]


async def _aparallel(limit: int | None) -> Any:
    found = await holdfast.parallel(*((_aseveral, number) for number in range(4)), limit=limit)
    return [found, await achange("add"), holdfast.state()["n"]]


async def _in_worker_threads(limit: int | None) -> Any:
    found = await asyncio.gather(*(asyncio.to_thread(_several, number) for number in range(3)))
    return [found, await achange("add"), holdfast.state()["n"]]


class Program(NamedTuple):
    """A workflow, and whether it ends in a conflict."""

    flow: Any
    conflicts: bool


def _made() -> dict[str, Program]:
    programs: dict[str, Program] = {}
    for body in (_counters, _branches, _nests, _in_steps, _within_a_step, _disjoint, _reduced):
        for summed in (True, False):
            name = f"{body.__name__[1:]}-{'merged' if summed else 'plain'}"

            def flow(limit: int | None = None, body: Body = body) -> Any:
                return body(limit)

            made = workflow(name=name, merge=SUM if summed else None)(flow)
            programs[name] = Program(made, not summed and body is not _disjoint)
    for abody in (
        _gathered_steps, _gathered_branches, _gathered_nests, _gathered_within_a_step, _grouped, _awaited_later,
        _called_early, _waited, _aparallel, _in_worker_threads,
    ):  # fmt: skip
        for summed in (True, False):
            name = f"{abody.__name__[1:]}-{'merged' if summed else 'plain'}"

            async def aflow(limit: int | None = None, body: Body = abody) -> Any:
                return await body(limit)

            made = workflow(name=name, merge=SUM if summed else None)(aflow)
            programs[name] = Program(made, not summed)
    return programs


PROGRAMS = _made()
