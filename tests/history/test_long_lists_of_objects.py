"""Long lists of objects: read from few packs, stored in little space, whatever happens to their items."""

from __future__ import annotations

import gc
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import History, Holdfast, Retention, thaw

COUNT = 150


@dataclass
class Message:
    text: str
    tags: set[str] = field(default_factory=set)
    file: Any = None


holdfast.register(Message, "long_lists.Message")


def message(number: int) -> Message:
    # Digits shrink to about half, as words do.
    return Message(f"message {number}: " + random.Random(number).randbytes(150).hex(), {f"tag-{number}"})


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(tmp_path / "runs.db", durability="fast") as opened:
        yield opened


@pytest.fixture
def log(hf: Holdfast) -> History:
    """A run that appended one message in each version."""
    log = hf.history("talk")
    state: dict[str, Any] = {"messages": []}
    log.commit(state)
    for number in range(COUNT):
        state["messages"].append(message(number))
        log.commit(state)
    return log


def read_again(hf: Holdfast, log: History) -> History:
    """Return the history without anything that was cached."""
    log.context.drop_reader(log.id)
    gc.collect()
    return hf.history(log.id)


def packs_read(hf: Holdfast, log: History, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Read the state of the head; return the versions whose packs that takes."""
    store = log.context.store
    read: set[int] = set()
    packs = store.packs

    def counted(run: int, numbers: Any) -> Any:
        read.update(numbers)
        return packs(run, numbers)

    log = read_again(hf, log)
    monkeypatch.setattr(store, "packs", counted)
    thaw(log.head.state)
    monkeypatch.undo()
    return read


def test_list_that_grew_by_one_is_read_from_few_packs(
    hf: Holdfast, log: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(packs_read(hf, log, monkeypatch)) < COUNT // 2
    assert thaw(log.head.state)["messages"] == [message(number) for number in range(COUNT)]


def test_replaced_object_of_a_long_list_is_written_alone(hf: Holdfast, log: History) -> None:
    appended = log.head.size
    expected = [message(number) for number in range(COUNT)]
    state = thaw(log.head.state)
    for number in (5, 6, 40):
        state["messages"][number] = expected[number] = message(1000 + number)
        assert log.commit(state).size < 2 * appended
    for number in (7, 41):
        with log.edit() as draft:
            draft["messages"][number] = expected[number] = Message("short")
        assert log.head.size < 2 * appended
    log = read_again(hf, log)
    assert thaw(log.head.state)["messages"] == expected
    assert log.blame("messages[6]").version.number == COUNT + 3
    assert log.blame("messages[8]").version.number == 10


def test_list_of_short_and_long_items_is_read_from_few_packs(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question is short, the answer long."""
    log = hf.history("chat")
    log.commit({"chat": [], "texts": []})
    for number in range(COUNT):
        text = "yes" if number % 2 else message(number).text
        with log.edit() as draft:
            draft["chat"].append({"role": "user" if number % 2 else "assistant", "content": text})
            draft["texts"].append(text)
    assert len(packs_read(hf, log, monkeypatch)) < COUNT // 2


def test_list_whose_old_objects_are_replaced_after_a_restart_is_exact(hf: Holdfast, log: History) -> None:
    log = read_again(hf, log)
    expected = [message(number) for number in range(COUNT)]
    for number in (3, 70, 4, 3, 149, 0):
        with log.edit() as draft:
            draft["messages"][number] = Message(f"again {number}")
        expected[number] = Message(f"again {number}")
        log = read_again(hf, log)
        assert thaw(log.head.state)["messages"] == expected
    with log.edit() as draft:
        del draft["messages"][31:34]
        draft["messages"].extend(message(number) for number in range(200, 240))
    expected[31:34] = []
    expected += [message(number) for number in range(200, 240)]
    assert thaw(read_again(hf, log).head.state)["messages"] == expected
    assert log.verify().ok


def test_objects_of_a_sealed_list_survive_pruning(hf: Holdfast, log: History) -> None:
    log.prune(Retention(last=1))
    log = read_again(hf, log)
    assert thaw(log.head.state)["messages"] == [message(number) for number in range(COUNT)]
    assert hf.verify().ok


def test_artifacts_in_objects_of_a_long_list_are_kept(hf: Holdfast) -> None:
    log = hf.history("files")
    state: dict[str, Any] = {"messages": []}
    log.commit(state)
    for number in range(70):
        file = holdfast.artifact(f"content {number}".encode() * 50, name=f"{number}.txt")
        state["messages"].append(Message(f"{number} " * 60, file=file if number % 10 == 0 else None))
        log.commit(state)
    log.prune(Retention(last=1))
    hf.gc(grace=0)
    log = read_again(hf, log)
    for number in range(0, 70, 10):
        held = thaw(log.head.state)["messages"][number].file
        assert held.read() == f"content {number}".encode() * 50
    assert hf.verify().ok
