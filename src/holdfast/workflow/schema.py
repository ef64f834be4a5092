"""The shape of an answer: its schema, the check of an answer, and the value for the workflow.

A wanted shape is a JSON Schema or a Python type. It is stored as a JSON Schema, so that the receiver of the answer (a
page, a command, another process) can check it without the type.

Invariant: nothing is ever fetched to follow a reference, and whatever schema and answer are, the only errors are
`InvalidCall` (the wanted shape is at fault) and its kind `InvalidAnswer` (the answer is).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec

from holdfast.errors import InvalidAnswer, InvalidCall
from holdfast.struct_types import resolve
from holdfast.tree import path as paths
from holdfast.tree.class_names import type_name

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

#: Characters of a reason: it quotes the answer.
_LONGEST_REASON = 500


def to_schema(wanted: Any) -> dict[str, Any] | None:
    """Return the JSON Schema of a wanted shape; None where anything fits. `InvalidCall` if there is no such schema."""
    if wanted is None:
        return None
    if isinstance(wanted, dict):
        try:
            schema = msgspec.json.decode(msgspec.json.encode(wanted))
        except Exception as error:
            raise InvalidCall(f"this is not a JSON Schema: {_short(error)}") from error
    else:
        schema = _schema_of(wanted)
    _check_schema(schema)
    return dict(schema)


def check_answer(value: Any, schema: dict[str, Any] | None) -> None:
    """Raise `InvalidAnswer`, with the place in the answer that does not fit the schema, and the reason."""
    if schema is None:
        return
    from jsonschema.exceptions import best_match

    try:
        problem = best_match(_validator(schema).iter_errors(value))
        where = None if problem is None else paths.show(list(problem.absolute_path))
    except Exception as error:
        _check_schema(schema)
        reason = "it is nested too deep" if isinstance(error, RecursionError) else _short(error)
        raise _refusal("", f"it cannot be checked ({reason})") from error
    if problem is not None:
        raise _refusal(where or "", _short(problem.message))


def to_type(value: Any, wanted: Any) -> Any:
    """Return a checked answer for the workflow: of the Python type that it wanted, or as it is."""
    if wanted is None or isinstance(wanted, dict):
        return value
    try:
        if _is_model(wanted):
            return wanted.model_validate(value)
        resolve(wanted)
        try:
            return msgspec.convert(value, wanted, dec_hook=_to_model)
        except msgspec.ValidationError:
            return msgspec.convert(_with_whole_numbers(value), wanted, dec_hook=_to_model)
    except Exception as error:
        raise _refusal(*_reason(error)) from error


def _schema_of(wanted: Any) -> dict[str, Any]:
    try:
        if _is_model(wanted):
            schema: dict[str, Any] = wanted.model_json_schema()
            return schema
        return msgspec.json.schema(wanted, schema_hook=_model_schema)
    except Exception as error:
        raise InvalidCall(
            f"{_short(wanted, repr)} is neither a JSON Schema nor a type that has one"
        ) from error


def _check_schema(schema: Any) -> None:
    from jsonschema.exceptions import SchemaError
    from referencing.exceptions import Unresolvable

    try:
        validator = _validator(schema)
        validator.check_schema(schema)
        _check_references(schema)
        # A schema that refers to itself without end fails here, before any answer.
        validator.is_valid(None)
    except SchemaError as error:
        where = paths.show(list(error.absolute_path))
        at = f" at {where}" if where else ""
        raise InvalidCall(f"this is not a JSON Schema{at}: {_short(error.message)}", path=where) from error
    except Unresolvable as error:
        raise InvalidCall(
            f"this JSON Schema refers to {_short(error.ref)}, which is not within it: nothing is fetched"
        ) from error
    except RecursionError as error:
        raise InvalidCall("this JSON Schema refers to itself without end, or is nested too deep") from error
    except Exception as error:
        raise InvalidCall(f"this JSON Schema cannot be used: {_short(error)}") from error


def _check_references(schema: Any) -> None:
    from jsonschema_specifications import REGISTRY  # type: ignore[import-untyped]
    from referencing import Resource
    from referencing.jsonschema import DRAFT202012

    root = Resource.from_contents(schema, default_specification=DRAFT202012)
    _follow(root, REGISTRY.resolver_with_root(root))


def _follow(resource: Any, resolver: Any) -> None:
    contents = resource.contents
    for key in ("$ref", "$dynamicRef"):
        if isinstance(contents, dict) and isinstance(contents.get(key), str):
            resolver.lookup(contents[key])
    for inner in resource.subresources():
        _follow(inner, resolver.in_subresource(inner))


def _validator(schema: Any) -> Validator:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import validator_for
    from referencing import Registry

    # A registry of our own cannot fetch missing references; the default one of the package can.
    validator: Validator = validator_for(schema, default=Draft202012Validator)(schema, registry=Registry())
    return validator


def _is_model(wanted: Any) -> bool:
    return isinstance(wanted, type) and hasattr(wanted, "model_json_schema")


def _model_schema(cls: type) -> dict[str, Any]:
    """Return the schema of a model inside another type, with an id of its own: its references stay within it."""
    if not _is_model(cls):
        raise NotImplementedError
    schema: dict[str, Any] = cls.model_json_schema()  # type: ignore[attr-defined]
    return {"$id": f"urn:holdfast:{quote(type_name(cls))}", **schema}


def _to_model(cls: type, value: Any) -> Any:
    if not _is_model(cls):
        raise NotImplementedError
    try:
        return cls.model_validate(value)  # type: ignore[attr-defined]
    except ValueError as error:
        raise ValueError(": ".join(part for part in _reason(error) if part)) from error


def _with_whole_numbers(value: Any) -> Any:
    """3.0 is an integer to JSON Schema; to Python it is none."""
    if isinstance(value, dict):
        return {key: _with_whole_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_whole_numbers(item) for item in value]
    return int(value) if type(value) is float and value.is_integer() else value


def _refusal(where: str, reason: str) -> InvalidAnswer:
    at = f" at {where}" if where else ""
    return InvalidAnswer(f"The answer does not fit{at}: {reason}.", path=where, reason=reason)


def _reason(error: Exception) -> tuple[str, str]:
    """Return place and reason: the message of pydantic on the first error, without its links and types."""
    try:
        first = error.errors()[0]  # type: ignore[attr-defined]
        return paths.show(list(first["loc"])), _short(first["msg"])
    except Exception:
        return "", _short(error)


def _short(reason: Any, show: Callable[[Any], str] = str) -> str:
    try:
        text = show(reason).strip().rstrip(".")
    except Exception:
        text = type(reason).__name__
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"
