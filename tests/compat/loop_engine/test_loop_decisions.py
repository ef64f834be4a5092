"""Decisions that are pending while something else happens: restores by hand, a control record that went back."""

from __future__ import annotations

from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from loop_fixtures import Clock, good, refused, state_of

import holdfast
from database import Database
from holdfast import Holdfast
from holdfast.agent_loops.questions import Questions
from holdfast.errors import CorruptStore, NotFound
from holdfast.loops import LoopEngine


@pytest.fixture
def project(engine: LoopEngine) -> LoopEngine:
    """An engine with a project that restores itself."""
    engine.save_loop_snapshot("p", {"a": 0}, tags=["first"])
    engine.save_loop_snapshot("p", {"a": 1})
    engine.configure("p", loop_autoresume=True)
    return engine


@pytest.fixture
def pending(project: LoopEngine, monkeypatch: pytest.MonkeyPatch) -> LoopEngine:
    """A decision to restore, of a process that died before it did."""

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    project.update_project_state("p", {"a": 2})
    with monkeypatch.context() as patch:
        patch.setattr(Questions, "execute", die)
        with pytest.raises(KeyboardInterrupt):
            project.auto_restore_if_configured("p")
    return project


def test_restore_by_hand_drops_a_pending_one(pending: LoopEngine, clock: Clock) -> None:
    good(pending.restore_snapshot("p", "first"))
    good(pending.update_project_state("p", {"new": "work"}))
    clock.forward(61)
    assert good(pending.check_timeouts())["finished"] == []
    assert state_of(pending) == {"a": 0, "new": "work"}


def test_question_drops_a_pending_restore(pending: LoopEngine, clock: Clock) -> None:
    good(pending.configure("p", loop_autoresume=False))
    question = good(pending.auto_restore_if_configured("p"))
    clock.forward(61)
    assert good(pending.check_timeouts())["finished"] == []
    good(pending.answer_question(question["question_id"], "resume"))
    clock.forward(61)
    assert good(pending.check_timeouts())["finished"] == []
    assert state_of(pending) == {"a": 2}


def test_process_that_slept_does_not_execute_a_dropped_task(
    project: LoopEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person decides between the decision and its execution."""
    execute = Questions.execute

    def sleep(self: Questions, *args: Any) -> Any:
        good(project.restore_snapshot("p", "first"))
        good(project.update_project_state("p", {"new": "work"}))
        return execute(self, *args)

    monkeypatch.setattr(Questions, "execute", sleep)
    reply = good(project.auto_restore_if_configured("p"))
    assert (reply["status"], reply["auto_restored"]) == ("superseded", False)
    assert state_of(project) == {"a": 0, "new": "work"}


def test_restore_whose_snapshots_were_pruned_asks(hf: Holdfast, pending: LoopEngine, clock: Clock) -> None:
    log = hf.history("loop/p")
    log.untag("first", "first")
    # A version of the engine would keep the last snapshot.
    log.commit({"a": 3})
    log.prune(holdfast.Retention(last=1))
    clock.forward(61)
    assert [each["status"] for each in good(pending.check_timeouts())["finished"]] == ["question"]
    assert [each.project for each in hf.inbox()] == ["p"]


def test_failed_restore_adds_its_reason_to_the_open_question(
    hf: Holdfast, engine: LoopEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine.save_loop_snapshot("p", {"a": 0})
    question = good(engine.auto_restore_if_configured("p"))["question_id"]
    execute = Questions.execute

    def prune_and_ask(self: Questions, *args: Any) -> Any:
        good(engine.auto_restore_if_configured("p", "another agent"))
        hf.history("loop/p").commit({"a": 1})
        hf.history("loop/p").prune(holdfast.Retention(last=1))
        return execute(self, *args)

    monkeypatch.setattr(Questions, "execute", prune_and_ask)
    good(engine.answer_question(question, "rollback", version=1))
    (asked,) = hf.inbox()
    assert asked.details["reasons"][0] == "another agent"
    assert asked.details["reasons"][1].startswith("rollback: timeout: ")


def test_control_record_that_went_back_executes_new_decisions(hf: Holdfast, project: LoopEngine) -> None:
    """Numbers of the record are assigned again after a rollback or deletion of it."""
    before = hf.history("loop/p/control").head.number
    for lose in (
        lambda: None,
        lambda: hf.history("loop/p/control").rollback(to=before),
        lambda: hf.delete("loop/p/control"),
    ):
        lose()
        good(project.configure("p", loop_autoresume=True))
        good(project.update_project_state("p", {"a": "nonsense"}))
        assert good(project.auto_restore_if_configured("p"))["status"] == "restored"
        assert state_of(project) == {"a": 1}


def test_reason_by_hand_is_not_taken_for_an_executed_task(hf: Holdfast, project: LoopEngine) -> None:
    for number in range(1, 10):
        hf.history("loop/p").rollback(to=2, reason=f"back (restored #{number})")
    good(project.update_project_state("p", {"a": "nonsense"}))
    good(project.auto_restore_if_configured("p"))
    assert state_of(project) == {"a": 1}


def test_snapshot_is_found_behind_one_that_was_pruned_by_hand(hf: Holdfast, engine: LoopEngine) -> None:
    engine.save_loop_snapshot("p", {"a": 0}, tags=["kept"])
    engine.save_loop_snapshot("p", {"a": 1})
    engine.set_project_state("p", {"a": 2})
    # A version of the engine would keep the last snapshot.
    hf.history("loop/p").commit({"a": 3})
    hf.history("loop/p").prune(holdfast.Retention(last=2))
    assert engine.get_snapshot_history("p")["last_good"] == 1
    assert good(engine.restore_last_snapshot("p"))["version"] == 1


def test_one_unreadable_loop_does_not_hide_the_inbox(hf: Holdfast, engine: LoopEngine) -> None:
    for project in "pqr":
        engine.save_loop_snapshot(project, {"a": 0})
        good(engine.auto_restore_if_configured(project))
    hf.history("loop/p").commit(["not a dict"])
    hf.history("loop/q/control").commit("not a record")
    assert [(each.project, each.details["version"]) for each in hf.inbox()] == [("p", 1), ("q", 1), ("r", 1)]
    assert "not a record" in hf.inbox()[1].text
    replies = good(engine.get_questions())["questions"]
    assert [each["status"] for each in replies] == ["question", "error", "question"]
    with pytest.raises(CorruptStore):
        hf.answer("loop/q/control#1", "resume")


def test_runs_that_a_program_named_are_not_taken_for_projects(hf: Holdfast, engine: LoopEngine) -> None:
    engine.set_project_state("100%", {"a": 1})
    for name in ("loop/100%FF", "loop/a%2fb", "loop/%"):
        hf.history(name).commit({"a": 1})
        hf.history(f"{name}/control").commit({"a": 1})
    assert good(engine.get_projects())["projects"] == ["100%"]
    assert [each["project_id"] for each in good(engine.get_overview())["projects"]] == ["100%"]
    assert good(engine.check_timeouts())["errors"] == []
    refused(engine.answer_question("loop/a%2fb/control#1", "resume"), "not_found")


def test_shown_parts_of_the_memory_may_be_kept(hf: Holdfast, engine: LoopEngine) -> None:
    """Each path that the question shows is one that `keep` takes, also of keys that are not strings."""
    state = {
        1: "int",
        "": "empty",
        "a.b": "dot",
        "a": {"b": 1, "c": 2},
        "q'": 1,
        'd"': 2,
        "x\x00": 3,
        "[0]": 4,
    }
    for _ in range(len(state)):
        engine.set_project_state("p", state)
        good(engine.auto_restore_if_configured("p"))
        (asked,) = hf.inbox()
        paths = [part["path"] for part in asked.details["initial"]]
        assert len(paths) == len(state)
        reply = good(engine.answer_question(asked.id, "reinitialize", keep=paths))
        assert reply["carried"] == list(state)
        engine.get_project_state("p")


def test_damaged_head_is_reinitialized(file: Path) -> None:
    with holdfast.open(file) as hf:
        engine = LoopEngine(hf, check_every=None)
        engine.save_loop_snapshot("p", {"a": 0})
        engine.set_project_state("p", {"a": "long " * 30})
        question = good(engine.auto_restore_if_configured("p"))["question_id"]
    database = Database(file)
    assert database.change("UPDATE journal SET pack = zeroblob(length(pack)) WHERE number = 2") == 1
    database.close()
    with holdfast.open(file) as hf:
        engine = LoopEngine(hf, check_every=None)
        refused(engine.answer_question(question, "reinitialize", keep="a"), "corrupt_version")
        reply = good(engine.answer_question(question, "reinitialize"))
        assert (reply["status"], reply["carried"], state_of(engine)) == ("reinitialized", [], {})
        assert hf.inbox() == []


def test_project_without_a_readable_control_record_is_deleted(hf: Holdfast, engine: LoopEngine) -> None:
    engine.save_loop_snapshot("p", {"a": 0})
    engine.configure("p", loop_autoresume=True)
    hf.history("loop/p/control").commit("not a record")
    refused(engine.delete_project("p"), "corrupt_store")
    good(engine.delete_project("p", force=True))
    for name in ("loop/p", "loop/p/control"):
        with pytest.raises(NotFound):
            _ = hf.history(name).head


def test_reinitialization_without_a_state_is_a_recovery(engine: LoopEngine) -> None:
    recoveries: Queue[dict[str, Any]] = Queue()
    with engine.on_recovery(recoveries.put):
        good(engine.log_agent_start("p", "planner"))
        question = good(engine.auto_restore_if_configured("p"))["question_id"]
        good(engine.answer_question(question, "reinitialize", actor="Ada"))
        found = recoveries.get(timeout=60)
    assert (found["event"], found["actor"], state_of(engine)) == ("reinitialized", "Ada", {})


@pytest.mark.parametrize("autoresume", [False, True])
def test_stalled_agent_of_an_unreadable_project_is_asked_about(
    file: Path, clock: Clock, autoresume: bool
) -> None:
    with holdfast.open(file, clock=clock) as hf:
        engine = LoopEngine(hf, check_every=None)
        engine.save_loop_snapshot("p", {"a": 0})
        engine.configure("p", loop_autoresume=autoresume)
        engine.log_agent_start("p", "planner", timeout=60)
    database = Database(file)
    loop = "run = (SELECT key FROM run WHERE id = 'loop/p')"
    assert database.change(f"UPDATE journal SET at = at + 1 WHERE number = 1 AND {loop}") == 1
    database.close()
    clock.forward(61)
    with holdfast.open(file, clock=clock) as hf:
        engine = LoopEngine(hf, check_every=None)
        found = good(engine.check_timeouts())
        assert (found["errors"], [each["result"]["status"] for each in found["stalled"]]) == (
            [],
            ["question"],
        )
        assert "fails its hash" in found["stalled"][0]["result"]["message"]
        (asked,) = hf.inbox()
        assert "planner" in asked.text
        assert [each["status"] for each in good(engine.get_questions())["questions"]] == ["question"]


def test_page_of_the_audit_does_not_grow_with_the_restores(hf: Holdfast, engine: LoopEngine) -> None:
    engine.save_loop_snapshot("p", {"a": 0})
    for turn in range(30):
        good(engine.restore_last_snapshot("p", reason=f"restore {turn}"))
    assert len(hf.loops.project("p").audit(5)) == 5
    reasons = [each["reason"] for each in good(engine.get_audit("p", limit=5))["audit"]]
    assert reasons == [f"restore {turn}" for turn in range(25, 30)]


def test_list_of_projects_reads_as_many_runs_as_it_needs(
    hf: Holdfast, engine: LoopEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store sorts the runs of all loops for each page: few pages for all, and short ones for a short list."""
    for number in range(5):
        engine.save_loop_snapshot(f"p{number}", {"a": 0})
    store = hf.loops.engine.store
    runs, limits = store.runs, []
    prefixes: list[str | None] = []

    def count(**how: Any) -> Any:
        limits.append(how["limit"])
        prefixes.append(how.get("prefix"))
        return runs(**how)

    monkeypatch.setattr(store, "runs", count)
    assert len(good(engine.get_projects())["projects"]) == 5
    good(engine.check_timeouts())
    assert min(limits) >= 5000
    limits.clear()
    prefixes.clear()
    assert good(engine.get_projects(limit=2))["projects"] == ["p4", "p3"]
    assert (limits, prefixes) == ([9], [None]), "nothing is sorted"
    for number in range(30):
        hf.history(f"other-{number}").commit({})
    assert good(engine.get_projects(limit=2))["projects"] == ["p4", "p3"]
    assert good(engine.get_projects(limit=2, after="p3"))["projects"] == ["p2", "p1"]
    last = good(engine.get_projects(limit=2, after="p1"))
    assert (last["projects"], last["next"]) == (["p0"], None)


def test_question_after_the_last_restore_says_what_limits_them(engine: LoopEngine) -> None:
    engine.save_loop_snapshot("p", {"a": 0})
    engine.configure("p", loop_autoresume=True, max_restores=1)
    assert good(engine.auto_restore_if_configured("p"))["status"] == "restored"
    asked = good(engine.auto_restore_if_configured("p"))
    assert (
        asked["reason"] == "timeout; it was restored 1 time within an hour, as often as max_restores allows"
    )
