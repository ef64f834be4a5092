"""The process's stdin and stdout, for the protocol alone.

Invariant: once they are taken, what anybody else prints goes to stderr, and what anybody else reads is empty. Nothing
that waits here keeps the process from ending: what blocks does so in threads that end with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from mcp.server.stdio import stdio_server
from mcp.types import INVALID_REQUEST
from pydantic_core import from_json

from holdfast.operating_system import call_on_signal

if TYPE_CHECKING:
    import anyio
    from mcp.server.lowlevel import Server

_PIECE = 1 << 16

T = TypeVar("T")


def serve(server: Server[Any]) -> None:
    """Speak for a server on stdin and stdout, until stdin ends, whoever reads has gone, or SIGTERM comes. Ctrl-C is a
    KeyboardInterrupt."""
    incoming, outgoing = _take()
    # Whoever started this has gone: there is nobody left to tell.
    with suppress(BrokenPipeError):
        try:
            asyncio.run(_serve(server, incoming, outgoing))
        except BaseExceptionGroup as error:
            others = error.split(BrokenPipeError)[1]
            if others is not None:
                raise others from None


async def apart(function: Callable[[], T]) -> T:
    """Call a function in a thread of its own, which does not keep the process from ending."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(settled: Callable[[Any], None], value: Any) -> None:
        # Nobody waits for it any more if the call was cancelled.
        if not future.done():
            settled(value)

    def work() -> None:
        settled: Callable[[Any], None]
        try:
            value: Any = function()
            settled = future.set_result
        except BaseException as error:
            value, settled = error, future.set_exception
        with suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(settle, settled, value)

    threading.Thread(target=work, name="holdfast-mcp", daemon=True).start()
    return await future


async def _serve(server: Server[Any], incoming: int, outgoing: int) -> None:
    task = asyncio.current_task()
    assert task is not None
    ended = False

    def end() -> None:
        nonlocal ended
        ended = True
        task.cancel()

    call_on_signal(asyncio.get_running_loop(), signal.SIGTERM, end)
    texts = _Texts(outgoing)
    lines = _Lines(incoming, texts)
    try:
        # All that it does with them is what these two can do.
        streams = stdio_server(cast("anyio.AsyncFile[str]", lines), cast("anyio.AsyncFile[str]", texts))
        async with streams as (read, write):
            await server.run(read, write, server.create_initialization_options())
    except asyncio.CancelledError:
        if not ended:
            raise


def _take() -> tuple[int, int]:
    """The two as descriptors that nobody else knows. They are never given back: a thread that is left behind may print
    until the very end."""
    sys.stdout.flush()
    incoming, outgoing = os.dup(sys.stdin.fileno()), os.dup(sys.stdout.fileno())
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, sys.stdin.fileno())
    os.close(nothing)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    sys.stdout = sys.stderr
    return incoming, outgoing


class _Lines:
    """What comes in, line by line."""

    def __init__(self, descriptor: int, answers: _Texts) -> None:
        self._descriptor = descriptor
        self._answers = answers
        # A client that sends faster than it is answered waits.
        self._queue: asyncio.Queue[str | None] = asyncio.Queue(64)
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._read, name="holdfast-mcp-stdin", daemon=True).start()

    async def __aiter__(self) -> AsyncIterator[str]:
        while (line := await self._queue.get()) is not None:
            refusal = _refusal(line)
            if refusal is None:
                yield line
            else:
                await self._answers.write(refusal)

    def _read(self) -> None:
        # Not by a buffered file, whose lock would be held while the interpreter ends.
        pieces: list[bytes] = []
        with suppress(RuntimeError):  # the loop is closed
            while piece := self._piece():
                *ends, rest = piece.split(b"\n")
                for end in ends:
                    self._hand_on(b"".join((*pieces, end)))
                    pieces = []
                pieces.append(rest)
            self._hand_on(b"".join(pieces))
            asyncio.run_coroutine_threadsafe(self._queue.put(None), self._loop)

    def _piece(self) -> bytes:
        try:
            return os.read(self._descriptor, _PIECE)
        except OSError:
            return b""

    def _hand_on(self, line: bytes) -> None:
        if line.strip():
            text = line.decode("utf-8", "replace")
            asyncio.run_coroutine_threadsafe(self._queue.put(text), self._loop).result()


def _refusal(line: str) -> str | None:
    """Return the answer to a request that the library cannot read, and would never answer: one with half of a
    surrogate pair in it, or that nests too deep. None for all else."""
    try:
        from_json(line)
    except ValueError as error:
        try:
            request = json.loads(line)
        except (ValueError, RecursionError):
            return None
        number = request.get("id") if isinstance(request, dict) else None
        if not isinstance(number, int | str):
            return None
        message = f"the request cannot be read (half of a surrogate pair, or nested too deep): {error}"
        why = {"code": INVALID_REQUEST, "message": message}
        # In ASCII, so that whatever its id holds can be sent.
        return json.dumps({"jsonrpc": "2.0", "id": number, "error": why}) + "\n"
    return None


class _Texts:
    """What goes out."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._turn = asyncio.Lock()

    async def write(self, text: str) -> None:
        rest = memoryview(text.encode())

        def write() -> None:
            nonlocal rest
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]

        async with self._turn:
            await apart(write)

    async def flush(self) -> None:
        """Nothing is held back."""
