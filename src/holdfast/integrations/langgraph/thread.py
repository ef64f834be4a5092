"""One run of a thread: its position, its checkpoints, and concurrent puts of checkpoints and writes.

A checkpoint follows the newest version of its parent. If the parent already has a successor, the checkpoint
is on a new branch: it branches off at the parent itself, without the writes that led to the other child, and
so do writes that a task makes there a second time.

Writes of tasks are kept with their checkpoint until the next one exists. LangGraph puts writes and
checkpoints concurrently, so writes may arrive before their checkpoint, or after the next one. A task may also
run twice: on two branches, or for two writers.

Invariant: everything that was put is stored, whole, and no put changes another checkpoint; the writes of a
task are stored once, with the branch they were made on, and never become part of another. A decision is valid
only for the head it was made on: each write names that head.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langgraph.checkpoint.serde.types import ERROR

from holdfast import History, Version
from holdfast.errors import NotFound, StaleVersion, UnsupportedValue
from holdfast.integrations.langgraph.layout import (
    Given,
    Writes,
    no_thread,
    rows_of,
    state_of,
    trail_of,
    tuple_of,
)
from holdfast.integrations.langgraph.lookup import NEAR, Found, Places, note, part, said


class Spot(NamedTuple):
    """The head as last read."""

    number: int
    checkpoint: str | None
    growing: bool
    #: By task, the indexes of its pending writes; None if they have not been read.
    tasks: dict[str, set[int]] | None
    #: Whether the next checkpoint must take early or late writes into account.
    odd: bool


class Branch(NamedTuple):
    """The position of a put that does not follow the head."""

    #: The version to follow.
    at: Version
    #: The newest version of its checkpoint.
    tip: Version
    #: Whether the checkpoint was continued since.
    left: bool


class Standing:
    """Read access to one run of a thread."""

    def __init__(self, history: History, names: tuple[str, str], *, long: bool, single_writer: bool) -> None:
        self.history = history
        self.places = Places(history)
        self._names = names
        self._long = long
        self._single = single_writer
        self._lock = threading.Lock()
        self._spot: Spot | None = None

    # Reading

    def head(self) -> Version | None:
        """Return the run's head; None if the run does not exist."""
        try:
            return self.history.head
        except NotFound:
            return None

    def read(self, checkpoint: str | None) -> Found | None:
        """Return a checkpoint, or the latest one, with all of its parts."""
        head = self.head()
        if head is None:
            return None
        if checkpoint is not None:
            return self.places.find(checkpoint, head)
        return Found(head) if said(head).checkpoint is not None or not self._waits(head) else None

    def find(self, checkpoint: str | None) -> Version | None:
        """Return the newest version of a checkpoint, or of the latest one."""
        found = self.read(checkpoint)
        return None if found is None else found.version

    def forget(self) -> None:
        """Drop the cache, because the run was changed in another way."""
        with self._lock:
            self._spot = None
            self.places = Places(self.history)

    # Used by the writing subclasses

    def _branch(self, checkpoint: str) -> Branch | None:
        """Return the position after a checkpoint; None if the checkpoint does not exist."""
        tip = self.find(checkpoint)
        if tip is None:
            return None
        newest = self.history.versions(timeline=tip.timeline, limit=1)
        left = not newest or newest[0].number != tip.number
        if not left and not part(tip, "left"):
            return Branch(tip, tip, False)
        base = tip
        for version in self.history.ancestors(tip):
            if said(version).checkpoint != checkpoint:
                break
            base = version
        return Branch(base, tip, True)

    def _look(self) -> Spot | None:
        """Read the current head."""
        self._spot = None
        head = self.head()
        if head is None:
            return None
        found = said(head)
        if found.checkpoint is None and not self._waits(head):
            raise no_thread(self.history.id)
        writes: Writes = part(head, "pending_writes") or {}
        tasks = {task: set(rows["writes"]) for task, rows in writes.items()}
        odd = any(part(head, key) for key in ("ahead", "late", "left"))
        self._spot = Spot(head.number, found.checkpoint, found.growing, tasks, odd)
        return self._spot

    def _waits(self, head: Version) -> bool:
        """Return whether there are writes, but no checkpoint yet."""
        return bool(part(head, "ahead"))

    def _is_next(self, spot: Spot, checkpoint: str) -> bool:
        return spot.growing and spot.checkpoint is not None and checkpoint > spot.checkpoint

    def _refused(self, what: str) -> StaleVersion:
        return StaleVersion(
            f"run {self.history.id!r}: {what}, but the thread has gone on from there: read its latest checkpoint, "
            "then try again",
            run=self.history.id,
            refused=True,
        )


_PULL = "~__pregel_pull, "


class Writing(Standing):
    """One run of a thread, with writes of tasks."""

    def put_writes(self, checkpoint: str, writes: Sequence[tuple[str, Any]], task: str, path: str) -> None:
        """Store the writes of a task, until the next checkpoint."""
        self.put_rows(checkpoint, rows_of(writes), task, path)

    def put_rows(self, checkpoint: str, given: Mapping[int, Sequence[Any]], task: str, path: str) -> None:
        """Store writes that have their indexes."""
        rows = {index: [channel, self._kept(channel, value)] for index, (channel, value) in given.items()}
        if not rows:
            return None
        with self._lock:
            spot = self._spot
            if spot is None or spot.checkpoint != checkpoint:
                spot = self._look()
            while True:
                try:
                    return self._put_writes(spot, checkpoint, rows, task, path)
                except StaleVersion as error:
                    if error.details.get("refused"):
                        raise
                spot = self._look()

    # Internals

    def _put_writes(
        self, spot: Spot | None, checkpoint: str, rows: dict[int, list[Any]], task: str, path: str
    ) -> None:
        if spot is not None and spot.checkpoint == checkpoint and spot.tasks is not None and not spot.odd:
            there = spot.tasks.get(task, set())
            if there.isdisjoint(rows):
                return self._add(spot, checkpoint, spot.number, rows, task, path, new=task not in spot.tasks)
        branch = None if spot is None else self._branch(checkpoint)
        if branch is None:
            return self._put_ahead(spot, checkpoint, rows, task, path)
        assert spot is not None
        writes: Writes = part(branch.tip, "pending_writes") or {}
        known = writes.get(task, {"writes": {}})["writes"]
        if branch.left and any(index >= 0 and index in known for index in rows):
            if self._single:
                raise self._refused(f"task {task} writes to checkpoint {checkpoint}")
            changes: dict[str | tuple[Any, ...], Any] = {
                ("pending_writes",): {task: {"path": path, "writes": rows}},
                ("left",): False,
            }
            return self._patch(spot, branch.at, changes, checkpoint, path)
        if branch.left and 0 < spot.number - branch.tip.number <= NEAR and not known:
            return self._put_late(spot, checkpoint, rows, task, path)
        fresh = {index: row for index, row in rows.items() if index < 0 or index not in known}
        other = {
            index: row for index, row in rows.items() if index not in fresh and not _same(row, known[index])
        }
        if other and self._single:
            raise self._refused(f"task {task} writes to checkpoint {checkpoint} once more")
        changes = {}
        if fresh:
            changes[("pending_writes", task)] = {"path": path, "writes": {**known, **fresh}}
        if other:
            rivals: Writes = part(branch.tip, "rivals") or {}
            rivals[task] = {"path": path, "writes": rows}
            changes[("rivals",)] = rivals
        if branch.left:
            changes[("left",)] = True
        if fresh or other:
            self._patch(spot, branch.tip, changes, checkpoint, path)
        return None

    def _add(
        self,
        spot: Spot,
        checkpoint: str,
        number: int,
        rows: dict[int, list[Any]],
        task: str,
        path: str,
        *,
        new: bool,
    ) -> None:
        """Add writes to the head's checkpoint, the usual case."""
        changes: dict[str | tuple[Any, ...], Any]
        if new:
            changes = {("pending_writes", task): {"path": path, "writes": rows}}
        else:
            changes = {("pending_writes", task, "writes", index): row for index, row in rows.items()}
        self._spot = None
        made = self.history.patch(
            changes,
            after=number,
            step=_node(path),
            note=note("writes", checkpoint, growing=spot.growing),
            expected=spot.number,
        )
        tasks = dict(spot.tasks or {})
        tasks[task] = tasks.get(task, set()) | rows.keys()
        self._spot = spot._replace(number=made.number, tasks=tasks)

    def _patch(
        self,
        spot: Spot,
        at: Version,
        changes: dict[str | tuple[Any, ...], Any],
        checkpoint: str,
        path: str,
    ) -> None:
        self._spot = None
        ordinary = at.number == spot.number
        self.history.patch(
            changes,
            after=at.number,
            step=_node(path),
            note=note("writes", checkpoint, growing=ordinary and spot.growing),
            expected=spot.number,
            move=False,
        )

    def _put_ahead(
        self, spot: Spot | None, checkpoint: str, rows: dict[int, list[Any]], task: str, path: str
    ) -> None:
        """Store writes to a checkpoint that has not arrived yet: LangGraph may put both at the same time."""
        made: dict[str, Any] = {"path": path, "writes": rows}
        self._spot = None
        if spot is None:
            names = {"thread": list(self._names)} if self._long else {}
            state = {"pending_writes": {}, "ahead": {checkpoint: {task: made}}, **names}
            text = note("writes", None, growing=True, more=f" ahead of {checkpoint}")
            self.history.commit(state, step=_node(path), note=text, expected=0)
            return
        ahead: dict[str, Writes] = part(self.history.at(spot.number), "ahead") or {}
        known = ahead.get(checkpoint, {}).get(task, {"writes": {}})["writes"]
        made["writes"] = {**rows, **{index: row for index, row in known.items() if index >= 0}}
        ahead.setdefault(checkpoint, {})[task] = made
        text = note("writes", spot.checkpoint, growing=spot.growing, more=f" ahead of {checkpoint}")
        self.history.patch(
            {("ahead",): ahead}, after=spot.number, step=_node(path), note=text, expected=spot.number
        )

    def _put_late(
        self, spot: Spot, checkpoint: str, rows: dict[int, list[Any]], task: str, path: str
    ) -> None:
        """Store writes to a checkpoint whose successor arrived first: they do not change the successor."""
        late: dict[str, Writes] = part(self.history.at(spot.number), "late") or {}
        late.setdefault(checkpoint, {}).setdefault(task, {"path": path, "writes": rows})
        text = note("writes", spot.checkpoint, growing=spot.growing, more=f" late for {checkpoint}")
        self._spot = None
        self.history.patch(
            {("late",): late}, after=spot.number, step=_node(path), note=text, expected=spot.number
        )

    def _kept(self, channel: str, value: Any) -> Any:
        """Return a storable value; for an error that cannot be stored, its repr, as LangGraph's own savers
        do."""
        if channel != ERROR or not isinstance(value, BaseException):
            return value
        try:
            return self.history.capture(value)
        except UnsupportedValue:
            return repr(value)


def _same(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and bool(one == other)
    except Exception:
        return False


def _node(path: str) -> str:
    """Return the step name of a task in a list of versions."""
    return path.removeprefix(_PULL)[:100] if path.startswith(_PULL) else "writes"


#: LangGraph's sources of a checkpoint.
_SOURCES = {"input", "loop", "update", "fork"}


class Strand(Writing):
    """One run of a thread. Safe to use from several threads."""

    def put(self, parent: str | None, checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Commit a checkpoint as a version."""
        given = Given(parent, checkpoint, metadata)
        with self._lock:
            spot = self._spot
            if spot is not None and spot.checkpoint == parent is not None and self._is_next(spot, given.name):
                try:
                    return self._put_on_head(spot, given)
                except StaleVersion:
                    pass
            while True:
                spot = self._look()
                try:
                    return self._put(spot, given)
                except StaleVersion as error:
                    if error.details.get("refused"):
                        raise

    # Internals

    def _put(self, spot: Spot | None, given: Given) -> None:
        name, parent = given.name, given.parent
        if spot is None or spot.checkpoint is None:
            return self._put_on_head(spot, given)
        if spot.checkpoint == name or not spot.growing or name <= spot.checkpoint:
            there = self.find(name)
            if there is not None:
                return self._put_again(spot, there, given)
        if parent == spot.checkpoint and not part(self.history.at(spot.number), "left"):
            return self._put_on_head(spot, given)
        if self._single:
            raise self._refused(f"checkpoint {name} follows {parent or 'nothing'}")
        if parent is None:
            try:
                first = self.history.at(1)
            except NotFound:
                return self._put_on_head(spot, given)
            branch: Branch | None = Branch(first, first, True)
        else:
            branch = self._branch(parent)
        if branch is None:
            # The parent was pruned, or never stored.
            return self._put_on_head(spot, given)
        came: Writes = {}
        if parent is not None:
            came = part(branch.tip, "rivals" if branch.left else "pending_writes") or {}
        known = branch.tip if parent is not None else None
        self._commit(spot, branch.at.number, given, trail=trail_of(given, known, came), growing=False)
        return None

    def _put_on_head(self, spot: Spot | None, given: Given) -> None:
        trail: dict[str, Any] = {}
        if spot is not None and given.metadata.get("counters_since_delta_snapshot"):
            head = self.history.at(spot.number)
            if spot.checkpoint == given.parent:
                trail = trail_of(given, head, part(head, "pending_writes") or {})
        growing = spot is None or spot.checkpoint is None or self._is_next(spot, given.name)
        self._commit(spot, None, given, trail=trail, growing=growing)

    def _put_again(self, spot: Spot, there: Version, given: Given) -> None:
        """Put a checkpoint that already exists: do nothing if it is the same; commit a new version of it if
        nothing followed; otherwise raise `StaleVersion`."""
        known = tuple_of(Found(there), *self._names)
        if (known.checkpoint, known.metadata) == (dict(given.checkpoint), dict(given.metadata)):
            return
        if there.number != spot.number:
            raise self._refused(f"checkpoint {given.name} is there already and was continued")
        state = state_of(
            given,
            writes=part(there, "pending_writes") or {},
            more={key: part(there, key) for key in ("trail", "ahead", "rivals", "late", "left", "thread")},
        )
        self._spot = None
        self.history.commit(
            state,
            step=_step(given.metadata),
            note=note("checkpoint", given.name, growing=spot.growing),
            expected=spot.number,
        )

    def _commit(
        self, spot: Spot | None, after: int | None, given: Given, *, trail: dict[str, Any], growing: bool
    ) -> None:
        ahead: dict[str, Writes] = {}
        if spot is not None and spot.odd:
            ahead = part(self.history.at(spot.number), "ahead") or {}
        writes = ahead.pop(given.name, {})
        more = {
            "trail": trail,
            "ahead": ahead if after is None else {},
            "thread": list(self._names) if self._long else None,
        }
        self._spot = None
        made = self.history.commit(
            state_of(given, writes=writes, more=more),
            step=_step(given.metadata),
            kind="step",
            note=note("checkpoint", given.name, growing=growing),
            expected=0 if spot is None else spot.number,
            after=after,
            move=spot is None or spot.checkpoint is None or given.name > spot.checkpoint,
        )
        if after is None:
            self.places.remember(given.name, made)
            tasks = {task: set(rows["writes"]) for task, rows in writes.items()}
            self._spot = Spot(made.number, given.name, growing, tasks, bool(more["ahead"]))


def _step(metadata: Mapping[str, Any]) -> str:
    source = metadata.get("source")
    return source if source in _SOURCES else "checkpoint"
