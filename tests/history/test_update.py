"""Concurrent changes of a manual run: none is lost silently; `update` applies a function until it is committed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import History, Holdfast, InvalidCall, MergeConflict, StaleVersion, thaw

pytest_plugins = ["postgres_fixtures"]

PROCESSES, TIMES = 8, 100

_COUNTING = """
import sys
import holdfast

def add(state):
    state["n"] += 1

with holdfast.open(sys.argv[1], durability="fast") as hf:
    log = hf.history("counter")
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(sys.argv[2])):
        log.update(add, step="add")
"""


def add_one(state: Any) -> None:
    state["n"] += 1


# Edits and commits


def test_two_edits_that_write_equal_values_conflict(hf: Holdfast, log: History) -> None:
    log.commit({"n": 0})
    edit = log.edit(step="outer")
    outer = edit.__enter__()
    with hf.history("run-1").edit(step="inner") as inner:
        inner["n"] += 1
    outer["n"] += 1
    with pytest.raises(MergeConflict) as caught:
        edit.__exit__(None, None, None)
    error = caught.value
    assert error.details["path"] == "n"
    assert (error.details["step"], error.details["other_step"], error.details["version"]) == (
        "outer",
        "inner",
        2,
    )
    for part in ("'outer'", "version 1", "version 2", "'inner'", "n", "merge=", "sum", "update"):
        assert part in str(error)
    assert log.head.number == 2, "nothing of the refused edit was written"
    assert log.head.state == {"n": 1}


def test_edits_of_two_threads_lose_no_update(hf: Holdfast, log: History) -> None:
    log.commit({"n": 0})
    gate = threading.Barrier(2)
    outcomes: list[str] = []

    def work() -> None:
        try:
            with hf.history("run-1").edit() as state:
                gate.wait()
                state["n"] += 1
            outcomes.append("written")
        except MergeConflict:
            outcomes.append("conflict")

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["conflict", "written"]
    assert log.head.state == {"n": 1}


def test_plain_states_that_write_equal_values_conflict(hf: Holdfast, log: History) -> None:
    log.commit({"n": 0, "a": 0})
    other = hf.history("run-1")
    mine, theirs = thaw(log.head.state), thaw(other.head.state)
    mine["n"] += 1
    theirs["n"] += 1
    other.commit(theirs)
    with pytest.raises(MergeConflict, match="version 2"):
        log.commit(mine)
    with pytest.raises(StaleVersion):
        log.commit(mine, expected=1)
    assert log.head.state == {"n": 1, "a": 0}


def test_state_made_from_a_pruned_version_is_refused(hf: Holdfast, log: History) -> None:
    log.commit({"n": 0, "a": 0})
    mine = thaw(log.head.state)
    other = hf.history("run-1")
    other.commit({"n": 5, "a": 0})
    other.drop([1])
    mine["a"] = 1
    with pytest.raises(StaleVersion, match="version 1"):
        log.commit(mine)
    assert log.head.state == {"n": 5, "a": 0}


def test_history_with_reducers_merges_edits_and_commits(hf: Holdfast) -> None:
    log = hf.history("run-1", merge={"n": "sum", "seen": "union"})
    log.commit({"n": 0, "seen": {"a"}})
    other = hf.history("run-1", merge={"n": "sum"})
    mine = thaw(log.head.state)
    with other.edit() as state:
        state["n"] += 1
        state["seen"].add("b")
    mine["n"] += 1
    mine["seen"].add("c")
    log.commit(mine)
    assert log.head.state == {"n": 2, "seen": {"a", "b", "c"}}
    with log.edit() as state:
        with other.edit() as inner:
            inner["n"] += 10
        state["n"] += 100
    assert log.head.state["n"] == 112


def test_invalid_reducers_are_refused(hf: Holdfast, subtests: pytest.Subtests) -> None:
    invalid: list[Any] = [{"n": "add"}, {"n[": "sum"}, {"n": 3}, [("n", "sum")]]
    for wrong in invalid:
        with subtests.test(wrong=wrong), pytest.raises(InvalidCall, match="merge"):
            hf.history("run-1", merge=wrong)


def test_merge_accepts_equal_values_of_two_timelines(log: History) -> None:
    log.commit({"n": 0, "a": 0})
    log.commit({"n": 1, "a": 0})
    log.rollback(to=1)
    log.commit({"n": 1, "a": 5})
    assert log.merge(timeline=1).state == {"n": 1, "a": 5}


# Updates


def test_update_is_applied_again_after_a_concurrent_commit(hf: Holdfast, log: History) -> None:
    log.commit({"n": 0})
    seen: list[int] = []

    def add(state: Any) -> None:
        seen.append(state["n"])
        if len(seen) < 4:
            hf.history("run-1").update(add_one)
        state["n"] += 1

    version = log.update(add, step="add", tags=["counted"], note="by hand", actor="me")
    assert seen == [0, 1, 2, 3]
    assert version.state == {"n": 4}
    assert (version.number, version.step, version.note, version.actor) == (5, "add", "by hand", "me")
    assert version.tags == ("counted",)


def test_update_creates_a_missing_run(log: History) -> None:
    assert log.update(lambda state: state.update(n=1)).state == {"n": 1}


def test_update_that_raises_commits_nothing(log: History) -> None:
    log.commit({"n": 0})

    def fail(state: Any) -> None:
        state["n"] = 9
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        log.update(fail)
    assert log.head.number == 1


def test_update_that_returns_a_value_is_refused(log: History) -> None:
    log.commit({"n": 0, "l": [7]})

    async def later(state: Any) -> None:
        """Never run."""

    wrong: list[Any] = [lambda state: state["l"].pop(), lambda state: {"n": 1}, later]
    for function in wrong:
        with pytest.raises(InvalidCall, match="returns nothing"):
            log.update(function)
    nothing: Any = {"n": 1}
    with pytest.raises(InvalidCall, match="function"):
        log.update(nothing)
    assert log.head.number == 1


def test_update_stops_after_the_given_attempts(hf: Holdfast, log: History) -> None:
    log.commit({"n": 0})

    def late(state: Any) -> None:
        hf.history("run-1").update(add_one)
        state["n"] = -1

    with pytest.raises(StaleVersion):
        log.update(late, attempts=3)
    assert log.head.state == {"n": 3}


@pytest.mark.slow
@pytest.mark.parametrize("where", ["sqlite", "postgres"])
def test_updates_of_processes_are_all_stored(
    where: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = str(tmp_path / "runs.db") if where == "sqlite" else request.getfixturevalue("url")
    with holdfast.open(place, durability="fast") as hf:
        hf.history("counter").commit({"n": 0})
        command = [sys.executable, "-W", "ignore", "-c", _COUNTING, place, str(TIMES)]
        workers = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(PROCESSES)
        ]
        for worker in workers:
            assert worker.stdout is not None
            assert worker.stdout.readline() == "ready\n"
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("go\n")
            worker.stdin.flush()
        assert [worker.wait() for worker in workers] == [0] * PROCESSES
        log = hf.history("counter")
        assert log.head.state == {"n": PROCESSES * TIMES}
        assert log.head.number == PROCESSES * TIMES + 1
