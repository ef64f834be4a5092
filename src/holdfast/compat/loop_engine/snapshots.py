"""States and snapshots of projects: the calls of the engine that do not involve agents.

A state that a caller sets is assumed to be derived from the version that the caller last read: changes by
other writers are merged, and a state read before a restore is refused. The context (`contextvars`) identifies
the caller: a thread, or an asyncio task.

Invariant: a restore changes only the state, not configuration, agents, questions or the audit. Tagging,
comparing, pruning and exporting do not change a state; an import never overwrites a project.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from itertools import count
from typing import Any, NamedTuple, TypeVar

from holdfast.compat.loop_engine import project as names
from holdfast.compat.loop_engine.control import ACTOR, AUTORESUME, REASON, Book, Control, Settings, policy_of
from holdfast.compat.loop_engine.project import (
    Facts,
    Project,
    Restored,
    loop_in,
    replaced_in,
    snapshot_facts,
    storable,
)
from holdfast.compat.loop_engine.replies import Reply, failure, no_snapshot, reported, stamp
from holdfast.engine import Holdfast
from holdfast.errors import AlreadyExists, InvalidCall, InvalidReference, NotFound
from holdfast.history.committer import Resolver
from holdfast.history.snapshot import read
from holdfast.history.version import Version
from holdfast.model.checks import check_integer, check_text
from holdfast.model.names import check_tags, short
from holdfast.tree.frozen import thaw


class Care(Settings):
    """Calls that manage snapshots: tag, compare, prune, export, import."""

    @reported
    def tag(self, project_id: str, version: int | str, name: str) -> Reply:
        """Tag a version. A tagged version can be found by its tag and is never pruned."""
        project = Project(self._hf, project_id)
        project.log.tag(version, name)
        return {**told("tagged", project, project.log.at(version)), "tag": name}

    @reported
    def untag(self, project_id: str, version: int | str, name: str) -> Reply:
        """Remove a tag from a version."""
        project = Project(self._hf, project_id)
        project.log.untag(version, name)
        return {**told("untagged", project, project.log.at(version)), "tag": name}

    @reported
    def compare(self, project_id: str, a: int | str, b: int | str = "head") -> Reply:
        """Return the changes from one version to another: numbers, tags, `head`, `~2`."""
        project = Project(self._hf, project_id)
        one, two = project.log.at(a), project.log.at(b)
        found = project.difference(one, two)
        if "diff_error" in found:
            _ = one.state, two.state  # raises the error of the damaged version
        return {
            "status": "compared",
            "project_id": project.id,
            "a": one.number,
            "b": two.number,
            "same": not found["diff_count"],
            **found,
        }

    @reported
    def prune(self, project_id: str, policy: Any = None, *, audit: Any = None) -> Reply:
        """Remove old snapshots, and the states between them.

        The policy is a number of snapshots to keep, a `holdfast.Retention`, or by default the configured one;
        `audit` is such a policy for audit entries. The head, the last good snapshot, and tagged and pinned
        versions are always kept.
        """
        project, book = self._open(project_id)
        chosen = book.read().config.retention if policy is None else policy_of(policy)
        if chosen is None and audit is None:
            raise InvalidCall(
                "say what to keep: prune(project_id, 10), or configure(project_id, retention=10)"
            )
        found: Reply = {"pruned": [], "kept": [], "bytes": 0}
        if chosen is not None:
            found = project.prune(chosen)
        forgotten = 0 if audit is None else book.prune(policy_of(audit))
        return {"status": "pruned", "project_id": project.id, **found, "audit": forgotten}

    @reported
    def export(self, project_id: str, version: int | str | None = None) -> Reply:
        """Return a version, by default the last good snapshot, as a document for `json.dumps`."""
        project = Project(self._hf, project_id)
        chosen = (
            project.last_good(project.known(), []) if version is None else project.log.at(version)
        )  # fmt: skip
        if chosen is None:
            return no_snapshot(project.id)
        return {**told("exported", project, chosen), "document": project.log.export(chosen)}

    @reported
    def import_(
        self,
        document: Any,
        project_id: str | None = None,
        *,
        append: bool = False,
        actor: str | None = None,
    ) -> Reply:
        """Create a project from a document of `export`, or its text. With `append`, an existing project gets
        it as its newest snapshot; otherwise an existing project is an error."""
        facts = read(document)
        project = Project(self._hf, _named(facts["run"]) if project_id is None else project_id)
        if project.head() is not None and append is not True:
            raise AlreadyExists(
                f"project {project.id!r} exists: import under another id, or with append=True",
                run=project.log.id,
            )
        state, replaced = storable(facts["state"])
        state.pop(AUTORESUME, None)
        said = Facts(
            True, facts["note"], check_text("actor", actor, ACTOR), tuple(facts["tags"]), "import", replaced
        )
        made = project.write(lambda head: state, said, expected=None if append else 0)
        return {**told("imported", project, made), "replaced": replaced}

    def _open(self, project_id: Any) -> tuple[Project, Book]:
        project = Project(self._hf, project_id)
        return project, Book(self._hf, project.name, project.id)


def told(status: str, project: Project, version: Version) -> Reply:
    """Return a version in the form of a reply."""
    return {
        "status": status,
        "project_id": project.id,
        "loop": loop_in(version),
        "timestamp": stamp(version.at),
        "version": version.number,
    }


def _named(run_id: str) -> str:
    """Return the id of the project whose state a run holds."""
    name = names.state_name(run_id)
    if name is None:
        raise NotFound(
            f"the document is of run {run_id!r}, which is no project's: give a project_id", run=run_id
        )
    return names.unquoted(name)


#: Maximum number of projects whose last read is remembered.
_SEEN = 256

_serials = count(1)

K = TypeVar("K")


class Seen(NamedTuple):
    """The version of a project that a caller last read or wrote."""

    version: int | None
    #: Value of `loop_autoresume` at that time.
    autoresume: bool | None


#: By engine and project.
_seen: ContextVar[Mapping[tuple[int, str], Seen]] = ContextVar("holdfast_loops_seen")


class Keeper(Care):
    """Calls that read, write, save and restore the states of projects."""

    def __init__(self, hf: Holdfast) -> None:
        if not isinstance(hf, Holdfast):
            raise InvalidCall(f"LoopEngine takes an open store, holdfast.open(…), not {type(hf).__name__}")
        super().__init__(hf)
        self._serial = next(_serials)
        #: Last read by any caller, for a caller that sets a state without having read it.
        self._latest: dict[str, Seen] = {}

    @reported
    def get_project_state(self, project_id: str) -> Reply:
        """Return a copy of a project's current state, which may be changed and set. Its `loop_autoresume` is
        the configured value."""
        project, book = self._open(project_id)
        head = project.known()
        state = thaw(head.state)
        autoresume = book.read().config.loop_autoresume
        if isinstance(state, dict) and autoresume is not None:
            state[AUTORESUME] = autoresume
        self._saw(project, head.number, autoresume)
        return {**told("ok", project, head), "state": state}

    @reported
    def set_project_state(
        self,
        project_id: str,
        state: Any,
        *,
        base: int | None = None,
        expected: int | None = None,
        resolve: Resolver | None = None,
        note: str | None = None,
        actor: str | None = None,
    ) -> Reply:
        """Set the state of a project to a dict; create the project if it does not exist.

        The state is assumed to be derived from the version that the caller last read or set, or from version
        `base`: changes by others since then are merged, a change of the same place by both is the error
        `merge_conflict` unless `resolve` decides, and a state from before a restore is the error
        `stale_version`. With `expected`, the project must be at that version.

        Cycles and values that cannot be stored are replaced, and listed in `replaced`. `loop_autoresume` in
        the state is configuration: True or False is stored where no restore touches it.
        """
        facts = Facts(note=check_text("note", note, REASON), actor=check_text("actor", actor, ACTOR))
        project = Project(self._hf, project_id)
        made, replaced = self._set(project, state, facts, base=base, expected=expected, resolve=resolve)
        return {**told("set", project, made), "replaced": replaced}

    @reported
    def update_project_state(
        self,
        project_id: str,
        changes: dict[Any, Any],
        *,
        remove: Iterable[Any] = (),
        note: str | None = None,
        actor: str | None = None,
    ) -> Reply:
        """Set some keys of a state, remove others, and leave the rest. Works without a previous read, with
        concurrent writers, and after a restore."""
        facts = Facts(note=check_text("note", note, REASON), actor=check_text("actor", actor, ACTOR))
        project = Project(self._hf, project_id)
        plain, replaced = self._take(project, changes)
        gone = _keys(remove)

        def changed(head: Version | None) -> dict[Any, Any]:
            state = {} if head is None else head.state
            if not isinstance(state, dict):
                raise InvalidCall(f"the state of project {project.id!r} is no dict, and has no keys")
            state = dict(state)
            for key in gone:
                state.pop(key, None)
            return state | plain

        made = project.write(changed, facts._replace(replaced=replaced))
        return {**told("set", project, made), "replaced": replaced}

    @reported
    def save_loop_snapshot(
        self,
        project_id: str,
        state: Any = None,
        *,
        tags: Iterable[str] = (),
        note: str | None = None,
        actor: str | None = None,
    ) -> Reply:
        """Save a snapshot of the project's state, or of `state`, which becomes the project's state."""
        facts = Facts(
            True, check_text("note", note, REASON), check_text("actor", actor, ACTOR), tuple(check_tags(tags))
        )
        return self._save(project_id, state, facts)

    @reported
    def restore_last_snapshot(
        self,
        project_id: str,
        *,
        reason: str | None = None,
        actor: str | None = None,
        keep_unknown: bool = True,
    ) -> Reply:
        """Restore the last good snapshot of a project.

        The whole state is replaced, on a new timeline: every key of the snapshot gets its old value, at all
        depths. Top-level keys of the current state that are not in the snapshot are kept and listed in
        `kept`, or dropped with `keep_unknown=False`. Nothing is deleted. History, configuration, agents,
        questions and the audit stay. Damaged snapshots are skipped, and listed in `skipped`.

        A caller that read the state before must read it again: setting a state derived from it is the error
        `stale_version`.
        """
        return self._restore(project_id, None, reason, actor, keep_unknown)

    @reported
    def restore_snapshot(
        self,
        project_id: str,
        version: int | str,
        *,
        reason: str | None = None,
        actor: str | None = None,
        keep_unknown: bool = True,
    ) -> Reply:
        """Restore a snapshot or any other version of a project, given by number or tag."""
        if version is None:
            raise InvalidReference("name the version to restore: a number or a tag")
        return self._restore(project_id, version, reason, actor, keep_unknown)

    @reported
    def get_snapshot_history(self, project_id: str, *, limit: int = 100) -> Reply:
        """Return the snapshots of a project, oldest first; only the newest `limit` if there are more."""
        check_integer("limit", limit, 1)
        project = Project(self._hf, project_id)
        found: list[Reply] = []
        total = 0
        for version in project.snapshots():
            total += 1
            if total <= limit:
                found.append(snapshot_facts(version))
        head = project.head()
        last = None if head is None else project.last_good(head, [])
        return {
            "status": "ok",
            "project_id": project.id,
            "snapshot_count": total,
            "snapshots": found[::-1],
            "last_good": None if last is None else last.number,
        }

    # Internals

    def _save(self, project_id: Any, state: Any, facts: Facts, *, expected: int | None = None) -> Reply:
        project, book = self._open(project_id)
        if state is None:
            head = project.known()
            replaced = replaced_in(head)
            made = project.write(
                lambda head: (head or project.known()).state,
                facts._replace(replaced=replaced),
                expected=expected,
            )
        else:
            made, replaced = self._set(project, state, facts)
        reply = {**told("saved", project, made), "replaced": replaced, "tags": list(facts.tags)}
        return reply | self._prune_after(project, book.read(), made)

    def _prune_after(self, project: Project, control: Control, made: Version) -> Reply:
        """Apply the configured policy after a snapshot; a failure does not undo the snapshot."""
        policy = control.config.retention
        # Prune only now and then, because searching a long history for one excess snapshot is slow.
        if policy is None or made.number % max(1, (policy.last or 0) // 10):
            return {}
        try:
            return {"pruned": project.prune(policy)["pruned"]}
        except Exception as error:
            return {"pruned": [], "prune_error": failure(error)["message"]}

    def _set(
        self,
        project: Project,
        state: Any,
        facts: Facts,
        *,
        base: int | None = None,
        expected: int | None = None,
        resolve: Resolver | None = None,
    ) -> tuple[Version, list[str]]:
        for name, number in (("base", base), ("expected", expected)):
            if number is not None:
                check_integer(name, number, 0)
        if resolve is not None and not callable(resolve):
            raise InvalidCall("resolve is a function of path, base, ours and theirs")
        plain, replaced = self._take(project, state)
        before = base
        if base is None and expected is None:
            seen = self._has_seen(project)
            before = None if seen is None else seen.version
        made = project.write(
            lambda head: plain,
            facts._replace(replaced=replaced),
            base=before,
            expected=expected,
            resolve=resolve,
        )
        self._saw(project, made.number, self._said(project))
        return made, replaced

    def _take(self, project: Project, state: Any) -> tuple[dict[Any, Any], list[str]]:
        """Return a storable copy of a state, and replaced paths. Apply configuration in the state if it
        differs from the last read."""
        plain, replaced = storable(state)
        if AUTORESUME in plain:
            value = plain.pop(AUTORESUME)
            seen = self._has_seen(project)
            if seen is None or seen.autoresume is not value:
                self._configure(project.id, {AUTORESUME: value}, None)
                self._saw(project, None if seen is None else seen.version, value)
        return plain, replaced

    def _restore(
        self, project_id: Any, target: Any, reason: str | None, actor: str | None, keep_unknown: Any
    ) -> Reply:
        project = Project(self._hf, project_id)
        if type(keep_unknown) is not bool:
            raise InvalidCall("keep_unknown is True or False")
        said = check_text("reason", reason, REASON) or "restored by hand"
        done = project.restore(
            target, said, check_text("actor", actor, ACTOR), keep_unknown=keep_unknown, number=0
        )
        assert done is None or isinstance(done, Restored)
        return self._restored(project, done)

    def _restored(self, project: Project, done: Restored | None) -> Reply:
        if done is None:
            return no_snapshot(project.id)
        return {
            "status": "restored",
            "project_id": project.id,
            "loop": loop_in(done.made),
            "version": done.snapshot.number,
            "head": done.made.number,
            "timestamp": stamp(done.snapshot.at),
            "kept": done.kept,
            "skipped": done.skipped,
            **done.diff,
        }

    def _saw(self, project: Project, version: int | None, autoresume: bool | None) -> None:
        seen = Seen(version, autoresume)
        _seen.set(_with(_seen.get({}), (self._serial, project.id), seen))
        self._latest = _with(self._latest, project.id, seen)

    def _has_seen(self, project: Project) -> Seen | None:
        return _seen.get({}).get((self._serial, project.id)) or self._latest.get(project.id)

    def _said(self, project: Project) -> bool | None:
        seen = self._has_seen(project)
        return None if seen is None else seen.autoresume


def _keys(keys: Any) -> list[Any]:
    """Return a caller's keys as a list of hashable values."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise InvalidCall(f"give a list of keys, not {short(keys)}")
    found = list(keys)
    try:
        for key in found:
            hash(key)
    except Exception:
        raise InvalidCall("what has no hash can be no key") from None
    return found


def _with(notes: Mapping[K, Seen], key: K, seen: Seen) -> dict[K, Seen]:
    """Return a copy of the notes with one added at the end; drop the oldest above the limit."""
    fresh = {each: note for each, note in notes.items() if each != key}
    fresh[key] = seen
    while len(fresh) > _SEEN:
        del fresh[next(iter(fresh))]
    return fresh
