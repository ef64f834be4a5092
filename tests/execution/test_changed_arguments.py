"""Arguments of recorded steps: other values are refused, also those that cannot be stored; the same call is not."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import msgspec
import pytest
import step_fixtures
from step_flows import control

from holdfast import Holdfast, ReplayDiverged, step, workflow

fresh, hf = step_fixtures.fresh, step_fixtures.hf


class Mode(Enum):
    FAST = 1
    DEEP = 2


@dataclass
class Config:
    model: str
    mode: Mode = Mode.FAST


class Point(NamedTuple):
    x: int


class Struct(msgspec.Struct):
    x: int


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Client:
    def __init__(self, key: str) -> None:
        self.key = key


def default(value: int) -> defaultdict[str, int]:
    found: defaultdict[str, int] = defaultdict(int)
    found["a"] = value
    return found


DIFFERENT: dict[str, tuple[Any, Any]] = {
    "enum": (Mode.FAST, Mode.DEEP),
    "dataclass": (Config("a"), Config("b")),
    "enum in a dataclass": (Config("a"), Config("a", Mode.DEEP)),
    "dataclass in a list": ([Config("a")], [Config("b")]),
    "named tuple": (Point(1), Point(2)),
    "struct": (Struct(1), Struct(2)),
    "text": (Text("a"), Text("b")),
    "number": (Number(1), Number(2)),
    "counter": (Counter("a"), Counter("b")),
    "default": (default(1), default(2)),
    "set": ({Mode.FAST}, {Mode.DEEP}),
    "type": (Text("1"), Number(1)),
}
SAME: dict[str, tuple[Any, Any]] = {
    "enum": (Mode.FAST, Mode.FAST),
    "dataclass": ([Config("a")], [Config("a")]),
    "set": ({Mode.FAST, Mode.DEEP}, {Mode.DEEP, Mode.FAST}),
    "client": (Client("a"), Client("b")),
}


@step(name="ca_use")
def use(value: Any, more: int = 1) -> str:
    control.did("use")
    return "used"


@workflow(name="ca_flow")
def flow() -> Any:
    args, kwargs = control.value
    found = use(*args, **kwargs)
    control.did("end")
    return found


def resumed(hf: Holdfast, before: tuple[Any, Any], after: tuple[Any, Any]) -> Any:
    """Return the outcome of a run whose step is called with other arguments when it is resumed."""
    control.failing = {"end": 1}
    control.value = before
    run = hf.run(flow, raises=False)
    assert run.status == "failed"
    control.value = after
    try:
        return hf.resume(run.id).result
    finally:
        assert control.ran.count("use") == 1


@pytest.mark.parametrize("kind", DIFFERENT)
def test_arguments_that_cannot_be_stored_are_compared(hf: Holdfast, kind: str) -> None:
    one, other = DIFFERENT[kind]
    with pytest.raises(ReplayDiverged, match="other arguments"):
        resumed(hf, ((one,), {}), ((other,), {}))


@pytest.mark.parametrize("kind", SAME)
def test_arguments_that_cannot_be_stored_may_be_equal(hf: Holdfast, kind: str) -> None:
    one, other = SAME[kind]
    assert resumed(hf, ((one,), {}), ((other,), {})) == "used"


def test_arguments_by_position_equal_arguments_by_name(hf: Holdfast) -> None:
    assert resumed(hf, (("kelp", 2), {}), ((), {"more": 2, "value": "kelp"})) == "used"


def test_arguments_with_another_value_by_name_are_refused(hf: Holdfast) -> None:
    with pytest.raises(ReplayDiverged, match="more was 2, is 3"):
        resumed(hf, (("kelp", 2), {}), ((), {"more": 3, "value": "kelp"}))


def test_arguments_that_earlier_versions_compared_by_type_still_fit(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.execution import call_arguments

    with monkeypatch.context() as earlier:
        earlier.setattr(call_arguments.digest_and_size, "__defaults__", (None, call_arguments._type_name))
        control.failing = {"end": 1}
        control.value = ((Mode.FAST,), {})
        run = hf.run(flow, raises=False)
    assert hf.resume(run.id).result == "used"
    assert control.ran.count("use") == 1
