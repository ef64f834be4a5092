"""An answer counts for the question that it was given to, and no other; a question that times out is not a "no"."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
import store_fixtures

import holdfast
from holdfast import (
    Holdfast,
    InvalidAnswer,
    InvalidCall,
    QuestionTimeout,
    ReplayDiverged,
    StepTimeout,
    step,
    workflow,
)
from patience import until

pytest_plugins = ["postgres_fixtures"]
hf, place = store_fixtures.hf, store_fixtures.place
deleted: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    deleted.clear()


@step(name="q_delete")
def delete(what: str) -> str:
    deleted.append(what)
    return what


@step(name="q_adelete")
async def adelete(what: str) -> str:
    deleted.append(what)
    return what


#: What the workflows below ask.
asked: dict[str, Any] = {}


@workflow(name="q_flow", changed="allow")
def flow() -> Any:
    what = asked["what"]
    if holdfast.ask(f"Delete {what}?", schema=asked.get("schema")):
        return delete(what)
    return "kept"


@workflow(name="q_aflow", changed="allow")
async def aflow() -> Any:
    what = asked["what"]
    if await holdfast.ask(f"Delete {what}?", schema=asked.get("schema")):
        return await adelete(what)
    return "kept"


FLOWS = (flow, aflow)


def suspended(hf: Holdfast, made: Any, what: str, schema: Any = None) -> str:
    """Ask; gives the id of the question."""
    asked.update(what=what, schema=schema)
    assert hf.run(made, run_id="run").status == "suspended"
    return open_question(hf, f"Delete {what}?")


def open_question(hf: Holdfast, text: str) -> str:
    (prompt,) = hf.inbox()
    assert prompt.text == text
    return prompt.id


def kinds(hf: Holdfast) -> list[str]:
    return [event.kind for event in hf.get("run").events() if event.kind.startswith("question.")]


@pytest.mark.parametrize("made", FLOWS)
def test_answer_to_another_question_is_not_used(hf: Holdfast, made: Any) -> None:
    first = suspended(hf, made, "staging")
    hf.answer(first, True, resume=False)
    asked["what"] = "prod"
    assert hf.resume("run").status == "suspended"
    second = open_question(hf, "Delete prod?")
    assert second != first
    assert not deleted
    assert kinds(hf) == ["question.opened", "question.answered", "question.outdated", "question.opened"]
    with pytest.raises(InvalidAnswer, match="outdated: the workflow of run 'run' asks another question"):
        hf.answer(first, True)
    # Resuming again neither opens a third nor loses the answer to the second.
    assert hf.resume("run").status == "suspended"
    assert open_question(hf, "Delete prod?") == second
    assert hf.answer(second, True).result == "prod"
    assert deleted == ["prod"]


@pytest.mark.parametrize("made", FLOWS)
def test_open_question_that_has_changed_is_asked_anew(hf: Holdfast, made: Any) -> None:
    first = suspended(hf, made, "staging")
    asked["what"] = "prod"
    assert hf.resume("run", answers={"ask": True}).status == "suspended"
    second = open_question(hf, "Delete prod?")
    with pytest.raises(InvalidAnswer, match="outdated"):
        hf.answer(first, True)
    with pytest.raises(InvalidAnswer, match="outdated"):
        hf.question(first)
    assert not deleted
    assert hf.resume("run", answers={"ask": False}).result == "kept"
    assert [prompt.id for prompt in hf.inbox(open=False)] == [second]


@pytest.mark.parametrize("made", FLOWS)
def test_answer_under_another_schema_is_not_used(hf: Holdfast, made: Any) -> None:
    first = suspended(hf, made, "prod", {"type": "boolean"})
    hf.answer(first, True, resume=False)
    asked["schema"] = {"type": "integer"}
    assert hf.resume("run").status == "suspended"
    assert hf.answer(open_question(hf, "Delete prod?"), 0).result == "kept"


@pytest.mark.parametrize("schema", [None, {}, bool, {"type": "boolean"}])
def test_answer_to_the_same_question_is_used(hf: Holdfast, schema: Any) -> None:
    first = suspended(hf, flow, "prod", schema)
    hf.answer(first, True, resume=False)
    assert hf.resume("run").result == "prod"
    assert kinds(hf) == ["question.opened", "question.answered"]


@workflow(name="q_twice", changed="allow")
def twice() -> Any:
    return holdfast.ask(f"Delete {asked['what']}?"), holdfast.ask("Sure?")


def test_recorded_answer_to_another_question_is_not_replayed(hf: Holdfast) -> None:
    asked["what"] = "staging"
    hf.run(twice, run_id="run")
    hf.answer(open_question(hf, "Delete staging?"), "yes")
    sure = open_question(hf, "Sure?")
    asked["what"] = "prod"
    hf.resume("run", answers={sure: "sure"})
    questions = {prompt.text: prompt.id for prompt in hf.inbox()}
    assert "Delete prod?" in questions
    hf.answer(questions["Delete prod?"], "no")
    while hf.get("run").status == "suspended":
        (prompt,) = hf.inbox()
        assert prompt.text == "Sure?"
        hf.answer(prompt.id, "sure")
    assert hf.get("run").result == ("no", "sure")
    # The answer that was given to the other question stays in the history.
    answers = [prompt.answer for prompt in hf.inbox(open=False) if prompt.text == "Delete staging?"]
    assert answers == ["yes"]


@workflow(name="q_then", changed="allow")
def then() -> Any:
    if holdfast.ask(f"Delete {asked['what']}?"):
        delete("this")
    return holdfast.ask("Sure?")


@pytest.mark.parametrize("again", [True, False])
def test_recorded_answer_with_steps_after_it_is_asked_again(hf: Holdfast, again: bool) -> None:
    asked["what"] = "staging"
    hf.run(then, run_id="run")
    hf.answer(open_question(hf, "Delete staging?"), True)
    sure = open_question(hf, "Sure?")
    asked["what"] = "prod"
    assert hf.resume("run", answers={sure: "sure"}).status == "suspended"
    (prompt,) = [each for each in hf.inbox() if each.text == "Delete prod?"]
    if again:
        hf.answer(prompt.id, True, resume=False)
        assert hf.resume("run", answers={sure: "sure"}).result == "sure"
    else:
        # The step after the first answer is recorded: that it is not called now is not passed over.
        with pytest.raises(ReplayDiverged, match="q_delete"):
            hf.answer(prompt.id, False)
    assert deleted == ["this"]


def test_validation_tells_a_question_that_has_changed(hf: Holdfast) -> None:
    hf.answer(suspended(hf, flow, "staging"), True)
    asked["what"] = "prod"
    found = hf.resume("run", mode="validate").differences
    assert (found[0].address, found[0].what) == ("ask", "question")


# Time


def test_timeout_of_a_question_is_never_an_answer(hf: Holdfast) -> None:
    @workflow(name="q_patient")
    def patient() -> Any:
        return holdfast.ask("Delete prod?", timeout=0.01) or "no"

    with suppress(QuestionTimeout):
        hf.run(patient, run_id="run").wait(timeout=60)
    error = hf.get("run").error
    assert type(error) is QuestionTimeout
    assert isinstance(error, StepTimeout)
    assert isinstance(error, TimeoutError)
    assert "was not answered in time: 'Delete prod?'" in str(error)


def test_timeout_of_a_question_is_the_same_on_replay(hf: Holdfast) -> None:
    @workflow(name="q_timed")
    def timed() -> Any:
        try:
            first = holdfast.ask("First?", timeout=0.01)
        except QuestionTimeout as error:
            first = error.code
        return first, holdfast.ask("Default?", timeout=0.01, default=None, schema=int), holdfast.ask("Last?")

    hf.run(timed, run_id="run")

    def at_last() -> bool:
        hf.resume("run")
        return any(prompt.text == "Last?" for prompt in hf.inbox())

    until(at_last)
    (prompt,) = hf.inbox()
    assert hf.answer(prompt.id, 3).result == ("question_timeout", None, 3)
    assert "question.timed_out" in kinds(hf)


def test_default_needs_a_timeout(hf: Holdfast) -> None:
    @workflow(name="q_default")
    def default() -> Any:
        return holdfast.ask("Delete prod?", default=False)

    try:
        error = hf.run(default, run_id="run").error
    except InvalidCall as raised:
        error = raised
    assert "timeout=" in str(error)


def test_answer_in_time_comes_before_the_default(hf: Holdfast) -> None:
    @workflow(name="q_in_time")
    def in_time() -> Any:
        return holdfast.ask("Delete prod?", timeout=3600, default=False, schema=bool)

    hf.run(in_time, run_id="run")
    assert hf.answer(open_question(hf, "Delete prod?"), True).result is True


def test_late_answer_is_refused_before_and_after_the_run_is_resumed(tmp_path: Any) -> None:
    @workflow(name="q_late")
    def patient() -> Any:
        return delete("prod") if holdfast.ask("Delete prod?", timeout=10) else "kept"

    seconds = [1_800_000_000.0]
    with holdfast.open(tmp_path / "late.db", clock=lambda: seconds[0]) as hf:
        hf.run(patient, run_id="run")
        (question,) = hf.inbox()
        seconds[0] += 11
        with pytest.raises(InvalidAnswer, match="timed out"):
            hf.answer(question.id, True)
        for name in (question.id, "ask"):
            with pytest.raises(InvalidAnswer, match="timed out"):
                hf.resume("run", answers={name: True})
        with pytest.raises(QuestionTimeout):
            hf.resume("run")
        with pytest.raises(InvalidAnswer):
            hf.answer(question.id, True)
    assert deleted == []


def test_answers_for_no_open_question_are_refused(hf: Holdfast) -> None:
    @workflow(name="q_twice")
    def twice() -> Any:
        return [
            delete("one") if holdfast.ask("Delete?") else "",
            delete("two") if holdfast.ask("Delete?") else "",
        ]

    hf.run(twice, run_id="other")
    (others,) = hf.inbox()
    hf.run(twice, run_id="run")
    first = next(prompt.id for prompt in hf.inbox() if prompt.run == "run")
    with pytest.raises(InvalidAnswer, match=r"does not ask 'aks'; it waits for 'run#1'"):
        hf.resume("run", answers={"aks": True})
    with pytest.raises(InvalidAnswer, match="is a question of run 'other'"):
        hf.resume("run", answers={others.id: True})
    assert hf.answer(first, False).status == "suspended"
    with pytest.raises(InvalidAnswer, match="answered already"):
        hf.resume("run", answers={first: True})
    with pytest.raises(InvalidAnswer, match="does not ask 'ask'"):
        hf.resume("run", answers={"ask": True})
    assert deleted == []
    assert hf.resume("run", answers={"ask#2": True}).result == ["", "two"]


def test_answer_by_address_is_not_for_a_question_of_a_child(hf: Holdfast) -> None:
    @workflow(name="q_inner")
    def inner() -> Any:
        return delete("inner") if holdfast.ask("Delete the inner one?") else "kept"

    @workflow(name="q_outer")
    def outer() -> Any:
        return [holdfast.ask("Start?"), inner()]

    hf.run(outer, run_id="run")
    run = hf.resume("run", answers={"ask": True})
    assert (run.status, deleted) == ("suspended", [])
    (question,) = hf.inbox()
    with pytest.raises(InvalidAnswer, match="does not ask 'ask'"):
        hf.resume("run", answers={"ask": True})
    assert hf.resume("run", answers={question.id: True}).result == [True, "inner"]
