"""Resuming steps within steps: the inner ones that are recorded are not run again, failures are."""

from __future__ import annotations

from typing import Any

import step_fixtures
import step_flows as f
from step_flows import Broken, control

import holdfast
from holdfast import Holdfast, step, workflow

fresh, hf = step_fixtures.fresh, step_fixtures.hf


@step(retry=holdfast.Retry(3, delay=0))
def outer_that_fails() -> list[str]:
    state = holdfast.state()
    state.setdefault("tries", []).append("x")
    found = [f.inner("a")]
    control.did("between")
    found.append(f.inner("b"))
    return found


@workflow
def nested_retry() -> list[str]:
    return outer_that_fails()


def test_retried_outer_step_does_not_run_recorded_inner_steps_again(hf: Holdfast) -> None:
    control.failing["between"] = 2
    run = hf.run(nested_retry)
    assert run.result == ["<a>", "<b>"]
    assert control.ran == ["inner-a", "between", "between", "between", "inner-b"]
    assert run.state == {"tries": ["x"], "inner": ["a", "b"]}


@step(retry=holdfast.Retry(2, delay=0))
def outer_of_fragile() -> str:
    control.did("outer")
    return inner_fragile()


@step
def inner_fragile() -> str:
    control.did("inner")
    return "fine"


@workflow
def nested_fragile() -> str:
    return outer_of_fragile()


def test_inner_failure_is_tried_again_with_the_outer_step(hf: Holdfast) -> None:
    control.failing["inner"] = 1
    run = hf.run(nested_fragile)
    assert run.result == "fine"
    assert control.ran == ["outer", "inner", "outer", "inner"]


def test_inner_failure_is_tried_again_on_resume(hf: Holdfast) -> None:
    control.failing["inner"] = 3
    run = hf.run(nested_fragile, raises=False)
    assert run.status == "failed"
    assert control.ran == ["outer", "inner"] * 2
    assert hf.resume(run.id).result == "fine"
    assert control.ran == ["outer", "inner"] * 4


@workflow
def two_tries() -> Any:
    """Fails with the second failure after having survived the first."""
    try:
        return f.fragile()
    except Broken:
        return inner_fragile()


def test_handled_failure_is_not_dropped_by_a_later_one(hf: Holdfast) -> None:
    control.failing["inner"] = 2
    run = hf.run(two_tries, raises=False)
    assert run.status == "failed"
    assert hf.resume(run.id, raises=False).status == "failed"
    assert hf.resume(run.id).result == "fine"
    assert control.ran.count("inner") == 3


@workflow
def again_and_again() -> Any:
    """A failure that is recorded, because another step follows it, and then ends the run."""
    try:
        return inner_fragile()
    except Broken:
        f.write("log")
        raise


def test_failure_that_was_recorded_and_raised_again_is_tried_again_each_time(hf: Holdfast) -> None:
    control.failing["inner"] = 3
    run = hf.run(again_and_again, raises=False)
    assert run.status == "failed"
    assert hf.resume(run.id, raises=False).status == "failed"
    assert control.ran.count("inner") == 2
    assert hf.resume(run.id, raises=False).status == "failed"
    assert control.ran.count("inner") == 3
    assert hf.resume(run.id).result == "fine"
    assert control.ran.count("write-log") == 1


def test_run_started_inside_a_step_is_independent(hf: Holdfast) -> None:
    @step(name="starts_another")
    def starts_another() -> str:
        holdfast.state()["before"] = True
        found: str = hf.run(f.book, "kelp", run_id="other").result
        holdfast.state()["after"] = True
        return found

    @workflow(name="starter")
    def starter() -> str:
        return starts_another()

    run = hf.run(starter)
    assert run.result == "A+B"
    assert run.state == {"before": True, "after": True}
    assert hf.get("other").state["texts"] == ["a", "b"]
    assert hf.get("other").parent is None


@step
def leaf(n: int) -> int:
    control.did(f"leaf-{n}")
    holdfast.state()["leaves"].append(n)
    return n


@step(retry=holdfast.Retry(2, delay=0))
def bough(n: int) -> list[int]:
    state = holdfast.state()
    before = len(state["leaves"])
    state["boughs"] = state.get("boughs", 0) + 1
    found = [leaf(n * 10), leaf(n * 10 + 1)]
    control.did(f"bough-{n}")
    return [before, *found]


@step
def tree() -> list[list[int]]:
    holdfast.state()["before"] = len(holdfast.state()["leaves"])
    found = [bough(1), bough(2)]
    holdfast.state()["after"] = list(holdfast.state()["leaves"])
    control.did("tree")
    return found


@workflow
def forest() -> list[list[int]]:
    return tree()


def test_three_levels_of_steps_resume_after_failures_at_each(hf: Holdfast) -> None:
    control.failing.update({"bough-1": 3, "bough-2": 1, "tree": 2, "leaf-21": 1})
    run = hf.run(forest, state={"leaves": []}, raises=False)
    turns = 0
    while run.status != "completed":
        turns += 1
        assert turns < 10
        hf.resume(run.id, raises=False)
    assert run.result == [[0, 10, 11], [2, 20, 21]]
    assert run.state == {"leaves": [10, 11, 20, 21], "boughs": 2, "before": 0, "after": [10, 11, 20, 21]}
    assert control.ran.count("leaf-10") == control.ran.count("leaf-11") == control.ran.count("leaf-20") == 1
    assert control.ran.count("leaf-21") == 2
    assert hf.resume(run.id, mode="validate").differences == ()
    assert hf.verify().ok
