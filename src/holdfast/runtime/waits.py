"""What a suspended run waits for: an answer, an event, a time, a run that is part of it.

Waits live in the run's record, beside events that were sent before anybody waited for them (the *mail*), so that
answering, sending and resuming are each one compare-and-set.

Invariant: a wait is filled once; what was sent on an abandoned timeline fills no wait of another.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import CorruptStore
from holdfast.model.records import RunRecord
from holdfast.runtime.lease import is_alive
from holdfast.store.base import Store
from holdfast.struct_types import resolved
from holdfast.tree.codec import decode, encode


class Wait(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something that a run waits for."""

    address: str
    #: prompt, event, time or run.
    kind: str
    #: Of a prompt: its id. Of an event: its name. Of a run: its id.
    name: str = ""
    #: When it is over, whatever has come by then.
    due: int | None = None
    opened: int = 0
    question: str = ""
    schema: Any = None
    #: Has what was waited for come?
    filled: bool = False
    value: Any = None
    actor: str | None = None
    #: Of an event that has come: its number among all that were sent to the run.
    number: int = 0
    #: The path of the call that waits (see `expected`), empty if its order is not known; the head when it was made.
    call: Sequence[int] = ()
    head: int = 0
    #: Has it come, and could the last execution not reach the call, because the code waits for something else first?
    #: Then it is no reason to resume the run.
    idle: bool = False


class Mail(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event that was sent and that nobody has waited for yet."""

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


class Facts(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What a run's record says beyond its fields."""

    waits: Sequence[Wait] = ()
    mail: Sequence[Mail] = ()
    #: How the run failed, as `failure.pack` gives it; versions that record failures which count no more.
    error: bytes = b""
    failed: Sequence[int] = ()
    #: The address of the step whose failure ended the run; empty if it failed between steps.
    failed_step: str = ""
    #: By the address of a step: the head when an attempt at it failed last, if it had called steps.
    retried: dict[str, int] = {}
    #: The fingerprint of the workflow's code.
    code: str = ""
    #: Steps in whose place the run runs other functions, and which (see `overrides`).
    overrides: dict[str, str] = {}
    #: What somebody wants of the run: cancel, pause, or, of a worker that stops, hand back.
    wish: str = ""
    reason: str | None = None
    actor: str | None = None
    #: A rollback that is under way: the version, and why.
    undoing: dict[str, Any] | None = None
    #: Versions whose steps a rollback has undone.
    undone: Sequence[int] = ()
    #: Sums of tokens and cost, by the names under which steps noted them; and what they come to.
    totals: dict[str, Any] = {}
    used: dict[str, Any] = {}
    #: What it may spend (see `limits`); completed steps that rollbacks took off its line.
    limits: dict[str, Any] = {}
    discarded: int = 0
    #: Values that no version has recorded yet, by address.
    values: dict[str, Any] = {}
    #: How many prompts were opened, how many events sent.
    asked: int = 0
    sent: int = 0
    #: Has something come for a run that is a part of this one, since this one was last executed?
    called: bool = False
    #: The queue from which workers claim it; empty if it is in none.
    queue: str = ""
    #: When it is taken for stuck, and what is done then (see `watch`).
    watch: dict[str, Any] = {}
    #: How often it was taken away from whoever advanced it: an execution that began before is over.
    fence: int = 0
    #: How often the monitor has restored it since a person last answered; the owner that it found dead last.
    restores: int = 0
    dead: str = ""
    #: Microseconds of executions that have ended; what had been spent when a person last let it go on.
    worked: int = 0
    spent: dict[str, Any] = {}
    #: Of a run that is frozen: what the operator is asked (see `restoring`).
    prompt: dict[str, Any] = {}

    def wait_at(self, address: str) -> Wait | None:
        return next((wait for wait in self.waits if wait.address == address), None)

    def put(self, wait: Wait) -> None:
        """Enter a wait, in place of the one at its address."""
        self.waits = [*(other for other in self.waits if other.address != wait.address), wait]

    def drop(self, address: str) -> None:
        self.waits = [wait for wait in self.waits if wait.address != address]

    def due(self) -> int | None:
        """When the run wants to be resumed."""
        times = [wait.due for wait in self.waits if wait.due is not None and not (wait.filled or wait.idle)]
        return min(times, default=None)

    def letter_for(self, wait: Wait) -> Mail | None:
        """The first event that was sent and that this wait may take."""
        if wait.kind != "event" or wait.filled:
            return None
        return next((letter for letter in self.mail if letter.name == wait.name), None)

    def has_come(self) -> bool:
        """Has an answer or an event come that the run, or one that is a part of it, waits for?"""
        return self.called or any(
            not wait.idle and (wait.filled or self.letter_for(wait) is not None) for wait in self.waits
        )

    def is_over(self, wait: Wait, now: int) -> bool:
        """Has what a wait is for come, or its time? Of a child run, only that run knows (see `ready`)."""
        return wait.filled or (wait.due is not None and wait.due <= now) or self.letter_for(wait) is not None


def facts_of(run: RunRecord) -> Facts:
    """What a run's record says beyond its fields."""
    if not run.detail:
        return Facts()
    try:
        return msgspec.convert(decode(run.detail), resolved(Facts))
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CorruptStore(
            f"the facts of run {run.id!r} cannot be read ({error}): verify the store", run=run.id
        ) from error


def ready(store: Store, run: RunRecord, now: int) -> bool:
    """Would a suspended run continue if it were resumed?"""
    facts = facts_of(run)
    return not facts.waits or any(
        not wait.idle and has_come(store, run, facts, wait, now) for wait in facts.waits
    )


def has_come(
    store: Store, run: RunRecord, facts: Facts, wait: Wait, now: int, around: frozenset[str] = frozenset()
) -> bool:
    """Has what a run waits for come? A child run has if it has ended, or would continue if it were resumed."""
    if wait.kind != "run":
        return facts.is_over(wait, now)
    child = store.run(wait.name)
    if child is None or child.status not in ("suspended", "paused", "running", "frozen"):
        return True
    if child.status == "running":
        return not is_alive(child, now)
    if child.status != "suspended" or child.id in around:
        return False
    its = facts_of(child)
    around = around | {run.id}
    return not its.waits or any(
        not each.idle and has_come(store, child, its, each, now, around) for each in its.waits
    )


def encoded(facts: Facts) -> bytes:
    """The same, to be kept in the record."""
    kept = {
        name: [_plain(item) for item in value]
        if name in ("waits", "mail")
        else (list(value) if isinstance(value, tuple) else value)
        for name, value in msgspec.structs.asdict(facts).items()
        if value
    }
    return encode(kept) if kept else b""


def _plain(item: Wait | Mail) -> dict[str, Any]:
    """Without what says nothing; a value is a value, whatever it is."""
    return {name: value for name, value in msgspec.structs.asdict(item).items() if value or name == "value"}
