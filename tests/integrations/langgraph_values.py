"""Values for the tests of the LangGraph saver, and what a saver reads of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6


class Foreign:
    """A class that is neither registered nor a plain record."""


@dataclass
class Owner:
    """A class whose objects own something."""

    x: int = 0

    def __del__(self) -> None: ...


def shown(value: Any) -> str:
    """A value with what equality ignores: types, order, signs."""
    if isinstance(value, BaseException):
        return f"{type(value).__name__}{value.args!r}"
    return f"{type(value).__name__}:{value!r}:{getattr(value, 'maxlen', '')}"


def as_read(saver: Any, value: Any) -> list[Any]:
    """A value that a saver stored: as a channel's, inside of a channel's, as a write."""
    thread = {"configurable": {"thread_id": str(uuid6()), "checkpoint_ns": ""}}
    versions: Any = {"x": 1, "nested": 1}
    values = {"x": value, "nested": {"list": [value]}}
    new: Any = empty_checkpoint() | {"channel_values": values, "channel_versions": versions}
    where = saver.put(thread, new, {"source": "loop", "step": 1}, versions)
    saver.put_writes(where, [("x", value)], "task")
    found = saver.get_tuple(where)
    values = found.checkpoint["channel_values"]
    return [values["x"], values["nested"]["list"][0], found.pending_writes[0][2]]
