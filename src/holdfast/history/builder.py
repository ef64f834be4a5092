"""Build versions: metadata, pack, record.

Nothing is written here: `build_version` returns the store's `Append` for a state on top of a head, and the writer that
gives the new nodes their places once the store has committed them.

Invariant: version numbers of a run are 1, 2, 3, … without gaps; each version follows the version that it was built on,
and the store refuses it if the run has changed since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from holdfast.errors import HoldfastError, InvalidCall
from holdfast.history.hashes import NO_PARENT, seal
from holdfast.history.journal import STORED_QUESTION_ID, NewEvent, check_events
from holdfast.history.reader import Head
from holdfast.history.state_keys import LOOK_BACK, recorded_keys
from holdfast.model.checks import check_text
from holdfast.model.names import MAX_NOTE, MAX_STEP, check_tags, check_version_key, short
from holdfast.model.records import KINDS, STATUSES, EventRecord, QuestionRecord, RunRecord, VersionRecord
from holdfast.model.run_detail import detail_of, indexed_meta, question_rows
from holdfast.store.protocol import Append
from holdfast.tree.artifact import Artifact
from holdfast.tree.block import digest
from holdfast.tree.codec import decode, encode
from holdfast.tree.pack import Upload, Writer

#: The roots of a pack, in this order; roots at the end that are None are left out.
STATE, RESULT, ANNOTATIONS, ERROR, INPUT, VIEW = range(6)


class VersionMetadata(msgspec.Struct):
    """Everything that a version records except its state."""

    step: str | None = None
    result: Any = None
    tags: Iterable[str] = ()
    note: str | None = None
    actor: str | None = None
    annotations: Any = None
    error: Any = None
    kind: str | None = None
    status: str | None = None
    #: Further fields that a list of versions shows: address, attempt, duration, …
    more: dict[str, Any] = {}
    #: Whether the step was completed.
    done: bool = True
    #: Journal entries of the application, committed with the version.
    events: Iterable[NewEvent] = ()
    #: The name that another system gives to the version.
    key: str | None = None
    #: Journal entries of Holdfast, and the open questions of the run after the commit; None if they stay as they are.
    entries: Sequence[EventRecord] = ()
    questions: Sequence[QuestionRecord] | None = None
    #: A version that is not pruned while this one is the head; 0 for none.
    needs: int = 0

    def check(self) -> VersionMetadata:
        """Return itself; `InvalidCall` for values that cannot be stored."""
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
            self.events = check_events(self.events)
        if self.key is not None:
            self.key = check_version_key(self.key)
        return self

    def detail(self, moved: int, keys: list[Any] | None = None) -> bytes:
        """Return the encoded fields that a list of versions shows; `moved` is the version that last moved nodes of the
        state, 0 if none did; `keys` are those of the state, if the version records them."""
        detail = dict(self.more)
        if keys is not None:
            detail["keys"] = keys
        if moved:
            detail["moved"] = moved
        if self.needs:
            detail["needs"] = self.needs
        if self.note is not None:
            detail["note"] = self.note
        if self.actor is not None:
            detail["actor"] = self.actor
        return encode(detail) if detail else b""


class VersionTrees(msgspec.Struct):
    """The frozen trees of a new version, and their new artifacts."""

    root: Any
    result: Any = None
    annotations: Any = None
    error: Any = None
    #: The arguments of a workflow or a step (see `arguments_by_name`).
    input: Any = None
    #: The state as the branch that made the version sees it, if it differs from the version's.
    view: Any = None
    arrivals: Sequence[Artifact] = ()
    #: The newest version, this one included, that moved nodes of the state (see `blame`); 0 if none did.
    moved: int = 0


def build_version(
    space: object,
    head: Head | None,
    run: RunRecord,
    trees: VersionTrees,
    metadata: VersionMetadata,
    *,
    now: int,
    events: Sequence[EventRecord] = (),
    timeline: int | None = None,
    leased: bool = False,
) -> tuple[Append, Writer]:
    """Build a version on top of a head, or the first version of a new run.

    `run` is the run's record before the version. The version is on the newest timeline, unless one is given. `leased`
    says that the owner of the run's lease commits it.
    """
    parent = None if head is None else head.version
    number = run.last + 1
    writer = Writer(space, number)
    for arrival in trees.arrivals:
        writer.upload(Upload(bytes.fromhex(arrival.digest), arrival.size, arrival.pieces))
    values = [trees.root, trees.result, trees.annotations, trees.error, trees.input, trees.view]
    while len(values) > 1 and values[-1] is None:
        values.pop()
    pack = writer.finish([None if value is None else writer.root(value) for value in values])
    # The status of the run, not of the parent: a run that was stopped after its last version stays stopped.
    status = metadata.status or run.status
    kind = metadata.kind
    if kind is None:
        kind = "step" if metadata.step is not None else "initial" if parent is None else "manual"
    # Inline: a step that leaves the state as it was makes no further call.
    is_same = (
        head is not None
        and trees.root is head.root
        and number % LOOK_BACK
        and head.version.number == number - 1
    )
    keys = None if is_same else recorded_keys(trees.root, head, number)
    version = VersionRecord(
        number=number,
        parent=0 if parent is None else parent.number,
        timeline=run.timeline if timeline is None else timeline,
        kind=kind,
        status=status,
        at=now,
        steps=(parent.steps if parent is not None else 0) + (metadata.step is not None and metadata.done),
        step=metadata.step,
        detail=metadata.detail(trees.moved, keys),
        key=metadata.key,
        prev=NO_PARENT if parent is None else parent.hash[:8],
        pack_hash=digest(pack.data),
        hash=b"",
        size=pack.size,
        pack=pack.data,
    )
    after = msgspec.structs.replace(
        run,
        status=status,
        updated=now,
        head=number,
        last=number,
        revision=run.revision + 1,
        step=metadata.step if metadata.step is not None else run.step,
        size=run.size + pack.size,
        kept=run.kept + 1,
    )
    change = Append(
        expect=None if head is None else head.run,
        run=after,
        version=seal(run.id, version),
        blocks=pack.blocks,
        tags=tuple(metadata.tags),
        events=events,
        uploads=pack.uploads,
        holds=sorted(pack.holds) if pack.holds else (),
        leased=leased,
        questions=metadata.questions,
        meta=indexed_meta(run) or None if head is None and run.detail else None,
    )
    return change, writer


def with_questions(change: Append, *, reindex: bool = False) -> Append:
    """Return a change that also keeps the index of open questions, according to the run's record before and after;
    `reindex` if the index may lack questions of the record before."""
    after = question_rows(change.run, detail_of(change.run))
    if not reindex and after == _questions_before(change.expect):
        return change
    return msgspec.structs.replace(change, questions=after)


def _questions_before(run: RunRecord | None) -> tuple[QuestionRecord, ...] | None:
    try:
        return () if run is None else question_rows(run, detail_of(run))
    except HoldfastError:
        return None


def build_event(kind: str, now: int, **data: Any) -> EventRecord:
    """Return an entry for a run's journal; data that is None is left out."""
    if "question_id" in data:
        data = {STORED_QUESTION_ID: data.pop("question_id"), **data}
    return EventRecord(
        kind=kind, at=now, data=encode({key: value for key, value in data.items() if value is not None})
    )


def last_move(head: Head) -> int:
    """Return the newest version up to a head that moved nodes of the state; 0 if none did."""
    if head.moved is not None:
        return head.moved
    detail = head.version.detail
    known: int = decode(detail).get("moved", 0) if detail else 0
    return known
