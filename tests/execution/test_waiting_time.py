"""Waiting for a time: sleep frees the process until then, and a wait with a timeout ends by itself."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import waiting_flows
from run_fixtures import kinds
from waiting_flows import (
    CALLS,
    Clock,
    aafter,
    after,
    prompt_of,
    wait_ask,
    wait_asleep,
    wait_event,
    wait_sleep,
)

import holdfast
from holdfast import Holdfast, InvalidAnswer, InvalidCall, StepTimeout, Suspended, workflow

no_calls, clock, hf = waiting_flows.no_calls, waiting_flows.clock, waiting_flows.hf


# Sleeping


@pytest.mark.parametrize("which", [wait_sleep, wait_asleep])
def test_sleep_suspends_until_its_time(hf: Holdfast, clock: Clock, which: Any) -> None:
    run = hf.run(which, 3600)
    assert run.status == "suspended"
    assert CALLS == ["before"]
    with pytest.raises(Suspended):
        _ = run.result
    clock.now += 3599
    assert hf.resume(run.id).status == "suspended"
    assert kinds(run).count("run.resumed") == 0
    clock.now += 1
    assert hf.resume(run.id).result == ["before", "woke"]
    assert CALLS == ["before", "woke"]
    steps = [version.step for version in reversed(run.history().versions())]
    assert steps == [None, "before", "after" if which is wait_sleep else "aafter", None]


def test_sleep_counts_from_when_it_was_first_reached(hf: Holdfast, clock: Clock) -> None:
    @workflow(name="wait_twice")
    def twice() -> str:
        holdfast.sleep(10)
        holdfast.sleep(10)
        return "done"

    run = hf.run(twice)
    clock.now += 12
    assert hf.resume(run.id).status == "suspended"
    clock.now += 9
    assert hf.resume(run.id).status == "suspended"
    clock.now += 1
    assert hf.resume(run.id).result == "done"


def test_sleep_of_zero_does_not_suspend(hf: Holdfast) -> None:
    assert hf.run(wait_sleep, 0).result == ["before", "woke"]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", None, True])
def test_sleep_refuses_invalid_times(hf: Holdfast, seconds: Any) -> None:
    run = hf.run(wait_sleep, seconds, raises=False)
    assert run.status == "failed"
    assert isinstance(run.error, InvalidCall)


def test_wait_resumes_the_run_at_its_time() -> None:
    with holdfast.open(":memory:") as hf:
        run = hf.run(wait_sleep, 0.05)
        assert run.status == "suspended"
        assert run.wait(timeout=30) is run
        assert run.result == ["before", "woke"]


def test_wait_raises_after_its_timeout(hf: Holdfast) -> None:
    run = hf.run(wait_ask)
    with pytest.raises(StepTimeout, match="still suspended"):
        run.wait(timeout=0.01)
    assert run.status == "suspended"


def test_wait_returns_when_another_thread_answers(hf: Holdfast) -> None:
    run = hf.run(wait_ask)
    thread = threading.Thread(target=hf.answer, args=(prompt_of(run), "yes"))
    thread.start()
    assert run.wait(timeout=30).result == ["yes"]
    thread.join()


# Timeouts of other waits


@pytest.mark.parametrize("which", [wait_ask, wait_event])
def test_wait_whose_time_is_over_fails_the_run(hf: Holdfast, clock: Clock, which: Any) -> None:
    arguments = (None, 60.0) if which is wait_ask else (60.0,)
    run = hf.run(which, *arguments)
    clock.now += 59
    assert hf.resume(run.id).status == "suspended"
    questions = run.questions()
    assert len(questions) == (which is wait_ask)
    clock.now += 1
    assert hf.resume(run.id, raises=False).status == "failed"
    assert isinstance(run.error, StepTimeout)
    for question in questions:
        with pytest.raises(InvalidAnswer, match="no longer open"):
            hf.answer(question.id, "late")
    # A failed run that is resumed waits again.
    assert hf.resume(run.id).status == "suspended"
    if which is wait_ask:
        hf.answer(prompt_of(run), "yes")
    else:
        hf.signal(run.id, "paid", "yes")
    assert run.result == ["yes"]


@workflow
def wait_patience(what: str) -> Any:
    try:
        found = holdfast.ask("Well?", timeout=60) if what == "ask" else holdfast.wait_for("paid", timeout=60)
    except TimeoutError as error:
        found = f"{type(error).__name__} at {error.details['address']}"  # type: ignore[attr-defined]
    holdfast.sleep(10)
    return after([found])


@workflow
async def wait_apatience(what: str) -> Any:
    try:
        waiting = (
            holdfast.ask("Well?", timeout=60) if what == "ask" else holdfast.wait_for("paid", timeout=60)
        )
        found = await waiting
    except TimeoutError as error:
        found = f"{type(error).__name__} at {error.details['address']}"  # type: ignore[attr-defined]
    await holdfast.sleep(10)
    return await aafter([found])


@pytest.mark.parametrize("which", [wait_patience, wait_apatience])
@pytest.mark.parametrize("what", ["ask", "wait_for"])
def test_handled_timeout_is_replayed(hf: Holdfast, clock: Clock, which: Any, what: str) -> None:
    run = hf.run(which, what)
    clock.now += 60
    assert hf.resume(run.id).status == "suspended"
    if what == "wait_for":
        hf.signal(run.id, "paid", "too late")
    clock.now += 10
    expected = ["QuestionTimeout at ask" if what == "ask" else "StepTimeout at wait_for[paid]"]
    assert hf.resume(run.id).result == expected
    hf.rollback(run.id, to=2)
    clock.now += 10
    assert hf.resume(run.id).result == expected
