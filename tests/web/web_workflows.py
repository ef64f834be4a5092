"""Workflows that a server in this process can resume."""

from __future__ import annotations

import threading
from typing import Any

import holdfast
from holdfast import step, workflow

#: What the steps did.
WORLD: list[str] = []
#: Lets the slow step end.
GO = threading.Event()


def put_back(result: str, item: str) -> None:
    WORLD.append(f"undo {item}")


@step(name="web_order", compensate=put_back)
def order(item: str) -> str:
    WORLD.append(f"order {item}")
    holdfast.state().setdefault("orders", []).append(item)
    return item


@step(name="web_wait")
def wait() -> None:
    GO.wait(30)


@step(name="web_exit")
def leave() -> None:
    raise SystemExit(3)


@workflow(name="web_shop")
def shop(question: bool = False) -> Any:
    order("kelp")
    answer = holdfast.ask("Continue?", schema=bool) if question else None
    order("rock")
    return answer


@workflow(name="web_long")
def long() -> str:
    order("kelp")
    wait()
    return "over"


@workflow(name="web_leaving")
def leaving() -> None:
    order("kelp")
    leave()


@step(name="web_tell")
def describe(length: int) -> dict[str, str]:
    return {"text": "y" * length}


@workflow(name="web_report")
def report(length: int) -> dict[str, str]:
    return describe(length)
