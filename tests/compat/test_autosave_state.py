"""What an automatic snapshot saves: values, objects by their public attributes, large things, no secrets."""

from __future__ import annotations

import dataclasses
import functools
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import autosave_fixtures
import msgspec
import pytest
from autosave_fixtures import SOON, Plain, versions

import autosave_timers
import holdfast
from autosave_timers import warnings
from holdfast import History, Holdfast, InvalidCall
from holdfast.compat.autosave import autosave
from patience import until

file, hf, log, no_timer_is_left = (
    autosave_fixtures.file,
    autosave_fixtures.hf,
    autosave_fixtures.log,
    autosave_timers.no_timer_is_left,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Slotted:
    goal: str
    done: list[int]
    _client: Any = None


class Struct(msgspec.Struct):
    goal: str
    done: list[int]
    _client: Any = None


class Agent:
    def __init__(self, goal: str, done: list[int], client: Any) -> None:
        self.goal, self.done, self._client = goal, done, client


@pytest.mark.parametrize("cls", [Plain, Slotted, Struct, Agent])
def test_object_is_saved_by_its_public_attributes(log: History, cls: Callable[..., Any]) -> None:
    one = cls("win", [1], threading.Lock())
    with autosave(one, log):
        one.done.append(2)
    assert log.head.state == {"goal": "win", "done": [1, 2]}


def test_object_with_private_attributes_only_is_reported(
    log: History, caplog: pytest.LogCaptureFixture
) -> None:
    class Private:
        def __init__(self) -> None:
            self._goal = "win"

    one = Private()
    saver = autosave(one, log)
    assert saver.save() is None
    assert "no public attributes" in warnings(caplog)[0]
    one.goal = "win"  # type: ignore[attr-defined]
    version = saver.save()
    assert version is not None
    assert version.state == {"goal": "win"}


def test_object_without_attributes_is_saved(log: History) -> None:
    class Empty:
        late: int

    one = Empty()
    saver = autosave(one, log)
    saver.save()
    one.late = 1
    saver.save()
    assert [v.state for v in versions(log)] == [{}, {"late": 1}]


@pytest.mark.parametrize(
    ("source", "state"),
    [
        ([1, "a"], [1, "a"]),
        ({1, 2}, {1, 2}),
        (deque([1], 3), deque([1], 3)),
        (bytearray(b"x"), bytearray(b"x")),
        (lambda: 5, 5),
        (functools.partial(int, "7"), 7),
        ([3, 4].copy, [3, 4]),
        (dict, None),
    ],
)
def test_sources_are_functions_containers_or_objects(log: History, source: Any, state: Any) -> None:
    if state is None:
        with pytest.raises(InvalidCall):
            autosave(source, log)
        return
    saver = autosave(source, log)
    saver.save()
    assert log.head.state == state
    assert type(log.head.state) is type(state) or isinstance(state, list)


def test_sanitize_replaces_values_that_cannot_be_stored(
    log: History, caplog: pytest.LogCaptureFixture
) -> None:
    with autosave({"n": 1, "file": sys.stderr}, log, sanitize=True):
        pass
    assert log.head.state["n"] == 1
    assert "file" in log.head.state["file"] or "<" in log.head.state["file"]
    assert not warnings(caplog)


def test_artifacts_and_large_values_are_saved_and_secrets_redacted(hf: Holdfast, log: History) -> None:
    state: dict[str, Any] = {"n": 0}
    with autosave(state, log, every=SOON):
        until(lambda: versions(log))
        state.update(paper=holdfast.artifact(b"p" * 200_000), long=b"l" * 300_000, secret="hush")
        until(lambda: "secret" in log.head.state)
    assert log.head.state["paper"].read() == b"p" * 200_000
    assert log.head.state["long"] == b"l" * 300_000
    assert log.head.state["secret"] != "hush"
    assert hf.verify().ok


@pytest.mark.slow
def test_large_state_is_shared_with_the_previous_version(log: History) -> None:
    state = {f"key-{number}": [number] for number in range(100_000)}
    saver = autosave(state, log)
    first = saver.save()
    state["key-77"].append(0)
    second = saver.save()
    assert first is not None
    assert second is not None
    assert second.size < first.size / 50
    assert log.head.state["key-77"] == [77, 0]
