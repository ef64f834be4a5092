"""Two short drivers for the step machine: one that blocks, one for asyncio.

The machine is made of generators that yield what they need: call this, write that, wait so long. A request knows
how to be carried out both ways; nothing else is written twice.

Invariant: a generator that was begun is run to its end, or is told (`throw`) what went wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Generator
from contextvars import copy_context
from typing import Any, Protocol, TypeVar

from holdfast.errors import StepTimeout
from holdfast.model.records import RunRecord
from holdfast.runtime.committer import Committer
from holdfast.runtime.scope import Frame, current, running_task
from holdfast.store.base import Append

T = TypeVar("T")

#: Seconds for which a task that was cancelled may put things in order before it is given up.
_GRACE = 1.0


class Request(Protocol):
    """What the machine asks of its driver."""

    def block(self) -> Any:
        """Carry it out in this thread."""

    def wait(self) -> Awaitable[Any]:
        """Carry it out without blocking the event loop."""


Flow = Generator[Request, Any, T]


def drive(flow: Flow[T]) -> T:
    """Run a flow in this thread."""
    try:
        request = next(flow)
        while True:
            try:
                value = request.block()
            except BaseException as error:
                request = flow.throw(error)
            else:
                request = flow.send(value)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def adrive(flow: Flow[T]) -> T:
    """Run a flow in the event loop."""
    try:
        request = next(flow)
        while True:
            try:
                value = await request.wait()
            except BaseException as error:
                request = flow.throw(error)
            else:
                request = flow.send(value)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


class Write:
    """Append to the store; gives the run's record."""

    __slots__ = ("change", "committer")

    def __init__(self, committer: Committer, change: Append) -> None:
        self.committer = committer
        self.change = change

    def block(self) -> RunRecord:
        return self.committer.store.append(self.change)

    def wait(self) -> Awaitable[RunRecord]:
        return self.committer.append(self.change)


class Do:
    """Something that may block for a moment, such as a read."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work

    def block(self) -> Any:
        return self.work()

    def wait(self) -> Awaitable[Any]:
        import asyncio

        return asyncio.to_thread(self.work)


class Take:
    """A lock, to be released by whoever asked."""

    __slots__ = ("lock",)

    def __init__(self, lock: threading.Lock) -> None:
        self.lock = lock

    def block(self) -> None:
        self.lock.acquire()

    async def wait(self) -> None:
        import asyncio

        pause = 0.0
        while not self.lock.acquire(blocking=False):
            await asyncio.sleep(pause)
            pause = min(0.01, pause + 0.0005)


class Rest:
    """A pause that ends early when somebody wants the run to stop; tells whether it did."""

    __slots__ = ("check", "seconds", "stop")

    def __init__(self, seconds: float, stop: threading.Event, check: Callable[[], object]) -> None:
        self.seconds = seconds
        self.stop = stop
        #: Looks into the store now and then, where another process may have left word.
        self.check = check

    def block(self) -> bool:
        left = self.seconds
        while left > 0 and not self.stop.wait(min(left, 1.0)):
            left -= 1.0
            if left > 0:
                self.check()
        return self.stop.is_set()

    async def wait(self) -> bool:
        import asyncio

        loop = asyncio.get_running_loop()
        until = loop.time() + self.seconds
        looked = loop.time()
        while not self.stop.is_set() and (left := until - loop.time()) > 0:
            await asyncio.sleep(min(left, 0.1))
            if loop.time() - looked > 1.0:
                looked = loop.time()
                await asyncio.to_thread(self.check)
        return self.stop.is_set()


class Call:
    """The user's function, within a frame, perhaps for so long at most."""

    __slots__ = ("args", "frame", "function", "kwargs", "timeout")

    def __init__(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        frame: Frame,
        timeout: float | None = None,
    ) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.frame = frame
        self.timeout = timeout

    def block(self) -> Any:
        token = current.set(self.frame)
        try:
            if self.timeout is None:
                return self.function(*self.args, **self.kwargs)
            return self._in_time(self.timeout)
        finally:
            current.reset(token)

    async def wait(self) -> Any:
        token = current.set(self.frame)
        try:
            if self.timeout is None:
                self.frame.home = running_task()
                return await self.function(*self.args, **self.kwargs)
            return await self._await_in_time(self.timeout)
        finally:
            current.reset(token)

    def _in_time(self, seconds: float) -> Any:
        """In a thread of its own, which is left to itself if it takes too long."""
        outcome: list[tuple[bool, Any]] = []
        done = threading.Event()
        context = copy_context()

        def work() -> None:
            try:
                outcome.append((True, context.run(self.function, *self.args, **self.kwargs)))
            except BaseException as error:
                outcome.append((False, error))
            finally:
                done.set()

        threading.Thread(target=work, name=f"holdfast {self.frame.address}", daemon=True).start()
        if not done.wait(seconds):
            self.frame.over = True
            raise self._late(seconds)
        fine, value = outcome[0]
        if fine:
            return value
        raise value

    async def _await_in_time(self, seconds: float) -> Any:
        import asyncio

        task = asyncio.ensure_future(self.function(*self.args, **self.kwargs))
        self.frame.home = task
        try:
            await asyncio.wait({task}, timeout=seconds)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            return task.result()
        self.frame.over = True
        task.cancel()
        await asyncio.wait({task}, timeout=_GRACE)
        if task.done() and not task.cancelled():
            task.exception()
        raise self._late(seconds)

    def _late(self, seconds: float) -> StepTimeout:
        return StepTimeout(
            f"step {self.frame.address!r} took longer than {seconds:g} s and was given up; what it changed is not kept",
            address=self.frame.address,
            timeout=seconds,
        )
