"""Automatic snapshots of a state outside any workflow: timed, after each call, on demand.

A snapshot is never merged. It is committed on top of the current head, even if other writers commit to the
run or roll it back, and holds the state as read while that version was the head. Versions of other writers
stay in the history.

All savers of a process share one thread that knows when each is due, and up to four that save: a state that is slow to
read delays the others only while four of them are being read. The threads end with the last timer.

Invariant: a snapshot that fails logs a warning on the logger `holdfast` and never raises in the observed
code; after `stop` returns, or after the source raises `SourceGone`, no timed snapshot is written.
"""

from __future__ import annotations

import atexit
import heapq
import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial, wraps
from itertools import count
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakSet

from holdfast.errors import (
    CorruptStore,
    CorruptVersion,
    InvalidCall,
    NotFound,
    StaleVersion,
    UnsupportedValue,
)
from holdfast.history.builder import VersionMetadata
from holdfast.history.history import History
from holdfast.history.reader import Head
from holdfast.history.version import Version
from holdfast.log import warn
from holdfast.model.checks import check_seconds, check_text
from holdfast.model.names import MAX_STEP, short
from holdfast.store.process_fork import reset_in_children
from holdfast.tree.fold import Folded, Folder, Redactor
from holdfast.tree.sanitize import sanitize as storable
from holdfast.tree.values import NATIVE

F = TypeVar("F", bound=Callable[..., Any])

#: Seconds to wait before each retry of reading a state that changed during the read.
_PAUSES = (0.0, 0.001, 0.005, 0.02, 0.05)
#: Threads that save, at most.
_MAX_WORKERS = 4
#: Containers in a state that is stored without being sanitized: the parts of a larger one may be shared.
_MAX_CONTAINERS = 200_000


class Reading(NamedTuple):
    """A state as it was read, and the `annotations` of its version."""

    state: Any
    annotations: Any = None
    #: Returns the fields of these names with replacements for values that cannot be stored, and the annotations; None
    #: if a value that cannot be stored is an error.
    sanitize: Callable[[Iterable[Any]], Reading] | None = None
    #: Whether a value can be stored without a loss; the field of another one is sanitized.
    is_whole: Callable[[Any], bool] | None = None
    #: Names of fields that probably have such values.
    doubtful: Collection[Any] = ()


class SourceGone(Exception):
    """Raised by a source function when its state no longer exists. Ends the timer without a warning."""


def autosave(
    source: Any,
    log: History,
    *,
    every: float | None = 5.0,
    step: str | None = None,
    sanitize: bool = False,
    lock: AbstractContextManager[Any] | None = None,
) -> Autosave:
    """Save versions of a changing state: `with autosave(state, log): …`, or `@autosave(state, log)` on a
    function.

    `source` is a function without arguments that returns the state; or a dict, list, set, deque or bytearray,
    which is the state; or another object, whose state is its attributes that do not start with an underscore.

    The block saves every `every` seconds if the state changed (`every=None`: never), and on exit. A decorated
    function does the same while it runs, and saves after each call, changed or not, under the name `step` or
    its own name. If the block or function raises, the state is saved too, with a note. `sanitize` replaces
    values that cannot be stored instead of failing.

    Timed snapshots read the state in a separate thread: if parts of the state must be consistent with each
    other, change them under `lock`, which is held while the state is read and never while it is written. If
    snapshots are requested while holding the lock, it must be re-entrant (`threading.RLock`). A forked
    process has no timer until it calls `start`.
    """
    if not isinstance(log, History):
        raise InvalidCall(f"log is a history, such as hf.history('my-loop'), not {short(log)}")
    if every is not None:
        check_seconds("every", every, above_zero=True, most=threading.TIMEOUT_MAX)
    if lock is not None and not isinstance(lock, AbstractContextManager):
        raise InvalidCall(f"lock is a context manager such as threading.Lock(), not {short(lock)}")
    check_text("step", step, MAX_STEP)
    read = _reader(source)

    def reading() -> Reading:
        return Reading(storable(read())[0] if sanitize else read())

    return Autosave(reading, log, every=every, step=step, lock=lock)


class Autosave:
    """Saver of one state to one run. Blocks and calls in several threads may share it: its single timer runs
    from the start of the first until the end of the last."""

    def __init__(
        self,
        read: Callable[[], Reading],
        log: History,
        *,
        every: float | None = None,
        step: str | None = None,
        lock: AbstractContextManager[Any] | None = None,
        after: Callable[[Version], object] | None = None,
        repair: Callable[[Exception], object] | None = None,
    ) -> None:
        self._read, self._log, self._every, self._step = read, log, every, step
        self._lock = nullcontext() if lock is None else lock
        #: Called after each version, for example to prune; a failure logs a warning.
        self._after = after
        #: Called once for a write that finds the head damaged; the write is then tried again.
        self._repair = repair
        #: The number and the annotations of the version that was written last: a value may change its class alone.
        self._written: tuple[int, Any] | None = None
        self._timer: _Timer | None = None
        #: Number of active blocks and calls, and whether `start` was called.
        self._uses, self._started = 0, False
        #: Re-entrant, because a signal handler may call `stop` while its own thread holds the lock.
        self._guard = threading.RLock()
        self._failures = FailureLog(log.id)

    def save(self, *, note: str | None = None, tags: Iterable[str] = ()) -> Version | None:
        """Save a version now, changed or not. Return None if that failed; a warning gives the reason."""
        return self._try_write(VersionMetadata(note=note, tags=tags))

    def take(self, *, note: str | None = None, tags: Iterable[str] = ()) -> Version:
        """Save a version now, changed or not. Raise if that fails."""
        version = self._write(VersionMetadata(note=note, tags=tags))
        assert version is not None
        return version

    @property
    def annotations(self) -> Any:
        """The annotations of the version that this saver wrote last."""
        return None if self._written is None else self._written[1]

    def start(self) -> Autosave:
        """Start timed snapshots until `stop`, without a block. Do nothing if they are running."""
        with self._guard:
            self._started = True
            self._run_timer()
        return self

    def stop(self) -> None:
        """End the timer, even if blocks or calls still use it. Save nothing; calls, block exits and `save`
        still do."""
        with self._guard:
            timer, self._timer, self._started = self._timer, None, False
            # In a forked process the thread does not exist, and may have left its lock held.
            if timer is not None and timer.is_alive():
                timer.end()
                with timer.writing:
                    pass

    def abandon(self) -> None:
        """End the timer without waiting for it, for a finalizer: takes no lock, and may be called at any
        time."""
        timer = self._timer
        if timer is not None:
            timer.end()

    def __enter__(self) -> Autosave:
        with self._guard:
            self._uses += 1
            if self._uses == 1:
                self._run_timer()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._end(self._step, kind)

    def __call__(self, function: F) -> F:
        """Return the function, sync or async, wrapped to save a snapshot after each call."""
        if isinstance(function, type | staticmethod | classmethod) or not callable(function):
            raise InvalidCall(
                f"autosave decorates functions, not {short(function)}: decorate the function itself"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise InvalidCall(f"calling the generator {short(function)} does no work: use a block within it")
        name = self._step or str(getattr(function, "__name__", type(function).__name__))

        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with self._around(name):
                return await function(*args, **kwargs)

        def called(*args: Any, **kwargs: Any) -> Any:
            with self._around(name):
                return function(*args, **kwargs)

        waits = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
        return cast(F, wraps(function)(awaited if waits else called))

    def _around(self, step: str) -> ExitStack:
        stack = ExitStack()
        stack.push(lambda kind, *_: self._end(step, kind))
        self.__enter__()
        return stack

    def _end(self, step: str | None, raised: type[BaseException] | None) -> None:
        """End a block or call, and save the state."""
        with self._guard:
            self._uses = max(self._uses - 1, 0)
            if not self._uses and not self._started:
                self.stop()
        if raised is not None:
            note = f"{step or 'the block'} raised {raised.__name__}"
            self._try_write(VersionMetadata(kind="timed", note=note))
        elif step:
            self._try_write(VersionMetadata(step=step))
        else:
            self._try_write(VersionMetadata(kind="timed"), always=False)

    def _run_timer(self) -> None:
        if self._every is None or (self._timer is not None and self._timer.is_alive()):
            return
        self._timer = _Timer(self._every, self._save_on_time)
        _timers.add(self._timer)
        # Registered last, it runs first: before the store, which is open now, is closed at exit.
        atexit.unregister(_end_timers)
        atexit.register(_end_timers)
        try:
            _scheduler.add(self._timer)
        except RuntimeError as error:
            self._timer.end()
            self._failures.report(error)

    def _save_on_time(self, timer: _Timer) -> None:
        try:
            self._try_write(VersionMetadata(kind="timed"), always=False, timer=timer)
        except BaseException as error:
            self._failures.report(error)

    def _try_write(
        self, metadata: VersionMetadata, *, always: bool = True, timer: _Timer | None = None
    ) -> Version | None:
        """Save a version. Return None if that fails, the timer has ended, or nothing changed and `always` is
        False."""
        try:
            version = self._write(metadata, always=always, timer=timer)
        except SourceGone:
            if timer is not None:
                timer.end()
            return None
        except Exception as error:
            # A timer that was ended need not succeed: the store may be closed since.
            if timer is None or not timer.ended:
                self._failures.report(error)
            return None
        if version is None:
            self._failures.clear()
        return version

    def _write(
        self, metadata: VersionMetadata, *, always: bool = True, timer: _Timer | None = None
    ) -> Version | None:
        metadata.check()
        repair = self._repair
        while True:
            try:
                head = self._log.committer.fresh_head()
            except (CorruptVersion, CorruptStore, NotFound) as error:
                if repair is None:
                    raise
                repair(error)
                repair = None
                continue
            reading = self._read_state(head)
            if (
                not always
                and head is not None
                and reading.root is head.root
                and self._has_same_classes(head, reading)
            ):
                return None
            metadata.annotations = reading.annotations
            number = 0 if head is None else head.version.number
            with nullcontext() if timer is None else timer.writing:
                if timer is not None and timer.ended:
                    return None
                with suppress(StaleVersion):
                    try:
                        made = self._log.committer.advance_from(head, reading, metadata, expected=number)
                    except NotFound:
                        # Another process may have pruned the head, with a large value that this version refers to.
                        if head is not None and self._log.committer.fresh_head() is head:
                            raise
                        continue
                    self._written = made.number, reading.annotations
                    version = self._log.to_version(made)
                    # Another process may prune the version before it is read.
                    version.keep_state(made.root)
                    self._call_after(version)
                    return version

    def _has_same_classes(self, head: Head, reading: _FoldedReading) -> bool:
        return (
            self._written is None
            or self._written[0] != head.number
            or self._written[1] == reading.annotations
        )

    def _call_after(self, version: Version) -> None:
        try:
            if self._after is not None:
                self._after(version)
        except Exception as error:
            self._failures.report(error, "older snapshots are left as they are")
        else:
            self._failures.clear()

    def _read_state(self, head: Head | None) -> _FoldedReading:
        """Read the state and freeze it relative to a head; read again if it changed meanwhile."""
        context = self._log.context
        base, space = (None, object()) if head is None else (head.root, context.reader(head.run).space)
        pauses = iter(_PAUSES)
        while True:
            try:
                with self._lock:
                    return _fold(self._read(), base, space, context.redact)
            except RuntimeError:  # dictionary changed size during iteration
                pause = next(pauses, None)
                if pause is None:
                    raise
                time.sleep(pause)


class FailureLog:
    """Logger of snapshot failures of a run; skips a failure that repeats the previous one."""

    def __init__(self, run_id: str) -> None:
        self._run = run_id
        self._reason: str | None = None

    def report(self, error: BaseException, what: str = "no automatic snapshot") -> None:
        """Log a warning, unless the previous failure had the same reason."""
        reason = type(error).__name__
        with suppress(Exception):
            reason = f"{reason}: {error}"
        if reason != self._reason:
            self._reason = reason
            with suppress(Exception):
                warn("%s of run %r: %s", what, self._run, reason)

    def clear(self) -> None:
        """Record a success, so that the next failure is logged."""
        self._reason = None


class _Timer:
    """Saves periodically until it is ended."""

    def __init__(self, every: float, save: Callable[[_Timer], None]) -> None:
        self.every, self.save = every, save
        self.ended = False
        #: The scheduler's generation that it was added to: a forked child has another one.
        self.generation = -1
        #: Held while a snapshot is written, not while the state is read: the caller of `stop` may hold the
        #: lock that the read waits for.
        self.writing = threading.RLock()

    def is_alive(self) -> bool:
        """Return whether snapshots are taken in this process."""
        return not self.ended and self.generation == _scheduler.generation

    def end(self) -> None:
        """End the timer. Nothing is written afterwards, except a write in progress. Takes no lock: a finalizer may call
        it in the thread of the scheduler."""
        self.ended = True
        _scheduler.wake()


class _Scheduler:
    """The thread that knows when each timer is due, and the workers that save. Both start when they are needed."""

    def __init__(self) -> None:
        self.generation = 0
        self._reset()
        reset_in_children(self)

    def reset_after_fork(self) -> None:
        """Start without threads and timers: a forked process has none until it starts one."""
        self.generation += 1
        self._reset()

    def _reset(self) -> None:
        #: Held while the thread is started or decides to end. Re-entrant for signal handlers.
        self._guard = threading.RLock()
        self._thread: threading.Thread | None = None
        #: New timers, timers whose save is complete, and None to look again. Not a Condition: its lock could deadlock
        #: with a finalizer that runs in this thread.
        self._bell: SimpleQueue[_Timer | None] = SimpleQueue()

    def add(self, timer: _Timer) -> None:
        """Call `timer.save` every `timer.every` seconds in a worker until the timer is ended."""
        with self._guard:
            timer.generation = self.generation
            self._bell.put(timer)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="holdfast-autosave", daemon=True)
                try:
                    self._thread.start()
                except BaseException:
                    self._thread = None
                    raise

    def wake(self) -> None:
        """Let the thread look for ended timers."""
        self._bell.put(None)

    def _run(self) -> None:
        bell, guard = self._bell, self._guard
        due: list[tuple[float, int, _Timer]] = []
        numbers = count()
        jobs: SimpleQueue[_Timer | None] = SimpleQueue()
        busy: set[_Timer] = set()
        workers = 0
        while True:
            with suppress(Empty):
                timer = bell.get(timeout=max(0.0, due[0][0] - time.monotonic()) if due else None)
                if timer is not None:
                    busy.discard(timer)
                    if not timer.ended:
                        heapq.heappush(due, (time.monotonic() + timer.every, next(numbers), timer))
                if any(each.ended for _, _, each in due):
                    due = [each for each in due if not each[2].ended]
                    heapq.heapify(due)
            timer = None
            while due and due[0][0] <= time.monotonic():
                busy.add(ready := heapq.heappop(due)[2])
                if workers < min(len(busy), _MAX_WORKERS):
                    with suppress(RuntimeError):
                        threading.Thread(
                            target=_work,
                            args=(jobs, bell),
                            name=f"holdfast-autosave-{workers + 1}",
                            daemon=True,
                        ).start()
                        workers += 1
                if workers:
                    jobs.put(ready)
                else:
                    ready.save(ready)
                    bell.put(ready)
                del ready
            if not due and not busy:
                with guard:
                    if bell.empty():
                        if self._bell is bell:
                            self._thread = None
                        for _ in range(workers):
                            jobs.put(None)
                        return


def _work(jobs: SimpleQueue[_Timer | None], bell: SimpleQueue[_Timer | None]) -> None:
    """Save for timers that are due."""
    while (timer := jobs.get()) is not None:
        if not timer.ended:
            timer.save(timer)
        bell.put(timer)
        del timer


_scheduler = _Scheduler()
_timers: WeakSet[_Timer] = WeakSet()


def active_timers() -> list[_Timer]:
    """Return the timers that are running in this process."""
    return [timer for timer in list(_timers) if timer.is_alive()]


def _end_timers() -> None:
    for timer in list(_timers):
        timer.end()


class _FoldedReading(Folded):
    """A state that was read and frozen relative to a base, with the annotations of that moment."""

    def __init__(self, root: Any, base: Any, arrivals: list[Any], annotations: Any) -> None:
        super().__init__(root, base, arrivals)
        self.annotations = annotations


def _fold(reading: Reading, base: Any, space: object, redact: Redactor | None) -> _FoldedReading:
    """Freeze a state relative to a base. Fields with values that cannot be stored are sanitized."""
    state, annotations, sanitize, is_whole, doubtful = reading
    if sanitize is None:
        folder = Folder(space, redact)
        return _FoldedReading(folder.fold(state, base), base, folder.arrivals, annotations)
    folder = Folder(space, redact, most=_MAX_CONTAINERS, is_whole=is_whole)
    fields: dict[Any, Any] = dict(state)
    refused = []
    for name, value in state.items():
        try:
            if name in doubtful:
                refused.append(name)
            elif type(value) not in NATIVE:
                fields[name] = folder.field(name, value, base)
        except UnsupportedValue:
            refused.append(name)
    try:
        if refused:
            made = sanitize(refused)
            fields.update(made.state)
            annotations = made.annotations
        if len(fields) == len(state):
            return _FoldedReading(folder.fold(fields, base), base, folder.arrivals, annotations)
    except UnsupportedValue:
        # A name cannot be stored, or there are too many containers.
        pass
    made = sanitize(state)
    folder = Folder(space, redact)
    return _FoldedReading(folder.fold(made.state, base), base, folder.arrivals, made.annotations)


def _reader(source: Any) -> Callable[[], Any]:
    if isinstance(source, dict | list | set | deque | bytearray):
        return lambda: source
    if inspect.isroutine(source) or isinstance(source, partial):
        if inspect.iscoroutinefunction(source) or inspect.isgeneratorfunction(source):
            raise InvalidCall(
                f"{short(source)} does not return a state when it is called: give a plain function"
            )
        try:
            with suppress(ValueError):  # some built-in functions have no signature
                inspect.signature(source).bind()
        except TypeError as error:
            raise InvalidCall(f"{short(source)} cannot be called without arguments: {error}") from None
        return cast(Callable[[], Any], source)
    if callable(source):
        raise InvalidCall(f"{short(source)} may be a function or a state: write `lambda: …` around it")
    if not hasattr(source, "__dict__") and not hasattr(type(source), "__slots__"):
        raise InvalidCall(f"{short(source)} cannot change: give a dict, an object, or a function")
    return partial(_attributes, source)


def _attributes(source: Any) -> dict[str, Any]:
    found: Any = object.__getstate__(source)
    plain, slots = found if isinstance(found, tuple) else (found, None)
    items = {**(slots or {}), **(plain or {})}
    public = {name: value for name, value in items.items() if not name.startswith("_")}
    if items and not public:
        raise InvalidCall(
            f"{short(source)} has no public attributes, so that each version would be empty: give a function "
            "that returns the state"
        )
    return public
