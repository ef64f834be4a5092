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
    #: The fingerprint of the workflow's code.
    code: str = ""
    #: What somebody wants of the run: cancel, pause, or, of a worker that stops, hand back.
    wish: str = ""
    reason: str | None = None
    actor: str | None = None
    #: A rollback that is under way: the version, and why.
    undoing: dict[str, Any] | None = None
    #: Versions whose steps a rollback has undone.
    undone: Sequence[int] = ()
    #: Sums of tokens and cost.
    totals: dict[str, Any] = {}
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
        times = [wait.due for wait in self.waits if wait.due is not None and not wait.filled]
        return min(times, default=None)

    def letter_for(self, wait: Wait) -> Mail | None:
        """The first event that was sent and that this wait may take."""
        if wait.kind != "event" or wait.filled:
            return None
        return next((letter for letter in self.mail if letter.name == wait.name), None)

    def has_come(self) -> bool:
        """Has an answer or an event come that the run, or one that is a part of it, waits for?"""
        return self.called or any(wait.filled or self.letter_for(wait) is not None for wait in self.waits)

    def ready(self, now: int) -> bool:
        """Has anything come that the run waits for? Of a run that is part of it, only that run knows (see `ready`)."""
        return not self.waits or any(
            wait.filled
            or wait.kind == "run"
            or (wait.due is not None and wait.due <= now)
            or self.letter_for(wait) is not None
            for wait in self.waits
        )


def facts_of(run: RunRecord) -> Facts:
    """What a run's record says beyond its fields."""
    if not run.detail:
        return Facts()
    try:
        return msgspec.convert(decode(run.detail), Facts)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise CorruptStore(
            f"the facts of run {run.id!r} cannot be read ({error}): verify the store", run=run.id
        ) from error


def ready(store: Store, run: RunRecord, now: int, around: frozenset[str] = frozenset()) -> bool:
    """Would a suspended run go on if it were resumed?"""
    facts = facts_of(run)
    parts = [wait.name for wait in facts.waits if wait.kind == "run"]
    facts.waits = [wait for wait in facts.waits if wait.kind != "run"]
    if (facts.waits or not parts) and facts.ready(now):
        return True
    for part in parts:
        child = store.run(part)
        if child is None or child.status not in ("suspended", "paused", "running", "frozen"):
            return True
        if child.status == "running" and not is_alive(child, now):
            return True
        if (
            child.status == "suspended"
            and child.id not in around
            and ready(store, child, now, around | {run.id})
        ):
            return True
    return False


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
