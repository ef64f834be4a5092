"""Parts of states that were looked at last, so that paging through one reads it once.

A version never changes, so what is kept never grows stale. While a state is kept, its neighbours in the history share
what they have in common with it, and are read faster.

Invariant: only so many are kept, and a version is known by its hash: never by a name that another could have.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from holdfast.history.version import Version
from holdfast.tree import path as paths

_KEPT = 4


class Recent:
    """What was read last."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._parts: OrderedDict[tuple[str, str, str], Any] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, version: Version, segments: Sequence[Any]) -> Any:
        """The part of a version's state at a path."""
        key = (version.run, version.hash, paths.show(segments))
        with self._lock:
            if key in self._parts:
                self._parts.move_to_end(key)
                return self._parts[key]
        value = version.get(segments) if segments else version.state
        if isinstance(value, dict | list | str):
            with self._lock:
                self._parts[key] = value
                while len(self._parts) > self._kept:
                    self._parts.popitem(last=False)
        return value
