"""The contents of a store in memory: runs, and artifacts. Callers hold the store's lock.

Invariant: `MemoryArtifacts.holders` has each artifact that a version holds, with those versions.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import nsmallest
from itertools import islice, starmap
from operator import attrgetter, call
from typing import Any, NamedTuple, TypeAlias, TypeVar, Unpack

from holdfast.model.records import (
    ArtifactRecord,
    AttachmentRecord,
    MarkRecord,
    RunRecord,
    TimelineRecord,
    VersionRecord,
)
from holdfast.store.artifact_folder import checked, verified
from holdfast.store.protocol import JournalEntry, QueuePlace, VersionQuery, missing_artifact
from holdfast.tree.artifact import PIECE
from holdfast.tree.pack import Upload

#: Contents of artifacts by digest.
Contents: TypeAlias = dict[bytes, bytes]
#: The key of a version's run, and the version's number.
VersionKey: TypeAlias = tuple[int, int]
K = TypeVar("K")
C = TypeVar("C")


def read_uploads(uploads: Iterable[Upload]) -> Contents:
    """Read the contents of uploads; `CorruptStore` if one does not match its hash."""
    return {upload.digest: b"".join(checked(upload)) for upload in uploads}


class Steps:
    """Changes that are carried out together, or not at all.

    A signal handler may raise between any two bytecodes. While steps are carried out there are none: each is a call of
    a function in C. Adding a step changes nothing.
    """

    def __init__(self, journal: list[JournalEntry | None]) -> None:
        self._journal = journal
        self._end = len(journal)
        self._steps: list[tuple[Any, ...]] = []
        self._new: dict[tuple[int, Any], Any] = {}

    def add(self, function: Callable[..., object], *arguments: Any) -> None:
        """Add a call of a function in C."""
        self._steps.append((function, *arguments))

    def inner(self, containers: dict[K, C], key: K, empty: C) -> C:
        """Return the container under a key; `empty`, which a step stores there, if there is none."""
        found = containers.get(key)
        if found is not None:
            return found
        place = (id(containers), key)
        if place not in self._new:
            self._new[place] = empty
            self.add(containers.__setitem__, key, empty)
        new: C = self._new[place]
        return new

    def append(self, entry: Callable[[int], JournalEntry | None]) -> int:
        """Append an entry, made for its position, to the journal; return the position."""
        self._end += 1
        self.add(self._journal.append, entry(self._end))
        return self._end

    def carry_out(self) -> None:
        """Carry out the steps in their order."""
        deque(starmap(call, self._steps), maxlen=0)


class MemoryArtifacts:
    """The artifacts of a store in memory."""

    def __init__(self) -> None:
        self.records: dict[bytes, ArtifactRecord] = {}
        self.holders: dict[bytes, set[VersionKey]] = {}
        self._contents: Contents = {}

    def require(self, holds: Iterable[bytes], uploads: Contents) -> None:
        """Refuse a version that refers to an artifact that is neither stored nor in `uploads`."""
        for digest in holds:
            if digest not in uploads and digest not in self.records:
                raise missing_artifact(digest, ": commit holdfast.artifact(…) of its content")

    def keep(self, uploads: Contents, at: int) -> bool:
        """Store uploads; return whether any is new."""
        any_new = not uploads.keys() <= self.records.keys()
        for digest, content in uploads.items():
            self._contents.setdefault(digest, content)
            known = self.records.get(digest)
            newest = at if known is None else max(at, known.at)
            self.records[digest] = ArtifactRecord(digest=digest, size=len(content), at=newest)
        return any_new

    def hold(self, steps: Steps, holds: Iterable[bytes], holder: VersionKey) -> None:
        """Record that a version refers to artifacts."""
        for digest in holds:
            steps.add(steps.inner(self.holders, digest, set()).add, holder)

    def release(self, steps: Steps, versions: Iterable[StoredVersion], run: int) -> None:
        """Record that versions of a run no longer refer to the artifacts that they held."""
        for version in versions:
            for digest in version.holds:
                steps.add(self.holders[digest].discard, (run, version.record.number))

    def pieces(self, digest: bytes) -> Iterator[bytes]:
        """Return a content in pieces."""
        content = self._contents.get(digest)
        if content is None:
            raise missing_artifact(digest)
        return verified(digest, (content[at : at + PIECE] for at in range(0, len(content), PIECE)))

    def page(self, after: bytes, limit: int) -> list[ArtifactRecord]:
        """Return artifacts in the order of their digests."""
        later = (record for record in self.records.values() if record.digest > after)
        return nsmallest(limit, later, key=attrgetter("digest"))

    def collect(self, before: int) -> tuple[int, int]:
        """Delete artifacts that no version holds and that were stored before a time; return their number and size."""
        return self._delete([record for record in self.records.values() if record.at < before])

    def release_unheld(self, digests: Iterable[bytes]) -> tuple[int, int]:
        """Delete those of these artifacts that no version holds; return their number and size."""
        return self._delete([self.records[digest] for digest in set(digests) & self.records.keys()])

    def _delete(self, records: list[ArtifactRecord]) -> tuple[int, int]:
        gone = [record for record in records if not self.holders.get(record.digest)]
        for record in gone:
            for stored in (self.records, self.holders, self._contents):
                stored.pop(record.digest, None)
        return len(gone), sum(record.size for record in gone)


class StoredVersion(NamedTuple):
    """A version: its record without the pack, the pack, its further blocks, and the artifacts that it holds."""

    record: VersionRecord
    pack: bytes
    blocks: Sequence[bytes]
    holds: Sequence[bytes]


class MemoryRun:
    """A run and everything that belongs to it alone."""

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.versions: dict[int, StoredVersion] = {}
        #: The numbers of the versions, in order.
        self.numbers: list[int] = []
        self.timelines: dict[int, TimelineRecord] = {}
        self.marks: dict[tuple[int, str], MarkRecord] = {}
        #: The numbers of versions by key; attachments by key and name.
        self.keys: dict[str, int] = {}
        self.attachments: dict[str, dict[str, AttachmentRecord]] = {}
        #: Its positions in the journal, in order.
        self.positions: list[int] = []
        self.queue: QueuePlace | None = None
        #: Whether it was claimed before from its queue.
        self.was_claimed = False

    def attach(self, steps: Steps, attachments: Iterable[AttachmentRecord], *, replace: bool) -> list[bool]:
        """Store attachments as `AttachmentStore.attach` does."""
        stored: list[bool] = []
        places: set[tuple[str, str]] = set()
        for each in attachments:
            place = (each.key, each.name)
            is_taken = place in places or each.name in self.attachments.get(each.key, {})
            stored.append(replace or not is_taken)
            if stored[-1]:
                places.add(place)
                steps.add(steps.inner(self.attachments, each.key, {}).__setitem__, each.name, each)
        return stored

    def page(self, limit: int, ascending: bool, **filters: Unpack[VersionQuery]) -> list[VersionRecord]:
        """Return versions as `VersionStore.versions` does."""
        before, after = filters.get("before"), filters.get("after")
        timeline, step, kind = filters.get("timeline"), filters.get("step"), filters.get("kind")
        tag, pruned = filters.get("tag"), filters.get("pruned")

        def matches(record: VersionRecord) -> bool:
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
        return list(islice(filter(matches, every), limit))


#: Represents a run that does not exist.
EMPTY_RUN = MemoryRun(RunRecord(id="", created=0, updated=0))
