"""HoldfastStore: LangGraph's long-term memory, on each store."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from functools import cache, partial
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    PutOp,
    SearchOp,
)
from langgraph_memories import INDEX, aembed, embed, keys

import holdfast
from database import Database
from growth import growth
from holdfast import CorruptStore, Holdfast, HoldfastWarning, InvalidCall, StoreUnavailable, UnsupportedValue
from holdfast.integrations.langgraph import HoldfastStore
from holdfast.integrations.langgraph.item_filter import build_filter
from holdfast.items import ItemKey
from holdfast.model.records import ItemRecord
from patience import until

pytest_plugins = ["postgres_fixtures"]


@pytest.fixture
def store(where: str) -> Iterator[HoldfastStore]:
    with HoldfastStore(where) as store:
        yield store


class Clock:
    """A clock that a test sets, in seconds."""

    def __init__(self) -> None:
        self.now = 1_000_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timed(where: str, clock: Clock) -> Iterator[Holdfast]:
    with holdfast.open(where, clock=clock) as hf:
        yield hf


# Values


def test_values_are_read_as_they_were_put(store: HoldfastStore) -> None:
    value = {
        "text": "a",
        "numbers": [1, 2.5, 10**30, Decimal("0.1")],
        "when": datetime(2026, 1, 2, tzinfo=UTC),
        "tuple": (1, (2,)),
        "set": {1, 2},
        "bytes": b"\0\xff",
        "odd": {1: "one", None: "none"},
        "surrogate": "\udc80",
        "message": HumanMessage("hello"),
        "big": "word " * 100_000,
    }
    store.put(("a",), "k", value)
    item = store.get(("a",), "k")
    assert item is not None
    assert item.value == value
    assert type(item.value["tuple"]) is tuple
    assert item.created_at.tzinfo is UTC


def test_value_of_many_megabytes_is_stored_and_a_larger_one_refused(store: HoldfastStore) -> None:
    store.put(("a",), "big", {"data": b"x" * 15_000_000})
    item = store.get(("a",), "big")
    assert item is not None
    assert len(item.value["data"]) == 15_000_000
    with pytest.raises(UnsupportedValue, match="the maximum is 16,777,216"):
        store.batch([PutOp(("a",), "small", {}), PutOp(("a",), "huge", {"data": b"x" * 17_000_000})])
    assert store.get(("a",), "small") is None


def test_unsupported_values_are_refused_with_nothing_written(hf: Holdfast) -> None:
    store = HoldfastStore(hf)
    deep: Any = {}
    for _ in range(10_000):
        deep = {"deep": deep}
    for value in ({"x": object()}, {"x": lambda: 1}, deep, {"file": holdfast.artifact(b"content")}):
        with pytest.raises(UnsupportedValue) as caught:
            store.batch([PutOp(("a",), "fine", {}), PutOp(("a",), "bad", value)])
        assert "item 'bad'" in caught.value.__notes__[0]
    assert store.search(()) == []


def test_refused_value_is_named_by_its_path(hf: Holdfast) -> None:
    class Cart:
        """Not a record."""

    store = HoldfastStore(hf)
    deep: Any = {}
    for _ in range(10_000):
        deep = {"deep": deep}
    for value, path in (
        ({"settings": {"lists": [1, {"cart": Cart()}]}}, "settings.lists[1].cart"),
        ({"first name": (1, Cart())}, '["first name"][1]'),
        (Counter({"cart": Cart()}), "cart"),
    ):
        with pytest.raises(UnsupportedValue) as caught:
            store.put(("users", "ana"), "profile", value)
        error = caught.value
        assert str(error).startswith(f"at {path}: ")
        assert "Cart cannot be stored: keep it elsewhere" in str(error)
        assert error.details["path"] == path
        assert str(error) == f"at {path}: {error.details['reason']}"
        assert "item 'profile' in namespace ('users', 'ana')" in error.__notes__[0]
    with pytest.raises(UnsupportedValue, match=r"^at deep\.deep\."):
        store.put(("a",), "k", deep)
    assert store.search(()) == []


def test_advice_about_a_class_fits_the_store(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Local:
        n: int

    @dataclass
    class Other:
        n: int

    store = HoldfastStore(hf)
    with pytest.warns(HoldfastWarning, match=r"allow=\[Local\] to HoldfastSaver or HoldfastStore"):
        store.put(("a",), "k", {"value": Local(1)})
    monkeypatch.setattr("langgraph.checkpoint.serde._msgpack.STRICT_MSGPACK_ENABLED", True)
    with pytest.raises(UnsupportedValue, match=r"allow=\[Other\] to HoldfastSaver or HoldfastStore"):
        store.put(("a",), "k", {"value": Other(1)})


def test_secrets_are_redacted_before_they_are_stored_or_embedded(path: Path) -> None:
    seen: list[str] = []

    def spy(texts: Sequence[str]) -> list[list[float]]:
        seen.extend(texts)
        return embed(texts)

    with holdfast.open(path, redact=["*password*"]) as hf:
        store = HoldfastStore(hf, index={"dims": 4, "embed": spy})
        store.put(("a",), "k", {"password": "hunter2", "deep": [{"my_password": "hunter2"}]})
        item = store.get(("a",), "k")
        assert item is not None
        assert item.value == {"password": "[redacted]", "deep": [{"my_password": "[redacted]"}]}
    assert "hunter2" not in "".join(seen)
    assert b"hunter2" not in path.read_bytes()


def test_subclasses_of_built_in_types_are_stored_as_those(store: HoldfastStore) -> None:
    """The text of a message is not a plain str."""
    text = AIMessage("hello").text
    assert type(text) is not str
    store.put(("a",), "k", {"text": text, "counts": Counter("aab")})
    item = store.get(("a",), "k")
    assert item is not None
    assert item.value == {"text": "hello", "counts": {"a": 2, "b": 1}}
    assert keys(store.search(("a",), filter={"text": text})) == ["k"]


def test_value_changed_after_the_put_does_not_change_the_item(store: HoldfastStore) -> None:
    value = {"list": [1]}
    store.put(("a",), "k", value)
    value["list"].append(2)
    item = store.get(("a",), "k")
    assert item is not None
    item.value["list"].append(3)
    assert store.search(("a",))[0].value == {"list": [1]}


# Names


def test_hostile_names_are_exact_or_refused(store: HoldfastStore) -> None:
    labels = [
        "a/b",
        "\\",
        "//",
        "<script>",
        "' OR 1=1 --",
        "%",
        "*",
        "\x1b[31m",
        "\udc80",
        "é",
        "a\n",
        "x" * 1000,
    ]
    for label in labels:
        store.put((label, "n"), label, {"is": label})
    for label in labels:
        item = store.get((label, "n"), label)
        assert item is not None
        assert (item.namespace, item.key, item.value) == ((label, "n"), label, {"is": label})
        assert keys(store.search((label,), limit=100)) == [label]
    assert set(store.list_namespaces(limit=100)) == {(label, "n") for label in labels}
    for namespace, key in ((("x" * 10_000,), "k"), (("a",), "x" * 10_000), (("y" * 100,) * 20, "k")):
        with pytest.raises(InvalidCall, match="the maximum is 1,200"):
            store.put(namespace, key, {})
        assert store.get(namespace, key) is None
        store.delete(namespace, key)
    for bad in (("a.b",), ("",), ("a\0",), (1,)):
        with pytest.raises(InvalidNamespaceError):
            store.put(bad, "k", {})  # type: ignore[arg-type]


def test_key_with_nul_is_exact(store: HoldfastStore) -> None:
    store.put(("a",), "k\0", {"n": 1})
    store.put(("a",), "k", {"n": 2})
    assert [store.get(("a",), key).value["n"] for key in ("k\0", "k")] == [1, 2]  # type: ignore[union-attr]


class Kind(str, Enum):  # noqa: UP042 - as much code has it; it prints as Kind.FACTS, and has another hash than its text
    """Names that are given as members of an enum."""

    FACTS = "facts"


def test_names_in_enums_are_their_texts(store: HoldfastStore) -> None:
    """In all places but the `key` of `put`, `get` and `delete`, which LangGraph converts with `str`."""
    store.put((Kind.FACTS, "ana"), "facts", {"n": 1, "facts": 1})
    store.put(("facts", Kind.FACTS), "facts", {"n": 2, "facts": 2})
    store.batch([PutOp(("facts", "bo"), Kind.FACTS, {"n": 0}), PutOp(("facts", "bo"), "facts", {"n": 3})])
    assert str(store.list_namespaces()) == "[('facts', 'ana'), ('facts', 'bo'), ('facts', 'facts')]"
    for name in ("facts", Kind.FACTS):
        for label, number in (("ana", 1), (name, 2), ("bo", 3)):
            gets = [GetOp((name, label), name)] * 2
            for item in (store.get((name, label), "facts"), *store.batch(gets[:1]), *store.batch(gets)):
                assert isinstance(item, Item)
                assert item.value["n"] == number
                assert {type(text) for text in (*item.namespace, item.key)} == {str}
        assert len(store.search((name,))) == 3
        assert len(store.search((name, name))) == 1
        assert len(store.search((), filter={name: 2})) == 1
        assert len(store.search((), filter={name: {"$lt": 2}})) == 1
        assert len(store.list_namespaces(prefix=(name,))) == 3
        assert store.list_namespaces(prefix=(name, "*"), suffix=(name,)) == [("facts", "facts")]
    store.batch([PutOp((Kind.FACTS, "ana"), Kind.FACTS, None)])
    assert len(store.search(())) == 2


# Searching


def test_search_returns_the_newest_first(store: HoldfastStore) -> None:
    for number in range(40):
        store.put(("a", str(number % 2)), f"{number:02}", {"n": number})
    newest = [f"{number:02}" for number in reversed(range(40))]
    assert keys(store.search(("a",), limit=100)) == newest
    assert keys(store.search(("a",))) == newest[:10]
    assert keys(store.search(("a",), offset=7, limit=5)) == newest[7:12]
    assert keys(store.search(("a", "1"), limit=3)) == ["39", "37", "35"]
    store.put(("a", "0"), "00", {"n": 0})
    assert keys(store.search(("a",), limit=2)) == ["00", "39"]
    assert store.search(("a",), limit=0) == store.search(("a",), offset=40) == store.search(("b",)) == []
    assert len(store.search((), limit=sys.maxsize, offset=0)) == 40
    store.batch([PutOp(("b",), key, {}) for key in "xyzx"])
    assert keys(store.search(("b",))) == ["x", "z", "y"]


def test_filters_compare_values(store: HoldfastStore) -> None:
    when = datetime(2026, 1, 2, tzinfo=UTC)
    values: dict[str, dict[str, Any]] = {
        "a": {"n": 1, "who": {"name": "Ana", "age": 30}, "tags": ["x", "y"], "when": when},
        "b": {"n": 2.5, "who": {"name": "Bo"}, "tags": [], "ok": True, "price": Decimal("2.5")},
        "c": {"n": "text", "ok": None, "first name": "c", "who.name": "dots"},
    }
    for key, value in values.items():
        store.put(("f",), key, value)
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "abc"),
        ({"n": 1}, "a"),
        ({"n": {"$eq": 2.5}}, "b"),
        ({"n": {"$ne": 1}}, "bc"),
        ({"n": {"$gt": 1}}, "b"),
        ({"n": {"$gte": 1, "$lt": 3}}, "ab"),
        ({"n": {"$lte": 1}}, "a"),
        ({"n": {"$lt": "u"}}, "c"),
        ({"n": {"$lt": float("inf")}}, "ab"),
        ({"n": {"$eq": float("nan")}}, ""),
        ({"n": {"$lt": 10**100}}, "ab"),
        ({"who": {"name": "Ana"}}, "a"),
        ({"who": {"age": {"$gt": 18}}}, "a"),
        ({"who.name": "Bo"}, "b"),
        ({"who.name": "dots"}, "c"),
        ({"first name": "c"}, "c"),
        ({"tags": ["x", "y"]}, "a"),
        ({"tags": ["x"]}, ""),
        ({"tags": []}, "b"),
        ({"ok": True}, "b"),
        ({"ok": None}, "ac"),
        ({"missing": {"$ne": 1}}, "abc"),
        ({"price": {"$lt": float("nan")}}, ""),
        ({"price": {"$lte": 2.5}}, "b"),
        ({"when": {"$lte": when}}, "a"),
        ({"n": 1, "ok": True}, ""),
        ({"x') OR 1=1 --": 1}, ""),
    ]
    for given, expected in cases:
        assert "".join(sorted(keys(store.search(("f",), filter=given)))) == expected, given


def test_filters_select_the_same_by_terms_and_by_values(store: HoldfastStore) -> None:
    """Enough items that the index is used, in one namespace and in several."""
    odd: list[Any] = [
        None,
        1,
        True,
        2.0,
        2**60,
        "x",
        "x" * 20,
        b"x",
        Decimal(1),
        [1],
        {"a": 1},
        (1,),
        float("nan"),
    ]
    operands: list[Any] = [None, 1, 1.5, 2**60, "x", "x" * 20, "y", b"x", Decimal(1), float("nan")]
    for namespaces in (1, 3):
        values = [{"k": odd[n % 13], "n": n} if n % 7 else {"n": n} for n in range(150)]
        puts = [
            PutOp((f"s{namespaces}", str(n % namespaces)), f"{n:03}", value) for n, value in enumerate(values)
        ]
        store.batch(puts)
        for name in ("$eq", "$ne", "$gt", "$gte", "$lt", "$lte"):
            for operand in operands:
                for more in ({}, {"n": {"$lt": 30}}):
                    given = {"k": {name: operand}, **more}
                    selection = build_filter(given)
                    assert selection is not None
                    expected = [op.key for op in reversed(puts) if selection.matches(op.value)]
                    assert keys(store.search((f"s{namespaces}",), filter=given, limit=1000)) == expected, (
                        given
                    )
                    assert (
                        keys(store.search((f"s{namespaces}",), filter=given, offset=2, limit=3))
                        == expected[2:5]
                    ), given


def test_filter_with_offset_and_limit(store: HoldfastStore) -> None:
    store.batch([PutOp(("a", str(n % 3)), f"{n:03}", {"even": n % 2 == 0}) for n in range(200)])
    even = [f"{n:03}" for n in reversed(range(0, 200, 2))]
    assert keys(store.search((), filter={"even": True}, offset=20, limit=60)) == even[20:80]
    assert store.search((), filter={"even": "no"}) == []


def test_namespaces_are_listed_with_conditions(store: HoldfastStore) -> None:
    names = [("u", f"{n:03}", kind) for n in range(300) for kind in ("facts", "notes")] + [
        ("u",),
        ("v", "facts"),
    ]
    store.batch([PutOp(name, "k", {}) for name in names])
    assert store.list_namespaces(limit=1000) == sorted(names)
    assert store.list_namespaces(max_depth=1) == [("u",), ("v",)]
    assert store.list_namespaces(max_depth=2, limit=3) == [("u",), ("u", "000"), ("u", "001")]
    assert store.list_namespaces(max_depth=2, offset=300) == [("u", "299"), ("v", "facts")]
    assert store.list_namespaces(suffix=("facts",), offset=299) == [("u", "299", "facts"), ("v", "facts")]
    assert store.list_namespaces(prefix=("u", "*", "notes"), limit=2) == [
        ("u", "000", "notes"),
        ("u", "001", "notes"),
    ]
    assert store.list_namespaces(prefix=("u",), suffix=("299", "*")) == [
        ("u", "299", "facts"),
        ("u", "299", "notes"),
    ]
    assert store.list_namespaces(suffix=("facts",), max_depth=1) == [("u",), ("v",)]
    assert store.list_namespaces(prefix=("w",)) == []


def test_namespaces_below_the_last_of_a_page_are_listed(store: HoldfastStore) -> None:
    for first in ((), (("a",),)):
        names = [*first, *(name for n in range(300) for name in (("n", f"{n:03}"), ("n", f"{n:03}", "x")))]
        store.batch([PutOp(name, "k", {}) for name in names])
        assert store.list_namespaces(limit=1000) == names
        assert store.list_namespaces(limit=1000, max_depth=3) == names
        assert len(store.list_namespaces(limit=1000, max_depth=2)) == 300 + len(first)


def test_reads_of_a_batch_see_the_state_before_its_puts(store: HoldfastStore) -> None:
    store.put(("a",), "k", {"n": 1})
    got, _, _, found, listed, gone = store.batch(
        [
            GetOp(("a",), "k"),
            PutOp(("a",), "k", {"n": 2}),
            PutOp(("a",), "k", {"n": 3}),
            SearchOp(("a",)),
            ListNamespacesOp((MatchCondition("prefix", ("a",)),)),
            PutOp(("b",), "k", None),
        ]
    )
    assert got.value == {"n": 1}  # type: ignore[union-attr]
    assert [item.value for item in found] == [{"n": 1}]  # type: ignore[union-attr]
    assert listed == [("a",)]
    assert gone is None
    assert store.get(("a",), "k").value == {"n": 3}  # type: ignore[union-attr]


def test_update_keeps_the_time_of_creation(timed: Holdfast, clock: Clock) -> None:
    store = HoldfastStore(timed)
    store.put(("a",), "k", {})
    clock.now += 60
    store.put(("a",), "k", {})
    item = store.get(("a",), "k")
    assert item is not None
    assert (item.updated_at - item.created_at).total_seconds() == 60


# Arguments


def test_wrong_arguments_are_refused(hf: Holdfast) -> None:
    store: Any = HoldfastStore(hf)
    wrong: Any = 5
    cycle: dict[str, Any] = {}
    cycle["a"] = [cycle]
    calls: list[Any] = [
        lambda: store.put("users", "k", {}),
        lambda: store.get("users", "k"),
        lambda: store.search("users"),
        lambda: store.list_namespaces(prefix="users"),
        lambda: store.put(("a",), "k", [1]),
        lambda: store.put(("a",), "k", "text"),
        lambda: store.put(("a",), "k", {}, index="text"),
        lambda: store.put(("a",), "k", {}, index=True),
        lambda: store.put(("a",), "k", {}, ttl=-1),
        lambda: store.put(("a",), "k", {}, ttl=float("nan")),
        lambda: store.put(("a",), "k", {}, ttl="5"),
        lambda: store.search(("a",), limit=-1),
        lambda: store.search(("a",), limit=1.5),
        lambda: store.search(("a",), offset=-1),
        lambda: store.search(("a",), filter=[1]),
        lambda: store.search(("a",), filter={"n": {"$in": [1]}}),
        lambda: store.search(("a",), filter={1: 1}),
        lambda: store.search(("a",), filter={"n": 1, "$eq": 1}),
        lambda: store.search(("a",), filter=cycle),
        lambda: store.search(("a",), filter={"a": cycle["a"]}),
        lambda: store.search(("a",), query=5),
        lambda: store.list_namespaces(max_depth=0),
        lambda: store.list_namespaces(limit=-1),
        lambda: store.batch([GetOp(("a",), wrong)]),
        lambda: store.batch(["get"]),
        lambda: store.batch([ListNamespacesOp((MatchCondition(wrong, ("a",)),))]),
        lambda: store.batch([ListNamespacesOp((MatchCondition("prefix", wrong),))]),
        lambda: store.batch([ListNamespacesOp(match_conditions=wrong)]),
        lambda: store.batch([ListNamespacesOp(match_conditions="abc")]),  # type: ignore[arg-type]
        lambda: store.batch([ListNamespacesOp(match_conditions=("prefix",))]),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(InvalidCall):
            call()
    assert store.search(()) == []


def test_operator_without_a_key_is_refused(hf: Holdfast) -> None:
    store = HoldfastStore(hf)
    for given in ({"$or": [{"n": 1}, {"n": 2}]}, {"$and": [{"n": 1}]}, {"n": 1, "$not": {"n": 2}}):
        with pytest.raises(InvalidCall, match=r"the operators are \$eq, \$ne, \$gt, \$gte, \$lt, \$lte,"):
            store.search(("a",), filter=given)
        with pytest.raises(InvalidCall, match=r"\$eq, \$ne, \$gt, \$gte, \$lt, \$lte"):
            store.search(("a",), filter={"who": given})


def test_setup_is_not_needed(hf: Holdfast) -> None:
    store = HoldfastStore(hf)
    store.put(("a",), "k", {"n": 1})
    store.setup()

    async def main() -> None:
        await store.setup()

    asyncio.run(main())
    assert keys(store.search(())) == ["k"]


# Expiry


def test_expired_item_is_never_returned(timed: Holdfast, clock: Clock) -> None:
    store = HoldfastStore(timed, ttl={"default_ttl": 10, "refresh_on_read": False}, index=INDEX)
    store.put(("a",), "k", {"text": "a"})
    store.put(("b",), "forever", {"text": "a"}, ttl=None)
    clock.now += 599
    assert store.get(("a",), "k") is not None
    clock.now += 1
    assert store.get(("a",), "k") is None
    assert keys(store.search(())) == keys(store.search((), query="a")) == ["forever"]
    assert store.list_namespaces() == [("b",)]
    assert store.sweep_ttl() == 1
    assert store.sweep_ttl() == 0
    assert timed.verify().ok


def test_reads_refresh_what_they_return(timed: Holdfast, clock: Clock) -> None:
    store = HoldfastStore(timed, ttl={"default_ttl": 10})
    for key in ("got", "searched", "unused", "unrefreshed"):
        store.put(("a",), key, {"is": key})
    clock.now += 500
    store.get(("a",), "got")
    store.search(("a",), filter={"is": "searched"})
    store.get(("a",), "unrefreshed", refresh_ttl=False)
    clock.now += 500
    assert store.sweep_ttl() == 2
    assert sorted(keys(store.search(("a",)))) == ["got", "searched"]
    clock.now += 600
    assert store.search(("a",)) == []


def test_reads_postpone_the_expiry_seldom(
    timed: Holdfast, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HoldfastStore(timed, ttl={"default_ttl": 10})
    store.put(("a",), "k", {"n": 1})
    renewed: list[int] = []
    renew = timed._store.renew_items

    def count(records: Any, now: int) -> None:
        renewed.append(len(records))
        renew(records, now)

    monkeypatch.setattr(timed._store, "renew_items", count)
    for _ in range(100):
        clock.now += 29
        assert store.get(("a",), "k") is not None
        assert len(store.search(("a",))) == 1
    assert renewed == [1] * 50, "each time that a twentieth of ten minutes has passed"
    clock.now += 600 - 30
    assert store.get(("a",), "k") is not None


def test_read_returns_its_items_if_their_expiry_cannot_be_postponed(
    timed: Holdfast, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = HoldfastStore(timed, ttl={"default_ttl": 10})
    store.put(("a",), "k", {"n": 1})
    clock.now += 500

    def fail(records: Any, now: int) -> None:
        raise StoreUnavailable("the disk is full")

    monkeypatch.setattr(timed._store, "renew_items", fail)
    item = store.get(("a",), "k")
    assert item is not None
    assert keys(store.search(("a",))) == ["k"]
    got, _ = store.batch([GetOp(("a",), "k"), PutOp(("a",), "other", {"n": 2})])
    assert got == item
    assert store.get(("a",), "other") is not None, "the put of the batch is stored"
    assert "the disk is full" in caplog.text


def test_jumping_clock_neither_loses_nor_mixes_items(timed: Holdfast, clock: Clock) -> None:
    store = HoldfastStore(timed)
    store.put(("a",), "k", {"n": 1}, ttl=10)
    store.put(("a",), "forever", {"n": 1})
    clock.now -= 86_400
    store.put(("a",), "k", {"n": 2}, ttl=10)
    assert store.get(("a",), "k").value == {"n": 2}  # type: ignore[union-attr]
    clock.now += 10 * 86_400
    assert store.get(("a",), "k") is None
    assert keys(store.search(())) == ["forever"]
    clock.now -= 10 * 86_400
    assert store.get(("a",), "k") is not None, "it was not swept"


def test_sweeper_deletes_and_stops(timed: Holdfast, clock: Clock) -> None:
    store = HoldfastStore(timed, ttl={"default_ttl": 1, "sweep_interval_minutes": 0.0001})
    store.put(("a",), "k", {})
    clock.now += 60
    future = store.start_ttl_sweeper()
    assert store.start_ttl_sweeper() is future

    def is_deleted() -> bool:
        clock.now -= 120
        found = store.get(("a",), "k", refresh_ttl=False)
        clock.now += 120
        return found is None

    until(is_deleted, "the sweep")
    assert store.stop_ttl_sweeper()
    assert future.result(10) is None
    cancelled = store.start_ttl_sweeper()
    cancelled.cancel()
    again = store.start_ttl_sweeper()
    assert again is not cancelled
    assert not again.done()
    assert store.stop_ttl_sweeper()
    assert again.result(10) is None
    assert HoldfastStore(timed).start_ttl_sweeper().done()


def test_abandoned_store_ends_its_sweeper(hf: Holdfast) -> None:
    store = HoldfastStore(hf, ttl={"sweep_interval_minutes": 0.0001})
    future = store.start_ttl_sweeper()
    del store
    assert future.result(30) is None


# Cost


def test_cost_does_not_grow_with_the_number_of_items(tmp_path: Path) -> None:
    def make(size: int) -> HoldfastStore:
        store = HoldfastStore(holdfast.open(tmp_path / f"{size}.db", durability="memory"))
        values = ({"n": n, "is": "many", "half": 1 if n < size / 2 else 2} for n in range(size))
        store.batch([PutOp(("many", "one"), str(n), value) for n, value in enumerate(values)])
        store.batch([PutOp(("other",), str(n), {"n": n}) for n in range(50)])
        return store

    calls: dict[str, Any] = {
        "get": lambda store: [store.get(("many", "one"), str(n)) for n in range(100)],
        "put": lambda store: [store.put(("many", "one"), "50", {"n": n}) for n in range(50)],
        "search": lambda store: [store.search(("many",)) for _ in range(20)],
        "search with a filter that matches": lambda store: [
            store.search(("many",), filter={"n": {"$gte": 0}}) for _ in range(20)
        ],
        "search elsewhere with a filter that matches nothing": lambda store: [
            store.search(("other",), filter={"n": -1}) for _ in range(20)
        ],
        "search with a filter that matches one": lambda store: [
            store.search(("many", "one"), filter={"n": 7}) for _ in range(20)
        ],
        "search with a filter that matches nothing": lambda store: [
            store.search(("many",), filter={"n": "no"}) for _ in range(20)
        ],
        "search with a range that matches nothing": lambda store: [
            store.search(("many",), filter={"n": {"$lt": 0}}) for _ in range(20)
        ],
        "search for the oldest half": lambda store: [
            store.search(("many",), filter={"half": 1}) for _ in range(20)
        ],
        "search with two keys, of which one matches all": lambda store: [
            store.search(("many",), filter={"is": "many", "n": 7}) for _ in range(20)
        ],
        "list": lambda store: [store.list_namespaces() for _ in range(50)],
    }
    made = cache(make)
    for name, call in calls.items():
        assert growth(call, made, 1_000, factor=16) < 4, name


# Concurrency and damage


def test_concurrent_puts_are_all_stored(store: HoldfastStore) -> None:
    def write(writer: int) -> None:
        for number in range(25):
            store.put(("a", str(writer)), str(number), {"n": number})
            store.put(("shared",), "k", {"writer": writer, "n": number})

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.search(("a",), limit=1000)) == 100
    assert store.get(("shared",), "k").value["n"] == 24  # type: ignore[union-attr]
    assert store.hf.verify().ok


def test_processes_share_a_store(path: Path) -> None:
    program = (
        "import sys; from holdfast.integrations.langgraph import HoldfastStore\n"
        "with HoldfastStore(sys.argv[1]) as store:\n"
        "    for n in range(20): store.put(('a',), f'{sys.argv[2]} {n}', {'n': n})\n"
    )
    started = [subprocess.Popen([sys.executable, "-c", program, str(path), name]) for name in ("one", "two")]
    assert [process.wait(120) for process in started] == [0, 0]
    with HoldfastStore(path) as store:
        assert len(store.search(("a",), limit=100)) == 40


def test_asynchronous_methods(where: str) -> None:
    async def use(store: HoldfastStore) -> None:
        await asyncio.gather(*(store.aput(("a",), str(n), {"text": "a" * n}) for n in range(1, 20)))
        await store.aput(("b",), "e", {"text": "eee"})
        found = await store.asearch((), query="e", limit=1)
        assert keys(found) == ["e"]
        assert (await store.aget(("a",), "3")).value == {"text": "aaa"}  # type: ignore[union-attr]
        assert await store.alist_namespaces() == [("a",), ("b",)]
        await store.adelete(("b",), "e")
        assert await store.aget(("b",), "e") is None

    for function in (embed, aembed):
        with HoldfastStore(where, index={**INDEX, "embed": function}) as store:
            asyncio.run(use(store))


def test_damaged_item_is_reported_and_the_rest_stays_usable(path: Path) -> None:
    with HoldfastStore(path) as store:
        store.put(("a",), "bad", {"n": 1})
        store.put(("b",), "good", {"n": 2})
    with closing(Database(path)) as database:
        database.execute("UPDATE item SET data = x'0081' WHERE key = x'626164'")
    with HoldfastStore(path) as store:
        for read in (lambda: store.get(("a",), "bad"), lambda: store.search(())):
            with pytest.raises(CorruptStore, match="'bad'"):
                read()
        assert keys(store.search(("b",))) == ["good"]
        assert [problem.what for problem in store.hf.verify().problems if "'bad'" in problem.what]
        store.put(("a",), "bad", {"n": 3})
        assert len(store.search(())) == 2
        assert store.hf.verify().ok


def test_items_survive_a_backup(path: Path, tmp_path: Path) -> None:
    with HoldfastStore(path) as store:
        store.put(("a",), "k", {"n": 1})
        store.hf.backup(tmp_path / "copy.db")
    with HoldfastStore(tmp_path / "copy.db") as copy:
        assert copy.get(("a",), "k").value == {"n": 1}  # type: ignore[union-attr]


def test_graph_uses_the_store(where: str) -> None:
    class State(TypedDict):
        text: str

    def remember(state: State, *, store: BaseStore) -> State:
        store.put(("memories",), str(len(state["text"])), {"text": state["text"]})
        return state

    with HoldfastStore(where) as store:
        builder = StateGraph(State)
        builder.add_node("remember", remember)
        builder.add_edge(START, "remember")
        graph = builder.compile(store=store)
        graph.invoke({"text": "tea"})
        asyncio.run(graph.ainvoke({"text": "coffee"}))
        assert keys(store.search(("memories",))) == ["6", "3"]


class Reads:
    """Counts the names and values that a store reads, and calls `after` with the number of pages of names so far."""

    def __init__(self, hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
        self.after: Callable[[int], object] = lambda pages: None
        self.pages: list[int] = []
        self.largest = 0
        self.values = 0
        self._items = hf._store.items
        monkeypatch.setattr(hf._store, "items", self._count_values)
        for name in ("recent_items", "live_items", "item_names"):
            monkeypatch.setattr(hf._store, name, partial(self._count_names, getattr(hf._store, name)))

    def _count_names(self, read: Callable[..., list[ItemKey]], *args: Any, **options: Any) -> list[ItemKey]:
        page = read(*args, **options)
        self.largest = max(self.largest, options["limit"])
        self.pages.append(len(page))
        assert len(self.pages) < 100, "a search ends"
        self.after(len(self.pages))
        return page

    def _count_values(self, names: Sequence[ItemKey]) -> list[ItemRecord]:
        self.values += len(names)
        return self._items(names)


@pytest.mark.parametrize("wanted", [{"m": {"hit": 1}}, {"hit": {"$gt": 0}}, {"hit": 1, "x": None}])
def test_search_finds_an_item_that_is_put_again_between_two_pages(
    timed: Holdfast, clock: Clock, monkeypatch: pytest.MonkeyPatch, wanted: Any
) -> None:
    """Its time may be before that of items that were read: the time of a put is taken before the commit, and clocks
    are set back."""
    store = HoldfastStore(timed)
    value: dict[str, Any] = {"hit": 1, "m": {"hit": 1}}
    again = {**value, "again": True}

    def put_again(namespace: tuple[str, ...], step: int, pages: int) -> None:
        if pages == 1:
            clock.now += step
            store.put(namespace, "target", again)

    for namespace, step in ((("forward",), 1), (("back",), -5)):
        store.put(namespace, "target", value)
        for numbers in (range(600), range(600, 603)):
            clock.now += 9
            store.batch([PutOp(namespace, f"k{n}", {"hit": 0, "x": n}) for n in numbers])
        with monkeypatch.context() as patch:
            reads = Reads(timed, patch)
            reads.after = partial(put_again, namespace, step)
            found = store.search(namespace, filter=wanted, limit=5)
        assert len(reads.pages) > 1
        assert [item.value for item in found] == [again]


def test_search_finds_items_that_are_put_again_all_the_time(
    timed: Holdfast, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = HoldfastStore(timed)
    values = {f"yes {n}": {"tags": ["y"]} for n in range(20)} | {
        f"no {n}": {"tags": ["n"]} for n in range(300)
    }
    store.batch([PutOp(("n",), key, value) for key, value in values.items()])
    source = random.Random(1)
    reads = Reads(timed, monkeypatch)

    def put_some(_: int) -> None:
        for key in source.sample(sorted(values), 40):
            clock.now += source.choice((-3, -0.001, 0, 0.001, 2))
            store.put(("n",), key, values[key])

    reads.after = put_some
    for _ in range(20):
        del reads.pages[:]
        found = keys(store.search(("n",), filter={"tags": ["y"]}, limit=21))
        assert sorted(found) == sorted(f"yes {n}" for n in range(20))
        assert len(reads.pages) > 1


def test_search_ends_if_many_items_have_one_time(timed: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test stops the clock, or a clock counts seconds."""
    store = HoldfastStore(timed)
    for number in range(70):
        store.put(("n",), f"{number:02}", {"tags": ["a"], "n": number})
    Reads(timed, monkeypatch)
    assert store.search(("n",), filter={"tags": ["b"]}) == []
    assert sorted(keys(store.search(("n",), filter={"n": {"$lt": 3}}))) == ["00", "01", "02"]
    assert len(store.search(("n",), limit=100)) == 70
    found = [key for offset in range(0, 70, 7) for key in keys(store.search(("n",), limit=7, offset=offset))]
    assert found == [f"{number:02}" for number in reversed(range(70))]


def test_search_reads_no_more_than_it_needs(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    store = HoldfastStore(hf)
    store.batch([PutOp(("n",), str(n), {"tags": ["a" if n % 2 else "b"]}) for n in range(2_000)])
    reads = Reads(hf, monkeypatch)

    def spent(expected: int, **search: Any) -> tuple[list[int], int]:
        reads.pages, reads.values = [], 0
        assert len(store.search(("n",), **search)) == expected
        return reads.pages, reads.values

    assert spent(10) == ([10], 10)
    assert spent(10, offset=1_500) == ([10], 10), "skipped items are not read"
    assert spent(5, offset=1_995) == ([5], 5)
    assert spent(0, offset=3_000) == ([0], 0)
    pages, values = spent(0, filter={"tags": ["c"]})
    assert values == 2_000, "each value once"
    assert sum(pages) < 2_000 * 2.2
    pages, values = spent(10, filter={"tags": ["a"]})
    assert (pages, values) == ([10, 80], 74)


@pytest.mark.parametrize("indexed", [{}, {"kind": "note"}])
def test_search_among_many_items_reads_bounded_pages(
    timed: Holdfast, clock: Clock, monkeypatch: pytest.MonkeyPatch, indexed: dict[str, Any]
) -> None:
    count, largest = 1_500, 256
    monkeypatch.setattr(holdfast.items, "LARGEST_PAGE", largest)
    store = HoldfastStore(timed)
    names = [(("n", str(n % 2)), str(n)) for n in range(count)]
    values = [{"kind": "note", "tags": [n % 30]} for n in range(count)]
    for first in range(0, count, 500):
        clock.now += 9
        store.batch([PutOp(*names[n], values[n]) for n in range(first, first + 500)])
    store.put(("o",), "other", values[7])
    reads = Reads(timed, monkeypatch)

    def search(tag: int, **options: Any) -> list[str]:
        reads.pages, reads.values = [], 0
        return keys(store.search(("n",), filter={**indexed, "tags": [tag]}, **options))

    assert search(-1) == []
    assert reads.values == count, "each value once"
    assert sum(reads.pages) < count + 1.5 * largest
    newest = [str(n) for n in reversed(range(7, count, 30))]
    assert search(7, limit=30) == newest[:30]
    assert search(7, limit=30, offset=25) == newest[25:]
    assert search(7, limit=5, offset=3) == newest[3:8]

    def put_again(pages: int) -> None:
        for key in map(int, newest[pages % 7 :: 7]):
            clock.now += (-7, 0, 1)[pages % 3]
            store.put(*names[key], values[key])

    reads.after = put_again
    for _ in range(5):
        assert sorted(search(7, limit=100)) == sorted(newest)
    assert len(reads.pages) > 6
    assert reads.largest <= largest


def test_offset_does_not_count_expired_items(timed: Holdfast, clock: Clock) -> None:
    store = HoldfastStore(timed)
    for number in range(40):
        store.put(("n", str(number % 2)), f"{number:02}", {"n": number}, ttl=1 if number % 3 else None)
        clock.now += 1
    clock.now += 60
    left = [f"{number:02}" for number in reversed(range(40)) if number % 3 == 0]
    for prefix in (("n",), ("n", "0")):
        there = [key for key in left if prefix == ("n",) or int(key) % 2 == 0]
        for offset in (0, 1, 5, 50):
            assert keys(store.search(prefix, limit=3, offset=offset)) == there[offset : offset + 3]
