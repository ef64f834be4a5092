"""What an operator asks of a store: the open questions, the runs with some metadata, and the agents that stall."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter, sleep, time
from typing import Any

import holdfast
from bench.measure import Bench, Row, note
from holdfast import Holdfast, workflow
from holdfast.loops import LoopEngine

_FEW, _MANY = 100, 100_000
#: Runs that are started at once.
_AT_ONCE = 500
_TIMES = 31
_TIMEOUT, _EVERY = 1.0, 0.5


@workflow
async def asking(assignee: str) -> Any:
    return await holdfast.ask("Send it?", assignee=assignee, priority=1)


def inbox(bench: Bench) -> Iterator[Row]:
    """A page of the inbox, and runs by metadata, with 100 and with 100,000 open questions."""
    work = f"{_MANY:,} open questions"
    note(f"{work}: asking takes minutes")
    with bench.place() as folder:
        few, many = folder / "few.db", folder / "many.db"
        _ask(few, _FEW)
        _ask(many, _MANY)
        with holdfast.open(few) as one, holdfast.open(many) as other:
            found = {
                name: _in_turns(read, number, one, other)
                for name, (read, number) in _pages(one, other).items()
            }
    for name, (small, large) in found.items():
        yield Row(
            work, f"{name}: ÷ {_FEW} questions", large / small, "×",
            f"{large * 1e3:.2f} ms and {small * 1e3:.2f} ms", at_most=1.5,
        )  # fmt: skip


def loops(bench: Bench) -> Iterator[Row]:
    """The time until the agent of a killed process is found."""
    note("agents of killed processes")
    (delay,) = bench.repeat(_kill)
    yield Row(
        "a loop whose process is killed", "its question is in the inbox", delay, "s",
        f"after its last heartbeat, which may be {_TIMEOUT:g} s old; checked every {_EVERY:g} s",
        at_most=_TIMEOUT + _EVERY + 0.2,
    )  # fmt: skip


def _ask(file: Path, count: int) -> None:
    """Start so many runs, each of which asks."""

    async def ask_all(hf: Holdfast) -> None:
        places = asyncio.Semaphore(_AT_ONCE)

        async def ask(number: int) -> None:
            async with places:
                run_id = f"run-{number}"
                # 20 questions are for ana, and as many runs are of customer 7, however many there are.
                who = "ana" if number % (count // 20) == 0 else "bo"
                customer = 7 if who == "ana" else number + 1_000
                await hf.arun(asking, who, run_id=run_id, meta={"customer": customer})

        await asyncio.gather(*map(ask, range(count)))

    with holdfast.open(file, durability="memory") as hf:
        asyncio.run(ask_all(hf))


def _pages(*stores: Holdfast) -> dict[str, tuple[Callable[[Holdfast], list[Any]], int]]:
    """Return what is asked of each store, with the number of entries that it has."""
    middle = {hf: hf.inbox(limit=50)[-1].id for hf in stores}
    return {
        "a page of 50": (lambda hf: hf.inbox(limit=50), 50),
        "the next page": (lambda hf: hf.inbox(limit=50, after=middle[hf]), 50),
        "those of one assignee": (lambda hf: hf.inbox(assignee="ana", limit=50), 20),
        "waiting longer than an hour, none": (lambda hf: hf.inbox(waiting_longer_than=3600), 0),
        "runs by metadata": (lambda hf: hf.runs(meta={"customer": 7}), 20),
    }


def _in_turns(read: Callable[[Holdfast], list[Any]], number: int, *stores: Holdfast) -> list[float]:
    """Return the seconds that a page takes in each store: medians, measured in turns."""
    spent: list[list[float]] = [[] for _ in stores]
    for _ in range(_TIMES):
        for hf, own in zip(stores, spent, strict=True):
            start = perf_counter()
            found = read(hf)
            own.append(perf_counter() - start)
            assert len(found) == number
    return [median(own) for own in spent]


_AGENT = """
import os, sys, holdfast
from holdfast.loops import LoopEngine
engine = LoopEngine(holdfast.open(sys.argv[1]), check_every=None)
engine.set_project_state("report", {"loop_count": 1})
engine.log_agent_start("report", "researcher", timeout=float(sys.argv[2]))
print("started", flush=True)
sys.stdin.read()
"""


def _kill(folder: Path) -> tuple[float, ...]:
    """The seconds from the last heartbeat of an agent whose process is killed to its question."""
    file = folder / "loops.db"
    with holdfast.open(file) as hf, LoopEngine(hf, check_every=None).checker(every=_EVERY):
        agent = subprocess.Popen(
            [sys.executable, "-c", _AGENT, str(file), str(_TIMEOUT)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert agent.stdout is not None
        agent.stdout.readline()
        start = time()
        agent.kill()
        agent.wait()
        end = monotonic() + 60
        while not (found := hf.inbox(kind="loop")):
            assert monotonic() < end, "no question"
            sleep(0.01)
        return (found[0].opened.timestamp() - start,)
