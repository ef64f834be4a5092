"""Reading and setting states: merged with concurrent changes, refused after a restore; configuration in a state."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from loop_fixtures import good, refused, state_of

from holdfast import Holdfast
from holdfast.loops import LoopEngine


def test_get_state_returns_a_copy(engine: LoopEngine) -> None:
    engine.set_project_state("p", {"loop_count": 3, "memory": [1, {"two": (2,)}]})
    got = engine.get_project_state("p")
    assert (got["status"], got["version"], got["loop"]) == ("ok", 1, 3)
    got["state"]["memory"].append("changed")
    assert engine.get_project_state("p")["state"] == {"loop_count": 3, "memory": [1, {"two": (2,)}]}


def test_get_state_of_an_unknown_project_is_an_error(engine: LoopEngine) -> None:
    assert "set its state first" in refused(engine.get_project_state("p"), "not_found")
    assert engine.get_projects() == {"status": "ok", "projects": [], "next": None}


def test_concurrent_sets_of_different_keys_are_merged(hf: Holdfast, engine: LoopEngine) -> None:
    engine.set_project_state("p", {"a": 0, "b": 0, "log": ["begin"]})
    other = LoopEngine(hf, check_every=None)
    ours, theirs = (each.get_project_state("p")["state"] for each in (engine, other))
    ours["a"], theirs["b"] = 1, 2
    ours["log"].append("ours")
    theirs["log"].append("theirs")
    good(other.set_project_state("p", theirs))
    good(engine.set_project_state("p", ours))
    assert state_of(engine) == {"a": 1, "b": 2, "log": ["begin", "theirs", "ours"]}


def test_concurrent_sets_of_the_same_key_conflict(hf: Holdfast, engine: LoopEngine) -> None:
    engine.set_project_state("p", {"loop_count": 0})
    other = LoopEngine(hf, check_every=None)
    for each in (engine, other):
        each.get_project_state("p")
    good(other.set_project_state("p", {"loop_count": 1}))
    reply = engine.set_project_state("p", {"loop_count": 2})
    assert "loop_count" in refused(reply, "merge_conflict")
    assert reply["paths"] == ["loop_count"]
    assert state_of(engine) == {"loop_count": 1}
    good(
        engine.set_project_state(
            "p", {"loop_count": 2}, resolve=lambda path, base, ours, theirs: max(ours, theirs)
        )
    )
    assert state_of(engine) == {"loop_count": 2}


def test_set_state_checks_expected_and_merges_from_base(engine: LoopEngine) -> None:
    engine.set_project_state("p", {"a": 1, "b": 1})
    engine.set_project_state("p", {"a": 2, "b": 1})
    assert "at version 2, not 1" in refused(engine.set_project_state("p", {}, expected=1), "stale_version")
    good(engine.set_project_state("p", {"a": 1, "b": 9}, base=1))
    assert state_of(engine) == {"a": 2, "b": 9}
    good(engine.set_project_state("p", {"c": 1}, expected=3))
    assert state_of(engine) == {"c": 1}
    assert refused(engine.set_project_state("p", {}, expected=0), "stale_version")
    assert refused(engine.set_project_state("p", {}, base=77), "stale_version")
    assert refused(engine.set_project_state("p", {}, base="1"), "invalid")  # type: ignore[arg-type]


def test_state_from_before_a_restore_is_refused(hf: Holdfast, engine: LoopEngine) -> None:
    engine.save_loop_snapshot("p", {"loop_count": 1})
    sleeper, other = LoopEngine(hf, check_every=None), LoopEngine(hf, check_every=None)
    state = sleeper.get_project_state("p")["state"]
    other.update_project_state("p", {"loop_count": 2})
    other.restore_last_snapshot("p")
    state["memory"] = "from another life"
    assert "was restored since" in refused(sleeper.set_project_state("p", state), "stale_version")
    assert "was restored since" in refused(sleeper.save_loop_snapshot("p", state), "stale_version")
    assert state_of(engine) == {"loop_count": 1}
    state = sleeper.get_project_state("p")["state"]
    good(sleeper.set_project_state("p", state | {"memory": "from this one"}))
    assert state_of(engine)["memory"] == "from this one"


def test_last_read_is_remembered_per_thread_and_task(engine: LoopEngine) -> None:
    engine.set_project_state("p", {"a": 0, "b": 0})

    async def reader(key: str, first: asyncio.Event, second: asyncio.Event) -> None:
        state = engine.get_project_state("p")["state"]
        first.set()
        await second.wait()
        state[key] = 1
        good(engine.set_project_state("p", state))

    async def both() -> None:
        one, two = asyncio.Event(), asyncio.Event()
        await asyncio.gather(reader("a", one, two), reader("b", two, one))

    asyncio.run(both())
    assert state_of(engine) == {"a": 1, "b": 1}

    read, replies = threading.Barrier(2), []

    def work(key: str) -> None:
        state = engine.get_project_state("p")["state"]
        read.wait(30)
        replies.append(engine.set_project_state("p", state | {key: 2})["status"])

    threads = [threading.Thread(target=work, args=(key,)) for key in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (replies, state_of(engine)) == (["set", "set"], {"a": 2, "b": 2})


def test_update_sets_and_removes_keys_with_concurrent_writers(engine: LoopEngine) -> None:
    assert engine.update_project_state("p", {"a": 1})["version"] == 1
    reply = engine.update_project_state("p", {"b": lambda: None}, remove=["a", "never there"])
    assert reply["replaced"] == ["b"]
    assert list(state_of(engine)) == ["b"]

    def count(number: int) -> None:
        for turn in range(10):
            good(engine.update_project_state("p", {f"{number}-{turn}": turn}))

    threads = [threading.Thread(target=count, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(state_of(engine)) == 41


def test_autoresume_in_a_state_is_stored_as_configuration(hf: Holdfast, engine: LoopEngine) -> None:
    engine.set_project_state("p", {"loop_autoresume": True, "a": 1})
    assert state_of(engine) == {"a": 1}, "it is kept elsewhere"
    assert engine.get_project_state("p")["state"] == {"a": 1, "loop_autoresume": True}
    good(engine.set_project_state("p", {"a": 2}))
    assert engine.get_config("p")["config"]["loop_autoresume"] is True, "a state without it changes nothing"
    good(engine.update_project_state("p", {"loop_autoresume": False}))
    assert engine.get_config("p")["config"]["loop_autoresume"] is False
    good(engine.save_loop_snapshot("p", {"loop_autoresume": True}))
    assert engine.get_config("p")["config"]["loop_autoresume"] is True
    for wrong in ("false", 1, None):
        assert "True or False" in refused(
            engine.set_project_state("p", {"loop_autoresume": wrong}), "invalid"
        )


def test_configuration_is_not_overwritten_by_a_state_read_earlier(hf: Holdfast, engine: LoopEngine) -> None:
    engine.set_project_state("p", {"loop_autoresume": False, "a": 1})
    state = engine.get_project_state("p")["state"]
    LoopEngine(hf, check_every=None).configure("p", loop_autoresume=True)
    good(engine.set_project_state("p", state | {"a": 2}))
    assert engine.get_config("p")["config"]["loop_autoresume"] is True


def test_set_state_refuses_what_is_not_a_dict(engine: LoopEngine, subtests: pytest.Subtests) -> None:
    cases: list[Any] = [None, [], "state", 3, [("a", 1)], {1, 2}]
    for state in cases:
        with subtests.test(state=state):
            assert "is a dict" in refused(engine.set_project_state("p", state), "invalid")
            assert refused(engine.get_project_state("p"), "not_found")
