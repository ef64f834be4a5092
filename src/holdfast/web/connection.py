"""A connection: deadlines for each part of a request, and room for new clients when all places are taken.

uvicorn waits for ever for the rest of a request, and for a client to read its answer. Here each phase has its deadline:
the first byte, the headers, the body, and reading the answer. When all places are taken, a new connection takes the
place of one whose client keeps the server waiting.

Invariant: a client that does not send a whole request, or does not read its answer, keeps no other client out.
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

    #: From a new connection, or from an answer, to the first byte of a request.
    first_byte: float = 10.0
    headers: float = 10.0
    body: float = 30.0
    #: In which answers wait to be read, all those of a connection together.
    answer: float = 60.0
    #: Bytes that extend the deadline of a body or an answer by a second when they are received or read.
    rate: float = 16 << 10


class Phase(Enum):
    """How far a connection has come with a request."""

    IDLE = "idle"
    HEADERS = "headers"
    BODY = "body"
    #: The request is here, and is being answered.
    WHOLE = "whole"
    #: It was answered before its body had come, which is read to its end for a while: the client may not look at the
    #: answer earlier.
    ANSWERED = "answered"
    CLOSING = "closing"


class Delay(Enum):
    """How a client keeps the server waiting, in the order in which connections lose their places to new ones."""

    #: It has not sent a request, or its headers.
    REQUEST = "request"
    #: It does not read its answer.
    ANSWER = "answer"
    #: It has not sent the whole body.
    BODY = "body"


class Room:
    """The places for connections, and the connections that can lose theirs to a new one."""

    def __init__(self, most: int, deadlines: Deadlines) -> None:
        self.deadlines = deadlines
        self._most = most
        self._open: set[Connection] = set()
        #: Connections that can lose their places; of each kind, the longest delay first.
        self._delayed: dict[Delay, dict[Connection, None]] = {delay: {} for delay in Delay}

    @property
    def is_full(self) -> bool:
        """Whether there are more connections than places, and none that could be closed."""
        return len(self._open) > self._most

    def add(self, connection: Connection) -> None:
        """Give a new connection a place, that of a delayed one if there is none left."""
        self._open.add(connection)
        if self.is_full:
            for found in self._delayed.values():
                if found:
                    next(iter(found)).drop()
                    return

    def note(self, connection: Connection, delay: Delay | None) -> None:
        """Note how the client of a connection keeps the server waiting; None if it does not."""
        for each, found in self._delayed.items():
            if each is delay:
                found.setdefault(connection)
            else:
                found.pop(connection, None)

    def remove(self, connection: Connection) -> None:
        """Free the place of a connection; harmless when done twice."""
        self.note(connection, None)
        self._open.discard(connection)


class Config(uvicorn.Config):
    """The settings of uvicorn, and ours."""

    def __init__(
        self, app: Any, *, room: Room, headers: Iterable[tuple[bytes, bytes]], **settings: Any
    ) -> None:
        super().__init__(app, http=Connection, **settings)
        self.room = room
        #: Those of answers that are given before the application is asked.
        self.own_headers = list(headers)


class Connection(H11Protocol):
    """One connection of a client."""

    def __init__(
        self,
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        assert isinstance(config, Config)
        self._room = config.room
        self._own_headers = config.own_headers
        self._phase: Phase | None = None
        #: When the phase began, and how many bytes of a body have come.
        self._began = 0.0
        self._received = 0
        self._timer: asyncio.TimerHandle | None = None
        #: Set while so much of an answer is unread that no more of it is written.
        self._stall: asyncio.TimerHandle | None = None
        #: How long answers have waited to be read, less the time that reading bought; and when that was noted last,
        #: with how many bytes were unread then.
        self._waited = 0.0
        self._noted = (0.0, 0)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._room.add(self)
        self._enter(Phase.IDLE)

    def data_received(self, data: bytes) -> None:
        if self._phase is Phase.IDLE:
            self._enter(Phase.HEADERS)
        self._received += len(data)
        super().data_received(data)
        self._follow()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._follow()

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._follow()

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
        self._room.remove(self)

    def drop(self) -> None:
        """Close at once, whatever has not been sent yet."""
        self._phase = None
        self._room.remove(self)
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP, or headers that do not end."""
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

    def _follow(self) -> None:
        """Enter the phase that the exchange has reached."""
        theirs = self.conn.their_state
        if self._phase is None:
            return
        if self.transport.is_closing():
            self._enter(Phase.CLOSING)
        elif theirs is h11.SEND_BODY:
            self._enter(Phase.ANSWERED if self.conn.our_state is h11.DONE else Phase.BODY)
        elif theirs is not h11.IDLE:
            self._enter(Phase.WHOLE)
        elif self._phase is not Phase.HEADERS:
            # A client may have sent some of its next request before this one was answered.
            self._enter(Phase.HEADERS if self.conn.trailing_data[0] else Phase.IDLE)

    def _enter(self, phase: Phase) -> None:
        if phase is self._phase:
            return
        self._phase = phase
        self._began = self.loop.time()
        self._received = len(self.cycle.body) if phase is Phase.BODY else 0
        self._note_delay()
        _cancel(self._timer)
        deadlines = self._room.deadlines
        seconds = {
            Phase.IDLE: deadlines.first_byte,
            Phase.HEADERS: deadlines.headers,
            Phase.BODY: deadlines.body,
            Phase.ANSWERED: deadlines.first_byte,
            Phase.CLOSING: deadlines.answer,
        }.get(phase)
        self._timer = None if seconds is None else self._after(seconds, self._late)

    def _note_delay(self) -> None:
        if self._phase is None:
            return
        if self._stall is not None:
            self._room.note(self, Delay.ANSWER)
        elif self._phase is Phase.BODY:
            self._room.note(self, Delay.BODY)
        else:
            self._room.note(self, None if self._phase is Phase.WHOLE else Delay.REQUEST)

    def _await_reader(self) -> None:
        """Drop the connection when its answers have waited to be read for too long."""
        left = self._room.deadlines.answer - self._waited
        if left > 0:
            self._stall = self._after(left, self._look_at_reader)
        else:
            self.drop()

    def _look_at_reader(self) -> None:
        self._count_wait()
        self._await_reader()

    def _count_wait(self) -> None:
        """Count the time since the last count, in which nothing was written."""
        since, unread = self._noted
        self._noted = now, left = (self.loop.time(), self.transport.get_write_buffer_size())
        self._waited += now - since - (unread - left) / self._room.deadlines.rate

    def _late(self) -> None:
        """The deadline of the phase has come."""
        if self._stall is not None and self._phase in (Phase.IDLE, Phase.CLOSING):
            # The answer is still being read, which has a deadline of its own.
            self._timer = self._after(self._room.deadlines.first_byte, self._late)
            return
        if self._phase is Phase.BODY:
            left = self._body_deadline() - self.loop.time()
            if left > 0:
                self._timer = self._after(left, self._late)
                return
        if self._phase is Phase.HEADERS:
            self._refuse(408, "The headers of the request took too long.\n")
            self._follow()
        else:
            self.drop()

    def _body_deadline(self) -> float:
        deadlines = self._room.deadlines
        if self.flow.read_paused:
            # It is the application that does not read.
            return self.loop.time() + deadlines.body
        return self._began + deadlines.body + self._received / deadlines.rate

    def _after(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return self.loop.call_later(seconds, call)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
