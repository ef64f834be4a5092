"""States that callers read, set, and save as snapshots.

A state that a caller sets is assumed to be derived from the version that the caller last read: changes by
other writers are merged, and a state read before a restore is refused. The context (`contextvars`) identifies
the caller: a thread, or an asyncio task.

Invariant: configuration in a state (`loop_autoresume`) is stored in the control record, not in the state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from itertools import count
from typing import Any, NamedTuple, TypeVar

from holdfast.agent_loops.config import AUTORESUME, MAX_NAME, MAX_REASON
from holdfast.agent_loops.project import Project, StateMetadata, completed_agents, replaced_in
from holdfast.agent_loops.replies import Reply, failure
from holdfast.errors import InvalidCall
from holdfast.history.committer import Resolver
from holdfast.history.version import Version
from holdfast.model.checks import check_integer, check_text
from holdfast.model.names import check_tags, short
from holdfast.tree.frozen import thaw
from holdfast.tree.sanitize import sanitize

#: Maximum number of projects whose last read is remembered.
_MAX_REMEMBERED = 256

_serials = count(1)

K = TypeVar("K")


class LastRead(NamedTuple):
    """The version of a project that a caller last read or wrote."""

    version: int | None
    #: Value of `loop_autoresume` at that time.
    autoresume: bool | None


#: By engine and project.
_last_reads: ContextVar[Mapping[tuple[int, str], LastRead]] = ContextVar("holdfast_loops_last_reads")


class States:
    """Reader and writer of the states of projects, for one engine."""

    def __init__(self) -> None:
        self._serial = next(_serials)
        #: Last read by any caller, for a caller that sets a state without having read it.
        self._latest: dict[str, LastRead] = {}

    def get(self, project: Project) -> Reply:
        """Return a copy of the current state, with the configured value of `loop_autoresume`."""
        head = project.existing_head()
        state = thaw(head.state)
        autoresume = project.control.read().config.loop_autoresume
        if isinstance(state, dict) and autoresume is not None:
            state[AUTORESUME] = autoresume
        self._remember(project, LastRead(head.number, autoresume))
        return {**project.reply("ok", head), "state": state}

    def set(
        self,
        project: Project,
        state: Any,
        metadata: StateMetadata,
        *,
        base: int | None = None,
        expected: int | None = None,
        resolve: Resolver | None = None,
    ) -> tuple[Version, list[str]]:
        """Commit a state; return the version and the paths of values that were replaced."""
        for name, number in (("base", base), ("expected", expected)):
            if number is not None:
                check_integer(name, number, 0)
        if resolve is not None and not callable(resolve):
            raise InvalidCall("resolve is a function of path, base, ours and theirs")
        plain, replaced = self._storable(project, state)
        if base is None and expected is None:
            last = self._last_read(project)
            base = None if last is None else last.version
        made = project.write(
            lambda head: plain,
            metadata._replace(replaced=replaced),
            base=base,
            expected=expected,
            resolve=resolve,
        )
        last = self._last_read(project)
        self._remember(project, LastRead(made.number, None if last is None else last.autoresume))
        return made, replaced

    def update(
        self, project: Project, changes: Any, remove: Any, metadata: StateMetadata
    ) -> tuple[Version, list[str]]:
        """Set some keys of the state and remove others; return as `set`."""
        plain, replaced = self._storable(project, changes)
        removed = _check_keys(remove)

        def changed(head: Version | None) -> dict[Any, Any]:
            state = {} if head is None else head.state
            if not isinstance(state, dict):
                raise InvalidCall(
                    f"the state of project {project.id!r} is not a dict: it has no keys to update"
                )
            state = dict(state)
            for key in removed:
                state.pop(key, None)
            return state | plain

        return project.write(changed, metadata._replace(replaced=replaced)), replaced

    def save(self, project: Project, state: Any, metadata: StateMetadata) -> Reply:
        """Save a snapshot of the current state, or of `state`, which becomes the current one."""
        if state is None:
            return save_snapshot(project, metadata)
        made, replaced = self.set(project, state, metadata)
        return saved_reply(project, made, replaced, metadata)

    def _storable(self, project: Project, state: Any) -> tuple[dict[Any, Any], list[str]]:
        """Return a storable copy of a state, and replaced paths. Apply configuration in the state if it
        differs from the last read."""
        plain, replaced = storable(state)
        if AUTORESUME in plain:
            value = plain.pop(AUTORESUME)
            last = self._last_read(project)
            if last is None or last.autoresume is not value:
                project.control.configure({AUTORESUME: value}, None)
                self._remember(project, LastRead(None if last is None else last.version, value))
        return plain, replaced

    def _remember(self, project: Project, read: LastRead) -> None:
        _last_reads.set(_with(_last_reads.get({}), (self._serial, project.id), read))
        self._latest = _with(self._latest, project.id, read)

    def _last_read(self, project: Project) -> LastRead | None:
        return _last_reads.get({}).get((self._serial, project.id)) or self._latest.get(project.id)


def save_snapshot(project: Project, metadata: StateMetadata, *, expected: int | None = None) -> Reply:
    """Save a snapshot of the current state."""
    replaced = replaced_in(project.existing_head())
    made = project.write(
        lambda head: (head or project.existing_head()).state,
        metadata._replace(replaced=replaced),
        expected=expected,
    )
    return saved_reply(project, made, replaced, metadata)


def saved_reply(project: Project, made: Version, replaced: list[str], metadata: StateMetadata) -> Reply:
    """Return the reply for a saved snapshot, and remove snapshots that the configuration does not keep."""
    reply = {
        **project.reply("saved", made),
        "agents_completed": completed_agents(made),
        "replaced": replaced,
        "tags": list(metadata.tags),
    }
    policy = project.control.read().config.retention
    # Prune only now and then, because searching a long history for one excess snapshot is slow.
    if policy is not None and made.number % max(1, (policy.last or 0) // 10) == 0:
        try:
            reply["pruned"] = list(project.prune(policy).versions)
        except Exception as error:
            # A failure does not undo the snapshot.
            reply |= {"pruned": [], "prune_error": failure(error)["message"]}
    return reply


def storable(state: Any) -> tuple[dict[Any, Any], list[str]]:
    """Return a storable copy of a state, and the paths of the values that had to be replaced."""
    if not isinstance(state, dict):
        raise InvalidCall(f"a project's state is a dict, not {type(state).__name__}")
    plain, replaced = sanitize(state)
    if not isinstance(plain, dict):
        raise InvalidCall(f"the state cannot be read: {plain}")
    return plain, replaced


def checked_metadata(note: Any, actor: Any, *, snapshot: bool = False, tags: Any = ()) -> StateMetadata:
    """Return the metadata of a version that a caller describes."""
    return StateMetadata(
        snapshot,
        check_text("note", note, MAX_REASON),
        check_text("actor", actor, MAX_NAME),
        tuple(check_tags(tags)) if snapshot else (),
    )


def _check_keys(keys: Any) -> list[Any]:
    """Return a caller's keys as a list of hashable values."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise InvalidCall(f"give a list of keys, not {short(keys)}")
    found = list(keys)
    try:
        for key in found:
            hash(key)
    except Exception:
        raise InvalidCall("a key must be hashable") from None
    return found


def _with(reads: Mapping[K, LastRead], key: K, read: LastRead) -> dict[K, LastRead]:
    """Return a copy with one entry added at the end; drop the oldest above the limit."""
    fresh = {each: known for each, known in reads.items() if each != key}
    fresh[key] = read
    while len(fresh) > _MAX_REMEMBERED:
        del fresh[next(iter(fresh))]
    return fresh
