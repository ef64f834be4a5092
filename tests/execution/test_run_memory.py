"""A run that has ended leaves nothing in memory that only the garbage collector would find."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Iterator

import pytest
import step_fixtures
import step_flows as f

from holdfast import Holdfast
from holdfast.execution.frame import Frame
from holdfast.tree.pack import Writer

fresh, hf = step_fixtures.fresh, step_fixtures.hf


Left = Callable[[], list[object]]


@pytest.fixture
def left() -> Iterator[Left]:
    """Return the objects that did not exist before; a failed test before this one may hold frames by its traceback."""
    gc.collect()
    gc.disable()
    before = _frames()
    known = {id(each) for each in before}
    yield lambda: [each for each in _frames() if id(each) not in known]
    gc.enable()


def _frames() -> list[object]:
    return [each for each in gc.get_objects() if type(each) in (Frame, Writer)]


@pytest.mark.slow
def test_ended_steps_leave_no_garbage(hf: Holdfast, left: Left) -> None:
    assert hf.run(f.book, "kelp").status == "completed"
    assert not left()


@pytest.mark.slow
def test_ended_steps_of_tasks_leave_no_garbage_once_the_loop_is_closed(hf: Holdfast, left: Left) -> None:
    async def together() -> None:
        await asyncio.gather(*(hf.arun(f.abook, "kelp") for _ in range(3)))

    asyncio.run(together())
    until = time.monotonic() + 30
    while left() and time.monotonic() < until:
        time.sleep(0.01)  # the thread that wrote may not have come to rest yet
    assert not left()
