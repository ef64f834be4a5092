"""The table of operations as an application.

Invariant: what is served is the table, the page's files, and nothing else; whatever lies below `/api/` and is not
there is told only to those who may call.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.engine import Holdfast
from holdfast.web import openapi
from holdfast.web.auth import Keys
from holdfast.web.dispatch import Place, Requests, Streams, Threads, admit, refusal, refusing
from holdfast.web.gate import Gate
from holdfast.web.live import Hub
from holdfast.web.operation import Operation, Role, Table
from holdfast.web.page import Page
from holdfast.web.problems import Refused
from holdfast.web.routes import (
    comparing,
    debug,
    events,
    marks,
    moving,
    prompts,
    queues,
    runs,
    session,
    store,
    transfer,
    versions,
)
from holdfast.web.service import Service, Settings
from holdfast.web.shares import shares

_MODULES = (
    session,
    runs,
    versions,
    comparing,
    events,
    moving,
    marks,
    prompts,
    store,
    transfer,
    queues,
    debug,
)
DOCUMENT = Table("session")
#: Reads of the journal at once, for streams that have fallen behind.
_STREAM_THREADS = shares(4, viewer=4, operator=4)


@DOCUMENT.add("GET", "/openapi.json", Role.VIEWER)
def get_openapi(service: Service) -> dict[str, Any]:
    """This description."""
    settings = service.settings
    return openapi.document(table(legacy_get=settings.legacy_get), settings.cookie)


def table(*, legacy_get: bool = False) -> list[Operation]:
    """All operations."""
    found = [operation for module in _MODULES for operation in module.TABLE]
    found += [*session.LAUNCH, *DOCUMENT]
    return found + (list(debug.LEGACY) if legacy_get else [])


class App:
    """The whole of it."""

    def __init__(
        self,
        hf: Holdfast,
        keys: Keys,
        settings: Settings,
        page: Page | None = None,
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        threads = Threads()
        # Streams have threads of their own: no slow request delays them.
        self.hub = Hub(hf, Threads(_STREAM_THREADS).of(Role.ADMIN), heartbeat=settings.heartbeat)
        self.service = Service(hf, keys, settings, self.hub)
        self.page = Page() if page is None else page
        self.operations = table(legacy_get=settings.legacy_get)
        requests, streams = Requests(settings.requests), Streams(self.service)
        places: dict[str, dict[str, Operation]] = {}
        for operation in self.operations:
            places.setdefault(operation.path, {})[operation.method] = operation
        routes = [
            Route(path, endpoint=Place(self.service, threads, methods, requests, streams))
            for path, methods in places.items()
        ]
        inner = Starlette(routes=routes, lifespan=self._lifespan)
        inner.router.redirect_slashes = False
        inner.router.default = self._elsewhere
        self._app: ASGIApp = Gate(inner, settings.hosts, refusing, is_full)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, send)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.hub.start()
        try:
            yield
        finally:
            self.hub.stop()

    async def _elsewhere(self, scope: Scope, receive: Receive, send: Send) -> None:
        """What no operation is for: files of the page, and what is not there."""
        request = Request(scope, receive)
        if not request.scope["path"].startswith("/api"):
            await self.page(request)(scope, receive, send)
            return
        try:
            admit(self.service, request, None)
            raise Refused(
                404, "no_route", "there is nothing here: GET /api/v1/openapi.json describes what there is"
            )
        except Refused as error:
            await refusal(error)(scope, receive, send)
