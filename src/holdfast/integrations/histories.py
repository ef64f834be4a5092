"""Entries that a framework saves under its own keys, written to the histories of a store.

An entry becomes the version after the entry that it was derived from. If that already has a successor, the
entry starts a new timeline: two writers are never mixed, and neither is lost.

Invariant: an entry is written whole by one commit.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar

import holdfast
from holdfast import (
    AlreadyExists,
    Holdfast,
    InvalidCall,
    InvalidReference,
    NotFound,
    Opaque,
    StaleVersion,
    Version,
    thaw,
)
from holdfast.model.public import RunSummary

K = TypeVar("K", bound=Hashable)

#: Maximum number of versions that are remembered.
_MAX_REMEMBERED = 10_000
#: Escapes for characters that have a meaning in a run id.
_ESCAPES = str.maketrans({char: f"%{ord(char):02X}" for char in "%/@~\\"})


class KnownVersions(Generic[K]):
    """The versions that a framework has read or written, by its own keys. Safe to use from several threads."""

    def __init__(self, hf: Holdfast) -> None:
        self._hf = check_store(hf)
        #: Run, number and hash of versions by key, least recently remembered first.
        self._locations: OrderedDict[K, tuple[str, int, str]] = OrderedDict()
        self._lock = threading.Lock()

    def find(self, key: K) -> Version | None:
        """Return the version of a key, if it is remembered and still exists. A version of the same number in a run
        that was deleted and created again is another version."""
        location = self._locations.get(key)
        if location is None:
            return None
        run_id, number, version_hash = location
        try:
            found = self._hf.history(run_id).at(number)
        except NotFound:
            return None
        return found if found.hash == version_hash else None

    def hash_of(self, key: K) -> str | None:
        """Return the hash of the version that is remembered for a key, even if it no longer exists."""
        location = self._locations.get(key)
        return None if location is None else location[2]

    def list_keys(self) -> list[K]:
        """Return the keys of all remembered versions."""
        with self._lock:
            return list(self._locations)

    def remember(self, key: K, version: Version) -> None:
        """Remember a version that was read or written."""
        with self._lock:
            self._locations.pop(key, None)
            self._locations[key] = version.run, version.number, version.hash
            if len(self._locations) > _MAX_REMEMBERED:
                self._locations.popitem(last=False)


class EntryLog:
    """Entries of a framework, as versions of runs. Safe to use from several threads."""

    def __init__(self, hf: Holdfast, allow: Iterable[type] = ()) -> None:
        self.hf = check_store(hf)
        if isinstance(allow, type | str) or not isinstance(allow, Iterable):
            raise InvalidCall("allow takes a list of classes, such as allow=[Order]")
        #: The application's own classes.
        self.allowed = tuple(allow)
        for cls in self.allowed:
            holdfast.register(cls)

    def recent_runs(self, prefix: str) -> list[RunSummary]:
        """Return all runs whose ids start with a prefix, most recently changed first."""
        return sorted(self.hf.iter_runs(prefix=prefix), key=lambda run: run.updated, reverse=True)

    def append(
        self,
        run_id: str,
        entry: Any,
        *,
        after: Version | None,
        step: str,
        tags: Iterable[str] = (),
        status: str | None = None,
        advice: str = "continue it, or choose another id",
    ) -> Version:
        """Commit an entry as the version after `after`; None if it must be the first of its run. Raise
        `StaleVersion` if the run was deleted and created again, or `AlreadyExists`, with `advice`, if the run of a
        first entry exists."""
        history = self.hf.history(run_id)
        facts: dict[str, Any] = {"step": step, "tags": tags, "status": status}
        if after is not None:
            return history.commit(entry, after=after, **facts)
        try:
            return history.commit(entry, expected=0, **facts)
        except StaleVersion as error:
            raise AlreadyExists(f"run {run_id!r} exists already: {advice}", run=run_id) from error


def check_store(hf: Any) -> Holdfast:
    """Return an open store, or raise `InvalidCall`."""
    if not isinstance(hf, Holdfast):
        raise InvalidCall(f"give an open store, such as holdfast.open('runs.db'), not {type(hf).__name__}")
    return hf


def check_not_workflow(hf: Holdfast, run_id: str) -> bool:
    """Raise `InvalidCall` if a run belongs to a workflow, whose state comes from its steps. Return whether
    the run exists."""
    try:
        run = hf.get(run_id)
    except (NotFound, InvalidReference):
        return False
    workflow = run.workflow
    if workflow is not None:
        raise InvalidCall(
            f"run {run_id!r} is one of workflow {workflow!r}: choose another run id",
            run=run_id,
            workflow=workflow,
        )
    return True


def plain_state(version: Version) -> Any:
    """Return the state of a version as ordinary values; raise `InvalidCall` if it holds an unregistered
    class."""
    state = thaw(version.state)
    seen: set[int] = set()
    left = [state]
    while left:
        value = left.pop()
        if isinstance(value, Opaque):
            raise InvalidCall(
                f"{version!r} holds a {value.tag}, which is not known here: pass allow=[…] with that class",
                run=version.run,
                type=value.tag,
            )
        if id(value) in seen or isinstance(value, str | bytes | int | float | type | None):
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            left += value.values()
        elif isinstance(value, list | tuple | set | frozenset | deque):
            left += value
        elif is_dataclass(value):
            left += [getattr(value, field.name) for field in fields(value)]
        else:
            left += getattr(value, "__dict__", {}).values()
    return state


def build_run_id(*names: str) -> str:
    """Return a readable run id for a framework's names, distinct for distinct names. The engine checks
    whether it is valid."""
    for name in names:
        if not isinstance(name, str) or not name:
            raise InvalidCall(f"an id is a string that is not empty, not {name!r:.60}")
    return "/".join(
        name.translate(_ESCAPES) if name.strip(".") else name.replace(".", "%2E") for name in names
    )
