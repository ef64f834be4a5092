"""A clock that tests advance."""

from __future__ import annotations


class Clock:
    """Time as a test says. 2023-11-14 22:13:20 UTC, a Tuesday, at first."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now

    def forward(self, *, seconds: float = 0, hours: float = 0, days: float = 0) -> None:
        self.now += seconds + 3600 * hours + 86_400 * days
