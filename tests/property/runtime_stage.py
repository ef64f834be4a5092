"""Workflows that carry out scripts with real steps, which can be told to fail, or to take their process along.

The `stage` says what steps are told in the present execution, and keeps what was seen of them.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from runtime_oracle import change

import holdfast
from holdfast import Retry, thaw
from holdfast.store.memory import MemoryStore


class Boom(Exception):
    """What a step raises that was told to fail."""


class Crash(BaseException):
    """What a step raises when its process dies, and the store after that."""


class Mortal:
    """A store that its process can no longer write to once it is dead."""

    def __init__(self, store: Any) -> None:
        self.store = store
        self.dead = False

    def append(self, change: Any) -> Any:
        if self.dead:
            raise Crash
        return self.store.append(change)

    def close(self) -> None:
        """What is in memory outlives those who opened it."""
        if not isinstance(self.store, MemoryStore):
            self.store.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class Stage:
    """What steps are told, and what is seen of them, in the present execution."""

    def __init__(self) -> None:
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

    def enter(self, label: str) -> None:
        self.ran[label] += 1
        self.keys.setdefault(label, set()).add(holdfast.idempotency_key())

    def fate(self, label: str) -> None:
        if label == self.crashing:
            self.store.dead = True
            raise Crash
        if label in self.failing:
            raise Boom(label)


stage = Stage()
#: By label of a step that runs beside another: tells it when to begin and when to end.
beside: dict[str, Callable[[], None]] = {}


@holdfast.step
def act(op: list[Any]) -> Any:
    stage.enter(op[1])
    beside.get(op[1], lambda: None)()
    change(holdfast.state(), op)
    stage.fate(op[1])
    return op[3]


@holdfast.step(retry=Retry(2, backoff="constant", delay=0.0, jitter=0.0))
def flaky(op: list[Any]) -> Any:
    stage.enter(op[1])
    change(holdfast.state(), op)
    if stage.ran[op[1]] % 2:
        holdfast.state()["never"] = True
        raise ConnectionError("again")
    stage.fate(op[1])
    return op[3]


@holdfast.step
def nest(op: list[Any]) -> Any:
    stage.enter(op[1])
    holdfast.state()[f"nest {op[1]}"] = "begun"
    found = [do(inner) for inner in op[3]]
    change(holdfast.state(), op)
    stage.fate(op[1])
    return found


@holdfast.step
def stop(op: list[Any]) -> Any:
    """Somebody stops the run while it runs."""
    stage.enter(op[1])
    change(holdfast.state(), op)
    (stage.hf.pause if op[3] == "pause" else stage.hf.cancel)(stage.run)
    stage.fate(op[1])
    return op[3]


@holdfast.workflow
def play(script: list[Any]) -> list[Any]:
    return _play(script)


@holdfast.workflow
def play_part(script: list[Any]) -> list[Any]:
    return _play(script)


def _play(script: list[Any]) -> list[Any]:
    found = []
    for op in script:
        found.append(do(op))
        stage.trace.append(found[-1])
    return found


def do(op: list[Any]) -> Any:
    """Carry out one operation of a script."""
    kind, *args = op
    if kind == "try":
        try:
            return ["fine", do(args[0])]
        except Exception:
            return ["caught"]
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
        return _pair(*args)
    calls: dict[str, Callable[[Any], Any]] = {
        "ask": lambda _: holdfast.ask("Go on?"),
        "wait": lambda _: holdfast.wait_for(args[0]),
        "part": lambda _: play_part(args[0]),
        "act": act,
        "flaky": flaky,
        "nest": nest,
        "stop": stop,
    }
    return calls[kind](op)


def _pair(one: list[Any], two: list[Any]) -> Any:
    """Both begin before one of them ends, and the first ends first."""
    ended, second = threading.Event(), threading.Event()

    def begin_second() -> None:
        second.set()
        _wait(ended)

    beside[one[1]] = lambda: _wait(second)
    beside[two[1]] = begin_second

    def call(op: list[Any], over: threading.Event) -> Any:
        try:
            return act(op)
        finally:
            over.set()

    try:
        return holdfast.parallel((call, one, ended), (call, two, second))
    finally:
        del beside[one[1]], beside[two[1]]


def _wait(event: threading.Event) -> None:
    assert event.wait(10)
