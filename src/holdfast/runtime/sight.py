"""What code in a run sees: the state after the steps that were passed or run so far, and recorded values.

Invariant: a workflow's own code sees the same state, between the same steps, whenever it is run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.history.reader import Head

if TYPE_CHECKING:
    from holdfast.history.commit import Facts as VersionFacts
    from holdfast.runtime.record import Entry, Record
    from holdfast.runtime.scope import Frame
    from holdfast.runtime.services import Services


class Sight:
    """The half of a session that code in the run looks through."""

    def __init__(self, services: Services, head: Head, record: Record, values: dict[str, Any]) -> None:
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

    def passed(self, entry: Entry) -> None:
        """A recorded step was passed without being run."""
        self.beat = self.services.context.clock()
        if self._place is not None:
            self._place = max(self._place, entry.number)
            if entry.number >= self._newest:
                self._place = None

    def seen(self) -> Any:
        """The state, frozen, as it is after the steps that were passed or run so far."""
        reader = self.services.context.reader(self.head.run)
        root = self.head.root if self._place is None else reader.state(self._place)
        if self._seen[0] is not root:
            self._seen = (root, reader.show(root))
        return self._seen[1]

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

    def recorded(self, frame: Frame, head: Head, facts: VersionFacts) -> None:
        """A call made in a frame was recorded: a step around it sees what it changed, and passes it if it is tried
        again."""
        owner = frame.owner
        if owner is not None:
            owner.newer = head
            self.record.enter(head.version, facts.more)

    def replayed(self, frame: Frame, entry: Entry) -> None:
        """A recorded call was passed in a frame: a step around it sees what it had changed then."""
        self.passed(entry)
        owner = frame.owner
        if owner is not None:
            owner.newer = entry.number

    def at(self, number: int) -> Head:
        """A version of the line as something to begin from."""
        if number == self.head.version.number:
            return self.head
        reader = self.services.context.reader(self.head.run)
        version = msgspec.structs.replace(self.head.version, number=number)
        return Head(self.head.run, version, reader.state(number))

    def start_of(self, address: str) -> Head:
        """What a step begins from: the head, or, if it was begun before and has called steps, what it began from
        then."""
        before = self.record.begun.get(address)
        return self.head if before is None else self.at(before)
