"""One run of a thread: its head, its checkpoints, and concurrent puts of checkpoints and writes.

A checkpoint follows the newest version of its parent. If the parent already has a successor, the checkpoint
is on a new branch: it branches off at the parent itself, without the writes that led to the other child, and
so do writes that a task makes there a second time.

Writes of tasks are stored with their checkpoint until the next one exists. LangGraph puts writes and
checkpoints concurrently, so writes may arrive before their checkpoint, or after the next one. A task may also
run twice: on two branches, or for two writers.

Invariant: everything that was put is stored, whole, and no put changes another checkpoint; the writes of a
task are stored once, with the branch they were made on, and never become part of another. A decision is valid
only for the head it was made on: each write names that head.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import ERROR

from holdfast import History, Version
from holdfast.errors import NotFound, StaleVersion, UnsupportedValue
from holdfast.integrations.langgraph.checkpoint_index import (
    MAX_LATE,
    CheckpointIndex,
    StoredCheckpoint,
    format_note,
    parse_note,
    read_part,
)
from holdfast.integrations.langgraph.layout import (
    NewCheckpoint,
    Writes,
    build_state,
    build_trails,
    build_tuple,
    not_a_thread,
    parse_run_id,
)

#: Start of the path of a task that a node's trigger started; the node's name follows.
_PULL = "~__pregel_pull, "
#: LangGraph's sources of a checkpoint.
_SOURCES = {"input", "loop", "update", "fork"}

Changes = dict[str | tuple[Any, ...], Any]


class TaskWrites(NamedTuple):
    """Writes of a task to a checkpoint."""

    checkpoint: str
    task: str
    path: str
    #: By LangGraph's index, a channel and a value.
    rows: dict[int, list[Any]]

    @property
    def entry(self) -> dict[str, Any]:
        """Return the entry of the task in a state."""
        return {"path": self.path, "writes": self.rows}

    @property
    def step(self) -> str:
        """Return the step name of the task in a list of versions."""
        return self.path.removeprefix(_PULL)[:100] if self.path.startswith(_PULL) else "writes"


class HeadPosition(NamedTuple):
    """The head as last read."""

    number: int
    checkpoint: str | None
    #: Whether checkpoint ids have increased with version numbers up to the head.
    ids_increase: bool
    #: By task, the indexes of its pending writes.
    tasks: dict[str, set[int]]
    #: Whether the state holds writes that arrived early or late.
    has_displaced: bool

    def precedes(self, checkpoint: str) -> bool:
        """Return whether ids keep increasing if this checkpoint comes next."""
        return self.ids_increase and self.checkpoint is not None and checkpoint > self.checkpoint


class BranchPoint(NamedTuple):
    """The position of a put that does not follow the head."""

    #: The version to follow.
    base: Version
    #: The newest version of its checkpoint.
    tip: Version
    #: Whether the checkpoint was continued since.
    is_continued: bool


class CheckpointThread:
    """The run of one namespace of a LangGraph thread. Safe to use from several threads of the process."""

    def __init__(self, history: History, names: tuple[str, str], *, single_writer: bool) -> None:
        self.history = history
        #: Thread and namespace. The state stores them if the run's id holds only a hash of one.
        self._names = names
        self._is_hashed = None in parse_run_id(history.id)
        self._single_writer = single_writer
        self._index = CheckpointIndex(history)
        self._lock = threading.Lock()
        self._head: HeadPosition | None = None

    # Reading

    def read(self, checkpoint: str | None) -> StoredCheckpoint | None:
        """Return a checkpoint, or the latest one, with all of its parts."""
        try:
            head = self.history.head
        except NotFound:
            return None
        if checkpoint is not None:
            return self._index.find(checkpoint, head)
        is_missing = parse_note(head).checkpoint is None and read_part(head, "ahead")
        return None if is_missing else StoredCheckpoint(head)

    def clear_cache(self) -> None:
        """Drop the cache, because the run was changed in another way."""
        with self._lock:
            self._head = None
            self._index = CheckpointIndex(self.history)

    # Writing

    def put(self, new: NewCheckpoint) -> None:
        """Commit a checkpoint as a version."""
        with self._lock:
            head = self._head
            if head is None or head.checkpoint != new.parent or not head.precedes(new.id):
                head = self._read_head()
            self._retry(head, lambda head: self._put(head, new))

    def put_writes(self, checkpoint: str, task: str, path: str, rows: Mapping[int, Any]) -> None:
        """Store the writes of a task, by their indexes, until the next checkpoint."""
        if not rows:
            return
        storable = {
            index: [channel, self._storable(channel, value)] for index, (channel, value) in rows.items()
        }
        writes = TaskWrites(checkpoint, task, path, storable)
        with self._lock:
            head = self._head
            if head is None or head.checkpoint != checkpoint:
                head = self._read_head()
            self._retry(head, lambda head: self._put_writes(head, writes))

    # Internals

    def _retry(self, head: HeadPosition | None, attempt: Callable[[HeadPosition | None], None]) -> None:
        """Attempt a commit on a head, and on the next head for as long as other writers are faster."""
        while True:
            try:
                return attempt(head)
            except StaleVersion as error:
                if error.details.get("refused"):
                    raise
            head = self._read_head()

    def _read_head(self) -> HeadPosition | None:
        """Read the current head; None if the run does not exist."""
        self._head = None
        try:
            head = self.history.head
        except NotFound:
            return None
        note = parse_note(head)
        if note.checkpoint is None and not read_part(head, "ahead"):
            raise not_a_thread(self.history.id)
        has_displaced = any(read_part(head, key) for key in ("ahead", "late", "left"))
        tasks = _indexes(read_part(head, "pending_writes") or {})
        self._head = HeadPosition(head.number, note.checkpoint, note.ids_increase, tasks, has_displaced)
        return self._head

    def _branch(self, checkpoint: str) -> BranchPoint | None:
        """Return the position after a checkpoint; None if the checkpoint does not exist."""
        stored = self.read(checkpoint)
        if stored is None:
            return None
        tip = stored.version
        newest = self.history.versions(timeline=tip.timeline, limit=1)
        if newest and newest[0].number == tip.number and not read_part(tip, "left"):
            return BranchPoint(tip, tip, False)
        base = tip
        for version in self.history.ancestors(tip):
            if parse_note(version).checkpoint != checkpoint:
                break
            base = version
        return BranchPoint(base, tip, True)

    def _refused(self, what: str) -> StaleVersion:
        return StaleVersion(
            f"run {self.history.id!r}: {what}, but the thread was continued from there: read its latest checkpoint, "
            "then try again",
            run=self.history.id,
            refused=True,
        )

    # Checkpoints

    def _put(self, head: HeadPosition | None, new: NewCheckpoint) -> None:
        if head is None or head.checkpoint is None:
            return self._append(head, new)
        if not head.precedes(new.id):
            existing = self.read(new.id)
            if existing is not None:
                return self._put_again(head, existing.version, new)
        if new.parent == head.checkpoint and not self._is_left(head):
            return self._append(head, new)
        if self._single_writer:
            raise self._refused(f"checkpoint {new.id} follows {new.parent or 'nothing'}")
        trails: dict[str, Any] = {}
        if new.parent is None:
            try:
                base = self.history.at(1)
            except NotFound:
                return self._append(head, new)
        else:
            branch = self._branch(new.parent)
            if branch is None:
                # The parent was pruned, or never stored.
                return self._append(head, new)
            base = branch.base
            key = "rivals" if branch.is_continued else "pending_writes"
            trails = build_trails(new, branch.tip, read_part(branch.tip, key) or {})
        return self._commit(head, base.number, new, trails=trails, ids_increase=False)

    def _is_left(self, head: HeadPosition) -> bool:
        """Return whether the pending writes of the head include some that arrived much later."""
        return head.has_displaced and bool(read_part(self.history.at(head.number), "left"))

    def _append(self, head: HeadPosition | None, new: NewCheckpoint) -> None:
        """Commit a checkpoint after the head."""
        trails: dict[str, Any] = {}
        if head is not None and head.checkpoint == new.parent and new.delta_channels:
            parent = self.history.at(head.number)
            trails = build_trails(new, parent, read_part(parent, "pending_writes") or {})
        ids_increase = head is None or head.checkpoint is None or head.precedes(new.id)
        self._commit(head, None, new, trails=trails, ids_increase=ids_increase)

    def _put_again(self, head: HeadPosition, existing: Version, new: NewCheckpoint) -> None:
        """Put a checkpoint that already exists: do nothing if it is the same; commit a new version of it if
        nothing followed; otherwise raise `StaleVersion`."""
        known = build_tuple(StoredCheckpoint(existing), *self._names)
        if (known.checkpoint, known.metadata) == (dict(new.checkpoint), dict(new.metadata)):
            return
        if existing.number != head.number:
            raise self._refused(f"checkpoint {new.id} exists already and was continued")
        parts = {
            key: read_part(existing, key) for key in ("trail", "ahead", "rivals", "late", "left", "thread")
        }
        self._head = None
        self.history.commit(
            build_state(new, writes=read_part(existing, "pending_writes") or {}, more=parts),
            step=_step(new),
            note=format_note("checkpoint", new.id, ids_increase=head.ids_increase),
            expected=head.number,
        )

    def _commit(
        self,
        head: HeadPosition | None,
        after: int | None,
        new: NewCheckpoint,
        *,
        trails: dict[str, Any],
        ids_increase: bool,
    ) -> None:
        """Commit a checkpoint after a version, by default the head."""
        early: dict[str, Writes] = {}
        if head is not None and head.has_displaced:
            early = read_part(self.history.at(head.number), "ahead") or {}
        writes = early.pop(new.id, {})
        parts = {
            "trail": trails,
            "ahead": early if after is None else {},
            "thread": list(self._names) if self._is_hashed else None,
        }
        self._head = None
        made = self.history.commit(
            build_state(new, writes=writes, more=parts),
            step=_step(new),
            kind="step",
            note=format_note("checkpoint", new.id, ids_increase=ids_increase),
            expected=0 if head is None else head.number,
            after=after,
            move=head is None or head.checkpoint is None or new.id > head.checkpoint,
        )
        if after is None:
            self._index.remember(new.id, made)
            self._head = HeadPosition(made.number, new.id, ids_increase, _indexes(writes), bool(early))

    # Writes of tasks

    def _put_writes(self, head: HeadPosition | None, writes: TaskWrites) -> None:
        checkpoint, task, rows = writes.checkpoint, writes.task, writes.rows
        if head is not None and head.checkpoint == checkpoint and not head.has_displaced:
            stored = head.tasks.get(task)
            if stored is None or stored.isdisjoint(rows):
                return self._add_to_head(head, writes)
        branch = None if head is None else self._branch(checkpoint)
        if head is None or branch is None:
            return self._put_early(head, writes)
        pending: Writes = read_part(branch.tip, "pending_writes") or {}
        known = pending.get(task, {"writes": {}})["writes"]
        changes: Changes = {}
        if branch.is_continued and any(index >= 0 and index in known for index in rows):
            if self._single_writer:
                raise self._refused(f"task {task} writes to checkpoint {checkpoint}")
            changes = {("pending_writes",): {task: writes.entry}, ("left",): False}
            self._patch(head, changes, writes, checkpoint, after=branch.base.number)
            return None
        if branch.is_continued and 0 < head.number - branch.tip.number <= MAX_LATE and not known:
            return self._put_late(head, writes)
        fresh = {index: row for index, row in rows.items() if index < 0 or index not in known}
        if any(index not in fresh and not _same(row, known[index]) for index, row in rows.items()):
            if self._single_writer:
                raise self._refused(f"task {task} writes to checkpoint {checkpoint} once more")
            rivals: Writes = read_part(branch.tip, "rivals") or {}
            changes[("rivals",)] = {**rivals, task: writes.entry}
        if fresh:
            changes[("pending_writes", task)] = {"path": writes.path, "writes": {**known, **fresh}}
        if changes:
            if branch.is_continued:
                changes[("left",)] = True
            self._patch(head, changes, writes, checkpoint, after=branch.tip.number)
        return None

    def _add_to_head(self, head: HeadPosition, writes: TaskWrites) -> None:
        """Add writes to the head's checkpoint, the usual case."""
        task, rows = writes.task, writes.rows
        changes: Changes = {("pending_writes", task): writes.entry}
        if task in head.tasks:
            changes = {("pending_writes", task, "writes", index): row for index, row in rows.items()}
        made = self._patch(head, changes, writes, writes.checkpoint)
        tasks = {**head.tasks, task: head.tasks.get(task, set()) | rows.keys()}
        self._head = head._replace(number=made.number, tasks=tasks)

    def _put_early(self, head: HeadPosition | None, writes: TaskWrites) -> None:
        """Store writes to a checkpoint that has not arrived yet: LangGraph may put both at the same time."""
        checkpoint, entry, more = writes.checkpoint, writes.entry, f" ahead of {writes.checkpoint}"
        if head is None:
            names = {"thread": list(self._names)} if self._is_hashed else {}
            state = {"pending_writes": {}, "ahead": {checkpoint: {writes.task: entry}}, **names}
            note = format_note("writes", None, ids_increase=True, more=more)
            self._head = None
            self.history.commit(state, step=writes.step, note=note, expected=0)
            return
        ahead: dict[str, Writes] = read_part(self.history.at(head.number), "ahead") or {}
        known = ahead.get(checkpoint, {}).get(writes.task, {"writes": {}})["writes"]
        entry["writes"] = {**writes.rows, **{index: row for index, row in known.items() if index >= 0}}
        ahead.setdefault(checkpoint, {})[writes.task] = entry
        self._patch(head, {("ahead",): ahead}, writes, head.checkpoint, more=more)

    def _put_late(self, head: HeadPosition, writes: TaskWrites) -> None:
        """Store writes to a checkpoint whose successor arrived first: they do not change the successor."""
        late: dict[str, Writes] = read_part(self.history.at(head.number), "late") or {}
        late.setdefault(writes.checkpoint, {}).setdefault(writes.task, writes.entry)
        self._patch(head, {("late",): late}, writes, head.checkpoint, more=f" late for {writes.checkpoint}")

    def _patch(
        self,
        head: HeadPosition,
        changes: Changes,
        writes: TaskWrites,
        checkpoint: str | None,
        *,
        after: int | None = None,
        more: str = "",
    ) -> Version:
        """Commit changes of the head's state; with `after`, of that version's state, without moving the head."""
        base = head.number if after is None else after
        ids_increase = base == head.number and head.ids_increase
        self._head = None
        return self.history.patch(
            changes,
            after=base,
            step=writes.step,
            note=format_note("writes", checkpoint, ids_increase=ids_increase, more=more),
            expected=head.number,
            move=after is None,
        )

    def _storable(self, channel: str, value: Any) -> Any:
        """Return a storable value; for an error that cannot be stored, its repr, as LangGraph's own savers
        do."""
        if channel != ERROR or not isinstance(value, BaseException):
            return value
        try:
            return self.history.capture(value)
        except UnsupportedValue:
            return repr(value)


def _indexes(writes: Writes) -> dict[str, set[int]]:
    """Return the indexes of the writes of each task."""
    return {task: set(entry["writes"]) for task, entry in writes.items()}


def _same(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:
        return False


def _step(new: NewCheckpoint) -> str:
    """Return the step name of a checkpoint in a list of versions."""
    source = new.metadata.get("source")
    return source if source in _SOURCES else "checkpoint"
