"""A workflow of three steps that can be made to fail.

A module that needs the fixture binds it: `hf = three_step_flow.hf`.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import step, workflow

RAN: list[Any] = []
GATE = threading.Event()
FAIL: list[Any] = []


@step(name="three_work")
def work(n: int) -> int:
    RAN.append(n)
    if n in FAIL:
        raise ConnectionError(f"{n} is down")
    holdfast.state().setdefault("done", []).append(n)
    holdfast.annotate(tokens=1)
    return n * 10


@workflow(name="three")
def three() -> list[int]:
    return [work(n) for n in range(1, 4)]


@pytest.fixture
def hf(tmp_path: Path) -> Any:
    RAN.clear()
    FAIL.clear()
    GATE.clear()
    with holdfast.open(tmp_path / "runs.db", durability="fast") as opened:
        yield opened
