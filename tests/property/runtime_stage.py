"""Workflows that carry out scripts with real steps, which can be made to fail, or to end their process.

The `stage` holds the instructions for steps in the present execution, and records what they did.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

from expected_runs import Code
from runtime_changes import better, change

import holdfast
from holdfast import Retry, thaw
from holdfast.execution.calls import current
from holdfast.store.memory.store import MemoryStore
from holdfast.testing import isolated_definitions


class Boom(Exception):
    """The error of a step that is to fail."""


class Crash(BaseException):
    """The error of a step whose process dies, and of the store after that."""


class Mortal:
    """A store that its process can no longer write to once it is dead."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.dead = False

    def append(self, change: Any) -> Any:
        if self.dead:
            raise Crash
        return self.store.append(change)

    def append_many(self, changes: Any) -> Any:
        if self.dead:
            raise Crash
        return self.store.append_many(changes)

    def close(self) -> None:
        """Close the store, unless it is in memory: that one outlives its engines."""
        if not isinstance(self.store, MemoryStore):
            self.store.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


#: How parallel changes of one place become one. The place `n` has no reducer.
MERGE: dict[str, Any] = {"total": "sum", "latest": "last", "seen": "union", "best": better}


class Stage:
    """The instructions for steps, and the record of what they did, in the present execution."""

    def __init__(self) -> None:
        self.code = Code()
        #: Where steps of branches have run, and as what.
        self.recorded: set[tuple[str, str]] = set()
        self.hf: Any = None
        self.store: Any = None
        self.run = ""
        self.clear()

    def clear(self, failing: set[str] = frozenset(), crashing: str | None = None) -> None:  # type: ignore[assignment]
        self.failing = failing
        self.crashing = crashing
        self.trace: list[Any] = []
        self.values: list[Any] = []
        self.ran: Counter[str] = Counter()
        self.keys: dict[str, set[str]] = {}

    def enter(self, label: str, op: list[Any] | None = None) -> None:
        frame = current.get()
        assert frame is not None
        self.recorded.add((frame.address, str(op)))
        self.ran[label] += 1
        self.keys.setdefault(label, set()).add(holdfast.idempotency_key())

    def fate(self, label: str) -> None:
        if label == self.crashing:
            self.store.dead = True
            raise Crash
        if label in self.failing:
            raise Boom(label)


stage = Stage()
#: By label of a step in a branch: waits until it may end.
pacing: dict[str, Callable[[], Any]] = {}


@holdfast.step
def act(op: list[Any]) -> Any:
    return _act(op)


with isolated_definitions():

    @holdfast.step(aliases=["act"])
    def acted(op: list[Any]) -> Any:
        """The same under another name, with the older one."""
        return _act(op)


@holdfast.step
def renamed(op: list[Any]) -> Any:
    """The same under another name, without the older one."""
    return _act(op)


#: By what the code calls it.
ACTS: dict[str, Any] = {"act": act, "acted": acted, "renamed": renamed}


def _act(op: list[Any]) -> Any:
    stage.enter(op[1], op)
    holdfast.annotate(cost=1)
    pacing.get(op[1], lambda: None)()
    change(holdfast.state(), op)
    stage.fate(op[1])
    return op[3]


@holdfast.step
def tally(op: list[Any]) -> Any:
    """Write to a place that others write to as well, and give what was there."""
    stage.enter(op[1], op)
    pacing.get(op[1], lambda: None)()
    return _tally(op)


@holdfast.step
async def atally(op: list[Any]) -> Any:
    """The same as a task."""
    stage.enter(op[1], op)
    await pacing[op[1]]()
    return _tally(op)


def _tally(op: list[Any]) -> Any:
    holdfast.annotate(cost=1)
    before = thaw(holdfast.state().get(op[2]))
    change(holdfast.state(), op)
    stage.fate(op[1])
    return before


@holdfast.step(retry=Retry(2, backoff="constant", delay=0.0, jitter=0.0))
def flaky(op: list[Any]) -> Any:
    stage.enter(op[1])
    holdfast.annotate(cost=1)
    change(holdfast.state(), op)
    if stage.ran[op[1]] % 2:
        holdfast.state()["never"] = True
        raise ConnectionError("again")
    stage.fate(op[1])
    return op[3]


@holdfast.step
def nest(op: list[Any]) -> Any:
    stage.enter(op[1])
    holdfast.state()[f"nest {op[1]}"] = "started"
    found = [do(inner) for inner in op[3]]
    change(holdfast.state(), op)
    stage.fate(op[1])
    return found


@holdfast.step
def stop(op: list[Any]) -> Any:
    """Stop the run while it runs."""
    stage.enter(op[1])
    change(holdfast.state(), op)
    (stage.hf.pause if op[3] == "pause" else stage.hf.cancel)(stage.run)
    stage.fate(op[1])
    return op[3]


@holdfast.workflow(merge=MERGE)
def play(program: str) -> list[Any]:
    return _play(program)


@holdfast.workflow(merge=MERGE)
def play_part(program: str) -> list[Any]:
    return _play(program)


@holdfast.workflow(merge=MERGE)
async def play_tasks(program: str) -> list[Any]:
    found = []
    for op in stage.code.scripts[program]:
        found.append(await do_async(op))
        stage.trace.append(found[-1])
    return found


def _play(program: str) -> list[Any]:
    found = []
    for op in stage.code.scripts[program]:
        found.append(do(op))
        stage.trace.append(found[-1])
    return found


def do(op: list[Any]) -> Any:
    """Carry out one operation of a script."""
    kind, *args = op
    if kind == "try":
        try:
            return ["fine", do(args[0])]
        except Exception as error:
            return ["caught", type(error).__name__]
    if kind == "patched":
        return do(args[1]) if holdfast.patched(args[0]) else "as before"
    if kind == "value":
        made: dict[str, Callable[[], Any]] = {
            "now": lambda: holdfast.now().timestamp(),
            "random": holdfast.random,
            "uuid4": lambda: holdfast.uuid4().hex,
        }
        value = made[args[0]]()
        stage.values.append(value)
        return value
    if kind == "look":
        return thaw(holdfast.state())
    if kind == "pair":
        return _in_threads(ACTS[stage.code.act], args)
    if kind == "count":
        return _one_by_one(args[1:]) if args[0] else _in_threads(tally, args[1:])
    calls: dict[str, Callable[[Any], Any]] = {
        "ask": lambda _: holdfast.ask("Continue?"),
        "wait": lambda _: holdfast.wait_for(args[0]),
        "part": lambda _: play_part(args[0]),
        "act": ACTS[stage.code.act],
        "flaky": flaky,
        "nest": nest,
        "stop": stop,
    }
    return calls[kind](op)


async def do_async(op: list[Any]) -> Any:
    """Carry out one operation of a script in asynchronous code."""
    kind, *args = op
    if kind == "try":
        try:
            return ["fine", await do_async(args[0])]
        except Exception as error:
            return ["caught", type(error).__name__]
    if kind == "patched":
        return await do_async(args[1]) if holdfast.patched(args[0]) else "as before"
    if kind == "ask":
        return await holdfast.ask("Continue?")
    if kind == "wait":
        return await holdfast.wait_for(args[0])
    return await _tasks(args[1:]) if kind == "count" else do(op)


def _one_by_one(ops: list[list[Any]]) -> Any:
    return holdfast.parallel(*[(tally, op) for op in ops], limit=1)


def _in_threads(function: Callable[[list[Any]], Any], ops: list[list[Any]]) -> Any:
    """Steps in threads. Each begins when the one before it has started, and ends when those before it have ended; all
    begin before the first ends."""
    started, over = ([threading.Event() for _ in ops] for _ in range(2))

    def may_end(number: int) -> None:
        started[number].set()
        for event in [*started, *over[:number]]:
            _wait(event)

    def call(number: int) -> Any:
        if _is_recorded(ops[number]):
            started[number].set()
        for event in started[max(0, number - 1) : number]:
            _wait(event)
        try:
            return function(ops[number])
        finally:
            started[number].set()
            over[number].set()

    for number, op in enumerate(ops):
        pacing[op[1]] = lambda number=number: may_end(number)  # type: ignore[misc]
    try:
        return holdfast.parallel(*[(call, number) for number in range(len(ops))])
    finally:
        for op in ops:
            del pacing[op[1]]


def _wait(event: threading.Event) -> None:
    assert event.wait(60)


def _is_recorded(op: list[Any]) -> bool:
    """Will the step of this branch be replayed? It may have to wait for one that was recorded before it, so others do
    not wait for it."""
    frame = current.get()
    assert frame is not None
    frame = frame.here()
    steps = frame.execution.replay_log.steps
    return any((f"{frame.address}/{name}", str(op)) in stage.recorded for name in steps_of(op)) and any(
        f"{frame.address}/{name}" in steps for name in steps_of(op)
    )


def steps_of(op: list[Any]) -> list[str]:
    """Return the names under which the step of a branch may be recorded."""
    if op[0] == "tally":
        return ["tally", "atally"]
    return [stage.code.act, *ACTS[stage.code.act].holdfast.aliases]


async def _tasks(ops: list[list[Any]]) -> Any:
    """Steps in tasks, in the same order."""
    started, over = ([asyncio.Event() for _ in ops] for _ in range(2))

    async def may_end(number: int) -> None:
        started[number].set()
        for event in [*started, *over[:number]]:
            await event.wait()

    async def call(number: int) -> Any:
        if _is_recorded(ops[number]):
            started[number].set()
        for event in started[max(0, number - 1) : number]:
            await event.wait()
        try:
            return await atally(ops[number])
        finally:
            started[number].set()
            over[number].set()

    def waits(number: int) -> Callable[[], Awaitable[None]]:
        return lambda: may_end(number)

    for number, op in enumerate(ops):
        pacing[op[1]] = waits(number)
    try:
        found = await asyncio.gather(*map(call, range(len(ops))), return_exceptions=True)
    finally:
        for op in ops:
            del pacing[op[1]]
    errors = [each for each in found if isinstance(each, BaseException)]
    # The end of the process first, then the end of the execution, then failures.
    for error in sorted(errors, key=lambda each: (isinstance(each, Exception), not isinstance(each, Crash))):
        raise error
    return list(found)
