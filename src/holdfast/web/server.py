"""The server of a store: a socket, uvicorn, and signals.

Invariant: without a token and an allowed host name, the server listens on a loopback address only; open streams end as
soon as it stops.
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
from holdfast.web.app import WebApp
from holdfast.web.auth import Credentials, Token, new_token
from holdfast.web.connection import ConnectionSlots, Deadlines, UvicornConfig
from holdfast.web.operation import Role
from holdfast.web.page import PageFiles
from holdfast.web.routes.session import launch_url
from holdfast.web.security import MAX_HEADER_BYTES, SECURITY_HEADERS
from holdfast.web.service import ServerSettings

#: Seconds for running requests to end.
_GRACE = 5
#: Connections that wait to be accepted.
_BACKLOG = 128


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of a server."""

    host: str = "127.0.0.1"
    #: 0 for any free port.
    port: int = 0
    #: Use any free port if that one is taken.
    any_port: bool = False
    #: Further accepted Host headers.
    allowed_hosts: Sequence[str] = ()
    #: Without any, one is generated.
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
    """HTTP server of a store."""

    def __init__(
        self,
        hf: Holdfast,
        options: ServeOptions,
        *,
        store: str,
        where: str,
        started: Callable[[], None] = lambda: None,
        page: PageFiles | None = None,
    ) -> None:
        refuse_unsafe(options)
        self.token = None if options.tokens else new_token()
        self._socket = _bind(options)
        port = self._socket.getsockname()[1]
        hosts = _hosts(options, port)
        self.origin = f"{'https' if options.https else 'http'}://{hosts[0]}"
        given = options.tokens or [Token(self.token or "", Role.ADMIN)]
        self.credentials = Credentials(given, read_only=options.read_only)
        count = _slot_count(options)
        wanted = max(1, options.streams + options.connections)
        settings = ServerSettings(
            store=store,
            where=where,
            hosts=hosts,
            origin=self.origin,
            # Cookies ignore ports: two servers on one host must not share one.
            cookie=f"{'__Host-' if options.https else ''}holdfast-{port}",
            https=options.https,
            legacy_get=options.legacy_get,
            heartbeat=options.heartbeat,
            streams=options.streams * count // wanted,
            requests=options.connections * count // wanted,
        )
        slots = ConnectionSlots(count, options.deadlines)
        self.app = WebApp(hf, self.credentials, settings, page, lambda: slots.is_full)
        self._on_start = started
        super().__init__(
            UvicornConfig(
                self.app,
                slots=slots,
                headers=[(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()],
                ws="none",
                loop="asyncio",
                lifespan="on",
                log_config=None,
                # Paths and queries may hold secrets.
                access_log=False,
                server_header=False,
                proxy_headers=False,
                h11_max_incomplete_event_size=MAX_HEADER_BYTES,
                timeout_graceful_shutdown=_GRACE,
                backlog=_BACKLOG,
            )
        )

    def launch(self, used: Callable[[], None] | None = None) -> str:
        """Return a URL that opens the page once, with the highest role of a token. `used` is called when it is
        opened."""
        return launch_url(self.origin, self.credentials.code(self.credentials.highest, used=used))

    def serve_until_stopped(self) -> None:
        """Serve until a signal arrives, or `stop` is called."""
        try:
            self.run(sockets=[self._socket])
        finally:
            self._socket.close()

    def unfinished_runs(self) -> list[str]:
        """Return the runs that tasks are advancing; they are interrupted if the server stops now."""
        return self.app.service.tasks.runs()

    def stop(self) -> None:
        """Stop the server, from any thread."""
        self.should_exit = True
        self.app.broadcaster.end_streams()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.stop()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals as uvicorn does, but do not raise a handled signal again."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {sig: signal.signal(sig, self.handle_exit) for sig in stop_signals()}
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def refuse_unsafe(options: ServeOptions) -> None:
    """Refuse to listen on other addresses without a token and an allowed host name."""
    if is_loopback(options.host):
        return
    if not options.tokens or not options.allowed_hosts:
        raise InvalidCall(
            f"listening on {options.host} makes the server reachable from other machines: give a token "
            "(--token-file or HOLDFAST_TOKEN) and the host name that they use (--allowed-host)",
            host=options.host,
        )


def is_loopback(host: str) -> bool:
    """Return whether an address is reachable from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _bind(options: ServeOptions) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidCall(f"{options.host!r:.80} is not an address: {error.strerror or error}") from None
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


def _slot_count(options: ServeOptions) -> int:
    """Return the number of connection slots, at most three quarters of the files that this process may open."""
    wanted = options.streams + options.connections
    files = most_open_files()
    return wanted if files is None else min(wanted, files * 3 // 4)


def _hosts(options: ServeOptions, port: int) -> list[str]:
    """Return the accepted Host headers; the first is used for launch URLs."""
    own = ["127.0.0.1", "localhost", "[::1]"] if is_loopback(options.host) else []
    if is_loopback(options.host) and options.host in ("::1", "localhost"):
        own.sort(key=lambda name: name.strip("[]") != options.host)
    found = [f"{name}:{port}" for name in own]
    if port == 80:
        found += own
    return [*options.allowed_hosts, *found] if not own else [*found, *options.allowed_hosts]
