"""HoldfastStore: search by meaning."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pytest
from langgraph.store.base import PutOp
from langgraph_memories import INDEX, aembed, embed, keys

import holdfast
from holdfast import Holdfast, InvalidCall
from holdfast.integrations.langgraph import HoldfastStore

pytest_plugins = ["postgres_fixtures"]


def test_search_by_query_ranks_and_filters(where: str) -> None:
    with HoldfastStore(where, index=INDEX) as store:
        texts = {"a": "aaaa", "e": "eeee", "mixed": "aaee", "i": "iiii"}
        for key, text in texts.items():
            store.put(("m", key), key, {"text": text, "is": key})
        store.put(("m",), "plain", {"other": "aaaa"})
        store.put(("m",), "left out", {"text": "aaaa"}, index=False)
        store.put(("m",), "own", {"text": "oooo", "title": "aaaa"}, index=["title"])
        found = store.search(("m",), query="aa", limit=3)
        assert {*keys(found[:2])} == {"a", "own"}
        assert keys(found[2:]) == ["mixed"]
        assert [item.score for item in found] == pytest.approx([1, 1, 0.5**0.5])
        every = store.search(("m",), query="aa", limit=100)
        assert len(every) == 7
        assert [item.score for item in every[-2:]] == [None, None]
        assert {*keys(every[-2:])} == {"plain", "left out"}
        assert keys(store.search(("m",), query="aa", filter={"is": {"$ne": "a"}}, limit=1)) == ["own"]
        assert keys(store.search(("m",), query="aa", offset=2, limit=1)) == ["mixed"]
        assert keys(store.search(("m", "e"), query="aa")) == ["e"]
        store.put(("m", "a"), "a", {"text": "oooo"})
        assert keys(store.search(("m",), query="aa", limit=1)) == ["own"]
        store.delete(("m",), "own")
        assert keys(store.search(("m",), query="aa", limit=1)) == ["mixed"]
        assert store.hf.verify().ok


def test_filter_reaches_beyond_the_best_vectors(where: str) -> None:
    with HoldfastStore(where, index=INDEX) as store:
        store.batch([PutOp(("m",), str(n), {"text": "a" * 5 + "e" * n, "n": n}) for n in range(120)])
        assert keys(store.search(("m",), query="a", filter={"n": {"$gt": 117}}, limit=2)) == ["118", "119"]


def test_query_with_a_filter_reads_only_the_values_that_it_selects(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HoldfastStore(where, index=INDEX) as store:
        store.batch([PutOp(("a",), f"{n}", {"text": "a" * (n % 7), "n": n}) for n in range(200)])
        compared: list[int] = []
        read: list[int] = []
        nearest, items = store.hf._store.nearest_items, store.hf._store.items

        def count_comparisons(*args: Any) -> Any:
            compared.append(1)
            return nearest(*args)

        def count_values(names: Sequence[Any]) -> Any:
            read.append(len(names))
            return items(names)

        monkeypatch.setattr(store.hf._store, "nearest_items", count_comparisons)
        monkeypatch.setattr(store.hf._store, "items", count_values)
        found = store.search(("a",), query="aaa", filter={"n": 150}, limit=1)
        assert [(item.key, item.score is not None) for item in found] == [("150", True)]
        assert len(compared) == 1
        assert sum(read) == 1


def test_fields_name_several_texts(hf: Holdfast) -> None:
    store = HoldfastStore(hf, index={**INDEX, "fields": ["title", "parts[*].text"]})
    store.put(("m",), "k", {"title": "aaaa", "parts": [{"text": "eeee"}, {"text": "iiii"}]})
    for query in "aei":
        assert store.search(("m",), query=query)[0].score == pytest.approx(1)
    assert store.search(("m",), query="o")[0].score == pytest.approx(0)


def test_vectors_of_other_dimensions_are_refused(where: str) -> None:
    with holdfast.open(where) as hf:
        HoldfastStore(hf, index=INDEX).put(("m",), "old", {"text": "a"})
        other = HoldfastStore(hf, index={"dims": 2, "embed": lambda texts: [[1.0, 0.0]] * len(texts)})
        with pytest.raises(InvalidCall, match=r"'old'.*does not have 2 dimensions"):
            other.search(("m",), query="a")
        other.put(("m",), "old", {"text": "a"})
        assert len(other.search(("m",), query="a")) == 1


def test_wrong_embeddings_write_nothing(hf: Holdfast) -> None:
    wrong: list[Any] = [
        lambda texts: [[1.0] * 3] * len(texts),
        lambda texts: [],
        lambda texts: [[1.0] * 4] * (len(texts) + 1),
        lambda texts: None,
        lambda texts: [["a", "b", "c", "d"]],
        lambda texts: [[float("nan")] * 4],
        lambda texts: [[1e300] * 4],
        lambda texts: aembed([*texts]),
    ]
    for function in wrong:
        store = HoldfastStore(hf, index={"dims": 4, "embed": function})
        with pytest.raises(InvalidCall, match="embed"):
            store.put(("m",), "k", {"text": "a"})
        with pytest.raises(InvalidCall, match="embed"):
            store.search(("m",), query="a")

    def fails(texts: Sequence[str]) -> list[list[float]]:
        raise ConnectionError("no answer")

    store = HoldfastStore(hf, index={"dims": 4, "embed": fails})
    with pytest.raises(ConnectionError):
        store.put(("m",), "k", {"text": "a"})
    store = HoldfastStore(hf, index={"dims": 4, "embed": aembed})
    with pytest.raises(InvalidCall, match="async function"):
        store.put(("m",), "k", {"text": "a"})
    store = HoldfastStore(hf, index={"dims": 4, "embed": embed})
    with pytest.raises(InvalidCall, match="index=False"):
        store.put(("m",), "k", {"when": datetime.now(UTC)})
    assert store.search(()) == []
    store.put(("m",), "k", {"when": datetime.now(UTC)}, index=False)


def test_invalid_configurations_are_refused(hf: Holdfast) -> None:
    wrong: list[Any] = [
        {}, {"embed": embed}, {"dims": 0, "embed": embed}, {"dims": "4", "embed": embed}, {"dims": 4}, embed,
        {"dims": 4, "embed": embed, "fields": [1]}, {"dims": 4, "embed": embed, "ann_index_config": {}},
        {"dims": 4, "embed": embed, "distance_type": "manhattan"}, {"dims": 4, "embed": "nobody:nothing"},
    ]  # fmt: skip
    for index in wrong:
        with pytest.raises(InvalidCall):
            HoldfastStore(hf, index=index)
    for ttl in (
        5,
        {"default": 5},
        {"default_ttl": 0},
        {"default_ttl": True},
        {"refresh_on_read": 1},
        {"default_ttl": 1e300},
    ):
        with pytest.raises(InvalidCall):
            HoldfastStore(hf, ttl=ttl)  # type: ignore[arg-type]
