"""The inbox: who is to answer a question and by when, filters and pages, reminders and escalation."""

from __future__ import annotations

import math
import threading
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

import monitor_stage as s
import pytest
from monitor_stage import Stage, control

import holdfast
from holdfast import (
    InvalidAnswer,
    InvalidCall,
    NotFound,
    QuestionPolicy,
    StoreUnavailable,
    Watchdog,
    workflow,
)
from holdfast.execution import loops, questions
from holdfast.model.public import Question

stage = s.stage
pytest_plugins = ["postgres_fixtures"]

HOUR = 3600.0
YEAR = 365 * 24 * HOUR


@workflow(name="inbox_asks")
def asks(text: str, options: dict[str, Any]) -> Any:
    return holdfast.ask(text, **options)


@workflow(name="inbox_other")
def asks_otherwise(text: str, options: dict[str, Any]) -> Any:
    return holdfast.ask(text, **options)


@workflow(name="inbox_hangs", watchdog=Watchdog(heartbeat_timeout=60))
def hangs() -> None:
    s.count(1)
    s.hang("hang")


def ask(stage: Stage, run_id: str = "run", flow: Any = asks, **options: Any) -> Question:
    stage.hf.run(flow, f"{run_id}?", options, run_id=run_id)
    (question,) = stage.hf.get(run_id).questions()
    return question


def ids(found: list[Question]) -> list[str]:
    return [question.id for question in found]


def events(stage: Stage, kind: str, run_id: str = "run") -> list[dict[str, Any]]:
    return [event.data for event in stage.hf.get(run_id).events() if event.kind == f"question.{kind}"]


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


# What a question carries


def test_question_carries_who_is_to_answer_it_and_when(stage: Stage) -> None:
    question = ask(stage, assignee="ana", priority=5, due=2 * HOUR, escalate_after=HOUR, escalate_to="boss")
    assert (question.kind, question.workflow, question.project) == ("question", "inbox_asks", None)
    assert (question.assignee, question.priority, question.escalated, question.reminders) == (
        "ana",
        5,
        False,
        0,
    )
    assert (question.due, question.expires) == (at(stage.seconds + 2 * HOUR), None)
    assert stage.hf.inbox() == [question] == [stage.hf.question(question.id)]
    (opened,) = events(stage, "opened")
    assert (opened["assignee"], opened["priority"]) == ("ana", 5)


def test_question_without_a_timeout_never_expires(stage: Stage) -> None:
    question = ask(stage, due=1.0, assignee="ana")
    stage.look(after=3 * YEAR)
    assert stage.hf.inbox() == [question]
    assert stage.hf.answer(question.id, "late").result == "late"


def test_timeout_is_when_a_question_expires_and_is_due(stage: Stage) -> None:
    question = ask(stage, timeout=HOUR, default="none")
    assert question.due == question.expires == at(stage.seconds + HOUR)
    sooner = ask(stage, "sooner", timeout=HOUR, due=60.0, remind_every=60.0)
    assert (sooner.due, sooner.expires) == (at(stage.seconds + 60), at(stage.seconds + HOUR))
    stage.seconds += HOUR
    assert stage.hf.inbox() == []
    with pytest.raises(InvalidAnswer, match="timed out"):
        stage.hf.assign(sooner.id, assignee="bo")
    assert stage.hf._operators.inbox.send_due() in (0, 1)
    assert events(stage, "reminded", "sooner") == []


_HOSTILE: list[tuple[str, Any]] = [
    ("assignee", "a" * 10_000), ("assignee", ""), ("assignee", "  "), ("assignee", "a\0b"), ("assignee", "\x1b[31m"),
    ("assignee", 7), ("assignee", "\ud800"), ("assignee", "a\u202eb"),
    ("priority", True), ("priority", 101), ("priority", -101), ("priority", 10**30), ("priority", 1.0),
    ("priority", "5"), ("priority", None),
    ("due", math.nan), ("due", math.inf), ("due", -1), ("due", True), ("due", "2h"), ("due", 10**30),
    ("remind_every", 0), ("remind_every", 0.5), ("remind_every", math.nan), ("remind_every", -5),
    ("escalate_after", -1), ("escalate_after", math.inf), ("escalate_to", "boss\0"), ("escalate_to", "boss"),
]  # fmt: skip


def test_hostile_policies_are_refused_where_they_are_given(stage: Stage) -> None:
    asked = ask(stage, "asked")
    for name, value in _HOSTILE:
        with pytest.raises(InvalidCall):
            QuestionPolicy(**{name: value})
        with pytest.raises(InvalidCall):
            stage.hf.assign(asked.id, **{name: value})
        run = stage.hf.run(asks, "?", {name: value}, raises=False)
        assert (run.status, type(run.error)) == ("failed", InvalidCall)
    for value in (QuestionPolicy, {"assignee": "ana"}, "ana"):
        with pytest.raises(InvalidCall, match="QuestionPolicy"):
            Watchdog(question=value)  # type: ignore[arg-type]
    assert ids(stage.hf.inbox()) == [asked.id]
    assert stage.hf.question(asked.id) == asked


# Filters and pages


def test_inbox_is_in_order_and_filters_are_combined(stage: Stage) -> None:
    random = Random(3)
    every: list[Question] = []
    for number in range(24):
        stage.seconds += random.choice((0, 1, 2 * HOUR))
        flow = random.choice((asks, asks_otherwise))
        person, priority = random.choice((None, "ana", "bo")), random.choice((-1, 0, 0, 7))
        every.append(ask(stage, f"run-{number}", flow, assignee=person, priority=priority))
    keys = {f"run-{number}": number for number in range(24)}
    every.sort(key=lambda each: (-each.priority, each.opened, keys[each.run]))
    assert stage.hf.inbox() == every
    for name in (None, "inbox_asks", "none"):
        for person in (None, "ana", "eve"):
            for waiting in (None, HOUR, timedelta(hours=20), 0):
                expected = [
                    each
                    for each in every
                    if name in (None, each.workflow)
                    and person in (None, each.assignee)
                    and (waiting is None or _waits(stage, each, waiting))
                ]
                given: dict[str, Any] = {"workflow": name, "assignee": person, "waiting_longer_than": waiting}
                assert stage.hf.inbox(**given) == expected
                assert _by_pages(stage, 5, **given) == expected
    assert stage.hf.inbox(kind="stalled") == stage.hf.inbox(kind="loop") == []
    assert stage.hf.inbox(run_id="run-3", assignee=None) == [each for each in every if each.run == "run-3"]


def _waits(stage: Stage, question: Question, longer: float | timedelta) -> bool:
    seconds = longer.total_seconds() if isinstance(longer, timedelta) else longer
    return question.opened < at(stage.seconds - seconds)


def _by_pages(stage: Stage, limit: int, **filters: Any) -> list[Question]:
    found = page = stage.hf.inbox(limit=limit, **filters)
    while page:
        page = stage.hf.inbox(limit=limit, after=page[-1].id, **filters)
        found = [*found, *page]
    return found


def test_page_continues_after_a_question_that_was_closed_since(stage: Stage) -> None:
    for number in range(8):
        stage.seconds += 1
        ask(stage, f"run-{number}", priority=number % 2)
    first = stage.hf.inbox(limit=3)
    assert ids(first) == ["run-1#1", "run-3#1", "run-5#1"]
    stage.hf.answer("run-5#1", "yes")
    assert ids(stage.hf.inbox(limit=3, after="run-5#1")) == ["run-7#1", "run-0#1", "run-2#1"]
    stage.hf.cancel("run-2")
    assert ids(stage.hf.inbox(limit=3, after="run-2#1")) == ["run-4#1", "run-6#1"]
    # Its place at the end was one that it was given later.
    stage.hf.assign("run-4#1", priority=1)
    stage.hf.answer("run-4#1", "yes")
    assert ids(stage.hf.inbox(after="run-4#1")) == ["run-7#1", "run-0#1", "run-6#1"]
    stage.hf.delete("run-2")
    for gone in ("run-2#1", "run-0#7", "nobody#1", "run-0", "#", "", "\ud800#1", "x" * 9_999, "run-0#٣"):
        with pytest.raises(InvalidCall, match=r"after is the id|cannot be encoded"):
            stage.hf.inbox(after=gone)


def test_hostile_filters_are_refused(stage: Stage) -> None:
    ask(stage)
    wrong: list[dict[str, Any]] = [
        {"kind": "odd"}, {"kind": 7}, {"limit": 0}, {"limit": True}, {"waiting_longer_than": math.nan},
        {"waiting_longer_than": -1}, {"waiting_longer_than": math.inf}, {"waiting_longer_than": "1h"},
        {"waiting_longer_than": True}, {"assignee": 7}, {"assignee": "x" * 10_000}, {"workflow": "\ud800"},
        {"open": False, "assignee": "ana"}, {"open": False, "kind": "loop"}, {"after": 7},
    ]  # fmt: skip
    for given in wrong:
        with pytest.raises(InvalidCall):
            stage.hf.inbox(**given)
    with pytest.raises(NotFound):
        stage.hf.inbox(run_id="nobody")
    assert stage.hf.inbox(assignee="a\0b") == stage.hf.inbox(workflow="'; --") == []


# Assignment


def test_assign_changes_what_is_given_and_nothing_else(stage: Stage) -> None:
    asked = ask(stage, assignee="ana", priority=1, due=HOUR, remind_every=60.0)
    stage.seconds += 10
    later = stage.hf.assign(asked.id, assignee="bo", actor="chief")
    assert (later.assignee, later.priority, later.due) == ("bo", 1, asked.due)
    assert stage.hf.inbox(assignee="bo") == [later]
    assert stage.hf.inbox(assignee="ana") == []
    later = stage.hf.assign(asked.id, due=timedelta(hours=3), priority=-100)
    assert (later.assignee, later.priority, later.due) == ("bo", -100, at(stage.seconds + 3 * HOUR))
    point = at(stage.seconds + 77)
    assert stage.hf.assign(asked.id, due=point).due == point
    cleared = stage.hf.assign(asked.id, assignee=None, due=None, remind_every=None)
    assert (cleared.assignee, cleared.due) == (None, None)
    stage.look(after=YEAR)
    assert events(stage, "reminded") == []
    first, *_ = events(stage, "assigned")
    assert (first["question_id"], first["assignee"], first["previous"]) == (asked.id, "bo", "ana")
    assert first["actor"] == "chief"
    for wrong in (at(stage.seconds - 1), datetime(2050, 1, 1)):  # noqa: DTZ001 - one without a zone is meant
        with pytest.raises(InvalidCall, match=r"past|time zone"):
            stage.hf.assign(asked.id, due=wrong)
    with pytest.raises(InvalidCall, match="what to change"):
        stage.hf.assign(asked.id)
    stage.hf.answer(asked.id, "yes")
    with pytest.raises(InvalidAnswer, match="answered already"):
        stage.hf.assign(asked.id, assignee="cy")
    for unknown in ("nobody#1", "run#9", "", "#"):
        with pytest.raises(NotFound):
            stage.hf.assign(unknown, assignee="cy")


def test_question_of_a_run_at_work_is_assigned(stage: Stage) -> None:
    @workflow(name="inbox_both")
    def both() -> Any:
        return holdfast.parallel(_ask_when_the_other_is_at_work, _steps)

    control.hangs["hang"] = 1
    stage.begin(both)
    s.wait_until(stage.hf.inbox)
    stage.hf.assign("run#1", assignee="bo", priority=3)
    control.let_go()
    s.wait_until(lambda: stage.hf.get("run").status == "suspended")
    (question,) = stage.hf.inbox()
    assert (question.assignee, question.priority) == ("bo", 3)
    assert stage.hf.inbox(assignee="ana") == []
    assert stage.hf.verify().ok


def _ask_when_the_other_is_at_work() -> Any:
    s.wait_until(lambda: "hang" in control.begun)
    return holdfast.ask("now?", assignee="ana")


def _steps() -> None:
    s.hang("hang")
    s.count(1)


def test_assignments_and_answers_at_once_leave_one_outcome(stage: Stage) -> None:
    for turn in range(6):
        asked = ask(stage, f"run-{turn}")
        barrier = threading.Barrier(4)
        outcomes: list[Any] = []

        def act(
            number: int, asked: Question = asked, barrier: Any = barrier, outcomes: list[Any] = outcomes
        ) -> None:
            barrier.wait()
            try:
                if number % 2:
                    stage.hf.assign(asked.id, assignee=f"person {number}")
                else:
                    outcomes.append(stage.hf.answer(asked.id, number, resume=False))
            except InvalidAnswer:
                pass

        threads = [threading.Thread(target=act, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(outcomes) == 1
        assert len(events(stage, "answered", asked.run)) == 1
    assert stage.hf.inbox() == []
    assert stage.hf.verify().ok


# Reminders and escalation


def test_reminder_is_sent_once_by_many_senders(stage: Stage) -> None:
    ask(stage, assignee="ana", remind_every=60.0)
    ask(stage, "other")
    others = [stage.hf, stage.open() if stage.where != ":memory:" else stage.hf]
    for turn in (1, 2):
        stage.seconds += 61
        threads = [threading.Thread(target=hf._operators.inbox.send_due) for hf in others * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [event["reminders"] for event in events(stage, "reminded")] == list(range(1, turn + 1))
    assert events(stage, "reminded")[0] == {
        "question_id": "run#1", "question": "run?", "assignee": "ana", "reminders": 1,
    }  # fmt: skip
    assert stage.hf.question("run#1").reminders == 2
    assert events(stage, "reminded", "other") == []
    stage.hf.answer("run#1", "yes")
    stage.look(after=HOUR)
    assert len(events(stage, "reminded")) == 2
    if others[1] is not stage.hf:
        others[1].close()


def test_monitor_sends_one_reminder_after_a_downtime(stage: Stage) -> None:
    ask(stage, remind_every=60.0)
    stage.look(after=59)
    assert events(stage, "reminded") == []
    stage.look(after=10 * HOUR)
    stage.look()
    assert len(events(stage, "reminded")) == 1
    # The next one is on schedule: a whole number of minutes after the question.
    stage.look(after=0.9)
    assert len(events(stage, "reminded")) == 1
    stage.look(after=0.2)
    assert len(events(stage, "reminded")) == 2


def test_escalation_assigns_the_question_once(stage: Stage) -> None:
    ask(stage, assignee="ana", escalate_after=HOUR, escalate_to="boss", remind_every=2 * HOUR)
    stage.look(after=HOUR - 1)
    assert stage.hf.inbox(assignee="ana") != []
    stage.look(after=1)
    (question,) = stage.hf.inbox(assignee="boss")
    assert (question.escalated, question.reminders) == (True, 0)
    assert stage.hf.inbox(assignee="ana") == []
    stage.look(after=HOUR)
    assert [(event["assignee"], event["previous"]) for event in events(stage, "escalated")] == [
        ("boss", "ana")
    ]
    assert [event["assignee"] for event in events(stage, "reminded")] == ["boss"]
    again = stage.hf.assign("run#1", assignee="ana", escalate_after=60)
    assert (again.assignee, again.escalated) == ("ana", False)
    stage.look(after=60)
    assert len(events(stage, "escalated")) == 2
    assert stage.hf.question("run#1").assignee == "boss"


def test_escalation_without_a_person_keeps_the_assignee(stage: Stage) -> None:
    ask(stage, assignee="ana", escalate_after=HOUR)
    stage.look(after=YEAR)
    question = stage.hf.question("run#1")
    assert (question.assignee, question.escalated) == ("ana", True)


def test_reminder_that_could_not_be_written_is_sent_later(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        ask(stage, name, remind_every=60.0)
    append = stage.hf._store.append

    def fail(change: Any) -> Any:
        if change.run.id == "one":
            raise StoreUnavailable("the disk is full")
        return append(change)

    monkeypatch.setattr(stage.hf._store, "append", fail)
    stage.look(after=61)
    assert (len(events(stage, "reminded", "one")), len(events(stage, "reminded", "two"))) == (0, 1)
    monkeypatch.undo()
    stage.look(after=1)
    assert (len(events(stage, "reminded", "one")), len(events(stage, "reminded", "two"))) == (1, 1)


def test_reminders_survive_a_new_process(stage: Stage) -> None:
    if stage.where == ":memory:":
        return
    ask(stage, remind_every=60.0, assignee="ana")
    with stage.open() as other:
        stage.seconds += 61
        assert other._operators.inbox.send_due() == 1
        assert other.question("run#1").reminders == 1
        assert other._operators.inbox.send_due() == 0


# Stalled runs


def test_stalled_run_asks_by_the_policy_of_its_watchdog(stage: Stage) -> None:
    policy = QuestionPolicy(
        assignee="ops", priority=9, due=HOUR, remind_every=60, escalate_after=120, escalate_to="cto"
    )
    control.hangs["hang"] = 1
    stage.begin(hangs, watchdog=Watchdog(heartbeat_timeout=60, question=policy))
    s.wait_until(lambda: "hang" in control.begun)
    stage.look(after=61)
    question = stage.frozen()
    assert (question.kind, question.workflow) == ("stalled", "inbox_hangs")
    assert (question.assignee, question.priority, question.due) == ("ops", 9, at(stage.seconds + HOUR))
    assert stage.hf.inbox(kind="stalled", assignee="ops", workflow="inbox_hangs") == [question]
    stage.look(after=60)
    stage.look(after=61)
    assert stage.frozen().assignee == "cto"
    assert len(events(stage, "reminded")) == 2
    moved = stage.hf.assign("run#1", assignee="ana", priority=0)
    assert (moved.assignee, moved.reminders) == ("ana", 2)
    stage.hf.answer("run#1", "cancel")
    assert stage.hf.inbox() == []


def test_page_reads_the_state_of_no_other_stalled_run(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    control.hangs["hang"] = 3
    for number in range(3):
        stage.begin(hangs, run_id=f"run-{number}")
    s.wait_until(lambda: len(control.begun) == 3)
    assert len(stage.look(after=61)) == 3
    read: list[str] = []
    shown = questions.shown

    def note(context: Any, run: Any, asked: Any) -> Question:
        read.append(run.id)
        return shown(context, run, asked)

    monkeypatch.setattr(questions, "shown", note)
    (first,) = stage.hf.inbox(limit=1)
    assert read == [first.run]
    assert len(stage.hf.inbox(limit=2, after=first.id)) == 2


def test_former_spelling_of_a_choice_warns_and_counts(stage: Stage) -> None:
    control.hangs["hang"] = 1
    stage.begin(hangs)
    s.wait_until(lambda: "hang" in control.begun)
    stage.look(after=61)
    with pytest.warns(DeprecationWarning, match="'reinitialise' is spelled 'reinitialize'"):
        stage.hf.answer("run#1", "reinitialise", resume=False)
    (answered,) = stage.hf.inbox(open=False)
    assert answered.details["choice"] == "reinitialize"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(InvalidAnswer, match="answered already"):
            stage.hf.answer("run#1", "reinitialize")


def test_imported_and_rolled_back_runs_have_their_own_questions(stage: Stage, tmp_path: Path) -> None:
    ask(stage, assignee="ana", priority=4)
    stage.hf.export_run("run", tmp_path / "bundle")
    stage.hf.import_run(tmp_path / "bundle", run_id="copy")
    assert [(each.id, each.assignee, each.priority) for each in stage.hf.inbox()] == [
        ("run#1", "ana", 4), ("copy#1", "ana", 4),
    ]  # fmt: skip
    stage.hf.fork("run", "forked")
    assert len(stage.hf.inbox()) == 2
    stage.hf.rollback("run", to=1, resume=False)
    assert ids(stage.hf.inbox()) == ["copy#1"]
    stage.seconds += 1
    stage.hf.resume("run")
    assert ids(stage.hf.inbox()) == ["copy#1", "run#2"]
    stage.hf.delete("copy")
    stage.hf.cancel("run")
    assert stage.hf.inbox() == []
    assert stage.hf.verify().ok


def test_question_of_an_unknown_loop_names_the_way_to_answer(stage: Stage) -> None:
    for call in (
        lambda: stage.hf.question("loop/a/control#1"),
        lambda: stage.hf.answer("loop/a/control#1", "resume"),
        lambda: stage.hf.assign("loop/a/control#1", assignee="ana"),
    ):
        with pytest.raises(holdfast.HoldfastError):
            call()
    assert loops.is_control_run("loop/a/control")
    assert not loops.is_control_run("loop/control")
