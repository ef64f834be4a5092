"""Concurrent writers, late writers, branches: each has its own timeline, nothing is mixed or lost."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_graphs import checkpoint, config, ids, put

import holdfast
from holdfast import Holdfast, StaleVersion
from holdfast.integrations.langgraph import HoldfastSaver


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


def test_stale_put_replaces_nothing(saver: HoldfastSaver, hf: Holdfast) -> None:
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


def test_branch_has_no_writes_of_the_abandoned_one(saver: HoldfastSaver) -> None:
    start = put(saver, config(), {})
    saver.put_writes(start, [("d", "first")], "task-1", "~a")
    mid = put(saver, start, {}, **counted(1))
    saver.put_writes(mid, [("d", "abandoned")], "task-2", "~a")
    left = put(saver, mid, {}, **counted(2))
    plain = put(saver, mid, {}, **counted(2))
    assert writes(saver, plain) == []
    log = saver.hf.history("t")
    assert log.at(log.head.parent or 0).note == f"checkpoint {mid['configurable']['checkpoint_id']}"
    assert delta_of(saver, left) == ["first", "abandoned"]
    assert delta_of(saver, plain) == ["first"]
    saver.put_writes(mid, [("d", "again")], "task-2", "~a")
    assert writes(saver, mid) == [("task-2", "d", "again")]
    fork = put(saver, mid, {}, **counted(2))
    assert delta_of(saver, fork) == ["first", "again"]
    assert delta_of(saver, left) == ["first", "abandoned"]


def test_writes_of_one_task_by_two_writers_are_not_mixed(hf: Holdfast) -> None:
    one, other = HoldfastSaver(hf), HoldfastSaver(hf)
    start = put(one, config(), {})
    one.put_writes(start, [("d", "one")], "task", "~a")
    other.put_writes(start, [("d", "other")], "task", "~a")
    assert writes(one, start) == [("task", "d", "one")]
    mine, yours = put(one, start, {}, **counted(1)), put(other, start, {}, **counted(1))
    assert delta_of(one, mine) == ["one"]
    assert delta_of(one, yours) == ["other"]


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
