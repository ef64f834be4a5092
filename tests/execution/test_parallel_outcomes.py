"""Programs with parallel steps have one outcome: on every store, with every number of threads, at every speed, and if
they are interrupted after any step and resumed."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from parallel_programs import PROGRAMS, START, Interrupted, chance

import holdfast
from holdfast import Holdfast, MergeConflict, Run, thaw

pytest_plugins = ["postgres_fixtures"]

LIMITS = (None, 1, 2, 8)


@pytest.fixture(autouse=True)
def _always(request: pytest.FixtureRequest) -> None:
    chance.random = random.Random(request.node.name)
    chance.left = None


@pytest.fixture
def opened(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, Holdfast]]:
    """The stores of all kinds."""
    places = {
        "memory": ":memory:",
        "sqlite": str(tmp_path / "runs.db"),
        "postgres": request.getfixturevalue("url"),
    }
    with ExitStack() as stack:
        yield {
            kind: stack.enter_context(holdfast.open(place, durability="fast"))
            for kind, place in places.items()
        }


def _outcome(run: Run) -> Any:
    """Return the facts that must be the same each time; items that were appended are in the order of their versions."""
    if run.status == "failed":
        error: Any = run.error
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        assert isinstance(error, MergeConflict), error
        assert error.details["step"] != error.details["other_step"]
        return "conflict"
    state = thaw(run.state)
    for key in ("log", "seen"):
        state[key] = sorted(state[key])
    return run.status, run.result, state


def _interrupted(hf: Holdfast, flow: Any, run_id: str, limit: int | None, after: int) -> Run:
    """Run a program whose process ends, as it were, after so many steps; then resume it."""
    chance.left = after
    try:
        hf.run(flow, limit, state=START, run_id=run_id, raises=False)
    except Interrupted:
        pass
    except BaseExceptionGroup as group:
        if group.subgroup(Interrupted) is None:
            raise
    chance.left = None
    return hf.resume(run_id, raises=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_parallel_program_has_one_outcome(name: str, opened: dict[str, Holdfast]) -> None:
    program = PROGRAMS[name]
    numbers = itertools.count()
    outcomes: list[Any] = []
    for hf in opened.values():
        for limit in LIMITS:
            run = hf.run(program.flow, limit, state=START, run_id=f"{name}-{next(numbers)}", raises=False)
            outcomes.append(_outcome(run))
    for kind, after in (
        ("memory", 0),
        ("sqlite", 1),
        ("sqlite", 3),
        ("postgres", 4),
        ("sqlite", 7),
        ("memory", 12),
    ):
        run = _interrupted(opened[kind], program.flow, f"{name}-{next(numbers)}", None, after)
        outcomes.append(_outcome(run))
    assert outcomes == [outcomes[0]] * len(outcomes)
    assert (outcomes[0] == "conflict") == program.conflicts


@pytest.mark.slow
def test_parallel_counters_add_up_where_a_sum_is_declared(opened: dict[str, Holdfast]) -> None:
    for hf in opened.values():
        assert hf.run(PROGRAMS["counters-merged"].flow, state=START, run_id="c").result == [
            [1, 1, 1, 1],
            5,
            5,
        ]
        assert hf.run(PROGRAMS["branches-merged"].flow, state=START, run_id="b").state["n"] == 9
        run = hf.run(PROGRAMS["gathered_steps-merged"].flow, state=START, run_id="g")
        assert run.result == [[1, 1, 1, 1], 5, 5]


def test_conflict_writes_nothing_and_is_the_same_after_a_resume(
    opened: dict[str, Holdfast],
) -> None:
    for hf in opened.values():
        run = hf.run(PROGRAMS["branches-plain"].flow, state=START, run_id="b", raises=False)
        first = run.error
        assert isinstance(first, MergeConflict)
        before = (thaw(run.state), len(run.history().versions()))
        second = hf.resume("b", raises=False).error
        assert isinstance(second, MergeConflict)
        assert (thaw(run.state), len(run.history().versions())) == before
        for name in ("path", "step", "base_version"):
            assert first.details[name] == second.details[name]
        assert run.history().verify().ok
