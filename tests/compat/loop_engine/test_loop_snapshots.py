"""Saving, restoring and listing snapshots: what a restore replaces, and what it does not touch."""

from __future__ import annotations

import json

import pytest
from loop_fixtures import Clock, good, refused, state_of

from holdfast import Holdfast
from holdfast.loops import LoopEngine


def test_snapshot_has_the_number_of_its_loop(engine: LoopEngine, clock: Clock) -> None:
    engine.set_project_state("p", {"loop_count": 7, "memory": ["goal"]})
    clock.forward(1.5)
    assert engine.save_loop_snapshot("p", tags=["good"], note="fine", actor="Ada") == {
        "status": "saved",
        "project_id": "p",
        "loop": 7,
        "timestamp": "2023-11-14T22:13:21.500000+00:00",
        "version": 2,
        "agents_completed": [],
        "replaced": [],
        "tags": ["good"],
    }
    assert engine.save_loop_snapshot("p", {"loop_count": 8})["loop"] == 8, "a state may be given with it"
    assert state_of(engine) == {"loop_count": 8}


def test_loop_count_that_is_not_an_integer_counts_as_0(engine: LoopEngine, subtests: pytest.Subtests) -> None:
    for count in (None, "7", 7.5, True, [1]):
        with subtests.test(count=count):
            assert engine.save_loop_snapshot("p", {"loop_count": count})["loop"] == 0


def test_history_lists_only_snapshots_oldest_first(engine: LoopEngine) -> None:
    for loop in range(1, 6):
        engine.set_project_state("p", {"loop_count": loop})
        engine.save_loop_snapshot("p", note=f"loop {loop}", actor="Ada", tags=[f"l{loop}"])
    found = engine.get_snapshot_history("p")
    assert (found["status"], found["snapshot_count"], found["last_good"]) == ("ok", 5, 10)
    assert [(each["loop"], each["version"], each["note"], each["tags"]) for each in found["snapshots"]] == [
        (loop, 2 * loop, f"loop {loop}", [f"l{loop}"]) for loop in range(1, 6)
    ]
    few = engine.get_snapshot_history("p", limit=2)
    assert (few["snapshot_count"], [each["loop"] for each in few["snapshots"]]) == (5, [4, 5])
    json.dumps(found)


def test_restore_replaces_the_state_and_deletes_nothing(hf: Holdfast, engine: LoopEngine) -> None:
    engine.save_loop_snapshot("p", {"loop_count": 1, "memory": {"goal": "kelp", "facts": [1, 2]}})
    engine.set_project_state("p", {"loop_count": 2, "memory": {"goal": "nonsense", "more": True}})
    assert good(engine.restore_last_snapshot("p", reason="nonsense", actor="Ada")) == {
        "status": "restored",
        "project_id": "p",
        "loop": 1,
        "version": 1,
        "head": 3,
        "timestamp": "2023-11-14T22:13:20+00:00",
        "agents_completed": [],
        "kept": [],
        "skipped": [],
        "diff": [
            {"path": path, "change": change, "summary": summary, "old": old, "new": new}
            for path, change, summary, old, new in [
                ("loop_count", "changed", "loop_count: 2 → 1", 2, 1),
                ("memory.goal", "changed", "memory.goal: 'nonsense' → 'kelp'", "nonsense", "kelp"),
                ("memory.more", "removed", "- memory.more: True", True, None),
                ("memory.facts", "added", "+ memory.facts: [1, 2]", None, [1, 2]),
            ]
        ],
        "diff_count": 4,
        "next": None,
        "question_id": None,
    }
    assert state_of(engine) == {"loop_count": 1, "memory": {"goal": "kelp", "facts": [1, 2]}}
    log = hf.history("loop/p")
    assert log.at(2).state["memory"]["goal"] == "nonsense", "what was left stays readable"
    assert [(line.number, line.parent, line.actor) for line in log.timelines()] == [
        (1, None, None),
        (2, 1, "Ada"),
    ]
    assert hf.verify()


def test_repeated_restores_keep_history_configuration_audit_and_unknown_keys(
    engine: LoopEngine,
) -> None:
    engine.set_project_state("p", {"loop_count": 1, "loop_autoresume": True, "mine": {"deep": [1]}})
    engine.configure("p", timeouts={"planner": 9}, retention=50)
    engine.save_loop_snapshot("p")
    for turn in range(1, 4):
        state = good(engine.get_project_state("p"))["state"]
        state["loop_count"] = 100 + turn
        state[f"unknown {turn}"] = turn
        del state["mine"]
        good(engine.set_project_state("p", state))
        restored = good(engine.restore_last_snapshot("p"))
        assert (restored["status"], restored["loop"], restored["version"]) == ("restored", 1, 2)
        assert restored["kept"] == [f"unknown {each}" for each in range(1, turn + 1)]

        after = engine.get_project_state("p")["state"]
        assert after == {
            "loop_count": 1,
            "mine": {"deep": [1]},
            **{f"unknown {each}": each for each in range(1, turn + 1)},
            "loop_autoresume": True,
        }
        config = engine.get_config("p")["config"]
        assert config["loop_autoresume"] is True
        assert (config["timeouts"], config["retention"]) == ({"planner": 9.0}, {"last": 50})
        assert engine.get_snapshot_history("p")["snapshot_count"] == 1
        restores = [entry for entry in engine.get_audit("p")["audit"] if entry["action"] == "restored"]
        assert len(restores) == turn
    assert engine.auto_restore_if_configured("p", "crash")["status"] == "restored"


def test_restore_replaces_keys_of_the_snapshot_at_all_depths(engine: LoopEngine) -> None:
    engine.save_loop_snapshot("p", {"a": {"x": 1}})
    engine.set_project_state("p", {"a": {"x": 2, "y": 3}, "b": 4})
    assert engine.restore_last_snapshot("p")["kept"] == ["b"]
    assert state_of(engine) == {"a": {"x": 1}, "b": 4}, "what is new below a known key is not kept"


def test_restore_drops_unknown_keys_on_request(engine: LoopEngine) -> None:
    engine.save_loop_snapshot("p", {"a": 1})
    engine.set_project_state("p", {"b": 2})
    restored = engine.restore_last_snapshot("p", keep_unknown=False)
    assert (restored["kept"], state_of(engine)) == ([], {"a": 1})


def test_last_snapshot_belongs_to_the_current_timeline(engine: LoopEngine) -> None:
    for loop in (1, 2, 3):
        engine.save_loop_snapshot("p", {"loop_count": loop})
    assert engine.restore_snapshot("p", 1, actor="Ada")["loop"] == 1
    engine.update_project_state("p", {"loop_count": 9})
    assert engine.restore_last_snapshot("p")["version"] == 1, "2 and 3 were left behind"
    assert engine.get_snapshot_history("p")["snapshot_count"] == 3, "but are listed"
    assert engine.restore_snapshot("p", 3)["loop"] == 3, "and can be restored"


def test_last_snapshot_is_found_after_many_later_states(hf: Holdfast, engine: LoopEngine) -> None:
    engine.save_loop_snapshot("p", {"loop_count": 1})
    for loop in range(2, 40):
        engine.update_project_state("p", {"loop_count": loop})
    hf.history("loop/p").commit({"written": "past the engine"})
    engine.update_project_state("p", {"loop_count": 41})
    engine.prune("p", 1)
    assert engine.restore_last_snapshot("p")["version"] == 1


def test_restore_without_snapshot_reports_it(engine: LoopEngine) -> None:
    assert "no project 'p'" in refused(engine.restore_last_snapshot("p"), "not_found")
    engine.set_project_state("p", {"loop_count": 1})
    found = engine.restore_last_snapshot("p")
    assert (found["status"], found["project_id"]) == ("no snapshot available", "p")
    assert "'p'" in found["message"]
    assert refused(engine.save_loop_snapshot("other"), "not_found")
    assert refused(engine.restore_snapshot("p", 9), "not_found")
    assert state_of(engine) == {"loop_count": 1}


def test_secrets_are_redacted_and_names_of_the_engine_are_not(
    engine: LoopEngine,
) -> None:
    engine.save_loop_snapshot("p", {"my_secret": "sk-1", "token": "sk-2"})
    assert state_of(engine) == {"my_secret": "[redacted]", "token": "[redacted]"}
    token = engine.log_agent_start("p", "secret keeper")["token"]
    assert good(engine.agent_progress("p", "secret keeper", token=token))
    assert good(engine.log_agent_complete("p", "secret keeper", token=token))
    assert [entry.get("token") for entry in engine.get_audit("p")["audit"]] == [token, None]


def test_snapshot_replaces_values_that_cannot_be_stored(engine: LoopEngine, tmp_path: object) -> None:
    state: dict[str, object] = {"loop_count": 1, "fine": (1, {2}, None), "call": lambda: None}
    state["self"] = [state]
    with open(__file__) as file:
        state["file"] = file
        saved = engine.save_loop_snapshot("p", state)
    assert (saved["status"], saved["replaced"]) == ("saved", ["call", "self[0]", "file"])
    stored = state_of(engine)
    assert (stored["fine"], stored["self"]) == ((1, {2}, None), ["<cycle to the root>"])
    assert engine.get_snapshot_history("p")["snapshots"][0]["replaced"] == saved["replaced"]
    assert engine.save_loop_snapshot("p")["replaced"] == saved["replaced"], "of the state as it is"
    assert callable(state["call"]), "the caller's own state is untouched"
