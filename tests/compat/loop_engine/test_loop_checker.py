"""The checker thread: starts with the first agent, one per store, survives errors, ends with the store or engine."""

from __future__ import annotations

import gc
import logging
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from loop_fixtures import Clock, good, state_of

import holdfast
from holdfast import Holdfast
from holdfast.agent_loops.loops import AgentLoops
from holdfast.execution.loops import LoopCheck
from holdfast.loops import LoopEngine
from patience import until

SOON = 0.005


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-loop-checker"]


@pytest.fixture(autouse=True)
def no_checker_is_left() -> Iterator[None]:
    yield
    until(lambda: not threads())


@pytest.fixture
def engine(hf: Holdfast) -> LoopEngine:
    return LoopEngine(hf, check_every=SOON)


def test_checker_finds_a_stalled_agent(engine: LoopEngine, clock: Clock) -> None:
    engine.configure("p", loop_autoresume=True)
    engine.save_loop_snapshot("p", {"loop_count": 1})
    engine.update_project_state("p", {"loop_count": 2})
    assert not threads()
    engine.log_agent_start("p", "planner", timeout=60)
    assert len(threads()) == 1, "the first start starts it"
    clock.forward(61)
    until(lambda: state_of(engine)["loop_count"] == 1)
    engine.checker().stop()
    assert not threads()


def test_checker_takes_scheduled_snapshots(engine: LoopEngine, clock: Clock) -> None:
    engine.set_project_state("p", {"loop_count": 1})
    engine.schedule("p", 60)
    with engine.checker(every=SOON):
        until(lambda: engine.get_snapshot_history("p")["snapshot_count"] == 1)
        engine.update_project_state("p", {"loop_count": 2})
        clock.forward(61)
        until(lambda: engine.get_snapshot_history("p")["snapshot_count"] == 2)


def test_checker_exists_once_per_store(hf: Holdfast, engine: LoopEngine) -> None:
    other = LoopEngine(hf, check_every=SOON)
    for each in (engine, other):
        for project in ("p", "q"):
            each.log_agent_start(project, "planner")
    assert engine.checker() is other.checker()
    assert len(threads()) == 1
    with other.checker() as inner:
        assert inner.alive
    assert inner.alive, "after start, it runs until stop"
    inner.stop()
    inner.stop()
    assert not inner.alive
    with inner, inner:
        assert len(threads()) == 1
    assert not threads()


def test_checker_survives_errors(
    engine: LoopEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast")
    failing, looks = True, []

    def check(self: AgentLoops, every: float) -> LoopCheck:
        looks.append(failing)
        if failing and len(looks) % 2:
            raise ValueError("out of order")
        return LoopCheck(errors=[("p", ValueError("out of order"))] if failing else [])

    monkeypatch.setattr(AgentLoops, "check", check)
    with engine.checker(every=SOON) as checker:
        until(lambda: len(looks) > 20)
        failing = False
        until(lambda: looks.count(False) > 2)
        assert checker.alive
    messages = [record.getMessage() for record in caplog.records]
    assert messages
    assert all("out of order" in each for each in messages)


def test_checker_logs_a_repeated_error_once(
    engine: LoopEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "holdfast")

    def check(self: AgentLoops, every: float) -> LoopCheck:
        return LoopCheck(errors=[("p", ValueError("out of order"))])

    monkeypatch.setattr(AgentLoops, "check", check)
    with engine.checker(every=SOON) as checker:
        until(lambda: checker.checks > 20)
    assert [record.getMessage() for record in caplog.records] == ["looking for stalled agents: out of order"]


def test_checker_ends_when_the_store_is_closed(tmp_path: Path) -> None:
    for where in (":memory:", tmp_path / "runs.db"):
        hf = holdfast.open(where)
        engine = LoopEngine(hf, check_every=SOON)
        engine.log_agent_start("p", "planner")
        assert threads()
        hf.close()
        until(lambda: not threads())
        assert engine.check_timeouts()["status"] == "error"


def test_checker_ends_when_the_store_is_collected(tmp_path: Path) -> None:
    hf = holdfast.open(tmp_path / "runs.db")
    engine = LoopEngine(hf, check_every=SOON)
    engine.log_agent_start("p", "planner")
    checker = engine.checker()
    until(lambda: checker.checks > 0)
    del hf, engine
    gc.collect()
    until(lambda: not threads())


def test_checker_refuses_an_invalid_interval(hf: Holdfast) -> None:
    engine = LoopEngine(hf, check_every=None)
    for wrong in (0, -1, "1", None, float("nan")):
        with pytest.raises(holdfast.InvalidCall, match="every is a number"):
            engine.checker(wrong)  # type: ignore[arg-type]
        if wrong is not None:
            with pytest.raises(holdfast.InvalidCall):
                LoopEngine(hf, check_every=wrong)  # type: ignore[arg-type]
    with pytest.raises(holdfast.InvalidCall, match="open store"):
        LoopEngine("runs.db")  # type: ignore[arg-type]


def test_agent_starts_although_the_checker_thread_cannot(
    engine: LoopEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        assert good(engine.log_agent_start("p", "planner"))["status"] == "started"
    assert "this process does not look for stalled agents" in caplog.text


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_forked_process_has_its_own_checker(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db", durability="fast") as hf:
        engine = LoopEngine(hf, check_every=SOON)
        engine.log_agent_start("p", "planner")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                engine.log_agent_start("p", "other")
                code = 0 if engine.checker().alive and len(threads()) == 1 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        engine.checker().stop()


def test_checker_that_hangs_is_replaced_when_its_lease_expires(file: Path, clock: Clock) -> None:
    """While it holds the lease, only a process that checks more often acts."""
    with (
        holdfast.open(file, durability="fast", clock=clock) as hangs,
        holdfast.open(file, durability="fast", clock=clock) as other,
        holdfast.open(file, durability="fast", clock=clock) as faster,
    ):
        engine = LoopEngine(hangs, check_every=None)
        engine.save_loop_snapshot("p", {"loop_count": 1})
        engine.configure("p", loop_autoresume=True)

        def stall() -> None:
            engine.log_agent_start("p", "planner", timeout=1)
            clock.forward(2)

        hangs.loops.check(1.0)
        stall()
        assert other.loops.check(1.0).stalled == ()
        assert len(faster.loops.check(0.5).stalled) == 1
        stall()
        assert hangs.loops.check(1.0).stalled == other.loops.check(1.0).stalled == ()
        clock.forward(10)
        assert len(other.loops.check(1.0).stalled) == 1, "the lease of the faster one has expired"
        stall()
        assert hangs.loops.check(1.0).stalled == ()
        other.loops.release()
        assert len(hangs.loops.check(1.0).stalled) == 1
        hangs.loops.release()
        stall()
        assert len(other.loops.check(60.0).stalled) == 1
        faster.loops.release()
        stall()
        assert hangs.loops.check(60.0).stalled == (), "only the leader releases the lease"
        assert engine.get_questions()["questions"] != [], "after three restores it asks"
