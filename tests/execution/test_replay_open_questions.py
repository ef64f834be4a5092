"""Code that changed while a run waits for an answer or an event: a call before the wait is refused like any other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import store_fixtures

import holdfast
from holdfast import Holdfast, ReplayDiverged, step, workflow

pytest_plugins = ["postgres_fixtures"]
hf, place = store_fixtures.hf, store_fixtures.place
ran: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


@step(name="oq_do")
def do(what: str) -> str:
    ran.append(what)
    return what


def define(code: Callable[[], Any]) -> Any:
    """Define the workflow, as if its module had been edited."""
    code.__qualname__ = "oq_changing"
    return workflow(name="oq_changing")(code)


def plan_and_ask() -> Any:
    do("plan")
    return do("deploy") if holdfast.ask("Deploy?") else "no"


def ask_only() -> Any:
    return do("deploy") if holdfast.ask("Deploy?") else "no"


def inserted() -> Any:
    do("migrate")
    return ask_only()


def inserted_after_plan() -> Any:
    do("plan")
    return inserted()


def removed() -> Any:
    return do("deploy")


def ended() -> Any:
    return "nothing to do"


@pytest.mark.parametrize(
    ("before", "after"),
    [(ask_only, inserted), (plan_and_ask, inserted_after_plan), (ask_only, removed), (ask_only, ended)],
)
def test_call_before_an_open_question_is_refused(hf: Holdfast, before: Any, after: Any) -> None:
    run = hf.run(define(before), run_id="r")
    assert run.status == "suspended"
    (question,) = hf.inbox()
    ran.clear()
    define(after)
    (problem,) = hf.check()
    assert (problem.kind, problem.address) == ("diverges", "ask")
    with pytest.raises(ReplayDiverged, match="patched") as caught:
        hf.answer(question.id, True)
    assert "waits" in str(caught.value)
    assert "changed='accept'" in str(caught.value)
    assert ran == []
    assert hf.get("r").status == "suspended"
    # The answer is there when the old code is back.
    define(before)
    assert hf.check() == []
    assert hf.resume("r").result == "deploy"


@pytest.mark.parametrize("how", [{"changed": "accept"}, {"from_address": "ask"}])
def test_accepted_code_asks_the_question_again(hf: Holdfast, how: dict[str, Any]) -> None:
    hf.run(define(ask_only), run_id="r")
    (question,) = hf.inbox()
    define(inserted)
    with pytest.raises(ReplayDiverged):
        hf.answer(question.id, True)
    run = hf.resume("r", **how)
    assert (run.status, ran) == ("suspended", ["migrate"])
    (again,) = hf.inbox()
    assert again.id != question.id
    assert "question.outdated" in [event.kind for event in run.events()]
    assert hf.answer(again.id, True).result == "deploy"


def test_inserted_code_under_patched_is_skipped(hf: Holdfast) -> None:
    hf.run(define(ask_only), run_id="r")
    (question,) = hf.inbox()

    def patched() -> Any:
        if holdfast.patched("migrate"):
            do("migrate")
        return ask_only()

    define(patched)
    assert hf.check() == []
    assert hf.answer(question.id, True).result == "deploy"
    assert ran == ["deploy"]


def test_call_before_an_awaited_signal_is_refused(hf: Holdfast) -> None:
    hf.run(define(lambda: holdfast.wait_for("paid")), run_id="r")
    define(lambda: [do("ship"), holdfast.wait_for("paid")])
    with pytest.raises(ReplayDiverged, match="the run waits at"):
        hf.signal("r", "paid", 1)
    assert ran == []


def test_questions_in_branches_are_expected_there(hf: Holdfast) -> None:
    async def branches(*before: str) -> Any:
        async def one(text: str) -> Any:
            for each in before:
                do(each)
            return await holdfast.ask(text)

        return await asyncio.gather(one("A?"), one("B?"))

    async def old() -> Any:
        return await branches()

    async def new() -> Any:
        return await branches("extra")

    hf.run(define(old), run_id="r")
    first, second = sorted(hf.inbox(), key=lambda question: question.text)
    assert hf.answer(second.id, "b").status == "suspended"
    define(new)
    (problem,) = hf.check()
    assert problem.kind == "diverges"
    with pytest.raises(ReplayDiverged):
        hf.answer(first.id, "a")
    assert ran == []
    define(old)
    assert hf.resume("r").result == ["a", "b"]


def test_call_before_a_question_is_allowed_after_a_state_edit(hf: Holdfast) -> None:
    def until_fine() -> Any:
        return do("deploy") if holdfast.state().get("fine") else holdfast.ask("Fine?")

    hf.run(define(until_fine), run_id="r")
    with hf.history("r").edit() as state:
        state["fine"] = True
    assert hf.check() == []
    (question,) = hf.inbox()
    assert hf.answer(question.id, "yes").result == "deploy"


def test_question_after_a_dropped_failure_is_not_expected(hf: Holdfast) -> None:
    broken = {"flaky"}

    @step(name="oq_flaky")
    def flaky() -> str:
        if "flaky" in broken:
            raise ConnectionError("down")
        return "up"

    def trying() -> Any:
        try:
            return flaky()
        except ConnectionError as error:
            if "handler" in broken:
                raise LookupError("no way to handle it") from error
            return holdfast.ask("Skip?")

    hf.run(define(trying), run_id="r")
    (question,) = hf.inbox()
    broken.add("handler")
    with pytest.raises(LookupError):
        hf.answer(question.id, "yes")
    broken.clear()
    assert hf.resume("r").result == "up"


@workflow(name="oq_part")
def part() -> Any:
    do("in part")
    return holdfast.ask("Deploy?")


def with_part() -> Any:
    return part()


@pytest.mark.parametrize("after", [removed, ended])
def test_call_in_place_of_a_waiting_child_is_refused(hf: Holdfast, after: Any) -> None:
    hf.run(define(with_part), run_id="r")
    (question,) = hf.inbox()
    define(after)
    (problem,) = [each for each in hf.check() if each.run == "r"]
    assert (problem.kind, problem.address) == ("diverges", "oq_part")
    with pytest.raises(ReplayDiverged):
        hf.answer(question.id, True)
    assert (hf.get("r").status, ran) == ("suspended", ["in part"])
    hf.resume("r", changed="accept")
    assert hf.get("r").status == "completed"
    # Nothing waits for the child any more.
    assert hf.get("r.oq_part").status == "cancelled"


def test_waiting_child_is_resumed_by_the_old_code(hf: Holdfast) -> None:
    hf.run(define(with_part), run_id="r")
    (question,) = hf.inbox()
    assert hf.answer(question.id, "yes").status == "completed"
    assert hf.get("r").result == "yes"
