"""Workflows for the tests of steps, to run here and in other processes, and a record of the steps that ran."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import holdfast
from holdfast import step, workflow
from holdfast.testing import isolated_definitions

#: Generous: only a test that fails waits for so long.
DEADLINE = 60.0


class Control:
    """The steps that ran, and those that are to fail."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        #: How often each is still to fail.
        self.failing: dict[str, int] = {}
        self.gate = threading.Event()
        self.entered = threading.Event()
        #: Anything else that a test wants to hand to its steps.
        self.value: Any = None

    def reset(self) -> None:
        self.gate.set()
        self.__init__()  # type: ignore[misc]

    def did(self, what: str) -> None:
        self.ran.append(what)
        path = os.environ.get("EFFECTS")
        if path:
            with open(path, "a") as file:
                file.write(f"{what}\n")
        left = self.failing.get(what, 0)
        if left:
            self.failing[what] = left - 1
            raise Broken(what, code=7)


class Broken(Exception):
    """An error of the application, with an attribute."""

    def __init__(self, what: str, *, code: int = 0) -> None:
        super().__init__(what)
        self.code = code


control = Control()


def program(db: Path | str, body: str) -> list[str]:
    """The command line of a process that opens a store and does something with it."""
    code = f"import holdfast, step_flows as f\nhf = holdfast.open({str(db)!r})\n{body}"
    return [sys.executable, "-c", code]


def environment(effects: Path | None = None) -> dict[str, str]:
    here = Path(__file__).parent
    found = {**os.environ, "PYTHONPATH": os.pathsep.join((str(here), str(here.parent)))}
    if effects is not None:
        found["EFFECTS"] = str(effects)
    return found


def elsewhere(db: Path | str, body: str, effects: Path | None = None) -> str:
    """Do something in a new process; gives what it printed."""
    done = subprocess.run(
        program(db, body), env=environment(effects), capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def effects_in(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


def start_stuck(db: Path, flow: str, effects: Path, run_id: str) -> subprocess.Popen[str]:
    """Run a workflow in a new process, up to where it is stuck."""
    process = subprocess.Popen(
        # A shell without job control lets its background processes ignore interrupts.
        program(
            db,
            f"import signal; signal.signal(2, signal.default_int_handler); hf.run(f.{flow}, run_id={run_id!r})",
        ),
        env={**environment(effects), "STUCK": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "stuck"
    return process


def kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@step
def plan(topic: str) -> dict[str, Any]:
    control.did("plan")
    holdfast.state()["topic"] = topic
    return {"topic": topic, "tasks": ["a", "b"]}


@step
def write(task: str) -> str:
    control.did(f"write-{task}")
    holdfast.state().setdefault("texts", []).append(task)
    return task.upper()


@step
def finish(texts: list[str]) -> str:
    control.did("finish")
    holdfast.state()["done"] = True
    return "+".join(texts)


@workflow
def book(topic: str) -> str:
    tasks = plan(topic)["tasks"]
    return finish([write(task) for task in tasks])


# Of the same names as above: a run of either workflow has the same addresses.
with isolated_definitions():

    @step(name="plan")
    async def aplan(topic: str) -> dict[str, Any]:
        control.did("plan")
        holdfast.state()["topic"] = topic
        return {"topic": topic, "tasks": ["a", "b"]}

    @step(name="write")
    async def awrite(task: str) -> str:
        control.did(f"write-{task}")
        holdfast.state().setdefault("texts", []).append(task)
        return task.upper()

    @step(name="finish")
    async def afinish(texts: list[str]) -> str:
        control.did("finish")
        holdfast.state()["done"] = True
        return "+".join(texts)


@workflow
async def abook(topic: str) -> str:
    tasks = (await aplan(topic))["tasks"]
    return await afinish([await awrite(task) for task in tasks])


@step
def stuck() -> str:
    """Waits for ever in a process that is to be killed; passes where it is not."""
    control.did("stuck")
    if os.environ.get("STUCK"):
        print("stuck", flush=True)
        time.sleep(600)
    return "free"


@workflow
def killed() -> list[str]:
    return [write("a"), stuck(), write("b")]


@workflow
async def akilled() -> list[str]:
    return [await awrite("a"), stuck(), await awrite("b")]


@step
def inner(name: str) -> str:
    control.did(f"inner-{name}")
    state = holdfast.state()
    state.setdefault("inner", []).append(name)
    return f"<{name}>"


@step
def outer() -> list[str]:
    control.did("outer")
    holdfast.state()["outer"] = "started"
    found = [inner("x")]
    stuck()
    found.append(inner("y"))
    state = holdfast.state()
    state["seen"] = list(state["inner"])
    return found


@workflow
def nested() -> list[str]:
    return outer()


@step
def fragile() -> str:
    control.did("fragile")
    raise Broken("bad day", code=42)


@workflow
def careful() -> list[Any]:
    try:
        found: Any = fragile()
    except Broken as error:
        found = (str(error), error.code)
    return [found, stuck(), write("after")]


@step
def risky() -> str:
    control.did("risky")
    if os.environ.get("STUCK"):
        raise Broken("risky")
    return "fine"


@workflow
def logging_failure() -> str:
    try:
        return risky()
    except Broken:
        write("log")
        stuck()
        raise


@step
def size(names: set[str]) -> int:
    control.did("size")
    return len(names)


@workflow
def with_set(names: set[str]) -> int:
    found = size(names)
    control.did("end")
    return found
