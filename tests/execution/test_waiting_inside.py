"""Waiting inside a step or a child: the run waits as a whole, and goes on where it was."""

from __future__ import annotations

from typing import Any

import pytest
import waiting_flows
from run_fixtures import kinds
from waiting_flows import CALLS, Clock, aafter, after, before, prompt_of, wait_sleep

import holdfast
from holdfast import Holdfast, StepTimeout, step, workflow

no_calls, clock, hf = waiting_flows.no_calls, waiting_flows.clock, waiting_flows.hf


@step
def wait_inside(topic: str) -> Any:
    CALLS.append("inside")
    holdfast.state()["inside"] = holdfast.state().get("inside", 0) + 1
    before(topic)
    return [holdfast.ask(f"{topic}?"), holdfast.wait_for("paid")]


@workflow
def wait_in_step() -> Any:
    return wait_inside("cats")


def test_step_may_wait(hf: Holdfast) -> None:
    run = hf.run(wait_in_step)
    assert run.status == "suspended"
    assert "inside" not in run.state
    assert run.questions()[0].address == "wait_inside/ask"
    hf.answer(prompt_of(run), "yes")
    assert run.status == "suspended"
    hf.signal(run.id, "paid", 5)
    assert run.result == ["yes", 5]
    assert run.state == {"before": "cats", "inside": 1}
    assert CALLS == ["inside", "cats", "inside", "inside"]


@step(timeout=30)
def wait_timed_step() -> Any:
    return holdfast.ask("Well?")


@workflow
def wait_in_timed_step() -> Any:
    return wait_timed_step()


def test_step_with_a_timeout_may_wait(hf: Holdfast) -> None:
    run = hf.run(wait_in_timed_step)
    assert run.status == "suspended"
    hf.answer(prompt_of(run), "yes")
    assert run.result == "yes"


@workflow
def wait_child(topic: str) -> Any:
    before(topic)
    return [topic, holdfast.ask(f"{topic}?")]


@workflow
def wait_parent() -> Any:
    return after([wait_child("cats"), holdfast.ask("And?")])


@workflow
async def wait_achild(topic: str) -> Any:
    return [topic, await holdfast.ask(f"{topic}?")]


@workflow
async def wait_aparent() -> Any:
    return await aafter([await wait_achild("cats"), await holdfast.ask("And?")])


@pytest.mark.parametrize("which", [wait_parent, wait_aparent])
def test_answer_to_a_child_resumes_its_parent(hf: Holdfast, which: Any) -> None:
    run = hf.run(which)
    assert run.status == "suspended"
    (prompt,) = hf.inbox()
    assert prompt.run in run.children
    hf.answer(prompt.id, "yes")
    assert hf.get(prompt.run).result == ["cats", "yes"]
    (second,) = hf.inbox()
    assert second.run == run.id
    hf.answer(second.id, "indeed")
    assert run.result == [["cats", "yes"], "indeed"]


def test_wait_for_a_run_whose_child_waits_does_not_resume_it(hf: Holdfast) -> None:
    run = hf.run(wait_parent)
    with pytest.raises(StepTimeout):
        run.wait(timeout=0.2)
    assert kinds(run).count("run.resumed") == 0
    hf.resume(run.id)
    (child,) = run.children
    assert kinds(hf.get(child)).count("run.resumed") == 0


def test_sleep_of_a_child_resumes_its_parent(hf: Holdfast, clock: Clock) -> None:
    @workflow(name="wait_sleepy_parent")
    def parent() -> Any:
        return wait_sleep(60)

    run = hf.run(parent)
    record = hf._store.run(run.id)
    assert record is not None
    assert record.due == int((clock.now + 60) * 1e6)
    clock.now += 60
    assert run.wait(timeout=10).result == ["before", "woke"]


def test_answer_to_a_child_does_not_resume_a_paused_parent(hf: Holdfast) -> None:
    run = hf.run(wait_parent)
    hf.pause(run.id)
    hf.answer(hf.inbox()[0].id, "yes")
    assert run.status == "paused"
    hf.resume(run.id)
    assert run.status == "suspended"
    hf.answer(prompt_of(run), "indeed")
    assert run.result == [["cats", "yes"], "indeed"]
