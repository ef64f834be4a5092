"""The detail of a run's record: its waits, signals, failure, ownership, watchdog and totals.

Waits and signals that arrived before a wait are in the run's record, so that answering, signalling and resuming are
each one compare-and-set.

Invariant: a wait is filled once; a signal that was sent on an abandoned timeline fills no wait of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from holdfast.errors import CorruptStore, HoldfastError
from holdfast.model.meta import MetaRow, MetaValue, meta_rows
from holdfast.model.question import Handling
from holdfast.model.records import LIVE, QuestionRecord, RunRecord
from holdfast.model.watchdog import RunWatchdog, Watchdog
from holdfast.struct_types import resolved
from holdfast.tree.codec import decode, encode

#: The words under which stores keep the fields of a `RunDetail` whose names have changed since.
_STORED_AS = {
    "signals": "mail",
    "watchdog": "watch",
    "question": "prompt",
    "rollback": "undoing",
    "compensated": "undone",
    "spent_before": "spent",
    "stop_request": "wish",
}

#: Fields of a `PendingRollback` that are stored even if they are None.
_NULLABLE = ("reason", "actor")
#: The stored word for a wait for an answer.
QUESTION = "prompt"
#: The word for a wait for a circuit breaker.
BREAKER = "breaker"
#: The stored words of the fields that hold numbers of the application.
_NUMBERS = ("totals", "used", "limits", "spent")
#: A sum of figures that steps annotated.
Figure = int | float | Decimal


class Wait(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A wait of a run."""

    address: str
    #: `QUESTION`, event, time, run or `BREAKER`.
    kind: str
    #: Of a question: its id. Of an event: its name. Of a run: its id. Of a breaker: its name.
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
    #: Of a signal that has arrived: its number among all that were sent to the run. Of a breaker: the calls of the step
    #: so far.
    number: int = 0
    #: The path of the call that waits (see `replay_cursor`), empty if its order is unknown; the head when it was made.
    call: Sequence[int] = ()
    head: int = 0
    #: Was it filled, and could the last execution not reach the call, because the code waits for something else first?
    #: Then it does not cause a resume.
    idle: bool = False
    #: Of a question: who is to answer it, by when. None is that of a question of an earlier release.
    handling: Handling | None = None

    @property
    def is_question(self) -> bool:
        """Is it a wait for an answer?"""
        return self.kind == QUESTION


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
    handling: Handling | None = None


class PendingRollback(msgspec.Struct, frozen=True, kw_only=True):
    """A rollback that is not finished: any process can finish it from here."""

    #: The version that becomes the head.
    to: int
    reason: str | None = None
    actor: str | None = None
    #: The run's status afterwards, and when it is due.
    then: str | None = None
    due: int | None = None
    #: Of a recovery by the monitor: its finding, and how many recoveries there were.
    symptom: str | None = None
    restores: int | None = None
    #: Of a run that starts over: paths of the state of version `of` that it keeps, each a text or its segments. None
    #: for a mere rollback.
    keep: Sequence[str | Sequence[Any]] | None = None
    of: int | None = None


class Used(msgspec.Struct, frozen=True):
    """The cost and the tokens of a run without its children."""

    cost: int | float = 0
    tokens: int | float = 0


class SpentBefore(msgspec.Struct, frozen=True, kw_only=True):
    """The spending of a run, its children included, when a person last resumed it."""

    #: The last version then.
    last: int = 0
    cost: int | float | None = None
    tokens: int | float | None = None
    steps: int = 0
    seconds: int | float | None = None
    #: Written instead of cost, tokens and seconds by the first versions: sums by name, and microseconds.
    totals: dict[str, Figure] | None = None
    worked: int | None = None


class RunLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a run."""

    cost: int | float | None = None
    tokens: int | None = None
    steps: int | None = None
    seconds: int | float | None = None
    #: The names of the limits that were given for the run and not with its workflow.
    own: Sequence[str] = ()


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
    stop_request: str = ""
    reason: str | None = None
    actor: str | None = None
    #: Its unfinished rollback.
    rollback: PendingRollback | None = None
    #: Versions whose steps a rollback has compensated.
    compensated: Sequence[int] = ()
    #: Sums of the figures that steps annotated, by name; and their cost and tokens.
    totals: dict[str, Figure] = {}
    used: Used | None = None
    #: Its limits; completed steps that rollbacks have removed from its timeline.
    limits: RunLimits | None = None
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
    watchdog: RunWatchdog | None = None
    #: Incremented when the run is taken from its owner: an earlier execution cannot write any more.
    fence: int = 0
    #: Recoveries by the monitor since a person last answered; the last owner that it found dead.
    restores: int = 0
    dead: str = ""
    #: Microseconds of executions that have ended.
    worked: int = 0
    #: None if no person has resumed it.
    spent_before: SpentBefore | None = None
    #: The question of a stalled run; None if it is not stalled.
    question: StalledQuestion | None = None
    #: The head when the run was last resumed, and when it was last rolled back; 0 for never.
    resumed_from: int = 0
    rolled_back_from: int = 0
    #: Names and values of the application, by which the run is found.
    meta: dict[str, MetaValue] = {}

    @property
    def watchdog_policy(self) -> Watchdog | None:
        """The policy of its watchdog; None if it has none that this version understands."""
        return None if self.watchdog is None else self.watchdog.policy

    @property
    def resumed_after(self) -> int:
        """The last version when a person last resumed it; 0 for never."""
        return 0 if self.spent_before is None else self.spent_before.last

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
        """Is a wait filled, or its time over? For a child run, see `run_endings`."""
        return wait.filled or (wait.due is not None and wait.due <= now) or self.signal_for(wait) is not None


def detail_of(run: RunRecord) -> RunDetail:
    """Return the detail of a run; raise `CorruptStore` if it cannot be decoded."""
    if not run.detail:
        return RunDetail()
    try:
        fields = decode(run.detail)
        if isinstance(fields, dict) and isinstance(watchdog := fields.get("watch"), dict):
            fields = {**fields, "watch": RunWatchdog.read(watchdog)}
        if isinstance(fields, dict):
            fields |= {name: _builtin(fields[name]) for name in _NUMBERS if name in fields}
        return msgspec.convert(fields, resolved(RunDetail))
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
    if name in ("waits", "signals"):
        return [_plain(item) for item in value]
    if isinstance(value, RunWatchdog):
        return value.stored
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value)
        # A rollback without a reason or an actor has them as None.
        kept = {
            name: msgspec.to_builtins(each) if isinstance(each, Handling) else each
            for name, each in fields.items()
            if each not in (None, "") or name in _NULLABLE
        }
        return _builtin(kept)
    if name == "totals":
        return _builtin(value)
    return list(value) if isinstance(value, tuple) else value


def _builtin(value: Any) -> Any:
    """Return numbers as built-in ones: a `float64` of numpy is a float, but would be stored and read as what it is."""
    if isinstance(value, dict):
        return {name: _builtin(each) for name, each in value.items()}
    return float(value) if isinstance(value, float) else value


def _plain(item: Wait | Signal) -> dict[str, Any]:
    """Return the fields that differ from their defaults; `value` always."""
    return {
        name: msgspec.to_builtins(value) if isinstance(value, Handling) else value
        for name, value in msgspec.structs.asdict(item).items()
        if value or name == "value"
    }


def question_rows(run: RunRecord, facts: RunDetail) -> tuple[QuestionRecord, ...]:
    """Return the rows of the index of open questions for a run and its detail: its waits for an answer, until it ends,
    and, while it is stalled, the question of the monitor. A run that is queued for a rollback asks nothing: it
    drops the waits."""
    if run.status not in LIVE or (run.status == "queued" and facts.rollback is not None):
        return ()
    found = [
        _question_row(run, "question", wait.name, wait.opened, wait.handling, wait.due)
        for wait in facts.waits
        if wait.is_question and not wait.filled
    ]
    if facts.question is not None and run.status == "stalled":
        asked = facts.question
        found.append(_question_row(run, "stalled", asked.id, asked.opened, asked.handling, None))
    # By number: two questions of one number, in a damaged detail, would be one row.
    return tuple({row.number: row for row in found}.values())


def _question_row(
    run: RunRecord, kind: str, question_id: str, opened: int, handling: Handling | None, expires: int | None
) -> QuestionRecord:
    handling = Handling(due=expires) if handling is None else handling
    number = question_id.rpartition("#")[2]
    return QuestionRecord(
        run=run.key,
        number=int(number) if number.isdecimal() else 0,
        kind=kind,
        opened=opened,
        workflow=run.workflow,
        assignee=handling.assignee,
        priority=handling.priority,
        due=handling.due,
        expires=expires,
        wake=handling.wake,
    )


def meta_of(run: RunRecord) -> dict[str, MetaValue]:
    """Return the metadata of a run; empty if its detail cannot be read."""
    try:
        return detail_of(run).meta
    except HoldfastError:
        return {}


def indexed_meta(run: RunRecord) -> tuple[MetaRow, ...]:
    """Return the metadata in the record of a run, as rows of the index."""
    return meta_rows(meta_of(run))
