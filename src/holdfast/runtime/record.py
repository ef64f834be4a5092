"""What a run has recorded: the results by address that a resumed run passes without running anything.

Only versions that the head follows count, back through the runs that it was forked from: what an abandoned timeline
did is never seen here.

Invariant: an address is recorded once; its result is what the step gave when it was recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

from holdfast.history.commit import ERROR, INPUT, RESULT
from holdfast.history.reader import Reader
from holdfast.history.seal import check
from holdfast.model.records import VersionRecord
from holdfast.runtime.failure import revive
from holdfast.tree.codec import decode
from holdfast.tree.frozen import thaw

_PAGE = 2000
#: Packs that are read together.
_AHEAD = 100


class Entry(NamedTuple):
    """A recorded step."""

    address: str
    #: Its version, counted as the lineage of the run counts (see `history.reader`).
    number: int
    #: The digest of its arguments; empty where they have none.
    args: bytes
    failed: bool
    detail: dict[str, Any]
    version: VersionRecord


class Record:
    """What the head and those before it have recorded."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.steps: dict[str, Entry] = {}
        #: Recorded values: times, random numbers, …
        self.values: dict[str, Any] = {}
        #: The version that holds what the workflow was called with; None if it is not there any more.
        self.first: int | None = None
        self._order: list[int] = []
        self._places: dict[int, int] = {}

    def load(self, head: int, forgotten: Collection[str] = ()) -> Record:
        """Read what a head and those before it have recorded, but for the failures at the addresses `forgotten`."""
        for number, version in lineage(self._reader, head):
            self._enter(number, version, forgotten)
        return self

    def at_hand(self, entry: Entry) -> bool:
        """Can what a step gave be read without asking the store?"""
        return self._reader.at_hand(entry.number)

    def fetch(self, entry: Entry) -> None:
        """Read what a step gave from the store, and along with it what will be asked for next."""
        if entry.number > 0:
            place = self._places[entry.number]
            self._reader.read_ahead(self._order[place : place + _AHEAD])

    def result(self, entry: Entry) -> Any:
        """What a step gave, as an ordinary value."""
        return thaw(self._reader.part(entry.number, RESULT))

    def error(self, entry: Entry) -> BaseException:
        """How a step failed, to be raised again."""
        return revive(self._reader.part(entry.number, ERROR) or {})

    def input(self, number: int) -> tuple[list[Any], dict[str, Any]]:
        """What a workflow or a step was called with."""
        given = thaw(self._reader.part(number, INPUT))
        return (given[0], given[1]) if given else ([], {})

    def _enter(self, number: int, version: VersionRecord, forgotten: Collection[str]) -> None:
        if version.kind == "initial":
            self.first = number
        if not version.detail:
            return
        detail = decode(version.detail)
        self.values.update(detail.get("values", {}))
        args = detail.get("args")
        if args is None:
            return
        address = detail.get("address", version.step)
        failed = "failed" in detail
        if failed and address in forgotten:
            return
        self.steps[address] = Entry(address, number, args, failed, detail, version)
        self._places[number] = len(self._order)
        self._order.append(number)


def lineage(reader: Reader, head: int) -> Iterator[tuple[int, VersionRecord]]:
    """The head and all that it follows, oldest first."""
    origin = reader.run.origin
    line: list[VersionRecord] = []
    known: dict[int, VersionRecord] = {}
    after = 0
    while after < head:
        page = reader.store.versions(
            reader.run.key, after=after, before=head + 1, limit=_PAGE, ascending=True
        )
        if not page:
            break
        known.update((record.number, record) for record in page)
        after = page[-1].number
    number = head
    while number in known:
        line.append(check(reader.run.id, known[number]))
        number = known[number].parent
    if origin is not None:
        for earlier, record in lineage(reader.origin, origin[1]):
            yield earlier - origin[1], record
    for record in reversed(line):
        yield record.number, record
