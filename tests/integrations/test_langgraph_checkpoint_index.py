"""A checkpoint is found by its id in a few reads of versions, however unevenly ids increase."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from langgraph_graphs import checkpoint, config, put

import holdfast
from holdfast import Holdfast
from holdfast.integrations.langgraph import HoldfastSaver
from holdfast.integrations.langgraph.layout import parse_config

_MANY = 300


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open(tmp_path / "runs.db", durability="fast") as opened:
        yield opened


def evenly(n: int) -> int:
    return 1000 * n


def unevenly(n: int) -> int:
    return 1000 * n + random.Random(n).randrange(900)


def in_bursts(n: int) -> int:
    return n + 10**9 * (n // 60)


def by_leaps(n: int) -> int:
    return 1 << (n // 6)


def name(at: int) -> str:
    """An id as LangGraph makes them: 60 bits of time, then others."""
    digits = f"{at:015x}"
    return f"{digits[:8]}-{digits[8:12]}-6{digits[12:]}-8000-000000000000"


def put_many(hf: Holdfast, when: Callable[[int], int]) -> list[Any]:
    """Put many checkpoints, each with a write; return their configs."""
    saver, where, made = HoldfastSaver(hf), config(checkpoint_ns=""), []
    for n in range(_MANY):
        where = saver.put(where, checkpoint({"n": n}, name(when(n) + n)), {"source": "loop", "step": n}, {})
        saver.put_writes(where, [("n", n)], "task")
        made.append(where)
    return made


def count_reads(saver: HoldfastSaver, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows with each read of versions by the saver."""
    asked: list[int] = []
    history = saver.thread(parse_config(config())).history
    ask = history.versions

    def counted(**given: Any) -> Any:
        asked.append(given["limit"])
        return ask(**given)

    monkeypatch.setattr(history, "versions", counted)
    return asked


def number(saver: HoldfastSaver, where: Any) -> Any:
    found = saver.get_tuple(where)
    assert found is not None
    assert found.pending_writes == [("task", "n", found.checkpoint["channel_values"]["n"])]
    return found.checkpoint["channel_values"]["n"]


@pytest.mark.parametrize(
    ("when", "first", "mean"),
    [(evenly, 5, 2.0), (unevenly, 5, 2.5), (in_bursts, 12, 3.5), (by_leaps, 16, 4.0)],
)
def test_checkpoint_is_found_in_few_reads(
    hf: Holdfast, when: Callable[[int], int], first: int, mean: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = put_many(hf, when)
    cold = []
    for n in range(7, _MANY, 20):
        saver = HoldfastSaver(hf)
        asked = count_reads(saver, monkeypatch)
        assert number(saver, made[n]) == n
        cold.append(len(asked))
    assert max(cold) <= first, cold
    saver = HoldfastSaver(hf)
    asked = count_reads(saver, monkeypatch)
    order = random.Random(1).sample(range(_MANY - 1), 100)
    for n in order:
        assert number(saver, made[n]) == n
    assert len(asked) <= mean * len(order)
    asked.clear()
    for n in order:
        assert number(saver, made[n]) == n
    assert len(asked) <= 1.2 * len(order)


@pytest.mark.parametrize("when", [evenly, unevenly, in_bursts, by_leaps])
def test_missing_checkpoint_is_not_found(hf: Holdfast, when: Callable[[int], int]) -> None:
    made = put_many(hf, when)
    saver = HoldfastSaver(hf)
    there = {where["configurable"]["checkpoint_id"] for where in made}
    for n in range(0, _MANY, 9):
        for off in (-1, 1):
            wanted = name(max(when(n) + n + off, 0))
            found = saver.get_tuple(config(checkpoint_id=wanted))
            assert (found is not None) == (wanted in there)
    for wanted in ("0", "zzz", name(2**59)):
        assert saver.get_tuple(config(checkpoint_id=wanted)) is None


def test_checkpoints_are_found_after_versions_were_dropped(hf: Holdfast) -> None:
    made = put_many(hf, unevenly)
    saver = HoldfastSaver(hf)
    assert [number(saver, made[n]) for n in (10, 150, 290)] == [10, 150, 290]
    last = hf.history("t").head.number
    hf.history("t").drop([n for n in range(1, last) if n < 90 or 200 < n < 400 or 410 < n < 580])
    for n, where in enumerate(made[:-1]):
        found = saver.get_tuple(where)
        kept = [v for v in (2 * n + 1, 2 * n + 2) if 90 <= v <= 200 or 400 <= v <= 410 or v >= 580]
        assert (found is not None) == bool(kept), n
        assert found is None or found.checkpoint["channel_values"] == {"n": n}


def test_newest_version_of_a_checkpoint_with_many_writes_is_found(hf: Holdfast) -> None:
    saver = HoldfastSaver(hf)
    start = put(saver, config())
    many = put(saver, start)
    for task in range(70):
        saver.put_writes(many, [("x", task)], f"task-{task:02}")
    put(saver, many)
    found = HoldfastSaver(hf).get_tuple(many)
    assert found is not None
    assert [value for _, _, value in found.pending_writes or ()] == list(range(70))


def test_index_is_dropped_when_the_thread_was_started_again(hf: Holdfast) -> None:
    mine, theirs = HoldfastSaver(hf), HoldfastSaver(hf)

    def talk(saver: HoldfastSaver, what: str) -> list[Any]:
        where, made = config(), []
        for n in range(40):
            where = put(saver, where, {"x": f"{what} {n}"})
            made.append(where)
        return made

    before = talk(mine, "before")
    assert mine.get_tuple(before[3]) is not None
    theirs.delete_thread("t")
    after = talk(theirs, "after")
    for n in (0, 3, 20, 39):
        assert mine.get_tuple(before[n]) is None
        found = mine.get_tuple(after[n])
        assert found is not None
        assert found.checkpoint["channel_values"] == {"x": f"after {n}"}
