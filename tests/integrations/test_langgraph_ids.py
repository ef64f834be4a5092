"""Valid and invalid configs, ids and calls."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langgraph_graphs import checkpoint, config, put

import holdfast
from holdfast import HoldfastError, InvalidCall
from holdfast.integrations.langgraph import HoldfastSaver


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[HoldfastSaver]:
    with holdfast.open(tmp_path / "runs.db", durability="fast") as hf:
        yield HoldfastSaver(hf)


def test_invalid_config_is_refused(saver: HoldfastSaver) -> None:
    given: Any
    for given in (
        None,
        {},
        {"configurable": {}},
        {"configurable": {"thread_id": None}},
        {"configurable": {"thread_id": ""}},
        {"configurable": {"thread_id": ["t"]}},
        {"configurable": {"thread_id": True}},
        {"configurable": {"thread_id": "t", "checkpoint_ns": 7}},
        {"configurable": {"thread_id": "t", "checkpoint_id": "two words"}},
        {"configurable": {"thread_id": "t", "checkpoint_id": 7}},
        {"configurable": {"thread_id": "t", "checkpoint_id": "x" * 2_000}},
        "t",
    ):
        with pytest.raises(InvalidCall):
            saver.get_tuple(given)
        with pytest.raises(InvalidCall):
            saver.put(given, checkpoint(), {}, {})
        with pytest.raises(InvalidCall):
            saver.put_writes(given, [("x", 1)], "task")
        if given is not None:
            with pytest.raises(InvalidCall):
                saver.list(given)
    assert sorted(run.id for run in saver.hf.iter_runs()) == []


def test_invalid_calls_are_refused(saver: HoldfastSaver) -> None:
    where = config(checkpoint_ns="")
    calls: list[Any] = [
        lambda: saver.put(where, None, {}, {}),  # type: ignore[arg-type]
        lambda: saver.put(where, {"id": "x"}, {}, {}),  # type: ignore[typeddict-item]
        lambda: saver.put(where, checkpoint() | {"id": ""}, {}, {}),
        lambda: saver.put(where, checkpoint() | {"parent_id": "x"}, {}, {}),
        lambda: saver.put(where, checkpoint(), None, {}),  # type: ignore[arg-type]
        lambda: saver.put_writes(where, [("x", 1)], "task"),
        lambda: saver.put_writes(config(checkpoint_id="c"), "xy", "task"),  # type: ignore[arg-type]
        lambda: saver.put_writes(config(checkpoint_id="c"), [(1, 2)], "task"),  # type: ignore[list-item]
        lambda: saver.put_writes(config(checkpoint_id="c"), [("x", 1)], 7),  # type: ignore[arg-type]
        lambda: saver.list(where, filter=[1]),  # type: ignore[arg-type]
        lambda: saver.list(where, filter={1: 2}),  # type: ignore[dict-item]
        lambda: saver.list(where, limit="2"),  # type: ignore[arg-type]
        lambda: saver.prune("t"),
        lambda: saver.prune(["t"], strategy="everything"),
        lambda: saver.delete_for_runs("run"),
        lambda: saver.delete_thread(None),  # type: ignore[arg-type]
        lambda: HoldfastSaver(saver.hf, single_writer="yes"),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(HoldfastError):
            call()
    assert sorted(run.id for run in saver.hf.iter_runs()) == []
    saver.put_writes(config(checkpoint_id="c"), [], "task")
    assert sorted(run.id for run in saver.hf.iter_runs()) == []


_HOSTILE = [
    "../../etc/passwd",
    "..",
    ".",
    "a/../b",
    "/absolute",
    "C:\\windows",
    "a@1",
    "a~2",
    "a:tag",
    "a|b",
    "a%7Cb",
    "%%",
    " spaces ",
    "new\nline",
    "nul\0",
    "\udc80",
    "'; DROP TABLE run; --",
    "ünï¢ode 漢字",
    "x" * 500,
    "x" * 499 + "y",
    "head",
    "7",
]


def test_unusual_thread_ids_are_separate_threads(saver: HoldfastSaver) -> None:
    for thread in _HOSTILE:
        for namespace in ("", *_HOSTILE[:10], "n:" + "y" * 300):
            put(saver, config(thread, checkpoint_ns=namespace), {"who": [thread, namespace]})
    for thread in _HOSTILE:
        for namespace in ("", *_HOSTILE[:10], "n:" + "y" * 300):
            found: Any = saver.get_tuple(config(thread, checkpoint_ns=namespace))
            assert found.checkpoint["channel_values"]["who"] == [thread, namespace]
    every = list(saver.list(None))
    assert len(every) == len(_HOSTILE) * 12
    for item in every:
        named = item.config["configurable"]
        assert item.checkpoint["channel_values"]["who"] == [named["thread_id"], named["checkpoint_ns"]]
    saver.copy_thread("x" * 500, "z" * 500)
    assert {item.config["configurable"]["thread_id"] for item in saver.list(config("z" * 500))} == {"z" * 500}
    saver.delete_thread("a")
    assert len(list(saver.list(None))) == len(every) + 12
    saver.delete_thread("a|b")
    assert len(list(saver.list(None))) == len(every)
    assert saver.get_tuple(config("a%7Cb")) is not None


def test_ids_of_other_types_are_read_as_text(saver: HoldfastSaver) -> None:
    put(saver, config(7), {"x": 1})
    found: Any = saver.get_tuple(config("7"))
    assert found.checkpoint["channel_values"] == {"x": 1}
    put(saver, config(UUID(int=3)), {"x": 2})
    assert sorted(run.id for run in saver.hf.iter_runs()) == ["00000000-0000-0000-0000-000000000003", "7"]


def test_run_that_is_not_a_thread_is_refused_and_unchanged(saver: HoldfastSaver) -> None:
    saver.hf.history("mine").commit({"x": 1})
    for call in (
        lambda: put(saver, config("mine"), {"x": 2}),
        lambda: saver.put_writes(config("mine", checkpoint_id="c"), [("x", 1)], "task"),
        lambda: saver.get_tuple(config("mine")),
    ):
        with pytest.raises(InvalidCall, match="not a thread"):
            call()
    with pytest.raises(InvalidCall, match="not a thread"):
        saver.get_tuple(config("mine", checkpoint_id="c"))
    saver.delete_thread("mine")
    saver.prune(["mine"], strategy="delete")
    assert list(saver.list(config("mine"))) == []
    assert saver.hf.history("mine").head.state == {"x": 1}
