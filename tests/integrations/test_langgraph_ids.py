"""Valid and invalid configs, ids and calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
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
        {"configurable": {"thread_id": b"t"}},
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
        lambda: saver.delete_thread(None),
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


def test_thread_ids_that_langgraph_turns_into_text_name_the_thread(saver: HoldfastSaver) -> None:
    names: list[Any] = [1.5, 7, True, UUID(int=3)]
    for name in names:
        put(saver, config(str(name)), {"x": 1})
        assert len([*saver.list(config(name))]) == 1
        saver.copy_thread(name, f"copy of {name}")
        saver.prune([name])
        saver.delete_thread(name)
        assert saver.get_tuple(config(name)) is None
        saver.delete_thread(f"copy of {name}")
    assert [*saver.list(None)] == []


def _note_thread(threads: list[int], close: Callable[[], None]) -> None:
    threads.append(threading.get_ident())
    close()


def test_saver_is_opened_as_those_of_langgraph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "runs.db")
    with HoldfastSaver.from_conn_string(path) as saver:
        saver.setup()
        first = put(saver, config(), {"x": 1})

    async def main() -> None:
        async with HoldfastSaver.from_conn_string(path, single_writer=True) as saver:
            await saver.setup()
            assert await saver.aget_tuple(first) is not None
            monkeypatch.setattr(saver.hf, "close", partial(_note_thread, closed_in, saver.hf.close))

    closed_in: list[int] = []
    asyncio.run(main())
    assert closed_in
    assert threading.get_ident() not in closed_in, "closed outside of the event loop"


def test_file_of_another_saver_is_refused_with_the_command_that_imports_it(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    with SqliteSaver.from_conn_string(str(path)) as official:
        put(official, config(checkpoint_ns=""), {"x": 1})
    with pytest.raises(holdfast.IncompatibleFormat, match=r"`holdfast import-langgraph .*sqlite`"):
        HoldfastSaver(path)


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
