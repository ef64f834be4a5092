"""A stage for the monitor: a store, a clock set by hand, runs in threads, and steps that hang until they are let go."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Run, step, workflow
from holdfast.fleet.monitor.monitor import Alert, Monitor
from holdfast.model.public import Question

STORES = ("memory", "sqlite", "postgres")
PATIENCE = 60.0


class Control:
    """What the steps below do."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        #: What each call that hangs waits for, by name.
        self.gates: dict[str, list[threading.Event]] = defaultdict(list)
        self.begun: list[str] = []
        self.undone: list[str] = []
        #: How often each name hangs; the rest of the calls pass.
        self.hangs: dict[str, int] = {}
        self.stop = False

    def hang(self, name: str) -> None:
        if self.hangs.get(name, 0) <= 0 or self.stop:
            self.begun.append(name)
            return
        self.hangs[name] -= 1
        gate = threading.Event()
        self.gates[name].append(gate)
        self.begun.append(name)
        assert gate.wait(PATIENCE)

    def let_go(self) -> None:
        self.stop = True
        for gates in list(self.gates.values()):
            for gate in gates:
                gate.set()


control = Control()


class Stage:
    """An engine with a clock, a monitor, and runs in threads."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.seconds = 1_000_000_000.0
        self.hf: Holdfast = self.open()
        self.monitor: Monitor = self.hf.monitor(interval=1)
        self.raised: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def open(self) -> Holdfast:
        return holdfast.open(self.where, clock=lambda: self.seconds)

    def begin(
        self, flow: Any, *args: Any, run_id: str = "run", hf: Holdfast | None = None, **how: Any
    ) -> Run:
        """Run a workflow in a thread; gives the run when it is there."""
        engine = hf or self.hf

        def work() -> None:
            try:
                engine.run(flow, *args, run_id=run_id, raises=False, **how)
            except BaseException as error:
                self.raised.append(error)

        thread = threading.Thread(target=work, daemon=True)
        self.threads.append(thread)
        thread.start()
        wait_until(lambda: self.hf._store.run(run_id) is not None)
        return self.hf.get(run_id)

    def look(self, after: float = 0) -> list[Alert]:
        """Let time pass, and look."""
        self.seconds += after
        return self.monitor.look()

    def frozen(self, run_id: str = "run") -> Question:
        """The prompt of a run that is frozen."""
        assert self.hf.get(run_id).status == "stalled"
        (prompt,) = [prompt for prompt in self.hf.inbox() if prompt.run == run_id]
        return prompt

    def kinds(self, run_id: str = "run") -> list[str]:
        return [event.kind for event in self.hf.get(run_id).events()]

    def join(self) -> None:
        control.let_go()
        # With those in which monitors resume runs: their steps use `control`, which the next test resets.
        resuming = [each for each in threading.enumerate() if each.name.startswith("holdfast monitor: ")]
        for thread in [*self.threads, *resuming]:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def close(self) -> None:
        self.join()
        self.hf.close()


def wait_until(condition: Callable[[], Any], patience: float = PATIENCE) -> Any:
    end = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come in time"
        time.sleep(0.005)
    return found


@pytest.fixture(params=STORES)
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stage]:
    control.reset()
    places = {"memory": ":memory:", "sqlite": str(tmp_path / "runs.db")}
    made = Stage(places.get(request.param) or str(request.getfixturevalue("url")))
    try:
        yield made
    finally:
        made.close()


# Steps and workflows


@step(name="m_mark")
def mark(name: str) -> str:
    control.begun.append(name)
    holdfast.state()[name] = True
    return name


@step(name="m_hang")
def hang(name: str = "hang") -> str:
    control.hang(name)
    return f"{name} is over"


@step(name="m_patient", heartbeat_timeout=100)
def patient() -> str:
    control.hang("patient")
    return "over"


@step(name="m_same")
def same(value: int = 0) -> str:
    return "the same"


@step(name="m_other")
def other(value: int = 0) -> str:
    return "another"


@step(name="m_toggle")
def toggle(turn: int) -> int:
    state = holdfast.state()
    state["on"] = not state.get("on", False)
    return turn


@step(name="m_count")
def count(turn: int) -> int:
    holdfast.state()["turn"] = turn
    return turn


@step(name="m_spend")
def spend(tokens: int, cost: float) -> None:
    holdfast.annotate(tokens=tokens, cost=cost)


def take_back(result: str) -> None:
    control.undone.append(result)


@step(name="m_order", compensate=take_back)
def order(what: str) -> str:
    holdfast.state()["ordered"] = what
    return what


@workflow(name="m_stuck")
def stuck(name: str = "hang") -> str:
    mark("first")
    return hang(name)


@workflow(name="m_between")
def between() -> str:
    mark("first")
    control.hang("between")
    return mark("second")


def _each(body: Callable[[int], Any], turns: int) -> None:
    for turn in range(turns):
        body(turn)
    control.hang("after")


@workflow(name="m_counting")
def counting(turns: int) -> None:
    _each(count, turns)


@workflow(name="m_repeating")
def repeating(turns: int) -> None:
    count(1)
    _each(lambda _: same(), turns)


@workflow(name="m_ping_pong")
def ping_pong(turns: int) -> None:
    count(1)
    _each(lambda turn: same() if turn % 2 else other(), turns)


@workflow(name="m_toggling")
def toggling(turns: int) -> None:
    count(1)
    _each(toggle, turns)


@workflow(name="m_idle")
def idle(turns: int) -> None:
    count(1)
    _each(same, turns)


@workflow(name="m_spending")
def spending(turns: int, tokens: int = 0, cost: float = 0.0) -> None:
    _each(lambda _: spend(tokens, cost), turns)


@workflow(name="m_ordering")
def ordering() -> str:
    mark("first")
    order("kelp")
    for _ in range(3):
        same()
    control.hang("after")
    return "done"
