"""What the tests of loops share."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.loops import LoopEngine


class Clock:
    """Time as a test says."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds


def state_of(engine: LoopEngine, project: str = "p") -> dict[str, Any]:
    """The state of a project, read past the engine: what it wrote, and nothing else."""
    found = holdfast.thaw(engine._hf.history(f"loop/{project}").head.state)
    assert isinstance(found, dict)
    return found


def good(reply: dict[str, Any]) -> dict[str, Any]:
    """A reply that tells of no error."""
    assert reply["status"] != "error", reply
    return reply


def refused(reply: dict[str, Any], code: str) -> str:
    """The message of an error."""
    assert (reply["status"], reply.get("code")) == ("error", code), reply
    assert isinstance(reply["message"], str)
    return reply["message"]
