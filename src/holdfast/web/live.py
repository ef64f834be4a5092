"""The live stream of events: one reader of the journal for many clients.

One subscription reads the journal. The newest entries are cached, in the form that is sent, in a ring of bounded size;
a client is only a cursor. A slow client falls out of the ring and reads from the store, at no cost to the others.
Events that the journal does not store (a started step, progress) reach the clients that are connected at that moment.

Invariant: a client gets every entry after its cursor once, in order, however slow it is.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import translate
from typing import Any, NamedTuple

from holdfast.engine import Holdfast
from holdfast.errors import HoldfastError, InvalidCall, NotFound
from holdfast.model.public import Event
from holdfast.operator_view.records import event_view
from holdfast.operator_view.text import dumps
from holdfast.web.errors import log
from holdfast.web.request import RunInThread
from holdfast.workflow.subscriptions import Subscription

#: Entries and bytes in the ring.
_RING = 4096
_RING_BYTES = 8 << 20
_PAGE = 32
#: Bytes of a chunk, unless a single entry has more.
_CHUNK = 32 << 10
#: Milliseconds after which a browser reconnects.
_RETRY = 1000
#: Characters of all patterns of a client.
_PATTERNS = 1000


class StreamEntry(NamedTuple):
    """Event in the form that is sent."""

    #: Number of the event in this process, including those that the journal does not store.
    place: int
    cursor: int
    run: str
    names: tuple[str, ...]
    text: bytes


class KindFilter:
    """Filter for kinds of events, by patterns such as `run.*`; without patterns, all match. Compiling is slow: create
    it in a thread, not in the event loop."""

    def __init__(self, patterns: Sequence[str]) -> None:
        if sum(map(len, patterns)) > _PATTERNS:
            raise InvalidCall(
                f"the patterns of kinds may have at most {_PATTERNS:,} characters together: request fewer kinds"
            )
        self._pattern = re.compile("|".join(map(translate, patterns))) if patterns else None

    def matches(self, names: Iterable[str]) -> bool:
        """Return whether one of these names matches."""
        return self._pattern is None or any(map(self._pattern.match, names))


class EventFilter(NamedTuple):
    """Filter for events, by kind and run."""

    kinds: KindFilter
    run: str | None = None

    def matches(self, entry: StreamEntry) -> bool:
        """Return whether an entry matches."""
        return self.run in (None, entry.run) and self.kinds.matches(entry.names)


class EventBroadcaster:
    """Reader of the journal for all clients."""

    def __init__(self, hf: Holdfast, run_in_thread: RunInThread, *, heartbeat: float = 15.0) -> None:
        self._hf = hf
        self._run_in_thread = run_in_thread
        self._heartbeat = heartbeat
        self._ring: deque[StreamEntry] = deque()
        self._bytes = 0
        self._next = 0
        #: All entries of the journal after `_floor` and up to `_cursor` are in the ring.
        self._floor = self._cursor = 0
        self._lock = threading.Lock()
        self._news = asyncio.Event()
        self._notified = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscription: Subscription | None = None
        self.closed = False

    def start(self) -> None:
        """Start to read. Must be called in the event loop that serves the clients."""
        self._loop = asyncio.get_running_loop()
        # No event may arrive before the start of the ring is known.
        with self._lock:
            self._subscription = self._hf.subscribe(self._add)
            self._floor = self._cursor = self._subscription.cursor

    def end_streams(self) -> None:
        """End all streams. May be called from a signal handler, and from any thread."""
        self.closed = True
        self._wake()

    def stop(self) -> None:
        """Stop reading and end all streams."""
        self.end_streams()
        if self._subscription is not None:
            self._subscription.close()

    async def follow(self, event_filter: EventFilter, after: int | None) -> AsyncIterator[bytes]:
        """Yield the stream of server-sent events for one client, starting after a cursor, or now."""
        cursor = self._cursor if after is None else after
        since = self._next
        yield f"retry: {_RETRY}\n\n".encode()
        if cursor > self._cursor and not await self._is_reached(cursor):
            # The cursor is from another store, or from this one before it was restored from a copy.
            cursor = self._cursor
            yield _named_event("reset", {"cursor": cursor})
        yield f"id: {cursor}\n".encode() + _named_event("ready", {"cursor": cursor})
        while not self.closed:
            news = self._news
            if cursor < self._floor:
                try:
                    found, cursor = await self._from_store(event_filter, cursor)
                except HoldfastError as error:
                    # The client reconnects and continues from its cursor.
                    log.warning("ending a stream: the journal cannot be read: %s", error)
                    return
            else:
                found, cursor, since = self._from_ring(event_filter, cursor, since)
            for chunk in _chunks(found):
                yield chunk
            if cursor >= self._cursor and since >= self._next and not self.closed:
                try:
                    async with asyncio.timeout(self._heartbeat):
                        await news.wait()
                except TimeoutError:
                    yield b": keep-alive\n\n"

    def _from_ring(
        self, event_filter: EventFilter, cursor: int, since: int
    ) -> tuple[list[StreamEntry], int, int]:
        """Return the matching entries in the ring after a cursor, and the unstored ones since a place: at most a
        chunk, so that a stalled client holds no more memory."""
        with self._lock:
            if cursor < self._floor:
                # The client has fallen out of the ring.
                return [], cursor, self._next
            fresh = self._fresh(cursor, since)
            found: list[StreamEntry] = []
            size = 0
            while fresh:
                entry = fresh.pop()
                cursor, since = max(cursor, entry.cursor), max(since, entry.place + 1)
                if event_filter.matches(entry):
                    found.append(entry)
                    size += len(entry.text)
                if size >= _CHUNK:
                    return found, cursor, since
            return found, max(cursor, self._cursor), self._next

    def _fresh(self, cursor: int, since: int) -> list[StreamEntry]:
        """Return the entries in the ring after a cursor or since a place, newest first."""
        fresh: list[StreamEntry] = []
        for entry in reversed(self._ring):
            if entry.cursor > cursor or (entry.cursor == 0 and entry.place >= since):
                fresh.append(entry)
            elif entry.cursor:
                break
        return fresh

    async def _from_store(self, event_filter: EventFilter, cursor: int) -> tuple[list[StreamEntry], int]:
        # The store has everything that the reader has seen.
        seen = self._cursor
        try:
            page = await self._run_in_thread(self._page, event_filter.run, cursor)
        except NotFound:
            return [], max(cursor, seen)
        entries = [_entry(0, event) for event in page]
        after = page[-1].cursor if page else max(cursor, seen)
        return [entry for entry in entries if event_filter.matches(entry)], after

    def _page(self, run: str | None, cursor: int) -> list[Event]:
        if run is None:
            return self._hf.events(after=cursor, limit=_PAGE)
        return self._hf.history(run).events(after=cursor, limit=_PAGE)

    async def _is_reached(self, cursor: int) -> bool:
        """Return whether the journal has reached a cursor that the reader has not."""
        with suppress(HoldfastError):
            while page := await self._run_in_thread(self._page, None, self._cursor):
                if page[-1].cursor >= cursor:
                    return True
                if len(page) < _PAGE:
                    return False
        return False

    def _add(self, event: Event) -> None:
        """Add an event to the ring. Called by the subscription, in its thread."""
        with self._lock:
            entry = _entry(self._next, event)
            self._next += 1
            self._ring.append(entry)
            self._bytes += len(entry.text)
            self._cursor = max(self._cursor, entry.cursor)
            while len(self._ring) > _RING or (self._bytes > _RING_BYTES and len(self._ring) > 1):
                gone = self._ring.popleft()
                self._bytes -= len(gone.text)
                self._floor = max(self._floor, gone.cursor)
        self._wake()

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not self._notified:
            self._notified = True
            # The loop may be closed.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._notify)

    def _notify(self) -> None:
        self._notified = False
        news, self._news = self._news, asyncio.Event()
        news.set()


def _entry(index: int, event: Event) -> StreamEntry:
    text = f"data: {dumps(event_view(event))}\n\n"
    if event.cursor:
        text = f"id: {event.cursor}\n{text}"
    names = (event.kind, "version.saved") if event.saved else (event.kind,)
    return StreamEntry(index, event.cursor, event.run, names, text.encode())


def _named_event(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {dumps(data)}\n\n".encode()


def _chunks(entries: list[StreamEntry]) -> Iterator[bytes]:
    """Yield the entries in chunks."""
    held: list[bytes] = []
    size = 0
    for entry in entries:
        held.append(entry.text)
        size += len(entry.text)
        if size >= _CHUNK:
            yield b"".join(held)
            held, size = [], 0
    if held:
        yield b"".join(held)
