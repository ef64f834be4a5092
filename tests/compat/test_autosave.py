"""Automatic snapshots: timed, after each call, and on demand."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any

import autosave_fixtures
import pytest
from autosave_fixtures import NEVER, SOON, Plain, Reads, versions

import autosave_timers
from autosave_timers import timers, warnings
from holdfast import History, InvalidCall
from holdfast.compat.autosave import autosave
from patience import until

file, hf, log, no_timer_is_left = (
    autosave_fixtures.file,
    autosave_fixtures.hf,
    autosave_fixtures.log,
    autosave_timers.no_timer_is_left,
)


# Timed snapshots


def test_block_saves_changes_periodically(log: History) -> None:
    state = {"n": 0}
    with autosave(state, log, every=SOON):
        for number in range(1, 4):
            state["n"] = number
            until(lambda wanted=number: versions(log) and log.head.state == {"n": wanted})  # type: ignore[misc]
        assert {version.kind for version in versions(log)} == {"timed"}
    until(lambda: not timers())


def test_timer_makes_no_version_without_a_change(log: History) -> None:
    reads = Reads({"n": 0, "parts": {1, 2}, "nan": float("nan")})
    with autosave(reads.read, log, every=SOON):
        reads.wait()
        assert len(versions(log)) == 1
        reads.state = {"n": 0, "parts": {2, 1}, "nan": float("nan")}
        reads.wait()
        assert len(versions(log)) == 1
        reads.state["n"] = False
        reads.wait()
        assert len(versions(log)) == 2
    assert len(versions(log)) == 2


def test_autosave_without_interval_has_no_timer(log: History) -> None:
    with autosave({}, log, every=None).start() as saver:
        assert not timers()
        saver.stop()
    assert len(versions(log)) == 1


# The block


def test_block_exit_saves_later_changes(log: History) -> None:
    state = {"n": 0}
    with autosave(state, log, every=NEVER):
        state["n"] = 1
    assert [(v.kind, v.note, v.step, v.state) for v in versions(log)] == [("timed", None, None, {"n": 1})]
    with autosave(state, log):
        pass
    assert len(versions(log)) == 1


def test_block_with_step_name_saves_as_that_step(log: History) -> None:
    with autosave({"n": 1}, log, step="crawl"):
        pass
    assert (log.head.kind, log.head.step, log.head.steps) == ("step", "crawl", 1)


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()])
def test_block_that_raises_saves_with_a_note_and_propagates(log: History, error: BaseException) -> None:
    state = {"n": 0}
    with pytest.raises(type(error)) as raised, autosave(state, log, every=SOON, step="crawl"):  # noqa: PT012
        state["n"] = 1
        raise error
    assert raised.value is error
    assert log.head.note == f"crawl raised {type(error).__name__}"
    assert (log.head.state, log.head.step, log.head.steps) == ({"n": 1}, None, 0)
    until(lambda: not timers())


# The decorator


def test_decorated_call_saves_even_without_a_change(log: History) -> None:
    state: list[int] = []

    @autosave(state, log)
    def work(number: int, *, add: bool = True) -> int:
        """Does it."""
        if add:
            state.append(number)
        return -number

    assert (work(1), work(2, add=False), work(3)) == (-1, -2, -3)
    assert [(v.step, v.kind, v.state) for v in versions(log)] == [
        ("work", "step", [1]),
        ("work", "step", [1]),
        ("work", "step", [1, 3]),
    ]
    assert (work.__name__, work.__doc__) == ("work", "Does it.")
    assert list(inspect.signature(work).parameters) == ["number", "add"]
    until(lambda: not timers())


def test_decorated_call_that_raises_saves_with_a_note_and_without_step(log: History) -> None:
    state = {"n": 0}

    @autosave(state, log, step="think")
    def work() -> None:
        state["n"] += 1
        if state["n"] == 2:
            raise KeyError("two")

    work()
    with pytest.raises(KeyError, match="two"):
        work()
    assert [(v.step, v.note, v.state["n"]) for v in versions(log)] == [
        ("think", None, 1),
        (None, "think raised KeyError", 2),
    ]
    assert log.head.steps == 1


def test_decorated_function_saves_periodically_while_it_runs(log: History) -> None:
    state = {"n": 0}

    @autosave(state, log, every=SOON)
    def work() -> None:
        state["n"] = 1
        until(lambda: saved() and saved()[-1] == ("timed", {"n": 1}))

    def saved() -> list[Any]:
        # The first interval may end before the function has started.
        return [(v.kind, v.state) for v in versions(log) if v.state != {"n": 0}]

    work()
    assert saved() == [("timed", {"n": 1}), ("step", {"n": 1})]


def test_decorator_accepts_async_functions_methods_and_callable_objects(log: History) -> None:
    state: list[str] = []
    saver = autosave(state, log, every=SOON)

    class Agent:
        @saver
        async def think(self, what: str) -> str:
            await asyncio.sleep(0)
            state.append(what)
            return what.upper()

        async def __call__(self) -> None:
            await asyncio.sleep(0)
            state.append("called")

    @saver
    async def wait_for_ever() -> None:
        state.append("cancelled")
        await asyncio.Event().wait()

    async def main() -> None:
        assert await Agent().think("a") == "A"
        assert versions(log)[-1].state == ["a"]
        await saver(Agent())()
        task = asyncio.create_task(wait_for_ever())
        while "cancelled" not in state:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert inspect.iscoroutinefunction(wait_for_ever)
    found = [(v.step, v.note, len(v.state)) for v in versions(log) if v.kind == "step" or v.note]
    assert found == [
        ("think", None, 1),
        ("Agent", None, 2),
        (None, "wait_for_ever raised CancelledError", 3),
    ]
    until(lambda: not timers())


def test_nested_calls_and_blocks_share_one_timer(log: History) -> None:
    reads = Reads({"depth": 0})
    saver = autosave(reads.read, log, every=SOON)

    @saver
    def dive(depth: int) -> None:
        assert len(timers()) == 1
        if depth:
            dive(depth - 1)
        reads.state["depth"] = depth
        if depth == 1:
            with saver:
                assert saver.save(note="inside") is not None
        reads.wait()

    dive(2)
    assert [v.step for v in versions(log) if v.kind == "step"] == ["dive"] * 3
    assert [v.note for v in versions(log) if v.note] == ["inside"]
    until(lambda: not timers())


@pytest.mark.parametrize("wrong", [int, 3, staticmethod(print), lambda: (yield)])
def test_decorator_refuses_what_is_not_a_function(log: History, wrong: Any) -> None:
    with pytest.raises(InvalidCall):
        autosave({}, log)(wrong)


# On demand


def test_save_always_makes_a_version(log: History) -> None:
    state = {"n": 0}
    saver = autosave(state, log)
    first = saver.save()
    second = saver.save(note="as agreed", tags=(tag for tag in ["good"]))
    assert first is not None
    assert second is not None
    assert (first.number, first.kind) == (1, "initial")
    assert (second.number, second.kind, second.note, second.tags) == (2, "manual", "as agreed", ("good",))
    until(lambda: not timers())


@pytest.mark.parametrize("facts", [{"note": 5}, {"tags": "good"}, {"tags": ["a@b"]}, {"tags": 5}])
def test_save_with_invalid_metadata_logs_a_warning(
    log: History, caplog: pytest.LogCaptureFixture, facts: dict[str, Any]
) -> None:
    assert autosave({}, log).save(**facts) is None
    assert len(warnings(caplog)) == 1
    assert not versions(log)


# Wrong arguments


def test_autosave_refuses_invalid_arguments(log: History, subtests: pytest.Subtests) -> None:
    cases: list[Any] = [
        {"source": None},
        {"source": "text"},
        {"source": 5},
        {"source": (1, 2)},
        {"source": object()},
        {"source": Plain},
        {"source": functools.partial(len)},
        {"source": lambda state: state},
        {"source": asyncio.sleep},
        {"source": lambda: (yield)},
        {"source": type("Both", (), {"__call__": lambda self: {}})()},
        {"log": "loop"},
        {"log": None},
        {"every": 0},
        {"every": -1},
        {"every": True},
        {"every": "5"},
        {"every": float("nan")},
        {"every": float("inf")},
        {"every": 10**400},
        {"step": 5},
        {"step": "x" * 501},
        {"lock": 5},
        {"lock": asyncio.Lock()},
    ]
    for wrong in cases:
        with subtests.test(wrong=wrong):
            given = {"source": {}, "log": log, **wrong}
            with pytest.raises(InvalidCall):
                autosave(given.pop("source"), given.pop("log"), **given)
