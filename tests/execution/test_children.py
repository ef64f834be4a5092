"""Child workflows: runs of their own, linked to their parent, and found again by a resume."""

from __future__ import annotations

import asyncio
from typing import Any

import child_flows
import pytest
import run_fixtures
from child_flows import CALLS, Odd, child_ainner, child_aouter, child_inner, child_outer, child_work
from run_fixtures import kinds

import holdfast
from holdfast import AlreadyExists, Holdfast, InvalidAnswer, step, workflow

hf, no_calls = run_fixtures.hf, child_flows.no_calls


@pytest.mark.parametrize("which", [child_outer, child_aouter])
def test_child_is_a_run_of_its_own(hf: Holdfast, which: Any) -> None:
    run = hf.run(which, 5, run_id="a-b")
    assert run.result == {"inner": [5], "last": "last"}
    assert run.parent is None
    (name,) = run.children
    child = hf.get(name)
    assert child.parent == "a-b"
    assert child.children == []
    assert child.status == "completed"
    assert child.result == [5]
    assert kinds(child) == ["run.started", "step.completed", "run.completed"]
    # Once in the parent, like a step.
    assert kinds(run) == ["run.started", *["step.completed"] * 3, "run.completed"]
    assert run.history().at(3).result == [5]
    assert CALLS == ["outer", 5, "last"]


def test_child_state_is_separate_from_its_parents(hf: Holdfast) -> None:
    run = hf.run(child_outer, 5, state={"mine": 1})
    assert run.state == {"mine": 1, "did": "last"}
    assert hf.get(run.children[0]).state == {"did": 5}


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}])
def test_child_result_is_replayed_exactly(hf: Holdfast, value: Any) -> None:
    @workflow(name="child_gives")
    def gives() -> Any:
        CALLS.append("gives")
        return value

    fail = [True]

    @workflow(name="child_takes")
    def takes() -> Any:
        found = gives()
        if fail:
            raise Odd("not yet")
        return [found]

    run = hf.run(takes, raises=False)
    assert run.status == "failed"
    fail.clear()
    assert hf.resume(run.id).result == [value]
    assert type(run.result[0]) is type(value)
    assert CALLS == ["gives"]
    assert len(run.children) == 1


def test_child_calls_in_loops_and_in_parallel_are_separate_runs(hf: Holdfast) -> None:
    @workflow(name="child_loop")
    def loop() -> Any:
        return [*(child_inner(n) for n in range(3)), *holdfast.parallel((child_inner, 3), (child_inner, 4))]

    run = hf.run(loop)
    assert run.result == [[0], [1], [2], [3], [4]]
    assert len(set(run.children)) == 5
    assert {hf.get(name).parent for name in run.children} == {run.id}


def test_children_run_concurrently_in_asyncio(hf: Holdfast) -> None:
    @workflow(name="child_gather")
    async def gather() -> Any:
        return await asyncio.gather(*(child_ainner(n) for n in range(20)))

    run = hf.run(gather)
    assert run.result == [[n] for n in range(20)]
    assert len(set(run.children)) == 20


def test_child_that_is_synchronous_runs_in_an_asynchronous_parent(hf: Holdfast) -> None:
    @workflow(name="child_mixed")
    async def mixed() -> Any:
        return child_inner(1)

    run = hf.run(mixed)
    assert run.result == [1]
    assert len(run.children) == 1


def test_child_is_found_again_by_a_resume(hf: Holdfast) -> None:
    broken = [True]

    @step(name="child_flaky")
    def flaky() -> str:
        CALLS.append("flaky")
        if broken:
            raise Odd("broken", 7)
        return "mended"

    @workflow(name="child_fails")
    def fails() -> Any:
        return [child_work("once"), flaky()]

    @workflow(name="child_failed_parent")
    def parent() -> Any:
        child_work("first")
        return fails()

    run = hf.run(parent, raises=False)
    assert run.status == "failed"
    assert isinstance(run.error, Odd)
    assert run.error.args == ("broken", 7)
    (name,) = run.children
    assert hf.get(name).status == "failed"
    hf.resume(run.id, raises=False)
    assert run.status == "failed"
    assert isinstance(run.error, Odd)
    broken.clear()
    assert hf.resume(run.id).result == ["once", "mended"]
    assert run.children == [name]
    assert CALLS == ["first", "once", "flaky", "flaky", "flaky"]
    assert hf.resume(run.id).result == ["once", "mended"]
    assert len(CALLS) == 5


@pytest.mark.parametrize("change", [None, "prompt", "api_key"])
def test_child_with_containers_as_arguments_is_resumed_by_its_parent(
    hf: Holdfast, change: str | None
) -> None:
    is_broken = True

    @workflow(name="with_containers")
    def with_containers(items: list[Any], prompt: dict[str, Any], api_key: str) -> int:
        if is_broken:
            raise RuntimeError("broken")
        return len(items)

    @workflow(name="calls_with_containers")
    def calls_with_containers() -> int:
        return with_containers([None, ("a", 1), {"b": [2]}], {"text": ["c"]}, "secret")

    assert hf.run(calls_with_containers, run_id="r", raises=False).status == "failed"
    if change is not None:
        hf.change_redaction(add=[change])
    is_broken = False
    assert hf.resume("r").result == 3


def test_child_that_was_resumed_separately_is_replayed_by_its_parent(hf: Holdfast) -> None:
    broken = [True]

    @step(name="child_flaky")
    def flaky() -> str:
        if broken:
            raise Odd("broken")
        return "mended"

    @workflow(name="child_fails")
    def fails() -> Any:
        return flaky()

    @workflow(name="child_failed_parent")
    def parent() -> Any:
        return fails()

    run = hf.run(parent, raises=False)
    broken.clear()
    assert hf.resume(run.children[0]).result == "mended"
    assert run.status == "failed"
    assert hf.resume(run.id).result == "mended"


def test_child_failure_can_be_handled_by_its_parent(hf: Holdfast) -> None:
    @workflow(name="child_fails")
    def fails() -> Any:
        CALLS.append("fails")
        raise Odd("no", {"code": 3})

    later = [True]

    @workflow(name="child_lives")
    def lives() -> Any:
        try:
            fails()
        except Odd as error:
            found = error.args
        child_work("handled")
        if later:
            raise RuntimeError("later")
        return found

    run = hf.run(lives, raises=False)
    assert run.status == "failed"
    assert isinstance(run.error, RuntimeError)
    later.clear()
    assert hf.resume(run.id).result == ("no", {"code": 3})
    assert CALLS == ["fails", "handled"]


def test_children_nest_three_levels_deep(hf: Holdfast) -> None:
    @workflow(name="child_three")
    def three() -> Any:
        return child_work(holdfast.ask("Deep?"))

    @workflow(name="child_two")
    def two() -> Any:
        return [three()]

    @workflow(name="child_one")
    def one() -> Any:
        return [two()]

    run = hf.run(one)
    assert run.status == "suspended"
    middle = hf.get(run.children[0])
    deep = hf.get(middle.children[0])
    assert (middle.status, deep.status) == ("suspended", "suspended")
    hf.answer(hf.inbox()[0].id, "yes")
    assert run.result == [["yes"]]
    assert (middle.status, deep.status) == ("completed", "completed")
    assert CALLS == ["yes"]
    fourth = hf.run(one)
    hf.cancel(fourth.id)
    assert hf.inbox() == []
    assert hf.get(hf.get(fourth.children[0]).children[0]).status == "cancelled"


def test_child_id_is_shortened_if_it_is_too_long(hf: Holdfast) -> None:
    long = "x" * 200
    run = hf.run(child_outer, 1, run_id=long)
    assert run.result["inner"] == [1]
    (name,) = run.children
    assert len(name) <= 200

    @workflow(name="child_" + "y" * 94)
    def wide() -> Any:
        return child_inner(1)

    @workflow(name="child_wider")
    def wider() -> Any:
        return [wide(), wide()]

    run = hf.run(wider, run_id=long[:199])
    assert run.result == [[1], [1]]
    assert len({*run.children, *(hf.get(name).children[0] for name in run.children)}) == 4


def test_child_is_started_anew_after_a_rollback(hf: Holdfast) -> None:
    run = hf.run(child_outer, 5)
    (first,) = run.children
    assert hf.rollback(run.id, to=2).result["inner"] == [5]
    assert len(run.children) == 2
    assert run.children[0] == first
    assert CALLS == ["outer", 5, "last", 5, "last"]
    # After the child: it is not started again.
    hf.rollback(run.id, to=3)
    assert len(run.children) == 2
    hf.resume(run.id, from_address="child_inner")
    assert len(run.children) == 3


def test_children_of_an_abandoned_timeline_are_cancelled_by_a_rollback(hf: Holdfast) -> None:
    @workflow(name="child_asks")
    def asks() -> Any:
        return holdfast.ask("Well?")

    @workflow(name="child_asks_parent")
    def parent() -> Any:
        child_work("first")
        return asks()

    run = hf.run(parent)
    (old,) = hf.inbox()
    hf.rollback(run.id, to=1)
    (new,) = hf.inbox()
    assert new.id != old.id
    with pytest.raises(InvalidAnswer):
        hf.answer(old.id, "late")
    assert hf.get(old.run).status == "cancelled"
    hf.answer(new.id, "yes")
    assert run.result == "yes"


def test_child_of_a_fork_is_a_new_run(hf: Holdfast) -> None:
    run = hf.run(child_outer, 5, run_id="origin")
    hf.fork("origin", "after", at=3)
    assert hf.resume("after").result == run.result
    assert hf.get("after").children == []
    hf.fork("origin", "before", at=2)
    assert hf.resume("before").result == run.result
    (name,) = hf.get("before").children
    assert hf.get(name).parent == "before"
    assert len(run.children) == 1
    assert CALLS == ["outer", 5, "last", "last", 5, "last"]


def test_run_with_the_id_of_a_child_is_not_mistaken_for_it(hf: Holdfast) -> None:
    probe = hf.run(child_outer, 1, run_id="probe")
    name = probe.children[0].replace("probe", "other")
    hf.run(child_inner, "another's", run_id=name)
    run = hf.run(child_outer, 2, run_id="other", raises=False)
    assert run.status == "failed"
    assert isinstance(run.error, AlreadyExists)
    assert hf.get(name).result == ["another's"]


def test_overrides_apply_to_children(hf: Holdfast) -> None:
    run = hf.run(child_outer, 5, overrides={"child_work": lambda value: ["other", value]})
    assert run.result == {"inner": [["other", 5]], "last": ["other", "last"]}
