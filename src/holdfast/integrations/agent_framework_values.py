"""Which values of agent-framework can be stored, and how: its messages, contents, responses and events.

What they hold of the library that a model was called with (`raw_representation`) is left out, as the framework itself
leaves it out of its checkpoints.

Invariant: nothing is pickled or imported by name. The framework's own classes are known here, those of an application
are allowed by it, and any other is refused before anything is written.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Iterable
from decimal import Decimal
from functools import partial
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

import agent_framework as af

from holdfast import InvalidCall, UnsupportedValue, register


class TypeName(NamedTuple):
    """A type, where an event or a response holds one: its name, those of a generic type and of its arguments, or the
    values of a literal."""

    parts: Any


def allow_types(types: Iterable[Any]) -> None:
    """Let events and responses name these types."""
    _types.update({_name(kind): kind for kind in types})


def _name(kind: Any) -> str:
    return f"{getattr(kind, '__module__', '')}.{getattr(kind, '__qualname__', kind)}"


def _parts_of_type(kind: Any) -> Any:
    origin = get_origin(kind)
    if origin is Literal:
        return {"literal": list(get_args(kind))}
    if origin is not None:
        kinds = (Union if origin is UnionType else origin, *get_args(kind))
        return [_parts_of_type(each) for each in kinds]
    if _types.get(_name(kind)) is not kind:
        raise UnsupportedValue(f"the type {_name(kind)} is not known: pass it in allow=[…]", type=_name(kind))
    return _name(kind)


def _type_of_parts(parts: Any) -> Any:
    if isinstance(parts, str):
        if parts not in _types:
            raise InvalidCall(f"the type {parts} is not known here: pass it in allow=[…]", type=parts)
        return _types[parts]
    if isinstance(parts, dict):
        return Literal[tuple(parts["literal"])]
    origin, *arguments = map(_type_of_parts, parts)
    return origin[tuple(arguments)]


def _split(value: Any) -> dict[str, Any]:
    return {
        name: TypeName(_parts_of_type(part)) if isinstance(part, type) or get_origin(part) else part
        for name, part in value.__getstate__().items()
    }


def _join(cls: Any, parts: dict[str, Any]) -> Any:
    made = cls.__new__(cls)
    kept = {
        name: _type_of_parts(part.parts) if type(part) is TypeName else part for name, part in parts.items()
    }
    if hasattr(cls, "__setstate__"):
        made.__setstate__(kept)
    else:
        vars(made).update(kept)
    return made


#: Types by name: what a request may be answered with.
_types: dict[str, Any] = {}

_RECORDS: tuple[Any, ...] = (
    TypeName,
    af.AgentExecutorRequest,
    af.AgentExecutorResponse,
    af.SubWorkflowRequestMessage,
    af.SubWorkflowResponseMessage,
    af.WorkflowCheckpoint,
    af.WorkflowErrorDetails,
    af.WorkflowEventSource,
    af.WorkflowMessage,
    af.WorkflowRunState,
    type(af.WorkflowMessage.type),
)
_OBJECTS: tuple[Any, ...] = (
    af.AgentResponse,
    af.AgentResponseUpdate,
    af.AgentSession,
    af.ChatResponse,
    af.ChatResponseUpdate,
    af.Content,
    af.Message,
    af.WorkflowEvent,
)
_SIMPLE = (bool, int, float, complex, str, bytes, list, tuple, dict, set, frozenset, object, NoneType, ...)

# Under names that do not tell in which module of the framework a class is: that may change.
for _cls in _RECORDS:
    register(_cls, f"agent_framework.{_cls.__name__}")
for _cls in _OBJECTS:
    register(_cls, f"agent_framework.{_cls.__name__}", split=_split, join=partial(_join, _cls))
allow_types(
    (*_SIMPLE, Any, Union, dt.datetime, dt.date, dt.timedelta, Decimal, uuid.UUID, *_RECORDS, *_OBJECTS)
)
