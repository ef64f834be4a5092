"""States and snapshots of projects: the half of the engine that needs no agents.

Whoever reads a state and sets it again is taken to have made it from what was read: what others changed meanwhile is
merged, and what was read before a restore is refused. Who is who is told by the context (`contextvars`): a thread, or
an asyncio task.

Invariant: a restore changes the state and nothing else; configuration, agents, prompts and the audit are elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from itertools import count
from typing import Any, NamedTuple, TypeVar

from holdfast.engine import Holdfast
from holdfast.errors import InvalidCall, InvalidReference
from holdfast.history.advance import Resolver
from holdfast.history.version import Version
from holdfast.loops.care import Care, told
from holdfast.loops.control import Control
from holdfast.loops.project import (
    Facts,
    Project,
    Restored,
    loop_in,
    replaced_in,
    snapshot_facts,
    storable,
)
from holdfast.loops.replies import Reply, failure, no_snapshot, reported, stamp
from holdfast.loops.settings import ACTOR, AUTORESUME, REASON
from holdfast.model.names import check_number, check_tags, check_text, short
from holdfast.tree.frozen import thaw

#: Projects of which it is remembered what was read.
_SEEN = 256

_serials = count(1)

K = TypeVar("K")


class Seen(NamedTuple):
    """What somebody last read or wrote of a project."""

    version: int | None
    #: Whether the project was said to restore by itself.
    autoresume: bool | None


#: By engine and project.
_seen: ContextVar[Mapping[tuple[int, str], Seen]] = ContextVar("holdfast_loops_seen")


class Keeper(Care):
    """Keeps the states of projects."""

    def __init__(self, hf: Holdfast) -> None:
        if not isinstance(hf, Holdfast):
            raise InvalidCall(f"LoopEngine takes an open store, holdfast.open(…), not {type(hf).__name__}")
        super().__init__(hf)
        self._serial = next(_serials)
        #: What anybody last saw, for one who sets a state without having read it.
        self._latest: dict[str, Seen] = {}

    @reported
    def get_project_state(self, project_id: str) -> Reply:
        """The state of a project as it is: a copy, to be changed and set. `loop_autoresume` stands in it as
        configured."""
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
        """Make a dict the state of a project, which is made if it is not there.

        The state is taken to be made from what the caller read or set last, or from version `base`: what others have
        changed since is merged, a change of one place by both is the error `merge_conflict` unless `resolve` decides,
        and a state from before a restore is the error `stale_version`. With `expected`, the project must be at that
        version.

        Cycles and values that cannot be stored are replaced, and named in `replaced`. `loop_autoresume` in the state is
        configuration: True or False is kept where no restore touches it.
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
        """Set some keys of a state, remove others, and leave the rest as it is, whoever else writes, and also after a
        restore: nothing has to be read before."""
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
        """Save a snapshot of the project's state, or of `state`, which is set with it."""
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
        """Put a project back to its last good snapshot.

        The whole state is replaced, on a new timeline: every key of the snapshot has the value that it had, deep down.
        Top-level keys of the state that the snapshot does not have are not known to it: they are kept as they are and
        named in `kept`, or left behind with `keep_unknown=False`. Nothing is deleted. History, configuration, agents,
        prompts and the audit stay. Snapshots that are damaged are passed over, and named in `skipped`.

        Who read the state before must read it again: to set what was made from it is the error `stale_version`.
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
        """Put a project back to a snapshot or any other version: its number, or a tag."""
        if version is None:
            raise InvalidReference("name the version to restore: a number or a tag")
        return self._restore(project_id, version, reason, actor, keep_unknown)

    @reported
    def get_snapshot_history(self, project_id: str, *, limit: int = 100) -> Reply:
        """The snapshots of a project, oldest first; the newest of them if there are more than `limit`."""
        check_number("limit", limit, 1)
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

    # How it works

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
        """Follow the configured policy after a snapshot; what fails here does not undo the snapshot."""
        policy = control.config.retention
        # Looking through a long history for the one that is too many is done only now and then.
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
                check_number(name, number, 0)
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
        """What can be stored of a state. What is configuration in it is configured, if it is news."""
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
    """Keys that a caller names."""
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
    """Notes with one more, at the end; the oldest go where there are too many."""
    fresh = {each: note for each, note in notes.items() if each != key}
    fresh[key] = seen
    while len(fresh) > _SEEN:
        del fresh[next(iter(fresh))]
    return fresh
