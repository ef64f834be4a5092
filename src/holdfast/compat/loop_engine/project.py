"""The state of one project, in a run where a snapshot is a version of the step `snapshot`, and the ids of
its runs.

Versions between snapshots are states that were set. Each records the number of the snapshot before it, so
that the last good one is found without a search, even if the versions between were pruned. After a restore,
snapshots of the abandoned timeline are still listed, but none of them is the last one.

Run ids are `loop/NAME`, `loop/NAME/control`, `loop/NAME/beats`. In NAME, letters and digits of the project id
stay as they are, characters special in a run id are escaped as in `%2F`, and a name that would be too long
ends in a hash.

Invariant: a state derived from a version before a restore is refused, never written over the restored state.
Two project ids never share a run, and a project id maps to the same runs in every process and Python version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import Any, NamedTuple
from unicodedata import ucd_3_2_0
from urllib.parse import unquote_to_bytes

import msgspec

from holdfast.compat.loop_engine.replies import Reply, difference, packed, stamp, unpacked
from holdfast.engine import Holdfast
from holdfast.errors import BadData, InvalidCall, InvalidReference, NotFound, StaleVersion
from holdfast.history.committer import Resolver
from holdfast.history.redaction import redacting_by_default
from holdfast.history.version import Version
from holdfast.model.public import Timeline
from holdfast.model.retention import Retention
from holdfast.tree.fold import Folder
from holdfast.tree.merge import merge
from holdfast.tree.sanitize import sanitize

_PREFIX = "loop/"
_CONTROL = "/control"
_BEATS = "/beats"
#: Maximum characters of a name, such that prefix, name and suffix fit into a run id.
_LONGEST = 180
#: Maximum characters of a project id.
_MOST = 10_000
_KEPT = frozenset("-_.")


def check_project(project_id: Any) -> str:
    """Return a project id, or raise `InvalidReference`."""
    if not isinstance(project_id, str):
        raise InvalidReference(f"a project id is a string, not {type(project_id).__name__}")
    # For a subclass of str, the text itself, regardless of overridden methods.
    text: str = str.__str__(project_id)
    if not text:
        raise InvalidReference("a project id is not empty")
    if len(text) > _MOST:
        raise InvalidReference(f"a project id has at most {_MOST} characters, not {len(text)}")
    return text


def quoted(project_id: str) -> str:
    """Return a project id quoted in characters that are valid in a run id."""
    text = "".join(sign if _is_plain(sign) else _escaped(sign) for sign in project_id)
    return text.replace(".", "%2E") if text in (".", "..") else text


def unquoted(text: str) -> str:
    """Return the project id of a quoted text."""
    return unquote_to_bytes(text.encode()).decode(errors="surrogatepass")


def name_of(project_id: str) -> str:
    """Return the name of a project within the ids of its runs."""
    text = quoted(project_id)
    if len(text) <= _LONGEST:
        return text
    # A quoted text never contains "%-".
    return f"{text[:100]}%-{sha256(text.encode()).hexdigest()[:40]}"


def state_run(name: str) -> str:
    """Return the id of the run with a project's state."""
    return _PREFIX + name


def control_run(name: str) -> str:
    """Return the id of the run with a project's control record."""
    return _PREFIX + name + _CONTROL


def beats_run(name: str) -> str:
    """Return the id of the run with a project's heartbeats."""
    return _PREFIX + name + _BEATS


def name_in(run_id: str) -> str | None:
    """Return the name in the id of a control run; None if it is not a control run."""
    if not run_id.startswith(_PREFIX) or not run_id.endswith(_CONTROL):
        return None
    name = run_id[len(_PREFIX) : -len(_CONTROL)]
    return name if name and "/" not in name else None


def state_name(run_id: str) -> str | None:
    """Return the name in the id of a state run; None if the project id cannot be derived from it."""
    name = run_id.removeprefix(_PREFIX)
    return None if name == run_id or not name or "/" in name or "%-" in name else name


def _is_plain(sign: str) -> bool:
    # Uses an old Unicode database, which is the same in every Python version.
    return sign in _KEPT or ucd_3_2_0.category(sign)[0] in "LN"


def _escaped(sign: str) -> str:
    return "".join(f"%{byte:02X}" for byte in sign.encode(errors="surrogatepass"))


#: The steps of versions.
SNAPSHOT = "snapshot"
RESTORE = "restore"
#: Kinds of timelines.
RESTORED = "restored"
REINITIALIZED = "reinitialized"
_MARK = re.compile(rf" \((?P<what>{RESTORED}|{REINITIALIZED}) #\d+\)$")

#: Maximum number of recorded paths of replaced values.
_REPLACED = 100
_PAGE = 500


class Facts(NamedTuple):
    """Metadata of a version."""

    snapshot: bool = False
    note: str | None = None
    actor: str | None = None
    tags: tuple[str, ...] = ()
    kind: str | None = None
    #: Paths of values that had to be replaced in the state.
    replaced: Sequence[str] = ()


class Restored(NamedTuple):
    """Result of a restore."""

    #: The snapshot, and the first version of the new timeline.
    snapshot: Version
    made: Version
    #: Keys that are not in the snapshot.
    kept: list[Any]
    #: Damaged snapshots.
    skipped: list[int]
    diff: Reply


class Project:
    """The state of one project."""

    def __init__(self, hf: Holdfast, project_id: Any) -> None:
        self.id = check_project(project_id)
        self.name = name_of(self.id)
        self.log = hf.history(state_run(self.name))

    def head(self) -> Version | None:
        """Return the newest version; None if the project has no state."""
        try:
            return self.log.head
        except NotFound:
            return None

    def known(self) -> Version:
        """Return the newest version, or raise `NotFound`."""
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
        """Commit a storable state as the next version.

        `make` returns the state for a head. A state derived from an older version `base` (0: from nothing) is
        merged, unless the project was restored since; with `expected`, the head must be that version.
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
                        annotations=packed(
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
        """Restore a snapshot, by default the last good one, on a new timeline. `number` marks the timeline:
        if one with that number exists, do nothing and return it. Return None if there is no snapshot."""
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
        """Start a new timeline with a state; raise `StaleVersion` if `head` is not the head."""
        return self.log.rollback(
            to=at,
            state=state,
            step=step,
            reason=f"{reason} {_mark(step, number)}",
            actor=actor,
            expected=head.number,
        )

    def marked(self, number: int) -> Timeline | None:
        """Return the timeline that is marked with a number; None if there is none. 0 is not a mark."""
        if number == 0:
            return None
        return next((line for line in self.lines() if (line.reason or "").endswith(f"#{number})")), None)

    def lines(self) -> list[Timeline]:
        """Return the timelines after the first, oldest first."""
        try:
            return self.log.timelines()[1:]
        except NotFound:
            return []

    def last_good(self, head: Version, skipped: list[int]) -> Version | None:
        """Return the last readable snapshot at or before a version; append unreadable ones to `skipped`."""
        at: Version | None = head
        while at is not None and (found := self._last(at)) is not None:
            if _state(found) is not None:
                return found
            skipped.append(found.number)
            at = next((each for each in self.log.ancestors(found) if each.number != found.number), None)
        return None

    def snapshots(self, *, before: int | None = None) -> Iterator[Version]:
        """Yield all snapshots, newest first."""
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
        """Remove snapshots that a policy does not keep, and the states between them. Always keep the last
        good snapshot."""
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
        """Return the changes between two versions; none, with an error text, if one is damaged."""
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
        """Return the snapshot that a restore used; if it was pruned, the version that the restore made."""
        try:
            return self.log.at(version.parent or version)
        except NotFound:
            return version

    def _before(self, head: Version | None) -> int:
        """Return the number of the last snapshot at or before a head; 0 for none."""
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
            number = unpacked(version.annotations).get("snapshot")
        except BadData:
            return None
        return number if type(number) is int else None

    def _carried(self, base: int, state: Any, head: Version, resolve: Resolver | None) -> Any:
        """Return a state derived from an older version, merged with the changes made since."""
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
    """Return a storable copy of a state, and the paths of the values that had to be replaced."""
    if not isinstance(state, dict):
        raise InvalidCall(f"a project's state is a dict, not {type(state).__name__}")
    plain, replaced = sanitize(state)
    if not isinstance(plain, dict):
        raise InvalidCall(f"the state cannot be read: {plain}")
    return plain, replaced


def loop_in(version: Version) -> int:
    """Return the loop number in a version's state: its `loop_count`, or 0 if that is not a number."""
    try:
        count = version.get(["loop_count"])
    except NotFound:
        return 0
    return count if type(count) is int else 0


def replaced_in(version: Version | None) -> list[str]:
    """Return the paths of the values that had to be replaced in a version's state."""
    try:
        found = [] if version is None else unpacked(version.annotations).get("replaced", [])
    except BadData:
        return []
    return found if isinstance(found, list) else []


def snapshot_facts(version: Version) -> Reply:
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
        return {"loop": loop_in(version), **facts, "replaced": replaced_in(version)}
    except BadData as error:
        return {"loop": None, **facts, "replaced": [], "damaged": str(error)}


def split_reason(reason: str | None) -> tuple[str | None, str | None]:
    """Return the reason of a timeline without its mark, and the kind of timeline that the mark names."""
    found = _MARK.search(reason or "")
    return (reason, None) if found is None or reason is None else (reason[: found.start()], found["what"])


def _state(version: Version) -> Any:
    """Return the state of a version; None if it is damaged."""
    try:
        return version.state
    except BadData:
        return None


def _mark(step: str, number: int) -> str:
    return f"({RESTORED if step == RESTORE else REINITIALIZED} #{number})"
