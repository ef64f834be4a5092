"""Classes whose objects a manager saves periodically, from their creation until they are destroyed or collected.

The timer of an object has only a weak reference to it, so that an unreferenced object is collected as usual, and its
timer ends.

Invariant: an object of `with_snapshots` behaves like one of its own class, except for `destroy` and `with`; after
`destroy` returns, no timed snapshot of it is taken.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from datetime import timedelta
from typing import Any

import msgspec

from holdfast.compat.autosave import Autosave, Reading, SourceGone
from holdfast.compat.snapshot_manager.manager import SnapshotManager
from holdfast.compat.snapshot_manager.snapshot import RUN_ID, WORKFLOW_ID, id_text
from holdfast.errors import InvalidCall
from holdfast.model.checks import check_seconds
from holdfast.model.names import short

#: Seconds from which a number is taken for milliseconds.
_MILLISECONDS = 1000
#: Savers of live objects by identity, because an object may not accept new attributes, or not be hashable.
_savers: dict[int, Autosave] = {}


def with_snapshots(
    run_class: type,
    manager: SnapshotManager,
    interval: float | timedelta = 5.0,
    *,
    run_id: str | Callable[[Any], str] | None = None,
    store: str | Callable[[Any], Any] | None = None,
    workflow_id: str | Callable[[Any], str] | None = None,
    lock: str | Callable[[Any], AbstractContextManager[Any]] | None = None,
) -> type[Any]:
    """Return a subclass of `run_class` whose objects are saved every `interval` seconds if something
    changed. With 0 there is no timer. A number from 1000 on is refused, because it looks like
    milliseconds: give a `timedelta` for a long interval.

    The timer ends with `run.destroy()`, or when the object is collected. The block `with Run(…) as run:` also
    takes a snapshot on exit, whether it raises or not.

    `run_id`, `store`, `workflow_id` and `lock` (held while the object is read) each name an attribute, or are
    functions of the object. By default the id is `run_id` or `id`; the saved store is `store`, or the object
    itself if it has none; the workflow is `workflow_id`, if there is one.
    """
    if not isinstance(run_class, type):
        raise InvalidCall(f"with_snapshots takes a class, not {short(run_class)}")
    if not isinstance(manager, SnapshotManager):
        raise InvalidCall(f"manager is a SnapshotManager, not {short(manager)}")
    if issubclass(run_class, msgspec.Struct):
        raise InvalidCall(
            f"{run_class.__name__} is a msgspec.Struct, whose __init__ cannot be extended: wrap it in a class"
        )
    every = _seconds(interval)
    plan = _SnapshotPlan(
        manager, every or None, run_id=run_id, store=store, workflow_id=workflow_id, lock=lock
    )

    base: Any = run_class
    try:
        made = _subclass(base, plan)
        if hasattr(base, "__aenter__") and hasattr(base, "__aexit__"):
            made = _async_subclass(made)
    except TypeError as error:
        raise InvalidCall(f"{run_class.__name__} cannot have a subclass with snapshots: {error}") from error
    made.__name__ = f"{run_class.__name__}WithSnapshots"
    made.__qualname__ = f"{run_class.__qualname__}WithSnapshots"
    made.__module__, made.__doc__ = run_class.__module__, run_class.__doc__
    return made


def _seconds(interval: Any) -> float:
    """Return an interval in seconds; 0 means that there is no timer."""
    given = interval.total_seconds() if isinstance(interval, timedelta) else interval
    seconds = check_seconds("interval", given, most=threading.TIMEOUT_MAX)
    if given is interval and seconds >= _MILLISECONDS:
        raise InvalidCall(
            f"interval is a number of seconds, and {short(interval)} looks like milliseconds: give "
            f"{short(interval / 1000)}, or a timedelta for a long interval"
        )
    return seconds


def _subclass(base: Any, plan: _SnapshotPlan) -> type[Any]:
    class WithSnapshots(base):  # type: ignore[misc] # the base is known at run time only
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            plan.start(self)

        def destroy(self) -> None:
            """End the timed snapshots."""
            _stop(self)
            if hasattr(base, "destroy"):
                super().destroy()

        def __enter__(self) -> Any:
            entered = super().__enter__() if hasattr(base, "__enter__") else self
            _saver_of(self).__enter__()
            return entered

        def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
            _saver_of(self).__exit__(kind, error, trace)
            if not hasattr(base, "__exit__"):
                return self.destroy()
            _stop(self)
            return super().__exit__(kind, error, trace)

    return WithSnapshots


def _async_subclass(base: Any) -> type[Any]:
    class WithAsyncSnapshots(base):  # type: ignore[misc] # the base is known at run time only
        async def __aenter__(self) -> Any:
            entered = await super().__aenter__()
            _saver_of(self).__enter__()
            return entered

        async def __aexit__(self, kind: Any, error: Any, trace: Any) -> Any:
            # Saved in a thread, so that the event loop does not wait for a disk.
            await asyncio.to_thread(_saver_of(self).__exit__, kind, error, trace)
            _stop(self)
            return await super().__aexit__(kind, error, trace)

    return WithAsyncSnapshots


class _SnapshotPlan:
    """Configuration of the snapshots of one class."""

    def __init__(self, manager: SnapshotManager, every: float | None, **parts: Any) -> None:
        for name, part in parts.items():
            if part is not None and not isinstance(part, str) and not callable(part):
                raise InvalidCall(
                    f"{name} names an attribute, or is a function of the object, not {short(part)}"
                )
        self._manager, self._every, self._parts = manager, every, parts

    def start(self, run: Any) -> None:
        """Start saving an object periodically."""
        if id(run) in _savers:
            return
        try:
            weak = weakref.ref(run)
        except TypeError as error:
            raise InvalidCall(f"no timed snapshots: {error}") from None
        run_id = id_text(self._part(run, "run_id", RUN_ID, "id"))
        if run_id is None:
            raise InvalidCall(
                f"{type(run).__name__} has no run_id: pass run_id=… to with_snapshots, the name of an attribute or a "
                "function of the object"
            )
        lock = self._part(run, "lock")
        if lock is not None and not isinstance(lock, AbstractContextManager):
            raise InvalidCall(f"lock is a context manager such as threading.Lock(), not {short(lock)}")

        def read() -> Reading:
            found = weak()
            if found is None:
                raise SourceGone
            store = self._part(found, "store", "store")
            workflow = id_text(self._part(found, "workflow_id", WORKFLOW_ID))
            return self._manager.read(run_id, found if store is None else store, workflow)

        saver = self._manager.saver(run_id, read, every=self._every, lock=lock)
        _savers[id(run)] = saver
        weakref.finalize(run, _abandon, id(run)).atexit = False
        saver.start()

    def _part(self, run: Any, name: str, *defaults: str) -> Any:
        """Return the configured part of an object, or the first of its default attributes that is not None; None if
        there is none."""
        part = self._parts[name]
        if callable(part):
            return part(run)
        if part is not None:
            return getattr(run, part)
        return next((found for each in defaults if (found := getattr(run, each, None)) is not None), None)


def _saver_of(run: Any) -> AbstractContextManager[Any]:
    return _savers.get(id(run)) or nullcontext()


def _abandon(identity: int) -> None:
    """Abandon the timer of a collected object without waiting for it, because this may run in any thread."""
    saver = _savers.pop(identity, None)
    if saver is not None:
        saver.abandon()


def _stop(run: Any) -> None:
    saver = _savers.pop(id(run), None)
    if saver is not None:
        saver.stop()
