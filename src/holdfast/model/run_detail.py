"""The detail of a run's record: its waits, signals, failure, ownership, watchdog and totals.

Waits and signals that arrived before a wait are in the run's record, so that answering, signalling and resuming are
each one compare-and-set.

Invariant: a wait is filled once; a signal that was sent on an abandoned timeline fills no wait of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import CorruptStore
from holdfast.model.records import RunRecord
from holdfast.struct_types import resolved
from holdfast.tree.codec import decode, encode

#: The words under which stores keep the fields of a `RunDetail` whose names have changed since.
_STORED_AS = {"signals": "mail", "watchdog": "watch", "question": "prompt"}


class Wait(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A wait of a run."""

    address: str
    #: prompt, event, time or run.
    kind: str
    #: Of a prompt: its id. Of an event: its name. Of a run: its id.
    name: str = ""
    #: When it ends, whether or not it was filled.
    due: int | None = None
    opened: int = 0
    question: str = ""
    schema: Any = None
    #: Has it been answered or signalled?
    filled: bool = False
    value: Any = None
    actor: str | None = None
    #: Of a signal that has arrived: its number among all that were sent to the run.
    number: int = 0
    #: The path of the call that waits (see `expected`), empty if its order is not known; the head when it was made.
    call: Sequence[int] = ()
    head: int = 0
    #: Was it filled, and could the last execution not reach the call, because the code waits for something else first?
    #: Then it does not cause a resume.
    idle: bool = False


class Signal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A signal that was sent before a wait for it."""

    name: str
    value: Any = None
    #: The run's head when it was sent.
    head: int = 0
    #: Its number among all that were sent to the run.
    number: int = 0
    #: The run's timeline when it was sent.
    timeline: int = 1
    #: Is its value too large for the run's record, and only in the journal?
    apart: bool = False
    actor: str | None = None


class StalledQuestion(msgspec.Struct, frozen=True, kw_only=True):
    """The question of a stalled run: why it was stopped, and where."""

    id: str
    opened: int
    symptom: str
    why: str
    since: int
    address: str | None = None
    attempt: int | None = None
    stack: str = ""
    #: The last good version.
    good: int
    restores: int = 0


class RunDetail(msgspec.Struct, kw_only=True, omit_defaults=True, rename=_STORED_AS):
    """The part of a run's record that is stored encoded."""

    waits: Sequence[Wait] = ()
    signals: Sequence[Signal] = ()
    #: The error that the run failed with, packed; versions that record failures which no longer count.
    error: bytes = b""
    failed: Sequence[int] = ()
    #: The address of the step whose failure ended the run; empty if it failed between steps.
    failed_step: str = ""
    #: By the address of a step: the head when an attempt at it failed last, if it had called steps.
    retried: dict[str, int] = {}
    #: The fingerprint of the workflow's code.
    code: str = ""
    #: The functions that replace steps of the run, by the step's name.
    overrides: dict[str, str] = {}
    #: A request to the process that advances the run: cancel, pause, or, by a worker that stops, hand back.
    wish: str = ""
    reason: str | None = None
    actor: str | None = None
    #: An unfinished rollback: the version, and the reason.
    undoing: dict[str, Any] | None = None
    #: Versions whose steps a rollback has compensated.
    undone: Sequence[int] = ()
    #: Sums of the figures that steps annotated, by name; and their cost and tokens.
    totals: dict[str, Any] = {}
    used: dict[str, Any] = {}
    #: Its limits; completed steps that rollbacks have removed from its timeline.
    limits: dict[str, Any] = {}
    discarded: int = 0
    #: Values that no version has recorded yet, by address.
    values: dict[str, Any] = {}
    #: The numbers of questions opened and of signals sent.
    asked: int = 0
    sent: int = 0
    #: Has something arrived for a child since this run was last executed?
    called: bool = False
    #: The queue from which workers claim it; empty for none.
    queue: str = ""
    #: Its watchdog, as `policy.store_watchdog` encodes it.
    watchdog: dict[str, Any] = {}
    #: Incremented when the run is taken from its owner: an earlier execution cannot write any more.
    fence: int = 0
    #: Recoveries by the monitor since a person last answered; the last owner that it found dead.
    restores: int = 0
    dead: str = ""
    #: Microseconds of executions that have ended; the amounts spent when a person last resumed it.
    worked: int = 0
    spent: dict[str, Any] = {}
    #: The question of a stalled run; None if it is not stalled.
    question: StalledQuestion | None = None

    def wait_at(self, address: str) -> Wait | None:
        return next((wait for wait in self.waits if wait.address == address), None)

    def put(self, wait: Wait) -> None:
        """Add a wait, replacing the one at its address."""
        self.waits = [*(other for other in self.waits if other.address != wait.address), wait]

    def drop(self, address: str) -> None:
        self.waits = [wait for wait in self.waits if wait.address != address]

    def due(self) -> int | None:
        """Return when the run has to be resumed; None for never."""
        times = [wait.due for wait in self.waits if wait.due is not None and not (wait.filled or wait.idle)]
        return min(times, default=None)

    def signal_for(self, wait: Wait) -> Signal | None:
        """Return the first signal that fills this wait, if there is one."""
        if wait.kind != "event" or wait.filled:
            return None
        return next((sent for sent in self.signals if sent.name == wait.name), None)

    def has_come(self) -> bool:
        """Has an answer or a signal arrived for the run or a child?"""
        return self.called or any(
            not wait.idle and (wait.filled or self.signal_for(wait) is not None) for wait in self.waits
        )

    def is_over(self, wait: Wait, now: int) -> bool:
        """Is a wait filled, or its time over? For a child run, see `readiness`."""
        return wait.filled or (wait.due is not None and wait.due <= now) or self.signal_for(wait) is not None


def detail_of(run: RunRecord) -> RunDetail:
    """Return the detail of a run; raise `CorruptStore` if it cannot be decoded."""
    if not run.detail:
        return RunDetail()
    try:
        return msgspec.convert(decode(run.detail), resolved(RunDetail))
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CorruptStore(
            f"the detail of run {run.id!r} cannot be read ({error}): verify the store", run=run.id
        ) from error


def encode_detail(facts: RunDetail) -> bytes:
    """Return the bytes of a detail for the run's record; empty if every field has its default."""
    kept = {
        _STORED_AS.get(name, name): _storable(name, value)
        for name, value in msgspec.structs.asdict(facts).items()
        if value
    }
    return encode(kept) if kept else b""


def _storable(name: str, value: Any) -> Any:
    if isinstance(value, StalledQuestion):
        return {name: each for name, each in msgspec.structs.asdict(value).items() if each not in (None, "")}
    if name in ("waits", "signals"):
        return [_plain(item) for item in value]
    return list(value) if isinstance(value, tuple) else value


def _plain(item: Wait | Signal) -> dict[str, Any]:
    """Return the fields that differ from their defaults; `value` always."""
    return {name: value for name, value in msgspec.structs.asdict(item).items() if value or name == "value"}
