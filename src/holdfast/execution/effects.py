"""Effects of the step machine, and two short drivers that carry them out: one blocks, one runs in asyncio.

The machine consists of generators (flows) that yield effects. An effect can be carried out both ways; nothing else is
written twice.

Invariant: a flow that was started is run to its end, or gets the error (`throw`) of the effect that failed.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import suppress
from contextvars import copy_context
from inspect import isawaitable
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Protocol, TypeVar

import msgspec

from holdfast.errors import CommitUnknown, StepTimeout, StoreBusy, StoreUnavailable
from holdfast.event_loop import running_loop, running_task
from holdfast.execution.calls import current
from holdfast.execution.frame import Frame, number_tasks
from holdfast.execution.stop_control import StopExecution
from holdfast.execution.write_lock import WriteLock
from holdfast.model.records import RunRecord
from holdfast.store.interrupts import InterruptSafeEvent
from holdfast.store.protocol import Append, Store

if TYPE_CHECKING:
    import asyncio

T = TypeVar("T")

#: Seconds for which a cancelled task may clean up before it is abandoned.
_GRACE = 1.0


class Effect(Protocol):
    """An effect that a flow asks its driver to carry out."""

    #: Must it be finished even if the task is cancelled?
    must_finish: ClassVar[bool]

    def block(self) -> Any:
        """Carry it out in this thread."""

    def wait(self) -> Awaitable[Any]:
        """Carry it out without blocking the event loop. Called again if the task was cancelled meanwhile."""


Flow = Generator[Effect, Any, T]


class WrappedError(Exception):
    """Wraps an error of user code that has another meaning in generators: a StopIteration that leaves one becomes a
    RuntimeError, and a GeneratorExit that is thrown into one closes those that it delegates to."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def wrap_error(error: BaseException) -> BaseException:
    """Return the error to raise in a flow so that the code around the flow gets this one."""
    return WrappedError(error) if isinstance(error, StopIteration | GeneratorExit) else error


def unwrap_error(error: BaseException) -> BaseException:
    """Return the error of user code that an error in a flow is, or wraps."""
    return error.error if isinstance(error, WrappedError) else error


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error ends the process or the task, and is not a failure of the code that raised it.

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
    except WrappedError as carried:
        ours = carried.error
    raise ours


async def adrive(flow: Flow[T]) -> T:
    """Run a flow in the event loop. A result is recorded before a cancellation is raised."""
    cancelled: BaseException | None = None
    try:
        request = next(flow)
        while True:
            try:
                if cancelled is not None and not request.must_finish:
                    raise cancelled
                got = await request.wait()
            except BaseException as error:
                if request.must_finish and is_cancellation(error):
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
    except WrappedError as carried:
        ours = carried.error
    raise ours


def raise_unchanged(error: BaseException) -> NoReturn:
    """Raise an error that has its context: Python would replace it by the error that the caller is handling."""
    context = error.__context__
    try:
        raise error
    finally:
        error.__context__ = context


def _raise_for_flow(error: BaseException) -> None:
    """Raise what a flow must get in place of an error of user code, if that is another: the error wrapped if it has
    another meaning in generators; the `StopExecution` in a group, which `asyncio.TaskGroup` makes of that of a task."""
    if isinstance(error, StopIteration | GeneratorExit):
        raise WrappedError(error) from None
    found: BaseException | None = None
    if isinstance(error, BaseExceptionGroup):
        found = error.subgroup(StopExecution)
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    if found is not None:
        raise found from None


def is_cancellation(error: BaseException) -> bool:
    """Return whether an error is the cancellation of an asyncio task."""
    from asyncio import CancelledError

    return isinstance(error, CancelledError)


#: Called with the run's record, or with the error, in the thread that wrote.
Done = Callable[[RunRecord | BaseException], Any]

_PENDING: Any = object()
#: Changes written in one transaction at most.
_BATCH = 512
#: Seconds after which the thread checks for changes whose wake-up was lost.
_LOOK = 1.0


class PendingWrite:
    """A change that waits to be written."""

    __slots__ = ("change", "done", "future", "outcome")

    def __init__(self, change: Append, done: Done, future: asyncio.Future[Any]) -> None:
        self.change = change
        self.done = done
        self.future = future
        self.outcome: Any = _PENDING


class AsyncCommitter:
    """Writes the changes of all asyncio tasks of an engine in one thread. The event loop never waits for a disk, and
    one fsync serves many tasks: while a batch is written, the next one gathers.

    Every submitted change is written or refused, and its `done` is called in the thread that wrote, even if the task
    was cancelled meanwhile. An interrupt of the event loop's thread (see `store.interrupts`) only delays that."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._lock = threading.Lock()
        #: Changes that wait to be written, by event loop.
        self._pending: dict[asyncio.AbstractEventLoop, list[PendingWrite]] = {}
        self._ready: SimpleQueue[None] = SimpleQueue()
        self._closed = False
        self._thread: threading.Thread | None = None

    def submit(self, change: Append, done: Done) -> PendingWrite:
        """Submit a change; the future returns the result of `done`."""
        loop = running_loop()
        pending = PendingWrite(change, done, loop.create_future())
        with self._lock:
            waiting = self._pending.get(loop)
            if waiting is None:
                # After the tasks that are ready now. Before the change is added: an interrupt in between wakes in vain,
                # not too late.
                loop.call_soon(self.wake)
                waiting = self._pending[loop] = []
            waiting.append(pending)
        return pending

    def wait_again(self, pending: PendingWrite) -> asyncio.Future[Any]:
        """Return a new future for a change: the task that waited was cancelled."""
        pending.future = pending.future.get_loop().create_future()
        if pending.outcome is not _PENDING:
            _set_results([pending])
        return pending.future

    def wake(self) -> None:
        """Write the submitted changes."""
        if not self._pending:
            return
        if self._thread is None or not self._thread.is_alive():
            thread = threading.Thread(target=self._work, name="holdfast committer", daemon=True)
            # Set first: a thread that was started and is not known would never end.
            self._thread = thread
            try:
                thread.start()
            except RuntimeError:
                # The system refuses a thread: the event loop waits for the disk.
                self._thread = None
                self._write_all()
                return
        self._ready.put(None)

    def close(self) -> None:
        """Write the submitted changes, then stop."""
        self._closed = True
        self._ready.put(None)

    def _work(self) -> None:
        own = threading.current_thread()
        while self._thread is own and (not self._closed or self._pending):
            with suppress(Empty):
                self._ready.get(timeout=_LOOK)
            self._write_all()

    def _write_all(self) -> None:
        """Write the changes that wait. A separate function, so that no reference is held while the thread waits."""
        with self._lock:
            taken, self._pending = self._pending, {}
        for loop, waiting in taken.items():
            for start in range(0, len(waiting), _BATCH):
                self._write(loop, waiting[start : start + _BATCH])

    def _write(self, loop: asyncio.AbstractEventLoop, batch: list[PendingWrite]) -> None:
        outcomes: Sequence[RunRecord | BaseException]
        try:
            outcomes = self.store.append_many([pending.change for pending in batch])
        except (StoreBusy, StoreUnavailable, CommitUnknown) as error:
            outcomes = [error] * len(batch)
        except BaseException:
            # One change may have made the batch fail.
            outcomes = [_tried(self.store, pending.change) for pending in batch]
        answers = []
        for pending, outcome in zip(batch, outcomes, strict=True):
            try:
                answers.append(_settle(pending.done, outcome))
            except BaseException as error:
                answers.append(error)
        # Before the loop is notified, which may be interrupted: a second request for the outcome finds it.
        for pending, answer in zip(batch, answers, strict=True):
            pending.outcome = answer
        # A closed loop has no task that waits.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(_set_results, batch)


def _tried(store: Store, change: Append) -> RunRecord | BaseException:
    try:
        return store.append(change)
    except BaseException as error:
        return error


def _settle(done: Done, outcome: RunRecord | BaseException) -> Any:
    value = done(outcome)
    if isinstance(outcome, BaseException):
        raise outcome
    return value


def _set_results(batch: list[PendingWrite]) -> None:
    for pending in batch:
        if pending.future.done():
            continue
        if isinstance(pending.outcome, BaseException):
            pending.future.set_exception(pending.outcome)
        else:
            pending.future.set_result(pending.outcome)


class AppendChange(msgspec.Struct, eq=False):
    """Append to the store; returns `done(run's record)`. `done` releases the write lock, if it is held."""

    committer: AsyncCommitter
    change: Append
    done: Done
    write_lock: WriteLock | None = None
    _pending: PendingWrite | None = None
    must_finish: ClassVar[bool] = True

    def block(self) -> Any:
        try:
            run = self.committer.store.append(self.change)
        except BaseException as error:
            self.done(error)
            raise
        return self.done(run)

    def wait(self) -> Awaitable[Any]:
        if self._pending is None:
            self._pending = self.committer.submit(self.change, self.done)
            if self.write_lock is not None:
                self.write_lock.entrust()
            return self._pending.future
        return self.committer.wait_again(self._pending)


class RunBlocking(msgspec.Struct, eq=False):
    """Call a function that may block for a moment, such as a read."""

    work: Callable[[], Any]
    must_finish: ClassVar[bool] = False

    def block(self) -> Any:
        return self.work()

    def wait(self) -> Awaitable[Any]:
        import asyncio

        return asyncio.to_thread(self.work)


class AcquireWriteLock(msgspec.Struct, eq=False):
    """Wait for the write lock, which the end of the write releases."""

    write_lock: WriteLock
    holder: Any
    _asked: asyncio.Future[None] | None = None
    must_finish: ClassVar[bool] = True

    def block(self) -> None:
        self.write_lock.take(self.holder)

    async def wait(self) -> None:
        # A task that is cancelled in the moment in which the lock is granted has it already.
        if self._asked is None or self._asked.cancelled() or not self._asked.done():
            self._asked = self.write_lock.ask(self.holder)
        await self._asked
        while not self.write_lock.accept(self._asked):
            self._asked = self.write_lock.ask(self.holder, again=True)
            await self._asked


class Pause(msgspec.Struct, eq=False):
    """Pause until a stop is requested, at most for some seconds; returns whether it was. `check` is called now and then
    to read requests of other processes."""

    seconds: float
    stop: InterruptSafeEvent
    check: Callable[[], object]
    must_finish: ClassVar[bool] = False

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
        checked = loop.time()
        while not self.stop.is_set() and (left := until - loop.time()) > 0:
            await asyncio.sleep(min(left, 0.1))
            if loop.time() - checked > 1.0:
                checked = loop.time()
                await asyncio.to_thread(self.check)
        # Let other tasks run, even if there is nothing to wait for: one of them may be the one waited for.
        await asyncio.sleep(0)
        return self.stop.is_set()


class CallFunction(msgspec.Struct, eq=False):
    """Call a function of the user within a frame, perhaps with a timeout."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    frame: Frame
    timeout: float | None = None
    must_finish: ClassVar[bool] = False

    def block(self) -> Any:
        token = current.set(self.frame)
        try:
            if self.timeout is None:
                self.frame.thread = threading.get_ident()
                return self.function(*self.args, **self.kwargs)
            return self._in_time(self.timeout)
        except BaseException as error:
            _raise_for_flow(error)
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
        except BaseException as error:
            trace = error.__traceback__
            if isinstance(error, StopIteration | GeneratorExit) and (trace is None or trace.tb_next is None):
                # Raised here, not in user code: this coroutine is closed.
                raise
            _raise_for_flow(error)
            raise
        finally:
            current.reset(token)

    def _in_time(self, seconds: float) -> Any:
        """Call the function in a thread of its own, which is abandoned if it takes too long."""
        outcome: list[tuple[bool, Any]] = []
        done = InterruptSafeEvent()
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
            f"step {self.frame.address!r} took longer than {seconds:g} s and was abandoned; its changes are discarded",
            address=self.frame.address,
            timeout=seconds,
        )
