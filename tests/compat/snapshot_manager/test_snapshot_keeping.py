"""The manager: which snapshots it keeps, finds and deletes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import snapshot_fixtures
from snapshot_fixtures import RunStore, numbers, taken

import autosave_timers
import holdfast
from holdfast import InvalidCall, InvalidReference
from holdfast.snapshots import SnapshotManager

file, manager, no_timer_is_left = (
    snapshot_fixtures.file,
    snapshot_fixtures.manager,
    autosave_timers.no_timer_is_left,
)


def test_snapshot_has_every_field_and_the_ids_of_its_run(manager: SnapshotManager) -> None:
    store = RunStore()
    store.execution_context = {"user": "ada", "seen": {1, 2}, "at": datetime(2026, 1, 1, tzinfo=UTC)}
    made = taken(manager, store, note="before the risky part")
    assert made.state == vars(store)
    assert (made.run_id, made.workflow_id, made.number, made.replaced) == ("run-1", "research", 1, ())
    assert (made.note, made.tags, made.timed) == ("before the risky part", (), False)
    assert made.timestamp.tzinfo is UTC
    assert made.execution_context == store.execution_context
    assert made.status == "pending"
    with pytest.raises(AttributeError, match="did you mean 'status'"):
        made.statsu  # noqa: B018
    assert manager.get_latest_snapshot("run-1") == made
    assert repr(made).startswith("<Snapshot 1 of 'run-1'")


def test_snapshot_does_not_change_with_the_run(manager: SnapshotManager) -> None:
    store = RunStore()
    store.step_results["a"] = {"status": "running"}
    made = taken(manager, store)
    store.step_results["a"]["status"] = "completed"
    assert made.step_results == {"a": {"status": "running"}}
    with pytest.raises(TypeError):
        made.state["status"] = "other"
    with pytest.raises(AttributeError):
        made.number = 2  # type: ignore[misc]


def test_manager_keeps_only_the_latest_snapshots(manager: SnapshotManager) -> None:
    store = RunStore()
    first = taken(manager, store)
    for index in range(17):
        store.execution_path.append(index)
        taken(manager, store)
    assert numbers(manager) == [14, 15, 16, 17, 18]
    assert [version.number for version in manager.history("run-1").versions()] == [18, 17, 16, 15, 14]
    assert [len(snapshot.execution_path) for snapshot in manager.get_all_snapshots("run-1")] == [
        13,
        14,
        15,
        16,
        17,
    ]
    # A snapshot that a caller holds stays usable.
    assert first.execution_path == []
    manager.restore_from_snapshot("run-1", store, first)
    assert store.execution_path == []


def test_snapshots_are_kept_per_run(manager: SnapshotManager) -> None:
    for run_id in ("a", "b", "a/b", "ä"):
        for index in range(7):
            taken(manager, {"n": index, "of": run_id}, run_id)
    for run_id in ("a", "b", "a/b", "ä"):
        assert [(one.n, one.of) for one in manager.get_all_snapshots(run_id)] == [
            (n, run_id) for n in range(2, 7)
        ]
    assert manager.get_run_ids() == ["a", "a/b", "b", "ä"]


def test_tagged_or_pinned_snapshot_is_kept_in_addition(manager: SnapshotManager) -> None:
    store = RunStore()
    taken(manager, store, tags=["good"])
    taken(manager, store)
    manager.history("run-1").pin(2)
    for _ in range(8):
        taken(manager, store)
    assert numbers(manager) == [1, 2, 6, 7, 8, 9, 10]
    assert numbers(manager, tag="good") == [1]
    manager.history("run-1").untag(1, "good")
    taken(manager, store)
    assert numbers(manager) == [2, 7, 8, 9, 10, 11]


def test_snapshots_are_listed_by_time_and_limit_oldest_first(manager: SnapshotManager) -> None:
    store = RunStore()
    made = [taken(manager, store) for _ in range(4)]
    assert manager.get_all_snapshots("run-1") == made
    assert numbers(manager, limit=2) == [3, 4]
    assert numbers(manager, since=made[2].timestamp) == [3, 4]
    assert numbers(manager, since=datetime.now(UTC) + timedelta(days=1)) == []
    assert numbers(manager, tag="none") == []
    assert manager.get_all_snapshots("unknown") == []
    assert manager.get_latest_snapshot("unknown") is None


def test_clear_deletes_one_run_or_all_and_restarts_numbers(manager: SnapshotManager) -> None:
    for run_id in ("a", "b", "c"):
        taken(manager, {"n": 1}, run_id, tags=["good"])
    manager.clear_snapshots("a")
    manager.clear_snapshots("a")
    assert manager.get_run_ids() == ["b", "c"]
    assert taken(manager, {"n": 2}, "a").number == 1
    manager.clear_all_snapshots()
    assert manager.get_run_ids() == []
    assert manager.get_latest_snapshot("b") is None
    manager.clear_all_snapshots()


def test_manager_does_not_touch_other_runs_of_the_store(file: Path) -> None:
    with holdfast.open(file) as hf:
        hf.history("run-1").commit({"mine": True})
        manager = SnapshotManager(2, hf)
        for index in range(5):
            taken(manager, {"n": index})
        assert hf.history("run-1").head.number == 1
        assert [run.id for run in hf.runs()] == ["snapshots/run-1", "run-1"]
        assert hf.diff("snapshots/run-1@4", "snapshots/run-1@5").summary()
        manager.clear_all_snapshots()
        assert [run.id for run in hf.runs()] == ["run-1"]
        manager.close()
        assert hf.history("run-1").head.state == {"mine": True}


def test_manager_opens_and_closes_a_store_given_by_path(file: Path) -> None:
    with SnapshotManager(history=str(file)) as manager:
        assert manager.max_snapshots == 10
        taken(manager, RunStore())
        assert str(file) in repr(manager)
    with SnapshotManager(history=file) as manager:
        found = manager.get_latest_snapshot("run-1")
        assert found is not None
        assert found.state == vars(RunStore())
    assert "in memory" in repr(SnapshotManager())


def test_managers_on_one_store_see_the_same_snapshots(file: Path) -> None:
    with SnapshotManager(5, file) as one, SnapshotManager(3, file) as other:
        for index in range(4):
            taken(one, {"n": 2 * index})
            taken(other, {"n": 2 * index + 1})
        assert numbers(one) == numbers(other) == [6, 7, 8]
        one.clear_snapshots("run-1")
        assert taken(other, {"n": 0}).number == 1
        assert taken(one, {"n": 1}).number == 2
        assert [snapshot.n for snapshot in other.get_all_snapshots("run-1")] == [0, 1]


def test_large_values_are_removed_with_their_snapshots() -> None:
    with SnapshotManager(2) as manager:
        for index in range(20):
            taken(manager, {"page": f"{index}" * 100_000})
        assert manager._hf.stats().artifacts <= 2
        manager.clear_snapshots("run-1")
        assert manager._hf.stats().artifacts == 0


def test_invalid_max_snapshots_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[Any] = [0, -1, 1.0, True, None, "10", 10**30]
    for most in cases:
        with subtests.test(most=most), pytest.raises(InvalidCall, match="max_snapshots"):
            SnapshotManager(most)


def test_invalid_history_argument_is_refused(subtests: pytest.Subtests) -> None:
    cases: list[Any] = [3, b"runs.db", [], object(), "redis://there"]
    for history in cases:
        with subtests.test(history=history), pytest.raises(InvalidCall):
            SnapshotManager(history=history)


def test_history_of_one_run_is_refused_as_store() -> None:
    with holdfast.open(":memory:") as hf, pytest.raises(InvalidCall, match="one run"):
        SnapshotManager(history=hf.history("run-1"))  # type: ignore[arg-type]


def test_invalid_run_id_is_refused_by_every_call(manager: SnapshotManager, subtests: pytest.Subtests) -> None:
    snapshot = taken(manager, {"n": 1})
    calls: list[Callable[[Any], Any]] = [
        lambda run_id: manager.create_snapshot(run_id, {}),
        lambda run_id: manager.restore_from_snapshot(run_id, {}, snapshot),
        manager.get_latest_snapshot,
        manager.get_all_snapshots,
        manager.clear_snapshots,
        manager.history,
    ]
    for run_id in (None, 3, "", " a", "../../etc", "a@1", "a\0b", "x" * 191, "a\ud800", ["a"]):
        with subtests.test(run_id=run_id):
            for call in calls:
                with pytest.raises(InvalidCall):
                    call(run_id)
            if not isinstance(run_id, str) or len(run_id) < 100:
                with pytest.raises(InvalidReference):
                    calls[0](run_id)
            assert manager.get_run_ids() == ["run-1"]


def test_invalid_options_are_refused_before_the_store_is_read(manager: SnapshotManager) -> None:
    def never() -> Any:
        raise AssertionError

    for options in ({"tags": "good"}, {"tags": ["a@b"]}, {"note": 3}, {"note": "x" * 100_001}):
        with pytest.raises(InvalidCall):
            manager.create_snapshot("run-1", never, **options)
    for wrong in ({"limit": 0}, {"since": "today"}, {"since": datetime(2026, 1, 1)}, {"tag": 3}):  # noqa: DTZ001
        with pytest.raises(InvalidCall):
            manager.get_all_snapshots("run-1", **wrong)
    with pytest.raises(InvalidCall, match="workflow_id"):
        manager.create_snapshot("run-1", {}, workflow_id=3)  # type: ignore[arg-type]
    assert manager.get_run_ids() == []


@pytest.mark.slow
def test_stored_size_does_not_grow_with_the_number_of_snapshots(file: Path) -> None:
    with SnapshotManager(3, file) as manager:
        state: dict[str, Any] = {"messages": [{"text": "x" * 50, "n": n} for n in range(50)]}

        def take(count: int) -> Any:
            for index in range(count):
                state["messages"][index % 50] = {"text": "y" * 50, "n": index}
                taken(manager, state)
            return manager._hf.stats()

        before, after = take(80), take(80)
        assert (after.versions, after.events, after.artifacts) == (3, before.events, 0)
        assert after.pack_bytes < 1.5 * before.pack_bytes
        assert len(manager.history("run-1").events()) == 3
    assert file.stat().st_size < 500_000
