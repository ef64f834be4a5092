"""Values of classes that are not registered: stored as LangGraph's own savers store them, or as records, with a
warning; refused in strict mode. The core refuses them still."""

from __future__ import annotations

import datetime as dt
import enum
import gc
import subprocess
import sys
import weakref
from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import msgspec
import pydantic.v1
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde import _msgpack
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt
from langgraph_graphs import config, put
from langgraph_values import Foreign, as_read, shown
from pydantic import BaseModel

import holdfast
from holdfast import HoldfastWarning, UnsupportedValue
from holdfast.integrations.langgraph import HoldfastSaver
from holdfast.tree.codec import decode, encode
from holdfast.tree.values import Opaque


@pytest.fixture
def saver(tmp_path: Path) -> Iterator[HoldfastSaver]:
    with holdfast.open(tmp_path / "runs.db", durability="fast") as hf:
        yield HoldfastSaver(hf)


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Table(dict[Any, Any]):
    pass


class Items(list[Any]):
    pass


class Moment(dt.datetime):
    pass


class Level(enum.IntEnum):
    LOW = 1


#: Values, and what LangGraph's own savers make of them.
_AS_OFFICIAL: list[tuple[Any, Any]] = [
    (AIMessage("hi").text, "hi"),
    ({"t": AIMessage("hi").text}, {"t": "hi"}),
    (Text("lone"), "lone"),
    (Number(3), 3),
    (Table(a=Table(b=Text("c"))), {"a": {"b": "c"}}),
    (Items([1, Items()]), [1, []]),
    (Counter("aab"), {"a": 2, "b": 1}),
    (defaultdict(list, {"a": [1]}), {"a": [1]}),
    ([memoryview(b"abc")], [b"abc"]),
    ({Text("k"): 1, Number(2): 2}, {"k": 1, 2: 2}),
    (
        AIMessage("hi", additional_kwargs={Text("k"): defaultdict(Text, a=Text("b"))}),
        AIMessage("hi", additional_kwargs={"k": {"a": "b"}}),
    ),
]


def test_subclasses_are_read_as_with_the_savers_of_langgraph(
    saver: HoldfastSaver, subtests: pytest.Subtests
) -> None:
    with SqliteSaver.from_conn_string(":memory:") as sqlite:
        for number, (value, expected) in enumerate(_AS_OFFICIAL):
            with subtests.test(number=number):
                for each in (saver, InMemorySaver(), sqlite):
                    for back in as_read(each, value):
                        assert shown(back) == shown(expected)
                        if isinstance(value, AIMessage):
                            kept = back.additional_kwargs
                            assert [type(kept), *map(type, kept), *map(type, kept.values())] == [
                                dict,
                                str,
                                dict,
                            ]
                            assert type(kept["k"]["a"]) is str


class Tags(set[Any]):
    pass


class Fixed(frozenset[Any]):
    pass


class Recent(deque[Any]):
    pass


class Ratio(float):
    pass


class Data(bytes):
    pass


class Buffer(bytearray):
    pass


class Row(tuple[Any, ...]):
    __slots__ = ()


class Day(dt.date):
    pass


class Clock(dt.time):
    pass


class Span(dt.timedelta):
    pass


class Money(Decimal):
    pass


class Id(UUID):
    pass


class FarZone(dt.tzinfo):
    def utcoffset(self, _: Any) -> dt.timedelta:
        return dt.timedelta(hours=5)

    def dst(self, _: Any) -> None:
        return None

    def tzname(self, _: Any) -> str:
        return "far"


_FAR = dt.timezone(dt.timedelta(hours=5))


@pytest.mark.filterwarnings("ignore::holdfast.HoldfastWarning")
def test_other_subclasses_are_stored_as_their_base(saver: HoldfastSaver, subtests: pytest.Subtests) -> None:
    for value, expected in [
        (Ratio(1.5), 1.5),
        (Data(b"x"), b"x"),
        (Buffer(b"x"), bytearray(b"x")),
        (Row((1, Text("a"))), (1, "a")),
        (Tags({1, Text("a")}), {1, "a"}),
        (Fixed({1}), frozenset({1})),
        (Recent([1, 2], maxlen=2), deque([1, 2], maxlen=2)),
        (Moment(2026, 1, 1, 2, 3, 4, 5, dt.UTC, fold=1), dt.datetime(2026, 1, 1, 2, 3, 4, 5, dt.UTC, fold=1)),
        (dt.datetime(2026, 1, 1, tzinfo=FarZone()), dt.datetime(2026, 1, 1, tzinfo=_FAR)),
        (Moment(2026, 1, 1, tzinfo=FarZone()), dt.datetime(2026, 1, 1, tzinfo=_FAR)),
        (dt.time(1, tzinfo=FarZone()), dt.time(1, tzinfo=_FAR)),
        (Day(2026, 1, 1), dt.date(2026, 1, 1)),
        (Clock(1, 2, 3, 4, dt.UTC, fold=1), dt.time(1, 2, 3, 4, dt.UTC, fold=1)),
        (Span(1, 2, 3), dt.timedelta(1, 2, 3)),
        (Money("1.10"), Decimal("1.10")),
        (Id(int=7), UUID(int=7)),
    ]:
        with subtests.test(value=repr(value)):
            for back in as_read(saver, value):
                assert type(back) is type(expected)
                assert shown(back) == shown(expected)


def test_loss_of_a_class_that_others_restore_warns_once(saver: HoldfastSaver) -> None:
    class Names(set[str]):
        pass

    with pytest.warns(HoldfastWarning, match=r"Names are stored as set") as warned:
        as_read(saver, [Names({"a"}), Names({"b"})])
    assert len(warned) == 1


def test_pandas_times_are_read_back_exactly(saver: HoldfastSaver) -> None:
    pandas, pytz = pytest.importorskip("pandas"), pytest.importorskip("pytz")
    for value in (
        pandas.Timestamp("2024-03-01 12:00:00.123456789"),
        pandas.Timestamp("2024-03-01 12:00:00.123456789", tz="Europe/Berlin"),
        pandas.Timestamp("2024-10-27 01:30", tz="UTC").tz_convert("Europe/Berlin"),
        pandas.Timestamp("2024-03-01", tz="Europe/Berlin").tz_convert(pytz.timezone("Asia/Tokyo")),
        pandas.Timestamp("2024-03-01", tz=dt.timezone(dt.timedelta(hours=3))),
        pandas.Timestamp("2024-03-01").as_unit("s"),
        pandas.Timestamp("2024-03-01", tz=FarZone()),
        pandas.Timedelta(1, "ns"),
    ):
        for back in as_read(saver, value):
            assert type(back) is type(value)
            assert (back, str(back), back.unit) == (value, str(value), value.unit)
    assert all(back is pandas.NaT for back in as_read(saver, pandas.NaT))


# Classes that no one has named


@dataclass
class Basket:
    items: list[Any]


class Receipt(BaseModel):
    basket: Basket | None = None
    _hidden: int = 0


class OldReceipt(pydantic.v1.BaseModel):
    total: int = 0
    lines: list[Any] = []
    _seen: int = pydantic.v1.PrivateAttr(0)


class Mood(enum.StrEnum):
    GOOD = "good"


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Place(NamedTuple):
    x: Any


class Packet(msgspec.Struct):
    x: Any


@attrs.define
class Parcel:
    x: Any
    tags: list[str] = attrs.Factory(list)


class ShopError(Exception):
    pass


_RECORDS: list[Any] = [
    Basket([(1,)]),
    Receipt(basket=Basket([])),
    OldReceipt(total=1, lines=[(1,)]),
    Mood.GOOD,
    Level.LOW,
    Rights.READ | Rights.WRITE,
    Place([1]),
    Packet((1,)),
    Parcel(1, ["a"]),
    ShopError("closed", 1),
]


def test_record_that_no_other_process_finds_is_stored_with_one_warning(saver: HoldfastSaver) -> None:
    @dataclass
    class Local:
        x: int

    with pytest.warns(
        HoldfastWarning, match=r"Local, which is not a class of a module.*allow=\[Local\]"
    ) as warned:
        read = [*as_read(saver, Local(1)), *as_read(saver, [Local(2)])]
    assert len(warned) == 1
    assert read[0] == Local(1)


@pytest.mark.filterwarnings("error")
def test_plain_records_of_modules_are_stored(saver: HoldfastSaver) -> None:
    for value in _RECORDS:
        read = [*as_read(saver, value), *as_read(saver, {"more": [value]})]
        for back in read[:3]:
            assert shown(back) == shown(value)
            assert isinstance(value, BaseException) or back == value
        assert read[3]["more"][0].__class__ is type(value)


def test_model_of_pydantic_1_keeps_its_state(saver: HoldfastSaver) -> None:
    class Kept(OldReceipt):
        pass

    value = Kept(total=1)
    object.__setattr__(value, "_seen", 7)
    for back in as_read(HoldfastSaver(saver.hf, allow=[Kept]), value):
        assert (back, back.__fields_set__, back._seen) == (value, {"total"}, 7)


_ELSEWHERE = """
import enum, sys, warnings
from dataclasses import dataclass
from pathlib import Path
import holdfast
from holdfast.integrations.langgraph import HoldfastSaver
from langgraph.checkpoint.base import empty_checkpoint

{imports}

warnings.simplefilter("ignore")
saver = HoldfastSaver(sys.argv[1])
where = {{"configurable": {{"thread_id": "t", "checkpoint_ns": ""}}}}
{action}
"""


def _run(folder: Path, imports: str, action: str) -> str:
    program = folder / "agent.py"
    program.write_text(_ELSEWHERE.format(imports=imports, action=action))
    done = subprocess.run(
        [sys.executable, str(program), str(folder / "runs.db")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_record_is_read_in_another_process_if_its_module_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from dataclasses import dataclass\n\n\nclass Shop:\n    @dataclass\n    class Cart:\n        n: int\n"
    )
    (tmp_path / "lazy.py").write_text("def __getattr__(name):\n    import shop\n    return shop.Shop\n")
    own = "import shop\n\n@dataclass\nclass Own:\n    n: int\n"
    put = 'saver.put(where, empty_checkpoint() | {"channel_values": {"x": [shop.Shop.Cart(1), Own(2)]}}, {}, {})'
    get = 'print(saver.get_tuple(where).checkpoint["channel_values"]["x"])'
    assert _run(tmp_path, own, put) == ""
    assert _run(tmp_path, own, get) == "[Shop.Cart(n=1), Own(n=2)]"
    # Nothing is imported, also not by a module that imports when it is asked for a name.
    loaded = f'import lazy\nsys.modules["agent"] = lazy\n{get}\nprint("shop" in sys.modules)'
    unknown = "[Opaque('shop.Shop.Cart', {'n': 1}), Opaque('agent.Own', {'n': 2})]"
    assert _run(tmp_path, "", loaded) == f"{unknown}\nFalse"


def test_class_in_data_is_not_used_unless_it_is_a_record(saver: HoldfastSaver) -> None:
    tags = [
        f"{__name__}.Foreign",
        f"{__name__}.Owner",
        f"{__name__}.threading.Thread",
        "subprocess.Popen",
        "a" * 9_999,
    ]
    stored = [Opaque(tag, {"x": 1}) for tag in tags]
    for back in as_read(saver, stored):
        assert back == stored


def test_strict_mode_refuses_classes_that_no_one_has_named(
    saver: HoldfastSaver, monkeypatch: pytest.MonkeyPatch
) -> None:
    @dataclass
    class Unnamed:
        x: int = 1

    class UnnamedError(Exception):
        pass

    monkeypatch.setattr(_msgpack, "STRICT_MSGPACK_ENABLED", True)
    with pytest.raises(UnsupportedValue, match=r"LANGGRAPH_STRICT_MSGPACK is set: pass .*allow=\[Unnamed\]"):
        put(saver, config(), {"x": Unnamed()})
    assert as_read(saver, [UnnamedError("x"), Text("a")])[0] == ["UnnamedError('x')", "a"]
    put(saver, config(), {"x": Opaque(f"{__name__}.Hidden", {"n": 1})})
    found: Any = saver.get_tuple(config())
    assert type(found.checkpoint["channel_values"]["x"]) is Opaque
    monkeypatch.setattr(_msgpack, "STRICT_MSGPACK_ENABLED", False)
    found = saver.get_tuple(config())
    assert found.checkpoint["channel_values"]["x"] == Hidden(1)


@dataclass
class Hidden:
    n: int


def _define(**fields: Any) -> Any:
    return dataclass(type("Defined", (), {"__annotations__": fields, "__module__": __name__}))


@pytest.mark.filterwarnings("ignore::holdfast.HoldfastWarning")
def test_newest_definition_of_a_class_is_read(saver: HoldfastSaver, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a notebook, whose cells are run again."""
    first = _define(x=int)
    monkeypatch.setitem(globals(), "Defined", first)
    where = put(saver, config(), {"x": first(1)})
    second = _define(x=int)
    monkeypatch.setitem(globals(), "Defined", second)
    for value in (None, first(2), second(3), first(4)):
        if value is not None:
            where = put(saver, where, {"x": value})
        found: Any = saver.get_tuple(where)
        assert type(found.checkpoint["channel_values"]["x"]) is second


@pytest.mark.filterwarnings("ignore::holdfast.HoldfastWarning")
def test_classes_of_a_function_are_stored_and_released(saver: HoldfastSaver) -> None:
    def define() -> Any:
        @dataclass
        class Local:
            n: int

        return Local

    old = define()
    classes = []
    for n in range(30):
        cls = define()
        with HoldfastSaver(":memory:") as once:
            for back in as_read(once, cls(n)):
                assert back == cls(n)
        classes.append(weakref.ref(cls))
    del cls, back
    gc.collect()
    assert sum(each() is not None for each in classes) < 10
    for back in as_read(saver, old(7)):
        assert back == old(7)


def test_known_class_keeps_its_tag_if_it_is_allowed(saver: HoldfastSaver) -> None:
    HoldfastSaver(saver.hf, allow=[AIMessage]).with_allowlist({("langchain_core.messages.ai", "AIMessage")})
    assert AIMessage("x") in decode(encode([AIMessage("x")]))
    assert b"langchain.AIMessage" in encode(AIMessage("x"))


# Errors and metadata


@pytest.mark.filterwarnings("ignore::holdfast.HoldfastWarning")
def test_error_that_cannot_be_stored_is_its_repr(saver: HoldfastSaver) -> None:
    class BrokenError(Exception):
        pass

    error = ValueError("x", Foreign())
    for back in as_read(saver, error):
        assert back == repr(error)
    for back in as_read(saver, HumanMessage("x", additional_kwargs={"error": BrokenError(Foreign)})):
        assert back.additional_kwargs == {"error": repr(BrokenError(Foreign))}


@pytest.mark.filterwarnings("ignore::holdfast.HoldfastWarning")
def test_task_error_is_its_repr(saver: HoldfastSaver) -> None:
    def fail(state: Any) -> Any:
        raise ShopError("closed")

    graph = StateGraph(Work)
    graph.add_node("fail", fail)
    graph.add_edge(START, "fail")
    for each in (saver, InMemorySaver()):
        with pytest.raises(ShopError):
            graph.compile(checkpointer=each).invoke(Work(ask=Ask(question="?")), config("failing"))
        found: Any = each.get_tuple(config("failing"))
        assert [write[1:] for write in found.pending_writes] == [("__error__", "ShopError('closed')")]


def test_tuples_in_metadata_are_lists(saver: HoldfastSaver) -> None:
    with SqliteSaver.from_conn_string(":memory:") as sqlite:
        for each in (saver, InMemorySaver(), sqlite):
            where: Any = {"configurable": {"thread_id": "meta", "checkpoint_ns": ""}}
            put(each, where, {"x": (1,)}, counts={"a": (1, [(2,)])})
            found: Any = each.get_tuple(where)
            assert found.metadata["counts"] == {"a": [1, [[2]]]}
            assert len(list(each.list(where, filter={"counts": {"a": [1, [[2]]]}}))) == 1


def test_cycle_in_metadata_is_refused(saver: HoldfastSaver) -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(UnsupportedValue, match=r"at metadata\.cycle"):
        put(saver, config(), {"x": 0}, cycle=cycle)


def test_core_refuses_these_values_still(saver: HoldfastSaver) -> None:
    @dataclass
    class Fresh:
        x: int = 1

    log = saver.hf.history("core")
    values = [value for value, _ in _AS_OFFICIAL]
    for value in [*values, Ratio(1.5), Tags({1}), Moment(2026, 1, 1), ValueError(Foreign()), Fresh()]:
        with pytest.raises(UnsupportedValue):
            log.commit({"x": value})


class Ask(BaseModel):
    question: str


class Answer(BaseModel):
    text: str
    about: Ask


class Work(BaseModel):
    ask: Ask
    answer: Answer | None = None


@pytest.mark.filterwarnings("ignore::holdfast.HoldfastWarning")
def test_agent_resumes_with_the_classes_of_its_schema(saver: HoldfastSaver) -> None:
    """The classes of the state, the input, an interrupt's answer and a structured response, without `allow`."""

    def reply(state: Work) -> Any:
        return {"answer": Answer(text=interrupt(state.ask), about=state.ask)}

    graph = StateGraph(Work, input_schema=Ask)
    graph.add_node("start", lambda state: {"ask": state}, input_schema=Ask)
    graph.add_node("reply", reply)
    graph.add_edge(START, "start")
    graph.add_edge("start", "reply")
    app = graph.compile(checkpointer=saver)
    app.invoke(Ask(question="why?"), config("agent"))
    assert app.get_state(config("agent")).interrupts[0].value == Ask(question="why?")
    done = app.invoke(Command(resume="because"), config("agent"))
    assert done["answer"] == Answer(text="because", about=Ask(question="why?"))
