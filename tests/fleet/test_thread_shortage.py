"""A worker that gets no thread from the system hands runs back; the leases that it takes begin when it takes them."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import monitor_stage as s
import pytest

import holdfast
from holdfast import Holdfast, workflow
from holdfast.fleet.worker import Executors, NoThread

LEASE = 3600


@workflow(name="nt_plain")
def plain() -> int:
    return 1


@workflow(name="nt_async")
async def asynchronous() -> int:
    return 1


class Clock:
    """Set by hand."""

    def __init__(self) -> None:
        self.seconds = 1_000_000_000.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hf(tmp_path: Path, clock: Clock) -> Iterator[Holdfast]:
    with holdfast.open(tmp_path / "runs.db", lease=LEASE, clock=clock) as opened:
        yield opened


def without_threads(monkeypatch: pytest.MonkeyPatch, named: str = "holdfast worker's") -> threading.Event:
    """While this is set, no thread of such a name can be started: those that execute runs, if nothing else is said."""
    missing = threading.Event()
    missing.set()
    start = threading.Thread.start

    def starting(thread: threading.Thread) -> None:
        if missing.is_set() and thread.name.startswith(named):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", starting)
    return missing


@pytest.mark.parametrize("flow", [plain, asynchronous], ids=["plain", "async"])
def test_run_that_gets_no_thread_is_handed_back(
    hf: Holdfast, clock: Clock, monkeypatch: pytest.MonkeyPatch, flow: Any
) -> None:
    missing = without_threads(monkeypatch)
    runs = [hf.enqueue(flow) for _ in range(3)]
    with hf.worker(monitor=False, poll=0.02) as worker:
        s.wait_until(lambda: all("run.handed_back" in [e.kind for e in run.events()] for run in runs))
        assert {run.status for run in runs} == {"queued"}
        assert {hf._store.run(run.id).owner for run in runs} == {None}  # type: ignore[union-attr]
        s.wait_until(lambda: worker.active == [])
        assert hf._engine.keeper._handles == set()
        missing.clear()
        clock.seconds += 60
        s.wait_until(lambda: all(run.status == "completed" for run in runs))


def test_work_refused_for_lack_of_a_thread_is_never_executed(monkeypatch: pytest.MonkeyPatch) -> None:
    missing, hands, done = without_threads(monkeypatch), Executors(), threading.Event()
    executed: list[str] = []

    async def task() -> None:
        executed.append("refused")

    with pytest.raises(NoThread):
        hands.do(lambda: executed.append("refused"))
    with pytest.raises(NoThread):
        hands.spawn([task()])
    missing.clear()
    hands.do(done.set)
    assert done.wait(s.PATIENCE)
    hands.close()
    assert executed == []


def test_event_loop_writes_if_no_writer_thread_starts(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = without_threads(monkeypatch, "holdfast committer")

    async def several() -> list[Any]:
        found = await asyncio.gather(*(hf.arun(asynchronous) for _ in range(5)))
        assert hf._engine.committer._thread is None
        missing.clear()
        return [*found, await hf.arun(asynchronous)]

    assert [run.result for run in asyncio.run(asyncio.wait_for(several(), s.PATIENCE))] == [1] * 6
    assert hf._engine.committer._thread is not None


def test_worker_continues_if_its_monitor_gets_no_thread(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    without_threads(monkeypatch, "holdfast monitor")
    with hf.worker(poll=0.02):
        assert hf.enqueue(plain).wait(timeout=s.PATIENCE).result == 1
    assert caplog.messages == ["this worker runs without a monitor: can't start new thread"]


@pytest.mark.parametrize("rated", [False, True], ids=["plain", "rated"])
def test_lease_starts_with_the_claim(hf: Holdfast, clock: Clock, rated: bool) -> None:
    """Not before whatever the claim waited for."""
    if rated:
        hf.limit_queue("default", rate=10)
    worker = hf.worker(monitor=False)
    run = hf.enqueue(plain)
    with hf._engine.claiming:
        thread = threading.Thread(target=worker._claim, daemon=True)
        thread.start()
        s.wait_until(lambda: _stands_in(thread, "_take"))
        clock.seconds += LEASE * 2
    thread.join(s.PATIENCE)
    claimed = [event for event in run.events() if event.kind == "run.claimed"]
    assert [event.at.timestamp() for event in claimed] == [clock.seconds]
    s.wait_until(lambda: not worker.active)
    worker._executors.close()


def _stands_in(thread: threading.Thread, function: str) -> bool:
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        if frame.f_code.co_name == function:
            return True
        frame = frame.f_back
    return False
