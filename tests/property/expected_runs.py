"""Expected runs in plain records, and a check that an engine reports the same."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from holdfast import Holdfast, Version, thaw
from holdfast.model.run_detail import detail_of

Script = list[Any]
ENDED = ("completed", "failed", "cancelled")
#: Where a call is made: the address of its frame, its number among the calls there, and its address. After those of the
#: calls around it. Of a task that asyncio makes in a frame: the number of the task, and no address.
Path = list[tuple[str, int, str | None]]


@dataclass
class Code:
    """The code that is deployed."""

    #: What workflows do, by the names of programs.
    scripts: dict[str, Script] = field(default_factory=dict)
    #: The programs whose workflow is asynchronous.
    asynchronous: set[str] = field(default_factory=set)
    #: The step for `act`: act; acted, which has act as an alias; or renamed, which has not.
    act: str = "act"


@dataclass
class Known:
    """A version as it should be."""

    number: int
    parent: int | None
    timeline: int
    kind: str
    status: str
    state: Any
    address: str | None = None
    result: Any = None
    failed: bool = False
    #: The type of the error that its step failed with.
    error: str = ""
    #: When it was written, counted over all runs.
    tick: int = 0
    path: Path = field(default_factory=list)
    #: What its step was called with.
    given: Any = None
    #: What was done to the state by hand.
    by_hand: Any = None
    tags: set[str] = field(default_factory=set)
    #: Recorded values, by address.
    values: dict[str, Any] = field(default_factory=dict)
    #: Events that were sent and not taken when it was written.
    signals: list[SentSignal] = field(default_factory=list)


@dataclass(frozen=True)
class SentSignal:
    """An event that was sent."""

    number: int
    name: str
    value: Any


@dataclass
class Waiting:
    """A wait of a run."""

    kind: str
    name: str
    filled: bool = False
    value: Any = None
    signal: SentSignal | None = None
    path: Path = field(default_factory=list)
    #: The head when the run came to it.
    head: int = 0


@dataclass
class RunModel:
    """A run as it should be."""

    id: str
    program: str
    parent: str | None = None
    #: Where, and on which timeline, its parent called it.
    called: tuple[str, int] = ("", 1)
    versions: dict[int, Known] = field(default_factory=dict)
    head: int = 0
    #: Where each timeline started, beginning with the first.
    starts: list[int | None] = field(default_factory=lambda: [None])
    status: str = "running"
    waits: dict[str, Waiting] = field(default_factory=dict)
    signals: list[SentSignal] = field(default_factory=list)
    asked: int = 0
    sent: int = 0
    #: Values that were recorded after the head.
    loose: dict[str, Any] = field(default_factory=dict)
    #: Counts the versions of all runs.
    clock: list[int] = field(default_factory=lambda: [0])
    #: Was its cancellation requested? The request outlives the process that should obey it.
    doomed: bool = False
    #: The run and the version that it was forked from.
    origin: tuple[RunModel, int] | None = None
    #: The type of the error that it failed with.
    error: str = ""
    #: Steps that failed after they had called others: the head then.
    retried: dict[str, int] = field(default_factory=dict)
    #: What it may spend, by name; what it has spent: cost, steps of abandoned timelines, steps that run now.
    limits: dict[str, int] = field(default_factory=dict)
    cost: int = 0
    discarded: int = 0
    flying: int = 0

    @property
    def state(self) -> Any:
        return self.versions[self.head].state

    def add(self, kind: str, state: Any, *, status: str = "running", **facts: Any) -> Known:
        """The next version."""
        number = len(self.versions) + 1
        self.clock[0] += 1
        filled = [wait.signal for wait in self.waits.values() if wait.signal is not None]
        known = Known(
            number, self.head or None, len(self.starts), kind, status, deepcopy(state),
            signals=sorted([*self.signals, *filled], key=lambda signal: signal.number), tick=self.clock[0], **facts,
        )  # fmt: skip
        self.versions[number] = known
        self.head = number
        return known

    def line(self, head: int | None = None) -> Iterator[Known]:
        """A version, by default the head, and all that it follows, back through what it was forked from."""
        number = self.head if head is None else head
        while number:
            yield self.versions[number]
            number = self.versions[number].parent or 0
        if self.origin is not None:
            yield from self.origin[0].line(self.origin[1])

    @property
    def steps(self) -> int:
        """How many steps the head follows."""
        return sum(known.kind == "step" and not known.failed for known in self.line())

    def roll_back(self, to: int) -> None:
        before = self.steps
        self.head = to
        self.discarded += before - self.steps
        self.starts.append(to)
        self.status = "paused"
        self.doomed = False
        self.waits, self.loose, self.retried = {}, {}, {}
        self.signals = list(self.versions[to].signals)


def check_run(hf: Holdfast, run_model: RunModel) -> None:
    """Everything that is known about a run."""
    run = hf.get(run_model.id)
    log = hf.history(run_model.id)
    assert (run.status, log.head.number) == (run_model.status, run_model.head)
    assert [(line.number, line.parent) for line in log.timelines()] == list(enumerate(run_model.starts, 1))
    listed = sorted(log.versions(limit=10_000), key=lambda version: version.number)
    assert [version.number for version in listed] == sorted(run_model.versions)
    for version in listed:
        check_version(version, run_model.versions[version.number])
    if run_model.status == "completed":
        # It may have been edited by hand since.
        assert run.result == next(known.result for known in run_model.line() if known.kind == "final")
    assert (type(run.error).__name__ if run.error else "") == (
        run_model.error if run_model.status == "failed" else ""
    )
    if run_model.status not in ("completed", "cancelled"):
        record = hf._store.run(run_model.id)
        assert record is not None
        signals = [(signal.name, signal.value) for signal in detail_of(record).signals]
        assert signals == [(signal.name, signal.value) for signal in run_model.signals]


def check_version(version: Version, known: Known) -> None:
    """A version says what it should."""
    assert (version.number, version.parent, version.timeline) == (known.number, known.parent, known.timeline)
    assert (version.kind, version.address, version.status) == (known.kind, known.address, known.status)
    assert thaw(version.state) == known.state
    assert thaw(version.result) == known.result
    assert ("failed" in version.detail, version.error is not None) == (known.failed, known.failed)
    assert set(version.tags) == known.tags
