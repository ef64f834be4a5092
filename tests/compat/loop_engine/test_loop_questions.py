"""Questions: opened without autoresume, answered once, and the effect of each answer."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest
from loop_fixtures import Clock, good, refused, state_of

from holdfast import Holdfast, InvalidCall
from holdfast.agent_loops.questions import Questions
from holdfast.loops import LoopEngine


@pytest.fixture
def asked(engine: LoopEngine) -> dict[str, Any]:
    """Open a question of a project whose state changed after its snapshot."""
    engine.save_loop_snapshot("p", {"loop_count": 1, "goal": "kelp", "memory": ["fine"]})
    engine.set_project_state("p", {"loop_count": 2, "goal": "kelp", "memory": ["fine", "odd"], "new": 1})
    return good(engine.auto_restore_if_configured("p", "crash"))


def test_question_is_opened_without_autoresume(engine: LoopEngine, asked: dict[str, Any]) -> None:
    assert asked == {
        "status": "question",
        "project_id": "p",
        "question_id": "loop/p/control#1",
        "reason": "crash",
        "reasons": ["crash"],
        "agents": [],
        "opened": "2023-11-14T22:13:20+00:00",
        "assignee": None,
        "priority": 0,
        "due": None,
        "version": 1,
        "loop": 1,
        "current_loop": 2,
        "auto_restored": False,
        "choices": ["resume", "rollback", "reinitialize", "cancel"],
        "message": "project 'p' has stopped (crash); version 1 is the last good one: how shall it continue?",
        "diff": [
            {"path": "loop_count", "change": "changed", "summary": "loop_count: 1 → 2", "old": 1, "new": 2},
            {
                "path": "memory[1]",
                "change": "added",
                "summary": "+ memory[1]: 'odd'",
                "old": None,
                "new": "odd",
            },
            {"path": "new", "change": "added", "summary": "+ new: 1", "old": None, "new": 1},
        ],
        "diff_count": 3,
        "next": None,
    }
    assert engine.get_questions() == {"status": "ok", "questions": [asked]} == engine.get_questions("p")
    assert state_of(engine)["loop_count"] == 2, "nothing is restored"
    json.dumps(asked)


def test_stalled_agent_opens_a_question(engine: LoopEngine, clock: Clock) -> None:
    engine.log_agent_start("p", "planner", timeout=5)
    clock.forward(6)
    (stalled,) = engine.check_timeouts()["stalled"]
    assert (stalled["result"]["status"], stalled["result"]["version"]) == ("question", None)
    assert "no snapshot" in stalled["result"]["message"]


def test_open_question_collects_further_reasons(engine: LoopEngine, asked: dict[str, Any]) -> None:
    for reason in ("timeout", "crash"):
        again = engine.auto_restore_if_configured("p", reason)
        assert again["question_id"] == asked["question_id"]
    assert again["reasons"] == ["crash", "timeout"]
    assert len(engine.get_questions()["questions"]) == 1


def test_answer_resume_leaves_the_state(engine: LoopEngine, asked: dict[str, Any]) -> None:
    reply = engine.answer_question(asked["question_id"], "resume", actor="Ada")
    assert (reply["status"], reply["version"], reply["loop"]) == ("resumed", 2, 2)
    assert state_of(engine)["memory"] == ["fine", "odd"]
    assert engine.get_questions()["questions"] == []


@pytest.mark.parametrize("keep_unknown", [None, False, True])
def test_answer_rollback_restores_the_last_snapshot(
    engine: LoopEngine, asked: dict[str, Any], keep_unknown: bool | None
) -> None:
    """The state is replaced completely, unless the project is configured to keep keys that the snapshot lacks."""
    engine.configure("p", keep_unknown=keep_unknown)
    reply = engine.answer_question(asked["question_id"], "rollback", actor="Ada")
    kept = {"new": 1} if keep_unknown else {}
    assert (reply["status"], reply["version"], reply["kept"]) == ("restored", 1, list(kept))
    assert state_of(engine) == {"loop_count": 1, "goal": "kelp", "memory": ["fine"], **kept}


def test_former_choices_are_answered_with_a_warning(engine: LoopEngine) -> None:
    engine.save_loop_snapshot("p", {"loop_count": 1})
    for former, status in (("restore", "restored"), ("ignore", "resumed"), ("reinitialise", "reinitialized")):
        question = engine.auto_restore_if_configured("p", "crash")["question_id"]
        with pytest.warns(DeprecationWarning, match=former):
            assert engine.answer_question(question, former)["status"] == status


def test_answer_reinitialize_carries_over_the_named_keys(
    hf: Holdfast, engine: LoopEngine, asked: dict[str, Any]
) -> None:
    reply = engine.answer_question(asked["question_id"], "reinitialize", keep=["goal", "new"], actor="Ada")
    assert (reply["status"], reply["carried"], reply["loop"]) == ("reinitialized", ["goal", "new"], 0)
    assert {change["path"] for change in reply["diff"]} == {"loop_count", "memory"}
    assert state_of(engine) == {"goal": "kelp", "new": 1}
    assert engine.get_snapshot_history("p")["last_good"] == reply["version"]
    engine.update_project_state("p", {"goal": "lost"})
    assert engine.restore_last_snapshot("p")["version"] == reply["version"], (
        "the fresh start is the last good one"
    )
    assert hf.history("loop/p").at(2).state["memory"] == ["fine", "odd"], "nothing is deleted"


def test_state_from_before_a_reinitialization_is_refused(
    hf: Holdfast, engine: LoopEngine, asked: dict[str, Any]
) -> None:
    sleeper = LoopEngine(hf, check_every=None)
    state = sleeper.get_project_state("p")["state"]
    engine.answer_question(asked["question_id"], "reinitialize")
    assert refused(sleeper.set_project_state("p", state | {"goal": "old"}), "stale_version")
    assert state_of(engine) == {}


def test_answer_resume_only_closes_the_question(engine: LoopEngine, asked: dict[str, Any]) -> None:
    assert engine.answer_question(asked["question_id"], "resume")["status"] == "resumed"
    assert (state_of(engine)["loop_count"], engine.get_questions()["questions"]) == (2, [])
    assert engine.auto_restore_if_configured("p")["question_id"] != asked["question_id"], (
        "the next one is another"
    )


def test_second_answer_reports_who_gave_the_first(
    hf: Holdfast, engine: LoopEngine, asked: dict[str, Any], clock: Clock
) -> None:
    engine.answer_question(asked["question_id"], "resume", actor="Ada")
    clock.forward(5)
    reply = LoopEngine(hf, check_every=None).answer_question(asked["question_id"], "rollback", actor="Bob")
    message = refused(reply, "invalid_answer")
    assert "answered already, by Ada at 2023-11-14 22:13:20 UTC, with resume" in message
    assert reply["answered"] == {"choice": "resume", "actor": "Ada", "at": "2023-11-14T22:13:20+00:00"}
    assert state_of(engine)["loop_count"] == 2


def test_concurrent_answers_count_once(hf: Holdfast, engine: LoopEngine, asked: dict[str, Any]) -> None:
    ready, replies = threading.Barrier(6), []

    def answer(number: int) -> None:
        mine = LoopEngine(hf, check_every=None)
        ready.wait(30)
        replies.append(mine.answer_question(asked["question_id"], "rollback", actor=f"{number}"))

    threads = [threading.Thread(target=answer, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sorted(reply["status"] for reply in replies) == ["error"] * 5 + ["restored"]
    assert len({reply["answered"]["actor"] for reply in replies if reply["status"] == "error"}) == 1
    assert len(hf.history("loop/p").timelines()) == 2


@pytest.mark.parametrize("choice", ["rollback", "reinitialize"])
def test_answer_of_a_dead_process_is_executed_by_another(
    hf: Holdfast, engine: LoopEngine, asked: dict[str, Any], clock: Clock, choice: str, monkeypatch: Any
) -> None:
    def die(*_: object) -> Any:
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(Questions, "execute", die)
        with pytest.raises(SystemExit):
            engine.answer_question(asked["question_id"], choice, actor="Ada")
    clock.forward(61)
    other = LoopEngine(hf, check_every=None)
    (finished,) = other.check_timeouts()["finished"]
    assert finished["status"] == {"rollback": "restored", "reinitialize": "reinitialized"}[choice]
    assert state_of(other).get("loop_count") == {"rollback": 1, "reinitialize": None}[choice]
    assert other.get_audit("p")["audit"][-1]["actor"] == "Ada"
    clock.forward(61)
    assert other.check_timeouts()["finished"] == []


def test_answer_refuses_invalid_arguments(engine: LoopEngine, asked: dict[str, Any]) -> None:
    question = asked["question_id"]
    assert "resume, rollback" in refused(engine.answer_question(question, "maybe"), "invalid_answer")
    assert "has no 'gaol'" in refused(
        engine.answer_question(question, "reinitialize", keep=["gaol"]), "invalid_answer"
    )
    assert refused(engine.answer_question(question, "rollback", keep=["goal"]), "invalid_answer")
    assert refused(engine.answer_question(question, "reinitialize", version=1), "invalid_answer")
    assert refused(engine.answer_question(question, "rollback", version=99), "invalid_answer")
    assert refused(engine.answer_question(question, "reinitialize", keep=[7]), "invalid")  # type: ignore[list-item]
    for wrong in ("p:99", "q:1", "p", "", ":", "p:x", "../p:1", "p:1:1", "p:¹"):
        assert refused(engine.answer_question(wrong, "resume"), "not_found")
    assert refused(engine.answer_question(7, "resume"), "invalid_reference")  # type: ignore[arg-type]
    assert [each["question_id"] for each in engine.get_questions()["questions"]] == [question], (
        "none of them counted"
    )


def test_autoresume_without_snapshot_asks(engine: LoopEngine) -> None:
    engine.configure("p", loop_autoresume=True)
    asked = engine.auto_restore_if_configured("p", "crash")
    assert (asked["status"], asked["reason"]) == ("question", "crash; no snapshot of it was saved")
    assert engine.check_timeouts("p")["finished"] == []


def test_audit_records_actor_action_time_and_reason(
    engine: LoopEngine, asked: dict[str, Any], clock: Clock
) -> None:
    clock.forward(1)
    engine.answer_question(asked["question_id"], "rollback", actor="Ada")
    clock.forward(1)
    engine.restore_snapshot("p", 1, reason="by hand", actor="Bob")
    clock.forward(1)
    engine.configure("p", loop_autoresume=True, actor="Cem")
    clock.forward(1)
    engine.auto_restore_if_configured("p", "crash again", actor="watchdog")
    audit = engine.get_audit("p")
    assert [(each["action"], each["actor"], each["reason"]) for each in audit["audit"]] == [
        ("question.opened", None, "crash"),
        ("question.answered", "Ada", "crash"),
        ("restored", "Ada", "rollback: crash"),
        ("restored", "Bob", "by hand"),
        ("configured", "Cem", None),
        ("restore.decided", "watchdog", "crash again"),
        ("restored", "watchdog", "crash again"),
    ]
    assert audit["count"] == 7
    assert [each["action"] for each in engine.get_audit("p", limit=2)["audit"]] == [
        "restore.decided",
        "restored",
    ]
    assert sorted(each["at"] for each in audit["audit"]) == [each["at"] for each in audit["audit"]]
    json.dumps(audit)


def test_control_record_of_earlier_words_is_read(hf: Holdfast, engine: LoopEngine) -> None:
    """Records and audit entries that said prompt and frozen are shown in the words of today."""
    log = hf.history("loop/p/control")
    record = {
        "project": "p",
        "format": 1,
        "serial": 2,
        "config": {},
        "agents": {},
        "ended": {"planner": {"token": 1, "how": "frozen", "at": 1_700_000_000_000_000}},
        "prompts": [{"number": 2, "reasons": ["crash"], "opened": 1_700_000_000_000_000}],
        "tasks": [],
    }
    facts = {"prompt_id": "p:2", "agents": ["planner"], "decided": "prompt.opened"}
    log.commit(json.dumps(record), step="agent.frozen", annotations=json.dumps(facts), tags=["loop-control"])

    assert engine.get_agents("p")["ended"]["planner"]["how"] == "stalled"
    assert "found stalled" in refused(engine.agent_progress("p", "planner"), "not_running")
    assert [each["question_id"] for each in engine.get_questions()["questions"]] == ["loop/p/control#2"]
    (entry,) = engine.get_audit("p")["audit"]
    assert (entry["action"], entry["question_id"], entry["decided"]) == (
        "agent.stalled",
        "p:2",
        "question.opened",
    )

    good(engine.answer_question("p:2", "resume"))
    assert '"prompts":' in log.head.state, "the stored name did not change"


def test_control_run_is_not_cancelled_or_paused(hf: Holdfast, engine: LoopEngine, clock: Clock) -> None:
    """Checks would leave out the agents of a project whose control run has another status."""
    engine.set_project_state("p", {})
    engine.log_agent_start("p", "planner", timeout=5)
    for stop in (hf.cancel, hf.pause):
        with pytest.raises(InvalidCall, match="answer its question with cancel"):
            stop("loop/p/control")
    clock.forward(6)
    assert len(engine.check_timeouts()["stalled"]) == 1
