"""Making a version: its facts, its pack, its record.

Nothing is written here: `draw_up` gives the store's `Append` for a root on top of a head, and the writer whose
nodes learn their places once the store has said yes.

Invariant: version numbers of a run are 1, 2, 3, … without holes; each follows the version that it was drawn up
on, and the store refuses it if the run has changed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.errors import InvalidCall
from holdfast.history.reader import Head
from holdfast.history.seal import NO_PARENT, seal
from holdfast.history.telling import Told, check_told
from holdfast.model.names import MAX_NOTE, MAX_STEP, check_tags, check_text, short
from holdfast.model.records import KINDS, STATUSES, EventRecord, RunRecord, VersionRecord
from holdfast.store.base import Append
from holdfast.tree.artifact import Artifact
from holdfast.tree.block import digest
from holdfast.tree.codec import decode, encode
from holdfast.tree.pack import Upload, Writer

#: The roots of a pack, in this order; those at the end that are None are left out.
STATE, RESULT, META, ERROR, INPUT = range(5)


class Facts(msgspec.Struct):
    """What is said about a version beside its state."""

    step: str | None = None
    result: Any = None
    tags: Iterable[str] = ()
    note: str | None = None
    actor: str | None = None
    meta: Any = None
    error: Any = None
    kind: str | None = None
    status: str | None = None
    #: Further facts that a list of versions shows: address, attempt, duration, …
    more: dict[str, Any] = {}
    #: Has the step been completed?
    done: bool = True
    #: Entries for the journal that go with the version.
    events: Iterable[Told] = ()

    def check(self) -> None:
        """Refuse what cannot be stored, before anything else happens."""
        check_text("step", self.step, MAX_STEP)
        check_text("note", self.note, MAX_NOTE)
        check_text("actor", self.actor, MAX_STEP)
        if self.tags != ():
            self.tags = check_tags(self.tags)
        if self.kind is not None and self.kind not in KINDS:
            raise InvalidCall(f"kind is one of {', '.join(KINDS)}, not {short(self.kind)}")
        if self.status is not None and self.status not in STATUSES:
            raise InvalidCall(f"status is one of {', '.join(STATUSES)}, not {short(self.status)}")
        if self.events != ():
            self.events = check_told(self.events)

    def detail(self, moved: int | None) -> bytes:
        """The encoded facts that a list of versions shows; `moved` is the version that last moved parts of it."""
        facts = dict(self.more)
        if moved is not None:
            facts["moved"] = moved
        if self.note is not None:
            facts["note"] = self.note
        if self.actor is not None:
            facts["actor"] = self.actor
        return encode(facts) if facts else b""


class Parts(msgspec.Struct):
    """The frozen trees of a version to be, and the artifacts that came with them."""

    root: Any
    result: Any = None
    meta: Any = None
    error: Any = None
    #: What a workflow was called with, or a step that can be undone.
    input: Any = None
    arrivals: Sequence[Artifact] = ()
    #: Do parts of the state stand in other places than in the version before (see `moves`)?
    moved: bool = False


def draw_up(
    space: object,
    head: Head | None,
    run: RunRecord,
    parts: Parts,
    facts: Facts,
    *,
    now: int,
    events: Sequence[EventRecord] = (),
    timeline: int | None = None,
) -> tuple[Append, Writer]:
    """A version on top of a head, or as the first of a run that is to be made. `run` is the run's record but for what
    the version itself changes in it; the version stands on the newest timeline, or on the one that is named."""
    parent = None if head is None else head.version
    number = run.last + 1
    writer = Writer(space, number)
    for arrival in parts.arrivals:
        writer.upload(Upload(bytes.fromhex(arrival.digest), arrival.size, arrival.pieces))
    values = [parts.root, parts.result, parts.meta, parts.error, parts.input]
    while len(values) > 1 and values[-1] is None:
        values.pop()
    pack = writer.finish([writer.root(value) for value in values])
    size = pack.size
    status = facts.status or (parent.status if parent is not None else run.status)
    version = VersionRecord(
        number=number,
        parent=0 if parent is None else parent.number,
        timeline=run.timeline if timeline is None else timeline,
        kind=facts.kind or _kind(parent, facts.step),
        status=status,
        at=now,
        steps=(parent.steps if parent is not None else 0) + (facts.step is not None and facts.done),
        step=facts.step,
        detail=facts.detail(number if parts.moved else _last_move(parent)),
        prev=NO_PARENT if parent is None else parent.hash[:8],
        pack_hash=digest(pack.data),
        hash=b"",
        size=size,
        pack=pack.data,
    )
    after = msgspec.structs.replace(
        run,
        status=status,
        updated=now,
        head=number,
        last=number,
        revision=run.revision + 1,
        step=facts.step if facts.step is not None else run.step,
        size=run.size + size,
        kept=run.kept + 1,
    )
    change = Append(
        expect=None if head is None else head.run,
        run=after,
        version=seal(run.id, version),
        blocks=pack.blocks,
        tags=tuple(facts.tags),
        events=events,
        uploads=pack.uploads,
        holds=sorted(pack.holds) if pack.holds else (),
    )
    return change, writer


def event(kind: str, now: int, **data: Any) -> EventRecord:
    """An entry for a run's journal."""
    return EventRecord(
        kind=kind, at=now, data=encode({key: value for key, value in data.items() if value is not None})
    )


def _last_move(parent: VersionRecord | None) -> int | None:
    """The newest version up to this one that moved parts of the state, if any did."""
    if parent is None or b"moved" not in parent.detail:
        return None
    known: int | None = decode(parent.detail).get("moved")
    return known


def _kind(parent: VersionRecord | None, step: str | None) -> str:
    if step is not None:
        return "step"
    return "initial" if parent is None else "manual"
