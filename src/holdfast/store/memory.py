"""The store in memory: for tests, for trying things out, for runs that need not outlive the process.

The contracts are on the protocol, `store.base`. Contents of artifacts and parts of an import are read before
the lock is taken, so a source that fails has changed nothing.

Invariant: everything is read and changed under one lock, and a change is checked before its first part is made.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from heapq import nsmallest
from itertools import islice
from typing import NamedTuple, NoReturn

from msgspec.structs import replace

from holdfast.errors import AlreadyExists, CorruptStore, NotFound, StaleVersion, StoreUnavailable
from holdfast.model.records import (
    ArtifactRecord,
    EventRecord,
    MarkRecord,
    RunRecord,
    StoreStats,
    TimelineRecord,
    VersionRecord,
)
from holdfast.store.artifacts import checked, verified
from holdfast.store.base import Append, Imported, Prune
from holdfast.tree.artifact import PIECE
from holdfast.tree.pack import Upload

Entry = EventRecord | tuple[int, VersionRecord]


class _Kept(NamedTuple):
    #: The record without its pack.
    record: VersionRecord
    pack: bytes
    blocks: tuple[bytes, ...]
    holds: tuple[bytes, ...]


class _Run:
    """A run and all that belongs to it alone."""

    __slots__ = ("marked", "marks", "numbers", "places", "record", "timelines", "versions")

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.versions: dict[int, _Kept] = {}
        #: The numbers of the versions, in order.
        self.numbers: list[int] = []
        self.timelines: dict[int, TimelineRecord] = {}
        self.marks: dict[tuple[int, str], MarkRecord] = {}
        #: The keys of the marks, in order.
        self.marked: list[tuple[int, str]] = []
        #: Its positions in the journal, in order.
        self.places: list[int] = []

    def mark(self, mark: MarkRecord) -> bool:
        place = (mark.number, mark.name)
        if place in self.marks:
            return False
        self.marks[place] = mark
        insort(self.marked, place)
        return True

    def unmark(self, place: tuple[int, str]) -> bool:
        if self.marks.pop(place, None) is None:
            return False
        del self.marked[bisect_left(self.marked, place)]
        return True

    def marks_of(self, first: int | None, last: int | None) -> list[tuple[int, str]]:
        start = 0 if first is None else bisect_left(self.marked, (first, ""))
        end = None if last is None else bisect_left(self.marked, (last + 1, ""))
        return self.marked[start:end]


class _Closed:
    """Takes the place of the lock once the store is closed."""

    def __enter__(self) -> NoReturn:
        raise StoreUnavailable("this store in memory is closed: open another")

    def __exit__(self, *_: object) -> None:
        """Never reached."""


class MemoryStore:
    """A store in memory."""

    def __init__(self) -> None:
        self._lock: AbstractContextManager[object] = threading.Lock()
        self._ids: dict[str, _Run] = {}
        #: By key, in order of keys.
        self._runs: dict[int, _Run] = {}
        self._last_key = 0
        #: The entry at position n is at n - 1; None where it is gone.
        self._journal: list[Entry | None] = []
        self._artifacts: dict[bytes, ArtifactRecord] = {}
        self._contents: dict[bytes, bytes] = {}
        #: The versions (run and number) that hold each artifact.
        self._holders: dict[bytes, set[tuple[int, int]]] = {}

    # Runs

    def append(self, change: Append) -> RunRecord:
        brought = _read(change.uploads)
        with self._lock:
            self._require(change.holds, brought)
            if change.expect is None:
                if change.run.id in self._ids:
                    raise StaleVersion(
                        f"run {change.run.id!r} was made by another writer: read it, then try again"
                    )
                run = _Run(change.run)
            else:
                run = self._expected(change.expect)
            version, timeline = change.version, change.timeline
            if (version and version.number in run.versions) or (
                timeline and timeline.number in run.timelines
            ):
                raise CorruptStore(f"run {change.run.id!r} has a version or timeline that its record denies")
            if change.expect is None:
                self._admit(run)
            else:
                run.record = change.run
            self._keep(change.uploads, brought, change.run.updated)
            if version is not None:
                self._write(run, version, change.blocks, change.holds)
                for name in change.tags:
                    run.mark(MarkRecord(number=version.number, name=name, at=version.at))
            if timeline is not None:
                run.timelines[timeline.number] = timeline
            self._note(run, change.events)
            return run.record

    def run(self, run_id: str) -> RunRecord | None:
        with self._lock:
            run = self._ids.get(run_id)
            return None if run is None else run.record

    def run_by_key(self, key: int) -> RunRecord | None:
        with self._lock:
            run = self._runs.get(key)
            return None if run is None else run.record

    def run_ids(self, prefix: str, limit: int) -> list[str]:
        with self._lock:
            return nsmallest(limit, (run_id for run_id in self._ids if run_id.startswith(prefix)))

    def runs(
        self,
        *,
        statuses: Sequence[str] | None = None,
        workflow: str | None = None,
        tags: Sequence[str] = (),
        since: int | None = None,
        before: int | None = None,
        limit: int = 100,
    ) -> list[RunRecord]:
        def fits(run: _Run) -> bool:
            record = run.record
            return (
                (before is None or record.key < before)
                and (statuses is None or record.status in statuses)
                and (workflow is None or record.workflow == workflow)
                and (since is None or record.updated >= since)
                and (not tags or {name for _, name in run.marked}.issuperset(tags))
            )

        with self._lock:
            return [run.record for run in islice(filter(fits, reversed(self._runs.values())), limit)]

    def forks_of(self, key: int) -> list[RunRecord]:
        with self._lock:
            return [
                run.record for run in self._runs.values() if run.record.origin and run.record.origin[0] == key
            ]

    def delete_run(self, run: RunRecord) -> None:
        with self._lock:
            gone = self._expected(run)
            for number in gone.numbers:
                self._let_go(gone, number)
            for seq in gone.places:
                self._journal[seq - 1] = None
            del self._ids[gone.record.id]
            del self._runs[run.key]

    def import_run(self, imported: Imported) -> RunRecord:
        uploads = list(imported.uploads)
        brought = _read(uploads)
        versions = list(imported.versions)
        run = _Run(imported.run)
        run.timelines = {timeline.number: timeline for timeline in imported.timelines}
        for mark in imported.marks:
            run.mark(mark)
        if len({version.number for version, _, _ in versions}) < len(versions):
            raise CorruptStore(f"run {imported.run.id!r} comes with two versions of one number")
        with self._lock:
            if imported.run.id in self._ids:
                raise AlreadyExists(
                    f"run {imported.run.id!r} exists: import under another id, or delete it first"
                )
            for _, _, holds in versions:
                self._require(holds, brought)
            self._admit(run)
            self._keep(uploads, brought, imported.run.created)
            for version, blocks, holds in versions:
                self._write(run, version, blocks, holds)
            self._note(run, imported.events)
            return run.record

    # Versions

    def versions(
        self,
        run: int,
        *,
        before: int | None = None,
        after: int | None = None,
        limit: int = 100,
        timeline: int | None = None,
        step: str | None = None,
        kind: str | None = None,
        tag: str | None = None,
        ascending: bool = False,
        pruned: bool = False,
    ) -> list[VersionRecord]:
        def fits(record: VersionRecord) -> bool:
            return (
                (pruned or not record.pruned)
                and (timeline is None or record.timeline == timeline)
                and (step is None or record.step == step)
                and (kind is None or record.kind == kind)
            )

        with self._lock:
            found = self._runs.get(run)
            if found is None:
                return []
            numbers = found.numbers
            if tag is not None:
                numbers = [
                    number for number, name in found.marked if name == tag and number in found.versions
                ]
            start = 0 if after is None else bisect_right(numbers, after)
            end = len(numbers) if before is None else bisect_left(numbers, before)
            order = range(start, end) if ascending else range(end - 1, start - 1, -1)
            records = (found.versions[numbers[index]].record for index in order)
            return list(islice(filter(fits, records), limit))

    def packs(self, run: int, numbers: Sequence[int]) -> list[VersionRecord]:
        with self._lock:
            found = self._runs.get(run)
            there = [] if found is None else [found.versions[n] for n in numbers if n in found.versions]
        return [replace(kept.record, pack=kept.pack) for kept in there]

    def block(self, run: int, number: int, index: int) -> bytes | None:
        with self._lock:
            found = self._runs.get(run)
            kept = None if found is None else found.versions.get(number)
            return kept.blocks[index] if kept is not None and 0 <= index < len(kept.blocks) else None

    def timelines(self, run: int) -> list[TimelineRecord]:
        with self._lock:
            found = self._runs.get(run)
            return [] if found is None else [found.timelines[number] for number in sorted(found.timelines)]

    def marks(self, run: int, first: int | None = None, last: int | None = None) -> list[MarkRecord]:
        with self._lock:
            found = self._runs.get(run)
            return [] if found is None else [found.marks[place] for place in found.marks_of(first, last)]

    def set_mark(self, run: int, mark: MarkRecord, *, on: bool, event: EventRecord) -> bool:
        with self._lock:
            found = self._runs.get(run)
            kept = None if found is None else found.versions.get(mark.number)
            if on and (kept is None or kept.record.pruned):
                raise NotFound(f"version {mark.number} is not there any more: mark another")
            if found is None:
                return False
            changed = found.mark(mark) if on else found.unmark((mark.number, mark.name))
            if changed:
                self._note(found, (event,))
            return changed

    def journal(self, *, run: int | None, after: int, limit: int) -> list[Entry]:
        after = max(after, 0)
        with self._lock:
            if run is None:
                entries = (self._journal[index] for index in range(after, len(self._journal)))
                return list(islice((entry for entry in entries if entry is not None), limit))
            found = self._runs.get(run)
            places = [] if found is None else found.places
            start = bisect_right(places, after)
            entries = (self._journal[seq - 1] for seq in islice(places, start, start + limit))
            return [entry for entry in entries if entry is not None]

    def prune(self, plan: Prune) -> RunRecord:
        with self._lock:
            run = self._expected(plan.expect)
            run.record = plan.run
            gone = {*plan.drop, *(version.number for version, _, _ in plan.thin)}
            places = {}
            for number in gone & run.versions.keys():
                self._let_go(run, number)
                places[number] = run.versions.pop(number).record.seq
                self._journal[places[number] - 1] = None
            run.numbers = [number for number in run.numbers if number not in gone]
            run.places = [seq for seq in run.places if self._journal[seq - 1] is not None]
            run.marked = [place for place in run.marked if place[0] not in gone]
            run.marks = {place: run.marks[place] for place in run.marked}
            for version, blocks, holds in plan.thin:
                self._write(run, version, blocks, holds, seq=places.get(version.number))
            self._note(run, plan.events)
            return run.record

    # Artifacts

    def put_artifact(self, upload: Upload, at: int) -> bool:
        brought = _read((upload,))
        with self._lock:
            new = upload.digest not in self._artifacts
            self._keep((upload,), brought, at)
            return new

    def artifact(self, digest: bytes) -> ArtifactRecord | None:
        with self._lock:
            return self._artifacts.get(digest)

    def artifact_pieces(self, digest: bytes) -> Iterator[bytes]:
        with self._lock:
            content = self._contents.get(digest)
        if content is None:
            raise NotFound(f"artifact {digest.hex()[:12]} is not in this store", artifact=digest.hex())
        return verified(digest, (content[at : at + PIECE] for at in range(0, len(content), PIECE)))

    def artifacts(self, *, after: bytes = b"", limit: int = 1000) -> list[ArtifactRecord]:
        with self._lock:
            digests = nsmallest(limit, (digest for digest in self._artifacts if digest > after))
            return [self._artifacts[digest] for digest in digests]

    def collect(self, *, before: int) -> tuple[int, int]:
        with self._lock:
            gone = [
                record
                for record in self._artifacts.values()
                if record.at < before and record.digest not in self._holders
            ]
            for record in gone:
                del self._artifacts[record.digest], self._contents[record.digest]
            return len(gone), sum(record.size for record in gone)

    # The whole

    def stats(self) -> StoreStats:
        with self._lock:
            runs = [run.record for run in self._runs.values()]
            return StoreStats(
                runs=len(runs),
                versions=sum(run.kept for run in runs),
                events=sum(isinstance(entry, EventRecord) for entry in self._journal),
                artifacts=len(self._artifacts),
                artifact_bytes=sum(record.size for record in self._artifacts.values()),
                pack_bytes=sum(run.size for run in runs),
            )

    def check(self) -> list[str]:
        with self._lock:
            return []

    def compact(self) -> None:
        """There is nothing to give back: what is removed is gone at once."""

    def close(self) -> None:
        self._lock = _Closed()

    # Within the lock

    def _expected(self, expect: RunRecord) -> _Run:
        run = self._runs.get(expect.key)
        if run is None or run.record.revision != expect.revision:
            raise StaleVersion(f"run {expect.id!r} has moved on since it was read: read it, then try again")
        return run

    def _require(self, holds: Iterable[bytes], brought: dict[bytes, bytes]) -> None:
        for digest in holds:
            if digest not in brought and digest not in self._artifacts:
                raise NotFound(
                    f"artifact {digest.hex()[:12]} is not in this store: "
                    "commit holdfast.artifact(…) of its content",
                    artifact=digest.hex(),
                )

    def _admit(self, run: _Run) -> None:
        self._last_key += 1
        run.record = replace(run.record, key=self._last_key)
        self._ids[run.record.id] = self._runs[self._last_key] = run

    def _write(
        self,
        run: _Run,
        version: VersionRecord,
        blocks: Sequence[bytes],
        holds: Sequence[bytes],
        *,
        seq: int | None = None,
    ) -> None:
        if seq is None:
            self._journal.append(None)
            seq = len(self._journal)
        key, number = run.record.key, version.number
        record = replace(version, seq=seq, pack=None)
        run.versions[number] = _Kept(record, version.pack or b"", tuple(blocks), tuple(holds))
        insort(run.numbers, number)
        if not version.pruned:
            self._journal[seq - 1] = (key, record)
            run.places.append(seq)
        for digest in holds:
            self._holders.setdefault(digest, set()).add((key, number))

    def _let_go(self, run: _Run, number: int) -> None:
        for digest in run.versions[number].holds:
            holders = self._holders.get(digest, set())
            holders.discard((run.record.key, number))
            if not holders:
                self._holders.pop(digest, None)

    def _note(self, run: _Run, events: Iterable[EventRecord]) -> None:
        for event in events:
            seq = len(self._journal) + 1
            self._journal.append(replace(event, seq=seq, run=run.record.key))
            run.places.append(seq)

    def _keep(self, uploads: Iterable[Upload], brought: dict[bytes, bytes], at: int) -> None:
        for upload in uploads:
            known = self._artifacts.get(upload.digest)
            if known is None:
                self._contents[upload.digest] = brought[upload.digest]
            since = at if known is None else max(at, known.at)
            self._artifacts[upload.digest] = ArtifactRecord(digest=upload.digest, size=upload.size, at=since)


def _read(uploads: Iterable[Upload]) -> dict[bytes, bytes]:
    return {upload.digest: b"".join(checked(upload)) for upload in uploads}
