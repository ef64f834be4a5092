"""The cost of a durable step on SQLite, counted in Python calls, which do not depend on the load of the machine.

`sys.setprofile` reports a "call" event for every Python function that is entered and every generator that is resumed,
Holdfast's and the standard library's; calls of C functions are not counted.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import holdfast
from holdfast import step, workflow

#: Steps that are counted, after others that fill caches.
STEPS, WARM_UP = 200, 50
#: Python calls that a step may make, its own function included.
MOST_CALLS = 108
#: Modules of Holdfast that each step may enter.
MOST_MODULES = 28


@step(name="step_cost_step")
def numbered(number: int) -> str:
    return f"step {number}"


@workflow(name="step_cost")
def many() -> list[int]:
    calls: Counter[str] = Counter()

    def count(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            calls[frame.f_code.co_filename] += 1

    for number in range(WARM_UP):
        numbered(number)
    before = sys.getprofile()
    sys.setprofile(count)
    try:
        for number in range(STEPS):
            numbered(number)
    finally:
        sys.setprofile(before)
    package = str(Path(holdfast.__file__).parent)
    modules = [name for name, found in calls.items() if name.startswith(package) and found >= STEPS]
    return [sum(calls.values()), len(modules)]


def test_step_cost_stays_within_the_number_of_python_calls(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db") as hf:
        calls, modules = hf.run(many).result
    assert calls / STEPS <= MOST_CALLS
    assert modules <= MOST_MODULES
