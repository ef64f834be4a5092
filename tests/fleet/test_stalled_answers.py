"""The prompt of a frozen run: each choice, answers that do not fit, answers that come second."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import monitor_stage as s
import pytest
from monitor_stage import Stage, control

import holdfast
from holdfast import HoldfastError, InvalidAnswer, LeaseLost, NotFound, Watchdog, workflow
from holdfast.execution import inbox
from holdfast.model.public import Question

stage = s.stage
pytest_plugins = ["postgres_fixtures"]


@workflow(name="a_plans", watchdog=Watchdog(heartbeat_timeout=60))
def plans(title: str) -> str:
    s.mark(title)
    s.count(1)
    s.order("kelp")
    s.count(2)
    s.hang("hang")
    return f"{title}: {sorted(holdfast.state())}"


@pytest.fixture
def frozen(stage: Stage) -> Callable[..., Question]:
    """A run that hangs after four steps, and is frozen."""

    def make(flow: Any = plans, *args: Any, **how: Any) -> Question:
        control.hangs["hang"] = 1
        stage.begin(flow, *(args or ("plan",)), state={"notes": []}, **how)
        s.wait_until(lambda: "hang" in control.begun)
        assert [alert.action for alert in stage.look(after=61)] == ["stall"]
        return stage.frozen()

    return make


def test_question_of_a_stalled_run_is_in_the_inbox(stage: Stage, frozen: Callable[..., Question]) -> None:
    prompt = frozen()
    assert prompt.id == "run#1"
    assert stage.hf.inbox(open=True) == [prompt] == stage.hf.get("run").questions()
    assert stage.hf.question("run#1") == prompt
    assert stage.hf.inbox(open=False) == []
    assert prompt.details["choices"] == ["resume", "rollback", "reinitialize", "cancel"]
    assert [part["path"] for part in prompt.details["initial"]] == ["plan", "turn", "ordered"]
    assert "roll back (to version 5)" in prompt.text


def test_unknown_question_is_refused_by_name(stage: Stage) -> None:
    wrong: list[Any] = [None, 7, "", "#", "nobody#1", "run", "\ud800#1", "a\0#1", "../x#1", "x" * 9999]
    for each in wrong:
        for ask in (stage.hf.question, lambda question: stage.hf.answer(question, "resume", keep=["x"])):
            with pytest.raises(NotFound, match=r"there is no question .*: the inbox lists the open ones"):
                ask(each)
        with pytest.raises(NotFound, match="the inbox lists the open ones"):
            stage.hf.answer(each, "resume")


def test_inbox_lists_answered_questions_in_pages_newest_first(stage: Stage) -> None:
    @workflow(name="a_many")
    def many(questions: int) -> None:
        for number in range(questions):
            s.count(number)
            holdfast.ask(f"question {number}?")

    for run_id in ("one", "two"):
        stage.hf.run(many, 6, run_id=run_id)
    for number in range(1, 7):
        for run_id in ("one", "two"):
            stage.seconds += 1
            stage.hf.answer(f"{run_id}#{number}", number, actor=f"ada {number}")
    newest = [f"{run_id}#{number}" for number in range(6, 0, -1) for run_id in ("two", "one")]
    found = stage.hf.inbox(open=False)
    assert [prompt.id for prompt in found] == newest
    first = found[-1]
    assert (first.run, first.address, first.text, first.actor) == ("one", "ask", "question 0?", "ada 1")
    assert first.opened.timestamp() == 1_000_000_000
    assert first.answered is not None
    assert first.answered.timestamp() == 1_000_000_001
    pages: list[str] = []
    while page := stage.hf.inbox(open=False, limit=5, after=pages[-1] if pages else None):
        assert len(page) <= 5
        pages += [prompt.id for prompt in page]
    assert pages == newest
    of_one = stage.hf.inbox(open=False, run_id="one", limit=2)
    assert [prompt.id for prompt in of_one] == ["one#6", "one#5"]
    assert stage.hf.inbox(open=False, after="nobody#1") == []


def test_inbox_reads_only_the_end_of_the_journal(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    @workflow(name="a_last")
    def last() -> None:
        holdfast.ask("well?")

    log = stage.hf.history("long")
    for number in range(30):
        log.commit({"n": number})
    stage.hf.run(last, run_id="run")
    stage.hf.answer("run#1", "yes")
    monkeypatch.setattr("holdfast.execution.questions._PAGE", 10)
    read: list[int] = []
    journal = stage.hf._store.journal

    def noted(**how: Any) -> Any:
        found = journal(**how)
        read.append(len(found))
        return found

    monkeypatch.setattr(stage.hf._store, "journal", noted)
    (found,) = stage.hf.inbox(open=False, limit=1)
    assert found.text == "well?"
    assert sum(read) <= 10


def test_inbox_reads_answers_of_older_versions(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    @workflow(name="a_before")
    def before() -> None:
        holdfast.ask("well?")

    stage.hf.run(before, run_id="run")
    stage.seconds += 9
    with monkeypatch.context() as patch:
        patch.setattr(inbox, "asked", lambda _: {})
        stage.hf.answer("run#1", "yes", actor="ada")
    (told,) = stage.hf.inbox(open=False)
    assert (told.text, told.address, told.opened.timestamp()) == ("well?", "ask", 1_000_000_000)


@pytest.mark.parametrize("wrong", [{"limit": 0}, {"limit": "all"}, {"after": 3}, {"run_id": 3}])
def test_inbox_refuses_invalid_pages(stage: Stage, wrong: dict[str, Any]) -> None:
    with pytest.raises(HoldfastError, match=next(iter(wrong)).replace("run_id", "run id")):
        stage.hf.inbox(open=False, **wrong)


def test_answer_resume_continues_from_the_head(stage: Stage, frozen: Callable[..., Question]) -> None:
    prompt = frozen()
    run = stage.hf.answer(prompt.id, "resume", actor="ada")
    assert run.status == "completed"
    assert len(run.history().timelines()) == 1
    assert control.begun == ["plan", "hang", "hang"]
    assert stage.hf.inbox() == []
    (told,) = stage.hf.inbox(open=False)
    assert (told.id, told.actor, told.details) == ("run#1", "ada", {"choice": "resume"})
    assert told.answered is not None
    assert "question.answered" in stage.kinds()
    stage.join()
    assert [type(error) for error in stage.raised] == [LeaseLost]


def test_answer_rollback_compensates_the_steps_after_a_version(
    stage: Stage, frozen: Callable[..., Question]
) -> None:
    prompt = frozen()
    run = stage.hf.answer(prompt.id, "rollback", version=3, actor="ada")
    assert run.status == "completed"
    assert control.undone == ["kelp"]
    line = run.history().timelines()[1]
    assert (line.parent, line.actor) == (3, "ada")
    assert line.reason is not None
    assert line.reason.startswith("rollback: step m_hang")


def test_answer_rollback_without_a_version_uses_the_last_good_one(
    stage: Stage, frozen: Callable[..., Question]
) -> None:
    prompt = frozen()
    run = stage.hf.answer(prompt.id, "rollback")
    assert run.history().timelines()[1].parent == prompt.details["version"] == 5
    assert control.undone == []


@pytest.mark.parametrize("keep", [[], ["turn"], ["turn", "plan"], "turn", [("turn",), ["plan"]]])
def test_answer_reinitialize_starts_over_with_the_kept_parts(
    stage: Stage, frozen: Callable[..., Question], keep: Any
) -> None:
    prompt = frozen()
    run = stage.hf.answer(prompt.id, "reinitialize", keep=keep, actor="ada")
    assert run.result == "plan: ['notes', 'ordered', 'plan', 'turn']"
    assert control.begun == ["plan", "hang", "plan", "hang"]
    assert control.undone == ["kelp"]
    (begun,) = [version for version in run.history().versions(limit=100) if version.kind == "manual"]
    assert (begun.parent, begun.timeline, begun.actor) == (1, 2, "ada")
    values = {"turn": 2, "plan": True}
    names = [
        path if isinstance(path, str) else path[0] for path in ([keep] if isinstance(keep, str) else keep)
    ]
    kept = {name: value for name, value in values.items() if name in names}
    assert begun.state == {"notes": [], **kept}
    (answer,) = [event for event in run.events() if event.kind == "question.answered"]
    assert answer.data["choice"] == "reinitialize"


def test_answer_cancel_ends_the_run(stage: Stage, frozen: Callable[..., Question]) -> None:
    prompt = frozen()
    run = stage.hf.answer(prompt.id, "cancel", actor="ada")
    assert run.status == "cancelled"
    assert run.head.actor == "ada"
    assert stage.hf.inbox() == []
    assert sorted(stage.kinds()[-2:]) == ["question.answered", "run.cancelled"]


@pytest.mark.parametrize(
    ("choice", "how", "why"),
    [
        ("restart", {}, "one of resume, rollback, reinitialize, cancel, not 'restart'"),
        (True, {}, "not True"),
        ("rollback", {"version": 17}, "no version 17 to roll back to: give one from 1 to 5"),
        ("rollback", {"version": "two"}, "no version 'two'"),
        ("resume", {"version": 2}, "a version goes with the choice rollback"),
        ("cancel", {"keep": ["plan"]}, "keep goes with the choice reinitialize"),
        ("reinitialize", {"keep": ["nothing"]}, "'nothing' cannot be kept.*plan, turn, ordered"),
        ("reinitialize", {"keep": ["plan.deep"]}, "'plan.deep' cannot be kept"),
    ],
)
def test_invalid_choice_is_refused_with_the_valid_ones(
    stage: Stage, frozen: Callable[..., Question], choice: Any, how: dict[str, Any], why: str
) -> None:
    prompt = frozen()
    with pytest.raises(InvalidAnswer, match=why):
        stage.hf.answer(prompt.id, choice, **how)
    assert stage.frozen() == prompt


def test_second_answer_is_refused_with_the_actor_and_time_of_the_first(
    stage: Stage, frozen: Callable[..., Question]
) -> None:
    prompt = frozen()
    stage.hf.answer(prompt.id, "cancel", actor="ada")
    stage.seconds += 100
    for how in ({}, {"version": 2}, {"keep": ["plan"]}):
        with pytest.raises(InvalidAnswer, match=r"by ada at 2001-09-09 01:47:41 UTC, with cancel"):
            stage.hf.answer(prompt.id, "rollback" if how else "resume", **how)


def test_concurrent_answers_one_takes_effect(stage: Stage, frozen: Callable[..., Question]) -> None:
    prompt = frozen()
    choices = ["resume", "rollback", "reinitialize", "cancel"] * 2
    barrier = threading.Barrier(len(choices))
    refused: list[BaseException] = []
    done: list[str] = []

    def answer(number: int, choice: str) -> None:
        barrier.wait()
        try:
            stage.hf.answer(prompt.id, choice, actor=f"operator {number}", resume=False)
            done.append(choice)
        except InvalidAnswer as error:
            refused.append(error)

    threads = [threading.Thread(target=answer, args=pair) for pair in enumerate(choices)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 1
    assert len(refused) == 7
    assert all("has been answered already, by operator" in str(error) for error in refused)
    assert stage.kinds().count("question.answered") == 1


def test_question_of_a_workflow_takes_no_version_or_keep(stage: Stage) -> None:
    @workflow(name="a_asks")
    def asks() -> Any:
        return holdfast.ask("well?")

    stage.hf.run(asks, run_id="run")
    with pytest.raises(InvalidAnswer, match="for the question of a stalled run"):
        stage.hf.answer("run#1", "yes", version=1)
    stage.hf.answer("run#1", "yes", actor="ada")
    with pytest.raises(InvalidAnswer, match="by ada at 2001"):
        stage.hf.answer("run#1", "no")
    with pytest.raises(NotFound):
        stage.hf.answer("run#2", "no")
    with pytest.raises(NotFound):
        stage.hf.answer("nobody#1", "resume")


def test_operator_action_closes_the_question(stage: Stage, frozen: Callable[..., Question]) -> None:
    prompt = frozen()
    assert stage.hf.pause("run").status == "stalled"
    stage.hf.resume("run")
    assert stage.hf.get("run").status == "completed"
    with pytest.raises(InvalidAnswer, match="with resume"):
        stage.hf.answer(prompt.id, "cancel")


def test_answer_restarts_the_watchdog_budget(stage: Stage) -> None:
    control.hangs["after"] = 2
    stage.begin(s.counting, 5, watchdog=Watchdog(max_steps=3, max_repeats=2, max_unchanged=2))
    s.wait_until(lambda: "after" in control.begun)
    assert [alert.symptom for alert in stage.look()] == ["over budget"]
    thread = threading.Thread(target=lambda: stage.hf.answer("run#1", "resume"))
    stage.threads.append(thread)
    thread.start()
    s.wait_until(lambda: control.begun.count("after") == 2)
    assert stage.look() == []


def test_answer_restarts_the_loop_count(stage: Stage) -> None:
    control.hangs["after"] = 2
    stage.begin(s.repeating, 5, watchdog=Watchdog(max_repeats=5, max_unchanged=5))
    s.wait_until(lambda: "after" in control.begun)
    assert [alert.symptom for alert in stage.look()] == ["looping"]
    thread = threading.Thread(target=lambda: stage.hf.answer("run#1", "resume"))
    stage.threads.append(thread)
    thread.start()
    s.wait_until(lambda: control.begun.count("after") == 2)
    assert stage.look() == []


def test_answer_for_a_queued_run_is_carried_out_by_workers(stage: Stage) -> None:
    control.hangs["hang"] = 1
    run = stage.hf.enqueue(plans, "plan", run_id="run")
    with stage.hf.worker(monitor=False):
        s.wait_until(lambda: "hang" in control.begun)
        assert [alert.action for alert in stage.look(after=61)] == ["stall"]
        stage.hf.answer("run#1", "reinitialize", keep=["plan"])
        s.wait_until(lambda: run.status == "completed")
    assert control.undone == ["kelp"]
    assert control.begun == ["plan", "hang", "plan", "hang"]


def test_stalled_run_can_be_requeued(stage: Stage, frozen: Callable[..., Question]) -> None:
    prompt = frozen()
    run = stage.hf.requeue("run", queue="other", actor="ada")
    with pytest.raises(InvalidAnswer, match="by ada"):
        stage.hf.answer(prompt.id, "cancel")
    control.hangs["hang"] = 1
    with stage.hf.worker(queues=["other"], monitor=False):
        s.wait_until(lambda: control.begun.count("hang") == 2)
        # It is in that queue from now on.
        assert [alert.action for alert in stage.look(after=61)] == ["stall"]
        stage.hf.answer("run#2", "resume")
        s.wait_until(lambda: run.status == "completed")


def test_imported_stalled_run_has_its_own_question(
    stage: Stage, frozen: Callable[..., Question], tmp_path: Path
) -> None:
    prompt = frozen()
    stage.hf.export_run("run", tmp_path / "bundle")
    stage.hf.import_run(tmp_path / "bundle", run_id="copy")
    assert [each.id for each in stage.hf.inbox()] == ["run#1", "copy#1"]
    assert stage.hf.answer("copy#1", "resume").status == "completed"
    assert stage.frozen() == prompt
