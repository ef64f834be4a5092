"""Reading states: over many packs, deep, wide, shared, and beyond the read-ahead limit; memory of readers."""

from __future__ import annotations

import gc
import random
import tracemalloc
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

import holdfast
from holdfast import FrozenDict, History, thaw
from holdfast.tree import load


@pytest.mark.parametrize("ahead", [1, 40, 4096])
def test_state_is_the_same_for_any_read_ahead_limit(
    file: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    monkeypatch.setattr(load, "_AHEAD", ahead)
    source = random.Random(7)
    expected = _spread(file, source)
    with holdfast.open(file) as hf:
        assert thaw(hf.history("run").head.state) == expected
        assert thaw(hf.history("run").at(30).state) != expected


def test_node_in_two_places_is_stored_once(file: Path) -> None:
    shared = {"text": "a" * 600, "items": ["b" * 40] * 9}
    with holdfast.open(file, durability="fast") as hf:
        log = hf.history("run")
        log.commit({"one": shared})
        with log.edit() as state:
            state["two"] = log.head.state["one"]
    with holdfast.open(file) as hf:
        state = hf.history("run").head.state
        assert state == {"one": shared, "two": shared}
        assert hf.history("run").head.size < 300


def test_state_is_frozen_and_can_be_edited_cheaply(file: Path) -> None:
    _spread(file, random.Random(8))
    with holdfast.open(file, durability="fast") as hf:
        log = hf.history("run")
        with log.edit() as state:
            state["documents"]["doc-5"]["seen"] = True
        assert isinstance(log.head.state["documents"]["doc-5"], FrozenDict)
        assert log.head.size < 2000


@pytest.mark.slow
def test_reading_a_large_state_uses_little_extra_memory(file: Path) -> None:
    source = random.Random(9)
    with holdfast.open(file, durability="fast") as hf:
        hf.history("run").commit({str(number): _document(source) for number in range(8000)})
    with holdfast.open(file) as hf:
        tracemalloc.start()
        try:
            state = hf.history("run").head.state
            kept, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert len(state) == 8000
    assert peak < 1.1 * kept


def test_deepest_state_with_a_node_per_level_is_readable(file: Path) -> None:
    state: Any = {}
    for level in range(198):
        state = {"beside": "b" * 120, "below": state} if level % 2 else ["b" * 120, state]
    with holdfast.open(file, durability="fast") as hf:
        hf.history("run").commit({"deep": state})
    with holdfast.open(file) as hf:
        assert thaw(hf.history("run").head.state) == {"deep": state}


def _spread(file: Path, source: random.Random) -> dict[str, Any]:
    """A state written over many versions, its parts of every kind."""
    expected: dict[str, Any] = {
        "documents": {f"doc-{number}": _document(source) for number in range(300)},
        "grid": {f"row-{row}": {f"cell-{cell}": [row, "x" * 120] for cell in range(12)} for row in range(12)},
        "messages": [],
        "sets": [{1, 2}, {"a": {3}}],
        "large": "y" * 70_000,
    }
    with holdfast.open(file, durability="fast") as hf:
        log = hf.history("run")
        log.commit(expected)
        for number in range(80):
            message = _document(source)
            fresh = _document(source)
            with log.edit() as state:
                state["messages"].append(message)
                state["documents"][f"doc-{number * 3}"] = fresh
            expected["messages"].append(message)
            expected["documents"][f"doc-{number * 3}"] = fresh
    return expected


def _document(source: random.Random) -> dict[str, Any]:
    return {"title": source.randbytes(20).hex(), "text": source.randbytes(400).hex(), "seen": False}


def test_copies_of_a_state_share_nothing(log: History) -> None:
    lists: dict[str, Any] = {
        "records": [{"n": n, "text": "x"} for n in range(100)],
        "mixed": [{"n": n, "deep": [n] if n % 40 == 7 else None} for n in range(100)],
        "odd": [{"n": n} if n % 3 else [n] for n in range(70)],
        "plain": list(range(70)),
        "short": [{"n": 1}, {"deep": {"n": 2}}],
    }
    log.commit(lists)
    log.commit(lists | {"more": 1})
    for version in (log.at(1), log.head, log.at(2)):
        for _ in range(2):
            copied = version.copy()
            copied.pop("more", None)
            assert copied == lists
            copied["records"][5]["n"] = copied["records"][99]["text"] = "changed"
            copied["mixed"][7]["deep"].append("changed")
            copied["mixed"][8]["deep"] = "changed"
            copied["odd"][0].append("changed")
            copied["plain"][0] = copied["short"][1]["deep"]["n"] = "changed"


def test_reader_is_not_part_of_a_reference_cycle() -> None:
    """A process that executes thousands of runs would spend a fifth of its time in the garbage collector."""
    with holdfast.open(":memory:") as hf:
        log = hf.history("run")
        for number in range(5):
            log.commit({"n": number, "list": list(range(100))})
        assert log.at(2).state["n"] == 1
        log.blame("n")
        reader = ref(hf._context._readers["run"])
        assert reader() is not None
        gc.disable()
        try:
            del log
            hf.delete("run")
            assert reader() is None
        finally:
            gc.enable()
