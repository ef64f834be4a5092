"""Small graphs and configs for the tests of the LangGraph saver."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any, TypedDict

from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base.id import uuid6
from langgraph.graph import END, START, StateGraph
from langgraph.types import interrupt


class Talk(TypedDict):
    messages: Annotated[list[Any], operator.add]
    turns: int


class Delta(TypedDict):
    items: Annotated[
        list[Any],
        DeltaChannel(lambda state, writes: [*state, *chain.from_iterable(writes)], snapshot_frequency=4),
    ]
    turns: int


def config(thread: Any = "t", **more: Any) -> Any:
    """A config that names a thread, optionally a namespace or a checkpoint."""
    return {"configurable": {"thread_id": thread, **more}}


def talk(saver: Any, turns: int = 3) -> Any:
    """A graph that appends a message for each turn."""
    graph = StateGraph(Talk)
    graph.add_node("say", lambda state: {"messages": [f"m{state['turns']}"], "turns": state["turns"] + 1})
    graph.add_edge(START, "say")
    graph.add_conditional_edges("say", lambda state: "say" if state["turns"] % turns else END)
    return graph.compile(checkpointer=saver)


def asking(saver: Any, ran: list[str]) -> Any:
    """Two parallel nodes, of which one interrupts; `ran` lists the executed nodes."""

    def sure(state: Talk) -> Any:
        ran.append("sure")
        return {"messages": ["sure"]}

    def unsure(state: Talk) -> Any:
        ran.append("unsure")
        return {"messages": [interrupt("really?")]}

    graph = StateGraph(Talk)
    graph.add_node("sure", sure)
    graph.add_node("unsure", unsure)
    graph.add_edge(START, "sure")
    graph.add_edge(START, "unsure")
    return graph.compile(checkpointer=saver)


def delta(saver: Any, name: str = "") -> Any:
    """A graph with a delta channel, two writers to it in each step, six steps."""

    def node(mark: str) -> Any:
        return lambda state: {"items": [f"{name}{mark}{len(state['items'])}"]}

    graph = StateGraph(Delta)
    graph.add_node("a", node("a"))
    graph.add_node("b", node("b"))
    graph.add_node("count", lambda state: {"turns": state["turns"] + 1})
    graph.add_edge(START, "a")
    graph.add_edge(START, "b")
    graph.add_edge(["a", "b"], "count")
    graph.add_conditional_edges("count", lambda state: ["a", "b"] if state["turns"] % 3 else END)
    return graph.compile(checkpointer=saver)


def checkpoint(values: dict[str, Any] | None = None, name: str | None = None) -> Any:
    """A checkpoint with these channel values."""
    found = values or {}
    return {
        "v": 4,
        "id": name or str(uuid6()),
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": found,
        "channel_versions": dict.fromkeys(found, 1),
        "versions_seen": {},
        "updated_channels": None,
    }


def put(saver: Any, parent: Any, values: dict[str, Any] | None = None, **metadata: Any) -> Any:
    """Put a checkpoint after the one that a config names."""
    where = {"configurable": {"checkpoint_ns": "", **parent["configurable"]}}
    about = {"source": "loop", "step": 1, "parents": {}, **metadata}
    return saver.put(where, checkpoint(values), about, {})


def ids(found: Sequence[Any]) -> list[str]:
    """The checkpoint ids of tuples."""
    return [item.config["configurable"]["checkpoint_id"] for item in found]
