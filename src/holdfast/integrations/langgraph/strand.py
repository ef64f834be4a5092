"""One run of a thread: putting checkpoints and their writes, whoever else does.

A checkpoint follows the newest version of its parent. If that was continued already, the checkpoint is on a branch
of its own: it leaves at the parent itself, without the writes that led to the other child, and so do writes
that a task makes there a second time.

Invariant: what was put is there, whole, and no other checkpoint has changed by it; what one branch wrote is never
part of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast import Version
from holdfast.errors import NotFound, StaleVersion
from holdfast.integrations.langgraph.layout import Given, Writes, state_of, trail_of, tuple_of
from holdfast.integrations.langgraph.places import Found, note, part
from holdfast.integrations.langgraph.standing import Branch, Spot
from holdfast.integrations.langgraph.writing import Writing

#: What LangGraph calls the source of a checkpoint.
_SOURCES = {"input", "loop", "update", "fork"}


class Strand(Writing):
    """One run of a thread. Safe to use from many threads."""

    def put(self, parent: str | None, checkpoint: Mapping[str, Any], metadata: Mapping[str, Any]) -> None:
        """Make a checkpoint a version."""
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

    # How it works

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
            # A parent that was pruned, or never stored.
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
        """A checkpoint that is there already: nothing to do, if it is the same; a further version of it, if nothing
        followed; else a stale write."""
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
