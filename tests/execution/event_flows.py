"""Steps that fail on request, and workflows of them, for the tests of events, here and in another process."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast, Retry, step, workflow


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def end(hf: Holdfast) -> int:
    return hf._store.journal_end()


BROKEN: list[str] = []


@pytest.fixture(autouse=True)
def mended() -> None:
    BROKEN.clear()


@step(retry=Retry(2, delay=0.001))
def event_step(name: str) -> str:
    if name in BROKEN:
        BROKEN.remove(name)
        raise ConnectionError(f"{name} is down")
    holdfast.progress(0.5, "half")
    return name


@step(retry=Retry(2, delay=0.001))
async def event_astep(name: str) -> str:
    if name in BROKEN:
        BROKEN.remove(name)
        raise ConnectionError(f"{name} is down")
    holdfast.progress(0.5, "half")
    return name


@workflow
def event_run() -> list[str]:
    return [event_step("a"), holdfast.ask("Well?"), event_step("b")]


@workflow
async def event_arun() -> list[str]:
    return [await event_astep("a"), await holdfast.ask("Well?"), await event_astep("b")]


@workflow
def event_short(name: str = "x") -> str:
    return event_step(name)


WRITER = """
import sys
import holdfast
from holdfast import step, workflow

@step
def work(n):
    return n

@workflow
def event_elsewhere(n):
    return work(n)

with holdfast.open(sys.argv[1], durability="fast") as hf:
    for n in range(int(sys.argv[2])):
        hf.run(event_elsewhere, n)
"""
