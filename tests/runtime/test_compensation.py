"""Undoing what steps did to the world when a run is rolled back past them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import CompensationFailed, Holdfast, InvalidCall, NotFound, Retry, Run, step, workflow
from holdfast.runtime import definition

CALLS: list[Any] = []
BROKEN: set[str] = set()


@pytest.fixture(autouse=True)
def _clean() -> None:
    CALLS.clear()
    BROKEN.clear()


@pytest.fixture(params=["sqlite", "memory"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    where = tmp_path / "runs.db" if request.param == "sqlite" else ":memory:"
    with holdfast.open(where, durability="fast" if request.param == "sqlite" else "memory") as opened:
        yield opened


def kinds(run: Run) -> list[str]:
    return [event.kind for event in run.events()]


def undo_order(result: str, item: str) -> str:
    if item in BROKEN:
        raise ConnectionError(f"cannot undo {item}")
    CALLS.append(("undo", result, item))
    holdfast.state().setdefault("undone", []).append(item)
    return f"undone {item}"


@step(compensate=undo_order)
def undo_place(item: str) -> str:
    CALLS.append(("do", item))
    holdfast.state().setdefault("items", []).append(item)
    return f"order-{item}"


@step
def undo_plain(item: str) -> str:
    CALLS.append(("plain", item))
    return item


@workflow
def undo_shop() -> Any:
    """Versions: 1 initial, 2 a, 3 b, 4 plain, 5 c, 6 final."""
    return [undo_place("a"), undo_place("b"), undo_plain("x"), undo_place("c")]


@workflow
async def undo_ashop() -> Any:
    return [undo_place("a"), undo_place("b"), undo_plain("x"), undo_place("c")]


@pytest.mark.parametrize("which", [undo_shop, undo_ashop])
def test_newest_first_and_each_recorded(hf: Holdfast, which: Any) -> None:
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


def test_a_second_rollback_undoes_what_the_second_timeline_did(hf: Holdfast) -> None:
    run = hf.run(undo_shop)
    hf.rollback(run.id, to=2)
    CALLS.clear()
    hf.rollback(run.id, to=1, resume=False)
    assert [item for _, _, item in CALLS] == ["c", "b", "a"]


def test_steps_before_the_target_are_not_undone(hf: Holdfast) -> None:
    run = hf.run(undo_shop)
    CALLS.clear()
    hf.rollback(run.id, to=5, resume=False)
    assert CALLS == []
    hf.rollback(run.id, to=4, resume=False)
    assert CALLS == [("undo", "order-c", "c")]


def test_from_address_undoes_too(hf: Holdfast) -> None:
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


def test_steps_within_steps_are_undone(hf: Holdfast) -> None:
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


def test_a_step_that_failed_is_not_undone(hf: Holdfast) -> None:
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
def test_the_arguments_that_a_compensation_gets(hf: Holdfast, how: str, takes: str) -> None:
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


def test_an_asynchronous_compensation(hf: Holdfast) -> None:
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


def test_a_compensation_that_is_a_step_itself(hf: Holdfast) -> None:
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


def test_a_compensation_is_tried_as_often_as_its_step(hf: Holdfast) -> None:
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


def test_a_failing_compensation_stops_and_says_so(hf: Holdfast) -> None:
    run = hf.run(undo_shop)
    BROKEN.add("b")
    CALLS.clear()
    with pytest.raises(CompensationFailed, match=r"undo_place#2.*cannot undo b"):
        hf.rollback(run.id, to=1, reason="wrong")
    assert run.status == "failed"
    assert isinstance(run.error, CompensationFailed)
    assert "resume the run, which finishes the rollback and runs the workflow again from there" in str(
        run.error
    )
    assert "roll it back again with resume=False, which only finishes the rollback" in str(run.error)
    with pytest.raises(CompensationFailed):
        _ = run.result
    assert CALLS == [("undo", "order-c", "c")]
    assert "run.failed" in kinds(run)
    assert "run.rolled_back" not in kinds(run)
    # Still broken: again, and nothing twice.
    with pytest.raises(CompensationFailed):
        hf.resume(run.id)
    with pytest.raises(CompensationFailed):
        hf.rollback(run.id, to=1, reason="still wrong")
    assert CALLS == [("undo", "order-c", "c")]
    BROKEN.clear()
    assert hf.resume(run.id).result == ["order-a", "order-b", "x", "order-c"]
    assert CALLS[:3] == [("undo", "order-c", "c"), ("undo", "order-b", "b"), ("undo", "order-a", "a")]
    assert CALLS[3:] == [("do", "a"), ("do", "b"), ("plain", "x"), ("do", "c")]
    timeline = run.history().timelines()[-1]
    assert (timeline.parent, timeline.reason) == (1, "still wrong")


def test_a_rollback_that_waits_goes_on_by_rollback_too(hf: Holdfast) -> None:
    run = hf.run(undo_shop)
    BROKEN.add("b")
    with pytest.raises(CompensationFailed):
        hf.rollback(run.id, to=1)
    BROKEN.clear()
    CALLS.clear()
    hf.rollback(run.id, to=1, resume=False)
    assert CALLS == [("undo", "order-b", "b"), ("undo", "order-a", "a")]
    assert run.status == "paused"
    assert run.error is None
    assert run.head.number == 1


def test_a_version_whose_steps_were_undone_is_no_target_any_more(hf: Holdfast) -> None:
    run = hf.run(undo_shop)
    BROKEN.add("b")
    with pytest.raises(CompensationFailed):
        hf.rollback(run.id, to=1)
    CALLS.clear()
    # "c" was undone: a head that has it would not be true.
    with pytest.raises(InvalidCall, match="undone"):
        hf.rollback(run.id, to=5)
    assert run.status == "failed"
    # A target between is fine: it keeps nothing that was undone.
    BROKEN.clear()
    hf.rollback(run.id, to=2, resume=False)
    assert CALLS == [("undo", "order-b", "b")]
    assert run.head.number == 2


def test_a_compensation_that_is_not_known_is_refused_before_anything_is_done(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    @step(name="undo_unknown", compensate=lambda: CALLS.append("unknown"))
    def act() -> str:
        return "done"

    @workflow(name="undo_forgotten")
    def whole() -> Any:
        return [act(), undo_place("a")]

    run = hf.run(whole)
    was = hf._store.run(run.id)
    CALLS.clear()
    with monkeypatch.context() as patch:
        patch.delitem(definition._steps, "undo_unknown")
        with pytest.raises(NotFound, match=r"undo_unknown.*import the module"):
            hf.rollback(run.id, to=1)
    assert CALLS == []
    assert hf._store.run(run.id) == was
    assert run.status == "completed"
    hf.rollback(run.id, to=1, resume=False)
    assert CALLS == [("undo", "order-a", "a"), "unknown"]


def test_a_rollback_that_is_stopped_goes_on_later(hf: Holdfast) -> None:
    def undo(result: str) -> None:
        CALLS.append(result)
        if result == "second" and CALLS.count("second") == 1:
            hf.pause("r")

    @step(name="undo_stopped", compensate=undo)
    def act(name: str) -> str:
        return name

    @workflow(name="undo_stopping")
    def whole() -> Any:
        return [act("first"), act("second")]

    run = hf.run(whole, run_id="r")
    with pytest.raises(holdfast.HoldfastError):
        hf.rollback("r", to=1)
    assert run.status == "paused"
    assert CALLS == ["second"]
    hf.rollback("r", to=1, resume=False)
    assert CALLS == ["second", "first"]
    assert run.head.number == 1


PROGRAM = """
import json, os, signal, sys, time
import holdfast
from holdfast import step, workflow

file, do, hang = sys.argv[1:4]

def note(text):
    with open(file + ".effects", "a") as out:
        out.write(text + "\\n")

def undo(result, name):
    note(f"undo {name}")
    if name == hang:
        note("hangs")
        time.sleep(60)
    return name

@step(compensate=undo)
def act(name):
    note(f"do {name}")
    return name

@workflow
def whole():
    return [act("a"), act("b"), act("c")]

with holdfast.open(file, durability="fast") as hf:
    if do == "run":
        run = hf.run(whole, run_id="r")
    elif do == "rollback":
        run = hf.rollback("r", to=1)
    elif do == "resume":
        run = hf.resume("r")
    print(json.dumps([run.status, run.result]))
"""


@pytest.mark.parametrize("then", ["resume", "rollback"])
def test_a_rollback_killed_half_way_goes_on(tmp_path: Path, then: str) -> None:
    file = tmp_path / "runs.db"
    effects = Path(f"{file}.effects")

    def start(do: str, hang: str = "") -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, str(file), do, hang]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(process: subprocess.Popen[str]) -> Any:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return json.loads(out)

    assert finish(start("run")) == ["completed", ["a", "b", "c"]]
    victim = start("rollback", "b")
    deadline = time.monotonic() + 30
    while "hangs" not in effects.read_text():
        assert time.monotonic() < deadline
        assert victim.poll() is None
        time.sleep(0.005)
    os.kill(victim.pid, signal.SIGKILL)
    victim.communicate()
    with holdfast.open(file, durability="fast") as hf:
        run = hf.get("r")
        assert [version.result for version in run.history().versions(step="undo act")] == ["c"]
        assert run.head.number == 6
    assert finish(start(then)) == ["completed", ["a", "b", "c"]]
    # What was recorded is not done again; what was cut off is.
    assert effects.read_text().split("\n")[:-1] == [
        "do a", "do b", "do c", "undo c", "undo b", "hangs", "undo b", "undo a", "do a", "do b", "do c",
    ]  # fmt: skip
