"""Resuming what a process left that was killed or interrupted."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import step_fixtures
import step_flows as f
from step_flows import control, effects_in, kill, start_stuck

import holdfast

fresh = step_fixtures.fresh


def test_caught_failure_is_replayed_after_a_crash(tmp_path: Path) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    process = start_stuck(db, "careful", effects, "c-1")
    kill(process)
    assert effects_in(effects) == ["fragile", "stuck"]
    with holdfast.open(db) as hf:
        assert hf.resume("c-1").result == [("bad day", 42), "free", "AFTER"]
    assert control.ran == ["stuck", "write-after"]


def test_crash_in_a_nested_step_keeps_inner_results(tmp_path: Path) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    process = start_stuck(db, "nested", effects, "n-1")
    kill(process)
    assert effects_in(effects) == ["outer", "inner-x", "stuck"]
    with holdfast.open(db) as hf:
        run = hf.resume("n-1")
        assert run.result == ["<x>", "<y>"]
        assert control.ran == ["outer", "stuck", "inner-y"]
        assert run.state == {"outer": "started", "inner": ["x", "y"], "seen": ["x", "y"]}
        addresses = [version.address for version in reversed(run.history().versions())]
        assert addresses == [None, "outer/inner", "outer/stuck", "outer/inner#2", "outer", None]


def test_interrupted_process_leaves_a_resumable_run(tmp_path: Path) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    process = start_stuck(db, "killed", effects, "i-1")
    os.kill(process.pid, signal.SIGINT)
    process.wait(timeout=f.DEADLINE)
    kill(process)
    with holdfast.open(db) as hf:
        assert hf.resume("i-1").result == ["A", "free", "B"]
    assert control.ran == ["stuck", "write-b"]


def test_failure_recorded_before_a_kill_is_tried_again(tmp_path: Path) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    process = start_stuck(db, "logging_failure", effects, "l-1")
    kill(process)
    assert effects_in(effects) == ["risky", "write-log", "stuck"]
    with holdfast.open(db) as hf:
        assert hf.resume("l-1", raises=False).status == "failed"
        assert control.ran == ["stuck"]
        assert hf.resume("l-1").result == "fine"
        assert control.ran == ["stuck", "risky"]
