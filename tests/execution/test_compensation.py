"""Undoing what steps did to the world when a run is rolled back past them."""

from __future__ import annotations

from typing import Any

import compensation_flows
import pytest
from compensation_flows import CALLS, kinds, undo_ashop, undo_place, undo_plain, undo_shop

from holdfast import Holdfast, Retry, step, workflow

clean, hf = compensation_flows.clean, compensation_flows.hf


@pytest.mark.parametrize("which", [undo_shop, undo_ashop])
def test_rollback_compensates_newest_first_and_records_each(hf: Holdfast, which: Any) -> None:
    run = hf.run(which)
    CALLS.clear()
    hf.rollback(run.id, to=2, resume=False, reason="wrong", actor="ada")
    assert CALLS == [("undo", "order-c", "c"), ("undo", "order-b", "b")]
    assert run.status == "paused"
    assert run.head.number == 2
    assert run.state == {"items": ["a"]}
    undone = [run.history().at(7), run.history().at(8)]
    assert [version.step for version in undone] == ["undo undo_place", "undo undo_place"]
    assert [version.result for version in undone] == ["undone c", "undone b"]
    assert undone[1].state == {"items": ["a", "b", "c"], "undone": ["c", "b"]}
    assert [version.parent for version in undone] == [6, 7]
    assert kinds(run)[-5:] == [
        "run.rolling_back",
        "step.completed",
        "step.completed",
        "run.compensated",
        "run.rolled_back",
    ]
    CALLS.clear()
    assert hf.resume(run.id).result == ["order-a", "order-b", "x", "order-c"]
    assert CALLS == [("do", "b"), ("plain", "x"), ("do", "c")]
    assert run.head.number == 12
    assert run.history().at(9).parent == 2


def test_second_rollback_compensates_the_second_timeline(hf: Holdfast) -> None:
    run = hf.run(undo_shop)
    hf.rollback(run.id, to=2)
    CALLS.clear()
    hf.rollback(run.id, to=1, resume=False)
    assert [item for _, _, item in CALLS] == ["c", "b", "a"]


def test_rollback_does_not_compensate_steps_before_the_target(hf: Holdfast) -> None:
    run = hf.run(undo_shop)
    CALLS.clear()
    hf.rollback(run.id, to=5, resume=False)
    assert CALLS == []
    hf.rollback(run.id, to=4, resume=False)
    assert CALLS == [("undo", "order-c", "c")]


def test_resume_from_address_compensates(hf: Holdfast) -> None:
    run = hf.run(undo_shop)
    CALLS.clear()
    hf.resume(run.id, from_address="undo_place#2")
    assert CALLS == [
        ("undo", "order-c", "c"),
        ("undo", "order-b", "b"),
        ("do", "b"),
        ("plain", "x"),
        ("do", "c"),
    ]
    assert run.result == ["order-a", "order-b", "x", "order-c"]


def test_rollback_compensates_nested_steps(hf: Holdfast) -> None:
    @step(name="undo_outer", compensate=lambda: CALLS.append("outer"))
    def outer() -> list[str]:
        return [undo_place("i"), undo_place("j")]

    @workflow(name="undo_nested")
    def nested() -> Any:
        return outer()

    run = hf.run(nested)
    CALLS.clear()
    hf.rollback(run.id, to=1, resume=False)
    assert CALLS == ["outer", ("undo", "order-j", "j"), ("undo", "order-i", "i")]


def test_rollback_does_not_compensate_failed_steps(hf: Holdfast) -> None:
    @step(name="undo_fails", compensate=lambda: CALLS.append("wrong"))
    def fails() -> None:
        raise ValueError("no")

    @workflow(name="undo_failing")
    def failing() -> Any:
        undo_place("a")
        try:
            fails()
        except ValueError:
            return undo_plain("x")

    run = hf.run(failing)
    assert run.result == "x"
    CALLS.clear()
    hf.rollback(run.id, to=1, resume=False)
    assert CALLS == [("undo", "order-a", "a")]


@pytest.mark.parametrize("how", ["positional", "keyword", "mixed", "default"])
@pytest.mark.parametrize(
    "takes", ["nothing", "result", "some", "all", "keywords", "star", "only", "other names"]
)
def test_compensation_gets_the_result_and_the_arguments_it_takes(hf: Holdfast, how: str, takes: str) -> None:
    got: list[Any] = []

    def nothing() -> None:
        got.append(())

    def result(result: Any) -> None:
        got.append((result,))

    def some(result: Any, item: str) -> None:
        got.append((result, item))

    def everything(result: Any, item: str, count: int, note: str) -> None:
        got.append((result, item, count, note))

    def keywords(result: Any, **kwargs: Any) -> None:
        got.append((result, kwargs))

    def star(*args: Any) -> None:
        got.append(args)

    def only(result: Any, *, note: str) -> None:
        got.append((result, note))

    def other(what: Any, thing: str, number: int) -> None:
        got.append((what, thing, number))

    compensate: Any = {
        "nothing": nothing, "result": result, "some": some, "all": everything, "keywords": keywords, "star": star,
        "only": only, "other names": other,
    }[takes]  # fmt: skip

    @step(name="undo_arguments", compensate=compensate)
    def act(item: str, count: int = 1, *, note: str = "n") -> str:
        return "done"

    @workflow(name="undo_with_arguments")
    def whole() -> Any:
        if how == "positional":
            return act("a", 1, note="n")
        if how == "keyword":
            return act(item="a", count=1, note="n")
        return act("a", count=1) if how == "mixed" else act("a")

    run = hf.run(whole)
    hf.rollback(run.id, to=1, resume=False)
    (found,) = got
    expected: dict[str, Any] = {
        "nothing": (), "result": ("done",), "some": ("done", "a"), "all": ("done", "a", 1, "n"),
        "star": ("done", "a", 1), "only": ("done", "n"), "other names": ("done", "a", 1),
    }  # fmt: skip
    if takes == "keywords":
        assert found[0] == "done"
        assert found[1]["note"] == "n"
    else:
        assert found == expected[takes]


def test_compensation_may_be_asynchronous(hf: Holdfast) -> None:
    async def undo(result: str) -> str:
        CALLS.append(result)
        return "undone"

    @step(name="undo_astep", compensate=undo)
    async def act() -> str:
        return "done"

    @workflow(name="undo_async")
    async def whole() -> Any:
        return await act()

    run = hf.run(whole)
    hf.rollback(run.id, to=1, resume=False)
    assert CALLS == ["done"]
    assert run.history().at(4).result == "undone"


def test_compensation_may_be_a_step(hf: Holdfast) -> None:
    @step(name="undo_as_step")
    def undo(result: str) -> str:
        CALLS.append(result)
        return "undone"

    @step(name="undo_stepped", compensate=undo)
    def act() -> str:
        return "done"

    @workflow(name="undo_by_step")
    def whole() -> Any:
        return act()

    run = hf.run(whole)
    hf.rollback(run.id, to=1, resume=False)
    assert CALLS == ["done"]


def test_compensation_is_retried_like_its_step(hf: Holdfast) -> None:
    tries: list[int] = []

    def undo() -> None:
        tries.append(len(tries))
        if len(tries) < 3:
            raise ConnectionError("not now")

    @step(name="undo_retried", retry=Retry(3, delay=0.001), compensate=undo)
    def act() -> str:
        return "done"

    @workflow(name="undo_retry")
    def whole() -> Any:
        return act()

    run = hf.run(whole)
    hf.rollback(run.id, to=1, resume=False)
    assert tries == [0, 1, 2]
    assert kinds(run).count("step.retried") == 2
