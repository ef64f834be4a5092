"""The manager: takes snapshots of runs, keeps the latest, and restores them.

The snapshots of run `R` are the versions of a separate run, `snapshots/R`. They are not merged and not rolled
back: each follows the previous one and holds the state that was read. All operations on a history work on
them.

Invariant: after each snapshot the run has at most `max_snapshots` of them, not counting tagged or pinned
ones. A caller's mistake raises an error; any other failure logs a warning on the logger `holdfast`, and takes
no snapshot.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime
from typing import Any
from uuid import UUID

from holdfast import engine
from holdfast.compat.autosave import Autosave, Reading, Trouble
from holdfast.compat.snapshot_manager.record import (
    PREFIX,
    RUN_ID,
    WORKFLOW_ID,
    Snapshot,
    Target,
    check_snapshot_run,
    document_of,
    fields_of,
    holder_of,
    meta_of,
    of_version,
    read_document,
)
from holdfast.compat.snapshot_manager.restore import Restored, restore, storable_fields
from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall, InvalidSnapshot, NotFound
from holdfast.history.history import History
from holdfast.history.version import Version
from holdfast.model.checks import check_integer, check_text
from holdfast.model.names import MAX_ID, MAX_NOTE, check_tag, check_tags, short
from holdfast.model.retention import Retention

_PAGE = 256
#: In a file or server store that this manager opened, unreferenced large values are removed once per this many
#: prunings.
_COLLECT_EVERY = 64
#: Maximum number of runs whose last snapshot failure is remembered.
_TROUBLED = 1000


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
        self._own = not isinstance(history, Holdfast)
        self._alone = history in (None, ":memory:")
        self._hf = (
            history
            if isinstance(history, Holdfast)
            else engine.open(":memory:" if history is None else history)
        )
        self._lock = threading.Lock()
        self._prunings = 0
        self._troubles: dict[str, Trouble] = {}
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
                found = reading(run_id, store, workflow_id)
            except InvalidCall as error:
                refused.append(error)
                raise
            return found

        try:
            made = of_version(self._saver(run_id, read).take(note=note, tags=names), found.annotations)
        except Exception as error:
            if self._strict or any(error is each for each in refused):
                raise
            self._trouble(run_id).tell(error, "no snapshot")
            return None
        self._troubles.pop(run_id, None)
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
            raise InvalidCall(
                f"give a snapshot, as import_snapshot makes one of a text, not {short(snapshot)}"
            )
        if keep_unknown not in (None, True, False):
            raise InvalidCall(f"keep_unknown is True, False or None, not {short(keep_unknown)}")
        _must_match("the snapshot", RUN_ID, run_id, snapshot.run_id)
        _must_match("the snapshot", WORKFLOW_ID, workflow_id, snapshot.workflow_id)
        target = Target(store)
        for name, wanted in ((RUN_ID, run_id), (WORKFLOW_ID, workflow_id or snapshot.workflow_id)):
            _must_match("the store", name, wanted, target.fields.get(name))
        return restore(target, snapshot, keep_unknown=keep_unknown)

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
        try:
            self._hf.delete(PREFIX + check_snapshot_run(run_id))
        except NotFound:
            return
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
        """Return the snapshot in a text of `export_snapshot`, after checking all of it, or raise
        `InvalidSnapshot`. With `run_id`, make it a snapshot of that run. The manager does not keep it:
        pass it to `create_snapshot` as the store for that."""
        return read_document(text, run_id=run_id)

    # Closing

    def close(self) -> None:
        """End all timed snapshots, and close the store if the manager opened it."""
        with self._lock:
            savers = list(self._savers)
        for saver in savers:
            saver.stop()
        if self._own:
            self._hf.close()

    def __enter__(self) -> SnapshotManager:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Internals

    def _saver(
        self,
        run_id: str,
        read: Callable[[], Reading],
        *,
        every: float | None = None,
        lock: AbstractContextManager[Any] | None = None,
    ) -> Autosave:
        """Return a saver that takes snapshots of one run from one source, and prunes after each."""
        log = self.history(run_id)
        made = Autosave(read, log, every=every, lock=lock, after=lambda version: self._prune(log, version))
        with self._lock:
            self._savers.add(made)
        return made

    def _prune(self, log: History, version: Version) -> None:
        if version.number <= self.max_snapshots:
            return
        if log.prune(Retention(last=self.max_snapshots), quiet=True).versions:
            with self._lock:
                self._prunings += 1
                due = self._prunings % _COLLECT_EVERY == 0
            if due or self._alone:
                self._collect()

    def _collect(self) -> None:
        """Remove unreferenced large values, unless the store was opened by the caller, who is responsible
        for it."""
        if self._alone:
            self._hf.gc(grace=0)
        elif self._own:
            self._hf.gc()

    def _newest_first(self, run_id: str, *, tag: str | None = None) -> Iterator[Snapshot]:
        log = self.history(run_id)
        before: int | None = None
        while True:
            try:
                page = log.versions(limit=_PAGE, before=before, tag=tag)
            except NotFound:
                return
            for version in page:
                try:
                    found = of_version(version)
                except NotFound:
                    # Another process pruned it during the iteration.
                    continue
                yield found
            if len(page) < _PAGE:
                return
            before = page[-1].number

    def _trouble(self, run_id: str) -> Trouble:
        if len(self._troubles) >= _TROUBLED:
            self._troubles.clear()
        return self._troubles.setdefault(run_id, Trouble(run_id))

    def __repr__(self) -> str:
        where = "in memory" if self._alone else f"on {self._hf.where or 'a store'}"
        return f"<SnapshotManager of {self.max_snapshots} a run, {where}>"


def reading(run_id: str, store: Any, workflow_id: str | None) -> Reading:
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
        own = text_of(fields.get(WORKFLOW_ID))
    _must_match("the store", RUN_ID, run_id, fields.get(RUN_ID))
    _must_match("the store", WORKFLOW_ID, workflow_id, own)
    state, replaced = storable_fields(holder, fields)
    return Reading(state, meta_of(workflow_id or own, dict.fromkeys((*before, *replaced))))


def text_of(value: Any) -> str | None:
    """Return an id as text; None if the value is not an id."""
    return str(value) or None if isinstance(value, str | int | UUID) else None


def _must_match(what: str, name: str, wanted: str | None, value: Any) -> None:
    """Raise `InvalidSnapshot` if both ids are known and differ."""
    found = text_of(value)
    if wanted is not None and found is not None and found != wanted:
        raise InvalidSnapshot(
            f"{what} has the {name} {short(found)}, not {short(wanted)}: nothing was done. Give what belongs together, "
            "or import the snapshot under another run_id=…",
            expected=wanted,
            found=found,
        )
