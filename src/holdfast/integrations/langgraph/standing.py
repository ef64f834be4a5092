"""Where one run of a thread stands: its head, its checkpoints, what follows which of them.

Invariant: what is decided here holds for the head that it was decided on; whoever writes names that head.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

from holdfast import History, Version
from holdfast.errors import NotFound, StaleVersion
from holdfast.integrations.langgraph.layout import Writes, no_thread
from holdfast.integrations.langgraph.places import Found, Places, part, said


class Spot(NamedTuple):
    """The head as it was last seen."""

    number: int
    checkpoint: str | None
    growing: bool
    #: By task, the indexes of its pending writes; None if they have not been looked at.
    tasks: dict[str, set[int]] | None
    #: Are there parts that a further checkpoint must take into account: writes ahead of it, or late ones?
    odd: bool


class Branch(NamedTuple):
    """Where something goes that does not follow the head."""

    #: The version to follow.
    at: Version
    #: The newest version of its checkpoint.
    tip: Version
    #: Was the checkpoint continued since?
    left: bool


class Standing:
    """One run of a thread, to be read."""

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
        """The run's head, if there is a checkpoint."""
        try:
            return self.history.head
        except NotFound:
            return None

    def read(self, checkpoint: str | None) -> Found | None:
        """A checkpoint, or the latest one, with all that belongs to it."""
        head = self.head()
        if head is None:
            return None
        if checkpoint is not None:
            return self.places.find(checkpoint, head)
        return Found(head) if said(head).checkpoint is not None or not self._waits(head) else None

    def find(self, checkpoint: str | None) -> Version | None:
        """The newest version of a checkpoint, or of the latest one."""
        found = self.read(checkpoint)
        return None if found is None else found.version

    def forget(self) -> None:
        """The run was changed in other ways."""
        with self._lock:
            self._spot = None
            self.places = Places(self.history)

    # For those who write

    def _branch(self, checkpoint: str) -> Branch | None:
        """Where something follows that was made from a checkpoint; None if that is not there."""
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
        """The head as it is now."""
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
        """Are there writes, but no checkpoint yet?"""
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
