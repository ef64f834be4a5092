"""Resuming: what was recorded is not run again, whoever resumes, wherever, however often."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import flows_steps as f
import pytest
from flows_steps import Broken, control, effects_in, elsewhere, environment, program, wait_until

import holdfast
from holdfast import AlreadyRunning, Holdfast, step, workflow

BOOKS = [pytest.param(f.book, id="def"), pytest.param(f.abook, id="async")]
ALL = ["plan", "write-a", "write-b", "finish"]


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    control.reset()
    yield
    control.reset()


@pytest.fixture(params=["file", "memory"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(":memory:" if request.param == "memory" else tmp_path / "runs.db") as engine:
        yield engine


@pytest.mark.parametrize("flow", BOOKS)
def test_a_failed_run_resumes_at_the_failed_step_and_keeps_the_rest(hf: Holdfast, flow: Any) -> None:
    control.failing["finish"] = 1
    run = hf.run(flow, "kelp", run_id="a-run-with-dashes")
    assert run.status == "failed"
    assert isinstance(run.error, Broken)
    assert run.state == {"topic": "kelp", "texts": ["a", "b"]}
    assert control.ran == ALL
    again = hf.resume("a-run-with-dashes")
    assert again.result == "A+B"
    assert again.status == "completed"
    assert control.ran == [*ALL, "finish"]
    assert again.state == {"topic": "kelp", "texts": ["a", "b"], "done": True}


@pytest.mark.parametrize("flow", BOOKS)
def test_ten_resumes_run_nothing_twice(hf: Holdfast, flow: Any) -> None:
    control.failing["finish"] = 10
    run = hf.run(flow, "kelp")
    for _ in range(9):
        assert hf.resume(run.id).status == "failed"
    assert hf.resume(run.id).result == "A+B"
    assert control.ran == [*ALL, *["finish"] * 10]
    for _ in range(10):
        assert hf.resume(run.id).result == "A+B"
    assert control.ran == [*ALL, *["finish"] * 10]
    assert run.head.number == 6


@pytest.mark.parametrize("flow", ["book", "abook"])
def test_a_new_process_resumes_by_id_alone(tmp_path: Path, flow: str) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    run_id = "deep-sea-1-2"
    body = f"f.control.failing['write-b'] = 1\nprint(hf.run(f.{flow}, 'kelp', run_id={run_id!r}).status)"
    assert elsewhere(db, body, effects) == "failed"
    assert effects_in(effects) == ["plan", "write-a", "write-b"]
    shown = elsewhere(
        db,
        f"r = hf.resume({run_id!r}); print(r.result, dict(r.state) == hf.version({run_id!r}).state)",
        effects,
    )
    assert shown == "A+B True"
    assert effects_in(effects) == ["plan", "write-a", "write-b", "write-b", "finish"]
    assert elsewhere(db, f"print(hf.resume({run_id!r}).result)", effects) == "A+B"
    assert len(effects_in(effects)) == 5
    with holdfast.open(db) as hf:
        assert hf.get(run_id).state == {"topic": "kelp", "texts": ["a", "b"], "done": True}


VALUES: list[Any] = [
    None,
    False,
    0,
    0.0,
    -0.0,
    "",
    b"",
    [],
    {},
    (),
    set(),
    True,
    1,
    1.0,
    (1, [2, {"x": (3,)}]),
    {"a": [1, {"b": []}]},
    {1: "int", "1": "str", (1, 2): "tuple"},
    frozenset({1}),
    decimal.Decimal("1.50"),
    datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC),
    "x" * 200_000,
    b"y" * 200_000,
    {"big": "z" * 200_000, "small": [1]},
    list(range(5000)),
    2**200,
    "\ud800",
]


def _same(a: Any, b: Any) -> bool:
    """Equal, and of the same types throughout."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    return repr(a) == repr(b)


@step
def give() -> Any:
    control.did("give")
    return control.value


@step
async def agive() -> Any:
    control.did("give")
    return control.value


@workflow
def taking() -> str:
    got = give()
    control.ran.append("same" if _same(got, control.value) else f"not same: {got!r:.100}")
    control.did("end")
    return "ok"


@workflow
async def ataking() -> str:
    got = await agive()
    control.ran.append("same" if _same(got, control.value) else f"not same: {got!r:.100}")
    control.did("end")
    return "ok"


@pytest.mark.parametrize("flow", [taking, ataking])
@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}-{value!r:.12}")
def test_any_result_is_a_result(hf: Holdfast, flow: Any, value: Any) -> None:
    control.value = value
    control.failing["end"] = 1
    run = hf.run(flow)
    assert run.status == "failed"
    assert hf.resume(run.id).result == "ok"
    assert control.ran == ["give", "same", "end", "same", "end"]


@workflow
def counting() -> list[str]:
    found = [write_once(number) for number in range(5)]
    control.did("end")
    return found


@step
def write_once(number: int) -> str:
    control.did(f"n{number}")
    return f"{number}-{len(control.ran)}"


def test_calls_in_a_loop_keep_their_own_results(hf: Holdfast) -> None:
    control.failing["n3"] = 1
    run = hf.run(counting)
    assert run.status == "failed"
    result = hf.resume(run.id).result
    assert result == ["0-1", "1-2", "2-3", "3-5", "4-6"]
    addresses = [version.address for version in run.history().versions() if version.kind == "step"]
    assert sorted(filter(None, addresses)) == [
        "write_once", "write_once#2", "write_once#3", "write_once#4", "write_once#5",
    ]  # fmt: skip


@pytest.mark.parametrize("where", ["thread", "engine"])
@pytest.mark.parametrize("call", ["resume", "rollback"])
def test_a_run_that_is_being_advanced_is_refused(tmp_path: Path, where: str, call: str) -> None:
    @step
    def hold() -> str:
        control.entered.set()
        assert control.gate.wait(f.DEADLINE)
        return "held"

    @workflow(name="holding")
    def holding() -> str:
        return hold()

    with holdfast.open(tmp_path / "runs.db") as hf, holdfast.open(tmp_path / "runs.db") as second:
        thread = threading.Thread(target=lambda: hf.run(holding, run_id="held"))
        thread.start()
        try:
            assert control.entered.wait(f.DEADLINE)
            other = hf if where == "thread" else second
            with pytest.raises(AlreadyRunning, match="held"):
                other.resume("held") if call == "resume" else other.rollback("held", to=1)
            assert other.get("held").status == "running"
        finally:
            control.gate.set()
            thread.join()
        assert second.get("held").result == "held"
        assert second.get("held").head.number == 3


def test_two_threads_that_resume_at_once_do_not_both_run_it(hf: Holdfast) -> None:
    for turn in range(10):
        control.reset()
        control.failing["finish"] = 1
        run = hf.run(f.book, "kelp", run_id=f"race-{turn}")
        assert run.status == "failed"
        barrier = threading.Barrier(4)
        refused: list[BaseException] = []

        def resume(
            run_id: str = run.id, barrier: threading.Barrier = barrier, refused: Any = refused
        ) -> None:
            barrier.wait()
            try:
                hf.resume(run_id)
            except AlreadyRunning as error:
                refused.append(error)

        threads = [threading.Thread(target=resume) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert control.ran == [*ALL, "finish"]
        assert run.result == "A+B"
        assert [version.number for version in run.history().versions()] == [6, 5, 4, 3, 2, 1]


def _start_stuck(db: Path, flow: str, effects: Path, run_id: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        # A shell without job control lets its background processes ignore interrupts.
        program(
            db,
            f"import signal; signal.signal(2, signal.default_int_handler); hf.run(f.{flow}, run_id={run_id!r})",
        ),
        env={**environment(effects), "STUCK": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "stuck"
    return process


def _kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@pytest.mark.parametrize("flow", ["killed", "akilled"])
def test_another_process_holds_its_run_until_it_is_killed(tmp_path: Path, flow: str) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    process = _start_stuck(db, flow, effects, "k-1")
    try:
        with holdfast.open(db) as hf:
            with pytest.raises(AlreadyRunning):
                hf.resume("k-1")
            _kill(process)
            run = hf.resume("k-1")
            assert run.result == ["A", "free", "B"]
            assert control.ran == ["stuck", "write-b"]
            assert run.state == {"texts": ["a", "b"]}
    finally:
        _kill(process)
    assert effects_in(effects) == ["write-a", "stuck"]


def test_a_failure_that_was_caught_is_replayed_after_a_crash(tmp_path: Path) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    process = _start_stuck(db, "careful", effects, "c-1")
    _kill(process)
    assert effects_in(effects) == ["fragile", "stuck"]
    with holdfast.open(db) as hf:
        assert hf.resume("c-1").result == [("no luck", 42), "free", "AFTER"]
    assert control.ran == ["stuck", "write-after"]


def test_a_crash_inside_a_nested_step_keeps_what_the_inner_ones_did(tmp_path: Path) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    process = _start_stuck(db, "nested", effects, "n-1")
    _kill(process)
    assert effects_in(effects) == ["outer", "inner-x", "stuck"]
    with holdfast.open(db) as hf:
        run = hf.resume("n-1")
        assert run.result == ["<x>", "<y>"]
        assert control.ran == ["outer", "stuck", "inner-y"]
        assert run.state == {"outer": "begun", "inner": ["x", "y"], "seen": ["x", "y"]}
        addresses = [version.address for version in reversed(run.history().versions())]
        assert addresses == [None, "outer/inner", "outer/stuck", "outer/inner#2", "outer", None]


@step(retry=holdfast.Retry(3, delay=0))
def outer_that_fails() -> list[str]:
    state = holdfast.state()
    state.setdefault("tries", []).append("x")
    found = [f.inner("a")]
    control.did("between")
    found.append(f.inner("b"))
    return found


@workflow
def nested_retry() -> list[str]:
    return outer_that_fails()


def test_a_retried_outer_step_does_not_run_its_recorded_inner_ones_again(hf: Holdfast) -> None:
    control.failing["between"] = 2
    run = hf.run(nested_retry)
    assert run.result == ["<a>", "<b>"]
    assert control.ran == ["inner-a", "between", "between", "between", "inner-b"]
    assert run.state == {"tries": ["x"], "inner": ["a", "b"]}


@step(retry=holdfast.Retry(2, delay=0))
def outer_of_fragile() -> str:
    control.did("outer")
    return inner_fragile()


@step
def inner_fragile() -> str:
    control.did("inner")
    return "fine"


@workflow
def nested_fragile() -> str:
    return outer_of_fragile()


def test_an_inner_failure_is_tried_again_with_the_outer_step(hf: Holdfast) -> None:
    control.failing["inner"] = 1
    run = hf.run(nested_fragile)
    assert run.result == "fine"
    assert control.ran == ["outer", "inner", "outer", "inner"]


def test_an_inner_failure_is_tried_again_on_resume(hf: Holdfast) -> None:
    control.failing["inner"] = 3
    run = hf.run(nested_fragile)
    assert run.status == "failed"
    assert control.ran == ["outer", "inner"] * 2
    assert hf.resume(run.id).result == "fine"
    assert control.ran == ["outer", "inner"] * 4


@workflow
def two_tries() -> Any:
    """Fails with the second failure after having survived the first."""
    try:
        return f.fragile()
    except Broken:
        return inner_fragile()


def test_a_failure_that_was_survived_is_not_forgotten_by_a_later_one(hf: Holdfast) -> None:
    control.failing["inner"] = 2
    run = hf.run(two_tries)
    assert run.status == "failed"
    assert hf.resume(run.id).status == "failed"
    assert hf.resume(run.id).result == "fine"
    assert control.ran.count("inner") == 3


@workflow
def again_and_again() -> Any:
    """A failure that is recorded, because another step follows it, and then ends the run."""
    try:
        return inner_fragile()
    except Broken:
        f.write("log")
        raise


def test_a_failure_that_was_recorded_and_raised_again_is_tried_again_each_time(hf: Holdfast) -> None:
    control.failing["inner"] = 3
    run = hf.run(again_and_again)
    assert run.status == "failed"
    assert hf.resume(run.id).status == "failed"
    assert control.ran.count("inner") == 2
    assert hf.resume(run.id).status == "failed"
    assert control.ran.count("inner") == 3
    assert hf.resume(run.id).result == "fine"
    assert control.ran.count("write-log") == 1


@workflow
def mutating() -> str:
    got = give()
    got["list"].append("mine")
    control.did("first")
    second = take(got)
    control.did("end")
    return second


@step
def take(value: Any) -> str:
    control.did("take")
    return repr(value)


def test_what_the_workflow_does_to_a_result_does_not_reach_the_record(hf: Holdfast) -> None:
    control.value = {"list": ["theirs"]}
    control.failing["end"] = 1
    run = hf.run(mutating)
    assert isinstance(run.error, Broken)
    assert run.history().at(2).result == {"list": ["theirs"]}
    assert hf.resume(run.id).result == "{'list': ['theirs', 'mine']}"
    assert control.ran.count("take") == 1


@step
def parts(how: str) -> Any:
    state = holdfast.state()
    if how == "draft":
        return state["messages"]
    if how == "inside":
        return {"messages": state["messages"], "tasks": (state["plan"]["tasks"], [state["plan"]])}
    if how == "whole":
        return state
    return next(iter(state.values()))


def _types(value: Any) -> Any:
    """The types of a value and of all in it."""
    if isinstance(value, dict):
        return type(value), [_types(each) for each in value.values()]
    if isinstance(value, list | tuple):
        return type(value), [_types(each) for each in value]
    return type(value)


@workflow
def returns_parts(how: str) -> str:
    got = parts(how)
    control.ran.append(repr(_types(got)))
    control.did("end")
    return repr(got)


@pytest.mark.parametrize(
    "how",
    [
        "draft",
        "inside",
        "whole",
        "frozen",
    ],
)
def test_parts_of_the_state_come_back_as_plain_values_both_times(hf: Holdfast, how: str) -> None:
    control.failing["end"] = 1
    run = hf.run(returns_parts, how, state={"messages": [{"role": "a"}], "plan": {"tasks": [1, 2]}})
    assert run.status == "failed"
    assert hf.resume(run.id).status == "completed"
    first, _, second, _ = control.ran
    assert first == second
    assert "Draft" not in first
    assert "Frozen" not in first


@holdfast.register
@dataclasses.dataclass
class Thing:
    n: int
    more: list[int] = dataclasses.field(default_factory=list)


@step
def keep_thing() -> Thing:
    thing = Thing(1, [1])
    holdfast.state()["thing"] = thing
    return thing


@step
def look_at_thing() -> Any:
    return (holdfast.state()["thing"].n, list(holdfast.state()["thing"].more))


@workflow
def aliasing() -> Any:
    thing = keep_thing()
    thing.n = 99
    thing.more.append(99)
    return look_at_thing()


def test_an_object_in_state_is_not_the_object_that_was_returned(hf: Holdfast) -> None:
    run = hf.run(aliasing)
    assert run.result == (1, [1])
    assert run.state["thing"] == Thing(1, [1])


@step(key="item")
def by_name(item: Any) -> str:
    control.did(f"do-{item}")
    return f"done {item}"


@step(key=lambda item: f"id:{item}")
async def by_function(item: Any) -> str:
    control.did(f"do-{item}")
    return f"done {item}"


@workflow
def keyed(items: list[Any]) -> list[str]:
    return [by_name(item) for item in (control.value or items)]


@workflow
async def akeyed(items: list[Any]) -> list[str]:
    return [await by_function(item) for item in (control.value or items)]


@pytest.mark.parametrize(
    ("flow", "wanted"),
    [
        (keyed, {"by_name[a]", "by_name[b]", "by_name[b]#2", "by_name[7]"}),
        (akeyed, {"by_function[id:a]", "by_function[id:b]", "by_function[id:b]#2", "by_function[id:7]"}),
    ],
)
def test_a_key_names_a_call_by_its_data(hf: Holdfast, flow: Any, wanted: set[str]) -> None:
    control.failing["do-7"] = 1
    run = hf.run(flow, ["a", "b", "b", 7])
    assert run.status == "failed"
    control.value = ["b", 7, "b", "a"]
    assert hf.resume(run.id).result == ["done b", "done 7", "done b", "done a"]
    assert control.ran == ["do-a", "do-b", "do-b", "do-7", "do-7"]
    assert {version.address for version in run.history().versions() if version.kind == "step"} == wanted


@pytest.mark.parametrize("key", ["a/b", "x#2", "[y]", "long" * 100, "", "\n", "ü", "\ud800", "a\0b"])
def test_any_text_can_be_a_key(hf: Holdfast, key: str) -> None:
    run = hf.run(keyed, [key, "other", key])
    assert run.result == [f"done {key}", "done other", f"done {key}"]
    addresses = [version.address for version in run.history().versions() if version.kind == "step"]
    assert len(set(addresses)) == 3
    control.failing["never"] = 1
    hf.rollback(run.id, to=3)
    assert run.result == [f"done {key}", "done other", f"done {key}"]
    assert len(control.ran) == 4


@workflow
def reads_state() -> list[Any]:
    seen: list[Any] = [dict(holdfast.state())]
    f.write("a")
    seen.append(list(holdfast.state()["texts"]))
    f.write("b")
    seen.append(list(holdfast.state()["texts"]))
    control.ran.append(repr(seen))
    control.did("end")
    return seen


def test_the_workflow_sees_the_state_as_it_was_at_each_point(hf: Holdfast) -> None:
    control.failing["end"] = 1
    run = hf.run(reads_state)
    assert hf.resume(run.id).result == [{}, ["a"], ["a", "b"]]
    first, second = (line for line in control.ran if line.startswith("[{"))
    assert first == second


def test_errors_are_readable_where_the_class_is_not_known(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    body = """
class Odd(Exception):
    def __init__(self, a, b):
        super().__init__(f"{a} and {b}")
        self.a, self.b = a, b
@holdfast.step
def boom(): raise Odd("salt", 3)
@holdfast.workflow
def booming(): return boom()
print(hf.run(booming, run_id="odd").status)"""
    assert elsewhere(db, body) == "failed"
    with holdfast.open(db) as hf:
        run = hf.get("odd")
        assert isinstance(run.error, holdfast.StepFailed)
        assert "Odd" in str(run.error)
        assert "salt and 3" in str(run.error)
        with pytest.raises(holdfast.StepFailed, match="salt and 3"):
            _ = run.result
        assert run.failure is not None
        assert run.failure["message"] == "salt and 3"
        assert run.failure["type"].endswith("Odd")
        assert "in boom" in run.failure["traceback"]
        assert run.failure["attributes"]["b"] == 3
        with pytest.raises(holdfast.NotFound, match="import the module"):
            hf.resume("odd")
        assert run.status == "failed"


def test_an_error_of_a_known_class_comes_back_as_that_class(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    assert (
        elsewhere(db, "f.control.failing['plan'] = 1\nprint(hf.run(f.book, 'x', run_id='r').status)")
        == "failed"
    )
    with holdfast.open(db) as hf:
        error = hf.get("r").error
        assert isinstance(error, Broken)
        assert error.code == 7
        with pytest.raises(Broken):
            _ = hf.get("r").result


def test_an_interrupted_process_leaves_a_run_that_resumes(tmp_path: Path) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    process = _start_stuck(db, "killed", effects, "i-1")
    os.kill(process.pid, signal.SIGINT)
    process.wait(timeout=f.DEADLINE)
    _kill(process)
    with holdfast.open(db) as hf:
        assert hf.resume("i-1").result == ["A", "free", "B"]
    assert control.ran == ["stuck", "write-b"]


def test_a_memory_store_is_resumed_by_another_engine() -> None:
    from holdfast.store.memory import MemoryStore

    store = MemoryStore()
    control.failing["finish"] = 1
    assert Holdfast(store).run(f.book, "kelp", run_id="m").status == "failed"
    other = Holdfast(store)
    assert other.resume("m").result == "A+B"
    wait_until(lambda: other.get("m").status == "completed")


def test_a_recorded_failure_that_a_kill_left_behind_does_not_stick(tmp_path: Path) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    process = _start_stuck(db, "logging_failure", effects, "l-1")
    _kill(process)
    assert effects_in(effects) == ["risky", "write-log", "stuck"]
    with holdfast.open(db) as hf:
        assert hf.resume("l-1").status == "failed"
        assert control.ran == ["stuck"]
        assert hf.resume("l-1").result == "fine"
        assert control.ran == ["stuck", "risky"]


def test_an_execution_whose_lease_ran_out_is_refused_and_not_merged(tmp_path: Path) -> None:
    @step(name="slow_step")
    def slow_step() -> str:
        control.ran.append("slow")
        if len(control.ran) == 1:
            control.entered.set()
            assert control.gate.wait(f.DEADLINE)
            holdfast.state()["by"] = "the first"
            return "the first"
        holdfast.state()["by"] = "the second"
        return "the second"

    @workflow(name="fenced")
    def fenced() -> str:
        return slow_step()

    lost: list[BaseException] = []

    def first(hf: Holdfast) -> None:
        try:
            hf.run(fenced, run_id="fenced")
        except holdfast.LeaseLost as error:
            lost.append(error)

    import time

    late = holdfast.open(tmp_path / "runs.db", clock=lambda: time.time() + 3600)
    with holdfast.open(tmp_path / "runs.db") as hf, late:
        thread = threading.Thread(target=first, args=(hf,))
        thread.start()
        assert control.entered.wait(f.DEADLINE)
        assert late.resume("fenced").result == "the second"
        control.gate.set()
        thread.join()
        assert len(lost) == 1
        assert "fenced" in str(lost[0])
        run = hf.get("fenced")
        assert run.result == "the second"
        assert run.state == {"by": "the second"}
        assert len(run.history().versions()) == 3


def test_a_run_inside_a_step_is_a_run_of_its_own(hf: Holdfast) -> None:
    @step(name="starts_another")
    def starts_another() -> str:
        holdfast.state()["before"] = True
        found: str = hf.run(f.book, "kelp", run_id="other").result
        holdfast.state()["after"] = True
        return found

    @workflow(name="starter")
    def starter() -> str:
        return starts_another()

    run = hf.run(starter)
    assert run.result == "A+B"
    assert run.state == {"before": True, "after": True}
    assert hf.get("other").state["texts"] == ["a", "b"]
    assert hf.get("other").parent is None


def test_state_may_be_a_list(hf: Holdfast) -> None:
    @step(name="appends")
    def appends(n: int) -> None:
        holdfast.state().append(n)

    @workflow(name="list_state")
    def list_state() -> None:
        appends(1)
        appends(2)

    assert hf.run(list_state, state=[0]).state == [0, 1, 2]


def test_a_part_of_the_state_may_be_an_argument(hf: Holdfast) -> None:
    @step(name="counts")
    def counts(items: list[int]) -> int:
        control.did("counts")
        return len(items)

    @step(name="passes_on")
    def passes_on() -> int:
        state = holdfast.state()
        state["items"].append(9)
        found = counts(state["items"])
        control.did("between")
        return found

    @workflow(name="passing")
    def passing() -> list[int]:
        return [passes_on(), counts(holdfast.state()["items"])]

    control.failing["between"] = 1
    run = hf.run(passing, state={"items": [1]})
    assert run.status == "failed"
    assert hf.resume(run.id).result == [2, 2]
    assert control.ran == ["counts", "between", "between", "counts"]
    assert run.state == {"items": [1, 9]}


def test_arguments_with_sets_are_the_same_in_every_process(tmp_path: Path) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    names = "{'a', 'b', 'c', 'dd', 'eee'}"
    body = f"f.control.failing['end'] = 1\nprint(hf.run(f.with_set, {names}, run_id='s').status)"
    assert elsewhere(db, body, effects) == "failed"
    for _ in range(3):
        assert elsewhere(db, "print(hf.resume('s').result)", effects) == "5"
    assert effects_in(effects) == ["size", "end", "end"]


@step
def leaf(n: int) -> int:
    control.did(f"leaf-{n}")
    holdfast.state()["leaves"].append(n)
    return n


@step(retry=holdfast.Retry(2, delay=0))
def bough(n: int) -> list[int]:
    state = holdfast.state()
    before = len(state["leaves"])
    state["boughs"] = state.get("boughs", 0) + 1
    found = [leaf(n * 10), leaf(n * 10 + 1)]
    control.did(f"bough-{n}")
    return [before, *found]


@step
def tree() -> list[list[int]]:
    holdfast.state()["before"] = len(holdfast.state()["leaves"])
    found = [bough(1), bough(2)]
    holdfast.state()["after"] = list(holdfast.state()["leaves"])
    control.did("tree")
    return found


@workflow
def forest() -> list[list[int]]:
    return tree()


def test_three_levels_of_steps_with_failures_at_each(hf: Holdfast) -> None:
    control.failing.update({"bough-1": 3, "bough-2": 1, "tree": 2, "leaf-21": 1})
    run = hf.run(forest, state={"leaves": []})
    turns = 0
    while run.status != "completed":
        turns += 1
        assert turns < 10
        hf.resume(run.id)
    assert run.result == [[0, 10, 11], [2, 20, 21]]
    assert run.state == {"leaves": [10, 11, 20, 21], "boughs": 2, "before": 0, "after": [10, 11, 20, 21]}
    assert control.ran.count("leaf-10") == control.ran.count("leaf-11") == control.ran.count("leaf-20") == 1
    assert control.ran.count("leaf-21") == 2
    assert hf.resume(run.id, mode="validate").differences == ()
    assert hf.verify().ok
