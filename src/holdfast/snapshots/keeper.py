"""The manager: takes snapshots of runs, keeps the last of them, and gives them back.

The snapshots of run `R` are the versions of a run of their own, `snapshots/R`. They are not merged and not rolled back:
each follows the one before it and holds what was read. All that can be done with a history can be done with them.

Invariant: after each snapshot the run has at most `max_snapshots` of them, beside those that are tagged or pinned. What
the caller got wrong is an error; what fails otherwise is a warning on the logger `holdfast`, and no snapshot.
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
from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall, InvalidSnapshot, NotFound
from holdfast.history.history import History
from holdfast.history.version import Version
from holdfast.model.names import MAX_ID, MAX_NOTE, check_number, check_tag, check_tags, check_text, short
from holdfast.model.retention import Retention
from holdfast.runtime.autosave import Autosave, Reading, Trouble
from holdfast.snapshots.fields import Target, fields_of, holder_of
from holdfast.snapshots.record import (
    PREFIX,
    RUN_ID,
    WORKFLOW_ID,
    Snapshot,
    check_snapshot_run,
    document_of,
    meta_of,
    of_version,
    read_document,
)
from holdfast.snapshots.restore import Restored, restore, storable_fields

_PAGE = 256
#: Of a store that others may write to, large values that nobody holds are removed after so many prunings.
_COLLECT_EVERY = 64
#: Runs of which it is remembered why there is no snapshot.
_TROUBLED = 1000


class SnapshotManager:
    """Keeps the last snapshots of runs: of any number of runs, from any threads.

    `history` is where: nothing (in memory), a path or address as for `holdfast.open`, or an open store. A store that
    the manager opened is closed with it. `max_snapshots` is kept for each run; a snapshot with a tag is kept beyond
    that. With `strict`, a snapshot that fails is an error for whoever asks for it, and not only a warning.
    """

    def __init__(
        self,
        max_snapshots: int = 10,
        history: Holdfast | str | os.PathLike[str] | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self.max_snapshots = check_number("max_snapshots", max_snapshots, 1)
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

    # Taking and restoring

    def create_snapshot(
        self,
        run_id: str,
        store: Any,
        *,
        workflow_id: str | None = None,
        tags: Iterable[str] = (),
        note: str | None = None,
    ) -> Snapshot | None:
        """Take a snapshot of every field of `store`: an object, a dict, a function that gives one, an object with
        `get_state()`.

        What cannot be stored is replaced, and named in the snapshot's `replaced`. A store with a `run_id` or a
        `workflow_id` must have these. None if it failed: a warning says why, and the run goes on.
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
            made = of_version(self._saver(run_id, read).take(note=note, tags=names), found.meta)
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
        """Put the fields of a snapshot back into `store`, which may be a new object; all of them, or none.

        The snapshot must be of this run, and of this workflow where that is known; so must be what the store itself
        says in its fields `run_id` and `workflow_id`. Fields that the snapshot does not have are removed from a dict
        and left alone in an object; `keep_unknown` says otherwise. A store with `get_state` and `set_state` is given
        the fields by the latter. The history is left as it is.
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

    # Looking

    def get_latest_snapshot(self, run_id: str) -> Snapshot | None:
        """The snapshot that was taken last; None if there is none."""
        return next(self._newest_first(run_id), None)

    def get_all_snapshots(
        self,
        run_id: str,
        *,
        tag: str | None = None,
        since: datetime | None = None,
        limit: int | None = None,
    ) -> list[Snapshot]:
        """The snapshots of a run, oldest first: all, or those with a tag, those taken since a time, the last so
        many."""
        if since is not None and (not isinstance(since, datetime) or since.tzinfo is None):
            raise InvalidCall(f"since is a datetime with a time zone, not {short(since)}")
        if limit is not None:
            check_number("limit", limit, 1)
        found: list[Snapshot] = []
        for snapshot in self._newest_first(run_id, tag=None if tag is None else check_tag(tag)):
            if (since is not None and snapshot.timestamp < since) or len(found) == limit:
                break
            found.append(snapshot)
        return found[::-1]

    def get_run_ids(self) -> list[str]:
        """The runs of which there are snapshots, in order."""
        return sorted(run_id.removeprefix(PREFIX) for run_id in self._hf.ids(PREFIX))

    def history(self, run_id: str) -> History:
        """The history that the snapshots of a run are the versions of: for `diff`, `blame`, `tag`, `pin` …"""
        return self._hf.history(PREFIX + check_snapshot_run(run_id))

    # Clearing

    def clear_snapshots(self, run_id: str) -> None:
        """Remove all snapshots of a run, tagged ones too, for ever. Harmless if there are none."""
        try:
            self._hf.delete(PREFIX + check_snapshot_run(run_id))
        except NotFound:
            return
        self._collect()

    def clear_all_snapshots(self) -> None:
        """Remove the snapshots of all runs that this store has any of; nothing else in it."""
        for run_id in self.get_run_ids():
            self.clear_snapshots(run_id)

    # Out and in

    def export_snapshot(self, snapshot: Snapshot) -> str:
        """A snapshot as JSON text, exact, to be kept anywhere."""
        if not isinstance(snapshot, Snapshot):
            raise InvalidCall(f"export_snapshot takes a snapshot, not {short(snapshot)}")
        return json.dumps(document_of(snapshot))

    def import_snapshot(self, text: str | bytes | dict[str, Any], *, run_id: str | None = None) -> Snapshot:
        """The snapshot that a text of `export_snapshot` describes, checked as a whole, or `InvalidSnapshot`. With
        `run_id`, as a snapshot of that run. It is not added to those that the manager keeps: give it to
        `create_snapshot` as a store for that."""
        return read_document(text, run_id=run_id)

    # Ending

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

    # How it works

    def _saver(
        self,
        run_id: str,
        read: Callable[[], Reading],
        *,
        every: float | None = None,
        lock: AbstractContextManager[Any] | None = None,
    ) -> Autosave:
        """What takes the snapshots of one run from one source, and prunes after each."""
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
        """Remove large values that no snapshot holds any more. A store that somebody else opened is his to clean."""
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
                    # Pruned by another while we looked.
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
    """What a snapshot of a store would hold now; `InvalidSnapshot` if the store says that it is another run's."""
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
    """An id as a text; None for what is none."""
    return str(value) or None if isinstance(value, str | int | UUID) else None


def _must_match(what: str, name: str, wanted: str | None, value: Any) -> None:
    """`InvalidSnapshot` if two ids are known and differ."""
    found = text_of(value)
    if wanted is not None and found is not None and found != wanted:
        raise InvalidSnapshot(
            f"{what} has the {name} {short(found)}, not {short(wanted)}: nothing was done. Give what belongs together, "
            "or import the snapshot under another run_id=…",
            expected=wanted,
            found=found,
        )
