"""A connection pool in front of a PostgreSQL server, like PgBouncer: in transaction mode each transaction of a client
gets any free session of the server; in session mode a client keeps one."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading

from psycopg.conninfo import conninfo_to_dict

_SSL = 80877103
_GSS = 80877104


class TransactionPool:
    """A pool that listens on its own port, without passwords."""

    def __init__(self, url: str, *, mode: str = "transaction") -> None:
        found = conninfo_to_dict(url)
        self._target = f"{found.get('host') or '/tmp'}/.s.PGSQL.{found.get('port') or 5432}"
        self._user, self._database = str(found.get("user") or ""), str(found.get("dbname") or "")
        self._mode = mode
        self._free: list[socket.socket] = []
        self._lock = threading.Lock()

    def __enter__(self) -> TransactionPool:
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = f"postgresql://{self._user}@127.0.0.1:{port}/{self._database}"
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        with self._lock:
            free, self._free = self._free, []
        for session in free:
            session.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                # Messages are sent one by one: the kernel would delay each until the one before is acknowledged.
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        session: socket.socket | None = None
        with contextlib.suppress(OSError, EOFError), client:
            while struct.unpack("!i", _packet(client)[:4])[0] in (_SSL, _GSS):
                client.sendall(b"N")
            session, greeting = self._session()
            client.sendall(greeting)
            pending, idle = 0, True
            while True:
                if session is None:
                    select.select([client], [], [])
                    session = self._session()[0]
                for source in select.select([client, session], [], [])[0]:
                    kind, body = _message(source)
                    if kind == b"X":
                        return
                    (session if source is client else client).sendall(
                        kind + struct.pack("!i", len(body) + 4) + body
                    )
                    if source is client:
                        pending, idle = pending + (kind in b"QSF"), False
                    elif kind == b"Z":
                        pending -= 1
                        idle = body == b"I" and pending == 0
                if self._mode == "transaction" and pending == 0 and idle:
                    self._give_back(session)
                    session = None
        if session is not None and self._mode == "transaction":
            session.close()

    def _give_back(self, session: socket.socket) -> None:
        with self._lock:
            self._free.append(session)

    def _session(self) -> tuple[socket.socket, bytes]:
        """Return a session of the server and the greeting of a client, with a process number of the pool."""
        greeting = b"R" + struct.pack("!ii", 8, 0)
        for name, value in (("server_version", "16.0"), ("client_encoding", "UTF8")):
            pair = f"{name}\0{value}\0".encode()
            greeting += b"S" + struct.pack("!i", len(pair) + 4) + pair
        greeting += b"K" + struct.pack("!ii", 12, 7) + os.urandom(4) + b"Z" + struct.pack("!i", 5) + b"I"
        with self._lock:
            if self._free:
                return self._free.pop(), greeting
        session = socket.socket(socket.AF_UNIX)
        session.connect(self._target)
        options = f"user\0{self._user}\0database\0{self._database}\0client_encoding\0UTF8\0\0".encode()
        session.sendall(struct.pack("!ii", len(options) + 8, 196608) + options)
        while _message(session)[0] != b"Z":
            pass
        return session, greeting


def _packet(source: socket.socket) -> bytes:
    return _read(source, struct.unpack("!i", _read(source, 4))[0] - 4)


def _message(source: socket.socket) -> tuple[bytes, bytes]:
    return _read(source, 1), _packet(source)


def _read(source: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        part = source.recv(size - len(found))
        if not part:
            raise EOFError
        found += part
    return found
