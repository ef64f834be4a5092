"""Automatic snapshots: by time, after each call, on demand; and all the ways in which one can fail."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import gc
import inspect
import logging
import os
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import History, Holdfast, InvalidCall
from holdfast.runtime.autosave import autosave

#: Short enough that a timer fires at once, for a test that waits for it.
SOON = 0.005
#: Longer than any test.
NEVER = 10_000.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def hf(file: Path) -> Iterator[Holdfast]:
    with holdfast.open(file, durability="fast", redact=["secret"]) as opened:
        yield opened


@pytest.fixture
def log(hf: Holdfast) -> History:
    return hf.history("loop")


@pytest.fixture(autouse=True)
def no_timer_is_left() -> Iterator[None]:
    yield
    until(lambda: not timers())


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def versions(log: History) -> list[Any]:
    """All versions, oldest first; none if there is no run."""
    try:
        return log.versions(limit=100_000)[::-1]
    except holdfast.NotFound:
        return []


def timers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("holdfast-autosave")]


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        entry.getMessage()
        for entry in caplog.records
        if (entry.name, entry.levelno) == ("holdfast", logging.WARNING)
    ]


class Reads:
    """Gives a state, and counts how often it was read."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.count = 0

    def read(self) -> Any:
        self.count += 1
        return self.state

    def wait(self, more: int = 3) -> None:
        """Until the state was read that often again, so that all but the last of these readings are dealt with."""
        until(lambda goal=self.count + more: self.count >= goal)  # type: ignore[misc]


# By time


def test_what_changes_in_a_block_is_saved_by_time(log: History) -> None:
    state = {"n": 0}
    with autosave(state, log, every=SOON):
        for number in range(1, 4):
            state["n"] = number
            until(lambda wanted=number: versions(log) and log.head.state == {"n": wanted})  # type: ignore[misc]
        assert {version.kind for version in versions(log)} == {"timed"}
    until(lambda: not timers())


def test_no_version_is_made_if_nothing_changed(log: History) -> None:
    reads = Reads({"n": 0, "parts": {1, 2}, "nan": float("nan")})
    with autosave(reads.read, log, every=SOON):
        reads.wait()
        assert len(versions(log)) == 1
        reads.state = {"n": 0, "parts": {2, 1}, "nan": float("nan")}
        reads.wait()
        assert len(versions(log)) == 1
        reads.state["n"] = False
        reads.wait()
        assert len(versions(log)) == 2
    assert len(versions(log)) == 2


def test_without_a_time_there_is_no_timer(log: History) -> None:
    with autosave({}, log, every=None).start() as saver:
        assert not timers()
        saver.stop()
    assert len(versions(log)) == 1


# The block


def test_leaving_the_block_saves_what_changed_since(log: History) -> None:
    state = {"n": 0}
    with autosave(state, log, every=NEVER):
        state["n"] = 1
    assert [(v.kind, v.note, v.step, v.state) for v in versions(log)] == [("timed", None, None, {"n": 1})]
    with autosave(state, log):
        pass
    assert len(versions(log)) == 1


def test_a_block_with_a_name_is_a_step(log: History) -> None:
    with autosave({"n": 1}, log, step="crawl"):
        pass
    assert (log.head.kind, log.head.step, log.head.steps) == ("step", "crawl", 1)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_what_a_block_raises_passes_and_the_state_is_saved_with_a_note(
    log: History, error: BaseException
) -> None:
    state = {"n": 0}
    with pytest.raises(type(error)) as raised, autosave(state, log, every=SOON, step="crawl"):  # noqa: PT012
        state["n"] = 1
        raise error
    assert raised.value is error
    assert log.head.note == f"crawl raised {type(error).__name__}"
    assert (log.head.state, log.head.step, log.head.steps) == ({"n": 1}, None, 0)
    until(lambda: not timers())


# The decorator


def test_every_call_is_followed_by_a_version_changed_or_not(log: History) -> None:
    state: list[int] = []

    @autosave(state, log)
    def work(number: int, *, add: bool = True) -> int:
        """Does it."""
        if add:
            state.append(number)
        return -number

    assert (work(1), work(2, add=False), work(3)) == (-1, -2, -3)
    assert [(v.step, v.kind, v.state) for v in versions(log)] == [
        ("work", "step", [1]),
        ("work", "step", [1]),
        ("work", "step", [1, 3]),
    ]
    assert (work.__name__, work.__doc__) == ("work", "Does it.")
    assert list(inspect.signature(work).parameters) == ["number", "add"]
    until(lambda: not timers())


def test_a_failing_call_is_saved_with_a_note_and_counts_as_no_step(log: History) -> None:
    state = {"n": 0}

    @autosave(state, log, step="think")
    def work() -> None:
        state["n"] += 1
        if state["n"] == 2:
            raise KeyError("two")

    work()
    with pytest.raises(KeyError, match="two"):
        work()
    assert [(v.step, v.note, v.state["n"]) for v in versions(log)] == [
        ("think", None, 1),
        (None, "think raised KeyError", 2),
    ]
    assert log.head.steps == 1


def test_a_function_is_saved_by_time_while_it_runs(log: History) -> None:
    state = {"n": 0}

    @autosave(state, log, every=SOON)
    def work() -> None:
        state["n"] = 1
        until(lambda: versions(log))

    work()
    assert [(v.kind, v.state) for v in versions(log)] == [("timed", {"n": 1}), ("step", {"n": 1})]


def test_async_functions_methods_and_callable_objects(log: History) -> None:
    state: list[str] = []
    saver = autosave(state, log, every=SOON)

    class Agent:
        @saver
        async def think(self, what: str) -> str:
            await asyncio.sleep(0)
            state.append(what)
            return what.upper()

        async def __call__(self) -> None:
            await asyncio.sleep(0)
            state.append("called")

    @saver
    async def wait_for_ever() -> None:
        state.append("cancelled")
        await asyncio.Event().wait()

    async def main() -> None:
        assert await Agent().think("a") == "A"
        assert versions(log)[-1].state == ["a"]
        await saver(Agent())()
        task = asyncio.create_task(wait_for_ever())
        while "cancelled" not in state:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert inspect.iscoroutinefunction(wait_for_ever)
    found = [(v.step, v.note, len(v.state)) for v in versions(log) if v.kind == "step" or v.note]
    assert found == [
        ("think", None, 1),
        ("Agent", None, 2),
        (None, "wait_for_ever raised CancelledError", 3),
    ]
    until(lambda: not timers())


def test_calls_within_calls_and_blocks_share_one_timer(log: History) -> None:
    reads = Reads({"depth": 0})
    saver = autosave(reads.read, log, every=SOON)

    @saver
    def dive(depth: int) -> None:
        assert len(timers()) == 1
        if depth:
            dive(depth - 1)
        reads.state["depth"] = depth
        if depth == 1:
            with saver:
                assert saver.save(note="inside") is not None
        reads.wait()

    dive(2)
    assert [v.step for v in versions(log) if v.kind == "step"] == ["dive"] * 3
    assert [v.note for v in versions(log) if v.note] == ["inside"]
    until(lambda: not timers())


@pytest.mark.parametrize("wrong", [int, 3, staticmethod(print), lambda: (yield)])
def test_what_is_no_function_is_not_decorated(log: History, wrong: Any) -> None:
    with pytest.raises(InvalidCall):
        autosave({}, log)(wrong)


# On demand


def test_saving_on_demand_always_makes_a_version(log: History) -> None:
    state = {"n": 0}
    saver = autosave(state, log)
    first = saver.save()
    second = saver.save(note="as agreed", tags=(tag for tag in ["good"]))
    assert first is not None
    assert second is not None
    assert (first.number, first.kind) == (1, "initial")
    assert (second.number, second.kind, second.note, second.tags) == (2, "manual", "as agreed", ("good",))
    until(lambda: not timers())


@pytest.mark.parametrize("facts", [{"note": 5}, {"tags": "good"}, {"tags": ["a@b"]}, {"tags": 5}])
def test_wrong_facts_are_a_warning(
    log: History, caplog: pytest.LogCaptureFixture, facts: dict[str, Any]
) -> None:
    assert autosave({}, log).save(**facts) is None
    assert len(warnings(caplog)) == 1
    assert not versions(log)


# What is saved


@dataclasses.dataclass
class Plain:
    goal: str
    done: list[int]
    _client: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    goal: str
    done: list[int]
    _client: Any = None


class Struct(msgspec.Struct):
    goal: str
    done: list[int]
    _client: Any = None


class Agent:
    def __init__(self, goal: str, done: list[int], client: Any) -> None:
        self.goal, self.done, self._client = goal, done, client


@pytest.mark.parametrize("cls", [Plain, Slotted, Struct, Agent])
def test_the_state_of_an_object_are_its_public_attributes(log: History, cls: Callable[..., Any]) -> None:
    one = cls("win", [1], threading.Lock())
    with autosave(one, log):
        one.done.append(2)
    assert log.head.state == {"goal": "win", "done": [1, 2]}


def test_an_object_that_has_no_attributes_yet(log: History) -> None:
    class Empty:
        late: int

    one = Empty()
    saver = autosave(one, log)
    saver.save()
    one.late = 1
    saver.save()
    assert [v.state for v in versions(log)] == [{}, {"late": 1}]


@pytest.mark.parametrize(
    ("source", "state"),
    [
        ([1, "a"], [1, "a"]),
        ({1, 2}, {1, 2}),
        (deque([1], 3), deque([1], 3)),
        (bytearray(b"x"), bytearray(b"x")),
        (lambda: 5, 5),
        (functools.partial(int, "7"), 7),
        ([3, 4].copy, [3, 4]),
        (dict, None),
    ],
)
def test_sources(log: History, source: Any, state: Any) -> None:
    if state is None:
        with pytest.raises(InvalidCall):
            autosave(source, log)
        return
    saver = autosave(source, log)
    saver.save()
    assert log.head.state == state
    assert type(log.head.state) is type(state) or isinstance(state, list)


def test_what_cannot_be_stored_can_be_replaced(log: History, caplog: pytest.LogCaptureFixture) -> None:
    with autosave({"n": 1, "file": sys.stderr}, log, sanitize=True):
        pass
    assert log.head.state["n"] == 1
    assert "file" in log.head.state["file"] or "<" in log.head.state["file"]
    assert not warnings(caplog)


def test_artifacts_and_large_values_come_along_and_secrets_do_not(hf: Holdfast, log: History) -> None:
    state: dict[str, Any] = {"n": 0}
    with autosave(state, log, every=SOON):
        until(lambda: versions(log))
        state.update(paper=holdfast.artifact(b"p" * 200_000), long=b"l" * 300_000, secret="hush")
        until(lambda: "secret" in log.head.state)
    assert log.head.state["paper"].read() == b"p" * 200_000
    assert log.head.state["long"] == b"l" * 300_000
    assert log.head.state["secret"] != "hush"
    assert hf.verify().ok


def test_a_huge_state_is_shared_with_the_version_before(log: History) -> None:
    state = {f"key-{number}": [number] for number in range(100_000)}
    saver = autosave(state, log)
    first = saver.save()
    state["key-77"].append(0)
    second = saver.save()
    assert first is not None
    assert second is not None
    assert second.size < first.size / 50
    assert log.head.state["key-77"] == [77, 0]


# Wrong arguments


@pytest.mark.parametrize(
    "wrong",
    [
        {"source": None},
        {"source": "text"},
        {"source": 5},
        {"source": (1, 2)},
        {"source": object()},
        {"source": Plain},
        {"source": functools.partial(len)},
        {"source": lambda state: state},
        {"source": asyncio.sleep},
        {"source": lambda: (yield)},
        {"source": type("Both", (), {"__call__": lambda self: {}})()},
        {"log": "loop"},
        {"log": None},
        {"every": 0},
        {"every": -1},
        {"every": True},
        {"every": "5"},
        {"every": float("nan")},
        {"every": float("inf")},
        {"every": 10**400},
        {"step": 5},
        {"step": "x" * 501},
        {"lock": 5},
        {"lock": asyncio.Lock()},
    ],
)
def test_wrong_arguments_are_refused_at_once(log: History, wrong: dict[str, Any]) -> None:
    given = {"source": {}, "log": log, **wrong}
    with pytest.raises(InvalidCall):
        autosave(given.pop("source"), given.pop("log"), **given)


# Failing


def test_a_failing_snapshot_warns_once_for_each_reason_in_a_row(
    log: History, caplog: pytest.LogCaptureFixture
) -> None:
    reads = Reads({"here": object()})
    with autosave(reads.read, log, every=SOON) as saver:
        reads.wait()
        assert len(warnings(caplog)) == 1
        assert "'loop'" in warnings(caplog)[0]
        assert "here" in warnings(caplog)[0]
        reads.state = {"there": object()}
        reads.wait()
        assert len(warnings(caplog)) == 2
        reads.state = {"n": 1}
        until(lambda: versions(log))
        reads.state = {"there": object()}
        reads.wait()
        assert len(warnings(caplog)) == 3
        assert saver.save() is None
        assert len(warnings(caplog)) == 3
        reads.state = {"n": 2}
    assert log.head.state == {"n": 2}


def test_a_closed_store_does_not_break_the_work(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    hf = holdfast.open(file)
    reads = Reads({"n": 0})
    saver = autosave(reads.read, hf.history("loop"), every=SOON)

    @saver
    def work() -> str:
        hf.close()
        return "done"

    with saver:
        reads.wait(1)
        assert work() == "done"
    assert saver.save() is None
    # A timed snapshot that was under way may have ended well between two that failed.
    assert 1 <= len(warnings(caplog)) <= 2
    assert "is closed" in warnings(caplog)[0]


def test_a_store_that_is_held_by_another_does_not_break_the_work(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with holdfast.open(file, timeout=0.05) as hf:
        log = hf.history("loop")
        state = {"n": 0}
        saver = autosave(state, log, every=NEVER)
        assert saver.save() is not None
        other = sqlite3.connect(file, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with saver:
            state["n"] = 1
        assert "StoreBusy" in warnings(caplog)[0]
        other.execute("ROLLBACK")
        other.close()
        assert saver.save() is not None
        assert log.head.state == {"n": 1}


class Nameless(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize("error", [Nameless(), RecursionError(), MemoryError(), OSError(28, "No space left")])
def test_whatever_the_reading_raises_stays_outside(
    log: History, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def read() -> Any:
        raise error

    with autosave(read, log, every=SOON) as saver:
        until(lambda: warnings(caplog))
        assert saver.save() is None
    assert type(error).__name__ in warnings(caplog)[0]
    assert len(warnings(caplog)) == 1


def test_the_timer_outlives_what_ends_threads(log: History, caplog: pytest.LogCaptureFixture) -> None:
    reads = Reads({})

    def read() -> Any:
        reads.read()
        if threading.current_thread() is not threading.main_thread() and reads.count < 3:
            raise SystemExit
        return {"n": reads.count}

    with autosave(read, log, every=SOON):
        until(lambda: versions(log))
    assert len(warnings(caplog)) == 1


def test_an_interrupt_of_the_user_passes_through_a_snapshot(log: History) -> None:
    def read() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        autosave(read, log).save()


def test_a_handler_of_logs_that_raises_does_not_break_the_work(log: History) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ValueError("handler")

    handler = Broken()
    logging.getLogger("holdfast").addHandler(handler)
    try:
        assert autosave({"here": object()}, log).save() is None
    finally:
        logging.getLogger("holdfast").removeHandler(handler)


def test_where_no_thread_can_be_started_the_work_goes_on(
    log: History, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with autosave({"n": 1}, log) as saver:
            pass
    assert "can't start new thread" in warnings(caplog)[0]
    assert log.head.state == {"n": 1}
    with saver:
        assert len(timers()) == 1


# Changes while the state is read


@pytest.mark.parametrize(("failures", "saved"), [(3, True), (1000, False)])
def test_a_state_that_changed_while_it_was_read_is_read_again(
    log: History, caplog: pytest.LogCaptureFixture, failures: int, saved: bool
) -> None:
    reads = Reads({"n": 1})

    def read() -> Any:
        reads.read()
        if reads.count <= failures:
            raise RuntimeError("dictionary changed size during iteration")
        return reads.state

    assert (autosave(read, log).save() is not None) is saved
    assert len(warnings(caplog)) == (0 if saved else 1)


def test_a_state_that_is_changed_all_the_time_never_breaks_the_work(hf: Holdfast, log: History) -> None:
    state: dict[str, Any] = {f"key-{number}": [number] for number in range(2_000)}
    done = threading.Event()
    errors: list[BaseException] = []

    def change() -> None:
        try:
            number = 0
            while not done.is_set():
                number += 1
                state[f"new-{number % 50}"] = [number] * (number % 7)
                state.pop(f"new-{(number + 25) % 50}", None)
        except BaseException as error:
            errors.append(error)

    worker = threading.Thread(target=change)
    worker.start()
    try:
        with autosave(state, log, every=SOON) as saver:
            for _ in range(8):
                saver.save()
    finally:
        done.set()
        worker.join()
    assert not errors
    assert saver.save() is not None
    assert log.head.state == state
    assert hf.verify().ok


def test_the_lock_is_held_while_the_state_is_read_and_not_while_it_is_written(file: Path) -> None:
    lock = threading.Lock()
    seen: list[tuple[str, bool]] = []

    def clock() -> float:
        seen.append(("written", lock.locked()))
        return 1_700_000_000.0

    def read() -> dict[str, int]:
        seen.append(("read", lock.locked()))
        return {"n": len(seen)}

    with holdfast.open(file, clock=clock) as hf, autosave(read, hf.history("loop"), every=SOON, lock=lock):
        until(lambda: ("written", False) in seen)
    assert set(seen) == {("read", True), ("written", False)}


def test_parts_that_are_changed_under_the_lock_are_saved_together(log: History) -> None:
    lock = threading.RLock()
    state: dict[str, Any] = {"one": 0, "other": [0]}
    with autosave(state, log, every=0.001, lock=lock) as saver:
        while len(versions(log)) < 20:
            with lock:
                state["one"] += 1
                time.sleep(0.0005)
                state["other"] = [state["one"]]
        with lock:
            assert saver.save() is not None
    assert all([v.state["one"]] == v.state["other"] for v in versions(log))


# Stopping


def test_stopping_ends_the_timer_at_once_as_often_as_one_likes(log: History) -> None:
    saver = autosave({}, log, every=NEVER)
    saver.stop()
    for _ in range(3):
        assert saver.start() is saver.start() is saver
        [timer] = timers()
        assert timer.daemon
        saver.stop()
        saver.stop()
        timer.join(60)
        assert not timer.is_alive()
    assert not versions(log)


def test_a_stopped_timer_writes_nothing_more_and_can_be_started_again(log: History) -> None:
    reads = Reads({"n": 0})
    saver = autosave(reads.read, log, every=0.0005)
    for _ in range(50):
        saver.start()
        goal = reads.count + 1
        while reads.count < goal:
            reads.state["n"] += 1
        [timer] = timers()
        saver.stop()
        written = len(versions(log))
        reads.state["n"] += 1
        timer.join(60)
        assert len(versions(log)) == written
    assert versions(log)


def test_a_timer_that_is_stopped_while_it_reads_writes_nothing(log: History) -> None:
    lock = threading.Lock()
    waiting = threading.Event()

    class Watched:
        def __enter__(self) -> None:
            waiting.set()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    saver = autosave({"n": 1}, log, every=SOON, lock=Watched())
    with lock:
        saver.start()
        assert waiting.wait(60)
        [timer] = timers()
        saver.stop()
    timer.join(60)
    assert not timer.is_alive()
    assert not versions(log)


def test_stopping_waits_for_a_version_that_is_being_written(file: Path) -> None:
    writing, gate = threading.Event(), threading.Event()

    def clock() -> float:
        writing.set()
        assert gate.wait(60)
        return 1_700_000_000.0

    with holdfast.open(file, clock=clock) as hf:
        log = hf.history("loop")
        saver = autosave({"n": 1}, log, every=SOON).start()
        assert writing.wait(60)
        found: list[int] = []

        def stop() -> None:
            saver.stop()
            found.append(len(versions(log)))

        stoppers = [threading.Thread(target=stop) for _ in "ab"]
        for stopper in stoppers:
            stopper.start()
        stoppers[0].join(0.2)
        gate.set()
        for stopper in stoppers:
            stopper.join(60)
        assert found == [1, 1]


def test_a_reading_that_stops_its_own_timer(log: History) -> None:
    def read() -> dict[str, int]:
        saver.stop()
        return {"n": 1}

    saver = autosave(read, log, every=SOON)
    saver.start()
    until(lambda: not timers())
    assert not versions(log)


def test_a_block_does_not_stop_what_was_started_by_hand_and_stop_does(log: History) -> None:
    saver = autosave({}, log, every=NEVER).start()
    with saver:
        pass
    assert saver._timer in timers()
    with saver, saver:
        saver.stop()
        until(lambda: not timers())
        with saver:
            assert not timers()
    with saver:
        assert len(timers()) == 1
    until(lambda: not timers())


def test_nothing_is_kept_alive_by_a_saver_that_was_left(
    log: History, caplog: pytest.LogCaptureFixture
) -> None:
    one = Plain("win", [])
    saver = autosave(one, log, every=SOON)
    with pytest.raises(ValueError, match="no"), saver:  # noqa: PT012
        until(lambda: versions(log))
        one.goal = object()  # type: ignore[assignment]
        until(lambda: warnings(caplog))
        raise ValueError("no")
    until(lambda: not timers())
    gone = weakref.ref(one)
    caplog.clear()
    del one, saver
    gc.collect()
    assert gone() is None


def run_script(file: Path, body: str) -> subprocess.CompletedProcess[str]:
    start = "import os, threading, holdfast\nfrom holdfast.runtime.autosave import autosave\n"
    return subprocess.run(
        [sys.executable, "-c", f"{start}file = {str(file)!r}\n{body}"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_running_timer_does_not_keep_the_interpreter_alive(file: Path) -> None:
    ended = run_script(
        file,
        """
state = {"n": 0}
log = holdfast.open(file).history("loop")
autosave(state, log, every=0.001).start()
while True:
    state["n"] += 1
    try:
        if log.head.number >= 5:
            break
    except holdfast.NotFound:
        pass
print("end")
""",
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "end\n", "")
    with holdfast.open(file) as hf:
        assert hf.verify().ok


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_has_no_timer_until_it_starts_one(file: Path) -> None:
    ended = run_script(
        file,
        """
import signal
state = {"n": 0}
inside, gate = threading.Event(), threading.Event()
log = holdfast.open(file).history("loop")
def read():
    inside.set()
    gate.wait()
    return state
saver = autosave(read, log, every=0.001).start()
inside.wait()
# As a timer that is writing would leave it.
holder = threading.Thread(target=saver._timer.writing.acquire)
holder.start()
holder.join()
child = os.fork()
if not child:
    signal.alarm(30)
    gate = threading.Event()
    assert threading.active_count() == 1
    gate.set()
    saver.stop()
    with saver:
        state["n"] = 1
    assert log.head.state == {"n": 1}
    saver.start()
    state["n"] = 2
    while log.head.state != {"n": 2}:
        pass
    os._exit(0)
os._exit(os.waitpid(child, 0)[1] != 0)
""",
    )
    assert (ended.returncode, ended.stderr) == (0, "")


# Others


def test_many_threads_share_one_saver(hf: Holdfast, log: History) -> None:
    state: dict[str, list[int]] = {f"thread-{number}": [] for number in range(6)}
    saver = autosave(state, log, every=0.002)

    @saver
    def work(name: str, number: int) -> None:
        state[name].append(number)

    def many(name: str) -> None:
        for number in range(15):
            work(name, number)

    threads = [threading.Thread(target=many, args=(name,)) for name in state]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    found = versions(log)
    assert sum(version.step == "work" for version in found) == 90
    assert found[-1].state == {name: list(range(15)) for name in state}
    # What was once in the head does not go from it again.
    sizes = [sum(map(len, version.state.values())) for version in found]
    assert sizes == sorted(sizes)
    assert hf.verify().ok
    until(lambda: not timers())


def test_a_run_that_was_rolled_back_goes_on_with_the_state_of_the_object(hf: Holdfast, log: History) -> None:
    state: dict[str, Any] = {"items": []}
    with autosave(state, log, every=SOON):
        for number in range(3):
            state["items"].append(number)
            until(lambda wanted=number + 1: len(versions(log)) == wanted)  # type: ignore[misc]
        hf.history("loop").rollback(1, reason="operator")
        until(lambda: len(versions(log)) == 4)
        state["items"].append(3)
    assert (log.head.timeline, log.at(4).parent, log.at(4).timeline) == (2, 1, 2)
    assert log.at(4).state == {"items": [0, 1, 2]}
    assert log.head.state == {"items": [0, 1, 2, 3]}


def test_what_others_write_is_followed_and_never_merged(file: Path, hf: Holdfast, log: History) -> None:
    state: dict[str, Any] = {"items": [1]}
    saver = autosave(state, log, every=NEVER)
    saver.save()
    with holdfast.open(file) as elsewhere:
        elsewhere.history("loop").commit({"items": [1, 9], "more": True})
    state["items"].append(2)
    saver.save()
    assert [v.state for v in versions(log)] == [
        {"items": [1]},
        {"items": [1, 9], "more": True},
        {"items": [1, 2]},
    ]


def test_who_else_commits_the_same_state_by_the_same_history_doubles_nothing(log: History) -> None:
    state: dict[str, Any] = {"items": []}
    with autosave(state, log, every=0.001):
        for number in range(50):
            state["items"].append(number)
            log.commit(state)
    assert log.head.state == {"items": list(range(50))}


def test_others_that_write_between_reading_and_writing(log: History) -> None:
    reads = Reads({"n": 0})

    def read() -> Any:
        if reads.count < 5:
            log.commit({"by": "another", "n": reads.count})
        return dict(reads.read(), count=reads.count)

    made = autosave(read, log).save()
    assert made is not None
    assert made.state == {"n": 0, "count": 6}
    assert (made.number, made.parent) == (6, 5)


def test_a_run_that_was_deleted_or_pruned_meanwhile(hf: Holdfast, log: History) -> None:
    state = {"n": 0, "deep": {"list": [1, 2]}}
    saver = autosave(state, log)
    for number in range(5):
        state["n"] = number
        saver.save()
    log.prune(holdfast.Retention(last=1))
    state["n"] = 5
    saver.save()
    assert log.head.state == {"n": 5, "deep": {"list": [1, 2]}}
    hf.delete("loop")
    assert saver.save() is not None
    assert [v.number for v in versions(log)] == [1]
    assert hf.verify().ok
