"""The store in memory: for tests, for trying things out, for runs that need not outlive the process.

The contracts are on the protocol, `store.base`. Contents of artifacts, and the parts of an import, are read
before the lock is taken: a source that fails has changed nothing.

Invariant: all is read and changed under one lock, and a change is checked before its first part is made.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from heapq import nsmallest
from itertools import islice
from operator import attrgetter
from typing import NoReturn

from msgspec.structs import replace

from holdfast.errors import (
    AlreadyExists,
    CorruptStore,
    HoldfastError,
    InvalidCall,
    NotFound,
    StaleVersion,
    StoreUnavailable,
)
from holdfast.model import records
from holdfast.model.records import EventRecord, MarkRecord, RunRecord, VersionRecord
from holdfast.store import memory_queue
from holdfast.store.base import Append, Claim, Imported, Place, Prune, wall_clock
from holdfast.store.claims import expired
from holdfast.store.memory_artifacts import Contents, read
from holdfast.store.memory_beside import Beside
from holdfast.store.memory_run import NONE, Entry, Kept, Part, Run

#: Seconds between looks for whoever waits for news.
_LOOK = 0.25


class _Closed:
    """Takes the place of the lock once the store is closed."""

    def __enter__(self) -> NoReturn:
        raise StoreUnavailable("this store in memory is closed: open another")

    def __exit__(self, *_: object) -> None:
        """Never reached."""


class MemoryStore(Beside):
    """A store in memory."""

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        super().__init__()
        self._clock = clock or wall_clock
        self._ids: dict[str, Run] = {}
        #: By key, in order of keys.
        self._runs: dict[int, Run] = {}
        self._last_key = 0
        #: The entry at position n is at n - 1; None where it is gone.
        self._journal: list[Entry | None] = []

    # Runs

    def append(self, change: Append) -> RunRecord:
        brought = read(change.uploads)
        with self._lock:
            return self._append(change, brought)

    def append_many(self, changes: Sequence[Append]) -> list[RunRecord | HoldfastError]:
        # Before the lock, and before the first change: a source that fails has changed nothing.
        brought = [_try_read(change) for change in changes]
        with self._lock:
            return [self._try_append(*both) for both in zip(changes, brought, strict=True)]

    def _try_append(self, change: Append, brought: Contents | HoldfastError) -> RunRecord | HoldfastError:
        if isinstance(brought, HoldfastError):
            return brought
        try:
            return self._append(change, brought)
        except HoldfastError as error:
            return error

    def _append(self, change: Append, brought: Contents) -> RunRecord:
        version, timeline = change.version, change.timeline
        self._artifacts.require(change.holds, brought)
        if change.expect is not None:
            run = self._expected(change.expect)
            if change.leased and run.record.until <= self.now():
                raise expired(run.record)
        elif change.run.id not in self._ids:
            run = Run(change.run)
        else:
            raise StaleVersion(f"run {change.run.id!r} was made by another: read it, then try again")
        if (version and version.number in run.versions) or (timeline and timeline.number in run.timelines):
            raise CorruptStore(f"run {change.run.id!r} has a version or timeline that its record denies")
        if change.expect is None:
            self._admit(run)
        else:
            run.record = change.run
        if change.queue is not None:
            run.queue, run.begun = change.queue, run.begun and run.queue == change.queue
        self._artifacts.keep(brought, change.run.updated)
        if version is not None:
            self._write(run, (version, change.blocks, change.holds))
            for name in change.tags:
                mark = MarkRecord(number=version.number, name=name, at=version.at)
                run.marks.setdefault((version.number, name), mark)
        if timeline is not None:
            run.timelines[timeline.number] = timeline
        self._note(run, change.events)
        return run.record

    def run(self, run_id: str) -> RunRecord | None:
        with self._lock:
            return self._ids[run_id].record if run_id in self._ids else None

    def revision(self, run_id: str) -> tuple[int, int] | None:
        run = self.run(run_id)
        return None if run is None else (run.key, run.revision)

    def run_by_key(self, key: int) -> RunRecord | None:
        with self._lock:
            return self._runs[key].record if key in self._runs else None

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
        due: int | None = None,
        parent: int | None = None,
        prefix: str = "",
        live: bool = False,
        limit: int = 100,
    ) -> list[RunRecord]:
        def fits(run: Run) -> bool:
            return (
                (due is None or (run.record.due is not None and run.record.due <= due))
                and (parent is None or run.record.parent == parent)
                and run.record.id.startswith(prefix)
                and (before is None or run.record.key < before)
                and (statuses is None or run.record.status in statuses)
                and (workflow is None or run.record.workflow == workflow)
                and (since is None or run.record.updated >= since)
                and (not tags or {name for _, name in run.marks}.issuperset(tags))
                and (not live or (run.record.workflow is not None and run.record.status in records.LIVE))
            )

        with self._lock:
            return [run.record for run in islice(filter(fits, reversed(self._runs.values())), limit)]

    def waiting(self, wanted: Claim) -> bool:
        with self._lock:
            return bool(memory_queue.ready(self._runs.values(), wanted))

    def claim(self, wanted: Claim) -> list[RunRecord]:
        with self._lock:
            taken = memory_queue.take(self._runs.values(), wanted)
            for run in taken:
                if wanted.event is not None:
                    self._note(run, [wanted.event])
            return [run.record for run in taken]

    def claim_again(
        self, run: int, owner: str, lease: int, most: int | None, event: EventRecord
    ) -> RunRecord | None:
        with self._lock:
            found = self._runs.get(run)
            if found is None:
                return None
            before = found.record
            taken = memory_queue.take_again(self._runs.values(), found, owner, self.now(), lease, most)
            if taken is not None and taken is not before:
                self._note(found, [event])
            return taken

    def place(self, run: int) -> Place | None:
        with self._lock:
            return self._runs.get(run, NONE).queue

    def queues(self) -> dict[str, dict[str, int]]:
        with self._lock:
            return memory_queue.counts(self._runs.values())

    def forks_of(self, key: int) -> list[RunRecord]:
        with self._lock:
            every = [run.record for run in self._runs.values()]
        return [run for run in every if run.origin is not None and run.origin[0] == key]

    def delete_run(self, run: RunRecord) -> None:
        with self._lock:
            gone = self._expected(run)
            for number, kept in gone.versions.items():
                self._artifacts.let_go(kept.holds, (run.key, number))
            for seq in gone.places:
                self._journal[seq - 1] = None
            del self._ids[gone.record.id], self._runs[run.key]

    def import_run(self, imported: Imported) -> RunRecord:
        brought = read(imported.uploads)
        versions = list(imported.versions)
        if len({version.number for version, _, _ in versions}) < len(versions):
            raise CorruptStore(f"run {imported.run.id!r} comes with two versions of one number")
        run = Run(imported.run)
        run.timelines = {timeline.number: timeline for timeline in imported.timelines}
        run.marks = {(mark.number, mark.name): mark for mark in imported.marks}
        with self._lock:
            if run.record.id in self._ids:
                raise AlreadyExists(f"run {run.record.id!r} exists: import under another id, or delete it")
            for _, _, holds in versions:
                self._artifacts.require(holds, brought)
            self._admit(run)
            self._artifacts.keep(brought, run.record.created)
            for part in versions:
                self._write(run, part)
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
        with self._lock:
            return self._runs.get(run, NONE).page(
                before, after, limit, timeline=timeline, step=step, kind=kind, tag=tag, ascending=ascending,
                pruned=pruned,
            )  # fmt: skip

    def packs(self, run: int, numbers: Sequence[int]) -> list[VersionRecord]:
        with self._lock:
            versions = self._runs.get(run, NONE).versions
            there = [versions[number] for number in numbers if number in versions]
        return [replace(kept.record, pack=kept.pack) for kept in there]

    def pack_bytes(self, run: int, numbers: Sequence[int]) -> dict[int, bytes]:
        with self._lock:
            versions = self._runs.get(run, NONE).versions
            return {number: versions[number].pack for number in numbers if number in versions}

    def packs_of(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], VersionRecord]:
        with self._lock:
            there = {
                (run, number): kept
                for run, number in places
                if (kept := self._runs.get(run, NONE).versions.get(number)) is not None
            }
        return {place: replace(kept.record, pack=kept.pack) for place, kept in there.items()}

    def block(self, run: int, number: int, index: int) -> bytes | None:
        with self._lock:
            kept = self._runs.get(run, NONE).versions.get(number)
        return None if kept is None or index >= len(kept.blocks) else kept.blocks[index]

    def timelines(self, run: int) -> list[records.TimelineRecord]:
        with self._lock:
            return sorted(self._runs.get(run, NONE).timelines.values(), key=attrgetter("number"))

    def marks(self, run: int, first: int | None = None, last: int | None = None) -> list[MarkRecord]:
        with self._lock:
            return self._runs.get(run, NONE).marked(first, last)

    def set_mark(self, run: int, mark: MarkRecord, *, on: bool, event: EventRecord) -> bool:
        place = (mark.number, mark.name)
        with self._lock:
            found = self._runs.get(run, NONE)
            kept = found.versions.get(mark.number)
            if on and (kept is None or kept.record.pruned):
                raise NotFound(f"version {mark.number} is not there any more: mark another")
            if on is (place in found.marks):
                return False
            if on:
                found.marks[place] = mark
            else:
                del found.marks[place]
            self._note(found, (event,))
            return True

    def journal(self, *, run: int | None, after: int, limit: int) -> list[Entry]:
        with self._lock:
            if run is None:
                every = (self._journal[index] for index in range(max(after, 0), len(self._journal)))
                return list(islice((entry for entry in every if entry is not None), limit))
            places = self._runs.get(run, NONE).places
            start = bisect_right(places, after)
            entries = (self._journal[seq - 1] for seq in places[start : start + limit])
            return [entry for entry in entries if entry is not None]

    def journal_end(self) -> int:
        with self._lock:
            return len(self._journal)

    def prune(self, plan: Prune) -> RunRecord:
        gone = {*plan.drop, *(version.number for version, _, _ in plan.thin)}
        with self._lock:
            run = self._expected(plan.expect)
            if any(number in gone for number, _ in run.marks):
                raise StaleVersion(f"run {plan.run.id!r} was marked since: plan the pruning anew")
            run.record = plan.run
            places = {}
            for number in gone & run.versions.keys():
                kept = run.versions.pop(number)
                self._artifacts.let_go(kept.holds, (plan.run.key, number))
                self._journal[kept.record.seq - 1] = None
                places[number] = kept.record.seq
            run.numbers = [number for number in run.numbers if number not in gone]
            run.places = [seq for seq in run.places if self._journal[seq - 1] is not None]
            for part in plan.thin:
                self._write(run, part, places.get(part[0].number))
            self._note(run, plan.events)
            return run.record

    # Leases

    def renew(self, runs: Sequence[int], owner: str, until: int) -> list[int]:
        with self._lock:
            now, late = self.now(), []
            for run in filter(None, map(self._runs.get, runs)):
                if run.record.owner != owner:
                    continue
                if run.record.until <= now:
                    late.append(run.record.key)
                elif run.record.until < until:
                    run.record = replace(run.record, until=until)
            return late

    # The whole

    def news(self, timeout: float) -> bool:
        time.sleep(min(timeout, _LOOK))
        return True

    def now(self) -> int:
        return self._clock()

    def stats(self) -> records.StoreStats:
        with self._lock:
            runs = [run.record for run in self._runs.values()]
            return records.StoreStats(
                runs=len(runs),
                versions=sum(run.kept for run in runs),
                events=sum(isinstance(entry, EventRecord) for entry in self._journal),
                artifacts=len(self._artifacts.records),
                artifact_bytes=sum(record.size for record in self._artifacts.records.values()),
                pack_bytes=sum(run.size for run in runs),
            )

    def check(self) -> list[str]:
        with self._lock:
            return []

    def backup(self, path: str | os.PathLike[str], artifacts: str | os.PathLike[str] | None) -> None:
        raise InvalidCall("a store in memory is not kept: export its runs with export_run")

    def compact(self) -> None:
        with self._lock:
            """What is removed is gone at once."""

    def close(self) -> None:
        self._lock = _Closed()

    # Within the lock

    def _expected(self, expect: RunRecord) -> Run:
        run = self._runs.get(expect.key)
        if run is None or run.record.revision != expect.revision:
            raise StaleVersion(f"run {expect.id!r} has moved on since it was read: read it, then try again")
        return run

    def _admit(self, run: Run) -> None:
        self._last_key += 1
        run.record = replace(run.record, key=self._last_key)
        self._ids[run.record.id] = self._runs[self._last_key] = run

    def _write(self, run: Run, part: Part, seq: int | None = None) -> None:
        version, blocks, holds = part
        if seq is None:
            self._journal.append(None)
            seq = len(self._journal)
        key, number = run.record.key, version.number
        record = replace(version, seq=seq, pack=None)
        run.versions[number] = Kept(record, version.pack or b"", tuple(blocks), tuple(holds))
        insort(run.numbers, number)
        if not version.pruned:
            self._journal[seq - 1] = (key, record)
            run.places.append(seq)
        self._artifacts.hold(holds, (key, number))

    def _note(self, run: Run, events: Iterable[EventRecord]) -> None:
        for event in events:
            run.places.append(len(self._journal) + 1)
            self._journal.append(replace(event, seq=run.places[-1], run=run.record.key))


def _try_read(change: Append) -> Contents | HoldfastError:
    try:
        return read(change.uploads)
    except HoldfastError as error:
        return error
