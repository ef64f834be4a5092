"""From a request to an answer: who calls, from where, what they may do, what they ask, what is done.

Handlers block, so they run in threads, of which there are only so many.

Invariant: nothing of a request but its method, path and headers is looked at before its caller may do what it asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import quote

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.desk.words import dumps
from holdfast.web.auth import Caller
from holdfast.web.gate import same_origin
from holdfast.web.operation import Attachment, Operation, Role, Stream
from holdfast.web.problems import Refused, log, told
from holdfast.web.reading import read_body, read_cursor, read_parts, read_query
from holdfast.web.service import Service
from holdfast.web.tasks import Task

#: Handlers that are at work at once.
_THREADS = 16
#: Seconds that an answer waits for a task to end, unless the call says otherwise.
_PATIENCE = 2.0
_SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
_PROBLEM = "application/problem+json"
EVENTS = "text/event-stream"

T = TypeVar("T")


class Elsewhere:
    """Runs blocking functions in a bounded number of threads."""

    def __init__(self, threads: int = _THREADS) -> None:
        self._threads = threads
        self._limiter: anyio.CapacityLimiter | None = None

    async def __call__(self, function: Callable[..., T], *args: Any) -> T:
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(self._threads)
        # A server that ends does not wait for what nobody will be told.
        return await anyio.to_thread.run_sync(
            lambda: function(*args), limiter=self._limiter, abandon_on_cancel=True
        )


class Place:
    """A path and what can be done there, as an application of its own."""

    def __init__(
        self, service: Service, elsewhere: Elsewhere, operations: Mapping[str, Operation], streams: Streams
    ) -> None:
        self._service = service
        self._elsewhere = elsewhere
        self._operations = operations
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except Exception as error:
            response = refusal(error)
        try:
            await response(scope, receive, send)
        except OSError:
            log.debug("a caller went away")

    async def _answer(self, request: Request) -> Response:
        operation = self._operations.get(request.method)
        if request.method == "HEAD":
            read = self._operations.get("GET")
            # Whoever only looks ahead changes nothing.
            operation = None if read is None or read.changes else read
        caller = admit(self._service, request, operation)
        if operation is None:
            allowed = ", ".join(sorted(self._operations))
            raise Refused(
                405, "wrong_method", f"{request.method} is not for this path: {allowed}", allow=allowed
            )
        given: dict[str, Any] = dict(read_parts(request, operation))
        if operation.query is not None or request.query_params:
            given["query"] = read_query(request, operation.query)
        body = await read_body(request, operation, self._elsewhere)
        if operation.body is not None or operation.upload is not None:
            given["body"] = body
        if operation.wants_caller:
            given["caller"] = caller
        if operation.wants_last:
            given["last_event_id"] = read_cursor(request)
        try:
            answer = await self._elsewhere(lambda: operation.handler(self._service, **given))
        finally:
            if operation.upload is not None:
                body.close()
        if isinstance(answer, Task):
            return await _of_task(answer, getattr(given.get("body"), "wait", _PATIENCE))
        if isinstance(answer, Stream) and request.method == "HEAD":
            return Response(media_type=EVENTS)
        return await self._sent(operation, answer, caller)

    async def _sent(self, operation: Operation, answer: Any, caller: Caller) -> Response:
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, Stream):
            return self._streams.open(answer, caller)
        if isinstance(answer, Attachment):
            return await self._attached(answer)
        if answer is None:
            return Response(status_code=204)
        status = 200 if operation.status is None else operation.status(answer)
        written = await self._elsewhere(_written, answer)
        return Response(written, media_type="application/json", status_code=status)

    async def _attached(self, answer: Attachment) -> Response:
        pieces = iter(answer.pieces)
        # What cannot be read is told as a problem, while that can still be done.
        first = await self._elsewhere(_next, pieces)
        headers = {"content-disposition": f"attachment; filename*=UTF-8''{quote(answer.name, safe='')}"}
        if answer.size is not None:
            headers["content-length"] = str(answer.size)
        return StreamingResponse(self._pieces(first, pieces), media_type=answer.media_type, headers=headers)

    async def _pieces(self, piece: bytes | None, rest: Iterator[bytes]) -> AsyncIterator[bytes]:
        while piece is not None:
            yield piece
            piece = await self._elsewhere(_next, rest)


class Streams:
    """The streams that are open: so many at most, and none longer than its caller may listen."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._count = 0

    def open(self, stream: Stream, caller: Caller) -> Response:
        """A stream as a response."""
        most = self._service.settings.streams
        if self._count >= most:
            raise Refused(503, "too_many_streams", f"{most} streams are open: close one", retry_after="5")
        self._count += 1
        headers = {"x-accel-buffering": "no"}
        return _Counted(
            self._while_allowed(stream.chunks, caller),
            media_type=EVENTS,
            headers=headers,
            ended=self._ended,
        )

    async def _while_allowed(self, chunks: AsyncIterator[bytes], caller: Caller) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            if not self._service.keys.still(caller):
                return
            yield chunk

    def _ended(self) -> None:
        self._count -= 1


class _Counted(StreamingResponse):
    """Says when it is over, however it ends."""

    def __init__(self, *args: Any, ended: Callable[[], None], **more: Any) -> None:
        super().__init__(*args, **more)
        self._over = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()


def admit(service: Service, request: Request, operation: Operation | None) -> Caller:
    """Who calls, if they may; or `Refused`. For what is not there, whoever calls must at least be known."""
    role = Role.VIEWER if operation is None else operation.role
    if role is Role.PUBLIC:
        return Caller(Role.PUBLIC)
    caller = _caller(service, request)
    if caller is None:
        raise Refused(
            401,
            "unknown_caller",
            "open the URL that `holdfast serve` prints, or send its token as Authorization: Bearer …",
            www_authenticate='Bearer realm="holdfast"',
        )
    changes = request.method not in _SAFE or (operation is not None and operation.changes)
    here = same_origin(request, service.settings.https)
    # A program says nothing of where it comes from; it has shown a token, which no browser sends by itself.
    if here is False and (changes or caller.session is not None) and not _typed(request, changes):
        raise Refused(403, "other_origin", "a page of another origin cannot call this")
    if here is None and changes and caller.session is not None:
        raise Refused(403, "no_origin", "with a session, a change needs Sec-Fetch-Site or Origin")
    if caller.role < role:
        why = " (the server is read-only)" if service.keys.read_only else ""
        raise Refused(
            403,
            "wrong_role",
            f"this needs the role {role.name.lower()}, yours is {caller.role.name.lower()}{why}",
        )
    return caller


def refusal(error: BaseException) -> Response:
    """An error as a response."""
    problem, headers = told(error)
    return Response(
        dumps(problem).encode(), status_code=problem["status"], media_type=_PROBLEM, headers=headers
    )


def refusing(error: Refused) -> ASGIApp:
    """A response that refuses, as an application."""
    return refusal(error)


async def _of_task(task: Task, patience: float) -> Response:
    """A task that ended while one waited, or how it stands."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    task.when_over(lambda: loop.call_soon_threadsafe(ended.set))
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            await ended.wait()
    if task.failure is not None:
        return refusal(task.failure)
    record = task.record()
    status = 202 if record["status"] == "running" else 200
    return Response(dumps(record).encode(), status_code=status, media_type="application/json")


def _caller(service: Service, request: Request) -> Caller | None:
    given = request.headers.get("authorization")
    if given is not None:
        scheme, _, token = given.partition(" ")
        return service.keys.program(token.strip()) if scheme.lower() == "bearer" else None
    session = request.cookies.get(service.settings.cookie)
    return None if session is None else service.keys.browser(session)


def _typed(request: Request, changes: bool) -> bool:
    """Did somebody type the address, or follow a bookmark?"""
    return not changes and request.headers.get("sec-fetch-site") == "none"


def _written(answer: Any) -> bytes:
    return dumps(answer).encode()


def _next(pieces: Iterator[bytes]) -> bytes | None:
    return next(pieces, None)
