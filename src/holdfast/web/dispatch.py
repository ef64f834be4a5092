"""From a request to an answer: who calls, from where, what they may do, what they ask, what is done.

Handlers block, so they run in threads. There are only so many threads, requests and streams at once, and each role
leaves some of them to the roles above it.

Invariant: nothing of a request but its method, path and headers is looked at before its caller may do what it asks.
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
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.desk.words import dumps
from holdfast.engine import Holdfast
from holdfast.errors import HoldfastError
from holdfast.loops.names import control_run, name_of
from holdfast.web.auth import Caller
from holdfast.web.gate import same_origin
from holdfast.web.operation import Attachment, Operation, Role, Stream
from holdfast.web.problems import Refused, log, told
from holdfast.web.reading import Elsewhere, read_body, read_cookie, read_cursor, read_parts, read_query
from holdfast.web.service import Service
from holdfast.web.shares import Shares, limit_reached, shares
from holdfast.web.tasks import Task

#: Handlers that are at work at once.
THREADS = shares(16, viewer=8, operator=12)
#: Seconds that an answer waits for a task to end, unless the call says otherwise.
_PATIENCE = 2.0
_SAFE = ("GET", "HEAD", "OPTIONS", "TRACE")
_PROBLEM = "application/problem+json"
EVENTS = "text/event-stream"
#: The entry of a journal that says whom a caller claimed to act for. Its actor is the name of the caller's token.
CLAIMED = "http.claimed_actor"

T = TypeVar("T")


class Threads:
    """A bounded number of threads that run blocking functions."""

    def __init__(self, most: Shares = THREADS) -> None:
        self._most = most

    def of(self, role: Role) -> Elsewhere:
        """Return a function that runs another one in a thread, when there is one for callers of a role."""
        return partial(self._run, role)

    @cached_property
    def _limiters(self) -> dict[Role, anyio.CapacityLimiter]:
        # Made in the event loop.
        return {role: anyio.CapacityLimiter(most) for role, most in self._most.items()}

    async def _run(self, role: Role, function: Callable[..., T], *args: Any) -> T:
        *below, top = [limiter for each, limiter in self._limiters.items() if each >= role]
        async with AsyncExitStack() as held:
            for limiter in below:
                await held.enter_async_context(limiter)
            # A server that ends does not wait for an answer that no client will get.
            return await anyio.to_thread.run_sync(
                lambda: function(*args), limiter=top, abandon_on_cancel=True
            )


class Place:
    """A path and what can be done there, as an application of its own."""

    def __init__(
        self,
        service: Service,
        threads: Threads,
        operations: Mapping[str, Operation],
        requests: Requests,
        streams: Streams,
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
        with self._requests.answering(caller.role):
            return await self._carry_out(request, operation, caller, self._threads.of(caller.role))

    async def _carry_out(
        self, request: Request, operation: Operation, caller: Caller, elsewhere: Elsewhere
    ) -> Response:
        given: dict[str, Any] = dict(read_parts(request, operation))
        if operation.query is not None or request.query_params:
            given["query"] = read_query(request, operation.query)
        body = await read_body(request, operation, elsewhere)
        if operation.body is not None or operation.upload is not None:
            given["body"] = body
        claimed = _bind_actor(given, caller)
        if operation.wants_caller:
            given["caller"] = caller
        if operation.wants_last:
            given["last_event_id"] = read_cursor(request)
        try:
            answer = await elsewhere(lambda: operation.handler(self._service, **given))
        finally:
            if operation.upload is not None:
                body.close()
        if claimed is not None:
            await elsewhere(self._keep_claim, operation, given, answer, caller, claimed)
        if isinstance(answer, Task):
            return await _of_task(answer, getattr(given.get("body"), "wait", _PATIENCE))
        if isinstance(answer, Stream) and request.method == "HEAD":
            return Response(media_type=EVENTS)
        return await self._sent(operation, answer, caller, elsewhere)

    def _keep_claim(
        self, operation: Operation, given: dict[str, Any], answer: Any, caller: Caller, claimed: str
    ) -> None:
        """Write into the run's journal who a caller claims to act for."""
        hf = self._service.hf
        facts = {"operation": operation.name, "actor": caller.name, "claimed_actor": claimed}
        try:
            hf.history(_run_of(hf, given, answer)).tell(CLAIMED, facts)
        except HoldfastError as error:
            log.warning("the claimed actor of %s was not kept: %s", operation.name, error)

    async def _sent(
        self, operation: Operation, answer: Any, caller: Caller, elsewhere: Elsewhere
    ) -> Response:
        if isinstance(answer, Response):
            return answer
        if isinstance(answer, Stream):
            return self._streams.open(answer, caller)
        if isinstance(answer, Attachment):
            return await _attached(answer, elsewhere)
        if answer is None:
            return Response(status_code=204)
        status = 200 if operation.status is None else operation.status(answer)
        written = await elsewhere(_written, answer)
        return Response(written, media_type="application/json", status_code=status)


class Requests:
    """The requests that are being answered: so many at most for each role."""

    def __init__(self, most: int) -> None:
        self._most = shares(most, viewer=most // 2, operator=most * 3 // 4)
        self._held: Counter[Role] = Counter()

    @contextmanager
    def answering(self, role: Role) -> Iterator[None]:
        """Count a request until it has been carried out, or refuse it."""
        limit = limit_reached(self._most, self._held, role)
        if limit is not None:
            raise Refused(
                429,
                "too_many_requests",
                f"{limit} requests of your role are being answered: try again in a moment",
                retry_after="1",
            )
        self._held[role] += 1
        try:
            yield
        finally:
            self._held[role] -= 1


class Streams:
    """The streams that are open: so many at most for each role, half of all for one name in one role, and none longer
    than its caller may listen."""

    def __init__(self, service: Service) -> None:
        self._service = service
        most = service.settings.streams
        self._most = shares(most, viewer=most - most // 10, operator=most - most // 20)
        self._own = max(1, most // 2)
        #: By the name of the token that they are open for, its sessions included, and by role: a session that came from
        #: a code can have a lesser role than the token.
        self._open: Counter[tuple[str, Role]] = Counter()

    def open(self, stream: Stream, caller: Caller) -> Response:
        """A stream as a response."""
        key = (caller.name, caller.role)
        held: Counter[Role] = Counter()
        for (_, role), count in self._open.items():
            held[role] += count
        limit = limit_reached(self._most, held, caller.role)
        if limit is not None:
            raise Refused(503, "too_many_streams", f"{limit} streams are open: close one", retry_after="5")
        if self._open[key] >= self._own:
            raise Refused(
                503,
                "too_many_streams",
                f"{self._own} streams of {caller.name!r:.60} are open: close one",
                retry_after="5",
            )
        self._open[key] += 1
        headers = {"x-accel-buffering": "no"}
        return _Counted(
            self._while_allowed(stream.chunks, caller),
            media_type=EVENTS,
            headers=headers,
            ended=lambda: self._ended(key),
        )

    async def _while_allowed(self, chunks: AsyncIterator[bytes], caller: Caller) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            if not self._service.keys.still(caller):
                return
            yield chunk

    def _ended(self, key: tuple[str, Role]) -> None:
        self._open[key] -= 1
        if not self._open[key]:
            del self._open[key]


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


def _bind_actor(given: dict[str, Any], caller: Caller) -> str | None:
    """Put the name of the caller's token in the place of the actor that it named; return that one if it is another."""
    for part in ("query", "body"):
        found = given.get(part)
        if isinstance(found, msgspec.Struct) and hasattr(found, "actor"):
            given[part] = msgspec.structs.replace(found, actor=caller.name)
            return found.actor if found.actor != caller.name else None
    return None


def _run_of(hf: Holdfast, given: dict[str, Any], answer: Any) -> str:
    """Return the run that an operation was about."""
    if isinstance(answer, Task) and answer.run is not None:
        return answer.run
    if "project_id" in given:
        return control_run(name_of(given["project_id"]))
    if isinstance(answer, dict) and isinstance(answer.get("run"), str):
        return str(answer["run"])
    return hf.find(given["run"])


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
    session = read_cookie(request, service.settings.cookie)
    return None if session is None else service.keys.browser(session)


def _typed(request: Request, changes: bool) -> bool:
    """Did somebody type the address, or follow a bookmark?"""
    return not changes and request.headers.get("sec-fetch-site") == "none"


async def _attached(answer: Attachment, elsewhere: Elsewhere) -> Response:
    pieces = iter(answer.pieces)
    # Read the first piece now: a failure can still become a problem.
    first = await elsewhere(_next, pieces)
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(answer.name, safe='', errors='replace')}"
    }
    if answer.size is not None:
        headers["content-length"] = str(answer.size)
    return StreamingResponse(_pieces(first, pieces, elsewhere), media_type=answer.media_type, headers=headers)


async def _pieces(piece: bytes | None, rest: Iterator[bytes], elsewhere: Elsewhere) -> AsyncIterator[bytes]:
    while piece is not None:
        yield piece
        piece = await elsewhere(_next, rest)


def _written(answer: Any) -> bytes:
    return dumps(answer).encode()


def _next(pieces: Iterator[bytes]) -> bytes | None:
    return next(pieces, None)
