"""Calls that overlap: reads after a cancelled run, graphs that wait for graphs, forks, and values changed in place."""

from __future__ import annotations

import asyncio
import itertools
import operator
import os
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, StateGraph
from langgraph_graphs import checkpoint, config, put, talk

import holdfast
from holdfast import History, Holdfast
from holdfast.integrations.langgraph import HoldfastSaver, layout
from patience import until


class Log(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    turn: int


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(tmp_path / "runs.db") as hf:
        yield hf


def _steps(saver: Any, count: int = 3) -> Any:
    """A graph of some asynchronous nodes, one after the other."""
    graph = StateGraph(Log)
    for number in range(count):

        async def append(state: Log, number: int = number) -> Any:
            return {"log": [number]}

        graph.add_node(f"n{number}", append)
        graph.add_edge(f"n{number - 1}" if number else START, f"n{number}")
    return graph.compile(checkpointer=saver)


class SlowSaver(HoldfastSaver):
    """A saver whose puts wait."""

    def __init__(self, store: Holdfast) -> None:
        super().__init__(store)
        self.has_started, self.may_continue = threading.Event(), threading.Event()

    def put(self, *args: Any) -> Any:
        self.has_started.set()
        assert self.may_continue.wait(60)
        return super().put(*args)


@pytest.mark.parametrize("read", ["aget_tuple", "alist", "aget_delta_channel_history"])
def test_asynchronous_read_sees_the_puts_that_were_called_before_it(hf: Holdfast, read: str) -> None:
    saver = SlowSaver(hf)
    first = put(HoldfastSaver(hf), config(checkpoint_ns=""), {"x": 1})

    async def call() -> Any:
        if read == "alist":
            return await anext(found.checkpoint["channel_values"] async for found in saver.alist(config()))
        if read == "aget_tuple":
            found = await saver.aget_tuple(config())
            return found.checkpoint["channel_values"]
        history = await saver.aget_delta_channel_history(config=config(), channels=["x"])
        # The value before the latest checkpoint.
        return {"x": history["x"]["seed"] + 1}

    async def main() -> None:
        new = checkpoint({"x": 2})
        putting = asyncio.create_task(saver.aput(first, new, {"source": "loop"}, {"x": 2}))
        await asyncio.to_thread(saver.has_started.wait, 60)
        putting.cancel()
        reading = asyncio.create_task(call())
        await asyncio.wait([reading], timeout=0.1)
        assert not reading.done()
        saver.may_continue.set()
        assert await reading == {"x": 2}

    asyncio.run(main())


def test_read_in_another_loop_does_not_wait_for_one_that_was_abandoned(hf: Holdfast) -> None:
    saver = SlowSaver(hf)
    saver.may_continue.set()
    loop = asyncio.new_event_loop()
    started = loop.create_task(saver.aput(config(checkpoint_ns=""), checkpoint({"x": 1}), {}, {"x": 1}))
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert not started.done()
    until(lambda: saver.get_tuple(config()) is not None)
    found = asyncio.run(asyncio.wait_for(saver.aget_tuple(config()), 60))
    assert found is not None
    loop.run_until_complete(started)
    loop.close()


@pytest.mark.parametrize("single_writer", [False, True])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_run_that_was_cancelled_at_any_moment_is_resumed(
    hf: Holdfast, durability: Any, single_writer: bool
) -> None:
    saver = HoldfastSaver(hf, single_writer=single_writer)
    graph = _steps(saver)

    async def main() -> None:
        for number in range(40):
            thread = config(f"t{number}")
            try:
                run = graph.ainvoke({"log": ["in"]}, thread, durability=durability)
                await asyncio.wait_for(run, number * 0.0003)
            except TimeoutError:
                pass
            state = await graph.aget_state(thread)
            given = None if state.values or state.next else {"log": ["in"]}
            found = await graph.ainvoke(given, thread, durability=durability)
            assert found["log"] == ["in", 0, 1, 2], number

    asyncio.run(main())


def test_nodes_may_wait_in_all_threads_of_the_loop_for_other_graphs(hf: Holdfast) -> None:
    inner = _steps(HoldfastSaver(hf))

    async def main() -> list[Any]:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(2))

        def wait_for_inner(state: Log) -> Any:
            thread = config(f"inner {state['turn']}")
            found = asyncio.run_coroutine_threadsafe(inner.ainvoke({"log": ["in"]}, thread), loop).result(60)
            return {"log": found["log"]}

        graph = StateGraph(Log)
        graph.add_node("wait", wait_for_inner)
        graph.add_edge(START, "wait")
        outer = graph.compile(checkpointer=HoldfastSaver(hf))
        calls = [outer.ainvoke({"turn": turn}, config(f"outer {turn}")) for turn in range(4)]
        return [found["log"] for found in await asyncio.gather(*calls)]

    assert asyncio.run(main()) == [["in", 0, 1, 2]] * 4


def test_signal_handler_reads_the_thread_whose_put_it_interrupts(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = HoldfastSaver(hf)
    first = put(saver, config(checkpoint_ns=""), {"x": 1})
    commit = History.commit
    read: list[Any] = []

    def interrupted(history: History, *args: Any, **options: Any) -> Any:
        found = saver.get_tuple(config())
        read.append(found.checkpoint["channel_values"] if found else None)
        return commit(history, *args, **options)

    monkeypatch.setattr(History, "commit", interrupted)
    put(saver, first, {"x": 2})
    assert read == [{"x": 1}]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_child_of_a_fork_puts_while_a_put_of_its_parent_is_under_way(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf)
    where = config(checkpoint_ns="")
    put(saver, where, {"x": 1})
    thread = saver.thread(layout.parse_config(where))
    with thread._lock:
        child = os.fork()
        if child == 0:
            try:
                put(saver, where, {"x": 2})
                os._exit(0)
            finally:
                os._exit(1)
    ended: list[int] = []

    def has_ended() -> bool:
        pid, status = os.waitpid(child, os.WNOHANG)
        ended.extend([status] if pid else [])
        return bool(ended)

    try:
        until(has_ended)
    finally:
        if not ended:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    assert ended == [0]


def test_value_changed_in_place_is_stored_as_by_the_memory_saver(hf: Holdfast) -> None:
    """A channel is stored when its version changes, whether this process has the thread in its cache or not."""

    def change_in_place(state: Log) -> Any:
        state["log"].append("in place")
        return {"turn": state["turn"] + 1}

    graph = StateGraph(Log)
    for number in range(3):
        graph.add_node(f"n{number}", change_in_place)
        graph.add_edge(f"n{number - 1}" if number else START, f"n{number}")

    def history(saver: Any) -> list[Any]:
        compiled = graph.compile(checkpointer=saver, interrupt_after=["n1"])
        # In the default mode, a node may change a value before it is stored.
        compiled.invoke({"log": ["in"], "turn": 0}, config(), durability="sync")
        if isinstance(saver, HoldfastSaver):
            saver = HoldfastSaver(saver.hf)
            compiled = graph.compile(checkpointer=saver)
        compiled.invoke(None, config(), durability="sync")
        return [
            (found.values.get("log"), found.values.get("turn"))
            for found in compiled.get_state_history(config())
        ]

    assert history(HoldfastSaver(hf)) == history(InMemorySaver())


def test_pattern_for_redaction_reaches_unchanged_channels_of_a_thread_that_was_read(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db", redact=()) as hf:
        graph = talk(HoldfastSaver(hf))
        graph.invoke({"messages": [{"token": "secret"}], "turns": 0}, config())
    with holdfast.open(tmp_path / "runs.db", redact=["token"]) as hf:
        saver = HoldfastSaver(hf)
        found = saver.get_tuple(config())
        assert found is not None
        new: Any = {**found.checkpoint, "id": "2" + found.checkpoint["id"]}
        new["channel_versions"] = {**new["channel_versions"], "turns": 99}
        saver.put(found.config, new, {"source": "loop"}, {"turns": 99})
        stored = saver.get_tuple(config())
        assert stored is not None
        assert stored.checkpoint["channel_values"]["messages"][0] != {"token": "secret"}


def test_reads_of_a_busy_thread_end(hf: Holdfast) -> None:
    """A read waits for the puts that were called before it, not for all that follow."""
    saver = HoldfastSaver(hf)
    where = put(saver, config(checkpoint_ns=""), {"x": 1})

    async def main() -> None:
        async def write_on() -> None:
            for number in itertools.count():
                await saver.aput_writes(where, [("x", number)], f"task {number}")

        writing = asyncio.create_task(write_on())
        try:
            for _ in range(5):
                found = await asyncio.wait_for(saver.aget_tuple(config()), 60)
                assert found is not None
                assert len([each async for each in saver.alist(None)]) == 1
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.parametrize("method", ["adelete_thread", "acopy_thread", "aprune"])
def test_changes_of_a_thread_wait_for_its_puts(hf: Holdfast, method: str) -> None:
    saver = SlowSaver(hf)
    first = put(HoldfastSaver(hf), config(checkpoint_ns=""), {"x": 1})
    arguments: dict[str, tuple[Any, ...]] = {
        "adelete_thread": ("t",),
        "acopy_thread": ("t", "copy"),
        "aprune": (["t"],),
    }

    async def main() -> None:
        putting = asyncio.create_task(saver.aput(first, checkpoint({"x": 2}), {}, {"x": 2}))
        await asyncio.to_thread(saver.has_started.wait, 60)
        changing = asyncio.create_task(getattr(saver, method)(*arguments[method]))
        await asyncio.wait([changing], timeout=0.1)
        assert not changing.done()
        saver.may_continue.set()
        await asyncio.gather(putting, changing)

    asyncio.run(main())
    found = saver.get_tuple(config("copy" if method == "acopy_thread" else "t"))
    if method == "adelete_thread":
        assert found is None
    else:
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": 2}


def test_new_serializer_seals_the_unchanged_channels_of_a_thread_that_was_read(hf: Holdfast) -> None:
    def turn(saver: HoldfastSaver, number: int) -> None:
        found = saver.get_tuple(config())
        assert found is not None
        new: Any = {**found.checkpoint, "id": f"{number}{found.checkpoint['id']}"}
        new["channel_versions"] = {**new["channel_versions"], "turns": 90 + number}
        saver.put(found.config, new, {"source": "loop"}, {"turns": 90 + number})

    talk(HoldfastSaver(hf)).invoke({"messages": ["secret"], "turns": 0}, config())
    assert not isinstance(hf.history("t").head.get("channel_values.messages"), layout.SealedValue)
    serde = JsonPlusSerializer()
    for number in (2, 3):
        turn(HoldfastSaver(hf, serde=serde), number)
        assert isinstance(hf.history("t").head.get("channel_values.messages"), layout.SealedValue)
    found = HoldfastSaver(hf, serde=serde).get_tuple(config())
    assert found is not None
    assert found.checkpoint["channel_values"]["messages"][0] == "secret"


def test_time_travel_stores_unchanged_channels_as_they_were(hf: Holdfast) -> None:
    """LangGraph names no changed channels when it continues from an old checkpoint."""
    found = []
    savers: list[Any] = [InMemorySaver(), HoldfastSaver(hf)]
    for saver in savers:
        first = saver.put(
            config(checkpoint_ns=""),
            {**checkpoint({"x": [1]}), "channel_versions": {"x": 1}},
            {"source": "loop"},
            {"x": 1},
        )
        changed_in_place = {**checkpoint({"x": [1, 99]}), "channel_versions": {"x": 1}}
        made = saver.put(first, changed_in_place, {"source": "fork"}, {})
        stored = saver.get_tuple(made)
        assert stored is not None
        found.append(stored.checkpoint["channel_values"])
    assert found == [{"x": [1]}, {"x": [1]}]
