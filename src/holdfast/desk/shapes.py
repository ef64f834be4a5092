"""What records look like: the fields of runs, versions, changes, prompts … as programs get them.

Invariant: these types describe both what `--json` prints and what the API answers; the API's document is made from
them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NotRequired, TypedDict


class RunShown(TypedDict):
    """A run, as a list shows it. One whose process is gone is `interrupted`, a history by hand is `kept`."""

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


class VersionShown(TypedDict):
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
    #: Did the step fail, in a way that the workflow handled?
    failed: bool
    #: Is its row in the store damaged? Then only its number is known.
    damaged: bool
    steps: int
    at: datetime
    took: float | None
    size: int
    tags: list[str]
    pinned: bool
    note: str | None
    actor: str | None
    hash: str


class ImplementationShown(TypedDict):
    """The code that ran as a step: an override, or the step's own."""

    name: str
    code: str
    overridden: bool


class FactsShown(TypedDict):
    """What a version says beside its state."""

    implementation: ImplementationShown | None
    #: Of the step, or of the workflow in a run's first version, by parameter; null if the version stores none.
    arguments: Any
    result: Any
    error: Any
    meta: Any


class LimitsShown(TypedDict, total=False):
    """What a run may spend, its children included; a limit that it does not have is left out."""

    cost: float
    tokens: int
    steps: int
    seconds: float


class SpentShown(TypedDict):
    """What a run has spent, its children included. Seconds are those of executions that have ended, where limited."""

    cost: float
    tokens: float
    steps: int
    seconds: float


class SpendingShown(TypedDict):
    """What a run may spend and has spent. `totals` are the tokens and costs that its steps noted, by name."""

    totals: dict[str, Any]
    limits: LimitsShown | None
    spent: SpentShown


class EventShown(TypedDict):
    """An entry of the journal. Its cursor is 0 for what is not kept there, such as progress."""

    cursor: int
    run: str
    kind: str
    at: datetime
    version: int | None
    step: str | None
    data: dict[str, Any]


class TimelineShown(TypedDict):
    """A line of versions."""

    number: int
    parent: int | None
    at: datetime
    reason: str | None
    actor: str | None


class PromptShown(TypedDict):
    """A question to the operator."""

    id: str
    run: str
    address: str
    question: str
    opened: datetime
    due: datetime | None
    schema: Any
    details: NotRequired[dict[str, Any]]
    answered: NotRequired[datetime]
    actor: NotRequired[str | None]
    #: Null if it is long: the version of its step has it as its result.
    answer: NotRequired[Any]


class ChangeShown(TypedDict):
    """A difference between two versions: of their states, or of what is said about them."""

    kind: str
    of: str
    path: str
    #: Where it was before, if it was moved.
    source: str | None
    old: Any
    new: Any
    summary: str


class PairShown(TypedDict):
    """A step of one line and its counterpart on another."""

    step: str | None
    address: str | None
    kind: str
    a: int | None
    b: int | None
    same: bool
    #: What ran on each side, and whether it was the same; null where that is not recorded.
    a_code: ImplementationShown | None
    b_code: ImplementationShown | None
    same_code: bool | None


class BlameShown(TypedDict):
    """A part of a state and the version that last changed it."""

    path: str
    version: int
    ref: str
    step: str | None
    address: str | None
    at: datetime
    value: NotRequired[Any]


class PreviewShown(TypedDict):
    """What resuming or rolling back a run would do."""

    run: str
    status: str
    workflow: str | None
    version: int
    left: list[int]
    passed: list[str]
    again: list[str]
    undo: list[str]
    cancelled: list[str]
    rewound: list[str]
    waits: list[str]
    known: bool


class ProblemShown(TypedDict):
    """Something that is damaged."""

    run: str | None
    version: int | None
    what: str


class ReportShown(TypedDict):
    """What a check of hashes looked at and found."""

    ok: bool
    runs: int
    versions: int
    artifacts: int
    problems: list[ProblemShown]


class PrunedShown(TypedDict):
    """What a policy removes from a run, and keeps."""

    run: str
    forget: list[int]
    keep: list[int]
    bytes: int


class QueueShown(TypedDict):
    """A queue and its limits."""

    queue: str
    runs: dict[str, int]
    concurrency: int | None
    rate: int | None
    per: float | None
