"""A workflow that calls another, blocking and asynchronous, and which steps were executed.

A module that needs the fixture binds it: `no_calls = child_flows.no_calls`.
"""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import step, workflow

CALLS: list[Any] = []


class Odd(Exception):
    """An error of the application."""


@pytest.fixture(autouse=True)
def no_calls() -> None:
    CALLS.clear()


@step
def child_work(value: Any) -> Any:
    CALLS.append(value)
    holdfast.state()["did"] = value
    return value


@step
async def child_awork(value: Any) -> Any:
    CALLS.append(value)
    return value


@workflow
def child_inner(value: Any) -> Any:
    return [child_work(value)]


@workflow
def child_outer(value: Any) -> Any:
    child_work("outer")
    return {"inner": child_inner(value), "last": child_work("last")}


@workflow
async def child_ainner(value: Any) -> Any:
    return [await child_awork(value)]


@workflow
async def child_aouter(value: Any) -> Any:
    await child_awork("outer")
    return {"inner": await child_ainner(value), "last": await child_awork("last")}
