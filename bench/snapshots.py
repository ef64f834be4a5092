"""Snapshots of a program's own state: their cost beside a copy, their size on disk, and the threads of their timers."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.measure import Bench, Row, megabytes, note, seconds
from holdfast.snapshots import SnapshotManager, with_snapshots

_STEPS = 1_000
_TIMES = 21
_LARGE = 140
_RUNS = 300


def snapshots(bench: Bench) -> Iterator[Row]:
    """Snapshots of 1,000 steps beside `copy.deepcopy`, 140 of 1 MB, and 300 runs with timers."""
    note(f"snapshots of {_STEPS:,} steps")
    ours, copied = bench.repeat(_create)
    yield Row(
        f"{_STEPS:,} steps, snapshots", "create one ÷ copy.deepcopy", ours / copied, "×",
        f"{ours * 1e3:.1f} ms in a file, deepcopy {copied * 1e3:.1f} ms; one step changes in between", at_most=2,
    )  # fmt: skip
    note(f"{_LARGE} snapshots of 1 MB")
    (size,) = bench.seldom().repeat(_fill)
    yield Row(
        f"{_LARGE} snapshots of 1 MB", "on disk, two kept", size / 1e6, "MB",
        f"{megabytes(size)}: the file, its log and its artifacts", at_most=5,
    )  # fmt: skip
    note(f"timers of {_RUNS} runs")
    (threads,) = bench.seldom().repeat(_time)
    yield Row(
        f"{_RUNS} runs with timed snapshots", "threads", threads, "threads",
        "one timer, and up to four that save", at_most=5,
    )  # fmt: skip


def _create(folder: Path) -> tuple[float, ...]:
    """Seconds to take a snapshot after a step has changed, and to copy the state: the medians, in turns."""
    state: dict[str, Any] = {
        "workflow_id": "agent",
        "status": "running",
        "results": {},
        "events": [],
        "logs": [],
    }
    for number in range(_STEPS):
        output = {"text": f"result {number}", "score": number / 2, "tags": ["a", "b"]}
        state["results"][f"step-{number}"] = {"status": "completed", "output": output}
        state["events"].append({"type": "StepStatusUpdate", "payload": {"number": number}})
        state["logs"].append({"type": "step", "description": f"step {number}"})
    ours, copies = [], []
    with SnapshotManager(10, folder / "runs.db", strict=True) as manager:
        manager.create_snapshot("run", state)
        for number in range(_TIMES):
            state["results"][f"step-{number}"]["output"] = number
            ours.append(seconds(lambda: manager.create_snapshot("run", state)))
            copies.append(seconds(lambda: copy.deepcopy(state)))
    return sorted(ours)[_TIMES // 2], sorted(copies)[_TIMES // 2]


def _fill(folder: Path) -> tuple[float, ...]:
    """The bytes on disk after many snapshots of a large value that cannot be compressed."""
    source = random.Random(9)
    with SnapshotManager(2, folder / "runs.db", strict=True) as manager:
        for _ in range(_LARGE):
            manager.create_snapshot("run", {"workflow_id": "agent", "page": source.randbytes(1_000_000)})
        return (float(sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())),)


class _Run:
    """A run of a program of its own."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.workflow_id = "agent"
        self.store = SimpleNamespace(status="running", results={})


def _time(folder: Path) -> tuple[float, ...]:
    """The threads that the timers of many runs add, while they save: the most that were seen."""
    with SnapshotManager(2, folder / "runs.db") as manager:
        before, most = threading.active_count(), 0
        timed = with_snapshots(_Run, manager, 0.2)
        runs = [timed(f"run-{number}") for number in range(_RUNS)]
        waiting = {run.run_id for run in runs}
        while waiting:
            most = max(most, threading.active_count() - before)
            waiting -= {run_id for run_id in waiting if manager.get_latest_snapshot(run_id)}
        for run in runs:
            run.destroy()
    return (float(most),)
