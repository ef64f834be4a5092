"""The table of operations as an OpenAPI 3.1 document.

Invariant: whatever is said here comes from what is served: from the types that requests are checked against and from
those that answers are made of.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast import __version__
from holdfast.web.operation import Attachment, Operation, Role, Stream
from holdfast.web.problems import Problem
from holdfast.web.tasks import Task, TaskShown

_REF = "#/components/schemas/{name}"
#: The fields of one server-sent event.
_EVENT = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
}
#: Answers that are no JSON.
_OTHER: dict[Any, dict[str, Any]] = {
    Attachment: {"*/*": {}},
    Stream: {"text/event-stream": {"schema": _EVENT}},
    Response: {"text/plain": {"schema": {"type": "string"}}},
}


def document(operations: Iterable[Operation], cookie: str = "holdfast") -> dict[str, Any]:
    """The description of operations; `cookie` is what the server calls the one of its sessions."""
    table = list(operations)
    types = _types(table)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    known = dict(zip(map(_key, types), schemas, strict=True))
    for operation in table:
        if operation.query is not None:
            components.pop(operation.query.__name__, None)
    paths: dict[str, dict[str, Any]] = {}
    for operation in table:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, known)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast",
            "version": __version__,
            "description": "Keeps the state of agent workflows. A run, a tag or a prompt in a path is percent-encoded.",
        },
        "servers": [{"url": "/"}],
        "tags": [{"name": name} for name in dict.fromkeys(each.subject for each in table)],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": cookie},
            },
        },
        "security": [{"token": []}, {"session": []}],
    }


def _types(table: list[Operation]) -> list[Any]:
    found: dict[Any, Any] = {_key(Problem): Problem, _key(TaskShown): TaskShown}
    for operation in table:
        for kind in (operation.query, operation.body, operation.answer):
            if kind is not None and kind is not type(None) and kind is not Task and kind not in _OTHER:
                found[_key(kind)] = kind
    return list(found.values())


def _key(kind: Any) -> str:
    return repr(kind)


def _described(operation: Operation, known: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.subject],
        "x-role": operation.role.name.lower(),
        "parameters": [*_parts(operation), *_parameters(operation)],
        "responses": {**_answers(operation, known), "default": _problem(operation, known)},
    }
    if operation.description:
        found["description"] = operation.description
    if operation.role is Role.PUBLIC:
        found["security"] = []
    if operation.body is not None:
        required = bool(_schema(operation.body).get("required"))
        content = {"application/json": {"schema": known[_key(operation.body)]}}
        found["requestBody"] = {"required": required, "content": content}
    elif operation.upload is not None:
        media: dict[str, Any] = {name: {"schema": {}} for name in operation.upload.media_types}
        found["requestBody"] = {"required": True, "content": media}
    return found


def _parts(operation: Operation) -> list[dict[str, Any]]:
    return [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in operation.parts
    ]


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if operation.wants_last:
        schema = {"type": "string", "pattern": "^[0-9]{1,15}$"}
        found.append({"name": "Last-Event-ID", "in": "header", "required": False, "schema": schema})
    if operation.query is None:
        return found
    described = _schema(operation.query)
    for name, schema in described["properties"].items():
        shown = {key: value for key, value in schema.items() if key != "description"}
        entry = {
            "name": name,
            "in": "query",
            "required": name in described.get("required", ()),
            "schema": shown,
        }
        if "description" in schema:
            entry["description"] = schema["description"]
        found.append(entry)
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a parameter, which is left out rather than null."""
    options = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if len(options) != 1:
        return dict(schema)
    return {**options[0], **({"default": schema["default"]} if schema.get("default") is not None else {})}


def _schema(kind: type) -> dict[str, Any]:
    """The schema of a record itself, without references to others."""
    _, components = msgspec.json.schema_components([kind], ref_template=_REF)
    found: dict[str, Any] = components[kind.__name__]
    return found


def _answers(operation: Operation, known: dict[str, Any]) -> dict[str, Any]:
    answer = operation.answer
    if answer is type(None) or answer is None:
        return {"204": {"description": "Done."}}
    if answer in _OTHER:
        return {"200": {"description": "As it is.", "content": _OTHER[answer]}}
    kind = TaskShown if answer is Task else answer
    content = {"application/json": {"schema": known[_key(kind)]}}
    found = {"200": {"description": "Done.", "content": content}}
    if operation.long:
        found["202"] = {"description": "Under way: ask for the task.", "content": content}
    return found


def _problem(operation: Operation, known: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {"application/problem+json": {"schema": known[_key(Problem)]}}
    if operation.status is not None:
        content["application/json"] = {"schema": known[_key(operation.answer)]}
    if operation.answer is Response:
        content.update(_OTHER[Response])
    return {"description": "It was not done: why, and what to do.", "content": content}
