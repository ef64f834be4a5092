"""The state of one project: a run in which a snapshot is a version of the step `snapshot`.

Versions between snapshots are states that were set. Each carries the number of the snapshot before it, so that the
last good one is found without a search, even where those between were pruned. After a restore, snapshots of the
timeline that was left are still listed, but are not the last one any more.

Invariant: a state that was made before a restore is never written over what was restored: it is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from holdfast.engine import Holdfast
from holdfast.errors import BadData, InvalidCall, NotFound, StaleVersion
from holdfast.history.advance import Resolver
from holdfast.history.redaction import redacting_by_default
from holdfast.history.version import Version
from holdfast.loops import names
from holdfast.loops.replies import Reply, difference, packed, stamp, unpacked
from holdfast.model.public import Timeline
from holdfast.model.retention import Retention
from holdfast.tree.fold import Folder
from holdfast.tree.merge import merge
from holdfast.tree.sanitize import sanitize

#: The steps of versions.
SNAPSHOT = "snapshot"
RESTORE = "restore"
#: What timelines are said to be.
RESTORED = "restored"
REINITIALIZED = "reinitialized"
_MARK = re.compile(rf" \((?P<what>{RESTORED}|{REINITIALIZED}) #\d+\)$")

#: Paths that are kept of what had to be replaced in a state.
_REPLACED = 100
_PAGE = 500


class Facts(NamedTuple):
    """What is said of a version."""

    snapshot: bool = False
    note: str | None = None
    actor: str | None = None
    tags: tuple[str, ...] = ()
    kind: str | None = None
    #: Paths of what had to be replaced in the state.
    replaced: Sequence[str] = ()


class Restored(NamedTuple):
    """What a restore did."""

    #: The snapshot, and the version that the new timeline begins with.
    snapshot: Version
    made: Version
    #: Keys that the snapshot did not know.
    kept: list[Any]
    #: Snapshots that are damaged.
    skipped: list[int]
    diff: Reply


class Project:
    """One project's state."""

    def __init__(self, hf: Holdfast, project_id: Any) -> None:
        self.id = names.check_project(project_id)
        self.name = names.name_of(self.id)
        self.log = hf.history(names.state_run(self.name))

    def head(self) -> Version | None:
        """The newest version; None if the project has no state."""
        try:
            return self.log.head
        except NotFound:
            return None

    def known(self) -> Version:
        """The newest version, or `NotFound`."""
        head = self.head()
        if head is None:
            raise NotFound(f"there is no project {self.id!r}: set its state first", run=self.log.id)
        return head

    def write(
        self,
        make: Callable[[Version | None], Any],
        facts: Facts,
        *,
        base: int | None = None,
        expected: int | None = None,
        resolve: Resolver | None = None,
    ) -> Version:
        """Make a state, which can be stored, the next version.

        `make` gives the state for a head. What was made from an older version `base` (0: from nothing) is merged,
        unless the project was restored since; with `expected`, the head must be that version.
        """
        while True:
            head = self.head()
            number = 0 if head is None else head.number
            if expected is not None and expected != number:
                raise self._stale(f"is at version {number}, not {expected}")
            state = make(head)
            if base is not None and head is not None and base != number:
                state = self._carried(base, state, head, resolve)
            try:
                with redacting_by_default():
                    made = self.log.commit(
                        state,
                        step=SNAPSHOT if facts.snapshot else None,
                        note=facts.note,
                        actor=facts.actor,
                        tags=facts.tags,
                        kind=facts.kind,
                        meta=packed(
                            {"snapshot": self._before(head), "replaced": list(facts.replaced[:_REPLACED])}
                        ),
                        expected=number,
                    )
            except StaleVersion:
                continue
            return made

    def restore(
        self,
        target: int | str | None,
        reason: str,
        actor: str | None,
        *,
        keep_unknown: bool,
        number: int,
    ) -> Restored | Timeline | None:
        """Go back to a snapshot, on a new timeline; the last good one if none is named. `number` marks the timeline: if
        there is one of that number, nothing is done and it is given back. None if there is no snapshot."""
        while True:
            head = self.head()
            if head is None:
                return None
            if (done := self.marked(number)) is not None:
                return done
            skipped: list[int] = []
            snapshot = self.last_good(head, skipped) if target is None else self.log.at(target)
            if snapshot is None:
                return None
            now = _state(head)
            then = snapshot.state
            kept = []
            if keep_unknown and isinstance(now, dict) and isinstance(then, dict):
                kept = [key for key in now if key not in then]
            state = {**then, **{key: now[key] for key in kept}} if kept else then
            try:
                made = self.begin_anew(snapshot, state, RESTORE, reason, actor, number=number, head=head)
            except StaleVersion:
                continue
            return Restored(snapshot, made, kept, skipped, self.difference(head, made))

    def begin_anew(
        self,
        at: Version,
        state: Any,
        step: str,
        reason: str,
        actor: str | None,
        *,
        number: int,
        head: Version,
    ) -> Version:
        """A new timeline that begins with a state; `StaleVersion` if the head is another."""
        return self.log.rollback(
            to=at,
            state=state,
            step=step,
            reason=f"{reason} {_mark(step, number)}",
            actor=actor,
            expected=head.number,
        )

    def marked(self, number: int) -> Timeline | None:
        """The timeline that was marked with a number; None if there is none. 0 marks nothing."""
        if number == 0:
            return None
        return next((line for line in self.lines() if (line.reason or "").endswith(f"#{number})")), None)

    def lines(self) -> list[Timeline]:
        """The timelines after the first, oldest first."""
        try:
            return self.log.timelines()[1:]
        except NotFound:
            return []

    def last_good(self, head: Version, skipped: list[int]) -> Version | None:
        """The last snapshot before a version, or that version itself, that can be read; notes those that cannot."""
        at: Version | None = head
        while at is not None and (found := self._last(at)) is not None:
            if _state(found) is not None:
                return found
            skipped.append(found.number)
            at = next((each for each in self.log.ancestors(found) if each.number != found.number), None)
        return None

    def snapshots(self, *, before: int | None = None) -> Iterator[Version]:
        """All snapshots, newest first."""
        while True:
            try:
                page = self.log.versions(step=SNAPSHOT, before=before, limit=_PAGE)
            except NotFound:
                return
            if not page:
                return
            yield from page
            before = page[-1].number

    def prune(self, policy: Retention) -> Reply:
        """Remove snapshots that a policy does not keep, and the states between them. The last good snapshot stays,
        whatever the policy says."""
        policy = msgspec.structs.replace(policy, step=SNAPSHOT)
        last = self.last_good(self.known(), [])
        newest = next(self.snapshots(), None)
        kept = last is None or last.pinned or (last.number == getattr(newest, "number", 0) and policy.last)
        if kept or last is None:
            pruned = self.log.prune(policy)
        else:
            self.log.pin(last)
            try:
                pruned = self.log.prune(policy)
            finally:
                self.log.unpin(last)
        return {"pruned": list(pruned.versions), "kept": list(pruned.kept), "bytes": pruned.bytes}

    def difference(self, a: Version, b: Version) -> Reply:
        """What changed between two versions; nothing is said where one is damaged."""
        try:
            return difference(self.log.diff(a, b).changes)
        except BadData as error:
            return {"diff": [], "diff_count": 0, "diff_error": str(error)}

    def _last(self, head: Version) -> Version | None:
        for version in self.log.ancestors(head):
            if version.step == SNAPSHOT:
                return version
            if version.step == RESTORE:
                return self._restored_from(version)
            before = self._noted(version)
            if before is not None:
                try:
                    return self.log.at(before) if before else None
                except NotFound:
                    return None
        return None

    def _restored_from(self, version: Version) -> Version:
        """The snapshot that a restore went back to; where that was pruned, what the restore made of it."""
        try:
            return self.log.at(version.parent or version)
        except NotFound:
            return version

    def _before(self, head: Version | None) -> int:
        """The number of the last snapshot up to a head; 0 for none."""
        if head is None:
            return 0
        if head.step == SNAPSHOT:
            return head.number
        noted = self._noted(head)
        if noted is not None:
            return noted
        found = self._last(head)
        return 0 if found is None else found.number

    def _noted(self, version: Version) -> int | None:
        try:
            number = unpacked(version.meta).get("snapshot")
        except BadData:
            return None
        return number if type(number) is int else None

    def _carried(self, base: int, state: Any, head: Version, resolve: Resolver | None) -> Any:
        """A state that was made from an older version, with what others have changed since."""
        before: Any = {}
        if base:
            try:
                version = self.log.at(base)
                before = version.state
            except NotFound:
                raise self._stale(f"has no version {base} any more") from None
            if any(line.number > version.timeline for line in self.lines()):
                raise self._stale(f"was restored since version {base}")
        folder = Folder(None)
        was = folder.fold(before)
        return merge(
            was, folder.fold(state, was), folder.fold(head.state, was), resolve=resolve, fold=folder.fold
        )

    def _stale(self, what: str) -> StaleVersion:
        return StaleVersion(f"project {self.id!r} {what}: read its state, then try again", run=self.log.id)


def storable(state: Any) -> tuple[dict[Any, Any], list[str]]:
    """A state that can be stored, and the paths of what had to be replaced."""
    if not isinstance(state, dict):
        raise InvalidCall(f"a project's state is a dict, not {type(state).__name__}")
    plain, replaced = sanitize(state)
    if not isinstance(plain, dict):
        raise InvalidCall(f"the state cannot be read: {plain}")
    return plain, replaced


def loop_in(version: Version) -> int:
    """The number of the loop that a version's state is in: its `loop_count`, 0 where that is no number."""
    try:
        count = version.get(["loop_count"])
    except NotFound:
        return 0
    return count if type(count) is int else 0


def replaced_in(version: Version | None) -> list[str]:
    """The paths of what had to be replaced in a version's state."""
    try:
        found = [] if version is None else unpacked(version.meta).get("replaced", [])
    except BadData:
        return []
    return found if isinstance(found, list) else []


def snapshot_facts(version: Version) -> Reply:
    """A snapshot as a list shows it. One that is damaged says so."""
    facts: Reply = {
        "version": version.number,
        "timestamp": stamp(version.at),
        "timeline": version.timeline,
        "tags": list(version.tags),
        "pinned": version.pinned,
        "note": split_reason(version.note)[0],
        "actor": version.actor,
        "kind": version.kind,
        "size": version.size,
    }
    try:
        return {"loop": loop_in(version), **facts, "replaced": replaced_in(version)}
    except BadData as error:
        return {"loop": None, **facts, "replaced": [], "damaged": str(error)}


def split_reason(reason: str | None) -> tuple[str | None, str | None]:
    """The reason of a timeline without its mark, and what the mark says that it is."""
    found = _MARK.search(reason or "")
    return (reason, None) if found is None or reason is None else (reason[: found.start()], found["what"])


def _state(version: Version) -> Any:
    """The state of a version; None if it is damaged."""
    try:
        return version.state
    except BadData:
        return None


def _mark(step: str, number: int) -> str:
    return f"({RESTORED if step == RESTORE else REINITIALIZED} #{number})"
