"""A store as an operator finds it: runs of every kind, made by the real runtime.

Names of workflows and steps are known to a whole process: here they are such as no other test has.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import Any

import holdfast
from holdfast import Holdfast, HoldfastError, Retry, Watchdog, step, workflow

FAILING: set[str] = {"broken"}
#: The event that a slow step waits for; None unless a test shows it running.
HINDERED: threading.Event | None = None


@step(name="outline")
def plan(topic: str) -> list[str]:
    state = holdfast.state()
    state["topic"] = topic
    state["plan"] = {"tasks": [{"name": name, "done": False} for name in ("search", "read", "write")]}
    holdfast.annotate(tokens=812, cost=0.0031, model="small-1")
    return ["search", "read", "write"]


@step(name="carry_out", retry=Retry(2, delay=0, on=ValueError))
def work(task: str, topic: str) -> str:
    state = holdfast.state()
    state.setdefault("messages", []).append({"role": "agent", "content": f"{task} on {topic}: done"})
    for place, each in enumerate(state["plan"]["tasks"]):
        if each["name"] == task:
            state["plan"]["tasks"][place]["done"] = True
    holdfast.annotate(tokens=1200, cost=0.0102, model="large-2")
    if topic in FAILING and task == "write":
        raise ValueError("the model answered with an empty text")
    return f"{task} done"


def undo_publish(result: Any) -> None:
    holdfast.state().pop("published", None)


@step(name="announce", compensate=undo_publish)
def publish(topic: str) -> str:
    holdfast.state()["published"] = f"https://example.org/{topic}"
    return "published"


@workflow(name="reef_study")
def study(topic: str) -> str:
    """A plan, its tasks, and the paper."""
    for task in plan(topic):
        work(task, topic)
    return publish(topic)


@workflow(name="careful_study")
def careful(topic: str) -> str:
    """Asks before it publishes."""
    plan(topic)
    if holdfast.ask(f"Publish the study on {topic}?", schema={"type": "boolean"}):
        return publish(topic)
    return "kept"


@step(name="stand_still")
def stand() -> str:
    if HINDERED is not None:
        HINDERED.wait(60)
    return "over"


@workflow(name="slow_study")
def slow(topic: str) -> str:
    """Block in the second step."""
    plan(topic)
    return stand()


@workflow(name="curious_study")
def curious(topic: str) -> str:
    """Asks twice."""
    plan(topic)
    holdfast.ask(f"Is {topic} worth a study?", schema={"type": "boolean"})
    return str(holdfast.ask(f"How long may the study on {topic} be?", schema={"type": "integer"}))


@workflow(name="a_workflow_whose_name_is_longer_than_a_phone_is_wide_and_then_some")
def wordy() -> None:
    """Offered where workflows are chosen, and never run."""


class _Circles:
    """Number of loops of an agent before it blocks."""

    def begin(self) -> None:
        self.left = 4
        self.enough = threading.Event()

    def round(self) -> None:
        """Go round once."""
        self.left -= 1
        if self.left < 0:
            self.enough.wait(60)


_CIRCLES = _Circles()


@step
def chew() -> str:
    _CIRCLES.round()
    return "the same again"


@workflow(watchdog=Watchdog(max_repeats=3))
def circles(topic: str) -> str:
    """Goes in circles."""
    plan(topic)
    for _ in range(6):
        chew()
    return "out of it"


def create_runs(hf: Holdfast) -> None:
    """Runs of every kind."""
    hf.run(study, "kelp", run_id="kelp")
    hf.rollback("kelp", to=3, reason="try the tasks again", actor="ann")
    hf.history("kelp").tag("head", "good")
    hf.fork("kelp", "kelp-twin", at=3, edit={"topic": "kelp and light"})
    hf.resume("kelp-twin")
    hf.run(study, "broken", run_id="broken", raises=False)
    hf.run(careful, "tides", run_id="tides")
    log = hf.history("by-hand")
    for number in range(12):
        with log.edit(step="note") as state:
            state.setdefault("numbers", []).append(number)
    log.pin(4)
    stall_run(hf)


def stall_run(hf: Holdfast) -> None:
    """An agent that goes in circles until the monitor takes its run away."""
    _CIRCLES.begin()
    thread = threading.Thread(target=_run_until_refused, args=[hf], daemon=True)
    thread.start()
    monitor = hf.monitor(interval=0.05)
    while not any(question.run == "circles" for question in hf.inbox()):
        monitor.look()
        time.sleep(0.02)
    stop_circling()
    thread.join()


def stop_circling() -> None:
    """Release the agents that block in a loop."""
    _CIRCLES.enough.set()


def _run_until_refused(hf: Holdfast) -> None:
    with suppress(HoldfastError):
        hf.run(circles, "eddies", run_id="circles")
