"""LangGraph's SqliteSaver on the same states, in the same run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from bench import workload
from bench.measure import Bench, Row, file_size, megabytes, note, raw_rate
from bench.writing import REPLACED, VERSIONS, Written, document_work, write_documents, write_messages


def peer(bench: Bench) -> Iterator[Row]:
    """`SqliteSaver.put` of each state, beside `edit`."""
    if importlib.util.find_spec("langgraph") is None:
        note("LangGraph is not installed and is left out: `make bench` installs it")
        return
    said = workload.messages(VERSIONS)
    yield from _beside(
        bench,
        f"{VERSIONS:,} messages, LangGraph",
        ours=lambda folder: write_messages(folder, said),
        states=lambda: _growing(said),
    )
    state, changes = document_work()
    yield from _beside(
        bench,
        f"{REPLACED} documents, LangGraph",
        ours=lambda folder: write_documents(folder, state, changes),
        states=lambda: _revised(state, changes),
    )


def _beside(
    bench: Bench,
    work: str,
    *,
    ours: Callable[[Path], Written],
    states: Callable[[], Iterable[dict[str, Any]]],
) -> Iterator[Row]:
    note(work)

    def once(folder: Path) -> tuple[float, ...]:
        raw = raw_rate(folder)
        mine = ours(folder)
        theirs = _put_all(folder, states())
        return raw, mine.rate, theirs.rate, mine.size, theirs.size

    raw, rate, their_rate, size, their_size = bench.repeat(once)
    yield Row(work, "its rate", their_rate / raw, "× raw", f"{their_rate:,.0f}/s, raw {raw:,.0f}/s")
    yield Row(work, "our rate ÷ its rate", rate / their_rate, "×", f"{rate:,.0f}/s to {their_rate:,.0f}/s")
    detail = f"{megabytes(their_size)} to {megabytes(size)}"
    yield Row(work, "its file ÷ our file", their_size / size, "×", detail)


def _put_all(folder: Path, states: Iterable[dict[str, Any]]) -> Written:
    """Put each state as a checkpoint. The first is not timed, as ours is not."""
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.sqlite import SqliteSaver

    spent = 0.0
    step = -1
    with SqliteSaver.from_conn_string(str(folder / "peer.db")) as saver:
        config: Any = {"configurable": {"thread_id": "run", "checkpoint_ns": ""}}
        for step, state in enumerate(states):
            checkpoint = empty_checkpoint()
            checkpoint["channel_values"] = state
            checkpoint["channel_versions"] = dict.fromkeys(state, step)
            start = perf_counter()
            config = saver.put(
                config, checkpoint, {"source": "loop", "step": step}, checkpoint["channel_versions"]
            )
            if step:
                spent += perf_counter() - start
    return Written(step / spent, file_size(folder / "peer.db"), 1.0)


def _growing(said: list[workload.Message]) -> Iterator[dict[str, Any]]:
    state: dict[str, Any] = {"messages": []}
    yield state
    for message in said:
        state["messages"].append(message)
        yield state


def _revised(
    state: dict[str, dict[str, workload.Document]], changes: list[tuple[str, workload.Document]]
) -> Iterator[dict[str, Any]]:
    current = {"documents": dict(state["documents"])}
    yield current
    for name, document in changes:
        current["documents"][name] = document
        yield current
