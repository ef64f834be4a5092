"""Automatic snapshots of a state outside any workflow: timed, after each call, on demand.

A snapshot is never merged. It is committed on top of the current head, even if other writers commit to the
run or roll it back, and holds the state as read while that version was the head. Versions of other writers
stay in the history.

Invariant: a snapshot that fails logs a warning on the logger `holdfast` and never raises in the observed
code; after `stop` returns, or after the source raises `SourceGone`, no timed snapshot is written.
"""

from __future__ import annotations

import atexit
import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial, wraps
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakSet

from holdfast.errors import InvalidCall, StaleVersion
from holdfast.history.builder import VersionMetadata
from holdfast.history.history import History
from holdfast.history.reader import Head
from holdfast.history.version import Version
from holdfast.log import warn
from holdfast.model.checks import check_seconds, check_text
from holdfast.model.names import MAX_STEP, short
from holdfast.tree.fold import Folded, Folder
from holdfast.tree.sanitize import sanitize as storable

F = TypeVar("F", bound=Callable[..., Any])

#: Seconds to wait before each retry of reading a state that changed during the read.
_PAUSES = (0.0, 0.001, 0.005, 0.02, 0.05)


class Reading(NamedTuple):
    """A state as it was read, and the `annotations` of its version."""

    state: Any
    annotations: Any = None


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
    ) -> None:
        self._read, self._log, self._every, self._step = read, log, every, step
        self._lock = nullcontext() if lock is None else lock
        #: Called after each version, for example to prune; a failure logs a warning.
        self._after = after
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
        self._timer = _Timer(self._log.id, self._every, self._save_on_time)
        _timers.add(self._timer)
        # Registered last, it runs first: before the store, which is open now, is closed at exit.
        atexit.unregister(_end_timers)
        atexit.register(_end_timers)
        try:
            self._timer.start()
        except RuntimeError as error:
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
        while True:
            head = self._log.committer.fresh_head()
            reading = self._read_state(head)
            if not always and head is not None and reading.root is head.root:
                return None
            metadata.annotations = reading.annotations
            number = 0 if head is None else head.version.number
            with nullcontext() if timer is None else timer.writing:
                if timer is not None and timer.ended:
                    return None
                with suppress(StaleVersion):
                    made = self._log.committer.advance_from(head, reading, metadata, expected=number)
                    version = self._log.to_version(made)
                    # Another process may prune the version before it is read.
                    version.keep_state(made.root)
                    self._call_after(version)
                    return version

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
            folder = Folder(space, context.redact)
            try:
                with self._lock:
                    state, annotations = self._read()
                    return _FoldedReading(folder.fold(state, base), base, folder.arrivals, annotations)
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


class _Timer(threading.Thread):
    """Thread that saves periodically until it is ended."""

    def __init__(self, run_id: str, every: float, save: Callable[[_Timer], None]) -> None:
        super().__init__(name=f"holdfast-autosave-{run_id}", daemon=True)
        self._every, self._save = every, save
        self.ended = False
        #: Wakes the thread. Not an Event: its lock could deadlock with a finalizer that runs in this thread.
        self._bell: SimpleQueue[None] = SimpleQueue()
        #: Held while a snapshot is written, not while the state is read: the caller of `stop` may hold the
        #: lock that the read waits for.
        self.writing = threading.RLock()

    def run(self) -> None:
        while not self.ended:
            try:
                self._bell.get(timeout=self._every)
            except Empty:
                self._save(self)

    def end(self) -> None:
        """End the thread as soon as possible. Nothing is written afterwards, except a write in progress."""
        self.ended = True
        self._bell.put(None)


_timers: WeakSet[_Timer] = WeakSet()


def _end_timers() -> None:
    for timer in list(_timers):
        timer.end()


class _FoldedReading(Folded):
    """A state that was read and frozen relative to a base, with the annotations of that moment."""

    def __init__(self, root: Any, base: Any, arrivals: list[Any], annotations: Any) -> None:
        super().__init__(root, base, arrivals)
        self.annotations = annotations


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
    items = {**(slots or {}), **(plain or {})}.items()
    return {name: value for name, value in items if not name.startswith("_")}
