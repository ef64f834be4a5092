"""A run in memory: its record, and all that belongs to it alone. Whoever reads or changes it holds the store's lock."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from holdfast.model.records import EventRecord, MarkRecord, RunRecord, TimelineRecord, VersionRecord
from holdfast.store.base import Place

Entry = EventRecord | tuple[int, VersionRecord]
#: A version, its blocks, and the artifacts that it holds.
Part = tuple[VersionRecord, Sequence[bytes], Sequence[bytes]]


class Kept(NamedTuple):
    """A version: its record without the pack, and what goes with it."""

    record: VersionRecord
    pack: bytes
    blocks: Sequence[bytes]
    holds: Sequence[bytes]


class Run:
    """A run and all that belongs to it alone."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.versions: dict[int, Kept] = {}
        #: The numbers of the versions, in order.
        self.numbers: list[int] = []
        self.timelines: dict[int, TimelineRecord] = {}
        self.marks: dict[tuple[int, str], MarkRecord] = {}
        #: Its positions in the journal, in order.
        self.places: list[int] = []
        #: Where it waits for workers.
        self.queue: Place | None = None
        #: Was it claimed before?
        self.begun = False

    def page(
        self,
        before: int | None,
        after: int | None,
        limit: int,
        *,
        timeline: int | None,
        step: str | None,
        kind: str | None,
        tag: str | None,
        ascending: bool,
        pruned: bool,
    ) -> list[VersionRecord]:
        """Versions, as `VersionStore.versions` tells."""

        def fits(record: VersionRecord) -> bool:
            return (
                (pruned or not record.pruned)
                and (timeline is None or record.timeline == timeline)
                and (step is None or record.step == step)
                and (kind is None or record.kind == kind)
                and (tag is None or (record.number, tag) in self.marks)
            )

        start = 0 if after is None else bisect_right(self.numbers, after)
        end = len(self.numbers) if before is None else bisect_left(self.numbers, before)
        order = range(start, end) if ascending else range(end - 1, start - 1, -1)
        every = (self.versions[self.numbers[index]].record for index in order)
        return list(islice(filter(fits, every), limit))

    def marked(self, first: int | None, last: int | None) -> list[MarkRecord]:
        """Tags and pins of a range of versions, by number and name."""
        return [
            self.marks[number, name]
            for number, name in sorted(self.marks)
            if (first is None or number >= first) and (last is None or number <= last)
        ]


#: What is read of a run that is not there.
NONE = Run(RunRecord(id="", created=0, updated=0))
