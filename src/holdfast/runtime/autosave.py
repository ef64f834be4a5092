"""Automatic snapshots of a state that lives in no workflow: by time, after each call, on demand.

A snapshot is never merged. It follows the head, whoever else writes to the run or rolls it back, and holds the
state as it was read while that was the head; what others wrote stays in the history.

Invariant: a snapshot that fails is a warning on the logger `holdfast`, never an error in the work that it observes;
once `stop` has returned, no timed snapshot is written; once the state is gone (`SourceGone`), neither.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial, wraps
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar, cast

from holdfast.errors import InvalidCall, StaleVersion
from holdfast.history.commit import Facts
from holdfast.history.history import History
from holdfast.history.reader import Head
from holdfast.history.version import Version
from holdfast.model.names import MAX_STEP, check_text, short
from holdfast.runtime.log import warn
from holdfast.tree.fold import Folded, Folder
from holdfast.tree.sanitize import sanitize as storable

F = TypeVar("F", bound=Callable[..., Any])

#: Seconds to wait before a state that changed while it was read is read again.
_PAUSES = (0.0, 0.001, 0.005, 0.02, 0.05)


class Reading(NamedTuple):
    """A state as it was read, and what is said of it (the `meta` of its version)."""

    state: Any
    meta: Any = None


class SourceGone(Exception):
    """Raised by a function that gives a state: there is none any more. Ends the timer without a warning."""


def autosave(
    source: Any,
    log: History,
    *,
    every: float | None = 5.0,
    step: str | None = None,
    sanitize: bool = False,
    lock: AbstractContextManager[Any] | None = None,
) -> Autosave:
    """Keep versions of a changing state: `with autosave(state, log): …`, or `@autosave(state, log)` on a function.

    `source` is a function without arguments that gives the state; or a dict, list, set, deque or bytearray, which
    is the state; or another object, whose state are its attributes that do not begin with an underscore.

    The block saves every so many seconds if something changed (`every=None`: never), and when it is left. The
    function does so too while it runs, and saves after each call, changed or not, under the name `step` or its own.
    What raises is saved as well, with a note. `sanitize` replaces what cannot be stored instead of failing.

    Timed snapshots read the state in a thread of their own: where its parts must fit together, change it under
    `lock`, which is held while the state is read and never while it is written. Where snapshots are asked for under
    it, it must be re-entrant (`threading.RLock`). A forked process has no timer until it calls `start`.
    """
    if not isinstance(log, History):
        raise InvalidCall(f"log is a history, such as hf.history('my-loop'), not {short(log)}")
    if every is not None:
        check_seconds("every", every, or_else=", or None for no timer")
    if lock is not None and not isinstance(lock, AbstractContextManager):
        raise InvalidCall(f"lock is used as `with lock:`, which {short(lock)} is not made for")
    check_text("step", step, MAX_STEP)
    read = _reader(source)

    def reading() -> Reading:
        return Reading(storable(read())[0] if sanitize else read())

    return Autosave(reading, log, every=every, step=step, lock=lock)


def check_seconds(name: str, value: Any, *, or_else: str = "") -> float:
    """A time between snapshots, or `InvalidCall`."""
    if type(value) not in (int, float) or not 0 < value <= threading.TIMEOUT_MAX:
        raise InvalidCall(f"{name} is a number of seconds above 0{or_else}, not {short(value)}")
    return float(value)


class Autosave:
    """Saves one state to one run. Blocks and calls in any threads may use it at once: its one timer runs from when
    the first of them begins until the last has ended."""

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
        #: What is done after each version, such as pruning; if it fails, that is a warning.
        self._after = after
        self._timer: _Timer | None = None
        #: Blocks and calls under way, and whether it was started by hand.
        self._uses, self._kept = 0, False
        #: Re-entrant, for a handler of signals that stops what it interrupts.
        self._guard = threading.RLock()
        self._trouble = Trouble(log.id)

    def save(self, *, note: str | None = None, tags: Iterable[str] = ()) -> Version | None:
        """Make a version now, changed or not. None if that failed: a warning says why."""
        return self._snapshot(Facts(note=note, tags=tags))

    def take(self, *, note: str | None = None, tags: Iterable[str] = ()) -> Version:
        """The same, but raises if that fails."""
        version = self._write(Facts(note=note, tags=tags))
        assert version is not None
        return version

    def start(self) -> Autosave:
        """Save by time until `stop`, without a block. Harmless if it runs already."""
        with self._guard:
            self._kept = True
            self._run_timer()
        return self

    def stop(self) -> None:
        """End the timer, whoever uses it. Saves nothing; calls, blocks that are left and `save` still do."""
        with self._guard:
            timer, self._timer, self._kept = self._timer, None, False
            # In a forked process the thread is gone, and may have left its lock taken.
            if timer is not None and timer.is_alive():
                timer.end()
                with timer.writing:
                    pass

    def abandon(self) -> None:
        """End the timer without waiting for it, for a finalizer: takes no lock, and may be called at any moment."""
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
        """The function, sync or async, with a snapshot after each call of it."""
        if isinstance(function, type | staticmethod | classmethod) or not callable(function):
            raise InvalidCall(f"autosave decorates functions; {short(function)} is none, or wraps one")
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
        with self._guard:
            self._uses = max(self._uses - 1, 0)
            if not self._uses and not self._kept:
                self.stop()
        if raised is not None:
            self._snapshot(Facts(kind="timed", note=f"{step or 'the block'} raised {raised.__name__}"))
        elif step:
            self._snapshot(Facts(step=step))
        else:
            self._snapshot(Facts(kind="timed"), always=False)

    def _run_timer(self) -> None:
        if self._every is None or (self._timer is not None and self._timer.is_alive()):
            return
        self._timer = _Timer(self, self._every)
        try:
            self._timer.start()
        except RuntimeError as error:
            self._warn(error)

    def _snapshot(self, facts: Facts, *, always: bool = True, timer: _Timer | None = None) -> Version | None:
        """Make a version, unless that fails, the timer has ended, or nothing changed and it need not be."""
        try:
            version = self._write(facts, always=always, timer=timer)
        except SourceGone:
            if timer is not None:
                timer.end()
            return None
        except Exception as error:
            self._warn(error)
            return None
        if version is None:
            self._trouble.over()
        return version

    def _write(self, facts: Facts, *, always: bool = True, timer: _Timer | None = None) -> Version | None:
        facts.check()
        while True:
            head = self._log._line.fresh_head()
            shot = self._shoot(head)
            if not always and head is not None and shot.root is head.root:
                return None
            facts.meta = shot.meta
            number = 0 if head is None else head.version.number
            with nullcontext() if timer is None else timer.writing:
                if timer is not None and timer.ended:
                    return None
                with suppress(StaleVersion):
                    made = self._log._line.advance_from(head, shot, facts, expected=number)
                    version = self._log._made(made)
                    # Others may prune it before it is read.
                    version._state = version._reader.show(made.root)
                    self._afterwards(version)
                    return version

    def _afterwards(self, version: Version) -> None:
        try:
            if self._after is not None:
                self._after(version)
        except Exception as error:
            self._trouble.tell(error, "older snapshots are left as they are")
        else:
            self._trouble.over()

    def _shoot(self, head: Head | None) -> _Shot:
        context = self._log._context
        base, space = (None, object()) if head is None else (head.root, context.reader(head.run).space)
        pauses = iter(_PAUSES)
        while True:
            folder = Folder(space, context.redact)
            try:
                with self._lock:
                    state, meta = self._read()
                    return _Shot(folder.fold(state, base), base, folder.arrivals, meta)
            except RuntimeError:  # dictionary changed size during iteration
                pause = next(pauses, None)
                if pause is None:
                    raise
                time.sleep(pause)

    def _warn(self, error: BaseException) -> None:
        self._trouble.tell(error)


class Trouble:
    """Says what fails with the snapshots of a run, and why; the same only once in a row."""

    def __init__(self, run_id: str) -> None:
        self._run = run_id
        self._reason: str | None = None

    def tell(self, error: BaseException, what: str = "no automatic snapshot") -> None:
        """Warn, unless that was the reason before."""
        reason = type(error).__name__
        with suppress(Exception):
            reason = f"{reason}: {error}"
        if reason != self._reason:
            self._reason = reason
            with suppress(Exception):
                warn("%s of run %r: %s", what, self._run, reason)

    def over(self) -> None:
        """All is well again."""
        self._reason = None


class _Timer(threading.Thread):
    """Saves by time until it is ended."""

    def __init__(self, saver: Autosave, every: float) -> None:
        super().__init__(name=f"holdfast-autosave-{saver._log.id}", daemon=True)
        self._saver, self._every = saver, every
        self.ended = False
        #: What it waits for. No event: that has a lock, which a finalizer in its own thread would wait for.
        self._bell: SimpleQueue[None] = SimpleQueue()
        #: Held while a snapshot is written, not while the state is read: whoever stops the timer may hold the very
        #: lock that the reading waits for.
        self.writing = threading.RLock()

    def run(self) -> None:
        while not self.ended:
            try:
                self._bell.get(timeout=self._every)
            except Empty:
                self._save()

    def end(self) -> None:
        """Let it end as soon as it can. Nothing is written after that, but for what is being written."""
        self.ended = True
        self._bell.put(None)

    def _save(self) -> None:
        try:
            self._saver._snapshot(Facts(kind="timed"), always=False, timer=self)
        except BaseException as error:
            self._saver._warn(error)


class _Shot(Folded):
    """A state that was read and frozen beside a base, with what is to be kept of that moment."""

    def __init__(self, root: Any, base: Any, arrivals: list[Any], meta: Any) -> None:
        super().__init__(root, base, arrivals)
        self.meta = meta


def _reader(source: Any) -> Callable[[], Any]:
    if isinstance(source, dict | list | set | deque | bytearray):
        return lambda: source
    if inspect.isroutine(source) or isinstance(source, partial):
        if inspect.iscoroutinefunction(source) or inspect.isgeneratorfunction(source):
            raise InvalidCall(f"{short(source)} gives no state when it is called: give a plain function")
        try:
            with suppress(ValueError):  # some built-in functions do not tell
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
