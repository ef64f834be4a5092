"""Waiting: sleep, ask and wait_for free the process; a time, an answer or an event resumes the run, anywhere."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel

import holdfast
from holdfast import (
    Holdfast,
    InvalidAnswer,
    InvalidCall,
    NotFound,
    Run,
    StepTimeout,
    Suspended,
    UnsupportedValue,
    step,
    workflow,
)
from holdfast.store.base import Append


class Clock:
    """A clock that goes only when told."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", "memory"])
def hf(request: pytest.FixtureRequest, tmp_path: Path, clock: Clock) -> Iterator[Holdfast]:
    where = tmp_path / "runs.db" if request.param == "sqlite" else ":memory:"
    durability = "fast" if request.param == "sqlite" else "memory"
    with holdfast.open(where, durability=durability, clock=clock, redact=["*password*"]) as opened:
        yield opened


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def kinds(run: Run) -> list[str]:
    return [event.kind for event in run.events()]


def prompt_of(run: Run) -> str:
    (prompt,) = run.prompts()
    return prompt.id


CALLS: list[Any] = []


@pytest.fixture(autouse=True)
def _no_calls() -> None:
    CALLS.clear()


@step
def before(value: Any = "before") -> Any:
    CALLS.append(value)
    holdfast.state()["before"] = value
    return value


@step
def after(value: Any) -> Any:
    CALLS.append(value)
    return value


@step
async def aafter(value: Any) -> Any:
    CALLS.append(value)
    return value


@workflow
def wait_sleep(seconds: float) -> list[Any]:
    first = before()
    holdfast.sleep(seconds)
    return [first, after("woke")]


@workflow
async def wait_asleep(seconds: float) -> list[Any]:
    first = before()
    await holdfast.sleep(seconds)
    return [first, await aafter("woke")]


@workflow
def wait_ask(schema: Any = None, timeout: float | None = None) -> Any:
    before()
    answer = holdfast.ask("Publish?", schema=schema, timeout=timeout)
    return after([answer])


@workflow
async def wait_aask(schema: Any = None, timeout: float | None = None) -> Any:
    before()
    answer = await holdfast.ask("Publish?", schema=schema, timeout=timeout)
    return await aafter([answer])


@workflow
def wait_event(timeout: float | None = None) -> Any:
    before()
    return after([holdfast.wait_for("paid", timeout=timeout)])


@workflow
async def wait_aevent(timeout: float | None = None) -> Any:
    before()
    return await aafter([await holdfast.wait_for("paid", timeout=timeout)])


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


def test_the_time_of_a_sleep_counts_from_when_it_was_reached_first(hf: Holdfast, clock: Clock) -> None:
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


def test_a_sleep_of_nothing_does_not_suspend(hf: Holdfast) -> None:
    assert hf.run(wait_sleep, 0).result == ["before", "woke"]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", None, True])
def test_what_is_no_time_is_refused(hf: Holdfast, seconds: Any) -> None:
    run = hf.run(wait_sleep, seconds)
    assert run.status == "failed"
    assert isinstance(run.error, InvalidCall)


def test_wait_resumes_when_the_time_has_come() -> None:
    with holdfast.open(":memory:") as hf:
        run = hf.run(wait_sleep, 0.05)
        assert run.status == "suspended"
        assert run.wait(timeout=30) is run
        assert run.result == ["before", "woke"]


def test_wait_gives_up(hf: Holdfast) -> None:
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


# Asking


@pytest.mark.parametrize("which", [wait_ask, wait_aask])
def test_an_answer_resumes_the_run(hf: Holdfast, which: Any) -> None:
    run = hf.run(which)
    assert run.status == "suspended"
    (prompt,) = run.prompts()
    assert (prompt.run, prompt.question, prompt.address, prompt.schema) == (run.id, "Publish?", "ask", None)
    again = hf.answer(prompt.id, {"yes": 1}, actor="ada")
    assert again.id == run.id
    assert run.result == [{"yes": 1}]
    assert CALLS == ["before", [{"yes": 1}]]
    assert run.prompts() == []
    (answered,) = [event for event in run.events() if event.kind == "prompt.answered"]
    assert answered.data == {"prompt": prompt.id, "actor": "ada"}
    assert run.history().at(3).actor == "ada"


def test_an_answer_in_an_event_loop_waits_for_aresume(hf: Holdfast) -> None:
    async def main() -> Any:
        run = await hf.arun(wait_aask)
        assert run.status == "suspended"
        assert hf.answer(prompt_of(run), "yes").status == "suspended"
        return (await hf.aresume(run.id)).result

    assert asyncio.run(main()) == ["yes"]


def test_answering_without_resume_leaves_the_run_to_others(hf: Holdfast) -> None:
    run = hf.run(wait_ask)
    hf.answer(prompt_of(run), True, resume=False)
    assert run.status == "suspended"
    assert run.prompts() == []
    assert CALLS == ["before"]
    assert hf.resume(run.id).result == [True]


@pytest.mark.parametrize("value", [False, 0, 0.0, "", None, [], {}])
@pytest.mark.parametrize("way", ["answer", "kept", "answers", "send", "early"])
def test_falsy_values_survive(hf: Holdfast, value: Any, way: str) -> None:
    if way in ("answer", "kept", "answers"):
        run = hf.run(wait_ask)
        if way == "answers":
            hf.resume(run.id, answers={prompt_of(run): value})
        else:
            hf.answer(prompt_of(run), value, resume=way == "answer")
            hf.resume(run.id)
    else:
        run = hf.run(wait_event, run_id="falsy") if way == "send" else hf.run(wait_second, run_id="falsy")
        hf.send("falsy", "paid", value)
        if way == "early":
            hf.send("falsy", "first")
    assert repr(run.result) == repr([value])
    assert type(run.result[0]) is type(value)
    hf.rollback(run.id, to=run.head.number - 2, resume=True)
    assert repr(run.result) == repr([value])


@workflow
def wait_second() -> Any:
    holdfast.wait_for("first")
    return after([holdfast.wait_for("paid")])


def test_answering_twice_is_refused(hf: Holdfast) -> None:
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


def record(hf: Holdfast, run: Run) -> Any:
    """All that the store says about a run."""
    return hf._store.run(run.id), len(run.events())


@pytest.mark.parametrize("prompt", ["nobody#1", "nobody", "", "#", None, 5, "wait-ask#x"])
def test_a_prompt_that_is_not_there(hf: Holdfast, prompt: Any) -> None:
    hf.run(wait_ask, run_id="wait-ask")
    with pytest.raises(NotFound, match="there is no prompt"):
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
def test_wrong_answers_are_refused_with_the_reason_and_nothing_changes(
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


def test_an_answer_that_cannot_be_stored_is_refused(hf: Holdfast) -> None:
    run = hf.run(wait_ask)
    was = record(hf, run)
    with pytest.raises(UnsupportedValue):
        hf.answer(prompt_of(run), {"a": object()})
    assert record(hf, run) == was
    run = hf.run(wait_event)
    was = record(hf, run)
    with pytest.raises(UnsupportedValue):
        hf.send(run.id, "paid", [lambda: 1])
    assert record(hf, run) == was


def test_large_answers_and_events(hf: Holdfast) -> None:
    large = "x" * 200_000
    run = hf.run(wait_ask)
    hf.answer(prompt_of(run), {"text": large}, resume=False)
    assert hf.resume(run.id).result == [{"text": large}]
    run = hf.run(wait_event)
    hf.send(run.id, "paid", large, resume=False)
    assert hf.resume(run.id).result == [large]


@pytest.mark.parametrize("schema", [{"type": "nonsense"}, object(), 5])
def test_a_wanted_shape_that_is_none_fails_the_run(hf: Holdfast, schema: Any) -> None:
    @workflow(name="wait_bad_shape")
    def bad() -> Any:
        return holdfast.ask("Well?", schema=schema)

    run = hf.run(bad)
    assert run.status == "failed"
    assert isinstance(run.error, InvalidCall)
    assert hf.prompts() == []


def test_answers_for_questions_that_are_still_to_come(hf: Holdfast) -> None:
    @workflow(name="wait_two_questions")
    def two() -> Any:
        return [holdfast.ask("One?"), holdfast.ask("Two?"), holdfast.ask("Three?", key="third")]

    run = hf.run(two)
    assert hf.resume(run.id, answers={"ask": 1, "ask#2": 2, "ask[third]": 3}).result == [1, 2, 3]
    answered = [event.data["prompt"] for event in run.events() if event.kind == "prompt.answered"]
    assert answered == [f"{run.id}#1", f"{run.id}#2", f"{run.id}#3"]


def test_outside_a_run() -> None:
    with pytest.raises(InvalidCall, match="needs a run"):
        holdfast.ask("Well?")
    with pytest.raises(InvalidCall, match="needs a run"):
        holdfast.wait_for("paid")
    began = time.monotonic()
    holdfast.sleep(0.01)
    assert time.monotonic() - began >= 0.01


def test_prompts_of_the_whole_store(hf: Holdfast, clock: Clock) -> None:
    assert hf.prompts() == []
    runs = []
    for number in range(3):
        clock.now += 1
        runs.append(hf.run(wait_ask, {"type": "boolean"}, 60.0, run_id=f"r-{number}"))
    prompts = hf.prompts()
    assert [prompt.run for prompt in prompts] == ["r-0", "r-1", "r-2"]
    assert prompts[0].schema == {"type": "boolean"}
    assert prompts[0].due is not None
    assert (prompts[0].due - prompts[0].opened).total_seconds() == 60
    hf.answer(prompts[1].id, True)
    hf.cancel("r-0")
    assert [prompt.run for prompt in hf.prompts()] == ["r-2"]
    hf.pause("r-2")
    assert [prompt.run for prompt in hf.prompts()] == ["r-2"]
    hf.answer(prompts[2].id, False)
    assert runs[2].status == "paused"
    assert hf.resume("r-2").result == [False]


def test_a_prompt_that_was_withdrawn_is_refused(hf: Holdfast) -> None:
    run = hf.run(wait_ask)
    old = prompt_of(run)
    hf.rollback(run.id, to=2)
    new = prompt_of(run)
    assert new != old
    with pytest.raises(InvalidAnswer, match="not open any more"):
        hf.answer(old, "late")
    assert run.status == "suspended"
    hf.cancel(run.id)
    with pytest.raises(InvalidAnswer, match="not open any more"):
        hf.answer(new, "late")
    assert run.status == "cancelled"


def test_a_question_answered_on_an_abandoned_timeline_is_asked_again(hf: Holdfast) -> None:
    run = hf.run(wait_ask)
    first = prompt_of(run)
    hf.answer(first, "first")
    assert hf.rollback(run.id, to=2).status == "suspended"
    second = prompt_of(run)
    with pytest.raises(InvalidAnswer):
        hf.answer(first, "again")
    hf.answer(second, "second")
    assert run.result == ["second"]


@pytest.mark.parametrize("which", [wait_ask, wait_event])
def test_a_wait_that_takes_too_long_raises(hf: Holdfast, clock: Clock, which: Any) -> None:
    arguments = (None, 60.0) if which is wait_ask else (60.0,)
    run = hf.run(which, *arguments)
    clock.now += 59
    assert hf.resume(run.id).status == "suspended"
    clock.now += 1
    prompts = run.prompts()
    assert hf.resume(run.id).status == "failed"
    assert isinstance(run.error, StepTimeout)
    for prompt in prompts:
        with pytest.raises(InvalidAnswer, match="not open any more"):
            hf.answer(prompt.id, "late")
    # A failed run that is resumed waits anew.
    assert hf.resume(run.id).status == "suspended"
    if which is wait_ask:
        hf.answer(prompt_of(run), "yes")
    else:
        hf.send(run.id, "paid", "yes")
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
def test_a_timeout_that_was_handled_is_replayed(hf: Holdfast, clock: Clock, which: Any, what: str) -> None:
    run = hf.run(which, what)
    clock.now += 60
    assert hf.resume(run.id).status == "suspended"
    if what == "wait_for":
        hf.send(run.id, "paid", "too late")
    clock.now += 10
    expected = [f"StepTimeout at {'ask' if what == 'ask' else 'wait_for[paid]'}"]
    assert hf.resume(run.id).result == expected
    hf.rollback(run.id, to=2)
    clock.now += 10
    assert hf.resume(run.id).result == expected


# Events


@pytest.mark.parametrize("which", [wait_event, wait_aevent])
def test_an_event_resumes_the_run(hf: Holdfast, which: Any) -> None:
    run = hf.run(which)
    assert run.status == "suspended"
    hf.send(run.id, "other", 1)
    assert run.status == "suspended"
    hf.send(run.id, "paid", {"amount": 5}, actor="bank")
    assert run.result == [{"amount": 5}]
    assert run.history().at(3).actor == "bank"


def test_events_sent_before_are_kept_in_order(hf: Holdfast) -> None:
    @workflow(name="wait_several")
    def several() -> list[Any]:
        holdfast.ask("Go?")
        return [
            holdfast.wait_for("a"),
            holdfast.wait_for("b"),
            holdfast.wait_for("a"),
            holdfast.wait_for("a"),
        ]

    run = hf.run(several)
    for name, value in [("a", 1), ("a", 2), ("b", 3), ("a", 4)]:
        hf.send(run.id, name, value)
    hf.answer(prompt_of(run), True)
    assert run.result == [1, 3, 2, 4]
    assert [event.kind for event in run.events()].count("event.sent") == 4


@pytest.mark.parametrize("event", ["", None, 5])
def test_an_event_has_a_name(hf: Holdfast, event: Any) -> None:
    run = hf.run(wait_event)
    with pytest.raises(InvalidCall):
        hf.send(run.id, event)
    with pytest.raises(NotFound):
        hf.send("nobody", "paid")


@pytest.mark.parametrize("ended", ["completed", "cancelled"])
def test_an_ended_run_takes_no_events(hf: Holdfast, ended: str) -> None:
    run = hf.run(wait_event)
    if ended == "completed":
        hf.send(run.id, "paid")
    else:
        hf.cancel(run.id)
    with pytest.raises(InvalidCall, match=ended):
        hf.send(run.id, "paid")


@workflow
def wait_line() -> list[Any]:
    """Versions: 1 initial, 2 before, 3 first, 4 after, 5 paid, 6 final."""
    before()
    first = holdfast.wait_for("first")
    after("middle")
    return [first, holdfast.wait_for("paid")]


def test_events_of_an_abandoned_timeline_never_reach_the_new_one(hf: Holdfast) -> None:
    run = hf.run(wait_line)
    hf.send(run.id, "paid", "early")
    hf.send(run.id, "first", 1)
    assert run.result == [1, "early"]
    # "paid" was sent when the head was 2: after version 2, before version 3.
    assert hf.rollback(run.id, to=4).result == [1, "early"]
    assert hf.rollback(run.id, to=3).result == [1, "early"]
    assert hf.rollback(run.id, to=2).status == "suspended"
    hf.send(run.id, "first", 2)
    assert run.status == "suspended"
    assert CALLS == ["before", "middle", "middle", "middle"]
    hf.send(run.id, "paid", "new")
    assert run.result == [2, "new"]


def test_an_event_that_was_taken_before_the_target_is_not_given_again(hf: Holdfast) -> None:
    @workflow(name="wait_pair")
    def pair() -> list[Any]:
        before()
        holdfast.wait_for("go")
        one = holdfast.wait_for("paid")
        two = holdfast.wait_for("paid")
        return [one, two]

    run = hf.run(pair)
    for name, value in [("paid", 1), ("paid", 2), ("go", None)]:
        hf.send(run.id, name, value)
    assert run.result == [1, 2]
    # 1 initial, 2 before, 3 go, 4 paid, 5 paid, 6 final
    assert hf.rollback(run.id, to=4).result == [1, 2]
    assert hf.rollback(run.id, to=3).result == [1, 2]
    assert hf.rollback(run.id, to=5).result == [1, 2]


def test_events_in_a_fork_that_is_rolled_back(hf: Holdfast) -> None:
    origin = hf.run(wait_line, run_id="origin")
    hf.send("origin", "first", 1)
    hf.fork("origin", "fork", at=2)
    hf.resume("fork")
    hf.send("fork", "paid", "early")
    hf.send("fork", "first", "f")
    fork = hf.get("fork")
    assert fork.result == ["f", "early"]
    assert origin.status == "suspended"
    middle = next(v.number for v in fork.history().versions() if v.step == "after")
    assert hf.rollback("fork", to=middle).result == ["f", "early"]


def test_an_event_that_comes_while_another_is_taken_is_not_taken_twice(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @workflow(name="wait_many")
    def many() -> list[Any]:
        holdfast.ask("Go?")
        return [holdfast.wait_for("paid"), holdfast.wait_for("paid")]

    run = hf.run(many)
    hf.send(run.id, "paid", 1)
    interrupt(hf, monkeypatch, "wait_for", lambda: hf.send(run.id, "paid", 2, resume=False))
    hf.answer(prompt_of(run), True)
    assert run.result == [1, 2]


def interrupt(hf: Holdfast, patch: pytest.MonkeyPatch, what: str, act: Callable[[], Any]) -> None:
    """Do something right before a version of this step, or a status, is written for the first time."""
    append = hf._store.append
    waiting = [act]

    def interrupted(change: Append) -> Any:
        name = change.version.step if change.version is not None else change.run.status
        if name == what and waiting:
            waiting.pop()()
        return append(change)

    patch.setattr(hf._store, "append", interrupted)


@pytest.mark.parametrize("kind", ["event", "cancel", "pause"])
def test_word_that_comes_in_the_moment_of_suspending_is_not_lost(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    acts: dict[str, Callable[[], Any]] = {
        "event": lambda: hf.send("r", "paid", 1),
        "cancel": lambda: hf.cancel("r"),
        "pause": lambda: hf.pause("r"),
    }
    interrupt(hf, monkeypatch, "suspended", acts[kind])
    run = hf.run(wait_event, run_id="r")
    expected = {"event": "completed", "cancel": "cancelled", "pause": "paused"}[kind]
    if kind == "event":
        run = run.wait(timeout=5)
    assert run.status == expected


# Several at once


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
def test_several_waits_at_once(hf: Holdfast, clock: Clock, which: Any, order: tuple[str, str]) -> None:
    run = hf.run(which)
    assert run.status == "suspended"
    found = {prompt.address.rpartition("[")[2][:-1]: prompt.id for prompt in run.prompts()}
    assert set(found) == {"one", "two"}
    hf.answer(found[order[0]], order[0].upper())
    assert run.status == "suspended"
    assert len(run.prompts()) == 1
    hf.send(run.id, "paid", 3)
    assert run.status == "suspended"
    hf.answer(found[order[1]], order[1].upper())
    assert run.status == "suspended"
    assert run.prompts() == []
    clock.now += 50
    assert hf.resume(run.id).result == [["one", "ONE"], ["two", "TWO"], ["three", 3], None]
    assert len(CALLS) == 3


def test_both_answers_given_before_the_run_goes_on(hf: Holdfast, clock: Clock) -> None:
    run = hf.run(wait_beside)
    for prompt in run.prompts():
        hf.answer(prompt.id, prompt.question, resume=False)
    hf.send(run.id, "paid", 3, resume=False)
    clock.now += 50
    assert hf.resume(run.id).result == [["one", "One?"], ["two", "Two?"], ["three", 3], None]


def test_a_question_is_seen_and_answered_while_another_branch_works(hf: Holdfast) -> None:
    going = threading.Event()

    @step(name="wait_long")
    def long() -> str:
        assert going.wait(30)
        return "worked"

    @workflow(name="wait_while")
    def whole() -> Any:
        return holdfast.parallel(long, lambda: holdfast.ask("Well?"))

    run_id = "while"
    thread = threading.Thread(target=hf.run, args=(whole,), kwargs={"run_id": run_id})
    thread.start()
    try:
        until(hf.prompts)
        hf.answer(hf.prompts()[0].id, "yes")
    finally:
        going.set()
        thread.join()
    assert hf.get(run_id).wait(timeout=10).result == ["worked", "yes"]


def test_an_answer_given_while_another_branch_works_resumes_the_run(hf: Holdfast) -> None:
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
        until(hf.prompts)
        hf.answer(hf.prompts()[0].id, "yes")
    finally:
        going.set()
        thread.join()
    assert hf.get("while").status == "completed"


def test_a_branch_goes_on_while_another_waits(hf: Holdfast) -> None:
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


def test_what_is_done_finally_is_not_done_while_the_run_waits(hf: Holdfast) -> None:
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


# In steps and children


@step
def wait_inside(topic: str) -> Any:
    CALLS.append("inside")
    holdfast.state()["inside"] = holdfast.state().get("inside", 0) + 1
    before(topic)
    return [holdfast.ask(f"{topic}?"), holdfast.wait_for("paid")]


@workflow
def wait_in_step() -> Any:
    return wait_inside("cats")


def test_waits_inside_a_step(hf: Holdfast) -> None:
    run = hf.run(wait_in_step)
    assert run.status == "suspended"
    assert "inside" not in run.state
    assert run.prompts()[0].address == "wait_inside/ask"
    hf.answer(prompt_of(run), "yes")
    assert run.status == "suspended"
    hf.send(run.id, "paid", 5)
    assert run.result == ["yes", 5]
    assert run.state == {"before": "cats", "inside": 1}
    assert CALLS == ["inside", "cats", "inside", "inside"]


@step(timeout=30)
def wait_timed_step() -> Any:
    return holdfast.ask("Well?")


@workflow
def wait_in_timed_step() -> Any:
    return wait_timed_step()


def test_a_wait_inside_a_step_with_a_timeout(hf: Holdfast) -> None:
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
def test_the_answer_of_a_child_resumes_its_parent(hf: Holdfast, which: Any) -> None:
    run = hf.run(which)
    assert run.status == "suspended"
    (prompt,) = hf.prompts()
    assert prompt.run in run.children
    hf.answer(prompt.id, "yes")
    assert hf.get(prompt.run).result == ["cats", "yes"]
    (second,) = hf.prompts()
    assert second.run == run.id
    hf.answer(second.id, "indeed")
    assert run.result == [["cats", "yes"], "indeed"]


def test_waiting_for_a_run_whose_child_waits_is_quiet(hf: Holdfast) -> None:
    run = hf.run(wait_parent)
    with pytest.raises(StepTimeout):
        run.wait(timeout=0.2)
    assert kinds(run).count("run.resumed") == 0
    hf.resume(run.id)
    (child,) = run.children
    assert kinds(hf.get(child)).count("run.resumed") == 0


def test_the_sleep_of_a_child_wakes_its_parent(hf: Holdfast, clock: Clock) -> None:
    @workflow(name="wait_sleepy_parent")
    def parent() -> Any:
        return wait_sleep(60)

    run = hf.run(parent)
    record = hf._store.run(run.id)
    assert record is not None
    assert record.due == int((clock.now + 60) * 1e6)
    clock.now += 60
    assert run.wait(timeout=10).result == ["before", "woke"]


def test_an_answer_to_a_child_does_not_wake_a_paused_parent(hf: Holdfast) -> None:
    run = hf.run(wait_parent)
    hf.pause(run.id)
    hf.answer(hf.prompts()[0].id, "yes")
    assert run.status == "paused"
    hf.resume(run.id)
    assert run.status == "suspended"
    hf.answer(prompt_of(run), "indeed")
    assert run.result == [["cats", "yes"], "indeed"]


# Secrets


def test_secrets_in_answers_and_events_are_never_stored(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db", durability="fast", redact=["*password*"]) as hf:
        for way in ("answer", "answers", "send", "early"):
            secret = {"password": f"hunter-{way}", "user": "ada"}
            if way in ("answer", "answers"):
                run = hf.run(wait_ask)
                if way == "answer":
                    hf.answer(prompt_of(run), secret)
                else:
                    hf.resume(run.id, answers={"ask": secret})
            else:
                run = hf.run(wait_event if way == "send" else wait_second)
                hf.send(run.id, "paid", secret)
                if way == "early":
                    hf.send(run.id, "first")
            assert run.status == "completed"
            (found,) = run.result
            assert found["user"] == "ada"
            assert "hunter" not in found["password"]
            assert "hunter" not in repr(CALLS)
            assert "hunter" not in repr(run.events())
    data = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"ada" in data or data
    assert b"hunter" not in data


# Other processes

PROGRAM = """
import json, sys
import holdfast
from holdfast import step, workflow

@step
def effect(name):
    with open(sys.argv[1] + ".effects", "a") as file:
        file.write(name + "\\n")
    return name

@workflow
def leaves_and_waits(topic):
    effect("first")
    answer = holdfast.ask(f"{topic}?", schema=bool)
    effect("second")
    amount = holdfast.wait_for("paid")
    effect("third")
    holdfast.sleep(0.01)
    return [topic, answer, amount]

@workflow
async def aleaves_and_waits(topic):
    effect("first")
    answer = await holdfast.ask(f"{topic}?", schema=bool)
    effect("second")
    amount = await holdfast.wait_for("paid")
    effect("third")
    await holdfast.sleep(0.01)
    return [topic, answer, amount]

with holdfast.open(sys.argv[1], durability="fast") as hf:
    do, rest = sys.argv[2], sys.argv[3:]
    if do == "run":
        run = hf.run(rest[0], "cats", run_id="a-b-c")
    elif do == "answer":
        run = hf.answer("a-b-c#1", json.loads(rest[0]))
    elif do == "send":
        run = hf.send("a-b-c", "paid", json.loads(rest[0]))
    elif do == "wait":
        run = hf.get("a-b-c").wait(30)
    print(json.dumps([run.status, run.result if run.status == "completed" else None]))
"""


@pytest.mark.parametrize("name", ["leaves_and_waits", "aleaves_and_waits"])
def test_the_process_may_exit_while_a_run_waits(tmp_path: Path, name: str) -> None:
    file = tmp_path / "runs.db"

    def process(*arguments: str) -> Any:
        command = [sys.executable, "-c", PROGRAM, str(file), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    assert process("run", name) == ["suspended", None]
    # This process does not know the workflow: it leaves the answer for one that does.
    with holdfast.open(file, durability="fast") as hf:
        (prompt,) = hf.prompts()
        assert (prompt.id, prompt.question) == ("a-b-c#1", "cats?")
        with pytest.raises(InvalidAnswer):
            hf.answer(prompt.id, "yes")
        assert hf.answer(prompt.id, False).status == "suspended"
        hf.send("a-b-c", "paid", 0)
    assert process("wait") == ["completed", ["cats", False, 0]]
    assert Path(f"{file}.effects").read_text().split() == ["first", "second", "third"]
