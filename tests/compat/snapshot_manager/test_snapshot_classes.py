"""Values of classes that are not registered: stored by their content, and made again or listed."""

from __future__ import annotations

import copy
import dataclasses
import enum
import sys
import threading
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest
import snapshot_fixtures
from snapshot_fixtures import taken

import autosave_timers
import holdfast
from holdfast import InvalidCall, InvalidSnapshot
from holdfast.snapshots import Snapshot, SnapshotManager, compare_snapshots

file, manager, no_timer_is_left = (
    snapshot_fixtures.file,
    snapshot_fixtures.manager,
    autosave_timers.no_timer_is_left,
)


class Color(enum.Enum):
    RED = 1
    GREEN = object()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Status(enum.StrEnum):
    RUNNING = "running"
    FAILED = "failed"


class Access(enum.Flag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: Any


class Text(str):
    pass


class Number(int):
    pass


class Names(list[Any]):
    def append(self, item: Any) -> None:
        raise AssertionError("not called")


class Table(dict[Any, Any]):
    def __setitem__(self, key: Any, value: Any) -> None:
        raise AssertionError("not called")


class Labelled(list[Any]):
    def __init__(self, label: str, items: Any = ()) -> None:
        super().__init__(items)
        self.label = label


class Plan:
    def __init__(self, goal: str) -> None:
        self.goal, self.next = goal, None

    def __eq__(self, other: object) -> bool:
        return type(other) is Plan and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass(frozen=True)
class Step:
    name: str
    status: Status = Status.RUNNING
    parts: tuple[Point, ...] = ()


class Model(pydantic.BaseModel):
    goal: str
    level: Level = Level.LOW


class Struct(msgspec.Struct):
    goal: str
    level: Level = Level.LOW


class Run:
    """All classes above can be reached from its annotations."""

    color: Color | None
    more: list[Level | Status | Access | Point | Text | Number]
    tables: dict[str, Names | Table | Labelled]
    objects: tuple[Plan, Step, Model, Struct]

    def __init__(self) -> None:
        self.run_id = "run-1"


VALUES: dict[str, Callable[[], Any]] = {
    "enum": lambda: Color.RED,
    "enum of an object": lambda: Color.GREEN,
    "int enum": lambda: Level.HIGH,
    "str enum": lambda: Status.FAILED,
    "flags": lambda: Access.READ | Access.WRITE,
    "named tuple": lambda: Point(1, Point(2, Status.FAILED)),
    "text": lambda: Text("a"),
    "number": lambda: Number(7),
    "list": lambda: Names([1, Text("b"), [Level.LOW]]),
    "dict": lambda: Table({"a": Color.RED, 1: {"b": Level.LOW}}),
    "list with attributes": lambda: Labelled("x", [Level.LOW]),
    "counter": lambda: Counter("hello"),
    "defaultdict": lambda: defaultdict(list, {"a": [Level.LOW]}),
    "defaultdict without a function": lambda: defaultdict(None, {"a": 1}),
    "ordered dict": lambda: OrderedDict(a=Level.LOW),
    "deque": lambda: deque([Level.LOW, Point(1, 2)], 5),
    "set": lambda: {Level.LOW, 7, Status.FAILED},
    "frozenset": lambda: frozenset({Color.RED}),
    "keys": lambda: {Color.RED: 1, Status.FAILED: 2, Point(1, 2): 3, Text("t"): 4, 1: 5},
    "namespace": lambda: SimpleNamespace(a=1, b=SimpleNamespace(c=Level.LOW)),
    "object": lambda: Plan("kelp"),
    "dataclass": lambda: Step("a", Status.FAILED, (Point(1, 2),)),
    "model": lambda: Model(goal="a", level=Level.HIGH),
    "struct": lambda: Struct("a", Level.HIGH),
}


def types_in(value: Any) -> Any:
    """Return the types of a value and of everything in it."""
    if isinstance(value, dict):
        return type(value), [(types_in(key), types_in(item)) for key, item in value.items()]
    if isinstance(value, list | tuple | deque):
        return type(value), [types_in(item) for item in value]
    if isinstance(value, set | frozenset):
        return type(value), {(type(item), item) for item in value}
    fields = getattr(value, "__dict__", None) if not isinstance(value, enum.Enum) else None
    return type(value), types_in(dict(fields)) if fields else None


@pytest.mark.parametrize("through_json", [False, True])
def test_values_of_unregistered_classes_are_restored_into_a_fresh_run(
    manager: SnapshotManager, subtests: pytest.Subtests, through_json: bool
) -> None:
    for name, make in VALUES.items():
        with subtests.test(name=name):
            run = Run()
            run.value = {"in": [make()]}  # type: ignore[attr-defined]
            snapshot = taken(manager, run)
            if through_json:
                snapshot = manager.import_snapshot(manager.export_snapshot(snapshot))
            fresh: Any = Run()
            done = manager.restore_from_snapshot("run-1", fresh, snapshot, strict=True)
            assert done.not_restored == ()
            assert fresh.value["in"][0] == make()
            assert types_in(fresh.value["in"][0]) == types_in(make())
            # Again from what was restored: nothing is lost on the way.
            assert compare_snapshots(snapshot, taken(manager, fresh)) == {}
            manager.clear_all_snapshots()


def test_current_values_do_not_stay_in_place_of_stored_ones(manager: SnapshotManager) -> None:
    state: dict[str, Any] = {name: make() for name, make in VALUES.items()}
    snapshot = taken(manager, state)
    state.update(
        {
            "enum": Color.GREEN,
            "str enum": Status.RUNNING,
            "text": Text("changed"),
            "named tuple": Point(0, 0),
            "counter": Counter("other"),
            "namespace": SimpleNamespace(z=1),
            "object": Plan("other"),
        }
    )
    done = manager.restore_from_snapshot("run-1", state, snapshot)
    assert done.not_restored == ()
    assert state == {name: make() for name, make in VALUES.items()}


def test_classes_that_are_not_found_are_listed_and_never_imported(manager: SnapshotManager) -> None:
    snapshot = taken(
        manager,
        {"e": Status.FAILED, "p": [Plan("a")], "c": Counter("a"), "k": {Color.RED: 1}, "f": Color.GREEN},
    )
    into: dict[str, Any] = {"kept": 1}
    with pytest.raises(InvalidSnapshot, match="nothing was changed") as caught:
        manager.restore_from_snapshot("run-1", into, snapshot, strict=True)
    assert into == {"kept": 1}
    expected = ("e", "p[0]", "k[1]#key", "f")
    assert caught.value.details["not_restored"] == expected
    done = manager.restore_from_snapshot("run-1", into, snapshot)
    assert done.not_restored == expected
    assert (into["e"], type(into["e"]), into["c"], into["k"]) == ("failed", str, Counter("a"), {1: 1})
    # A name from a document is only ever compared.
    fake = Snapshot(
        run_id="run-1",
        workflow_id=None,
        number=1,
        timestamp=snapshot.timestamp,
        state=taken(manager, {"x": "a", "y": {"<type>": "subprocess.Popen"}}).state,
        replaced=("y",),
        types={"x": "antigravity.Text", "y": "subprocess.Popen()"},
    )
    into = {}
    assert manager.restore_from_snapshot("run-1", into, fake).not_restored == ("x", "y")


def test_incomplete_objects_are_not_made_without_a_current_one(manager: SnapshotManager) -> None:
    class Client:
        def __init__(self, url: str) -> None:
            self.url, self._lock = url, threading.Lock()

    class Holder:
        def __init__(self) -> None:
            self.client: Any = None
            self.other = Client("there")

    holder = Holder()
    holder.client = Client("one")
    snapshot = taken(manager, holder)
    holder.client = None
    assert manager.restore_from_snapshot("run-1", holder, snapshot).not_restored == ("client",)
    holder.client = Client("two")
    assert manager.restore_from_snapshot("run-1", holder, snapshot).not_restored == ()
    assert holder.client.url == "one"


@pytest.mark.parametrize("kind", ["plain", "dataclass", "slots", "pydantic"])
def test_private_data_of_another_object_is_listed(manager: SnapshotManager, kind: str) -> None:
    class Plain:
        def __init__(self, goal: str = "") -> None:
            self.goal, self._notes, self._lock = goal, [goal], threading.Lock()

    @dataclasses.dataclass
    class Data:
        goal: str
        _notes: list[str] = dataclasses.field(default_factory=list)

    class Slots:
        __slots__ = ("_notes", "goal")

        def __init__(self, goal: str) -> None:
            self.goal, self._notes = goal, [goal]

    class Model(pydantic.BaseModel):
        goal: str
        _notes: list[str] = pydantic.PrivateAttr(default_factory=list)

    cls: Any = {"plain": Plain, "dataclass": Data, "slots": Slots, "pydantic": Model}[kind]
    state = {"plans": [cls(goal="one"), cls(goal="two"), cls(goal="three")]}
    snapshot = taken(manager, state)
    assert manager.restore_from_snapshot("run-1", state, snapshot, strict=True).not_restored == ()
    state["plans"][:2] = state["plans"][1::-1]
    with pytest.raises(InvalidSnapshot, match=r"plans\[0\]\._notes"):
        manager.restore_from_snapshot("run-1", state, snapshot, strict=True)
    done = manager.restore_from_snapshot("run-1", state, snapshot)
    assert done.not_restored == ("plans[0]._notes", "plans[1]._notes")
    assert [plan.goal for plan in state["plans"]] == ["one", "two", "three"]


def test_private_slots_are_not_taken_for_missing(manager: SnapshotManager) -> None:
    class Counted:
        __slots__ = ("__count", "goal")

        def __init__(self) -> None:
            self.goal, self.__count = "win", 3

        def count(self) -> int:
            return self.__count

    class Holder:
        counted: Counted

        def __init__(self) -> None:
            self.counted = Counted()

    holder = Holder()
    snapshot = taken(manager, holder)
    del holder.counted
    assert manager.restore_from_snapshot("run-1", holder, snapshot).not_restored == ("counted",)
    holder.counted = Counted()
    assert manager.restore_from_snapshot("run-1", holder, snapshot, strict=True).not_restored == ()
    assert holder.counted.count() == 3


def test_attributes_that_an_object_got_later_are_removed(manager: SnapshotManager) -> None:
    class Client:
        def __init__(self) -> None:
            self.url, self._lock = "there", threading.Lock()

    state = {"client": Client()}
    snapshot = taken(manager, state)
    state["client"].error = "late"  # type: ignore[attr-defined]
    assert manager.restore_from_snapshot("run-1", state, snapshot).not_restored == ()
    assert not hasattr(state["client"], "error")


def test_snapshot_has_plain_values_and_the_names_of_their_classes(manager: SnapshotManager) -> None:
    made = taken(manager, {"status": Status.FAILED, "steps": {"a": Step("a")}, "scores": Counter("aab")})
    assert (made.status, made.scores) == ("failed", {"a": 2, "b": 1})
    assert type(made.status) is str
    assert made.types["status"].endswith("Status:FAILED")
    assert made.types["scores"] == "collections.Counter"
    assert made.replaced == ("steps.a",)
    assert set(taken(manager, {"status": "failed"}).types) == set()


def test_change_of_a_class_alone_is_noticed(manager: SnapshotManager) -> None:
    one, two = taken(manager, {"a": Status.FAILED}), taken(manager, {"a": "failed"})
    assert compare_snapshots(one, two) == {"a": {"from": "failed", "to": "failed"}}
    state: dict[str, Any] = {"a": Level.LOW}
    saver = manager.saver("run-2", lambda: manager.read("run-2", state, None), every=None)
    with saver:
        pass
    state["a"] = 1
    with saver:
        pass
    assert snapshot_fixtures.numbers(manager, "run-2") == [1, 2]


def test_copy_of_a_store_is_refused(manager: SnapshotManager) -> None:
    class Store:
        def __init__(self) -> None:
            self.inner = {"n": 1}

        def get_state(self) -> dict[str, Any]:
            return dict(self.inner)

        def get_namespace(self) -> SimpleNamespace:
            return SimpleNamespace(**self.inner)

        def get_live(self) -> dict[str, Any]:
            return self.inner

    store = Store()
    snapshot = taken(manager, store.get_state())
    store.inner["n"] = 2
    with pytest.raises(InvalidCall, match="is a copy"):
        manager.restore_from_snapshot("run-1", store.get_state(), snapshot)
    with pytest.raises(InvalidCall, match="is a copy"):
        manager.restore_from_snapshot("run-1", store=store.get_state(), snapshot=snapshot)
    with pytest.raises(InvalidCall, match="is a copy"):
        manager.restore_from_snapshot("run-1", store.get_namespace(), snapshot)
    for copying in (store, store.get_state):
        with pytest.raises(InvalidCall, match="another object each time"):
            manager.restore_from_snapshot("run-1", copying, snapshot)
    assert store.inner == {"n": 2}
    manager.restore_from_snapshot("run-1", store.get_live(), snapshot)
    assert store.inner == {"n": 1}
    manager.restore_from_snapshot("run-1", vars(store)["inner"], snapshot)


class Halfway:
    """A store whose set_state can fail after its first change."""

    def __init__(self) -> None:
        self.inner: dict[str, Any] = {"a": 1, "b": {"c": 1}}
        self.fails = 0
        self.drops: tuple[str, ...] = ()
        self.stuck = False

    def get_state(self) -> dict[str, Any]:
        return dict(self.inner)

    def set_state(self, state: dict[str, Any]) -> None:
        for index, (name, value) in enumerate(state.items()):
            if name not in self.drops:
                self.inner[name] = value
            if self.fails and index == 0:
                self.fails -= 1
                if self.stuck:
                    self.inner[name] = 99
                raise OSError("half way")
        for name in [name for name in self.inner if name not in state]:
            del self.inner[name]


def test_set_state_that_fails_half_way_is_undone(manager: SnapshotManager) -> None:
    store = Halfway()
    snapshot = taken(manager, store)
    store.inner.update(a=2, b={"c": 2}, d=1)
    was = dict(store.inner)
    store.fails = 1
    with pytest.raises(InvalidSnapshot, match="is unchanged") as caught:
        manager.restore_from_snapshot("run-1", store, snapshot)
    assert store.inner == was
    assert caught.value.details["unchanged"]
    # The second call fails, too, after its first field.
    store.fails, store.stuck = 2, True
    with pytest.raises(InvalidSnapshot, match="could not be put back: 'a'") as caught:
        manager.restore_from_snapshot("run-1", store, snapshot)
    assert caught.value.details["changed"] == ("a",)


def test_set_state_that_drops_fields_is_reported(manager: SnapshotManager) -> None:
    store = Halfway()
    snapshot = taken(manager, store)
    store.inner.update(a=2, b=2)
    store.drops = ("b",)
    assert manager.restore_from_snapshot("run-1", store, snapshot).not_restored == ("b",)
    store.inner.update(a=2, b=2)
    with pytest.raises(InvalidSnapshot, match="did not take over 'b'"):
        manager.restore_from_snapshot("run-1", store, snapshot, strict=True)


def test_setter_that_cannot_be_undone_is_named(manager: SnapshotManager) -> None:
    class Once:
        def __init__(self) -> None:
            self.a, self.b = 1, 1

        def __setattr__(self, name: str, value: Any) -> None:
            if name == "a" and getattr(self, "a", 1) != 1:
                raise PermissionError("once")
            if name == "b" and value == 5:
                raise ValueError("no")
            object.__setattr__(self, name, value)

    once = Once()
    with pytest.raises(InvalidSnapshot, match="could not be put back: 'a'"):
        manager.restore_from_snapshot("run-1", once, taken(manager, {"a": 3, "b": 5}))


def test_comparison_finds_a_value_of_another_class(manager: SnapshotManager) -> None:
    """Equal as they are stored."""
    one = taken(manager, {"s": {"x": Status.RUNNING, "y": 1}, "an odd name": Status.RUNNING, "n": 1})
    two = taken(manager, {"s": {"x": "running", "y": 2}, "an odd name": "running", "n": 1})
    same = {"from": "running", "to": "running"}
    assert compare_snapshots(one, two, nested=True) == {
        "s": {"x": same, "y": {"from": 1, "to": 2}},
        "an odd name": same,
    }
    deep = compare_snapshots(one, two, deep=True)
    assert set(deep) == {"s.x", "s.y", '["an odd name"]'}
    assert deep["s.x"]["to"] is None
    assert compare_snapshots(one, one, deep=True) == compare_snapshots(one, one) == {}


def calls_of(function: Callable[[], object]) -> int:
    """Return how many calls of Python functions a function makes."""
    count = 0

    def record(_frame: object, event: str, _arg: object) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(record)
    try:
        function()
    finally:
        sys.setprofile(None)
    return count


def test_value_that_cannot_be_stored_does_not_slow_down_other_fields(manager: SnapshotManager) -> None:
    """Only its own field is sanitized."""
    steps = {f"step-{number}": {"status": "completed", "output": [number]} for number in range(300)}
    found = {}
    for name, value in (("plain", "running"), ("enum", Status.RUNNING), ("function", print)):
        state: dict[str, Any] = {"steps": copy.deepcopy(steps), "odd": value}
        manager.create_snapshot(name, state)
        found[name] = calls_of(lambda name=name, state=state: manager.create_snapshot(name, state))  # type: ignore[misc]
    assert max(found.values()) < 1.5 * found["plain"]


def test_artifact_in_a_redacted_field_is_not_stored() -> None:
    with holdfast.open(":memory:", redact=["*token*"]) as hf, SnapshotManager(10, hf) as manager:
        secret = holdfast.artifact(b"secret" * 20_000)
        assert (
            taken(manager, {"token": secret, "deep": {"token": secret}, "odd": print}).token == "[redacted]"
        )
        assert hf.stats().artifacts == 0
        assert taken(manager, {"page": holdfast.artifact(b"page" * 20_000)}).page.read()
        assert hf.stats().artifacts == 1


def test_names_within_a_redacted_value_are_not_listed() -> None:
    with holdfast.open(":memory:", redact=["*token*"]) as hf, SnapshotManager(10, hf) as manager:
        state = {
            "token": {"secret name": Status.RUNNING, "call": print},
            "n": Status.RUNNING,
            1: {"token": len},
        }
        made = taken(manager, state)
        assert made.state == {"token": "[redacted]", "n": "running", 1: {"token": "[redacted]"}}
        assert (set(made.types), made.replaced) == ({"n"}, ())
