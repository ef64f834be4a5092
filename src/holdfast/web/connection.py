"""Connections with a deadline for each part of a request, and a limit on their number.

uvicorn waits forever for the rest of a request, and for a client to read its response. Here each phase has a deadline:
the first byte, the headers, the body, and reading the response. When all slots are taken, a new connection replaces one
whose client keeps the server waiting.

Invariant: a client that does not send a complete request, or does not read its response, cannot block other clients.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol
from uvicorn.server import ServerState


class Deadlines(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds for each part of an exchange."""

    #: From a new connection, or from a response, to the first byte of a request.
    first_byte: float = 10.0
    headers: float = 10.0
    body: float = 30.0
    #: The time that responses wait to be read, all those of a connection together.
    answer: float = 60.0
    #: Bytes per second that extend the deadline of a body or a response when they are received or read.
    rate: float = 16 << 10


class ConnectionPhase(Enum):
    """Phase of a connection."""

    IDLE = "idle"
    HEADERS = "headers"
    BODY = "body"
    #: The request is complete, and is being handled.
    WHOLE = "whole"
    #: The response was sent before the body was complete. The rest of the body is read for a while: the client may not
    #: read the response earlier.
    ANSWERED = "answered"
    CLOSING = "closing"


class ClientDelay(Enum):
    """How a client keeps the server waiting, in the order in which connections are replaced by new ones."""

    #: It has not sent a request, or its headers.
    REQUEST = "request"
    #: It does not read its response.
    ANSWER = "answer"
    #: It has not sent the complete body.
    BODY = "body"


class ConnectionSlots:
    """Slots for connections; a new connection can replace a delayed one."""

    def __init__(self, most: int, deadlines: Deadlines) -> None:
        self.deadlines = deadlines
        self._most = most
        self._open: set[HTTPConnection] = set()
        #: Connections that can be replaced; of each kind, the longest delay first.
        self._delayed: dict[ClientDelay, dict[HTTPConnection, None]] = {delay: {} for delay in ClientDelay}

    @property
    def is_full(self) -> bool:
        """Return whether there are more connections than slots, and none can be replaced."""
        return len(self._open) > self._most

    def add(self, connection: HTTPConnection) -> None:
        """Add a connection; drop a delayed one if there is no free slot."""
        self._open.add(connection)
        if self.is_full:
            for found in self._delayed.values():
                if found:
                    next(iter(found)).drop()
                    return

    def note(self, connection: HTTPConnection, delay: ClientDelay | None) -> None:
        """Record how the client of a connection keeps the server waiting; None if it does not."""
        for each, found in self._delayed.items():
            if each is delay:
                found.setdefault(connection)
            else:
                found.pop(connection, None)

    def remove(self, connection: HTTPConnection) -> None:
        """Free the slot of a connection. Idempotent."""
        self.note(connection, None)
        self._open.discard(connection)


class UvicornConfig(uvicorn.Config):
    """Configuration of uvicorn, with the slots and headers for connections."""

    def __init__(
        self, app: Any, *, slots: ConnectionSlots, headers: Iterable[tuple[bytes, bytes]], **settings: Any
    ) -> None:
        super().__init__(app, http=HTTPConnection, **settings)
        self.slots = slots
        #: For responses that do not come from the application.
        self.own_headers = list(headers)


class HTTPConnection(H11Protocol):
    """Connection with deadlines."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(config, UvicornConfig)
        self._slots = config.slots
        self._own_headers = config.own_headers
        self._phase: ConnectionPhase | None = None
        #: When the phase started, and how many bytes of the body have arrived.
        self._phase_start = 0.0
        self._received = 0
        self._timer: asyncio.TimerHandle | None = None
        #: Set while writing is paused because the client does not read.
        self._stall: asyncio.TimerHandle | None = None
        #: How long responses have waited to be read, less the time earned by reading; and the last measurement: when,
        #: and how many bytes were unread.
        self._waited = 0.0
        self._noted = (0.0, 0)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._slots.add(self)
        self._enter(ConnectionPhase.IDLE)

    def data_received(self, data: bytes) -> None:
        if self._phase is ConnectionPhase.IDLE:
            self._enter(ConnectionPhase.HEADERS)
        self._received += len(data)
        super().data_received(data)
        self._update_phase()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._update_phase()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._update_phase()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._noted = (self.loop.time(), self.transport.get_write_buffer_size())
        self._await_reader()
        self._note_delay()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._count_wait()
        _cancel(self._stall)
        self._stall = None
        self._note_delay()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        _cancel(self._timer)
        _cancel(self._stall)
        self._phase = None
        self._slots.remove(self)

    def drop(self) -> None:
        """Close at once, without sending pending data."""
        self._phase = None
        self._slots.remove(self)
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse malformed HTTP, or headers that are too large."""
        most = self.config.h11_max_incomplete_event_size
        if most is not None and len(self.conn.trailing_data[0]) > most:
            self._refuse(431, "The headers of the request are too large.\n")
        else:
            self._refuse(400, msg)

    def _refuse(self, status: int, message: str) -> None:
        headers = [
            *self._own_headers,
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"connection", b"close"),
        ]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status]),
            h11.Data(data=message.encode()),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _update_phase(self) -> None:
        """Enter the phase that the exchange has reached."""
        theirs = self.conn.their_state
        if self._phase is None:
            return
        if self.transport.is_closing():
            self._enter(ConnectionPhase.CLOSING)
        elif theirs is h11.SEND_BODY:
            self._enter(ConnectionPhase.ANSWERED if self.conn.our_state is h11.DONE else ConnectionPhase.BODY)
        elif theirs is not h11.IDLE:
            self._enter(ConnectionPhase.WHOLE)
        elif self._phase is not ConnectionPhase.HEADERS:
            # A pipelined request may have arrived in part.
            self._enter(ConnectionPhase.HEADERS if self.conn.trailing_data[0] else ConnectionPhase.IDLE)

    def _enter(self, phase: ConnectionPhase) -> None:
        if phase is self._phase:
            return
        self._phase = phase
        self._phase_start = self.loop.time()
        self._received = len(self.cycle.body) if phase is ConnectionPhase.BODY else 0
        self._note_delay()
        _cancel(self._timer)
        deadlines = self._slots.deadlines
        seconds = {
            ConnectionPhase.IDLE: deadlines.first_byte,
            ConnectionPhase.HEADERS: deadlines.headers,
            ConnectionPhase.BODY: deadlines.body,
            ConnectionPhase.ANSWERED: deadlines.first_byte,
            ConnectionPhase.CLOSING: deadlines.answer,
        }.get(phase)
        self._timer = None if seconds is None else self._after(seconds, self._on_deadline)

    def _note_delay(self) -> None:
        if self._phase is None:
            return
        if self._stall is not None:
            self._slots.note(self, ClientDelay.ANSWER)
        elif self._phase is ConnectionPhase.BODY:
            self._slots.note(self, ClientDelay.BODY)
        else:
            self._slots.note(self, None if self._phase is ConnectionPhase.WHOLE else ClientDelay.REQUEST)

    def _await_reader(self) -> None:
        """Drop the connection when its responses have waited too long to be read."""
        left = self._slots.deadlines.answer - self._waited
        if left > 0:
            self._stall = self._after(left, self._check_reader)
        else:
            self.drop()

    def _check_reader(self) -> None:
        self._count_wait()
        self._await_reader()

    def _count_wait(self) -> None:
        """Add the time since the last measurement, in which nothing was written."""
        since, unread = self._noted
        self._noted = now, left = (self.loop.time(), self.transport.get_write_buffer_size())
        self._waited += now - since - (unread - left) / self._slots.deadlines.rate

    def _on_deadline(self) -> None:
        """Handle the deadline of the phase."""
        if self._stall is not None and self._phase in (ConnectionPhase.IDLE, ConnectionPhase.CLOSING):
            # The client is still reading the response, which has its own deadline.
            self._timer = self._after(self._slots.deadlines.first_byte, self._on_deadline)
            return
        if self._phase is ConnectionPhase.BODY:
            left = self._body_deadline() - self.loop.time()
            if left > 0:
                self._timer = self._after(left, self._on_deadline)
                return
        if self._phase is ConnectionPhase.HEADERS:
            self._refuse(408, "The headers of the request took too long.\n")
            self._update_phase()
        else:
            self.drop()

    def _body_deadline(self) -> float:
        deadlines = self._slots.deadlines
        if self.flow.read_paused:
            # The application does not read.
            return self.loop.time() + deadlines.body
        return self._phase_start + deadlines.body + self._received / deadlines.rate

    def _after(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, call)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
