"""The versions of a run's checkpoints, by the checkpoints' ids.

A checkpoint is the version whose key is its id. One that was put again has further versions, whose keys are the id, a
space, a number and a random suffix, so that two writers never choose the same key. A version without a key was edited
by hand, or started the run before its first checkpoint; its state has the id.

Invariant: nothing is cached, so each answer is that of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from typing import Any, TypeVar
from uuid import uuid4

from holdfast import History, Version
from holdfast.errors import NotFound
from holdfast.integrations.langgraph.layout import Seal, StoredCheckpoint, not_a_thread

T = TypeVar("T")

#: Maximum checkpoints per page of a list.
PAGE = 50
#: Versions that are read at once if most checkpoints have only one.
_FEW = 8
#: Follows a checkpoint's id in the key of a version that replaced it. Ids contain no space.
_AGAIN = " "
#: The character after `_AGAIN`: keys of a checkpoint are below its id with this character.
_AFTER = "!"
#: Separates the number in such a key from the random suffix.
_SUFFIX = "."


class Attempts:
    """Decides whether an operation that missed a version of a run is tried again.

    Versions may have been removed between two reads, or the run deleted or created again. If that has not happened
    since the last attempt, the cause persists: a missing artifact, for instance.
    """

    def __init__(self, history: History) -> None:
        self._history = history
        #: Key of the run, and number of times that versions were removed, at the last attempt that failed.
        self._place: tuple[int, int] | None = (0, 0)

    def may_repeat(self) -> bool:
        """Return whether to try again, after an attempt that failed."""
        before, run = self._place, self._history.context.store.run(self._history.id)
        self._place = None if run is None else (run.key, run.epoch)
        return self._place != before

    @property
    def found_run(self) -> bool:
        """Whether the run existed after the last attempt that failed."""
        return self._place is not None


def read_stable(history: History, read: Callable[[], T]) -> T | None:
    """Return the result of a function that reads versions. It is called again if it misses a version that was removed
    meanwhile; `NotFound` if the cause persists. None if the run does not exist."""
    attempts = Attempts(history)
    while True:
        try:
            return read()
        except NotFound:
            may_repeat = attempts.may_repeat()
            if not attempts.found_run:
                return None
            if not may_repeat:
                raise


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, history: History, unseal: Seal) -> None:
        self.history = history
        self._unseal = unseal

    def part(self, version: Version, *path: str, default: Any = None) -> Any:
        """Return a private copy of a part of a version's state."""
        return StoredCheckpoint(version, {}, self._unseal).part(*path, default=default)

    def id_of(self, version: Version) -> str | None:
        """Return the id of a version's checkpoint; None if the version starts a run without one."""
        if version.key is not None:
            return version.key.partition(_AGAIN)[0]
        found = self.part(version, "checkpoint", default=self)
        if found is None:
            return None
        if not isinstance(found, dict) or not isinstance(found.get("id"), str):
            raise not_a_thread(self.history.id)
        return str(found["id"])

    def channels(self, version: Version) -> Collection[str]:
        """Return the names of the channels that have a value in a version."""
        try:
            found = version.get("channel_values")
        except NotFound as error:
            if "path" not in error.details:
                raise
            return ()
        return found.keys() if isinstance(found, dict) else ()

    def find(self, checkpoint: str) -> Version | None:
        """Return the newest version of a checkpoint that has a key."""
        for version in self.history.keyed_versions(before=checkpoint + _AFTER, limit=1):
            if self.id_of(version) == checkpoint:
                return version
        return next((version for found, version in self._unkeyed() if found == checkpoint), None)

    def versions_of(self, checkpoint: str) -> list[Version]:
        """Return the versions of a checkpoint that have a key, newest first."""
        found: list[Version] = []
        before: str | None = checkpoint + _AFTER
        while page := self.history.keyed_versions(before=before, limit=_FEW):
            same = [each for each in page if self.id_of(each) == checkpoint]
            found += same
            if len(same) < len(page):
                break
            before = page[-1].key
        return found

    def numbers_of(self, version: Version) -> list[int]:
        """Return the versions of the checkpoint of a version: more than one if it was put again."""
        checkpoint = self.id_of(version)
        if version.key is None:
            return [number.number for found, number in self._unkeyed() if found == checkpoint]
        return [each.number for each in self.versions_of(str(checkpoint))]

    def next_key(self, checkpoint: str) -> str:
        """Return the key for another version of a checkpoint. No other call returns the same."""
        newest = next(iter(self.history.keyed_versions(before=checkpoint + _AFTER, limit=1)), None)
        count = 0
        if newest is not None and newest.key is not None and self.id_of(newest) == checkpoint:
            count = int(newest.key.partition(_AGAIN)[2].partition(_SUFFIX)[0] or 0)
        return f"{checkpoint}{_AGAIN}{count + 1:09}{_SUFFIX}{uuid4().hex[:8]}"

    def pages(self, before: str | None, first: int = PAGE) -> Iterator[list[tuple[str, Version]]]:
        """Yield pages of checkpoints whose ids are below `before`, in descending order of ids, each with its newest
        version. The first page has `first` checkpoints, each next one twice as many, up to a limit."""
        last = None
        seen: set[str] = set()
        key, size = before, first
        while True:
            try:
                versions = self.history.keyed_versions(before=key, limit=size)
            except NotFound:
                return
            if not versions:
                break
            page = []
            for version in versions:
                checkpoint = str(self.id_of(version))
                if checkpoint != last:
                    page.append((checkpoint, version))
                    last = checkpoint
            seen.update(checkpoint for checkpoint, _ in page)
            key, size = versions[-1].key, min(2 * size, PAGE)
            if page:
                yield page
        rest: dict[str, Version] = {}
        for checkpoint, version in self._unkeyed():
            if checkpoint not in seen and (before is None or checkpoint < before):
                rest.setdefault(checkpoint, version)
        for checkpoint in sorted(rest, reverse=True):
            yield [(checkpoint, rest[checkpoint])]

    def _unkeyed(self) -> Iterator[tuple[str, Version]]:
        """Yield versions without a key, newest first, if the oldest checkpoint has none: earlier development versions
        of Holdfast stored no keys."""
        # A run that was deleted meanwhile has none.
        with suppress(NotFound):
            if not any(each.key is None and self.id_of(each) is not None for each in self._oldest()):
                return
            for version in self.history.iter_versions():
                checkpoint = self.id_of(version) if version.key is None else None
                if checkpoint is not None:
                    yield checkpoint, version

    def _oldest(self) -> list[Version]:
        """Return the two oldest versions: the first may have no checkpoint, if writes started the run."""
        run = self.history.run_record()
        found = self.history.context.store.versions(run.key, after=0, limit=2, ascending=True)
        return [self.history.at(record.number) for record in found]
