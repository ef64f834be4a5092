"""Overrides of steps: recorded with the run and its versions, refused where their functions are missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import step_fixtures

import holdfast
from holdfast import Holdfast, InvalidCall, OverridesMissing, step, workflow
from holdfast.history.version import LOOK_BACK, Implementation
from patience import until

hf = step_fixtures.hf

_failing: list[str] = []
_ran: list[str] = []


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    _failing.clear()
    _ran.clear()
    yield
    _failing.clear()
    _ran.clear()


@step
def over_search(topic: str) -> str:
    _ran.append("own")
    return f"own {topic}"


@step
def over_end(text: str) -> str:
    if _failing:
        raise RuntimeError(_failing[0])
    return text


@workflow
def over_flow(topic: str) -> str:
    first = over_search(topic)
    over_end(first)
    return over_search(first)


@workflow
def over_parent(topic: str) -> str:
    return over_flow(topic)


@workflow
def over_many(count: int) -> None:
    for number in range(count):
        over_search(str(number))
        over_end(str(number))


def other(topic: str) -> str:
    _ran.append("other")
    return f"other {topic}"


def better(topic: str) -> str:
    _ran.append("better")
    return f"better {topic}"


def _stopped(hf: Holdfast, flow: Any = over_flow, **more: Any) -> None:
    _failing.append("stopped")
    assert hf.run(flow, "kelp", run_id="r", raises=False, **more).status == "failed"
    _failing.clear()


def _elsewhere(path: Path) -> Holdfast:
    """A second engine: it was given no functions."""
    return holdfast.open(path)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with holdfast.open(tmp_path / "r.db") as engine:
        _stopped(engine, overrides={"over_search": other})
    return tmp_path / "r.db"


def test_version_names_its_implementation(hf: Holdfast) -> None:
    hf.run(over_flow, "kelp", run_id="r", overrides={"over_search": other})
    found = [hf.version(f"r@{number}").implementation for number in range(1, 6)]
    assert found[0] is None
    assert found[4] is None
    first, end, again = found[1:4]
    assert first is not None
    assert end is not None
    assert (first.name, first.overridden) == (f"{__name__}.other", True)
    assert (end.name, end.overridden) == (f"{__name__}.over_end", False)
    assert again == first
    # Named once, not by each version.
    assert "ran" not in hf.version("r@4").detail


def test_implementation_is_found_without_reading_the_whole_history(hf: Holdfast) -> None:
    hf.run(over_many, LOOK_BACK, run_id="r")
    versions = hf.history("r").versions(step="over_search", limit=1000)
    named = [version.number for version in versions if "ran" in version.detail]
    assert len(named) == 2
    assert versions[-2].implementation == versions[0].implementation
    assert all(version.implementation is not None for version in versions[:3])


def test_comparison_shows_the_implementations_that_ran(hf: Holdfast) -> None:
    hf.run(over_flow, "kelp", run_id="r")
    hf.fork("r@1", "fork", overrides={"over_search": better})
    assert hf.resume("fork").result == "better better kelp"
    found = hf.compare("r", "fork")
    pairs = {(pair.step, pair.same_code) for pair in found.steps if pair.step}
    assert pairs == {("over_search", False), ("over_end", True)}
    assert "over_search" in str(found)
    assert f"{__name__}.better" in str(found)


def test_process_without_the_override_functions_is_refused_before_anything_runs(path: Path) -> None:
    with _elsewhere(path) as engine:
        before = engine.version("r").number
        calls: list[Callable[[], Any]] = [
            lambda: engine.resume("r"),
            lambda: engine.resume("r", mode="validate"),
            lambda: engine.resume("r", from_address="over_end"),
            lambda: engine.rollback("r", to=1),
            lambda: engine.run(over_flow, "kelp", run_id="r", if_exists="resume"),
        ]
        for call in calls:
            _ran.clear()
            with pytest.raises(OverridesMissing, match=r"over_search \(.*other") as caught:
                call()
            assert caught.value.details["steps"] == ["over_search"]
            assert _ran == []
            assert (engine.version("r").number, engine.get("r").status) == (before, "failed")


def test_overrides_may_be_passed_again(path: Path) -> None:
    with _elsewhere(path) as engine:
        assert engine.resume("r", overrides={"over_search": better}).result == "better other kelp"
        found = engine.version("r~1").implementation
        assert found is not None
        assert (found.name, found.overridden) == (f"{__name__}.better", True)


@pytest.mark.parametrize("clearing", [{}, {"over_search": None}])
def test_overrides_may_be_cleared(path: Path, clearing: dict[str, None]) -> None:
    with _elsewhere(path) as engine:
        assert engine.resume("r", overrides=clearing).result == "own other kelp"
        found = engine.version("r~1").implementation
        assert found is not None
        assert not found.overridden
    with _elsewhere(path) as engine:
        # They stay cleared.
        assert engine.rollback("r", to=1).result == "own own kelp"


def test_overrides_passed_later_are_added(hf: Holdfast) -> None:
    _stopped(hf, overrides={"over_search": other})
    assert hf.resume("r", overrides={"over_end": lambda text: text}).result == "other other kelp"


def test_overrides_are_kept_by_the_process_that_passed_them(hf: Holdfast) -> None:
    _stopped(hf, overrides={"over_search": other})
    assert hf.resume("r").result == "other other kelp"
    assert hf.rollback("r", to=1).result == "other other kelp"
    assert hf.rollback("r", to=1, overrides={}).result == "own own kelp"


def test_fork_has_the_overrides_of_its_origin(path: Path) -> None:
    with _elsewhere(path) as engine:
        engine.fork("r@1", "fork")
        engine.fork("r@1", "clear", overrides={})
        with pytest.raises(OverridesMissing):
            engine.resume("fork")
        assert engine.resume("clear").result == "own own kelp"
        assert engine.resume("fork", overrides={"over_search": better}).result == "better better kelp"


def test_child_run_has_the_overrides_of_its_parent(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "r.db") as engine:
        _stopped(engine, over_parent, overrides={"over_search": other})
        child = engine.get("r").children[0]
    with _elsewhere(tmp_path / "r.db") as engine:
        for run in ("r", child):
            with pytest.raises(OverridesMissing):
                engine.resume(run)
        assert engine.resume("r", overrides={}).result == "own other kelp"


def test_worker_without_the_override_functions_fails_the_run_and_runs_nothing(path: Path) -> None:
    with _elsewhere(path) as engine:
        engine.requeue("r", queue="default")
        run = engine.get("r")
        with engine.worker(monitor=False, poll=0.02):
            until(lambda: run.status == "failed")
        assert run.status == "failed"
        assert isinstance(run.error, OverridesMissing)
        assert _ran == ["other"]
        assert engine.resume("r", overrides={}).result == "own other kelp"


def test_overrides_without_an_execution_are_refused(hf: Holdfast) -> None:
    hf.run(over_flow, "kelp", run_id="r")
    with pytest.raises(InvalidCall, match="give them to resume"):
        hf.rollback("r", to=1, resume=False, overrides={"over_search": other})
    with pytest.raises(InvalidCall, match="is not a step that this process knows"):
        hf.resume("r", overrides={"over_missing": other})
    with pytest.raises(InvalidCall, match="maps names"):
        hf.resume("r", overrides={"over_search": 3})  # type: ignore[dict-item]


def test_override_may_be_any_callable(hf: Holdfast) -> None:
    hf.run(over_flow, "a", run_id="r", overrides={"over_search": os.fspath, "over_end": str.upper})
    for number, name in ((2, "posix.fspath"), (3, "str.upper")):
        found = hf.version(f"r@{number}").implementation
        assert found is not None
        assert name in found.name


def test_implementation_does_not_depend_on_the_module_being_the_program() -> None:
    here, there = Implementation("__main__.book", "1f", False), Implementation("agent.book", "1f", False)
    assert here.is_same(there)
    assert not here.is_same(Implementation("agent.book", "2f", False))
    assert not here.is_same(Implementation("agent.book", "1f", True))
