"""A step that adds to the state, synchronous and asynchronous, for the tests of parallel steps."""

from __future__ import annotations

import asyncio

import step_fixtures
from step_flows import control

import holdfast
from holdfast import step
from holdfast.testing import isolated_definitions

fresh = step_fixtures.fresh


@step
def add(n: int) -> int:
    control.did(f"add-{n}")
    state = holdfast.state()
    state["list"].append(n)
    state[f"key-{n}"] = n
    return n * 10


with isolated_definitions():

    @step(name="add")
    async def aadd(n: int) -> int:
        state = holdfast.state()
        await asyncio.sleep(0)
        control.did(f"add-{n}")
        state["list"].append(n)
        state[f"key-{n}"] = n
        return n * 10
