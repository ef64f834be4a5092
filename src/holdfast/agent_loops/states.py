"""States that callers read, set, and save as snapshots.

A state that a caller sets was derived from the version that it read: changes by other writers are merged, and a state
read before a restore is refused. A state that was read (`ReadState`) knows its version, whichever thread or task sets
it; for another dict, it is assumed to be the version that the caller last read or set. The context (`contextvars`)
identifies the caller: a thread, or an asyncio task.

Invariant: configuration in a state (`loop_autoresume`) is stored in the control record, not in the state. A change that
a caller has not read is never undone by the state that it sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from copy import deepcopy
from itertools import count
from threading import get_ident
from typing import Any, NamedTuple, TypeVar

from holdfast.agent_loops.config import AUTORESUME, MAX_NAME, MAX_REASON, check_flag
from holdfast.agent_loops.project import Base, Project, StateMetadata, completed_agents, replaced_in
from holdfast.agent_loops.replies import Reply, failure
from holdfast.errors import InvalidCall
from holdfast.history.committer import Resolver
from holdfast.history.version import Version
from holdfast.model.checks import check_integer, check_text
from holdfast.model.names import check_tags, short
from holdfast.tree.fold import Folder
from holdfast.tree.frozen import FrozenDict, thaw
from holdfast.tree.sanitize import sanitize

#: Maximum number of projects whose last read is remembered.
_MAX_REMEMBERED = 256

_serials = count(1)

K = TypeVar("K")


class LastRead(NamedTuple):
    """The last read, or set, of a caller."""

    #: None if the caller has only set keys.
    base: Base | None
    #: Value of `loop_autoresume` at that time.
    autoresume: bool | None
    #: Identifies the call that read the state, and its thread.
    origin: object = None
    thread: int = 0


class ReadState(dict[Any, Any]):
    """A copy of a project's state that knows what it is derived from. Pickled, it is a plain dict."""

    __slots__ = ("key", "read")
    #: Stored like a dict, wherever it is passed.
    __holdfast_plain__ = dict

    def __init__(self, state: Mapping[Any, Any], key: tuple[object, str], read: LastRead) -> None:
        super().__init__(state)
        self.key, self.read = key, read

    def copy(self) -> ReadState:
        return ReadState(self, self.key, self.read)

    __copy__ = copy

    def __deepcopy__(self, memo: dict[int, Any]) -> ReadState:
        return ReadState(deepcopy(dict(self), memo), self.key, self.read)

    def __or__(self, other: Any) -> Any:
        return ReadState(dict(self) | other, self.key, self.read)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def __holdfast_fold__(self, folder: Folder, base: Any, depth: int) -> FrozenDict:
        return folder.dict(self, base, depth)


#: By engine and project.
_last_reads: ContextVar[Mapping[tuple[int, str], LastRead]] = ContextVar("holdfast_loops_last_reads")


class States:
    """Reader and writer of the states of projects, for one engine.

    `store` identifies the store, to which a `ReadState` belongs, whichever engine has read it.
    """

    def __init__(self, store: object) -> None:
        self._serial, self._store = next(_serials), store
        #: Last read by any caller, for a caller that sets a state without having read it.
        self._latest: dict[str, LastRead] = {}

    def get(self, project: Project) -> Reply:
        """Return a copy of the current state, with the configured value of `loop_autoresume`."""
        head = project.head()
        if head is None:
            self.forget(project)
        head = head or project.existing_head()
        state = thaw(head.state)
        autoresume = project.control.read().config.loop_autoresume
        read = LastRead(Base(head.number, head.hash), autoresume, object(), get_ident())
        if isinstance(state, dict):
            if autoresume is not None:
                state[AUTORESUME] = autoresume
            state = ReadState(state, (self._store, project.id), read)
        self._remember(project, read)
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
        plain, replaced, autoresume = _storable(state)
        is_read = isinstance(state, ReadState) and state.key == (self._store, project.id)
        last = self._last_read(project)
        if is_read and not _is_continued(state.read, last):
            last = state.read
        derived = None if base is None else Base(base)
        if base is None and expected is None and last is not None:
            derived = last.base
        made = project.write(
            lambda head: plain,
            metadata._replace(replaced=replaced),
            base=derived,
            expected=expected,
            resolve=resolve,
        )
        is_merged = derived is not None and (derived.own is not None or derived.version != (made.parent or 0))
        known = self._configure(project, autoresume, last)
        read = (last or LastRead(None, None))._replace(
            base=Base(made.number, made.hash, plain if is_merged else None), autoresume=known
        )
        if is_read:
            state.read = read
        self._remember(project, read)
        return made, replaced

    def update(
        self, project: Project, changes: Any, remove: Any, metadata: StateMetadata
    ) -> tuple[Version, list[str]]:
        """Set some keys of the state and remove others; return as `set`."""
        plain, replaced, autoresume = _storable(changes)
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

        made = project.write(changed, metadata._replace(replaced=replaced))
        last = self._last_read(project)
        if autoresume is not None:
            known = self._configure(project, autoresume, None)
            self._remember(project, (last or LastRead(None, None))._replace(autoresume=known))
        return made, replaced

    def save(
        self, project: Project, state: Any, metadata: StateMetadata, *, base: int | None = None
    ) -> Reply:
        """Save a snapshot of the current state, or of `state`, which becomes the current one."""
        if state is None:
            return save_snapshot(project, metadata)
        made, replaced = self.set(project, state, metadata, base=base)
        return saved_reply(project, made, replaced, metadata)

    def forget(self, project: Project) -> None:
        """Forget what this caller, and any other, has read of a project that does not exist any more."""
        key = self._key(project)
        _last_reads.set({each: read for each, read in _last_reads.get({}).items() if each != key})
        self._latest = {each: read for each, read in self._latest.items() if each != project.id}

    def _configure(self, project: Project, autoresume: bool | None, last: LastRead | None) -> bool | None:
        """Apply configuration that was in a state, if it differs from what the caller last read; return what the
        caller knows of it now."""
        known = None if last is None else last.autoresume
        if autoresume is None or autoresume is known:
            return known
        return project.control.configure({AUTORESUME: autoresume}, None).loop_autoresume

    def _key(self, project: Project) -> tuple[int, str]:
        return self._serial, project.id

    def _remember(self, project: Project, read: LastRead) -> None:
        _last_reads.set(_with(_last_reads.get({}), self._key(project), read))
        self._latest = _with(self._latest, project.id, read)

    def _last_read(self, project: Project) -> LastRead | None:
        return _last_reads.get({}).get(self._key(project)) or self._latest.get(project.id)


def _is_continued(read: LastRead, last: LastRead | None) -> bool:
    """Return whether the thread that read a state has set a copy of it since: its next state follows that one. Copies
    that were handed to other threads are derived from what was read."""
    return last is not None and last.origin is read.origin and read.thread == get_ident()


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


def _storable(state: Any) -> tuple[dict[Any, Any], list[str], bool | None]:
    """Return a storable copy of a state, the paths of replaced values, and the configuration that was in it."""
    plain, replaced = storable(state)
    autoresume = check_flag(AUTORESUME, plain.pop(AUTORESUME)) if AUTORESUME in plain else None
    return plain, replaced, autoresume


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
