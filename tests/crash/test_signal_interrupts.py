"""Signal handlers raise at every bytecode of a commit, a read and a run: the store stays usable."""

from __future__ import annotations

import asyncio
import os
import queue
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from interrupt_injection import Interrupt, InterruptPoints, TimeIsUp, is_ours

import holdfast
from holdfast import Holdfast, step, workflow
from patience import until

pytest_plugins = ["postgres_fixtures"]
# What a handler raises in a finalizer, Python only reports.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

#: Random interrupts; a number says how many, and that sweeps leave out nothing.
WANTED = os.environ.get("HOLDFAST_INTERRUPTS")
#: Places of one piece of work that are tried, outside the modules in which threads meet.
_FEW = 4
_CORE = (
    "store/group_commit",
    "store/sqlite/database",
    "store/postgres/connection_pool",
    "store/interrupts",
    "store/memory",
    "execution/write_lock",
)
_PATIENCE = 60.0


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    if request.param == "memory":
        opening = holdfast.open(":memory:")
    else:
        where = tmp_path / "runs.db" if request.param == "sqlite" else request.getfixturevalue("url")
        opening = holdfast.open(where, durability="fast")
    with closing(opening) as opened:
        yield opened


class Neighbour:
    """A thread that commits on request."""

    def __init__(self, hf: Holdfast) -> None:
        self._asked: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._hf = hf
        threading.Thread(target=self._work, daemon=True).start()

    def commit(self, run: str) -> None:
        """Commit to a run in that thread; fail if that hangs or is refused."""
        self._asked.put(run)
        found = self._done.get(timeout=_PATIENCE)
        if isinstance(found, BaseException):
            raise found

    def _work(self) -> None:
        while (run := self._asked.get()) is not None:
            try:
                self._hf.history(run).update(_count)
                self._done.put(None)
            except BaseException as error:
                self._done.put(error)


def _count(state: Any) -> None:
    state["count"] = state.get("count", 0) + 1


@step
def add_to_sum(number: int) -> int:
    holdfast.state()["sum"] = holdfast.state().get("sum", 0) + number
    return number + 1


@workflow
def adding_twice(number: int) -> int:
    return add_to_sum(add_to_sum(number))


@workflow
def asking_to_go_on() -> Any:
    return holdfast.ask("Continue?")


@step
async def add_one_later(number: int) -> int:
    return number + 1


@workflow
async def adding_twice_later(number: int) -> int:
    return await add_one_later(await add_one_later(number))


def _commit(hf: Holdfast) -> None:
    hf.history("own").update(_count)


def _read(hf: Holdfast) -> None:
    assert hf.history("own").head.number
    hf.history("own").versions(limit=3)
    hf.history("own").events(limit=3)


def _run(hf: Holdfast) -> None:
    hf.run(adding_twice, 1)


def _ask(hf: Holdfast) -> None:
    run = hf.run(asking_to_go_on)
    assert run.status == "suspended"


def _run_in_loop(hf: Holdfast) -> None:
    asyncio.run(hf.arun(adding_twice_later, 1))


WORKS: list[Callable[[Holdfast], None]] = [_commit, _read, _run, _ask]


def _chosen(passed: list[str], few: int) -> list[int]:
    core = [number for number, name in enumerate(passed, 1) if name.startswith(_CORE)]
    rest = [number for number, name in enumerate(passed, 1) if not name.startswith(_CORE)]
    if WANTED:
        return core + rest
    chance = random.Random(7)
    return sorted(chance.sample(core, min(2 * few, len(core))) + chance.sample(rest, min(few, len(rest))))


def _interrupted(hf: Holdfast, work: Callable[[Holdfast], None], points: InterruptPoints) -> None:
    try:
        with points.watched():
            work(hf)
    except (Interrupt, TimeIsUp):
        pass


def _check(hf: Holdfast, neighbour: Neighbour, known: dict[str, int]) -> None:
    """Check that this and another thread can commit, and that no acknowledged commit is lost."""
    neighbour.commit("other")
    known["other"] += 1
    hf.history("own").update(_count)
    found = hf.history("own").head.state["count"]
    assert found > known["own"]
    known["own"] = found
    assert hf.history("other").head.state["count"] == known["other"]


@pytest.mark.parametrize("error", [Interrupt, TimeIsUp])
@pytest.mark.parametrize("work", WORKS)
def test_interrupt_at_any_bytecode_leaves_the_store_usable(
    hf: Holdfast, work: Callable[[Holdfast], None], error: type[BaseException]
) -> None:
    neighbour, known = Neighbour(hf), {"own": 0, "other": 0}
    for _ in range(3):
        _check(hf, neighbour, known)
        work(hf)
    counted = InterruptPoints(error)
    _interrupted(hf, work, counted)
    assert len(counted.passed) > 50
    raised = 0
    for at in _chosen(counted.passed, _FEW):
        points = InterruptPoints(error, at)
        _interrupted(hf, work, points)
        raised += points.raised
        try:
            _check(hf, neighbour, known)
        except BaseException as failure:
            failure.add_note(f"interrupted at place {at}, in {points.passed[-1]}")
            raise
    assert raised


@pytest.mark.parametrize("work", WORKS)
def test_second_interrupt_during_cleanup_leaves_the_store_usable(
    hf: Holdfast, work: Callable[[Holdfast], None]
) -> None:
    neighbour, known = Neighbour(hf), {"own": 0, "other": 0}
    for _ in range(3):
        _check(hf, neighbour, known)
        work(hf)
    counted = InterruptPoints(Interrupt)
    _interrupted(hf, work, counted)
    raised = 0
    for at in _chosen(counted.passed, _FEW // 4):
        for then in (1, 3, 9):
            points = InterruptPoints(Interrupt, at, then)
            _interrupted(hf, work, points)
            raised += points.raised
            try:
                _check(hf, neighbour, known)
            except BaseException as failure:
                failure.add_note(f"interrupted at place {at}, then {then}, in {points.passed[-1]}")
                raise
            if points.raised < 2:
                break
    assert raised


class Committing:
    """A thread that commits until it is stopped."""

    def __init__(self, hf: Holdfast, run: str) -> None:
        self.run = run
        self.acknowledged = 0
        self.error: BaseException | None = None
        self._hf = hf
        self._stopped = False
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._thread.join(_PATIENCE)
        assert not self._thread.is_alive(), f"{self.run} hangs"

    def _work(self) -> None:
        history = self._hf.history(self.run)
        while not self._stopped and self.error is None:
            try:
                history.update(_count)
            except BaseException as error:
                self.error = error
            else:
                self.acknowledged += 1
                # The main thread is to be interrupted within its own work, too, not only while it waits for others.
                time.sleep(0.002)


def _at_random(hf: Holdfast, works: list[Callable[[Holdfast], None]], count: int) -> None:
    """Interrupt the main thread repeatedly while four other threads commit."""
    chance = random.Random(count)
    others = [Committing(hf, f"thread-{number}") for number in range(4)]
    in_loop = _run_in_loop in works
    # An event loop logs what its callbacks raise, but for Ctrl-C.
    errors: list[type[BaseException]] = [Interrupt] if in_loop else [Interrupt, TimeIsUp]
    came = 0
    main = threading.get_ident()
    delays: queue.SimpleQueue[float | None] = queue.SimpleQueue()

    def send() -> None:
        while (delay := delays.get()) is not None:
            time.sleep(delay)
            signal.pthread_kill(main, signal.SIGUSR2)

    def handle(_number: int, frame: FrameType | None) -> None:
        nonlocal came
        if in_loop and (frame is None or not is_ours(frame)):
            # An event loop that is interrupted in its own code loses wake-ups, and `asyncio.run` waits for ever.
            delays.put(0.0001 + 0.001 * chance.random())
            return
        came += 1
        raise chance.choice(errors)

    hf.history("own").update(_count)
    before = signal.signal(signal.SIGUSR2, handle)
    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        for number in range(count):
            try:
                delays.put(chance.choice([0.0005, 0.002, 0.008]) * (0.1 + chance.random()))
                while came == number:
                    chance.choice(works)(hf)
            except (Interrupt, TimeIsUp):
                pass
            assert [other.error for other in others] == [None] * 4
    finally:
        # An interrupt that is still to come would end the process.
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        delays.put(None)
        sender.join()
        signal.signal(signal.SIGUSR2, before)
    reached = [other.acknowledged for other in others]
    until(lambda: all(other.acknowledged > was + 2 for other, was in zip(others, reached, strict=True)))
    for other in others:
        other.stop()
        assert other.error is None
        assert hf.history(other.run).head.state["count"] == other.acknowledged
    hf.history("own").update(_count)
    assert hf.run(adding_twice, 1).result == 3
    assert hf.verify().ok


# A store in memory makes ten thousands of runs until a signal has come in Holdfast's code often enough.
@pytest.mark.parametrize("hf", ["sqlite", "postgres"], indirect=True)
@pytest.mark.parametrize("works", [WORKS, [_run_in_loop, _commit]])
def test_interrupts_of_the_main_thread_do_not_stop_other_threads(
    hf: Holdfast, works: list[Callable[[Holdfast], None]]
) -> None:
    _at_random(hf, works, int(WANTED or 1000) // 4)
