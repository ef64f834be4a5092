"""Summaries of versions, in which people look for the one to roll back to: step, completed steps, keys of the state.

The keys are those that versions record (see `state_keys`): a page is read with a few versions more, and no state.

Invariant: the cost of a page does not depend on the size of the states or on the length of the history.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, overload

import msgspec

from holdfast.history.state_keys import LOOK_BACK, keys_after
from holdfast.history.version import ALL_VERSIONS, Version, list_versions

if TYPE_CHECKING:
    from holdfast.history.history import History


#: The name of a step whose version was pruned.
PRUNED = "(pruned)"


class CompletedSteps(Sequence[str]):
    """The names of the steps completed up to a version, oldest first, read when they are used. The length, and the last
    names (`[-3:]`), cost no more for a long history than for a short one. A step whose version was pruned is counted,
    and named `(pruned)`."""

    __slots__ = ("_version",)

    def __init__(self, version: Version) -> None:
        self._version = version

    def __len__(self) -> int:
        return self._version.steps

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, int) and -len(self) <= index < 0:
            return self._last(-index)[index]
        if isinstance(index, slice) and index.stop is None and index.start is not None and index.start < 0:
            return self._last(-index.start)[index]
        return list(self)[index]

    def __iter__(self) -> Iterator[str]:
        names = self._version.completed_steps
        return chain(repeat(PRUNED, len(self) - len(names)), names)

    def __reversed__(self) -> Iterator[str]:
        line = self._version.history.ancestors(self._version)
        names = (version.step for version in line if version.step is not None and version.completes_step)
        # The oldest ones may have been pruned.
        return islice(chain(names, repeat(PRUNED)), len(self))

    def _last(self, count: int) -> list[str]:
        return list(islice(reversed(self), count))[::-1]

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, Sequence) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} completed steps of {self._version!r}>"


class VersionSummary(msgspec.Struct, frozen=True):
    """One entry of `History.summary`."""

    version: int
    #: The version that it follows; None for the first.
    parent: int | None
    timeline: int
    created: datetime
    kind: str
    #: The status of the run at this version.
    status: str
    #: The step that made it; None if none did.
    step: str | None
    #: The names of the steps completed up to it, oldest first. They are read when they are used; `len` reads nothing.
    #: Steps whose versions were pruned are named `(pruned)`.
    completed_steps: CompletedSteps
    #: The keys of its state, the first ones if there are many; None if not recorded. A key that is not a string is
    #: shown as its `repr`, a long one is cut.
    keys: tuple[str, ...] | None
    #: The number of all keys; None if not recorded.
    key_count: int | None
    #: Whether its row in the store is damaged; then only its number is known.
    is_damaged: bool = False


def summarize(history: History, before: int | None, limit: int) -> list[VersionSummary]:
    """Return summaries of the newest versions before one, newest first."""
    found = list_versions(history, ALL_VERSIONS, before, limit + LOOK_BACK - 1)
    keys: dict[int, Any] = {}
    for version in reversed(found):
        # A version that records none has those of the version before it, which is its parent.
        keys[version.number] = keys_after(version.detail.get("keys"), keys.get(version.number - 1))
        if version.is_damaged:
            keys[version.number] = None
    return [_summary(version, keys[version.number]) for version in found[:limit]]


def _summary(version: Version, recorded: Any) -> VersionSummary:
    return VersionSummary(
        version=version.number,
        parent=version.parent,
        timeline=version.timeline,
        created=version.at,
        kind=version.kind,
        status=version.status,
        step=version.step,
        completed_steps=CompletedSteps(version),
        keys=None if recorded is None else tuple(recorded[0]),
        key_count=None if recorded is None else recorded[1],
        is_damaged=version.is_damaged,
    )
