"""The records that stores keep and histories speak of: plain, frozen, without behaviour.

Times are microseconds since 1970 in UTC. Numbers of kinds and statuses are part of the format: a new one is
added at the end, none is ever removed or moved.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal

import msgspec

#: What made a version.
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

#: The word under which hashes and bundles keep a status that has been renamed since, by its name of today.
_STORED_STATUS = {"stalled": "frozen"}
_FORMER_STATUS = {stored: status for status, stored in _STORED_STATUS.items()}
STORED_STATUSES = tuple(_STORED_STATUS.get(status, status) for status in STATUSES)

#: Kinds of events that were renamed, by the name under which earlier versions wrote them.
_FORMER_KINDS = {
    "event.sent": "signal.sent",
    "prompt.opened": "question.opened",
    "prompt.answered": "question.answered",
    "prompt.outdated": "question.outdated",
    "prompt.timed_out": "question.timed_out",
    "run.frozen": "run.stalled",
    "run.restored": "run.recovered",
    "run.watched": "run.watchdog_set",
    "timeline.begun": "timeline.started",
}

#: The name under which a pin is kept among the marks of a version. No tag can be empty.
PIN = ""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A run as the store knows it."""

    #: The store's own number for the run; 0 until the store has given one.
    key: int = 0
    id: str
    workflow: str | None = None
    status: str = "running"
    created: int
    updated: int
    #: The version from which the next one follows; 0 before the first.
    head: int = 0
    #: The highest version number ever given.
    last: int = 0
    #: The newest timeline.
    timeline: int = 1
    #: Grows with every change of this record: what compare-and-set compares.
    revision: int = 1
    #: Grows when versions are pruned: what was read before may be gone.
    epoch: int = 0
    #: The run (its key) and the version that this run was forked from.
    origin: tuple[int, int] | None = None
    #: The step that wrote the head.
    step: str | None = None
    #: Bytes of all packs and blocks.
    size: int = 0
    #: Versions that have not been pruned.
    kept: int = 0
    #: The run (its key) that this one is a part of.
    parent: int | None = None
    #: When the run wants to be resumed; None if it does not wait for a time.
    due: int | None = None
    #: Who advances the run now, and until when that holds unless it is renewed. The one field that changes without
    #: the revision is `until`.
    owner: str | None = None
    until: int = 0
    #: Further facts, encoded: what it waits for, how it failed, …; empty for none.
    detail: bytes = b""


class VersionRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A version as the store knows it. A pruned one keeps its number, its hash, and those of its nodes that
    other versions need."""

    number: int
    #: The version it follows; 0 for none.
    parent: int
    timeline: int
    kind: str
    status: str
    at: int
    #: Steps completed up to here, this one included.
    steps: int
    step: str | None = None
    #: Further facts, encoded: actor, note, error, …; empty for none.
    detail: bytes = b""
    #: The first half of the parent's hash: the link of the chain.
    prev: bytes
    pack_hash: bytes
    hash: bytes
    #: Bytes of the pack and its blocks.
    size: int
    pruned: bool = False
    #: Position in the store's journal; 0 until the store has given one.
    seq: int = 0
    #: The pack, where it was asked for.
    pack: bytes | None = None


class EventRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An entry in a run's journal that is not a version."""

    kind: str
    at: int
    #: Encoded facts.
    data: bytes = b""
    #: Position in the store's journal; 0 until the store has given one.
    seq: int = 0
    run: int = 0


class TimelineRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A line of versions: where it left the others, and why."""

    number: int
    #: The version it started from; 0 for the first timeline.
    parent: int
    at: int
    reason: str | None = None
    actor: str | None = None


class MarkRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tag of a version, or its pin."""

    number: int
    name: str
    at: int


class ArtifactRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A large value as the store knows it."""

    digest: bytes
    size: int
    at: int


class StoreStats(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a store holds."""

    runs: int
    versions: int
    events: int
    artifacts: int
    artifact_bytes: int
    #: Bytes of all packs and blocks.
    pack_bytes: int
    #: Bytes on disk; None where there is no file.
    file_bytes: int | None = None


Detail = dict[str, Any]


def stored_status(status: str) -> str:
    """Return the word under which hashes and bundles keep a status."""
    return _STORED_STATUS.get(status, status)


def current_status(word: str) -> str:
    """Return the status that a stored word stands for."""
    return _FORMER_STATUS.get(word, word)


def current_kind(word: str) -> str:
    """Return the kind of event that a stored word stands for."""
    return _FORMER_KINDS.get(word, word)


def display_status(status: str, workflow: str | None, is_alive: bool) -> str:
    """Return the word of `STATUS_FILTERS` that describes a run best."""
    if status != "running":
        return status
    if workflow is None:
        return "manual"
    return status if is_alive else "interrupted"
