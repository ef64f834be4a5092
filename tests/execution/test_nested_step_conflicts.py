"""A step and the steps that it calls: a draft is not visible to them, and two changes of one place conflict."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import InvalidCall, MergeConflict, step, workflow


@step(name="nested inner")
def inner() -> int:
    state = holdfast.state()
    state["n"] += 1
    return int(state["n"])


@step(name="nested before")
def changes_before() -> None:
    holdfast.state()["n"] += 1
    inner()


@step(name="nested stale")
def changes_an_older_draft() -> None:
    state = holdfast.state()
    holdfast.parallel(inner)
    state["n"] += 1


@step(name="nested after")
def changes_after() -> int:
    inner()
    state = holdfast.state()
    state["n"] += 1
    return int(state["n"])


@workflow(name="nested conflict")
def nested(outer: str) -> Any:
    return {"before": changes_before, "stale": changes_an_older_draft, "after": changes_after}[outer]()


@pytest.mark.parametrize(
    ("outer", "called"),
    [("before", "nested before/nested inner"), ("stale", "nested stale/parallel/[1]/nested inner")],
)
def test_conflict_with_an_inner_step_says_so(outer: str, called: str) -> None:
    with holdfast.open(":memory:") as hf:
        run = hf.run(nested, outer, run_id="r", state={"n": 0}, raises=False)
        assert isinstance(run.error, MergeConflict)
        message = str(run.error)
        assert (
            f"step 'nested {outer}' changed n in the state that it had taken before it called {called!r}"
            in message
        )
        assert "does not see uncommitted changes" in message
        assert "version 2 of run 'r'" in message
        assert "concurrent" not in message
        assert run.error.details["other_step"] == called
        assert run.error.details["version"] == 2


def test_step_that_changes_state_after_its_inner_steps_does_not_conflict() -> None:
    with holdfast.open(":memory:") as hf:
        assert hf.run(nested, "after", state={"n": 0}).result == 2


def test_resolver_that_is_asynchronous_or_lacks_parameters_is_refused() -> None:
    async def aresolve(path: Any, base: Any, ours: Any, theirs: Any) -> Any:
        return ours

    with pytest.raises(InvalidCall, match=r"on_conflict of step 'job' is asynchronous"):

        @step(name="nested async resolver", on_conflict=aresolve)
        def job() -> None: ...

    wrong: Any = lambda base, ours, theirs: ours  # noqa: E731
    with pytest.raises(
        InvalidCall, match=r"on_conflict of step 'job' cannot be called with path, base, ours, theirs"
    ):
        step(name="nested wrong resolver", on_conflict=wrong)(job_of())


def job_of() -> Any:
    def job() -> None: ...

    return job
