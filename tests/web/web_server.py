"""A real server on a real socket, in a thread of this process, and clients for it."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from holdfast import Holdfast
from holdfast.web.auth import Token
from holdfast.web.operation import Role
from holdfast.web.page import PageFiles
from holdfast.web.server import ServeOptions, Server

#: Seconds after which something that should come is taken for lost.
DEADLINE = 60.0
RUNS = "/api/v1/runs"
#: To load certificates takes longer than most tests.
_UNUSED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
TOKENS = {
    Role.VIEWER: "viewer-0123456789-0123456789",
    Role.OPERATOR: "operator-0123456789-0123456789",
    Role.ADMIN: "admin-0123456789-0123456789",
}


class Served:
    """A server that runs, and how to call it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = server.origin
        self.clients: list[httpx.Client] = []

    def client(self, role: Role | None = Role.ADMIN, **headers: str) -> httpx.Client:
        """A program with a token of a role; None for one without."""
        if role is not None:
            headers["authorization"] = f"Bearer {TOKENS[role]}"
        made = httpx.Client(base_url=self.url, headers=headers, timeout=DEADLINE, verify=_UNUSED)
        self.clients.append(made)
        return made

    def browser(self) -> httpx.Client:
        """A browser that has opened the page, as its own scripts call."""
        made = self.client(None, **{"sec-fetch-site": "same-origin"})
        assert made.get(self.server.launch()).status_code == 303
        return made

    def get(self, operation: str, /, role: Role | None = Role.ADMIN, **query: Any) -> Any:
        """Return the response of an operation."""
        found = self.client(role).get(f"/api/v1{operation}", params=query)
        assert found.status_code == 200, (operation, found.text)
        return found.json()

    def post(self, operation: str, status: int = 200, /, role: Role = Role.ADMIN, **body: Any) -> Any:
        """Return the response of a change."""
        found = self.client(role).post(f"/api/v1{operation}", json=body)
        assert found.status_code == status, (operation, found.text)
        return found.json()

    def tasks_are_over(self) -> bool:
        """Wait for all tasks to end."""
        for task in self.server.app.service.tasks.all():
            task.future.exception(DEADLINE)
        return True

    def problem(self, method: str, path: str, status: int, **more: Any) -> Any:
        """The problem with which a call ends."""
        found = self.client().request(method, f"/api/v1{path}", **more)
        assert found.status_code == status, found.text
        assert found.headers["content-type"] == "application/problem+json"
        document = found.json()
        assert set(document) == {"type", "title", "status", "detail", "code", "details"}
        assert document["status"] == status
        return document


@contextmanager
def serving(
    hf: Holdfast, *, page: PageFiles | None = None, where: str = ":memory:", **how: Any
) -> Iterator[Served]:
    """A store that is served, until the end of the block."""
    how.setdefault("tokens", [Token(token, role) for role, token in TOKENS.items()])
    ready = threading.Event()
    server = Server(hf, ServeOptions(port=0, **how), store=where, where=where, started=ready.set, page=page)
    thread = threading.Thread(target=server.serve_until_stopped, name="server")
    thread.start()
    served = Served(server)
    try:
        assert ready.wait(DEADLINE), "the server did not start"
        yield served
    finally:
        for client in served.clients:
            client.close()
        server.stop()
        thread.join(DEADLINE)
        assert not thread.is_alive(), "the server did not end"


def connect(url: str, sent: bytes = b"", room: int | None = None) -> socket.socket:
    """Return a connection to a server, over which something was sent; `room` is how much may wait to be read."""
    host, port = url.removeprefix("http://").split(":")
    made = socket.socket()
    made.settimeout(DEADLINE)
    if room is not None:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    made.connect((host, int(port)))
    made.sendall(sent)
    return made


def request(served: Served, method: str = "GET", *headers: str, role: Role = Role.VIEWER) -> bytes:
    """Return a request of a program with a token; its body is to follow."""
    own = [f"host: {served.url[7:]}", f"authorization: Bearer {TOKENS[role]}", *headers]
    path = RUNS if method == "GET" else "/api/v1/codes"
    return "\r\n".join([f"{method} {path} HTTP/1.1", *own, "", ""]).encode()


class Listener:
    """A client of the stream, in a thread: the events that arrived, by name."""

    def __init__(self, client: httpx.Client, path: str = "/api/v1/events/stream", **how: Any) -> None:
        self.messages: list[dict[str, Any]] = []
        self.named: list[tuple[str, Any]] = []
        self.comments: list[str] = []
        self.ids: list[int] = []
        self.status = 0
        self.over = threading.Event()
        self._came = threading.Condition()
        self._ends = False
        self._thread = threading.Thread(target=self._listen, args=[client, path, how], daemon=True)
        self._thread.start()

    def until(self, condition: Callable[[], Any]) -> None:
        """Wait for what should come."""
        with self._came:
            assert self._came.wait_for(condition, DEADLINE), (len(self.messages), self.named)

    def is_ready(self) -> bool:
        """Is it reported what happens from now on?"""
        return bool(self.named)

    def is_quiet(self) -> bool:
        """Has it heard all that there is?"""
        return bool(self.comments)

    def close(self) -> None:
        self._ends = True

    def _listen(self, client: httpx.Client, path: str, how: dict[str, Any]) -> None:
        try:
            with client.stream("GET", path, **how) as response:
                self.status = response.status_code
                fields: dict[str, str] = {}
                for line in response.iter_lines():
                    if self._ends:
                        return
                    with self._came:
                        if line.startswith(":"):
                            self.comments.append(line)
                        elif line:
                            name, _, value = line.partition(": ")
                            fields[name] = value
                        elif fields:
                            self._take(fields)
                            fields = {}
                        self._came.notify_all()
        except httpx.HTTPError:
            pass
        finally:
            self.over.set()
            with self._came:
                self._came.notify_all()

    def _take(self, fields: dict[str, str]) -> None:
        if "id" in fields:
            self.ids.append(int(fields["id"]))
        if "data" in fields:
            data = json.loads(fields["data"])
            if "event" in fields:
                self.named.append((fields["event"], data))
            else:
                self.messages.append(data)
