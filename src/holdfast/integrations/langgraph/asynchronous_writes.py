"""The asynchronous puts of a saver that are under way, so that later reads of their threads wait for them.

After a run was cancelled, LangGraph lets its last puts continue.

Invariant: a read sees every put of its thread that was called before it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from holdfast.errors import InvalidCall
from holdfast.integrations.langgraph.layout import parse_config
from holdfast.off_loop import finish_call, start_call

#: Turns of an event loop, more than those between the end of a put and the call of the next.
_TURNS = 20
#: Puts, one after the other, that a read waits for.
_FOLLOWING = 6


class AsynchronousWrites:
    """The asynchronous puts that are under way, by thread. Safe to use from several event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: The event loop of each call.
        self._calls: dict[str | None, dict[Future[Any], Any]] = {}

    async def run(self, config: Any, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function that puts something."""
        thread = _thread_of(config)
        call = start_call(function, config, *args, **options)
        with self._lock:
            self._calls.setdefault(thread, {})[call] = asyncio.get_running_loop()
        try:
            return await finish_call(call)
        finally:
            with self._lock:
                calls = self._calls[thread]
                del calls[call]
                if not calls:
                    del self._calls[thread]

    async def ended(self, config: Any = None) -> None:
        """Wait for the puts of a thread that are under way; without a config, of all threads.

        LangGraph calls a put when the one before it has ended. So those that follow are waited for, too; only a few,
        because a running graph makes ever more.
        """
        for _ in range(1 if config is None else _FOLLOWING):
            calls = [asyncio.wrap_future(call) for call in self._under_way(config)]
            if not calls:
                return
            for call in calls:
                # The caller of the put gets its exception.
                call.add_done_callback(lambda each: each.cancelled() or each.exception())
            await asyncio.wait(calls)
            for _ in range(_TURNS):
                await asyncio.sleep(0)

    def _under_way(self, config: Any) -> list[Future[Any]]:
        loop = asyncio.get_running_loop()
        with self._lock:
            found = self._calls.values() if config is None else [self._calls.get(_thread_of(config), {})]
            # A put has ended when its task continues; that of a loop that was abandoned never does.
            return [
                call
                for calls in found
                for call, its_loop in calls.items()
                if its_loop is loop or not call.done()
            ]


def _thread_of(config: Any) -> str | None:
    """Return the thread that a config names; None if the method that gets it will refuse it."""
    try:
        return parse_config(config).thread
    except InvalidCall:
        return None
