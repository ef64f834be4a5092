"""Writers that overlap: puts after an edit by hand, puts of one checkpoint, and pruning while a thread is used."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_graphs import checkpoint, config, delta, put

import holdfast
from holdfast import HoldfastError, NotFound
from holdfast.integrations.langgraph import HoldfastSaver, layout

pytest_plugins = ["postgres_fixtures"]

Savers = tuple[HoldfastSaver, HoldfastSaver]


@pytest.fixture(params=["sqlite", "postgres"])
def savers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Savers]:
    """Two savers of one store, as two processes have them."""
    where = tmp_path / "runs.db" if request.param == "sqlite" else request.getfixturevalue("url")
    with HoldfastSaver(where) as one, HoldfastSaver(where) as other:
        yield one, other
        assert one.hf.verify().ok


def thread_of(saver: HoldfastSaver, chosen: Any) -> Any:
    return saver.thread(layout.parse_config(chosen))


def call_before(owner: Any, name: str, function: Callable[[], Any]) -> None:
    """Call a function before the next call of a method."""
    method = getattr(owner, name)

    def wrapped(*args: Any, **options: Any) -> Any:
        setattr(owner, name, method)
        function()
        return method(*args, **options)

    setattr(owner, name, wrapped)


def edit(saver: HoldfastSaver, values: dict[str, Any]) -> None:
    """Edit the head of the thread by hand."""
    log = saver.hf.history("t")
    log.patch({("channel_values", name): value for name, value in values.items()}, after=log.head)


def values_of(saver: HoldfastSaver, chosen: Any) -> Any:
    found = saver.get_tuple(chosen)
    return None if found is None else found.checkpoint["channel_values"]


# Two writers


@pytest.mark.parametrize("moment", ["attach", "commit"])
def test_puts_of_two_writers_after_an_edit_by_hand_are_both_stored(savers: Savers, moment: str) -> None:
    one, other = savers
    first = put(one, config(), {"x": 1})
    edit(one, {"x": 2})
    made: list[Any] = []
    call_before(thread_of(one, first).history, moment, lambda: made.append(put(other, first, {"x": "other"})))
    made.append(put(one, first, {"x": "one"}))
    for saver in savers:
        assert [values_of(saver, each) for each in made] == [{"x": "other"}, {"x": "one"}]
        assert values_of(saver, first) == {"x": 2}
    assert len([*one.list(config())]) == 3


def test_writes_of_an_edited_checkpoint_are_read_after_its_writers_collided(savers: Savers) -> None:
    one, other = savers
    first = put(one, config(), {"x": 1})
    edit(one, {"x": 2})
    call_before(thread_of(one, first).history, "commit", lambda: put(other, first, {"x": "other"}))
    put(one, first, {"x": "one"})
    for number, saver in enumerate(savers):
        saver.put_writes(first, [("x", number)], f"task {number}")
    for saver in (*savers, HoldfastSaver(one.hf)):
        found = saver.get_tuple(first)
        assert found is not None
        assert [tuple(write) for write in found.pending_writes or []] == [
            ("task 0", "x", 0),
            ("task 1", "x", 1),
        ]


@pytest.mark.parametrize("moment", ["attach", "commit"])
def test_checkpoint_that_two_writers_replace_is_stored_by_both(savers: Savers, moment: str) -> None:
    one, other = savers
    first = put(one, config(), {"x": 1})
    name = first["configurable"]["checkpoint_id"]

    def replace(saver: HoldfastSaver, value: str) -> Any:
        where = config(checkpoint_ns="")
        return saver.put(where, checkpoint({"x": value}, name), {"source": "loop", "step": 1}, {})

    call_before(thread_of(one, first).history, moment, lambda: replace(other, "other"))
    replace(one, "one")
    for saver in (*savers, HoldfastSaver(one.hf)):
        assert values_of(saver, first) == {"x": "one"}
        assert len([*saver.list(config())]) == 1
    stored = [version.get("channel_values.x") for version in one.hf.history("t").versions()]
    assert stored == ["one", "other", 1]


def replace(saver: HoldfastSaver, first: Any, value: Any) -> None:
    """Put the first checkpoint of the thread again."""
    again = checkpoint({"x": value}, first["configurable"]["checkpoint_id"])
    saver.put(config(checkpoint_ns=""), again, {"source": "loop", "step": 1}, {})


def writes_of(saver: HoldfastSaver, chosen: Any) -> list[Any]:
    found = saver.get_tuple(chosen)
    return [] if found is None else [value for _, _, value in found.pending_writes or []]


def test_writes_during_a_put_that_is_repeated_are_stored(savers: Savers) -> None:
    one, other = savers
    first = put(one, config(), {"x": 1})
    edit(one, {"x": 2})

    def write_and_edit() -> None:
        # A second thread of the same process, and then another process.
        writer = threading.Thread(target=lambda: one.put_writes(first, [("x", "written")], "task"))
        writer.start()
        writer.join(60)
        edit(other, {"x": 3})

    # After the thread has found the edited head, and copied its writes.
    history = thread_of(one, first).history
    call_before(history, "attach", lambda: call_before(history, "commit", write_and_edit))
    put(one, first, {"x": 4})
    for saver in (*savers, HoldfastSaver(other.hf)):
        assert writes_of(saver, first) == ["written"]


def test_writes_to_a_checkpoint_that_was_replaced_twice_are_read(savers: Savers) -> None:
    one, other = savers
    first = put(one, config(), {"x": 1})
    replace(one, first, 2)
    assert values_of(other, first) == {"x": 2}
    other.put_writes(first, [("x", "early")], "task 0")
    replace(one, first, 3)
    other.put_writes(first, [("x", "late")], "task 1")
    for saver in (*savers, HoldfastSaver(one.hf)):
        assert values_of(saver, first) == {"x": 3}
        assert writes_of(saver, first) == ["early", "late"]


def test_checkpoint_that_is_replaced_after_a_pruning_has_the_new_values(savers: Savers) -> None:
    one, other = savers
    first = put(one, config(), {"x": 1})
    replace(one, first, 2)
    one.prune(["t"])
    replace(one, first, 3)
    for saver in (*savers, HoldfastSaver(other.hf)):
        assert values_of(saver, first) == {"x": 3}
        assert [item.checkpoint["channel_values"] for item in saver.list(config())] == [{"x": 3}]


def test_writes_are_kept_if_the_head_is_edited_while_it_is_pruned(savers: Savers) -> None:
    one, other = savers
    last = put(one, put(one, config(), {"x": 1}), {"x": 2})
    one.put_writes(last, [("x", "written")], "task")
    store: Any = other.hf.history("t").context.store
    call_before(store, "prune", lambda: edit(one, {"x": 3}))
    other.prune(["t"])
    for saver in savers:
        assert values_of(saver, config()) == {"x": 3}
        assert writes_of(saver, config()) == ["written"]


def test_delta_checkpoint_after_a_pruned_parent_is_refused(savers: Savers) -> None:
    one, other = savers
    about: Any = {"source": "loop", "step": 1, "counters_since_delta_snapshot": {"items": 1}}

    def next_of(saver: HoldfastSaver, where: Any) -> Any:
        made = saver.put(where, checkpoint(), about, {})
        saver.put_writes(made, [("items", "new")], "task")
        return made

    # A parent that was never stored, in a run from which nothing was removed, has no items.
    last = next_of(one, config(checkpoint_ns="", checkpoint_id=checkpoint()["id"]))
    for _ in range(2):
        last = next_of(one, last)
    known = other.get_tuple(config())
    assert known is not None
    next_of(one, last)
    one.prune(["t"])
    with pytest.raises(NotFound, match="continue from the latest checkpoint"):
        next_of(other, known.config)


def test_put_of_a_checkpoint_that_was_removed_meanwhile_is_stored(savers: Savers) -> None:
    one, other = savers
    first = put(one, config(), {"x": 1})
    new = checkpoint({"x": 2})
    about: Any = {"source": "loop", "step": 2}
    stored: list[Any] = []

    def store() -> None:
        stored.append(other.put(first, checkpoint({"x": "other"}, new["id"]), about, {}))

    def remove() -> None:
        put(other, stored[0], {"x": 3})
        other.prune(["t"])

    call_before(thread_of(one, first), "_append", store)
    call_before(thread_of(one, first), "_put_again", remove)
    made = one.put(first, new, about, {})
    assert values_of(other, made) == {"x": 2}


# Pruning while a thread is used


def test_put_of_a_branch_is_stored_if_its_parent_is_pruned(savers: Savers) -> None:
    one, other = savers
    first = put(one, config(), {"x": 1})
    put(one, first, {"x": 2})
    call_before(thread_of(one, first).history, "commit", lambda: other.prune(["t"]))
    made = put(one, first, {"x": 3})
    for saver in savers:
        assert values_of(saver, made) == {"x": 3}
        assert values_of(saver, first) is None


def test_put_after_an_edited_head_is_stored_if_versions_are_pruned(savers: Savers) -> None:
    one, other = savers
    first = put(one, config(), {"x": [1], "y": 1})
    edit(one, {"y": 2})
    call_before(thread_of(one, first).checkpoints, "part", lambda: other.prune(["t"]))
    made = put(one, first, {"x": [1], "y": 3})
    assert values_of(other, made) == {"x": [1], "y": 3}
    assert values_of(other, first) == {"x": [1], "y": 2}


@pytest.mark.parametrize("method", ["at", "attachments", "commit"])
def test_delta_channel_is_whole_if_its_head_is_pruned(savers: Savers, method: str) -> None:
    one, other = savers
    graph = delta(one)
    graph.invoke({"items": ["in"], "turns": 0}, config())
    head = other.get_tuple(config())
    assert head is not None

    def move_on_and_prune() -> None:
        delta(other).update_state(config(), {"items": ["other"]}, as_node="a")
        other.prune(["t"])

    call_before(thread_of(one, config(checkpoint_ns="")).history, method, move_on_and_prune)
    graph.update_state(head.config, {"items": ["one"]}, as_node="b")
    found = [state.values["items"] for state in graph.get_state_history(config())]
    assert sorted(items[-1] for items in found) == ["one", "other"]
    assert all(items[:-1] == found[0][:-1] for items in found)


def test_reads_during_pruning_return_the_checkpoint_that_is_kept(savers: Savers) -> None:
    one, other = savers
    long = [{"number": number, "text": "word " * 40} for number in range(200)]
    first = put(one, config(), {"x": long, "n": 1})
    found = one.get_tuple(first)
    assert found is not None
    new: Any = {**checkpoint({"x": long, "n": 2}), "channel_versions": {"x": 1, "n": 2}}
    last = one.put(first, new, {"source": "loop", "step": 2}, {"n": 2})
    reader = HoldfastSaver(other.hf)
    thread = thread_of(reader, last)
    call_before(thread, "_with_writes", lambda: one.prune(["t"]))
    assert values_of(reader, config()) == {"x": long, "n": 2}
    put(one, last, {"x": long, "n": 3})
    call_before(thread, "_with_writes", lambda: one.prune(["t"]))
    (item,) = reader.list(config())
    assert item.checkpoint["channel_values"]["n"] == 3
    latest = put(one, item.config, {"x": long, "n": 4})
    call_before(thread, "_with_writes", lambda: one.prune(["t"]))
    (item,) = reader.list(config(), filter={"source": "loop"})
    assert item.config == latest


@pytest.mark.parametrize("moment", ["attach", "commit"])
def test_two_prunings_after_an_edit_by_hand_both_end(savers: Savers, moment: str) -> None:
    one, other = savers
    first = put(one, config(), {"x": 1})
    put(one, first, {"x": 2})
    edit(one, {"x": 3})
    call_before(thread_of(one, config()).history, moment, lambda: other.prune(["t"]))
    one.prune(["t"])
    for saver in savers:
        assert [item.checkpoint["channel_values"] for item in saver.list(config())] == [{"x": 3}]


def test_pruning_is_repeated_while_a_graph_puts_checkpoints(
    savers: Savers, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = savers
    last = put(one, config(), {"x": 0})
    store: Any = one.hf.history("t").context.store
    prune, left = store.prune, [*range(25)]

    def disturbed(*args: Any) -> Any:
        nonlocal last
        if left:
            last = put(other, last, {"x": left.pop()})
        return prune(*args)

    monkeypatch.setattr(store, "prune", disturbed)
    last = put(other, last, {"x": "more than one"})
    one.prune(["t"])
    assert not left
    assert [item.config for item in other.list(config())] == [last]


# Content that is missing for good


@pytest.mark.timeout(60)
def test_checkpoint_whose_artifact_is_missing_is_reported(tmp_path: Path) -> None:
    values: list[dict[str, Any]] = [{"x": os.urandom(300_000)}, {"x": 2, "y": 1}]
    with holdfast.open(tmp_path / "runs.db", artifacts=tmp_path / "artifacts") as hf:
        first = put(HoldfastSaver(hf), config(), values[0])
        second = put(HoldfastSaver(hf), first, values[1])
    for file in (tmp_path / "artifacts").rglob("*"):
        if file.is_file():
            file.unlink()
    with holdfast.open(tmp_path / "runs.db", artifacts=tmp_path / "artifacts") as hf:
        saver = HoldfastSaver(hf)
        for read in (
            lambda: saver.get_tuple(first),
            lambda: [*saver.list(config())],
            lambda: [*saver.list(first)],
            lambda: saver.get_delta_channel_history(config=second, channels=["x"]),
            lambda: put(saver, first, {"x": 3}),
        ):
            with pytest.raises(NotFound, match="artifact"):
                read()
        assert values_of(saver, second) == values[1]
        assert values_of(saver, put(saver, second, {"x": 3})) == {"x": 3}


def test_put_of_an_artifact_that_is_missing_is_refused(savers: Savers) -> None:
    one, _ = savers
    missing = holdfast.Artifact("0" * 64, 5)
    for where in (config(), config("other")):
        with pytest.raises(HoldfastError):
            put(one, where, {"x": missing})


def test_delta_channel_whose_start_was_pruned_is_not_stored_empty(savers: Savers) -> None:
    one, other = savers
    graph = delta(one)
    graph.invoke({"items": ["in"], "turns": 0}, config())
    thread = thread_of(one, config(checkpoint_ns=""))

    def move_on_and_prune() -> None:
        delta(other).update_state(config(), {"items": ["other"]}, as_node="a")
        other.prune(["t"])

    call_before(thread, "_append", move_on_and_prune)
    with pytest.raises(NotFound, match="continue from the latest checkpoint"):
        graph.update_state(config(), {"items": ["one"]}, as_node="b")
    assert graph.get_state(config()).values["items"][-1] == "other"
    graph.update_state(config(), {"items": ["one"]}, as_node="b")
    assert graph.get_state(config()).values["items"][-2:] == ["other", "one"]
