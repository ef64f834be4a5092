"""Pruning, tags, comparison, export and import, schedules, configuration, and the ids of runs."""

from __future__ import annotations

import json
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from loop_fixtures import Clock, good, refused, state_of

import holdfast
from holdfast import Holdfast, Retention
from holdfast.agent_loops.names import control_run, name_in, name_of, quoted, state_run, unquoted
from holdfast.agent_loops.project import Project
from holdfast.loops import LoopEngine
from holdfast.model.names import check_run_id


def loops(engine: LoopEngine, project: str = "p") -> list[int]:
    return [each["loop"] for each in engine.get_snapshot_history(project)["snapshots"]]


def save(engine: LoopEngine, *numbers: int) -> None:
    for number in numbers:
        good(engine.update_project_state("p", {"loop_count": number, "half": True}))
        good(engine.save_loop_snapshot("p"))


# Pruning


def test_prune_keeps_the_given_number_of_snapshots(hf: Holdfast, engine: LoopEngine) -> None:
    save(engine, *range(1, 11))
    engine.tag("p", 4, "first good one")
    reply = engine.prune("p", 3)
    assert (reply["status"], loops(engine)) == ("pruned", [2, 8, 9, 10]), "the tagged one stays"
    assert reply["kept"] == [4, 16, 17, 18, 19, 20]
    assert engine.get_snapshot_history("p")["snapshot_count"] == 4
    assert hf.verify()
    assert engine.restore_last_snapshot("p")["loop"] == 10


def test_prune_refuses_an_invalid_audit_policy_before_it_removes_anything(engine: LoopEngine) -> None:
    save(engine, *range(1, 5))
    assert refused(engine.prune("p", 1, audit="all"), "invalid")
    assert loops(engine) == [1, 2, 3, 4]


def test_prune_keeps_the_last_good_snapshot(hf: Holdfast, engine: LoopEngine, clock: Clock) -> None:
    save(engine, 1, 2, 3)
    engine.restore_snapshot("p", 2)
    clock.forward(10 * 86_400)
    for number in range(5):
        engine.update_project_state("p", {"loop_count": 100 + number})
    for policy in (Retention(within=timedelta(days=1)), 1, Retention(last=0)):
        good(engine.prune("p", policy))
    assert loops(engine) == [1]
    assert not hf.history("loop/p").at(2).pinned
    assert engine.restore_last_snapshot("p")["version"] == 2


@pytest.mark.parametrize("where", ["memory", "sqlite"])
def test_retention_for_all_runs_keeps_the_last_snapshot(where: str, file: Path) -> None:
    """As `holdfast prune --all`, the page and a nightly program do it."""
    with holdfast.open(":memory:" if where == "memory" else file) as hf:
        engine = LoopEngine(hf, check_every=None)
        for number in (1, 2):
            engine.save_loop_snapshot("p", {"loop_count": number})
        for number in range(10):
            engine.set_project_state("p", {"loop_count": 3, "n": number})
        for policy in (Retention(last=3), Retention(within=timedelta(0)), Retention(last=0)):
            for run in hf.iter_runs():
                hf.history(run.id).prune(policy)
        hf.history("loop/p").drop([2])
        assert [each["version"] for each in engine.get_snapshot_history("p")["snapshots"]] == [2]
        restored = good(engine.restore_last_snapshot("p"))
        assert (restored["status"], restored["version"]) == ("restored", 2)
        good(engine.set_project_state("p", {"loop_count": 4}, base=restored["head"]))
        hf.history("loop/p").prune(Retention(last=0))
        assert good(engine.restore_last_snapshot("p"))["loop"] == 2
        good(engine.save_loop_snapshot("p"))
        hf.history("loop/p").prune(Retention(last=0))
        assert engine.get_snapshot_history("p")["snapshot_count"] == 1, "one that is not needed is removed"


def test_configured_retention_applies_after_each_snapshot(engine: LoopEngine) -> None:
    assert "no project 'p'" in refused(engine.prune("p"), "not_found")
    engine.set_project_state("p", {"loop_count": 0})
    assert "say what to keep" in refused(engine.prune("p"), "invalid")
    engine.configure("p", retention=3)
    save(engine, *range(1, 30))
    assert loops(engine) == [27, 28, 29]
    engine.configure("p", retention=Retention(last=1, within=timedelta(seconds=0)))
    assert engine.get_config("p")["config"]["retention"] == {"last": 1, "within": "P0D"}
    engine.configure("p", retention=None)
    save(engine, 30, 31, 32)
    assert loops(engine) == [27, 28, 29, 30, 31, 32]
    good(engine.prune("p", 2))
    assert loops(engine) == [31, 32]


def test_failed_pruning_does_not_undo_the_snapshot(
    engine: LoopEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.configure("p", retention=1)

    def fail(*_: object, **__: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(holdfast.History, "prune", fail)
    saved = engine.save_loop_snapshot("p", {"loop_count": 1})
    assert (saved["status"], saved["prune_error"]) == ("saved", "OSError: no")
    assert loops(engine) == [1]


def test_audit_is_pruned_only_on_request(engine: LoopEngine) -> None:
    save(engine, 1)
    for _ in range(5):
        engine.log_agent_start("p", "a")
        engine.log_agent_complete("p", "a", "failed")
    good(engine.prune("p", 1))
    assert engine.get_audit("p")["count"] == 10
    assert engine.prune("p", audit=4)["audit"] > 0
    assert engine.get_audit("p")["count"] == 5, "and the first, which says that it is a project"
    assert engine.get_projects() == {"status": "ok", "projects": ["p"], "next": None}


# Tags, comparison, export and import


def test_tag_names_a_version_and_untag_removes_it(engine: LoopEngine) -> None:
    save(engine, 1, 2)
    assert engine.tag("p", 2, "good")["tag"] == "good"
    assert engine.restore_snapshot("p", "good")["loop"] == 1
    assert engine.get_snapshot_history("p")["snapshots"][0]["tags"] == ["good"]
    assert engine.untag("p", 2, "good")["status"] == "untagged"
    for reply in (engine.untag("p", 2, "good"), engine.tag("p", 99, "x"), engine.tag("q", 1, "x")):
        assert refused(reply, "not_found")
    assert refused(engine.tag("p", 2, "head"), "invalid_reference")


def test_compare_lists_changes_between_versions(engine: LoopEngine) -> None:
    save(engine, 1, 2)
    found = engine.compare("p", 2, 4)
    assert (found["status"], found["a"], found["b"], found["same"]) == ("compared", 2, 4, False)
    assert [change["summary"] for change in found["diff"]] == ["loop_count: 1 → 2"]
    assert engine.compare("p", "head", "head")["same"] is True
    assert refused(engine.compare("p", 1, 99), "not_found")
    many = {f"key {number}": number for number in range(1500)}
    engine.update_project_state("p", many)
    found = engine.compare("p", 4)
    assert (len(found["diff"]), found["diff_count"]) == (1000, 1500)


def test_exported_snapshot_is_imported_into_another_store(engine: LoopEngine) -> None:
    save(engine, 1)
    engine.update_project_state("p", {"loop_count": 2, "exact": (1.5, {3}, b"x")})
    engine.configure("p", loop_autoresume=True)
    exported = engine.export("p")
    assert (exported["status"], exported["version"], exported["loop"]) == ("exported", 2, 1)
    head = engine.export("p", "head")
    text = json.dumps(head["document"])
    with holdfast.open(":memory:") as there:
        other = LoopEngine(there, check_every=None)
        imported = other.import_(text)
        assert (imported["status"], imported["project_id"], imported["loop"]) == ("imported", "p", 2)
        assert state_of(other) == state_of(engine)
        assert other.restore_last_snapshot("p")["version"] == 1
        assert refused(other.import_(text), "already_exists")
        assert other.import_(text, "my/other")["project_id"] == "my/other"
        assert other.import_(exported["document"], "p", append=True)["version"] == 3
        assert (loops(other), state_of(other)["loop_count"]) == ([2, 1], 1)
    assert refused(engine.import_(text[:-9], "q"), "invalid_snapshot")
    assert engine.export("none")["code"] == "not_found"
    engine.set_project_state("bare", {})
    assert engine.export("bare")["status"] == "no snapshot available"


def test_import_of_another_runs_document_needs_a_project_id(hf: Holdfast, engine: LoopEngine) -> None:
    hf.history("other").commit({"loop_count": 5})
    document = hf.history("other").export()
    assert "give a project_id" in refused(engine.import_(document), "not_found")
    assert engine.import_(document, "p")["loop"] == 5
    hf.history("list").commit([1])
    assert refused(engine.import_(hf.history("list").export(), "q"), "invalid")


# Schedules and configuration


def test_scheduled_snapshot_is_taken_when_due_and_changed(engine: LoopEngine, clock: Clock) -> None:
    engine.set_project_state("p", {"loop_count": 1})
    assert engine.schedule("p", 60)["every"] == 60.0
    assert [each["loop"] for each in engine.take_scheduled_snapshots()["saved"]] == [1], "the first at once"
    for loop in range(2, 5):
        engine.update_project_state("p", {"loop_count": loop})
        clock.forward(59)
        assert engine.take_scheduled_snapshots()["saved"] == []
        clock.forward(1)
        (saved,) = engine.take_scheduled_snapshots()["saved"]
        assert saved["loop"] == loop
    clock.forward(100)
    assert engine.take_scheduled_snapshots()["saved"] == [], "nothing has changed"
    assert {each["kind"] for each in engine.get_snapshot_history("p")["snapshots"]} == {"timed"}
    engine.schedule("p", None)
    engine.update_project_state("p", {"loop_count": 9})
    assert engine.take_scheduled_snapshots()["saved"] == []


def test_check_of_a_schedule_reads_no_state(file: Path, clock: Clock, states_read: list[str]) -> None:
    with holdfast.open(file, clock=clock) as hf:
        engine = LoopEngine(hf, check_every=None)
        engine.save_loop_snapshot("p", {"memory": ["long " * 100] * 1000})
        engine.update_project_state("p", {"loop_count": 2})
        engine.schedule("p", 60)
    with holdfast.open(file, clock=clock) as hf:
        engine = LoopEngine(hf, check_every=None)
        states_read.clear()
        assert good(engine.take_scheduled_snapshots())["saved"] == []
        assert states_read == ["loop/p/control"]
        clock.forward(60)
        assert len(good(engine.take_scheduled_snapshots())["saved"]) == 1


def test_concurrent_schedulers_save_one_snapshot(
    hf: Holdfast, engine: LoopEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.set_project_state("p", {"loop_count": 1})
    engine.schedule("p", 60)
    ready, saved = threading.Barrier(5), []
    due = Project.due_for_snapshot

    def together(self: Project) -> Any:
        found = due(self)
        ready.wait(30)
        return found

    monkeypatch.setattr(Project, "due_for_snapshot", together)

    def take() -> None:
        saved.append(LoopEngine(hf, check_every=None).take_scheduled_snapshots())

    threads = [threading.Thread(target=take) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(len(each["saved"]) for each in saved) == [0, 0, 0, 0, 1]
    assert [each["errors"] for each in saved] == [[]] * 5
    assert loops(engine) == [1]


def test_configure_refuses_invalid_values(engine: LoopEngine) -> None:
    for wrong in (
        {"loop_autoresume": "yes"},
        {"timeout": 0},
        {"timeout": "1"},
        {"timeout": float("nan")},
        {"timeout": True},
        {"timeouts": [1]},
        {"timeouts": {"a": -1}},
        {"timeouts": {1: 1}},
        {"retention": "all"},
        {"retention": -1},
        {"every": -5},
        {"every": 1e300},
        {"unheard_of": 1},
        {"actor": 1, "every": 5},
    ):
        assert refused(engine.configure("p", **wrong), "invalid")
    assert engine.get_projects()["projects"] == [], "nothing was written"
    good(engine.configure("p", every=5))
    good(engine.configure("p", every=5))
    assert engine.get_audit("p")["count"] == 1, "a call that changes nothing is not in the audit"


# Ids of runs


PROJECTS = [
    "p", "my project", "a/b", ".", "..", "../../etc/passwd", "a@1", "a~2", "a:tag", "%41", "%", " x ", "\0", "\n",
    "\ud800", "ä-Ж-水", "😀", "C:\\x", "p/control", "head", "x" * 200, "x" * 201, "水" * 500,
    "'; DROP TABLE run; --",
]  # fmt: skip


def test_project_id_may_be_any_string(engine: LoopEngine, subtests: pytest.Subtests) -> None:
    good(engine.set_project_state("p-other", {"other": True}))
    for project in PROJECTS:
        with subtests.test(project=project):
            for run_id in (state_run(name_of(project)), control_run(name_of(project))):
                assert check_run_id(run_id) == run_id
            assert unquoted(quoted(project)) == project
            assert name_in(control_run(name_of(project))) == name_of(project)
            assert engine.save_loop_snapshot(project, {"loop_count": 3})["loop"] == 3
            good(engine.configure(project, every=9))
            assert engine.restore_last_snapshot(project)["loop"] == 3
            question = engine.auto_restore_if_configured(project)["question_id"]
            assert engine.answer_question(question, "rollback")["project_id"] == project
    assert sorted(engine.get_projects()["projects"]) == sorted([*PROJECTS, "p-other"])


def test_project_ids_map_to_different_runs() -> None:
    ids = [
        "a/b",
        "a%2Fb",
        "a_b",
        "a b",
        "a%20b",
        "x" * 180,
        "x" * 181,
        "x" * 182,
        ".",
        "%2E",
        "..",
        "p",
        "p/control",
    ]
    assert len({name_of(each) for each in ids}) == len(ids)
    assert name_in("loop/x/y/control") is name_in("other/x/control") is name_in("loop/x") is None
