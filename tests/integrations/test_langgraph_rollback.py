"""Rollback and fork of threads: subgraphs are rolled back with their thread, open questions are forked."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterator
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import EmptyInputError
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from langgraph_graphs import asking, checkpoint, config

import holdfast
from holdfast import History, Holdfast, StaleVersion, Timeline
from holdfast.integrations.langgraph import HoldfastSaver


class Trip(TypedDict):
    log: Annotated[list[str], operator.add]


@pytest.fixture(params=["sqlite", "memory"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    where = tmp_path / "runs.db" if request.param == "sqlite" else ":memory:"
    with holdfast.open(where, durability="fast") as opened:
        yield opened
        assert opened.verify().ok


def trip(saver: Any, ran: list[str], *, inner: Any = None, question: str | None = None) -> Any:
    """A graph of three nodes, the second a subgraph of two, which may have a memory of its own or ask."""

    def node(name: str) -> Any:
        def call(state: Trip) -> Any:
            ran.append(name)
            if name == question:
                return {"log": [f"{name}={interrupt(name)}"]}
            return {"log": [f"{name}{len(ran)}"]}

        return call

    sub = StateGraph(Trip)
    sub.add_node("one", node("one"))
    sub.add_node("two", node("two"))
    sub.add_edge(START, "one")
    sub.add_edge("one", "two")
    graph = StateGraph(Trip)
    graph.add_node("before", node("before"))
    graph.add_node("sub", sub.compile(checkpointer=inner))
    graph.add_node("after", node("after"))
    graph.add_edge(START, "before")
    graph.add_edge("before", "sub")
    graph.add_edge("sub", "after")
    graph.add_edge("after", END)
    return graph.compile(checkpointer=saver)


def version_before(hf: Holdfast, node: str, saver: Any, graph: Any) -> int:
    """The number of the newest version of the thread whose next node this is."""
    for state in graph.get_state_history(config()):
        if state.next == (node,):
            found = hf.history("t").find(state.config["configurable"]["checkpoint_id"])
            assert found is not None
            return found.number
    raise AssertionError(node)


@pytest.mark.parametrize("single_writer", [False, True])
@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_subgraph_runs_again_after_a_rollback(hf: Holdfast, single_writer: bool, durability: Any) -> None:
    ran: list[str] = []
    saver = HoldfastSaver(hf, single_writer=single_writer)
    graph = trip(saver, ran)
    graph.invoke({"log": []}, config(), durability="sync")
    hf.rollback("t", to=version_before(hf, "sub", saver, graph))
    assert graph.get_state(config(), subgraphs=True).tasks[0].state.values == {}
    for again in (saver, HoldfastSaver(hf, single_writer=single_writer)):
        ran.clear()
        graph = trip(again, ran)
        found = graph.invoke(None, config(), durability=durability)
        assert ran == ["one", "two", "after"]
        assert found["log"][-3:] == ["one1", "two2", "after3"]
        number = version_before(hf, "sub", again, graph) if durability != "exit" else 3
        hf.rollback("t", to=number)


def test_interrupted_subgraph_starts_again_after_a_rollback(hf: Holdfast) -> None:
    ran: list[str] = []
    saver = HoldfastSaver(hf)
    graph = trip(saver, ran, question="two")
    graph.invoke({"log": []}, config())
    hf.rollback("t", to="head")
    assert graph.get_state(config()).tasks[0].interrupts == ()
    ran.clear()
    graph.invoke(None, config())
    assert ran == ["one", "two"]
    assert [each.value for each in graph.get_state(config()).tasks[0].interrupts] == ["two"]
    inner = graph.get_state(config(), subgraphs=True).tasks[0].state
    assert inner.next == ("two",)
    found = trip(HoldfastSaver(hf), ran, question="two").invoke(Command(resume="yes"), config())
    assert ran == ["one", "two", "two", "after"], "the subgraph continues from its own question"
    assert found["log"][-2:] == ["two=yes", "after4"]


def test_memory_of_a_subgraph_is_rolled_back_with_the_thread(hf: Holdfast) -> None:
    """A subgraph with `checkpointer=True` has one run for all calls; its state before the thread's version stays."""
    ran: list[str] = []
    saver = HoldfastSaver(hf)
    graph = trip(saver, ran, inner=True)
    for _ in range(3):
        graph.invoke({"log": ["turn"]}, config(), durability="sync")
    ends = [version.number for version in hf.history("t").versions() if version.step == "after"]
    (run,) = [run.id for run in hf.runs(prefix="t|")]
    first = hf.history(run).versions()
    inner = config(checkpoint_ns=run.partition("|")[2])

    def memory(saver: HoldfastSaver) -> Any:
        found = saver.get_tuple(inner)
        assert found is not None
        return found.checkpoint["channel_values"]["log"].count("turn")

    turns = memory(saver)
    hf.rollback("t", to=ends[1])
    after_two = memory(saver)
    hf.rollback("t", to=ends[2])
    assert turns > after_two > memory(HoldfastSaver(hf)) == memory(saver)
    graph.invoke({"log": ["turn"]}, config(), durability="sync")
    assert memory(saver) == memory(HoldfastSaver(hf)) == after_two, "as if the second turn came first"
    newest = max(version.key for version in first if version.key)
    abandoned = saver.get_tuple({"configurable": {**inner["configurable"], "checkpoint_id": newest}})
    assert abandoned is not None, "nothing is deleted"
    assert len(list(saver.list(inner))) == len(hf.history(run).versions())


def test_put_of_a_stale_subgraph_stays_abandoned(hf: Holdfast) -> None:
    """A process that did not notice the rollback continues the subgraph that it had loaded."""
    saver, slow = HoldfastSaver(hf, single_writer=True), HoldfastSaver(hf)
    start = saver.put(config(checkpoint_ns=""), checkpoint({}, "1"), {"source": "loop"}, {})
    inner = config(checkpoint_ns="sub:1")
    old = slow.put(inner, checkpoint({"x": "old"}, "2"), {"source": "loop"}, {})
    saver.put(start, checkpoint({}, "3"), {"source": "loop"}, {})
    hf.rollback("t", to=1)
    assert saver.get_tuple(inner) is None
    slow.put(old, checkpoint({"x": "still old"}, "4"), {"source": "loop"}, {})
    assert saver.get_tuple(inner) is None
    with pytest.raises(StaleVersion):
        saver.put(old, checkpoint({"x": "stale"}, "5"), {"source": "loop"}, {})
    new = saver.put(inner, checkpoint({"x": "new"}, "6"), {"source": "loop"}, {})
    for each in (saver, slow, HoldfastSaver(hf)):
        found = each.get_tuple(inner)
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": "new"}
        assert found.parent_config is None
    saver.copy_thread("t", "copy")
    assert saver.get_tuple(config("copy", checkpoint_ns="sub:1")).checkpoint["id"] == "6"  # type: ignore[union-attr]
    nested = saver.put(config(checkpoint_ns="sub:1|deep:2"), checkpoint({}, "7"), {"source": "loop"}, {})
    assert saver.get_tuple(nested) is not None
    saver.put(new, checkpoint({}, "8"), {"source": "loop"}, {})
    hf.rollback(saver.run_id("t", "sub:1"), to=3)
    assert saver.get_tuple(config(checkpoint_ns="sub:1|deep:2")) is None, (
        "rolled back with the subgraph above"
    )
    assert saver.get_tuple(inner).checkpoint["id"] == "6"  # type: ignore[union-attr]


def test_fork_of_a_rolled_back_head_has_its_open_question(hf: Holdfast) -> None:
    ran: list[str] = []
    saver = HoldfastSaver(hf)
    graph = asking(saver, ran)
    graph.invoke({"messages": [], "turns": 0}, config())
    asked = hf.history("t").head.number
    graph.invoke(Command(resume="first"), config())
    hf.rollback("t", to=asked)
    hf.fork("t", "early")
    assert graph.get_state(config("early")).tasks[0].interrupts == ()
    graph.invoke(None, config())
    hf.fork("t", "late")
    ran.clear()
    (question,) = [task.interrupts for task in graph.get_state(config("late")).tasks if task.interrupts]
    assert question[0].value == "really?"
    found = graph.invoke(Command(resume="second"), config("late"))
    assert ran == ["unsure"], "the task that had finished does not run again"
    assert found["messages"] == ["sure", "second"]


# A rollback that undoes another one


def turn(graph: Any, text: str) -> list[str]:
    """Run one turn of the thread; return what the subgraph remembers of the turns before."""
    graph.invoke({"text": text}, config(), durability="sync")
    return list(graph.seen[-1])


def remembering(saver: Any, *, depth: int = 1) -> Any:
    """A graph whose innermost subgraph has a memory of its own; `seen` is what that was before each turn."""

    class Memory(TypedDict):
        text: str
        known: Annotated[list[str], operator.add]

    class Text(TypedDict):
        text: str

    seen: list[list[str]] = []

    def remember(state: Memory) -> Any:
        seen.append(state.get("known", []))
        return {"known": [state["text"]]}

    inner = StateGraph(Memory)
    inner.add_node("remember", remember)
    inner.add_edge(START, "remember")
    graph: Any = inner.compile(checkpointer=True)
    for level in range(depth):
        outer = StateGraph(Text)
        outer.add_node("sub", graph)
        outer.add_edge(START, "sub")
        graph = outer.compile(checkpointer=saver if level == depth - 1 else True)
    graph.seen = seen
    return graph


@pytest.mark.parametrize("depth", [1, 2])
def test_memory_of_a_subgraph_returns_with_an_undone_rollback(hf: Holdfast, depth: int) -> None:
    graph = remembering(HoldfastSaver(hf), depth=depth)
    ends = {}
    for text in ("one", "two", "three"):
        turn(graph, text)
        ends[text] = hf.history("t").head.number
    hf.rollback("t", to=ends["one"])
    hf.rollback("t", to=ends["two"])
    assert turn(graph, "at once") == ["one", "two"]
    hf.rollback("t", to=ends["one"])
    assert turn(graph, "other") == ["one"]
    hf.rollback("t", to=ends["three"])
    for each in (graph, remembering(HoldfastSaver(hf), depth=depth)):
        assert turn(each, "undone") == ["one", "two", "three"]
        hf.rollback("t", to=ends["three"])
    hf.rollback("t", to=ends["two"])
    assert turn(graph, "again") == ["one", "two"]


@pytest.mark.parametrize("durability", ["sync", "exit"])
def test_memory_of_a_subgraph_follows_between_two_lines(hf: Holdfast, durability: Any) -> None:
    graph = remembering(HoldfastSaver(hf))
    ends: dict[str, int] = {}

    def switch(to: str, text: str) -> list[str]:
        if to:
            hf.rollback("t", to=ends[to])
        graph.invoke({"text": text}, config(), durability=durability)
        ends[text] = hf.history("t").head.number
        return list(graph.seen[-1])

    switch("", "one")
    assert switch("", "a2") == ["one"]
    assert switch("one", "b2") == ["one"]
    assert switch("a2", "a3") == ["one", "a2"]
    assert switch("b2", "b3") == ["one", "b2"]
    assert switch("a3", "a4") == ["one", "a2", "a3"]
    assert switch("b3", "b4") == ["one", "b2", "b3"]


def test_question_in_a_subgraph_is_asked_again_after_an_undone_rollback(hf: Holdfast) -> None:
    """The rollback goes to the checkpoint whose task called the subgraph, so the task runs again."""
    ran: list[str] = []
    graph = trip(HoldfastSaver(hf), ran, question="two")
    graph.invoke({"log": []}, config(), durability="sync")
    asked = hf.history("t").head.number
    hf.rollback("t", to=1)
    hf.rollback("t", to=asked)
    ran.clear()
    graph.invoke(None, config())
    assert ran == ["one", "two"]
    found = graph.invoke(Command(resume="yes"), config())
    assert found["log"][-2:] == ["two=yes", "after4"]
    done = hf.history("t").head.number
    hf.rollback("t", to=asked)
    hf.rollback("t", to=done)
    assert graph.get_state(config()).values == found


def test_time_travel_after_a_rollback_finds_the_subgraph_of_another_branch(hf: Holdfast) -> None:
    """Only a rollback abandons checkpoints of subgraphs; a branch does not."""
    saver = HoldfastSaver(hf)
    inner = config(checkpoint_ns="sub:1")
    first = saver.put(config(checkpoint_ns=""), checkpoint({}, "1"), {"source": "loop"}, {})
    hf.rollback("t", to=1)
    second = saver.put(first, checkpoint({}, "2"), {"source": "loop"}, {})
    saver.get_tuple(inner)
    saver.put(inner, checkpoint({}, "3"), {"source": "loop", "parents": {"": "2"}}, {})
    saver.put(first, checkpoint({}, "4"), {"source": "fork"}, {})
    for each in (saver, HoldfastSaver(hf)):
        assert each.get_tuple(inner).checkpoint["id"] == "3"  # type: ignore[union-attr]
    hf.rollback("t", to=hf.history("t").find("4").number)  # type: ignore[union-attr]
    assert saver.get_tuple(inner) is None
    assert saver.get_tuple(second) is not None


def test_timelines_are_read_only_if_there_are_more(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = remembering(HoldfastSaver(hf))
    for text in ("one", "two"):
        turn(graph, text)
    hf.rollback("t", to=3)
    turn(graph, "three")
    read: list[str] = []
    timelines = History.timelines

    def counted(history: History) -> list[Timeline]:
        read.append(history.id)
        return timelines(history)

    monkeypatch.setattr(History, "timelines", counted)
    graph.get_state(config(), subgraphs=True)
    assert read == []
    hf.rollback("t", to=3)
    for _ in range(2):
        graph.get_state(config(), subgraphs=True)
    assert read == ["t"] * len(read)
    assert len(read) <= 2, "once for the thread, once for the runs below it"
    hf.delete("t")
    turn(graph, "new")
    assert graph.get_state(config()).values == {"text": "new"}


# Pruning after a rollback


@pytest.mark.parametrize("depth", [1, 2])
def test_prune_keeps_the_memory_to_which_a_subgraph_was_rolled_back(hf: Holdfast, depth: int) -> None:
    saver = HoldfastSaver(hf)
    graph = remembering(saver, depth=depth)
    ends = {}
    for text in ("one", "two", "three"):
        turn(graph, text)
        ends[text] = hf.history("t").head.number
    saver.copy_thread("t", "none")
    for name, number in ends.items():
        hf.history("t").tag(number, name)
    saver.copy_thread("t", "tagged")
    for thread in ("t", "none", "tagged"):
        for to in ("one", "three", "two"):
            hf.rollback(thread, to=ends[to])
        saver.prune([thread])
        saver.prune([thread])
        for each in (saver, HoldfastSaver(hf)):
            again = remembering(each, depth=depth)
            again.invoke({"text": "next"}, config(thread), durability="sync")
            assert again.seen == [["one", "two"]]
            hf.history(thread).rollback(ends["two"])
        for run in hf.runs(prefix=f"{thread}|"):
            assert len(hf.history(run.id).versions()) > 1
        saver.prune([thread])
        assert [len(hf.history(run.id).versions()) for run in hf.runs(prefix=f"{thread}|")] == [1] * depth


def test_prune_deletes_a_subgraph_that_was_abandoned_as_a_whole(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf)
    graph = remembering(saver)
    turn(graph, "one")
    (run,) = [run.id for run in hf.runs(prefix="t|")]
    hf.history(run).tag("head", "good")
    hf.rollback("t", to=1)
    saver.prune(["t"])
    good = hf.history(run).at("good")
    assert saver.get_tuple(config(checkpoint_ns=run.partition("|")[2])) is None
    assert [each.checkpoint["id"] for each in saver.list(config(checkpoint_ns=run.partition("|")[2]))] == [
        good.key
    ]
    hf.history(run).untag(good, "good")
    assert turn(graph, "two") == []
    hf.history("t").rollback("head")
    saver.prune(["t"])
    hf.history("t").rollback("head")
    assert turn(graph, "three") == ["two"]
    saver.put(config("u", checkpoint_ns=""), checkpoint({}, "1"), {"source": "loop"}, {})
    saver.put(config("u", checkpoint_ns="sub:1"), checkpoint({}, "2"), {"source": "loop"}, {})
    hf.rollback("u", to=1)
    saver.prune(["u"])
    assert [run.id for run in hf.runs(prefix="u")] == ["u"]


# Edits by hand after a rollback


@pytest.mark.parametrize("edit", ["patch", "edit", "twice"])
def test_edit_after_a_rollback_keeps_the_rejected_writes_hidden(hf: Holdfast, edit: str) -> None:
    saver = HoldfastSaver(hf)
    graph = asking(saver, [])
    graph.invoke({"messages": [], "turns": 0}, config())
    log = hf.history("t")
    asked = log.head.number
    log.tag(asked, "asked")
    graph.invoke(Command(resume="rejected"), config())
    hf.rollback("t", to=asked)
    for _ in range(2 if edit == "twice" else 1):
        if edit == "edit":
            with log.edit() as draft:
                draft["channel_values"]["turns"] = 7
        else:
            log.patch({("channel_values", "turns"): 7}, after=log.head)
    before = graph.get_state(config())
    assert before.values["turns"] == 7
    assert "rejected" not in before.values["messages"]
    assert all(task.interrupts == () for task in before.tasks)
    for name in ("copy", "c" * 97):
        saver.copy_thread("t", name)
        assert graph.get_state(config(name)).values == before.values
    graph.invoke(None, config())
    for each in (saver, HoldfastSaver(hf)):
        (question,) = [
            task.interrupts for task in asking(each, []).get_state(config()).tasks if task.interrupts
        ]
        assert question[0].value == "really?", "new writes are read where they are stored"
    saver.prune(["t"])
    pruned = asking(HoldfastSaver(hf), [])
    assert [task.interrupts for task in pruned.get_state(config()).tasks if task.interrupts] == [question]
    found = pruned.invoke(Command(resume="second"), config())
    assert "rejected" not in found["messages"]
    assert "second" in found["messages"]


# The thread after a rollback is what it was at that checkpoint


class Nested(NamedTuple):
    """A graph with subgraphs in two levels, and the nodes that ran."""

    graph: Any
    ran: list[str]


def nested(saver: Any, chosen: random.Random) -> Nested:
    """Build one; some nodes ask, and some subgraphs have a memory of their own."""
    ran: list[str] = []
    asks = set(chosen.sample(["a", "s1", "d1", "d2", "s2", "b"], chosen.choice([0, 1, 2])))

    def node(name: str) -> Any:
        def call(state: Trip) -> Any:
            ran.append(name)
            return {"log": [f"{name}={interrupt(name)}" if name in asks else f"{name}{len(state['log'])}"]}

        return call

    def chain(*nodes: tuple[str, Any]) -> Any:
        graph = StateGraph(Trip)
        for name, action in nodes:
            graph.add_node(name, action)
        for one, other in pairwise([START, *(name for name, _ in nodes)]):
            graph.add_edge(one, other)
        return graph

    deep = chain(("d1", node("d1")), ("d2", node("d2"))).compile(checkpointer=chosen.choice([None, True]))
    sub = chain(("s1", node("s1")), ("deep", deep), ("s2", node("s2")))
    inner = sub.compile(checkpointer=chosen.choice([None, True]))
    return Nested(chain(("a", node("a")), ("sub", inner), ("b", node("b"))).compile(checkpointer=saver), ran)


def shown(state: Any) -> Any:
    """A state with those of its subgraphs, without ids."""
    tasks = [
        (
            task.name,
            [each.value for each in task.interrupts],
            hasattr(task.state, "values") and shown(task.state),
        )
        for task in state.tasks
    ]
    return (state.values, state.next, tasks)


def cut(saver: InMemorySaver, name: str) -> None:
    """Remove everything that was made since a checkpoint."""
    for namespace, stored in saver.storage["t"].items():
        for other in [each for each in stored if each > name or (namespace and each == name)]:
            del stored[other]
    for place in [each for each in saver.writes if each[2] >= name]:
        del saver.writes[place]


def line_of(saver: Any) -> list[str]:
    """The ids of the latest checkpoint and those before it."""
    line = []
    found = saver.get_tuple(config())
    while found is not None:
        line.append(found.checkpoint["id"])
        found = saver.get_tuple(found.parent_config) if found.parent_config else None
    return line


def play(saver: Any, seed: int, durability: Any) -> Iterator[Any]:
    """Run a graph with random inputs, answers and rollbacks; yield what it shows."""
    chosen = random.Random(seed)
    graph, ran = nested(saver, chosen)
    #: The lines that were left by rollbacks, and the content of an `InMemorySaver` at that time.
    left: list[tuple[list[str], Any]] = []
    for turn in range(14):
        action = chosen.choice(
            ["input", "input", "answer", "answer", "continue", "roll back", "roll back", "return"]
        )
        count = len(ran)
        if action in ("roll back", "return"):
            stored: Any = isinstance(saver, InMemorySaver) and (saver.storage, saver.writes, saver.blobs)
            here: tuple[list[str], Any] = (line_of(saver), deepcopy(stored))
            line, content = chosen.choice([here, *left]) if action == "return" else here
            name = chosen.choice([*line, None])
            if name is not None:
                left.append(here)
            if name is not None and isinstance(saver, InMemorySaver):
                saver.storage, saver.writes, saver.blobs = deepcopy(content)
                cut(saver, name)
            elif name is not None:
                saver.hf.rollback("t", to=saver.hf.history("t").find(name).number)
        else:
            given = {"input": {"log": [f"in{turn}"]}, "answer": Command(resume=f"r{turn}")}.get(action)
            try:
                graph.invoke(given, config(), durability=durability)
            except EmptyInputError:
                yield "nothing to continue"
        yield action, ran[count:], shown(graph.get_state(config(), subgraphs=True))


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_thread_after_a_rollback_is_what_it_was(hf: Holdfast, durability: Any) -> None:
    for seed in range(12):
        saver = HoldfastSaver(hf, single_writer=bool(seed % 2))
        assert list(play(saver, seed, durability)) == list(play(InMemorySaver(), seed, durability)), seed
        saver.delete_thread("t")
