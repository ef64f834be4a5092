"""Wrong calls raise an error that names the argument and the next step, and change nothing."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import step_fixtures
import step_flows as f

import holdfast
from holdfast import (
    AlreadyExists,
    Holdfast,
    HoldfastError,
    InvalidAnswer,
    InvalidCall,
    InvalidReference,
    NotFinished,
    NotFound,
    StepTimeout,
    UnsupportedValue,
    workflow,
)

fresh, hf = step_fixtures.fresh, step_fixtures.hf

engine = step_fixtures.engine


CALLS: dict[str, Callable[[Holdfast], Any]] = {
    "run a function": lambda hf: hf.run(len),
    "run a step": lambda hf: hf.run(f.write, "a"),
    "run nothing": lambda hf: hf.run(None),
    "run an unknown name": lambda hf: hf.run("nope"),
    "run a number": lambda hf: hf.run(5),
    "run with a bad id": lambda hf: hf.run(f.book, "x", run_id="a@b"),
    "run with an empty id": lambda hf: hf.run(f.book, "x", run_id=""),
    "run with a number as id": lambda hf: hf.run(f.book, "x", run_id=5),  # type: ignore[arg-type]
    "run with a long id": lambda hf: hf.run(f.book, "x", run_id="x" * 201),
    "run with an id that exists": lambda hf: hf.run(f.book, "x", run_id="done"),
    "run with text as tags": lambda hf: hf.run(f.book, "x", tags="good"),
    "run with numbers as tags": lambda hf: hf.run(f.book, "x", tags=[5]),  # type: ignore[list-item]
    "run with a number of tags": lambda hf: hf.run(f.book, "x", tags=5),  # type: ignore[arg-type]
    "run with a number as note": lambda hf: hf.run(f.book, "x", note=5),  # type: ignore[arg-type]
    "run with a number as actor": lambda hf: hf.run(f.book, "x", actor=5),  # type: ignore[arg-type]
    "run with an unstorable argument": lambda hf: hf.run(f.book, object()),
    "run with an unstorable keyword": lambda hf: hf.run(f.book, topic=threading.Lock()),
    "run with unstorable state": lambda hf: hf.run(f.book, "x", state={"a": object()}),
    "run with overrides of text": lambda hf: hf.run(f.book, "x", overrides={"write": "text"}),  # type: ignore[dict-item]
    "run with overrides of another shape": lambda hf: hf.run(f.book, "x", overrides=5),  # type: ignore[arg-type]
    "resume nothing": lambda hf: hf.resume("nope"),
    "resume None": lambda hf: hf.resume(None),  # type: ignore[arg-type]
    "resume a number": lambda hf: hf.resume(5),  # type: ignore[arg-type]
    "resume an empty id": lambda hf: hf.resume(""),
    "resume in an unknown mode": lambda hf: hf.resume("done", mode="fast"),
    "resume in no mode": lambda hf: hf.resume("done", mode=None),  # type: ignore[arg-type]
    "resume from nowhere": lambda hf: hf.resume("done", from_address="nope"),
    "resume from a number": lambda hf: hf.resume("done", from_address=5),  # type: ignore[arg-type]
    "resume from a list": lambda hf: hf.resume("done", from_address=["a"]),  # type: ignore[arg-type]
    "resume with answers of another shape": lambda hf: hf.resume("done", answers=["yes"]),  # type: ignore[arg-type]
    "resume with unknown changed": lambda hf: hf.resume("done", changed="perhaps"),
    "resume with unknown divergence": lambda hf: hf.resume("done", on_divergence="ignore"),
    "resume with a function as workflow": lambda hf: hf.resume("done", workflow=len, from_address="plan"),
    "resume with bad overrides": lambda hf: hf.resume("done", overrides=5, from_address="plan"),  # type: ignore[arg-type]
    "roll back nothing": lambda hf: hf.rollback("nope", to=1),
    "roll back too far": lambda hf: hf.rollback("done", to=99),
    "roll back to zero": lambda hf: hf.rollback("done", to=0),
    "roll back to a tag that is not there": lambda hf: hf.rollback("done", to="nope"),
    "roll back to None": lambda hf: hf.rollback("done", to=None),  # type: ignore[arg-type]
    "roll back to a float": lambda hf: hf.rollback("done", to=1.5),  # type: ignore[arg-type]
    "roll back with a number as reason": lambda hf: hf.rollback("done", to=1, reason=5),  # type: ignore[arg-type]
    "roll back with bad overrides": lambda hf: hf.rollback("done", to=1, overrides={"plan": 1}),  # type: ignore[dict-item]
    "get nothing": lambda hf: hf.get("nope"),
    "get None": lambda hf: hf.get(None),  # type: ignore[arg-type]
    "cancel nothing": lambda hf: hf.cancel("nope"),
    "cancel a number": lambda hf: hf.cancel(5),  # type: ignore[arg-type]
    "cancel with a number as reason": lambda hf: hf.cancel("done", reason=5),  # type: ignore[arg-type]
    "pause nothing": lambda hf: hf.pause("nope"),
    "pause None": lambda hf: hf.pause(None),  # type: ignore[arg-type]
    "answer nothing": lambda hf: hf.answer("nope", 1),
    "answer a prompt that is not there": lambda hf: hf.answer("done#1", 1),
    "answer None": lambda hf: hf.answer(None, 1),  # type: ignore[arg-type]
    "answer an empty id": lambda hf: hf.answer("", 1),
    "answer a number": lambda hf: hf.answer(5, 1),  # type: ignore[arg-type]
    "answer with the unstorable": lambda hf: hf.answer("done#1", object()),
    "send to nothing": lambda hf: hf.signal("nope", "event"),
    "send to None": lambda hf: hf.signal(None, "event"),  # type: ignore[arg-type]
    "send a number": lambda hf: hf.signal("done", 5),  # type: ignore[arg-type]
    "send an empty event": lambda hf: hf.signal("done", ""),
    "send the unstorable": lambda hf: hf.signal("done", "event", object()),
    "subscribe a number": lambda hf: hf.subscribe(5),  # type: ignore[arg-type]
    "subscribe to text": lambda hf: hf.subscribe(print, kinds="run.*"),
    "subscribe to a number": lambda hf: hf.subscribe(print, kinds=5),  # type: ignore[arg-type]
    "subscribe to numbers": lambda hf: hf.subscribe(print, kinds=[5]),  # type: ignore[list-item]
    "subscribe after text": lambda hf: hf.subscribe(print, after="x"),  # type: ignore[arg-type]
    "subscribe after less than nothing": lambda hf: hf.subscribe(print, after=-1),
    "subscribe to a run by number": lambda hf: hf.subscribe(print, run_id=5),  # type: ignore[arg-type]
    "subscribe to a run that is not there": lambda hf: hf.subscribe(print, run_id="no@id"),
    "events after text": lambda hf: hf.events(after="x"),  # type: ignore[arg-type]
    "events without limit": lambda hf: hf.events(limit=0),
    "events of a run after text": lambda hf: hf.get("done").events(after="x"),  # type: ignore[arg-type]
    "wait for text": lambda hf: hf.get("done").wait("x"),  # type: ignore[arg-type]
    "fork nothing": lambda hf: hf.fork("nope"),
    "fork a number": lambda hf: hf.fork(5),  # type: ignore[arg-type]
    "fork at nowhere": lambda hf: hf.fork("done", at=99),
    "fork into itself": lambda hf: hf.fork("done", "done"),
    "fork with a bad edit": lambda hf: hf.fork("done", "x", edit=5),  # type: ignore[arg-type]
    "fork with an edit of nothing": lambda hf: hf.fork("done", "x", edit={"no.such[3].path": 1}),
    "fork with unstorable state": lambda hf: hf.fork("done", "x", state=object()),
    "fork with bad overrides": lambda hf: hf.fork("done", "x", overrides={"plan": 5}),  # type: ignore[dict-item]
    "compare with nothing": lambda hf: hf.compare("done", "nope"),
    "sleep for text": lambda hf: holdfast.sleep("x"),  # type: ignore[arg-type]
    "sleep backwards": lambda hf: holdfast.sleep(-1),
    "sleep for no number": lambda hf: holdfast.sleep(float("nan")),
    "sleep for ever": lambda hf: holdfast.sleep(float("inf")),
    "sleep for true": lambda hf: holdfast.sleep(True),
    "ask outside": lambda hf: holdfast.ask("Publish?"),
    "ask nothing": lambda hf: holdfast.ask(""),
    "ask a number": lambda hf: holdfast.ask(5),  # type: ignore[arg-type]
    "ask for a bad shape": lambda hf: holdfast.ask("x", schema=5),
    "ask for a bad time": lambda hf: holdfast.ask("x", timeout="x"),  # type: ignore[arg-type]
    "wait outside": lambda hf: holdfast.wait_for("x"),
    "wait for nothing": lambda hf: holdfast.wait_for(""),
    "wait for a number": lambda hf: holdfast.wait_for(5),  # type: ignore[arg-type]
    "parallel of numbers": lambda hf: holdfast.parallel(5),
    "parallel of a tuple of nothing": lambda hf: holdfast.parallel(()),
    "parallel with a bad limit": lambda hf: holdfast.parallel(print, limit=0),
    "parallel with text as limit": lambda hf: holdfast.parallel(print, limit="x"),  # type: ignore[arg-type]
    "state outside": lambda hf: holdfast.state(),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_call_is_refused_and_changes_nothing(engine: Holdfast, name: str) -> None:
    before = [event.cursor for event in engine.events()], engine.stats().versions, engine.stats().runs
    with pytest.raises(InvalidCall) as caught:
        CALLS[name](engine)
    assert len(str(caught.value)) > 15
    assert (
        [event.cursor for event in engine.events()],
        engine.stats().versions,
        engine.stats().runs,
    ) == before
    assert engine.get("done").status == "completed"
    assert engine.get("done").result == "A+B"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("resume nothing", NotFound),
        ("get nothing", NotFound),
        ("roll back too far", NotFound),
        ("run an unknown name", NotFound),
        ("run with an id that exists", AlreadyExists),
        ("run with a bad id", InvalidReference),
        ("run with an unstorable argument", UnsupportedValue),
        ("run with unstorable state", UnsupportedValue),
        ("answer nothing", NotFound),
        ("answer a prompt that is not there", NotFound),
    ],
)
def test_wrong_call_raises_an_error_of_the_right_family(
    engine: Holdfast, name: str, kind: type[HoldfastError]
) -> None:
    with pytest.raises(kind):
        CALLS[name](engine)


def test_wrong_call_error_names_the_argument(engine: Holdfast) -> None:
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: engine.resume("nope"), "'nope'"),
        (lambda: engine.run(f.book, "x", run_id="done"), "'done'"),
        (lambda: engine.run(f.book, {"a": [object()]}), "a[0]"),
        (lambda: engine.run(len), "@holdfast.workflow"),
        (lambda: engine.resume("done", mode="fast"), "validate"),
    ]
    for call, wanted in calls:
        with pytest.raises(InvalidCall) as caught:
            call()
        assert wanted in str(caught.value)


@pytest.mark.parametrize("arguments", [(), ("a", "b"), ("a", 5, 6)])
def test_wrong_arguments_of_a_workflow_are_refused_before_a_run_is_made(
    engine: Holdfast, arguments: tuple[Any, ...]
) -> None:
    runs = engine.stats().runs
    with pytest.raises((InvalidCall, TypeError), match=r"topic|argument"):
        engine.run(f.book, *arguments)
    assert engine.stats().runs == runs


def test_running_a_workflow_is_refused_where_it_would_block_an_event_loop(hf: Holdfast) -> None:
    async def inside() -> None:
        for which in (f.abook, f.book):
            with pytest.raises(InvalidCall, match=r"await hf\.arun"):
                hf.run(which, "kelp", run_id="r")
        assert (await asyncio.to_thread(hf.run, f.book, "kelp", run_id="thread")).result == "A+B"

    asyncio.run(inside())
    with pytest.raises(NotFound):
        hf.get("r")


def test_result_of_an_unfinished_run_says_why_there_is_none(hf: Holdfast) -> None:
    @workflow(name="waits_run")
    def waits_run() -> Any:
        return holdfast.ask("Publish?")

    run = hf.run(waits_run, run_id="w")
    with pytest.raises(holdfast.Suspended, match="'w'"):
        _ = run.result
    with pytest.raises(StepTimeout, match="suspended"):
        run.wait(timeout=0.01)
    hf.pause("w")
    with pytest.raises(NotFinished, match="paused"):
        _ = run.result
    hf.cancel("w")
    with pytest.raises(holdfast.Cancelled, match="'w'"):
        _ = run.result
    with pytest.raises(InvalidCall, match="roll it back"):
        hf.resume("w")
    hf.delete("w")
    with pytest.raises(NotFound, match="deleted"):
        _ = run.status


def test_question_is_answered_once(hf: Holdfast) -> None:
    @workflow(name="asks_run")
    def asks_run() -> Any:
        return [holdfast.ask("How many?", schema=int), holdfast.ask("Sure?", schema=bool)]

    run = hf.run(asks_run, run_id="a")
    first = run.questions()[0].id
    with pytest.raises(InvalidAnswer):
        hf.answer(first, "three")
    hf.answer(first, 3)
    with pytest.raises(InvalidAnswer, match="already"):
        hf.answer(first, 4)
    hf.answer(run.questions()[0].id, True)
    assert run.result == [3, True]


def test_manual_run_has_no_workflow_to_resume(hf: Holdfast) -> None:
    hf.history("log").commit({"a": 1})
    with pytest.raises(InvalidCall, match="is a manual run"):
        hf.resume("log")
    with pytest.raises(InvalidCall):
        hf.resume("log", from_address="x")
    assert hf.rollback("log", to=1).state == {"a": 1}


@pytest.mark.filterwarnings("ignore:coroutine")
def test_override_of_the_other_kind_is_refused_or_works(hf: Holdfast) -> None:
    async def awrite_v2(task: str) -> str:
        return "async"

    def write_v2(task: str) -> str:
        return "sync"

    run = hf.run(f.book, "kelp", overrides={"write": awrite_v2}, raises=False)
    assert run.status == "completed" or "write" in str(run.error)
    assert not isinstance(run.error, TypeError)
    run = hf.run(f.abook, "kelp", overrides={"write": write_v2})
    assert run.status == "completed" or "write" in str(run.error)
    assert not isinstance(run.error, TypeError)


def test_override_of_an_unknown_step_is_refused(hf: Holdfast) -> None:
    with pytest.raises(InvalidCall, match="no_such_step"):
        hf.run(f.book, "kelp", overrides={"no_such_step": print})


def test_closed_engine_refuses_every_call(tmp_path: Path) -> None:
    hf = holdfast.open(tmp_path / "runs.db")
    run = hf.run(f.book, "kelp", run_id="r")
    hf.close()
    for call in (
        lambda: hf.run(f.book, "x"),
        lambda: hf.resume("r"),
        lambda: run.status,
        lambda: hf.rollback("r", to=1),
    ):
        with pytest.raises(HoldfastError):
            call()
    hf.close()
