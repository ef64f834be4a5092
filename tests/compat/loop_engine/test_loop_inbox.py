"""Questions of loops in the inbox of the store, with those of workflows and of stalled runs, on every store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
from loop_fixtures import Clock, good

import holdfast
from holdfast import Holdfast, InvalidAnswer, InvalidCall, NotFound, QuestionPolicy, workflow
from holdfast.loops import LoopEngine
from holdfast.model.public import Question

pytest_plugins = ["postgres_fixtures"]

HOUR = 3600.0
STORES = ("memory", "sqlite", "postgres")


@workflow(name="loop_inbox_ask")
def asks(text: str, options: dict[str, Any]) -> Any:
    return holdfast.ask(text, **options)


@pytest.fixture(params=STORES)
def opening(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Callable[[], Holdfast]]:
    """Opens the store of the test; one in memory is the same for all."""
    where = {"memory": ":memory:", "sqlite": str(tmp_path / "runs.db")}.get(request.param)
    where = where or request.getfixturevalue("url")
    with ExitStack() as stack:
        opened: list[Holdfast] = []

        def open_it() -> Holdfast:
            if not opened or where != ":memory:":
                opened.append(stack.enter_context(holdfast.open(where, durability="fast", clock=clock)))
            return opened[-1]

        yield open_it


@pytest.fixture
def hf(opening: Callable[[], Holdfast]) -> Holdfast:
    return opening()


def ask(hf: Holdfast, project: str, reason: str = "crash", **policy: Any) -> str:
    """Open a question of a loop; return its id."""
    engine = LoopEngine(hf, check_every=None)
    if policy:
        good(engine.configure(project, question=QuestionPolicy(**policy)))
    engine.save_loop_snapshot(project, {"loop_count": 1})
    engine.set_project_state(project, {"loop_count": 2})
    found = good(engine.auto_restore_if_configured(project, reason))["question_id"]
    assert isinstance(found, str)
    return found


def ids(questions: list[Question]) -> list[str]:
    return [each.id for each in questions]


def events(hf: Holdfast, project: str, kind: str) -> list[dict[str, Any]]:
    return [
        event.data for event in hf.get(f"loop/{project}/control").events() if event.kind == f"question.{kind}"
    ]


def test_question_says_what_an_operator_needs(hf: Holdfast, clock: Clock) -> None:
    question_id = ask(hf, "a/b", "the agent is silent", assignee="ana", due=HOUR)
    (question,) = hf.inbox()
    assert (question.id, question.kind, question.project, question.workflow) == (
        question_id,
        "loop",
        "a/b",
        None,
    )
    assert (question.assignee, question.priority, question.expires) == ("ana", 0, None)
    assert question.due is not None
    assert question.due - question.opened == timedelta(hours=1)
    assert "loop a/b" in question.text
    assert "the agent is silent" in question.text
    details = question.details
    assert (details["version"], details["reasons"]) == (1, ["the agent is silent"])
    assert details["choices"] == ["resume", "rollback", "reinitialize", "cancel"]
    assert details["diff"] == ["loop_count: 1 → 2"]
    assert [part["path"] for part in details["initial"]] == ["loop_count"]


def test_questions_are_found_by_the_run_of_the_loop(hf: Holdfast, clock: Clock) -> None:
    """Lists of runs and alerts of the monitor name the run with the state; lists leave out the control run."""
    question_id = ask(hf, "a b/c")
    ask(hf, "other")
    run = "loop/a%20b%2Fc"
    assert run in [each.id for each in hf.runs()]
    assert ids(hf.inbox(run_id=run)) == ids(hf.inbox(run_id=f"{run}/control")) == [question_id]
    clock.forward(HOUR)
    assert ids(hf.inbox(run_id=run, kind="loop", waiting_longer_than=60)) == [question_id]
    assert hf.inbox(run_id=run, kind="stalled") == []
    hf.answer(question_id, "resume")
    assert hf.inbox(run_id=run) == []
    assert ids(hf.inbox(open=False, run_id=run)) == [question_id]
    LoopEngine(hf, check_every=None).set_project_state("quiet", {})
    assert hf.inbox(run_id="loop/quiet") == []
    with pytest.raises(NotFound):
        hf.inbox(run_id="loop/unknown")


def test_page_that_is_read_again_reads_no_state(hf: Holdfast, clock: Clock, states_read: list[str]) -> None:
    """The page asks for it whenever something happens, and states may be long."""
    engine = LoopEngine(hf, check_every=None)
    for project in ("p", "q"):
        ask(hf, project)
    first = [question.details for question in hf.inbox()]
    states_read.clear()
    again = [question.details for question in hf.inbox()]
    assert again == first
    assert set(states_read) == {"loop/p/control", "loop/q/control"}
    again[0]["diff"].clear()
    again[0]["initial"][0]["changes"].clear()
    assert [question.details for question in hf.inbox()] == first, "what a caller changes is its own"
    engine.update_project_state("p", {"loop_count": 3})
    (changed,) = (question for question in hf.inbox() if question.project == "p")
    assert changed.details["diff"] == ["loop_count: 1 → 3"]
    engine.save_loop_snapshot("p")
    (changed,) = (question for question in hf.inbox() if question.project == "p")
    assert (changed.details["version"], changed.details["diff"]) == (4, [])


def test_questions_of_runs_and_loops_are_in_one_order(hf: Holdfast, clock: Clock) -> None:
    random = Random(7)
    every: list[Question] = []
    for number in range(20):
        clock.forward(random.choice((1, 2 * HOUR)))
        policy: dict[str, Any] = {
            "priority": random.choice((-1, 0, 0, 7)),
            "assignee": random.choice((None, "ana", "bo")),
        }
        if number % 2:
            every.append(hf.question(ask(hf, f"project {number}", **policy)))
        else:
            hf.run(asks, "run?", policy, run_id=f"run-{number}")
            every += hf.get(f"run-{number}").questions()
    every.sort(key=lambda each: (-each.priority, each.opened))
    assert hf.inbox() == every
    for kind in (None, "question", "loop", "stalled"):
        for person in (None, "ana", "eve"):
            for waiting in (None, 5 * HOUR, timedelta(hours=10)):
                seconds = waiting.total_seconds() if isinstance(waiting, timedelta) else waiting
                expected = [
                    each
                    for each in every
                    if kind in (None, each.kind)
                    and person in (None, each.assignee)
                    and (seconds is None or each.opened.timestamp() < clock.now - seconds)
                ]
                given: dict[str, Any] = {"kind": kind, "assignee": person, "waiting_longer_than": waiting}
                assert hf.inbox(**given) == expected
                found = page = hf.inbox(limit=3, **given)
                while page:
                    page = hf.inbox(limit=3, after=page[-1].id, **given)
                    found = [*found, *page]
                assert found == expected
    assert hf.inbox(workflow="loop_inbox_ask") == [each for each in every if each.kind == "question"]


def test_page_continues_after_a_question_that_was_answered_since(hf: Holdfast, clock: Clock) -> None:
    asked = []
    for number in range(5):
        clock.forward(1)
        asked.append(ask(hf, f"p{number}"))
    assert ids(hf.inbox(limit=2)) == asked[:2]
    hf.answer(asked[1], "resume")
    assert ids(hf.inbox(limit=2, after=asked[1])) == asked[2:4]
    engine = LoopEngine(hf, check_every=None)
    assert [
        each["question_id"] for each in engine.get_questions(limit=2, after=asked[1])["questions"]
    ] == asked[2:4]
    for gone in ("loop/none/control#1", "loop/p0/control#99", "loop/p0#1", "loop/p0/beats#1"):
        with pytest.raises(InvalidCall, match="after is the id"):
            hf.inbox(after=gone)


def test_question_is_assigned_reminded_and_escalated(hf: Holdfast, clock: Clock) -> None:
    asked = ask(
        hf, "p", assignee="ana", remind_every=600, escalate_after=HOUR, escalate_to="boss", priority=3
    )
    monitor = hf.monitor()
    for turn in (1, 2):
        clock.forward(601)
        monitor.look()
        monitor.look()
        assert [each["reminders"] for each in events(hf, "p", "reminded")] == list(range(1, turn + 1))
    moved = hf.assign(asked, assignee="bo", due=timedelta(hours=2), priority=-5, actor="chief")
    assert (moved.assignee, moved.priority, moved.reminders) == ("bo", -5, 2)
    clock.forward(HOUR)
    monitor.look()
    (escalated,) = events(hf, "p", "escalated")
    assert (escalated["assignee"], escalated["previous"]) == ("boss", "bo")
    (question,) = hf.inbox(assignee="boss")
    assert question.escalated
    assert hf.inbox(assignee="bo") == []
    (assigned,) = events(hf, "p", "assigned")
    assert (assigned["assignee"], assigned["previous"], assigned["actor"]) == ("bo", "ana", "chief")
    audit = [each["action"] for each in LoopEngine(hf, check_every=None).get_audit("p")["audit"]]
    assert audit == ["configured", "question.opened", "question.assigned", "question.escalated"]
    hf.answer(asked, "resume")
    clock.forward(10 * HOUR)
    monitor.look()
    assert len(events(hf, "p", "reminded")) == 3
    with pytest.raises(InvalidAnswer, match="answered already"):
        hf.assign(asked, assignee="late")
    assert hf.verify().ok


def test_question_never_expires(hf: Holdfast, clock: Clock) -> None:
    asked = ask(hf, "p", due=60)
    clock.forward(100 * 365 * 24 * HOUR)
    hf.monitor().look()
    assert ids(hf.inbox()) == [asked]
    hf.answer(asked, "rollback")
    assert LoopEngine(hf, check_every=None).get_project_state("p")["state"] == {"loop_count": 1}


def test_reminder_is_sent_once_by_many_monitors(
    opening: Callable[[], Holdfast], hf: Holdfast, clock: Clock
) -> None:
    ask(hf, "p", remind_every=60)
    others = [hf, opening(), opening()]
    for turn in (1, 2, 3):
        clock.forward(61)
        threads = [threading.Thread(target=each._operators.inbox.send_due) for each in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(events(hf, "p", "reminded")) == turn


def test_answers_assignments_and_restores_at_once_have_one_outcome(
    opening: Callable[[], Holdfast], hf: Holdfast
) -> None:
    stores = [hf, opening()]
    for turn in range(5):
        asked = ask(hf, f"p{turn}")
        barrier = threading.Barrier(6)
        answered: list[str] = []

        def act(number: int, asked: str = asked, barrier: Any = barrier, answered: Any = answered) -> None:
            mine = stores[number % 2]
            barrier.wait(60)
            with suppress(InvalidAnswer):
                if number < 2:
                    mine.answer(asked, "rollback", actor=f"{number}")
                    answered.append("answer")
                elif number < 4:
                    mine.assign(asked, assignee=f"person {number}")
                else:
                    project = asked.split("/")[1]
                    reply = good(LoopEngine(mine, check_every=None).restore_last_snapshot(project))
                    answered += ["restore"] * (reply["question_id"] is not None)

        threads = [threading.Thread(target=act, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert len(answered) == 1, answered
        assert len(events(hf, f"p{turn}", "answered")) == 1
    assert hf.inbox() == []
    assert len(hf.inbox(open=False)) == 5
    assert hf.verify().ok


def test_answered_questions_are_listed_with_who_and_what(hf: Holdfast, clock: Clock) -> None:
    for project, choice in (("a", "resume"), ("b", "cancel"), ("c", "reinitialize"), ("d", "rollback")):
        asked = ask(hf, project)
        clock.forward(5)
        hf.answer(asked, choice, actor=f"{project} person")
    found = hf.inbox(open=False)
    assert [(each.run, each.details["choice"], each.actor) for each in found] == [
        ("loop/d/control", "rollback", "d person"),
        ("loop/c/control", "reinitialize", "c person"),
        ("loop/b/control", "cancel", "b person"),
        ("loop/a/control", "resume", "a person"),
    ]
    assert hf.inbox(open=False, run_id="loop/c/control") == found[1:2]


def test_wrong_questions_are_refused(hf: Holdfast) -> None:
    asked = ask(hf, "p")
    for unknown in (
        "loop/p/control#99", "loop/none/control#1", "loop/p#1", "loop/p/beats#1", "loop/p/control", "loop//control#1",
        "loop/p/control#-1", "loop/p/control#1.0", "loop/p/control#١", "loop/../control#1", f"loop/p/control#{10**30}",
        "loop/p/control/control#1", "#1", "", "\0", "x" * 10_000,
    ):  # fmt: skip
        for call in (
            hf.question,
            lambda each: hf.answer(each, "resume"),
            lambda each: hf.assign(each, due=5),
        ):
            with pytest.raises((NotFound, holdfast.InvalidReference)):
                call(unknown)
    odd: list[Any] = [7, None, b"x", [], float("nan")]
    for wrong in odd:
        with pytest.raises(holdfast.HoldfastError):
            hf.answer(wrong, "resume")
    refused: list[dict[str, Any]] = [
        {"assignee": "a\0"},
        {"priority": 101},
        {"due": -1},
        {"remind_every": 0},
        {"escalate_to": "bo"},
    ]
    for given in refused:
        with pytest.raises(InvalidCall):
            hf.assign(asked, **given)
    assert ids(hf.inbox()) == [asked]


def test_question_of_a_deleted_project_is_gone(hf: Holdfast) -> None:
    asked = ask(hf, "p", remind_every=60)
    assert good(LoopEngine(hf, check_every=None).delete_project("p"))["status"] == "deleted"
    assert hf.inbox() == hf.inbox(open=False) == []
    with pytest.raises(NotFound):
        hf.answer(asked, "resume")
    assert hf.verify().ok


def test_stalled_loop_is_answered_with_the_verbs_of_stalled_runs(hf: Holdfast, clock: Clock) -> None:
    engine = LoopEngine(hf, check_every=None)
    engine.save_loop_snapshot("p", {"n": 1})
    engine.log_agent_start("p", "writer", timeout=60)
    clock.forward(61)
    (alert,) = hf.monitor().look()
    assert (alert.run, alert.symptom, alert.action) == ("loop/p", "silent", "stall")
    (question,) = hf.inbox()
    assert question.schema == {"enum": ["resume", "rollback", "reinitialize", "cancel"]}
    assert question.details["symptom"] == "silent"
    with pytest.raises(InvalidAnswer, match="resume, rollback, reinitialize, cancel"):
        hf.answer(question.id, "yes")
