"""Threads of LangGraph: real graphs on our saver and on its SqliteSaver, in the same run."""

from __future__ import annotations

import importlib.util
import operator
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypedDict

from bench import workload
from bench.measure import Bench, Row, file_size, median_seconds, megabytes, note, seconds

_STEPS = 1_000
_DOCUMENTS = 1_000
_CHANGES = 200
_READS = 20

Open = Callable[[Path], Any]


def threads(bench: Bench) -> Iterator[Row]:
    """1,000 super-steps of a LangGraph thread, and 200 of one with 1 MB of state, beside SqliteSaver."""
    if any(
        importlib.util.find_spec(name) is None for name in ("langgraph.graph", "langgraph.checkpoint.sqlite")
    ):
        note("LangGraph: not installed, left out")
        return
    yield from _messages(bench)
    yield from _documents(bench)


def _messages(bench: Bench) -> Iterator[Row]:
    work = f"{_STEPS:,} super-steps, LangGraph"
    note(work)
    said = workload.messages(_STEPS)

    def once(folder: Path) -> tuple[float, ...]:
        (ours, size, *our_reads), (theirs, their_size, *their_reads) = (
            _talk(opened, folder / name, said)
            for opened, name in ((_ours, "ours.db"), (_theirs, "theirs.db"))
        )
        return _speak(_latest_only(), said), ours, size, *our_reads, theirs, their_size, *their_reads

    floor, *found = bench.seldom().repeat(once)
    (ours, size, *our_reads), (theirs, their_size, *their_reads) = found[:5], found[5:]
    yield Row(work, "file", size / 1e6, "MB", f"SqliteSaver {megabytes(their_size)}", at_most=2)
    rates = f"{_STEPS / ours:,.0f}/s, SqliteSaver {_STEPS / theirs:,.0f}/s"
    yield Row(work, "steps/s ÷ SqliteSaver's", theirs / ours, "×", rates, at_least=2)
    most = f"{_STEPS / floor:,.0f}/s: what LangGraph itself takes"
    yield Row(work, "a saver that only keeps the latest in memory ÷ SqliteSaver's", theirs / floor, "×", most)
    names = ("latest state", "old states", "old states, first of a process")
    for name, mine, its in zip(names, our_reads, their_reads, strict=True):
        detail = f"{mine * 1e3:.2f} ms, SqliteSaver {its * 1e3:.2f} ms"
        yield Row(work, f"read: {name} ÷ SqliteSaver's", mine / its, "×", detail, at_most=2)


def _documents(bench: Bench) -> Iterator[Row]:
    work = f"1 MB of state, {_CHANGES} super-steps of 1 KB, LangGraph"
    note(work)
    source = random.Random(4)
    state = workload.documents(_DOCUMENTS)
    changes = [(name, workload.document(source)) for name in source.sample(list(state), _CHANGES)]

    def once(folder: Path) -> tuple[float, ...]:
        return *_revise(_ours, folder / "ours.db", state, changes), *_revise(
            _theirs, folder / "theirs.db", state, changes
        )

    ours, size, theirs, their_size = bench.seldom().repeat(once)
    yield Row(work, "file", size / 1e6, "MB", f"SqliteSaver {megabytes(their_size)}", at_most=5)
    rates = f"{_CHANGES / ours:,.0f}/s, SqliteSaver {_CHANGES / theirs:,.0f}/s"
    yield Row(work, "steps/s ÷ SqliteSaver's", theirs / ours, "×", rates)


def _talk(opened: Open, file: Path, said: list[workload.Message]) -> tuple[float, ...]:
    """Seconds for all steps, bytes of the file, seconds to read the latest and an old state."""
    thread: Any = {"configurable": {"thread_id": "run"}}
    with opened(file) as saver:
        spent = _speak(saver, said)
        known = [item.config for item in saver.list(thread)]
    size = file_size(file)
    with opened(file) as saver:
        latest = median_seconds(lambda: saver.get_tuple(thread), _READS)
        source = random.Random(5)
        old = median_seconds(lambda: saver.get_tuple(source.choice(known)), _READS)
    cold = []
    for _ in range(5):
        with opened(file) as saver:
            cold.append(seconds(partial(saver.get_tuple, known[len(known) // 2])))
    return spent, size, latest, old, sorted(cold)[2]


def _speak(saver: Any, said: list[workload.Message]) -> float:
    """Seconds for all steps of a thread that says a message in each."""

    class Talk(TypedDict):
        messages: Annotated[list[Any], operator.add]
        turn: int

    def say(state: Talk) -> dict[str, Any]:
        return {"messages": [said[state["turn"]]], "turn": state["turn"] + 1}

    return _run(saver, Talk, say, len(said), {"messages": [], "turn": 0})


def _revise(opened: Open, file: Path, state: Any, changes: list[Any]) -> tuple[float, float]:
    """Seconds for all steps, and bytes of the file."""

    class Shelf(TypedDict):
        documents: Annotated[dict[str, Any], lambda old, new: {**old, **new}]
        turn: int

    def revise(shelf: Shelf) -> dict[str, Any]:
        name, document = changes[shelf["turn"]]
        return {"documents": {name: document}, "turn": shelf["turn"] + 1}

    with opened(file) as saver:
        spent = _run(saver, Shelf, revise, len(changes), {"documents": dict(state), "turn": 0})
    return spent, file_size(file)


def _run(saver: Any, schema: Any, node: Any, turns: int, given: Any) -> float:
    from langgraph.graph import END, START, StateGraph

    builder = StateGraph(schema)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_conditional_edges("node", lambda state: "node" if state["turn"] < turns else END)
    graph = builder.compile(checkpointer=saver)
    config: Any = {"configurable": {"thread_id": "run"}, "recursion_limit": turns + 10}
    return seconds(lambda: graph.invoke(given, config, durability="sync"))


def _latest_only() -> Any:
    """The least that a graph can run on."""
    from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

    class Latest(BaseCheckpointSaver[Any]):
        latest: CheckpointTuple | None = None

        def get_tuple(self, config: Any) -> CheckpointTuple | None:
            return self.latest

        def put(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            made: Any = {"configurable": {**config["configurable"], "checkpoint_id": checkpoint["id"]}}
            self.latest = CheckpointTuple(made, checkpoint, metadata, config)
            return made

        def put_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
            pass

    return Latest()


def _ours(file: Path) -> Any:
    from holdfast.integrations.langgraph import HoldfastSaver

    return HoldfastSaver(file)


def _theirs(file: Path) -> Any:
    from langgraph.checkpoint.sqlite import SqliteSaver

    return SqliteSaver.from_conn_string(str(file))
