"""The check of Host and origin, and the security headers of every response.

A page of another site whose name resolves to this machine (DNS rebinding) sends that name as Host: it is refused. No
other origin may read a response: CORS is not supported.

Invariant: a request with an unknown Host is refused here, whatever its method and path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.web.errors import RequestRefused

#: The page loads and runs only its own files, cannot be framed, and connects only to its own server.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


#: Limit for the path and headers of a request.
MAX_HEADER_BYTES = 64 << 10


class HostCheck:
    """ASGI middleware: refuses unknown hosts and requests beyond the limits, and sets security headers."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: Sequence[str],
        refuse: Callable[[RequestRefused], ASGIApp],
        is_full: Callable[[], bool] = lambda: False,
    ) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._refuse = refuse
        self._is_full = is_full

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            # WebSockets are not supported.
            await send({"type": "websocket.close", "code": 1008})
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        refused = self._check(scope)
        if refused is not None:
            await self._refuse(refused)(scope, receive, sent)
            return
        # The raw path, so that an encoded slash in an id does not split it: parts are decoded one by one.
        raw = scope.get("raw_path") or scope["path"].encode()
        await self._app({**scope, "path": raw.decode("latin-1")}, receive, sent)

    def _check(self, scope: Scope) -> RequestRefused | None:
        if _size(scope) > MAX_HEADER_BYTES:
            return RequestRefused(
                431,
                "headers_too_large",
                f"the path and headers of a request may have at most {MAX_HEADER_BYTES:,} bytes",
                connection="close",
            )
        found = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(found) != 1 or not found[0]:
            return RequestRefused(400, "no_host", "a request needs exactly one Host header")
        if found[0].lower() not in self._hosts:
            return RequestRefused(
                421,
                "wrong_host",
                f"{found[0]!r:.120} is not served here: start with --allowed-host to be called by another name",
            )
        if self._is_full():
            return RequestRefused(
                503,
                "too_many_connections",
                "all connections of this server are in use: try again in a moment",
                retry_after="5",
                connection="close",
            )
        return None


def _size(scope: Scope) -> int:
    """Return the approximate number of bytes before the body."""
    path = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
    return path + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


def same_origin(request: Request, https: bool) -> bool | None:
    """Return whether a request comes from the page of this server. None if it does not say: browsers always do, so it
    is a program."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    ours = f"{'https' if https else 'http'}://{request.headers['host']}".lower()
    if origin is not None and origin.lower() != ours:
        return False
    if site is not None:
        return site == "same-origin"
    return None if origin is None else True
