"""Errors in user code that Python or asyncio use themselves: which are failures, and which interrupt a run."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import step_fixtures

import holdfast
from holdfast import Holdfast, Retry, step, workflow

hf = step_fixtures.hf
#: Without `on`, mistakes such as a `RecursionError` are not tried again.
AGAIN = Retry(2, delay=0, on=lambda _: True)
calls: list[str] = []
#: What the steps raise.
raised: list[BaseException] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    calls.clear()
    raised.clear()


def _raise(where: str) -> None:
    calls.append(where)
    if raised:
        raise raised[0]


@step(name="be_plain", retry=AGAIN)
def plain() -> str:
    _raise("step")
    return "fine"


@step(name="be_timed", retry=AGAIN, timeout=60)
def timed() -> str:
    _raise("step")
    return "fine"


@step(name="be_async", retry=AGAIN)
async def asynchronous() -> str:
    await asyncio.sleep(0)
    _raise("step")
    return "fine"


@step(name="be_async_timed", retry=AGAIN, timeout=60)
async def asynchronous_timed() -> str:
    _raise("step")
    return "fine"


@step(name="be_outer")
def outer() -> str:
    return plain()


@step(name="be_last")
def last() -> str:
    calls.append("last")
    return "last"


@workflow(name="be_flow")
def flow() -> str:
    return plain()


@workflow(name="be_flow_timed")
def flow_timed() -> str:
    return timed()


@workflow(name="be_flow_async")
async def flow_async() -> str:
    return await asynchronous()


@workflow(name="be_flow_async_timed")
async def flow_async_timed() -> str:
    return await asynchronous_timed()


@workflow(name="be_flow_async_plain")
async def flow_async_plain() -> str:
    return plain()


@workflow(name="be_nested")
def nested() -> str:
    return outer()


@workflow(name="be_branches")
def branches() -> Any:
    return holdfast.parallel(plain, last)


@workflow(name="be_branches_async")
async def branches_async() -> Any:
    return await holdfast.parallel(asynchronous, last)


@workflow(name="be_gathered")
async def gathered() -> Any:
    return await asyncio.gather(asynchronous(), asyncio.sleep(0))


@workflow(name="be_parent")
def parent() -> str:
    return flow()


@workflow(name="be_parent_async")
async def parent_async() -> str:
    return await flow_async()


@workflow(name="be_caught")
def caught() -> Any:
    try:
        plain()
    except BaseException as error:
        found = f"{type(error).__name__}: {error}"
    last()
    return found, holdfast.ask("Continue?")


@workflow(name="be_caught_async")
async def caught_async() -> Any:
    try:
        await asynchronous()
    except BaseException as error:
        found = f"{type(error).__name__}: {error}"
    last()
    return found, await holdfast.ask("Continue?")


FLOWS = (
    flow, flow_timed, flow_async, flow_async_timed, flow_async_plain, nested, branches, branches_async, gathered,
    parent, parent_async,
)  # fmt: skip
SYNC = (flow, flow_timed, nested, branches, parent)


def ended(hf: Holdfast, made: Any) -> BaseException | None:
    """Run a workflow; gives what it ended with, whether that was raised or not."""
    try:
        return hf.run(made, run_id="run").error
    except BaseException as error:
        return error


def failed(hf: Holdfast, made: Any, error: BaseException) -> None:
    """A workflow fails with an error, as any other would; the run can be resumed."""
    raised[:] = [error]
    found = ended(hf, made)
    assert type(found) is type(error)
    run = hf.get("run")
    assert run.status == "failed"
    assert type(run.error) is type(error)
    record = hf._store.run("run")
    assert record is not None
    assert record.owner is None
    assert calls.count("step") == 2
    kinds = [event.kind for event in run.events()]
    assert "run.failed" in kinds
    raised.clear()
    assert "fine" in str(hf.resume("run").result)


@pytest.mark.parametrize("made", [each for each in FLOWS if each is not gathered])
def test_generator_exit_of_a_step_fails_the_run(hf: Holdfast, made: Any) -> None:
    failed(hf, made, GeneratorExit("mine"))


def test_generator_exit_of_a_task_fails_the_run(hf: Holdfast) -> None:
    # asyncio throws it into the code that awaits the task, where Python would close that code.
    raised[:] = [GeneratorExit("mine")]
    error = ended(hf, gathered)
    assert (type(error), str(error)) == (RuntimeError, "a task raised GeneratorExit")
    assert type(error.__cause__) is GeneratorExit  # type: ignore[union-attr]
    assert hf.get("run").status == "failed"
    raised.clear()
    assert "fine" in str(hf.resume("run").result)


@pytest.mark.parametrize("how", ["await", "late", "wait", "group", "wait_for"])
def test_generator_exit_of_a_task_is_raised_where_the_task_is_awaited(hf: Holdfast, how: str) -> None:
    @step(name="be_exits")
    async def exits() -> None:
        await asyncio.sleep(0)
        raise GeneratorExit("mine")

    @workflow(name="be_task")
    async def tasks() -> str:
        try:
            if how == "group":
                async with asyncio.TaskGroup() as group:
                    group.create_task(exits())
            task = asyncio.create_task(exits())
            if how == "late":
                await asyncio.sleep(0.05)
            elif how == "wait":
                done, _ = await asyncio.wait({task})
                done.pop().result()
            elif how == "wait_for":
                await asyncio.wait_for(task, 60)
            await task
        except (RuntimeError, ExceptionGroup) as error:
            error = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            return f"{error}: {error.__cause__}"
        return "not raised"

    assert hf.run(tasks).result == "a task raised GeneratorExit: mine"


@pytest.mark.parametrize("made", FLOWS)
def test_cancellation_that_a_step_raises_itself_fails_the_run(hf: Holdfast, made: Any) -> None:
    failed(hf, made, asyncio.CancelledError("mine"))


@pytest.mark.parametrize("made", FLOWS)
@pytest.mark.parametrize("kind", [StopAsyncIteration, MemoryError, RecursionError])
def test_error_that_python_may_swallow_fails_the_run(hf: Holdfast, made: Any, kind: Any) -> None:
    failed(hf, made, kind("mine"))


@pytest.mark.parametrize("made", SYNC)
def test_stop_iteration_of_a_step_fails_the_run(hf: Holdfast, made: Any) -> None:
    failed(hf, made, StopIteration("mine"))


def test_stop_iteration_in_a_coroutine_is_what_python_makes_of_it(hf: Holdfast) -> None:
    raised[:] = [StopIteration("mine")]
    error = ended(hf, flow_async)
    assert (type(error), str(error)) == (RuntimeError, "coroutine raised StopIteration")
    assert type(error.__cause__) is StopIteration  # type: ignore[union-attr]


@pytest.mark.parametrize("made", [caught, caught_async])
@pytest.mark.parametrize("kind", [GeneratorExit, asyncio.CancelledError, StopAsyncIteration])
def test_error_that_was_caught_is_raised_the_same_on_replay(hf: Holdfast, made: Any, kind: Any) -> None:
    raised[:] = [kind("mine")]
    assert hf.run(made, run_id="run").status == "suspended"
    (prompt,) = hf.inbox()
    assert calls == ["step", "step", "last"]
    assert hf.answer(prompt.id, "yes").result == (f"{kind.__name__}: mine", "yes")
    assert calls == ["step", "step", "last"]


@pytest.mark.parametrize("kind", [GeneratorExit, StopIteration, asyncio.CancelledError])
def test_error_of_the_workflow_itself_fails_the_run(hf: Holdfast, kind: Any) -> None:
    @workflow(name=f"be_own_{kind.__name__}")
    def own() -> None:
        last()
        raise kind("mine")

    assert type(ended(hf, own)) is kind
    assert (hf.get("run").status, type(hf.get("run").error)) == ("failed", kind)


@pytest.mark.parametrize("made", FLOWS)
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_interrupt_leaves_the_run_to_be_resumed(hf: Holdfast, made: Any, kind: Any) -> None:
    raised[:] = [kind("mine")]
    assert type(ended(hf, made)) is kind
    record = hf._store.run("run")
    assert record is not None
    assert (record.status, record.owner) == ("running", None)
    assert calls.count("step") == 1
    raised.clear()
    assert "fine" in str(hf.resume("run").result)


def test_cancelled_task_leaves_the_run_to_be_resumed(hf: Holdfast) -> None:
    @step(name="be_waits", retry=AGAIN)
    async def waits() -> str:
        calls.append("step")
        if calls.count("step") == 1:
            await asyncio.Event().wait()
        return "fine"

    @workflow(name="be_cancelled")
    async def cancelled() -> str:
        return await waits()

    async def main() -> None:
        task = asyncio.create_task(hf.arun(cancelled, run_id="run"))
        while not calls:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    record = hf._store.run("run")
    assert record is not None
    assert (record.status, record.owner, calls) == ("running", None, ["step"])
    assert hf.resume("run").result == "fine"


def test_await_of_a_cancelled_task_fails_the_step(hf: Holdfast) -> None:
    @step(name="be_awaits", retry=AGAIN)
    async def awaits() -> None:
        calls.append("step")
        task = asyncio.create_task(asyncio.sleep(3600))
        task.cancel()
        await task

    @workflow(name="be_awaiting")
    async def awaiting() -> None:
        await awaits()

    assert type(ended(hf, awaiting)) is asyncio.CancelledError
    assert hf.get("run").status == "failed"
    assert calls == ["step", "step"]


def test_coroutine_that_is_closed_records_no_failure(hf: Holdfast) -> None:
    @step(name="be_closed")
    async def closed() -> None:
        calls.append("step")
        await asyncio.Event().wait()

    @workflow(name="be_closing")
    async def closing() -> None:
        await closed()

    async def main() -> None:
        coroutine = hf.arun(closing, run_id="run")
        while not calls:
            future = coroutine.send(None)
            if future is not None:
                future._asyncio_future_blocking = False
                while not future.done() and not calls:
                    await asyncio.sleep(0)
        coroutine.close()

    asyncio.run(main())
    assert calls == ["step"]
    assert hf.get("run").status == "running"


@pytest.mark.parametrize("kind", [RuntimeError, GeneratorExit, StopIteration])
def test_error_keeps_its_cause_through_the_machine(hf: Holdfast, kind: Any) -> None:
    found: list[BaseException] = []

    @step(name=f"be_cause_{kind.__name__}")
    def because() -> None:
        raise kind("mine") from KeyError("cause")

    @workflow(name=f"be_causes_{kind.__name__}")
    def causes() -> None:
        try:
            because()
        except BaseException as error:
            found.append(error)

    hf.run(causes)
    assert type(found[0].__cause__) is KeyError
