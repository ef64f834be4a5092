"""Fixtures of the tests of automatic snapshots: a history, its versions, and states that count their reads."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import History, Holdfast
from patience import until

#: Short enough that a timer fires at once, for a test that waits for it.
SOON = 0.005


#: Longer than any test.
NEVER = 10_000.0


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


@pytest.fixture
def hf(file: Path) -> Iterator[Holdfast]:
    with holdfast.open(file, durability="fast", redact=["secret"]) as opened:
        yield opened


@pytest.fixture
def log(hf: Holdfast) -> History:
    return hf.history("loop")


def versions(log: History) -> list[Any]:
    """Return all versions, oldest first; none if there is no run."""
    try:
        return log.versions(limit=100_000)[::-1]
    except holdfast.NotFound:
        return []


class Reads:
    """A state that counts how often it is read."""

    def __init__(self, state: Any) -> None:
        self.state = state
        self.count = 0

    def read(self) -> Any:
        self.count += 1
        return self.state

    def wait(self, more: int = 3) -> None:
        """Wait until the state was read that often again, so that all of these reads but the last are processed."""
        until(lambda goal=self.count + more: self.count >= goal)  # type: ignore[misc]


@dataclasses.dataclass
class Plain:
    goal: str
    done: list[int]
    _client: Any = None
