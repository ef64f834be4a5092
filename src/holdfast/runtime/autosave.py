"""Automatic snapshots of a state that lives in no workflow: by time, after each call, on demand.

A snapshot is never merged. It follows the head, whoever else writes to the run or rolls it back, and holds the
state as it was read while that was the head; what others wrote stays in the history.

Invariant: a snapshot that fails is a warning on the logger `holdfast`, never an error in the work that it observes;
once `stop` has returned, no timed snapshot is written.
"""

from __future__ import annotations

import inspect
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from functools import partial, wraps
from typing import Any, TypeVar, cast

from holdfast.errors import InvalidCall, StaleVersion
from holdfast.history.commit import Facts
from holdfast.history.history import History
from holdfast.history.reader import Head
from holdfast.history.version import Version
from holdfast.model.names import MAX_STEP, check_text, short
from holdfast.runtime.log import warn
from holdfast.tree.fold import Folder
from holdfast.tree.sanitize import sanitize as storable

F = TypeVar("F", bound=Callable[..., Any])

#: Seconds to wait before a state that changed while it was read is read again.
_PAUSES = (0.0, 0.001, 0.005, 0.02, 0.05)


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
    if every is not None and (type(every) not in (int, float) or not 0 < every <= threading.TIMEOUT_MAX):
        raise InvalidCall(f"every is a number of seconds above 0, or None for no timer, not {short(every)}")
    if lock is not None and not isinstance(lock, AbstractContextManager):
        raise InvalidCall(f"lock is used as `with lock:`, which {short(lock)} is not made for")
    check_text("step", step, MAX_STEP)
    read = _reader(source)
    return Autosave((lambda: storable(read())[0]) if sanitize else read, log, every, step, lock)


class Autosave:
    """Saves one state to one run. Blocks and calls in any threads may use it at once: its one timer runs from when
    the first of them begins until the last has ended."""

    def __init__(
        self, read: Callable[[], Any], log: History, every: float | None, step: str | None, lock: Any
    ) -> None:
        self._read, self._log, self._every, self._step = read, log, every, step
        self._lock = nullcontext() if lock is None else lock
        self._timer: _Timer | None = None
        #: Blocks and calls under way, and whether it was started by hand.
        self._uses, self._kept = 0, False
        #: Re-entrant, for a handler of signals that stops what it interrupts.
        self._guard = threading.RLock()
        #: Why the last snapshot failed; None if it did not.
        self._reason: str | None = None

    def save(self, *, note: str | None = None, tags: Iterable[str] = ()) -> Version | None:
        """Make a version now, changed or not. None if that failed: a warning says why."""
        return self._snapshot(Facts(note=note, tags=tags))

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
                timer.ended.set()
                with timer.writing:
                    pass

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
        version = None
        try:
            facts.check()
            while True:
                head = self._log._line.fresh_head()
                shot = self._shoot(head)
                if not always and head is not None and shot.root is head.root:
                    break
                number = 0 if head is None else head.version.number
                with nullcontext() if timer is None else timer.writing:
                    if timer is not None and timer.ended.is_set():
                        return None
                    with suppress(StaleVersion):
                        made = self._log._line.advance_from(head, shot, facts, expected=number)
                        version = self._log._made(made)
                        break
        except Exception as error:
            self._warn(error)
            return None
        self._reason = None
        return version

    def _shoot(self, head: Head | None) -> _Shot:
        context = self._log._context
        base, space = (None, object()) if head is None else (head.root, context.reader(head.run).space)
        pauses = iter(_PAUSES)
        while True:
            folder = Folder(space, context.redact)
            try:
                with self._lock:
                    return _Shot(folder.fold(self._read(), base), base, folder.arrivals)
            except RuntimeError:  # dictionary changed size during iteration
                pause = next(pauses, None)
                if pause is None:
                    raise
                time.sleep(pause)

    def _warn(self, error: BaseException) -> None:
        """Say why there is no snapshot; the same reason only once in a row."""
        reason = type(error).__name__
        with suppress(Exception):
            reason = f"{reason}: {error}"
        if reason != self._reason:
            self._reason = reason
            with suppress(Exception):
                warn("no automatic snapshot of run %r: %s", self._log.id, reason)


class _Timer(threading.Thread):
    """Saves by time until it is ended."""

    def __init__(self, saver: Autosave, every: float) -> None:
        super().__init__(name=f"holdfast-autosave-{saver._log.id}", daemon=True)
        self._saver, self._every = saver, every
        self.ended = threading.Event()
        #: Held while a snapshot is written, not while the state is read: whoever stops the timer may hold the very
        #: lock that the reading waits for.
        self.writing = threading.RLock()

    def run(self) -> None:
        while not self.ended.wait(self._every):
            try:
                self._saver._snapshot(Facts(kind="timed"), always=False, timer=self)
            except BaseException as error:
                self._saver._warn(error)


class _Shot:
    """A state that was read and frozen beside a base, on its way into a commit."""

    def __init__(self, root: Any, base: Any, arrivals: list[Any]) -> None:
        self.root, self._base, self._arrivals = root, base, arrivals

    def _fold(self, folder: Folder, base: Any, depth: int) -> Any:
        folder.arrivals += self._arrivals
        return self.root if base is self._base else folder.value(self.root, base, depth)


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
