"""Waiting in branches: several waits at once, and waits beside work."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
import waiting_flows
from waiting_flows import CALLS, Clock, aafter, after, prompt_of

import holdfast
from holdfast import Holdfast, Run, step, workflow
from patience import until

no_calls, clock, hf = waiting_flows.no_calls, waiting_flows.clock, waiting_flows.hf


@workflow
def wait_beside() -> Any:
    return holdfast.parallel(
        lambda: after(["one", holdfast.ask("One?", key="one")]),
        lambda: after(["two", holdfast.ask("Two?", key="two")]),
        lambda: after(["three", holdfast.wait_for("paid")]),
        lambda: holdfast.sleep(50),
    )


@workflow
async def wait_abeside() -> Any:
    async def ask(what: str) -> Any:
        return await aafter([what, await holdfast.ask("Well?", key=what)])

    async def event() -> Any:
        return await aafter(["three", await holdfast.wait_for("paid")])

    return await asyncio.gather(ask("one"), ask("two"), event(), holdfast.sleep(50))


@pytest.mark.parametrize("which", [wait_beside, wait_abeside])
@pytest.mark.parametrize("order", [("one", "two"), ("two", "one")])
def test_parallel_branches_may_wait_at_once(
    hf: Holdfast, clock: Clock, which: Any, order: tuple[str, str]
) -> None:
    run = hf.run(which)
    assert run.status == "suspended"
    found = {prompt.address.rpartition("[")[2][:-1]: prompt.id for prompt in run.questions()}
    assert set(found) == {"one", "two"}
    hf.answer(found[order[0]], order[0].upper())
    assert run.status == "suspended"
    assert len(run.questions()) == 1
    hf.signal(run.id, "paid", 3)
    assert run.status == "suspended"
    hf.answer(found[order[1]], order[1].upper())
    assert run.status == "suspended"
    assert run.questions() == []
    clock.now += 50
    assert hf.resume(run.id).result == [["one", "ONE"], ["two", "TWO"], ["three", 3], None]
    assert len(CALLS) == 3


def test_run_resumes_with_two_answers_at_once(hf: Holdfast, clock: Clock) -> None:
    run = hf.run(wait_beside)
    for prompt in run.questions():
        hf.answer(prompt.id, prompt.text, resume=False)
    hf.signal(run.id, "paid", 3, resume=False)
    clock.now += 50
    assert hf.resume(run.id).result == [["one", "One?"], ["two", "Two?"], ["three", 3], None]


def answered_while_a_branch_works(hf: Holdfast) -> Run:
    """A run of two branches, when both are over: one asked and was answered before the other had done its work."""
    going = threading.Event()

    @step(name="wait_long")
    def long() -> str:
        assert going.wait(30)
        return "worked"

    @workflow(name="wait_while")
    def whole() -> Any:
        return holdfast.parallel(long, lambda: holdfast.ask("Well?"))

    thread = threading.Thread(target=hf.run, args=(whole,), kwargs={"run_id": "while"})
    thread.start()
    try:
        until(hf.inbox)
        hf.answer(hf.inbox()[0].id, "yes")
    finally:
        going.set()
        thread.join()
    return hf.get("while")


def test_question_can_be_answered_while_another_branch_works(hf: Holdfast) -> None:
    assert answered_while_a_branch_works(hf).wait(timeout=10).result == ["worked", "yes"]


def test_answer_while_another_branch_works_completes_the_run(hf: Holdfast) -> None:
    assert answered_while_a_branch_works(hf).status == "completed"


def test_branch_continues_while_another_waits(hf: Holdfast) -> None:
    asked = threading.Event()

    @workflow(name="wait_go_on")
    def whole() -> Any:
        def work() -> list[Any]:
            assert asked.wait(30)
            return [after(number) for number in range(3)]

        def ask() -> Any:
            try:
                return holdfast.ask("Well?")
            finally:
                asked.set()

        return holdfast.parallel(work, ask)

    run = hf.run(whole)
    assert run.status == "suspended"
    assert CALLS == [0, 1, 2]
    hf.answer(prompt_of(run), "yes")
    assert run.result == [[0, 1, 2], "yes"]
    assert CALLS == [0, 1, 2]


def test_finally_block_does_not_run_while_the_run_waits(hf: Holdfast) -> None:
    @workflow(name="wait_finally")
    def whole() -> Any:
        try:
            return holdfast.ask("Well?")
        finally:
            after("finally")
            holdfast.ask("Sure?")

    run = hf.run(whole)
    assert CALLS == []
    hf.answer(prompt_of(run), "yes")
    assert CALLS == ["finally"]
    hf.answer(prompt_of(run), "sure")
    assert run.result == "yes"
