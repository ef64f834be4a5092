"""What tasks have written, kept with the checkpoint that they ran on until the next one is there.

LangGraph hands in writes and checkpoints side by side, so writes may come before their checkpoint, or after the next
one. And a task may run twice: on two branches, or for two writers.

Invariant: what a task wrote is there, once, and with the branch that it was written on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langgraph.checkpoint.serde.types import ERROR

from holdfast import Version
from holdfast.errors import StaleVersion, UnsupportedValue
from holdfast.integrations.langgraph.layout import Writes, rows_of
from holdfast.integrations.langgraph.places import NEAR, note, part
from holdfast.integrations.langgraph.standing import Spot, Standing

_PULL = "~__pregel_pull, "


class Writing(Standing):
    """One run of a thread, to which tasks write."""

    def put_writes(self, checkpoint: str, writes: Sequence[tuple[str, Any]], task: str, path: str) -> None:
        """Keep what a task has written, until the next checkpoint."""
        self.put_rows(checkpoint, rows_of(writes), task, path)

    def put_rows(self, checkpoint: str, given: Mapping[int, Sequence[Any]], task: str, path: str) -> None:
        """The same for writes that have their indexes."""
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

    # How it works

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
        """Writes to the head's checkpoint, as nearly all are."""
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
        """Writes to a checkpoint that is on its way: LangGraph may hand in both at once."""
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
        """Writes to a checkpoint whose successor was faster: they change nothing that came of it."""
        late: dict[str, Writes] = part(self.history.at(spot.number), "late") or {}
        late.setdefault(checkpoint, {}).setdefault(task, {"path": path, "writes": rows})
        text = note("writes", spot.checkpoint, growing=spot.growing, more=f" late for {checkpoint}")
        self._spot = None
        self.history.patch(
            {("late",): late}, after=spot.number, step=_node(path), note=text, expected=spot.number
        )

    def _kept(self, channel: str, value: Any) -> Any:
        """A value to be stored; of an error that cannot be, what it says, as LangGraph's own savers have it."""
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
    """What a task is called in a list of versions."""
    return path.removeprefix(_PULL)[:100] if path.startswith(_PULL) else "writes"
