"""Values in channels, writes and metadata: the classes that are known, and the others as LangGraph's own savers
store them.

The classes of LangChain and LangGraph are registered under stable tags, those of an application by the application
or by the saver's `allow`. Within `adapted()`, and only there, other values are stored, too:

- A subclass of a built-in type (`AIMessage.text`, a `defaultdict`) as a value of that type.
- A plain record of another class (a pydantic model, a dataclass, an enum, …): its class is registered when an object
  of it is stored. When its tag is read in another process, the class is searched among the modules that this process
  has loaded; a class that cannot be found there, because a function defines it, is stored with a warning. In
  LangGraph's strict mode it is refused.
- An exception that cannot be stored, as its `repr`; a time in a foreign time zone, with its offset from UTC.

Any other value is refused by name.

Invariant: no module is imported because data names it, and a class that data names is used only if it is a plain
record, or was registered by this program.
"""

from __future__ import annotations

import datetime as dt
import enum
import ipaddress
import re
import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import is_dataclass
from decimal import Decimal
from functools import cache, partial
from types import ModuleType
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary
from zoneinfo import ZoneInfo

import msgspec
import pydantic
from langchain_core import messages
from langchain_core.documents import Document
from langgraph.checkpoint.serde import _msgpack
from langgraph.checkpoint.serde.types import ERROR, _DeltaSnapshot
from langgraph.store.base import GetOp, Item, SearchItem
from langgraph.types import Command, Interrupt, Overwrite, PregelTask, Send, StateSnapshot, TimeoutPolicy

import holdfast
from holdfast.errors import HoldfastWarning, InvalidCall, InvalidReference, UnsupportedValue
from holdfast.store.process_fork import reset_in_children
from holdfast.tree import adapter
from holdfast.tree import path as paths
from holdfast.tree.class_names import own_name, type_name
from holdfast.tree.codec import MAX_DEPTH
from holdfast.tree.sanitize import SCALARS
from holdfast.tree.values import CONTENT, find_tag, forget, is_registered

#: Definitions of one class, made again and again (a class in a function), whose objects are stored.
_MAX_DEFINITIONS = 8
#: Characters of a tag that is searched among loaded modules, and of a path in a message.
_MAX_TAG = 1_000
_MAX_PATH = 120

# Classes that are known


@cache
def register_known() -> None:
    """Make the classes of LangChain and LangGraph storable."""
    from langchain_core import agents, outputs, prompt_values

    for module, names in (
        (
            messages,
            "AIMessage AIMessageChunk BaseMessage BaseMessageChunk ChatMessage ChatMessageChunk FunctionMessage "
            "FunctionMessageChunk HumanMessage HumanMessageChunk RemoveMessage SystemMessage SystemMessageChunk "
            "ToolMessage ToolMessageChunk",
        ),
        (agents, "AgentAction AgentActionMessageLog AgentFinish AgentStep"),
        (
            outputs,
            "ChatGeneration ChatGenerationChunk ChatResult Generation GenerationChunk LLMResult RunInfo",
        ),
        (prompt_values, "ChatPromptValue ChatPromptValueConcrete ImagePromptValue StringPromptValue"),
    ):
        for name in names.split():
            holdfast.register(getattr(module, name), f"langchain.{name}")
    holdfast.register(Document, "langchain.Document")
    for record in (Command, GetOp, Interrupt, Overwrite, PregelTask, StateSnapshot, TimeoutPolicy):
        holdfast.register(record, f"langgraph.{record.__name__}")
    holdfast.register(_DeltaSnapshot, "langgraph.DeltaSnapshot")
    holdfast.register(
        Send,
        "langgraph.Send",
        split=lambda send: [send.node, send.arg, send.timeout],
        join=lambda parts: Send(parts[0], parts[1], timeout=parts[2]),
    )
    holdfast.register(Item, "langgraph.Item", split=_item_parts, join=lambda parts: Item(**parts))
    holdfast.register(
        SearchItem,
        "langgraph.SearchItem",
        split=lambda item: {**_item_parts(item), "score": item.score},
        join=lambda parts: SearchItem(**parts),
    )
    for address in (
        "IPv4Address",
        "IPv4Interface",
        "IPv4Network",
        "IPv6Address",
        "IPv6Interface",
        "IPv6Network",
    ):
        cls = getattr(ipaddress, address)
        holdfast.register(cls, f"ipaddress.{address}", split=str, join=cls)
    holdfast.register(
        re.Pattern,
        "re.Pattern",
        split=lambda pattern: [pattern.pattern, pattern.flags],
        join=lambda parts: re.compile(*parts),
    )
    _register_secrets("pydantic", pydantic)


def _item_parts(item: Item) -> dict[str, Any]:
    return {name: getattr(item, name) for name in ("value", "key", "namespace", "created_at", "updated_at")}


def _register_secrets(library: str, module: Any) -> None:
    for cls in (module.SecretStr, module.SecretBytes):
        holdfast.register(
            cls, f"{library}.{cls.__name__}", split=lambda secret: secret.get_secret_value(), join=cls
        )


def _zone_of(time: Any) -> Any:
    """Return the time zone of a time of pandas, which may be one of pytz: that has a name, or an offset from UTC."""
    zone = time.tzinfo
    if zone is None or type(zone) in (dt.timezone, ZoneInfo):
        return zone
    return getattr(zone, "zone", None) or _fixed_zone(time)


def _register_pandas(_: str, pandas: Any) -> None:
    def join_timestamp(parts: list[Any]) -> Any:
        moment = pandas.Timestamp(parts[0])
        return moment if parts[1] is None else moment.tz_localize("UTC").tz_convert(parts[1])

    holdfast.register(
        pandas.Timestamp,
        "pandas.Timestamp",
        # The moment in UTC, a scalar of numpy with the unit of the time.
        split=lambda time: [time.asm8, _zone_of(time)],
        join=join_timestamp,
    )
    holdfast.register(
        pandas.Timedelta, "pandas.Timedelta", split=lambda delta: delta.asm8, join=pandas.Timedelta
    )
    holdfast.register(type(pandas.NaT), "pandas.NaT", split=lambda _: None, join=lambda _: pandas.NaT)


#: Libraries whose classes are registered when they are first met, because this program may not need them.
_LIBRARIES: dict[str, Callable[[str, Any], None]] = {
    "pandas": _register_pandas,
    "pydantic.v1": _register_secrets,
}


def _register_library(name: str) -> None:
    """Register the classes of the library to which a name belongs, if this process has loaded it."""
    for library, register in _LIBRARIES.items():
        if (name == library or name.startswith(f"{library}.")) and library in sys.modules:
            register(library, sys.modules[library])


def register_allowed(allow: Any) -> None:
    """Make classes of the application storable, given as classes or by their names in modules that are
    already imported."""
    if isinstance(allow, str | type) or not isinstance(allow, Iterable):
        raise InvalidCall(
            "allow takes a list of classes, or of their names: allow=[Order, 'shop.models.Cart']"
        )
    for item in allow:
        cls = _imported_class(item) if isinstance(item, str) else item
        if not isinstance(cls, type):
            raise InvalidCall(f"allow takes classes, or their names, not {item!r:.60}")
        _ADAPTER.register(cls)


def register_schema(names: Iterable[tuple[str, ...]]) -> None:
    """Make the classes of a graph's schemas storable, as LangGraph lists them: module and name. Classes that
    are not records (a TypedDict, a built-in type) need no registration."""
    for module, *name in names:
        found: Any = sys.modules.get(module)
        for part in name:
            found = getattr(found, part, None)
        if isinstance(found, type):
            try:
                _ADAPTER.register(found)
            except InvalidCall:
                continue


def _imported_class(name: str) -> type:
    module, _, inner = name.rpartition(".")
    while module:
        found: Any = sys.modules.get(module)
        if found is not None:
            for part in inner.split("."):
                found = getattr(found, part, None)
            if isinstance(found, type):
                return found
        module, _, outer = module.rpartition(".")
        inner = f"{outer}.{inner}"
    raise InvalidCall(f"allow names {name!r}, which is not a class of an imported module: import it first")


# Values of other classes


def adapted() -> AbstractContextManager[None]:
    """Return a context in which values are stored and read as LangGraph's own savers do, where that differs from the
    core: around commits, attachments and reads. Do not yield inside of it."""
    _ADAPTER.refresh()
    return adapter.use(_ADAPTER)


def storable_write(channel: str, value: Any) -> Any:
    """Return the value of a write as LangGraph's own savers store it: the error of a task is its `repr`."""
    return paths.safe_repr(value) if channel == ERROR and isinstance(value, BaseException) else value


def plain_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata as LangGraph's own savers do: JSON, where tuples are lists."""
    return {key: _without_tuples(item, 1) for key, item in metadata.items()}


def _without_tuples(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        # A cycle, which is refused when it is stored.
        return value
    if type(value) is dict:
        return {key: _without_tuples(item, depth + 1) for key, item in value.items()}
    if type(value) in (list, tuple):
        return [_without_tuples(item, depth + 1) for item in value]
    return value


def name_channel(
    error: UnsupportedValue, channel: str | None = None, rows: Mapping[int, Sequence[Any]] | None = None
) -> UnsupportedValue:
    """Return an error that names the channel of the refused value: `channel`, or the channel in the error's path of a
    state, or in the row of `rows` (writes by index) that the path names. An error without a path is about all rows."""
    segments, rest = _parse_path(str(error.details.get("path", "")))
    if segments[:1] == ["channel_values"] and len(segments) > 1:
        channel, segments = channel or segments[1], segments[2:]
    elif segments[:1] == ["writes"] and segments[2:3] == [1]:
        channel, segments = channel or (rows or {}).get(segments[1], [None])[0], segments[3:]
    elif rows and not segments and not rest:
        channel = '", "'.join(dict.fromkeys(name for name, _ in rows.values()))
    if channel is None:
        return error
    reason = error.details.get("reason", str(error))
    where = paths.shorten(paths.show(segments) + rest, _MAX_PATH)
    place = f"at {where}: " if where else ""
    return UnsupportedValue(f'channel "{channel}": {place}{reason}', **error.details, channel=channel)


def _parse_path(path: str) -> tuple[list[Any], str]:
    """Return the segments of a path up to a key that has no literal, such as a date, and the rest of the path."""
    end = len(path)
    while end > 0:
        try:
            return paths.parse(path[:end]), path[end:]
        except InvalidReference:
            end = path.rfind("[", 0, end)
    return [], path


def is_record(cls: type) -> bool:
    """Return whether the objects of a class are plain records, which can be restored without code of the class."""
    if hasattr(cls, "__del__"):
        return False
    if issubclass(cls, BaseException):
        return not any(vars(base).get("__slots__") for base in cls.__mro__)
    if issubclass(cls, enum.Enum | msgspec.Struct) or (issubclass(cls, tuple) and hasattr(cls, "_fields")):
        return True
    is_fielded = is_dataclass(cls) or hasattr(cls, "__attrs_attrs__") or hasattr(cls, "__pydantic_fields__")
    return (is_fielded or _is_model_v1(cls)) and not issubclass(cls, CONTENT)


def _is_model_v1(cls: type) -> bool:
    """Return whether a class is a model of pydantic 1, also as part of pydantic 2."""
    library = sys.modules.get("pydantic.v1")
    return library is not None and issubclass(cls, library.BaseModel)


def _register_record(cls: Any) -> None:
    if _is_model_v1(cls):
        holdfast.register(cls, split=_split_model_v1, join=partial(_join_model_v1, cls))
    elif hasattr(cls, "__attrs_attrs__") and not issubclass(cls, BaseException):
        holdfast.register(cls, split=_split_attrs, join=partial(_join_attrs, cls))
    else:
        holdfast.register(cls)


def _split_model_v1(model: Any) -> dict[str, Any]:
    names = [name for name in model.__private_attributes__ if hasattr(model, name)]
    return {
        "fields": dict(model.__dict__),
        "set": set(model.__fields_set__),
        "private": {name: getattr(model, name) for name in names},
    }


def _join_model_v1(cls: Any, parts: dict[str, Any]) -> Any:
    made = object.__new__(cls)
    values = parts["fields"]
    for name, field in cls.__fields__.items():
        if name not in values:
            if field.required:
                raise TypeError(f"the field {name!r} is missing and has no default")
            values[name] = field.get_default()
    attributes = {"__dict__": values, "__fields_set__": parts["set"], **parts["private"]}
    for name, value in attributes.items():
        object.__setattr__(made, name, value)
    return made


def _split_attrs(record: Any) -> dict[str, Any]:
    parts = {field.name: getattr(record, field.name) for field in record.__attrs_attrs__}
    extra = getattr(record, "__dict__", {}).keys() - parts.keys()
    if extra:
        raise UnsupportedValue(f"{type(record).__name__} has attributes beyond its fields: {sorted(extra)}")
    return parts


def _join_attrs(cls: Any, parts: dict[str, Any]) -> Any:
    made = object.__new__(cls)
    library: Any = sys.modules["attr"]
    for field in cls.__attrs_attrs__:
        value = parts.get(field.name, field.default)
        if value is library.NOTHING:
            raise TypeError(f"the field {field.name!r} is missing and has no default")
        if isinstance(value, library.Factory):
            value = value.factory(made) if value.takes_self else value.factory()
        object.__setattr__(made, field.name, value)
    return made


#: Conversions from an object of a subclass to the built-in type, in the order in which they apply.
_TO_BASE: dict[type, Callable[[Any], Any]] = {
    **SCALARS,
    dict: dict.copy,
    list: list.copy,
    tuple: lambda value: tuple(tuple.__iter__(value)),
    set: lambda value: set(set.__iter__(value)),
    frozenset: lambda value: frozenset(frozenset.__iter__(value)),
    deque: lambda value: deque(deque.__iter__(value), value.maxlen),
    dt.datetime: lambda value: dt.datetime.combine(dt.datetime.date(value), dt.datetime.timetz(value)),
    dt.date: lambda value: dt.date.fromordinal(dt.date.toordinal(value)),
    dt.time: lambda value: dt.time(
        value.hour, value.minute, value.second, value.microsecond, value.tzinfo, fold=value.fold
    ),
    dt.timedelta: lambda value: dt.timedelta(value.days, value.seconds, value.microseconds),
    Decimal: Decimal,
    UUID: lambda value: UUID(int=value.int),
    memoryview: memoryview.tobytes,
}
#: Types of which LangGraph's own savers restore a subclass.
_KEPT = (set, frozenset, deque, dt.date, dt.time, dt.timedelta, Decimal, UUID)


def _fixed_zone(value: Any) -> dt.timezone | None:
    """Return the time zone of a time as its offset from UTC; None if it has none."""
    offset = value.utcoffset()
    return None if offset is None else dt.timezone(offset)


class _ValueAdapter:
    """Storage of values of classes that are not registered."""

    def __init__(self) -> None:
        self.reset_after_fork()
        reset_in_children(self)
        self._warned: set[str] = set()
        #: Conversions of subclasses of built-in types.
        self._conversions: WeakKeyDictionary[type, Callable[[Any], Any]] = WeakKeyDictionary()
        #: By tag, the definitions of a class, the one that is used for reading last.
        self._definitions: dict[str, list[type]] = {}

    def reset_after_fork(self) -> None:
        """Make a new lock in the child of a fork: a thread of the parent may have had the old one."""
        self._lock = threading.RLock()

    def register(self, cls: type) -> None:
        """Register a class, unless it is registered under another tag. The latest of several definitions of a name is
        used for reading."""
        tag = type_name(cls)
        if is_registered(cls) and find_tag(tag) is None:
            return
        _register_record(cls)
        with self._lock:
            known = [*(each for each in self._definitions.get(tag, ()) if each is not cls), cls]
            for old in known[:-_MAX_DEFINITIONS]:
                forget(old)
            self._definitions[tag] = known[-_MAX_DEFINITIONS:]

    def refresh(self) -> None:
        """Register classes again that were defined again since, as by running a cell of a notebook twice."""
        for tag, known in list(self._definitions.items()):
            cls = known[-1]
            module = sys.modules.get(cls.__module__)
            outer = getattr(module, "__dict__", {}).get(cls.__qualname__.partition(".")[0])
            if outer is cls or not isinstance(outer, type):
                continue
            found = _loaded_class(tag)
            if found is not None and found is not cls:
                self.register(found)

    def replace(self, value: Any) -> Any:
        cls = type(value)
        convert = self._conversions.get(cls)
        if convert is not None:
            return convert(value)
        _register_library(cls.__module__)
        if is_registered(cls):
            return value
        if is_record(cls):
            if self._register_unknown(cls):
                return value
        elif not issubclass(cls, BaseException):
            return self._base_value(value)
        if issubclass(cls, BaseException):
            return paths.safe_repr(value)
        raise UnsupportedValue(
            f"{own_name(cls)} is not registered, and LANGGRAPH_STRICT_MSGPACK is set: pass "
            f"allow=[{cls.__name__}] to HoldfastSaver or HoldfastStore, or name it in the graph's schema",
            type=own_name(cls),
        )

    def simplify(self, value: Any) -> Any:
        if isinstance(value, BaseException):
            return paths.safe_repr(value)
        if isinstance(value, dt.datetime | dt.time):
            zone = _fixed_zone(value)
            if zone is not None and zone != value.tzinfo:
                return value.replace(tzinfo=zone)
        return NotImplemented

    def provide(self, tag: str) -> None:
        _register_library(tag)
        if find_tag(tag) is None:
            found = _loaded_class(tag)
            if found is not None:
                self._register_unknown(found)

    def _register_unknown(self, cls: type) -> bool:
        """Register a plain record that no one has named; return False if that is not allowed. Warn if another process
        would not find it."""
        tag = type_name(cls)
        taken = find_tag(tag)
        is_known = taken is not None and own_name(taken[0]) == own_name(cls)
        if not is_known:
            if _msgpack.STRICT_MSGPACK_ENABLED:
                return False
            if _loaded_class(tag) is not cls:
                self._warn(
                    cls,
                    f"objects of {own_name(cls)}, which is not a class of a module, are stored as records that another "
                    f"process cannot read: pass allow=[{cls.__name__}] to HoldfastSaver or HoldfastStore in each",
                )
        try:
            self.register(cls)
        except InvalidCall as error:
            raise UnsupportedValue(str(error), type=own_name(cls)) from error
        return True

    def _base_value(self, value: Any) -> Any:
        """Return an object of a subclass of a built-in type as that type."""
        cls = type(value)
        for base, convert in _TO_BASE.items():
            if issubclass(cls, base):
                if base in _KEPT:
                    self._warn(
                        cls, f"objects of {own_name(cls)} are stored as {base.__name__}, which they extend"
                    )
                return convert(value)
        raise UnsupportedValue(
            f"{own_name(cls)} cannot be stored: keep it elsewhere, for example in the graph's context; "
            f"if the class is yours, make it a dataclass or call holdfast.register({cls.__name__}, split=…, join=…)",
            type=own_name(cls),
        )

    def _warn(self, cls: type, message: str) -> None:
        """Warn once for each class."""
        name = own_name(cls)
        if name not in self._warned:
            warnings.warn(message, HoldfastWarning, stacklevel=3)
            self._warned.add(name)


_ADAPTER = _ValueAdapter()


def _loaded_class(tag: str) -> type | None:
    """Return the plain record that has this default tag, from the modules that are loaded. Nothing is imported, also
    not by a module that does so when an attribute is read."""
    parts = tag.split(".") if len(tag) <= _MAX_TAG else []
    for at in range(len(parts) - 1, 0, -1):
        for module in (".".join(parts[:at]), "__main__", "__mp_main__"):
            found: Any = sys.modules.get(module)
            if not isinstance(found, ModuleType):
                continue
            content = ModuleType.__getattribute__(found, "__dict__")
            for name in parts[at:]:
                found = content.get(name)
                content = type.__dict__["__dict__"].__get__(found) if isinstance(found, type) else {}
            if isinstance(found, type) and type_name(found) == tag and is_record(found):
                return found
    return None
