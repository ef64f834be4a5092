"""The running event loop and the current task.

Before Python 3.12, each request for the running loop is a system call. So each thread caches its loop: while a task of
that loop runs, the loop runs.

Invariant: the results are those of asyncio, which is never imported here.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any


class _LoopCache(threading.local):
    """The loop that was running at the last call in this thread."""

    loop: Any = None
    current_task: Any = None


_known = _LoopCache()


def running_task() -> Any:
    """Return the current asyncio task; None if there is none."""
    loop = _known.loop
    if loop is not None:
        task = _known.current_task(loop)
        if task is not None:
            return task
    loop = _find_loop()
    return None if loop is None else _known.current_task(loop)


def running_loop() -> Any:
    """Return the running event loop of this thread; None if there is none."""
    loop = _known.loop
    if loop is not None and _known.current_task(loop) is not None:
        return loop
    return _find_loop()


def in_event_loop() -> bool:
    """Return whether an event loop calls this code."""
    return running_loop() is not None


def _find_loop() -> Any:
    asyncio = sys.modules.get("asyncio")
    loop = None if asyncio is None else asyncio._get_running_loop()  # noqa: SLF001 - documented, does not raise
    _known.loop = loop
    if asyncio is not None:
        _known.current_task = asyncio.current_task
    return loop


def _clear_cache() -> None:
    """Clear the cache in a forked child: the loop runs in the parent."""
    _known.loop = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_clear_cache)
