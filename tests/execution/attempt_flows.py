"""A workflow of one step, synchronous or asynchronous, for the tests of attempts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import step_fixtures

from holdfast import step, workflow

fresh = step_fixtures.fresh


def flow_of(kind: str, work: Callable[[], Any], **options: Any) -> Any:
    """A workflow of one step, of either kind, that tries `work`."""
    if kind == "async":

        @step(name="try", **options)
        async def atrying() -> Any:
            found = work()
            return await found if asyncio.iscoroutine(found) else found

        @workflow(name="attempts")
        async def aattempts() -> Any:
            return await atrying()

        return aattempts

    @step(name="try", **options)
    def trying() -> Any:
        return work()

    @workflow(name="attempts")
    def attempts() -> Any:
        return trying()

    return attempts


both = pytest.mark.parametrize("kind", ["def", "async"])
