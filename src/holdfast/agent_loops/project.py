"""The state of one project, in a run where a snapshot is a version of the step `snapshot`.

Versions between snapshots are states that were set. Each records the number of the snapshot before it, so
that the last good one is found without a search, even if the versions between were pruned. After a restore,
snapshots of the abandoned timeline are still listed, but none of them is the last one.

A restore that executes a task marks its timeline with the number of the task.

Invariant: a state derived from a version before a restore is refused, never written over the restored state.
A task starts one timeline, however many processes execute it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from holdfast.agent_loops.control import ControlLog
from holdfast.agent_loops.names import check_project, heartbeat_run, id_in, name_of, state_run, unquoted
from holdfast.agent_loops.replies import PAGE, Reply, difference, packed, stamp, unpacked
from holdfast.errors import BadData, InvalidReference, MergeConflict, NotFound, StaleVersion
from holdfast.execution.engine_context import EngineContext
from holdfast.history.builder import VersionMetadata
from holdfast.history.committer import Resolver
from holdfast.history.history import History
from holdfast.history.redaction import redacting_by_default
from holdfast.history.version import Version, segments_of
from holdfast.model.public import Pruned, Timeline
from holdfast.model.retention import Retention
from holdfast.tree.fold import Folder
from holdfast.tree.merge import merge

#: The steps of versions.
_SNAPSHOT = "snapshot"
_RESTORE = "restore"
#: Kinds of timelines.
_RESTORED = "restored"
_REINITIALIZED = "reinitialized"
_MARK = re.compile(rf" \((?P<kind>{_RESTORED}|{_REINITIALIZED}) #\d+\)$")

#: Maximum number of recorded paths of replaced values.
_MAX_REPLACED = 100


class Base(NamedTuple):
    """Origin of a state that a caller sets."""

    #: 0 for nothing.
    version: int
    #: The hash of the version: a project that was deleted and created again has others. None if it is not known.
    hash: str | None = None
    #: The state that the caller set last, if it was merged with changes of others, which the caller has not read.
    own: Any = None

    def is_head(self, head: Version | None) -> bool:
        """Return whether the state was derived from the head, and from nothing else."""
        number = 0 if head is None else head.number
        is_same = head is None or self.hash in (None, head.hash)
        return self.own is None and self.version == number and is_same


class StateMetadata(NamedTuple):
    """Metadata of a version of a project's state."""

    snapshot: bool = False
    note: str | None = None
    actor: str | None = None
    tags: tuple[str, ...] = ()
    kind: str | None = None
    #: Paths of values that had to be replaced in the state.
    replaced: Sequence[str] = ()


class NoSnapshot(NotFound):
    """The project has no snapshot to restore."""


class Project:
    """The state of one project, and its control record."""

    def __init__(self, engine: EngineContext, project_id: Any, name: str | None = None) -> None:
        self.id = check_project(project_id)
        self._engine = engine
        self.name = name or name_of(self.id)
        self.log = engine.history(state_run(self.name))
        self.control = ControlLog(engine, self.name, self.id)

    @classmethod
    def named(cls, engine: EngineContext, name: str) -> Project:
        """Return the project with a name. If the name is shortened, its control record or its state has the id; if
        neither can be read, it is the name."""
        project_id = id_in(name)
        if project_id is None:
            with suppress(BadData):
                control = ControlLog(engine, name, name)
                project_id = unquoted(control.read().project) if control.exists else None
        if project_id is None:
            with suppress(NotFound, BadData):
                project_id = _recorded_project(engine.history(state_run(name)))
        return cls(engine, project_id or name, name)

    @property
    def runs(self) -> tuple[str, ...]:
        """The ids of its runs in the order in which they are deleted. The control record comes after the others, so
        that a deletion that was interrupted can be repeated, and then again the heartbeats, which an agent may have
        written meanwhile."""
        beats = heartbeat_run(self.name)
        return self.log.id, beats, self.control.id, beats

    def now(self) -> int:
        """Return the time of the store, in microseconds."""
        return self.log.context.clock()

    def head(self) -> Version | None:
        """Return the newest version; None if the project has no state."""
        try:
            return self.log.head
        except NotFound:
            return None

    def check_exists(self) -> None:
        """Raise `NotFound` for a project without a state that was never configured and has no agents."""
        if all(self._engine.store.run(run_id) is None for run_id in (self.log.id, self.control.id)):
            raise self._unknown()

    def existing_head(self) -> Version:
        """Return the newest version, or raise `NotFound`."""
        head = self.head()
        if head is None:
            raise self._unknown()
        return head

    def write(
        self,
        make: Callable[[Version | None], Any],
        metadata: StateMetadata,
        *,
        base: Base | None = None,
        expected: int | None = None,
        resolve: Resolver | None = None,
    ) -> Version:
        """Commit a storable state as the next version.

        `make` returns the state for a head. A state derived from an older version `base` is merged, unless the project
        was restored or deleted since; with `expected`, the head must be that version.
        """
        while True:
            head = self.head()
            number = 0 if head is None else head.number
            if expected is not None and expected != number:
                raise self._stale(f"is at version {number}, not {expected}")
            state = make(head)
            if base is not None and not base.is_head(head):
                state = self._merged(base, state, head, resolve)
            before = self._snapshot_before(head)
            facts = {
                "snapshot": before,
                "replaced": list(metadata.replaced[:_MAX_REPLACED]),
                **({"project": self.id} if id_in(self.name) is None else {}),
            }
            with suppress(StaleVersion), redacting_by_default():
                made = VersionMetadata(
                    step=_SNAPSHOT if metadata.snapshot else None,
                    note=metadata.note,
                    actor=metadata.actor,
                    tags=metadata.tags,
                    kind=metadata.kind,
                    annotations=packed(facts),
                    needs=0 if metadata.snapshot else before,
                )
                return self.log.commit_record(state, made, expected=head or 0)

    def restore(
        self, target: int | str | None, reason: str, actor: str | None, *, keep_unknown: bool, task: int = 0
    ) -> Reply:
        """Restore a snapshot, by default the last good one, on a new timeline; raise `NoSnapshot` if there is none.
        Do nothing if the task with the number `task` was executed or dropped before."""
        while True:
            if (done := self._settled(task, _RESTORED)) is not None:
                return done
            head = self.head()
            skipped: list[int] = []
            snapshot = self.last_good(head, skipped) if target is None else self.log.at(target)
            if head is None or snapshot is None:
                raise NoSnapshot(f"project {self.id!r} cannot be restored: no snapshot of it was saved")
            now = _readable_state(head)
            then = snapshot.state
            kept = []
            if keep_unknown and isinstance(now, dict) and isinstance(then, dict):
                kept = [key for key in now if key not in then]
            state = {**then, **{key: now[key] for key in kept}} if kept else then
            try:
                made = self.start_timeline(
                    snapshot, state, _RESTORE, f"{reason} {_mark(_RESTORED, task)}", actor, head=head
                )
            except StaleVersion:
                continue
            return {
                "status": _RESTORED,
                "project_id": self.id,
                "loop": loop_in(made),
                "version": snapshot.number,
                "head": made.number,
                "timestamp": stamp(snapshot.at),
                "agents_completed": completed_agents(made),
                "kept": kept,
                "skipped": skipped,
                **self.difference(head, made),
            }

    def reinitialize(self, keys: list[str], reason: str, actor: str | None, *, task: int) -> Reply:
        """Start a new timeline with a snapshot of only some keys of the state. Do nothing if the task with
        the number `task` was executed or dropped before."""
        while True:
            if (done := self._settled(task, _REINITIALIZED)) is not None:
                return done
            with suppress(StaleVersion):
                # A project without a state gets one first: each reinitialization starts a timeline.
                head = self.head() or self.write(lambda _: {}, StateMetadata(), expected=0)
                now = head.state if keys else None
                state = kept_parts(now, [found for key in keys if (found := part_of(now, key))])
                # A timeline starts at a readable version; nothing of it is in the state.
                at = head if _readable_state(head) is not None else self.last_good(head, []) or head
                made = self.start_timeline(
                    at, state, _SNAPSHOT, f"{reason} {_mark(_REINITIALIZED, task)}", actor, head=head
                )
                return {
                    **self.reply(_REINITIALIZED, made),
                    "carried": list(made.state),
                    **self.difference(head, made),
                }

    def start_timeline(
        self, at: Version, state: Any, step: str, reason: str, actor: str | None, *, head: Version
    ) -> Version:
        """Start a new timeline with a state; raise `StaleVersion` if `head` is not the head."""
        return self.log.rollback(to=at, state=state, step=step, reason=reason, actor=actor, expected=head)

    def last_good(self, head: Version | None, skipped: list[int]) -> Version | None:
        """Return the last readable snapshot at or before a version; append unreadable ones to `skipped`."""
        found = None if head is None else self.last_snapshot(head)
        while found is not None and _readable_state(found) is None:
            skipped.append(found.number)
            found = self._snapshot_below(found.timeline, found.number)
        return found

    def last_snapshot(self, head: Version) -> Version | None:
        """Return the last snapshot at or before a version, whether it can be read or not. No state is read."""
        for version in self.log.ancestors(head):
            if version.step == _SNAPSHOT:
                return version
            if version.step == _RESTORE:
                try:
                    return self.log.at(version.parent or version)
                except NotFound:
                    # The restored snapshot was pruned; the restore made an equal state.
                    return version
            before = _recorded_snapshot(version)
            if before is not None:
                try:
                    return self.log.at(before) if before else None
                except NotFound:
                    return self._snapshot_below(version.timeline, before)
        return None

    def snapshots(self) -> Iterator[Version]:
        """Yield all snapshots, newest first."""
        with suppress(NotFound):
            yield from self.log.iter_versions(step=_SNAPSHOT)

    def due_for_snapshot(self) -> Version | None:
        """Return the head, if a scheduled snapshot of it is due. No state is read: checkers ask every few seconds."""
        every = self.control.read().config.every
        head = None if every is None else self.head()
        last = None if head is None else self.last_snapshot(head)
        if head is None or every is None or last is None:
            return head
        at = int(last.at.timestamp() * 1_000_000)
        is_due = last.number != head.number and at + int(every * 1_000_000) <= self.now()
        return head if is_due else None

    def prune(self, policy: Retention) -> Pruned:
        """Remove snapshots that a policy does not keep, and the states between them. Always keep the last
        good snapshot."""
        policy = msgspec.structs.replace(policy, step=_SNAPSHOT)
        while True:
            last = self.last_good(self.existing_head(), [])
            newest = next(self.snapshots(), None)
            if last is None or (policy.last and newest is not None and newest.number == last.number):
                return self.log.prune(policy)
            found = self.log.prune(policy, dry_run=True).versions
            # Another process may prune at the same time.
            with suppress(NotFound):
                return self.log.drop([number for number in found if number != last.number])

    def difference(self, a: Version, b: Version, *, limit: int = PAGE, after: int = 0) -> Reply:
        """Return the changes between two versions; none, with an error text, if one is damaged."""
        try:
            return difference(self.log.diff(a, b).changes, limit=limit, after=after)
        except BadData as error:
            return {**difference([]), "diff_error": str(error)}

    def audit(self, limit: int) -> list[Reply]:
        """Return the newest changes and the newest restores, oldest first: at least `limit` entries, if there are so
        many."""
        entries = self.control.entries(limit)[::-1]
        for line in self._later_timelines()[-limit:]:
            reason, kind = split_reason(line.reason)
            entries.append(
                {
                    "at": stamp(line.at),
                    "action": kind or _RESTORED,
                    "actor": line.actor,
                    "reason": reason,
                    "timeline": line.number,
                    "version": line.parent,
                }
            )
        return sorted(entries, key=lambda entry: str(entry["at"]))

    def reply(self, status: str, version: Version) -> Reply:
        """Return a version in the form of a reply."""
        return {
            "status": status,
            "project_id": self.id,
            "loop": loop_in(version),
            "timestamp": stamp(version.at),
            "version": version.number,
        }

    def _settled(self, task: int, kind: str) -> Reply | None:
        """Return the reply for a task that another process has executed, or that is not wanted any more because a
        person has decided; None if it is to be executed. 0 is not a task."""
        if task == 0:
            return None
        marks = (_mark(_RESTORED, task), _mark(_REINITIALIZED, task))
        for line in self._later_timelines():
            if (line.reason or "").endswith(marks):
                return self._executed(line, kind)
        if any(each.number == task for each in self.control.read().tasks):
            return None
        return {
            "status": "superseded",
            "project_id": self.id,
            "message": f"project {self.id!r} was not changed: it was decided otherwise meanwhile",
        }

    def _executed(self, line: Timeline, status: str) -> Reply:
        """Return the reply for a task that another process has already executed."""
        loop: int | None = 0
        with suppress(NotFound):
            loop = known_loop(self.log.at(line.parent or 1))
        return {
            "status": status,
            "project_id": self.id,
            "loop": loop,
            "version": line.parent,
            "timestamp": stamp(line.at),
            "by_another": True,
            "kept": [],
            "skipped": [],
            **difference([]),
        }

    def _unknown(self) -> NotFound:
        return NotFound(f"there is no project {self.id!r}: set its state first", run=self.log.id)

    def _later_timelines(self) -> list[Timeline]:
        """Return the timelines after the first, oldest first."""
        try:
            return self.log.timelines()[1:]
        except NotFound:
            return []

    def _snapshot_below(self, timeline: int, number: int) -> Version | None:
        """Return the last snapshot before a version, on its timeline or the one that this started from, whether or not
        the versions between were pruned."""
        while True:
            for version in self.log.versions(step=_SNAPSHOT, timeline=timeline, before=number, limit=1):
                return version
            parent = next((line.parent for line in self.log.timelines() if line.number == timeline), None)
            if parent is None:
                return None
            try:
                timeline, number = self.log.at(parent).timeline, parent + 1
            except NotFound:
                return None

    def _snapshot_before(self, head: Version | None) -> int:
        """Return the number of the last snapshot at or before a head; 0 for none."""
        if head is None:
            return 0
        if head.step == _SNAPSHOT:
            return head.number
        recorded = _recorded_snapshot(head)
        if recorded is not None:
            return recorded
        found = self.last_snapshot(head)
        return 0 if found is None else found.number

    def _merged(self, base: Base, state: Any, head: Version | None, resolve: Resolver | None) -> Any:
        """Return a state derived from an older version, merged with the changes made since."""
        before: Any = {}
        if base.version:
            try:
                version = self.log.at(base.version)
                before = version.state if base.own is None else base.own
            except NotFound:
                if head is None:
                    raise self._stale(
                        f"does not exist, and this state was made from version {base.version}"
                    ) from None
                raise self._stale(f"has no version {base.version} any more") from None
            if base.hash not in (None, version.hash):
                raise self._stale(f"was deleted since version {base.version} was read")
            if any(line.number > version.timeline for line in self._later_timelines()):
                raise self._stale(f"was restored since version {base.version}")
        folder = Folder(None)
        was = folder.fold(before)
        now = folder.fold({} if head is None else head.state, was)
        try:
            return merge(was, folder.fold(state, was), now, resolve=resolve, fold=folder.fold)
        except MergeConflict as error:
            places = [place or "the whole state" for place in error.details["paths"]]
            shown = ", ".join(places[:5]) + (f" and {len(places) - 5} more" if len(places) > 5 else "")
            raise MergeConflict(
                f"project {self.id!r} was changed by others where this state changes it: {shown}; read its state, then "
                "make the change again",
                **error.details,
            ) from None

    def _stale(self, what: str) -> StaleVersion:
        return StaleVersion(f"project {self.id!r} {what}: read its state, then try again", run=self.log.id)


def _mark(kind: str, task: int) -> str:
    """Return the mark of a timeline that a task has started; that of a restore by hand has the number 0."""
    return f"({kind} #{task})"


def loop_in(version: Version) -> int:
    """Return the loop number in a version's state: its `loop_count`, or 0 if that is not a number."""
    try:
        count = version.get(["loop_count"])
    except NotFound:
        return 0
    return count if type(count) is int else 0


def known_loop(version: Version | None) -> int | None:
    """Return the loop number of a version; 0 without one, None if its state cannot be read."""
    try:
        return 0 if version is None else loop_in(version)
    except BadData:
        return None


def part_of(state: Any, key: str) -> tuple[Any, ...] | None:
    """Return the place of a part of a memory: that of a key of the state, or of a path of keys; None if there is no
    such part, or if it is an item of a list, which cannot be kept without the others."""
    if not isinstance(state, Mapping):
        return None
    if key in state:
        return (key,)
    try:
        segments = tuple(segments_of(key))
    except InvalidReference:
        return None
    at: Any = state
    for segment in segments:
        if not isinstance(at, Mapping) or segment not in at:
            return None
        at = at[segment]
    return segments or None


def kept_parts(state: Any, places: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    """Return a new state that has only these parts of another."""
    kept: dict[str, Any] = {}
    for place in sorted(places, key=len):
        source, target = state, kept
        for segment in place[:-1]:
            source, inner = source[segment], target.setdefault(segment, {})
            if not isinstance(inner, dict) or inner is source:
                break  # kept with a part around it
            target = inner
        else:
            target[place[-1]] = source[place[-1]]
    return kept


def replaced_in(version: Version) -> list[str]:
    """Return the paths of the values that had to be replaced in a version's state."""
    found = _annotation(version, "replaced")
    return found if isinstance(found, list) else []


def snapshot_entry(version: Version) -> Reply:
    """Return a snapshot in the form of a list entry, marked if it is damaged."""
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
        found = {"loop": loop_in(version), "agents_completed": completed_agents(version)}
        return {**found, **facts, "replaced": replaced_in(version)}
    except BadData as error:
        return {"loop": None, "agents_completed": [], **facts, "replaced": [], "damaged": str(error)}


def completed_agents(version: Version) -> list[Any]:
    """Return the list `completed_steps` of a state, or nothing."""
    try:
        found = version.get(["completed_steps"])
    except NotFound:
        return []
    return list(found) if isinstance(found, list) else []


def _recorded_snapshot(version: Version) -> int | None:
    """Return the number of the snapshot before a version, as the version records it."""
    number = _annotation(version, "snapshot")
    return number if type(number) is int else None


def _recorded_project(log: History) -> str | None:
    """Return the project id that the state of a project with a shortened name has. Versions that start a timeline do
    not have it, nor do those that a program commits itself."""
    recorded = (_annotation(version, "project") for version in log.ancestors(log.head))
    return next((found for found in recorded if isinstance(found, str)), None)


def _annotation(version: Version, name: str) -> Any:
    """Return an annotation of a version; None if it has none, or is damaged."""
    try:
        return unpacked(version.annotations).get(name)
    except BadData:
        return None


def split_reason(reason: str | None) -> tuple[str | None, str | None]:
    """Split the reason of a timeline into its text and the kind of timeline, which a mark at the end of it stores."""
    found = _MARK.search(reason or "")
    return (reason, None) if found is None or reason is None else (reason[: found.start()], found["kind"])


def _readable_state(version: Version) -> Any:
    """Return the state of a version; None if it is damaged."""
    try:
        return version.state
    except BadData:
        return None
