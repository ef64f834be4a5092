"""The frozen records that public methods return: runs, timelines, events, questions, reports."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.model.meta import MetaValue
from holdfast.model.records import RunRecord
from holdfast.model.run_detail import meta_of


def when(micros: int) -> datetime:
    """Return a stored time as a datetime in UTC."""
    return datetime.fromtimestamp(micros // 1_000_000, UTC).replace(microsecond=micros % 1_000_000)


class RunSummary(msgspec.Struct, frozen=True):
    """One entry of a list of runs."""

    id: str
    status: str
    workflow: str | None
    #: The step that wrote the head.
    step: str | None
    #: The number of its newest version on the current timeline.
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
    #: Whether a process advances it now. A run of a workflow that is running but not alive was interrupted.
    alive: bool = False
    #: Its metadata.
    meta: dict[str, MetaValue] = {}

    @classmethod
    def of(cls, record: RunRecord, tags: tuple[str, ...], origin: str | None, alive: bool) -> RunSummary:
        """Return the summary of a stored run."""
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
            meta=meta_of(record),
        )


class Timeline(msgspec.Struct, frozen=True):
    """A line of versions: where it starts, and why."""

    number: int
    #: The version that it started from; None for the first timeline.
    parent: int | None
    at: datetime
    reason: str | None = None
    actor: str | None = None


class Event(msgspec.Struct, frozen=True):
    """An entry in a run's journal. Pass its `cursor` as `after` to read the next ones."""

    #: Its position in the journal; 0 for an event that is not stored, such as progress.
    cursor: int
    #: The id of the run.
    run: str
    #: Such as `run.completed`, `step.failed`.
    kind: str
    at: datetime
    #: The version that the event is about; None if it is not about one.
    version: int | None = None
    step: str | None = None
    data: dict[str, Any] = {}
    #: Whether the event is the commit of that version, and not a later event about it.
    saved: bool = False


class Question(msgspec.Struct, frozen=True):
    """A question to an operator, open or answered."""

    id: str
    run: str
    #: The address in the run that asks it.
    address: str
    text: str
    opened: datetime
    #: The JSON Schema that an answer must match; None if any answer is accepted.
    schema: Any = None
    #: When an answer is wanted. The question stays open after that, unless it also `expires` then.
    due: datetime | None = None
    #: For a stalled run: the cause (`symptom`, `why`, `since`), the place (`address`, `attempt`, `stack`), the last
    #: good `version`, the `diff` from it, `initial`: the difference from the first state, and the `choices`.
    details: dict[str, Any] = {}
    #: When it was answered, and by whom; None while it is open.
    answered: datetime | None = None
    actor: str | None = None
    #: The answer; None if it has more than 512 bytes: it is the result of the version of its step.
    answer: Any = None
    #: What asks: a workflow (`question`), the monitor about a run that it stopped (`stalled`), or a `loop`.
    kind: str = "question"
    #: The workflow of the run; None for a loop.
    workflow: str | None = None
    #: Who is to answer, and how urgent it is: higher is listed first.
    assignee: str | None = None
    priority: int = 0
    #: When the run continues without an answer; None for never.
    expires: datetime | None = None
    #: Was it escalated; how many reminders were sent?
    escalated: bool = False
    reminders: int = 0
    #: The project of a loop.
    project: str | None = None


class Problem(msgspec.Struct, frozen=True):
    """A problem that `verify` found."""

    run: str | None
    version: int | None
    what: str

    def __str__(self) -> str:
        place = "the store" if self.run is None else self.run
        return f"{place}{'' if self.version is None else f'@{self.version}'}: {self.what}"


class Report(msgspec.Struct, frozen=True):
    """The numbers of runs, versions and artifacts that `verify` checked, and the problems that it found."""

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
    """The versions that a prune removed, or would remove, and those that it kept."""

    #: Versions that can no longer be read.
    versions: tuple[int, ...]
    kept: tuple[int, ...]
    #: Bytes of packs and blocks that were removed.
    bytes: int
    #: Whether nothing was removed.
    dry_run: bool = False


class Collected(msgspec.Struct, frozen=True):
    """The artifacts that a garbage collection removed."""

    artifacts: int
    bytes: int


class StoredArtifact(msgspec.Struct, frozen=True):
    """One entry of a list of artifacts."""

    digest: str
    size: int
    #: When it was stored.
    at: datetime


class BreakerSummary(msgspec.Struct, frozen=True):
    """One entry of a list of circuit breakers."""

    name: str
    #: closed, open or half_open.
    status: str
    #: Failures in a row.
    failures: int
    #: When it opened, or closed again; None if it never opened.
    since: datetime | None
    #: When it lets a call through again; None if it is closed, or if an older version of Holdfast opened it.
    retry_at: datetime | None
    #: The last error that counted.
    error: str | None


class QueueSummary(msgspec.Struct, frozen=True):
    """One entry of a list of queues."""

    name: str
    #: The number of its runs by status.
    runs: dict[str, int]
    #: Limits: runs at a time, and runs started within `per` seconds; None if not limited.
    concurrency: int | None
    rate: int | None
    per: float
