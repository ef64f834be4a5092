"""What code in a run sees: the state after the steps that were passed or run so far, and recorded values.

Invariant: a workflow's own code sees the same state, between the same steps, whenever it is run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.history.commit import STATE, VIEW
from holdfast.history.reader import Head, Start
from holdfast.runtime.view import Seen, View, start_of
from holdfast.tree.fold import Folder
from holdfast.tree.reducers import Reducers

if TYPE_CHECKING:
    from holdfast.history.advance import Resolver
    from holdfast.history.commit import Facts as VersionFacts
    from holdfast.runtime.record import Entry, Record
    from holdfast.runtime.replay import Replay
    from holdfast.runtime.scope import Frame
    from holdfast.runtime.services import Services


class Sight:
    """The half of a session that code in the run looks through."""

    replay: Replay

    def __init__(
        self,
        services: Services,
        head: Head,
        record: Record,
        values: dict[str, Any],
        reducers: Reducers | None,
    ) -> None:
        self.services = services
        self.head = head
        self.record = record
        #: The last boundary between steps.
        self.beat = services.context.clock()
        #: The version whose state the workflow's own code sees; None for the head's.
        self._place: int | None = record.first if record.steps else None
        self._newest = max((entry.number for entry in record.steps.values()), default=0)
        self._seen: tuple[Any, Any] = (None, None)
        #: Values that no version has recorded yet.
        self._values = values
        #: How concurrent changes of one place are merged.
        self.reducers = reducers
        #: Versions that were made from outside the run, in order, and those that views have noted.
        self.outside: list[int] = list(record.outside)
        self.noted: set[int] = set()
        #: What the workflow's own code sees.
        self.main = View(self)

    @property
    def newest(self) -> int:
        """The version that a line sees which has joined all others."""
        return self.head.version.number if self._place is None else self._place

    def followed(self) -> Head | Seen:
        """Return what a line sees that has joined all others: the head, or the version that the replay has reached."""
        return self.head if self._place is None else Seen(None, self._place)

    def reached(self, number: int) -> None:
        """The workflow's own line has passed a recorded version."""
        if self._place is not None:
            self._place = max(self._place, number)
            if number >= self._newest:
                self._place = None

    def folder(self) -> Folder:
        """Folds values for this run."""
        return Folder(self.services.context.reader(self.head.run).space, self.services.context.redact)

    def root_of(self, seen: Seen | Head) -> Any:
        """The tree of a state that is seen."""
        root = seen.root
        if root is None and isinstance(seen, Seen) and seen.number is not None:
            reader = self.services.context.reader(self.head.run)
            seen.root = root = reader.root(seen.number, VIEW if seen.own else STATE)
        return root

    def change_of(self, number: int) -> tuple[Any, Any]:
        """The states before and after a version that was made from outside the run."""
        reader = self.services.context.reader(self.head.run)
        version = reader.record(number)
        # Of a version before a fork, the numbers are those of the run that was forked.
        before = number - (version.number - version.parent)
        return reader.state(before), reader.state(number)

    def seen(self, view: View) -> Any:
        """The state, frozen, as a line sees it."""
        root = self.root_of(view.now())
        shown = self._seen
        if shown[0] is not root:
            shown = self._seen = (root, self.services.context.reader(self.head.run).show(root))
        return shown[1]

    def value(self, address: str, make: Callable[[], Any]) -> Any:
        """A value that is the same when this code runs again."""
        for known in (self._values, self.record.values):
            if address in known:
                return known[address]
        value = self._values[address] = make()
        return value

    def has_value(self, address: str) -> bool:
        """Is there such a value?"""
        return address in self._values or address in self.record.values

    def recorded(self, frame: Frame, view: View, head: Head, facts: VersionFacts) -> None:
        """A call made in a frame was recorded: a step around it sees what it changed, and passes it if it is tried
        again."""
        self.replay.paths.pop(facts.more.get("address") or facts.step or "", None)
        owner = frame.owner
        if owner is not None:
            if view is owner.view:
                owner.newer = head if view.follows else view.now()
            self.record.enter(head.version, facts.more)
            owner.count(_spent(facts.more))

    def replayed(self, frame: Frame, view: View, entry: Entry, resolve: Resolver | None) -> None:
        """A recorded call was passed in a frame: a step around it sees what it had changed then."""
        self.replay.paths.pop(entry.address, None)
        self.beat = self.services.context.clock()
        if view is self.main:
            self.reached(entry.number)
        if not view.follows:
            view.replayed(entry, resolve)
        owner = frame.owner
        if owner is not None:
            if view is owner.view:
                owner.newer = Seen(None, entry.number) if view.follows else view.now()
            owner.count(_spent(entry.detail))

    def start_of(self, address: str, view: View, start: Seen | Head) -> Head | Start:
        """Return the state that a step starts from: what its caller saw when it called, with the changes made from
        outside the run. A step that is run again because its failure does not count any more starts from the head:
        others may have been recorded since."""
        if view.follows and address in self.record.failed and address not in self.record.begun:
            return self.head
        return start_of(self, view.updated(start))


def _spent(detail: Mapping[str, Any]) -> dict[str, Any]:
    """What a step that was called within another has spent, itself included."""
    spent = detail.get("spent") or {}
    return {**spent, "steps": spent.get("steps", 0) + (0 if "failed" in detail else 1)}
