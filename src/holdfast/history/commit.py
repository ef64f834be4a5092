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
STATE, RESULT, META, ERROR, INPUT, VIEW = range(6)


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

    def detail(self, moved: int) -> bytes:
        """Return the encoded facts that a list of versions shows; `moved` is the version that last moved parts of the
        state, 0 if none did."""
        facts = dict(self.more)
        if moved:
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
    #: The arguments of a workflow or a step (see `arguments`).
    input: Any = None
    #: The state as the branch that made the version sees it, if that is not the version's.
    view: Any = None
    arrivals: Sequence[Artifact] = ()
    #: The newest version, this one included, that moved parts of the state (see `moves`); 0 if none did.
    moved: int = 0


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
    leased: bool = False,
) -> tuple[Append, Writer]:
    """A version on top of a head, or as the first of a run that is to be made. `run` is the run's record but for what
    the version itself changes in it; its status stays unless the facts name one. The version stands on the newest
    timeline, or on the one that is named. `leased` says that the owner of the run's lease writes it."""
    parent = None if head is None else head.version
    number = run.last + 1
    writer = Writer(space, number)
    for arrival in parts.arrivals:
        writer.upload(Upload(bytes.fromhex(arrival.digest), arrival.size, arrival.pieces))
    values = [parts.root, parts.result, parts.meta, parts.error, parts.input, parts.view]
    while len(values) > 1 and values[-1] is None:
        values.pop()
    pack = writer.finish([None if value is None else writer.root(value) for value in values])
    size = pack.size
    # The status of the run, not of the version before: a run that was stopped after its last version stays stopped.
    status = facts.status or run.status
    version = VersionRecord(
        number=number,
        parent=0 if parent is None else parent.number,
        timeline=run.timeline if timeline is None else timeline,
        kind=facts.kind or _kind(parent, facts.step),
        status=status,
        at=now,
        steps=(parent.steps if parent is not None else 0) + (facts.step is not None and facts.done),
        step=facts.step,
        detail=facts.detail(parts.moved),
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
        leased=leased,
    )
    return change, writer


def event(kind: str, now: int, **data: Any) -> EventRecord:
    """An entry for a run's journal."""
    return EventRecord(
        kind=kind, at=now, data=encode({key: value for key, value in data.items() if value is not None})
    )


def last_move(head: Head) -> int:
    """Return the newest version up to a head that moved parts of the state; 0 if none did."""
    if head.moved is not None:
        return head.moved
    detail = head.version.detail
    known: int = decode(detail).get("moved", 0) if detail else 0
    return known


def _kind(parent: VersionRecord | None, step: str | None) -> str:
    if step is not None:
        return "step"
    return "initial" if parent is None else "manual"
