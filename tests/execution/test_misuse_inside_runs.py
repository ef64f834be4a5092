"""Mistakes inside a run: wrong calls, and code that works against its own run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import step_fixtures
import step_flows as f
from step_flows import Broken, control

import holdfast
from holdfast import Holdfast, HoldfastError, InvalidCall, step, workflow
from patience import until

fresh, hf = step_fixtures.fresh, step_fixtures.hf

engine = step_fixtures.engine


def _inside(hf: Holdfast, work: Callable[[], Any], where: str) -> BaseException | None:
    """Return the outcome of a call inside a run, in the workflow's own code or in a step."""

    @step(name="inside")
    def inside() -> None:
        work()

    @workflow(name="inside_run")
    def inside_run() -> None:
        inside() if where == "step" else work()

    return hf.run(inside_run, raises=False).error


@pytest.mark.parametrize("where", ["step", "workflow"])
@pytest.mark.parametrize(
    "work",
    [
        lambda: holdfast.sleep("x"),  # type: ignore[arg-type]
        lambda: holdfast.ask(""),
        lambda: holdfast.wait_for(None),  # type: ignore[arg-type]
        lambda: holdfast.parallel(5),
        lambda: holdfast.annotate(x=object()),
        lambda: holdfast.ask("x", key=object()),  # type: ignore[arg-type]
    ],
    ids=["sleep", "ask", "wait_for", "parallel", "note", "ask-key"],
)
def test_wrong_call_inside_a_run_fails_it_with_a_holdfast_error(
    engine: Holdfast, where: str, work: Callable[[], Any]
) -> None:
    assert isinstance(_inside(engine, work, where), InvalidCall)


@pytest.mark.parametrize("what", ["note", "idempotency_key"])
def test_call_that_belongs_to_a_step_is_refused_in_the_workflow(engine: Holdfast, what: str) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "note": lambda: holdfast.annotate(tokens=1),
        "idempotency_key": holdfast.idempotency_key,
    }
    error = _inside(engine, calls[what], "workflow")
    assert isinstance(error, InvalidCall)
    assert "step" in str(error)


def test_run_deleted_while_it_runs_ends_with_a_holdfast_error(hf: Holdfast) -> None:
    @step(name="deletes")
    def deletes() -> None:
        with pytest.raises(holdfast.AlreadyRunning):
            hf.delete("r")
        hf.cancel("r")
        hf.delete("r")

    @workflow(name="deletes_run")
    def deletes_run() -> None:
        deletes()

    with pytest.raises(HoldfastError, match="'r'"):
        hf.run(deletes_run, run_id="r")


def test_step_that_rolls_its_own_run_back_is_refused(hf: Holdfast) -> None:
    @step(name="rolls")
    def rolls() -> None:
        hf.rollback("r", to=1)

    @workflow(name="rolls_run")
    def rolls_run() -> None:
        f.write("a")
        rolls()

    run = hf.run(rolls_run, run_id="r", raises=False)
    assert isinstance(run.error, holdfast.AlreadyRunning)
    assert run.state == {"texts": ["a"]}


def test_subscriber_that_raises_does_not_affect_the_run(hf: Holdfast) -> None:
    def bad(event: Any) -> None:
        control.ran.append("heard")
        raise Broken("subscriber")

    with hf.subscribe(bad):
        assert hf.run(f.book, "kelp").result == "A+B"
        until(lambda: control.ran.count("heard") >= 6)


class Surprise(BaseException):
    pass


@pytest.mark.parametrize("where", ["step", "workflow"])
def test_base_exception_ends_the_call_and_leaves_the_run_resumable(hf: Holdfast, where: str) -> None:
    @step(name="surprising")
    def surprising() -> str:
        if control.value is None:
            raise Surprise
        return "fine"

    @workflow(name="surprise_run")
    def surprise_run() -> str:
        f.write("a")
        if where == "workflow" and control.value is None:
            raise Surprise
        return surprising()

    with pytest.raises(Surprise):
        hf.run(surprise_run, run_id="s")
    control.value = 1
    assert hf.resume("s").result == "fine"
    assert control.ran == ["write-a"]


def test_cancel_cannot_be_caught_by_user_code(hf: Holdfast) -> None:
    @step(name="cancels_itself")
    def cancels_itself() -> str:
        hf.cancel("r")
        return "cancelled"

    @workflow(name="stubborn_run")
    def stubborn_run() -> list[str]:
        found = [cancels_itself()]
        for task in ("a", "b", "c"):
            try:
                found.append(f.write(task))
            except BaseException:
                found.append("caught")
        return found

    run = hf.run(stubborn_run, run_id="r")
    assert run.status == "cancelled"
    assert control.ran == []
