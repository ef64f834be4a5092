"""Values at the limits: too deep, huge, or not to be stored."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import pytest
import step_fixtures
from step_flows import control

import holdfast
from holdfast import Holdfast, InvalidCall, UnsupportedValue, step, workflow

fresh, hf = step_fixtures.fresh, step_fixtures.hf


class Reading(NamedTuple):
    """A value whose fields have the names of attributes of Holdfast's own containers."""

    at: int = 1
    aux: str = ""
    kinds: str = ""
    plain_type: str = "text"
    fold_into: str = ""


def _deep(levels: int) -> Any:
    found: Any = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.parametrize("where", ["argument", "state", "result", "step-state", "step-argument"])
def test_value_nested_too_deeply_is_refused(hf: Holdfast, where: str) -> None:
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
        run = hf.run(deep_run, raises=False)
        assert isinstance(run.error, UnsupportedValue)
        assert run.head.number == 1


def test_huge_value_is_stored(hf: Holdfast) -> None:
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
    run = hf.run(huge_run, "x" * 3_000_000, raises=False)
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
    run = hf.run(client_run, raises=False)
    assert hf.resume(run.id).result == 3
    assert control.ran == ["uses", "end", "end"]


def test_keyword_arguments_of_steps_need_not_be_storable(hf: Holdfast) -> None:
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
    run = hf.run(more_run, raises=False)
    assert hf.resume(run.id).result == 4
    assert control.ran == ["uses", "end", "end"]


def test_attributes_of_a_value_are_not_taken_for_those_of_containers(hf: Holdfast) -> None:
    holdfast.register(Reading, "test.Reading")

    @step(name="reads")
    def reads(readings: list[Reading], last: Reading) -> list[Reading]:
        holdfast.state()["readings"] = readings
        holdfast.annotate(last=last)
        return readings

    @workflow(name="reading_run")
    def reading_run() -> list[Reading]:
        return reads([Reading(), Reading()], Reading())

    run = hf.run(reading_run)
    assert run.result == [Reading(), Reading()]
    assert run.state["readings"] == [Reading(), Reading()]
    assert holdfast.sanitize(Reading()) == (Reading(), [])


def test_steps_nested_too_deeply_are_refused_by_name(hf: Holdfast) -> None:
    @step(name="x" * 90)
    def deeper(n: int) -> int:
        return deeper(n - 1) if n else 0

    @workflow(name="deeper_run")
    def deeper_run() -> int:
        return deeper(10)

    run = hf.run(deeper_run, raises=False)
    assert isinstance(run.error, InvalidCall)
    assert "too long" in str(run.error)
