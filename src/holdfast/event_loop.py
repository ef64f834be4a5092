"""The event loop and the task that call the code that asks.

Before Python 3.12, each request for the running loop is a system call. So each thread remembers its loop: while a task
of that loop runs, the loop runs.

Invariant: the answers are those of asyncio, which is never imported here.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any


class _Known(threading.local):
    """The loop that was running when this thread asked last."""

    loop: Any = None
    current_task: Any = None


_known = _Known()


def running_task() -> Any:
    """Return the asyncio task that is running; None where there is none."""
    loop = _known.loop
    if loop is not None:
        task = _known.current_task(loop)
        if task is not None:
            return task
    loop = _look()
    return None if loop is None else _known.current_task(loop)


def running_loop() -> Any:
    """Return the event loop that calls this code; None where there is none."""
    loop = _known.loop
    if loop is not None and _known.current_task(loop) is not None:
        return loop
    return _look()


def in_event_loop() -> bool:
    """Return whether this code is called by an event loop."""
    return running_loop() is not None


def _look() -> Any:
    asyncio = sys.modules.get("asyncio")
    loop = None if asyncio is None else asyncio._get_running_loop()
    _known.loop = loop
    if asyncio is not None:
        _known.current_task = asyncio.current_task
    return loop


def _forget() -> None:
    """In a child after a fork: the loop runs in the parent."""
    _known.loop = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
