"""The store protocol: what a database must do for Holdfast, and nothing more.

A store appends, compares-and-sets, and gives runs to workers. It deletes only on request and makes no decisions: it
knows neither states nor rollbacks and never looks into a pack. All methods are synchronous and may be called from any
thread. A store raises Holdfast's errors, never a driver's.

Contracts of all stores:

- `append` is atomic, and durable when it returns. It compares the run's `revision` with the expected one; if they
  differ, if a run that should be new exists, or if the run has a version with the key of the new one, it raises
  `StaleVersion` and writes nothing.
- The store's own clock decides whether a lease has expired, in the statement or under the lock that writes: a process
  that was suspended cannot write with a lease that expired meanwhile.
- A record that is read equals the record that was written, or the read raises `CorruptStore`. `history` checks the
  hashes of versions.
- A read sees every append that returned before the read started.
- Lists are in the order that the method documents and are never truncated silently.

Invariant: a run is claimed only if it has no owner with a valid lease, and only in a status in which it can advance.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol, TypeAlias, TypedDict, Unpack

import msgspec

from holdfast.errors import HoldfastError, LeaseExpired, NotFound, StaleVersion
from holdfast.model.meta import MetaRow
from holdfast.model.records import (
    ArtifactRecord,
    AttachmentRecord,
    EventRecord,
    ItemRecord,
    MarkRecord,
    QuestionRecord,
    RunRecord,
    StoreStats,
    TimelineRecord,
    VersionRecord,
)
from holdfast.tree.pack import Upload
from holdfast.tree.terms import TermQuery

#: A version with its pack, the further blocks of the pack, and the digests of the artifacts that the pack refers to.
VersionParts: TypeAlias = tuple[VersionRecord, Sequence[bytes], Sequence[bytes]]
#: An entry of the journal: an event, or a version with the key of its run.
JournalEntry: TypeAlias = EventRecord | tuple[int, VersionRecord]
#: Labels, of which the first ones form the prefixes of a namespace.
Namespace: TypeAlias = tuple[str, ...]

#: Bytes of the attachments that are read at once.
_ATTACHMENT_PAGE = 4_000_000


class QueuePlace(NamedTuple):
    """The queue in which a run waits for a worker."""

    queue: str
    #: Runs of higher priority are claimed first.
    priority: int = 0


class Claim(NamedTuple):
    """A worker's request for runs."""

    queues: Sequence[str]
    workflows: Sequence[str]
    owner: str
    now: int
    #: When the leases of the claimed runs expire unless they are renewed.
    until: int
    limit: int
    #: The number of runs of these queues that may be owned at once, by all workers together.
    most: int | None = None
    #: An event for the journal of each claimed run.
    event: EventRecord | None = None


class Append(msgspec.Struct, frozen=True, gc=False):
    """One atomic change of one run."""

    #: The run as the writer has read it; None for a new run.
    expect: RunRecord | None
    #: The run after the change. The store assigns `key`.
    run: RunRecord
    version: VersionRecord | None = None
    blocks: Sequence[bytes] = ()
    tags: Sequence[str] = ()
    timeline: TimelineRecord | None = None
    events: Sequence[EventRecord] = ()
    uploads: Sequence[Upload] = ()
    #: Artifacts that the version's pack refers to; `NotFound` if one is neither stored nor in `uploads`.
    holds: Sequence[bytes] = ()
    #: Attachments that are stored with the version and replace others in their places, which differ from each other.
    attachments: Sequence[AttachmentRecord] = ()
    #: The queue from which workers claim the run from now on. A run that is there with the same priority keeps its
    #: turn.
    queue: QueuePlace | None = None
    #: Whether the owner of the run's lease writes. `LeaseExpired` if the lease has expired.
    leased: bool = False
    #: All open questions of the run after the change; None if they stay as they are. The store assigns their `run`.
    questions: Sequence[QuestionRecord] | None = None
    #: All metadata of the run after the change; None if they stay as they are.
    meta: Sequence[MetaRow] | None = None


class Prune(NamedTuple):
    """Versions to remove, and versions of which only some nodes remain."""

    expect: RunRecord
    run: RunRecord
    #: Numbers of the versions to remove.
    drop: Sequence[int]
    #: Stubs that replace versions.
    thin: Sequence[VersionParts]
    #: Keys of these versions, whose attachments are removed.
    keys: Sequence[str] = ()
    #: Keys without a version, whose attachments are removed that were stored before a time.
    unused: Sequence[str] = ()
    before: int = 0
    events: Sequence[EventRecord] = ()


class RunImport(NamedTuple):
    """A complete run to import; versions, uploads and attachments are read as they are needed, in this order or in
    another."""

    run: RunRecord
    versions: Iterator[VersionParts]
    timelines: Sequence[TimelineRecord]
    marks: Sequence[MarkRecord]
    events: Sequence[EventRecord]
    uploads: Iterator[Upload]
    attachments: Iterable[AttachmentRecord] = ()
    meta: Sequence[MetaRow] = ()


class RunFilters(TypedDict, total=False):
    """Filters of `RunStore.runs`; a run must match all of them."""

    statuses: Sequence[str] | None
    workflow: str | None
    #: Tags each of which some version of the run has.
    tags: Sequence[str]
    #: Runs that were changed at or after this time.
    since: int | None
    #: Runs that are due at or before this time.
    due: int | None
    #: Children of the run with this key.
    parent: int | None
    prefix: str
    #: Metadata that a run must have, all of them. With one or two, a page costs the same however many runs there are.
    meta: Sequence[MetaRow]
    #: Only runs of workflows that have not ended (`records.LIVE`), found by an index.
    live: bool


class VersionQuery(TypedDict, total=False):
    """Filters of `VersionStore.versions`; a version must match all of them."""

    #: Numbers strictly between `after` and `before`.
    before: int | None
    after: int | None
    timeline: int | None
    step: str | None
    kind: str | None
    tag: str | None
    #: Include the stubs of pruned versions.
    pruned: bool


class QuestionPlace(NamedTuple):
    """A place in the list of open questions."""

    priority: int
    opened: int
    #: The key of the run, and the number of the question in it.
    run: int
    number: int


class QuestionFilters(TypedDict, total=False):
    """Filters of `QuestionStore.open_questions`; a question must match all of them."""

    kind: str | None
    workflow: str | None
    assignee: str | None
    #: Questions that were opened before this time.
    opened_before: int | None
    #: Questions of the run with this key.
    run: int | None


class OpenQuestion(NamedTuple):
    """A row of the index of open questions, and the run that asks, as of the same moment."""

    question: QuestionRecord
    run: RunRecord


class ItemKey(NamedTuple):
    """The name of an item."""

    namespace: Namespace
    key: str


class ItemPut(NamedTuple):
    """An item to store, and the vectors by which it is found: little-endian floats of 32 bits."""

    record: ItemRecord
    vectors: Sequence[bytes] = ()


class RunStore(Protocol):
    """Runs and the operations that change them."""

    def append(self, change: Append) -> RunRecord:
        """Apply one change; return the run as stored, with its key."""

    def append_many(self, changes: Sequence[Append]) -> list[RunRecord | HoldfastError]:
        """Apply changes of different runs together, each of them atomically; return for each the stored run or the
        error. An exception means that nothing was written."""

    def run(self, run_id: str) -> RunRecord | None:
        """Return the run with an id."""

    def revision(self, run_id: str) -> tuple[int, int] | None:
        """Return the key and the revision of a run: the cheapest check whether it has changed."""

    def run_by_key(self, key: int) -> RunRecord | None:
        """Return the run with a key."""

    def run_ids(self, prefix: str, limit: int) -> list[str]:
        """Return ids that start with a prefix, sorted."""

    def runs(
        self, *, before: int | None = None, limit: int = 100, **filters: Unpack[RunFilters]
    ) -> list[RunRecord]:
        """Return runs that match the filters, newest first, with keys below `before`."""

    def meta_of(self, run: int) -> list[MetaRow]:
        """Return the metadata of a run as the index has them, by name."""

    def forks_of(self, key: int) -> list[RunRecord]:
        """Return the runs that were forked from a run."""

    def delete_run(self, run: RunRecord) -> None:
        """Delete a run and everything that belongs to it alone. `StaleVersion` if it has changed."""

    def import_run(self, imported: RunImport) -> RunRecord:
        """Write a complete run; `AlreadyExists`, with nothing written, if its id exists."""


def iter_runs(
    store: RunStore, *, page: int = 500, before: int | None = None, **filters: Unpack[RunFilters]
) -> Iterator[RunRecord]:
    """Yield all runs that match the filters, newest first, with keys below `before`. Runs may be changed and deleted
    meanwhile; runs that are created after the first page was read are not included."""
    while found := store.runs(before=before, limit=page, **filters):
        yield from found
        before = found[-1].key


class VersionStore(Protocol):
    """Versions, their packs, timelines, marks and events."""

    def versions(
        self, run: int, *, limit: int = 100, ascending: bool = False, **filters: Unpack[VersionQuery]
    ) -> list[VersionRecord]:
        """Return versions without packs, newest first or `ascending`."""

    def packs(self, run: int, numbers: Sequence[int]) -> list[VersionRecord]:
        """Return versions with packs, stubs included, in any order; missing ones are omitted."""

    def pack_bytes(self, run: int, numbers: Sequence[int]) -> dict[int, bytes]:
        """Return only the packs, by number, for a reader that knows the versions; missing ones are omitted."""

    def packs_of(self, places: Sequence[tuple[int, int]]) -> dict[tuple[int, int], VersionRecord]:
        """Return versions of many runs with packs, by run key and number; missing and damaged ones are omitted."""

    def block(self, run: int, number: int, index: int) -> bytes | None:
        """Return a further block of a version's pack."""

    def version_by_key(self, run: int, key: str) -> VersionRecord | None:
        """Return the version with a key, without its pack."""

    def keyed_versions(self, run: int, *, before: str | None = None, limit: int = 100) -> list[VersionRecord]:
        """Return versions that have a key below `before`, without packs, in descending order of their keys' bytes in
        UTF-8."""

    def timelines(self, run: int, *, after: int = 0) -> list[TimelineRecord]:
        """Return the timelines with higher numbers than `after`, oldest first."""

    def marks(self, run: int, first: int | None = None, last: int | None = None) -> list[MarkRecord]:
        """Return the tags and pins of a range of versions, by number and name."""

    def set_mark(self, run: int, mark: MarkRecord, *, on: bool, event: EventRecord) -> bool:
        """Add or remove a mark; return whether that changed anything. The event is written only if so. `NotFound` if
        the version to mark does not exist or is pruned."""

    def journal(self, *, run: int | None, after: int, limit: int) -> list[JournalEntry]:
        """Return the entries after a position, of one run or of all, oldest first; pruned versions are omitted."""

    def journal_end(self) -> int:
        """Return the last position in the journal; 0 if it is empty."""

    def prune(self, plan: Prune) -> RunRecord:
        """Prune atomically, with the same comparison as `append`; `StaleVersion` too if a version to remove has a
        mark, which must have been set after the pruning was planned."""


class AttachmentStore(Protocol):
    """Values under the keys of versions. They change neither the run's record nor its revision. Keys and names are in
    the order of their bytes in UTF-8."""

    def attach(self, run: int, attachments: Sequence[AttachmentRecord], *, replace: bool) -> list[bool]:
        """Store attachments, whose places differ, together; return for each whether it was stored. One whose place is
        taken replaces the stored one with `replace`, and is not stored otherwise. `NotFound` if there is no run with
        this key."""

    def attachments_of(self, run: int, keys: Sequence[str]) -> list[AttachmentRecord]:
        """Return all attachments of some keys, by key and name."""

    def attachment_names(self, run: int, key: str) -> list[str]:
        """Return the names of the attachments of a key, in order, without reading their values."""

    def attachments(
        self, run: int, *, after: tuple[str, str] = ("", ""), limit: int = 1000
    ) -> list[AttachmentRecord]:
        """Return attachments after a key and a name, by key and name."""

    def attachment_keys(self, run: int, *, before: int) -> list[str]:
        """Return the keys of the attachments that were all stored before a time, in order."""


class ArtifactStore(Protocol):
    """Large values by the hash of their content."""

    def put_artifact(self, upload: Upload, at: int) -> bool:
        """Store an artifact that no version holds yet; return whether it is new."""

    def artifact(self, digest: bytes) -> ArtifactRecord | None:
        """Return the record of an artifact."""

    def artifact_pieces(self, digest: bytes) -> Iterator[bytes]:
        """Return the content in pieces; `NotFound`, or `CorruptStore` if the content does not match its hash."""

    def artifacts(self, *, after: bytes = b"", limit: int = 1000) -> list[ArtifactRecord]:
        """Return artifacts in the order of their digests."""

    def collect(self, *, before: int) -> tuple[int, int]:
        """Delete artifacts that no version holds and that were stored before a time; return their number and size."""

    def release(self, digests: Sequence[bytes]) -> tuple[int, int]:
        """Delete those of these artifacts that no version holds; return their number and size. For contents that are
        stored only together with a version that holds them."""


class ValueStore(Protocol):
    """Small values that belong to no run, and the leases of runs."""

    def value(self, name: str) -> tuple[bytes, int] | None:
        """Return a value and its revision."""

    def set_value(self, name: str, data: bytes, expect: int) -> int:
        """Create or replace a value whose revision is `expect`, 0 for none; return the new revision. `StaleVersion` if
        the revision differs."""

    def drop_value(self, name: str, expect: int) -> None:
        """Delete a value whose revision is `expect`; `StaleVersion` if it differs. The revisions of a value that is
        created again start from the beginning: delete only values that have a single writer."""

    def value_names(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[str]:
        """Return the names that start with a prefix and sort after a name, in the order of their code points."""

    def renew(self, runs: Sequence[int], owner: str, until: int) -> list[int]:
        """Extend to `until` the leases that this owner has and that have not expired; revisions stay. Return the runs
        of this owner whose leases have expired: they must be claimed again."""


class QueueStore(Protocol):
    """Queues of runs. A run stays in its queue; it is not claimed after it has ended, unless it is resumed."""

    def claim(self, request: Claim) -> list[RunRecord]:
        """Give runs of queues to an owner: by priority; then runs that were claimed before; then the ones that have
        been ready longest. A run is ready if it is queued and not due later, suspended and due, or running with an
        expired lease. A claimed run is running, with the owner, `until` and the next revision, so the `append` of a
        previous owner is refused. No run is given to two owners."""

    def claim_again(
        self, run: int, owner: str, lease: int, most: int | None, event: EventRecord
    ) -> RunRecord | None:
        """Renew an expired lease for `lease` microseconds from now, with the next revision and an event. Return the
        run; None, with nothing written, if it has another owner or `most` runs of its queue are owned. Return a run
        whose lease has not expired unchanged."""

    def has_claimable(self, request: Claim) -> bool:
        """Return whether a claim may find a run, as far as a read can say."""

    def queue_place(self, run: int) -> QueuePlace | None:
        """Return the queue of a run, also after the run has ended; None if it was never in a queue."""

    def queues(self) -> dict[str, dict[str, int]]:
        """Return the number of runs by queue and status."""


class QuestionStore(Protocol):
    """The index of open questions, which `append` keeps. The questions of a run are removed with it; an import brings
    none."""

    def open_questions(
        self, *, now: int, after: QuestionPlace | None = None, limit: int = 100, **filters: Unpack[QuestionFilters]
    ) -> list[OpenQuestion]:  # fmt: skip
        """Return questions that match the filters and have not expired by `now`, after a place: by priority, highest
        first, then by time, oldest first. A page costs the same however many questions there are."""

    def questions_of(self, run: int) -> list[QuestionRecord]:
        """Return the open questions of a run by number, expired ones included."""

    def waking_questions(self, now: int, limit: int) -> list[OpenQuestion]:
        """Return questions whose `wake` is at or before `now`, the earliest first."""


class ItemStore(Protocol):
    """Values under a namespace and a key, which belong to no run. The last put wins. Namespaces are in the order of
    their labels, labels and keys in that of their code points. The caller decides by its clock what has expired."""

    def put_items(self, puts: Sequence[ItemPut], deletes: Sequence[ItemKey] = ()) -> None:
        """Store items and delete others, atomically; names differ. An item replaces the one of its name, with all its
        vectors, but keeps the time of its creation, unless that had expired or is damaged. If an item has a time to
        live, two that have expired are deleted for each that is put: without a sweeper, too, there are never many."""

    def items(self, keys: Sequence[ItemKey]) -> list[ItemRecord]:
        """Return the items of these names, expired ones included, in any order; missing ones are omitted."""

    def recent_items(
        self,
        prefix: Namespace,
        *,
        limit: int = 100,
        terms: TermQuery | None = None,
    ) -> list[ItemKey]:
        """Return the names of items in all namespaces with a prefix, as of one moment, expired ones included, newest
        first; of those put at the same time, the last by name first. With `terms`, at least the items that it selects;
        exactly those if it has one group or one range."""

    def live_items(self, prefix: Namespace, *, now: int, skip: int = 0, limit: int = 100) -> list[ItemKey]:
        """Return the names of items in all namespaces with a prefix that have not expired, as of one moment, in the
        order of `recent_items`, without the first `skip`."""

    def item_names(
        self, prefix: Namespace, *, after: ItemKey | None = None, limit: int = 100
    ) -> list[ItemKey]:
        """Return the names of items in all namespaces with a prefix, expired ones included, in their order, after a
        name, which need not exist."""

    def nearest_items(
        self, prefix: Namespace, vector: bytes, metric: str, limit: int
    ) -> list[tuple[float, ItemKey]]:
        """Return the names of the items whose best vector scores highest, best first, expired ones included. `metric`
        is cosine, inner_product or l2 (the negative distance). `InvalidCall` if a vector has another length."""

    def namespaces(
        self, prefix: Namespace, *, after: Namespace | None = None, skip: bool = False, limit: int = 100, now: int
    ) -> list[Namespace]:  # fmt: skip
        """Return the namespaces with a prefix that have an item that has not expired, in order, after a namespace; with
        `skip`, after all namespaces of which that is a prefix."""

    def renew_items(self, records: Sequence[ItemRecord], now: int) -> None:
        """Let items that have a `ttl` expire that long after `now`, unless they have changed since they were read."""

    def sweep_items(self, now: int, limit: int) -> int:
        """Delete items that have expired, at most `limit`; return their number."""


class Store(
    RunStore,
    VersionStore,
    AttachmentStore,
    ArtifactStore,
    ValueStore,
    QueueStore,
    QuestionStore,
    ItemStore,
    Protocol,
):
    """All of it."""

    def wait_for_change(self, timeout: float) -> bool:
        """Wait until any process may have written since this thread's last call, at most `timeout` seconds; return
        whether one may have. A notification can be late or missing: a caller that must not miss a change polls too."""

    def now(self) -> int:
        """Return the time, in microseconds since 1970, that all users of the store share: leases are compared by it."""

    def stats(self) -> StoreStats:
        """Return counts and sizes."""

    def check(self) -> list[str]:
        """Return what is wrong with the database apart from its runs: files, rows that belong to no run."""

    def backup(self, path: str | os.PathLike[str], artifacts: str | os.PathLike[str] | None) -> None:
        """Copy the store, as of one moment, to a new file, and the contents of its artifact folder, if it has one, to
        another folder."""

    def compact(self) -> None:
        """Return unused space to the system."""

    def close(self) -> None:
        """Close files and connections; a second call has no effect."""


# Rules that all stores share


def place_of(question: QuestionRecord) -> QuestionPlace:
    """Return the place of a question in the list."""
    return QuestionPlace(question.priority, question.opened, question.run, question.number)


def list_order(place: QuestionPlace) -> tuple[int, int, int, int]:
    """Return the key by which places are sorted."""
    return -place.priority, place.opened, place.run, place.number


def matches(question: QuestionRecord, now: int, filters: QuestionFilters) -> bool:
    """Return whether a question has not expired and matches filters other than the run."""
    kind, workflow, assignee = filters.get("kind"), filters.get("workflow"), filters.get("assignee")
    opened_before = filters.get("opened_before")
    return (
        (question.expires is None or question.expires > now)
        and (kind is None or question.kind == kind)
        and (workflow is None or question.workflow == workflow)
        and (assignee is None or question.assignee == assignee)
        and (opened_before is None or question.opened < opened_before)
    )


def wall_clock() -> int:
    """Return this machine's time, in microseconds since 1970."""
    return time.time_ns() // 1000


def ready_at(run: RunRecord) -> int | None:
    """Return when a run can be claimed, according to its record; None if not before the record changes."""
    if run.status == "queued":
        return run.due or 0
    if run.status == "suspended":
        return run.due
    return run.until if run.status == "running" else None


def changes_readiness(expect: RunRecord, run: RunRecord) -> bool:
    """Return whether a change of a run changes when it can be claimed. The next claim notices renewed leases."""
    return (expect.status, expect.due, expect.owner) != (run.status, run.due, run.owner)


def build_claimed_run(run: RunRecord, request: Claim) -> RunRecord:
    """Return the record of a run after a claim."""
    return msgspec.structs.replace(
        run,
        status="running",
        owner=request.owner,
        until=request.until,
        updated=request.now,
        due=None,
        revision=run.revision + 1,
    )


def build_reclaimed_run(run: RunRecord, now: int, lease: int) -> RunRecord:
    """Return the record of a run whose owner claims it again after its lease has expired."""
    return msgspec.structs.replace(run, until=now + lease, updated=now, revision=run.revision + 1)


def lease_expired(run: RunRecord) -> LeaseExpired:
    """Return the error for a change that the owner of an expired lease makes."""
    return LeaseExpired(
        f"the lease of run {run.id!r} expired before the change was written: claim the run again", run=run.id
    )


def stale_run(run: RunRecord) -> StaleVersion:
    """Return the error for a change that was made from an older record of a run."""
    return StaleVersion(f"run {run.id!r} has changed since it was read: read its head, then try again")


def stale_new_run(run: RunRecord) -> StaleVersion:
    """Return the error for a new run whose id exists."""
    return StaleVersion(f"run {run.id!r} was created by another writer: read it, then try again")


def run_is_gone(key: int) -> NotFound:
    """Return the error for an attachment to a run that does not exist."""
    return NotFound(f"the run with key {key} does not exist, or was deleted: create it first")


def iter_attachments(store: AttachmentStore, run: int) -> Iterator[AttachmentRecord]:
    """Yield all attachments of a run, by key and name, in pages of about `_ATTACHMENT_PAGE` bytes."""
    after, limit = ("", ""), 1
    while found := store.attachments(run, after=after, limit=limit):
        yield from found
        after = (found[-1].key, found[-1].name)
        size = sum(len(each.data) for each in found) // len(found) + 1
        limit = max(1, min(2 * limit, 1_000, _ATTACHMENT_PAGE // size))


def stale_value(name: str) -> StaleVersion:
    """Return the error for a value whose revision is not the expected one."""
    return StaleVersion(f"the value {name!r} was changed by another writer: read it, then try again")


def missing_artifact(digest: bytes, hint: str = "") -> NotFound:
    """Return the error for an artifact that is not stored."""
    name = digest.hex()
    return NotFound(f"artifact {name[:12]} is not in this store{hint}", artifact=name)
