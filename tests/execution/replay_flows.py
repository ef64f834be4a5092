"""Workflows of nested steps, of steps with arguments, and one that waits, for the tests of replay."""

from __future__ import annotations

from typing import Any

import step_fixtures
import step_flows as f
from step_flows import control

import holdfast
from holdfast import step, workflow
from holdfast.testing import isolated_definitions

fresh = step_fixtures.fresh


@workflow
def asking() -> Any:
    f.write("a")
    answer = holdfast.ask("Publish?")
    event = holdfast.wait_for("go")
    return [answer, event, f.write("b")]


@step
def given(value: Any) -> str:
    control.did(f"given-{value}")
    return f"got {value}"


with isolated_definitions():

    @step(name="given")
    async def agiven(value: Any) -> str:
        control.did(f"given-{value}")
        return f"got {value}"


@workflow
def diverging() -> list[str]:
    found = [given("same"), given(control.value), given("last")]
    control.did("end")
    return found


@workflow
async def adiverging() -> list[str]:
    found = [await agiven("same"), await agiven(control.value), await agiven("last")]
    control.did("end")
    return found


@step
def sub(name: str) -> str:
    control.did(f"sub-{name}")
    holdfast.state().setdefault("subs", []).append(name)
    return name


@step
def top(name: str) -> list[str]:
    control.did(f"top-{name}")
    return [sub(f"{name}1"), sub(f"{name}2")]


@workflow
def layered() -> list[list[str]]:
    return [top("a"), top("b")]
