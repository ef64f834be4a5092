"""Blocking calls on behalf of event loops, in threads of Holdfast's own.

Not in those of `asyncio.to_thread`, which belong to the application: if all of these waited for the result of a call,
the call would never get one of them.

Invariant: a call waits for a store, or for calls that were started before it; never for code of an event loop. So each
ends. It has ended when its caller continues, even if the caller was cancelled.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections.abc import Callable, Coroutine, Generator
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from holdfast.log import warn

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

P = ParamSpec("P")
T = TypeVar("T")

#: Threads at most. They wait most of the time: for the disk, or for the one that commits for all.
_THREADS = 16


class _Threads:
    """The threads of this process, which are started when they are needed."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start again without threads, in the child of a fork."""
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Call a function in one of the threads."""
        with self._lock:
            if self._pool is None:
                from concurrent.futures import ThreadPoolExecutor

                self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-call")
            return self._pool.submit(call)


_threads = _Threads()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.reset)


def start_call(function: Callable[..., T], *args: Any, **options: Any) -> Future[T]:
    """Call a function in another thread, with the caller's context variables. Calls start in the order of their
    submission."""
    return _threads.submit(partial(contextvars.copy_context().run, function, *args, **options))


async def run_off_loop(function: Callable[..., T], *args: Any, **options: Any) -> T:
    """Call a function in another thread, so that the event loop does not wait for the store."""
    return await finish_call(start_call(function, *args, **options))


async def finish_call(call: Future[T]) -> T:
    """Return the result of a call. If the caller is cancelled, the call is waited for: it may record what is done."""
    import asyncio

    # A future, not a task: a loop that ends would cancel a task, without waiting for the call it started.
    future = asyncio.wrap_future(call)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError:
                continue
        if not future.cancelled() and future.exception() is not None:
            # No caller will retrieve this exception.
            warn("a call failed after its task was cancelled: %s", future.exception())
        raise


class Completed(Coroutine[Any, Any, None]):
    """A coroutine that has nothing to do: callers may await it, or not."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()

    def send(self, value: Any, /) -> None:
        raise StopIteration

    def throw(self, *error: Any) -> None:
        raise error[0]

    def close(self) -> None:
        pass


def off_loop(method: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """Make a blocking method asynchronous, by `run_off_loop`."""

    @wraps(method)
    async def call(*args: P.args, **options: P.kwargs) -> T:
        return await run_off_loop(method, *args, **options)

    return call
