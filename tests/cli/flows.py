"""Workflows for the command line to work on: copied into a test's folder, and named there by `--app flows`.

Their effects are lines in `world.txt`; a file in the same folder makes an effect fail.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import holdfast
from holdfast import step, workflow
from holdfast.testing import isolated_definitions


def did(what: str) -> None:
    with Path("world.txt").open("a") as file:
        file.write(f"{what}\n")


def wait_for_file(name: str) -> None:
    while not Path(name).exists():
        time.sleep(0.005)


def cancel_order(result: str, item: str) -> None:
    if Path(f"stuck-{item}").exists():
        raise ConnectionError(f"{item} cannot be sent back")
    did(f"undo {item}")


@step(name="order", compensate=cancel_order)
def order(item: str) -> str:
    did(f"order {item}")
    holdfast.state().setdefault("orders", []).append(item)
    return f"order-{item}"


@step(name="count")
def count() -> int:
    state = holdfast.state()
    state["n"] = state.get("n", 0) + 1
    did(f"count {state['n']}")
    return int(state["n"])


def _fragile() -> str:
    did("fragile")
    if Path("broken").exists():
        raise ValueError("the cup is broken")
    return "whole"


# Other helpers of tests define a step of this name.
with isolated_definitions():
    fragile = step(name="fragile")(_fragile)


@step(name="slow")
def slow(name: str) -> str:
    did(f"begin {name}")
    wait_for_file(f"go-{name}")
    did(f"end {name}")
    return name


@step(name="topic")
def topic(text: str) -> str:
    did(f"topic {text}")
    return text


@step(name="acount")
async def acount() -> int:
    await asyncio.sleep(0)
    did("acount")
    state = holdfast.state()
    state["n"] = state.get("n", 0) + 1
    return int(state["n"])


def slow_undo(result: str, name: str) -> None:
    did(f"begin undo {name}")
    wait_for_file(f"go-undo-{name}")
    did(f"end undo {name}")


@step(name="heavy", compensate=slow_undo)
def heavy(name: str) -> str:
    did(f"heavy {name}")
    return name


@workflow(name="cli_shop")
def shop() -> int:
    order("kelp")
    count()
    order("rock")
    return count()


@workflow(name="cli_failing")
def failing() -> str:
    order("kelp")
    return fragile()


@workflow(name="cli_long")
def long(names: list[str]) -> int:
    count()
    for name in names:
        slow(name)
    return count()


@workflow(name="cli_heavy")
def heavy_flow() -> str:
    heavy("a")
    return heavy("b")


@workflow(name="cli_reading")
def reading() -> str:
    """Call a step with an argument from a file, which may change between executions."""
    found = topic(Path("topic.txt").read_text())
    if Path("broken").exists():
        raise ValueError("the book is torn")
    return found


@workflow(name="cli_async")
async def walking() -> int:
    await acount()
    if Path("broken").exists():
        raise ValueError("the shoe is broken")
    return await acount()


@workflow(name="cli_child")
def child(text: str) -> str:
    count()
    return f"{text} {holdfast.ask('Is the child well?', schema=str)}"


@workflow(name="cli_parent")
def parent() -> str:
    order("kelp")
    return child("the child says")


@workflow(name="cli_asking")
def asking(schema: Any) -> Any:
    count()
    answer = holdfast.ask("Shall it be published?", schema=schema)
    did(f"answer {answer!r}")
    return answer


@workflow(name="cli_twice")
def asking_twice() -> list[Any]:
    return [holdfast.ask("First?", schema=str), holdfast.ask("Second?", schema=str)]


@workflow(name="cli_strict", version="strict 1", changed="refuse")
def strict() -> int:
    return count()


@workflow(name="cli_often")
def asking_often(times: int) -> None:
    holdfast.parallel(*[lambda: holdfast.ask("Again?") for _ in range(times)])


@workflow(name="cli_sleeping")
def sleeping(seconds: float) -> str:
    count()
    holdfast.sleep(seconds)
    return "awake"


@workflow(name="cli_waiting")
def waiting() -> Any:
    found = holdfast.wait_for("printer")
    count()
    return found


@workflow(name="cli_chancy")
def chancy() -> str:
    """Gives another result when it is run again."""
    return other()


@step(name="other")
def other() -> str:
    did("other")
    return Path("topic.txt").read_text()
