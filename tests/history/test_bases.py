"""Bases: the version that a plain state was made from, so that no update is lost however it is read and committed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest

import holdfast
from holdfast import History, Holdfast, MergeConflict, StaleVersion, thaw

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


@pytest.mark.parametrize("handles", ["one", "one each", "new ones"])
@pytest.mark.parametrize("reads", ["once", "often"])
def test_writers_that_keep_their_own_state_never_undo_changes_of_others(
    tmp_path: Path, handles: str, reads: str
) -> None:
    """Each thread has a dict of its own, in which it changes a key of its own, and commits it in turns with others."""
    for seed in range(12):
        random = Random(seed)
        with (
            holdfast.open(tmp_path / f"{seed}.db", durability="fast") as one,
            holdfast.open(tmp_path / f"{seed}.db", durability="fast") as two,
        ):
            one.history("run").commit({str(writer): 0 for writer in range(4)})
            shared = [hf.history("run") for hf in (one, two)]
            with ExitStack() as stack:
                writers = [
                    Writer(name, [one, two][name % 2], shared[name % 2], handles, stack) for name in range(4)
                ]
                for writer in writers:
                    writer.do(writer.read)
                for _ in range(40):
                    writer = random.choice(writers)
                    writer.do(writer.read if reads == "often" and random.random() < 0.2 else writer.commit)
            expected = {str(writer.name): writer.count for writer in writers}
            assert one.history("run").head.state == expected, (seed, handles, reads)


class Writer:
    """A thread with a state of its own."""

    def __init__(self, name: int, hf: Holdfast, shared: History, handles: str, stack: ExitStack) -> None:
        self.name, self.count = name, 0
        own = hf.history("run")
        self._log: Callable[[], History] = {
            "one": lambda: shared,
            "one each": lambda: own,
            "new ones": lambda: hf.history("run"),
        }[handles]
        self._state: dict[str, Any] = {str(writer): 0 for writer in range(4)}
        self._thread = stack.enter_context(ThreadPoolExecutor(1))

    def do(self, work: Callable[[], None]) -> None:
        self._thread.submit(work).result()

    def read(self) -> None:
        self._state = thaw(self._log().head.state)

    def commit(self) -> None:
        self.count += 1
        self._state[str(self.name)] = self.count
        self._log().commit(self._state)


def test_threads_that_share_a_state_commit_it_in_turns(hf: Holdfast) -> None:
    log, lock, state = hf.history("shared"), threading.Lock(), {"n": 0}
    log.commit(state)

    def work(number: int) -> None:
        with lock:
            state["n"] += 1
            state[f"key {number % 3}"] = number
            log.commit(state)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(40)))
    assert log.head.state == state
    assert state["n"] == 40


def test_state_of_a_run_that_was_created_again_is_refused(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db") as hf, holdfast.open(tmp_path / "runs.db") as other:
        hf.history("run").commit({"secret": 1})
        log = hf.history("run")
        state = thaw(log.head.state)
        other.delete("run")
        for number in range(3):
            other.history("run").commit({"fresh": number})
        with pytest.raises(StaleVersion, match="deleted and created again"):
            log.commit(state | {"n": 1})
        assert other.history("run").head.state == {"fresh": 2}


def test_states_that_are_kept_for_merged_commits_are_limited(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller whose state was dropped is refused: it would undo what its last commit was merged with."""
    monkeypatch.setattr("holdfast.history.context._STATES", 1)
    states = {}
    for run in ("one", "two"):
        hf.history(run).commit({"n": 0})
        states[run] = hf.history(run).head.copy()
        change = threading.Thread(
            target=lambda run=run: hf.history(run).update(lambda state: state.update(b=1))
        )
        change.start()
        change.join()
        states[run]["n"] = 1
        assert hf.history(run).commit(states[run]).state == {"n": 1, "b": 1}
    states["two"]["n"] = 2
    assert hf.history("two").commit(states["two"]).state == {"n": 2, "b": 1}
    with pytest.raises(StaleVersion, match="read the head"):
        hf.history("one").commit(states["one"])


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
