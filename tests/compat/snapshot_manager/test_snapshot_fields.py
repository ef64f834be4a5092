"""Kinds of stores: how their fields are read and restored, and which are refused."""

from __future__ import annotations

import threading
from collections import ChainMap, OrderedDict, namedtuple
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import snapshot_fixtures
from snapshot_fixtures import FrozenPlan, Model, Plan, RunStore, Slots, Struct, taken

import autosave_timers
import holdfast
from holdfast import InvalidCall, InvalidSnapshot
from holdfast.snapshots import SnapshotManager

file, manager, no_timer_is_left = (
    snapshot_fixtures.file,
    snapshot_fixtures.manager,
    autosave_timers.no_timer_is_left,
)

Point = namedtuple("Point", "goal done")


class WithGet:
    def __init__(self) -> None:
        self.inner = {"goal": "kelp", "done": [1]}

    def get_state(self) -> dict[str, Any]:
        return self.inner


class WithGetAndSet:
    def __init__(self) -> None:
        self._state: dict[str, Any] = {"goal": "kelp", "done": [1]}

    def get_state(self) -> dict[str, Any]:
        return dict(self._state)

    def set_state(self, state: dict[str, Any]) -> None:
        if "bad" in state:
            raise ValueError("no")
        self._state = state


class Callable:
    def __init__(self) -> None:
        self._plan = Plan(done=[1])

    def __call__(self) -> Plan:
        return self._plan


def stores() -> list[Any]:
    plan = Plan(done=[1])
    chain: Any = ChainMap({"goal": "kelp"}, {"done": [1]})
    return [
        {"goal": "kelp", "done": [1]},
        OrderedDict(goal="kelp", done=[1]),
        chain,
        plan,
        SimpleNamespace(goal="kelp", done=[1]),
        Model(done=[1]),
        Struct(done=[1]),
        Slots(),
        lambda: plan,
        partial(lambda one: one, plan),
        WithGet(),
        WithGet().get_state,
        WithGetAndSet(),
        Callable(),
        holdfast.FrozenDict({"goal": "kelp", "done": holdfast.FrozenList([1])}),
        Point("kelp", [1]),
        MappingProxyType({"goal": "kelp", "done": [1]}),
    ]


#: How many of them, at the end, cannot be changed.
READ_ONLY = 3


def test_store_may_be_anything_with_fields(manager: SnapshotManager, subtests: pytest.Subtests) -> None:
    for index, store in enumerate(stores()):
        with subtests.test(index=index, kind=type(store).__name__):
            made = taken(manager, store)
            assert dict(made.state) == {"goal": "kelp", "done": [1]}
            assert made.replaced == ()


def test_restore_sets_the_fields_of_each_kind_of_store(
    manager: SnapshotManager, subtests: pytest.Subtests
) -> None:
    for index, store in enumerate(stores()[:-READ_ONLY]):
        with subtests.test(index=index, kind=type(store).__name__):
            snapshot = taken(manager, {"goal": "tide", "done": [1, 2]})
            done = manager.restore_from_snapshot("run-1", store, snapshot)
            assert (done.fields, done.kept, done.removed, done.not_restored) == (("goal", "done"), (), (), ())
            assert dict(taken(manager, store).state) == {"goal": "tide", "done": [1, 2]}


def test_immutable_store_is_refused_and_unchanged(
    manager: SnapshotManager, subtests: pytest.Subtests
) -> None:
    cases: list[Any] = [*stores()[-READ_ONLY:], FrozenPlan()]
    for store in cases:
        with subtests.test(store=store):
            snapshot = taken(manager, {"goal": "tide"})
            was = repr(store)
            with pytest.raises(InvalidCall):
                manager.restore_from_snapshot("run-1", store, snapshot)
            assert repr(store) == was


def test_store_without_fields_is_refused(manager: SnapshotManager, subtests: pytest.Subtests) -> None:
    cases: list[Any] = [
        None,
        3,
        "text",
        b"",
        [1],
        (1,),
        {1},
        frozenset(),
        1.5,
        Plan,
        dict,
        open,
        len,
        threading.enumerate,
    ]
    for store in cases:
        with subtests.test(store=store):
            with pytest.raises(InvalidCall):
                manager.create_snapshot("run-1", store)
            snapshot = taken(manager, {"goal": "tide"})
            with pytest.raises(InvalidCall):
                manager.restore_from_snapshot("run-1", store, snapshot)


def test_store_functions_that_cannot_be_called_are_refused(manager: SnapshotManager) -> None:
    async def later() -> dict[str, Any]:
        return {}

    def forever() -> Any:
        return forever

    wrong: list[Any] = [later, lambda needed: {}, forever]
    for store in wrong:
        with pytest.raises(InvalidCall):
            manager.create_snapshot("run-1", store)
    assert manager.get_run_ids() == []


def test_restore_into_a_function_of_new_objects_is_refused(manager: SnapshotManager) -> None:
    snapshot = taken(manager, lambda: {"goal": "tide"})
    with pytest.raises(InvalidCall, match="another object each time"):
        manager.restore_from_snapshot("run-1", lambda: {"goal": "kelp"}, snapshot)


def test_private_fields_and_properties_are_not_saved(manager: SnapshotManager) -> None:
    class Private:
        def __init__(self) -> None:
            self.shown, self._hidden = 1, 2

        @property
        def computed(self) -> int:
            raise AssertionError

    made = taken(manager, Private())
    assert dict(made.state) == {"shown": 1}
    store = Private()
    store.shown, store._hidden = 5, 6
    manager.restore_from_snapshot("run-1", store, made)
    assert (store.shown, store._hidden) == (1, 6)


def test_store_may_be_empty_or_have_keys_of_any_type(manager: SnapshotManager) -> None:
    assert dict(taken(manager, {}).state) == {}
    odd = {1: "one", ("a", 2): "two", "get_state": "three", "": None}
    made = taken(manager, odd)
    into: dict[Any, Any] = {}
    manager.restore_from_snapshot("run-1", into, manager.import_snapshot(manager.export_snapshot(made)))
    assert into == odd


def test_extra_fields_of_a_model_are_saved(manager: SnapshotManager) -> None:
    made = taken(manager, Model(goal="tide", more=[1]))  # type: ignore[call-arg]
    store = Model()
    manager.restore_from_snapshot("run-1", store, made)
    assert store.model_dump() == {"goal": "tide", "done": [], "more": [1]}


def test_snapshot_can_be_saved_as_a_store(manager: SnapshotManager) -> None:
    made = taken(manager, RunStore())
    again = taken(manager, made, note="kept once more")
    assert (again.number, again.state, again.workflow_id) == (2, made.state, "research")
    assert taken(manager, taken(manager, {"call": len}, "calls"), "calls").replaced == ("call",)
    other = manager.import_snapshot(manager.export_snapshot(made), run_id="run-2")
    assert taken(manager, other, "run-2").run_id == "run-2"
    with pytest.raises(InvalidSnapshot):
        manager.create_snapshot("run-3", made)
    with pytest.raises(InvalidCall):
        manager.restore_from_snapshot("run-1", made, made)
