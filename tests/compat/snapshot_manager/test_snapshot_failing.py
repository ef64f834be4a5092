"""A snapshot that fails never breaks the run: it logs one warning per reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import snapshot_fixtures
from snapshot_fixtures import numbers, taken

import autosave_timers
import holdfast
from autosave_timers import warnings
from database import Database
from holdfast import NotFound, StoreUnavailable
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


def damage(file: Path, number: int, column: str = "pack") -> None:
    with Database(file) as connection:
        connection.execute(
            f"UPDATE journal SET {column} = zeroblob(length({column})) WHERE number = {number}"
        )
    connection.close()


def test_damaged_snapshot_is_left_out_and_reported(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SnapshotManager(4, file) as manager:
        for index in range(4):
            taken(manager, {"n": index, "all": [index] * 5})
    damage(file, 2)
    with SnapshotManager(4, file, strict=True) as manager:
        assert numbers(manager) == [1, 3, 4]
        assert list(manager.get_damaged_snapshots("run-1")) == [2]
        assert [text for text in warnings(caplog) if "snapshot 2 of run 'run-1' is damaged" in text]
        assert len(warnings(caplog)) == 1
        for index in range(4, 12):
            taken(manager, {"n": index, "all": [index] * 5})
        assert numbers(manager) == [9, 10, 11, 12]
        assert [version.number for version in manager.history("run-1").versions()] == [12, 11, 10, 9]


def test_damaged_latest_snapshot_does_not_stop_new_ones(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with SnapshotManager(4, file) as manager:
        for index in range(3):
            taken(manager, {"n": index, "all": [index] * 5})
    damage(file, 3)
    with SnapshotManager(4, file, strict=True) as manager:
        latest = manager.get_latest_snapshot("run-1")
        assert latest is not None
        assert latest.n == 1
        for index in range(3, 9):
            taken(manager, {"n": index, "all": [index] * 5})
        assert numbers(manager) == [6, 7, 8, 9]
    with SnapshotManager(1, file) as manager:
        taken(manager, {"n": 1}, "alone")
        number = manager.history("alone").head.record.number
        assert number == 1
    with Database(file) as connection:
        connection.execute("UPDATE journal SET pack = zeroblob(length(pack)) WHERE number = 1")
    connection.close()
    with SnapshotManager(1, file, strict=True) as manager:
        assert manager.get_latest_snapshot("alone") is None
        assert taken(manager, {"n": 2}, "alone").n == 2
    assert any("they are deleted" in text for text in warnings(caplog))


@pytest.mark.parametrize("most", [3, 10])
def test_lost_row_of_the_latest_snapshot_does_not_stop_new_ones(file: Path, most: int) -> None:
    with SnapshotManager(most, file, strict=True) as manager:
        for index in range(30):
            taken(manager, {"n": index})
        was = numbers(manager)
    with Database(file) as connection:
        connection.execute("DELETE FROM journal WHERE number = 30")
    with SnapshotManager(most, file, strict=True) as manager:
        assert numbers(manager)[-2:] == was[-3:-1]
        assert list(manager.get_damaged_snapshots("run-1")) == [30]
        for index in range(30, 30 + 2 * most):
            assert taken(manager, {"n": index}).number == index + 1
            assert numbers(manager)[-1] == index + 1
        assert [each.n for each in manager.get_all_snapshots("run-1")] == [*range(30 + most, 30 + 2 * most)]


def test_snapshot_without_its_large_value_is_reported(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    def lose(which: str) -> None:
        with Database(file) as connection:
            connection.execute(f"DELETE FROM artifact_piece WHERE {which}")
        connection.close()

    with SnapshotManager(4, file) as manager:
        for index in range(3):
            taken(manager, {"n": index, "page": f"{index}" * 100_000})
    lose("digest = (SELECT digest FROM artifact_piece LIMIT 1)")
    with SnapshotManager(4, file, strict=True) as manager:
        assert len(numbers(manager)) == 2
        (lost,) = manager.get_damaged_snapshots("run-1")
        assert lost not in numbers(manager)
        taken(manager, {"n": 3, "page": "small"})
        taken(manager, {"n": 4, "page": "x" * 100_000})
    lose("digest = (SELECT digest FROM artifact ORDER BY at DESC LIMIT 1)")
    with SnapshotManager(4, file, strict=True) as manager:
        assert 5 in manager.get_damaged_snapshots("run-1")
        assert taken(manager, {"n": 5}).n == 5
        assert [each.n for each in manager.get_all_snapshots("run-1")][-2:] == [3, 5]
    assert "snapshot 5 of run 'run-1' is damaged" in caplog.text


def test_missing_folder_of_large_values_deletes_no_snapshot(file: Path) -> None:
    folder = file.with_name("artifacts")
    with holdfast.open(file, artifacts=folder) as hf:
        taken(SnapshotManager(4, hf), {"page": "x" * 100_000})
    with SnapshotManager(4, file, strict=True) as manager, pytest.raises(NotFound, match="artifacts="):
        manager.create_snapshot("run-1", {"n": 1})
    with holdfast.open(file, artifacts=folder) as hf:
        assert [len(each.page) for each in SnapshotManager(4, hf).get_all_snapshots("run-1")] == [100_000]


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
    def no_space(digests: Sequence[bytes]) -> Any:
        raise OSError("no space")

    with SnapshotManager(1) as manager:
        manager._hf._store.release = no_space  # type: ignore[method-assign]
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
