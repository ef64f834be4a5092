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
_ALWAYS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Gate:
    """Lets in what is meant for this server."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str], refuse: Callable[[Refused], ASGIApp]) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._refuse = refuse

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
                for name, value in _ALWAYS.items():
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
        found = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(found) != 1 or not found[0]:
            return Refused(400, "no_host", "a request has one Host header")
        if found[0].lower() not in self._hosts:
            return Refused(
                421,
                "wrong_host",
                f"{found[0]!r:.120} is not served here: start with --allowed-host to be called by another name",
            )
        return None


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
