"""Automatic snapshots with concurrency: a state that changes while it is read, and other writers of the run."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import autosave_fixtures
import pytest
from autosave_fixtures import NEVER, SOON, Reads, versions

import autosave_timers
import holdfast
from autosave_timers import timers, warnings
from holdfast import History, Holdfast
from holdfast.compat.autosave import autosave
from patience import until

file, hf, log, no_timer_is_left = (
    autosave_fixtures.file,
    autosave_fixtures.hf,
    autosave_fixtures.log,
    autosave_timers.no_timer_is_left,
)


# Changes while the state is read


@pytest.mark.parametrize(("failures", "saved"), [(3, True), (1000, False)])
def test_state_that_changed_during_the_read_is_read_again(
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


@pytest.mark.slow
def test_state_that_changes_constantly_does_not_break_the_observed_code(hf: Holdfast, log: History) -> None:
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


def test_lock_is_held_during_the_read_and_not_during_the_write(file: Path) -> None:
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


def test_changes_under_the_lock_are_saved_together(log: History) -> None:
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


# Other writers of the same run


def test_saver_is_shared_by_many_threads(hf: Holdfast, log: History) -> None:
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
    # A state that was saved once stays in the head.
    sizes = [sum(map(len, version.state.values())) for version in found]
    assert sizes == sorted(sizes)
    assert hf.verify().ok
    until(lambda: not timers())


def test_saver_commits_current_state_after_a_rollback(hf: Holdfast, log: History) -> None:
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


def test_saver_does_not_merge_versions_of_other_writers(file: Path, hf: Holdfast, log: History) -> None:
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


def test_commit_of_the_same_state_is_not_saved_again(log: History) -> None:
    state: dict[str, Any] = {"items": []}
    with autosave(state, log, every=0.001):
        for number in range(50):
            state["items"].append(number)
            log.commit(state)
    assert log.head.state == {"items": list(range(50))}


def test_write_of_another_process_between_read_and_commit_is_kept(log: History) -> None:
    reads = Reads({"n": 0})

    def read() -> Any:
        if reads.count < 5:
            log.commit({"by": "another", "n": reads.count})
        return dict(reads.read(), count=reads.count)

    made = autosave(read, log).save()
    assert made is not None
    assert made.state == {"n": 0, "count": 6}
    assert (made.number, made.parent) == (6, 5)


def test_saver_continues_after_its_run_is_deleted_or_pruned(hf: Holdfast, log: History) -> None:
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
