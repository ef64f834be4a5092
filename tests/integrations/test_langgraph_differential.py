"""The same calls to HoldfastSaver and to LangGraph's SqliteSaver: every read has the same result."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any, NamedTuple

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph_graphs import checkpoint, config

import holdfast
from holdfast.integrations.langgraph import HoldfastSaver

THREADS = ("a", "b|c")
NAMESPACES = ("", "sub:1")
CHANNELS = ("x", "y", "__error__", "__interrupt__", "__resume__")
IDS = [f"{number:02}" for number in range(8)]

places = st.tuples(st.sampled_from(THREADS), st.sampled_from(NAMESPACES))
numbers = st.integers(0, len(IDS) - 1)
values = st.sampled_from([0, 1, "text", None, [1, 2], {"key": (1, 2)}])


class Put(NamedTuple):
    """A checkpoint; its parent, if any, has a lower id, and may not exist."""

    place: tuple[str, str]
    number: int
    parent: int | None
    values: dict[str, Any]
    metadata: dict[str, Any]


class Writes(NamedTuple):
    """Writes of a task to a checkpoint that may not exist."""

    place: tuple[str, str]
    number: int
    task: str
    path: str
    writes: list[tuple[str, Any]]


class Delete(NamedTuple):
    """Deletion of a thread."""

    thread: str


class Reopen(NamedTuple):
    """Another saver, as in another process."""


puts = st.builds(
    lambda place, number, parent, values, metadata: Put(
        place, number, parent if parent is not None and parent < number else None, values, metadata
    ),
    places,
    numbers,
    st.none() | numbers,
    st.dictionaries(st.sampled_from(CHANNELS[:2]), values),
    st.fixed_dictionaries(
        {"source": st.sampled_from(["input", "loop"]), "step": st.integers(0, 3)},
        optional={"user": st.sampled_from(["ana", None, {"id": 1}])},
    ),
)
writes = st.builds(
    Writes,
    places,
    numbers,
    st.sampled_from(["t1", "t2", "t|3"]),
    st.sampled_from(["", "~1"]),
    st.lists(st.tuples(st.sampled_from(CHANNELS), values), max_size=3),
)
changes = st.lists(
    puts | puts | writes | st.builds(Delete, st.sampled_from(THREADS)) | st.builds(Reopen), max_size=25
)


def where(place: tuple[str, str], number: int | None) -> Any:
    more = {} if number is None else {"checkpoint_id": IDS[number]}
    return config(place[0], checkpoint_ns=place[1], **more)


def apply(saver: Any, change: Any, count: int) -> None:
    if isinstance(change, Put):
        made = checkpoint(change.values, IDS[change.number])
        made["channel_versions"] = dict.fromkeys(change.values, count)
        saver.put(where(change.place, change.parent), made, change.metadata, made["channel_versions"])
    elif isinstance(change, Writes):
        saver.put_writes(where(change.place, change.number), change.writes, change.task, change.path)
    elif isinstance(change, Delete):
        saver.delete_thread(change.thread)


def reads(saver: Any, places: Iterable[tuple[str, str]]) -> Iterator[Any]:
    """The results of all kinds of reads."""
    for place in places:
        yield plain(saver.get_tuple(where(place, None)))
        yield [plain(saver.get_tuple(where(place, number))) for number in range(len(IDS))]
        yield [plain(item) for item in saver.list(where(place, None))]
        yield [plain(item) for item in saver.list(where(place, None), before=where(place, 6), limit=2)]
        yield [plain(item) for item in saver.list(where(place, 3))]
        for wanted in ({"source": "loop"}, {"step": 1, "source": "input"}):
            found = [plain(item) for item in saver.list(config(place[0]), filter=wanted)]
            yield sorted(found, key=lambda item: str(item[0]))


def plain(found: Any) -> Any:
    """A tuple without the differences in types that are documented."""
    if found is None:
        return None
    checkpoint = {**found.checkpoint, "channel_values": lists(found.checkpoint["channel_values"])}
    return (found.config, checkpoint, found.metadata, found.parent_config, lists(found.pending_writes))


def lists(value: Any) -> Any:
    """A value whose tuples are lists."""
    if isinstance(value, dict):
        return {key: lists(item) for key, item in value.items()}
    return [lists(item) for item in value] if isinstance(value, list | tuple) else value


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes)
def test_reads_are_those_of_the_sqlite_saver(made: list[Any]) -> None:
    with SqliteSaver.from_conn_string(":memory:") as official, holdfast.open(":memory:") as hf:
        saver = HoldfastSaver(hf)
        for count, change in enumerate(made):
            if isinstance(change, Reopen):
                saver = HoldfastSaver(hf)
                continue
            apply(official, change, count)
            apply(saver, change, count)
            if not isinstance(change, Delete):
                latest = where(change.place, None)
                assert plain(saver.get_tuple(latest)) == plain(official.get_tuple(latest))
        everywhere = list(product(THREADS, NAMESPACES))
        for each in (saver, HoldfastSaver(hf)):
            assert list(reads(each, everywhere)) == list(reads(official, everywhere))
        assert hf.verify().ok
