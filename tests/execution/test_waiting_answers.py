"""Waiting for an answer: ask frees the process; an answer of the wanted shape resumes the run, once."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any, Literal

import pytest
import waiting_flows
from pydantic import BaseModel
from waiting_flows import CALLS, Clock, prompt_of, record, wait_aask, wait_ask, wait_event, wait_second

import holdfast
from holdfast import Holdfast, InvalidAnswer, InvalidCall, NotFound, Run, UnsupportedValue, workflow

no_calls, clock, hf = waiting_flows.no_calls, waiting_flows.clock, waiting_flows.hf


@pytest.mark.parametrize("which", [wait_ask, wait_aask])
def test_answer_resumes_the_run(hf: Holdfast, which: Any) -> None:
    run = hf.run(which)
    assert run.status == "suspended"
    (prompt,) = run.questions()
    assert (prompt.run, prompt.text, prompt.address, prompt.schema) == (run.id, "Publish?", "ask", None)
    again = hf.answer(prompt.id, {"yes": 1}, actor="ada")
    assert again.id == run.id
    assert run.result == [{"yes": 1}]
    assert CALLS == ["before", [{"yes": 1}]]
    assert run.questions() == []
    (answered,) = [event for event in run.events() if event.kind == "question.answered"]
    told = {name: answered.data[name] for name in ("question_id", "actor", "question", "address")}
    assert told == {"question_id": prompt.id, "actor": "ada", "question": "Publish?", "address": "ask"}
    assert run.history().at(3).actor == "ada"
    (seen,) = hf.inbox(open=False)
    assert (seen.id, seen.actor, seen.answer) == (prompt.id, "ada", {"yes": 1})


def test_long_answer_is_only_in_its_version(hf: Holdfast) -> None:
    run = hf.run(wait_ask)
    hf.answer(prompt_of(run), "y" * 600)
    assert run.history().at(3).result == "y" * 600
    (seen,) = hf.inbox(open=False)
    assert (seen.answered is None, seen.answer) == (False, None)
    (event,) = [event for event in run.events() if event.kind == "question.answered"]
    assert "answer" not in event.data


def test_answer_in_an_event_loop_can_be_resumed_with_aresume(hf: Holdfast) -> None:
    async def main() -> Any:
        run = await hf.arun(wait_aask)
        assert run.status == "suspended"
        assert (await hf.aanswer(prompt_of(run), "yes", resume=False)).status == "suspended"
        return (await hf.aresume(run.id)).result

    assert asyncio.run(main()) == ["yes"]


def test_answer_without_resume_leaves_the_run_suspended(hf: Holdfast) -> None:
    run = hf.run(wait_ask)
    hf.answer(prompt_of(run), True, resume=False)
    assert run.status == "suspended"
    assert run.questions() == []
    assert CALLS == ["before"]
    assert hf.resume(run.id).result == [True]


@pytest.mark.parametrize("value", [False, 0, 0.0, "", None, [], {}])
@pytest.mark.parametrize("way", ["answer", "kept", "answers", "send", "early"])
def test_answer_may_be_falsy(hf: Holdfast, value: Any, way: str) -> None:
    if way in ("answer", "kept", "answers"):
        run = hf.run(wait_ask)
        if way == "answers":
            hf.resume(run.id, answers={prompt_of(run): value})
        else:
            hf.answer(prompt_of(run), value, resume=way == "answer")
            hf.resume(run.id)
    else:
        run = hf.run(wait_event, run_id="falsy") if way == "send" else hf.run(wait_second, run_id="falsy")
        hf.signal("falsy", "paid", value)
        if way == "early":
            hf.signal("falsy", "first")
    assert repr(run.result) == repr([value])
    assert type(run.result[0]) is type(value)
    hf.rollback(run.id, to=run.head.number - 2, resume=True)
    assert repr(run.result) == repr([value])


def test_second_answer_is_refused(hf: Holdfast) -> None:
    run = hf.run(wait_ask)
    prompt = prompt_of(run)
    hf.answer(prompt, "yes", resume=False)
    revision = record(hf, run)
    with pytest.raises(InvalidAnswer, match="answered already"):
        hf.answer(prompt, "no")
    assert record(hf, run) == revision
    hf.resume(run.id)
    with pytest.raises(InvalidAnswer, match="answered already"):
        hf.answer(prompt, "no")
    assert run.result == ["yes"]


@pytest.mark.parametrize("prompt", ["nobody#1", "nobody", "", "#", None, 5, "wait-ask#x"])
def test_answer_to_an_unknown_question_is_refused(hf: Holdfast, prompt: Any) -> None:
    hf.run(wait_ask, run_id="wait-ask")
    with pytest.raises(NotFound, match="there is no question"):
        hf.answer(prompt, True)


@dataclass
class Decision:
    yes: bool
    why: str = ""


class Model(BaseModel):
    yes: bool
    level: int


@workflow
def wait_typed(which: str) -> Any:
    shapes: dict[str, Any] = {
        "bool": bool,
        "literal": Literal["yes", "no"],
        "dataclass": Decision,
        "pydantic": Model,
        "json": {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer", "minimum": 1}}},
        "list": list[int],
    }
    answer = holdfast.ask("Well?", schema=shapes[which])
    return [type(answer).__name__, repr(answer)]


@pytest.mark.parametrize(
    ("which", "bad", "reason", "good", "result"),
    [
        ("bool", "yes", "not of type 'boolean'", True, ["bool", "True"]),
        ("bool", 1, "not of type 'boolean'", False, ["bool", "False"]),
        ("literal", "maybe", "not one of", "no", ["str", "'no'"]),
        ("dataclass", {"yes": 3}, "yes", {"yes": True}, ["Decision", "Decision(yes=True, why='')"]),
        ("dataclass", {}, "required", {"yes": False, "why": "x"}, ["Decision", "Decision(yes=False, why='x')"]),
        ("pydantic", {"level": "high"}, "level|yes", {"yes": True, "level": 3}, ["Model", "Model(yes=True, level=3)"]),
        ("json", {"n": 0}, "minimum", {"n": 2}, ["dict", "{'n': 2}"]),
        ("list", [1, "2"], "integer", [], ["list", "[]"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("way", ["answer", "answers", "address"])
def test_invalid_answer_is_refused_with_the_reason(
    hf: Holdfast, which: str, bad: Any, reason: str, good: Any, result: Any, way: str
) -> None:
    run = hf.run(wait_typed, which)
    prompt = prompt_of(run)
    was = record(hf, run)

    def give(value: Any) -> Run:
        if way == "answer":
            return hf.answer(prompt, value)
        return hf.resume(run.id, answers={prompt if way == "answers" else "ask": value})

    with pytest.raises(InvalidAnswer, match=reason):
        give(bad)
    assert record(hf, run) == was
    assert give(good).result == result


def test_answer_that_cannot_be_stored_is_refused(hf: Holdfast) -> None:
    run = hf.run(wait_ask)
    was = record(hf, run)
    with pytest.raises(UnsupportedValue):
        hf.answer(prompt_of(run), {"a": object()})
    assert record(hf, run) == was
    run = hf.run(wait_event)
    was = record(hf, run)
    with pytest.raises(UnsupportedValue):
        hf.signal(run.id, "paid", [lambda: 1])
    assert record(hf, run) == was


def test_answers_and_signals_may_be_large(hf: Holdfast) -> None:
    large = "x" * 200_000
    run = hf.run(wait_ask)
    hf.answer(prompt_of(run), {"text": large}, resume=False)
    assert hf.resume(run.id).result == [{"text": large}]
    run = hf.run(wait_event)
    hf.signal(run.id, "paid", large, resume=False)
    assert hf.resume(run.id).result == [large]


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, object(), 5])
def test_invalid_schema_of_a_question_fails_the_run(hf: Holdfast, schema: Any) -> None:
    @workflow(name="wait_bad_shape")
    def bad() -> Any:
        return holdfast.ask("Well?", schema=schema)

    run = hf.run(bad, raises=False)
    assert run.status == "failed"
    assert isinstance(run.error, InvalidCall)
    assert hf.inbox() == []


def test_resume_accepts_answers_to_later_questions(hf: Holdfast) -> None:
    @workflow(name="wait_two_questions")
    def two() -> Any:
        return [holdfast.ask("One?"), holdfast.ask("Two?"), holdfast.ask("Three?", key="third")]

    run = hf.run(two)
    assert hf.resume(run.id, answers={"ask": 1, "ask#2": 2, "ask[third]": 3}).result == [1, 2, 3]
    answered = [event.data["question_id"] for event in run.events() if event.kind == "question.answered"]
    assert answered == [f"{run.id}#1", f"{run.id}#2", f"{run.id}#3"]


def test_ask_outside_a_run_is_refused() -> None:
    with pytest.raises(InvalidCall, match="needs a run"):
        holdfast.ask("Well?")
    with pytest.raises(InvalidCall, match="needs a run"):
        holdfast.wait_for("paid")
    began = time.monotonic()
    holdfast.sleep(0.01)
    assert time.monotonic() - began >= 0.01


def test_inbox_lists_questions_of_all_runs(hf: Holdfast, clock: Clock) -> None:
    assert hf.inbox() == []
    runs = []
    for number in range(3):
        clock.now += 1
        runs.append(hf.run(wait_ask, {"type": "boolean"}, 60.0, run_id=f"r-{number}"))
    prompts = hf.inbox()
    assert [prompt.run for prompt in prompts] == ["r-0", "r-1", "r-2"]
    assert prompts[0].schema == {"type": "boolean"}
    assert prompts[0].due is not None
    assert (prompts[0].due - prompts[0].opened).total_seconds() == 60
    hf.answer(prompts[1].id, True)
    hf.cancel("r-0")
    assert [prompt.run for prompt in hf.inbox()] == ["r-2"]
    hf.pause("r-2")
    assert [prompt.run for prompt in hf.inbox()] == ["r-2"]
    hf.answer(prompts[2].id, False)
    assert runs[2].status == "paused"
    assert hf.resume("r-2").result == [False]


def test_answer_to_a_withdrawn_question_is_refused(hf: Holdfast) -> None:
    run = hf.run(wait_ask)
    old = prompt_of(run)
    hf.rollback(run.id, to=2)
    new = prompt_of(run)
    assert new != old
    with pytest.raises(InvalidAnswer, match="no longer open"):
        hf.answer(old, "late")
    assert run.status == "suspended"
    hf.cancel(run.id)
    with pytest.raises(InvalidAnswer, match="no longer open"):
        hf.answer(new, "late")
    assert run.status == "cancelled"


def test_question_answered_on_an_abandoned_timeline_is_asked_again(hf: Holdfast) -> None:
    run = hf.run(wait_ask)
    first = prompt_of(run)
    hf.answer(first, "first")
    assert hf.rollback(run.id, to=2).status == "suspended"
    second = prompt_of(run)
    with pytest.raises(InvalidAnswer):
        hf.answer(first, "again")
    hf.answer(second, "second")
    assert run.result == ["second"]
