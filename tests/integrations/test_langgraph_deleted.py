"""Threads that another process deletes, prunes or copies while they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_graphs import checkpoint, config, put

from holdfast import InvalidCall, StaleVersion
from holdfast.integrations.langgraph import HoldfastSaver, layout

pytest_plugins = ["postgres_fixtures"]


@pytest.fixture(params=["sqlite", "postgres"])
def savers(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[HoldfastSaver, HoldfastSaver]]:
    """Two savers of one store, as two processes have them."""
    where = tmp_path / "runs.db" if request.param == "sqlite" else request.getfixturevalue("url")
    with HoldfastSaver(where) as one, HoldfastSaver(where) as other:
        yield one, other
        assert one.hf.verify().ok


def call_once(owner: Any, name: str, *, before: Callable[[], Any] | None = None, after: Any = None) -> None:
    """Call functions before and after the next call of a method."""
    method = getattr(owner, name)

    def wrapped(*args: Any, **options: Any) -> Any:
        setattr(owner, name, method)
        if before is not None:
            before()
        result = method(*args, **options)
        if after is not None:
            after()
        return result

    setattr(owner, name, wrapped)


def thread_of(saver: HoldfastSaver, chosen: Any) -> Any:
    return saver.thread(layout.parse_config(chosen))


def values_of(saver: HoldfastSaver) -> Any:
    found = saver.get_tuple(config())
    return None if found is None else found.checkpoint["channel_values"]


@pytest.mark.parametrize(
    ("owner", "method"),
    [(lambda thread: thread.checkpoints, "id_of"), (lambda thread: thread, "_note_rollbacks")],
)
def test_put_after_the_thread_was_deleted_starts_it_again(
    savers: tuple[HoldfastSaver, HoldfastSaver], owner: Any, method: str
) -> None:
    one, other = savers
    first = put(other, config(), {"x": 1})
    call_once(owner(thread_of(one, first)), method, after=lambda: other.delete_thread("t"))
    put(one, first, {"x": 2})
    assert values_of(other) == {"x": 2}


def test_put_of_a_branch_after_the_thread_was_deleted_starts_it_again(
    savers: tuple[HoldfastSaver, HoldfastSaver],
) -> None:
    one, other = savers
    first = put(one, config(), {"x": 1})
    put(one, first, {"x": 2})
    call_once(thread_of(one, first), "_branch", before=lambda: other.delete_thread("t"))
    put(one, first, {"x": 3})
    assert values_of(other) == {"x": 3}


def test_put_writes_is_repeated_as_often_as_the_thread_is_deleted(
    savers: tuple[HoldfastSaver, HoldfastSaver],
) -> None:
    one, other = savers
    first = put(one, config(), {"x": 1})
    history = thread_of(one, first).history
    attach = history.attach
    left = [1, 2, 3]

    def deleted_first(*args: Any, **options: Any) -> Any:
        if left:
            left.pop()
            other.delete_thread("t")
        return attach(*args, **options)

    history.attach = deleted_first
    one.put_writes(first, [("x", 2)], "task")
    assert not left
    again = checkpoint({"x": 1}, first["configurable"]["checkpoint_id"])
    one.put(config(checkpoint_ns=""), again, {"source": "loop", "step": 1, "parents": {}}, {})
    found = other.get_tuple(first)
    assert found is not None
    assert [tuple(write) for write in found.pending_writes or []] == [("task", "x", 2)]


def test_run_of_another_program_is_still_refused(savers: tuple[HoldfastSaver, HoldfastSaver]) -> None:
    one, other = savers
    other.hf.history("t").commit({"mine": 1}, expected=0)
    for attempt in (
        lambda: put(one, config(), {"x": 1}),
        lambda: one.put_writes(config(checkpoint_id="c"), [("x", 1)], "task"),
    ):
        with pytest.raises(InvalidCall, match="not a thread"):
            attempt()
    assert other.hf.history("t").head.copy() == {"mine": 1}


def test_list_omits_a_thread_that_is_deleted_meanwhile(savers: tuple[HoldfastSaver, HoldfastSaver]) -> None:
    one, other = savers
    for name in ("t", "u"):
        put(one, config(name), {"x": 1})
    call_once(one, "_all_runs", after=lambda: other.delete_thread("t"))
    assert [item.config["configurable"]["thread_id"] for item in one.list(None)] == ["u"]


def test_prune_and_deletion_of_runs_skip_a_thread_that_is_deleted_meanwhile(
    savers: tuple[HoldfastSaver, HoldfastSaver],
) -> None:
    one, other = savers
    for name in ("t", "u"):
        first = put(one, config(name), {"x": 1})
        put(one, first, {"x": 2})
    call_once(one, "_keep_latest", before=lambda: other.delete_thread("t"))
    one.prune(["t", "u"])
    assert len([*one.list(None)]) == 1
    call_once(one, "_delete_from", before=lambda: other.delete_thread("u"))
    one.delete_for_runs(["some run"])
    assert [*one.list(None)] == []


def test_copy_that_fails_leaves_nothing(savers: tuple[HoldfastSaver, HoldfastSaver]) -> None:
    one, _ = savers
    for namespace in ("", "sub:1"):
        put(one, config("source", checkpoint_ns=namespace), {"x": 1})
    import_run = one.hf.import_run
    calls = []

    def failing(*args: Any, **options: Any) -> Any:
        calls.append(options)
        if len(calls) == 2:
            raise StaleVersion("as if the store were busy")
        return import_run(*args, **options)

    one.hf.import_run = failing  # type: ignore[method-assign]
    with pytest.raises(StaleVersion):
        one.copy_thread("source", "target")
    assert [run.id for run in one.hf.iter_runs() if run.id.startswith("target")] == []
    one.copy_thread("source", "target")
    assert len([*one.list(config("target", checkpoint_ns=None))]) == 2


def test_copy_repeats_an_export_that_was_disturbed(savers: tuple[HoldfastSaver, HoldfastSaver]) -> None:
    one, _ = savers
    put(one, config("source"), {"x": 1})

    def disturb() -> None:
        raise StaleVersion("as if versions were pruned meanwhile")

    call_once(one.hf, "export_run", after=disturb)
    one.copy_thread("source", "target")
    assert len([*one.list(config("target"))]) == 1


def test_writes_that_are_pruned_meanwhile_are_stored_again(
    savers: tuple[HoldfastSaver, HoldfastSaver],
) -> None:
    one, other = savers
    first = put(one, config(), {"x": 1})
    one.put_writes(first, [("x", 1)], "task")

    def prune() -> None:
        put(other, first, {"x": 2})
        other.prune(["t"])

    call_once(thread_of(one, first).history, "attach", after=prune)
    one.put_writes(first, [("x", 1)], "task")
    assert values_of(other) == {"x": 2}


@pytest.mark.parametrize("writes", [[1], ["ab"], [("a",)], [(1, 2)], "ab", None])
def test_writes_that_are_not_pairs_are_refused(
    savers: tuple[HoldfastSaver, HoldfastSaver], writes: Any
) -> None:
    first = put(savers[0], config(), {"x": 1})
    with pytest.raises(InvalidCall, match="write"):
        savers[0].put_writes(first, writes, "task")
