"""A shop whose orders can be compensated, and a log of the calls.

A module that needs the fixtures binds them: `clean, hf = compensation_flows.clean, compensation_flows.hf`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Run, step, workflow

CALLS: list[Any] = []
BROKEN: set[str] = set()


@pytest.fixture(autouse=True)
def clean() -> None:
    CALLS.clear()
    BROKEN.clear()


@pytest.fixture(params=["sqlite", "memory"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    where = tmp_path / "runs.db" if request.param == "sqlite" else ":memory:"
    with holdfast.open(where, durability="fast" if request.param == "sqlite" else "memory") as opened:
        yield opened


def kinds(run: Run) -> list[str]:
    return [event.kind for event in run.events()]


def undo_order(result: str, item: str) -> str:
    if item in BROKEN:
        raise ConnectionError(f"cannot undo {item}")
    CALLS.append(("undo", result, item))
    holdfast.state().setdefault("undone", []).append(item)
    return f"undone {item}"


@step(compensate=undo_order)
def undo_place(item: str) -> str:
    CALLS.append(("do", item))
    holdfast.state().setdefault("items", []).append(item)
    return f"order-{item}"


@step
def undo_plain(item: str) -> str:
    CALLS.append(("plain", item))
    return item


@workflow
def undo_shop() -> Any:
    """Versions: 1 initial, 2 a, 3 b, 4 plain, 5 c, 6 final."""
    return [undo_place("a"), undo_place("b"), undo_plain("x"), undo_place("c")]


@workflow
async def undo_ashop() -> Any:
    return [undo_place("a"), undo_place("b"), undo_plain("x"), undo_place("c")]
