"""A socket, uvicorn, and signals: from a store to a server that can be called.

Invariant: without being told a token and a name to be called by, it listens on this machine only; when it is told to
end, open streams end at once.
"""

from __future__ import annotations

import ipaddress
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import msgspec
import uvicorn

from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall
from holdfast.operating_system import is_port_taken, most_open_files, own_port, stop_signals
from holdfast.web.app import App
from holdfast.web.auth import Keys, Token, new_token
from holdfast.web.connection import Config, Deadlines, Room
from holdfast.web.gate import ALWAYS, MOST_HEADERS
from holdfast.web.operation import Role
from holdfast.web.page import Page
from holdfast.web.routes.session import launch_url
from holdfast.web.service import Settings

#: Seconds that answers which are under way get to end.
_GRACE = 5
#: Connections that wait to be accepted, and that are accepted at once.
_BACKLOG = 128


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How to serve."""

    host: str = "127.0.0.1"
    #: 0 for any that is free.
    port: int = 0
    #: Take any that is free if that one is taken.
    any_port: bool = False
    #: Other names, as a browser writes them, by which the server may be called.
    allowed_hosts: Sequence[str] = ()
    #: Tokens that are given, with their roles; without any, one is made.
    tokens: Sequence[Token] = ()
    read_only: bool = False
    legacy_get: bool = False
    https: bool = False
    heartbeat: float = 15.0
    streams: int = 400
    #: Connections besides those of streams.
    connections: int = 600
    deadlines: Deadlines = Deadlines()


class Server(uvicorn.Server):
    """Serves a store."""

    def __init__(
        self,
        hf: Holdfast,
        options: Options,
        *,
        store: str,
        where: str,
        started: Callable[[], None] = lambda: None,
        page: Page | None = None,
    ) -> None:
        refuse_unsafe(options)
        self.token = None if options.tokens else new_token()
        self._socket = _bound(options)
        port = self._socket.getsockname()[1]
        hosts = _hosts(options, port)
        self.origin = f"{'https' if options.https else 'http'}://{hosts[0]}"
        given = options.tokens or [Token(self.token or "", Role.ADMIN)]
        self.keys = Keys(given, read_only=options.read_only)
        places = _places(options)
        wanted = max(1, options.streams + options.connections)
        settings = Settings(
            store=store,
            where=where,
            hosts=hosts,
            origin=self.origin,
            # Cookies know no ports: two servers on one machine must not share one.
            cookie=f"{'__Host-' if options.https else ''}holdfast-{port}",
            https=options.https,
            legacy_get=options.legacy_get,
            heartbeat=options.heartbeat,
            streams=options.streams * places // wanted,
            requests=options.connections * places // wanted,
        )
        room = Room(places, options.deadlines)
        self.app = App(hf, self.keys, settings, page, lambda: room.is_full)
        self._tell = started
        super().__init__(
            Config(
                self.app,
                room=room,
                headers=[(name.encode(), value.encode()) for name, value in ALWAYS.items()],
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                # Paths and queries are nobody's business.
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=MOST_HEADERS,
                timeout_graceful_shutdown=_GRACE,
                backlog=_BACKLOG,
            )
        )

    def launch(self, used: Callable[[], None] | None = None) -> str:
        """Return a URL that opens the page once, with the highest role that a token gives. `used` is called when that
        happens."""
        return launch_url(self.origin, self.keys.code(self.keys.highest, used=used))

    def serve_until_told(self) -> None:
        """Serve until a signal comes, or `stop` is called."""
        try:
            self.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def left(self) -> list[str]:
        """The runs that it is going on with: what becomes of them if it ends now, others have to see to."""
        return self.app.service.tasks.runs()

    def stop(self) -> None:
        """End, from another thread."""
        self.should_exit = True
        self.app.hub.end_streams()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._tell()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.stop()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn does, but a signal that was obeyed is not raised again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in stop_signals()}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def refuse_unsafe(options: Options) -> None:
    """Refuse to be reached from elsewhere without a token and a name."""
    if is_loopback(options.host):
        return
    if not options.tokens or not options.allowed_hosts:
        raise InvalidCall(
            f"listening on {options.host} lets other machines in: give a token (--token-file or HOLDFAST_TOKEN) and "
            "the name that they call it by (--allowed-host)",
            host=options.host,
        )


def is_loopback(host: str) -> bool:
    """Is it an address of this machine only?"""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bound(options: Options) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidCall(f"{options.host!r:.80} is no address: {error.strerror or error}") from None
    own_port(made)
    try:
        try:
            made.bind(address)
        except OSError as error:
            if not options.any_port or not is_port_taken(error):
                raise
            made.bind((address[0], 0, *address[2:]))
    except OSError as error:
        made.close()
        raise InvalidCall(
            f"cannot listen on {options.host}:{options.port}: {error.strerror or error}; --port 0 takes a free one"
        ) from None
    return made


def _places(options: Options) -> int:
    """Return for how many connections there is room, at most three quarters of the files that this process may have
    open."""
    wanted = options.streams + options.connections
    files = most_open_files()
    return wanted if files is None else min(wanted, files * 3 // 4)


def _hosts(options: Options, port: int) -> list[str]:
    """The names by which it may be called; the first is for its own URL."""
    own = ["127.0.0.1", "localhost", "[::1]"] if is_loopback(options.host) else []
    if is_loopback(options.host) and options.host in ("::1", "localhost"):
        own.sort(key=lambda name: name.strip("[]") != options.host)
    found = [f"{name}:{port}" for name in own]
    if port == 80:
        found += own
    return [*options.allowed_hosts, *found] if not own else [*found, *options.allowed_hosts]
