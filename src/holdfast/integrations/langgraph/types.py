"""The classes in LangGraph's checkpoints, registered under stable tags.

Messages, documents, and LangGraph's own channel values are registered here; an application registers its own
classes, or passes them to the saver as `allow`.

Invariant: a class is used only if this program has registered it, never because data names it.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Iterable
from typing import Any

from langchain_core import messages
from langchain_core.documents import Document
from langgraph.store.base import Item
from langgraph.types import Command, Interrupt, Overwrite, PregelTask, Send, StateSnapshot, TimeoutPolicy

import holdfast
from holdfast.errors import InvalidCall

_MESSAGES = (
    messages.AIMessage,
    messages.AIMessageChunk,
    messages.ChatMessage,
    messages.ChatMessageChunk,
    messages.FunctionMessage,
    messages.FunctionMessageChunk,
    messages.HumanMessage,
    messages.HumanMessageChunk,
    messages.RemoveMessage,
    messages.SystemMessage,
    messages.SystemMessageChunk,
    messages.ToolMessage,
    messages.ToolMessageChunk,
    Document,
)
_ADDRESSES = (
    ipaddress.IPv4Address,
    ipaddress.IPv4Interface,
    ipaddress.IPv4Network,
    ipaddress.IPv6Address,
    ipaddress.IPv6Interface,
    ipaddress.IPv6Network,
)


def register_known() -> None:
    """Make the classes of LangChain and LangGraph storable. Idempotent."""
    for message in _MESSAGES:
        holdfast.register(message, f"langchain.{message.__name__}")
    for record in (Command, Interrupt, Overwrite, PregelTask, StateSnapshot, TimeoutPolicy):
        holdfast.register(record, f"langgraph.{record.__name__}")
    holdfast.register(
        Send,
        "langgraph.Send",
        split=lambda send: [send.node, send.arg, send.timeout],
        join=lambda parts: Send(parts[0], parts[1], timeout=parts[2]),
    )
    holdfast.register(Item, "langgraph.Item", split=_item_parts, join=lambda parts: Item(**parts))
    for address in _ADDRESSES:
        holdfast.register(address, f"ipaddress.{address.__name__}", split=_text, join=address)
    holdfast.register(
        re.Pattern,
        "re.Pattern",
        split=lambda pattern: [pattern.pattern, pattern.flags],
        join=lambda parts: re.compile(*parts),
    )


def register_allowed(allow: Any) -> None:
    """Make classes of the application storable, given as classes or by their names in modules that are
    already imported."""
    if isinstance(allow, str | type) or not isinstance(allow, Iterable):
        raise InvalidCall(
            "allow takes a list of classes, or of their names: allow=[Order, 'shop.models.Cart']"
        )
    for item in allow:
        cls = _named(item) if isinstance(item, str) else item
        if not isinstance(cls, type):
            raise InvalidCall(f"allow takes classes, or their names, not {item!r:.60}")
        holdfast.register(cls)


def register_schema(names: Iterable[tuple[str, ...]]) -> None:
    """Make the classes of a graph's schemas storable, as LangGraph lists them: module and name. Classes that
    are not records (a TypedDict, a built-in type) need no registration."""
    for module, *name in names:
        found: Any = sys.modules.get(module)
        for part in name:
            found = getattr(found, part, None)
        if isinstance(found, type):
            try:
                holdfast.register(found)
            except InvalidCall:
                continue


def _named(name: str) -> type:
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
    raise InvalidCall(
        f"allow names {name!r}, which is no class of a module that is imported: import it first"
    )


def _text(value: Any) -> str:
    return str(value)


def _item_parts(item: Item) -> dict[str, Any]:
    return {name: getattr(item, name) for name in ("value", "key", "namespace", "created_at", "updated_at")}
