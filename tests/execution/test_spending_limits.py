"""Limits: what a run, its children and blocks of its code may spend, in the process that executes it."""

from __future__ import annotations

import asyncio
import math
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import store_fixtures

import holdfast
from holdfast import Holdfast, InvalidCall, LimitExceeded, Limits, Retry, Watchdog, step, workflow

pytest_plugins = ["postgres_fixtures"]
place = store_fixtures.place

#: Steps that really ran.
ran: list[str] = []
#: Seconds since 1970 of the engine under test.
clock: list[float] = [1_800_000_000.0]


@pytest.fixture(autouse=True)
def clean() -> None:
    ran.clear()
    clock[0] = 1_800_000_000.0


@pytest.fixture
def hf(place: str) -> Iterator[Holdfast]:
    with holdfast.open(place, durability="fast", clock=lambda: clock[0]) as opened:
        yield opened


def failed(hf: Holdfast, run_id: str) -> LimitExceeded:
    """The error of a run that failed because of a limit."""
    run = hf.get(run_id)
    assert run.status == "failed"
    error = run.error
    assert isinstance(error, LimitExceeded)
    return error


def start(hf: Holdfast, *args: Any, **how: Any) -> Any:
    """Run a workflow, whether or not a failure is raised to its caller."""
    try:
        return hf.run(*args, **how)
    except LimitExceeded:
        return hf.get(how["run_id"])


def go_on(hf: Holdfast, run_id: str, **how: Any) -> Any:
    try:
        return hf.resume(run_id, **how)
    except LimitExceeded:
        return hf.get(run_id)


@step
def limit_pay(name: str, cost: float = 1.0) -> str:
    ran.append(name)
    holdfast.annotate(cost=cost, tokens=10)
    holdfast.state().setdefault("paid", []).append(name)
    return name


@step
async def limit_apay(name: str, cost: float = 1.0) -> str:
    ran.append(name)
    holdfast.annotate(cost=cost, tokens=10)
    return name


@workflow(name="limit spender")
def spender(count: int = 4) -> list[str]:
    return [limit_pay(f"p{number}") for number in range(1, count + 1)]


@workflow(name="limit aspender")
async def aspender(count: int = 4) -> list[str]:
    return [await limit_apay(f"p{number}") for number in range(1, count + 1)]


@pytest.mark.parametrize(
    ("limits", "limit", "spent"),
    [
        (Limits(cost=2), "cost", 2),
        (Limits(cost=1.5), "cost", 2),
        (Limits(tokens=15), "tokens", 20),
        (Limits(steps=2), "steps", 2),
    ],
)
@pytest.mark.parametrize("flow", [spender, aspender])
def test_limit_refuses_the_step_after_it_is_used_up(
    hf: Holdfast, flow: Any, limits: Limits, limit: str, spent: float
) -> None:
    start(hf, flow, run_id="r", limits=limits)
    error = failed(hf, "r")
    # The step that passed the limit is recorded; the next one was not started.
    assert ran == ["p1", "p2"]
    assert (error.limit, error.spent, error.run) == (limit, spent, "r")
    assert error.allowed == getattr(limits, limit)
    assert "hf.resume('r', limits=Limits(" in str(error)
    with pytest.raises(LimitExceeded) as raised:
        _ = hf.get("r").result
    assert raised.value.__notes__ == [
        f"Run 'r' failed. hf.resume('r', limits=Limits({limit}=…)) with a higher limit resumes it: completed steps are "
        "not run again."
    ]
    assert hf.get("r").spent.steps == 2
    # The same limit refuses it again; a higher one lets it go on where it stopped.
    go_on(hf, "r")
    failed(hf, "r")
    assert hf.resume("r", limits=Limits(**{limit: 100})).result == ["p1", "p2", "p3", "p4"]
    assert ran == ["p1", "p2", "p3", "p4"]
    assert hf.get("r").totals == {"cost": 4.0, "tokens": 40}


def test_limit_that_is_not_reached_changes_nothing(hf: Holdfast) -> None:
    run = hf.run(spender, run_id="r", limits=Limits(cost=5, tokens=41, steps=5, seconds=1000))
    assert run.result == ["p1", "p2", "p3", "p4"]
    assert run.limits == Limits(cost=5, tokens=41, steps=5, seconds=1000)
    assert (run.spent.cost, run.spent.tokens, run.spent.steps) == (4.0, 40, 4)


@workflow(name="limit own", limits=Limits(cost=2, steps=10))
def own_limits(count: int = 4) -> list[str]:
    return [limit_pay(f"p{number}") for number in range(1, count + 1)]


def test_limit_of_a_run_replaces_that_of_its_workflow(hf: Holdfast) -> None:
    start(hf, own_limits, run_id="a")
    assert failed(hf, "a").allowed == 2
    run = hf.run(own_limits, run_id="b", limits=Limits(cost=9))
    assert run.status == "completed"
    assert run.limits == Limits(cost=9, steps=10)


def test_limit_cannot_be_escaped_by_catching_the_error(hf: Holdfast) -> None:
    @step(name="limit outer")
    def outer() -> str:
        try:
            return limit_pay("inner")
        except Exception:
            return "degraded"

    @workflow(name="limit swallowing")
    def swallowing() -> list[str]:
        got = [limit_pay("p1")]
        for name in ("p2", "p3"):
            try:
                got.append(limit_pay(name))
            except Exception:
                got.append("caught")
        try:
            got.append(outer())
        except Exception:
            got.append("caught")
        return got

    start(hf, swallowing, run_id="r", limits=Limits(cost=1))
    assert failed(hf, "r").limit == "cost"
    assert ran == ["p1"]
    # Nothing of what was caught is recorded: with a higher limit those steps run.
    run = hf.resume("r", limits=Limits(cost=100))
    assert run.result == ["p1", "p2", "p3", "inner"]


def test_limit_refusal_that_an_outer_step_caught_is_not_its_result(hf: Holdfast) -> None:
    @step(name="limit catcher")
    def catcher() -> list[str]:
        got = []
        for name in ("a", "b", "c"):
            try:
                got.append(limit_pay(name))
            except Exception:
                got.append("?")
        return got

    @workflow(name="limit catching")
    def catching() -> list[str]:
        return catcher()

    start(hf, catching, run_id="r", limits=Limits(cost=2))
    failed(hf, "r")
    assert hf.resume("r", limits=Limits(cost=9)).result == ["a", "b", "c"]
    assert ran == ["a", "b", "c"]


def test_limit_counts_failed_attempts(hf: Holdfast) -> None:
    @step(name="limit flaky", retry=Retry(attempts=5, delay=0))
    def flaky() -> str:
        ran.append("flaky")
        holdfast.annotate(cost=1.0, input_tokens=3, output_tokens=4)
        if len(ran) < 3:
            raise ConnectionError("again")
        return "done"

    @workflow(name="limit retrying")
    def retrying() -> str:
        return flaky()

    assert hf.run(retrying, run_id="free").result == "done"
    assert hf.get("free").totals == {"cost": 3.0, "input_tokens": 9, "output_tokens": 12}
    assert hf.get("free").spent.tokens == 21
    ran.clear()
    start(hf, retrying, run_id="r", limits=Limits(cost=2))
    error = failed(hf, "r")
    assert ran == ["flaky"] * 2
    assert isinstance(error.__cause__, ConnectionError)
    assert hf.get("r").totals["cost"] == 2.0
    assert hf.resume("r", limits=Limits(cost=3)).result == "done"


def test_limit_counts_a_step_that_failed_for_good(hf: Holdfast) -> None:
    @step(name="limit failing")
    def failing(name: str) -> str:
        ran.append(name)
        holdfast.annotate(cost=1.0)
        raise ValueError(name)

    @workflow(name="limit handling")
    def handling() -> str:
        for number in range(10):
            try:
                failing(f"f{number}")
            except ValueError:
                continue
        return "end"

    start(hf, handling, run_id="r", limits=Limits(cost=3))
    failed(hf, "r")
    assert ran == ["f0", "f1", "f2"]
    assert hf.get("r").totals == {"cost": 3.0}


@workflow(name="limit inner run")
def inner_run(name: str, count: int = 2) -> list[str]:
    return [limit_pay(f"{name}{number}") for number in range(count)]


@workflow(name="limit outer run")
def outer_run() -> list[Any]:
    return [limit_pay("first"), inner_run("a"), inner_run("b"), limit_pay("last")]


def test_limit_of_a_parent_bounds_its_children(hf: Holdfast) -> None:
    start(hf, outer_run, run_id="r", limits=Limits(cost=4))
    assert ran == ["first", "a0", "a1", "b0"]
    error = failed(hf, "r")
    assert (error.run, error.spent) == ("r", 4)
    assert [hf.get(child).status for child in hf.get("r").children] == ["completed", "failed"]
    assert hf.get("r").totals == {"cost": 4.0, "tokens": 40}
    # Resumed by itself, the child still keeps to what is left of its parent's limit.
    child = hf.get("r").children[1]
    go_on(hf, child)
    assert failed(hf, child).run == "r"
    assert ran == ["first", "a0", "a1", "b0"]
    go_on(hf, "r", limits=Limits(cost=5))
    failed(hf, "r")
    assert ran == ["first", "a0", "a1", "b0", "b1"]
    assert hf.resume("r", limits=Limits(cost=6)).result == ["first", ["a0", "a1"], ["b0", "b1"], "last"]
    assert ran == ["first", "a0", "a1", "b0", "b1", "last"]


def test_limit_of_steps_counts_those_of_grandchildren(hf: Holdfast) -> None:
    @workflow(name="limit grand")
    def grand() -> Any:
        return outer_run()

    # Six payments, two calls of inner runs, one of the outer run.
    assert hf.run(grand, run_id="free").spent.steps == 9
    ran.clear()
    start(hf, grand, run_id="r", limits=Limits(steps=8))
    assert failed(hf, "r").limit == "steps"
    assert hf.resume("r", limits=Limits(steps=9)).status == "completed"
    assert hf.get("r").spent.steps == 9


def test_limit_of_a_child_is_a_failure_that_its_parent_may_handle(hf: Holdfast) -> None:
    @workflow(name="limit bounded", limits=Limits(cost=1))
    def bounded() -> list[str]:
        return [limit_pay("x"), limit_pay("y")]

    @workflow(name="limit fallback")
    def fallback() -> str:
        try:
            bounded()
        except LimitExceeded:
            return limit_pay("fallback")
        return "never"

    run = hf.run(fallback, run_id="r", limits=Limits(cost=10))
    assert run.result == "fallback"
    assert ran == ["x", "fallback"]


def test_limit_holds_for_parallel_children_and_steps(hf: Holdfast) -> None:
    @workflow(name="limit parallel")
    def parallel() -> Any:
        return holdfast.parallel(*[(limit_pay, f"p{number}") for number in range(10)])

    start(hf, parallel, run_id="r", limits=Limits(steps=4))
    failed(hf, "r")
    assert len(ran) == 4

    @workflow(name="limit parallel children")
    def children() -> Any:
        return holdfast.parallel(*[(inner_run, f"c{number}", 3) for number in range(4)])

    ran.clear()
    start(hf, children, run_id="c", limits=Limits(steps=7))
    failed(hf, "c")
    assert len(ran) <= 7
    assert hf.resume("c", limits=Limits(steps=16)).status == "completed"
    assert len(ran) == 12
    assert hf.get("c").spent.steps == 16


def test_limit_caught_around_parallel_does_not_refuse_an_answer(hf: Holdfast) -> None:
    """A branch that the limit refused is refused again when the question behind it is answered: the code has not
    changed."""

    @workflow(name="limit parallel question")
    def asking() -> Any:
        try:
            holdfast.parallel(*[(limit_pay, str(number)) for number in range(3)], limit=1)
        except LimitExceeded:
            return holdfast.ask("spend more?")
        return None

    hf.run(asking, run_id="asked", limits=Limits(steps=2))
    [question] = hf.inbox()
    hf.answer(question.id, True, raises=False)
    assert "parallel/[3]/limit_pay" in str(failed(hf, "asked"))
    assert [version.address for version in hf.history("asked").versions() if version.step == "ask"] == ["ask"]
    assert sorted(ran) == ["0", "1"]


def test_limit_of_seconds_does_not_count_waiting(hf: Holdfast) -> None:
    @step(name="limit slow")
    def slow(name: str) -> str:
        ran.append(name)
        clock[0] += 10
        return name

    @workflow(name="limit timed")
    def timed() -> list[Any]:
        return [slow("a"), holdfast.ask("Go on?"), slow("b"), slow("c")]

    run = hf.run(timed, run_id="r", limits=Limits(seconds=25))
    assert run.status == "suspended"
    clock[0] += 3600
    hf.answer(run.questions()[0].id, "yes", resume=False)
    hf.resume("r")
    assert ran == ["a", "b", "c"]
    clock[0] += 60
    ran.clear()
    hf.run(timed, run_id="s", limits=Limits(seconds=20))
    hf.answer(hf.get("s").questions()[0].id, "yes", resume=False)
    go_on(hf, "s")
    error = failed(hf, "s")
    assert (error.limit, error.spent, error.allowed) == ("seconds", 20, 20)
    assert ran == ["a", "b"]
    assert hf.resume("s", limits=Limits(seconds=30)).result == ["a", "yes", "b", "c"]


@workflow(name="limit blocks")
def blocks() -> list[str]:
    got = [limit_pay("before")]
    try:
        with Limits(cost=2):
            for name in ("a", "b", "c", "d"):
                got.append(limit_pay(name))
    except LimitExceeded as error:
        got.append(f"stopped at {error.spent:g}")
    got.append(limit_pay("after"))
    if holdfast.ask("Go on?", key="block"):
        got.append(limit_pay("end"))
    return got


def test_limit_of_a_block_can_be_handled_and_replays(hf: Holdfast) -> None:
    run = hf.run(blocks, run_id="r")
    assert ran == ["before", "a", "b", "after"]
    hf.answer(run.questions()[0].id, True, resume=False)
    assert hf.resume("r").result == ["before", "a", "b", "stopped at 2", "after", "end"]
    assert ran == ["before", "a", "b", "after", "end"]


def test_limit_of_a_block_counts_what_is_replayed_in_it(hf: Holdfast) -> None:
    allowed = [3]

    @step(name="limit pair")
    def pair(name: str) -> list[str]:
        return [limit_pay(f"{name}1"), limit_pay(f"{name}2")]

    @workflow(name="limit block resumed")
    def resumed() -> Any:
        got: list[Any] = []
        with Limits(cost=allowed[0]):
            got.append(pair("x"))
            got.append(inner_run("c", 1))
            got.append(limit_pay("z"))
        return got

    start(hf, resumed, run_id="r")
    assert failed(hf, "r").spent == 3
    assert ran == ["x1", "x2", "c0"]
    go_on(hf, "r")
    assert failed(hf, "r").spent == 3
    assert ran == ["x1", "x2", "c0"]
    allowed[0] = 4
    assert hf.resume("r").result == [["x1", "x2"], ["c0"], "z"]


def test_limit_of_a_block_bounds_children_and_tasks(hf: Holdfast) -> None:
    @workflow(name="limit block child")
    def with_child() -> str:
        try:
            with Limits(steps=3), Limits(cost=100):
                inner_run("c", 9)
        except LimitExceeded as error:
            return f"{error.limit} {error.run}"
        return "never"

    # The call of the child counts, too.
    assert hf.run(with_child, run_id="r").result == "steps r"
    assert ran == ["c0", "c1"]

    @workflow(name="limit block tasks")
    async def with_tasks() -> int:
        with Limits(steps=3):
            found = await asyncio.gather(
                *[limit_apay(f"t{number}") for number in range(6)], return_exceptions=True
            )
        await limit_apay("outside")
        return sum(isinstance(each, LimitExceeded) for each in found)

    ran.clear()
    assert hf.run(with_tasks, run_id="t").result == 3
    assert len(ran) == 4


def test_limit_of_a_block_holds_when_parallel_steps_are_resumed(hf: Holdfast) -> None:
    @workflow(name="limit block parallel")
    def in_threads() -> Any:
        with Limits(steps=3):
            return holdfast.parallel(*[(limit_pay, f"p{number}") for number in range(10)])

    @workflow(name="limit block gather")
    async def in_tasks() -> Any:
        with Limits(steps=3):
            return await asyncio.gather(*[limit_apay(f"p{number}") for number in range(10)])

    for flow in (in_threads, in_tasks):
        ran.clear()
        start(hf, flow, run_id=flow.__name__)
        for _ in range(3):
            go_on(hf, flow.__name__)
            assert (failed(hf, flow.__name__).spent, len(ran)) == (3, 3)


def test_limit_of_a_block_counts_threads_that_have_not_replayed_yet(hf: Holdfast) -> None:
    paid, refused = threading.Event(), threading.Event()

    def pays() -> None:
        if paid.is_set():
            # Replayed: its calls come after that of the other branch.
            assert refused.wait(30)
        pair_in_block("a")
        limit_pay("b")
        paid.set()

    def is_refused() -> None:
        assert paid.wait(30)
        try:
            limit_pay("c")
        finally:
            refused.set()

    @workflow(name="limit block late thread")
    def late() -> Any:
        limit_pay("before")
        with Limits(cost=3), Limits(steps=4):
            return holdfast.parallel(pays, is_refused)

    start(hf, late, run_id="r")
    assert ran == ["before", "a1", "a2", "b"]
    for _ in range(2):
        refused.clear()
        go_on(hf, "r")
        assert failed(hf, "r").spent in (3, 4)
        assert ran == ["before", "a1", "a2", "b"]


def test_limit_of_a_block_counts_tasks_that_have_not_replayed_yet(hf: Holdfast) -> None:
    is_replay = [False]

    @workflow(name="limit block late task")
    async def late() -> Any:
        paid, refused = asyncio.Event(), asyncio.Event()

        async def pays() -> None:
            if is_replay[0]:
                await refused.wait()
            await limit_apay("a")
            await limit_apay("b")
            paid.set()

        async def is_refused() -> None:
            if not is_replay[0]:
                await paid.wait()
            try:
                await limit_apay("c")
            finally:
                refused.set()

        with Limits(steps=2):
            await asyncio.gather(pays(), is_refused())

    start(hf, late, run_id="r")
    assert ran == ["a", "b"]
    is_replay[0] = True
    for _ in range(2):
        go_on(hf, "r")
        assert failed(hf, "r").spent == 2
        assert ran == ["a", "b"]


def test_limit_of_a_block_does_not_count_steps_after_it(hf: Holdfast) -> None:
    @workflow(name="limit block left")
    async def left() -> Any:
        is_after = asyncio.Event()

        async def twice() -> str:
            await limit_apay("first")
            await is_after.wait()
            await holdfast.ask("Go on?")
            return await limit_apay("second")

        with Limits(steps=3):
            task = asyncio.create_task(twice())
        for number in range(5):
            await limit_apay(f"after{number}")
        is_after.set()
        return await task

    run = hf.run(left, run_id="r")
    hf.answer(run.questions()[0].id, True)
    assert hf.get("r").result == "second"
    assert hf.get("r").spent.steps == 8


@step(name="limit pair in a block")
def pair_in_block(name: str) -> list[str]:
    return [limit_pay(f"{name}1"), limit_pay(f"{name}2")]


def test_limit_of_a_block_counts_steps_once_if_the_step_around_them_is_retried(hf: Holdfast) -> None:
    tries: list[str] = []

    @step(name="limit retried pair", retry=Retry(attempts=3, delay=0))
    def retried_pair() -> str:
        pair_in_block("a")
        tries.append("x")
        if len(tries) < 3:
            raise ConnectionError("again")
        return limit_pay("b")

    @workflow(name="limit block retried")
    def retried() -> str:
        with Limits(cost=3):
            return retried_pair()

    assert hf.run(retried, run_id="r").result == "b"
    assert ran == ["a1", "a2", "b"]


def test_limit_of_a_block_in_a_step_holds_for_its_next_attempt(hf: Holdfast) -> None:
    executions: list[str] = []

    @step(name="limit step with block", retry=Retry(attempts=2, delay=0))
    def with_block() -> Any:
        executions.append("x")
        is_first, refused = len(executions) == 1, threading.Event()
        paid = threading.Event()

        def pays() -> None:
            assert is_first or refused.wait(30)
            limit_pay("a")
            paid.set()

        def is_refused() -> None:
            assert not is_first or paid.wait(30)
            try:
                limit_pay("c")
            finally:
                refused.set()

        try:
            with Limits(steps=1):
                return holdfast.parallel(pays, is_refused)
        except LimitExceeded as error:
            raise ConnectionError("again") from error

    @workflow(name="limit step block")
    def outer() -> Any:
        return with_block()

    hf.run(outer, run_id="r", raises=False)
    assert (ran, len(executions)) == (["a"], 2)
    hf.resume("r", raises=False)
    assert (ran, len(executions)) == (["a"], 4)


def test_limit_block_outside_a_run_is_refused() -> None:
    with pytest.raises(InvalidCall, match=r"give limits=… to hf\.run"), Limits(cost=1):
        pass
    # In a trial of a workflow nothing is counted.
    assert blocks_without_ask() == ["a", "b"]


@workflow(name="limit plain block")
def blocks_without_ask() -> list[str]:
    with Limits(steps=1):
        return [limit_pay("a"), limit_pay("b")]


def test_limit_totals_stay_after_a_rollback_and_a_fork_begins_anew(hf: Holdfast) -> None:
    run = hf.run(spender, run_id="r", limits=Limits(cost=5, steps=100))
    hf.rollback("r", to=2, resume=False)
    assert (run.spent.cost, run.spent.steps) == (4.0, 4)
    go_on(hf, "r")
    assert failed(hf, "r").spent == 5
    assert ran == ["p1", "p2", "p3", "p4", "p2"]
    fork = hf.fork("r", "f", at=2)
    assert hf.get("f").spent.cost == 0
    assert hf.resume(fork.id, limits=Limits(cost=9)).result == ["p1", "p2", "p3", "p4"]
    assert hf.get("f").spent.cost == 3


def test_limit_is_kept_by_a_worker(hf: Holdfast) -> None:
    hf.enqueue(spender, run_id="r", limits=Limits(cost=2))
    with hf.worker(monitor=False, poll=0.05):
        hf.get("r").wait(30)
        assert failed(hf, "r").spent == 2
        hf.requeue("r", limits=Limits(cost=10))
        assert hf.get("r").wait(30).result == ["p1", "p2", "p3", "p4"]
    assert ran == ["p1", "p2", "p3", "p4"]


def test_limit_raised_for_a_suspended_run_is_kept(hf: Holdfast) -> None:
    hf.run(blocks, run_id="r", limits=Limits(cost=4))
    hf.resume("r", limits=Limits(cost=5))
    assert hf.get("r").limits == Limits(cost=5)
    hf.answer(hf.get("r").questions()[0].id, True)
    assert hf.get("r").status == "completed"


def test_limits_are_validated(hf: Holdfast) -> None:
    for name in ("cost", "tokens", "steps", "seconds"):
        for bad in (-1, True, math.nan, "5", math.inf, 1e30, [1], Decimal(1)):
            given: Any = {name: bad}
            with pytest.raises(InvalidCall, match=name):
                Limits(**given)
    for name in ("tokens", "steps"):
        given = {name: 1.5}
        with pytest.raises(InvalidCall, match="whole number"):
            Limits(**given)
    wrong: Any
    for wrong in ({"cost": 1}, 5, "cost=5"):
        with pytest.raises(InvalidCall, match="limits is Limits"):
            hf.run(spender, limits=wrong)
        with pytest.raises(InvalidCall, match="limits is Limits"):
            hf.enqueue(spender, limits=wrong)
        with pytest.raises(InvalidCall, match="limits is Limits"):
            workflow(name="limit wrong", limits=wrong)(lambda: None)
    start(hf, spender, run_id="r", limits=Limits(steps=0))
    assert failed(hf, "r").allowed == 0
    assert ran == []
    with pytest.raises(InvalidCall, match="limits is Limits"):
        hf.resume("r", limits=wrong)


def test_note_refuses_figures_that_do_not_add_up_and_adds_decimals(hf: Holdfast) -> None:
    @step(name="limit note")
    def noted(value: Any) -> None:
        holdfast.annotate(cost=value, max_tokens=4096)
        holdfast.annotate(cost=value)

    @workflow(name="limit noting")
    def noting(value: Any) -> None:
        noted(value)

    for bad in (math.nan, math.inf):
        with pytest.raises(InvalidCall, match="finite"):
            _ = hf.run(noting, bad).result
    run = hf.run(noting, Decimal("0.25"))
    # A setting is not a figure that adds up.
    assert run.totals == {"cost": Decimal("0.50")}
    assert (run.spent.cost, run.spent.tokens) == (0.5, 0)


@pytest.mark.parametrize("figure", [np.int64(1), np.float32(1), Fraction(1), Decimal(1)])
def test_limit_counts_figures_of_every_kind_of_number(hf: Holdfast, figure: Any) -> None:
    @step(name="limit kinds")
    def noted() -> None:
        holdfast.annotate(cost=figure, tokens=figure)

    @workflow(name="limit of kinds")
    def endless() -> None:
        while True:
            noted()

    for limits in (Limits(cost=2, steps=9), Limits(tokens=2, steps=9)):
        run = hf.run(endless, limits=limits, raises=False)
        assert isinstance(run.error, LimitExceeded)
        assert run.error.limit != "steps"
        assert (run.spent.cost, run.spent.tokens) == (2, 2)
        assert run.totals == {"cost": 2, "tokens": 2}
        # They are plain numbers, which any reader can decode.
        assert {type(value) for value in run.totals.values()} <= {int, float, Decimal}


def test_monitor_budget_counts_children_as_limits_do(hf: Holdfast) -> None:
    inside, go = threading.Event(), threading.Event()

    @step(name="limit held")
    def held() -> None:
        inside.set()
        assert go.wait(30)

    @workflow(name="limit watched")
    def watched() -> None:
        inner_run("w", 3)
        held()

    thread = threading.Thread(
        target=lambda: hf.run(watched, run_id="r", watchdog=Watchdog(max_cost=2)), daemon=True
    )
    thread.start()
    assert inside.wait(30)
    found = [(alert.run, alert.symptom) for alert in hf.monitor().plan()]
    go.set()
    thread.join(30)
    assert found == [("r", "over budget")]


PROGRAM = """
import os, signal, sys, holdfast
from holdfast import Limits
sys.path[:0] = [{folder!r}]
import test_spending_limits as flows
flows.ran = type("Fatal", (list,), {{"append": lambda self, name:
    name == "b1" and os.kill(os.getpid(), signal.SIGKILL)}})()
holdfast.open(sys.argv[1], clock=lambda: flows.clock[0]).run(flows.outer_run, run_id="r", limits=Limits(cost=5))
"""


@pytest.mark.slow
def test_limit_counts_what_a_killed_process_spent_in_children(tmp_path: Path) -> None:
    program = tmp_path / "agent.py"
    program.write_text(PROGRAM.format(folder=str(Path(__file__).parent)))
    done = subprocess.run([sys.executable, str(program), str(tmp_path / "x.db")], check=False, timeout=60)
    assert done.returncode == -signal.SIGKILL
    clock[0] += 3600
    with holdfast.open(tmp_path / "x.db", clock=lambda: clock[0]) as hf:
        assert hf.get("r").spent.cost == 4
        go_on(hf, "r")
        # One more was left; the step after it is refused.
        assert ran == ["b1"]
        assert failed(hf, "r").spent == 5
        assert hf.resume("r", limits=Limits(cost=6)).status == "completed"


def test_limit_counts_what_was_spent_before_a_rollback_to_the_first_version(hf: Holdfast) -> None:
    start(hf, spender, 2, run_id="r", limits=Limits(cost=2))
    hf.rollback("r", to=1, raises=False)
    assert failed(hf, "r").details["spent"] == 2
    assert ran == ["p1", "p2"]


@workflow(name="limit asks")
def asks_between() -> None:
    limit_pay("first")
    holdfast.ask("Go on?")
    limit_pay("second")


def test_limit_of_steps_counts_an_answer_at_once(hf: Holdfast) -> None:
    start(hf, asks_between, run_id="r", limits=Limits(steps=2))
    (question,) = hf.inbox()
    hf.answer(question.id, True, raises=False)
    assert failed(hf, "r").details["spent"] == 2
    assert ran == ["first"]
    go_on(hf, "r", limits=Limits(steps=3))
    assert ran == ["first", "second"]
