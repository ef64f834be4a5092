"""What happens in the store, to many listeners as it happens.

One subscription reads the journal for all. The newest entries are kept, as they are sent, in a ring of bounded size;
a listener is no more than a cursor. One that is slow falls out of the ring and reads on from the store, and costs
nobody anything. What the journal does not keep (a step that begins, progress) is told to those who listen at that
moment.

Invariant: a listener gets every entry after its cursor once, in order, whatever it missed and however slow it is.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import translate
from typing import Any, NamedTuple

from holdfast.desk.records import event_record
from holdfast.desk.words import dumps
from holdfast.engine import Holdfast
from holdfast.errors import HoldfastError, InvalidCall, NotFound
from holdfast.model.public import Event
from holdfast.runtime.publish import Subscription
from holdfast.web.problems import log

#: Entries, and bytes, that are kept at hand.
_KEPT = 4096
_KEPT_BYTES = 8 << 20
_PAGE = 32
#: Bytes that are sent at once, unless a single entry has more.
_CHUNK = 32 << 10
#: Milliseconds after which a browser that lost the stream comes back.
_RETRY = 1000
#: Characters of all patterns of a listener.
_PATTERNS = 1000

#: Runs a blocking function elsewhere.
Elsewhere = Callable[..., Awaitable[Any]]


class Entry(NamedTuple):
    """An event, ready to be sent."""

    #: Counts all that were told, also what is not in the journal.
    place: int
    cursor: int
    run: str
    names: tuple[str, ...]
    text: bytes


class Kinds:
    """Kinds of events, by patterns such as `run.*`; without any, all. Compiling patterns takes a while: make it in a
    thread, not in the event loop."""

    def __init__(self, patterns: Sequence[str]) -> None:
        if sum(map(len, patterns)) > _PATTERNS:
            raise InvalidCall(
                f"the patterns of kinds have at most {_PATTERNS:,} characters together: ask for fewer kinds"
            )
        self._pattern = re.compile("|".join(map(translate, patterns))) if patterns else None

    def has(self, names: Iterable[str]) -> bool:
        """Is one of these names wanted?"""
        return self._pattern is None or any(map(self._pattern.match, names))


class Wanted(NamedTuple):
    """What a listener wants to hear of."""

    kinds: Kinds
    run: str | None = None

    def has(self, entry: Entry) -> bool:
        """Is it this?"""
        return self.run in (None, entry.run) and self.kinds.has(entry.names)


class Hub:
    """Reads the journal for all who listen."""

    def __init__(self, hf: Holdfast, elsewhere: Elsewhere, *, heartbeat: float = 15.0) -> None:
        self._hf = hf
        self._elsewhere = elsewhere
        self._heartbeat = heartbeat
        self._ring: deque[Entry] = deque()
        self._bytes = 0
        self._next = 0
        #: All entries of the journal after `_floor` and up to `_cursor` are in the ring.
        self._floor = self._cursor = 0
        self._lock = threading.Lock()
        self._news = asyncio.Event()
        self._told = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscription: Subscription | None = None
        self.closed = False

    def start(self) -> None:
        """Begin to read. Called in the event loop that listeners live in."""
        self._loop = asyncio.get_running_loop()
        # Nothing may come before it is known where the ring begins.
        with self._lock:
            self._subscription = self._hf.subscribe(self._came)
            self._floor = self._cursor = self._subscription.cursor

    def end_streams(self) -> None:
        """Send everybody away. Can be called from a signal's handler, and from any thread."""
        self.closed = True
        self._wake()

    def stop(self) -> None:
        """Read no more."""
        self.end_streams()
        if self._subscription is not None:
            self._subscription.close()

    async def follow(self, wanted: Wanted, after: int | None) -> AsyncIterator[bytes]:
        """What is sent to a listener, from a cursor on, else from now on."""
        cursor = self._cursor if after is None else after
        since = self._next
        yield f"retry: {_RETRY}\n\n".encode()
        if cursor > self._cursor and not await self._is_reached(cursor):
            # Of another store, or of this one before it was restored from a copy.
            cursor = self._cursor
            yield _named("reset", {"cursor": cursor})
        yield f"id: {cursor}\n".encode() + _named("ready", {"cursor": cursor})
        while not self.closed:
            news = self._news
            if cursor < self._floor:
                try:
                    found, cursor = await self._from_store(wanted, cursor)
                except HoldfastError as error:
                    # Whoever listened comes back, and goes on from where it was.
                    log.warning("a stream ends, since the journal cannot be read: %s", error)
                    return
            else:
                found, cursor, since = self._from_ring(wanted, cursor, since)
            for chunk in _chunks(found):
                yield chunk
            if cursor >= self._cursor and since >= self._next and not self.closed:
                try:
                    async with asyncio.timeout(self._heartbeat):
                        await news.wait()
                except TimeoutError:
                    yield b": still here\n\n"

    def _from_ring(self, wanted: Wanted, cursor: int, since: int) -> tuple[list[Entry], int, int]:
        """What is in the ring after a cursor, and of what passes, what came since a place; not more than is sent at
        once, so that a listener which stalls then holds on to no more."""
        with self._lock:
            if cursor < self._floor:
                # It was overtaken while nobody looked.
                return [], cursor, self._next
            fresh = self._fresh(cursor, since)
            found: list[Entry] = []
            size = 0
            while fresh:
                entry = fresh.pop()
                cursor, since = max(cursor, entry.cursor), max(since, entry.place + 1)
                if wanted.has(entry):
                    found.append(entry)
                    size += len(entry.text)
                if size >= _CHUNK:
                    return found, cursor, since
            return found, max(cursor, self._cursor), self._next

    def _fresh(self, cursor: int, since: int) -> list[Entry]:
        """What is in the ring after a cursor or since a place, newest first."""
        fresh: list[Entry] = []
        for entry in reversed(self._ring):
            if entry.cursor > cursor or (entry.cursor == 0 and entry.place >= since):
                fresh.append(entry)
            elif entry.cursor:
                break
        return fresh

    async def _from_store(self, wanted: Wanted, cursor: int) -> tuple[list[Entry], int]:
        # All that the reader has seen can be seen by whoever looks now.
        seen = self._cursor
        try:
            page = await self._elsewhere(self._page, wanted.run, cursor)
        except NotFound:
            return [], max(cursor, seen)
        entries = [_entry(0, event) for event in page]
        after = page[-1].cursor if page else max(cursor, seen)
        return [entry for entry in entries if wanted.has(entry)], after

    def _page(self, run: str | None, cursor: int) -> list[Event]:
        if run is None:
            return self._hf.events(after=cursor, limit=_PAGE)
        return self._hf.history(run).events(after=cursor, limit=_PAGE)

    async def _is_reached(self, cursor: int) -> bool:
        """Has the journal come to a cursor that the reader has not heard of yet?"""
        with suppress(HoldfastError):
            while page := await self._elsewhere(self._page, None, self._cursor):
                if page[-1].cursor >= cursor:
                    return True
                if len(page) < _PAGE:
                    return False
        return False

    def _came(self, event: Event) -> None:
        """Called by the subscription, in its thread."""
        with self._lock:
            entry = _entry(self._next, event)
            self._next += 1
            self._ring.append(entry)
            self._bytes += len(entry.text)
            self._cursor = max(self._cursor, entry.cursor)
            while len(self._ring) > _KEPT or (self._bytes > _KEPT_BYTES and len(self._ring) > 1):
                gone = self._ring.popleft()
                self._bytes -= len(gone.text)
                self._floor = max(self._floor, gone.cursor)
        self._wake()

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not self._told:
            self._told = True
            # The loop may have ended.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._told = False
        news, self._news = self._news, asyncio.Event()
        news.set()


def _entry(index: int, event: Event) -> Entry:
    text = f"data: {dumps(event_record(event))}\n\n"
    if event.cursor:
        text = f"id: {event.cursor}\n{text}"
    names = (event.kind, "version.saved") if event.saved else (event.kind,)
    return Entry(index, event.cursor, event.run, names, text.encode())


def _named(name: str, data: Any) -> bytes:
    return f"event: {name}\ndata: {dumps(data)}\n\n".encode()


def _chunks(entries: list[Entry]) -> Iterator[bytes]:
    """Entries, several at a time."""
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
