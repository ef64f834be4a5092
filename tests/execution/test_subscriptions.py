"""Those who listen to the journal: they hear all, in order, once, and without harm to the run."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import event_flows
import pytest
import run_fixtures
from event_flows import BROKEN, WRITER, end, event_arun, event_run, event_short, event_step
from run_fixtures import kinds

import holdfast
from holdfast import Holdfast, InvalidCall, workflow
from holdfast.model.public import Event
from patience import until

mended, file = event_flows.mended, event_flows.file

hf = run_fixtures.hf


@pytest.mark.parametrize("which", [event_run, event_arun])
def test_subscription_calls_back_once_per_event_in_order(hf: Holdfast, which: Any) -> None:
    heard: list[Event] = []
    with hf.subscribe(heard.append):
        run = hf.run(which)
        hf.answer(run.questions()[0].id, "yes")
        last = run.events()[-1].cursor
        until(lambda: heard and max(event.cursor for event in heard) == last)
    journaled = [event for event in heard if event.cursor]
    assert journaled == run.events()
    passing = {event.kind for event in heard if not event.cursor}
    assert passing == {"step.started", "step.progress"}
    (progress,) = [event for event in heard if event.kind == "step.progress"][:1]
    assert progress.data == {"done": 0.5, "message": "half"}


def test_subscription_can_be_iterated(hf: Holdfast) -> None:
    with hf.subscribe(kinds=["run.*"]) as subscription:
        run = hf.run(event_short)
        found = list(subscription.wait(timeout=0.0))
        assert [event.kind for event in found] == ["run.started", "run.completed"]
        assert list(subscription.wait(timeout=0.0)) == []
        hf.run(event_short)
        assert next(iter(subscription)).kind == "run.started"
        assert run.status == "completed"


def test_subscription_iteration_ends_when_closed(hf: Holdfast) -> None:
    subscription = hf.subscribe()
    found: list[Event] = []
    thread = threading.Thread(target=lambda: found.extend(subscription))
    thread.start()
    hf.run(event_short)
    # The start of a step, which is not in the journal, may come after events that are.
    until(lambda: any(event.kind == "run.completed" for event in list(found)))
    subscription.close()
    thread.join(10)
    assert not thread.is_alive()


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        (["run.*"], ["run.started", "run.completed"]),
        (["step.completed"], ["step.completed"]),
        (["version.saved"], ["run.started", "step.completed", "run.completed"]),
        (["*.completed"], ["step.completed", "run.completed"]),
        (["nothing"], []),
        (["run.started", "step.*"], ["run.started", "step.completed"]),
    ],
)
def test_subscription_filters_by_patterns_of_kinds(
    hf: Holdfast, patterns: list[str], expected: list[str]
) -> None:
    hf.run(event_short)
    with hf.subscribe(kinds=patterns, after=0) as subscription:
        assert [event.kind for event in subscription.wait(timeout=0.0)] == expected


def test_subscription_takes_kinds_from_an_iterator(hf: Holdfast) -> None:
    patterns: Any = iter(["run.*"])
    with hf.subscribe(kinds=patterns) as subscription:
        hf.run(event_short)
        assert [event.kind for event in subscription.wait(timeout=0.0)] == ["run.started", "run.completed"]


def test_subscription_distinguishes_versions_from_events_about_them(hf: Holdfast) -> None:
    log = hf.history("log")
    log.commit({"a": 1})
    log.tag(1, "good")
    log.pin(1)
    hf.fork("log@1", "fork")
    with hf.subscribe(kinds=["version.saved"], after=0) as subscription:
        found = [(event.run, event.kind) for event in subscription.wait(timeout=0.0)]
    assert found == [("log", "version.saved"), ("fork", "version.saved")]


def test_subscription_to_one_run_from_a_cursor(hf: Holdfast) -> None:
    for number in range(3):
        hf.run(event_short, run_id=f"r-{number}")
    with hf.subscribe(run_id="r-1", after=0) as subscription:
        assert [event.run for event in subscription.wait(timeout=0.0)] == ["r-1"] * 3
        assert subscription.cursor == end(hf)
    middle = hf.get("r-1").events()[0].cursor
    with hf.subscribe(after=middle) as subscription:
        assert [event.run for event in subscription.wait(timeout=0.0)] == ["r-1", "r-1", "r-2", "r-2", "r-2"]
    with hf.subscribe() as subscription:
        assert list(subscription.wait(timeout=0.0)) == []


@pytest.mark.parametrize("bad", [{"kinds": "run.*"}, {"kinds": [5]}, {"callback": 5}])
def test_subscribe_refuses_invalid_arguments(hf: Holdfast, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidCall):
        hf.subscribe(**bad)


def test_subscription_skips_a_long_journal_quickly(hf: Holdfast) -> None:
    log = hf.history("by hand")
    for number in range(2100):
        log.commit({"n": number})
    hf.run(event_short)
    heard = threading.Event()
    began = time.monotonic()
    with hf.subscribe(lambda event: heard.set(), kinds=["run.completed"], after=0) as subscription:
        assert heard.wait(30)
        assert subscription.cursor == end(hf)
    with hf.subscribe(kinds=["run.completed"], after=0) as subscription:
        assert len(list(subscription.wait(timeout=0.0))) == 1
    assert time.monotonic() - began < 5


def test_subscriber_that_raises_does_not_disturb_others(
    hf: Holdfast, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Event] = []

    def raises(event: Event) -> None:
        heard.append(event)
        raise RuntimeError("a bad subscriber")

    with hf.subscribe(raises, kinds=["run.*", "step.completed"]):
        run = hf.run(event_short)
        assert run.result == "x"
        until(lambda: len(heard) == 3)
    assert [event.kind for event in heard] == kinds(run)
    assert "a subscriber failed on run.started" in caplog.text


def test_slow_subscriber_does_not_disturb_others(hf: Holdfast) -> None:
    going = threading.Event()
    heard: list[str] = []
    others: list[str] = []

    def slow(event: Event) -> None:
        assert going.wait(30)
        heard.append(event.kind)

    subscription = hf.subscribe(slow, kinds=["run.*"])
    other = hf.subscribe(lambda event: others.append(event.kind), kinds=["run.*"])
    try:
        for _ in range(5):
            assert hf.run(event_short).status == "completed"
        until(lambda: len(others) == 10)
        assert heard == []
    finally:
        going.set()
    until(lambda: len(heard) == 10)
    assert heard == others
    subscription.close()
    other.close()


def test_subscription_continues_after_a_read_error(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []
    journal = hf._store.journal
    failures = [3]

    def unavailable(**arguments: Any) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise holdfast.StoreUnavailable("gone for a moment")
        return journal(**arguments)

    monkeypatch.setattr(hf._store, "journal", unavailable)
    with hf.subscribe(lambda event: heard.append(event.kind), kinds=["run.completed"]):
        hf.run(event_short)
        until(lambda: heard)
    assert failures == [0]


def test_subscriptions_all_get_every_event(hf: Holdfast) -> None:
    heard: list[list[int]] = [[] for _ in range(30)]
    subscriptions = [
        hf.subscribe(lambda event, mine=mine: mine.append(event.cursor), kinds=["run.*"])  # type: ignore[misc]
        for mine in heard
    ]
    for _ in range(5):
        hf.run(event_short)
    until(lambda: all(len(mine) == 10 for mine in heard))
    assert all(mine == heard[0] for mine in heard)
    for subscription in subscriptions:
        subscription.close()


def test_subscription_can_be_closed_while_events_arrive(hf: Holdfast) -> None:
    stop = threading.Event()

    def work() -> None:
        # With a moment between, or the others hardly ever get the lock of a store in memory.
        while not stop.wait(0.001):
            hf.run(event_short)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(20):
            heard: list[Event] = []
            subscription = hf.subscribe(heard.append)
            until(lambda: heard)  # noqa: B023
            subscription.close()
            count = len(heard)
            assert [event.cursor for event in heard if event.cursor] == sorted(
                {event.cursor for event in heard if event.cursor}
            )
            hf.run(event_short)
            assert len(heard) == count
        mine: list[Event] = []

        def once(event: Event) -> None:
            mine.append(event)
            subscription.close()

        subscription = hf.subscribe(once, kinds=["run.completed"])
        until(lambda: mine)
    finally:
        stop.set()
        thread.join()


def test_replay_writes_no_event_twice(hf: Holdfast) -> None:
    @workflow(name="event_two")
    def two() -> list[str]:
        first = event_step("a")
        if BROKEN:
            raise ValueError("not yet")
        return [first, event_step("b")]

    BROKEN[:] = ["z"]
    run = hf.run(two, raises=False)
    assert run.status == "failed"
    BROKEN.clear()
    heard: list[Event] = []
    with hf.subscribe(heard.append):
        hf.resume(run.id)
        until(lambda: any(event.kind == "run.completed" for event in list(heard)))
    assert [event.kind for event in heard if event.cursor] == [
        "run.resumed",
        "step.completed",
        "run.completed",
    ]
    assert [event.data["address"] for event in heard if event.kind == "step.started"] == ["event_step#2"]
    mark = end(hf)
    hf.resume(run.id)
    assert end(hf) == mark


def test_republish_writes_events_of_recorded_steps(hf: Holdfast) -> None:
    @workflow(name="event_again")
    def again() -> list[str]:
        found = [event_step("a"), event_step("b")]
        if BROKEN:
            raise ValueError("not yet")
        return found

    BROKEN[:] = ["z"]
    run = hf.run(again, raises=False)
    BROKEN.clear()
    with hf.subscribe() as subscription:
        hf.resume(run.id, mode="republish")
        found = list(subscription.wait(timeout=0.0))
    told = [(event.data["address"], event.version) for event in found if event.kind == "step.replayed"]
    assert told == [("event_step", 2), ("event_step#2", 3)]
    kinds = [event.kind for event in found if event.cursor]
    assert kinds == ["step.replayed", "step.replayed", "run.resumed", "run.completed"]


def test_close_ends_the_threads_of_subscriptions(file: Path) -> None:
    def listening() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "holdfast subscription"]

    before = len(listening())
    hf = holdfast.open(file, durability="fast")
    heard: list[Event] = []
    for _ in range(3):
        hf.subscribe(heard.append)
    hf.run(event_short)
    assert len(listening()) == before + 3
    hf.close()
    assert len(listening()) == before
    # What was committed before is handed over before the end.
    assert [event.kind for event in heard].count("run.completed") == 3


def test_subscription_gets_events_of_another_process(file: Path) -> None:
    heard: list[Event] = []
    with holdfast.open(file, durability="fast") as hf, hf.subscribe(heard.append, kinds=["run.completed"]):
        subprocess.run([sys.executable, "-c", WRITER, str(file), "5"], timeout=60, check=True)
        until(lambda: len(heard) == 5)
        assert len({event.run for event in heard}) == 5
