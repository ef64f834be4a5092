"""No argument, and no failure of the store, makes a call of the engine raise."""

from __future__ import annotations

import inspect
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loop_fixtures import Clock, good, refused, state_of

import holdfast
from database import Database
from holdfast import Holdfast
from holdfast.loops import LoopEngine

#: Every call of the engine that returns a reply.
CALLS = sorted(
    name for name, value in inspect.getmembers(LoopEngine, inspect.isfunction)
    if not name.startswith("_") and name not in ("checker", "on_recovery")
)  # fmt: skip


class Nasty:
    """An object whose every method raises."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __str__(self) -> str:
        raise RuntimeError("no str")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no eq")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")

    def __bool__(self) -> bool:
        raise RuntimeError("no bool")


class NastyText(str):
    """A string whose methods raise."""

    __slots__ = ()

    def __str__(self) -> str:
        raise RuntimeError("no str")

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no iter")


class NastyDict(dict[Any, Any]):
    """A dict whose methods raise."""

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("no iter")

    def items(self) -> Any:
        raise RuntimeError("no items")

    def get(self, *_: Any) -> Any:
        raise RuntimeError("no get")


def deep(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(levels):
        inner = {"in": inner}
    return inner


def cyclic() -> dict[str, Any]:
    state: dict[str, Any] = {"list": []}
    state["list"].append(state["list"])
    state["self"] = state
    return state


STATES: dict[str, Any] = {
    "cycles": cyclic,
    "functions": lambda: {"call": lambda: 0, "class": int, "module": sys, "generator": (x for x in [1])},
    "an open file": lambda: {"file": sys.stderr},
    "deep": lambda: deep(100_000),
    "wide": lambda: {number: number for number in range(50_000)},
    "a long text": lambda: {"text": "x" * 3_000_000},
    "a huge number": lambda: {"loop_count": 10**5000},
    "odd keys": lambda: {None: 1, (1, 2): 2, 1.5: 3, b"b": 4, frozenset([1]): 5, object(): 6, int: 7},
    "surrogates": lambda: {"\ud800": "\udfff"},
    "nasty values": lambda: {"a": Nasty(), "b": [Nasty()], "c": NastyText("text")},
    "a nasty dict": lambda: NastyDict(loop_count=3),
    "subclasses": lambda: defaultdict(OrderedDict, {"o": OrderedDict(a=1)}),
    "exceptions": lambda: {"error": ValueError("no"), "trace": None},
    "threads": lambda: {"lock": __import__("threading").Lock()},
    "frozen": lambda: holdfast.FrozenDict({"a": holdfast.FrozenList([1])}),
}


def test_save_accepts_any_state(engine: LoopEngine, subtests: pytest.Subtests) -> None:
    for what, state in STATES.items():
        with subtests.test(what=what):
            reply = engine.save_loop_snapshot(what, state())
            assert reply["status"] == "saved"
            assert good(engine.get_project_state(what))["version"] == 1
            assert engine.restore_last_snapshot(what)["status"] == "restored"
            assert good(engine.get_snapshot_history(what))["snapshot_count"] == 1
            assert good(engine.export(what))["document"]
            assert good(engine.compare(what, 1))["same"] is True


def test_loop_count_may_be_huge(engine: LoopEngine) -> None:
    assert engine.save_loop_snapshot("p", {"loop_count": 10**5000})["loop"] == 10**5000


WRONG = [None, 7, -1, 1.5, float("nan"), True, b"p", [], {}, (), object(), Nasty(), NastyText("p"), NastyDict(), "",
         "\0", "\ud800", "x" * 20_000, "head", lambda: None, int]  # fmt: skip


def test_calls_do_not_raise_for_invalid_arguments(engine: LoopEngine, subtests: pytest.Subtests) -> None:
    for name in CALLS:
        with subtests.test(name=name):
            engine.save_loop_snapshot(name, {"loop_count": 1})
            engine.log_agent_start(name, "a")
            call = getattr(engine, name)
            required = [
                each
                for each in inspect.signature(call).parameters.values()
                if each.default is inspect.Parameter.empty
            ]
            fine = {
                "project_id": name,
                "agent": "a",
                "version": 1,
                "a": 1,
                "b": 1,
                "name": "tag",
                "state": {},
                "changes": {},
            }
            for wrong in WRONG:
                assert "status" in call(*[wrong for _ in required])
                for place in inspect.signature(call).parameters:
                    arguments = {each.name: fine.get(each.name, "p") for each in required} | {place: wrong}
                    assert "status" in call(**arguments)
            for reply in (call(*range(20)), call(unheard_of=1)):
                assert refused(reply, "invalid")


def test_calls_of_the_original_engine_exist() -> None:
    assert {
        "save_loop_snapshot", "restore_last_snapshot", "auto_restore_if_configured", "get_snapshot_history",
        "log_agent_start", "log_agent_complete", "check_timeouts", "reset_agent", "get_project_state",
        "set_project_state", "prune", "tag", "compare", "export", "import_", "schedule", "answer_question",
    } <= set(CALLS)  # fmt: skip


def test_calls_do_not_raise_for_a_closed_store(file: Path, subtests: pytest.Subtests) -> None:
    fine = {"project_id": "p", "agent": "a", "version": 1, "a": 1, "b": 1, "name": "tag", "state": {},
            "changes": {}, "question_id": "p:1", "choice": "resume", "every": 5, "document": {}}  # fmt: skip
    for where in (file, ":memory:"):
        with holdfast.open(where) as hf:
            engine = LoopEngine(hf, check_every=None)
            engine.save_loop_snapshot("p", {"loop_count": 1})
        for name in CALLS:
            with subtests.test(where=where, name=name):
                call = getattr(engine, name)
                needed = [
                    each.name
                    for each in inspect.signature(call).parameters.values()
                    if each.default is inspect.Parameter.empty
                ]
                reply = call(**{each: fine[each] for each in needed})
                assert reply["status"] == "error"
                if name != "import_":
                    assert "closed" in refused(reply, "store_unavailable")


def test_locked_store_is_reported_as_busy(file: Path, clock: Clock) -> None:
    with holdfast.open(file, timeout=0.05, clock=clock) as hf:
        engine = LoopEngine(hf, check_every=None)
        engine.save_loop_snapshot("p", {"loop_count": 1})
        engine.log_agent_start("p", "planner", timeout=60)
        clock.forward(61)
        other = Database(file)
        other.execute("BEGIN IMMEDIATE")
        for reply in (
            engine.save_loop_snapshot("p"),
            engine.set_project_state("p", {}),
            engine.restore_last_snapshot("p"),
            engine.log_agent_start("p", "a"),
            engine.log_agent_complete("p", "planner", "failed"),
            engine.configure("p", loop_autoresume=True),
            engine.auto_restore_if_configured("p"),
        ):
            assert refused(reply, "store_busy")
        assert [each["code"] for each in engine.check_timeouts()["errors"]] == ["store_busy"]
        assert good(engine.get_project_state("p"))["loop"] == 1, "reading still works"
        other.execute("ROLLBACK")
        other.close()
        assert len(engine.check_timeouts()["stalled"]) == 1, "the next check finds the stalled agent"


def damage(file: Path, run: str, number: int) -> None:
    database = Database(file)
    changed = database.change(
        "UPDATE journal SET pack = zeroblob(length(pack)) "
        "WHERE number = ? AND run = (SELECT key FROM run WHERE id = ?)",
        (number, run),
    )
    database.close()
    assert changed == 1


@pytest.fixture
def damaged(file: Path) -> Iterator[Any]:
    """Return a function that damages some of three snapshots and a later state, and opens an engine on them."""
    with holdfast.open(file) as hf:
        engine = LoopEngine(hf, check_every=None)
        for loop in (1, 2, 3):
            engine.save_loop_snapshot("p", {"loop_count": loop, "text": f"{loop} " * 30})
        engine.set_project_state("p", {"loop_count": 4, "text": "4 " * 30})
    opened: list[Holdfast] = []

    def reopen(*numbers: int, run: str = "loop/p") -> LoopEngine:
        for number in numbers:
            damage(file, run, number)
        opened.append(holdfast.open(file))
        return LoopEngine(opened[-1], check_every=None)

    yield reopen
    for each in opened:
        each.close()


def test_damaged_snapshot_is_skipped(damaged: Any) -> None:
    engine = damaged(2, 3)
    found = engine.get_snapshot_history("p")
    assert (found["snapshot_count"], found["last_good"]) == (3, 1)
    assert ["damaged" in each for each in found["snapshots"]] == [False, True, True]
    reply = engine.restore_last_snapshot("p")
    assert (reply["status"], reply["version"], reply["skipped"]) == ("restored", 1, [3, 2])
    assert state_of(engine)["loop_count"] == 1
    assert refused(engine.compare("p", 1, 2), "corrupt_version")
    assert refused(engine.restore_snapshot("p", 3), "corrupt_version")


def test_damaged_head_is_restored_from_the_last_good_snapshot(damaged: Any) -> None:
    engine = damaged(4)
    assert refused(engine.get_project_state("p"), "corrupt_version")
    assert refused(engine.save_loop_snapshot("p"), "corrupt_version")
    reply = good(engine.restore_last_snapshot("p"))
    assert (reply["version"], reply["diff"]) == (3, [])
    assert "version 4" in reply["diff_error"]
    assert engine.get_project_state("p")["state"]["loop_count"] == 3


def test_damaged_audit_entry_does_not_hide_the_others(file: Path) -> None:
    with holdfast.open(file) as hf:
        engine = LoopEngine(hf, check_every=None)
        for _ in range(3):
            engine.log_agent_start("p", "planner")
    damage(file, "loop/p/control", 2)
    with holdfast.open(file) as hf:
        audit = good(LoopEngine(hf, check_every=None).get_audit("p"))["audit"]
        assert [(each["action"], "damaged" in each) for each in audit] == [
            ("agent.started", False),
            ("agent.started", True),
            ("agent.started", False),
        ]


def test_control_record_of_a_newer_format_is_refused(hf: Holdfast, engine: LoopEngine) -> None:
    engine.configure("p", loop_autoresume=True)
    log = hf.history("loop/p/control")
    log.commit(log.head.state.replace('"format":1', '"format":2'))
    for reply in (engine.get_config("p"), engine.configure("p", every=5), engine.log_agent_start("p", "a")):
        assert "upgrade" in refused(reply, "incompatible_format")
    assert log.head.number == 2


def test_project_without_readable_snapshot_asks_the_operator(damaged: Any) -> None:
    engine = damaged(1, 2, 3, 4)
    assert engine.restore_last_snapshot("p")["status"] == "no snapshot available"
    question = engine.auto_restore_if_configured("p", "crash")
    assert (question["status"], question["version"]) == ("question", None)


def test_store_that_lost_its_tables_is_an_error(file: Path) -> None:
    with holdfast.open(file) as hf:
        engine = LoopEngine(hf, check_every=None)
        engine.save_loop_snapshot("p", {"loop_count": 1})
        engine.log_agent_start("p", "planner")
        database = Database(file)
        database.execute("PRAGMA foreign_keys = OFF")
        database.execute("DROP TABLE journal")
        database.close()
        for reply in (
            engine.save_loop_snapshot("p", {"loop_count": 2}),
            engine.restore_last_snapshot("p"),
            engine.log_agent_complete("p", "planner"),
            engine.get_snapshot_history("p"),
        ):
            assert reply["status"] == "error"
            assert reply["code"] != "unexpected"
        assert all(entry["damaged"] for entry in engine.get_audit("p")["audit"])


_texts = st.sampled_from(
    ["p", "q", "a/b", "\ud800", "", "planner", "x" * 300, "resume", "restore", "p:1", "q:2"]
)
_anything = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 12) | st.floats() | _texts | st.binary(max_size=3)
    | st.sampled_from([object(), len, 10**30]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["a", "loop_count", "loop_autoresume", 1, None]), inner, max_size=4),
    max_leaves=6,
)  # fmt: skip
_likely = st.sampled_from(
    ["p", "p", "q", "planner", 1, 2, {"loop_count": 3}, {"a": [1]}, True, 5.0, "restore", "p:1"]
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_calls_never_raise_for_random_arguments(data: st.DataObject) -> None:
    """Make random calls in random order with random arguments; the store stays valid."""
    clock = Clock()
    with holdfast.open(":memory:", clock=clock) as hf:
        engine = LoopEngine(hf, check_every=None)
        engine.set_project_state("p", {"loop_count": 1, "loop_autoresume": data.draw(st.booleans())})
        is_deleted = False
        for _ in range(data.draw(st.integers(1, 12))):
            name = data.draw(st.sampled_from(CALLS))
            call = getattr(engine, name)
            arguments = {}
            for each in inspect.signature(call).parameters.values():
                if each.default is inspect.Parameter.empty or data.draw(st.booleans()):
                    arguments[each.name] = data.draw(
                        st.just("p")
                        if each.name == "project_id" and data.draw(st.booleans())
                        else _likely | _anything
                    )
            reply = call(**arguments)
            assert isinstance(reply["status"], str), (name, arguments)
            assert reply.get("code") != "unexpected", (name, arguments, reply)
            if reply["status"] == "error":
                assert isinstance(reply["message"], str)
            is_deleted |= (reply["status"], reply.get("project_id")) == ("deleted", "p")
            clock.forward(data.draw(st.sampled_from([0, 1, 400])))
        assert hf.verify()
        assert is_deleted or engine.get_project_state("p")["status"] == "ok"
