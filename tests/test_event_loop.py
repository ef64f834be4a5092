"""The running loop and task agree with asyncio: after a loop has ended, in other threads, after a fork."""

from __future__ import annotations

import asyncio
import os
import threading
import warnings
from typing import Any

import pytest

from holdfast.event_loop import in_event_loop, running_loop, running_task


async def _seen() -> tuple[Any, Any]:
    return running_loop(), running_task()


def test_running_task_is_that_of_asyncio_in_each_loop() -> None:
    async def main() -> None:
        for _ in range(2):
            assert (running_loop(), running_task()) == (asyncio.get_running_loop(), asyncio.current_task())
        assert await asyncio.create_task(_seen()) != (running_loop(), running_task())
        assert await asyncio.to_thread(lambda: (running_loop(), running_task())) == (None, None)
        in_callback: asyncio.Future[tuple[Any, Any]] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(lambda: in_callback.set_result((running_loop(), running_task())))
        assert await in_callback == (asyncio.get_running_loop(), None)

    for _ in range(2):
        asyncio.run(main())
        assert (running_loop(), running_task(), in_event_loop()) == (None, None, False)


def test_thread_without_a_loop_does_not_see_that_of_another() -> None:
    inside, over = threading.Event(), threading.Event()

    async def main() -> None:
        assert running_task() is not None
        inside.set()
        over.wait(60)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    assert inside.wait(60)
    assert (running_loop(), running_task()) == (None, None)
    over.set()
    thread.join()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_forked_process_has_no_running_loop() -> None:
    async def main() -> int:
        assert running_task() is not None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if not child:
            os._exit(0 if (running_loop(), running_task()) == (None, None) else 1)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    assert asyncio.run(main()) == 0
