"""What callers get: small frozen records about runs, timelines, events and findings."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.model.records import RunRecord


def when(micros: int) -> datetime:
    """A stored time as a datetime in UTC."""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).replace(microsecond=micros % 1_000_000)


class RunSummary(msgspec.Struct, frozen=True):
    """A run, as a list shows it."""

    id: str
    status: str
    workflow: str | None
    #: The step that wrote the head.
    step: str | None
    #: The number of the version at which it stands.
    head: int
    #: Versions that have not been pruned.
    versions: int
    timeline: int
    created: datetime
    updated: datetime
    #: Bytes of all packs.
    size: int
    tags: tuple[str, ...] = ()
    #: The version that this run was forked from, as `RUN@12`.
    origin: str | None = None
    #: Is a process advancing it now? A workflow's run that is running and not alive was interrupted.
    alive: bool = False

    @classmethod
    def of(cls, record: RunRecord, tags: tuple[str, ...], origin: str | None, alive: bool) -> RunSummary:
        """From the store's record."""
        return cls(
            id=record.id,
            status=record.status,
            workflow=record.workflow,
            step=record.step,
            head=record.head,
            versions=record.kept,
            timeline=record.timeline,
            created=when(record.created),
            updated=when(record.updated),
            size=record.size,
            tags=tags,
            origin=origin,
            alive=alive,
        )


class Timeline(msgspec.Struct, frozen=True):
    """A line of versions: where it left the others, and why."""

    number: int
    #: The version it started from; None for the first.
    parent: int | None
    at: datetime
    reason: str | None = None
    actor: str | None = None


class Event(msgspec.Struct, frozen=True):
    """An entry in a run's journal. Read on from its `cursor`."""

    #: Its position in the journal; 0 for what is not kept there, such as progress.
    cursor: int
    #: The id of the run.
    run: str
    #: Such as `run.completed`, `step.failed`.
    kind: str
    at: datetime
    #: The version that the event is about, where it is about one.
    version: int | None = None
    step: str | None = None
    data: dict[str, Any] = {}
    #: Is it the entry of that version itself, and not one that only speaks of it?
    saved: bool = False


class Question(msgspec.Struct, frozen=True):
    """A question to the operator that waits for an answer."""

    id: str
    run: str
    #: Where in the run it is asked.
    address: str
    text: str
    opened: datetime
    #: The JSON Schema that an answer must fit; None for any.
    schema: Any = None
    #: When the run continues without an answer.
    due: datetime | None = None
    #: Of a stalled run: why (`symptom`, `why`, `since`), where (`address`, `attempt`, `stack`), the last good
    #: `version`, the `diff` from it to now, `initial`: the differences from the first state, and the `choices`.
    details: dict[str, Any] = {}
    #: When it was answered, and who did; None while it is open.
    answered: datetime | None = None
    actor: str | None = None
    #: The answer; None if it is longer than 512 bytes: then it is the result of the version of its step.
    answer: Any = None


class Problem(msgspec.Struct, frozen=True):
    """Something that `verify` found."""

    run: str | None
    version: int | None
    what: str

    def __str__(self) -> str:
        place = (
            "the store"
            if self.run is None
            else self.run
            if self.version is None
            else f"{self.run}@{self.version}"
        )
        return f"{place}: {self.what}"


class Report(msgspec.Struct, frozen=True):
    """What `verify` looked at and found."""

    runs: int
    versions: int
    artifacts: int
    problems: tuple[Problem, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems

    def __bool__(self) -> bool:
        return self.ok


class Pruned(msgspec.Struct, frozen=True):
    """What a pruning removed, or would remove."""

    #: Versions that can no longer be read.
    versions: tuple[int, ...]
    kept: tuple[int, ...]
    #: Bytes of packs and blocks that went.
    bytes: int
    #: Was this only said, and not done?
    dry_run: bool = False


class Collected(msgspec.Struct, frozen=True):
    """What a collection removed."""

    artifacts: int
    bytes: int


class StoredArtifact(msgspec.Struct, frozen=True):
    """A large value in the store, as a list shows it."""

    digest: str
    size: int
    #: When it came.
    at: datetime


class QueueSummary(msgspec.Struct, frozen=True):
    """A queue, as a list shows it."""

    name: str
    #: How many runs it has of each status.
    runs: dict[str, int]
    #: Runs at once, and runs started in `per` seconds, at most; None for any number.
    concurrency: int | None
    rate: int | None
    per: float
