"""The names of the steps that led to each version of a run.

Invariant: each version is read at most once, whichever version the names are asked for.
"""

from __future__ import annotations

import threading
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.history.reader import Reader
    from holdfast.history.version import Version


class StepNames:
    """The names of the completed steps of each version of a run; each version is read once. Thread-safe.

    Versions of one line share one list: the names of a version are its first items.
    """

    __slots__ = ("_lines", "_lock", "reader")

    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        #: By number: the list of the version's line, and how many of its items belong to the version.
        self._lines: dict[int, tuple[list[str], int]] = {}
        self._lock = threading.Lock()

    def of(self, version: Version) -> list[str]:
        """Return the names for a version, oldest first."""
        with self._lock:
            names, count = self._lines.get(version.number) or self._learn(version)
            return names[:count]

    def _learn(self, version: Version) -> tuple[list[str], int]:
        known = self._lines
        walked = [version]
        if version.parent in known:
            names, count = known[version.parent]
        else:
            names, count = [], 0
            for each in islice(version.history.ancestors(version), 1, None):
                if each.number in known:
                    names, count = known[each.number]
                    break
                walked.append(each)
        if count < len(names):
            # Another line starts here.
            names = names[:count]
        for each in reversed(walked):
            if each.step is not None and each.completes_step:
                names.append(each.step)
            known[each.number] = names, len(names)
        return known[version.number]
