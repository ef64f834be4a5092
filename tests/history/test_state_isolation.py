"""Changes that C code and loops make to drafts are stored; those to a version's state stay in the reader's copy."""

from __future__ import annotations

import array
import heapq
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pydantic
import pytest

import holdfast
from holdfast import FrozenStateChanged, History, Holdfast, UnsupportedValue, thaw


@holdfast.register
@dataclass
class Basket:
    name: str
    items: list[Any] = field(default_factory=list)


@holdfast.register
class Tally(msgspec.Struct):
    count: int


@holdfast.register
class Person(pydantic.BaseModel):
    name: str
    tags: list[str] = []


BY_C: dict[str, Callable[[list[Any]], Any]] = {
    "heappush": lambda items: heapq.heappush(items, -1),
    "heappop": heapq.heappop,
    "heapify": heapq.heapify,
    "reverse": list.reverse,
    "heapreplace": lambda items: heapq.heapreplace(items, 1000),
    "append": lambda items: list.append(items, 5),
    "sort": lambda items: list.sort(items, reverse=True),
    "set": lambda items: list.__setitem__(items, 0, 0.0),
}


@pytest.mark.parametrize("count", [1, 2, 3])
def test_heappop_on_a_draft_returns_drafts(tmp_path: Path, count: int) -> None:
    with holdfast.open(tmp_path / "heap.db") as hf:
        log = hf.history("h")
        log.commit(
            {
                "dicts": [{"n": number} for number in range(count)],
                "lists": [[number] for number in range(count)],
            }
        )
        with log.edit() as state:
            heapq.heappop(state["lists"]).append("popped")
            state["lists"].append(["new"])
            try:
                popped = heapq.heappop(state["dicts"])
            except TypeError:
                assert count > 2  # dicts cannot be compared
            else:
                popped["n"] = "changed"
                state["dicts"].append(popped)
        assert count > 2 or log.head.state["dicts"][-1] == {"n": "changed"}
        assert log.at(1).state["dicts"] == [{"n": number} for number in range(count)]
        assert log.at(1).state["lists"] == [[number] for number in range(count)]


@pytest.mark.parametrize("name", BY_C)
def test_draft_list_stores_writes_of_c_code(tmp_path: Path, name: str) -> None:
    for size in (1, 20, 33, 100):
        expected = list(range(size))
        with holdfast.open(tmp_path / f"{size}.db") as hf:
            log = hf.history("run")
            log.commit({"q": expected})
            with log.edit() as state:
                BY_C[name](state["q"])
        BY_C[name](expected)
        with holdfast.open(tmp_path / f"{size}.db") as hf:
            found = thaw(hf.history("run").head.state["q"])
        assert [(type(item), item) for item in found] == [(type(item), item) for item in expected]


def test_draft_dict_stores_writes_of_c_code(log: History) -> None:
    log.commit({"small": {"a": 1}, "wide": {f"k{at}": at for at in range(100)}, "rows": [{"n": 1}] * 40})
    with log.edit() as state:
        dict.__setitem__(state, "new", 1)
        dict.__setitem__(state["small"], "a", True)
        dict.pop(state["wide"], "k7")
        dict.update(state["wide"], {"k8": "eight", "last": 1})
        for row in state["rows"]:
            dict.__setitem__(row, "n", 2)
    state = log.head.state
    assert (state["new"], state["small"]["a"], state["wide"]["k8"]) == (1, True, "eight")
    assert type(state["small"]["a"]) is bool
    assert "k7" not in state["wide"]
    assert list(state["wide"])[-1] == "last"
    assert state["rows"] == [{"n": 2}] * 40


def test_changes_in_a_loop_over_a_draft_are_stored(log: History) -> None:
    log.commit({"tasks": [{"done": False, "steps": [{"n": 1}]} for _ in range(50)], "by": {"a": {"n": 1}}})
    with log.edit() as state:
        for task in state["tasks"]:
            task["done"] = True
            for step in task["steps"]:
                step["n"] += 1
        for entry in state["by"].values():
            entry["n"] = 5
        first, *_ = state["tasks"]
        assert first is state["tasks"][0] is next(iter(state["tasks"]))
    state = log.head.state
    assert all(task == {"done": True, "steps": [{"n": 2}]} for task in state["tasks"])
    assert state["by"] == {"a": {"n": 5}}


def test_draft_is_a_plain_container_for_c_code(log: History) -> None:
    value = {"rows": [{"n": at, "in": [at]} for at in range(40)], "texts": ["a", "b"], "t": (1, [2])}
    log.commit(value)
    with log.edit() as state:
        assert json.dumps(state) == json.dumps(value)
        assert msgspec.json.encode(state) == msgspec.json.encode(value)
        assert msgspec.to_builtins(state["rows"]) == value["rows"]
        assert pydantic.TypeAdapter(list[dict[str, Any]]).validate_python(state["rows"]) == value["rows"]
        assert "".join(state["texts"]) == "ab"
        assert dict(state) == {**state} == value
        assert len("{}".join(map(str, [*state["rows"]]))) > 40
        assert sorted(state["rows"], key=lambda row: -row["n"])[0]["n"] == 39
        state["t"][1].append(3)
    assert log.head.state["t"] == (1, [2, 3])


def test_reading_a_whole_draft_stores_nothing(log: History) -> None:
    log.commit(
        {"rows": [{"n": at, "text": "x" * 50} for at in range(500)], "wide": {str(n): {} for n in range(99)}}
    )
    with log.edit() as state:
        assert sum(row["n"] for row in state["rows"]) == sum(range(500))
        assert [*state["wide"].values()] == [{}] * 99
        state["more"] = 1
    assert log.head.size < 300


LEAVES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "set": ({1}, lambda leaf: leaf.add(2)),
    "deque": (deque([1]), lambda leaf: leaf.append(2)),
    "bytearray": (bytearray(b"a"), lambda leaf: leaf.append(98)),
    "numpy": (np.zeros(3), lambda leaf: leaf.__setitem__(0, 5)),
    "dataclass": (Basket("b"), lambda leaf: leaf.items.append(1)),
    "struct": (Tally(1), lambda leaf: setattr(leaf, "count", 2)),
    "model": (Person(name="p"), lambda leaf: leaf.tags.append("t")),
    "exception": (ValueError("x"), lambda leaf: leaf.add_note("a note")),
    "tuple": ((1, [2]), lambda leaf: leaf[1].append(3)),
}


@pytest.mark.parametrize("name", LEAVES)
def test_mutable_leaf_is_a_copy_for_each_reader(hf: Holdfast, log: History, name: str) -> None:
    leaf, change = LEAVES[name]
    log.commit({"leaf": leaf, "list": [leaf], "n": 1})
    version = log.head
    before = log.export(1)
    for reader in (version, log.at(1), hf.get("run-1").head):
        for part in (reader.state["leaf"], reader.state["list"][0]):
            try:
                change(part)
            except TypeError:
                assert name == "tuple", "the list in it is frozen"
    assert log.export(version) == before
    assert log.export(1) == before
    with log.edit() as state:
        state["n"] = 2
    log.rollback(to=1)
    assert log.export("head")["state"] == before["state"]


@pytest.mark.parametrize("name", LEAVES)
def test_change_of_a_leaf_in_a_draft_is_stored(log: History, name: str) -> None:
    leaf, change = LEAVES[name]
    log.commit({"leaf": leaf, "list": [leaf]})
    before = log.export(1)["state"]
    with log.edit() as state:
        change(state["leaf"])
        for each in state["list"]:
            change(each)
    after = log.export("head")["state"]
    assert after["leaf"] != before["leaf"]
    assert after["list"] == [after["leaf"]]


def test_array_of_the_standard_library_is_refused(log: History) -> None:
    with pytest.raises(UnsupportedValue, match="array"):
        log.commit({"a": array.array("i", [1])})


def test_c_code_cannot_change_a_version(hf: Holdfast, log: History) -> None:
    value = {"q": [3, 5, 7], "rows": [{"n": 1}], "deep": {"l": [[1]]}}
    log.commit(value)
    version = log.head
    heapq.heappush(version.state["q"], 1)
    dict.__setitem__(version.state["rows"][0], "n", 2)
    heapq.heappush(version.state["deep"]["l"][0], 0)
    assert log.head.state == log.at(1).state == hf.get("run-1").state == value
    with pytest.raises(FrozenStateChanged, match="heapq"):
        log.commit(version.state)
    with pytest.raises(FrozenStateChanged, match="heapq"):
        log.commit({"copy": version.state["q"]})
    with pytest.raises(FrozenStateChanged):
        thaw(version.state)
    with log.edit() as state:
        state["q"].append(9)
    assert log.head.state == {**value, "q": [3, 5, 7, 9]}
    assert log.head.number == 2


def test_c_code_in_a_workflow_cannot_change_arguments_of_steps(hf: Holdfast) -> None:
    @holdfast.step(name="isolated_append")
    def append() -> list[int]:
        holdfast.state()["q"].append(9)
        return list(holdfast.state()["q"])

    @holdfast.workflow(name="isolated_flow")
    def flow() -> list[int]:
        heapq.heappush(holdfast.state()["q"], 0)
        return append()

    run = hf.run(flow, state={"q": [1, 2]})
    assert run.result == [1, 2, 9]
    assert run.state == {"q": [1, 2, 9]}


def test_draft_of_a_failed_edit_refuses_changes(log: History) -> None:
    log.commit({"rows": [{"n": 1}]})
    rows: Any = None
    with pytest.raises(ValueError, match="no"), log.edit() as state:  # noqa: PT012 - a read, then an error
        rows = list(state["rows"])
        raise ValueError("no")
    with pytest.raises(TypeError, match="draft has ended"):
        rows[0]["n"] = 2


def test_frozen_container_in_a_draft_is_unchanged_for_its_reader(log: History) -> None:
    log.commit({"a": {"list": [1, {"n": 1}]}})
    version = log.head
    with log.edit() as state:
        state["b"] = version.state["a"]
        state["b"]["list"].append(2)
        own = holdfast.FrozenList([1])
        state["own"] = own
        assert state["own"][0] == 1
    list.append(own, 2)
    assert log.head.state == {"a": {"list": [1, {"n": 1}]}, "b": {"list": [1, {"n": 1}, 2]}, "own": [1]}
    assert version.state == {"a": {"list": [1, {"n": 1}]}}
