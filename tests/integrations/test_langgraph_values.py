"""Values in channels and writes: read back exactly, or as LangGraph's own savers read them, or refused by name; no
code from data; no corrupt value."""

from __future__ import annotations

import datetime as dt
import enum
import ipaddress
import re
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import UUID

import pydantic.v1
import pytest
from langchain_core.agents import AgentAction, AgentActionMessageLog, AgentFinish, AgentStep
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
from langchain_core.outputs import (
    ChatGeneration,
    ChatGenerationChunk,
    ChatResult,
    Generation,
    GenerationChunk,
    LLMResult,
    RunInfo,
)
from langchain_core.prompt_values import ChatPromptValue, StringPromptValue
from langgraph.store.base import GetOp, Item, SearchItem
from langgraph.types import Command, Interrupt, Overwrite, Send, TimeoutPolicy
from langgraph_graphs import config, put
from langgraph_values import Foreign, Owner, shown
from pydantic import BaseModel, SecretBytes, SecretStr

import holdfast
from database import Database
from holdfast import CorruptVersion, InvalidCall, UnsupportedValue
from holdfast.history.attachments import MAX_ATTACHMENT
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


_ITEM: Any = {
    "value": {"a": 1},
    "key": "k",
    "namespace": ("n",),
    "created_at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    "updated_at": dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
}
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
    Item(**_ITEM),
    SearchItem(**_ITEM, score=0.5),
    GetOp(("n",), "k"),
    AgentAction(tool="t", tool_input={"x": (1,)}, log="l"),
    AgentActionMessageLog(tool="t", tool_input="x", log="l", message_log=[AIMessage("a")]),
    AgentStep(action=AgentAction(tool="t", tool_input="x", log="l"), observation=(1,)),
    AgentFinish(return_values={"x": (1,)}, log="l"),
    Generation(text="g", generation_info={"n": (1,)}),
    GenerationChunk(text="g"),
    ChatGeneration(message=AIMessage("a")),
    ChatGenerationChunk(message=AIMessageChunk(content="a")),
    LLMResult(generations=[[Generation(text="g")]], run=[RunInfo(run_id=UUID(int=7))]),
    ChatResult(generations=[ChatGeneration(message=AIMessage("a"))]),
    StringPromptValue(text="p"),
    ChatPromptValue(messages=[HumanMessage("hi")]),
    SecretStr("hunter22"),
    SecretBytes(b"hunter22"),
    pydantic.v1.SecretStr("hunter22"),
    pydantic.v1.SecretBytes(b"hunter22"),
]


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[HoldfastSaver]:
    with holdfast.open(tmp_path / "runs.db", durability="fast") as hf:
        yield HoldfastSaver(hf, allow=[Colour, f"{__name__}.Order", Point, Pair])


def test_values_are_read_back_with_type_and_value(saver: HoldfastSaver) -> None:
    for number, value in enumerate(_EXACT):
        thread = config(f"t{number}")
        where = put(saver, thread, {"x": value, "nested": {"list": [value]}})
        saver.put_writes(where, [("x", value)], "task")
        for reader in (saver, HoldfastSaver(saver.hf)):
            found = reader.get_tuple(where)
            assert found is not None
            assert found.pending_writes is not None
            values = found.checkpoint["channel_values"]
            for back in (values["x"], values["nested"]["list"][0], found.pending_writes[0][2]):
                assert type(back) is type(value)
                assert shown(back) == shown(value)
                assert isinstance(value, BaseException) or back == value
            assert type(values) is dict
            assert type(values["nested"]["list"]) is list
        assert next(saver.list(thread)).checkpoint["channel_values"].keys() == {"x", "nested"}


def test_read_values_are_private_copies(saver: HoldfastSaver) -> None:
    where = put(saver, config(), {"messages": [HumanMessage("hi")], "plain": [[1]]})
    first: Any = saver.get_tuple(where)
    first.checkpoint["channel_values"]["messages"][0].content = "mine"
    first.checkpoint["channel_values"]["plain"][0].append(2)
    again: Any = saver.get_tuple(where)
    assert again.checkpoint["channel_values"]["messages"][0].content == "hi"
    assert again.checkpoint["channel_values"]["plain"] == [[1]]


@pytest.mark.parametrize(
    ("value", "where", "name"),
    [
        (threading.Lock(), "", "_thread.lock cannot be stored"),
        ([1, {"deep": Foreign()}], "at [1].deep: ", "Foreign cannot be stored"),
        (HumanMessage("x", additional_kwargs={"bad": Foreign()}), "at additional_kwargs.bad: ", "Foreign"),
        (lambda: None, "", "builtins.function cannot be stored"),
        ((char for char in ""), "", "builtins.generator cannot be stored"),
        ({"key": Owner()}, "at key: ", "Owner cannot be stored"),
        ({"writes": [(0, Foreign())]}, "at writes[0][1]: ", "Foreign cannot be stored"),
        (
            [{dt.date(2026, 1, 1): [Foreign()]}],
            "at [0][datetime.date(2026, 1, 1)][0]: ",
            "Foreign cannot be stored",
        ),
    ],
)
def test_value_that_is_not_a_record_is_refused_with_its_channel(
    saver: HoldfastSaver, value: Any, where: str, name: str
) -> None:
    start = put(saver, config(), {"x": 0})
    for channel in ("docs", "odd: channel"):
        for refuse in (
            lambda: put(saver, start, {"a": 1, channel: value}),  # noqa: B023
            lambda: saver.put_writes(start, [("a", 1), (channel, value)], "task"),  # noqa: B023
        ):
            with pytest.raises(UnsupportedValue) as refused:
                refuse()
            assert str(refused.value).startswith(f'channel "{channel}": {where}')
            assert name in str(refused.value)
            assert "holdfast.register(" in str(refused.value)
            assert refused.value.details["channel"] == channel
    found = saver.get_tuple(config())
    assert found is not None
    assert (found.checkpoint["channel_values"], found.pending_writes) == ({"x": 0}, [])
    assert len(saver.hf.history("t").versions()) == 1
    put(saver, start, {"x": 1})


def test_writes_that_are_too_large_are_refused_with_their_channels(saver: HoldfastSaver) -> None:
    start = put(saver, config(), {"x": 0})
    huge = bytes(MAX_ATTACHMENT)
    for writes, channels in (
        ([("docs", huge)], 'channel "docs"'),
        ([("a", 1), ("docs", huge)], 'channel "a", "docs"'),
    ):
        with pytest.raises(UnsupportedValue, match=f"^{channels}: .* bytes are too many"):
            saver.put_writes(start, writes, "task")
    found = saver.get_tuple(config())
    assert found is not None
    assert found.pending_writes == []


def test_refusal_in_metadata_keeps_its_path(saver: HoldfastSaver) -> None:
    with pytest.raises(UnsupportedValue, match=r"at metadata\.odd: .*Foreign cannot be stored"):
        put(saver, config(), {"x": 0}, odd=Foreign())


def test_cyclic_and_too_deep_values_are_refused(saver: HoldfastSaver) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: Any = 0
    for _ in range(1_000):
        deep = [deep]
    for value in (cycle, deep):
        with pytest.raises(UnsupportedValue):
            put(saver, config(), {"x": value})
    assert saver.get_tuple(config()) is None


def test_read_imports_nothing_that_data_names(saver: HoldfastSaver) -> None:
    """A constructor in LangChain's own format is data and stays data."""
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


def test_invalid_allow_is_refused() -> None:
    unimported = ["wsgiref.simple_server.WSGIServer"]
    for allow in ("shop.Order", Order, 7, ["no.such.module.Class"], [7], unimported, [object], None):
        with holdfast.open(":memory:") as hf, pytest.raises(InvalidCall):
            HoldfastSaver(hf, allow=cast(Any, allow))
    assert "wsgiref.simple_server" not in sys.modules


def test_schema_classes_are_allowed_in_strict_mode(saver: HoldfastSaver) -> None:
    assert saver.with_allowlist({(__name__, "Strict"), ("typing", "Any"), ("no_such", "Thing")}) is saver
    where = put(saver, config(), {"x": Strict(n=1)})
    assert saver.get_tuple(where).checkpoint["channel_values"]["x"] == Strict(n=1)  # type: ignore[union-attr]


class Strict(BaseModel):
    n: int


def test_large_value_is_stored_once(saver: HoldfastSaver) -> None:
    where = config()
    for n in range(5):
        where = put(saver, where, {"document": "x" * 300_000, "n": n})
    assert saver.hf.stats().artifacts == 1
    found: Any = saver.get_tuple(where)
    assert len(found.checkpoint["channel_values"]["document"]) == 300_000


def test_corrupt_version_is_refused_and_others_stay_readable(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    with HoldfastSaver(file) as saver:
        first = put(saver, config(), {"secret": "sixteen byte txt", "n": 0})
        second = put(saver, first, {"secret": "sixteen byte txt", "n": 1, "more": list(range(200))})
    with Database(file) as db:
        pack = db.value("SELECT pack FROM journal WHERE number = 2")
    for place in range(0, len(pack), 5):
        flipped = bytearray(pack)
        flipped[place] ^= 1
        with Database(file) as db:
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


def test_secrets_are_redacted_before_storing(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "runs.db", redact=["api_key"]) as hf:
        saver = HoldfastSaver(hf)
        message = HumanMessage("x", additional_kwargs={"api_key": "hunter22"})
        where = put(saver, config(), {"api_key": "hunter22", "messages": [message]})
        saver.put_writes(where, [("x", {"api_key": "hunter22"})], "task")
        assert "hunter22" not in repr(saver.get_tuple(where))
