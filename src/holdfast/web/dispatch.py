"""From a request to a response: authenticate, authorize, read, run the handler, respond.

Handlers block, so they run in threads. Threads, requests and streams are limited, and each role leaves some of them to
the roles above it.

Invariant: only the method, path and headers of a request are read before its caller is authorized.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager, suppress
from functools import cached_property, partial
from typing import Any, TypeVar
from urllib.parse import quote

import anyio
import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from holdfast.agent_loops.names import control_run, name_of
from holdfast.engine import Holdfast
from holdfast.errors import HoldfastError
from holdfast.operator_view.text import dumps
from holdfast.web.auth import Caller, RoleLimits, limit_reached, role_limits
from holdfast.web.errors import RequestRefused, log, problem_for
from holdfast.web.operation import Attachment, Operation, Role, Stream
from holdfast.web.request import RunInThread, read_body, read_cookie, read_cursor, read_parts, read_query
from holdfast.web.security import same_origin
from holdfast.web.service import BackgroundTask, Service

#: Concurrent handlers.
THREADS = role_limits(16, viewer=8, operator=12)
#: Seconds that a response waits for a task to end by default.
_DEFAULT_WAIT = 2.0
_SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
_PROBLEM = "application/problem+json"
EVENTS = "text/event-stream"
#: Journal entry with the actor that a caller claimed to act for; its own actor is the name of the caller's token.
CLAIMED = "http.claimed_actor"

T = TypeVar("T")


class ThreadLimits:
    """Limits for threads that run blocking functions."""

    def __init__(self, most: RoleLimits = THREADS) -> None:
        self._most = most

    def for_role(self, role: Role) -> RunInThread:
        """Return a function that runs another one in a thread, when one is free for callers of a role."""
        return partial(self._run, role)

    @cached_property
    def _limiters(self) -> dict[Role, anyio.CapacityLimiter]:
        # Must be created in the event loop.
        return {role: anyio.CapacityLimiter(most) for role, most in self._most.items()}

    async def _run(self, role: Role, function: Callable[..., T], *args: Any) -> T:
        *below, top = [limiter for each, limiter in self._limiters.items() if each >= role]
        async with AsyncExitStack() as held:
            for limiter in below:
                await held.enter_async_context(limiter)
            # A server that stops does not wait for a response without a client.
            return await anyio.to_thread.run_sync(
                lambda: function(*args), limiter=top, abandon_on_cancel=True
            )


class PathHandler:
    """ASGI application for the operations of one path."""

    def __init__(
        self,
        service: Service,
        threads: ThreadLimits,
        operations: Mapping[str, Operation],
        requests: RequestSlots,
        streams: StreamSlots,
    ) -> None:
        self._service = service
        self._threads = threads
        self._operations = operations
        self._requests = requests
        self._streams = streams

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._answer(request)
        except Exception as error:
            response = error_response(error)
        try:
            await response(scope, receive, send)
        except OSError:
            log.debug("the client closed the connection")

    async def _answer(self, request: Request) -> Response:
        operation = self._operations.get(request.method)
        if request.method == "HEAD":
            read = self._operations.get("GET")
            # HEAD must not change anything.
            operation = None if read is None or read.changes else read
        caller = authorize(self._service, request, operation)
        if operation is None:
            allowed = ", ".join(sorted(self._operations))
            raise RequestRefused(
                405,
                "wrong_method",
                f"{request.method} is not allowed for this path: use {allowed}",
                allow=allowed,
            )
        with self._requests.answering(caller.role):
            return await self._execute(request, operation, caller, self._threads.for_role(caller.role))

    async def _execute(
        self, request: Request, operation: Operation, caller: Caller, run_in_thread: RunInThread
    ) -> Response:
        given: dict[str, Any] = dict(read_parts(request, operation))
        if operation.query is not None or request.query_params:
            given["query"] = read_query(request, operation.query)
        body = await read_body(request, operation, run_in_thread)
        if operation.body is not None or operation.upload is not None:
            given["body"] = body
        claimed = _bind_actor(given, caller)
        if operation.wants_caller:
            given["caller"] = caller
        if operation.wants_last:
            given["last_event_id"] = read_cursor(request)
        try:
            answer = await run_in_thread(lambda: operation.handler(self._service, **given))
        finally:
            if operation.upload is not None:
                body.close()
        if claimed is not None:
            await run_in_thread(self._record_claim, operation, given, answer, caller, claimed)
        if isinstance(answer, BackgroundTask):
            return await _task_response(answer, getattr(given.get("body"), "wait", _DEFAULT_WAIT))
        if isinstance(answer, Stream) and request.method == "HEAD":
            return Response(media_type=EVENTS)
        return await self._respond(operation, answer, caller, run_in_thread)

    def _record_claim(
        self, operation: Operation, given: dict[str, Any], answer: Any, caller: Caller, claimed: str
    ) -> None:
        """Record in the run's journal the actor that a caller claims to act for; in the log, if it is about no run."""
        hf = self._service.hf
        facts = {"operation": operation.name, "actor": caller.name, "claimed_actor": claimed}
        try:
            run_id = _run_of(hf, given, answer)
            if run_id is None:
                log.info("%s claims to act for %r: %s", caller.name, claimed, operation.name)
            else:
                hf.history(run_id).add_event(CLAIMED, facts)
        except HoldfastError as error:
            log.warning("the claimed actor of %s was not recorded: %s", operation.name, error)

    async def _respond(
        self, operation: Operation, answer: Any, caller: Caller, run_in_thread: RunInThread
    ) -> Response:
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, Stream):
            return self._streams.open(answer, caller)
        if isinstance(answer, Attachment):
            return await _attachment_response(answer, run_in_thread)
        if answer is None:
            return Response(status_code=204)
        status = 200 if operation.status is None else operation.status(answer)
        written = await run_in_thread(lambda: dumps(answer).encode())
        return Response(written, media_type="application/json", status_code=status)


class RequestSlots:
    """Limits for concurrent requests, by role."""

    def __init__(self, most: int) -> None:
        self._most = role_limits(most, viewer=most // 2, operator=most * 3 // 4)
        self._active: Counter[Role] = Counter()

    @contextmanager
    def answering(self, role: Role) -> Iterator[None]:
        """Count a request while it is handled, or refuse it."""
        limit = limit_reached(self._most, self._active, role)
        if limit is not None:
            raise RequestRefused(
                429,
                "too_many_requests",
                f"{limit} requests of your role are in progress: try again in a moment",
                retry_after="1",
            )
        self._active[role] += 1
        try:
            yield
        finally:
            self._active[role] -= 1


class StreamSlots:
    """Limits for open streams: by role, and half of all for one name in one role. A stream ends with its session."""

    def __init__(self, service: Service) -> None:
        self._service = service
        most = service.settings.streams
        self._most = role_limits(most, viewer=most - most // 10, operator=most - most // 20)
        self._own = max(1, most // 2)
        #: By token name, its sessions included, and role: a session from a code can have a lower role than the token.
        self._open: Counter[tuple[str, Role]] = Counter()

    def open(self, stream: Stream, caller: Caller) -> Response:
        """Return a stream as a response."""
        key = (caller.name, caller.role)
        held: Counter[Role] = Counter()
        for (_, role), count in self._open.items():
            held[role] += count
        limit = limit_reached(self._most, held, caller.role)
        if limit is not None:
            raise RequestRefused(
                503, "too_many_streams", f"{limit} streams are open: close one", retry_after="5"
            )
        if self._open[key] >= self._own:
            raise RequestRefused(
                503,
                "too_many_streams",
                f"{self._own} streams of {caller.name!r:.60} are open: close one",
                retry_after="5",
            )
        self._open[key] += 1
        headers = {"x-accel-buffering": "no"}
        return _CountedResponse(
            self._while_allowed(stream.chunks, caller),
            media_type=EVENTS,
            headers=headers,
            ended=lambda: self._ended(key),
        )

    async def _while_allowed(self, chunks: AsyncIterator[bytes], caller: Caller) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            if not self._service.credentials.is_valid(caller):
                return
            yield chunk

    def _ended(self, key: tuple[str, Role]) -> None:
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]


class _CountedResponse(StreamingResponse):
    """Response that calls `ended` when it is over, however it ends."""

    def __init__(self, *args: Any, ended: Callable[[], None], **more: Any) -> None:
        super().__init__(*args, **more)
        self._over = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._over()


def authorize(service: Service, request: Request, operation: Operation | None) -> Caller:
    """Return the caller if it may call the operation. An unknown path (None) needs any authenticated caller."""
    role = Role.VIEWER if operation is None else operation.role
    if role is Role.PUBLIC:
        return Caller(Role.PUBLIC)
    caller = _caller(service, request)
    if caller is None:
        raise RequestRefused(
            401,
            "unknown_caller",
            "open the URL that `holdfast serve` prints, or send its token as Authorization: Bearer …",
            www_authenticate='Bearer realm="holdfast"',
        )
    changes = request.method not in _SAFE or (operation is not None and operation.changes)
    here = same_origin(request, service.settings.https)
    # A program sends no origin; it has sent a token, which a browser never does by itself.
    if here is False and (changes or caller.session is not None) and not _is_typed(request, changes):
        raise RequestRefused(403, "other_origin", "requests from pages of another origin are refused")
    if here is None and changes and caller.session is not None:
        raise RequestRefused(403, "no_origin", "with a session, a change needs Sec-Fetch-Site or Origin")
    if caller.role < role:
        why = " (the server is read-only)" if service.credentials.read_only else ""
        raise RequestRefused(
            403,
            "wrong_role",
            f"this needs the role {role.name.lower()}, yours is {caller.role.name.lower()}{why}",
        )
    return caller


def error_response(error: BaseException) -> Response:
    """Return an error as a response."""
    problem, headers = problem_for(error)
    return Response(
        dumps(problem).encode(), status_code=problem["status"], media_type=_PROBLEM, headers=headers
    )


def _bind_actor(given: dict[str, Any], caller: Caller) -> str | None:
    """Replace the actor in the request with the name of the caller's token; return the claimed one if it differs."""
    for part in ("query", "body"):
        found = given.get(part)
        if isinstance(found, msgspec.Struct) and hasattr(found, "actor"):
            given[part] = msgspec.structs.replace(found, actor=caller.name)
            return found.actor if found.actor != caller.name else None
    return None


def _run_of(hf: Holdfast, given: dict[str, Any], answer: Any) -> str | None:
    """Return the run that an operation was about; None if it was about none."""
    if isinstance(answer, BackgroundTask) and answer.run is not None:
        return answer.run
    if "project_id" in given:
        return control_run(name_of(given["project_id"]))
    if isinstance(answer, dict) and isinstance(answer.get("run"), str):
        return str(answer["run"])
    return hf.get(given["run"], prefix=True).id if "run" in given else None


async def _task_response(task: BackgroundTask, patience: float) -> Response:
    """Return the task as a response when it has ended, or its current state after `patience` seconds."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    task.call_when_done(lambda: loop.call_soon_threadsafe(ended.set))
    with suppress(TimeoutError):
        async with asyncio.timeout(patience):
            await ended.wait()
    if task.failure is not None:
        return error_response(task.failure)
    record = task.record()
    status = 202 if record["status"] == "running" else 200
    return Response(dumps(record).encode(), status_code=status, media_type="application/json")


def _caller(service: Service, request: Request) -> Caller | None:
    given = request.headers.get("authorization")
    if given is not None:
        scheme, _, token = given.partition(" ")
        return service.credentials.program(token.strip()) if scheme.lower() == "bearer" else None
    session = read_cookie(request, service.settings.cookie)
    return None if session is None else service.credentials.browser(session)


def _is_typed(request: Request, changes: bool) -> bool:
    """Return whether the address was typed, or opened from a bookmark."""
    return not changes and request.headers.get("sec-fetch-site") == "none"


async def _attachment_response(answer: Attachment, run_in_thread: RunInThread) -> Response:
    pieces = iter(answer.pieces)
    # Read the first piece now: a failure can still become a problem.
    first = await run_in_thread(_next, pieces)
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(answer.name, safe='', errors='replace')}"
    }
    if answer.size is not None:
        headers["content-length"] = str(answer.size)
    return StreamingResponse(
        _pieces(first, pieces, run_in_thread), media_type=answer.media_type, headers=headers
    )


async def _pieces(
    piece: bytes | None, rest: Iterator[bytes], run_in_thread: RunInThread
) -> AsyncIterator[bytes]:
    while piece is not None:
        yield piece
        piece = await run_in_thread(_next, rest)


def _next(pieces: Iterator[bytes]) -> bytes | None:
    return next(pieces, None)
