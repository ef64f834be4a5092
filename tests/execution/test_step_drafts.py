"""The state that a step works on: its own draft, shared with inner steps only by what they commit."""

from __future__ import annotations

from typing import Any

import pytest
import step_fixtures
import step_flows as f
from step_flows import control

import holdfast
from holdfast import Holdfast, step, workflow

fresh, hf = step_fixtures.fresh, step_fixtures.hf


def test_draft_is_visible_only_to_its_step(hf: Holdfast) -> None:
    seen: list[Any] = []

    @step(name="changes")
    def changes() -> None:
        state = holdfast.state()
        state["x"] = 1
        seen.append(dict(hf.get("r").state))
        seen.append(holdfast.state()["x"])

    @workflow(name="isolated")
    def isolated() -> Any:
        before = holdfast.state()
        changes()
        return [dict(before), dict(holdfast.state())]

    run = hf.run(isolated, run_id="r", state={"x": 0})
    assert run.result == [{"x": 0}, {"x": 1}]
    assert seen == [{"x": 0}, 1]


def test_draft_changed_after_its_step_has_no_effect(hf: Holdfast) -> None:
    kept: list[Any] = []

    @step(name="leaks")
    def leaks() -> None:
        state = holdfast.state()
        kept.append(state)
        kept.append(state["list"])

    @step(name="uses")
    def uses() -> list[int]:
        for draft in kept:
            with pytest.raises(TypeError, match="draft has ended"):
                draft.append(99) if isinstance(draft, list) else draft.update(bad=1)
        return list(holdfast.state()["list"])

    @workflow(name="leaky")
    def leaky() -> list[int]:
        leaks()
        return uses()

    run = hf.run(leaky, state={"list": [1]})
    assert run.result == [1]
    assert run.state == {"list": [1]}


def test_state_cannot_be_changed_by_workflow_code(hf: Holdfast) -> None:
    @workflow(name="changer")
    def changer() -> None:
        holdfast.state()["x"] = 1

    run = hf.run(changer, state={"x": 0}, raises=False)
    assert run.status == "failed"
    assert "step" in str(run.error)
    assert run.state == {"x": 0}


@step
def reads_then_calls() -> int:
    before = len(holdfast.state()["inner"])
    f.inner("n")
    control.did("between")
    return before


@workflow
def nested_reader() -> int:
    return reads_then_calls()


def test_step_run_again_reads_the_state_from_before_its_inner_steps(hf: Holdfast) -> None:
    control.failing["between"] = 1
    run = hf.run(nested_reader, state={"inner": []}, raises=False)
    assert run.status == "failed"
    assert hf.resume(run.id).result == 0
    assert control.ran == ["inner-n", "between", "between"]


@workflow
def shared_with_outer() -> Any:
    return outer_and_inner()


@step
def outer_and_inner() -> list[Any]:
    state = holdfast.state()
    state["mine"] = 1
    state["list"].append("outer")
    seen = [inner_sees()]
    state = holdfast.state()
    seen.append(list(state["list"]))
    state["list"].append("outer again")
    inner_sees()
    return [*seen, list(holdfast.state()["list"])]


@step
def inner_sees() -> Any:
    state = holdfast.state()
    state["list"].append("inner")
    return [state.get("mine"), list(state["list"])]


def test_inner_step_sees_committed_state_and_outer_step_sees_its_changes(hf: Holdfast) -> None:
    run = hf.run(shared_with_outer, state={"list": []})
    first, second, third = run.result
    assert first == [None, ["inner"]]
    assert sorted(second) == ["inner", "outer"]
    assert sorted(third) == ["inner", "inner", "outer", "outer again"]
    assert run.state["mine"] == 1
    assert sorted(run.state["list"]) == ["inner", "inner", "outer", "outer again"]


def test_draft_of_an_outer_step_still_counts_after_an_inner_step(hf: Holdfast) -> None:
    @step(name="outer_keeps")
    def outer_keeps() -> None:
        state = holdfast.state()
        state["a"] = 1
        f.inner("x")
        state["b"] = 2

    @workflow(name="outer_keeps_run")
    def outer_keeps_run() -> None:
        outer_keeps()

    run = hf.run(outer_keeps_run)
    assert run.state == {"a": 1, "b": 2, "inner": ["x"]}


def test_draft_from_before_an_inner_step_is_not_lost(hf: Holdfast) -> None:
    @step(name="outer_mixes")
    def outer_mixes() -> str:
        old = holdfast.state()
        f.inner("x")
        holdfast.state()["seen"] = True
        try:
            old["b"] = 2
        except TypeError:
            return "refused"
        return "kept"

    @workflow(name="outer_mixes_run")
    def outer_mixes_run() -> str:
        return outer_mixes()

    run = hf.run(outer_mixes_run)
    assert (run.result == "kept" and run.state.get("b") == 2) or run.result == "refused"
