"""One run of a thread: its checkpoints, and concurrent puts of checkpoints and writes.

A checkpoint is a version that follows the version of its parent. If the parent already has a successor, it starts a
timeline. Writes of tasks are attachments: they need no order, and no version.

The last checkpoint that this process put is remembered, so that the next one needs no read: LangGraph says which
channels have changed, and the others are taken from the version before. Whether the head is still that checkpoint is
decided by the commit, which names the head that it expects.

A subgraph has a run of its own. A rollback of the thread abandons the checkpoints that the subgraph made since
(`rollbacks`).

Invariant: everything that was put is stored, whole, and no put changes another checkpoint. An abandoned checkpoint is
found by its id and listed, but it is never the latest.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple

from holdfast import History, Version
from holdfast.errors import AlreadyExists, NotFound, StaleVersion, UnsupportedValue
from holdfast.history.attachments import key_after_rollback
from holdfast.integrations.langgraph.checkpoints import PAGE, Attempts, Checkpoints, read_stable
from holdfast.integrations.langgraph.layout import (
    NewCheckpoint,
    Serializer,
    StoredCheckpoint,
    are_stored_alike,
    attachment_name,
    build_state,
    build_trails,
    build_tuple,
    collect_writes,
    is_delta_snapshot,
    not_a_thread,
    parse_run_id,
)
from holdfast.integrations.langgraph.rollbacks import ABANDONED, BRANCH, REPLACED, RunRollbacks
from holdfast.integrations.langgraph.values import adapted, name_channel, storable_write
from holdfast.tree.fold import UNCHANGED, Redactor

#: Seconds that a read waits for a put: longer than a commit takes, unless another process has the file locked.
_PUT_SECONDS = 0.1


class KnownHead(NamedTuple):
    """The head of the run as last read or written."""

    version: Version
    #: None if the run has no checkpoint yet.
    checkpoint: str | None
    #: By node, the versions of channels that it has seen.
    seen: Mapping[str, Any]
    #: The versions of the channels that have a value.
    versions: Mapping[str, Any] = {}
    #: Whether this object put it, so that its values are sealed by the current serializer, and redacted by `redact`.
    #: A redactor that replaced that one hides other keys.
    is_own: bool = False
    redact: Redactor | None = None

    def has(self, name: str, new: NewCheckpoint) -> bool:
        """Return whether a channel of the next checkpoint is the same as here, by its version, as LangGraph's savers
        with a row per channel decide it."""
        return (
            new.names_changes
            and name not in new.changed
            and name in self.versions
            and self.versions[name] == new.versions.get(name)
            and not is_delta_snapshot(new.checkpoint["channel_values"][name])
        )


class CheckpointThread:
    """The run of one namespace of a LangGraph thread. Safe to use from several threads of the process.

    `above` are the runs of the namespaces that contain this one, by namespace.
    """

    def __init__(
        self,
        history: History,
        names: tuple[str, str],
        serializer: Serializer,
        *,
        above: Mapping[str, History],
        single_writer: bool,
    ) -> None:
        self.history = history
        #: Thread and namespace. The state stores them if the run's id holds only a hash of one.
        self._names = names
        self._is_hashed = None in parse_run_id(history.id)
        self._serializer = serializer
        self._single_writer = single_writer
        # Reentrant: a signal handler may read the thread while it interrupts a put.
        self._lock = threading.RLock()
        self._head: KnownHead | None = None
        #: The last head that is known to have a key: key of the run, and number.
        self._keyed_head: tuple[int, int] | None = None
        #: Whether the run is known to be a thread.
        self._is_checked = False
        self.checkpoints = Checkpoints(history, serializer.unseal)
        self._rollbacks = RunRollbacks(self.checkpoints)
        #: By namespace, the rollbacks of the runs above.
        self._rollbacks_above = {
            namespace: RunRollbacks(Checkpoints(run, serializer.unseal)) for namespace, run in above.items()
        }
        #: By checkpoint, the key of its writes if that is not its id.
        self._write_keys: dict[str, str] = {}
        #: The trails of the delta channels of the checkpoint that is put, once they are known.
        self._trails: dict[str, Any] | None = None

    # Reading

    def read(self, checkpoint: str | None) -> StoredCheckpoint | None:
        """Return a checkpoint, or the latest one; None if it does not exist."""
        return read_stable(self.history, partial(self._read, checkpoint))

    def _read(self, checkpoint: str | None) -> StoredCheckpoint | None:
        version = self._read_after_puts() if checkpoint is None else self.checkpoints.find(checkpoint)
        # After the version is read: a rollback in between is then known.
        self._note_rollbacks()
        if checkpoint is None and version is not None:
            version = self._latest(version)
        elif checkpoint is not None and version is not None:
            version = self._edited().get(checkpoint, version)
        if version is None or self.checkpoints.id_of(version) is None:
            return None
        if checkpoint not in self._write_keys or self._rollbacks.last_to(version.number) is not None:
            self._note_write_key(version)
        return self._with_writes([version])[0]

    def _read_after_puts(self) -> Version:
        """Return the head, after a put that another thread has started, unless that takes long."""
        is_locked = self._lock.acquire(timeout=_PUT_SECONDS)
        try:
            return self.history.head
        finally:
            if is_locked:
                self._lock.release()

    def iter_checkpoints(
        self, before: str | None = None, *, first: int = PAGE
    ) -> Iterator[tuple[str, Callable[[], StoredCheckpoint]]]:
        """Yield the checkpoints whose ids are below `before`, the highest id first, each as its id and a function that
        returns it. They are read page by page, and the writes of a page when one of its checkpoints is needed. The
        first page has `first` checkpoints, each next one twice as many, up to a limit."""
        for page in self._pages(before, first):
            stored = cache(partial(self._read_page, [version for _, version in page]))
            for index, (checkpoint, _) in enumerate(page):
                yield checkpoint, partial(_item, stored, index)

    def _read_page(self, versions: list[Version]) -> list[StoredCheckpoint]:
        self._note_rollbacks()
        return self._with_writes(versions)

    def clear_cache(self) -> None:
        """Drop the cache, because the run was changed in another way."""
        with self._lock:
            self._head = None
            self._write_keys.clear()

    # Writing

    def put(self, new: NewCheckpoint) -> None:
        """Commit a checkpoint as a version."""
        with self._lock, adapted():
            head = self._head
            if head is None or head.checkpoint != new.parent:
                head = self._read_head()
            attempts = Attempts(self.history)
            self._trails = None
            while True:
                self._head = None
                try:
                    self._put(head, new)
                    return
                except UnsupportedValue as error:
                    raise name_channel(error) from None
                except StaleVersion as error:
                    if error.details.get("refused"):
                        raise
                    head = self._read_head()
                except (AlreadyExists, NotFound):
                    # Versions were removed meanwhile, or the thread was deleted: then it starts again.
                    if not attempts.may_repeat():
                        raise
                    head = self._read_head()

    def put_writes(self, checkpoint: str, task: str, path: str, rows: Mapping[int, Any]) -> None:
        """Store the writes of a task, by their indexes. A write to one of LangGraph's own channels, whose index is
        negative, replaces an earlier one if the task makes no others; all other writes of a task are stored once."""
        if not rows:
            return
        rows = {index: [channel, storable_write(channel, value)] for index, (channel, value) in rows.items()}
        if not self._is_checked:
            with self._lock:
                self._read_head()
        with adapted():
            try:
                self._put_writes(checkpoint, task, path, rows)
            except UnsupportedValue as error:
                raise name_channel(error, rows=rows) from None

    def settle_head(self) -> int | None:
        """Make the latest checkpoint the head, with the mark of all rollbacks of the runs above, because the versions
        that show that it counts may be pruned next. If all checkpoints are abandoned, commit a head without one, and
        return its number."""
        with self._lock:
            while True:
                head = self._read_head()
                newest = self._newest_above()
                if head is None or head.checkpoint is None or not newest:
                    return None
                latest = self._latest(head.version)
                self._head = None
                with suppress(StaleVersion):
                    if latest is None:
                        return self.history.commit(self._empty_state(), expected=head.version).number
                    if (
                        latest.number != head.version.number
                        or self.checkpoints.part(latest, "rollbacks") != newest
                    ):
                        self.history.patch(
                            {("rollbacks",): newest}, after=latest, note=ABANDONED, expected=head.version
                        )
                    return None

    def give_key(self) -> Version | None:
        """Commit the head again under a key, with its writes, if it has none because the state was edited by hand:
        otherwise the writes would be pruned with the version that was edited. Return the head; None if the run does
        not exist."""
        with self._lock:
            while True:
                head = self._read_head()
                if head is None:
                    return None
                if head.checkpoint is None or head.version.key is not None:
                    return head.version
                with suppress(StaleVersion):
                    return self._give_key(head, head.checkpoint).version

    # Internals

    def _give_key(self, head: KnownHead, checkpoint: str) -> KnownHead:
        """Commit a head without a key again under one, with its writes; return the new head."""
        self._head = None
        with self._copied_writes(checkpoint, head.version) as key:
            made = self.history.commit(head.version.state, kind="manual", key=key, expected=head.version)
        return head._replace(version=made)

    @contextmanager
    def _copied_writes(self, checkpoint: str, version: Version) -> Iterator[str]:
        """Copy the writes of a version to the key of the next version of its checkpoint, because they would be pruned
        with the version; yield that key. Once the next version is committed, new writes go to its key, and those that
        were made meanwhile are copied, too."""
        key = self.checkpoints.next_key(checkpoint)
        copied = self._attachments(version)[0]
        self.history.attach(key, copied)
        yield key
        self._write_keys[checkpoint] = key
        late = {name: value for name, value in self._attachments(version)[0].items() if name not in copied}
        self.history.attach(key, late, replace=False)

    def _put_writes(self, checkpoint: str, task: str, path: str, rows: Mapping[int, Any]) -> None:
        seal = self._serializer.seal
        own = {index: [channel, seal(value)] for index, (channel, value) in rows.items() if index >= 0}
        values = {
            attachment_name(task, index): {
                "path": path,
                "writes": {index: [channel, seal(value)]},
            }
            for index, (channel, value) in rows.items()
            if index < 0
        }
        if own:
            values[attachment_name(task)] = {"path": path, "writes": own}
        key: str | None = None
        # Another version of the checkpoint, with another key, may be committed meanwhile.
        while key != (newest := self._write_keys.get(checkpoint, checkpoint)):
            key = newest
            stored = self._attach(key, values, replace=not own)
            if own and attachment_name(task) not in stored:
                self._add_writes(key, task, path, rows)

    def _attach(self, checkpoint: str, values: dict[str, Any], *, replace: bool) -> list[str]:
        attempts = Attempts(self.history)
        while True:
            try:
                return self.history.attach(checkpoint, values, replace=replace)
            except NotFound:
                if not attempts.may_repeat() and attempts.found_run:
                    raise
                with self._lock:
                    if self._read_head() is None:
                        # Writes before the first checkpoint, or after the thread was deleted: the run starts without
                        # a checkpoint.
                        try:
                            self.history.commit(self._empty_state(), expected=0)
                        except StaleVersion:
                            self._head = None

    def _add_writes(self, checkpoint: str, task: str, path: str, rows: Mapping[int, Any]) -> None:
        """Store the writes of a task that has stored others before: those with other indexes."""
        with adapted():
            stored = self.history.attachments(checkpoint)[checkpoint]
        # They may have been pruned meanwhile.
        known = collect_writes(stored, self._serializer.unseal).get(task, {})
        # LangGraph's `update_state` writes for a task under a path of its own, and then puts a checkpoint, which is
        # refused if another writer was first.
        if self._single_writer and any(
            index in known
            and known[index].path == path
            and not are_stored_alike([known[index].channel, known[index].value], row)
            for index, row in rows.items()
        ):
            raise StaleVersion(
                f"run {self.history.id!r}: another execution of task {task} of checkpoint {checkpoint} has stored "
                "other writes: read the latest checkpoint, then continue from there",
                run=self.history.id,
                refused=True,
            )
        missing = {
            index: [channel, self._serializer.seal(value)]
            for index, (channel, value) in rows.items()
            if index not in known
        }
        if missing:
            # One for each write: another execution of the task may add some of them at the same time.
            added = {
                attachment_name(task, f"+{index}"): {"path": path, "writes": {index: row}}
                for index, row in missing.items()
            }
            self.history.attach(checkpoint, added, replace=False)

    def _read_head(self) -> KnownHead | None:
        """Read the current head; None if the run does not exist."""
        self._head = read_stable(self.history, self._read_stored_head)
        if self._head is None:
            self._note_rollbacks()
        return self._head

    def _read_stored_head(self) -> KnownHead:
        head = self.history.head
        checkpoint = self.checkpoints.id_of(head)
        stored = None if checkpoint is None else self.checkpoints.part(head, "checkpoint")
        if checkpoint is not None and not isinstance(stored, dict):
            raise not_a_thread(self.history.id)
        self._is_checked = True
        self._note_rollbacks()
        self._note_write_key(head)
        return self._known(head, checkpoint, stored or {})

    def _known(self, version: Version, checkpoint: str | None, stored: Mapping[str, Any]) -> KnownHead:
        """Return a version as a head, with what its stored checkpoint says of its channels."""
        versions = stored.get("channel_versions") or {}
        return KnownHead(
            version,
            checkpoint,
            stored.get("versions_seen") or {},
            {name: versions[name] for name in self.checkpoints.channels(version) if name in versions},
        )

    def _note_rollbacks(self) -> None:
        """Read the rollbacks of the run, and of the runs above."""
        self._rollbacks.refresh()
        for rollbacks in self._rollbacks_above.values():
            rollbacks.refresh()

    def _note_write_key(self, version: Version) -> None:
        """Make new writes of a checkpoint go to the key under which those of this version are read."""
        checkpoint = self.checkpoints.id_of(version)
        if checkpoint is not None:
            key = self._keys_of(checkpoint, version)[-1]
            if key != checkpoint or checkpoint in self._write_keys:
                self._write_keys[checkpoint] = key

    def _latest(self, head: Version) -> Version | None:
        """Return the version of the latest checkpoint: the head, unless it is abandoned."""
        if not self._is_abandoned(head):
            return head
        found = chain.from_iterable(self._pages(None))
        return next((version for _, version in found if not self._is_abandoned(version)), None)

    def _is_abandoned(self, version: Version) -> bool:
        """Return whether a rollback of a run above abandoned the checkpoint of a version."""
        checkpoint, newest = self.checkpoints.id_of(version), self._newest_above()
        if checkpoint is None or not newest:
            return False
        marks = self.checkpoints.part(version, "rollbacks") or {}
        if all(marks.get(namespace, 0) >= number for namespace, number in newest.items()):
            return False
        callers = (self.checkpoints.part(version, "metadata") or {}).get("parents") or {}
        return any(
            self._rollbacks_above[namespace].abandoned(
                checkpoint, callers.get(namespace), marks.get(namespace, 0)
            )
            for namespace in newest
        )

    def _newest_above(self) -> dict[str, int]:
        """Return the newest rollback of each run above that has one."""
        return {
            namespace: rollbacks.newest
            for namespace, rollbacks in self._rollbacks_above.items()
            if rollbacks.newest
        }

    def _edited(self) -> dict[str | None, Version]:
        """Return the head by its checkpoint, if it was edited by hand: it has no key, and counts instead of the version
        that was edited."""
        place = self._rollbacks.head
        if place is None or place == self._keyed_head:
            return {}
        head = self.history.at(place[1])
        if _is_edited(head):
            return {self.checkpoints.id_of(head): head}
        self._keyed_head = place
        return {}

    def _pages(self, before: str | None, first: int = PAGE) -> Iterator[list[tuple[str, Version]]]:
        """Yield pages of checkpoints and their versions, in descending order of ids."""
        edited = read_stable(self.history, self._refreshed_edit)
        if edited is None:
            return
        for page in self.checkpoints.pages(before, first):
            yield [(checkpoint, edited.get(checkpoint, version)) for checkpoint, version in page]

    def _refreshed_edit(self) -> dict[str | None, Version]:
        self._rollbacks.refresh()
        return self._edited()

    def _with_writes(self, versions: list[Version]) -> list[StoredCheckpoint]:
        """Return checkpoints with their writes, which are read together."""
        attached = self._attachments(*versions)
        unseal = self._serializer.unseal
        return [
            StoredCheckpoint(
                version,
                collect_writes(found, unseal),
                unseal,
                has_trails=not self._rollbacks.is_replaced,
            )
            for version, found in zip(versions, attached, strict=True)
        ]

    def _attachments(self, *versions: Version) -> list[dict[str, Any]]:
        """Return the attachments of the checkpoint of each version, by name. A version that replaced another has its
        own, too."""
        names = [str(self.checkpoints.id_of(version)) for version in versions]
        wanted = [self._keys_of(name, version) for name, version in zip(names, versions, strict=True)]
        with adapted():
            found = self.history.attachments(*chain.from_iterable(wanted))
        return [{name: each for key in keys for name, each in found[key].items()} for keys in wanted]

    def _keys_of(self, name: str, version: Version) -> list[str]:
        """Return the keys of the writes of a checkpoint's version; those under the last one are the newest.

        Writes from before a rollback to the checkpoint do not count: its tasks run again. A version that was edited by
        hand has no key, and the writes of the version that was edited. One that replaced another has a copy of its
        writes; a writer that did not notice adds to those of the other."""
        if version.key == name and self._rollbacks.last_to(version.number) is None:
            return [name]
        keys: list[str] = []
        found: Version | None = version
        while found is not None:
            rolled_back = self._rollbacks.last_to(found.number)
            if rolled_back is not None:
                return keys[::-1] or [key_after_rollback(name, rolled_back)]
            if found.key is not None:
                keys.append(found.key)
            found = self._version_before(name, found)
        return [name, *(key for key in reversed(keys) if key != name)]

    def _version_before(self, name: str, version: Version) -> Version | None:
        """Return the version of the same checkpoint that a version followed, if any."""
        if version.key == name or version.parent is None:
            return None
        try:
            found: Version | None = self.history.at(version.parent)
        except NotFound:
            # Pruned: the first version of the checkpoint may have been kept.
            found = self.history.find(name)
        return found if found is not None and self.checkpoints.id_of(found) == name else None

    def _refused(self, what: str) -> StaleVersion:
        of_subgraph = "; invoke the graph with a config that names no checkpoint" if self._names[1] else ""
        return StaleVersion(
            f"run {self.history.id!r}: {what}, but the thread was continued from there: read its latest checkpoint, "
            f"then try again{of_subgraph}",
            run=self.history.id,
            refused=True,
        )

    def _put(self, head: KnownHead | None, new: NewCheckpoint) -> None:
        try:
            if head is None or head.checkpoint is None or head.checkpoint == new.parent:
                self._append(head, new)
            elif not self._put_again(head, new):
                if self._single_writer and not self._follows_latest(head, new):
                    raise self._refused(f"checkpoint {new.id} follows {new.parent or 'nothing'}")
                self._branch(head, new)
        except AlreadyExists:
            if not self._put_again(head, new):
                raise

    def _follows_latest(self, head: KnownHead, new: NewCheckpoint) -> bool:
        """Return whether a checkpoint follows the latest one although that is not the head."""
        latest = self._latest(head.version)
        return new.parent == (None if latest is None else self.checkpoints.id_of(latest))

    def _append(self, head: KnownHead | None, new: NewCheckpoint) -> None:
        """Commit a checkpoint after the head. A head that was edited by hand gets a key first, by which it is found
        when it is no longer the head."""
        if head is not None and head.checkpoint is not None and _is_edited(head.version):
            head = self._give_key(head, head.checkpoint)
        redact = self.history.context.redact
        trails: dict[str, Any] = {}
        if head is not None and head.checkpoint is not None:
            trails = self._trails_after(partial(self.history.at, head.version.number), new)
        made = self._commit(
            head, new, self._changed(head, new), trails, expected=0 if head is None else head.version
        )
        versions = {
            name: new.versions[name] for name in new.checkpoint["channel_values"] if name in new.versions
        }
        self._head = KnownHead(made, new.id, new.seen, versions, is_own=True, redact=redact)
        self._is_checked = True
        self._keyed_head = (made.reader.run.key, made.number)

    def _branch(self, head: KnownHead, new: NewCheckpoint) -> None:
        """Commit a checkpoint that does not follow the head, after its parent."""
        found = self._first() if new.parent is None else self.checkpoints.find(new.parent)
        # The parent may have been pruned, or never stored.
        parent = found or head.version
        trails = {} if new.parent is None else self._trails_after(lambda: found, new)
        known = self._known(parent, new.parent, self.checkpoints.part(parent, "checkpoint") or {})
        self._commit(
            known,
            new,
            self._changed(known, new) if found is not None else new.checkpoint["channel_values"],
            trails,
            expected=head.version,
            after=parent.number,
            note=BRANCH,
            move=head.checkpoint is None or new.id > head.checkpoint,
        )

    def _trails_after(self, read_parent: Callable[[], Version | None], new: NewCheckpoint) -> dict[str, Any]:
        """Return the trails of the delta channels of a checkpoint. They are kept while its put is repeated, because
        its parent may have been pruned since."""
        if not new.delta_channels:
            return {}
        parent = read_parent()
        if parent is not None:
            self._trails = build_trails(new, self._with_writes([parent])[0])
        elif self._trails is None and self.history.run_record().epoch:
            raise NotFound(
                f"run {self.history.id!r}: checkpoint {new.parent} does not exist, and versions were pruned, so the "
                f"delta channels of checkpoint {new.id}, which follows it, are not known: continue from the latest "
                "checkpoint",
                run=self.history.id,
            )
        return self._trails or {}

    def _changed(self, parent: KnownHead | None, new: NewCheckpoint) -> Mapping[str, Any]:
        """Return the channels of a checkpoint, without the values of those that are as in its parent. They are taken
        from there, so that a node that changed such a value in place has not changed what is stored."""
        values: Mapping[str, Any] = new.checkpoint["channel_values"]
        if parent is None or not parent.versions:
            return values
        redact = self.history.context.redact
        is_plain = redact is None and not self._serializer.is_given
        is_current = parent.redact is redact if parent.is_own else is_plain
        kept: dict[str, Any] = {}
        for name, value in values.items():
            if not parent.has(name, new):
                kept[name] = value
            elif is_current:
                kept[name] = UNCHANGED
            else:
                # To be sealed and redacted again.
                kept[name] = self.checkpoints.part(parent.version, "channel_values", name, default=value)
        return kept

    def _first(self) -> Version | None:
        try:
            return self.history.at(1)
        except NotFound:
            return None

    def _commit(
        self,
        parent: KnownHead | None,
        new: NewCheckpoint,
        values: Mapping[str, Any],
        trails: dict[str, Any],
        *,
        key: str | None = None,
        **how: Any,
    ) -> Version:
        seal = self._serializer.seal
        more = {"trail": {name: seal(trail) for name, trail in trails.items()}, **self._own_parts()}
        state = build_state(new, values, seal=seal, more=more)
        step = new.step_after({} if parent is None else parent.seen)
        return self.history.commit(state, step=step, kind="step", key=key or new.id, **how)

    def _put_again(self, head: KnownHead | None, new: NewCheckpoint) -> bool:
        """Put a checkpoint that already exists: do nothing if it is the same, otherwise commit a new version of it.
        With `single_writer`, raise `StaleVersion` if it was continued. Return False if it does not exist."""
        version = self.checkpoints.find(new.id)
        if version is None:
            return False
        (stored,) = self._with_writes([version])
        known = build_tuple(stored, *self._names, inherit=False)
        parent = (known.parent_config or {}).get("configurable", {}).get("checkpoint_id")
        if (
            parent == new.parent
            and are_stored_alike(sorted(known.checkpoint.items()), sorted(new.checkpoint.items()))
            and are_stored_alike(sorted(known.metadata.items()), sorted(new.metadata.items()))
        ):
            return True
        head = head or self._read_head()
        if head is None:
            return False
        is_head = version.number == head.version.number
        if self._single_writer and not is_head:
            raise self._refused(f"checkpoint {new.id} exists already and was continued")
        trails = (stored.part("trail") or {}) if parent == new.parent else {}
        opened = {name: self._serializer.unseal(trail) for name, trail in trails.items()}
        how: dict[str, Any] = {} if is_head else {"after": version.number, "move": False, "note": REPLACED}
        with self._copied_writes(new.id, version) as key:
            self._commit(
                head, new, new.checkpoint["channel_values"], opened, key=key, expected=head.version, **how
            )
        self._rollbacks.refresh()
        return True

    def _empty_state(self) -> dict[str, Any]:
        """Return the state of a version without a checkpoint."""
        return {"checkpoint": None, **self._own_parts()}

    def _own_parts(self) -> dict[str, Any]:
        names = list(self._names) if self._is_hashed else None
        parts: dict[str, Any] = {"thread": names, "rollbacks": self._newest_above()}
        return {name: part for name, part in parts.items() if part}


def _is_edited(version: Version) -> bool:
    """Return whether a version of a checkpoint was edited by hand, and has no key yet."""
    return version.key is None and version.kind == "manual"


def _item(stored: Callable[[], list[StoredCheckpoint]], index: int) -> StoredCheckpoint:
    return stored()[index]
