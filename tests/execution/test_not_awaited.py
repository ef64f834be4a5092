"""Calls in asynchronous code that nothing awaits: never taken for their result, never skipped in silence."""

from __future__ import annotations

import asyncio
import inspect
import operator
import re
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio
import pytest
import store_fixtures

import holdfast
from holdfast import Holdfast, InvalidCall, NotAwaited, step, workflow

pytest_plugins = ["postgres_fixtures"]
hf, place = store_fixtures.hf, store_fixtures.place
done: list[Any] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    done.clear()


@step(name="na_note")
async def note(value: Any = 1) -> Any:
    done.append(value)
    return value


@workflow(name="na_child")
async def child(value: Any = 1) -> Any:
    return await note(value)


CALLS: tuple[Callable[[], Any], ...] = (
    note,
    child,
    lambda: holdfast.ask("Delete prod?"),
    lambda: holdfast.sleep(0),
    lambda: holdfast.wait_for("go"),
    lambda: holdfast.parallel(note),
)
USES: tuple[Callable[[Any], Any], ...] = (
    bool,
    operator.not_,
    lambda each: each == True,  # noqa: E712 - as users write it
    lambda each: each != "yes",
    lambda each: each < 3,
    list,
    lambda each: "yes" in each,
    len,
    lambda each: each[0],
    lambda each: each.lower(),
    lambda each: each + 1,
    lambda each: 1 + each,
    lambda each: f"{each}",
    str,
    int,
    lambda each: -each,
)


def failure(hf: Holdfast, made: Any, *args: Any) -> BaseException:
    """Return the error that a workflow ends with, whether it is raised or not."""
    try:
        error = hf.run(made, *args, run_id="run").error
    except Exception as raised:
        error = raised
    assert hf.get("run").status == "failed"
    assert error is not None
    return error


def test_every_use_of_a_call_that_was_not_awaited_is_refused(hf: Holdfast) -> None:
    refused: list[tuple[int, int]] = []

    @workflow(name="na_uses")
    async def uses() -> None:
        for number, call in enumerate(CALLS):
            for other, use in enumerate(USES):
                forgotten = call()
                with pytest.raises(NotAwaited, match="write `await`") as caught:
                    use(forgotten)
                assert f"{__file__}:" in str(caught.value)
                refused.append((number, other))
                forgotten.close()

    assert hf.run(uses).status == "completed"
    assert len(refused) == len(CALLS) * len(USES)
    assert not done


def test_question_without_await_is_not_taken_as_true(hf: Holdfast) -> None:
    @workflow(name="na_delete")
    async def delete() -> None:
        if holdfast.ask("Delete prod?"):
            await note("deleted")

    error = failure(hf, delete)
    line = inspect.getsourcelines(delete)[1] + 2
    assert type(error) is NotAwaited
    assert isinstance(error, InvalidCall)
    assert error.details == {"call": "holdfast.ask", "file": __file__, "line": line}
    assert not done
    assert not hf.inbox()


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_call_that_was_never_awaited_fails_the_run(hf: Holdfast, number: int) -> None:
    @workflow(name=f"na_forgets_{number}")
    async def forgets() -> str:
        await note("other")
        forgotten = CALLS[number]()
        return f"done, but for {forgotten!r}"

    error = failure(hf, forgets)
    assert type(error) is NotAwaited
    assert "never awaited, so it did not run" in str(error)
    assert f"{__file__}:" in str(error)
    assert done == ["other"]


def test_refusal_that_user_code_swallows_still_fails_the_run(hf: Holdfast) -> None:
    @workflow(name="na_swallows")
    async def swallows() -> str:
        try:
            return "yes" if holdfast.ask("Delete prod?") else "no"
        except Exception:
            return "perhaps"

    assert "holdfast.ask() was called at" in str(failure(hf, swallows))


def test_step_that_does_not_await_an_inner_step_fails(hf: Holdfast) -> None:
    @step(name="na_outer")
    async def outer() -> None:
        note("inner")  # type: ignore[unused-coroutine]  # the mistake

    @workflow(name="na_in_step")
    async def in_step() -> str:
        try:
            await outer()
        except NotAwaited:
            await note("after")
            return "caught"
        return "not noticed"

    assert hf.run(in_step).result == "caught"
    assert done == ["after"]


def test_asynchronous_step_called_by_plain_code_fails_the_run(hf: Holdfast) -> None:
    @workflow(name="na_plain")
    def plain() -> Any:
        return note()

    @step(name="na_plain_step")
    def plain_step() -> Any:
        return note()

    @workflow(name="na_plain_around")
    def around() -> Any:
        return plain_step()

    assert "in an `async def`" in str(failure(hf, plain))
    hf.delete("run")
    assert "in an `async def`" in str(failure(hf, around))
    assert not done


def test_task_that_never_started_fails_the_run(hf: Holdfast) -> None:
    @workflow(name="na_task")
    async def task() -> None:
        made.append(asyncio.create_task(note()))

    made: list[Any] = []
    error = failure(hf, task)
    assert "its task had not started" in str(error)
    assert not done


def test_task_that_has_steps_to_do_when_the_workflow_returns_fails_the_run(hf: Holdfast) -> None:
    async def some() -> None:
        await note("one")
        await note("two")

    @workflow(name="na_task_around")
    async def around(wait: bool) -> None:
        made.append(asyncio.create_task(some()))
        while wait and not done:
            await asyncio.sleep(0)

    made: list[Any] = []
    error = failure(hf, around, False)
    assert type(error) is NotAwaited
    assert "some()" in str(error)
    assert not done
    hf.delete("run")
    assert "await each task" in str(failure(hf, around, True))
    assert done == ["one"]


def test_step_that_is_under_way_when_the_workflow_returns_is_recorded(hf: Holdfast) -> None:
    @step(name="na_slow")
    async def slow() -> str:
        done.append("began")
        await asyncio.sleep(0.01)
        return "slow"

    @workflow(name="na_under_way")
    async def under_way() -> None:
        made.append(asyncio.create_task(slow()))
        while not done:
            await asyncio.sleep(0)

    made: list[Any] = []
    run = hf.run(under_way, run_id="run")
    assert run.status == "completed"
    assert [version.step for version in hf.history("run").versions()] == [None, "na_slow", None]


def test_error_of_the_workflow_precedes_calls_that_were_not_awaited(hf: Holdfast) -> None:
    @workflow(name="na_fails")
    async def fails() -> None:
        first, second = note("one"), note("two")
        await first
        raise ValueError(f"before {second!r}")

    assert type(failure(hf, fails)) is ValueError


def test_call_is_awaited_after_a_suspension(hf: Holdfast) -> None:
    @workflow(name="na_later")
    async def later() -> Any:
        first = note("one")
        answer = await holdfast.ask("Continue?")
        return answer, await first

    assert hf.run(later, run_id="run").status == "suspended"
    (prompt,) = hf.inbox()
    assert hf.answer(prompt.id, "yes").result == ("yes", "one")


def test_calls_work_with_all_of_asyncio_and_anyio(hf: Holdfast) -> None:
    @workflow(name="na_asyncio")
    async def everything() -> list[Any]:
        found = list(await asyncio.gather(note(1), note(2)))
        async with asyncio.TaskGroup() as group:
            task: Any = group.create_task(note(3))
        found.append(task.result())
        for each in asyncio.as_completed([note(4)]):
            found.append(await each)
        found.append(await asyncio.wait_for(note(5), 60))
        found.append(await asyncio.shield(note(6)))
        ended, _ = await asyncio.wait([asyncio.ensure_future(note(7))])
        found += [each.result() for each in ended]
        found += await holdfast.parallel(note(8), lambda: note(9), (note, 10))
        async with anyio.create_task_group() as several:
            several.start_soon(note, 11)
        with anyio.move_on_after(60):
            found.append(await note(12))
        return found

    assert sorted(hf.run(everything).result) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12]
    assert sorted(done) == list(range(1, 13))


def test_call_is_a_coroutine_inside_and_outside_a_run() -> None:
    call: Any = note(5)
    assert asyncio.iscoroutine(call)
    assert inspect.iscoroutine(call)
    assert inspect.getcoroutinestate(call) == inspect.CORO_CREATED
    assert inspect.isawaitable(call)
    assert isinstance(call, Coroutine)
    assert isinstance(call, Awaitable)
    assert {call: 1}[call] == 1
    assert re.fullmatch(rf"<na_note\(\), called at {re.escape(__file__)}:\d+, to be awaited>", repr(call))
    with pytest.raises(NotAwaited, match="bool"):
        bool(call)
    assert not hasattr(call, "__len_hint__")
    assert asyncio.run(call) == 5
    with pytest.raises(RuntimeError, match="cannot reuse"):
        asyncio.run(call)


def test_debug_mode_of_asyncio_shows_calls(hf: Holdfast) -> None:
    shown: list[str] = []

    @workflow(name="na_debug")
    async def debug() -> None:
        task: Any = asyncio.create_task(note())
        shown.append(repr(task))
        await task

    async def main() -> None:
        await hf.arun(debug)

    asyncio.run(main(), debug=True)
    assert "Task pending" in shown[0]


BEHIND: dict[str, Any] = {}


def behind(code: Any) -> Any:
    BEHIND[code.__name__] = code
    return code


@behind
async def bare_statement() -> None:
    holdfast.ask("Delete?")
    await note("deleted")


@behind
async def is_not_none() -> None:
    if holdfast.ask("Delete?") is not None:
        await note("deleted")


@behind
async def matched() -> None:
    match holdfast.ask("Delete?"):
        case False:
            return
        case _:
            await note("deleted")


@behind
async def as_key() -> None:
    asked = {holdfast.ask("Delete?"): 1}
    await note(len(asked))


@behind
async def refusal_that_was_caught() -> None:
    try:
        if holdfast.ask("Delete?"):
            pass
    except NotAwaited:
        pass
    await note("deleted")


@behind
async def steps_in_tasks() -> None:
    holdfast.ask("Delete?")
    await asyncio.gather(note("one"), in_branch())


async def in_branch() -> None:
    await note("two")


@behind
async def sleep_as_statement() -> None:
    holdfast.sleep(60)
    await note("too early")


@behind
async def event_as_statement() -> None:
    holdfast.wait_for("paid")
    await note("shipped")


@behind
async def child_behind() -> None:
    holdfast.ask("Delete?")
    await child()


@behind
async def as_argument() -> None:
    await note(holdfast.ask("Delete?"))


@behind
async def as_part_of_an_argument() -> None:
    cyclic: list[Any] = [{"answer": (holdfast.ask("Delete?"),)}]
    cyclic.append(cyclic)
    await note(cyclic)


@behind
async def step_as_argument() -> None:
    await note([note("inner")])


@pytest.mark.parametrize("name", BEHIND)
def test_step_does_not_start_after_a_wait_that_is_not_awaited(hf: Holdfast, name: str) -> None:
    flow = workflow(name=f"na_behind_{name}")(BEHIND[name])
    with pytest.raises(NotAwaited, match="await"):
        hf.run(flow, run_id="r")
    assert done == []
    assert hf.get("r").status == "failed"


def test_step_starts_while_a_task_awaits_a_wait(hf: Holdfast) -> None:
    @workflow(name="na_beside")
    async def concurrently() -> Any:
        asked = asyncio.create_task(holdfast.ask("Delete?"))
        await note("prepared")
        return await asked

    run = hf.run(concurrently)
    assert (run.status, done) == ("suspended", ["prepared"])
    (question,) = hf.inbox()
    assert hf.answer(question.id, "yes").result == "yes"


def test_question_in_a_task_group_suspends_the_run(hf: Holdfast) -> None:
    @step(name="na_grouped")
    async def grouped() -> Any:
        async with asyncio.TaskGroup() as group:
            asked = group.create_task(holdfast.ask("In a step?"))
        return asked.result()

    @workflow(name="na_group")
    async def group() -> Any:
        async with asyncio.TaskGroup() as group:
            one = group.create_task(holdfast.ask("One?"))
            await note("meanwhile")
            two = group.create_task(grouped())
        return [one.result(), two.result()]

    run = hf.run(group, run_id="r")
    assert run.status == "suspended"
    while hf.inbox():
        question = hf.inbox()[0]
        run = hf.answer(question.id, question.text)
    assert (run.status, run.result, done) == ("completed", ["One?", "In a step?"], ["meanwhile"])
