"""Wrong definitions: the decorators refuse invalid functions, names, options and policies."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import step_fixtures
import step_flows as f
from step_flows import Broken, control

from holdfast import Breaker, Holdfast, InvalidCall, Retry, step, workflow

fresh, hf = step_fixtures.fresh, step_fixtures.hf


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
def test_decorators_refuse_what_is_not_a_function(decorator: Any, name: str, given: Any) -> None:
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
def test_unusual_names_are_accepted(hf: Holdfast, name: str) -> None:
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
    run = hf.run(odd_flow, raises=False)
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
