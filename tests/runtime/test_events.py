"""The journal and those who listen to it: what is told, in which order, once, and without harm to the run."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, InvalidCall, Retry, Run, step, workflow
from holdfast.model.public import Event
from holdfast.runtime import definition
from holdfast.store.base import Append


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture(params=["sqlite", "memory"])
def hf(request: pytest.FixtureRequest, file: Path) -> Iterator[Holdfast]:
    where: Any = file if request.param == "sqlite" else ":memory:"
    with holdfast.open(where, durability="fast" if request.param == "sqlite" else "memory") as opened:
        yield opened


@pytest.fixture(autouse=True)
def _no_triggers() -> Iterator[None]:
    """Workflows that events start are forgotten after each test."""
    yield
    for found in definition.triggered():
        del definition._workflows[found.name]


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def kinds(run: Run, after: int = 0) -> list[str]:
    return [event.kind for event in run.events(after=after)]


def end(hf: Holdfast) -> int:
    return hf._store.journal_end()


BROKEN: list[str] = []


@pytest.fixture(autouse=True)
def _mended() -> None:
    BROKEN.clear()


@step(retry=Retry(2, delay=0.001))
def event_step(name: str) -> str:
    if name in BROKEN:
        BROKEN.remove(name)
        raise ConnectionError(f"{name} is down")
    holdfast.progress(0.5, "half")
    return name


@step(retry=Retry(2, delay=0.001))
async def event_astep(name: str) -> str:
    if name in BROKEN:
        BROKEN.remove(name)
        raise ConnectionError(f"{name} is down")
    holdfast.progress(0.5, "half")
    return name


@workflow
def event_run() -> list[str]:
    return [event_step("a"), holdfast.ask("Well?"), event_step("b")]


@workflow
async def event_arun() -> list[str]:
    return [await event_astep("a"), await holdfast.ask("Well?"), await event_astep("b")]


@workflow
def event_short(name: str = "x") -> str:
    return event_step(name)


# The journal


@pytest.mark.parametrize("which", [event_run, event_arun])
def test_the_whole_life_of_a_run(hf: Holdfast, which: Any) -> None:
    BROKEN[:] = ["a"]
    run = hf.run(which, run_id="r")
    assert kinds(run) == ["run.started", "step.retried", "step.completed", "prompt.opened", "run.suspended"]
    retried = run.events()[1]
    assert retried.step == ("event_step" if which is event_run else "event_astep")
    assert retried.data["attempt"] == 1
    assert retried.data["error"] == "ConnectionError: a is down"
    assert run.events()[2].data["attempt"] == 2
    assert run.events()[2].version == 2
    opened = run.events()[3]
    assert opened.data == {"prompt": "r#1", "question": "Well?", "address": "ask"}

    mark = end(hf)
    BROKEN[:] = ["b", "b"]
    hf.answer("r#1", "yes")
    # Every step as it happened, then how it ended.
    assert kinds(run, mark) == [
        "prompt.answered", "run.resumed", "step.completed", "step.retried", "step.failed", "run.failed",
    ]  # fmt: skip
    failed = run.events(after=mark)[-2]
    assert (failed.data["attempt"], failed.data["error"]) == (2, "ConnectionError: b is down")

    mark = end(hf)
    hf.resume("r")
    assert kinds(run, mark) == ["run.resumed", "step.completed", "run.completed"]

    mark = end(hf)
    hf.rollback("r", to=2, reason="wrong")
    assert kinds(run, mark) == ["run.rolled_back", "run.resumed", "prompt.opened", "run.suspended"]
    rolled = run.events(after=mark)[0]
    assert rolled.data == {"since": 5, "to": 2, "timeline": 2, "reason": "wrong"}

    mark = end(hf)
    hf.pause("r")
    hf.resume("r")
    hf.cancel("r")
    assert kinds(run, mark) == ["run.paused", "run.resumed", "run.suspended", "run.cancelled"]

    mark = end(hf)
    hf.fork("r", "f", at=2)
    assert kinds(run, mark) == ["run.forked"]
    assert run.events(after=mark)[0].data["fork"] == "f"
    assert [event.cursor for event in hf.events()] == sorted({event.cursor for event in hf.events()})


def test_events_belong_to_the_commit_of_their_cause(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever write is the last one, no entry is without what it tells of."""
    append = hf._store.append
    left = [0]

    def dies(change: Append) -> Any:
        if left[0] == 0:
            raise KeyboardInterrupt
        left[0] -= 1
        return append(change)

    full = hf.run(event_short, run_id="full")
    assert kinds(full) == ["run.started", "step.completed", "run.completed"]
    for writes in range(1, 5):
        BROKEN[:] = ["x"]
        left[0] = writes
        name = f"r-{writes}"
        with monkeypatch.context() as patch:
            patch.setattr(hf._store, "append", dies)
            with suppress(KeyboardInterrupt):
                hf.run(event_short, run_id=name)
        run = hf.get(name)
        found = kinds(run)
        assert found == ["run.started", "step.retried", "step.completed", "run.completed"][: len(found)]
        # The attempt that failed is told together with the step that it was an attempt of.
        assert "step.completed" not in found or "step.retried" in found
        assert ("run.completed" in found) == (run.status == "completed")
        assert run.head.number == 1 + ("step.completed" in found) + ("run.completed" in found)


PROGRAM = """
import os, signal, sys
import holdfast
from holdfast import step, workflow

@step
def work(n):
    if n == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return n

@workflow
def event_killed():
    return [work(n) for n in range(5)]

with holdfast.open(sys.argv[1], durability="fast") as hf:
    hf.run(event_killed, run_id="r")
"""


def test_a_killed_process_leaves_no_event_without_its_cause(file: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, str(file)], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    with holdfast.open(file, durability="fast") as hf:
        run = hf.get("r")
        assert kinds(run) == ["run.started", *["step.completed"] * 3]
        assert [event.version for event in run.events()] == [1, 2, 3, 4]


def test_a_failure_that_was_handled_is_told_once(hf: Holdfast) -> None:
    @workflow(name="event_handles")
    def handles() -> str:
        try:
            event_step("a")
        except ConnectionError:
            return event_step("b")
        return "never"

    BROKEN[:] = ["a", "a"]
    run = hf.run(handles)
    assert kinds(run) == ["run.started", "step.retried", "step.failed", "step.completed", "run.completed"]


def test_events_of_the_store_and_of_a_run(hf: Holdfast) -> None:
    for number in range(3):
        hf.run(event_short, run_id=f"r-{number}")
    everything = hf.events()
    assert [event.run for event in everything] == [f"r-{n}" for n in range(3) for _ in range(3)]
    assert [event.run for event in hf.events(after=everything[5].cursor)] == ["r-2"] * 3
    assert len(hf.events(limit=2)) == 2
    assert len(hf.get("r-1").events(limit=2)) == 2
    assert kinds(hf.get("r-1"), everything[3].cursor) == ["step.completed", "run.completed"]


# Subscribers


@pytest.mark.parametrize("which", [event_run, event_arun])
def test_a_callback_hears_all_in_order_and_once(hf: Holdfast, which: Any) -> None:
    heard: list[Event] = []
    with hf.subscribe(heard.append):
        run = hf.run(which)
        hf.answer(run.prompts()[0].id, "yes")
        last = run.events()[-1].cursor
        until(lambda: heard and max(event.cursor for event in heard) == last)
    journaled = [event for event in heard if event.cursor]
    assert journaled == run.events()
    passing = {event.kind for event in heard if not event.cursor}
    assert passing == {"step.started", "step.progress"}
    (progress,) = [event for event in heard if event.kind == "step.progress"][:1]
    assert progress.data == {"done": 0.5, "message": "half"}


def test_iteration(hf: Holdfast) -> None:
    with hf.subscribe(kinds=["run.*"]) as subscription:
        run = hf.run(event_short)
        found = list(subscription.wait(timeout=0.0))
        assert [event.kind for event in found] == ["run.started", "run.completed"]
        assert list(subscription.wait(timeout=0.0)) == []
        hf.run(event_short)
        assert next(iter(subscription)).kind == "run.started"
        assert run.status == "completed"


def test_iteration_ends_when_closed(hf: Holdfast) -> None:
    subscription = hf.subscribe()
    found: list[Event] = []
    thread = threading.Thread(target=lambda: found.extend(subscription))
    thread.start()
    hf.run(event_short)
    until(lambda: found and found[-1].kind == "run.completed")
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
def test_patterns_of_kinds(hf: Holdfast, patterns: list[str], expected: list[str]) -> None:
    hf.run(event_short)
    with hf.subscribe(kinds=patterns, after=0) as subscription:
        assert [event.kind for event in subscription.wait(timeout=0.0)] == expected


def test_of_one_run_and_from_a_cursor(hf: Holdfast) -> None:
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
def test_what_is_no_subscription_is_refused(hf: Holdfast, bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidCall):
        hf.subscribe(**bad)


def test_a_long_journal_of_what_is_not_wanted_is_passed_quickly(hf: Holdfast) -> None:
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


def test_a_subscriber_that_raises_harms_nobody(hf: Holdfast, caplog: pytest.LogCaptureFixture) -> None:
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


def test_a_slow_subscriber_harms_nobody(hf: Holdfast) -> None:
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


def test_a_store_that_cannot_be_read_for_a_moment(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_many_subscribers(hf: Holdfast) -> None:
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


def test_unsubscribing_while_events_flow(hf: Holdfast) -> None:
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


def test_replay_publishes_nothing_twice(hf: Holdfast) -> None:
    @workflow(name="event_two")
    def two() -> list[str]:
        first = event_step("a")
        if BROKEN:
            raise ValueError("not yet")
        return [first, event_step("b")]

    BROKEN[:] = ["z"]
    run = hf.run(two)
    assert run.status == "failed"
    BROKEN.clear()
    heard: list[Event] = []
    with hf.subscribe(heard.append):
        hf.resume(run.id)
        until(lambda: heard and heard[-1].kind == "run.completed")
    assert [event.kind for event in heard if event.cursor] == [
        "run.resumed",
        "step.completed",
        "run.completed",
    ]
    assert [event.data["address"] for event in heard if event.kind == "step.started"] == ["event_step#2"]
    mark = end(hf)
    hf.resume(run.id)
    assert end(hf) == mark


def test_republish_tells_of_recorded_steps_again(hf: Holdfast) -> None:
    @workflow(name="event_again")
    def again() -> list[str]:
        found = [event_step("a"), event_step("b")]
        if BROKEN:
            raise ValueError("not yet")
        return found

    BROKEN[:] = ["z"]
    run = hf.run(again)
    BROKEN.clear()
    with hf.subscribe() as subscription:
        hf.resume(run.id, mode="republish")
        found = list(subscription.wait(timeout=0.0))
    told = [
        (event.data["address"], event.data["version"]) for event in found if event.kind == "step.replayed"
    ]
    assert told == [("event_step", 2), ("event_step#2", 3)]
    assert [event.kind for event in found if event.cursor] == ["run.resumed", "run.completed"]


def test_close_ends_the_threads(file: Path) -> None:
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


WRITER = """
import sys
import holdfast
from holdfast import step, workflow

@step
def work(n):
    return n

@workflow
def event_elsewhere(n):
    return work(n)

with holdfast.open(sys.argv[1], durability="fast") as hf:
    for n in range(int(sys.argv[2])):
        hf.run(event_elsewhere, n)
"""


def test_events_of_another_process_arrive(file: Path) -> None:
    heard: list[Event] = []
    with holdfast.open(file, durability="fast") as hf, hf.subscribe(heard.append, kinds=["run.completed"]):
        subprocess.run([sys.executable, "-c", WRITER, str(file), "5"], timeout=60, check=True)
        until(lambda: len(heard) == 5)
        assert len({event.run for event in heard}) == 5


# Workflows that events start


def started(hf: Holdfast, name: str) -> list[Run]:
    return [hf.get(run.id) for run in reversed(hf.runs(workflow=name, limit=1000))]


def ended(hf: Holdfast, name: str, count: int) -> Callable[[], bool]:
    def check() -> bool:
        runs = started(hf, name)
        return len(runs) >= count and all(run.status == "completed" for run in runs)

    return check


@pytest.mark.parametrize("kind", ["def", "async"])
def test_an_event_starts_a_workflow(hf: Holdfast, kind: str) -> None:
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


def test_of_which_workflow(hf: Holdfast) -> None:
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


def test_a_workflow_is_not_started_by_its_own_end_or_that_of_its_parts(hf: Holdfast) -> None:
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


def test_patterns_start_workflows_too(hf: Holdfast) -> None:
    @workflow(name="event_on_failed", on="run.fail*")
    def on_failed(event: dict[str, Any]) -> Any:
        return event["data"]["error"]

    BROKEN[:] = ["x", "x"]
    hf.run(event_short)
    until(ended(hf, "event_on_failed", 1))
    assert started(hf, "event_on_failed")[0].result == "ConnectionError: x is down"


def test_a_started_workflow_that_fails_stops_nothing(hf: Holdfast) -> None:
    @workflow(name="event_on_bad", on="run.completed", of="event_short")
    def on_bad(event: dict[str, Any]) -> Any:
        raise ValueError(event["run"])

    for number in range(2):
        hf.run(event_short, run_id=f"r-{number}")
    until(lambda: [run.status for run in started(hf, "event_on_bad")] == ["failed", "failed"])


def test_two_engines_start_it_once(file: Path) -> None:
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
            subscription = engine._triggers._listening["event_on_twice"]
            until(lambda: subscription.cursor >= last)  # noqa: B023
        assert sorted(run.result for run in started(one, "event_on_twice")) == [f"r-{n}" for n in range(10)]


def test_nothing_is_missed_over_a_restart(file: Path) -> None:
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
        subscription = hf._triggers._listening["event_on_later"]
        until(lambda: subscription.cursor >= last)
        assert len(started(hf, "event_on_later")) == 3
