"""The schema of a state: a JSON Schema or a Python type, and the check of a state.

A Python type checks Python values: a field of type `datetime` takes a datetime, not its text. A JSON Schema checks the
state as JSON would show it: tuples, sets and deques count as arrays, objects as objects with their fields; dates,
times, UUIDs and paths as texts.

Invariant: the only errors are `InvalidCall` (the schema is at fault) and its kind `InvalidState` (the state is, at a
path).
"""

from __future__ import annotations

import datetime as dt
import enum
import inspect
import re
import typing
from collections import deque
from numbers import Number
from pathlib import PurePath
from typing import Any
from uuid import UUID

import msgspec

from holdfast.errors import InvalidAnswer, InvalidCall, InvalidState
from holdfast.struct_types import resolve
from holdfast.tree import path as paths
from holdfast.tree.codec import open_box
from holdfast.tree.frozen import reveal, thaw
from holdfast.tree.object_fields import class_name, public_fields
from holdfast.tree.sanitize import TYPE_KEY
from holdfast.tree.values import CONTENT, NATIVE
from holdfast.workflow.schema import check_answer, to_schema

#: The place in a message of msgspec.
_PLACE = re.compile(r"\s+-\s+at `(?:key in )?\$(?P<path>.*)`$")
_LONGEST_REASON = 500
#: Types whose values JSON shows as texts.
_TEXTS = (dt.date, dt.time, dt.timedelta, UUID)


class StateSchema:
    """The shape that the states of a run must have."""

    def __init__(self, wanted: Any) -> None:
        self._wanted = wanted
        self._is_model = isinstance(wanted, type) and hasattr(wanted, "model_validate")
        self._json: dict[str, Any] | None = None
        if isinstance(wanted, dict):
            self._json = to_schema(wanted)
        elif wanted is None:
            raise InvalidCall("schema is a type, such as a dataclass, or a JSON Schema, not None")
        elif not self._is_model:
            try:
                resolve(wanted)
            except Exception as error:
                raise InvalidCall(
                    f"schema is a dataclass, a pydantic model, a msgspec struct, a TypedDict or a JSON Schema, not "
                    f"{wanted!r:.80}"
                ) from error

    def check(self, state: Any) -> None:
        """Raise `InvalidState`, with the path that does not fit and the reason. The state may be the internal tree of a
        version."""
        plain = thaw(reveal(state, open_box))
        try:
            if self._json is not None:
                check_answer(_as_json(plain), self._json)
            elif self._is_model:
                _validate(self._wanted, plain)
            else:
                msgspec.convert(plain, self._wanted, dec_hook=_to_object)
        except InvalidAnswer as error:
            raise _refusal(str(error.details.get("path") or ""), str(error.details.get("reason"))) from None
        except msgspec.ValidationError as error:
            place = _PLACE.search(str(error))
            text = str(error) if place is None else str(error)[: place.start()]
            raise _refusal("" if place is None else place["path"].removeprefix("."), text) from None
        except Exception as error:
            raise _refusal(*_first_of(error)) from error


def _as_json(value: Any) -> Any:
    """Return a value as JSON would show it; a value that JSON cannot show stays as it is."""
    cls = type(value)
    if cls in NATIVE:
        return value
    if isinstance(value, dict):
        return {key: _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset | deque):
        return [_as_json(item) for item in value]
    if isinstance(value, enum.Enum):
        return _as_json(value.value)
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, _TEXTS):
        return msgspec.to_builtins(value)
    fields = None if isinstance(value, Number) else public_fields(value, cls)
    return _as_json(fields) if fields else value


def _to_object(cls: Any, value: Any) -> Any:
    """Return an object of a class that msgspec does not know, for the stored form of one: only its class counts."""
    cls = typing.get_origin(cls) or cls
    if hasattr(cls, "model_validate"):
        try:
            return _validate(cls, value)
        except ValueError as error:
            raise ValueError(": ".join(part for part in _first_of(error) if part)) from error
    if isinstance(value, dict) and value.get(TYPE_KEY) == class_name(cls):
        return cls.__new__(cls)
    for base in CONTENT:
        if issubclass(cls, base) and isinstance(value, base):
            made: Any = base.__new__(cls)
            return made
    raise ValueError(f"Expected `{class_name(cls)}`, got `{class_name(type(value))}`")


def _validate(model: Any, value: Any) -> Any:
    """Validate a value by a pydantic model. A state has the names of the fields, and may have their aliases."""
    names = inspect.signature(model.model_validate).parameters
    # In older versions, only the configuration of the model allows both.
    both = {"by_alias": True, "by_name": True} if "by_name" in names else {}
    return model.model_validate(value, **both)


def _first_of(error: Exception) -> tuple[str, str]:
    """Return place and reason of the first error of a pydantic model."""
    try:
        first = error.errors()[0]  # type: ignore[attr-defined]
        return paths.show(list(first["loc"])), str(first["msg"])
    except Exception:
        return "", f"{type(error).__name__}: {error}"


def _refusal(where: str, reason: str) -> InvalidState:
    reason = reason.strip().rstrip(".")[:_LONGEST_REASON]
    at = f" at {where}" if where else ""
    return InvalidState(f"The state does not fit its schema{at}: {reason}.", path=where, reason=reason)
