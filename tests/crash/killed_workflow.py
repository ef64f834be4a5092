"""The program that is killed while it runs workflows, at random moments or, by itself, at named points.

Run as a program it is a fork server, as `killed_process` is: a line of JSON on its input is a job, for which it forks a
child. A child does one thing: it runs or resumes a workflow and brings it what it waits for, until it is completed or
the child is dead. Each step leaves a line in the file of effects before it returns.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast import Holdfast, Retry, Run
from holdfast.execution.replay_log import ReplayLog
from holdfast.store.protocol import Append
from holdfast.store.sqlite.database import SQLiteDatabase
from holdfast.store.sqlite.store import SQLiteStore

BLOCKS = 6
#: Steps of the workflow, including waits and the child. The first and the last version are not steps.
STEPS = 8 * BLOCKS + 3
#: Steps of the workflow within the workflow.
PARTS = 3
#: Steps of the workflow that is rolled back, each with a compensation.
UNDOABLE = 8


def say(**facts: Any) -> None:
    """Write one line to the parent in a single call."""
    os.write(sys.stdout.fileno(), json.dumps(facts).encode() + b"\n")


# Where to die


class Doom:
    """The point at which this process kills itself: the nth time that it comes there."""

    def __init__(self) -> None:
        self.point: tuple[str, str] | None = None
        self.left = 0
        #: Until a point during something: seconds after it was reached.
        self.delay = 0.0


doom = Doom()


class Written(threading.local):
    """What the transaction under way has written: that of this thread, others renew leases meanwhile."""

    def __init__(self) -> None:
        self.sorts: list[str] = []


written = Written()


def reach(place: str, what: str) -> None:
    """Execution has come to a point."""
    if doom.point != (place, what):
        return
    doom.left -= 1
    if doom.left == 0:
        say(reached=[place, what])
        if place == "during":
            threading.Thread(target=_die_soon, daemon=True).start()
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def _die_soon() -> None:
    time.sleep(doom.delay)
    os.kill(os.getpid(), signal.SIGKILL)


def sort_of(change: Append) -> str:
    """What a write is for: a kind of version, or the first event that it brings."""
    if change.version is not None:
        return change.version.kind if change.run.parent is None else f"part {change.version.kind}"
    return change.events[0].kind if change.events else "record"


def around(owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a function by one that is made from it."""
    setattr(owner, name, make(getattr(owner, name)))


def arm() -> None:
    """Make every named point of the commit path known to `reach`."""

    def appending(append: Callable[..., Any]) -> Callable[..., Any]:
        def call(store: Any, given: Any) -> Any:
            sorts = [sort_of(change) for change in (given if isinstance(given, list) else [given])]
            for sort in sorts:
                reach("before", sort)
            done = append(store, given)
            for sort in sorts:
                reach("after", sort)
            return done

        return call

    def inside(append: Callable[..., Any]) -> Callable[..., Any]:
        def call(store: Any, connection: Any, change: Append) -> Any:
            done = append(store, connection, change)
            written.sorts.append(sort_of(change))
            reach("inside", sort_of(change))
            return done

        return call

    def transacting(transact: Callable[..., Any]) -> Callable[..., Any]:
        def call(link: Any, connection: Any, jobs: Any) -> None:
            written.sorts.clear()
            transact(link, connection, jobs)
            for sort in tuple(written.sorts):
                reach("committed", sort)

        return call

    def connecting(connect: Callable[..., Any]) -> Callable[..., Any]:
        def call(link: Any, *args: Any) -> Any:
            connection = connect(link, *args)
            connection.exec_trace = _traced
            return connection

        return call

    def loading(load: Callable[..., Any]) -> Callable[..., Any]:
        def call(record: Any, *args: Any) -> Any:
            reach("before", "load")
            done = load(record, *args)
            reach("after", "load")
            return done

        return call

    around(SQLiteStore, "append", appending)
    around(SQLiteStore, "append_many", appending)
    around(SQLiteStore, "_append", inside)
    around(SQLiteDatabase, "_transact", transacting)
    around(SQLiteDatabase, "_connect", connecting)
    around(ReplayLog, "load", loading)


def _traced(_: Any, statement: str, __: Any) -> bool:
    if statement == "COMMIT":
        for sort in tuple(written.sorts):
            reach("during", sort)
    return True


# What runs

effects: Path = Path()
_failed: set[str] = set()


def leave(label: str, stamp: Any = None) -> dict[str, Any]:
    """The effect of a step on the world; gives what it returns, which is another each time."""
    done = {"label": label, "token": os.urandom(6).hex(), "stamp": stamp}
    reach("before", "effect")
    with effects.open("ab", buffering=0) as file:
        file.write(json.dumps({**done, "key": holdfast.idempotency_key()}).encode() + b"\n")
        os.fsync(file.fileno())
    reach("after", "effect")
    return done


def change(state: Any, label: str, token: str) -> None:
    """What a step does to a state, plain or draft."""
    state["log"].append(label)
    state["by"][label] = token
    if not label.startswith("pair"):
        state["last"] = [label]
        if "scratch" in state:
            del state["scratch"]
        else:
            state["scratch"] = {"of": token}


def fresh() -> dict[str, Any]:
    """What a run begins with."""
    return {"log": [], "by": {}}


def _work(label: str, stamp: Any = None) -> dict[str, Any]:
    done = leave(label, stamp)
    change(holdfast.state(), label, done["token"])
    return done


def _fail_once(label: str) -> None:
    """The first attempt in each process fails when all is done; nothing of it may stay."""
    if label not in _failed:
        _failed.add(label)
        holdfast.state()["log"].append("never")
        leave(label)
        raise ConnectionError("try again")


_RETRY = Retry(3, backoff="constant", delay=0.001, jitter=0.0)


@holdfast.step(name="crash_work")
def work(label: str, stamp: Any = None) -> dict[str, Any]:
    return _work(label, stamp)


@holdfast.step(name="crash_flaky", retry=_RETRY)
def flaky(label: str) -> dict[str, Any]:
    _fail_once(label)
    return _work(label)


@holdfast.step(name="crash_outer")
def outer(label: str) -> dict[str, Any]:
    holdfast.state()["by"][label] = "started"
    inner = [work(f"{label}.{n}")["token"] for n in range(2)]
    return _work(label, inner)


@holdfast.step
def bare(label: str) -> dict[str, Any]:
    return leave(label)


@holdfast.workflow
def part(label: str) -> list[Any]:
    return [bare(f"{label}.{n}") for n in range(PARTS)]


@holdfast.workflow
def whole(name: str) -> list[Any]:
    found: list[Any] = []
    for block in range(BLOCKS):
        stamp = [holdfast.now().isoformat(), holdfast.random(), holdfast.uuid4().hex]
        found += [work(f"plain {block}"), work(f"stamped {block}", stamp)]
        reach("between", "steps")
        found += [outer(f"outer {block}"), flaky(f"flaky {block}")]
        found += holdfast.parallel((work, f"pair {block}.0"), (work, f"pair {block}.1"))
        if block == BLOCKS // 2 - 1:
            found += [holdfast.ask("Continue?"), part(f"part of {name}"), holdfast.wait_for("go")]
    return found


@holdfast.step
async def awork(label: str, stamp: Any = None) -> dict[str, Any]:
    await asyncio.sleep(0)
    return _work(label, stamp)


@holdfast.step(retry=_RETRY)
async def aflaky(label: str) -> dict[str, Any]:
    _fail_once(label)
    return _work(label)


@holdfast.step
async def aouter(label: str) -> dict[str, Any]:
    holdfast.state()["by"][label] = "started"
    inner = [(await awork(f"{label}.{n}"))["token"] for n in range(2)]
    return _work(label, inner)


@holdfast.step
async def abare(label: str) -> dict[str, Any]:
    return leave(label)


@holdfast.workflow
async def apart(label: str) -> list[Any]:
    return [await abare(f"{label}.{n}") for n in range(PARTS)]


@holdfast.workflow
async def awhole(name: str) -> list[Any]:
    found: list[Any] = []
    for block in range(BLOCKS):
        stamp = [holdfast.now().isoformat(), holdfast.random(), holdfast.uuid4().hex]
        found += [await awork(f"plain {block}"), await awork(f"stamped {block}", stamp)]
        reach("between", "steps")
        found += [await aouter(f"outer {block}"), await aflaky(f"flaky {block}")]
        found += await asyncio.gather(awork(f"pair {block}.0"), awork(f"pair {block}.1"))
        if block == BLOCKS // 2 - 1:
            found += [
                await holdfast.ask("Continue?"),
                await apart(f"part of {name}"),
                await holdfast.wait_for("go"),
            ]
    return found


def _unwork(done: Any, label: str) -> Any:
    return leave(f"undo {label}", done["token"])


@holdfast.step(compensate=_unwork)
def booked(label: str) -> dict[str, Any]:
    return _work(label)


@holdfast.workflow
def trip(name: str) -> int:
    return len([booked(f"{name} {n}") for n in range(UNDOABLE)])


# The child


def advance(hf: Holdfast, job: dict[str, Any]) -> Run:
    """Run or resume, once, and bring what is waited for."""
    name = job["run"]
    if any(run.id == name for run in hf.runs()):
        run = hf.resume(name, raises=False)
    else:
        run = hf.run(job["workflow"], name, run_id=name, state=fresh(), raises=False)
    while run.status == "suspended":
        questions = run.questions()
        run = (
            hf.answer(questions[0].id, "yes", raises=False)
            if questions
            else hf.signal(name, "go", {"now": True}, raises=False)
        )
    return run


def undo(hf: Holdfast, job: dict[str, Any]) -> Run:
    """Roll back to the first version and stop; either of the two calls resumes an incomplete rollback."""
    if job["by_resume"] and any(
        event.kind == "run.rolling_back" for event in hf.history(job["run"]).events()
    ):
        return hf.resume(job["run"], raises=False)
    return hf.rollback(job["run"], to=1, resume=False)


JOBS: dict[str, Callable[[Holdfast, dict[str, Any]], Run]] = {"advance": advance, "undo": undo}


def _child(job: dict[str, Any]) -> None:
    global effects
    effects = Path(job["effects"])
    if job.get("point") is not None:
        place, what, doom.left = job["point"]
        doom.point = (place, what)
        doom.delay = random.Random(job["seed"]).uniform(0.0, 0.0015)
        arm()
    say(ready=os.getpid())
    try:
        run = JOBS[job["job"]](holdfast.open(job["path"]), job)
        say(done=run.status, error=repr(run.error))
    except BaseException:
        say(failed=traceback.format_exc())
    while True:
        # Not gone before it is killed: its number must not come to name another process.
        signal.pause()


def serve() -> None:
    """Fork a child for each job that comes in; say how it ended."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _child(json.loads(line))
        _, status = os.waitpid(pid, 0)
        say(ended=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None)


if __name__ == "__main__":
    serve()
