"""Workflows that events start: once for each event, by one engine, over restarts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import event_flows
import pytest
import run_fixtures
from event_flows import BROKEN, WRITER, end, event_astep, event_short, event_step

import holdfast
from holdfast import Holdfast, Run, workflow
from holdfast.workflow import definition
from patience import until

mended, file = event_flows.mended, event_flows.file

hf = run_fixtures.hf


@pytest.fixture(autouse=True)
def _no_triggers() -> Iterator[None]:
    """Workflows that events start are forgotten after each test."""
    yield
    for found in definition.triggered():
        del definition._workflows[found.name]


def started(hf: Holdfast, name: str) -> list[Run]:
    return [hf.get(run.id) for run in reversed(hf.runs(workflow=name, limit=1000))]


def ended(hf: Holdfast, name: str, count: int) -> Callable[[], bool]:
    def check() -> bool:
        runs = started(hf, name)
        return len(runs) >= count and all(run.status == "completed" for run in runs)

    return check


@pytest.mark.parametrize("kind", ["def", "async"])
def test_trigger_starts_a_workflow(hf: Holdfast, kind: str) -> None:
    if kind == "def":

        @workflow(name="event_on_done", on="run.completed", of="event_short")
        def on_done(event: dict[str, Any]) -> Any:
            return [event["run"], event["workflow"], event["kind"], event_step("seen")]
    else:

        @workflow(name="event_on_done", on="run.completed", of="event_short")
        async def on_adone(event: dict[str, Any]) -> Any:
            return [event["run"], event["workflow"], event["kind"], await event_astep("seen")]

    for number in range(3):
        hf.run(event_short, run_id=f"r-{number}")
    until(ended(hf, "event_on_done", 3))
    assert [run.result for run in started(hf, "event_on_done")] == [
        [f"r-{number}", "event_short", "run.completed", "seen"] for number in range(3)
    ]


def test_trigger_filters_by_workflow(hf: Holdfast) -> None:
    @workflow(name="event_other")
    def other() -> str:
        return event_step("other")

    @workflow(name="event_on_short", on="run.completed", of="event_short")
    def on_short(event: dict[str, Any]) -> Any:
        return event["workflow"]

    hf.run(other)
    hf.run(event_short)
    hf.run(other)
    hf.run(event_short)
    until(ended(hf, "event_on_short", 2))
    assert [run.result for run in started(hf, "event_on_short")] == ["event_short", "event_short"]


def test_trigger_ignores_events_of_its_own_runs_and_children(hf: Holdfast) -> None:
    @workflow(name="event_part")
    def part() -> str:
        return event_step("part")

    @workflow(name="event_on_any", on="run.completed")
    def on_any(event: dict[str, Any]) -> Any:
        return [event["run"], part()]

    hf.run(event_short, run_id="one")
    until(ended(hf, "event_on_any", 1))
    hf.run(event_short, run_id="two")
    until(ended(hf, "event_on_any", 2))
    # What would have been started by them comes before what is started by this.
    hf.run(event_short, run_id="three")
    until(ended(hf, "event_on_any", 3))
    assert [run.result[0] for run in started(hf, "event_on_any")] == ["one", "two", "three"]


def test_trigger_accepts_patterns(hf: Holdfast) -> None:
    @workflow(name="event_on_failed", on="run.fail*")
    def on_failed(event: dict[str, Any]) -> Any:
        return event["data"]["error"]

    BROKEN[:] = ["x", "x"]
    hf.run(event_short, raises=False)
    until(ended(hf, "event_on_failed", 1))
    assert started(hf, "event_on_failed")[0].result == "ConnectionError: x is down"


def test_trigger_continues_after_a_failed_run(hf: Holdfast) -> None:
    @workflow(name="event_on_bad", on="run.completed", of="event_short")
    def on_bad(event: dict[str, Any]) -> Any:
        raise ValueError(event["run"])

    for number in range(2):
        hf.run(event_short, run_id=f"r-{number}")
    until(lambda: [run.status for run in started(hf, "event_on_bad")] == ["failed", "failed"])


def test_trigger_of_two_engines_starts_one_run(file: Path) -> None:
    @workflow(name="event_on_twice", on="run.completed", of="event_short")
    def on_twice(event: dict[str, Any]) -> Any:
        return event["run"]

    with holdfast.open(file, durability="fast") as one, holdfast.open(file, durability="fast") as two:
        for number in range(10):
            (one if number % 2 else two).run(event_short, run_id=f"r-{number}")
        until(ended(one, "event_on_twice", 10))
        # Both have come to the end of the journal, and neither has started one more.
        last = end(one)
        for engine in (one, two):
            subscription = engine._fleet.queues.triggers._listening["event_on_twice"]
            until(lambda: subscription.cursor >= last)  # noqa: B023
        assert sorted(run.result for run in started(one, "event_on_twice")) == [f"r-{n}" for n in range(10)]


@pytest.mark.slow
def test_trigger_misses_no_event_over_a_restart(file: Path) -> None:
    @workflow(name="event_on_later", on="run.completed", of="event_elsewhere")
    def on_later(event: dict[str, Any]) -> Any:
        return event["run"]

    with holdfast.open(file, durability="fast") as hf:
        # Those from before the workflow was known do not start it.
        subprocess.run([sys.executable, "-c", WRITER, str(file), "1"], timeout=60, check=True)
        hf.run(event_short)
    subprocess.run([sys.executable, "-c", WRITER, str(file), "3"], timeout=60, check=True)
    with holdfast.open(file, durability="fast") as hf:
        hf.run(event_short)
        until(ended(hf, "event_on_later", 3))
        expected = [run.id for run in reversed(hf.runs(workflow="event_elsewhere"))][1:]
        assert [run.result for run in started(hf, "event_on_later")] == expected
    with holdfast.open(file, durability="fast") as hf:
        hf.run(event_short)
        last = end(hf)
        subscription = hf._fleet.queues.triggers._listening["event_on_later"]
        until(lambda: subscription.cursor >= last)
        assert len(started(hf, "event_on_later")) == 3
