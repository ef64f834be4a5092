"""A worker that tests kill and stop (SIGSTOP). Its steps write a line each time they are run."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import holdfast
from holdfast import step, workflow

GIVEN = json.loads(sys.argv[1])
EFFECTS = Path(GIVEN["folder"], "effects.txt")


def effect(number: int, index: int) -> str:
    """Tell the world; gives what no other execution of the step would."""
    file = os.open(EFFECTS, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{number}.{index} {holdfast.idempotency_key()}\n".encode())
    os.close(file)
    result = f"{number}.{index}:{os.getpid()}.{time.monotonic_ns()}"
    holdfast.state().setdefault("done", []).append(result)
    return result


@step(name="crash_step")
def one(number: int, index: int) -> str:
    result = effect(number, index)
    time.sleep(GIVEN["pause"])
    return result


@step(name="crash_astep")
async def aone(number: int, index: int) -> str:
    result = effect(number, index)
    await asyncio.sleep(GIVEN["pause"])
    return result


@workflow(name="crash_fleet")
def fleet(number: int, count: int) -> list[str]:
    return [one(number, index) for index in range(count)]


@workflow(name="crash_afleet")
async def afleet(number: int, count: int) -> list[str]:
    return [await aone(number, index) for index in range(count)]


if __name__ == "__main__":
    with holdfast.open(GIVEN["where"], durability="fast", lease=GIVEN["lease"]) as hf:
        hf.worker(concurrency=8).serve()
