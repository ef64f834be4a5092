"""LangGraph's SqliteSaver on the same states, in the same run."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

from bench import workload
from bench.measure import Bench, Rates, Raw, Row, Turns, file_size, megabytes, note
from bench.writing import (
    REPLACED,
    VERSIONS,
    State,
    Written,
    document_work,
    edit_documents,
    edit_messages,
    in_turns,
)

T = TypeVar("T")


def peer(bench: Bench) -> Iterator[Row]:
    """`SqliteSaver.put` of each state, beside `edit`."""
    if importlib.util.find_spec("langgraph") is None:
        note("LangGraph is not installed and is left out: `make bench` installs it")
        return
    said = workload.messages(VERSIONS)
    yield from _beside(
        bench,
        f"{VERSIONS:,} messages, LangGraph",
        ours=lambda folder: edit_messages(folder, said),
        theirs=lambda folder: _put_all(folder, {"messages": []}, said, _say),
    )
    state, changes = document_work()
    yield from _beside(
        bench,
        f"{REPLACED} documents, LangGraph",
        ours=lambda folder: edit_documents(folder, state, changes),
        theirs=lambda folder: _put_all(folder, {"documents": dict(state["documents"])}, changes, _revise),
    )


def _beside(
    bench: Bench, work: str, *, ours: Callable[[Path], Written], theirs: Callable[[Path], Written]
) -> Iterator[Row]:
    note(work)

    def once(folder: Path) -> tuple[float, ...]:
        with bench.place() as own:
            mine = ours(own)
        its = theirs(folder)
        lead = mine.rates.ratio / its.rates.ratio
        return lead, mine.size, its.size, its.rates.ratio, *its.rates

    lead, our_size, its_size, ratio, *rates = bench.seldom().repeat(once)
    yield Row(work, "its rate", ratio, "× raw", str(Rates(*rates)))
    yield Row(work, "our rate ÷ its rate", lead, "×", "each relative to its own raw limit")
    sizes = f"{megabytes(its_size)} to {megabytes(our_size)}"
    yield Row(work, "its file ÷ our file", its_size / our_size, "×", sizes)


def _put_all(folder: Path, state: State, items: Sequence[T], change: Callable[[State, T], None]) -> Written:
    """Put the state, untimed, and then once more for each change, in turns with the raw limit."""
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.sqlite import SqliteSaver

    config: Any = {"configurable": {"thread_id": "run", "checkpoint_ns": ""}}
    step = 0

    def put() -> None:
        nonlocal config, step
        checkpoint = empty_checkpoint()
        checkpoint["channel_values"] = state
        checkpoint["channel_versions"] = dict.fromkeys(state, step)
        config = saver.put(
            config, checkpoint, {"source": "loop", "step": step}, checkpoint["channel_versions"]
        )
        step += 1

    def work(item: T) -> None:
        change(state, item)
        put()

    with closing(Raw(folder)) as raw, SqliteSaver.from_conn_string(str(folder / "peer.db")) as saver:
        put()
        turns = Turns(raw)
        for turn, commits in in_turns(items, work):
            turns.take(turn, commits)
    return Written(turns.result(), file_size(folder / "peer.db"))


def _say(state: State, message: workload.Message) -> None:
    state["messages"].append(message)


def _revise(state: State, change: tuple[str, workload.Document]) -> None:
    state["documents"][change[0]] = change[1]
