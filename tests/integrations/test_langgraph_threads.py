"""Features beyond LangGraph: diff, blame, tag, roll back, prune, verify, export and import threads."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_graphs import checkpoint, config, put, talk

import holdfast
from holdfast import AlreadyExists, Retention
from holdfast.integrations.langgraph import HoldfastSaver


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[HoldfastSaver]:
    with holdfast.open(tmp_path / "runs.db", durability="fast") as hf:
        yield HoldfastSaver(hf)
        assert hf.verify().ok


@pytest.fixture
def graph(saver: HoldfastSaver) -> Any:
    graph = talk(saver)
    # One at a time: LangGraph hands in writes and the checkpoint after them side by side.
    alone = {**config(), "max_concurrency": 1}
    graph.invoke({"messages": ["hi"], "turns": 0}, alone, durability="sync")
    return graph


def said(graph: Any, thread: str = "t") -> Any:
    return graph.get_state(config(thread)).values["messages"]


def test_versions_name_the_nodes_that_ran(graph: Any, saver: HoldfastSaver) -> None:
    log = saver.hf.history("t")
    steps = [version.step for version in reversed(log.versions())]
    assert steps == ["input", "__start__", "loop", "say", "loop", "say", "loop", "say", "loop"]
    latest = graph.get_state(config()).config["configurable"]["checkpoint_id"]
    assert log.head.note == f"checkpoint {latest}"


def test_diff_and_blame_work_on_a_thread(graph: Any, saver: HoldfastSaver) -> None:
    changed = [tuple(change.path)[:2] for change in saver.hf.diff("t@5", "t@7").changes]
    assert ("channel_values", "messages") in changed
    log = saver.hf.history("t")
    blamed = log.blame("channel_values.messages[2]")
    assert blamed.version.step == "loop"
    assert log.at(blamed.version.number).state["channel_values"]["messages"][-1] == "m1"


def test_rollback_to_a_tag_moves_the_latest_checkpoint(graph: Any, saver: HoldfastSaver) -> None:
    hf = saver.hf
    hf.history("t").tag(5, "good")
    assert hf.version("t:good").state["channel_values"]["messages"] == ["hi", "m0"]
    hf.rollback("t", to="good")
    assert said(graph) == ["hi", "m0"]
    assert graph.get_state(config()).next == ("say",)
    assert graph.invoke(None, config(), durability="sync")["messages"] == ["hi", "m0", "m1", "m2"]
    lines = hf.history("t").timelines()
    assert [(line.number, line.parent) for line in lines] == [(1, None), (2, 5)]
    assert hf.history("t").head.timeline == 2


def test_fork_of_a_thread_is_another_thread(graph: Any, saver: HoldfastSaver) -> None:
    saver.hf.fork("t@5", "other")
    assert said(graph, "other") == ["hi", "m0"]
    graph.invoke(None, config("other"), durability="sync")
    assert said(graph, "other") == ["hi", "m0", "m1", "m2"]
    assert said(graph) == ["hi", "m0", "m1", "m2"]
    assert len(saver.hf.history("other").timelines()) == 1


def test_prune_keeps_tagged_checkpoints(graph: Any, saver: HoldfastSaver) -> None:
    log = saver.hf.history("t")
    log.tag(5, "good")
    log.prune(Retention(last=1))
    assert [item.checkpoint["channel_values"]["messages"] for item in saver.list(config())] == [
        ["hi", "m0", "m1", "m2"],
        ["hi", "m0"],
    ]
    graph.invoke({"messages": ["again"], "turns": 3}, config(), durability="sync")
    assert said(graph) == ["hi", "m0", "m1", "m2", "again", "m3", "m4", "m5"]


def test_saver_continues_after_a_prune(saver: HoldfastSaver) -> None:
    where = config()
    for n in range(30):
        where = put(saver, where, {"n": n, "list": list(range(n))})
        saver.put_writes(where, [("x", n)], "task")
        if n % 7 == 3:
            saver.prune(["t"])
    found: Any = saver.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"n": 29, "list": list(range(29))}
    assert len(list(saver.list(config()))) == 6


def test_thread_is_exported_and_imported(graph: Any, saver: HoldfastSaver) -> None:
    file = io.BytesIO()
    saver.hf.export_run("t", file)
    with holdfast.open(":memory:") as elsewhere:
        file.seek(0)
        elsewhere.import_run(file)
        other = HoldfastSaver(elsewhere)
        assert said(talk(other)) == said(graph)
        assert list(other.list(config())) == list(saver.list(config()))
        document = saver.hf.history("t").export()
        elsewhere.import_snapshot(document, run_id="snapshot")
        assert said(talk(other), "snapshot") == said(graph)


def test_manual_edit_is_read_as_the_latest_checkpoint(graph: Any, saver: HoldfastSaver) -> None:
    log = saver.hf.history("t")
    with log.edit(note="mended", actor="Ada") as state:
        state["channel_values"]["messages"][0] = "hello"
    assert said(graph) == ["hello", "m0", "m1", "m2"]
    graph.invoke({"messages": [], "turns": 3}, config(), durability="sync")
    assert said(graph)[:2] == ["hello", "m0"]
    assert len(list(saver.list(config()))) == 10
    for item in saver.list(config()):
        assert saver.get_tuple(item.config) == item


def test_copied_thread_is_whole_and_independent(graph: Any, saver: HoldfastSaver) -> None:
    saver.copy_thread("t", "copy")
    with pytest.raises(AlreadyExists):
        saver.copy_thread("t", "copy")
    mine, theirs = list(saver.list(config())), list(saver.list(config("copy")))
    assert [(i.checkpoint, i.metadata, i.pending_writes) for i in mine] == [
        (i.checkpoint, i.metadata, i.pending_writes) for i in theirs
    ]
    graph.invoke({"messages": ["more"], "turns": 3}, config("copy"), durability="sync")
    assert said(graph) == ["hi", "m0", "m1", "m2"]
    saver.delete_thread("t")
    assert said(graph, "copy")[:4] == ["hi", "m0", "m1", "m2"]


def test_delete_for_runs_removes_their_checkpoints(saver: HoldfastSaver) -> None:
    first = put(saver, config(), {"x": 0}, run_id="one")
    second = put(saver, first, {"x": 1}, run_id="two")
    third = put(saver, second, {"x": 2}, run_id="three")
    saver.delete_for_runs(["two", "three"])
    found: Any = saver.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"x": 0}
    assert saver.get_tuple(second) is None
    assert saver.get_tuple(third) is None
    put(saver, first, {"x": 3}, run_id="four")
    assert len(list(saver.list(config()))) == 2
    saver.delete_for_runs(["one", "four"])
    assert sorted(run.id for run in saver.hf.iter_runs()) == []


def test_delete_for_runs_returns_to_the_highest_checkpoint(saver: HoldfastSaver) -> None:
    first = put(saver, config(), {"x": 0}, run_id="one")
    saver.put_writes(first, [("x", 1)], "task")
    second = put(saver, first, {"x": 1}, run_id="two")
    put(saver, second, {"x": 2}, run_id="three")
    # The newest version is then one of the first checkpoint, on another timeline.
    saver.put_writes(first, [("x", 7)], "task")
    saver.delete_for_runs(["three"])
    found: Any = saver.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"x": 1}
    assert saver.hf.history("t").head.note == f"checkpoint {found.checkpoint['id']}"


def test_delete_for_runs_leaves_no_writes_without_a_checkpoint(saver: HoldfastSaver) -> None:
    early = checkpoint({"x": 0})
    target = config(checkpoint_ns="", checkpoint_id=early["id"])
    saver.put_writes(target, [("x", 1)], "task")
    saver.put(config(checkpoint_ns=""), early, {"run_id": "one"}, {})
    saver.delete_for_runs(["one"])
    assert list(saver.hf.iter_runs()) == []


def test_long_thread_grows_by_its_changes(tmp_path: Path) -> None:
    """A growing list is stored at most a few times, writes and checkpoints included."""
    from langchain_core.messages import HumanMessage

    with HoldfastSaver(tmp_path / "runs.db") as saver:
        where = config()
        messages: list[Any] = []
        for n in range(150):
            messages = [*messages, HumanMessage(f"{n} " + "word " * 100, id=str(n))]
            where = put(saver, where, {"messages": messages})
            saver.put_writes(where, [("messages", [messages[-1]])], f"task-{n}")
        size = saver.hf.runs()[0].size
    assert size < 150 * 1_500
