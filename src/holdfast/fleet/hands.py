"""What a worker executes runs with: threads for plain workflows, as many as are at work at once, and an event loop in a
thread of its own for asynchronous ones.

Invariant: what is handed in is executed, once; or `NoThread` is raised, and it never will be.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any


class NoThread(Exception):
    """The system gives no further thread."""


class Hands:
    """Threads, and an event loop."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        #: Threads at work, with those that are stuck in something that was given up.
        self._busy = 0
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def do(self, work: Callable[[], None]) -> None:
        """Execute something, which raises nothing, in a thread."""
        with self._lock:
            self._busy += 1
            try:
                if self._busy > len(self._threads):
                    self._threads.append(_started(self._work_on, "holdfast worker's"))
            except NoThread:
                self._busy -= 1
                raise
        self._work.put(work)

    def spawn(self, coroutines: Sequence[Coroutine[Any, Any, None]]) -> None:
        """Execute coroutines, which raise nothing, in the event loop."""
        try:
            loop = self._event_loop()
        except NoThread:
            for coroutine in coroutines:
                coroutine.close()
            raise
        loop.call_soon_threadsafe(self._spawn, loop, coroutines)

    def close(self) -> None:
        """Let threads and event loop end. Nothing is under way but what was given up."""
        for _ in self._threads:
            self._work.put(None)
        if not self._busy:
            for thread in self._threads:
                thread.join()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def _work_on(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            with self._lock:
                self._busy -= 1

    def _spawn(
        self, loop: asyncio.AbstractEventLoop, coroutines: Sequence[Coroutine[Any, Any, None]]
    ) -> None:
        for coroutine in coroutines:
            task = loop.create_task(coroutine)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            loop = asyncio.new_event_loop()

            def work() -> None:
                asyncio.set_event_loop(loop)
                loop.run_forever()
                loop.run_until_complete(loop.shutdown_default_executor())
                loop.close()

            try:
                _started(work, "holdfast worker's loop")
            except NoThread:
                loop.close()
                raise
            self._loop = loop
        return self._loop


def _started(work: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise NoThread(str(error)) from error
    return thread
