"""Two short drivers for the step machine: one that blocks, one for asyncio.

The machine is made of generators that yield what they need: call this, write that, wait so long. A request knows
how to be carried out both ways; nothing else is written twice.

Invariant: a generator that was begun is run to its end, or is told (`throw`) what went wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Generator
from contextvars import copy_context
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, TypeVar

from holdfast.errors import StepTimeout
from holdfast.event_loop import running_task
from holdfast.runtime.boundary import Halt
from holdfast.runtime.committer import Committer, Done, Pending
from holdfast.runtime.scope import Frame, current, number_tasks
from holdfast.runtime.turn import Turn
from holdfast.store.base import Append
from holdfast.store.interrupts import Flag

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

#: Seconds for which a task that was cancelled may put things in order before it is given up.
_GRACE = 1.0


class Request(Protocol):
    """What the machine asks of its driver."""

    #: Must it be finished even if the task is cancelled?
    whole: bool

    def block(self) -> Any:
        """Carry it out in this thread."""

    def wait(self) -> Awaitable[Any]:
        """Carry it out without blocking the event loop. Called again if the task was cancelled meanwhile."""


Flow = Generator[Request, Any, T]


class Carried(Exception):
    """Carries an error of user code that Python gives another meaning in generators: a StopIteration that leaves one
    becomes a RuntimeError, and a GeneratorExit that is thrown into one closes those that it delegates to."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def carry(error: BaseException) -> BaseException:
    """Return what to raise in a flow so that the code around the flow gets this error."""
    return Carried(error) if isinstance(error, StopIteration | GeneratorExit) else error


def error_of(error: BaseException) -> BaseException:
    """Return the error of user code that an error in a flow is, or carries."""
    return error.error if isinstance(error, Carried) else error


def is_interrupt(error: BaseException) -> bool:
    """Is this the end of the process or of the task, and not a failure of the code that it was raised in?

    A CancelledError is one if the running task was cancelled. Code that raises it by itself, or that awaited another
    task which was cancelled, fails like any other code."""
    if isinstance(error, Exception | GeneratorExit):
        return False
    if isinstance(error, BaseExceptionGroup):
        return any(map(is_interrupt, error.exceptions))
    if is_cancellation(error):
        task = running_task()
        return task is not None and task.cancelling() > 0
    return True


def drive(flow: Flow[T]) -> T:
    """Run a flow in this thread."""
    try:
        request = next(flow)
        while True:
            try:
                got = request.block()
            except BaseException as error:
                request = flow.throw(error)
            else:
                request = flow.send(got)
    except StopIteration as end:
        value: T = end.value
        return value
    except Carried as carried:
        ours = carried.error
    raise ours


async def adrive(flow: Flow[T]) -> T:
    """Run a flow in the event loop. What returned is recorded before a cancellation goes on its way."""
    cancelled: BaseException | None = None
    try:
        request = next(flow)
        while True:
            try:
                if cancelled is not None and not request.whole:
                    raise cancelled
                got = await request.wait()
            except BaseException as error:
                if request.whole and is_cancellation(error):
                    cancelled = error
                    continue
                request = flow.throw(error)
            else:
                request = flow.send(got)
    except StopIteration as end:
        if cancelled is not None:
            raise cancelled from None
        value: T = end.value
        return value
    except Carried as carried:
        ours = carried.error
    raise ours


def raise_unchanged(error: BaseException) -> NoReturn:
    """Raise an error that has its context: Python would replace it by the error that the caller is handling."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context


def _end_by_halt(group: BaseExceptionGroup) -> None:
    """Raise the `Halt` in a group, if there is one: `asyncio.TaskGroup` wraps what ends the execution in a task."""
    found: BaseException | None = group.subgroup(Halt)
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    if found is not None:
        raise found from None


def is_cancellation(error: BaseException) -> bool:
    """Is this the cancellation of an asyncio task?"""
    from asyncio import CancelledError

    return isinstance(error, CancelledError)


class Write:
    """Append to the store; gives what `done` makes of the run's record. `done` releases the turn, if one is held."""

    __slots__ = ("_pending", "change", "committer", "done", "turn")
    whole = True

    def __init__(self, committer: Committer, change: Append, done: Done, turn: Turn | None = None) -> None:
        self.turn = turn
        self.committer = committer
        self.change = change
        self.done = done
        self._pending: Pending | None = None

    def block(self) -> Any:
        return self.committer.write(self.change, self.done)

    def wait(self) -> Awaitable[Any]:
        if self._pending is None:
            self._pending = self.committer.hand_in(self.change, self.done)
            if self.turn is not None:
                self.turn.entrust()
            return self._pending.future
        return self.committer.ask_again(self._pending)


class Do:
    """Something that may block for a moment, such as a read."""

    __slots__ = ("work",)
    whole = False

    def __init__(self, work: Callable[[], Any]) -> None:
        self.work = work

    def block(self) -> Any:
        return self.work()

    def wait(self) -> Awaitable[Any]:
        import asyncio

        return asyncio.to_thread(self.work)


class Take:
    """The turn to write, to be handed on by whoever ends the write."""

    __slots__ = ("_asked", "holder", "turn")
    whole = True

    def __init__(self, turn: Turn, holder: Any) -> None:
        self.turn = turn
        self.holder = holder
        self._asked: asyncio.Future[None] | None = None

    def block(self) -> None:
        self.turn.take(self.holder)

    async def wait(self) -> None:
        # Cancelled in the moment in which it was given, the task has the turn already.
        if self._asked is None or self._asked.cancelled() or not self._asked.done():
            self._asked = self.turn.ask(self.holder)
        await self._asked
        while not self.turn.accept(self._asked):
            self._asked = self.turn.ask(self.holder, again=True)
            await self._asked


class Rest:
    """A pause that ends early when somebody wants the run to stop; tells whether it did."""

    __slots__ = ("check", "seconds", "stop")
    whole = False

    def __init__(self, seconds: float, stop: Flag, check: Callable[[], object]) -> None:
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
        # Others get their turn, also where there is nothing to wait for: one of them may be the one waited for.
        await asyncio.sleep(0)
        return self.stop.is_set()


class Call:
    """The user's function, within a frame, perhaps for so long at most."""

    __slots__ = ("args", "frame", "function", "kwargs", "timeout")
    whole = False

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
                self.frame.thread = threading.get_ident()
                return self.function(*self.args, **self.kwargs)
            return self._in_time(self.timeout)
        except (StopIteration, GeneratorExit) as error:
            raise Carried(error) from None
        except BaseExceptionGroup as group:
            _end_by_halt(group)
            raise
        finally:
            current.reset(token)

    async def wait(self) -> Any:
        token = current.set(self.frame)
        self.frame.thread = threading.get_ident()
        try:
            if self.timeout is None:
                self.frame.home = running_task()
                if self.frame.owner is None:
                    number_tasks()
                found = self.function(*self.args, **self.kwargs)
                return await found if isawaitable(found) else found
            return await self._await_in_time(self.timeout)
        except (StopIteration, GeneratorExit) as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is None:
                # Raised here, not in user code: this coroutine is closed.
                raise
            raise Carried(error) from None
        except BaseExceptionGroup as group:
            _end_by_halt(group)
            raise
        finally:
            current.reset(token)

    def _in_time(self, seconds: float) -> Any:
        """In a thread of its own, which is left to itself if it takes too long."""
        outcome: list[tuple[bool, Any]] = []
        done = Flag()
        context = copy_context()

        def work() -> None:
            self.frame.thread = threading.get_ident()
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
        raise_unchanged(value)

    async def _await_in_time(self, seconds: float) -> Any:
        import asyncio

        found = self.function(*self.args, **self.kwargs)
        if not isawaitable(found):
            return found
        task = asyncio.ensure_future(found)
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
