"""Values in channels and writes: exactly as they were, or refused by name; no code from data; no damage served."""

from __future__ import annotations

import datetime as dt
import enum
import ipaddress
import re
import sqlite3
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import pytest
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Overwrite, Send, TimeoutPolicy
from langgraph_graphs import checkpoint, config, put
from pydantic import BaseModel

import holdfast
from holdfast import CorruptVersion, HoldfastError, InvalidCall, UnsupportedValue
from holdfast.integrations.langgraph import HoldfastSaver


class Colour(enum.Enum):
    RED = "red"


class Order(BaseModel):
    name: str
    parts: list[Any] = []


@dataclass
class Point:
    x: int
    y: int = 0


class Pair(NamedTuple):
    one: Any
    two: Any


class Never(BaseModel):
    """Not registered by anything here."""


_EXACT: list[Any] = [
    None,
    True,
    1,
    1.0,
    -0.0,
    float("inf"),
    10**400,
    -(10**400),
    "lone \udc80 surrogate",
    b"\x00\xff",
    bytearray(b"x"),
    (1, [2, (3,)]),
    [(), []],
    {1: "int", "1": "str", (2, 3): "tuple", None: 0},
    {3, 1, 2},
    frozenset({"a"}),
    OrderedDict([("b", 1), ("a", 2)]),
    deque([1, 2, 3], maxlen=3),
    deque([1]),
    Fraction(1, 3),
    Decimal("1.10"),
    complex(1, -0.0),
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    dt.timedelta(days=-1, microseconds=1),
    UUID(int=7),
    Path("a/b"),
    range(3),
    ipaddress.ip_address("::1"),
    ipaddress.ip_network("10.0.0.0/8"),
    re.compile("a+", re.IGNORECASE),
    ValueError("wrong", 1),
    Colour.RED,
    Order(name="o", parts=[(1, 2)]),
    Point(1, 2),
    Pair(1, [2]),
    HumanMessage("hi", id="1"),
    AIMessage("", tool_calls=[{"name": "f", "args": {"x": (1,)}, "id": "c"}]),
    AIMessageChunk(content="chunk", id="2"),
    SystemMessage([{"type": "text", "text": "t"}]),
    ToolMessage("found", tool_call_id="c", artifact={"raw": {1}}),
    ChatMessage(content="x", role="judge"),
    FunctionMessage(content="x", name="f"),
    RemoveMessage(id="1"),
    Document(page_content="page", metadata={"n": (1,)}),
    Send("node", {"x": (1,)}),
    Send("node", 1, timeout=2.5),
    Interrupt("really?", id="abc"),
    Command(update={"x": 1}, goto=["a", Send("b", 2)], resume={"k": (1,)}),
    Overwrite([1]),
    TimeoutPolicy.coerce(3),
    Item(
        value={"a": 1},
        key="k",
        namespace=("n",),
        created_at=dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
        updated_at=dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
    ),
]


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[HoldfastSaver]:
    with holdfast.open(tmp_path / "runs.db", durability="fast") as hf:
        yield HoldfastSaver(hf, allow=[Colour, f"{__name__}.Order", Point, Pair])


def shown(value: Any) -> str:
    """A value with all that equality does not tell: types, order, signs."""
    if isinstance(value, BaseException):
        return f"{type(value).__name__}{value.args!r}"
    return f"{type(value).__name__}:{value!r}:{getattr(value, 'maxlen', '')}"


@pytest.mark.parametrize("value", _EXACT, ids=lambda value: type(value).__name__)
def test_values_come_back_as_they_were(saver: HoldfastSaver, value: Any) -> None:
    where = put(saver, config(), {"x": value, "nested": {"list": [value]}})
    saver.put_writes(where, [("x", value)], "task")
    for reader in (saver, HoldfastSaver(saver.hf)):
        found = reader.get_tuple(where)
        assert found is not None
        assert found.pending_writes is not None
        values = found.checkpoint["channel_values"]
        for back in (values["x"], values["nested"]["list"][0], found.pending_writes[0][2]):
            assert type(back) is type(value)
            assert shown(back) == shown(value)
            if not isinstance(value, BaseException):
                assert back == value
        assert type(values) is dict
        assert type(values["nested"]["list"]) is list
    assert next(saver.list(config())).checkpoint["channel_values"].keys() == {"x", "nested"}


def test_what_is_read_belongs_to_the_reader(saver: HoldfastSaver) -> None:
    where = put(saver, config(), {"messages": [HumanMessage("hi")], "plain": [[1]]})
    first: Any = saver.get_tuple(where)
    first.checkpoint["channel_values"]["messages"][0].content = "mine"
    first.checkpoint["channel_values"]["plain"][0].append(2)
    again: Any = saver.get_tuple(where)
    assert again.checkpoint["channel_values"]["messages"][0].content == "hi"
    assert again.checkpoint["channel_values"]["plain"] == [[1]]


class Foreign:
    pass


@pytest.mark.parametrize(
    ("value", "path", "name"),
    [
        (threading.Lock(), "channel_values.x", "lock"),
        ([1, {"deep": Foreign()}], "channel_values.x[1].deep", "Foreign"),
        (Never(), "channel_values.x", "Never"),
        (HumanMessage("x", additional_kwargs={"bad": Foreign()}), "additional_kwargs", "Foreign"),
        (lambda: None, "channel_values.x", "function"),
    ],
)
def test_anything_else_is_refused_with_its_path(
    saver: HoldfastSaver, value: Any, path: str, name: str
) -> None:
    start = put(saver, config(), {"x": 0})
    with pytest.raises(UnsupportedValue) as refused:
        put(saver, start, {"x": value})
    assert path in str(refused.value)
    assert name in str(refused.value)
    with pytest.raises(UnsupportedValue) as refused:
        saver.put_writes(start, [("x", value)], "task")
    assert "pending_writes" in str(refused.value)
    found = saver.get_tuple(config())
    assert found is not None
    assert (found.checkpoint["channel_values"], found.pending_writes) == ({"x": 0}, [])
    assert len(saver.hf.history("t").versions()) == 1
    put(saver, start, {"x": 1})


def test_cycles_and_depth_are_refused(saver: HoldfastSaver) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: Any = 0
    for _ in range(1_000):
        deep = [deep]
    for value in (cycle, deep):
        with pytest.raises(UnsupportedValue):
            put(saver, config(), {"x": value})
    assert saver.get_tuple(config()) is None


def test_nothing_is_imported_because_data_names_it(saver: HoldfastSaver) -> None:
    """What looks like a constructor in LangChain's own format is data and stays data."""
    assert "wsgiref.simple_server" not in sys.modules
    hostile = {
        "lc": 1,
        "type": "constructor",
        "id": ["wsgiref", "simple_server", "make_server"],
        "kwargs": {"host": "0.0.0.0"},
    }
    where = put(saver, config(), {"x": hostile, "y": {**hostile, "lc": 2}})
    found: Any = saver.get_tuple(where)
    assert found.checkpoint["channel_values"]["x"] == hostile
    assert "wsgiref.simple_server" not in sys.modules


@pytest.mark.parametrize(
    "allow",
    [
        "shop.Order",
        Order,
        7,
        ["no.such.module.Class"],
        [7],
        ["wsgiref.simple_server.WSGIServer"],
        [object],
        None,
    ],
)
def test_what_cannot_be_allowed(allow: Any) -> None:
    with holdfast.open(":memory:") as hf, pytest.raises(InvalidCall):
        HoldfastSaver(hf, allow=allow)
    assert "wsgiref.simple_server" not in sys.modules


def test_the_classes_of_a_schema_are_allowed_in_strict_mode(saver: HoldfastSaver) -> None:
    assert saver.with_allowlist({(__name__, "Strict"), ("typing", "Any"), ("no_such", "Thing")}) is saver
    where = put(saver, config(), {"x": Strict(n=1)})
    assert saver.get_tuple(where).checkpoint["channel_values"]["x"] == Strict(n=1)  # type: ignore[union-attr]


class Strict(BaseModel):
    n: int


def test_large_values_are_stored_once(saver: HoldfastSaver) -> None:
    where = config()
    for n in range(5):
        where = put(saver, where, {"document": "x" * 300_000, "n": n})
    assert saver.hf.stats().artifacts == 1
    found: Any = saver.get_tuple(where)
    assert len(found.checkpoint["channel_values"]["document"]) == 300_000


def test_every_flipped_byte_is_refused_and_the_rest_stays(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    with HoldfastSaver(file) as saver:
        first = put(saver, config(), {"secret": "sixteen byte txt", "n": 0})
        second = put(saver, first, {"secret": "sixteen byte txt", "n": 1, "more": list(range(200))})
    with sqlite3.connect(file) as db:
        (pack,) = db.execute("SELECT pack FROM journal WHERE number = 2").fetchone()
    for place in range(0, len(pack), 5):
        flipped = bytearray(pack)
        flipped[place] ^= 1
        with sqlite3.connect(file) as db:
            db.execute("UPDATE journal SET pack = ? WHERE number = 2", (bytes(flipped),))
        with HoldfastSaver(file) as saver:
            with pytest.raises(CorruptVersion):
                saver.get_tuple(second)
            with pytest.raises(CorruptVersion):
                next(saver.list(config()))
            kept = saver.get_tuple(first)
            assert kept is not None
            assert kept.checkpoint["channel_values"] == {"secret": "sixteen byte txt", "n": 0}
    with HoldfastSaver(file) as saver:
        assert not saver.hf.verify().ok


def test_secrets_are_replaced_before_they_are_stored(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db", redact=["api_key"]) as hf:
        saver = HoldfastSaver(hf)
        message = HumanMessage("x", additional_kwargs={"api_key": "hunter22"})
        where = put(saver, config(), {"api_key": "hunter22", "messages": [message]})
        saver.put_writes(where, [("x", {"api_key": "hunter22"})], "task")
        assert "hunter22" not in repr(saver.get_tuple(where))


# Bad calls


@pytest.mark.parametrize(
    "given",
    [
        None,
        {},
        {"configurable": {}},
        {"configurable": {"thread_id": None}},
        {"configurable": {"thread_id": ""}},
        {"configurable": {"thread_id": ["t"]}},
        {"configurable": {"thread_id": True}},
        {"configurable": {"thread_id": "t", "checkpoint_ns": 7}},
        {"configurable": {"thread_id": "t", "checkpoint_id": "two words"}},
        {"configurable": {"thread_id": "t", "checkpoint_id": 7}},
        {"configurable": {"thread_id": "t", "checkpoint_id": "x" * 2_000}},
        "t",
    ],
)
def test_configs_that_name_nothing(saver: HoldfastSaver, given: Any) -> None:
    with pytest.raises(InvalidCall):
        saver.get_tuple(given)
    with pytest.raises(InvalidCall):
        saver.put(given, checkpoint(), {}, {})
    with pytest.raises(InvalidCall):
        saver.put_writes(given, [("x", 1)], "task")
    if given is not None:
        with pytest.raises(InvalidCall):
            saver.list(given)
    assert saver.hf.ids() == []


def test_calls_that_make_no_sense(saver: HoldfastSaver) -> None:
    where = config(checkpoint_ns="")
    calls: list[Any] = [
        lambda: saver.put(where, None, {}, {}),  # type: ignore[arg-type]
        lambda: saver.put(where, {"id": "x"}, {}, {}),  # type: ignore[typeddict-item]
        lambda: saver.put(where, checkpoint() | {"id": ""}, {}, {}),
        lambda: saver.put(where, checkpoint() | {"parent_id": "x"}, {}, {}),
        lambda: saver.put(where, checkpoint(), None, {}),  # type: ignore[arg-type]
        lambda: saver.put_writes(where, [("x", 1)], "task"),
        lambda: saver.put_writes(config(checkpoint_id="c"), "xy", "task"),  # type: ignore[arg-type]
        lambda: saver.put_writes(config(checkpoint_id="c"), [(1, 2)], "task"),  # type: ignore[list-item]
        lambda: saver.put_writes(config(checkpoint_id="c"), [("x", 1)], 7),  # type: ignore[arg-type]
        lambda: saver.list(where, filter=[1]),  # type: ignore[arg-type]
        lambda: saver.list(where, filter={1: 2}),  # type: ignore[dict-item]
        lambda: saver.list(where, limit="2"),  # type: ignore[arg-type]
        lambda: saver.prune("t"),
        lambda: saver.prune(["t"], strategy="everything"),
        lambda: saver.delete_for_runs("run"),
        lambda: saver.delete_thread(None),  # type: ignore[arg-type]
        lambda: HoldfastSaver(saver.hf, single_writer="yes"),  # type: ignore[arg-type]
    ]
    for call in calls:
        with pytest.raises(HoldfastError):
            call()
    assert saver.hf.ids() == []
    saver.put_writes(config(checkpoint_id="c"), [], "task")
    assert saver.hf.ids() == []


_HOSTILE = [
    "../../etc/passwd",
    "..",
    ".",
    "a/../b",
    "/absolute",
    "C:\\windows",
    "a@1",
    "a~2",
    "a:tag",
    "a|b",
    "a%7Cb",
    "%%",
    " spaces ",
    "new\nline",
    "nul\0",
    "\udc80",
    "'; DROP TABLE run; --",
    "ünï¢ode 漢字",
    "x" * 500,
    "x" * 499 + "y",
    "head",
    "7",
]


def test_hostile_thread_ids_are_threads_of_their_own(saver: HoldfastSaver) -> None:
    for thread in _HOSTILE:
        for namespace in ("", *_HOSTILE[:10], "n:" + "y" * 300):
            put(saver, config(thread, checkpoint_ns=namespace), {"who": [thread, namespace]})
    for thread in _HOSTILE:
        for namespace in ("", *_HOSTILE[:10], "n:" + "y" * 300):
            found: Any = saver.get_tuple(config(thread, checkpoint_ns=namespace))
            assert found.checkpoint["channel_values"]["who"] == [thread, namespace]
    every = list(saver.list(None))
    assert len(every) == len(_HOSTILE) * 12
    for item in every:
        named = item.config["configurable"]
        assert item.checkpoint["channel_values"]["who"] == [named["thread_id"], named["checkpoint_ns"]]
    saver.copy_thread("x" * 500, "z" * 500)
    assert {item.config["configurable"]["thread_id"] for item in saver.list(config("z" * 500))} == {"z" * 500}
    saver.delete_thread("a")
    assert len(list(saver.list(None))) == len(every) + 12
    saver.delete_thread("a|b")
    assert len(list(saver.list(None))) == len(every)
    assert saver.get_tuple(config("a%7Cb")) is not None


def test_ids_that_are_no_strings(saver: HoldfastSaver) -> None:
    put(saver, config(7), {"x": 1})
    found: Any = saver.get_tuple(config("7"))
    assert found.checkpoint["channel_values"] == {"x": 1}
    put(saver, config(UUID(int=3)), {"x": 2})
    assert saver.hf.ids() == ["00000000-0000-0000-0000-000000000003", "7"]


def test_a_run_of_another_kind_is_left_alone(saver: HoldfastSaver) -> None:
    saver.hf.history("mine").commit({"x": 1})
    for call in (
        lambda: put(saver, config("mine"), {"x": 2}),
        lambda: saver.put_writes(config("mine", checkpoint_id="c"), [("x", 1)], "task"),
        lambda: saver.get_tuple(config("mine")),
    ):
        with pytest.raises(InvalidCall, match="no thread"):
            call()
    assert saver.get_tuple(config("mine", checkpoint_id="c")) is None
    saver.delete_thread("mine")
    saver.prune(["mine"], strategy="delete")
    assert list(saver.list(config("mine"))) == []
    assert saver.hf.history("mine").head.state == {"x": 1}
