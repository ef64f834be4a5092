"""The manager: takes snapshots of runs, keeps the latest, and restores them.

The snapshots of run `R` are the versions of a separate run, `snapshots/R`. They are not merged: each follows
the previous one and holds the state that was read. All operations on a history work on them. Pruning reads what
all of them share, so that up to half as many more are stored before they are pruned together.

Invariant: a run has at most `max_snapshots` of them, not counting tagged or pinned ones. A caller's mistake
raises an error; any other failure logs a warning on the logger `holdfast`, and takes no snapshot. A damaged
snapshot is left out, and reported.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from datetime import datetime
from typing import Any

from holdfast import engine
from holdfast.compat.autosave import Autosave, FailureLog, Reading
from holdfast.compat.snapshot_manager.fields import (
    TEMPORARY,
    Target,
    fields_of,
    holder_of,
    is_whole,
    refuse_temporary,
    storable_fields,
)
from holdfast.compat.snapshot_manager.kaiban import LAST_SECOND
from holdfast.compat.snapshot_manager.restoring import Restored, restore
from holdfast.compat.snapshot_manager.snapshot import (
    PREFIX,
    RUN_ID,
    WORKFLOW_ID,
    Snapshot,
    check_snapshot_run,
    document_of,
    id_text,
    meta_of,
    of_version,
    read_document,
)
from holdfast.engine import Holdfast
from holdfast.errors import CorruptStore, CorruptVersion, InvalidCall, InvalidSnapshot, InvalidState, NotFound
from holdfast.history.history import History
from holdfast.history.version import Version
from holdfast.log import debug, warn
from holdfast.model.checks import check_integer, check_text
from holdfast.model.names import MAX_ID, MAX_NOTE, check_tag, check_tags, short
from holdfast.model.retention import Retention
from holdfast.workflow.state_schema import StateSchema

#: Fewer snapshots than these are pruned one by one.
_FEW = 8
#: Maximum number of runs whose last snapshot failure is remembered.
_MAX_RUNS = 1000


class SnapshotManager:
    """Keeper of the latest snapshots of any number of runs. Safe to use from several threads.

    `history` is the storage: None (in memory), a path or address as for `holdfast.open`, or an open store. A
    store that the manager opened is closed with it. `max_snapshots` applies to each run; tagged snapshots are
    kept in addition. With `strict`, a snapshot that fails raises an error in the caller instead of logging a
    warning. `schema` is a dataclass, a pydantic model, a msgspec struct, a TypedDict or a JSON Schema of the
    fields: `InvalidState` names the path at which they do not fit, when a snapshot is taken, imported or
    restored. With `debug`, each snapshot and restore is logged on the logger `holdfast` at level DEBUG.
    """

    def __init__(
        self,
        max_snapshots: int = 10,
        history: Holdfast | str | os.PathLike[str] | None = None,
        *,
        strict: bool = False,
        schema: Any = None,
        debug: bool = False,
    ) -> None:
        #: Whether each snapshot and restore is logged.
        self.debug = debug
        self.max_snapshots = check_integer("max_snapshots", max_snapshots, 1)
        if isinstance(history, History):
            raise InvalidCall(
                f"history is a whole store, and {history!r} one run in it: give holdfast.open(…) itself"
            )
        if not isinstance(history, Holdfast | str | os.PathLike | None):
            raise InvalidCall(f"history is a path, an address or an open store, not {short(history)}")
        self._strict = strict
        self._schema = None if schema is None else StateSchema(schema)
        self._owns_store = not isinstance(history, Holdfast)
        self._in_memory = history in (None, ":memory:")
        if isinstance(history, Holdfast):
            self._hf = history
        else:
            self._hf = engine.open(":memory:" if history is None else history)
        self._lock = threading.Lock()
        self._failures: dict[str, FailureLog] = {}
        #: Names of the fields that could not be stored as they were in the last snapshot of a run.
        self._sanitized: dict[str, frozenset[Any]] = {}
        #: Reasons why snapshots are damaged, by run and number.
        self._damaged: dict[tuple[str, int], str] = {}
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

        def read() -> Reading:
            try:
                return self._read(run_id, store, workflow_id)
            except InvalidState:
                raise
            except InvalidCall as error:
                refused.append(error)
                raise

        try:
            saver = self.saver(run_id, read)
            made = of_version(saver.take(note=note, tags=names), saver.annotations)
        except Exception as error:
            if self._strict or any(error is each for each in refused):
                raise
            if len(self._failures) >= _MAX_RUNS:
                self._failures.clear()
            self._failures.setdefault(run_id, FailureLog(run_id)).report(error, "no snapshot")
            return None
        self._failures.pop(run_id, None)
        if self.debug:
            debug(
                "snapshot %s of run %r: %s fields, %s replaced",
                made.number,
                run_id,
                len(made.state),
                len(made.replaced),
            )
        return made

    def restore_from_snapshot(
        self,
        run_id: str,
        store: Any,
        snapshot: Snapshot,
        *,
        workflow_id: str | None = None,
        keep_unknown: bool | None = None,
        strict: bool = False,
    ) -> Restored:
        """Write the fields of a snapshot back into `store`, which may be a new object; all of them, or none.

        Values that cannot be made again are listed in `not_restored` of the result; with `strict`,
        `InvalidSnapshot` is raised before anything is changed. A store that nothing refers to except this
        call is a copy, such as `get_state()` may return, and is refused.

        The snapshot must be of this run, and of this workflow if it is known; so must the fields `run_id` and
        `workflow_id` of the store. Fields that are not in the snapshot are removed from a dict and kept in an
        object; `keep_unknown` overrides that. A store with `get_state` and `set_state` gets the fields
        through `set_state`. The history does not change.
        """
        temporary = sys.getrefcount(store) <= TEMPORARY
        return self.restore_store(
            run_id,
            store,
            snapshot,
            workflow_id=workflow_id,
            keep_unknown=keep_unknown,
            strict=strict,
            temporary=temporary,
        )

    def restore_store(
        self,
        run_id: str,
        store: Any,
        snapshot: Snapshot,
        *,
        workflow_id: str | None = None,
        keep_unknown: bool | None = None,
        strict: bool = False,
        temporary: bool = False,
    ) -> Restored:
        """Restore into a store; `temporary` says that only the caller's call refers to it."""
        run_id = check_snapshot_run(run_id)
        check_text("workflow_id", workflow_id, MAX_ID)
        if not isinstance(snapshot, Snapshot):
            raise InvalidCall(f"give a snapshot, such as import_snapshot returns, not {short(snapshot)}")
        if keep_unknown not in (None, True, False):
            raise InvalidCall(f"keep_unknown is True, False or None, not {short(keep_unknown)}")
        _must_match("the snapshot", RUN_ID, run_id, snapshot.run_id)
        _must_match("the snapshot", WORKFLOW_ID, workflow_id, snapshot.workflow_id)
        if temporary:
            refuse_temporary(store)
        target = Target(store)
        if self._schema is not None:
            self._schema.check(snapshot.state)
        for name, wanted in ((RUN_ID, run_id), (WORKFLOW_ID, workflow_id or snapshot.workflow_id)):
            _must_match("the store", name, wanted, target.fields.get(name))
        done = restore(target, snapshot, keep_unknown=keep_unknown, strict=strict)
        if self.debug:
            debug(
                "run %r restored from snapshot %s: %s fields, not restored: %s",
                run_id, snapshot.number, len(done.fields), ", ".join(done.not_restored) or "none",
            )  # fmt: skip
        return done

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
        made = Autosave(
            read,
            log,
            every=every,
            lock=lock,
            after=lambda version: self._prune(log, version),
            repair=lambda error: self._leave_damaged_head(log, error),
        )
        with self._lock:
            self._savers.add(made)
        return made

    # Reading

    def get_latest_snapshot(self, run_id: str) -> Snapshot | None:
        """Return the latest snapshot that is not damaged; None if there is none."""
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
        the last `limit`. Damaged ones are left out: `get_damaged_snapshots` lists them."""
        if isinstance(since, int | float) and not isinstance(since, bool) and abs(since) >= LAST_SECOND:
            raise InvalidCall(
                f"since is a datetime with a time zone, and {short(since)} looks like milliseconds: give "
                f"datetime.fromtimestamp({short(since)} / 1000, UTC)"
            )
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

    def get_damaged_snapshots(self, run_id: str) -> dict[int, str]:
        """Return the reasons why snapshots of a run cannot be read, by number."""
        for _ in self._newest_first(run_id):
            pass
        with self._lock:
            return {number: why for (run, number), why in sorted(self._damaged.items()) if run == run_id}

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
            self._hf.delete(PREFIX + check_snapshot_run(run_id), release=True)
        with self._lock:
            for key in [key for key in self._damaged if key[0] == run_id]:
                del self._damaged[key]

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
        `store`. The JSON of KaibanJS's own `exportSnapshot` can be imported, too: its fields get their names
        in Python (`step_results` for `stepResults`)."""
        made = read_document(text, run_id=run_id)
        if self._schema is not None:
            self._schema.check(made.state)
        return made

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

    def _read(self, run_id: str, store: Any, workflow_id: str | None) -> Reading:
        redact = self.history(run_id).context.redact
        return read_store(
            run_id,
            store,
            workflow_id,
            schema=self._schema,
            sanitized=self._sanitized,
            hides=None if redact is None else redact.hides,
        )

    def read(self, run_id: str, store: Any, workflow_id: str | None) -> Reading:
        """Return the content of a timed snapshot."""
        return self._read(run_id, store, workflow_id)

    def _prune(self, log: History, version: Version) -> None:
        most = self.max_snapshots
        spare = most // 2 if most >= _FEW else 0
        if version.number <= most + spare:
            return
        if spare and log.run_record().kept <= most + spare:
            return
        keep = Retention(last=most)
        try:
            log.prune(keep, quiet=True, release=True)
        except (CorruptVersion, CorruptStore) as error:
            self._report(log.id.removeprefix(PREFIX), error)
            log.prune(keep, quiet=True, release=True, damaged=True)

    def _leave_damaged_head(self, log: History, error: Exception) -> None:
        """Move the head of a run to its newest snapshot that can be read, so that the next one can follow it. If there
        is none, delete the run, or raise the error if only a large value is missing: its folder may not be mounted."""
        run_id = log.id.removeprefix(PREFIX)
        self._report(run_id, error)
        good = next(self._newest_first(run_id), None)
        if good is None and isinstance(error, NotFound):
            raise error
        if good is None:
            warn("no snapshot of run %r can be read: they are deleted, and the next one is the first", run_id)
            self._hf.delete(log.id)
        else:
            # Another process may have pruned it, because it took a snapshot meanwhile.
            with suppress(NotFound):
                log.rollback(to=good.number, reason="the snapshots after it are damaged")

    def _report(self, run_id: str, error: Exception, number: int | None = None) -> None:
        """Log a damaged snapshot once."""
        details = getattr(error, "details", {})
        key = (run_id, number or details.get("version") or 0)
        with self._lock:
            is_new = key not in self._damaged
            if is_new and len(self._damaged) < _MAX_RUNS:
                self._damaged[key] = str(error)
        if is_new:
            warn("snapshot %s of run %r is damaged and left out: %s", key[1] or "?", run_id, error)

    def _newest_first(self, run_id: str, *, tag: str | None = None) -> Iterator[Snapshot]:
        """Yield the snapshots of a run that can be read, without those that are only not pruned yet."""
        left = self.max_snapshots
        with suppress(NotFound):
            for version in self._versions(run_id, tag):
                try:
                    if not (version.tags or version.pinned):
                        left -= 1
                        if left < 0:
                            continue
                    found = of_version(version)
                except (CorruptVersion, CorruptStore) as error:
                    self._report(run_id, error, version.number)
                    continue
                except NotFound as error:
                    # Without a large value of its own; otherwise another process pruned it during the iteration.
                    with suppress(NotFound):
                        self.history(run_id).at(version.number)
                        self._report(run_id, error, version.number)
                    continue
                yield found

    def _versions(self, run_id: str, tag: str | None) -> Iterator[Version]:
        """Yield the versions of a snapshot run, newest first; one by one if rows are missing in their list."""
        log = self.history(run_id)
        try:
            yield from log.iter_versions(tag=tag)
            return
        except CorruptStore as error:
            # Raised with the first page.
            damage = error
        run = log.run_record()
        found, is_known = 0, False
        for number in range(run.last, 0, -1):
            if found == run.kept:
                break
            try:
                version = log.at(number)
            except CorruptVersion as error:
                self._report(run_id, error, number)
            except NotFound:
                # Any other number may be that of a pruned version.
                if number == run.head:
                    self._report(run_id, damage, number)
                    is_known = True
                continue
            else:
                if tag is None or tag in version.tags:
                    yield version
            found += 1
        if not is_known:
            self._report(run_id, damage)

    def __repr__(self) -> str:
        where = "in memory" if self._in_memory else f"on {self._hf.where or 'a store'}"
        return f"<SnapshotManager of {self.max_snapshots} a run, {where}>"


def read_store(
    run_id: str,
    store: Any,
    workflow_id: str | None,
    *,
    schema: StateSchema | None = None,
    sanitized: dict[str, frozenset[Any]] | None = None,
    hides: Callable[[Any], bool] | None = None,
) -> Reading:
    """Return the content of a snapshot of a store; raise `InvalidSnapshot` if the store belongs to another
    run. `sanitized` has the names of the fields, by run, whose values could not be stored as they were last time."""
    known: dict[str, frozenset[Any]] = {} if sanitized is None else sanitized
    if isinstance(store, Snapshot):
        _must_match("the snapshot", RUN_ID, run_id, store.run_id)
        fields: dict[Any, Any] = store.state
        own, replaced, types = store.workflow_id, store.replaced, store.types
        redacts = store.redacts or hides is not None
    else:
        holder = holder_of(store)
        fields = dict.copy(fields_of(holder))
        own, replaced, types = id_text(fields.get(WORKFLOW_ID)), (), {}
        redacts = hides is not None
    workflow = workflow_id or own
    _must_match("the store", RUN_ID, run_id, fields.get(RUN_ID))
    _must_match("the store", WORKFLOW_ID, workflow_id, own)

    def sanitize(names: Iterable[Any]) -> Reading:
        state, replaced, classes = storable_fields(holder, {name: fields[name] for name in names}, hides)
        if len(known) >= _MAX_RUNS:
            known.clear()
        known[run_id] = frozenset(names) if replaced or classes else frozenset()
        return Reading(state, meta_of(workflow, dict.fromkeys(replaced), classes, redacts=redacts))

    meta = meta_of(workflow, replaced, types, redacts=redacts)
    if isinstance(store, Snapshot):
        reading = Reading(fields, meta)
    elif schema is None:
        return Reading(fields, meta, sanitize, is_whole, known.get(run_id, ()))
    else:
        reading = sanitize(fields)
    if schema is not None:
        schema.check(reading.state)
    return reading


def _must_match(what: str, name: str, wanted: str | None, value: Any) -> None:
    """Raise `InvalidSnapshot` if both ids are known and differ."""
    found = id_text(value)
    if wanted is not None and found is not None and found != wanted:
        raise InvalidSnapshot(
            f"{what} has the {name} {short(found)}, not {short(wanted)}; nothing was done. Give a store and a snapshot "
            "of the same run, or import the snapshot with run_id=…",
            expected=wanted,
            found=found,
        )
