"""A run that fails raises its error to the caller, with a note; one that waits or was stopped is returned."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import CompensationFailed, Holdfast, step, workflow


class Declined(Exception):
    def __init__(self, *, card: str) -> None:
        super().__init__(f"card {card} was declined")
        self.card = card


BROKEN: set[str] = set()
#: One object that is raised again and again.
SAME = ValueError("the same object each time")


@step(name="raises_inner")
def inner(card: str) -> str:
    if "inner" in BROKEN:
        raise Declined(card=card)
    if "same" in BROKEN:
        raise SAME
    return f"paid with {card}"


@step(name="raises_outer")
def outer(card: str) -> str:
    return inner(card)


@workflow(name="raises_flow")
def flow(card: str = "4242") -> str:
    return outer(card)


@workflow(name="raises_aflow")
async def aflow(card: str = "4242") -> str:
    return outer(card)


@workflow(name="raises_between")
def between() -> None:
    outer("1")
    raise LookupError("between steps")


@workflow(name="raises_asking")
def asking() -> str:
    holdfast.ask("Pay?", schema=bool)
    return outer("1")


@workflow(name="raises_waiting")
def waiting() -> str:
    holdfast.wait_for("money")
    return outer("1")


@workflow(name="raises_parent")
def parent() -> str:
    try:
        return str(flow())
    except Declined as error:
        return f"{error.card}, notes: {getattr(error, '__notes__', [])}"


@pytest.fixture(params=["file", "memory"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    BROKEN.clear()
    with holdfast.open(":memory:" if request.param == "memory" else tmp_path / "runs.db") as opened:
        yield opened


def _run(hf: Holdfast, which: Any, run_id: str) -> Any:
    return hf.run(which, run_id=run_id)


def _arun(hf: Holdfast, which: Any, run_id: str) -> Any:
    return asyncio.run(hf.arun(which, run_id=run_id))


BOTH = pytest.mark.parametrize("which", [flow, aflow], ids=["def", "async"])


@BOTH
@pytest.mark.parametrize("call", [_run, _arun], ids=["run", "arun"])
def test_run_raises_the_error_of_the_workflow_with_a_note(
    hf: Holdfast, which: Any, call: Callable[..., Any]
) -> None:
    BROKEN.add("inner")
    with pytest.raises(Declined) as caught:
        call(hf, which, "r")
    assert caught.value.card == "4242"
    assert caught.value.__notes__ == [
        "Run 'r' failed in step 'raises_outer/raises_inner'. hf.resume('r') resumes it: completed steps are not run "
        "again."
    ]
    assert hf.get("r").status == "failed"


@BOTH
def test_resume_raises_the_error_with_one_note(hf: Holdfast, which: Any) -> None:
    BROKEN.add("inner")
    run = hf.run(which, run_id="r", raises=False)
    assert run.status == "failed"
    with pytest.raises(Declined) as caught:
        hf.resume("r")
    assert len(caught.value.__notes__) == 1
    with pytest.raises(Declined) as caught:
        asyncio.run(hf.aresume("r"))
    assert len(caught.value.__notes__) == 1
    assert asyncio.run(hf.aresume("r", raises=False)).status == "failed"
    for _ in range(2):
        with pytest.raises(Declined) as caught:
            run.result  # noqa: B018 - reading it raises
        assert len(caught.value.__notes__) == 1
    BROKEN.clear()
    assert hf.resume("r").result == "paid with 4242"


def test_exception_raised_by_several_runs_has_one_note_per_run(hf: Holdfast) -> None:
    BROKEN.add("same")
    for name in ("a", "a", "b", "a"):
        with pytest.raises(ValueError, match="the same object") as caught:
            hf.run(flow, run_id=name, if_exists="resume")
        assert caught.value is SAME
    assert sorted(note.split("'")[1] for note in SAME.__notes__) == ["a", "b"]
    # What is stored of run a does not say that run a failed.
    assert [note for note in (hf.get("a").failure or {})["notes"] if "'a'" in note] == []


def test_error_between_steps_names_no_step(hf: Holdfast) -> None:
    with pytest.raises(LookupError) as caught:
        hf.run(between, run_id="r")
    assert caught.value.__notes__ == [
        "Run 'r' failed. hf.resume('r') resumes it: completed steps are not run again."
    ]


def test_traceback_shows_only_application_frames(hf: Holdfast) -> None:
    BROKEN.add("inner")
    for which in (flow, aflow):
        with pytest.raises(Declined) as caught:
            hf.run(which)
        frames = traceback.extract_tb(caught.value.__traceback__)
        ours = [each.name for each in frames if each.filename == __file__]
        name = which.__name__
        assert ours == ["test_traceback_shows_only_application_frames", name, "outer", "inner"]
        assert len(frames) <= len(ours) + 2


def test_traceback_of_a_run_in_a_step_shows_only_application_frames(hf: Holdfast) -> None:
    @workflow(name="fails_inside")
    def inside() -> None:
        raise Declined(card="4242")

    @step(name="runs_another")
    def runs_another() -> None:
        hf.run(inside)

    @workflow(name="fails_around")
    def around() -> None:
        runs_another()

    with pytest.raises(Declined) as caught:
        hf.run(around, run_id="around")
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames][-3:] == ["around", "runs_another", "inside"]
    recorded = hf.get("around").failure
    assert "engine.py" not in str(recorded)


def test_engine_error_in_a_run_keeps_its_traceback(hf: Holdfast) -> None:
    @step(name="raises_unstorable")
    def unstorable() -> Any:
        return object()

    @workflow(name="raises_unstorable_run")
    def whole() -> None:
        unstorable()

    with pytest.raises(holdfast.UnsupportedValue) as caught:
        hf.run(whole, run_id="r")
    assert caught.value.__notes__[0].startswith("Run 'r' failed in step 'raises_unstorable'.")
    assert traceback.extract_tb(caught.value.__traceback__)[-1].filename != __file__


def test_rollback_raises_the_error_of_the_resumed_run(hf: Holdfast) -> None:
    hf.run(flow, run_id="r")
    BROKEN.add("inner")
    with pytest.raises(Declined, match="4242") as caught:
        hf.rollback("r", to=1)
    assert "Run 'r' failed" in caught.value.__notes__[0]
    assert hf.rollback("r", to=1, raises=False).status == "failed"
    assert hf.rollback("r", to=1, resume=False).status == "paused"


def test_answer_and_signal_raise_the_error_and_stay_recorded(hf: Holdfast) -> None:
    BROKEN.add("inner")
    hf.run(asking, run_id="asks")
    with pytest.raises(Declined):
        hf.answer("asks#1", True)
    assert hf.get("asks").status == "failed"
    hf.run(waiting, run_id="waits")
    with pytest.raises(Declined):
        hf.signal("waits", "money", 3)
    BROKEN.clear()
    assert hf.resume("asks").result == hf.resume("waits").result == "paid with 1"
    BROKEN.add("inner")
    hf.run(asking, run_id="other")
    assert hf.answer("other#1", True, raises=False).status == "failed"
    hf.run(waiting, run_id="more")
    assert hf.signal("more", "money", raises=False).status == "failed"


def test_child_that_fails_raises_in_its_parent_without_a_note(hf: Holdfast) -> None:
    BROKEN.add("inner")
    assert hf.run(parent).result == "4242, notes: []"


def test_run_that_waits_or_was_stopped_is_returned(hf: Holdfast) -> None:
    assert hf.run(asking, run_id="r").status == "suspended"
    hf.pause("r")
    hf.cancel("r")

    @step(name="raises_cancelling")
    def cancelling() -> None:
        hf.cancel("c")

    @workflow(name="raises_cancelled")
    def cancelled() -> None:
        cancelling()
        outer("1")

    assert hf.run(cancelled, run_id="c").status == "cancelled"


def test_error_outside_the_workflow_is_raised_whatever_raises_says(hf: Holdfast) -> None:
    @step(name="raises_undo", compensate=lambda _: 1 / 0)
    def undoable() -> int:
        return 1

    @workflow(name="raises_undoing")
    def undoing() -> int:
        return undoable()

    hf.run(undoing, run_id="r")
    with pytest.raises(holdfast.AlreadyExists):
        hf.run(undoing, run_id="r", raises=False)
    with pytest.raises(CompensationFailed):
        hf.rollback("r", to=1, raises=False)
    with pytest.raises(holdfast.NotFound):
        hf.resume("none", raises=False)


def test_exception_that_refuses_notes_is_raised_unchanged(hf: Holdfast) -> None:
    class Closed(Exception):
        def __setattr__(self, name: str, value: Any) -> None:
            raise TypeError("closed")

    @workflow(name="raises_closed")
    def closed() -> None:
        raise Closed("no notes")

    with pytest.raises(Closed, match="no notes"):
        hf.run(closed)


def test_uncaught_failure_of_a_script_shows_its_own_frames(tmp_path: Path) -> None:
    (tmp_path / "letter.py").write_text(
        "import holdfast\n\n\n@holdfast.step\ndef write():\n    raise ConnectionError('no model')\n\n\n"
        "@holdfast.workflow\ndef letter():\n    return write()\n\n\n"
        "holdfast.open('h.db').run(letter, run_id='letter-1')\n"
    )
    done = subprocess.run(
        [sys.executable, "letter.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.endswith(
        "ConnectionError: no model\nRun 'letter-1' failed in step 'write'. hf.resume('letter-1') resumes it: completed "
        "steps are not run again.\n"
    )
    assert done.stderr.count("  File ") <= 5
