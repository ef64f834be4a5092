"""The outermost door: which hosts are answered, and what every answer carries.

A page of another host that has its name point to this machine (DNS rebinding) sends that name: it is not answered. No
other origin may read an answer: there is no CORS, and none can be turned on.

Invariant: no request with another Host comes further than this, whatever its method and path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.web.problems import Refused

#: Only what comes from here is loaded and run; nobody may frame it; it sends nothing elsewhere.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ALWAYS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


#: Bytes of the method, path and headers of a request.
MOST_HEADERS = 64 << 10


class Gate:
    """Lets in what is meant for this server, while there is room."""

    def __init__(
        self,
        app: ASGIApp,
        hosts: Sequence[str],
        refuse: Callable[[Refused], ASGIApp],
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
            # There are no WebSockets here.
            await send({"type": "websocket.close", "code": 1008})
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in ALWAYS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        wrong = self._wrong(scope)
        if wrong is not None:
            await self._refuse(wrong)(scope, receive, sent)
            return
        # Whatever a name holds, a slash in it does not divide the path: parts are decoded one by one.
        raw = scope.get("raw_path") or scope["path"].encode()
        await self._app({**scope, "path": raw.decode("latin-1")}, receive, sent)

    def _wrong(self, scope: Scope) -> Refused | None:
        if _size(scope) > MOST_HEADERS:
            return Refused(
                431,
                "headers_too_large",
                f"the path and headers of a request have at most {MOST_HEADERS:,} bytes",
                connection="close",
            )
        found = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(found) != 1 or not found[0]:
            return Refused(400, "no_host", "a request has one Host header")
        if found[0].lower() not in self._hosts:
            return Refused(
                421,
                "wrong_host",
                f"{found[0]!r:.120} is not served here: start with --allowed-host to be called by another name",
            )
        if self._is_full():
            return Refused(
                503,
                "too_many_connections",
                "all connections of this server are in use: try again in a moment",
                retry_after="5",
                connection="close",
            )
        return None


def _size(scope: Scope) -> int:
    """Return about how many bytes come before the body."""
    path = len(scope.get("raw_path") or scope["path"]) + len(scope["query_string"])
    return path + sum(len(name) + len(value) + 4 for name, value in scope["headers"])


def same_origin(request: Request, https: bool) -> bool | None:
    """Does a request come from the page of this very server? None if nothing says where it comes from: a browser
    always says, so it is a program."""
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    ours = f"{'https' if https else 'http'}://{request.headers['host']}".lower()
    if origin is not None and origin.lower() != ours:
        return False
    if site is not None:
        return site == "same-origin"
    return None if origin is None else True
