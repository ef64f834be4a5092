"""Features beyond LangGraph: diff, blame, tag, roll back, prune, verify, export and import threads."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command
from langgraph_graphs import asking, checkpoint, config, put, talk

import holdfast
from holdfast import AlreadyExists, History, Retention, Version
from holdfast.integrations.langgraph import HoldfastSaver
from holdfast.integrations.langgraph.thread import CheckpointThread


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[HoldfastSaver]:
    with holdfast.open(tmp_path / "runs.db", durability="fast") as hf:
        yield HoldfastSaver(hf)
        assert hf.verify().ok


@pytest.fixture
def graph(saver: HoldfastSaver) -> Any:
    graph = talk(saver)
    graph.invoke({"messages": ["hi"], "turns": 0}, config(), durability="sync")
    return graph


def said(graph: Any, thread: str = "t") -> Any:
    return graph.get_state(config(thread)).values["messages"]


def test_versions_name_the_nodes_that_ran(graph: Any, saver: HoldfastSaver) -> None:
    log = saver.hf.history("t")
    steps = [version.step for version in reversed(log.versions())]
    assert steps == ["input", "loop", "say", "say", "say"]
    latest = graph.get_state(config()).config["configurable"]["checkpoint_id"]
    assert log.head.key == latest
    assert [name.rpartition("|")[2] for name in log.at(3).attachments] == [""], "the writes of the next step"


def test_diff_and_blame_work_on_a_thread(graph: Any, saver: HoldfastSaver) -> None:
    changed = [tuple(change.path)[:2] for change in saver.hf.diff("t@3", "t@4").changes]
    assert ("channel_values", "messages") in changed
    log = saver.hf.history("t")
    blamed = log.blame("channel_values.messages[2]")
    assert blamed.version.step == "say"
    assert log.at(blamed.version.number).state["channel_values"]["messages"][-1] == "m1"


def test_rollback_to_a_tag_moves_the_latest_checkpoint(graph: Any, saver: HoldfastSaver) -> None:
    hf = saver.hf
    hf.history("t").tag(3, "good")
    assert hf.version("t:good").state["channel_values"]["messages"] == ["hi", "m0"]
    hf.rollback("t", to="good")
    assert said(graph) == ["hi", "m0"]
    assert graph.get_state(config()).next == ("say",)
    assert graph.invoke(None, config(), durability="sync")["messages"] == ["hi", "m0", "m1", "m2"]
    lines = hf.history("t").timelines()
    assert [(line.number, line.parent) for line in lines] == [(1, None), (2, 3)]
    assert hf.history("t").head.timeline == 2


def test_edit_by_hand_counts_however_the_checkpoint_is_named(graph: Any, saver: HoldfastSaver) -> None:
    log = saver.hf.history("t")
    log.patch({("channel_values", "turns"): 42}, after=log.head)
    edited = graph.get_state(config())
    assert edited.values["turns"] == 42
    for reading in (graph, talk(HoldfastSaver(saver.hf))):
        assert reading.get_state(edited.config).values["turns"] == 42
        assert next(reading.get_state_history(config())).values["turns"] == 42
    graph.update_state(edited.config, {"messages": ["continued"]})
    assert graph.get_state(config()).values == {
        "messages": ["hi", "m0", "m1", "m2", "continued"],
        "turns": 42,
    }
    # Also when it is no longer the head.
    assert graph.get_state(edited.config).values["turns"] == 42
    assert [state.values.get("turns") for state in graph.get_state_history(config())][:2] == [42, 42]


def test_other_runs_of_the_store_are_not_taken_for_threads(graph: Any, saver: HoldfastSaver) -> None:
    others = {
        "training": {"checkpoint": {"epoch": 3}, "loss": 0.1},
        "saved": {"checkpoint": {"id": "best"}},
        "empty": {"checkpoint": None, "loss": 0.1},
    }
    for name, state in others.items():
        saver.hf.history(name).commit(state)
    assert {item.config["configurable"]["thread_id"] for item in saver.list(None)} == {"t"}
    saver.delete_for_runs(["unknown"])
    for name, state in others.items():
        saver.prune([name])
        saver.delete_thread(name)
        assert saver.hf.history(name).head.state == state


def test_fork_of_a_thread_is_another_thread(graph: Any, saver: HoldfastSaver) -> None:
    saver.hf.fork("t@3", "other")
    assert said(graph, "other") == ["hi", "m0"]
    graph.invoke(None, config("other"), durability="sync")
    assert said(graph, "other") == ["hi", "m0", "m1", "m2"]
    assert said(graph) == ["hi", "m0", "m1", "m2"]
    assert len(saver.hf.history("other").timelines()) == 1


def test_prune_keeps_tagged_checkpoints(graph: Any, saver: HoldfastSaver) -> None:
    log = saver.hf.history("t")
    log.tag(3, "good")
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


@pytest.mark.parametrize("thread", ["t", "long " * 100])
def test_pruned_thread_keeps_the_question_of_its_latest_checkpoint(saver: HoldfastSaver, thread: str) -> None:
    """Also if its version has no key of its own: after an edit by hand, or as the copy of a thread with a long id."""
    ran: list[str] = []
    graph, hf = asking(saver, ran), saver.hf
    graph.invoke({"messages": [], "turns": 0}, config(thread))
    saver.copy_thread(thread, f"{thread} copy")
    with hf.history(saver.run_id(thread)).edit() as state:
        state["channel_values"]["turns"] = 7
    for each in (thread, f"{thread} copy"):
        saver.prune([each])
        assert len(list(saver.list(config(each)))) == 1
        hf.fork(saver.run_id(each), saver.run_id(f"{each} fork"))
        for copy in (each, f"{each} fork"):
            found = graph.get_state(config(copy))
            assert [question.value for question in found.interrupts] == ["really?"]
            assert found.values["turns"] == (0 if "copy" in copy else 7)
    ran.clear()
    assert graph.invoke(Command(resume="yes"), config(f"{thread} copy"))["messages"] == ["sure", "yes"]
    assert ran == ["unsure"]


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
    saver.put_writes(first, [("x", 7)], "task")
    saver.delete_for_runs(["three"])
    found: Any = saver.get_tuple(config())
    assert found.checkpoint["channel_values"] == {"x": 1}
    assert saver.hf.history("t").head.key == found.checkpoint["id"]


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


def test_short_list_of_many_threads_reads_few_checkpoints(
    saver: HoldfastSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        where = config(f"t{number % 6}", checkpoint_ns="")
        saver.put(where, checkpoint({}, f"{number:03}"), {"source": "loop"}, {})
    versions: list[int] = []
    attached: list[int] = []
    keyed_versions, attachments = History.keyed_versions, History.attachments

    def count_versions(history: History, **options: Any) -> list[Version]:
        found = keyed_versions(history, **options)
        versions.append(len(found))
        return found

    def count_attachments(history: History, *keys: str) -> dict[str, dict[str, Any]]:
        attached.append(len(keys))
        return attachments(history, *keys)

    monkeypatch.setattr(History, "keyed_versions", count_versions)
    monkeypatch.setattr(History, "attachments", count_attachments)
    found = [each.checkpoint["id"] for each in saver.list(None, limit=3)]
    assert found == ["059", "058", "057"]
    assert sum(versions) <= 6 + 2 * 3
    assert sum(attached) == 3, "writes are read only for the checkpoints that are returned"
    everything = [each.checkpoint["id"] for each in saver.list(None)]
    assert everything == [f"{number:03}" for number in reversed(range(60))]
    assert [each.checkpoint["id"] for each in saver.list(None, limit=40)] == everything[:40]


def test_puts_to_hundreds_of_threads_in_turn_read_nothing(
    saver: HoldfastSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = [put(saver, config(f"t{number}"), {"x": 1}) for number in range(400)]
    monkeypatch.setattr(CheckpointThread, "_read_head", lambda thread: pytest.fail("read the head again"))
    for place in places:
        put(saver, place, {"x": 2})


def test_list_of_one_checkpoint_reads_no_others(
    saver: HoldfastSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(60):
        where = config(checkpoint_ns="inner" if number % 2 else "")
        saver.put(where, checkpoint({}, f"{number:03}"), {"source": "loop"}, {})
    read: list[int] = []
    keyed_versions = History.keyed_versions

    def count_versions(history: History, **options: Any) -> list[Version]:
        found = keyed_versions(history, **options)
        read.append(len(found))
        return found

    monkeypatch.setattr(History, "keyed_versions", count_versions)
    for wanted in ("000", "031"):
        found = list(saver.list(config(checkpoint_id=wanted)))
        assert [each.checkpoint["id"] for each in found] == [wanted]
    assert sum(read) <= 4, "one per namespace and list"
    assert list(saver.list(config(checkpoint_id="031"), before=config(checkpoint_id="031"))) == []
