"""Automatic snapshots that fail: one warning per reason, and the observed code continues."""

from __future__ import annotations

import logging
import threading
from pathlib import Path
from typing import Any

import autosave_fixtures
import pytest
from autosave_fixtures import NEVER, SOON, Reads, versions

import autosave_timers
import holdfast
from autosave_timers import timers, warnings
from database import Database
from holdfast import History
from holdfast.compat.autosave import autosave
from patience import until

file, hf, log, no_timer_is_left = (
    autosave_fixtures.file,
    autosave_fixtures.hf,
    autosave_fixtures.log,
    autosave_timers.no_timer_is_left,
)


def test_failed_save_warns_once_per_consecutive_reason(
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


def test_closed_store_does_not_break_the_observed_code(file: Path, caplog: pytest.LogCaptureFixture) -> None:
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
    # A timed snapshot in progress may have succeeded between two that failed.
    assert 1 <= len(warnings(caplog)) <= 2
    assert "is closed" in warnings(caplog)[0]


def test_locked_store_does_not_break_the_observed_code(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with holdfast.open(file, timeout=0.05) as hf:
        log = hf.history("loop")
        state = {"n": 0}
        saver = autosave(state, log, every=NEVER)
        assert saver.save() is not None
        other = Database(file)
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
def test_exception_of_the_read_does_not_reach_the_observed_code(
    log: History, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def read() -> Any:
        raise error

    with autosave(read, log, every=SOON) as saver:
        until(lambda: warnings(caplog))
        assert saver.save() is None
    assert type(error).__name__ in warnings(caplog)[0]
    assert len(warnings(caplog)) == 1


def test_timer_survives_system_exit_in_the_read(log: History, caplog: pytest.LogCaptureFixture) -> None:
    reads = Reads({})

    def read() -> Any:
        reads.read()
        if threading.current_thread() is not threading.main_thread() and reads.count < 3:
            raise SystemExit
        return {"n": reads.count}

    with autosave(read, log, every=SOON):
        until(lambda: versions(log))
    assert len(warnings(caplog)) == 1


def test_keyboard_interrupt_during_a_save_propagates(log: History) -> None:
    def read() -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        autosave(read, log).save()


def test_log_handler_that_raises_does_not_break_the_observed_code(log: History) -> None:
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise ValueError("handler")

    handler = Broken()
    logging.getLogger("holdfast").addHandler(handler)
    try:
        assert autosave({"here": object()}, log).save() is None
    finally:
        logging.getLogger("holdfast").removeHandler(handler)


def test_timer_that_cannot_start_does_not_break_the_observed_code(
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
