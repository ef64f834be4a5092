"""Real graphs on the saver: the usual uses of a checkpointer."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, Send
from langgraph_graphs import Talk, asking, checkpoint, config, delta, talk

import holdfast
from holdfast.integrations.langgraph import HoldfastSaver
from holdfast.integrations.langgraph.layout import parse_config
from patience import until


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[HoldfastSaver]:
    with holdfast.open(tmp_path / "runs.db", durability="fast") as hf:
        yield HoldfastSaver(hf)
        assert hf.verify().ok


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_thread_continues_in_another_process(tmp_path: Path, durability: Any) -> None:
    for turn in range(1, 4):
        with HoldfastSaver(tmp_path / "runs.db") as saver:
            graph = talk(saver)
            before = graph.get_state(config()).values
            assert before.get("messages", []) == [f"m{n}" for n in range(3 * (turn - 1))]
            graph.invoke({"messages": [], "turns": 3 * (turn - 1)}, config(), durability=durability)
            assert graph.get_state(config()).values["messages"] == [f"m{n}" for n in range(3 * turn)]
            assert graph.get_state(config()).next == ()
            assert saver.hf.verify().ok


def test_graph_behaves_as_with_the_memory_saver(saver: HoldfastSaver) -> None:
    """A thread looks to LangGraph as with its own saver."""
    seen = []
    for each in (saver, InMemorySaver()):
        graph = talk(each)
        graph.invoke({"messages": ["hi"], "turns": 0}, config(), durability="sync")
        seen.append([(s.values, s.next, s.metadata, len(s.tasks)) for s in graph.get_state_history(config())])
    assert seen[0] == seen[1]
    assert len(seen[0]) == 5


def test_resume_after_interrupt_runs_finished_tasks_once(tmp_path: Path) -> None:
    ran: list[str] = []
    with HoldfastSaver(tmp_path / "runs.db") as saver:
        graph = asking(saver, ran)
        graph.invoke({"messages": [], "turns": 0}, config())
        (asked,) = graph.get_state(config()).interrupts
        assert asked.value == "really?"
    with HoldfastSaver(tmp_path / "runs.db") as saver:
        graph = asking(saver, ran)
        (still,) = graph.get_state(config()).interrupts
        assert still == asked
        found = graph.invoke(Command(resume="yes"), config())
        assert sorted(found["messages"]) == ["sure", "yes"]
    assert sorted(ran) == ["sure", "unsure", "unsure"]


def test_time_travel_starts_a_timeline(saver: HoldfastSaver) -> None:
    graph = talk(saver)
    graph.invoke({"messages": [], "turns": 0}, config(), durability="sync")
    past = list(graph.get_state_history(config()))
    old = past[2]
    assert old.values["messages"] == ["m0"]
    branch = graph.update_state(old.config, {"messages": ["edited"]})
    graph.invoke(None, branch, durability="sync")
    assert graph.get_state(config()).values["messages"] == ["m0", "edited", "m1", "m2"]
    assert graph.get_state(past[0].config).values["messages"] == ["m0", "m1", "m2"], "the old end stays"
    log = saver.hf.history("t")
    assert [line.number for line in log.timelines()] == [1, 2]
    every = list(graph.get_state_history(config()))
    assert len(every) == len(past) + 3
    replayed = graph.invoke(None, old.config, durability="sync")
    assert replayed["messages"] == ["m0", "m1", "m2"]


def test_update_state_as_node_is_a_checkpoint(saver: HoldfastSaver) -> None:
    graph = talk(saver)
    graph.update_state(config(), {"messages": ["by hand"], "turns": 1}, as_node="say")
    assert graph.get_state(config()).next == ("say",)
    assert graph.invoke(None, config())["messages"] == ["by hand", "m1", "m2"]


def test_subgraphs_have_their_own_runs(saver: HoldfastSaver) -> None:
    inner = asking(None, []).builder.compile(checkpointer=True)
    outer = StateGraph(Talk)
    outer.add_node("inner", inner)
    outer.add_edge(START, "inner")
    graph = outer.compile(checkpointer=saver)
    graph.invoke({"messages": [], "turns": 0}, config())
    assert sorted(run.id for run in saver.hf.iter_runs()) == ["t", "t|inner"]
    state: Any = graph.get_state(config(), subgraphs=True).tasks[0].state
    assert state.next == ("unsure",)
    assert sorted(graph.invoke(Command(resume="yes"), config())["messages"]) == ["sure", "yes"]
    saver.delete_thread("t")
    assert sorted(run.id for run in saver.hf.iter_runs()) == []


def test_send_fan_out_is_stored(saver: HoldfastSaver) -> None:
    graph = StateGraph(Talk)
    graph.add_node("work", lambda state: {"messages": [state["n"] * 10]})
    graph.add_conditional_edges(START, lambda _: [Send("work", {"n": n}) for n in range(3)], ["work"])
    built = graph.compile(checkpointer=saver, interrupt_before=["work"])
    built.invoke({"messages": [], "turns": 0}, config())
    assert built.get_state(config()).next == ("work",) * 3
    assert sorted(built.invoke(None, config())["messages"]) == [0, 10, 20]


def test_retry_runs_only_the_failed_node(saver: HoldfastSaver) -> None:
    ran: list[str] = []

    class Own(Exception):
        def __init__(self) -> None:
            super().__init__("of a class that is not registered", threading.Lock())

    def fails(state: Talk) -> Any:
        ran.append("fails")
        if ran.count("fails") == 1:
            # LangGraph drops what a neighbour writes after the failure.
            until(lambda: (found := saver.get_tuple(config())) and found.pending_writes)
            raise Own
        return {"messages": ["at last"]}

    def works(state: Talk) -> Any:
        ran.append("works")
        return {"messages": ["fine"]}

    graph = StateGraph(Talk)
    graph.add_node("fails", fails)
    graph.add_node("works", works)
    graph.add_edge(START, "fails")
    graph.add_edge(START, "works")
    built = graph.compile(checkpointer=saver)
    with pytest.raises(Own):
        built.invoke({"messages": [], "turns": 0}, config(), durability="sync")
    failed = next(task for task in built.get_state(config()).tasks if task.name == "fails")
    assert "Own" in str(failed.error)
    assert sorted(built.invoke(None, config())["messages"]) == ["at last", "fine"]
    assert ran.count("works") == 1


def test_messages_are_read_back_unchanged(saver: HoldfastSaver) -> None:
    reply = AIMessage(
        content=[{"type": "text", "text": "calling"}],
        tool_calls=[{"name": "search", "args": {"q": [1, None]}, "id": "c1"}],
        usage_metadata={"input_tokens": 1, "output_tokens": 2, "total_tokens": 3},
    )
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [reply, ToolMessage("found", tool_call_id="c1")]})
    graph.add_edge(START, "model")
    built = graph.compile(checkpointer=saver)
    final = built.invoke({"messages": [HumanMessage("hi")]}, config())["messages"]
    kept = built.get_state(config()).values["messages"]
    assert kept == final
    assert [type(message) for message in kept] == [HumanMessage, AIMessage, ToolMessage]
    assert kept[1].tool_calls == reply.tool_calls
    assert kept[0].model_fields_set == final[0].model_fields_set


def test_message_changed_in_place_is_stored_changed(saver: HoldfastSaver) -> None:
    def edit(state: MessagesState) -> Any:
        state["messages"][0].content = "changed"
        state["messages"][0].additional_kwargs["seen"] = True
        return {"messages": []}

    graph = StateGraph(MessagesState)
    graph.add_node("one", lambda state: {"messages": [AIMessage("two")]})
    graph.add_node("edit", edit)
    graph.add_edge(START, "one")
    graph.add_edge("one", "edit")
    built = graph.compile(checkpointer=saver)
    built.invoke({"messages": [HumanMessage("original")]}, config(), durability="sync")
    first = built.get_state(config()).values["messages"][0]
    assert (first.content, first.additional_kwargs) == ("changed", {"seen": True})
    past = [state.values["messages"] for state in built.get_state_history(config())]
    past = [messages[0].content for messages in past if messages]
    assert past[0] == "changed"
    assert past[1] == "original"


def test_saver_works_with_asyncio(saver: HoldfastSaver) -> None:
    async def run() -> None:
        graph = talk(saver)
        await asyncio.gather(
            *(graph.ainvoke({"messages": [f"t{n}"], "turns": 0}, config(f"t{n}")) for n in range(8))
        )
        for n in range(8):
            state = await graph.aget_state(config(f"t{n}"))
            assert state.values["messages"] == [f"t{n}", "m0", "m1", "m2"]
            history = [s async for s in graph.aget_state_history(config(f"t{n}"))]
            assert len(history) == 5
        ran: list[str] = []
        asked = asking(saver, ran)
        await asked.ainvoke({"messages": [], "turns": 0}, config("asked"))
        found = await asked.ainvoke(Command(resume="yes"), config("asked"))
        assert sorted(found["messages"]) == ["sure", "yes"]
        await saver.adelete_thread("asked")
        assert await saver.aget_tuple(config("asked")) is None

    asyncio.run(run())


def test_saver_does_not_block_the_event_loop(saver: HoldfastSaver) -> None:
    """Other tasks run while a call waits for a lock."""

    async def run() -> None:
        with saver.thread(parse_config(config()))._lock:
            call = asyncio.create_task(
                saver.aput(config(checkpoint_ns=""), checkpoint({"x": 1}), {"source": "loop", "step": 0}, {})
            )
            for _ in range(100):
                await asyncio.sleep(0)
            assert not call.done()
        await call
        assert (await saver.aget_tuple(config())) is not None

    asyncio.run(run())


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_delta_channels_behave_as_with_the_memory_saver(saver: HoldfastSaver, durability: Any) -> None:
    seen = []
    for each in (saver, InMemorySaver()):
        graph = delta(each)
        for turn in range(3):
            graph.invoke({"items": [f"in{turn}"], "turns": 3 * turn}, config(), durability=durability)
        seen.append([s.values for s in graph.get_state_history(config())])
    assert seen[0] == seen[1]
    assert len(seen[0][0]["items"]) == 3 + 18


def test_delta_channels_survive_prune_and_copy(saver: HoldfastSaver) -> None:
    graph = delta(saver)
    whole = graph.invoke({"items": ["in"], "turns": 0}, config(), durability="sync")
    saver.copy_thread("t", "copy")
    past = [s.values for s in graph.get_state_history(config())]
    assert [s.values for s in graph.get_state_history(config("copy"))] == past
    saver.prune(["t"])
    assert len(list(saver.list(config()))) == 1
    assert graph.get_state(config()).values == whole
    saver.delete_thread("t")
    saver.prune(["copy"])
    went_on = graph.invoke({"items": ["more"], "turns": 3}, config("copy"), durability="sync")
    assert went_on["items"][: len(whole["items"]) + 1] == [*whole["items"], "more"]
    assert graph.get_state(config("copy")).values == went_on


def test_delta_channels_on_two_branches_are_not_mixed(saver: HoldfastSaver) -> None:
    graph = delta(saver)
    graph.invoke({"items": ["in"], "turns": 0}, config(), durability="sync")
    old = list(graph.get_state_history(config()))[4]
    end = graph.get_state(config())
    other = delta(saver, "other-")
    fork = other.update_state(old.config, {"items": ["edited"]})
    other.invoke(None, fork, durability="sync")
    mine = other.get_state(config()).values["items"]
    assert mine[: len(old.values["items"]) + 1] == [*old.values["items"], "edited"]
    assert [item for item in mine if mine.count(item) > 1] == []
    assert graph.get_state(end.config).values == end.values
