"""The table of operations as an application, and as an OpenAPI 3.1 document.

Invariant: the table, the files of the page and nothing else are served; only an authorized caller learns that a path
below `/api/` does not exist. The document is made from the types that requests are checked against and responses are
made of.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast import __version__
from holdfast.engine import Holdfast
from holdfast.web.auth import Credentials, role_limits
from holdfast.web.dispatch import (
    PathHandler,
    RequestSlots,
    StreamSlots,
    ThreadLimits,
    authorize,
    error_response,
)
from holdfast.web.errors import ProblemDocument, RequestRefused
from holdfast.web.live import EventBroadcaster
from holdfast.web.operation import Attachment, Operation, OperationTable, Role, Stream
from holdfast.web.page import PageFiles
from holdfast.web.routes import (
    actions,
    breakers,
    compare,
    debug,
    events,
    inbox,
    loops,
    queues,
    runs,
    session,
    store,
    transfer,
    versions,
)
from holdfast.web.security import HostCheck
from holdfast.web.service import BackgroundTask, ServerSettings, Service, TaskView

_REF = "#/components/schemas/{name}"
#: The fields of one server-sent event.
_EVENT = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
}
#: Responses that are not JSON.
_NOT_JSON: dict[Any, dict[str, Any]] = {
    Attachment: {"*/*": {}},
    Stream: {"text/event-stream": {"schema": _EVENT}},
    Response: {"text/plain": {"schema": {"type": "string"}}},
}


def openapi_document(operations: Iterable[Operation], cookie: str = "holdfast") -> dict[str, Any]:
    """Return the OpenAPI document of operations; `cookie` is the name of the session cookie."""
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
            "description": "Durable state of agent workflows. Ids and tags in a path are percent-encoded.",
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
    found: dict[Any, Any] = {_key(ProblemDocument): ProblemDocument, _key(TaskView): TaskView}
    for operation in table:
        for kind in (operation.query, operation.body, operation.answer):
            if (
                kind is not None
                and kind is not type(None)
                and kind is not BackgroundTask
                and kind not in _NOT_JSON
            ):
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
        schema = {"type": "string", "pattern": "^[0-9]{0,15}$"}
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


def _schema(kind: type) -> dict[str, Any]:
    """Return the schema of a record, without those that it refers to."""
    _, components = msgspec.json.schema_components([kind], ref_template=_REF)
    found: dict[str, Any] = components[kind.__name__]
    return found


def _answers(operation: Operation, known: dict[str, Any]) -> dict[str, Any]:
    answer = operation.answer
    if answer is type(None) or answer is None:
        return {"204": {"description": "Done."}}
    if answer in _NOT_JSON:
        return {"200": {"description": "The content.", "content": _NOT_JSON[answer]}}
    kind = TaskView if answer is BackgroundTask else answer
    content = {"application/json": {"schema": known[_key(kind)]}}
    found = {"200": {"description": "Done.", "content": content}}
    if operation.long:
        found["202"] = {"description": "Still running: poll the task.", "content": content}
    return found


def _problem(operation: Operation, known: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {"application/problem+json": {"schema": known[_key(ProblemDocument)]}}
    if operation.status is not None:
        content["application/json"] = {"schema": known[_key(operation.answer)]}
    if operation.answer is Response:
        content.update(_NOT_JSON[Response])
    return {"description": "Refused or failed: the reason, and what to do.", "content": content}


_MODULES = (
    session,
    runs,
    versions,
    compare,
    events,
    actions,
    inbox,
    store,
    transfer,
    queues,
    breakers,
    loops,
    debug,
)
DOCUMENT = OperationTable("session")
#: Concurrent reads of the journal, for streams that lag behind.
_STREAM_THREADS = role_limits(4, viewer=4, operator=4)


@DOCUMENT.add("GET", "/openapi.json", Role.VIEWER)
def get_openapi(service: Service) -> dict[str, Any]:
    """Return this document."""
    settings = service.settings
    return openapi_document(table(legacy_get=settings.legacy_get), settings.cookie)


def table(*, legacy_get: bool = False) -> list[Operation]:
    """Return all operations."""
    found = [operation for module in _MODULES for operation in module.TABLE]
    found += [*versions.MARKS, *session.LAUNCH, *DOCUMENT]
    return found + (list(debug.LEGACY) if legacy_get else [])


class WebApp:
    """ASGI application: the API and the page."""

    def __init__(
        self,
        hf: Holdfast,
        credentials: Credentials,
        settings: ServerSettings,
        page: PageFiles | None = None,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        threads = ThreadLimits()
        # Streams have their own threads: slow requests do not delay them.
        self.broadcaster = EventBroadcaster(
            hf, ThreadLimits(_STREAM_THREADS).for_role(Role.ADMIN), heartbeat=settings.heartbeat
        )
        self.service = Service(hf, credentials, settings, self.broadcaster)
        self.page = PageFiles() if page is None else page
        self.operations = table(legacy_get=settings.legacy_get)
        requests, streams = RequestSlots(settings.requests), StreamSlots(self.service)
        places: dict[str, dict[str, Operation]] = {}
        for operation in self.operations:
            places.setdefault(operation.path, {})[operation.method] = operation
        routes = [
            Route(path, endpoint=PathHandler(self.service, threads, methods, requests, streams))
            for path, methods in places.items()
        ]
        inner = Starlette(routes=routes, lifespan=self._lifespan)
        inner.router.redirect_slashes = False
        inner.router.default = self._serve_other
        self._app: ASGIApp = HostCheck(inner, settings.hosts, error_response, is_full)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.broadcaster.start()
        try:
            yield
        finally:
            self.broadcaster.stop()

    async def _serve_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the files of the page; refuse any other path."""
        request = Request(scope, receive)
        if not request.scope["path"].startswith("/api"):
            await self.page(request)(scope, receive, send)
            return
        try:
            authorize(self.service, request, None)
            raise RequestRefused(
                404, "no_route", "unknown path: GET /api/v1/openapi.json lists the operations"
            )
        except RequestRefused as error:
            await error_response(error)(scope, receive, send)
