"""The manager: takes snapshots of runs, keeps the latest, and restores them; and classes whose objects it saves
periodically, from their creation until they are destroyed or collected.

The snapshots of run `R` are the versions of a separate run, `snapshots/R`. They are not merged and not rolled
back: each follows the previous one and holds the state that was read. All operations on a history work on
them. The timer of an object has only a weak reference to it, so that an unreferenced object is collected as
usual, and its timer ends.

Invariant: after each snapshot the run has at most `max_snapshots` of them, not counting tagged or pinned
ones. A caller's mistake raises an error; any other failure logs a warning on the logger `holdfast`, and takes
no snapshot. An object of `with_snapshots` behaves like one of its own class, except for `destroy` and `with`;
after `destroy` returns, no timed snapshot of it is taken.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from holdfast import engine
from holdfast.compat.autosave import Autosave, FailureLog, Reading, SourceGone
from holdfast.compat.snapshot_manager.snapshot import (
    PREFIX,
    RUN_ID,
    WORKFLOW_ID,
    Restored,
    Snapshot,
    Target,
    check_snapshot_run,
    document_of,
    fields_of,
    holder_of,
    meta_of,
    of_version,
    read_document,
    restore,
    storable_fields,
)
from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall, InvalidSnapshot, NotFound
from holdfast.history.history import History
from holdfast.history.version import Version
from holdfast.model.checks import check_integer, check_seconds, check_text
from holdfast.model.names import MAX_ID, MAX_NOTE, check_tag, check_tags, short
from holdfast.model.retention import Retention

#: In a file or server store that this manager opened, unreferenced large values are removed once per this many
#: prunings.
_COLLECT_EVERY = 64
#: Maximum number of runs whose last snapshot failure is remembered.
_MAX_FAILURES = 1000

#: Savers of live objects by identity, because an object may not accept new attributes, or not be hashable.
_savers: dict[int, Autosave] = {}


class SnapshotManager:
    """Keeper of the latest snapshots of any number of runs. Safe to use from several threads.

    `history` is the storage: None (in memory), a path or address as for `holdfast.open`, or an open store. A
    store that the manager opened is closed with it. `max_snapshots` applies to each run; tagged snapshots are
    kept in addition. With `strict`, a snapshot that fails raises an error in the caller instead of logging a
    warning.
    """

    def __init__(
        self,
        max_snapshots: int = 10,
        history: Holdfast | str | os.PathLike[str] | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self.max_snapshots = check_integer("max_snapshots", max_snapshots, 1)
        if isinstance(history, History):
            raise InvalidCall(
                f"history is a whole store, and {history!r} one run in it: give holdfast.open(…) itself"
            )
        if not isinstance(history, Holdfast | str | os.PathLike | None):
            raise InvalidCall(f"history is a path, an address or an open store, not {short(history)}")
        self._strict = strict
        self._owns_store = not isinstance(history, Holdfast)
        self._in_memory = history in (None, ":memory:")
        if isinstance(history, Holdfast):
            self._hf = history
        else:
            self._hf = engine.open(":memory:" if history is None else history)
        self._lock = threading.Lock()
        self._prunings = 0
        self._failures: dict[str, FailureLog] = {}
        self._savers: weakref.WeakSet[Autosave] = weakref.WeakSet()

    # Creating and restoring

    def create_snapshot(
        self,
        run_id: str,
        store: Any,
        *,
        workflow_id: str | None = None,
        tags: Iterable[str] = (),
        note: str | None = None,
    ) -> Snapshot | None:
        """Take a snapshot of every field of `store`: an object, a dict, a function that returns one, or an
        object with `get_state()`.

        Values that cannot be stored are replaced, and listed in the snapshot's `replaced`. If the store has a
        `run_id` or a `workflow_id`, they must equal the given ones. Return None if the snapshot failed: a
        warning gives the reason, and the run continues.
        """
        run_id = check_snapshot_run(run_id)
        check_text("note", note, MAX_NOTE)
        names = check_tags(tags)
        check_text("workflow_id", workflow_id, MAX_ID)
        refused: list[InvalidCall] = []
        found = Reading(None)

        def read() -> Reading:
            nonlocal found
            try:
                found = _reading(run_id, store, workflow_id)
            except InvalidCall as error:
                refused.append(error)
                raise
            return found

        try:
            made = of_version(self.saver(run_id, read).take(note=note, tags=names), found.annotations)
        except Exception as error:
            if self._strict or any(error is each for each in refused):
                raise
            if len(self._failures) >= _MAX_FAILURES:
                self._failures.clear()
            self._failures.setdefault(run_id, FailureLog(run_id)).report(error, "no snapshot")
            return None
        self._failures.pop(run_id, None)
        return made

    def restore_from_snapshot(
        self,
        run_id: str,
        store: Any,
        snapshot: Snapshot,
        *,
        workflow_id: str | None = None,
        keep_unknown: bool | None = None,
    ) -> Restored:
        """Write the fields of a snapshot back into `store`, which may be a new object; all of them, or none.

        The snapshot must be of this run, and of this workflow if it is known; so must the fields `run_id` and
        `workflow_id` of the store. Fields that are not in the snapshot are removed from a dict and kept in an
        object; `keep_unknown` overrides that. A store with `get_state` and `set_state` gets the fields
        through `set_state`. The history does not change.
        """
        run_id = check_snapshot_run(run_id)
        check_text("workflow_id", workflow_id, MAX_ID)
        if not isinstance(snapshot, Snapshot):
            raise InvalidCall(f"give a snapshot, such as import_snapshot returns, not {short(snapshot)}")
        if keep_unknown not in (None, True, False):
            raise InvalidCall(f"keep_unknown is True, False or None, not {short(keep_unknown)}")
        _must_match("the snapshot", RUN_ID, run_id, snapshot.run_id)
        _must_match("the snapshot", WORKFLOW_ID, workflow_id, snapshot.workflow_id)
        target = Target(store)
        for name, wanted in ((RUN_ID, run_id), (WORKFLOW_ID, workflow_id or snapshot.workflow_id)):
            _must_match("the store", name, wanted, target.fields.get(name))
        return restore(target, snapshot, keep_unknown=keep_unknown)

    def saver(
        self,
        run_id: str,
        read: Callable[[], Reading],
        *,
        every: float | None = None,
        lock: AbstractContextManager[Any] | None = None,
    ) -> Autosave:
        """Return a saver that takes snapshots of one run by `read`, every `every` seconds or on demand, and removes
        those above `max_snapshots`."""
        log = self.history(run_id)
        made = Autosave(read, log, every=every, lock=lock, after=lambda version: self._prune(log, version))
        with self._lock:
            self._savers.add(made)
        return made

    # Reading

    def get_latest_snapshot(self, run_id: str) -> Snapshot | None:
        """Return the latest snapshot; None if there is none."""
        return next(self._newest_first(run_id), None)

    def get_all_snapshots(
        self,
        run_id: str,
        *,
        tag: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
    ) -> list[Snapshot]:
        """Return the snapshots of a run, oldest first: all, or those with a tag, those taken since a time,
        the last `limit`."""
        if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
            raise InvalidCall(f"since is a datetime with a time zone, not {short(since)}")
        if limit is not None:
            check_integer("limit", limit, 1)
        found: list[Snapshot] = []
        for snapshot in self._newest_first(run_id, tag=None if tag is None else check_tag(tag)):
            if (since is not None and snapshot.timestamp < since) or len(found) == limit:
                break
            found.append(snapshot)
        return found[::-1]

    def get_run_ids(self) -> list[str]:
        """Return the ids of the runs that have snapshots, sorted."""
        return sorted(run.id.removeprefix(PREFIX) for run in self._hf.iter_runs(prefix=PREFIX))

    def history(self, run_id: str) -> History:
        """Return the history whose versions are the snapshots of a run: for `diff`, `blame`, `tag`, `pin` …"""
        return self._hf.history(PREFIX + check_snapshot_run(run_id))

    # Deleting

    def clear_snapshots(self, run_id: str) -> None:
        """Delete all snapshots of a run permanently, including tagged ones. Do nothing if there are none."""
        with suppress(NotFound):
            self._hf.delete(PREFIX + check_snapshot_run(run_id))
            self._collect()

    def clear_all_snapshots(self) -> None:
        """Delete the snapshots of all runs in the store, and nothing else."""
        for run_id in self.get_run_ids():
            self.clear_snapshots(run_id)

    # Export and import

    def export_snapshot(self, snapshot: Snapshot) -> str:
        """Return a snapshot as exact JSON text."""
        if not isinstance(snapshot, Snapshot):
            raise InvalidCall(f"export_snapshot takes a snapshot, not {short(snapshot)}")
        return json.dumps(document_of(snapshot))

    def import_snapshot(self, text: str | bytes | dict[str, Any], *, run_id: str | None = None) -> Snapshot:
        """Check and return a snapshot that `export_snapshot` wrote; raise `InvalidSnapshot` if it is damaged. With
        `run_id`, make it a snapshot of that run. It is not saved: to save it, pass it to `create_snapshot` as
        `store`."""
        return read_document(text, run_id=run_id)

    # Closing

    def close(self) -> None:
        """End all timed snapshots, and close the store if the manager opened it."""
        with self._lock:
            savers = list(self._savers)
        for saver in savers:
            saver.stop()
        if self._owns_store:
            self._hf.close()

    def __enter__(self) -> SnapshotManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Internals

    def _prune(self, log: History, version: Version) -> None:
        if version.number <= self.max_snapshots:
            return
        if log.prune(Retention(last=self.max_snapshots), quiet=True).versions:
            with self._lock:
                self._prunings += 1
                due = self._prunings % _COLLECT_EVERY == 0
            if due or self._in_memory:
                self._collect()

    def _collect(self) -> None:
        """Remove unreferenced large values, unless the store was opened by the caller, who is responsible
        for it."""
        if self._in_memory:
            self._hf.gc(grace=0)
        elif self._owns_store:
            self._hf.gc()

    def _newest_first(self, run_id: str, *, tag: str | None = None) -> Iterator[Snapshot]:
        with suppress(NotFound):
            for version in self.history(run_id).iter_versions(tag=tag):
                try:
                    found = of_version(version)
                except NotFound:
                    # Another process pruned it during the iteration.
                    continue
                yield found

    def __repr__(self) -> str:
        where = "in memory" if self._in_memory else f"on {self._hf.where or 'a store'}"
        return f"<SnapshotManager of {self.max_snapshots} a run, {where}>"


def _reading(run_id: str, store: Any, workflow_id: str | None) -> Reading:
    """Return the content of a snapshot of a store; raise `InvalidSnapshot` if the store belongs to another
    run."""
    before: tuple[str, ...] = ()
    if isinstance(store, Snapshot):
        _must_match("the snapshot", RUN_ID, run_id, store.run_id)
        before, own, holder = store.replaced, store.workflow_id, store
        fields: dict[Any, Any] = store.state
    else:
        holder = holder_of(store)
        fields = fields_of(holder)
        own = _id_text(fields.get(WORKFLOW_ID))
    _must_match("the store", RUN_ID, run_id, fields.get(RUN_ID))
    _must_match("the store", WORKFLOW_ID, workflow_id, own)
    state, replaced = storable_fields(holder, fields)
    return Reading(state, meta_of(workflow_id or own, dict.fromkeys((*before, *replaced))))


def _id_text(value: Any) -> str | None:
    """Return an id as text; None if the value is not an id."""
    return str(value) or None if isinstance(value, str | int | UUID) else None


def _must_match(what: str, name: str, wanted: str | None, value: Any) -> None:
    """Raise `InvalidSnapshot` if both ids are known and differ."""
    found = _id_text(value)
    if wanted is not None and found is not None and found != wanted:
        raise InvalidSnapshot(
            f"{what} has the {name} {short(found)}, not {short(wanted)}; nothing was done. Give a store and a snapshot "
            "of the same run, or import the snapshot with run_id=…",
            expected=wanted,
            found=found,
        )


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
            f"{run_class.__name__} is a msgspec.Struct, whose __init__ cannot be extended: wrap it in a class"
        )
    every = check_seconds("interval", interval, above_zero=True, most=threading.TIMEOUT_MAX)
    plan = _SnapshotPlan(manager, every, run_id=run_id, store=store, workflow_id=workflow_id, lock=lock)

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

    def __init__(self, manager: SnapshotManager, every: float, **parts: Any) -> None:
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
        run_id = _id_text(self._part(run, "run_id", RUN_ID, "id"))
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
            workflow = _id_text(self._part(found, "workflow_id", WORKFLOW_ID))
            return _reading(run_id, found if store is None else store, workflow)

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
