"""The store in memory: for tests, for experiments, for runs that need not outlive the process. The contracts are those
of `protocol.Store`.

Contents of artifacts and the parts of an import are read before the lock is taken: a source that fails has changed
nothing.

Invariant: everything is read and changed under one lock. A change is checked and prepared completely, then carried out
at once: an exception, a signal handler's included, changes nothing.
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from heapq import nlargest, nsmallest
from itertools import islice
from typing import NoReturn, Unpack

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
from holdfast.model.meta import MetaRow
from holdfast.model.records import (
    ArtifactRecord,
    AttachmentRecord,
    EventRecord,
    MarkRecord,
    QuestionRecord,
    RunRecord,
    VersionRecord,
)
from holdfast.store.memory.contents import (
    EMPTY_RUN,
    Contents,
    MemoryArtifacts,
    MemoryRun,
    Steps,
    StoredVersion,
    read_uploads,
)
from holdfast.store.memory.items import MemoryItems
from holdfast.store.memory.meta import MemoryMeta
from holdfast.store.memory.questions import MemoryQuestions
from holdfast.store.process_fork import ProcessBound
from holdfast.store.protocol import (
    Append,
    Claim,
    JournalEntry,
    OpenQuestion,
    Prune,
    QuestionFilters,
    QuestionPlace,
    QueuePlace,
    RunFilters,
    RunImport,
    VersionParts,
    VersionQuery,
    build_claimed_run,
    build_reclaimed_run,
    lease_expired,
    ready_at,
    run_is_gone,
    stale_new_run,
    stale_run,
    stale_value,
    wall_clock,
)
from holdfast.tree.pack import Upload

#: Seconds after which a waiting reader polls.
_POLL_INTERVAL = 0.25


class _ClosedLock:
    """Replaces the lock of a closed store."""

    def __enter__(self) -> NoReturn:
        raise StoreUnavailable("this store in memory is closed: open another")

    def __exit__(self, *_: object) -> None:
        """Never called."""


class MemoryStore(ProcessBound):
    """A store in memory."""

    def __init__(self, *, clock: Callable[[], int] | None = None) -> None:
        self.now = clock or wall_clock
        self._lock: AbstractContextManager[object] = threading.Lock()
        self._artifacts = MemoryArtifacts()
        self._values: dict[str, tuple[bytes, int]] = {}
        items = MemoryItems(lambda: self._lock)
        self.put_items = items.put
        self.items = items.find
        self.recent_items = items.recent
        self.live_items = items.live
        self.item_names = items.names
        self.nearest_items = items.nearest
        self.namespaces = items.namespaces
        self.renew_items = items.renew
        self.sweep_items = items.sweep
        self._ids: dict[str, MemoryRun] = {}
        #: By key, in the order of keys.
        self._runs: dict[int, MemoryRun] = {}
        self._questions = MemoryQuestions(lambda key: self._runs[key].record)
        self._meta = MemoryMeta()
        self._last_key = 0
        #: The entry at position n has index n - 1; None where it was deleted.
        self._journal: list[JournalEntry | None] = []

    # Runs

    def append(self, change: Append) -> RunRecord:
        uploads = read_uploads(change.uploads)
        with self._lock:
            return self._append(change, uploads)

    def append_many(self, changes: Sequence[Append]) -> list[RunRecord | HoldfastError]:
        uploads = [_try_read_uploads(change) for change in changes]
        with self._lock:
            return [self._try_append(*both) for both in zip(changes, uploads, strict=True)]

    def _try_append(self, change: Append, uploads: Contents | HoldfastError) -> RunRecord | HoldfastError:
        if isinstance(uploads, HoldfastError):
            return uploads
        try:
            return self._append(change, uploads)
        except HoldfastError as error:
            return error

    def _append(self, change: Append, uploads: Contents) -> RunRecord:
        version, timeline = change.version, change.timeline
        self._artifacts.require(change.holds, uploads)
        if change.expect is not None:
            run = self._expected(change.expect)
            if version is not None and version.key in run.keys:
                raise stale_run(change.run)
            if change.leased and run.record.until <= self.now():
                raise lease_expired(run.record)
        elif change.run.id not in self._ids:
            run = MemoryRun(change.run)
        else:
            raise stale_new_run(change.run)
        if (version and version.number in run.versions) or (timeline and timeline.number in run.timelines):
            raise CorruptStore(f"run {change.run.id!r} has a version or timeline that contradicts its record")
        self._artifacts.keep(uploads, change.run.updated)
        steps = Steps(self._journal)
        record = self._add_run(steps, run, change.run) if change.expect is None else change.run
        steps.add(setattr, run, "record", record)
        if change.queue is not None:
            steps.add(setattr, run, "was_claimed", run.was_claimed and run.queue == change.queue)
            steps.add(setattr, run, "queue", change.queue)
        if version is not None:
            self._add_version(steps, run, record.key, (version, change.blocks, change.holds))
            for name in change.tags:
                mark = MarkRecord(number=version.number, name=name, at=version.at)
                steps.add(run.marks.setdefault, (version.number, name), mark)
        if timeline is not None:
            steps.add(run.timelines.__setitem__, timeline.number, timeline)
        run.attach(steps, change.attachments, replace=True)
        self._add_events(steps, run, record.key, change.events)
        if change.questions is not None:
            self._questions.put(steps, record.key, change.questions)
        if change.meta is not None:
            self._meta.put(steps, record.key, change.meta)
        steps.carry_out()
        return record

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
        self, *, before: int | None = None, limit: int = 100, **filters: Unpack[RunFilters]
    ) -> list[RunRecord]:
        statuses, workflow, tags = filters.get("statuses"), filters.get("workflow"), filters.get("tags")
        since, due, parent = filters.get("since"), filters.get("due"), filters.get("parent")
        prefix, live = filters.get("prefix", ""), filters.get("live")

        def matches(run: MemoryRun) -> bool:
            record = run.record
            return (
                (due is None or (record.due is not None and record.due <= due))
                and (parent is None or record.parent == parent)
                and record.id.startswith(prefix)
                and (before is None or record.key < before)
                and (statuses is None or record.status in statuses)
                and (workflow is None or record.workflow == workflow)
                and (since is None or record.updated >= since)
                and (not tags or {name for _, name in run.marks}.issuperset(tags))
                and (not live or (record.workflow is not None and record.status in records.LIVE))
            )

        with self._lock:
            if meta := filters.get("meta"):
                found: Iterable[MemoryRun] = (self._runs[key] for key in self._meta.runs(meta, before))
            else:
                found = reversed(self._runs.values())
            return [run.record for run in islice(filter(matches, found), limit)]

    def meta_of(self, run: int) -> list[MetaRow]:
        with self._lock:
            return self._meta.of_run(run)

    def forks_of(self, key: int) -> list[RunRecord]:
        with self._lock:
            every = [run.record for run in self._runs.values()]
        return [run for run in every if run.origin is not None and run.origin[0] == key]

    def delete_run(self, run: RunRecord) -> None:
        with self._lock:
            gone = self._expected(run)
            steps = Steps(self._journal)
            self._artifacts.release(steps, gone.versions.values(), run.key)
            self._questions.put(steps, run.key, ())
            self._meta.put(steps, run.key, ())
            for position in gone.positions:
                steps.add(self._journal.__setitem__, position - 1, None)
            steps.add(self._ids.pop, gone.record.id)
            steps.add(self._runs.pop, run.key)
            steps.carry_out()

    def import_run(self, imported: RunImport) -> RunRecord:
        uploads = read_uploads(imported.uploads)
        versions = list(imported.versions)
        if len({version.number for version, _, _ in versions}) < len(versions):
            raise CorruptStore(f"run {imported.run.id!r} has two versions with one number")
        run = MemoryRun(imported.run)
        run.timelines = {timeline.number: timeline for timeline in imported.timelines}
        run.marks = {(mark.number, mark.name): mark for mark in imported.marks}
        with self._lock:
            if run.record.id in self._ids:
                raise AlreadyExists(
                    f"run {run.record.id!r} exists: import under another id, or delete it first"
                )
            for _, _, holds in versions:
                self._artifacts.require(holds, uploads)
            self._artifacts.keep(uploads, run.record.created)
            steps = Steps(self._journal)
            record = self._add_run(steps, run, run.record)
            steps.add(setattr, run, "record", record)
            run.attach(steps, imported.attachments, replace=True)
            for parts in versions:
                self._add_version(steps, run, record.key, parts)
            self._add_events(steps, run, record.key, imported.events)
            self._meta.put(steps, record.key, imported.meta)
            steps.carry_out()
            return record

    # Versions

    def versions(
        self, run: int, *, limit: int = 100, ascending: bool = False, **filters: Unpack[VersionQuery]
    ) -> list[VersionRecord]:
        with self._lock:
            return self._runs.get(run, EMPTY_RUN).page(limit, ascending, **filters)

    def packs(self, run: int, numbers: Sequence[int]) -> list[VersionRecord]:
        return list(self.packs_of([(run, number) for number in numbers]).values())

    def pack_bytes(self, run: int, numbers: Sequence[int]) -> dict[int, bytes]:
        with self._lock:
            versions = self._runs.get(run, EMPTY_RUN).versions
            return {number: versions[number].pack for number in numbers if number in versions}

    def packs_of(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], VersionRecord]:
        with self._lock:
            found = {
                (run, number): stored
                for run, number in places
                if (stored := self._runs.get(run, EMPTY_RUN).versions.get(number)) is not None
            }
        return {place: replace(stored.record, pack=stored.pack) for place, stored in found.items()}

    def block(self, run: int, number: int, index: int) -> bytes | None:
        with self._lock:
            stored = self._runs.get(run, EMPTY_RUN).versions.get(number)
        return None if stored is None or index >= len(stored.blocks) else stored.blocks[index]

    def version_by_key(self, run: int, key: str) -> VersionRecord | None:
        with self._lock:
            found = self._runs.get(run, EMPTY_RUN)
            return found.versions[found.keys[key]].record if key in found.keys else None

    def keyed_versions(self, run: int, *, before: str | None = None, limit: int = 100) -> list[VersionRecord]:
        with self._lock:
            found = self._runs.get(run, EMPTY_RUN)
            keys = nlargest(limit, (key for key in found.keys if before is None or key < before))
            return [found.versions[found.keys[key]].record for key in keys]

    # Attachments

    def attach(self, run: int, attachments: Sequence[AttachmentRecord], *, replace: bool) -> list[bool]:
        with self._lock:
            if run not in self._runs:
                raise run_is_gone(run)
            steps = Steps(self._journal)
            stored = self._runs[run].attach(steps, attachments, replace=replace)
            steps.carry_out()
            return stored

    def attachments_of(self, run: int, keys: Sequence[str]) -> list[AttachmentRecord]:
        with self._lock:
            stored = self._runs.get(run, EMPTY_RUN).attachments
            return [each for key in sorted(set(keys)) for _, each in sorted(stored.get(key, {}).items())]

    def attachment_names(self, run: int, key: str) -> list[str]:
        with self._lock:
            return sorted(self._runs.get(run, EMPTY_RUN).attachments.get(key, {}))

    def attachments(
        self, run: int, *, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[AttachmentRecord]:
        with self._lock:
            stored = self._runs.get(run, EMPTY_RUN).attachments
            places = ((key, name) for key, named in stored.items() for name in named)
            return [
                stored[key][name] for key, name in nsmallest(limit, (each for each in places if each > after))
            ]

    def attachment_keys(self, run: int, *, before: int) -> list[str]:
        with self._lock:
            stored = self._runs.get(run, EMPTY_RUN).attachments
            return sorted(
                key for key, named in stored.items() if all(each.at < before for each in named.values())
            )

    def timelines(self, run: int, *, after: int = 0) -> list[records.TimelineRecord]:
        with self._lock:
            lines = self._runs.get(run, EMPTY_RUN).timelines
            return [lines[number] for number in sorted(number for number in lines if number > after)]

    def marks(self, run: int, first: int | None = None, last: int | None = None) -> list[MarkRecord]:
        with self._lock:
            marks = sorted(self._runs.get(run, EMPTY_RUN).marks.items())
        return [
            mark
            for (number, _), mark in marks
            if (first is None or number >= first) and (last is None or number <= last)
        ]

    def set_mark(self, run: int, mark: MarkRecord, *, on: bool, event: EventRecord) -> bool:
        place = (mark.number, mark.name)
        with self._lock:
            found = self._runs.get(run, EMPTY_RUN)
            stored = found.versions.get(mark.number)
            if on and (stored is None or stored.record.pruned):
                raise NotFound(f"version {mark.number} no longer exists: mark another")
            if on is (place in found.marks):
                return False
            steps = Steps(self._journal)
            if on:
                steps.add(found.marks.__setitem__, place, mark)
            else:
                steps.add(found.marks.pop, place)
            self._add_events(steps, found, run, (event,))
            steps.carry_out()
            return True

    def journal(self, *, run: int | None, after: int, limit: int) -> list[JournalEntry]:
        with self._lock:
            if run is None:
                every = (self._journal[index] for index in range(max(after, 0), len(self._journal)))
                return list(islice((entry for entry in every if entry is not None), limit))
            positions = self._runs.get(run, EMPTY_RUN).positions
            start = bisect_right(positions, after)
            entries = (self._journal[position - 1] for position in positions[start : start + limit])
            return [entry for entry in entries if entry is not None]

    def journal_end(self) -> int:
        with self._lock:
            return len(self._journal)

    def prune(self, plan: Prune) -> RunRecord:
        gone = {*plan.drop, *(version.number for version, _, _ in plan.thin)}
        with self._lock:
            run = self._expected(plan.expect)
            if any(number in gone for number, _ in run.marks):
                raise StaleVersion(f"run {plan.run.id!r} was marked since: plan the pruning again")
            steps = Steps(self._journal)
            steps.add(setattr, run, "record", plan.run)
            dropped = {number: run.versions[number] for number in gone if number in run.versions}
            self._artifacts.release(steps, dropped.values(), plan.run.key)
            positions = {number: stored.record.seq for number, stored in dropped.items()}
            for number, stored in dropped.items():
                steps.add(run.versions.pop, number)
                steps.add(run.keys.pop, stored.record.key or "", None)
                steps.add(self._journal.__setitem__, stored.record.seq - 1, None)
            numbers = [number for number in run.numbers if number not in gone]
            steps.add(run.numbers.__setitem__, slice(None), numbers)
            freed = set(positions.values())
            left = [position for position in run.positions if position not in freed]
            steps.add(run.positions.__setitem__, slice(None), left)
            for key in plan.keys:
                steps.add(run.attachments.pop, key, None)
            for key in plan.unused:
                named = {
                    name: each
                    for name, each in run.attachments.get(key, {}).items()
                    if each.at >= plan.before
                }
                if named and key not in plan.keys:
                    steps.add(run.attachments.__setitem__, key, named)
                else:
                    steps.add(run.attachments.pop, key, None)
            for parts in plan.thin:
                self._add_version(steps, run, plan.run.key, parts, positions.get(parts[0].number))
            self._add_events(steps, run, plan.run.key, plan.events)
            steps.carry_out()
            return plan.run

    # Artifacts

    def put_artifact(self, upload: Upload, at: int) -> bool:
        uploads = read_uploads((upload,))
        with self._lock:
            return self._artifacts.keep(uploads, at)

    def artifact(self, digest: bytes) -> ArtifactRecord | None:
        with self._lock:
            return self._artifacts.records.get(digest)

    def artifact_pieces(self, digest: bytes) -> Iterator[bytes]:
        with self._lock:
            return self._artifacts.pieces(digest)

    def artifacts(self, *, after: bytes = b"", limit: int = 1000) -> list[ArtifactRecord]:
        with self._lock:
            return self._artifacts.page(after, limit)

    def collect(self, *, before: int) -> tuple[int, int]:
        with self._lock:
            return self._artifacts.collect(before)

    def release(self, digests: Sequence[bytes]) -> tuple[int, int]:
        with self._lock:
            return self._artifacts.release_unheld(digests)

    # Values and leases

    def value(self, name: str) -> tuple[bytes, int] | None:
        with self._lock:
            return self._values.get(name)

    def set_value(self, name: str, data: bytes, expect: int) -> int:
        with self._lock:
            if self._values.get(name, (b"", 0))[1] != expect:
                raise stale_value(name)
            self._values[name] = (data, expect + 1)
            return expect + 1

    def drop_value(self, name: str, expect: int) -> None:
        with self._lock:
            if name not in self._values or self._values[name][1] != expect:
                raise stale_value(name)
            del self._values[name]

    def value_names(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        with self._lock:
            return sorted(name for name in self._values if name.startswith(prefix) and name > after)[:limit]

    def renew(self, runs: Sequence[int], owner: str, until: int) -> list[int]:
        with self._lock:
            now, expired = self.now(), []
            for run in filter(None, map(self._runs.get, runs)):
                if run.record.owner != owner:
                    continue
                if run.record.until <= now:
                    expired.append(run.record.key)
                elif run.record.until < until:
                    run.record = replace(run.record, until=until)
            return expired

    # Questions

    def open_questions(
        self, *, now: int, after: QuestionPlace | None = None, limit: int = 100, **filters: Unpack[QuestionFilters]
    ) -> list[OpenQuestion]:  # fmt: skip
        with self._lock:
            return self._questions.page(now, after, limit, **filters)

    def questions_of(self, run: int) -> list[QuestionRecord]:
        with self._lock:
            return self._questions.of_run(run)

    def waking_questions(self, now: int, limit: int) -> list[OpenQuestion]:
        with self._lock:
            return self._questions.waking(now, limit)

    # Queues

    def claim(self, request: Claim) -> list[RunRecord]:
        with self._lock:
            room = request.limit
            if request.most is not None:
                room = min(room, request.most - self._count_owned(request.queues, request.now))
            claimed = []
            steps = Steps(self._journal)
            for run in sorted(self._ready(request), key=_turn)[: max(0, room)]:
                claimed.append(build_claimed_run(run.record, request))
                steps.add(setattr, run, "record", claimed[-1])
                steps.add(setattr, run, "was_claimed", True)
                if request.event is not None:
                    self._add_events(steps, run, run.record.key, [request.event])
            steps.carry_out()
            return claimed

    def claim_again(
        self, run: int, owner: str, lease: int, most: int | None, event: EventRecord
    ) -> RunRecord | None:
        with self._lock:
            found, now = self._runs.get(run), self.now()
            if found is None or found.record.owner != owner:
                return None
            if found.record.until > now:
                return found.record
            queues = [] if found.queue is None else [found.queue.queue]
            if queues and most is not None and self._count_owned(queues, now) >= most:
                return None
            steps = Steps(self._journal)
            claimed = build_reclaimed_run(found.record, now, lease)
            steps.add(setattr, found, "record", claimed)
            self._add_events(steps, found, run, [event])
            steps.carry_out()
            return claimed

    def has_claimable(self, request: Claim) -> bool:
        with self._lock:
            return any(True for _ in self._ready(request))

    def queue_place(self, run: int) -> QueuePlace | None:
        with self._lock:
            return self._runs.get(run, EMPTY_RUN).queue

    def queues(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        with self._lock:
            for run in self._runs.values():
                if run.queue is not None:
                    counts = found.setdefault(run.queue.queue, {})
                    counts[run.record.status] = counts.get(run.record.status, 0) + 1
        return found

    def _ready(self, request: Claim) -> Iterator[MemoryRun]:
        for run in self._runs.values():
            when = ready_at(run.record)
            if (
                run.queue is not None
                and run.queue.queue in request.queues
                and run.record.workflow in request.workflows
                and when is not None
                and when <= request.now
            ):
                yield run

    def _count_owned(self, queues: Sequence[str], now: int) -> int:
        return sum(
            run.record.status == "running" and run.record.until > now
            for run in self._runs.values()
            if run.queue is not None and run.queue.queue in queues
        )

    # The whole store

    def wait_for_change(self, timeout: float) -> bool:
        time.sleep(min(timeout, _POLL_INTERVAL))
        return True

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
        raise InvalidCall("a store in memory has no backup: export its runs with export_run")

    def compact(self) -> None:
        # Deleted data is freed at once; a closed store refuses.
        with self._lock:
            pass

    def close(self) -> None:
        self._lock = _ClosedLock()

    # With the lock held

    def _expected(self, expect: RunRecord) -> MemoryRun:
        run = self._runs.get(expect.key)
        if run is None or run.record.revision != expect.revision:
            raise stale_run(expect)
        return run

    def _add_run(self, steps: Steps, run: MemoryRun, record: RunRecord) -> RunRecord:
        """Add a run; return its record, with its key."""
        key = self._last_key + 1
        steps.add(setattr, self, "_last_key", key)
        steps.add(self._ids.__setitem__, record.id, run)
        steps.add(self._runs.__setitem__, key, run)
        return replace(record, key=key)

    def _add_version(
        self, steps: Steps, run: MemoryRun, key: int, parts: VersionParts, position: int | None = None
    ) -> None:
        """Add a version to the run with a key, at a free position of the journal, or at its end."""
        version, blocks, holds = parts

        def entry(at: int) -> JournalEntry | None:
            return None if version.pruned else (key, replace(version, seq=at, pack=None))

        if position is None:
            position = steps.append(entry)
        else:
            steps.add(self._journal.__setitem__, position - 1, entry(position))
        record = replace(version, seq=position, pack=None)
        stored = StoredVersion(record, version.pack or b"", tuple(blocks), tuple(holds))
        steps.add(run.versions.__setitem__, version.number, stored)
        steps.add(insort, run.numbers, version.number)
        if version.key is not None:
            steps.add(run.keys.__setitem__, version.key, version.number)
        if not version.pruned:
            steps.add(run.positions.append, position)
        self._artifacts.hold(steps, holds, (key, version.number))

    def _add_events(self, steps: Steps, run: MemoryRun, key: int, events: Iterable[EventRecord]) -> None:
        for event in events:
            position = steps.append(partial(_placed, event, key))
            steps.add(run.positions.append, position)


def _placed(event: EventRecord, run: int, position: int) -> EventRecord:
    return replace(event, seq=position, run=run)


def _try_read_uploads(change: Append) -> Contents | HoldfastError:
    try:
        return read_uploads(change.uploads)
    except HoldfastError as error:
        return error


def _turn(run: MemoryRun) -> tuple[int, bool, int, int]:
    assert run.queue is not None
    return -run.queue.priority, not run.was_claimed, ready_at(run.record) or 0, run.record.key
