"""Workflows for workers, and a worker as a program of its own.

What steps do to the world is a line in `world.txt` of the folder `WORLD`; what they wait for is a file there.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Retry, step, workflow

WORLD = Path(os.environ.get("WORLD", "."))


def did(what: str) -> None:
    """One write, so that lines of several processes stay whole."""
    line = f"{what}\t{os.getpid()}\t{time.time():.6f}\n".encode()
    file = os.open(WORLD / "world.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)


def until(name: str) -> None:
    while not (WORLD / name).exists():
        time.sleep(0.005)


@step(name="f_add")
def add(number: int) -> int:
    state = holdfast.state()
    state["sum"] = state.get("sum", 0) + number
    did(f"add {holdfast.idempotency_key()}")
    return number * 2


@step(name="f_mark")
def mark(text: str) -> str:
    did(text)
    return text


@step(name="f_gate")
def gate(name: str) -> str:
    did(f"begin {name}")
    until(f"go-{name}")
    did(f"end {name}")
    return name


@step(name="f_flaky", retry=Retry(5, delay=30))
def flaky(name: str) -> str:
    did(f"try {name}")
    if not (WORLD / f"go-{name}").exists():
        raise ConnectionError("not yet")
    return name


@step(name="f_boom")
def boom(name: str) -> None:
    did(f"boom {name}")
    if not (WORLD / f"mended-{name}").exists():
        raise ValueError(f"{name} is broken")


@step(name="f_exit")
def leave() -> None:
    did("leave")
    sys.exit(3)


@step(name="f_awhile")
async def awhile(text: str) -> str:
    await asyncio.sleep(0.001)
    did(text)
    return text


@step(name="f_agate")
async def agate(name: str) -> str:
    did(f"begin {name}")
    while not (WORLD / f"go-{name}").exists():
        await asyncio.sleep(0.005)
    did(f"end {name}")
    return name


@step(name="f_fork")
def forks() -> int:
    child = os.fork()
    if child == 0:
        os._exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@workflow(name="f_empty")
def empty(value: Any = None) -> Any:
    return value


@workflow(name="f_aempty")
async def aempty(value: Any = None) -> Any:
    return value


@workflow(name="f_adding")
def adding(count: int) -> int:
    return sum(add(number) for number in range(count))


@workflow(name="f_marking")
def marking(text: str, then: str = "") -> str:
    mark(text)
    return mark(then) if then else text


@workflow(name="f_gated")
def gated(name: str) -> str:
    mark(f"before {name}")
    gate(name)
    return mark(f"after {name}")


@workflow(name="f_agated")
async def agated(name: str) -> str:
    await awhile(f"before {name}")
    await agate(name)
    return await awhile(f"after {name}")


@workflow(name="f_retrying")
def retrying(name: str) -> str:
    return flaky(name)


@workflow(name="f_failing")
def failing(name: str) -> str:
    mark(f"before {name}")
    boom(name)
    return name


@workflow(name="f_leaving")
def leaving() -> None:
    leave()


@workflow(name="f_asking")
def asking(question: str = "well?") -> Any:
    mark("before the question")
    answer = holdfast.ask(question, schema=str)
    return mark(f"answer {answer}")


@workflow(name="f_sleeping")
def sleeping(seconds: float) -> str:
    mark("tired")
    holdfast.sleep(seconds)
    return mark("awake")


@workflow(name="f_waiting")
def waiting(event: str) -> Any:
    return [mark("waits"), holdfast.wait_for(event)]


@workflow(name="f_parent")
def parent() -> str:
    mark("parent")
    return f"the child says {asking('child?')}"


@workflow(name="f_parent_of_gated")
def parent_of_gated(name: str) -> str:
    return f"parent of {gated(name)}"


@workflow(name="f_forking")
def forking() -> int:
    return forks() + add(1)


def work(options: dict[str, Any]) -> None:
    """Open a store and work on its queues until a signal comes."""
    where, lease = options.pop("where"), options.pop("lease", 2.0)
    for name in options.pop("defines", ()):
        workflow(name=name)(lambda *args, name=name: mark(f"{name} {args}"))
    with holdfast.open(where, lease=lease, timeout=options.pop("timeout", 30.0)) as hf:
        worker = hf.worker(**options)
        worker.serve(lambda count: did(f"signal {count}"), lambda: did("worker"))
        did("worker ended")


if __name__ == "__main__":
    work(json.loads(sys.argv[1]))
