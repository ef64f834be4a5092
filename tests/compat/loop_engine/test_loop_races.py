"""Callers that read, change and set a state at the same time, and projects that are deleted meanwhile."""

from __future__ import annotations

import asyncio
import copy
import json
import os
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from loop_fixtures import Clock, good, refused, state_of

import holdfast
from holdfast import Holdfast, step, workflow
from holdfast.errors import StaleVersion
from holdfast.execution.leadership import Leadership
from holdfast.history.history import History
from holdfast.loops import LoopEngine
from patience import until


def elsewhere(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function in another thread, as another caller."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result(60)


@pytest.mark.parametrize("derive", [lambda state: state, copy.copy, copy.deepcopy, lambda state: state | {}])
def test_state_set_by_another_thread_than_read_it_loses_no_change(
    engine: LoopEngine, derive: Callable[[Any], Any]
) -> None:
    engine.set_project_state("p", {"a": 0, "b": 0})
    pool = ThreadPoolExecutor(2)

    async def count(key: str) -> None:
        loop = asyncio.get_running_loop()
        for call in (asyncio.to_thread, lambda *args: loop.run_in_executor(pool, *args)):
            for _ in range(10):
                state = derive((await call(engine.get_project_state, "p"))["state"])
                await asyncio.sleep(0)
                state[key] += 1
                good(await call(engine.set_project_state, "p", state))

    async def both() -> None:
        await asyncio.gather(count("a"), count("b"))

    asyncio.run(both())
    pool.shutdown()
    assert state_of(engine) == {"a": 20, "b": 20}


def test_state_is_set_through_another_engine_of_the_store(hf: Holdfast, engine: LoopEngine) -> None:
    """A web application may make an engine per request."""
    engine.set_project_state("p", {"a": 0, "b": 0})
    state = LoopEngine(hf, check_every=None).get_project_state("p")["state"]
    elsewhere(engine.update_project_state, "p", {"b": 1})
    state["a"] = 1
    good(LoopEngine(hf, check_every=None).set_project_state("p", state))
    assert state_of(engine) == {"a": 1, "b": 1}


def test_state_of_another_project_or_store_is_not_derived_from_this_one(engine: LoopEngine) -> None:
    engine.set_project_state("p", {"a": 1})
    engine.update_project_state("p", {"b": 2})
    state = engine.get_project_state("p")["state"]
    good(engine.set_project_state("q", state))
    assert state_of(engine, "q") == {"a": 1, "b": 2}
    with holdfast.open(":memory:") as other:
        good(LoopEngine(other, check_every=None).set_project_state("p", state))
    assert type(pickle.loads(pickle.dumps(state))) is dict


def test_state_set_repeatedly_does_not_undo_changes_of_others(engine: LoopEngine) -> None:
    """The caller has not read what its state was merged with."""
    engine.set_project_state("p", {"a": 0, "b": 0, "c": 0})
    for kind in (dict, copy.copy):
        state = kind(engine.get_project_state("p")["state"])
        for turn in range(3):
            elsewhere(engine.update_project_state, "p", {"b": f"{kind} {turn}"})
            state["a"] = turn
            good(engine.set_project_state("p", state))
            assert state_of(engine) == {"a": turn, "b": f"{kind} {turn}", "c": 0}
        state["b"] = "mine"
        assert "b" in refused(engine.set_project_state("p", state), "merge_conflict")


@pytest.mark.parametrize("derive", [dict, copy.copy, copy.deepcopy, lambda state: state | {"phase": 1}])
def test_caller_that_saves_copies_does_not_conflict_with_itself(
    engine: LoopEngine, derive: Callable[[Any], Any]
) -> None:
    engine.set_project_state("p", {"n": 0})
    state = engine.get_project_state("p")["state"]
    for turn in range(1, 4):
        state["n"] = turn
        good(engine.save_loop_snapshot("p", derive(state)))
        state["n"] = -turn
        good(engine.set_project_state("p", state))
        elsewhere(engine.update_project_state, "p", {"other": turn})
    assert state_of(engine) == {"n": -3, "other": 3}


def test_copies_handed_to_the_threads_of_a_pool_are_merged(engine: LoopEngine) -> None:
    engine.set_project_state("p", dict.fromkeys("abcdef", 0))
    state = engine.get_project_state("p")["state"]

    def work(key: str, mine: dict[str, Any]) -> None:
        mine[key] = 1
        good(engine.set_project_state("p", mine))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, "abcdef", [copy.deepcopy(state) for _ in "abcdef"]))
    assert state_of(engine) == dict.fromkeys("abcdef", 1)


def test_deleted_project_is_not_created_again_by_a_state_read_before(engine: LoopEngine) -> None:
    engine.set_project_state("p", {"a": 1})
    state = engine.get_project_state("p")["state"]
    elsewhere(engine.delete_project, "p")
    assert "read its state" in refused(engine.set_project_state("p", state), "stale_version")
    assert "read its state" in refused(engine.set_project_state("p", {"a": 2}), "stale_version")
    assert engine.get_projects()["projects"] == []

    elsewhere(engine.set_project_state, "p", {"new": 1})
    assert "was deleted" in refused(engine.set_project_state("p", {**state, "a": 2}), "stale_version")
    assert state_of(engine) == {"new": 1}

    good(engine.delete_project("p"))
    good(engine.set_project_state("p", {"a": 3}))
    elsewhere(engine.delete_project, "p")
    refused(engine.get_project_state("p"), "not_found")
    good(engine.set_project_state("p", {"a": 4}))
    assert state_of(engine) == {"a": 4}


def test_refused_state_changes_no_configuration(engine: LoopEngine) -> None:
    engine.set_project_state("p", {"a": 0})
    state = dict(engine.get_project_state("p")["state"])
    elsewhere(engine.update_project_state, "p", {"a": 1})
    refused(engine.set_project_state("p", state | {"a": 2, "loop_autoresume": True}), "merge_conflict")
    assert engine.get_config("p")["config"]["loop_autoresume"] is False


def test_last_good_snapshot_survives_prunes_at_the_same_time(
    hf: Holdfast, engine: LoopEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last good snapshot is older than those of an abandoned timeline."""
    first = good(engine.save_loop_snapshot("p", {"a": 0}))["version"]
    for turn in range(1, 4):
        engine.save_loop_snapshot("p", {"a": turn})
    good(engine.restore_snapshot("p", first))
    prune, is_first = History.prune, [True]
    waits, replies = threading.Event(), []
    other = threading.Thread(target=lambda: replies.append(engine.prune("p", 1)))

    def overtake(self: History, *args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is other and is_first.pop():
            is_first.append(False)
            waits.wait(60)
        elif not waits.is_set():
            waits.set()
            other.join(60)
        return prune(self, *args, **kwargs)

    monkeypatch.setattr(History, "prune", overtake)
    other.start()
    until(lambda: not is_first or not is_first[0], "the first prune")
    good(engine.prune("p", 1))
    good(replies[0])
    assert engine.get_snapshot_history("p")["last_good"] == first
    assert [each["version"] for each in engine.get_snapshot_history("p")["snapshots"]] == [first, 4]
    assert not hf.history("loop/p").at(first).pinned


def test_shorter_interval_applies_to_a_checker_that_waits(engine: LoopEngine) -> None:
    with engine.checker(3600) as checker:
        engine.checker(0.01)
        until(lambda: checker.checks, "a check")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forked_process_does_not_lead_with_the_lease_of_its_parent(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db") as hf:
        leadership = Leadership(hf.loops.engine, "job")
        assert leadership.take(60)
        child = os.fork()
        if child == 0:
            os._exit(1 if leadership.held or leadership.take(60) else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert leadership.held


def test_state_is_saved_with_the_version_that_it_was_derived_from(engine: LoopEngine) -> None:
    """A client of another process names the version; the calls that save a state take it, too."""
    base = good(engine.set_project_state("p", {"a": 0, "b": 0}))["version"]
    for turn in (1, 2):
        elsewhere(engine.update_project_state, "p", {"b": turn})
        saved = engine.save_loop_snapshot("p", {"a": 0, "b": 0, f"c{turn}": 1}, base=base)
        ended = engine.log_agent_complete("p", "x", state={"a": 0, "b": 0, f"d{turn}": 1}, base=base)
        assert (saved["status"], ended["snapshot"]["status"]) == ("saved", "saved")
    assert state_of(engine) == {"a": 0, "b": 2, "c1": 1, "d1": 1, "c2": 1, "d2": 1}
    ours = {"a": 3, **{f"k{number}": 1 for number in range(9)}}
    elsewhere(engine.update_project_state, "p", {"a": 1, **dict.fromkeys(list(ours)[1:], 2)})
    message = refused(engine.save_loop_snapshot("p", ours, base=base), "merge_conflict")
    assert message.endswith("read its state, then make the change again")
    assert "k1" in message


def test_heartbeats_after_the_clock_went_back_count(engine: LoopEngine, clock: Clock) -> None:
    engine.save_loop_snapshot("p", {"a": 0})
    engine.log_agent_start("p", "planner", timeout=60)
    clock.forward(10_000)
    good(engine.agent_progress("p", "planner"))
    clock.forward(-10_000)
    assert good(engine.agent_progress("p", "planner"))["noted"] is True
    clock.forward(61)
    assert len(good(engine.check_timeouts())["stalled"]) == 1


def test_heartbeats_of_many_agents_at_once_are_recorded(
    hf: Holdfast, engine: LoopEngine, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old heartbeats may be pruned later; the one that was recorded is not an error because of that."""
    pruned = []

    def lose(self: History, *_: Any, **__: Any) -> Any:
        pruned.append(self.id)
        raise StaleVersion("others write all the time")

    good(engine.log_agent_start("p", "planner", timeout=60))
    monkeypatch.setattr(History, "prune", lose)
    for _ in range(130):
        clock.forward(30)
        assert good(engine.agent_progress("p", "planner"))["noted"] is True
    assert pruned == ["loop/p/beats"] * 2


def test_state_that_was_read_is_a_dict_wherever_it_is_passed(hf: Holdfast, engine: LoopEngine) -> None:
    plain = {"a": 1, "b": {"c": [2]}}
    engine.set_project_state("p", plain)
    state = engine.get_project_state("p")["state"]

    @step
    def look(memory: dict[str, Any]) -> dict[str, Any]:
        return memory

    @workflow
    def nested(memory: dict[str, Any]) -> dict[str, Any]:
        return {"memory": look(memory)}

    assert hf.run(nested, state).result == {"memory": plain}
    assert hf.history("x").commit({"inner": state}).state == {"inner": plain}
    assert json.loads(json.dumps(state)) == plain == state == pickle.loads(pickle.dumps(state))
    assert holdfast.sanitize(state) == (plain, [])
    state["me"] = state
    assert good(engine.set_project_state("p", state))["replaced"] == ["me"]
    assert state_of(engine) == {**plain, "me": "<cycle to the root>"}
