"""A snapshot that fails never breaks the run: it logs one warning per reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import snapshot_fixtures
from snapshot_fixtures import numbers, taken

import autosave_timers
import holdfast
from autosave_timers import warnings
from database import Database
from holdfast import StoreUnavailable
from holdfast.snapshots import SnapshotManager

file, no_timer_is_left = snapshot_fixtures.file, autosave_timers.no_timer_is_left


class Moody:
    """A store whose read can fail."""

    def __init__(self) -> None:
        self.mood: Exception | None = None

    def get_state(self) -> dict[str, Any]:
        if self.mood is not None:
            raise self.mood
        return {"n": 1}


def test_unreadable_store_logs_a_warning_and_takes_no_snapshot(caplog: pytest.LogCaptureFixture) -> None:
    store = Moody()
    with SnapshotManager() as manager:
        for mood in (OSError("one"), OSError("one"), KeyError("two"), OSError("one"), None, OSError("one")):
            store.mood = mood
            assert (manager.create_snapshot("run-1", store) is None) == (mood is not None)
        assert [text.partition(": ")[2] for text in warnings(caplog)] == [
            "OSError: one",
            "KeyError: 'two'",
            "OSError: one",
            "OSError: one",
        ]
        assert "'run-1'" in warnings(caplog)[0]
        assert numbers(manager) == [1]


def test_repeated_warnings_are_suppressed_per_run(caplog: pytest.LogCaptureFixture) -> None:
    store = Moody()
    store.mood = OSError("one")
    with SnapshotManager() as manager:
        for run_id in ("a", "b", "a", "b"):
            manager.create_snapshot(run_id, store)
    assert len(warnings(caplog)) == 2


def test_closed_store_logs_a_warning(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = SnapshotManager(history=file)
    manager.close()
    assert manager.create_snapshot("run-1", {"n": 1}) is None
    assert len(warnings(caplog)) == 1


def test_damaged_history_logs_a_warning_and_is_not_served(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with SnapshotManager(history=file) as manager:
        taken(manager, {"n": 1})
    with Database(file) as connection:
        connection.execute("UPDATE journal SET pack = zeroblob(length(pack)) WHERE number = 1")
    connection.close()
    with SnapshotManager(history=file) as manager:
        with pytest.raises(holdfast.CorruptVersion):
            manager.get_latest_snapshot("run-1")
        assert manager.create_snapshot("run-1", {"n": 2}) is None
    assert "CorruptVersion" in warnings(caplog)[0]


def test_strict_manager_raises_failures(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    store = Moody()
    store.mood = OSError("one")
    with SnapshotManager(strict=True) as manager, pytest.raises(OSError, match="one"):
        manager.create_snapshot("run-1", store)
    closed = SnapshotManager(history=file, strict=True)
    closed.close()
    with pytest.raises(StoreUnavailable):
        closed.create_snapshot("run-1", {})
    assert warnings(caplog) == []


def test_failed_pruning_logs_a_warning_and_keeps_the_snapshot(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(SnapshotManager):
        def _collect(self) -> None:
            raise OSError("no space")

    with Broken(1) as manager:
        assert [taken(manager, {"n": index}).number for index in range(3)] == [1, 2, 3]
        assert numbers(manager) == [3]
    assert all("older snapshots are left as they are" in text for text in warnings(caplog))
    assert warnings(caplog)


def test_values_that_cannot_be_stored_are_replaced_and_listed(caplog: pytest.LogCaptureFixture) -> None:
    deep: Any = {}
    for _ in range(10_000):
        deep = {"a": deep}
    state: dict[str, Any] = {
        "fine": 1,
        "file": None,
        "deep": deep,
        "call": len,
        "gen": (index for index in range(3)),
    }
    state["self"] = state
    with SnapshotManager() as manager, open(__file__) as opened:
        state["file"] = opened
        made = taken(manager, state)
        assert {"file", "call", "gen", "self"} <= set(made.replaced)
        assert any(path.startswith("deep.a.a") for path in made.replaced)
        assert made.state["fine"] == 1
        assert made.state["file"].startswith("<open file")
    assert warnings(caplog) == []
