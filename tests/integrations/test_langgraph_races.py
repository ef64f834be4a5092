"""Writers that overlap: puts after an edit by hand, puts of one checkpoint, and pruning while a thread is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_graphs import checkpoint, config, put

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
