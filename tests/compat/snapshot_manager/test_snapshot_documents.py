"""Snapshots as JSON documents: export, import, comparison, validation."""

from __future__ import annotations

import json
from typing import Any

import pytest
import snapshot_fixtures
from snapshot_fixtures import RunStore, taken

import autosave_timers
import holdfast
from holdfast import InvalidCall, InvalidReference, InvalidSnapshot
from holdfast.snapshots import Snapshot, SnapshotManager, compare_snapshots, validate_snapshot

file, manager, no_timer_is_left = (
    snapshot_fixtures.file,
    snapshot_fixtures.manager,
    autosave_timers.no_timer_is_left,
)


def odd() -> dict[str, Any]:
    return {
        "nan": float("nan"),
        "big": 2**70,
        "zero": -0.0,
        "lone": "\ud800",
        "tuple": ((1,), {2}, frozenset({3})),
        "keys": {1: "a", "1": "b", (1, 2): "c"},
        "call": len,
        "$holdfast": "x",
    }


def test_snapshot_is_equal_after_export_and_import(manager: SnapshotManager) -> None:
    made = taken(manager, odd(), tags=["good"], note="odd")
    text = manager.export_snapshot(made)
    for given in (text, text.encode(), json.loads(text)):
        found = manager.import_snapshot(given)
        assert found == made
        assert hash(found) == hash(made)
        assert compare_snapshots(made, found) == compare_snapshots(made, found, deep=True) == {}
    assert manager.export_snapshot(manager.import_snapshot(text)) == text
    # An import stores nothing, and works without the run.
    manager.clear_all_snapshots()
    assert manager.import_snapshot(text).number == 1
    assert manager.get_run_ids() == []


def test_documents_are_exchanged_between_managers_and_histories(manager: SnapshotManager) -> None:
    made = taken(manager, RunStore())
    exported = json.dumps(manager.history("run-1").export())
    assert manager.import_snapshot(exported) == made
    with holdfast.open(":memory:") as hf:
        assert hf.import_snapshot(manager.export_snapshot(made)).state == made.state
        assert hf.history("run-1").head.number == 1


def test_snapshots_are_equal_only_if_exactly_equal(manager: SnapshotManager) -> None:
    text = manager.export_snapshot(taken(manager, {"n": 1}))
    one = manager.import_snapshot(text)
    assert one != json.loads(text)
    for value in (True, 1.0, 2):
        other = Snapshot(
            run_id="run-1",
            workflow_id=None,
            number=1,
            timestamp=one.timestamp,
            state=holdfast.FrozenDict({"n": value}),
        )
        assert one != other
        assert compare_snapshots(one, other) == {"n": {"from": 1, "to": value}}


def test_comparison_covers_every_field(manager: SnapshotManager) -> None:
    store = RunStore()
    before = taken(manager, store)
    for name, value in vars(store).items():
        if name not in ("run_id", "workflow_id"):
            setattr(store, name, [value])
    store.added = 1  # type: ignore[attr-defined]
    after = taken(manager, store)
    found = compare_snapshots(before, after)
    assert list(found) == [name for name in vars(store) if name not in ("run_id", "workflow_id")]
    assert found["status"] == {"from": "pending", "to": ["pending"]}
    assert found["execution_context"] == {"from": {}, "to": [{}]}
    assert found["added"] == {"from": None, "to": 1}
    assert compare_snapshots(after, before)["added"] == {"from": 1, "to": None}
    assert compare_snapshots(before, before) == {}


def test_deep_comparison_lists_paths(manager: SnapshotManager) -> None:
    store = RunStore()
    store.step_results = {"fetch": {"status": "running", "tags": {1}}, "plan": {"status": "completed"}}
    before = taken(manager, store)
    store.step_results["fetch"] |= {"status": "completed", "tags": {1, 2}}
    after = taken(manager, store)
    assert compare_snapshots(before, after, deep=True) == {
        "step_results.fetch.status": {"from": "running", "to": "completed"},
        "step_results.fetch.tags": {"from": {1}, "to": {1, 2}},
    }
    assert list(compare_snapshots(before, after)) == ["step_results"]


def test_comparison_of_two_runs_includes_their_ids(manager: SnapshotManager) -> None:
    one, two = taken(manager, {"n": 1}, "a", workflow_id="w"), taken(manager, {"n": 1}, "b")
    for deep in (False, True):
        assert compare_snapshots(one, two, deep=deep) == {
            "run_id": {"from": "a", "to": "b"},
            "workflow_id": {"from": "w", "to": None},
        }
    wrong: list[Any] = [None, {}, "text"]
    for other in wrong:
        with pytest.raises(InvalidCall):
            compare_snapshots(one, other)


class Hostile:
    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = None  # type: ignore[assignment]


def broken() -> list[Any]:
    with SnapshotManager() as manager:
        text = manager.export_snapshot(taken(manager, {"n": 1, "word": "tide"}))
    document = json.loads(text)
    no_fields = holdfast.open(":memory:").history("a")
    no_fields.commit([1, 2])
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    return [
        None,
        3,
        "",
        "{",
        "[]",
        b"\xff",
        {},
        [],
        object(),
        Hostile(),
        text[:-5],
        text.replace("tide", "tied"),
        "[" * 100_000,
        deep,
        {**document, "state": deep},
        {**document, "run": "../x"},
        {**document, "number": 99},
        {**document, "format": "other"},
        {name: value for name, value in document.items() if name != "state"},
        no_fields.export(),
        Snapshot(run_id=3, workflow_id=None, number="x", timestamp=None, state=None),  # type: ignore[arg-type]
    ]


def test_validation_reports_problems_and_never_raises(manager: SnapshotManager) -> None:
    for document in broken():
        found = validate_snapshot(document)
        assert not found
        assert found.problems
        if type(document) is not Snapshot:
            with pytest.raises(InvalidSnapshot):
                manager.import_snapshot(document)


def test_validation_accepts_valid_snapshots(manager: SnapshotManager) -> None:
    made = taken(manager, odd())
    text = manager.export_snapshot(made)
    for each in (made, text, text.encode(), json.loads(text)):
        assert validate_snapshot(each)


def test_import_for_another_run_checks_its_id(manager: SnapshotManager) -> None:
    text = manager.export_snapshot(taken(manager, RunStore()))
    with pytest.raises(InvalidReference):
        manager.import_snapshot(text, run_id="../x")
    found = manager.import_snapshot(text, run_id="run-2")
    assert (found.run_id, found.state["run_id"], found.workflow_id) == ("run-2", "run-2", "research")
