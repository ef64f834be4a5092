"""Classes whose objects are saved periodically, from their creation until they are destroyed or collected.

The timer is that of `holdfast.autosave`. It has only a weak reference to the object, so that an unreferenced
object is collected as usual, and its timer ends.

Invariant: an object behaves like one of its own class, except for `destroy` and `with`; after `destroy`
returns, no timed snapshot of it is taken.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec

from holdfast.compat.autosave import Autosave, Reading, SourceGone
from holdfast.compat.snapshot_manager.manager import SnapshotManager, reading, text_of
from holdfast.compat.snapshot_manager.record import RUN_ID, WORKFLOW_ID
from holdfast.errors import InvalidCall
from holdfast.model.checks import check_seconds
from holdfast.model.names import short

#: Savers of live objects by identity, because an object may not accept new attributes, or not be hashable.
_savers: dict[int, Autosave] = {}


def with_snapshots(
    run_class: type,
    manager: SnapshotManager,
    interval: float = 5.0,
    *,
    run_id: str | Callable[[Any], str] | None = None,
    store: str | Callable[[Any], Any] | None = None,
    workflow_id: str | Callable[[Any], str] | None = None,
    lock: str | Callable[[Any], AbstractContextManager[Any]] | None = None,
) -> type[Any]:
    """Return a subclass of `run_class` whose objects are saved every `interval` seconds if something
    changed.

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
            f"{run_class.__name__} is a msgspec.Struct, which knows no __init__: wrap it in a class"
        )
    every = check_seconds("interval", interval, above_zero=True, most=threading.TIMEOUT_MAX)
    plan = _Plan(manager, every, run_id=run_id, store=store, workflow_id=workflow_id, lock=lock)

    base: Any = run_class
    try:
        made = _subclass(base, plan)
        if hasattr(base, "__aenter__") and hasattr(base, "__aexit__"):
            made = _awaited(made)
    except TypeError as error:
        raise InvalidCall(f"{run_class.__name__} cannot have a subclass with snapshots: {error}") from error
    made.__name__ = f"{run_class.__name__}WithSnapshots"
    made.__qualname__ = f"{run_class.__qualname__}WithSnapshots"
    made.__module__, made.__doc__ = run_class.__module__, run_class.__doc__
    return made


def _subclass(base: Any, plan: _Plan) -> type[Any]:
    class WithSnapshots(base):  # type: ignore[misc] # the base is known at run time only
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            plan.begin(self)

        def destroy(self) -> None:
            """End the timed snapshots."""
            _end(self)
            if hasattr(base, "destroy"):
                super().destroy()

        def __enter__(self) -> Any:
            entered = super().__enter__() if hasattr(base, "__enter__") else self
            _around(self).__enter__()
            return entered

        def __exit__(self, kind: Any, error: Any, trace: Any) -> Any:
            _around(self).__exit__(kind, error, trace)
            if not hasattr(base, "__exit__"):
                return self.destroy()
            _end(self)
            return super().__exit__(kind, error, trace)

    return WithSnapshots


def _awaited(base: Any) -> type[Any]:
    class WithSnapshots(base):  # type: ignore[misc] # the base is known at run time only
        async def __aenter__(self) -> Any:
            entered = await super().__aenter__()
            _around(self).__enter__()
            return entered

        async def __aexit__(self, kind: Any, error: Any, trace: Any) -> Any:
            # Saved in a thread, so that the event loop does not wait for a disk.
            await asyncio.to_thread(_around(self).__exit__, kind, error, trace)
            _end(self)
            return await super().__aexit__(kind, error, trace)

    return WithSnapshots


class _Plan:
    """Configuration of the snapshots of one class."""

    def __init__(self, manager: SnapshotManager, every: float, **parts: Any) -> None:
        for name, part in parts.items():
            if part is not None and not isinstance(part, str) and not callable(part):
                raise InvalidCall(
                    f"{name} names an attribute, or is a function of the object, not {short(part)}"
                )
        self._manager, self._every, self._parts = manager, every, parts

    def begin(self, run: Any) -> None:
        """Start saving an object periodically."""
        if id(run) in _savers:
            return
        try:
            weak = weakref.ref(run)
        except TypeError as error:
            raise InvalidCall(f"no snapshots by time: {error}") from None
        run_id = text_of(self._part(run, "run_id", RUN_ID, "id"))
        if run_id is None:
            raise InvalidCall(
                f"{type(run).__name__} has no run_id: say with_snapshots(…, run_id=…), the name of an attribute or a "
                "function of the object"
            )
        lock = self._part(run, "lock")
        if lock is not None and not isinstance(lock, AbstractContextManager):
            raise InvalidCall(f"lock is used as `with lock:`, which {short(lock)} is not made for")

        def read() -> Reading:
            found = weak()
            if found is None:
                raise SourceGone
            store = self._part(found, "store", "store")
            workflow = text_of(self._part(found, "workflow_id", WORKFLOW_ID))
            return reading(run_id, found if store is None else store, workflow)

        saver = self._manager._saver(run_id, read, every=self._every, lock=lock)
        _savers[id(run)] = saver
        weakref.finalize(run, _forget, id(run)).atexit = False
        saver.start()

    def _part(self, run: Any, name: str, *otherwise: str) -> Any:
        """Return the configured part of an object, or the first of its default attributes that is set; None
        for none."""
        said = self._parts[name]
        if callable(said):
            return said(run)
        if said is not None:
            return getattr(run, said)
        return next((found for each in otherwise if (found := getattr(run, each, None)) is not None), None)


def _around(run: Any) -> AbstractContextManager[Any]:
    return _savers.get(id(run)) or nullcontext()


def _forget(identity: int) -> None:
    """Abandon the timer of a collected object without waiting for it, because this may run in any thread."""
    saver = _savers.pop(identity, None)
    if saver is not None:
        saver.abandon()


def _end(run: Any) -> None:
    saver = _savers.pop(id(run), None)
    if saver is not None:
        saver.stop()
