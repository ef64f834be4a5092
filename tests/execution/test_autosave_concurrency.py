"""Automatic snapshots beside others: a state that changes while it is read, and others that write to the run."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import saving
from saving import NEVER, SOON, Reads, versions

import autosaving
import holdfast
from autosaving import timers, warnings
from holdfast import History, Holdfast
from holdfast.compat.autosave import autosave
from patience import until

file, hf, log, no_timer_is_left = saving.file, saving.hf, saving.log, autosaving.no_timer_is_left


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


# Others at the same run


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
