"""The rows of a store as frozen records without behaviour, and the words for kinds and statuses.

Times are microseconds since 1970 in UTC.

Invariant: the positions of kinds and statuses are part of the format. A new one is added at the end; none is ever
removed or moved.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Literal

import msgspec

#: How versions are made.
KINDS = ("initial", "step", "manual", "timed", "merge", "import", "final", "fork")


class Status(StrEnum):
    """The status of a run. The order is that of the stored numbers."""

    QUEUED = "queued"
    RUNNING = "running"
    SUSPENDED = "suspended"
    PAUSED = "paused"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    STALLED = "stalled"


STATUSES = tuple(status.value for status in Status)

#: Terminal statuses: no process executes the run, and nothing that arrives for it resumes it.
ENDED = ("completed", "failed", "cancelled")

#: Statuses of a run that has not ended.
LIVE = tuple(status for status in STATUSES if status not in ENDED)

#: Terminal statuses that `resume` does not leave: only a rollback or a fork does. A failed run can be resumed.
CLOSED = ("completed", "cancelled")

#: The statuses by which runs can be listed, with two that follow from others: `interrupted` (running, but no process
#: advances it) and `manual` (a history written by hand that has not ended).
STATUS_FILTERS = (*STATUSES, "interrupted", "manual")

if TYPE_CHECKING:
    StatusFilter = str
else:
    #: One of these words, for schemas.
    StatusFilter = Literal[STATUS_FILTERS]

#: The former names of renamed statuses, which hashes and bundles still contain, by current name.
_STORED_STATUS = {"stalled": "frozen"}
_FORMER_STATUS = {stored: status for status, stored in _STORED_STATUS.items()}
STORED_STATUSES = tuple(_STORED_STATUS.get(status, status) for status in STATUSES)

#: Renamed kinds of events, by the name that earlier releases wrote.
_FORMER_KINDS = {
    "event.sent": "signal.sent",
    "prompt.opened": "question.opened",
    "prompt.answered": "question.answered",
    "prompt.outdated": "question.outdated",
    "prompt.timed_out": "question.timed_out",
    "run.frozen": "run.stalled",
    "run.restored": "run.recovered",
    "run.watched": "run.watchdog_set",
    "timeline.begun": "timeline.started",  # words: a stored name
}

#: The name of a pin among the marks of a version. A tag is never empty.
PIN = ""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row of the table of runs."""

    #: The store's number of the run; 0 until the store has assigned one.
    key: int = 0
    id: str
    workflow: str | None = None
    status: str = "running"
    created: int
    updated: int
    #: The version that the next one follows; 0 before the first.
    head: int = 0
    #: The highest version number ever assigned.
    last: int = 0
    #: The newest timeline.
    timeline: int = 1
    #: Grows with every change of this record; compare-and-set compares it.
    revision: int = 1
    #: Grows when versions are pruned: versions that were read before may no longer exist.
    epoch: int = 0
    #: The key of the run that this one was forked from, and the version.
    origin: tuple[int, int] | None = None
    #: The step that wrote the head.
    step: str | None = None
    #: Bytes of all packs and blocks.
    size: int = 0
    #: Versions that have not been pruned.
    kept: int = 0
    #: The key of the run that this one is a child of.
    parent: int | None = None
    #: When the run is to be resumed; None if it does not wait for a time.
    due: int | None = None
    #: The process that advances the run, and when its lease expires. Renewing the lease changes `until` but not the
    #: revision.
    owner: str | None = None
    until: int = 0
    #: Further fields, encoded (see `run_detail`); empty if there are none.
    detail: bytes = b""


class VersionRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row of the table of versions. A pruned version keeps its number, its hash, and the nodes that other versions
    need."""

    number: int
    #: The version that it follows; 0 if none.
    parent: int
    timeline: int
    kind: str
    status: str
    at: int
    #: The number of steps completed up to this version.
    steps: int
    step: str | None = None
    #: Further fields, encoded: actor, note, address, …; empty if there are none.
    detail: bytes = b""
    #: The name that another system gave it, unique in its run; a pruned version has none.
    key: str | None = None
    #: The first half of the parent's hash: the link of the chain.
    prev: bytes
    pack_hash: bytes
    hash: bytes
    #: Bytes of the pack and its blocks.
    size: int
    pruned: bool = False
    #: Its position in the store's journal; 0 until the store has assigned one.
    seq: int = 0
    #: The pack, if it was read.
    pack: bytes | None = None


class EventRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An entry in a run's journal that is not a version."""

    kind: str
    at: int
    #: Encoded fields.
    data: bytes = b""
    #: Its position in the store's journal; 0 until the store has assigned one.
    seq: int = 0
    #: The key of the run.
    run: int = 0


class TimelineRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row of the table of timelines."""

    number: int
    #: The version that it started from; 0 for the first timeline.
    parent: int
    at: int
    reason: str | None = None
    actor: str | None = None


class MarkRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tag of a version, or its pin."""

    number: int
    name: str
    at: int


class AttachmentRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A value that is stored under a version's key, without a version of its own."""

    #: The key of a version, which may not exist yet.
    key: str
    name: str
    at: int
    #: The encoded value.
    data: bytes
    hash: bytes


class ArtifactRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row of the table of artifacts."""

    digest: bytes
    size: int
    at: int


class ItemRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row of the table of items."""

    namespace: tuple[str, ...]
    key: str
    #: The encoded value.
    data: bytes
    created: int
    updated: int
    #: Microseconds after the last use at which it expires; None if it does not.
    ttl: int | None = None
    #: When it expires.
    expires: int | None = None
    #: The terms by which it is found.
    terms: tuple[bytes, ...] = ()


#: What asks: a workflow, the monitor about a stalled run, a loop.
QUESTION_KINDS = ("question", "stalled", "loop")


class QuestionRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A row of the index of open questions. What is asked is in the detail of the run, or in the state of a loop."""

    #: The key of the run that asks; 0 until the store has assigned one.
    run: int = 0
    #: Its number among the questions of the run: its id is that of the run, `#`, and this number.
    number: int
    #: One of `QUESTION_KINDS`.
    kind: str = "question"
    opened: int
    workflow: str | None = None
    assignee: str | None = None
    #: Questions of higher priority are listed first.
    priority: int = 0
    #: When an answer is wanted; when the run continues without one.
    due: int | None = None
    expires: int | None = None
    #: When the next reminder or the escalation is due; None for never.
    wake: int | None = None


class StoreStats(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Numbers of rows and bytes in a store."""

    runs: int
    versions: int
    events: int
    artifacts: int
    artifact_bytes: int
    #: Bytes of all packs and blocks.
    pack_bytes: int
    #: Bytes on disk; None if the store is not a file.
    file_bytes: int | None = None


def stored_status(status: str) -> str:
    """Return the name of a status in hashes and bundles."""
    return _STORED_STATUS.get(status, status)


def current_status(word: str) -> str:
    """Return the current name of a stored status."""
    return _FORMER_STATUS.get(word, word)


def current_kind(word: str) -> str:
    """Return the current name of a stored kind of event."""
    return _FORMER_KINDS.get(word, word)


def display_status(status: str, workflow: str | None, is_alive: bool) -> str:
    """Return the word of `STATUS_FILTERS` that describes a run best."""
    if status != "running":
        return status
    if workflow is None:
        return "manual"
    return status if is_alive else "interrupted"
