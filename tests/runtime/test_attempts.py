"""Attempts: when a step is tried again, how long that waits, and what ends one that takes too long."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flows_steps as f
import pytest
from flows_steps import Broken, control, wait_until

import holdfast
from holdfast import Holdfast, Retry, StepTimeout, step, workflow


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    control.reset()
    yield
    control.reset()


@pytest.fixture(params=["file", "memory"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(":memory:" if request.param == "memory" else tmp_path / "runs.db") as engine:
        yield engine


def _flow(kind: str, work: Callable[[], Any], **options: Any) -> Any:
    """A workflow of one step, of either kind, that tries `work`."""
    if kind == "async":

        @step(name="try", **options)
        async def atrying() -> Any:
            found = work()
            return await found if asyncio.iscoroutine(found) else found

        @workflow(name="attempts")
        async def aattempts() -> Any:
            return await atrying()

        return aattempts

    @step(name="try", **options)
    def trying() -> Any:
        return work()

    @workflow(name="attempts")
    def attempts() -> Any:
        return trying()

    return attempts


def _retries(run: holdfast.Run) -> list[dict[str, Any]]:
    return [event.data for event in run.events() if event.kind == "step.retried"]


both = pytest.mark.parametrize("kind", ["def", "async"])


@both
def test_a_step_is_tried_as_often_as_allowed(hf: Holdfast, kind: str) -> None:
    control.failing["x"] = 2
    run = hf.run(_flow(kind, lambda: control.did("x"), retry=Retry(3, delay=0)))
    assert run.status == "completed"
    assert control.ran == ["x"] * 3
    version = run.history().at(2)
    assert version.attempt == 3
    assert version.address == "try"
    assert version.took is not None
    assert version.took >= 0
    assert [data["attempt"] for data in _retries(run)] == [1, 2]
    assert all("Broken: x" in data["error"] for data in _retries(run))


@both
def test_a_step_that_keeps_failing_fails(hf: Holdfast, kind: str) -> None:
    control.failing["x"] = 9
    run = hf.run(_flow(kind, lambda: control.did("x"), retry=Retry(3, delay=0)))
    assert run.status == "failed"
    assert isinstance(run.error, Broken)
    assert control.ran == ["x"] * 3
    kinds = [event.kind for event in run.events()]
    assert kinds == ["run.started", "step.retried", "step.retried", "step.failed", "run.failed"]
    failed = run.events()[3]
    assert failed.step == "try"
    assert failed.data["attempt"] == 3


@pytest.mark.parametrize(
    ("retry", "wanted"),
    [
        (Retry(5, "exponential", delay=0.001, factor=3, jitter=0), [0.001, 0.003, 0.009, 0.027]),
        (Retry(5, "constant", delay=0.002, jitter=0), [0.002] * 4),
        (Retry(6, "fibonacci", delay=0.001, jitter=0), [0.001, 0.001, 0.002, 0.003, 0.005]),
        (Retry(4, "exponential", delay=0.001, max_delay=0.0015, jitter=0), [0.001, 0.0015, 0.0015]),
        (Retry(2, "constant", delay=0.002, jitter=0.5), [0.0015]),
    ],
)
def test_the_delays_are_those_of_the_policy(hf: Holdfast, retry: Retry, wanted: list[float]) -> None:
    hf._services.chance = lambda: 0.25
    control.failing["x"] = 99
    run = hf.run(_flow("def", lambda: control.did("x"), retry=retry))
    assert [data["delay"] for data in _retries(run)] == pytest.approx(wanted)
    assert len(control.ran) == retry.attempts


@both
def test_only_the_errors_that_are_named_are_tried_again(hf: Holdfast, kind: str) -> None:
    def work() -> None:
        control.ran.append("x")
        raise KeyError("no") if len(control.ran) == 2 else Broken("yes")

    run = hf.run(_flow(kind, work, retry=Retry(5, delay=0, on=Broken)))
    assert isinstance(run.error, KeyError)
    assert control.ran == ["x", "x"]


def test_a_mistake_in_the_program_is_not_tried_again(hf: Holdfast) -> None:
    def work() -> None:
        control.ran.append("x")
        raise TypeError("a mistake")

    run = hf.run(_flow("def", work, retry=5))
    assert isinstance(run.error, TypeError)
    assert control.ran == ["x"]


@both
def test_no_attempt_is_begun_beyond_the_budget(tmp_path: Path, kind: str) -> None:
    now = [1_000_000.0]

    def work() -> None:
        now[0] += 4.0
        control.did("x")

    with holdfast.open(tmp_path / "runs.db", clock=lambda: now[0]) as hf:
        control.failing["x"] = 99
        run = hf.run(_flow(kind, work, retry=Retry(50, delay=0, budget=10)))
        assert run.status == "failed"
        assert control.ran == ["x"] * 3


@both
def test_a_cancel_ends_the_wait_before_the_next_attempt(hf: Holdfast, kind: str) -> None:
    control.failing["x"] = 99
    flow = _flow(kind, lambda: control.did("x"), retry=Retry(5, "constant", delay=50))
    began = time.monotonic()
    thread = threading.Thread(target=lambda: hf.run(flow, run_id="waiting"))
    thread.start()
    wait_until(lambda: control.ran)
    hf.cancel("waiting", reason="enough", actor="op")
    thread.join(f.DEADLINE)
    assert not thread.is_alive()
    assert time.monotonic() - began < 10
    run = hf.get("waiting")
    assert run.status == "cancelled"
    assert control.ran == ["x"]
    assert run.head.kind == "final"
    assert run.head.note == "enough"
    with pytest.raises(holdfast.Cancelled):
        _ = run.result


@both
def test_a_pause_from_another_engine_ends_the_wait(tmp_path: Path, kind: str) -> None:
    control.failing["x"] = 1
    flow = _flow(kind, lambda: control.did("x"), retry=Retry(5, "constant", delay=50))
    with holdfast.open(tmp_path / "runs.db") as hf, holdfast.open(tmp_path / "runs.db") as other:
        thread = threading.Thread(target=lambda: hf.run(flow, run_id="waiting"))
        thread.start()
        wait_until(lambda: control.ran)
        other.pause("waiting")
        thread.join(f.DEADLINE)
        assert not thread.is_alive()
        assert other.get("waiting").status == "paused"
        assert other.resume("waiting").status == "completed"
        assert control.ran == ["x", "x"]


def test_a_timed_out_function_is_left_to_itself(hf: Holdfast) -> None:
    late: list[BaseException] = []
    over = threading.Event()

    def work() -> str:
        state = holdfast.state()
        state["mark"] = "early"
        try:
            control.gate.wait(f.DEADLINE)
            state["mark"] = "late"
            holdfast.state()["more"] = 1
        except BaseException as error:
            late.append(error)
            raise
        finally:
            over.set()
        return "late"

    run = hf.run(_flow("def", work, timeout=0.03))
    assert run.status == "failed"
    assert isinstance(run.error, StepTimeout)
    assert isinstance(run.error, TimeoutError)
    assert "'try'" in str(run.error)
    assert run.state == {}
    control.gate.set()
    assert over.wait(f.DEADLINE)
    assert isinstance(late[0], holdfast.InvalidCall)
    assert run.state == {}
    assert run.head.number == 1


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_timed_out_coroutine_is_cancelled(hf: Holdfast, stubborn: bool) -> None:
    async def work() -> str:
        state = holdfast.state()
        state["mark"] = "early"
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            control.ran.append("cancelled")
            state["mark"] = "late"
            if not stubborn:
                raise
        return "late"

    began = time.monotonic()
    run = hf.run(_flow("async", work, timeout=0.03))
    assert time.monotonic() - began < 10
    assert isinstance(run.error, StepTimeout)
    assert control.ran == ["cancelled"]
    assert run.state == {}


def test_a_coroutine_that_will_not_end_is_given_up(hf: Holdfast) -> None:
    free = asyncio.Event()

    async def work() -> str:
        for _ in range(2):
            try:
                await free.wait()
            except asyncio.CancelledError:
                control.ran.append("cancelled")
        return "late"

    @step(name="endless", timeout=0.02)
    async def endless() -> str:
        return await work()

    @workflow(name="gives_up")
    async def gives_up() -> str:
        try:
            return await endless()
        except StepTimeout:
            free.set()
            return "given up"

    run = hf.run(gives_up)
    assert run.result == "given up"
    assert control.ran == ["cancelled"]


@both
def test_a_timeout_is_tried_again_from_the_state_before(hf: Holdfast, kind: str) -> None:
    def work() -> Any:
        state = holdfast.state()
        state["tries"] = state.get("tries", 0) + 1
        control.ran.append("x")
        if len(control.ran) > 1:
            return "fine"
        return asyncio.sleep(60) if kind == "async" else control.gate.wait(f.DEADLINE)

    run = hf.run(_flow(kind, work, timeout=0.05, retry=Retry(2, delay=0)))
    control.gate.set()
    assert run.result == "fine"
    assert run.state == {"tries": 1}
    assert run.history().at(2).attempt == 2


def test_what_an_abandoned_attempt_calls_later_is_refused(hf: Holdfast) -> None:
    late: list[Any] = []
    over = threading.Event()

    @step(name="part")
    def part() -> str:
        holdfast.state()["late"] = True
        control.ran.append("part")
        return "part"

    @step(name="slow", timeout=0.03)
    def slow() -> str:
        control.gate.wait(f.DEADLINE)
        try:
            late.append(part())
        except BaseException as error:
            late.append(error)
        finally:
            over.set()
        return "slow"

    @step(name="after")
    def after() -> str:
        control.gate.set()
        over.wait(f.DEADLINE)
        return "after"

    @workflow(name="abandons")
    def abandons() -> str:
        try:
            return slow()
        except StepTimeout:
            return after()

    run = hf.run(abandons)
    assert run.result == "after"
    assert control.ran == []
    assert isinstance(late[0], BaseException)
    assert "late" not in run.state
    assert [version.address for version in run.history().versions() if version.kind == "step"] == [
        "after",
        "slow",
    ]


@both
def test_the_whole_run_has_a_time(hf: Holdfast, kind: str) -> None:
    @step(name="wait_long")
    def wait_long() -> str:
        control.gate.wait(f.DEADLINE)
        return "late"

    @step(name="await_long")
    async def await_long() -> str:
        await asyncio.sleep(60)
        return "late"

    @workflow(name="timed", timeout=0.2)
    def timed() -> list[str]:
        return [f.write("a"), wait_long(), f.write("b")]

    @workflow(name="atimed", timeout=0.2)
    async def atimed() -> list[str]:
        return [f.write("a"), await await_long(), f.write("b")]

    began = time.monotonic()
    run = hf.run(timed if kind == "def" else atimed)
    control.gate.set()
    assert time.monotonic() - began < 10
    assert run.status == "failed"
    assert isinstance(run.error, StepTimeout)
    assert control.ran == ["write-a"]
    assert run.state == {"texts": ["a"]}


def test_the_whole_run_does_not_begin_a_step_after_its_time(tmp_path: Path) -> None:
    now = [1_000_000.0]

    @step(name="takes_five")
    def takes_five(n: int) -> int:
        now[0] += 5.0
        control.ran.append(str(n))
        return n

    @workflow(name="timed_by_clock", timeout=12)
    def timed_by_clock() -> list[int]:
        return [takes_five(n) for n in range(10)]

    with holdfast.open(tmp_path / "runs.db", clock=lambda: now[0]) as hf:
        run = hf.run(timed_by_clock)
        assert isinstance(run.error, StepTimeout)
        assert run.id in str(run.error)
        assert control.ran == ["0", "1", "2"]


def test_the_time_of_a_run_ends_its_retries(hf: Holdfast) -> None:
    control.failing["x"] = 99

    @step(name="hopeless", retry=Retry(6, "constant", delay=0.2, jitter=0))
    def hopeless() -> None:
        control.did("x")

    @workflow(name="hopeless_run", timeout=0.2)
    def hopeless_run() -> None:
        hopeless()

    began = time.monotonic()
    run = hf.run(hopeless_run)
    assert run.status == "failed"
    assert time.monotonic() - began < 0.8


def test_a_run_that_took_too_long_can_be_resumed(tmp_path: Path) -> None:
    now = [1_000_000.0]

    @step(name="takes")
    def takes(n: int) -> int:
        now[0] += 5.0
        control.did(f"t{n}")
        return n

    @workflow(name="timed_again", timeout=12)
    def timed_again() -> list[int]:
        return [takes(n) for n in range(4)]

    with holdfast.open(tmp_path / "runs.db", clock=lambda: now[0]) as hf:
        run = hf.run(timed_again)
        assert run.status == "failed"
        now[0] += 3600
        assert hf.resume(run.id).result == [0, 1, 2, 3]
        assert control.ran == ["t0", "t1", "t2", "t3"]


def test_a_key_for_receivers_is_the_same_in_all_attempts(hf: Holdfast) -> None:
    keys: list[str] = []

    def work() -> None:
        keys.append(holdfast.idempotency_key())
        control.did("x")

    control.failing["x"] = 3
    run = hf.run(_flow("def", work, retry=Retry(2, delay=0)))
    assert run.status == "failed"
    hf.resume(run.id)
    assert run.status == "completed"
    assert len(keys) == 4
    assert len(set(keys)) == 1
    hf.rollback(run.id, to=1)
    assert len(set(keys)) == 2


def test_a_subscriber_hears_of_each_attempt(hf: Holdfast) -> None:
    heard: list[tuple[str, Any]] = []
    control.failing["x"] = 1
    with hf.subscribe(lambda event: heard.append((event.kind, event.data.get("attempt"))), kinds=["step.*"]):
        hf.run(_flow("def", lambda: control.did("x"), retry=Retry(2, delay=0)))
        wait_until(lambda: any(kind == "step.completed" for kind, _ in heard))
    assert [each for each in heard if each[0] == "step.started"] == [("step.started", 1), ("step.started", 2)]
    assert [each[0] for each in heard].count("step.completed") == 1
    assert [each for each in heard if each[0] == "step.retried"] == [("step.retried", 1)]


def test_a_failed_sibling_ends_the_wait_of_the_others(hf: Holdfast) -> None:
    @step(name="fails_now")
    async def fails_now() -> None:
        while not control.ran:
            await asyncio.sleep(0.001)
        raise Broken("now")

    @step(name="retries", retry=Retry(3, "constant", delay=2))
    async def retries() -> None:
        control.ran.append("x")
        raise ConnectionError("again")

    @workflow(name="siblings")
    async def siblings() -> None:
        await asyncio.gather(fails_now(), retries())

    began = time.monotonic()
    run = hf.run(siblings)
    assert isinstance(run.error, Broken)
    assert time.monotonic() - began < 1.5
    assert control.ran == ["x"]


def test_a_step_may_fail_with_stop_iteration(hf: Holdfast) -> None:
    @step(name="ends")
    def ends() -> Any:
        return next(iter(()))

    @workflow(name="stops")
    def stops() -> str:
        try:
            ends()
        except StopIteration:
            return "caught"
        return "not"

    assert hf.run(stops).result == "caught"


def test_a_step_that_the_workflow_gives_up_leaves_no_trace(hf: Holdfast) -> None:
    @step(name="long")
    async def long() -> None:
        holdfast.state()["long"] = True
        await asyncio.sleep(60)

    @workflow(name="gives_up_by_itself")
    async def gives_up_by_itself() -> str:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(long(), 0.02)
        return await f.awrite("a")

    run = hf.run(gives_up_by_itself)
    assert run.result == "A"
    assert run.state == {"texts": ["a"]}
    assert [version.address for version in run.history().versions() if version.kind == "step"] == ["write"]
