"""Restores: into the same object or a new one, all or nothing, and never into an object of another run."""

from __future__ import annotations

import copy
import dataclasses
import threading
import uuid
from collections import OrderedDict, UserDict
from pathlib import Path
from typing import Any, ClassVar

import attrs
import msgspec
import pydantic
import pytest
import snapshot_fixtures
from snapshot_fixtures import Model, Plan, RunStore, Unregistered, taken

import autosave_timers
import holdfast
from holdfast import InvalidCall, InvalidSnapshot
from holdfast.snapshots import Snapshot, SnapshotManager

file, manager, no_timer_is_left = (
    snapshot_fixtures.file,
    snapshot_fixtures.manager,
    autosave_timers.no_timer_is_left,
)


class Client:
    def __init__(self, url: str) -> None:
        self.url, self.lock = url, threading.Lock()


@holdfast.register
@dataclasses.dataclass
class Registered:
    name: str
    call: Any = None


def through_json(manager: SnapshotManager, snapshot: Snapshot) -> Snapshot:
    return manager.import_snapshot(manager.export_snapshot(snapshot))


def test_failed_run_is_restored_to_its_snapshot(manager: SnapshotManager) -> None:
    store = RunStore()
    store.status = "running"
    store.execution_context["budget"] = {"left": 3}
    taken(manager, store)
    was = {name: repr(value) for name, value in vars(store).items()}
    store.status, store.error = "failed", ValueError("boom")
    store.execution_context["budget"]["left"] = 0
    store.logs.append("half done")
    latest = manager.get_latest_snapshot("run-1")
    assert latest is not None
    manager.restore_from_snapshot("run-1", store, latest)
    assert {name: repr(value) for name, value in vars(store).items()} == was
    # The snapshot is not shared with the store.
    store.execution_context["budget"]["left"] = -1
    manager.restore_from_snapshot("run-1", store, latest)
    assert store.execution_context == {"budget": {"left": 3}}
    # A restore writes nothing to the store: the object may be a copy for inspection.
    assert snapshot_fixtures.numbers(manager) == [1]


def test_restore_into_a_new_object_sets_every_imported_field(manager: SnapshotManager) -> None:
    store = RunStore()
    store.status = "suspended"
    store.step_results = {"fetch": {"status": "completed", "output": (1, {2, 3}, b"x")}}
    store.execution_path = [0, 2]
    store.execution_context = {"user": "ada", "id": uuid.UUID(int=7), "path": Path("a")}
    fresh = RunStore()
    done = manager.restore_from_snapshot("run-1", fresh, through_json(manager, taken(manager, store)))
    assert vars(fresh) == vars(store)
    assert done.fields == tuple(vars(store))
    assert type(fresh.step_results) is dict
    fresh.step_results["more"] = {}
    fresh.execution_path.append(3)


def test_error_of_a_failed_step_survives_export_and_import(manager: SnapshotManager) -> None:
    store = RunStore()
    try:
        raise Unregistered(42) from OSError(2, "gone")
    except Unregistered as error:
        store.error = error
        store.step_results["fetch"] = {"status": "failed", "error": error, "last": KeyError("x")}
    snapshot = through_json(manager, taken(manager, store))
    described = snapshot.state["error"]
    assert (described["message"], described["attributes"]) == ("code 42", {"code": 42})
    assert "raise Unregistered(42)" in described["traceback"]
    assert snapshot.replaced == ("step_results.fetch.error", "error")
    fresh = RunStore()
    assert manager.restore_from_snapshot("run-1", fresh, snapshot).not_restored == ()
    for back in (fresh.error, fresh.step_results["fetch"]["error"]):
        assert type(back) is Unregistered
        assert (str(back), back.code, back.args) == ("code 42", 42, ("code 42",))
        assert isinstance(back.__cause__, FileNotFoundError)
    assert repr(fresh.step_results["fetch"]["last"]) == "KeyError('x')"


def test_error_of_an_unknown_class_is_restored_as_an_error(manager: SnapshotManager) -> None:
    class Local(Exception):
        pass

    text = manager.export_snapshot(taken(manager, {"error": Local("here only")}))
    document = manager.import_snapshot(text)
    facts = dict(document.state["error"]) | {"type": "nowhere.Local"}
    moved = Snapshot(
        run_id="run-1",
        workflow_id=None,
        number=1,
        timestamp=document.timestamp,
        state=holdfast.FrozenDict({"error": facts}),
        replaced=document.replaced,
    )
    into: dict[str, Any] = {}
    manager.restore_from_snapshot("run-1", into, moved)
    assert type(into["error"]) is holdfast.StepFailed
    assert "here only" in str(into["error"])


def test_fields_missing_in_the_snapshot_are_kept_or_removed(manager: SnapshotManager) -> None:
    snapshot = taken(manager, {"goal": "tide"})
    into = {"goal": "kelp", "new": 1}
    done = manager.restore_from_snapshot("run-1", into, snapshot)
    assert (into, done.removed, done.kept) == ({"goal": "tide"}, ("new",), ())
    into = {"new": 1}
    done = manager.restore_from_snapshot("run-1", into, snapshot, keep_unknown=True)
    assert (into, done.removed, done.kept) == ({"goal": "tide", "new": 1}, (), ("new",))

    plan = Plan(done=[1])
    done = manager.restore_from_snapshot("run-1", plan, snapshot)
    assert (plan, done.kept) == (Plan("tide", [1]), ("done",))
    done = manager.restore_from_snapshot("run-1", plan, snapshot, keep_unknown=False)
    assert (vars(plan), done.removed) == ({"goal": "tide", "_client": None}, ("done",))
    with pytest.raises(InvalidCall, match="keep_unknown"):
        manager.restore_from_snapshot("run-1", plan, snapshot, keep_unknown="yes")  # type: ignore[arg-type]


def test_restore_keeps_current_values_that_could_not_be_stored(manager: SnapshotManager) -> None:
    store: dict[str, Any] = {
        "name": "a",
        "client": Client("one"),
        "tools": {"call": len, "names": ["x"]},
        "pair": (1, open),
        "boxed": Registered("b", print),
        "me": None,
    }
    store["me"] = store
    snapshot = taken(manager, store)
    assert snapshot.replaced == ("client", "client.lock", "tools.call", "pair[1]", "boxed.call", "me")
    live = Client("two")
    into: dict[str, Any] = {
        "client": live,
        "tools": {"call": max},
        "pair": (0, min),
        "boxed": Registered("c", sum),
        "me": "mine",
    }
    done = manager.restore_from_snapshot("run-1", into, through_json(manager, snapshot))
    # The lock is one like that of the snapshot; the others differ from what the snapshot had.
    assert done.not_restored == ("tools.call", "pair[1]", "boxed.call", "me")
    assert (into["name"], into["tools"], into["pair"]) == ("a", {"call": max, "names": ["x"]}, (1, min))
    assert into["boxed"] == Registered("b", sum)
    assert into["me"] == "mine"
    # The fields of the client are restored in a copy; the original, which may be shared, does not change.
    assert (type(into["client"]), into["client"].url, into["client"].lock) == (Client, "one", live.lock)
    assert live.url == "two"


def test_restore_lists_values_that_are_lost(manager: SnapshotManager) -> None:
    snapshot = taken(manager, {"client": Client("one"), "calls": [len], "fine": 1})
    into: dict[str, Any] = {"calls": []}
    done = manager.restore_from_snapshot("run-1", into, snapshot)
    assert done.not_restored == ("client", "calls[0]")
    with pytest.warns(DeprecationWarning, match="not_restored"):
        assert done.lost == done.not_restored
    assert (into["fine"], into["calls"]) == (1, ["<function len>"])
    assert into["client"]["url"] == "one"


def test_restore_keeps_current_values_of_redacted_secrets(file: Path) -> None:
    with holdfast.open(file, redact=["*token*"]) as hf:
        manager = SnapshotManager(history=hf)
        snapshot = taken(manager, {"api_token": "s3cret", "deep": {"token": "more"}, "n": 1})
        assert "s3cret" not in manager.export_snapshot(snapshot)
        into = {"api_token": "live", "deep": {"token": "alive"}, "n": 2}
        manager.restore_from_snapshot("run-1", into, snapshot)
        assert into == {"api_token": "live", "deep": {"token": "alive"}, "n": 1}


def test_text_that_looks_redacted_is_restored_where_nothing_is_redacted(manager: SnapshotManager) -> None:
    state: dict[str, Any] = {"messages": [{"content": "[redacted]"}], "error": "[redacted]"}
    snapshot = taken(manager, state)
    for given in (snapshot, manager.import_snapshot(manager.export_snapshot(snapshot))):
        state["messages"][0]["content"] = state["error"] = "other"
        assert manager.restore_from_snapshot("run-1", state, given).not_restored == ()
        assert state == {"messages": [{"content": "[redacted]"}], "error": "[redacted]"}
        into: dict[str, Any] = {}
        assert manager.restore_from_snapshot("run-1", into, given, strict=True).not_restored == ()
        assert into == state


def test_secret_in_an_imported_snapshot_does_not_replace_the_current_one(
    file: Path, manager: SnapshotManager
) -> None:
    state = {"token": "one", "n": 1}
    with holdfast.open(file.with_name("redacting.db"), redact=["token"]) as hf:
        first = SnapshotManager(5, hf)
        snapshot = manager.import_snapshot(first.export_snapshot(taken(first, state)))
    # The snapshot is stored again where nothing is redacted.
    snapshot = taken(manager, snapshot)
    state.update(token="two", n=2)
    manager.restore_from_snapshot("run-1", state, snapshot, strict=True)
    assert state == {"token": "two", "n": 1}


class Replacing:
    """A store whose state is replaced."""

    def __init__(self) -> None:
        self.state: dict[Any, Any] = {}

    def get_state(self) -> dict[Any, Any]:
        return dict(self.state)

    def set_state(self, state: dict[Any, Any]) -> None:
        self.state = state


@pytest.mark.parametrize("kind", ["dict", "ordered", "set_state"])
def test_restore_brings_back_the_order_and_the_types_of_keys(manager: SnapshotManager, kind: str) -> None:
    call = print
    was = {"a": 1, 1: "one", "call": call, "b": 2}
    snapshot = taken(manager, was)
    now = {"b": 3, "new": 0, True: "yes", "call": call, "a": 1}
    for keep, rest in ((False, []), (True, [("new", 0)])):
        store: Any = Replacing() if kind == "set_state" else OrderedDict() if kind == "ordered" else {}
        state = store.state if kind == "set_state" else store
        state.update(now)
        manager.restore_from_snapshot("run-1", store, snapshot, keep_unknown=keep, strict=True)
        state = store.state if kind == "set_state" else store
        assert list(map(repr, state.items())) == list(map(repr, [*was.items(), *rest]))


def test_restore_that_fails_half_way_changes_nothing(manager: SnapshotManager) -> None:
    snapshot = taken(manager, {"new": 1, "goal": "tide", "done": "not a list"})
    store = Model(done=[7])
    with pytest.raises(InvalidSnapshot, match="'done'") as caught:
        manager.restore_from_snapshot("run-1", store, snapshot)
    assert caught.value.__cause__ is not None
    assert store.model_dump() == {"goal": "kelp", "done": [7]}

    class Choosy:
        def __init__(self) -> None:
            self.goal = "kelp"

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "done":
                raise PermissionError("read only")
            object.__setattr__(self, name, value)

    choosy = Choosy()
    with pytest.raises(InvalidSnapshot, match="read only"):
        manager.restore_from_snapshot("run-1", choosy, snapshot)
    assert vars(choosy) == {"goal": "kelp"}


def test_store_with_set_state_gets_the_whole_state(manager: SnapshotManager) -> None:
    class Atom:
        def __init__(self, **state: Any) -> None:
            self._state = state

        def get_state(self) -> dict[str, Any]:
            return dict(self._state)

        def set_state(self, state: dict[str, Any]) -> None:
            if state.get("goal") == "bad":
                raise ValueError("no")
            self._state = state

    snapshot = taken(manager, Atom(goal="tide", call=len))
    atom = Atom(goal="kelp", call=max, new=1)
    manager.restore_from_snapshot("run-1", atom, snapshot)
    assert atom.get_state() == {"goal": "tide", "call": max}
    with pytest.raises(InvalidSnapshot, match="no"):
        manager.restore_from_snapshot("run-1", atom, taken(manager, {"goal": "bad"}))
    assert atom.get_state() == {"goal": "tide", "call": max}


@pytest.mark.parametrize("of", ["run_id", "workflow_id"])
def test_restore_refuses_ids_that_do_not_match(manager: SnapshotManager, of: str) -> None:
    snapshot = taken(manager, RunStore())
    other = RunStore(**{of: "other"})
    was = dict(vars(other))
    with pytest.raises(InvalidSnapshot, match=f"{of} 'other'") as caught:
        manager.restore_from_snapshot("run-1", other, snapshot)
    assert caught.value.details["found"] == "other"
    assert vars(other) == was
    with pytest.raises(InvalidSnapshot, match=of):
        manager.create_snapshot("run-1", other, workflow_id="research")
    with pytest.raises(InvalidSnapshot, match="run_id"):
        manager.restore_from_snapshot("run-2", RunStore("run-2"), snapshot)
    with pytest.raises(InvalidSnapshot, match="workflow_id"):
        manager.restore_from_snapshot("run-1", {}, snapshot, workflow_id="other")
    assert snapshot_fixtures.numbers(manager) == [1]


def test_restore_accepts_unknown_ids(manager: SnapshotManager) -> None:
    snapshot = taken(manager, RunStore())
    for into in ({}, {"run_id": None, "workflow_id": ""}, {"run_id": "run-1"}):
        manager.restore_from_snapshot("run-1", into, snapshot)
        assert into["run_id"] == "run-1"
    run_id = uuid.UUID(int=5)
    taken(manager, {"run_id": run_id}, str(run_id))
    # A snapshot without a workflow matches any.
    anything = {"workflow_id": "any"}
    manager.restore_from_snapshot("a", anything, taken(manager, {"n": 1}, "a"), workflow_id="any")
    assert taken(manager, {"n": 1}, "a", workflow_id="given").workflow_id == "given"


def test_snapshot_imported_for_another_run_is_restored_there(manager: SnapshotManager) -> None:
    store = RunStore()
    store.status = "running"
    text = manager.export_snapshot(taken(manager, store))
    fresh = RunStore("run-2")
    manager.restore_from_snapshot("run-2", fresh, manager.import_snapshot(text, run_id="run-2"))
    assert (fresh.run_id, fresh.status) == ("run-2", "running")


def test_restore_refuses_what_is_not_a_snapshot(manager: SnapshotManager, subtests: pytest.Subtests) -> None:
    cases: list[Any] = [None, "{}", {}, 3, [1]]
    for wrong in cases:
        with subtests.test(wrong=wrong):
            with pytest.raises(InvalidCall, match="import_snapshot"):
                manager.restore_from_snapshot("run-1", {}, wrong)
            with pytest.raises(InvalidCall):
                manager.export_snapshot(wrong)


def test_object_that_refers_to_itself_is_stored_once(manager: SnapshotManager) -> None:
    class Node:
        def __init__(self) -> None:
            self.name, self.children = "a", [self]

    snapshot = taken(manager, Node())
    assert dict(snapshot.state) == {"name": "a", "children": ["<cycle to the root>"]}
    fresh = Node()
    fresh.name = "b"
    manager.restore_from_snapshot("run-1", fresh, snapshot)
    assert (fresh.name, fresh.children) == ("a", [fresh])


class Getter:
    """A store that gives a copy of its state."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def get_state(self) -> Any:
        return copy.copy(self._state)


class Labelled:
    def __init__(self) -> None:
        self.n = 1

    @property
    def label(self) -> str:
        return f"n={self.n}"


class Stored(Labelled):
    """An object that writes a field elsewhere."""

    written: ClassVar[list[int]] = []

    def __init__(self) -> None:
        super().__init__()

    @property
    def n(self) -> int:
        return 1

    @n.setter
    def n(self, value: int) -> None:
        self.written.append(value)


class Number(pydantic.BaseModel):
    n: int = 1


class NumberStruct(msgspec.Struct):
    n: int = 1


@attrs.define
class NumberAttrs:
    n: int = attrs.field(default=1, validator=attrs.validators.instance_of(int))


def test_copies_of_every_kind_are_refused(manager: SnapshotManager) -> None:
    states: list[Any] = [Number(), NumberStruct(), NumberAttrs(), Labelled(), UserDict(n=1), {"n": 1}]
    for state in states:
        store = Getter(state)
        snapshot = taken(manager, store.get_state())
        with pytest.raises(InvalidCall, match="is a copy"):
            manager.restore_from_snapshot("run-1", store.get_state(), snapshot)
        kept = store.get_state()
        assert manager.restore_from_snapshot("run-1", kept, snapshot).fields == ("n",)
    snapshot = taken(manager, {"n": 5})
    manager.restore_from_snapshot("run-1", Stored(), snapshot)
    assert Stored.written[-1] == 5


def test_set_state_that_has_to_be_awaited_is_refused(manager: SnapshotManager) -> None:
    class Store:
        def __init__(self) -> None:
            self.state = {"n": 1}

        def get_state(self) -> dict[str, int]:
            return self.state

        async def set_state(self, state: dict[str, int]) -> None:
            self.state = state

    store = Store()
    snapshot = taken(manager, {"n": 2})
    with pytest.raises(InvalidCall, match="awaited"):
        manager.restore_from_snapshot("run-1", store, snapshot)
    assert store.state == {"n": 1}


class ApiError(Exception):
    def __init__(self, code: Any) -> None:
        super().__init__("refused")
        self.code, self.status = code, 429


def test_parts_of_errors_that_cannot_be_stored_are_listed(manager: SnapshotManager) -> None:
    group = ExceptionGroup("several", [ApiError(len), ValueError("x")])
    snapshot = through_json(manager, taken(manager, {"error": ApiError(print), "group": group}))
    into: dict[str, Any] = {}
    done = manager.restore_from_snapshot("run-1", into, snapshot)
    assert done.not_restored == ("error.code", "group.exceptions[0].code")
    assert (type(into["error"]), into["error"].args, into["error"].status) == (ApiError, ("refused",), 429)
    with pytest.raises(InvalidSnapshot, match=r"error\.code"):
        manager.restore_from_snapshot("run-1", into, snapshot, strict=True)


def test_causes_of_errors_are_restored(manager: SnapshotManager) -> None:
    try:
        try:
            raise ApiError(3)
        except ApiError as error:
            raise ValueError("no answer") from error
    except ValueError as error:
        state: dict[str, Any] = {"step_results": {"a": {"status": "failed", "error": error}}}
    snapshot = through_json(manager, taken(manager, state))
    into: dict[str, Any] = {}
    assert manager.restore_from_snapshot("run-1", into, snapshot, strict=True).not_restored == ()
    found = into["step_results"]["a"]["error"]
    assert (type(found), found.args) == (ValueError, ("no answer",))
    assert (type(found.__cause__), found.__cause__.code) == (ApiError, 3)


def test_property_that_fails_half_way_is_set_back(manager: SnapshotManager) -> None:
    class Thermostat:
        def __init__(self) -> None:
            self.name, self._degrees = "hall", 20

        @property
        def degrees(self) -> int:
            return self._degrees

        @degrees.setter
        def degrees(self, value: int) -> None:
            self._degrees = value
            if value > 90:
                raise ValueError("too hot")

    store = Thermostat()
    snapshot = taken(manager, {"name": "attic", "degrees": 99})
    with pytest.raises(InvalidSnapshot, match="is unchanged"):
        manager.restore_from_snapshot("run-1", store, snapshot)
    assert vars(store) == {"name": "hall", "_degrees": 20}
    manager.restore_from_snapshot("run-1", store, taken(manager, {"degrees": 19}))
    assert store.degrees == 19
