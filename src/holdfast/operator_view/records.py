"""Views of runs, versions, changes and questions for programs: what `--json` and the HTTP API return.

Invariant: the types describe exactly what is sent; the API's description is generated from them.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, NotRequired, TypedDict, TypeVar, cast

import msgspec

from holdfast.execution.preview import Preview
from holdfast.execution.replay_validation import Difference
from holdfast.execution.run import Run
from holdfast.history.blame import Blame
from holdfast.history.compare import Diff, StepPair
from holdfast.history.version import Implementation, Version
from holdfast.model.public import (
    BreakerSummary,
    Event,
    Problem,
    Pruned,
    Question,
    QueueSummary,
    Report,
    RunSummary,
    Timeline,
)
from holdfast.model.records import display_status
from holdfast.operator_view.text import as_json
from holdfast.tree import path as paths
from holdfast.tree.diff import Change

V = TypeVar("V")


class RunView(TypedDict):
    """A run, as a list shows it. One whose process is gone is `interrupted`, a history written by hand is `manual`."""

    id: str
    status: str
    workflow: str | None
    step: str | None
    head: int
    versions: int
    timeline: int
    created: datetime
    updated: datetime
    size: int
    tags: list[str]
    origin: str | None
    alive: bool
    #: Names and values by which runs are found.
    meta: dict[str, Any]


class VersionView(TypedDict):
    """The summary of a version."""

    run: str
    version: int
    parent: int | None
    #: The version that was merged into its parent.
    merged: int | None
    timeline: int
    kind: str
    status: str
    step: str | None
    address: str | None
    attempt: int
    #: Whether the step failed and the workflow handled it.
    failed: bool
    #: Whether its row in the store is damaged; then only its number is known.
    damaged: bool
    steps: int
    at: datetime
    took: float | None
    size: int
    tags: list[str]
    pinned: bool
    note: str | None
    actor: str | None
    #: The name that another system gave it.
    key: str | None
    hash: str


class ImplementationView(TypedDict):
    """The code that ran as a step: an override, or the step's own."""

    name: str
    code: str
    overridden: bool


class VersionDetailView(TypedDict):
    """The arguments, result, error and annotations of a version, and the names of its attachments."""

    implementation: ImplementationView | None
    #: By parameter: of the step, or in a first version of the workflow; null if the version stores none.
    arguments: Any
    result: Any
    error: Any
    annotations: Any
    attachments: list[str]


class LimitsView(TypedDict, total=False):
    """The limits of a run, children included; limits that are not set are omitted."""

    cost: float
    tokens: int
    steps: int
    seconds: float


class SpentView(TypedDict):
    """The spending of a run, children included. Seconds count ended executions, if they are limited."""

    cost: float
    tokens: float
    steps: int
    seconds: float


class SpendingView(TypedDict):
    """The limits and spending of a run. `totals` are the tokens and costs that its steps annotated, by name."""

    totals: dict[str, Any]
    limits: LimitsView | None
    spent: SpentView


class MovesView(TypedDict):
    """The heads of a run when it was last resumed and last rolled back; null for never."""

    resumed_from: int | None
    rolled_back_from: int | None


class EventView(TypedDict):
    """An event. Its cursor is 0 if it is not stored in the journal, such as progress."""

    cursor: int
    run: str
    kind: str
    at: datetime
    version: int | None
    step: str | None
    data: dict[str, Any]


class TimelineView(TypedDict):
    """A line of versions."""

    number: int
    parent: int | None
    at: datetime
    reason: str | None
    actor: str | None


class QuestionView(TypedDict):
    """A question to the operator."""

    id: str
    run: str
    address: str
    text: str
    opened: datetime
    due: datetime | None
    schema: Any
    kind: str
    workflow: str | None
    assignee: str | None
    priority: int
    expires: datetime | None
    escalated: bool
    reminders: int
    project: NotRequired[str]
    details: NotRequired[dict[str, Any]]
    answered: NotRequired[datetime]
    actor: NotRequired[str | None]
    #: Null if it is long: it is the result of the step's version.
    answer: NotRequired[Any]


class ChangeView(TypedDict):
    """A difference between two versions: in their states or their metadata."""

    kind: str
    of: str
    path: str
    #: Its previous path, if it was moved.
    source: str | None
    old: Any
    new: Any
    summary: str


class ArtifactView(TypedDict):
    """An artifact that a version refers to."""

    digest: str
    size: int
    name: str | None


class BetweenView(TypedDict):
    """Artifacts and events that the later of two versions has and the earlier one has not; `events_after` is the cursor
    for further events, null if these are all."""

    new_artifacts: list[ArtifactView]
    removed_artifacts: list[ArtifactView]
    new_events: list[EventView]
    events_after: int | None


class StepPairView(TypedDict):
    """A step of one timeline and its counterpart on another."""

    step: str | None
    address: str | None
    kind: str
    a: int | None
    b: int | None
    same: bool
    #: The code that ran on each side, and whether it is the same; null if not recorded.
    a_code: ImplementationView | None
    b_code: ImplementationView | None
    same_code: bool | None


class DifferenceView(TypedDict):
    """A difference between a step that ran again and its record."""

    address: str
    what: str
    recorded: Any
    now: Any


class BlameView(TypedDict):
    """A part of a state and the version that last changed it."""

    path: str
    version: int
    ref: str
    step: str | None
    address: str | None
    at: datetime
    value: NotRequired[Any]


class PreviewView(TypedDict):
    """The effects of resuming or rolling back a run."""

    run: str
    status: str
    workflow: str | None
    version: int
    left: list[int]
    replayed: list[str]
    again: list[str]
    undo: list[str]
    cancelled: list[str]
    rewound: list[str]
    waits: list[str]
    known: bool


class ReportView(TypedDict):
    """The result of verifying a store or a run."""

    ok: bool
    runs: int
    versions: int
    artifacts: int
    problems: list[Problem]


class PrunedView(TypedDict):
    """The versions of a run that a policy prunes and keeps."""

    run: str
    prune: list[int]
    keep: list[int]
    bytes: int


class QueueView(TypedDict):
    """A queue and its limits."""

    queue: str
    runs: dict[str, int]
    concurrency: int | None
    rate: int | None
    per: float | None


class BreakerView(TypedDict):
    """A circuit breaker."""

    name: str
    status: str
    failures: int
    since: datetime | None
    retry_at: datetime | None
    error: str | None


def status_of(run: RunSummary | Run) -> str:
    """Return a run's status as an operator reads it: `interrupted` and `manual` included."""
    return display_status(run.status, run.workflow, run.alive)


def view_of(view: type[V], record: object, **other: Any) -> V:
    """Return the view of a record: its attributes that the view names, tuples as lists, except for `other` values."""
    found: Any = {
        name: other[name] if name in other else getattr(record, name) for name in view.__annotations__
    }
    for name, value in found.items():
        if isinstance(value, tuple):
            found[name] = list(value)
    return cast(V, found)


def run_view(run: RunSummary) -> RunView:
    """Return the view of a run."""
    return view_of(RunView, run, status=status_of(run))


def version_view(version: Version) -> VersionView:
    """Return the view of a version."""
    return view_of(
        VersionView,
        version,
        version=version.number,
        merged=version.detail.get("merged"),
        failed=has_failed(version),
        damaged=version.is_damaged,
    )


def has_failed(version: Version) -> bool:
    """Return whether a version records a failed step or run."""
    return "failed" in version.detail or version.status == "failed"


def version_detail_view(version: Version) -> VersionDetailView:
    """Return the arguments, result, error, annotations and names of attachments of a version."""
    return {
        "implementation": implementation_view(version.implementation),
        "arguments": as_json(version.arguments),
        "result": as_json(version.result),
        "error": as_json(version.error),
        "annotations": as_json(version.annotations),
        "attachments": attachment_names(version),
    }


def attachment_names(version: Version) -> list[str]:
    """Return the names of the attachments of a version."""
    return [] if version.key is None else version.history.attachment_names(version.key)


def full_version_view(version: Version) -> dict[str, Any]:
    """Return a version with its arguments, result, error, annotations and state."""
    return {**version_view(version), **version_detail_view(version), "state": as_json(version.state)}


def spending_view(run: Run) -> SpendingView:
    """Return the limits and spending of a run."""
    limits = run.limits
    return {
        "totals": as_json(run.totals),
        "limits": None if limits is None else msgspec.to_builtins(limits),
        "spent": msgspec.to_builtins(run.spent),
    }


def moves_view(run: Run) -> MovesView:
    """Return the versions from which a run was last resumed and rolled back."""
    return view_of(MovesView, run)


def spending_lines(run: Run) -> list[str]:
    """Return the spending of a run, one line per limit."""
    limits = run.limits
    if limits is None:
        return []
    spent = msgspec.to_builtins(run.spent)
    return [
        f"{name}: {spent[name]:,.6g} of {most:,.6g}" for name, most in msgspec.to_builtins(limits).items()
    ]


def event_view(event: Event) -> EventView:
    """Return the view of an event."""
    return view_of(EventView, event, data=as_json(event.data))


def timeline_view(timeline: Timeline) -> TimelineView:
    """Return the view of a timeline."""
    return view_of(TimelineView, timeline)


def question_view(question: Question) -> QuestionView:
    """Return the view of a question."""
    found = view_of(QuestionView, question, answer=as_json(question.answer))
    if not question.details:
        del found["details"]
    if question.project is None:
        del found["project"]
    if not question.answered:
        del found["answered"], found["actor"], found["answer"]
    return found


def change_view(change: Change, of: str = "state", show: Callable[[Any], Any] = as_json) -> ChangeView:
    """Return the view of a change; `of` is "state", or "version" for metadata, and `show` returns a value's view."""
    return view_of(
        ChangeView,
        change,
        of=of,
        path=change.where,
        source=None if change.source is None else paths.show(change.source),
        old=None if change.kind == "added" else show(change.old),
        new=None if change.kind == "removed" else show(change.new),
    )


def step_pair_view(pair: StepPair) -> StepPairView:
    """Return the view of a pair of steps."""
    version = pair.left or pair.right
    assert version is not None
    return {
        "step": pair.step,
        "address": version.address,
        "kind": version.kind,
        "a": None if pair.left is None else pair.left.number,
        "b": None if pair.right is None else pair.right.number,
        "same": pair.same,
        "a_code": implementation_view(pair.left_code),
        "b_code": implementation_view(pair.right_code),
        "same_code": pair.same_code,
    }


def difference_view(difference: Difference) -> DifferenceView:
    """Return the view of a difference between a step and its record."""
    return view_of(
        DifferenceView, difference, recorded=as_json(difference.recorded), now=as_json(difference.now)
    )


def implementation_view(found: Implementation | None) -> ImplementationView | None:
    """Return the view of the code that ran as a step."""
    return None if found is None else view_of(ImplementationView, found)


def blame_view(part: Blame, *, value: bool = True) -> BlameView:
    """Return the view of a part of a state and its last change."""
    found: BlameView = {
        "path": part.path,
        "version": part.version.number,
        "ref": reference_to(part.version),
        "step": part.version.step,
        "address": part.version.address,
        "at": part.version.at,
    }
    if value:
        found["value"] = as_json(part.value)
    return found


def preview_view(preview: Preview) -> PreviewView:
    """Return the view of a preview."""
    return view_of(PreviewView, preview)


def report_view(report: Report) -> ReportView:
    """Return the view of a verification."""
    return view_of(ReportView, report)


def pruned_view(run: str, plan: Pruned) -> PrunedView:
    """Return the view of a prune plan."""
    return view_of(PrunedView, plan, run=run, prune=plan.versions, keep=plan.kept)


def queue_view(queue: QueueSummary) -> QueueView:
    """Return the view of a queue."""
    return view_of(QueueView, queue, queue=queue.name, per=queue.per if queue.rate is not None else None)


def breaker_view(breaker: BreakerSummary) -> BreakerView:
    """Return the view of a circuit breaker."""
    return view_of(BreakerView, breaker)


def between_view(found: Diff, *, after: int = 0, limit: int = 100) -> BetweenView:
    """Return the view of the artifacts that came and went between two versions, and of a page of the events."""
    events = found.events(after=after, limit=limit)
    is_all = not events or not found.events(after=events[-1].cursor, limit=1)
    return {
        "new_artifacts": [view_of(ArtifactView, each) for each in found.new_artifacts],
        "removed_artifacts": [view_of(ArtifactView, each) for each in found.removed_artifacts],
        "new_events": [event_view(each) for each in events],
        "events_after": None if is_all else events[-1].cursor,
    }


def changes_of(found: Diff) -> list[tuple[Change, str]]:
    """Return all changes of a diff, each with "state" or "version"."""
    return [
        *((change, "state") for change in found.changes),
        *((change, "version") for change in found.facts),
    ]


def reference_to(version: Version) -> str:
    """Return the reference to a version."""
    return f"{version.run}@{version.number}"
