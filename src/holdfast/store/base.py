"""The store protocol: what a database must do for Holdfast, and nothing more.

A store appends, compares-and-sets, and gives runs to workers; it takes away only what it is told to, and decides
nothing. It does not know what a state or a rollback is; it never looks into a pack. All methods are synchronous and
may be called from any thread. Errors that leave a store are Holdfast's own (`errors`), never a driver's.

The contracts, once for all stores:

- `append` is atomic and durable when it returns. It compares the run's `revision` with the one expected and
  raises `StaleVersion`, with nothing written, if they differ (or if a run that should be new exists).
- Leases are judged by the store's own clock, in the statement or under the lock that writes: a process that was
  stopped in between cannot write by a lease that has run out meanwhile.
- A record that is read equals the record that was written, or the read raises `CorruptStore`. The hashes of
  versions are checked by `history`, not here.
- A read sees every append that returned before it began.
- Lists come in the order that each method names; nothing is cut off silently.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol, TypedDict, Unpack

import msgspec

from holdfast.errors import HoldfastError
from holdfast.model.records import (
    ArtifactRecord,
    EventRecord,
    MarkRecord,
    RunRecord,
    StoreStats,
    TimelineRecord,
    VersionRecord,
)
from holdfast.tree.pack import Upload


def wall_clock() -> int:
    """Return this machine's time, in microseconds since 1970."""
    return time.time_ns() // 1000


class Place(NamedTuple):
    """Where a run waits for a worker."""

    queue: str
    #: Higher goes first.
    priority: int = 0


class Claim(NamedTuple):
    """What a worker can take."""

    queues: Sequence[str]
    workflows: Sequence[str]
    owner: str
    now: int
    #: Until when what is taken belongs to the owner, unless it is renewed.
    until: int
    limit: int
    #: With this, not more than so many runs of these queues are owned at once, by anybody.
    most: int | None = None
    #: An entry for the journal of each run that is taken.
    event: EventRecord | None = None


class Append(msgspec.Struct, frozen=True, gc=False):
    """One change of one run, all or nothing."""

    #: The run as the writer knows it; None if it is to be made.
    expect: RunRecord | None
    #: The run as it will be. The store gives `key`.
    run: RunRecord
    version: VersionRecord | None = None
    blocks: Sequence[bytes] = ()
    tags: Sequence[str] = ()
    timeline: TimelineRecord | None = None
    events: Sequence[EventRecord] = ()
    uploads: Sequence[Upload] = ()
    #: Artifacts that the version's pack refers to; `NotFound` if one is neither there nor in `uploads`.
    holds: Sequence[bytes] = ()
    #: The queue from which workers shall claim the run from now on. If it stands there with that priority already, it
    #: keeps its turn.
    queue: Place | None = None
    #: Is it written by the owner of the run's lease? Then it is refused with `LeaseExpired` once that has run out.
    leased: bool = False


class Prune(NamedTuple):
    """Versions that go, and those of which only some nodes stay."""

    expect: RunRecord
    run: RunRecord
    #: Numbers of versions whose rows go altogether.
    drop: Sequence[int]
    #: Stubs that replace versions, each with its blocks and the artifacts that it still refers to.
    thin: Sequence[tuple[VersionRecord, Sequence[bytes], Sequence[bytes]]]
    events: Sequence[EventRecord] = ()


class Imported(NamedTuple):
    """A whole run on its way in: the run, then its parts as they come."""

    run: RunRecord
    versions: Iterator[tuple[VersionRecord, Sequence[bytes], Sequence[bytes]]]
    timelines: Sequence[TimelineRecord]
    marks: Sequence[MarkRecord]
    events: Sequence[EventRecord]
    uploads: Iterator[Upload]


class RunStore(Protocol):
    """Runs and their one way of changing."""

    def append(self, change: Append) -> RunRecord:
        """Carry out one change; gives the run as it is now, with its key."""

    def append_many(self, changes: Sequence[Append]) -> list[RunRecord | HoldfastError]:
        """Carry out changes of different runs together, each by itself all or nothing; gives for each the run as it is
        now, or why it was refused. What is raised stands for all of them, and nothing was written."""

    def run(self, run_id: str) -> RunRecord | None:
        """The run of an id."""

    def revision(self, run_id: str) -> tuple[int, int] | None:
        """The key and the revision of a run: the quickest way to learn that it has not changed."""

    def run_by_key(self, key: int) -> RunRecord | None:
        """The run of a key."""

    def run_ids(self, prefix: str, limit: int) -> list[str]:
        """Ids that start with a prefix, in order."""

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
        """Runs, newest first: of any of the statuses, with a version for each of the tags, changed at or after
        `since`, with keys below `before`, due at or before `due`, parts of the run `parent`, with ids that start
        with `prefix`. With `live`, those of workflows that have not ended (`records.LIVE`): they are found without a
        look at all that have."""

    def forks_of(self, key: int) -> list[RunRecord]:
        """Runs that were forked from a run."""

    def delete_run(self, run: RunRecord) -> None:
        """Remove a run and all that belongs to it alone. `StaleVersion` if it has changed since."""

    def import_run(self, imported: Imported) -> RunRecord:
        """Write a whole run; `AlreadyExists`, with nothing written, if its id is taken."""


class RunFilters(TypedDict, total=False):
    """Filters of `RunStore.runs`."""

    statuses: Sequence[str] | None
    workflow: str | None
    tags: Sequence[str]
    since: int | None
    due: int | None
    parent: int | None
    prefix: str
    live: bool


def every_run(store: RunStore, *, page: int = 500, **filters: Unpack[RunFilters]) -> Iterator[RunRecord]:
    """Yield all runs that pass the filters, newest first, however many there are. Runs may be changed and deleted
    meanwhile; those made after the first page was read are not among them."""
    before: int | None = None
    while found := store.runs(before=before, limit=page, **filters):
        yield from found
        before = found[-1].key


class VersionStore(Protocol):
    """Versions, their packs, timelines, marks, events."""

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
        """Versions without packs, newest first or `ascending`, numbers strictly between `after` and `before`.
        With `pruned`, stubs of pruned versions too."""

    def packs(self, run: int, numbers: Sequence[int]) -> list[VersionRecord]:
        """Versions with packs, stubs too, in any order; those that are not there are left out."""

    def pack_bytes(self, run: int, numbers: Sequence[int]) -> dict[int, bytes]:
        """The packs alone, by number, for a reader that knows the versions; those that are not there are left out."""

    def packs_of(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], VersionRecord]:
        """Versions of many runs with packs, by the key of the run and the number; those that are not there, or
        damaged, are left out, and stand in the way of no others."""

    def block(self, run: int, number: int, index: int) -> bytes | None:
        """A further block of a version's pack."""

    def timelines(self, run: int) -> list[TimelineRecord]:
        """All timelines, oldest first."""

    def marks(self, run: int, first: int | None = None, last: int | None = None) -> list[MarkRecord]:
        """Tags and pins of a range of versions, by number and name."""

    def set_mark(self, run: int, mark: MarkRecord, *, on: bool, event: EventRecord) -> bool:
        """Add or remove a mark; tells whether that changed anything. The event is written only if so. `NotFound`
        if a mark is to be added to a version that is not there, or was pruned."""

    def journal(
        self, *, run: int | None, after: int, limit: int
    ) -> list[EventRecord | tuple[int, VersionRecord]]:
        """What happened after a position, oldest first: events, and versions with the key of their run."""

    def journal_end(self) -> int:
        """The last position in the journal; 0 for an empty one."""

    def prune(self, plan: Prune) -> RunRecord:
        """Carry out a pruning, atomically, with the same comparison as `append`; `StaleVersion` too if a version
        that is to go has a mark, which must have come since the pruning was planned."""


class ArtifactStore(Protocol):
    """Large values under the hash of their content."""

    def put_artifact(self, upload: Upload, at: int) -> bool:
        """Keep a large value before any version holds it; tells whether it was new."""

    def artifact(self, digest: bytes) -> ArtifactRecord | None:
        """What is known of a large value."""

    def artifact_pieces(self, digest: bytes) -> Iterator[bytes]:
        """Its content in pieces; `NotFound`, or `CorruptStore` if the content no longer fits its hash."""

    def artifacts(self, *, after: bytes = b"", limit: int = 1000) -> list[ArtifactRecord]:
        """Large values in order of their digests."""

    def collect(self, *, before: int) -> tuple[int, int]:
        """Remove large values that no version holds and that came before a time; gives number and bytes."""


class ValueStore(Protocol):
    """Small values that belong to no run, and the leases of runs."""

    def value(self, name: str) -> tuple[bytes, int] | None:
        """A value and its revision."""

    def set_value(self, name: str, data: bytes, expect: int) -> int:
        """Make or replace a value whose revision is `expect`, 0 for none; gives the new one. `StaleVersion` if it is
        another."""

    def drop_value(self, name: str, expect: int) -> None:
        """Remove a value whose revision is `expect`; `StaleVersion` if it is another. One that is made again under its
        name counts its revisions from the beginning: only what nobody else writes is removed."""

    def value_names(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """The names of values that start with a prefix and come after a name, in the order of their code points."""

    def renew(self, runs: Sequence[int], owner: str, until: int) -> list[int]:
        """Prolong `until` of those runs that this owner has and whose lease has not run out. Their revisions stay.
        Return the runs of this owner whose lease has run out: they have to be claimed again."""


class QueueStore(Protocol):
    """Runs that wait for a worker. A run stays in its queue for good: one that has ended is not claimed, unless it is
    to go on after all."""

    def claim(self, wanted: Claim) -> list[RunRecord]:
        """Give runs of some queues to an owner: those of the highest priority first; among these, those that were
        claimed before; then those that have been ready longest. Ready are runs that are queued and not due later; that
        are suspended and due; that are running with an owner whose time has run out. Each is running afterwards, with
        the owner, `until` and the next revision. No two claims get one run: whoever had it before is refused at the
        next `append`."""

    def claim_again(
        self, run: int, owner: str, lease: int, most: int | None, event: EventRecord
    ) -> RunRecord | None:
        """Give a run back to an owner whose lease of it has run out, for `lease` microseconds from now on, with the
        next revision and an entry for its journal. Return the run; None, with nothing written, if it is another's by
        now, or if `most` runs of its queue are owned. A run whose lease has not run out is returned as it is."""

    def waiting(self, wanted: Claim) -> bool:
        """Is there a run that such a claim may give, as far as can be told without writing?"""

    def place(self, run: int) -> Place | None:
        """Where the run of a key waits, or waited before it ended; None if it never was in a queue."""

    def queues(self) -> dict[str, dict[str, int]]:
        """By queue, how many runs it has of each status."""


class Store(RunStore, VersionStore, ArtifactStore, ValueStore, QueueStore, Protocol):
    """All of it."""

    def news(self, timeout: float) -> bool:
        """Wait until something may have been written since this thread was last told so, by whomever, for `timeout`
        seconds at most; tells whether it may have been. Word can be late or missing: whoever must not miss anything
        looks now and then in any case."""

    def now(self) -> int:
        """The time, in microseconds since 1970, that all who use the store share: leases are compared by it."""

    def stats(self) -> StoreStats:
        """What the store holds."""

    def check(self) -> list[str]:
        """What is wrong with the database around its runs, as far as it can tell: its files, rows that belong to no
        run; empty if nothing."""

    def backup(self, path: str | os.PathLike[str], artifacts: str | os.PathLike[str] | None) -> None:
        """Copy the store, as it is at one moment, to a new file, and the contents of its artifact folder, if it has
        one, to another."""

    def compact(self) -> None:
        """Give space that is no longer used back to the system."""

    def close(self) -> None:
        """Let go of files and connections; harmless when done twice."""
