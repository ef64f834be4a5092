"""A step is a transaction: all that it did is one version, or nothing is."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
import step_fixtures
import step_flows as f
from step_flows import Broken, control

import holdfast
from holdfast import Holdfast, Retry, UnsupportedValue, step, workflow
from holdfast.testing import isolated_definitions

fresh, hf = step_fixtures.fresh, step_fixtures.hf


START: dict[str, Any] = {"n": 1, "list": [1, 2, 3], "deep": {"a": {"b": ["x"]}}, "gone": True}


def _spoil() -> None:
    """Change the state in every way there is."""
    state = holdfast.state()
    state["n"] += 1
    state["list"].append(4)
    state["list"][0] = "first"
    state["deep"]["a"]["b"].insert(0, "y")
    state["deep"]["a"]["new"] = {"k": [1]}
    del state["gone"]
    state["late"] = [1]
    state["late"].append(2)


SPOILT = {
    "n": 2,
    "list": ["first", 2, 3, 4],
    "deep": {"a": {"b": ["y", "x"], "new": {"k": [1]}}},
    "late": [1, 2],
}


@step(retry=Retry(2, delay=0))
def spoil() -> str:
    _spoil()
    control.did("spoil")
    return "spoilt"


with isolated_definitions():

    @step(name="spoil", retry=Retry(2, delay=0))
    async def aspoil() -> str:
        _spoil()
        await asyncio.sleep(0)
        control.did("spoil")
        return "spoilt"


@workflow
def spoiling() -> str:
    return spoil()


@workflow
async def aspoiling() -> str:
    return await aspoil()


both = pytest.mark.parametrize("flow", [spoiling, aspoiling])


@both
def test_failed_attempt_changes_nothing(hf: Holdfast, flow: Any) -> None:
    control.failing["spoil"] = 2
    run = hf.run(flow, state=START, raises=False)
    assert run.status == "failed"
    assert run.state == START
    assert run.head.number == 1
    assert len(run.history().versions()) == 1


@both
def test_retry_starts_from_the_state_before(hf: Holdfast, flow: Any) -> None:
    control.failing["spoil"] = 1
    run = hf.run(flow, state=START)
    assert run.result == "spoilt"
    assert run.state == SPOILT
    assert list(run.state) == ["n", "list", "deep", "late"]
    assert run.history().at(1).state == START


@both
def test_resumed_step_starts_from_the_state_before(hf: Holdfast, flow: Any) -> None:
    control.failing["spoil"] = 3
    run = hf.run(flow, state=START, raises=False)
    assert hf.resume(run.id).result == "spoilt"
    assert run.state == SPOILT


def test_versions_are_numbered_in_order_of_commit(hf: Holdfast) -> None:
    run = hf.run(f.book, "kelp", tags=["good"], note="why", actor="me")
    versions = run.history().versions()[::-1]
    assert [version.number for version in versions] == [1, 2, 3, 4, 5, 6]
    assert [version.kind for version in versions] == ["initial", *["step"] * 4, "final"]
    assert [version.step for version in versions] == [None, "plan", "write", "write", "finish", None]
    assert [version.address for version in versions] == [None, "plan", "write", "write#2", "finish", None]
    assert [version.parent for version in versions] == [None, 1, 2, 3, 4, 5]
    assert [version.steps for version in versions] == [0, 1, 2, 3, 4, 4]
    assert {version.attempt for version in versions} == {1}
    assert all(version.took is not None and 0 <= version.took < 5 for version in versions[1:5])
    assert [version.result for version in versions[1:]] == [
        {"topic": "kelp", "tasks": ["a", "b"]}, "A", "B", "A+B", "A+B",
    ]  # fmt: skip
    assert [version.state for version in versions] == [
        {},
        {"topic": "kelp"},
        {"topic": "kelp", "texts": ["a"]},
        {"topic": "kelp", "texts": ["a", "b"]},
        *[{"topic": "kelp", "texts": ["a", "b"], "done": True}] * 2,
    ]
    assert versions[0].tags == ("good",)
    assert versions[0].note == "why"
    assert versions[0].actor == "me"
    assert [version.status for version in versions] == [*["running"] * 5, "completed"]
    assert [event.kind for event in run.events()] == ["run.started", *["step.completed"] * 4, "run.completed"]
    assert hf.verify().ok


@step
def noted(tokens: int) -> None:
    holdfast.annotate(model="m-1", tokens=tokens, cost=0.5)
    holdfast.annotate(tokens=1, prompt="p")
    control.did("noted")


with isolated_definitions():

    @step(name="noted")
    async def anoted(tokens: int) -> None:
        holdfast.annotate(model="m-1", tokens=tokens, cost=0.5)
        holdfast.annotate(tokens=1, prompt="p")
        control.did("noted")


@workflow
def noting() -> None:
    noted(10)
    noted(20)


@workflow
async def anoting() -> None:
    await anoted(10)
    await anoted(20)


@pytest.mark.parametrize("flow", [noting, anoting])
def test_annotations_are_recorded_and_summed(hf: Holdfast, flow: Any) -> None:
    run = hf.run(flow)
    assert run.history().at(2).annotations == {"model": "m-1", "tokens": 11, "cost": 0.5, "prompt": "p"}
    assert run.history().at(3).annotations == {"model": "m-1", "tokens": 21, "cost": 0.5, "prompt": "p"}
    assert run.totals == {"tokens": 32, "cost": 1.0}


def test_annotation_totals_do_not_count_replayed_steps_twice(hf: Holdfast) -> None:
    control.failing["noted"] = 0
    run = hf.run(noting)
    hf.rollback(run.id, to=2, resume=False)
    hf.resume(run.id)
    assert run.totals["tokens"] in (32, 53)  # what was spent, or what counts: never anything else
    before = run.totals
    hf.resume(run.id)
    assert run.totals == before


def test_annotations_of_a_failed_attempt_are_not_in_the_version(hf: Holdfast) -> None:
    @step(name="flaky", retry=Retry(2, delay=0))
    def flaky() -> None:
        holdfast.annotate(tokens=5)
        control.did("x")

    @workflow(name="flaky_run")
    def flaky_run() -> None:
        flaky()

    control.failing["x"] = 1
    run = hf.run(flaky_run)
    assert run.history().at(2).annotations == {"tokens": 5}


class Unknown:
    pass


def _with(value: Any) -> Any:
    return {"a": [1, value]}


BAD: list[tuple[str, Callable[[], Any]]] = [
    ("object", Unknown),
    ("lock", threading.Lock),
    ("lambda", lambda: lambda: 1),
    ("generator", lambda: (n for n in [1])),
    ("inside", lambda: _with(Unknown())),
]


@pytest.mark.parametrize("where", ["result", "state", "note"])
@pytest.mark.parametrize(("name", "make"), BAD, ids=[name for name, _ in BAD])
def test_result_that_cannot_be_stored_fails_the_step_and_changes_nothing(
    hf: Holdfast, where: str, name: str, make: Callable[[], Any]
) -> None:
    @step(name="bad")
    def bad() -> Any:
        state = holdfast.state()
        state["touched"] = True
        if where == "state":
            state["bad"] = make()
        if where == "note":
            holdfast.annotate(bad=make())
        return make() if where == "result" else "fine"

    @workflow(name="bad_run")
    def bad_run() -> Any:
        return [f.write("a"), bad()]

    run = hf.run(bad_run, raises=False)
    assert run.status == "failed"
    assert isinstance(run.error, UnsupportedValue)
    if name == "inside":
        assert "a[1]" in str(run.error)
        assert "Unknown" in str(run.error)
    assert run.state == {"texts": ["a"]}
    assert run.head.number == 2
    assert hf.verify().ok


def test_cyclic_value_is_refused(hf: Holdfast) -> None:
    @step(name="cyclic")
    def cyclic() -> Any:
        found: list[Any] = []
        found.append(found)
        return found

    @workflow(name="cyclic_run")
    def cyclic_run() -> Any:
        return cyclic()

    with pytest.raises(UnsupportedValue):
        hf.run(cyclic_run)


def test_workflow_can_handle_a_step_result_that_cannot_be_stored(hf: Holdfast) -> None:
    @step(name="bad")
    def bad() -> Any:
        holdfast.state()["touched"] = True
        return Unknown()

    @workflow(name="lives")
    def lives() -> Any:
        try:
            bad()
        except UnsupportedValue:
            found = f.write("instead")
        control.did("end")
        return found

    control.failing["end"] = 1
    run = hf.run(lives, raises=False)
    assert run.state == {"texts": ["instead"]}
    assert hf.resume(run.id).result == "INSTEAD"
    assert control.ran == ["write-instead", "end", "end"]


def test_workflow_result_that_cannot_be_stored_fails_the_run(hf: Holdfast) -> None:
    @workflow(name="bad_end")
    def bad_end() -> Any:
        f.write("a")
        return Unknown() if control.value is None else "fine"

    run = hf.run(bad_end, raises=False)
    assert run.status == "failed"
    assert isinstance(run.error, UnsupportedValue)
    assert run.state == {"texts": ["a"]}
    control.value = 1
    assert hf.resume(run.id).result == "fine"
    assert control.ran == ["write-a"]


@pytest.mark.parametrize("kind", ["def", "async"])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupt_in_a_step_leaves_the_run_resumable(
    hf: Holdfast, kind: str, error: type[BaseException]
) -> None:
    @step(name="interrupted")
    def interrupted() -> str:
        holdfast.state()["touched"] = len(control.ran)
        control.ran.append("i")
        if len(control.ran) == 2:
            raise error
        return "fine"

    @workflow(name="interruptible")
    def interruptible() -> list[str]:
        return [f.write("a"), interrupted()]

    @workflow(name="ainterruptible")
    async def ainterruptible() -> list[str]:
        return [await f.awrite("a"), interrupted()]

    with pytest.raises(error):
        hf.run(interruptible if kind == "def" else ainterruptible, run_id="i")
    run = hf.get("i")
    assert run.status in {"running", "paused", "failed"}
    assert run.state == {"texts": ["a"]}
    assert hf.resume("i").result == ["A", "fine"]
    assert control.ran == ["write-a", "i", "i"]


def test_cancelled_task_leaves_the_run_resumable(hf: Holdfast) -> None:
    @step(name="waits")
    async def waits() -> str:
        control.ran.append("waits")
        if control.value is None:
            control.entered.set()
            await asyncio.sleep(60)
        return "fine"

    @workflow(name="cancellable")
    async def cancellable() -> str:
        return await waits()

    async def start() -> None:
        task = asyncio.ensure_future(hf.arun(cancellable, run_id="c"))
        while not control.entered.is_set():
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        control.value = 1
        assert (await hf.aresume("c")).result == "fine"

    asyncio.run(start())
    assert control.ran == ["waits", "waits"]


def test_workflow_that_fails_between_steps_keeps_the_steps(hf: Holdfast) -> None:
    @workflow(name="between")
    def between() -> str:
        f.write("a")
        control.did("own")
        return "end"

    control.failing["own"] = 1
    run = hf.run(between, raises=False)
    assert isinstance(run.error, Broken)
    assert [event.kind for event in run.events()] == ["run.started", "step.completed", "run.failed"]
    assert hf.resume(run.id).result == "end"
    assert control.ran == ["write-a", "own", "own"]


def test_step_outside_a_run_is_neither_retried_nor_recorded() -> None:
    control.failing["spoil"] = 1
    with holdfast.call_steps_directly(dict(START)), pytest.raises(Broken):
        spoil()
    assert control.ran == ["spoil"]
    assert holdfast.uuid4() != holdfast.uuid4()
    assert 0 <= holdfast.random() < 1
    assert holdfast.now().tzinfo is not None
    assert holdfast.idempotency_key() != holdfast.idempotency_key()
    holdfast.annotate(tokens=1)
    holdfast.progress(0.5, "half")
    holdfast.sleep(0)
