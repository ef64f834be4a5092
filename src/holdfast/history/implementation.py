"""Which implementation of a step a version was made by.

A version names it (`ran` in its detail: qualified name, code, overridden) where the run's line does not name the same
one for that step in the versions shortly before; the others are of the one that was named last.

Invariant: the implementation of a version is found within `LOOK_BACK` versions of its line, unless it
was pruned.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from holdfast.history.version import Version

#: Versions after which an implementation is named again.
LOOK_BACK = 256


class Implementation(msgspec.Struct, frozen=True):
    """The code that ran as a step."""

    #: Module and qualified name of the function.
    name: str
    #: The fingerprint of its code.
    code: str
    #: Was it an override, and not the step's own function?
    overridden: bool

    def is_same(self, other: Implementation) -> bool:
        """Is this the same code, wherever it was imported from?"""
        one, two = ((each.name.rpartition(".")[2], each.code, each.overridden) for each in (self, other))
        return one == two

    def __str__(self) -> str:
        return f"{self.name} {self.code}{' (override)' if self.overridden else ''}"


def implementation_of(version: Version) -> Implementation | None:
    """Return what ran as the step of a version; None if it is not recorded."""
    if version.step is None or "args" not in version.detail:
        return None
    for distance, earlier in enumerate(version.line()):
        if earlier.step == version.step and "ran" in earlier.detail:
            return _read(earlier.detail["ran"])
        if distance > LOOK_BACK:
            return None
    return None


def implementations(line: Iterable[Version]) -> dict[tuple[str, int], Implementation]:
    """Return the same for a whole line of versions, oldest first, by run and number."""
    last: dict[str, Implementation] = {}
    found: dict[tuple[str, int], Implementation] = {}
    for version in line:
        if version.step is None or "args" not in version.detail:
            continue
        if "ran" in version.detail:
            last[version.step] = _read(version.detail["ran"])
        if version.step in last:
            found[version.run, version.number] = last[version.step]
    return found


def _read(ran: Any) -> Implementation:
    return Implementation(ran[0], ran[1], ran[2])
