"""A rollback or a fork starts a timeline that follows only the versions before it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import step_fixtures
import step_flows as f
from replay_flows import asking, layered
from step_fixtures import BOOKS
from step_flows import Broken, control

import holdfast
from holdfast import Holdfast, step, workflow

fresh, hf = step_fixtures.fresh, step_fixtures.hf


# Rollbacks and forks


@pytest.mark.parametrize("flow", BOOKS)
def test_rollback_starts_a_new_timeline(hf: Holdfast, flow: Any) -> None:
    run = hf.run(flow, "kelp", run_id="r")
    again = hf.rollback("r", to=2)
    assert again.result == "A+B"
    assert control.ran == ["plan", "write-a", "write-b", "finish", "write-a", "write-b", "finish"]
    versions = {version.number: version for version in run.history().versions()}
    assert sorted(versions) == list(range(1, 11))
    assert [versions[number].parent for number in (7, 8, 9, 10)] == [2, 7, 8, 9]
    assert [versions[number].timeline for number in (6, 7)] == [1, 2]
    assert versions[4].state == {"topic": "kelp", "texts": ["a", "b"]}
    assert versions[6].status == "completed"
    assert run.state == {"topic": "kelp", "texts": ["a", "b"], "done": True}


@step
def analyst(topic: str) -> str:
    control.did("analyst")
    holdfast.state()["topic"] = topic
    return f"on {topic}"


@step
def marketer(insight: str) -> str:
    control.did("marketer")
    holdfast.state()["slogan"] = insight.upper()
    return insight.upper()


def marketer_v2(insight: str) -> str:
    control.did("marketer_v2")
    holdfast.state()["slogan"] = f"{insight}!"
    return f"{insight}!"


@workflow
def strategy(topic: str) -> str:
    return marketer(analyst(topic))


def test_rollback_to_two_of_four_leaves_both_timelines_comparable(hf: Holdfast) -> None:
    run = hf.run(strategy, "kelp", run_id="r")
    assert run.head.number == 4
    again = hf.rollback("r", to=2, overrides={"marketer": marketer_v2}, reason="dull")
    assert again.result == "on kelp!"
    versions = run.history().versions()[::-1]
    assert [(version.number, version.parent) for version in versions] == [
        (1, None), (2, 1), (3, 2), (4, 3), (5, 2), (6, 5),
    ]  # fmt: skip
    assert run.history().at(3).result == "ON KELP"
    comparison = hf.compare("r@4", "r@6")
    assert [(pair.step, pair.same) for pair in comparison.steps] == [("marketer", False), (None, False)]
    assert [change.path for change in comparison.diff.changes] == [("slogan",)]
    assert control.ran == ["analyst", "marketer", "marketer_v2"]


def test_fork_runs_another_step_than_its_origin(hf: Holdfast) -> None:
    hf.run(strategy, "kelp", run_id="r")
    hf.fork("r", "other", at=2, overrides={"marketer": marketer_v2})
    assert hf.resume("other").result == "on kelp!"
    assert control.ran == ["analyst", "marketer", "marketer_v2"]
    assert hf.get("r").result == "ON KELP"
    assert hf.get("other").state == {"topic": "kelp", "slogan": "on kelp!"}
    comparison = hf.compare("r", "other")
    assert "slogan" in str(comparison)
    assert hf.resume("other").result == "on kelp!"
    hf.rollback("other", to=1)
    assert control.ran == ["analyst", "marketer", "marketer_v2", "marketer_v2"]


def test_fork_runs_with_its_edited_state(hf: Holdfast) -> None:
    run = hf.run(f.book, "kelp", run_id="r")

    def edit(state: Any) -> None:
        state["texts"].append("edited")

    hf.fork("r", "by-function", at=3, edit=edit)
    assert hf.resume("by-function").result == "A+B"
    assert hf.get("by-function").state["texts"] == ["a", "edited", "b"]
    hf.fork("r", "by-path", at=3, edit={"texts[0]": "A!"})
    assert hf.resume("by-path").result == "A+B"
    assert hf.get("by-path").state["texts"] == ["A!", "b"]
    hf.fork("r", "again", at=3, state={"texts": ["0"]})
    hf.resume("again")
    assert hf.get("again").state == {"texts": ["0", "b"], "done": True}
    assert run.state["texts"] == ["a", "b"]
    assert control.ran.count("plan") == 1


@workflow
def decides() -> str:
    outer_choice()
    return f.write(str(holdfast.state()["choice"]))


@step
def outer_choice() -> None:
    inner_choice()


@step
def inner_choice() -> None:
    holdfast.state()["choice"] = "first"


@workflow
def decides_flat() -> str:
    inner_choice()
    return f.write(str(holdfast.state()["choice"]))


@pytest.mark.parametrize(
    "flow",
    [
        "flat",
        "nested",
    ],
)
def test_workflow_sees_the_edited_state_of_its_fork(hf: Holdfast, flow: str) -> None:
    hf.run(decides_flat if flow == "flat" else decides, run_id="r")
    hf.fork("r", "edited", at=2 if flow == "flat" else 3, edit={"choice": "second"})
    assert hf.resume("edited").result == "SECOND"


def test_fork_of_a_fork_resumes(hf: Holdfast) -> None:
    hf.run(f.book, "kelp", run_id="r0")
    for turn in range(1, 6):
        hf.fork(f"r{turn - 1}", f"r{turn}", at=3 if turn == 1 else 1)
    assert hf.resume("r5").result == "A+B"
    assert control.ran.count("plan") == control.ran.count("write-a") == 1
    assert hf.get("r5").state == hf.get("r0").state


def test_step_after_a_rollback_does_not_see_rolled_back_state(hf: Holdfast) -> None:
    run = hf.run(f.book, "kelp", run_id="r")
    for _ in range(5):
        hf.rollback("r", to=2)
        assert run.state["texts"] == ["a", "b"]
    assert run.head.timeline == 6
    assert [version.number for version in run.history().ancestors()][-2:] == [2, 1]


# Time, random values, answers and events


@workflow
def lucky() -> list[Any]:
    first = [holdfast.now(), holdfast.uuid4(), holdfast.random()]
    f.write("a")
    second = [holdfast.now(), holdfast.uuid4(), holdfast.random(), drawn()]
    f.write("b")
    control.did("end")
    return [first, second]


@step
def drawn() -> Any:
    return holdfast.uuid4()


def test_time_and_random_values_are_replayed_only_from_the_current_timeline(hf: Holdfast) -> None:
    control.failing["end"] = 1
    run = hf.run(lucky, run_id="r", raises=False)
    assert isinstance(run.error, Broken)
    one = hf.resume("r").result
    hf.rollback("r", to=2)
    two = run.result
    assert two[0] == one[0]
    assert two[1][1] != one[1][1]
    assert two[1][3] != one[1][3]
    hf.rollback("r", to=1)
    three = run.result
    assert three[0] != one[0]
    hf.rollback("r", to=run.history().versions()[1].number)
    assert run.result == three


def test_random_values_before_a_failed_step_are_the_same_again(hf: Holdfast) -> None:
    """An order's number made by uuid4() must not change because placing the order failed."""

    @step(name="order")
    def order(number: str) -> str:
        control.ran.append(number)
        if len(control.ran) == 1:
            raise Broken("lost the answer")
        return number

    @workflow(name="ordering")
    def ordering() -> str:
        return order(str(holdfast.uuid4()))

    run = hf.run(ordering, raises=False)
    assert run.status == "failed"
    assert hf.resume(run.id).status == "completed"
    assert control.ran[0] == control.ran[1]


def test_answers_and_events_of_an_abandoned_timeline_do_not_leak(hf: Holdfast) -> None:
    run = hf.run(asking, run_id="r")
    assert run.status == "suspended"
    hf.answer(run.questions()[0].id, "yes")
    hf.signal("r", "go", {"n": 1})
    assert run.result == ["yes", {"n": 1}, "B"]
    hf.rollback("r", to=2)
    assert run.status == "suspended"
    hf.answer(run.questions()[0].id, "no")
    assert run.status == "suspended"
    hf.signal("r", "go", {"n": 2})
    assert run.result == ["no", {"n": 2}, "B"]
    assert control.ran == ["write-a", "write-b", "write-b"]


# From an address


def test_resume_from_an_address_runs_that_step_and_all_after_it_once(hf: Holdfast) -> None:
    run = hf.run(f.book, "kelp", run_id="r")
    control.ran.clear()
    again = hf.resume("r", from_address="write#2")
    assert again.result == "A+B"
    assert control.ran == ["write-b", "finish"]
    assert run.state["texts"] == ["a", "b"]
    control.ran.clear()
    assert hf.resume("r").result == "A+B"
    assert control.ran == []
    assert run.head.number == 9
    control.failing["finish"] = 1
    assert hf.resume("r", from_address="plan", raises=False).status == "failed"
    control.ran.clear()
    assert hf.resume("r").result == "A+B"
    assert control.ran == ["finish"]


def test_resume_from_an_address_works_in_a_nested_step(hf: Holdfast) -> None:
    run = hf.run(layered, run_id="r")
    control.ran.clear()
    assert hf.resume("r", from_address="top/sub#2").result == [["a1", "a2"], ["b1", "b2"]]
    assert control.ran == ["top-a", "sub-a2", "top-b", "sub-b1", "sub-b2"]
    assert run.state["subs"] == ["a1", "a2", "b1", "b2"]
    control.ran.clear()
    hf.resume("r")
    assert control.ran == []


def test_resume_from_an_address_works_for_a_step_with_inner_steps(hf: Holdfast) -> None:
    run = hf.run(layered, run_id="r")
    control.ran.clear()
    hf.resume("r", from_address="top#2")
    assert control.ran == ["top-b", "sub-b1", "sub-b2"]
    assert run.state["subs"] == ["a1", "a2", "b1", "b2"]


def test_resume_from_an_unrecorded_address_is_refused(hf: Holdfast) -> None:
    hf.run(f.book, "kelp", run_id="r")
    with pytest.raises(holdfast.NotFound, match="write#2"):
        hf.resume("r", from_address="nope")
    assert hf.get("r").status == "completed"


# In an event loop


@pytest.mark.parametrize("call", ["resume", "rollback"])
def test_call_refused_in_an_event_loop_leaves_the_run_unchanged(hf: Holdfast, call: str) -> None:
    run = hf.run(f.abook, "kelp", run_id="r")

    async def inside() -> None:
        with pytest.raises(holdfast.InvalidCall, match="await"):
            hf.resume("r", from_address="finish") if call == "resume" else hf.rollback("r", to=2)

    asyncio.run(inside())
    assert run.status == "completed"
    assert run.head.number == 6


def test_asynchronous_run_is_resumed_in_an_event_loop(hf: Holdfast) -> None:
    async def inside() -> None:
        control.failing["finish"] = 1
        run = await hf.arun(f.abook, "kelp", run_id="r", raises=False)
        assert run.status == "failed"
        assert (await hf.aresume("r")).result == "A+B"
        control.failing["finish"] = 1
        assert (await hf.aresume("r", from_address="finish", raises=False)).status == "failed"
        assert (await hf.aresume("r", mode="validate")).differences == ()
        assert (await hf.aresume("r")).result == "A+B"
        blocking = await hf.arun(f.book, "kelp")
        assert blocking.result == "A+B"

    asyncio.run(inside())
