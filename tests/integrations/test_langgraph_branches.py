"""Concurrent writers, late writers, branches: each has its own timeline, nothing is mixed or lost."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import _DeltaSnapshot
from langgraph_graphs import asking, checkpoint, config, ids, put

import holdfast
from holdfast import Holdfast, StaleVersion
from holdfast.integrations.langgraph import HoldfastSaver, layout


@pytest.fixture(params=["sqlite", "memory"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    where = tmp_path / "runs.db" if request.param == "sqlite" else ":memory:"
    with holdfast.open(where, durability="fast") as opened:
        yield opened
        assert opened.verify().ok


@pytest.fixture
def saver(hf: Holdfast) -> HoldfastSaver:
    return HoldfastSaver(hf)


def values(saver: HoldfastSaver, where: Any) -> Any:
    found = saver.get_tuple(where)
    assert found is not None
    return found.checkpoint["channel_values"]


def writes(saver: HoldfastSaver, where: Any) -> Any:
    found = saver.get_tuple(where)
    assert found is not None
    return found.pending_writes


def test_second_writer_of_a_checkpoint_gets_its_own_timeline(hf: Holdfast) -> None:
    one, other = HoldfastSaver(hf), HoldfastSaver(hf)
    start = put(one, config(), {"x": "start"})
    mine, yours = start, start
    for n in range(4):
        mine = put(one, mine, {"x": f"one-{n}"})
        yours = put(other, yours, {"x": f"other-{n}"})
    log = hf.history("t")
    assert [line.number for line in log.timelines()] == [1, 2]
    assert len(ids(list(one.list(config())))) == 9
    for end, name in ((mine, "one"), (yours, "other")):
        chain = []
        at = one.get_tuple(end)
        while at is not None:
            chain.append(at.checkpoint["channel_values"]["x"])
            at = one.get_tuple(at.parent_config) if at.parent_config else None
        assert chain == [f"{name}-{n}" for n in (3, 2, 1, 0)] + ["start"]
    assert values(one, config()) == {"x": "other-3"}, "the latest is the one that was made last"


def test_single_writer_refuses_a_stale_writer(hf: Holdfast) -> None:
    one, other = HoldfastSaver(hf, single_writer=True), HoldfastSaver(hf, single_writer=True)
    start = put(one, config(), {"x": 0})
    other.put_writes(start, [("x", 1)], "task-1")
    mine = put(one, start, {"x": 1})
    for stale in (start, config(), config(checkpoint_id="missing")):
        with pytest.raises(StaleVersion):
            put(other, stale, {"x": 2})
    with pytest.raises(StaleVersion):
        other.put_writes(start, [("x", 9)], "task-1")
    assert len(hf.history("t").timelines()) == 1
    assert values(one, config()) == {"x": 1}
    put(other, mine, {"x": 2})
    hf.rollback("t", to=1)
    put(other, start, {"x": 3})
    assert values(one, config()) == {"x": 3}, "after a rollback, writers continue from its version"


def test_single_writer_updates_the_state_for_a_task_that_has_finished(hf: Holdfast) -> None:
    """LangGraph's savers keep the writes of the task, and the update is applied."""
    found = []
    savers: list[Any] = [InMemorySaver(), HoldfastSaver(hf, single_writer=True)]
    for saver in savers:
        graph = asking(saver, [])
        graph.invoke({"messages": [], "turns": 0}, config(), durability="sync")
        graph.update_state(config(), {"messages": ["by hand"]}, as_node="sure")
        found.append(graph.get_state(config()).values)
    assert found[0] == found[1]
    assert found[1]["messages"] == ["by hand"]


def test_single_writer_names_the_task_that_was_executed_twice(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf, single_writer=True)
    start = put(saver, config(), {"x": 0})
    saver.put_writes(start, [("x", 1)], "task-1", "path")
    with pytest.raises(StaleVersion, match="another execution of task task-1"):
        saver.put_writes(start, [("x", 2)], "task-1", "path")


def test_thread_started_by_two_writers_has_two_timelines(hf: Holdfast) -> None:
    one, other = HoldfastSaver(hf), HoldfastSaver(hf)
    mine, yours = put(one, config(), {"x": "one"}), put(other, config(), {"x": "other"})
    mine, yours = put(one, mine, {"x": "one-2"}), put(other, yours, {"x": "other-2"})
    assert [line.number for line in hf.history("t").timelines()] == [1, 2]
    found = one.get_tuple(mine)
    assert found is not None
    assert found.parent_config is not None
    assert values(one, found.parent_config) == {"x": "one"}
    assert values(one, yours) == {"x": "other-2"}
    roots = [item for item in one.list(config()) if item.parent_config is None]
    assert [item.checkpoint["channel_values"]["x"] for item in roots] == ["other", "one"]


def test_late_checkpoint_does_not_become_the_latest(saver: HoldfastSaver, hf: Holdfast) -> None:
    start = put(saver, config(), {"x": 0})
    late = checkpoint({"x": "late"})
    now = put(saver, start, {"x": 1})
    saver.put(
        {"configurable": {"checkpoint_ns": "", **start["configurable"]}},
        late,
        {"source": "loop", "step": 1},
        {},
    )
    assert values(saver, config()) == {"x": 1}
    assert values(saver, config(checkpoint_id=late["id"])) == {"x": "late"}
    after = put(saver, now, {"x": 2})
    assert values(saver, config()) == {"x": 2}
    assert hf.history("t").head.timeline == 1
    assert values(saver, after) == {"x": 2}


def named(saver: Any, parent: Any, name: str, values: dict[str, Any], **metadata: Any) -> Any:
    """Put a checkpoint with an id, whose channels have all changed."""
    made = checkpoint(values, name)
    where = {"configurable": {"checkpoint_ns": "", **parent["configurable"]}}
    return saver.put(where, made, {"source": "loop", "step": 1, **metadata}, made["channel_versions"])


def test_continued_checkpoint_is_replaced_as_by_the_official_savers(
    saver: HoldfastSaver, hf: Holdfast
) -> None:
    official = InMemorySaver()
    first = checkpoint({"x": 0}, "1")
    where, about = config(checkpoint_ns=""), {"source": "loop", "step": 1}
    for each in (saver, official):
        start = each.put(where, first, about, {"x": 1})  # type: ignore[arg-type,typeddict-item,unused-ignore]
        each.put_writes(start, [("x", "kept")], "task")
        end = named(each, start, "2", {"x": 1})
    count = len(hf.history("t").versions())
    saver.put(where, first, about, {})  # type: ignore[arg-type,typeddict-item,unused-ignore]
    assert len(hf.history("t").versions()) == count, "the same once more is nothing new"
    for text in ("mended", "mended twice"):
        changed = {**first, "channel_values": {"x": text}, "channel_versions": {"x": text}}
        for each in (saver, official):
            each.put(end, changed, about, {"x": text})  # type: ignore[arg-type,typeddict-item,unused-ignore]
        other = HoldfastSaver(hf)
        for reader in (saver, other):
            found, expected = reader.get_tuple(start), official.get_tuple(start)
            assert found is not None
            assert expected is not None
            assert found.checkpoint == expected.checkpoint
            assert found.parent_config == expected.parent_config == end
            assert found.pending_writes == expected.pending_writes == [("task", "x", "kept")]
            assert ids(list(reader.list(config()))) == ["2", "1"]
            assert values(reader, config()) == {"x": 1}, "the latest checkpoint stays the latest"
    after = named(saver, start, "3", {"x": "after"})
    assert values(saver, after) == {"x": "after"}


def test_single_writer_does_not_replace_a_continued_checkpoint(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf, single_writer=True)
    first = checkpoint({"x": 0})
    where, about = config(checkpoint_ns=""), {"source": "loop", "step": 1}
    start = saver.put(where, first, about, {})  # type: ignore[arg-type,typeddict-item,unused-ignore]
    put(saver, start, {"x": 1})
    count = len(hf.history("t").versions())
    saver.put(where, first, about, {})  # type: ignore[arg-type,typeddict-item,unused-ignore]
    assert len(hf.history("t").versions()) == count, "the same once more is nothing new"
    with pytest.raises(StaleVersion):
        saver.put(where, {**first, "channel_values": {"x": "stale"}}, about, {})  # type: ignore[arg-type,typeddict-item,unused-ignore]
    assert values(saver, start) == {"x": 0}
    assert values(saver, config()) == {"x": 1}


def test_values_without_a_truth_value_are_compared(hf: Holdfast) -> None:
    """Arrays are equal item by item, and `!=` of two of them is not a bool."""
    saver = HoldfastSaver(hf, single_writer=True)
    first, about = checkpoint({"x": numpy.arange(3)}), {"source": "loop", "step": 1}
    start = saver.put(config(checkpoint_ns=""), first, about, {})  # type: ignore[arg-type,typeddict-item,unused-ignore]
    saver.put_writes(start, [("x", numpy.arange(3)), ("y", float("nan"))], "task")
    for _ in range(2):
        saver.put(config(checkpoint_ns=""), first, about, {})  # type: ignore[arg-type,typeddict-item,unused-ignore]
        saver.put_writes(start, [("x", numpy.arange(3)), ("y", float("nan"))], "task")
    with pytest.raises(StaleVersion):
        saver.put_writes(start, [("x", numpy.arange(4))], "task")
    put(saver, start, {"x": 1})
    with pytest.raises(StaleVersion):
        saver.put(config(checkpoint_ns=""), checkpoint({"x": numpy.arange(4)}, first["id"]), about, {})  # type: ignore[arg-type,typeddict-item,unused-ignore]
    assert len(hf.history("t").versions()) == 2


def test_delta_channel_sees_a_replaced_ancestor(saver: HoldfastSaver) -> None:
    for each in (saver, InMemorySaver()):
        start = named(each, config(), "1", {}, **counted(0))
        each.put_writes(start, [("d", ["a"])], "task")
        middle = named(each, start, "2", {}, **counted(1))
        each.put_writes(middle, [("d", ["b"])], "task")
        end = named(each, middle, "3", {}, **counted(2))
        found = each.get_delta_channel_history(config=end, channels=["d"])["d"]
        assert found == {"writes": [("task", "d", ["a"]), ("task", "d", ["b"])]}
        named(each, start, "2", {"d": _DeltaSnapshot(["seed"])}, **counted(0))
        found = each.get_delta_channel_history(config=end, channels=["d"])["d"]
        assert found == {"seed": _DeltaSnapshot(["seed"]), "writes": [("task", "d", ["b"])]}


def test_search_of_a_delta_channel_ends_in_a_cycle_of_parents(saver: HoldfastSaver) -> None:
    start = named(saver, config(), "1", {})
    end = named(saver, start, "2", {})
    named(saver, end, "1", {"y": 1})
    assert saver.get_delta_channel_history(config=end, channels=["x", "y"]) == {
        "x": {"writes": []},
        "y": {"writes": [], "seed": 1},
    }


def test_latest_checkpoint_can_be_put_again(saver: HoldfastSaver) -> None:
    first = checkpoint({"x": 0})
    where, about = config(checkpoint_ns=""), {"source": "loop", "step": 1}
    start = saver.put(where, first, about, {})  # type: ignore[arg-type,typeddict-item,unused-ignore]
    saver.put_writes(start, [("x", 1)], "task")
    saver.put(where, {**first, "channel_values": {"x": "mended"}}, about, {})  # type: ignore[arg-type,typeddict-item,unused-ignore]
    assert values(saver, config()) == {"x": "mended"}
    assert writes(saver, start) == [("task", "x", 1)]
    assert len(list(saver.list(config()))) == 1


# Pending writes


def test_pending_writes_are_in_the_order_of_application(saver: HoldfastSaver) -> None:
    start = put(saver, config())
    order = [("b", "~2", 0), ("a", "~1", 0), ("a", "~1", 1), ("c", "", 0)]
    for task, path, n in random.Random(1).sample(order, 4):
        saver.put_writes(start, [(f"{task}{n}", 0)] * (n + 1), f"{task}{n}", path)
    assert [task for task, _, _ in writes(saver, start)] == ["c0", "a0", "a1", "a1", "b0"]


def test_special_writes_replace_earlier_ones_and_others_do_not(saver: HoldfastSaver) -> None:
    start = put(saver, config())
    saver.put_writes(start, [("x", 1)], "task")
    saver.put_writes(start, [("x", 2)], "task")
    saver.put_writes(start, [("__error__", "one")], "task")
    saver.put_writes(start, [("__error__", "two")], "task")
    assert writes(saver, start) == [("task", "__error__", "two"), ("task", "x", 1)]


def test_writes_before_their_checkpoint_are_stored(saver: HoldfastSaver, hf: Holdfast) -> None:
    coming, next_one = checkpoint({"x": 1}), checkpoint({"x": 2})
    saver.put_writes(config(checkpoint_ns="", checkpoint_id=coming["id"]), [("x", "early")], "task")
    assert saver.get_tuple(config()) is None
    assert list(saver.list(config())) == []
    start = saver.put(config(checkpoint_ns=""), coming, {"source": "input", "step": -1}, {})
    assert writes(saver, start) == [("task", "x", "early")]
    saver.put_writes(config(checkpoint_ns="", checkpoint_id=next_one["id"]), [("x", "a")], "task-1")
    saver.put_writes(config(checkpoint_ns="", checkpoint_id=next_one["id"]), [("x", "b")], "task-2")
    assert writes(saver, start) == [("task", "x", "early")]
    after = saver.put(
        {"configurable": {**start["configurable"]}}, next_one, {"source": "loop", "step": 0}, {}
    )
    assert writes(saver, after) == [("task-1", "x", "a"), ("task-2", "x", "b")]
    assert len(hf.history("t").timelines()) == 1


def test_writes_after_the_next_checkpoint_are_stored(saver: HoldfastSaver, hf: Holdfast) -> None:
    start = put(saver, config(), {"x": 0})
    saver.put_writes(start, [("x", 1)], "task-1")
    put(saver, start, {"x": 2})
    saver.put_writes(start, [("x", "late")], "task-2")
    assert writes(saver, start) == [("task-1", "x", 1), ("task-2", "x", "late")]
    assert values(saver, config()) == {"x": 2}
    assert hf.history("t").head.state["channel_values"]["x"] == 2
    assert len(hf.history("t").timelines()) == 1, "a late write is not a second writer"
    assert [len(item.pending_writes or ()) for item in saver.list(config())] == [0, 2]


def test_writes_many_versions_late_are_stored(saver: HoldfastSaver) -> None:
    start = put(saver, config(), {"x": 0})
    saver.put_writes(start, [("x", 1)], "task-1")
    where = start
    for n in range(12):
        where = put(saver, where, {"x": n})
    saver.put_writes(start, [("x", "late")], "task-2")
    saver.put_writes(start, [("x", "later")], "task-3")
    assert [value for _, _, value in writes(saver, start)] == [1, "late", "later"]
    assert values(saver, config()) == {"x": 11}
    fork = put(saver, start, {}, **counted(1))
    assert delta_of(saver, fork) == []
    assert ids(list(saver.list(config())))[-1] == start["configurable"]["checkpoint_id"]


def delta_of(saver: HoldfastSaver, where: Any) -> list[Any]:
    found = saver.get_delta_channel_history(config=where, channels=["d"])
    return [value for _, _, value in found["d"]["writes"]]


def counted(n: int) -> dict[str, Any]:
    return {"counters_since_delta_snapshot": {"d": (n, n)}}


def test_writes_and_delta_history_of_branches_are_those_of_the_memory_saver(saver: HoldfastSaver) -> None:
    memory = InMemorySaver()
    names = iter([f"{n:04}" for n in range(100)])

    def both(parent: Any, **metadata: Any) -> Any:
        made = checkpoint({}, next(names))
        about = {"source": "loop", "step": 1, "parents": {}, **metadata}
        where = {"configurable": {"checkpoint_ns": "", **parent["configurable"]}}
        memory.put(where, made, about, {})  # type: ignore[arg-type]
        return saver.put(where, made, about, {})  # type: ignore[arg-type,typeddict-item,unused-ignore]

    def write(where: Any, value: str, task: str) -> None:
        for each in (memory, saver):
            each.put_writes(where, [("d", value)], task, "~a")

    start = both(config())
    write(start, "first", "task-1")
    mid = both(start, **counted(1))
    write(mid, "left", "task-2")
    left = both(mid, **counted(2))
    plain = both(mid, **counted(2))
    write(mid, "again", "task-2")
    write(mid, "other", "task-3")
    fork = both(mid, **counted(2))
    write(left, "last", "task-4")
    end = both(left, **counted(3))
    for where in (start, mid, left, plain, fork, end):
        assert writes(saver, where) == memory.get_tuple(where).pending_writes  # type: ignore[union-attr]
    for where in (left, end):
        expected = memory.get_delta_channel_history(config=where, channels=["d"])
        found = saver.get_delta_channel_history(config=where, channels=["d"])
        # A write that arrives after the next checkpoint was put is not part of what led there.
        late = {"again", "other"}
        assert found["d"]["writes"] == [each for each in expected["d"]["writes"] if each[2] not in late]


def test_writes_of_a_task_are_stored_once(hf: Holdfast) -> None:
    one, other = HoldfastSaver(hf), HoldfastSaver(hf)
    start = put(one, config(), {})
    one.put_writes(start, [("d", "one")], "task", "~a")
    other.put_writes(start, [("d", "other"), ("e", "more")], "task", "~a")
    assert writes(one, start) == [("task", "d", "one"), ("task", "e", "more")]
    other.put_writes(start, [("d", "other"), ("e", "again"), ("f", 1)], "task", "~a")
    assert writes(one, start) == [("task", "d", "one"), ("task", "e", "more"), ("task", "f", 1)]


def test_writes_of_a_task_with_two_paths_are_in_the_order_of_the_memory_saver(hf: Holdfast) -> None:
    """LangGraph's `update_state` writes, without a path, on behalf of a task that has failed."""
    found = []
    for saver in (InMemorySaver(), HoldfastSaver(hf)):
        start = put(saver, config(checkpoint_ns=""), {})
        saver.put_writes(start, [("d", "node")], "task", "~__pregel_pull, a")
        saver.put_writes(start, [("x", "update"), ("d", "update")], "task", "")
        made = saver.get_tuple(start)
        assert made is not None
        found.append(made.pending_writes)
    assert found[0] == found[1] == [("task", "d", "update"), ("task", "d", "node")]


def test_writes_that_two_executions_of_a_task_add_at_once_are_all_stored(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = HoldfastSaver(hf), HoldfastSaver(hf)
    start = put(one, config(), {})
    one.put_writes(start, [("a", 0)], "task")
    history = one.thread(layout.parse_config(start)).history
    read = history.attachments

    def read_then_write(*keys: str) -> Any:
        found = read(*keys)
        other.put_writes(start, [("a", 0), ("b", 1)], "task")
        return found

    monkeypatch.setattr(history, "attachments", read_then_write)
    one.put_writes(start, [("a", 0), ("b", 1), ("c", 2)], "task")
    assert writes(other, start) == [("task", "a", 0), ("task", "b", 1), ("task", "c", 2)]


def test_all_versions_of_a_checkpoint_are_deleted(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf)
    kept = put(saver, config(), {"x": 0}, run_id="kept")
    about: Any = {"source": "loop", "step": 1, "parents": {}, "run_id": "deleted"}
    where = {"configurable": {"checkpoint_ns": "", **kept["configurable"]}}
    for n in range(120):
        saver.put(where, checkpoint({"x": n}, "2"), about, {})
    saver.delete_for_runs(["deleted"])
    assert ids(list(saver.list(config()))) == ids([saver.get_tuple(kept)])
    assert saver.get_tuple(config(checkpoint_id="2")) is None


def test_snapshot_of_a_delta_channel_that_is_put_again_stays_one(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf)
    where = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    snapshot, about = _DeltaSnapshot([1, 2]), {"source": "loop", "step": 1, "parents": {}}
    for n in range(2):
        made = checkpoint({"d": snapshot, "n": n})
        where = saver.put(where, made, about, {"n": n})  # type: ignore[arg-type,typeddict-item,unused-ignore]
    found = saver.get_tuple(where)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"d": snapshot, "n": 1}


def test_unchanged_channel_is_redacted_by_a_new_pattern(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf)
    where: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    about: Any = {"source": "loop", "step": 1, "parents": {}}
    user = {"password": "hunter2"}
    where = saver.put(where, checkpoint({"user": user, "n": 0}), about, {"user": 1, "n": 1})
    hf.change_redaction(add=["password"])
    where = saver.put(where, checkpoint({"user": user, "n": 1}), about, {"n": 2})
    found = saver.get_tuple(where)
    assert found is not None
    assert found.checkpoint["channel_values"] == {"user": {"password": "[redacted]"}, "n": 1}


def test_fork_reads_only_the_timelines_that_are_new(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    saver = HoldfastSaver(hf)
    start = put(saver, config(), {"n": 0})
    store, rows = hf.history("t").context.store, []
    read = store.timelines

    def counted(run: int, **how: Any) -> Any:
        found = read(run, **how)
        rows.append(len(found))
        return found

    monkeypatch.setattr(store, "timelines", counted)
    for n in range(50):
        put(saver, start, {"n": n})
    assert sum(rows) <= 2 * 50


def test_checkpoint_is_found_by_the_same_number_of_reads(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    saver = HoldfastSaver(hf)
    where, places, counts = config(), [], {}
    for n in range(400):
        where = put(saver, where, {"n": n})
        places.append(where)
        if n in (20, 399):
            counts[n] = [
                _count_reads(hf, monkeypatch, saver, at) for at in (places[3], places[n // 2], where)
            ]
    # A cached pack saves one.
    assert max(counts[20]) + 1 >= max(counts[399])
    assert max(counts[399]) <= 6


@pytest.mark.parametrize("started_by", ["checkpoint", "writes"])
def test_unknown_checkpoint_is_searched_by_the_same_number_of_reads(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, started_by: str
) -> None:
    """Also if the first version was pruned, or has no checkpoint."""
    saver = HoldfastSaver(hf)
    if started_by == "writes":
        saver.put_writes(config(checkpoint_ns="", checkpoint_id="missing"), [("x", 1)], "task")
    where = config()
    for n in range(400):
        where = put(saver, where, {"n": n})
    if started_by == "checkpoint":
        hf.history("t").prune(holdfast.Retention(last=390))
    for name in ("missing", "0", str(where["configurable"]["checkpoint_id"]) + "1"):
        unknown = config(checkpoint_id=name)
        assert _count_reads(hf, monkeypatch, saver, unknown, is_found=False) <= 9


def _count_reads(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch, saver: HoldfastSaver, where: Any, *, is_found: bool = True
) -> int:
    store, calls = hf.history("t").context.store, Counter[str]()

    def counted(name: str) -> Any:
        method = getattr(store, name)

        def call(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return method(*args, **options)

        return call

    with monkeypatch.context() as patched:
        for name in ("run", "versions", "packs", "keyed_versions", "version_by_key", "attachments_of"):
            patched.setattr(store, name, counted(name))
        assert (saver.get_tuple(where) is not None) == is_found
    return calls.total()


# Rollbacks, and threads that were created again


def test_writes_before_a_rollback_are_hidden_from_every_saver(hf: Holdfast) -> None:
    one = HoldfastSaver(hf)
    start = put(one, config(), {"x": 0})
    one.put_writes(start, [("x", "old")], "task")
    put(one, start, {"x": "old"})
    hf.rollback("t", to=1)
    assert writes(one, config()) == []
    one.put_writes(start, [("x", "new")], "task")
    expected = [("task", "x", "new")]
    for saver in (one, HoldfastSaver(hf)):
        assert writes(saver, config()) == writes(saver, start) == expected
    HoldfastSaver(hf).prune(["t"])
    other = HoldfastSaver(hf)
    assert writes(other, config()) == expected
    other.copy_thread("t", "copy")
    assert writes(HoldfastSaver(hf), config("copy")) == expected
    after = put(other, start, {"x": "new"})
    late = checkpoint({"x": "late"}, "0")
    other.put(
        {"configurable": {"checkpoint_ns": "", **start["configurable"]}},
        late,
        {"source": "loop", "step": 1},
        {},
    )
    assert writes(HoldfastSaver(hf), start) == expected, "a branch is not a rollback"
    assert values(other, config()) == values(other, after) == {"x": "new"}


def test_writes_after_a_checkpoint_was_put_again_are_stored_with_it(saver: HoldfastSaver) -> None:
    first = checkpoint({"x": 0})
    where = config(checkpoint_ns="")
    start = saver.put(where, first, {"source": "loop", "step": 1}, {})
    saver.put_writes(start, [("__resume__", [1])], "task")
    saver.put(where, first, {"source": "loop", "step": 2}, {})
    saver.put_writes(start, [("__resume__", [1, 2])], "task")
    saver.put_writes(start, [("x", 5)], "other")
    expected = [("other", "x", 5), ("task", "__resume__", [1, 2])]
    assert writes(saver, start) == expected
    saver.prune(["t"])
    assert writes(saver, start) == expected


def test_unchanged_channel_is_never_taken_from_a_run_created_again(hf: Holdfast) -> None:
    one, other = HoldfastSaver(hf), HoldfastSaver(hf)
    doc = ["mine"]

    def step(saver: HoldfastSaver, parent: Any, held: Any, n: int) -> Any:
        made = checkpoint({"doc": held, "n": n})
        made["channel_versions"] = {"doc": 1, "n": n + 2}
        where = {"configurable": {"checkpoint_ns": "", **parent["configurable"]}}
        return saver.put(where, made, {"source": "loop", "step": n}, {"n": n + 2})

    mine = step(one, step(one, config(), doc, 0), doc, 1)
    other.delete_thread("t")
    step(other, step(other, config(), ["theirs"], 0), ["theirs"], 1)
    assert values(one, config()) == {"doc": ["theirs"], "n": 1}
    after = step(one, mine, doc, 2)
    assert values(one, after) == {"doc": ["mine"], "n": 2}


# Lists


def test_list_allows_reads_and_puts_during_iteration(saver: HoldfastSaver) -> None:
    where = config()
    for n in range(250):
        where = put(saver, where, {"n": n})
    seen = []
    for item in saver.list(config()):
        again = saver.get_tuple(item.config)
        assert again is not None
        assert again.checkpoint == item.checkpoint
        seen.append(item.checkpoint["channel_values"]["n"])
        if len(seen) % 50 == 0:
            where = put(saver, where, {"n": "new"})
    assert seen == list(range(249, -1, -1))


def test_list_reads_states_only_when_they_are_consumed(
    saver: HoldfastSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast import Version

    where = config()
    for n in range(30):
        where = put(saver, where, {"n": n}, step=n)
    read: list[int] = []
    real = Version.copy

    def counting(self: Version, path: Any = "") -> Any:
        if not path:
            read.append(self.number)
        return real(self, path)

    monkeypatch.setattr(Version, "copy", counting)
    found = saver.list(config())
    assert read == []
    next(found)
    assert len(read) == 1
    assert [item.metadata["step"] for item in saver.list(config(), filter={"step": 7})] == [7]
    assert len(read) == 2


def test_list_filter_compares_values_and_is_never_code(saver: HoldfastSaver) -> None:
    where = put(saver, config(), {}, **{"a'b\") OR 1=1 --": 1, "nested": {"k": [1, None]}, "user": "x"})
    put(saver, where, {}, user="x' OR '1'='1")
    hostile = "a'b\") OR 1=1 --"
    for wanted, count in (
        ({hostile: 1}, 1),
        ({hostile: 2}, 0),
        ({"user": "x' OR '1'='1"}, 1),
        ({"user": "x"}, 1),
        ({"nested": {"k": [1, None]}}, 1),
        ({"nested": {"k": [1]}}, 0),
        ({"$.user": "x"}, 0),
        ({"missing": None}, 2),
        ({}, 2),
    ):
        assert len(list(saver.list(config(), filter=wanted))) == count, wanted


def test_list_without_config_covers_all_threads_and_namespaces(saver: HoldfastSaver, hf: Holdfast) -> None:
    hf.history("no thread").commit({"x": 1})
    for thread in ("a", "b"):
        for namespace in ("", "sub:1"):
            put(saver, config(thread, checkpoint_ns=namespace))
    assert len(list(saver.list(None))) == 4
    found = list(saver.list(config("a")))
    assert [item.config["configurable"]["checkpoint_ns"] for item in found] == ["sub:1", ""]
    assert len(list(saver.list(config("a", checkpoint_ns="sub:1")))) == 1
    assert ids(found) == sorted(ids(found), reverse=True)


def test_old_checkpoint_is_found_by_a_new_process(tmp_path: Path) -> None:
    made = []
    with HoldfastSaver(tmp_path / "runs.db") as saver:
        where = config()
        for n in range(150):
            where = put(saver, where, {"n": n})
            if n % 3 == 0:
                for task in range(n % 7):
                    saver.put_writes(where, [("x", task)], f"task-{task}")
            made.append(where)
    with HoldfastSaver(tmp_path / "runs.db") as saver:
        for n in random.Random(3).sample(range(150), 150):
            found = saver.get_tuple(made[n])
            assert found is not None
            assert found.checkpoint["channel_values"]["n"] == n
            assert len(found.pending_writes or ()) == (n % 7 if n % 3 == 0 else 0)
        for missing in ("00000000-0000-0000-0000-000000000000", "ffff", str(checkpoint()["id"]), "1" * 36):
            assert saver.get_tuple(config(checkpoint_id=missing)) is None
        saver.hf.history("t").drop(range(1, 60))
        assert saver.get_tuple(made[0]) is None
        for n in range(80, 150, 7):
            assert values(saver, made[n]) == {"n": n}


def test_checkpoint_ids_that_do_not_increase_are_found(saver: HoldfastSaver) -> None:
    where = config()
    names = [f"id-{n}" for n in random.Random(5).sample(range(100), 40)]
    for name in names:
        base = {"configurable": {"checkpoint_ns": "", **where["configurable"]}}
        where = saver.put(base, checkpoint({"name": name}, name), {"source": "loop", "step": 0}, {})
    for name in names:
        assert values(saver, config(checkpoint_id=name)) == {"name": name}
    assert values(saver, config()) == {"name": names[-1]}
    assert saver.get_tuple(config(checkpoint_id="id-none")) is None


def test_thread_takes_concurrent_writers(hf: Holdfast) -> None:
    start = put(HoldfastSaver(hf), config(), {"x": "start"})
    ends: dict[int, Any] = {}

    def write(name: int) -> None:
        saver, where = HoldfastSaver(hf), start
        for n in range(5):
            saver.put_writes(where, [("x", (name, n))], f"task-{name}-{n}")
            where = put(saver, where, {"x": (name, n)})
        ends[name] = where

    writers = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    saver = HoldfastSaver(hf)
    assert len(list(saver.list(config()))) == 21
    for name, end in ends.items():
        at: Any = saver.get_tuple(end)
        chain = []
        while at.parent_config is not None:
            chain.append(at.checkpoint["channel_values"]["x"])
            at = saver.get_tuple(at.parent_config)
        assert chain == [(name, n) for n in (4, 3, 2, 1, 0)]


def test_thread_deleted_and_started_again_by_others_is_read_correctly(hf: Holdfast) -> None:
    mine, theirs = HoldfastSaver(hf), HoldfastSaver(hf)
    start = put(mine, config(), {"x": 0})
    gone = [put(mine, start, {"x": n}) for n in range(5)]
    assert values(mine, gone[0]) == {"x": 0}
    theirs.delete_thread("t")
    assert mine.get_tuple(gone[0]) is None
    again = put(theirs, config(), {"x": "new"})
    fresh = [put(theirs, again, {"x": f"new-{n}"}) for n in range(9)]
    assert [values(mine, where)["x"] for where in fresh] == [f"new-{n}" for n in range(9)]
    assert mine.get_tuple(gone[0]) is None
    assert values(mine, put(mine, fresh[3], {"x": "on"})) == {"x": "on"}
