"""A resumed run gets results, errors, arguments and state as they were the first time."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
from pathlib import Path
from typing import Any

import pytest
import step_fixtures
import step_flows as f
from step_flows import Broken, control, effects_in, elsewhere

import holdfast
from holdfast import Holdfast, step, workflow

fresh, hf = step_fixtures.fresh, step_fixtures.hf


# Results


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


@pytest.mark.slow
@pytest.mark.parametrize("flow", [taking, ataking])
@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__}-{value!r:.12}")
def test_results_of_any_type_are_replayed(hf: Holdfast, flow: Any, value: Any) -> None:
    control.value = value
    control.failing["end"] = 1
    run = hf.run(flow, raises=False)
    assert run.status == "failed"
    assert hf.resume(run.id).result == "ok"
    assert control.ran == ["give", "same", "end", "same", "end"]


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


def test_result_changed_by_the_workflow_does_not_change_the_record(hf: Holdfast) -> None:
    control.value = {"list": ["theirs"]}
    control.failing["end"] = 1
    run = hf.run(mutating, raises=False)
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
def test_parts_of_the_state_are_plain_values_live_and_on_replay(hf: Holdfast, how: str) -> None:
    control.failing["end"] = 1
    run = hf.run(
        returns_parts, how, state={"messages": [{"role": "a"}], "plan": {"tasks": [1, 2]}}, raises=False
    )
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


def test_object_in_the_state_is_not_the_returned_object(hf: Holdfast) -> None:
    run = hf.run(aliasing)
    assert run.result == (1, [1])
    assert run.state["thing"] == Thing(1, [1])


# State


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


def test_workflow_sees_the_state_as_it_was_at_each_point(hf: Holdfast) -> None:
    control.failing["end"] = 1
    run = hf.run(reads_state, raises=False)
    assert hf.resume(run.id).result == [{}, ["a"], ["a", "b"]]
    first, second = (line for line in control.ran if line.startswith("[{"))
    assert first == second


def test_state_may_be_a_list(hf: Holdfast) -> None:
    @step(name="appends")
    def appends(n: int) -> None:
        holdfast.state().append(n)

    @workflow(name="list_state")
    def list_state() -> None:
        appends(1)
        appends(2)

    assert hf.run(list_state, state=[0]).state == [0, 1, 2]


# Arguments


def test_part_of_the_state_may_be_an_argument(hf: Holdfast) -> None:
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
    run = hf.run(passing, state={"items": [1]}, raises=False)
    assert run.status == "failed"
    assert hf.resume(run.id).result == [2, 2]
    assert control.ran == ["counts", "between", "between", "counts"]
    assert run.state == {"items": [1, 9]}


@pytest.mark.slow
def test_arguments_with_sets_are_the_same_in_every_process(tmp_path: Path) -> None:
    db, effects = tmp_path / "runs.db", tmp_path / "effects"
    names = "{'a', 'b', 'c', 'dd', 'eee'}"
    body = (
        f"f.control.failing['end'] = 1\nprint(hf.run(f.with_set, {names}, run_id='s', raises=False).status)"
    )
    assert elsewhere(db, body, effects) == "failed"
    for _ in range(3):
        assert elsewhere(db, "print(hf.resume('s').result)", effects) == "5"
    assert effects_in(effects) == ["size", "end", "end"]


# Errors


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
print(hf.run(booming, run_id="odd", raises=False).status)"""
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


def test_error_of_a_known_class_comes_back_as_that_class(tmp_path: Path) -> None:
    db = tmp_path / "runs.db"
    assert (
        elsewhere(
            db, "f.control.failing['plan'] = 1\nprint(hf.run(f.book, 'x', run_id='r', raises=False).status)"
        )
        == "failed"
    )
    with holdfast.open(db) as hf:
        error = hf.get("r").error
        assert isinstance(error, Broken)
        assert error.code == 7
        with pytest.raises(Broken):
            _ = hf.get("r").result
