"""Bases: the version that a plain state was made from, so that no update is lost however it is read and committed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, MergeConflict, thaw

WRITERS = 8


@pytest.fixture(params=["memory", "file"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(":memory:" if request.param == "memory" else tmp_path / "runs.db") as opened:
        opened.history("run").commit({"n": 0})
        yield opened


READS: dict[str, Callable[[Holdfast], Any]] = {
    "head": lambda hf: thaw(hf.history("run").head.state),
    "copy": lambda hf: hf.history("run").head.copy(),
    "part": lambda hf: {"n": hf.history("run").head.get("n")},
    "run": lambda hf: thaw(hf.get("run").state),
    "list": lambda hf: thaw(hf.history("run").versions()[0].state),
    "reference": lambda hf: hf.version("run").copy(),
}


def committed(commit: Callable[[], Any]) -> bool:
    try:
        commit()
    except MergeConflict:
        return False
    return True


@pytest.mark.parametrize("read", READS)
def test_updates_of_threads_are_merged_or_refused_however_they_read(hf: Holdfast, read: str) -> None:
    gate = threading.Barrier(WRITERS)

    def add_one(_: int) -> bool:
        state = READS[read](hf)
        gate.wait()
        state["n"] += 1
        # What is looked at without its state is not what the change was made from.
        assert hf.history("run").head.number
        return committed(lambda: hf.history("run").commit(state))

    with ThreadPoolExecutor(WRITERS) as pool:
        done = sum(pool.map(add_one, range(WRITERS)))
    assert hf.history("run").head.state == {"n": done}
    assert done >= 1


def test_updates_of_tasks_that_commit_in_threads_are_merged_or_refused(hf: Holdfast) -> None:
    log = hf.history("run")

    async def add_one() -> bool:
        state = thaw(log.head.state)
        await asyncio.sleep(0)
        state["n"] += 1
        return await asyncio.to_thread(committed, lambda: log.commit(state))

    async def add_all() -> int:
        return sum(await asyncio.gather(*(add_one() for _ in range(WRITERS))))

    assert asyncio.run(add_all()) == log.head.state["n"] == 1


def test_state_that_a_task_holds_can_be_committed_repeatedly_in_threads(hf: Holdfast) -> None:
    log = hf.history("run")

    async def work() -> None:
        state = log.head.copy()
        for number in range(1, 6):
            state["n"] = number
            await asyncio.to_thread(log.commit, state)
            await asyncio.to_thread(hf.history("run").commit, state)

    asyncio.run(work())
    assert log.head.state == {"n": 5}


def test_commit_of_a_held_state_does_not_revert_changes_of_others(hf: Holdfast) -> None:
    """Though each commit is made through a history of its own."""
    state = hf.history("run").head.copy()
    state["a"] = 1
    hf.history("run").commit(state)

    def change() -> None:
        with hf.history("run").edit() as other:
            other["b"] = 1

    thread = threading.Thread(target=change)
    thread.start()
    thread.join()
    state["a"] = 2
    hf.history("run").commit(state)
    assert hf.history("run").head.state == {"n": 0, "a": 2, "b": 1}


def test_thread_that_reads_the_state_commits_from_its_own_read(hf: Holdfast) -> None:
    log = hf.history("run")
    read = threading.Event()

    def add_one() -> bool:
        state = log.head.copy()
        read.set()
        state["n"] += 10
        return committed(lambda: log.commit(state))

    async def work() -> tuple[bool, bool]:
        state = log.head.copy()
        done = await asyncio.to_thread(add_one)
        state["n"] += 1
        return done, await asyncio.to_thread(committed, lambda: log.commit(state))

    assert asyncio.run(work()) == (True, False)
    assert log.head.state == {"n": 10}


def test_remembered_reads_are_limited_in_number(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.history.context._REMEMBERED", 3)
    for number in range(6):
        hf.history(f"other-{number}").commit({"n": number})
        assert hf.history(f"other-{number}").head.copy() == {"n": number}
    assert len(hf._context.bases._found) == 3


def test_edit_between_a_read_and_its_commit_is_merged(hf: Holdfast) -> None:
    log = hf.history("run")
    state = log.head.copy()
    with hf.history("run").edit() as draft:
        draft["edited"] = True
    state["n"] = 1
    assert log.commit(state).state == {"n": 1, "edited": True}


def test_commit_of_a_held_state_follows_edits_through_its_history(hf: Holdfast) -> None:
    log = hf.history("run")
    state = log.head.copy()
    for number in range(1, 4):
        state["n"] = number
        with log.edit() as draft:
            draft["n"] = number
        state["more"] = number
        log.commit(state)
    assert log.head.state == {"n": 3, "more": 3}


@pytest.mark.timeout(60)
def test_signal_handler_reads_while_it_interrupts_a_read(hf: Holdfast) -> None:
    """The thread has the locks that its own signal handler needs."""
    context = hf.history("run").context
    with context.bases._lock, context._lock, context.head_lock:
        assert hf.history("run").head.copy() == {"n": 0}
