"""Helpers of the tests of the loop engine: a clock, and checks of replies."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast.loops import LoopEngine


class Clock:
    """A clock that a test moves."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds


def state_of(engine: LoopEngine, project: str = "p") -> dict[str, Any]:
    """Return the stored state of a project, read without the engine."""
    found = holdfast.thaw(engine._hf.history(f"loop/{project}").head.state)
    assert isinstance(found, dict)
    return found


def good(reply: dict[str, Any]) -> dict[str, Any]:
    """Return a reply that is not an error."""
    assert reply["status"] != "error", reply
    return reply


def refused(reply: dict[str, Any], code: str) -> str:
    """Return the message of an error with this code."""
    assert (reply["status"], reply.get("code")) == ("error", code), reply
    assert isinstance(reply["message"], str)
    return reply["message"]
