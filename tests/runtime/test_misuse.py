"""Mistakes: each is told by an error of ours that names the thing and the next step, and leaves all as it was."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import flows_steps as f
import pytest
from flows_steps import Broken, control

import holdfast
from holdfast import (
    AlreadyExists,
    Breaker,
    Holdfast,
    HoldfastError,
    InvalidAnswer,
    InvalidCall,
    InvalidReference,
    NotFinished,
    NotFound,
    Retry,
    StepTimeout,
    UnsupportedValue,
    step,
    workflow,
)


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    control.reset()
    yield
    control.reset()


@pytest.fixture(params=["file", "memory"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(":memory:" if request.param == "memory" else tmp_path / "runs.db") as engine:
        yield engine


@pytest.fixture
def engine() -> Iterator[Holdfast]:
    with holdfast.open(":memory:") as found:
        found.run(f.book, "kelp", run_id="done")
        yield found


def _generator() -> Iterator[int]:
    yield 1


async def _agenerator() -> Any:
    yield 1


class _Class:
    def __call__(self) -> None: ...


DECORATED: list[tuple[str, Any]] = [
    ("class", _Class),
    ("generator", _generator),
    ("async-generator", _agenerator),
    ("partial", functools.partial(print, 1)),
    ("none", 5),
    ("text", "text"),
    ("object", _Class()),
    ("step", f.write),
    ("workflow", f.book),
    ("staticmethod", classmethod(lambda cls: 1)),
]


@pytest.mark.parametrize("decorator", [step, workflow])
@pytest.mark.parametrize(("name", "given"), DECORATED, ids=[name for name, _ in DECORATED])
def test_decorators_go_on_functions(decorator: Any, name: str, given: Any) -> None:
    with pytest.raises(InvalidCall):
        decorator(given)
    with pytest.raises(InvalidCall):
        decorator()(given)


NAMES = [
    "",
    " ",
    " a",
    "a ",
    "a/b",
    "a#2",
    "a[b]",
    "x" * 101,
    "a\nb",
    "\ud800",
    5,
    b"x",
    "a\0b",
    "\x1b[31m",
    "a\x7f",
]


@pytest.mark.parametrize("decorator", [step, workflow])
@pytest.mark.parametrize("name", NAMES, ids=repr)
def test_hostile_names_are_refused(decorator: Any, name: Any) -> None:
    with pytest.raises(InvalidCall):
        decorator(name=name)(lambda: 1)


@pytest.mark.parametrize(
    "name", ["naïve step", "計画", "a.b:c@d~e", "x" * 100, "<lambda>", "Robert'); DROP TABLE runs;--"]
)
def test_odd_names_work(hf: Holdfast, name: str) -> None:
    @step(name=name)
    def odd() -> str:
        control.did("odd")
        return "odd"

    @workflow(name=name)
    def odd_flow() -> str:
        found = odd()
        control.did("end")
        return found

    control.failing["end"] = 1
    run = hf.run(odd_flow)
    assert isinstance(run.error, Broken)
    assert hf.resume(run.id).result == "odd"
    assert control.ran == ["odd", "end", "end"]
    assert run.workflow == name
    assert run.history().at(2).step == name


STEP_OPTIONS: list[dict[str, Any]] = [
    {"timeout": 0},
    {"timeout": -1},
    {"timeout": "5"},
    {"timeout": True},
    {"timeout": float("nan")},
    {"timeout": float("inf")},
    {"retry": "3"},
    {"retry": 0},
    {"retry": -1},
    {"retry": True},
    {"retry": 1.5},
    {"breaker": 5},
    {"compensate": "undo"},
    {"on_conflict": 5},
    {"key": 5},
    {"key": "nope"},
]


@pytest.mark.parametrize("options", STEP_OPTIONS, ids=str)
def test_options_of_a_step_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidCall) as caught:
        step(**options)(lambda item: item)
    assert next(iter(options)) in str(caught.value) or "attempts" in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": "x"},
        {"changed": "maybe"},
        {"changed": None},
        {"version": 5},
        {"on": 5},
        {"of": 5},
    ],
    ids=str,
)
def test_options_of_a_workflow_are_checked(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidCall, match=next(iter(options))):
        workflow(**options)(lambda: 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Retry(0),
        lambda: Retry(3, "linear"),
        lambda: Retry(3, delay=-1),
        lambda: Retry(3, on="all"),  # type: ignore[arg-type]
        lambda: Retry(3, on=KeyboardInterrupt),  # type: ignore[arg-type]
        lambda: Retry(3, jitter=2),
        lambda: Breaker(0),
        lambda: Breaker(1, reset=-1),
    ],
)
def test_policies_are_checked(make: Callable[[], Any]) -> None:
    with pytest.raises(InvalidCall):
        make()


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
    "send to nothing": lambda hf: hf.send("nope", "event"),
    "send to None": lambda hf: hf.send(None, "event"),  # type: ignore[arg-type]
    "send a number": lambda hf: hf.send("done", 5),  # type: ignore[arg-type]
    "send an empty event": lambda hf: hf.send("done", ""),
    "send the unstorable": lambda hf: hf.send("done", "event", object()),
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
def test_a_wrong_call_is_refused_and_changes_nothing(engine: Holdfast, name: str) -> None:
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
def test_errors_are_of_the_right_family(engine: Holdfast, name: str, kind: type[HoldfastError]) -> None:
    with pytest.raises(kind):
        CALLS[name](engine)


def test_messages_name_the_thing(engine: Holdfast) -> None:
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


def _inside(hf: Holdfast, work: Callable[[], Any], where: str) -> BaseException | None:
    """What a call gives inside a run, in the workflow's own code or in a step."""

    @step(name="inside")
    def inside() -> None:
        work()

    @workflow(name="inside_run")
    def inside_run() -> None:
        inside() if where == "step" else work()

    return hf.run(inside_run).error


@pytest.mark.parametrize("where", ["step", "workflow"])
@pytest.mark.parametrize(
    "work",
    [
        lambda: holdfast.sleep("x"),  # type: ignore[arg-type]
        lambda: holdfast.ask(""),
        lambda: holdfast.wait_for(None),  # type: ignore[arg-type]
        lambda: holdfast.parallel(5),
        lambda: holdfast.note(x=object()),
        lambda: holdfast.ask("x", key=object()),  # type: ignore[arg-type]
    ],
    ids=["sleep", "ask", "wait_for", "parallel", "note", "ask-key"],
)
def test_wrong_calls_inside_a_run_fail_it_with_our_errors(
    engine: Holdfast, where: str, work: Callable[[], Any]
) -> None:
    assert isinstance(_inside(engine, work, where), InvalidCall)


@pytest.mark.parametrize("what", ["note", "idempotency_key"])
def test_what_belongs_to_a_step_is_refused_in_the_workflow(engine: Holdfast, what: str) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "note": lambda: holdfast.note(tokens=1),
        "idempotency_key": holdfast.idempotency_key,
    }
    error = _inside(engine, calls[what], "workflow")
    assert isinstance(error, InvalidCall)
    assert "step" in str(error)


@pytest.mark.parametrize("arguments", [(), ("a", "b"), ("a", 5, 6)])
def test_wrong_arguments_of_a_workflow_are_refused_before_a_run_is_made(
    engine: Holdfast, arguments: tuple[Any, ...]
) -> None:
    runs = engine.stats().runs
    with pytest.raises((InvalidCall, TypeError), match=r"topic|argument"):
        engine.run(f.book, *arguments)
    assert engine.stats().runs == runs


def test_an_async_workflow_in_an_event_loop_is_refused(hf: Holdfast) -> None:
    async def inside() -> None:
        with pytest.raises(InvalidCall, match="arun"):
            hf.run(f.abook, "kelp", run_id="r")
        assert hf.run(f.book, "kelp", run_id="blocking").result == "A+B"

    asyncio.run(inside())
    with pytest.raises(NotFound):
        hf.get("r")


def _deep(levels: int) -> Any:
    found: Any = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize("where", ["argument", "state", "result", "step-state", "step-argument"])
def test_what_is_too_deep_is_refused(hf: Holdfast, where: str) -> None:
    @step(name="takes")
    def takes(value: Any) -> Any:
        if where == "step-state":
            holdfast.state()["deep"] = _deep(5000)
        return _deep(5000) if where == "result" else "fine"

    @workflow(name="deep_run")
    def deep_run(value: Any = None) -> Any:
        return takes(_deep(5000) if where == "step-argument" else None)

    if where in {"argument", "state"}:
        given = _deep(5000) if where == "argument" else None
        with pytest.raises(UnsupportedValue):
            hf.run(deep_run, given, state={"deep": _deep(5000)} if where == "state" else None)
        assert hf.stats().runs == 0
    elif where == "step-argument":
        assert hf.run(deep_run).result == "fine"
    else:
        run = hf.run(deep_run)
        assert isinstance(run.error, UnsupportedValue)
        assert run.head.number == 1


def test_what_is_huge_is_kept(hf: Holdfast) -> None:
    @step(name="huge")
    def huge(value: str) -> str:
        control.did("huge")
        holdfast.state()["huge"] = value
        return value * 2

    @workflow(name="huge_run")
    def huge_run(value: str) -> int:
        found = huge(value)
        control.did("end")
        return len(found)

    control.failing["end"] = 1
    run = hf.run(huge_run, "x" * 3_000_000)
    assert run.status == "failed"
    assert hf.resume(run.id).result == 6_000_000
    assert control.ran.count("huge") == 1
    assert hf.verify().ok


def test_arguments_of_steps_need_not_be_storable(hf: Holdfast) -> None:
    class Client:
        pass

    @step(name="uses_client")
    def uses_client(client: Client, n: int) -> int:
        control.did("uses")
        return n

    @workflow(name="client_run")
    def client_run() -> int:
        found = uses_client(Client(), 3)
        control.did("end")
        return found

    control.failing["end"] = 1
    run = hf.run(client_run)
    assert hf.resume(run.id).result == 3
    assert control.ran == ["uses", "end", "end"]


def test_unstorable_keyword_arguments_of_steps(hf: Holdfast) -> None:
    @step(name="uses_more")
    def uses_more(*things: Any, **named: Any) -> int:
        control.did("uses")
        return len(things) + len(named)

    @workflow(name="more_run")
    def more_run() -> int:
        found = uses_more([object()], {1, 2}, b=print, a=threading.Lock())
        control.did("end")
        return found

    control.failing["end"] = 1
    run = hf.run(more_run)
    assert hf.resume(run.id).result == 4
    assert control.ran == ["uses", "end", "end"]


def test_steps_nested_too_deeply_are_refused_by_name(hf: Holdfast) -> None:
    @step(name="x" * 90)
    def deeper(n: int) -> int:
        return deeper(n - 1) if n else 0

    @workflow(name="deeper_run")
    def deeper_run() -> int:
        return deeper(10)

    run = hf.run(deeper_run)
    assert isinstance(run.error, InvalidCall)
    assert "too long" in str(run.error)


def test_a_run_without_a_result_says_why(hf: Holdfast) -> None:
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


def test_a_prompt_is_answered_once(hf: Holdfast) -> None:
    @workflow(name="asks_run")
    def asks_run() -> Any:
        return [holdfast.ask("How many?", schema=int), holdfast.ask("Sure?", schema=bool)]

    run = hf.run(asks_run, run_id="a")
    first = run.prompts()[0].id
    with pytest.raises(InvalidAnswer):
        hf.answer(first, "three")
    hf.answer(first, 3)
    with pytest.raises(InvalidAnswer, match="already"):
        hf.answer(first, 4)
    hf.answer(run.prompts()[0].id, True)
    assert run.result == [3, True]


def test_a_history_kept_by_hand_has_no_workflow_to_resume(hf: Holdfast) -> None:
    hf.history("log").commit({"a": 1})
    with pytest.raises(InvalidCall, match="by hand"):
        hf.resume("log")
    with pytest.raises(InvalidCall):
        hf.resume("log", from_address="x")
    assert hf.rollback("log", to=1).state == {"a": 1}


@pytest.mark.filterwarnings("ignore:coroutine")
def test_overrides_of_the_other_kind_are_refused_or_work(hf: Holdfast) -> None:
    async def awrite_v2(task: str) -> str:
        return "async"

    def write_v2(task: str) -> str:
        return "sync"

    run = hf.run(f.book, "kelp", overrides={"write": awrite_v2})
    assert run.status == "completed" or "write" in str(run.error)
    assert not isinstance(run.error, TypeError)
    run = hf.run(f.abook, "kelp", overrides={"write": write_v2})
    assert run.status == "completed" or "write" in str(run.error)
    assert not isinstance(run.error, TypeError)


def test_an_override_that_fits_no_step_is_told(hf: Holdfast) -> None:
    with pytest.raises(InvalidCall, match="no_such_step"):
        hf.run(f.book, "kelp", overrides={"no_such_step": print})


def test_an_engine_that_was_closed_says_so(tmp_path: Path) -> None:
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


def test_a_run_that_is_deleted_while_it_runs_ends_with_an_error_of_ours(hf: Holdfast) -> None:
    @step(name="deletes")
    def deletes() -> None:
        hf.delete("r")

    @workflow(name="deletes_run")
    def deletes_run() -> None:
        deletes()

    with pytest.raises(HoldfastError, match="'r'"):
        hf.run(deletes_run, run_id="r")


def test_a_step_that_rolls_its_own_run_back_is_refused(hf: Holdfast) -> None:
    @step(name="rolls")
    def rolls() -> None:
        hf.rollback("r", to=1)

    @workflow(name="rolls_run")
    def rolls_run() -> None:
        f.write("a")
        rolls()

    run = hf.run(rolls_run, run_id="r")
    assert isinstance(run.error, holdfast.AlreadyRunning)
    assert run.state == {"texts": ["a"]}


def test_a_subscriber_that_raises_harms_nobody(hf: Holdfast) -> None:
    def bad(event: Any) -> None:
        control.ran.append("heard")
        raise Broken("subscriber")

    with hf.subscribe(bad):
        assert hf.run(f.book, "kelp").result == "A+B"
        f.wait_until(lambda: control.ran.count("heard") >= 6)


class Surprise(BaseException):
    pass


@pytest.mark.parametrize("where", ["step", "workflow"])
def test_an_exception_of_no_known_family_ends_the_call_and_leaves_the_run_resumable(
    hf: Holdfast, where: str
) -> None:
    @step(name="surprising")
    def surprising() -> str:
        if control.value is None:
            raise Surprise
        return "fine"

    @workflow(name="surprise_run")
    def surprise_run() -> str:
        f.write("a")
        if where == "workflow" and control.value is None:
            raise Surprise
        return surprising()

    with pytest.raises(Surprise):
        hf.run(surprise_run, run_id="s")
    control.value = 1
    assert hf.resume("s").result == "fine"
    assert control.ran == ["write-a"]


def test_user_code_that_catches_everything_cannot_stop_a_cancel(hf: Holdfast) -> None:
    @step(name="cancels_itself")
    def cancels_itself() -> str:
        hf.cancel("r")
        return "cancelled"

    @workflow(name="stubborn_run")
    def stubborn_run() -> list[str]:
        found = [cancels_itself()]
        for task in ("a", "b", "c"):
            try:
                found.append(f.write(task))
            except BaseException:
                found.append("caught")
        return found

    run = hf.run(stubborn_run, run_id="r")
    assert run.status == "cancelled"
    assert control.ran == []
